"""File locks that the system releases when their process ends: `flock` on open files.

A lock belongs to the open file, and a forked child has a copy of it, which would keep the lock after its parent's
death. So each locked file is registered here, and a child closes its copies. That leaves the parent's lock as it is.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
import weakref
from collections.abc import Iterator
from itertools import count
from threading import Event, RLock, local

from parquet_loader.common.storage.trust import NO_LINK
from parquet_loader.errors import ConfigurationError

_guard = RLock()  # held while a descriptor is opened or closed, and across fork
_open: set[int] = set()
_here = local()
_LOOK_AGAIN_S = 0.02


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


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def _open_registered(path: str, flags: int) -> int:
    with _guard:
        descriptor = os.open(path, flags | os.O_CLOEXEC | NO_LINK, 0o666)
        _open.add(descriptor)
        return descriptor


def _close_registered(descriptor: int) -> None:
    with _guard:
        if descriptor in _open:
            _open.discard(descriptor)
            os.close(descriptor)


def _let_go(descriptor: int, pid: int) -> None:
    if pid == os.getpid():  # a forked child has closed its copy, and the number may be another file's
        _close_registered(descriptor)


def _write_all(descriptor: int, content: bytes | memoryview, offset: int = 0) -> None:
    left = memoryview(content)
    while left:  # what a full disk cuts short is refused the second time
        done = os.pwrite(descriptor, left, offset)
        left, offset = left[done:], offset + done


def _leads_to(path: str, descriptor: int) -> bool:
    """Whether a path leads to an open file; it may have been deleted, or another file have come there."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


class LockedFile:
    """A new file that is locked until `close`, the end of the object or that of this process.

    Made under the store's lock, so that nobody takes it for a dead one between its creation and its locking.

    Args:
        path: Where; nothing may be there yet.
        content: Its first bytes; where they cannot be written, there is no file.
    """

    def __init__(self, path: str, content: bytes) -> None:
        self.path = path
        self._pid = os.getpid()
        self._lock = RLock()  # so that nothing is written to a descriptor that another thread has closed
        self._descriptor = _open_registered(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            _write_all(self._descriptor, content)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            _close_registered(self._descriptor)
            raise
        self._finalizer = weakref.finalize(self, _let_go, self._descriptor, self._pid)
        self._finalizer.atexit = False

    @property
    def is_here(self) -> bool:
        """Whether this process holds the lock: not after `close`, nor in a forked child."""
        return self._descriptor >= 0 and self._pid == os.getpid()

    @property
    def has_its_name(self) -> bool:
        """Whether the lock is held here and `path` leads to this very file: another may have come there meanwhile."""
        with self._lock:
            return self.is_here and _leads_to(self.path, self._descriptor)

    @property
    def inode(self) -> int:
        """Number of the file, which it keeps under another name; the lock has to be held here."""
        with self._lock:
            return os.fstat(self._descriptor).st_ino

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Overwrite bytes in place, whatever is called by its name now; nothing if the lock is not held here."""
        if self._pid == os.getpid():
            with self._lock:
                if self._descriptor >= 0:
                    _write_all(self._descriptor, data, offset)

    def resize(self, size: int) -> None:
        """Cut or lengthen the file to that many bytes, by a hole; nothing if the lock is not held here."""
        if self._pid == os.getpid():
            with self._lock:
                if self._descriptor >= 0:
                    os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        """Let go of the lock; the file stays. Idempotent."""
        if self._pid == os.getpid():
            with self._lock:
                self._descriptor = -1
            self._finalizer()


def is_locked(path: str) -> bool:
    """Whether a live process holds the lock on a file; False if there is no such file."""
    try:
        descriptor = _open_registered(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True  # another user's: nobody here can tell, and what may be in use stays
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return True
        raise
    finally:
        _close_registered(descriptor)
    return False


@contextlib.contextmanager
def exclusive(path: str, patience_s: float | None = None) -> Iterator[int]:
    """Hold the lock on a file, created if need be, and give its descriptor.

    Waits for whoever has it. Where the file was replaced meanwhile, the new one is locked.

    Args:
        path: The file.
        patience_s: How long to wait; None: as long as it takes.

    Raises:
        TimeoutError: it took longer.
    """
    while True:
        descriptor = _open_registered(path, os.O_RDWR | os.O_CREAT)
        try:
            _lock(descriptor, path, patience_s)
            if _leads_to(path, descriptor):
                _here.holds = True
                try:
                    yield descriptor
                finally:
                    _here.holds = False
                return
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a copy in a child that is being forked must not keep it
            _close_registered(descriptor)


def _lock(descriptor: int, path: str, patience_s: float | None) -> None:
    if patience_s is None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return
    give_up = time.monotonic() + patience_s
    for attempt in count():
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
        else:
            return
        if time.monotonic() > give_up:
            raise TimeoutError(f"{path}: another process holds the lock for more than {patience_s:.0f} s")
        Event().wait(min(0.0005 * 2 ** min(attempt, 8), _LOOK_AGAIN_S))  # flock itself knows no time-out


def holds_exclusive() -> bool:
    """Whether this thread is inside `exclusive`: a finaliser that the collector runs there must not wait for others."""
    return getattr(_here, "holds", False)


def check_locks_exclude(path: str) -> None:
    """Check that the file system's locks do what they say.

    Raises:
        ConfigurationError: there are none, or two holders get the same one.
    """
    first = _open_registered(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(first, fcntl.LOCK_EX)
        works = is_locked(path)
    except OSError as error:
        raise ConfigurationError(
            f"{path}: the file system has no locks ({error.strerror}), and a store relies on them; "
            "put it on a local disk, or on a network file system that is mounted with flock"
        ) from error
    finally:
        _close_registered(first)
    if not works:
        raise ConfigurationError(
            f"{path}: the file system gives one lock to two holders, and a store relies on locks; "
            "put it on a local disk, or on a network file system that is mounted with flock"
        )
