"""Tells system failures (memory, file descriptors, disks, permissions) from a damaged file.

The bytes themselves prove damage, and ``on_error="skip"`` may skip it. A system failure says nothing about the file.
All code that catches errors of a read asks here which of the two it is.
"""

from __future__ import annotations

import errno

from parquet_loader.common.descriptors import is_out_of_descriptors, out_of_descriptors
from parquet_loader.errors import OpenFilesError, OutOfMemoryError, SystemReadError

# Arguments of a system call that a damaged file led to.
_OF_DAMAGE = frozenset({errno.EINVAL, errno.EOVERFLOW, errno.EFBIG})
_ADVICE = {
    errno.ENOSPC: "; free space on the disk",
    errno.EACCES: "; make the file readable for this user",
    errno.EPERM: "; make the file readable for this user",
    errno.EIO: "; check the disk or the network file system",
    errno.EAGAIN: "; allow this user more threads (ulimit -u)",
}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, as Arrow, numpy, Python, the kernels or a system call say it."""
    number = error.errno if isinstance(error, OSError) else None
    return isinstance(error, MemoryError) or number == errno.ENOMEM or "std::bad_alloc" in str(error)


def is_shortage(error: BaseException) -> bool:
    """Whether the process lacks memory or file descriptors, so that another way to read fails as well."""
    return is_out_of_memory(error) or is_out_of_descriptors(error)


def out_of_memory(where: str, error: BaseException) -> OutOfMemoryError:
    """Return the error that says that memory ran out, and what to do."""
    if isinstance(error, OutOfMemoryError):
        return error
    reason = _first_line(error) or type(error).__name__
    return OutOfMemoryError(f"{where}: memory ran out ({reason}); lower memory_limit, or give the process more")


def system_error(where: str, error: BaseException) -> OutOfMemoryError | OpenFilesError | SystemReadError | None:
    """Return the error to raise if a failed read is the system's failure; None: the file's.

    What the system says about a file has a number; what Arrow says about its content has none.

    Args:
        where: File, row group and column, as far as they are known.
        error: What was raised.
    """
    if isinstance(error, OpenFilesError | SystemReadError):
        return error
    if is_out_of_memory(error):
        return out_of_memory(where, error)
    if is_out_of_descriptors(error):
        return out_of_descriptors(f"{where}: the file cannot be opened", 1)
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        number = errno.EAGAIN
    if number is None or number in _OF_DAMAGE:
        return None
    found = SystemReadError(
        f"{where}: the system could not read the file: {_first_line(error)}{_ADVICE.get(number, '')}"
    )
    found.errno = number
    return found


def _first_line(error: BaseException) -> str:
    return str(error).split("\n")[0].removesuffix(".")
