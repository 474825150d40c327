"""The common half of listers of remote stores: threads, the first and last bytes of files, a probe of the endpoint."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from parquet_loader.common import probe
from parquet_loader.errors import SourceError
from parquet_loader.source.byte_ranges import ByteRange
from parquet_loader.source.files import ListedFile, ListingContext, SourceFile
from parquet_loader.source.remote.fetcher import Fetcher
from parquet_loader.source.remote.task_group import side_by_side

S = TypeVar("S")
T = TypeVar("T")

# Paths of a list that are examined concurrently; fewer than a fetcher has threads, on which they may ask for more.
_LOOKS_AT_ONCE = 16


class RemoteLister:
    """Lists a store on threads that nobody has to wait for, so that Ctrl-C and the interpreter's end come at once.

    Args:
        fetcher: Whose threads and event loop those are; started, and closed by whoever made it.
    """

    endpoint: tuple[str, int] | None = None
    """Host and port to probe before the first requests, or None."""
    is_encrypted = False
    """Whether the endpoint is spoken to in https."""

    def __init__(self, fetcher: Fetcher) -> None:
        self.fetcher = fetcher

    def each(self, work: Callable[[S], T], things: Sequence[S], most: int = _LOOKS_AT_ONCE) -> list[T]:
        """Return what `work` gives for each of the things, several at a time; see `source.Lister`.

        Raises:
            UnreachableError: nothing answers at the endpoint, so that repeating requests is of no use.
        """

        async def one(number: int) -> T:
            return await self.fetcher.call(partial(work, things[number]))

        done = self.fetcher.run(self._reached(partial(side_by_side, one, range(len(things)), most)))
        return [done[number] for number in range(len(things))]

    def pinned(self, paths: Sequence[str]) -> list[str]:
        """Return the paths as they are; see `source.Lister`."""
        return list(paths)

    def context(self) -> ListingContext:
        """Return nothing; see `source.Lister`."""
        return ListingContext()

    def look(self, path: str) -> ListedFile | bool | None:
        """Return a file, True for a directory, or None; see `source.Lister`."""
        raise NotImplementedError

    def below(self, base: str) -> list[ListedFile]:
        """Return all files below a directory; see `source.Lister`."""
        raise NotImplementedError

    def matching(self, base: str, pattern: str) -> list[ListedFile]:  # noqa: ARG002 (a store is listed as a whole)
        """Return all files below the directory of a glob, matches among them."""
        return self.below(base)

    def ends(self, entry: ListedFile) -> tuple[bytes, bytes]:
        """Return the first and the last four bytes of a file, by one request each."""
        file = SourceFile(entry.path, entry.size_bytes, entry.mtime_ns, (), entry.etag)
        if entry.size_bytes < 8:
            return b"", b""
        spans = [ByteRange(0, 4), ByteRange(entry.size_bytes - 4, entry.size_bytes)]
        buffers = [np.empty(span.size, np.uint8) for span in spans]
        self.fetcher.run(self.fetcher.read_all(file, spans, buffers))
        return buffers[0].tobytes(), buffers[1].tobytes()

    def head(self, path: str, most: int) -> bytes:
        """Return at most that many of a file's first bytes; see `source.Lister`."""
        try:
            entry = self.look(path)
            if not isinstance(entry, ListedFile) or entry.size_bytes == 0:
                return b""
            file = SourceFile(entry.path, entry.size_bytes, entry.mtime_ns, (), entry.etag)
            buffer = np.empty(min(entry.size_bytes, most), np.uint8)
            self.fetcher.run(self.fetcher.read_all(file, [ByteRange(0, buffer.size)], [buffer]))
        except (SourceError, OSError):  # who may read the files need not be one who may look next to them
            return b""
        return buffer.tobytes()

    async def _reached(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what `work` returns, unless a connection to the endpoint is refused; tried before the first work only.

        Clients retry a refused connection for seconds or minutes, and most of their calls cannot be cancelled.
        """
        endpoint, self.endpoint = self.endpoint, None
        if endpoint is not None:
            why = await self.fetcher.call(partial(probe, *endpoint, encrypted=self.is_encrypted))
            if why is not None:
                raise why
        return await work()
