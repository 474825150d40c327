"""Fetches byte ranges from the Hugging Face Hub, and remembers the signed URLs to which it redirects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http.client import HTTPException, HTTPResponse
from socket import socket
from threading import Lock, local
from time import monotonic
from typing import Any

from parquet_loader.common import HubAddress, HubApi, HubError, LruCache, abort
from parquet_loader.source.byte_ranges import ByteRange
from parquet_loader.source.files import SourceFile
from parquet_loader.source.remote.blocking_client import CallThreads
from parquet_loader.source.remote.client import Bytes, PermanentError, TransientError, check_same, view, words_of

# Bytes of one read; each read takes the GIL a few times.
_CHUNK_BYTES = 2**18
_PROGRESS_S = 0.1
# The Hub may send files that are not in LFS or Xet as a whole; those are small.
_MOST_WHOLE_BYTES = 16 * 2**20
# A signed URL that has expired is refused by any of these; the Hub then gives a new one.
_EXPIRED = (400, 401, 403, 404, 410)


class _Sink:
    """The caller's buffer. After `close`, the thread that reads no longer writes to it.

    The lock guards `_socket` and the right to write; it is held while one chunk is copied.
    """

    def __init__(self, into: Bytes, tell: Callable[[], None]) -> None:
        self._lock = Lock()
        self._into = into
        self._tell = tell
        self._told_s = monotonic()
        self._socket: socket | None = None
        self.is_closed = False

    def watch(self, connected: socket) -> None:
        """Set the connection that is waited for, so that `close` can abort it."""
        with self._lock:
            self._socket = connected
            if self.is_closed:
                abort(connected)

    def begin(self) -> None:
        """Report that a response has come."""
        self._tell()

    def write(self, at: int, data: memoryview) -> bool:
        """Copy a chunk; return False if the request has ended."""
        with self._lock:
            if self.is_closed:
                return False
            self._into[at : at + len(data)] = view(data)
        now_s = monotonic()
        if now_s - self._told_s > _PROGRESS_S:
            self._told_s = now_s
            self._tell()
        return True

    def end(self) -> None:
        """Give up the connection: the response is read."""
        with self._lock:
            self._socket = None

    def close(self) -> None:
        """Stop writes, and abort the connection."""
        with self._lock:
            self.is_closed = True
            if self._socket is not None:
                abort(self._socket)


class HubClient:
    """Requests ranges: at the Hub's own URL the first time, then at the signed URL to which it redirects.

    Args:
        api: The Hub.
        urls: Signed URLs by path, so that the Hub is asked once for each file and not for each range. They are secrets:
            anyone who has one may read the file until its signature expires.
        most: Requests in flight at most.
        stall_s: Seconds without a byte after which a request fails.
    """

    tells_progress = True

    def __init__(self, api: HubApi, urls: LruCache, most: int, stall_s: float) -> None:
        self._api = api
        self._urls = urls
        self._stall_s = stall_s
        self._threads = CallThreads(most)
        self._chunks = local()

    async def read(self, file: SourceFile, span: ByteRange, into: Bytes, progress: Callable[[], None]) -> None:
        """Fill `into`; see `Client.read`."""
        loop = asyncio.get_running_loop()

        def arrived() -> None:
            if not sink.is_closed:
                with suppress(RuntimeError):  # the deadline has passed, and the task is about to be cancelled
                    progress()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop has ended: nobody waits
                loop.call_soon_threadsafe(arrived)

        sink = _Sink(into, tell)
        try:
            await self._threads.call(partial(self._read, file, span, sink))
        except HubError as error:
            raise _as_client_error(error) from None
        except (OSError, HTTPException) as error:
            raise TransientError(words_of(error)) from None
        finally:
            sink.close()

    def _read(self, file: SourceFile, span: ByteRange, sink: _Sink) -> None:
        address = HubAddress.parse(file.path)
        known: str | None = self._urls.get(file.path)
        if known is not None:
            try:
                self._read_from(known, address, file, span, sink)
                return
            except HubError as error:
                if error.status not in _EXPIRED:
                    raise
                self._urls.forget(file.path, known)
        self._read_from(self._api.file_url(address), address, file, span, sink)

    def _read_from(self, url: str, address: HubAddress, file: SourceFile, span: ByteRange, sink: _Sink) -> None:
        headers = {"Range": f"bytes={span.start}-{span.stop - 1}"}
        try:
            with self._api.opened(url, address, self._stall_s, headers, sink.watch) as (response, found):
                skip = _checked(response, file, span)
                if found != url:
                    self._urls.put(file.path, found)
                sink.begin()
                self._receive(response, skip, span.size, sink)
                sink.end()  # before the connection goes back to those that are idle
        finally:
            sink.end()

    def _receive(self, response: HTTPResponse, skip: int, size: int, sink: _Sink) -> None:
        if not hasattr(self._chunks, "buffer"):
            self._chunks.buffer = memoryview(bytearray(_CHUNK_BYTES))
        chunk: memoryview = self._chunks.buffer
        at = -skip
        while at < size:
            end = 0 if at < 0 else size
            count = response.readinto(chunk[: min(end - at, _CHUNK_BYTES)])
            if not count:
                raise TransientError(f"received {max(at, 0)} of {size} bytes")
            if at >= 0 and not sink.write(at, chunk[:count]):
                return
            at += count

    def close(self) -> None:
        """End the threads."""
        self._threads.close()


def _checked(response: HTTPResponse, file: SourceFile, span: ByteRange) -> int:
    """Check that a response holds the requested range, of a file of the listed size.

    Returns:
        The bytes before the range: the Hub may send a small file as a whole.
    """
    skip = 0
    if response.status == 200:
        if span.stop - span.start < file.size_bytes > _MOST_WHOLE_BYTES:
            raise PermanentError(
                "the server sent the whole file, because it does not support range requests; use another server"
            )
        skip = span.start
        size: Any = response.getheader("Content-Length")
    else:
        said = (response.getheader("Content-Range") or "").removeprefix("bytes").strip()
        part, _, size = said.partition("/")
        if part != f"{span.start}-{span.stop - 1}":
            if size.isdecimal():
                check_same(file, int(size))
            raise TransientError(f"expected bytes {span.start}-{span.stop - 1}, received {part[:60]!r}")
    if size is not None and size.isdecimal():
        check_same(file, int(size))
    return skip


def _as_client_error(error: HubError) -> TransientError | PermanentError:
    if error.is_transient:
        return TransientError(str(error), is_busy=error.is_busy, wait_s=error.wait_s)
    words = str(error)
    if error.is_missing_entry or error.code == "RevisionNotFound":
        words = f"{words}; it was there when it was listed, so the history of the repository has been rewritten"
    return PermanentError(words)
