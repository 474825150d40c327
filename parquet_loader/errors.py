"""Every error the library raises on purpose.

    ParquetLoaderError
    ├── SourceError            nothing to read, or a path that cannot be listed or opened
    │   ├── RemoteError        a remote store failed to answer, also after all retries
    │   └── SystemReadError    the operating system could not read: I/O error, no permission  (also an OSError)
    ├── SchemaError            files and requested schema, columns or filters disagree (also a ValueError)
    ├── DataError              bytes or values that cannot be delivered                (also a ValueError)
    ├── OutOfMemoryError       the process could not get memory                        (also a MemoryError)
    ├── MemoryLimitError       the plan does not fit into `memory_limit`               (also a ValueError)
    ├── ConfigurationError     an argument of the wrong kind or range                  (also a ValueError)
    │   ├── ArgumentTypeError  ... of the wrong type                               (also a TypeError)
    │   ├── MissingPackageError ... that needs a package that is not installed     (also an ImportError)
    │   └── MissingDeviceError ... that names a GPU that is not there              (also a RuntimeError)
    ├── TransformError         the caller's `transform` broke its contract
    ├── WriteError             a data set could not be written                         (also an OSError)
    │   ├── UnfinishedCommitError   files appeared, and the rest of their commit failed
    │   └── StoreFullError     a sample store is at its limit, and nothing may be evicted
    ├── UnsupportedError       part of the contract that this version does not have yet (also a NotImplementedError)
    ├── OpenFilesError         the process may open no more files                      (also an OSError)
    ├── ReadingProcessError    a process of the library ended, or cannot be started     (also a RuntimeError)
    ├── ResumeError            a state that does not belong to this loader             (also a ValueError)
    └── LoaderStateError       used after `close()`, or iterated twice at once         (also a RuntimeError)

A message names the place (file, row group, column), what was expected, what was found, and what to do.

There are two warnings: `PerformanceWarning`, if the installation works slower than it could, and
`ParquetLoaderDeprecationWarning`, if the caller uses a name that a later version removes.
"""

from __future__ import annotations

import difflib
import errno
import unicodedata
from collections.abc import Iterable
from typing import Any


class ParquetLoaderError(Exception):
    """Base of all errors raised on purpose by `parquet_loader`."""


class PerformanceWarning(UserWarning):
    """The installation works, but slower than it could. ``warnings.filterwarnings`` silences it by this class."""


class ParquetLoaderDeprecationWarning(FutureWarning):
    """A name will be removed; the message names the version and the replacement.

    It is a `FutureWarning` because Python shows these by default; a `DeprecationWarning` is hidden outside
    ``__main__``, and users must see that their scripts have to change.
    """


class SourceError(ParquetLoaderError):
    """The source has no readable Parquet file, or a file vanished or changed after its footer was read."""


class RemoteError(SourceError):
    """A remote store did not deliver a file's bytes in time, also after all retries; the file may be intact.

    The error is not about the file's content, so ``on_error="skip"`` does not skip it.
    """


class SystemReadError(SourceError, OSError):
    """The operating system could not read a file: an I/O error, no permission, no more threads.

    `errno` holds the system's error number. The error is not about the file's content, so ``on_error="skip"`` does not
    skip it.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        make, arguments, state = (*super().__reduce__(), None)[:3]
        return make, arguments, {**(state or {}), "errno": self.errno}  # OSError's own form is without it


class OutOfMemoryError(ParquetLoaderError, MemoryError):
    """The process could not allocate memory. ``on_error="skip"`` does not skip it, because the files may be intact.

    A plan that exceeds `memory_limit` raises `MemoryLimitError` instead, before anything is read.
    """


class SchemaError(ParquetLoaderError, ValueError):
    """The files' columns do not match the requested schema, columns or filters."""


class DataError(ParquetLoaderError, ValueError):
    """A file, page or value cannot be decoded or delivered as the schema requires."""


class MemoryLimitError(ParquetLoaderError, ValueError):
    """`memory_limit` cannot hold the smallest working set; the message names a limit that suffices."""


class ConfigurationError(ParquetLoaderError, ValueError):
    """An argument has the wrong type or value."""


class ArgumentTypeError(ConfigurationError, TypeError):
    """An argument has the wrong type."""


class MissingPackageError(ConfigurationError, ImportError):
    """An argument needs a package that is not installed; the message names the extra that installs it."""


class MissingDeviceError(ConfigurationError, RuntimeError):
    """`device` names a GPU that this machine does not have."""


class TransformError(ParquetLoaderError):
    """`transform` returned something that is not a dict of equally long columns, or raised `StopIteration`."""


class WriteError(ParquetLoaderError, OSError):
    """A data set could not be written. Nothing was published unless the message says otherwise."""


class UnfinishedCommitError(WriteError):
    """New files are published, but the commit is incomplete: old files, or some of the new ones, could not be removed.

    Readers may see old and new files, or only some of the new ones; readers of a sample store see all of the new rows,
    or none until the commit is completed. The message says which, and what completes the commit. Do not write the same
    data again: its rows would be there twice.
    """


class StoreFullError(WriteError):
    """A sample store is at its limit and nothing may be evicted; the writer keeps the rows that were not written."""


class UnsupportedError(ParquetLoaderError, NotImplementedError):
    """This version does not support the request yet; the message says what to do instead."""


class OpenFilesError(ParquetLoaderError, OSError):
    """The process has no free file descriptor. ``on_error="skip"`` does not skip it, because the files are intact."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.errno = errno.EMFILE


class ReadingProcessError(ParquetLoaderError, RuntimeError):
    """A process of ``isolation="process"`` or `transform_workers` was killed or could not be started.

    Attributes:
        exitcode: The exit code of the process, or minus the number of the signal that killed it; None if it never ran.
    """

    def __init__(self, message: str, exitcode: int | None = None) -> None:
        super().__init__(message)
        self.exitcode = exitcode


class ResumeError(ParquetLoaderError, ValueError):
    """This loader cannot resume from the given state; the message says what differs."""


class LoaderStateError(ParquetLoaderError, RuntimeError):
    """The loader is closed, or another iteration of it is in progress."""


def is_skippable(error: BaseException) -> bool:
    """Whether ``on_error="skip"`` skips a row group with this error: only if the error is about the file's content."""
    is_about_data = isinstance(error, DataError | SourceError | SchemaError)
    return is_about_data and not isinstance(error, RemoteError | SystemReadError)


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Return a sentence that suggests the names most like `name`, for an error message."""
    names = list(candidates)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    same = next((c for c in close if unicodedata.normalize("NFC", c) == unicodedata.normalize("NFC", name)), None)
    if same is not None:
        return f"Did you mean {same!a}, the same letters in another Unicode form than {name!a}?"
    if close:
        return "Did you mean " + " or ".join(repr(c) for c in close) + "?"
    shown = ", ".join(repr(n) for n in names[:8])
    return f"There are: {shown}{', ...' if len(names) > 8 else ''}." if names else "There are none."
