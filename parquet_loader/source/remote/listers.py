"""Lists remote stores with ETags, several pages at a time if the store was listed before."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import pyarrow.fs as pafs

from parquet_loader.common import (
    BROKEN_OFF,
    endpoint_of,
    endpoint_of_url,
    hub_of,
    is_encrypted,
    is_local,
    is_out_of_descriptors,
    probe,
    shown,
)
from parquet_loader.common.storage import hdfs
from parquet_loader.errors import LoaderStateError, RemoteError, SourceError
from parquet_loader.source.file_types import PARQUET_SUFFIXES
from parquet_loader.source.files import ListedFile, seen
from parquet_loader.source.local import LocalLister
from parquet_loader.source.remote.backoff import Backoff
from parquet_loader.source.remote.blocking_client import fsspec_of
from parquet_loader.source.remote.client import http_time_ns, time_ns, words_of
from parquet_loader.source.remote.fetcher import Fetcher
from parquet_loader.source.remote.hub_lister import HubLister
from parquet_loader.source.remote.obstore_client import ObstoreClient, client_for
from parquet_loader.source.remote.remote_filesystem import RemoteStore
from parquet_loader.source.remote.remote_lister import RemoteLister
from parquet_loader.source.remote.task_group import side_by_side

S = TypeVar("S")
T = TypeVar("T")

# What S3, Google Cloud Storage and Azure put on a page (Azure up to five times as much).
PAGE_KEYS = 1000
# Directories of HDFS that are listed side by side.
_FOLDERS_AT_ONCE = 16


class PyarrowLister(RemoteLister):
    """Lists through pyarrow's own functions; directories of the local file system through `LocalLister`, for its links.

    Args:
        fetcher: See `RemoteLister`.
        filesystem: The filesystem.
    """

    def __init__(self, fetcher: Fetcher, filesystem: pafs.FileSystem) -> None:
        super().__init__(fetcher)
        self._filesystem = filesystem
        self._local_base = _local_base(filesystem)

    def look(self, path: str) -> ListedFile | bool | None:
        """Return a file, True for a directory, or None; see `source.Lister`."""
        return seen(self._filesystem.get_file_info(path))

    def below(self, base: str) -> list[ListedFile]:
        """Return all files below a directory."""
        if self._local_base is not None:
            cut = len(self._local_base)
            found = LocalLister(include_hidden=True).below(self._local_base + base)
            return [entry._replace(path=entry.path[cut:]) for entry in found]
        listing = self._filesystem.get_file_info(pafs.FileSelector(base, recursive=True))
        return [entry for info in listing if isinstance(entry := seen(info), ListedFile)]


class _Pages:
    """The pages of one listing through obstore, which itself repeats no request whose answer breaks off.

    Args:
        begin: Begins a listing of the keys after this one; None for all keys.
        after: The listing contains only greater keys.
        deadline_s: How long the request of one page is repeated.
    """

    def __init__(self, begin: Callable[[str | None], Any], after: str | None, deadline_s: float) -> None:
        self._begin = begin
        self._after = after
        self._deadline_s = deadline_s
        self._pages = aiter(begin(after))

    async def next(self) -> Any:
        """Return the next page; None or an empty one after the last one."""
        loop, backoff = asyncio.get_running_loop(), Backoff()
        give_up_s = loop.time() + self._deadline_s
        while True:
            try:
                page = await anext(self._pages, None)
            except Exception as error:
                wait_s = backoff.next_s()
                if BROKEN_OFF not in str(error) or loop.time() + wait_s >= give_up_s:
                    raise
                await asyncio.sleep(wait_s)
                self._pages = aiter(self._begin(self._after))
            else:
                self._after = page[-1]["path"] if page else self._after
                return page


class ObstoreLister(RemoteLister):
    """Lists through obstore.

    Args:
        fetcher: See `RemoteLister`.
        client: The client.
        pages: The most pages requested at a time.
        known: Paths of an earlier listing, in order; the ends of its pages divide the new listing into parallel parts.
        meanwhile: Called with a path while the first page of its listing is being fetched.
        page_keys: Keys on a page.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        client: ObstoreClient,
        pages: int,
        known: Sequence[str] = (),
        meanwhile: Callable[[str], None] = lambda _: None,
        *,
        page_keys: int = PAGE_KEYS,
    ) -> None:
        super().__init__(fetcher)
        self._deadline_s = fetcher.options.deadline_s
        self._meanwhile = meanwhile
        self._client = client
        self._pages = pages
        self._known = sorted(known)
        self._page_keys = page_keys
        # Listings that were begun to check for directories, by path: the first page, and the others.
        self._begun: dict[str, tuple[Any, _Pages]] = {}

    def look(self, path: str) -> ListedFile | bool | None:
        """Return a file, True for a directory, or None; see `source.Lister`."""
        if any(known.startswith(path + "/") for known in self._known[:1]):
            return True  # as in the earlier listing; if this has changed, no file will be found in it
        return self.fetcher.run(self._look(path))

    async def _look(self, path: str) -> ListedFile | bool | None:
        store, key = self._client.placed(path)
        if not key:
            return True
        try:
            # A path with a file's suffix is probably a file, and the permission to read it may not include listing.
            if path.lower().endswith(PARQUET_SUFFIXES) and (file := await self._head(store, key, path)) is not None:
                return file
            pages = self._pages_of(store, key + "/", None)
            asyncio.get_running_loop().call_soon(self._meanwhile, path)
            if first := await pages.next():
                self._begun[path] = first, pages
                return True
            return None if path.lower().endswith(PARQUET_SUFFIXES) else await self._head(store, key, path)
        except Exception as error:
            raise _refused(error) from None

    def _pages_of(self, store: Any, prefix: str, after: str | None) -> _Pages:
        """Return the pages of the keys with a prefix that are greater than `after`."""

        def begin(after: str | None) -> Any:
            return self._client.obstore.list(store, prefix=prefix or None, offset=after, chunk_size=self._page_keys)

        return _Pages(begin, after, self._deadline_s)

    async def _head(self, store: Any, key: str, path: str) -> ListedFile | None:
        try:
            return _entry(path, await self._client.obstore.head_async(store, key))
        except Exception as error:
            if isinstance(error, FileNotFoundError) or type(error).__name__ == "NotFoundError":
                return None
            raise

    def below(self, base: str) -> list[ListedFile]:
        """Return all files below a directory."""
        keys = [path[len(_bucket_of(base)) :] for path in self._known if path.startswith(base + "/")]
        cuts = [None, *keys[self._page_keys - 1 :: self._page_keys], None]

        async def some(span: tuple[str | None, str | None]) -> list[ListedFile]:
            return await self._between(base, *span)

        try:
            parts = self.fetcher.run(side_by_side(some, list(pairwise(cuts)), self._pages))
        except LoaderStateError:
            raise
        except Exception as error:
            raise _refused(error) from None
        return _without_folders([entry for part in parts for entry in part], base)

    async def _between(self, base: str, after: str | None, last: str | None) -> list[ListedFile]:
        """Return the files below a directory with keys greater than `after` and at most `last`."""
        store, prefix = self._client.placed(base)
        found: list[ListedFile] = []
        first, pages = self._begun.pop(base, (None, None)) if after is None else (None, None)
        if pages is None:
            pages = self._pages_of(store, prefix, after)
        page = first if first is not None else await pages.next()
        while page:
            found.extend(_entry(_bucket_of(base) + m["path"], m) for m in page if last is None or m["path"] <= last)
            if last is not None and page[-1]["path"] >= last:
                break
            page = await pages.next()
        return found


