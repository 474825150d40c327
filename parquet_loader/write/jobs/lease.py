"""The lease of a job, which shows whether its driver process is alive: a file lock, or a file that is renewed.

On local and network file systems with locks the driver holds a `FileLock` on the lease's file. The kernel releases it
when the process ends in any way, so the death of a job is known for certain. If the file system has no locks (object
stores, HDFS), a thread rewrites the lease every `RENEW_S` seconds. A lease is expired if it is older than `EXPIRE_S` by
the store's own modification times, so the clocks of machines are not compared.

If the lease of a delayed driver expires, the next job removes that driver's directory. At its commit the delayed driver
finds that the lease is gone, and publishes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import uuid
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import FileLock, LockedFile, is_local, look_up, starting_threads

RENEW_S = 30.0
EXPIRE_S = 600.0
JOIN_S = 10.0

# Suffix of a lease's name until it is locked.
NEW_SUFFIX = ".new"

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF}


class JobLease:
    """A lease that the driver process holds from the beginning of a job to its end.

    Threads: `acquire` starts one, ``parquet_loader-lease``, if there are no locks; `release` ends it.

    Args:
        filesystem: The file system of the job.
        path: The lease's file.
        renew_s: Seconds between renewals if there are no locks.
        join_s: Seconds that `release` waits for a renewal in flight.
    """

    def __init__(
        self, filesystem: pafs.FileSystem, path: str, *, renew_s: float = RENEW_S, join_s: float = JOIN_S
    ) -> None:
        self.filesystem = filesystem
        self.path = path
        self._renew_s = renew_s
        self._join_s = join_s
        self._owner = f"{socket.gethostname()} {os.getpid()} {uuid.uuid4().hex}".encode()
        self._lock: LockedFile | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Take the lease; its file must not exist yet.

        Raises:
            OSError: The file system refuses.
        """
        if is_local(self.filesystem):
            self._lock = _locked_new_file(self.path, self._owner)
            if self._lock is not None:
                return
        _write(self.filesystem, self.path, self._owner)
        thread = threading.Thread(target=self._renew, name="parquet_loader-lease", daemon=True)
        with starting_threads(f"{self.path}: the lease of a job"):
            thread.start()
        self._thread = thread

    def is_held(self) -> bool:
        """Return whether this process still holds the lease; False if another job considered this one dead.

        Raises:
            OSError, pa.ArrowException: The file system does not say.
        """
        try:
            return self._is_written() if self._lock is None else self._lock.has_its_name
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Remove the lease's file and release the lock; idempotent, never raises.

        Waits a limited time for a renewal in flight; a renewal that completes later leaves a lease that expires. The
        garbage collector may call this in the renewing thread itself.
        """
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._join_s)
        self._thread = None
        with contextlib.suppress(OSError, pa.ArrowException):
            if self.is_held():
                self.filesystem.delete_file(self.path)
        if self._lock is not None:
            self._lock.close()

    def _is_written(self) -> bool:
        with self.filesystem.open_input_stream(self.path) as stream:
            return bool(stream.read() == self._owner)

    def _renew(self) -> None:
        while not self._stop.wait(self._renew_s):
            try:
                if not self._is_written() or self._stop.is_set():
                    return
                _write(self.filesystem, self.path, self._owner)
            except FileNotFoundError:
                return
            except (OSError, pa.ArrowException):  # the store may answer the next time
                continue


@contextlib.contextmanager
def dead_lease(filesystem: pafs.FileSystem, path: str, *, expire_s: float = EXPIRE_S) -> Iterator[bool]:
    """Yield whether the job that took the lease is dead; inside the body, no other process finds it dead.

    Args:
        filesystem: The file system of the lease.
        path: The lease's file. A job without one is dead, because the lease is taken first and removed last.
        expire_s: Age of an expired lease if there are no locks.
    """
    if is_local(filesystem):
        try:
            lock = FileLock(path)
        except OSError:
            yield not os.path.lexists(path)
            return
        with lock:
            acquired = _acquired(lock)
            if acquired is not None:
                yield acquired and lock.has_its_name
                return
    yield _has_expired(filesystem, path, expire_s)


def _locked_new_file(path: str, content: bytes) -> LockedFile | None:
    """Return a new file that is locked before it gets its final name; None if the file system has no locks.

    While it has its first name, another job may mistake it for the lease of a dead process and remove it; then it is
    made again.
    """
    while True:
        try:
            lock = LockedFile(f"{path}{NEW_SUFFIX}", content)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return None
            raise
        try:
            lock.rename(path)
        except FileNotFoundError:
            lock.close()
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(lock.path)
            lock.close()
            raise
        else:
            return lock


def remove_unnamed(path: str) -> None:
    """Remove a lease that never got its final name, unless its maker still holds the lock."""
    with contextlib.suppress(FileNotFoundError), FileLock(path) as lock:
        if _acquired(lock) is not False and lock.has_its_name:
            os.unlink(path)


def _acquired(lock: FileLock) -> bool | None:
    """Return whether the lock was free; None if the file system has no locks."""
    try:
        return lock.acquire(waits=False)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise


def _has_expired(filesystem: pafs.FileSystem, path: str, expire_s: float) -> bool:
    lease = look_up(filesystem, path)
    if lease.type == pafs.FileType.NotFound:
        return True
    probe = f"{path}.{uuid.uuid4().hex}"
    _write(filesystem, probe, b"")
    try:
        now = look_up(filesystem, probe).mtime_ns
    finally:
        filesystem.delete_file(probe)
    return bool(lease.mtime_ns is not None and now is not None and now - lease.mtime_ns > expire_s * 1e9)


def _write(filesystem: pafs.FileSystem, path: str, content: bytes) -> None:
    with filesystem.open_output_stream(path) as stream:
        stream.write(content)
