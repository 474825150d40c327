"""What lies in a store: listed with ETags, several pages at a time where it was listed before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import pyarrow.fs as pafs

from parquet_loader import hdfs
from parquet_loader.errors import RemoteError, SourceError
from parquet_loader.redact import shown
from parquet_loader.remote.client import words_of
from parquet_loader.remote.fetcher import Fetcher
from parquet_loader.remote.obstores import ObstoreClient, client_for
from parquet_loader.remote.store import RemoteStore, fsspec_of
from parquet_loader.remote.together import side_by_side
from parquet_loader.source import Entry, NativeLister, seen

S = TypeVar("S")
T = TypeVar("T")

# What S3, Google Cloud Storage and Azure put on a page (Azure up to five times as much).
PAGE_KEYS = 1000
# Directories of HDFS that are listed side by side.
_FOLDERS_AT_ONCE = 16


class ObstoreLister:
    """Lists through obstore.

    Args:
        client: The client.
        threads: Pages asked for at a time.
        known: Paths of a listing made before, in their order: where its pages ended, the new one is divided.
    """

    def __init__(self, client: ObstoreClient, threads: int, known: Sequence[str] = ()) -> None:
        self._client = client
        self._threads = threads
        self._known = sorted(known)
        # Listings that were begun to see whether a path is a directory: the first page, and what gives the rest.
        self._begun: dict[str, tuple[Any, Iterator[Any]]] = {}

    def look(self, path: str) -> Entry | bool | None:
        """Return a file, True for a directory, or None; see `source.Lister`."""
        if any(known.startswith(path + "/") for known in self._known[:1]):
            return True  # as before; if it is so no longer, nothing will be found in it
        store, key = self._client.placed(path)
        try:
            if key:
                pages = iter(self._client.obstore.list(store, prefix=key + "/", chunk_size=PAGE_KEYS))
                if first := next(pages, None):
                    self._begun[path] = first, pages
                    return True
                return _entry(path, self._client.obstore.head(store, key))
            return True
        except FileNotFoundError:
            return None
        except Exception as error:
            if type(error).__name__ == "NotFoundError":
                return None
            raise SourceError(f"{shown(path)}: cannot be listed: {words_of(error)}") from None

    def below(self, base: str) -> list[Entry]:
        """Return all files below a directory."""
        store, prefix = self._client.placed(base)
        head = base.partition("/")[0] + "/"
        keys = [path.removeprefix(head) for path in self._known if path.startswith(base + "/")]
        cuts: list[str | None] = [None, *keys[PAGE_KEYS - 1 :: PAGE_KEYS]]
        ends = [*cuts[1:], None]

        def some(bounds: tuple[str | None, str | None]) -> list[Entry]:
            after, last = bounds
            found: list[Entry] = []
            pages: Iterable[Any]
            if after is None and base in self._begun:
                first, rest = self._begun.pop(base)
                pages = chain([first], rest)
            else:
                pages = self._client.obstore.list(store, prefix=prefix or None, offset=after, chunk_size=PAGE_KEYS)
            for page in pages:
                found.extend(_entry(head + m["path"], m) for m in page if last is None or m["path"] <= last)
                if last is not None and page[-1]["path"] >= last:
                    break
            return found

        try:
            parts = in_parallel(some, list(zip(cuts, ends, strict=True)), self._threads)
        except Exception as error:
            raise SourceError(f"{shown(base)}: cannot be listed: {words_of(error)}") from None
        return [entry for part in parts for entry in part]


class FsspecLister:
    """Lists through fsspec's own functions. HTTP has no listings: pages of links lead anywhere, and files are named.

    Args:
        fs: The fsspec filesystem.
        threads: Files asked about at a time.
    """

    def __init__(self, fs: Any, threads: int) -> None:
        self._fs = fs
        self._threads = threads

    def look(self, path: str) -> Entry | bool | None:
        """Return a file, True for a directory, or None; see `source.Lister`."""
        is_http = path.startswith(("http://", "https://"))
        if is_http and (path.endswith("/") or "*" in path or "[" in path):
            raise SourceError(
                f"{shown(path)}: a directory or pattern on an HTTP server, which has no listings; pass the "
                "URLs of the files as a list"
            )
        try:
            info = self._fs.info(path)
        except FileNotFoundError:
            if is_http:  # where a question mark is no pattern
                raise SourceError(f"{shown(path)}: no such file") from None
            return None
        except Exception as error:
            raise SourceError(f"{shown(path)}: cannot be listed: {words_of(error)}") from None
        return True if info.get("type") == "directory" else self._described(path, info)

    def below(self, base: str) -> list[Entry]:
        """Return all files below a directory."""
        try:
            found = self._fs.find(base, withdirs=False, detail=True)
            unknown = [path for path, info in found.items() if info.get("size") is None]
            found |= dict(zip(unknown, in_parallel(self._fs.info, unknown, self._threads), strict=True))
        except Exception as error:
            raise SourceError(f"{shown(base)}: cannot be listed: {words_of(error)}") from None
        return [self._described(path, info) for path, info in found.items()]

    def _described(self, path: str, info: dict[str, Any]) -> Entry:
        if info.get("size") is None:
            raise SourceError(f"{shown(path)}: the server does not say how long this file is, and has to")
        modified = next((info[name] for name in ("mtime", "LastModified", "last_modified") if name in info), None)
        mtime = _ns(modified) if isinstance(modified, datetime) else None
        etag = info.get("ETag") or info.get("etag")
        return Entry(path, int(info["size"]), mtime, etag if isinstance(etag, str) else None)


class HdfsLister:
    """Lists through pyarrow, several directories at a time, and waits no longer than the deadline for each.

    Hadoop's client waits for ever for a namenode that is there and does not answer.

    Args:
        store: The store.
    """

    def __init__(self, store: RemoteStore) -> None:
        self._store = store

    def look(self, path: str) -> Entry | bool | None:
        """Return a file, True for a directory, or None; see `source.Lister`."""
        with self._store.fetcher() as fetcher:
            info = fetcher.run(self._asked(fetcher, hdfs.look_up, path))
        return seen(info)

    def below(self, base: str) -> list[Entry]:
        """Return all files below a directory."""
        with self._store.fetcher() as fetcher:
            return fetcher.run(self._walked(fetcher, base))

    async def _walked(self, fetcher: Fetcher, base: str) -> list[Entry]:
        found: list[Entry] = []
        folders = [base]
        while folders:
            level = folders

            async def asked(number: int, level: list[str] = level) -> list[pafs.FileInfo]:
                return await self._asked(fetcher, hdfs.list_directory, level[number])

            inside = await side_by_side(asked, range(len(level)), _FOLDERS_AT_ONCE)
            infos = [info for number in range(len(level)) for info in inside[number]]
            found += [entry for info in infos if isinstance(entry := seen(info), Entry)]
            folders = [info.path for info in infos if info.type == pafs.FileType.Directory]
        return found

    async def _asked(self, fetcher: Fetcher, ask: Callable[[pafs.FileSystem, str], T], path: str) -> T:
        deadline_s = self._store.options.deadline_s
        try:
            async with asyncio.timeout(deadline_s):
                return await fetcher.call(partial(ask, self._store.filesystem, path))
        except TimeoutError:
            raise RemoteError(
                f"{self._store.name_of(path)}: cannot be listed: the namenode did not answer for {deadline_s:g} s, "
                "which is RemoteOptions(deadline_s=...)"
            ) from None


def lister_for(
    store: RemoteStore, known: Sequence[str] = ()
) -> NativeLister | ObstoreLister | FsspecLister | HdfsLister:
    """Return what lists a store; `known` as in `ObstoreLister`."""
    if hdfs.is_hdfs(store.filesystem):
        return HdfsLister(store)
    threads = store.options.max_requests
    fs = fsspec_of(store.filesystem)
    if fs is not None:
        return FsspecLister(fs, threads)
    client = None if store.options.connections == "native" else client_for(store.filesystem, store.options, lists=True)
    return NativeLister(store.filesystem) if client is None else ObstoreLister(client, threads, known)


def in_parallel(work: Callable[[S], T], things: Sequence[S], threads: int) -> list[T]:
    """Return what `work` gives for each of the things, several at a time."""
    if len(things) < 2 or threads == 1:
        return [work(thing) for thing in things]
    with ThreadPoolExecutor(min(threads, len(things)), thread_name_prefix="parquet_loader-footers") as pool:
        try:
            return list(pool.map(work, things))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _entry(path: str, meta: Any) -> Entry:
    return Entry(path, int(meta["size"]), _ns(meta["last_modified"]), meta["e_tag"])


def _ns(when: datetime) -> int:
    return round(when.timestamp() * 1e6) * 1000