def _without_folders(listed: Sequence[ListedFile], base: str) -> list[ListedFile]:
    """Return a listing without the empty objects that stand for directories, such as ``train.parquet/``.

    obstore leaves out the slash at the end of their keys. In the order of keys, their contents follow.
    """
    nexts = [*(entry.path for entry in listed[1:]), ""]
    return [
        entry
        for entry, after in zip(listed, nexts, strict=False)  # without entries, there is one more of these
        if entry.size_bytes or not (after.startswith(f"{entry.path}/") or entry.path == base.rstrip("/"))
    ]


class FsspecLister(RemoteLister):
    """Lists through fsspec's own functions. HTTP servers have no listings, so files on them have to be named.

    Args:
        fetcher: See `RemoteLister`.
        fs: The fsspec filesystem.
    """

    def __init__(self, fetcher: Fetcher, fs: Any) -> None:
        super().__init__(fetcher)
        self._fs = fs

    def look(self, path: str) -> ListedFile | bool | None:
        """Return a file, True for a directory, or None; see `source.Lister`."""
        is_http = path.startswith(("http://", "https://"))
        if is_http and (path.endswith("/") or "*" in path or "[" in path):
            raise SourceError(
                f"{shown(path)}: a directory or pattern on an HTTP server, which has no listings; pass the "
                "URLs of the files as a list"
            )
        try:
            info = self._fs.info(path)
        except FileNotFoundError as error:
            if is_http:  # a question mark in a URL is not a pattern
                raise _http_refusal(path, error) from None
            return None
        except Exception as error:
            raise _refused(error) from None
        return True if info.get("type") == "directory" else self._described(path, info)

    def below(self, base: str) -> list[ListedFile]:
        """Return all files below a directory."""
        try:
            found = self._fs.find(base, withdirs=False, detail=True)
            unknown = [path for path, info in found.items() if info.get("size") is None]
            found |= dict(zip(unknown, self.each(self._fs.info, unknown), strict=True))
        except Exception as error:
            raise _refused(error) from None
        return [self._described(path, info) for path, info in found.items()]

    def _described(self, path: str, info: dict[str, Any]) -> ListedFile:
        if info.get("size") is None:
            raise SourceError(
                f"{shown(path)}: the server does not tell the size of this file; "
                "download it, or serve it with Content-Length"
            )
        modified = next((info[name] for name in ("mtime", "LastModified", "last_modified") if name in info), None)
        mtime = time_ns(modified) if isinstance(modified, datetime) else http_time_ns(info.get("Last-Modified"))
        etag = info.get("ETag") or info.get("etag")
        return ListedFile(path, int(info["size"]), mtime, etag if isinstance(etag, str) else None)


