"""The base class of listers of remote stores: threads, first and last bytes of files, a probe of the endpoint."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from parquet_loader.common import probe
from parquet_loader.errors import SourceError
from parquet_loader.source.byte_ranges import ByteRange
from parquet_loader.source.files import ListedFile, Lister, SourceFile
from parquet_loader.source.remote.fetcher import Fetcher
from parquet_loader.source.remote.task_group import side_by_side

S = TypeVar("S")
T = TypeVar("T")

# Concurrent calls of `each`; fewer than the threads of a fetcher, which these calls may need in turn.
_CALLS_AT_ONCE = 16


class RemoteLister(Lister):
    """Lists a store on daemon threads, which neither SIGINT nor the interpreter's end has to wait for.

    Args:
        fetcher: Provides the threads and the event loop; started, and closed by the caller.
    """

    endpoint: tuple[str, int] | None = None
    """Host and port to probe before the first requests, or None."""
    is_encrypted = False
    """Whether the endpoint uses https."""

    def __init__(self, fetcher: Fetcher) -> None:
        self.fetcher = fetcher

    def each(self, work: Callable[[S], T], things: Sequence[S]) -> list[T]:
        """Return the result of `work` for each of the things; several run at a time. See `source.Lister`.

        Raises:
            UnreachableError: the endpoint does not answer, so retries are useless.
        """

        async def one(thing: S) -> T:
            return await self.fetcher.call(partial(work, thing))

        return self.fetcher.run(self._reached(partial(side_by_side, one, things, _CALLS_AT_ONCE)))

    def ends(self, entry: ListedFile) -> tuple[bytes, bytes]:
        """Return the first and the last four bytes of a file, by one request each."""
        if entry.size_bytes < 8:
            return b"", b""
        first, last = self._read(entry, [ByteRange(0, 4), ByteRange(entry.size_bytes - 4, entry.size_bytes)])
        return first, last

    def head(self, path: str, most: int) -> bytes:
        """Return at most that many of a file's first bytes; see `source.Lister`."""
        try:
            entry = self.look(path)
            if not isinstance(entry, ListedFile) or entry.size_bytes == 0:
                return b""
            return self._read(entry, [ByteRange(0, min(entry.size_bytes, most))])[0]
        except (SourceError, OSError):  # the caller may lack the permission for files other than the data
            return b""

    def _read(self, entry: ListedFile, spans: Sequence[ByteRange]) -> list[bytes]:
        file = SourceFile(entry.path, entry.size_bytes, entry.mtime_ns, (), entry.etag)
        buffers = [np.empty(span.size, np.uint8) for span in spans]
        self.fetcher.run(self.fetcher.read_all(file, spans, buffers))
        return [buffer.tobytes() for buffer in buffers]

    async def _reached(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of `work`; before the first call, check that the endpoint accepts connections.

        Clients retry a refused connection for seconds or minutes, and most of their calls cannot be cancelled.
        """
        endpoint, self.endpoint = self.endpoint, None
        if endpoint is not None:
            why = await self.fetcher.call(partial(probe, *endpoint, encrypted=self.is_encrypted))
            if why is not None:
                raise why
        return await work()
