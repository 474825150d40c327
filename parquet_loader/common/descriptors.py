"""The error raised when a process is out of file descriptors, and their limit."""

from __future__ import annotations

import errno
import importlib
from contextlib import suppress
from typing import Any

from parquet_loader.errors import OpenFilesError

resource: Any
try:
    resource = importlib.import_module("resource")
except ImportError:  # not on Windows
    resource = None


def out_of_descriptors(where: str, needed: int) -> OpenFilesError:
    """Return the error that says how many descriptors are missing, and how to get them.

    Args:
        where: What could not be done.
        needed: How many free descriptors it takes.
    """
    limit = 0 if resource is None else resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return OpenFilesError(
        f"{where}: no free file descriptor is left{f' of {limit}' if limit else ''}, and at least {needed} more "
        f"{'is' if needed == 1 else 'are'} needed; close files, or raise the limit before Python starts: "
        f"ulimit -n {max(4096, 4 * limit)}"
    )


def is_out_of_descriptors(error: BaseException) -> bool:
    """Whether this process, or the whole system, is out of file descriptors; recognises Arrow's errors too."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def raise_limit() -> None:
    """Raise this process's limit to its hard limit, unless the system refuses.

    Only for the library's own processes, which never call `select`.
    """
    with suppress(OSError, ValueError):  # a sandbox, or a hard limit above fs.nr_open
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
