"""Turns errors of file systems into those that callers of writers get."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa

from parquet_loader.common import is_out_of_descriptors, out_of_descriptors
from parquet_loader.errors import ParquetLoaderError, WriteError

_UNPUBLISHED = "the data set could not be written, and nothing of it was published: {}"


@contextlib.contextmanager
def storage_errors(path: str, message: str = _UNPUBLISHED, advice: str = "") -> Iterator[None]:
    """Turn the errors of a file system into a `WriteError` that names the path; the lack of a descriptor has its own.

    Args:
        path: The data set, or the store.
        message: The text of the error, with ``{}`` for the reason.
        advice: What to do about a `WriteError`.
    """
    try:
        yield
    except ParquetLoaderError:
        raise
    except MemoryError:
        raise  # a lack of memory says nothing about the data
    except (OSError, pa.ArrowException) as error:
        said = f"{path}: {message.format(reason(error))}"
        if is_out_of_descriptors(error):
            raise out_of_descriptors(said, 1) from error
        raise WriteError(f"{said}{advice}") from error


def reason(error: BaseException) -> str:
    """Return the message of an error, without its errno, and the file that it names."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.strerror}: {error.filename}" if isinstance(error.filename, str) else error.strerror
