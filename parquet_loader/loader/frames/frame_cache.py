"""The cache directory: one process writes a frame while others wait, and its last user deletes it.

    <cache_dir>/<key>/         a complete data set; it appears by one rename
    <cache_dir>/<key>.lock     locked shared by every process that uses it, exclusively while it is deleted
    <cache_dir>/<key>.writing  locked exclusively while it is written
    <cache_dir>/<key>.keep     the frame is kept when its processes have ended

The locks are the kernel's (`flock`), and end with their process. The next process that writes a frame to the same
directory deletes the files of killed processes, except frames that are to be kept.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager

import pyarrow.fs as pafs

from parquet_loader.common import NO_LINK, FileLock, check_private, local_path, make_private, remove_file
from parquet_loader.errors import ConfigurationError, WriteError
from parquet_loader.write import remove_dead_jobs, storage_errors

_ASIDE = re.compile(r"\.[0-9a-f]+-[0-9a-f]{32}\.tmp")
_UNFINISHED = re.compile(r"\.(?P<key>[0-9a-f]+)\.job-")
_LOCK = re.compile(r"[0-9a-f]+\.lock")

_lock = threading.Lock()
_kept: dict[str, Kept] = {}  # by path: the frames that this process uses


class Kept:
    """A frame in the cache directory, in use by this process.

    Attributes:
        path: The data set.
    """

    def __init__(self, path: str, lock: FileLock) -> None:
        self.path = path
        self._file_lock = lock

    @property
    def is_here(self) -> bool:
        """Whether this process holds the lock; False after `delete` and in a forked child."""
        return self._file_lock.is_here

    def delete(self) -> bool:
        """Stop using the frame, and delete it unless another process uses it; return whether it was deleted."""
        return self._release(deletes=True)

    def _release(self, *, deletes: bool) -> bool:
        with _lock:
            if _kept.get(self.path) is not self or not self.is_here:
                return False
            del _kept[self.path]
        with self._file_lock, _refusals(self.path):
            return deletes and _delete(self.path, self._file_lock)

    def end(self) -> None:
        """Stop using the frame at the end of the process, and delete it unless it is to be kept."""
        self._release(deletes=not os.path.exists(f"{self.path}.keep"))


def keep(cache_dir: str | os.PathLike[str] | None, key: str, write: Callable[[str], object], *, forever: bool) -> Kept:
    """Return the frame of this key. The first caller writes it; others wait meanwhile, also in other processes.

    Args:
        cache_dir: A local directory, or one on shared storage whose file system has locks; None for this user's
            default.
        key: The key of the frame, a valid name of a directory.
        write: Writes the data set to the path that it is given; the data set appears atomically.
        forever: Whether to keep the frame when the last process that uses it ends.

    Raises:
        WriteError: The directory cannot be written.
    """
    root = local_path(default_cache_dir() if cache_dir is None else cache_dir)
    path = os.path.join(root, key)
    with _refusals(path):
        if cache_dir is None:
            make_private(root)
            check_private(root, "the default directory for frames", "pass it as cache_dir=")
        os.makedirs(root, exist_ok=True)
    with _lock:
        known = _kept.get(path)
        if known is not None and not known.is_here:  # this process was forked, and its parent holds the lock
            del _kept[path]
            known = None
    if known is not None and not os.path.isdir(path):  # removed by hand
        known._release(deletes=False)
        known = None
    if known is None:
        with _refusals(path):
            _delete_unused(root)
        lock = _acquire(path, write)
        with _lock:
            known = _kept.setdefault(path, Kept(path, lock))
        if known._file_lock is not lock:  # another thread was faster
            lock.close()
    if forever:
        with _refusals(path):
            os.close(os.open(f"{path}.keep", os.O_WRONLY | os.O_CREAT | NO_LINK, 0o666))
    return known


def default_cache_dir() -> str:
    """Return this user's directory for frames.

    Raises:
        ConfigurationError: The user has no home directory.
    """
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if caches == "~/.cache":  # it would be a directory named ~ in the working directory
        raise ConfigurationError("cache_dir=None: this user has no home directory; set HOME, or pass cache_dir=")
    return os.path.join(caches, "parquet_loader", "frames")


def _acquire(path: str, write: Callable[[str], object]) -> FileLock:
    """Write the frame if it does not exist; return its shared lock."""
    while True:
        lock = _lock_file(path, ".lock")
        try:
            _wait_for(lock, path, shared=True)  # from here on no process deletes the frame
            if lock.has_its_name and not os.path.isdir(path):
                _write_alone(path, write)
            if lock.has_its_name and os.path.isdir(path):
                return lock
        except BaseException:
            with lock, contextlib.suppress(OSError):
                if not os.path.exists(f"{path}.keep"):
                    _delete(path, lock)
            raise
        lock.close()


def _write_alone(path: str, write: Callable[[str], object]) -> None:
    """Write a frame, unless another process writes it meanwhile; called with the frame's lock held shared.

    Writers have their own lock, because the first writer keeps the shared lock while it uses the frame.
    """
    with _lock_file(path, ".writing") as lock:
        _wait_for(lock, path)
        if not os.path.isdir(path):
            write(path)


def _lock_file(path: str, suffix: str) -> FileLock:
    with _refusals(path):
        return FileLock(path + suffix, os.O_RDWR | os.O_CREAT)


def _refusals(path: str) -> AbstractContextManager[None]:
    """Turn errors of the cache directory into a `WriteError`. Do not use it while the frame is computed."""
    message = "a frame cannot be kept in this directory: {}; pass one in which this process may write"
    return storage_errors(f"cache_dir={os.path.dirname(path)!r}", message)


def _wait_for(lock: FileLock, path: str, *, shared: bool = False) -> None:
    try:
        lock.acquire(shared=shared)
    except OSError as error:
        raise ConfigurationError(
            f"{path}: the cache directory's file system has no locks ({error.strerror}); pass another cache_dir="
        ) from None


def _delete(path: str, lock: FileLock) -> bool:
    """Delete a frame unless another process uses it; the caller closes its lock."""
    try:
        if not lock.acquire(waits=False) or not lock.has_its_name:
            return False
    except OSError:
        return False
    parent, name = os.path.split(path)
    aside = os.path.join(parent, f".{name}-{uuid.uuid4().hex}.tmp")
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, aside)
    shutil.rmtree(aside, ignore_errors=True)
    for suffix in (".keep", ".writing", ".lock"):
        remove_file(path + suffix)
    return True


def _delete_unused(root: str) -> None:
    """Delete the frames of killed processes that no process uses, unless they are to be kept."""
    for name in os.listdir(root):
        if _ASIDE.fullmatch(name):
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)
        if unfinished := _UNFINISHED.match(name):
            remove_dead_jobs(pafs.LocalFileSystem(), os.path.join(root, unfinished["key"]))
        path = os.path.join(root, name.removesuffix(".lock"))
        if not _LOCK.fullmatch(name) or os.path.exists(f"{path}.keep"):
            continue
        with contextlib.suppress(OSError), FileLock(f"{path}.lock") as lock:
            _delete(path, lock)


@atexit.register
def _end_all() -> None:
    for kept in list(_kept.values()):
        with contextlib.suppress(WriteError):  # such as of a directory that another user owns
            kept.end()
