"""Tells system failures (memory, file descriptors, disks, permissions) from a damaged file.

``on_error="skip"`` may skip a file whose bytes are damaged, but not one that the system failed to read. All code that
catches errors of a read asks this module which of the two it has.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from parquet_loader.common.descriptors import is_out_of_descriptors, out_of_descriptors
from parquet_loader.errors import OpenFilesError, OutOfMemoryError, ParquetLoaderError, SystemReadError

# A system call raises these if a damaged file led to its arguments.
_OF_DAMAGE = frozenset({errno.EINVAL, errno.EOVERFLOW, errno.EFBIG})
# What errors say if memory ran out in C++, in Python's locks or in torch's allocator, which do not raise MemoryError.
_OUT_OF_MEMORY = ("std::bad_alloc", "can't allocate lock", "can't allocate memory: you tried")
_ADVICE = {
    errno.ENOSPC: "; free space on the disk",
    errno.EACCES: "; make the file readable for this user",
    errno.EPERM: "; make the file readable for this user",
    errno.EIO: "; check the disk or the network file system",
}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, whether Arrow, numpy, torch, Python, the kernels or a system call reports it."""
    number = error.errno if isinstance(error, OSError) else None
    try:
        message = str(error)
    except Exception:  # an error of the caller's code
        message = ""
    return (
        isinstance(error, MemoryError) or number == errno.ENOMEM or any(phrase in message for phrase in _OUT_OF_MEMORY)
    )


def is_out_of_threads(error: BaseException) -> bool:
    """Whether the system has not started a thread, for lack of threads or of memory for its stack."""
    return isinstance(error, RuntimeError) and "can't start new thread" in str(error)


def is_shortage(error: BaseException) -> bool:
    """Whether the process lacks memory or file descriptors; then another way to read would fail as well."""
    return is_out_of_memory(error) or is_out_of_descriptors(error)


def out_of_memory(where: str, error: BaseException) -> OutOfMemoryError:
    """Return an error that says that memory ran out and what to do."""
    if isinstance(error, OutOfMemoryError):
        return error
    reason = _first_line(error) or type(error).__name__
    return OutOfMemoryError(f"{where}: memory ran out ({reason}); lower memory_limit, or give the process more")


def out_of_threads(where: str, error: BaseException) -> SystemReadError:
    """Return an error that says that a thread was not started and what to do."""
    found = SystemReadError(f"{where}: {error}; allow the process more threads (ulimit -u) or memory (ulimit -v)")
    found.errno = errno.EAGAIN
    return found


@contextmanager
def starting_threads(where: str) -> Iterator[None]:
    """Raise `SystemReadError` if the block cannot start a thread."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_threads(error):
            raise
        raise out_of_threads(where, error) from None


def system_error(where: str, error: BaseException) -> OutOfMemoryError | OpenFilesError | SystemReadError | None:
    """Return the error to raise if the system caused a failed read, or None if the file did.

    Errors of the system have an `errno`; Arrow's errors about a file's content have none.

    Args:
        where: File, row group and column, as far as they are known.
        error: The exception of the failed read.
    """
    if isinstance(error, OpenFilesError | SystemReadError):
        return error
    if is_out_of_memory(error):
        return out_of_memory(where, error)
    if is_out_of_descriptors(error):
        return out_of_descriptors(f"{where}: the file cannot be opened", 1)
    if is_out_of_threads(error):
        return out_of_threads(where, error)
    number = error.errno if isinstance(error, OSError) else None
    if number is None or number in _OF_DAMAGE:
        return None
    found = SystemReadError(
        f"{where}: the system could not read the file: {_first_line(error)}{_ADVICE.get(number, '')}"
    )
    found.errno = number
    return found


@contextmanager
def reading_errors(where: str) -> Iterator[None]:
    """Raise the library's error if the system cannot read a file in the block.

    Args:
        where: What is read, if an error names no file.
    """
    try:
        yield
    except ParquetLoaderError:
        raise
    except OSError as error:
        named = error.filename if isinstance(error.filename, str) else where
        failure = system_error(named, OSError(error.errno, error.strerror))
        if failure is None:
            raise
        raise failure from error


def _first_line(error: BaseException) -> str:
    return str(error).split("\n")[0].removesuffix(".")