class HdfsLister(RemoteLister):
    """Lists through pyarrow, several directories at a time, each with a deadline.

    Hadoop's client waits forever for a namenode that accepts connections and does not answer.

    Args:
        fetcher: See `RemoteLister`.
        store: The store.
    """

    def __init__(self, fetcher: Fetcher, store: RemoteStore) -> None:
        super().__init__(fetcher)
        self._store = store

    def look(self, path: str) -> ListedFile | bool | None:
        """Return a file, True for a directory, or None; see `source.Lister`."""
        return seen(self.fetcher.run(self._asked(hdfs.look_up, path)))

    def below(self, base: str) -> list[ListedFile]:
        """Return all files below a directory."""
        return self.fetcher.run(self._walked(base))

    async def _walked(self, base: str) -> list[ListedFile]:
        found: list[ListedFile] = []
        folders = [base]
        while folders:
            inside = await side_by_side(partial(self._asked, hdfs.list_directory), folders, _FOLDERS_AT_ONCE)
            infos = [info for part in inside for info in part]
            found += [entry for info in infos if isinstance(entry := seen(info), ListedFile)]
            folders = [info.path for info in infos if info.type == pafs.FileType.Directory]
        return found

    async def _asked(self, ask: Callable[[pafs.FileSystem, str], T], path: str) -> T:
        deadline_s = self._store.options.deadline_s
        try:
            async with asyncio.timeout(deadline_s):
                return await self.fetcher.call(partial(ask, self._store.filesystem, path))
        except TimeoutError:
            raise RemoteError(
                f"{self._store.name_of(path)}: cannot be listed: the namenode did not answer for {deadline_s:g} s, "
                "which is RemoteOptions(deadline_s=...)"
            ) from None


