"""File locks that the system releases when their process ends: `flock` on open files.

A lock belongs to the open file. A forked child inherits the open file and would keep the lock after its parent's death.
So each lock file is registered here, and a child closes its copies, which does not affect the parent's lock. Nothing
else in the package calls `flock`.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import time
import weakref
from collections.abc import Iterator
from itertools import count
from threading import Event, RLock, local
from typing import Any, Self

from parquet_loader.common.storage.trust import NO_LINK
from parquet_loader.errors import ConfigurationError, UnsupportedError

fcntl: Any
try:
    fcntl = importlib.import_module("fcntl")
except ImportError:  # not on Windows
    fcntl = None

_guard = RLock()  # held while a descriptor is opened or closed, and across fork
_open: set[int] = set()
_here = local()
_POLL_S = 0.02


def _before_fork() -> None:
    _guard.acquire()


def _after_fork_in_parent() -> None:
    _guard.release()


def _after_fork_in_child() -> None:
    global _guard
    for descriptor in _open:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _open.clear()
    _guard = RLock()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def _open_registered(path: str, flags: int) -> int:
    with _guard:
        descriptor = os.open(path, flags | os.O_CLOEXEC | NO_LINK, 0o666)
        _open.add(descriptor)
        return descriptor


def _close(descriptor: int, pid: int) -> None:
    if pid != os.getpid():
        return  # a forked child has closed its copy, and the number may be another file's
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a copy in a child that is being forked must not keep it
    with _guard:
        if descriptor in _open:
            _open.discard(descriptor)
            os.close(descriptor)


def _write_all(descriptor: int, content: bytes | memoryview, offset: int = 0) -> None:
    left = memoryview(content)
    while left:  # on a full disk the first write may be short, and the second one fails
        done = os.pwrite(descriptor, left, offset)
        left, offset = left[done:], offset + done


class FileLock:
    """An open file and its lock, held from `acquire` until `close`, the end of the object or of this process.

    Args:
        path: The file.
        flags: As for `os.open`; by default the file has to exist.

    Raises:
        OSError: the file cannot be opened.
        UnsupportedError: this system has no `flock`.
    """

    def __init__(self, path: str, flags: int = os.O_RDWR) -> None:
        if fcntl is None:
            raise UnsupportedError(
                f"{path}: this system has no flock, the file locks that stores, local caches and write jobs need; use "
                "Linux or macOS for them, or write with write_dataset"
            )
        self.path = path
        self._pid = os.getpid()
        self._guard = RLock()  # keeps the descriptor open while another thread uses it
        self._descriptor = _open_registered(path, flags)
        self._finalizer = weakref.finalize(self, _close, self._descriptor, self._pid)
        self._finalizer.atexit = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def acquire(self, *, shared: bool = False, waits: bool = True) -> bool:
        """Take the lock, or change its kind; return whether it is held.

        Args:
            shared: Take a shared lock; otherwise an exclusive one.
            waits: Wait for other holders. If False and another one holds the lock, it is not taken, and a shared lock
                held before may be lost.

        Raises:
            OSError: the file system has no locks.
        """
        operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self._descriptor, operation if waits else operation | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            error.filename = self.path
            raise
        return True

    @property
    def is_here(self) -> bool:
        """Whether the file is open in this process: not after `close`, nor in a forked child."""
        return self._descriptor >= 0 and self._pid == os.getpid()

    @property
    def has_its_name(self) -> bool:
        """Whether the file is open here and `path` still names it; another file may have replaced it."""
        with self._if_here() as is_here:
            try:
                return is_here and os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
            except FileNotFoundError:
                return False

    @contextlib.contextmanager
    def _if_here(self) -> Iterator[bool]:
        """Yield `is_here`, which does not change during the body."""
        if self._pid != os.getpid():  # a thread of the parent may have held the guard during the fork
            yield False
            return
        with self._guard:
            yield self.is_here

    @property
    def descriptor(self) -> int:
        """The descriptor of the open file."""
        return self._descriptor

    def close(self) -> None:
        """Release the lock; the file stays. Idempotent."""
        if self._pid == os.getpid():
            with self._guard:
                self._descriptor = -1
            self._finalizer()


class LockedFile(FileLock):
    """A new file that is locked until `close`, the end of the object or of this process.

    Other processes may find the file before it is locked. So create it while holding a lock that they also take, or
    under a temporary name.

    Args:
        path: The file, which must not exist yet.
        content: Its first bytes; if they cannot be written, the file is removed.
    """

    def __init__(self, path: str, content: bytes) -> None:
        super().__init__(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            self.acquire()
            _write_all(self._descriptor, content)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            self.close()
            raise

    def close(self) -> None:
        """Release the lock; the file stays. Idempotent.

        Some network file systems report only here that an earlier write failed. Such errors are ignored: a lease counts
        only while it is locked, and readers verify the rows of a cache.
        """
        with contextlib.suppress(OSError):
            super().close()

    @property
    def inode(self) -> int:
        """The inode of the file, which does not change with its name; the lock has to be held here."""
        with self._guard:
            return os.fstat(self._descriptor).st_ino

    def rename(self, path: str) -> None:
        """Give the file another name.

        Raises:
            FileNotFoundError: it was removed.
        """
        os.rename(self.path, path)
        self.path = path

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Overwrite bytes of the locked file, even if its name was reused; do nothing if the lock is not held here."""
        with self._if_here() as is_here:
            if is_here:
                _write_all(self._descriptor, data, offset)

    def resize(self, size: int) -> None:
        """Truncate the file, or extend it by a hole; do nothing if the lock is not held here."""
        with self._if_here() as is_here:
            if is_here:
                os.ftruncate(self._descriptor, size)


