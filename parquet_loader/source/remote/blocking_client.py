"""Fetches byte ranges through blocking calls of a pyarrow or fsspec filesystem, on daemon threads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import LruCache, is_out_of_descriptors, out_of_descriptors
from parquet_loader.common.storage import hdfs
from parquet_loader.errors import OpenFilesError, SourceError
from parquet_loader.source.byte_ranges import ByteRange
from parquet_loader.source.files import SourceFile
from parquet_loader.source.remote.client import (
    Bytes,
    PermanentError,
    TransientError,
    as_client_error,
    check_same,
    http_time_ns,
    view,
    words_of,
)

T = TypeVar("T")

# Open files are kept, because opening one is a request.
_MOST_OPEN = 128
_JOIN_S = 2.0

# fsspec's archives other than zip read all of their files through one file object, which has one position.
_ARCHIVES = ("tar", "libarchive")
_archive_lock = Lock()


def _renew_archive_lock() -> None:
    global _archive_lock
    _archive_lock = Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_renew_archive_lock)  # the thread that held the lock does not exist there


def archive_lock(filesystem: pafs.FileSystem) -> AbstractContextManager[object]:
    """Return the lock to hold while bytes of a file are read, if the file system is an archive; else a null context."""
    is_archive = getattr(fsspec_of(filesystem), "protocol", None) in _ARCHIVES
    return _archive_lock if is_archive else nullcontext()


class CallThreads:
    """Threads that make blocking calls for an event loop, started when they are needed.

    They are daemons. If a store never answers a call, its thread never ends: the caller gives up at its deadline, and
    `close` waits for the thread only for a moment. (Threads of `concurrent.futures` would block the interpreter's end.)

    Args:
        most: The most threads.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._waiting = 0
        self._lock = Lock()

    async def call(self, function: Callable[[], T]) -> T:
        """Call a function on a thread; return its result, or raise its error. If cancelled, do not wait for it."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if outcome.done():
                return
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)  # type: ignore[arg-type]

        def run() -> None:
            result, error = None, None
            try:
                result = None if outcome.cancelled() else function()
            except Exception as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(settle, result, error)
            except RuntimeError:  # the loop has ended, so nothing waits for the result
                return

        with self._lock:
            if self._waiting >= len(self._threads) < self._most:
                self._add_thread()
            self._waiting += 1
        self._calls.put(run)
        return await outcome

    def _add_thread(self) -> None:
        thread = Thread(target=self._work, name="parquet_loader-remote-call", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system starts no more threads; then calls wait for those that there are
            if not self._threads:
                raise
        else:
            self._threads.append(thread)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call
            with self._lock:
                self._waiting -= 1

    def close(self) -> None:
        """End all threads; wait at most `_JOIN_S` for those that are in a call."""
        for _ in self._threads:
            self._calls.put(None)
        wait_s = _JOIN_S
        for thread in self._threads:
            thread.join(wait_s)
            wait_s = wait_s if not thread.is_alive() else 0.0


class BlockingClient:
    """A client over a pyarrow filesystem; if that wraps an fsspec one, over fsspec's own functions.

    Args:
        filesystem: The filesystem.
        most: The most calls at a time.
    """

    tells_progress = False

    def __init__(self, filesystem: pafs.FileSystem, most: int) -> None:
        self._filesystem = filesystem
        self._threads = CallThreads(most)
        self._open = LruCache(_MOST_OPEN)
        self._checked: set[str] = set()
        self._fsspec = fsspec_of(filesystem)

    async def read(self, file: SourceFile, span: ByteRange, into: Bytes, progress: Callable[[], None]) -> None:
        """Fill `into`; see `Client.read`."""
        try:
            data = await self._threads.call(lambda: self._read(file, span))
        except (TransientError, PermanentError, OpenFilesError, asyncio.CancelledError):
            raise
        except FileNotFoundError as error:
            raise PermanentError(f"the file has vanished since it was listed: {words_of(error)}") from None
        except PermissionError as error:
            raise PermanentError(words_of(error)) from None
        except Exception as error:
            if is_out_of_descriptors(error):
                raise out_of_descriptors(f"{file.name}: the file cannot be opened", 1) from None
            raise _judged_native(error) from None
        progress()
        arrived = view(data)
        if len(arrived) == file.size_bytes > span.size:
            raise PermanentError(
                "the server sent the whole file, because it does not support range requests; download the file, or "
                "use another server"
            )
        if len(arrived) != span.size:
            raise TransientError(f"{len(arrived)} of {span.size} bytes arrived")
        into[:] = arrived

    def _read(self, file: SourceFile, span: ByteRange) -> Any:
        if self._fsspec is not None:
            if file.path not in self._checked:
                self._check_same(self._fsspec, file)
            with archive_lock(self._filesystem):
                return self._fsspec.cat_file(file.path, start=span.start, end=span.stop)
        opened = self._open.get(file.path)
        if opened is None:
            opened = self._filesystem.open_input_file(file.path)
            check_same(file, opened.size())
            self._open.put(file.path, opened)
        return opened.read_at(span.size, span.start)

    def _check_same(self, fs: Any, file: SourceFile) -> None:
        """Compare a file of an fsspec filesystem with its listing, once in an epoch."""
        fs.invalidate_cache(fs._parent(file.path))
        try:
            info = fs.info(file.path)
        except FileNotFoundError as error:
            cause = error.__cause__
            is_http = file.path.startswith(("http://", "https://"))  # fsspec takes every failure for a missing file
            if not is_http or cause is None or getattr(cause, "status", None) in (404, 410):
                raise
            raise cause from None
        modified_ns = http_time_ns(info.get("Last-Modified"))
        check_same(file, info.get("size"), info.get("ETag") or info.get("etag"), modified_ns)
        self._checked.add(file.path)

    def close(self) -> None:
        """End the threads, and release open files."""
        self._threads.close()
        self._open.clear()


def _judged_native(error: Exception) -> TransientError | PermanentError:
    """Return the error of a request by the words or status in pyarrow's or fsspec's error."""
    if isinstance(error, pa.ArrowInvalid):  # pyarrow refuses the path
        return PermanentError(words_of(error))
    text = str(error)
    for mark in ("ACCESS_DENIED", "AccessDenied", "FORBIDDEN", "Forbidden", "NO_SUCH_KEY", "NoSuchKey"):
        if mark in text:
            return PermanentError(words_of(error))
    status = getattr(error, "status", None)
    if isinstance(status, int) and 400 <= status < 500 and status not in (408, 425, 429):
        return PermanentError(words_of(error))
    return as_client_error(error)


def fsspec_of(filesystem: pafs.FileSystem) -> Any:
    """Return the fsspec filesystem that a pyarrow one wraps, or None."""
    handler = getattr(filesystem, "handler", None)
    return handler.fs if isinstance(handler, pafs.FSSpecHandler) else None


def forked(filesystem: pafs.FileSystem, made_in: int) -> pafs.FileSystem:
    """Return a filesystem that shares no connections with the parent process if this one was forked.

    Raises:
        SourceError: it is HDFS, whose client cannot be used after a fork, or an archive in a file that was open before.
    """
    if made_in == os.getpid():
        return filesystem
    if hdfs.is_hdfs(filesystem):
        hdfs.check_process(made_in)
    if isinstance(filesystem, pafs.SubTreeFileSystem):
        return pafs.SubTreeFileSystem(filesystem.base_path, forked(filesystem.base_fs, made_in))
    fs = fsspec_of(filesystem)
    if fs is not None:  # the pickled form of its handler refers to the same instance
        if any(hasattr(given, "read") for given in (*fs.storage_args, *fs.storage_options.values())):
            raise SourceError(
                f"{type(fs).__name__} was made of an open file, whose position all forked processes share; make it of "
                "the path of the archive, or leave out worker processes"
            )
        make, arguments = fs.__reduce__()[:2]
        return pafs.PyFileSystem(pafs.FSSpecHandler(make(*arguments)))
    make, arguments = filesystem.__reduce__()[:2]
    return make(*arguments)