def lister_for(
    store: RemoteStore, fetcher: Fetcher, known: Sequence[str] = (), *, page_keys: int = PAGE_KEYS
) -> RemoteLister:
    """Return the lister of a store, on a fetcher's threads and event loop; other arguments as in `ObstoreLister`."""
    lister = _lister_for(store, fetcher, known, page_keys)
    lister.endpoint, lister.is_encrypted = endpoint_of(store.filesystem), is_encrypted(store.filesystem)
    return lister


def _lister_for(store: RemoteStore, fetcher: Fetcher, known: Sequence[str], page_keys: int) -> RemoteLister:
    if hdfs.is_hdfs(store.filesystem):
        return HdfsLister(fetcher, store)
    hub = hub_of(store.filesystem)
    if hub is not None:
        return HubLister(fetcher, hub)
    fs = fsspec_of(store.filesystem)
    if fs is not None and _local_base(store.filesystem) is None:
        return FsspecLister(fetcher, fs)
    client = None if store.options.connections == "native" else client_for(store.filesystem, store.options, lists=True)
    if client is None:
        return PyarrowLister(fetcher, store.filesystem)
    return ObstoreLister(fetcher, client, store.options.max_requests, known, store.prepare, page_keys=page_keys)


def _local_base(filesystem: pafs.FileSystem) -> str | None:
    """Return the local directory that a filesystem shows, as a prefix for its paths; None if it shows none."""
    fs = fsspec_of(filesystem)
    if fs is not None and "file" in ([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol):
        return ""
    if not isinstance(filesystem, pafs.SubTreeFileSystem):
        return None
    base: str = filesystem.base_path
    if is_local(filesystem.base_fs):
        return os.path.abspath(base).rstrip("/") + "/"
    outer = _local_base(filesystem.base_fs)
    return None if outer is None else outer + base.strip("/") + "/"


def _refused(error: Exception) -> OSError:
    """Return a store's error as an OSError with its message; `list_files` adds the path."""
    if isinstance(error, OSError) and is_out_of_descriptors(error):
        return error
    return OSError(words_of(error))


def _http_refusal(url: str, error: FileNotFoundError) -> Exception:
    """Return the server's own answer, because fsspec reports every failure as a missing file."""
    cause = error.__cause__
    if type(cause).__name__ == "TooManyRedirects":  # its status is 0, and it has no message
        return SourceError(f"{shown(url)}: the server redirects the request without end; check the URL")
    status = getattr(cause, "status", None)
    if isinstance(status, int) and status not in (404, 410):
        words = f"{status} {getattr(cause, 'message', '')}".strip()
        if status in (401, 403):
            return SourceError(
                f"{shown(url)}: the server refuses the request: {words}; a private or gated file needs credentials: "
                "pass filesystem= with the headers, or a signed URL"
            )
        return OSError(words)
    if cause is not None and type(cause).__name__.startswith("ClientConnect"):
        endpoint = endpoint_of_url(url)
        why = None if endpoint is None else probe(*endpoint)
        return RemoteError(f"{shown(url)}: {why}") if why is not None else OSError(words_of(cause))
    return SourceError(f"{shown(url)}: no such file")


def _bucket_of(path: str) -> str:
    return path.partition("/")[0] + "/"


def _entry(path: str, meta: Any) -> ListedFile:
    return ListedFile(path, int(meta["size"]), time_ns(meta["last_modified"]), meta["e_tag"])