def is_locked(path: str) -> bool:
    """Whether a live process holds the lock on a file; False if there is no such file."""
    try:
        lock = FileLock(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True  # another user's file, whose lock cannot be checked: assume that it is in use
    with lock:
        return not lock.acquire(shared=True, waits=False)


@contextlib.contextmanager
def exclusive(path: str, patience_s: float | None = None) -> Iterator[int]:
    """Hold the exclusive lock on a file during the body, and yield its descriptor.

    Creates the file if it is missing, and waits for the process that holds the lock. If the file was replaced
    meanwhile, the new one is locked.

    Args:
        path: The file.
        patience_s: How long to wait; None waits without limit.

    Raises:
        TimeoutError: another process holds the lock for longer.
    """
    while True:
        with FileLock(path, os.O_RDWR | os.O_CREAT) as lock:
            _acquire_within(lock, patience_s)
            if lock.has_its_name:
                _here.holds = True
                try:
                    yield lock.descriptor
                finally:
                    _here.holds = False
                return


def _acquire_within(lock: FileLock, patience_s: float | None) -> None:
    if patience_s is None:
        lock.acquire()
        return
    give_up = time.monotonic() + patience_s
    for attempt in count():
        if lock.acquire(waits=False):
            return
        if time.monotonic() > give_up:
            raise TimeoutError(f"{lock.path}: another process has held the lock for more than {patience_s:g} s")
        Event().wait(min(0.0005 * 2 ** min(attempt, 8), _POLL_S))  # flock itself has no timeout


def holds_exclusive() -> bool:
    """Whether this thread is inside `exclusive`. A finaliser that runs there must not wait for other locks."""
    return getattr(_here, "holds", False)


def check_locks_exclude(path: str) -> None:
    """Check by a file's lock, which is awaited, that the file system's locks exclude other holders.

    Raises:
        ConfigurationError: the file system has no locks, or grants one lock to two holders.
    """
    with FileLock(path, os.O_RDWR | os.O_CREAT) as lock:
        try:
            lock.acquire()
            works = is_locked(path) or not lock.has_its_name
        except OSError as error:
            raise ConfigurationError(
                f"{path}: the file system has no locks ({error.strerror}), and a store relies on them; "
                "put it on a local disk, or on a network file system that is mounted with flock"
            ) from error
    if not works:
        raise ConfigurationError(
            f"{path}: the file system grants one lock to two holders, and a store relies on locks; "
            "put it on a local disk, or on a network file system that is mounted with flock"
        )
