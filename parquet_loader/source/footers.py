"""Caches parsed footers within a byte limit; a digest of each detects rewritten files."""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import pyarrow.fs as pafs

from parquet_loader.common import Digests, IntArray, no_link
from parquet_loader.errors import SourceError
from parquet_loader.source.byte_ranges import RangeFetcher
from parquet_loader.source.files import SourceFile, same_etag
from parquet_loader.source.footer_reading import Footer, checked_footer, fetch_footer, footer_digest, read_footer
from parquet_loader.source.metadata import Metadata
from parquet_loader.source.remote.fetcher import Fetcher
from parquet_loader.source.remote.remote_filesystem import RemoteStore
from parquet_loader.source.tables.names import FooterNames, Names

# Measured: pyarrow's parsed footer takes about 1.1 KB a column chunk, and the raw bytes and numbers 0.3 KB.
_BYTES_PER_CHUNK = 1400
_BYTES_PER_FOOTER = 4096


class StoredFooters:
    """Copies of a source's footers in one local file.

    Args:
        path: The local file.
        locations: int64 ``[files, 2]``, offset and length of each footer in it; length 0 if it is missing.
    """

    def __init__(self, path: str, locations: IntArray) -> None:
        self.path = path
        self._locations = locations

    def read(self, file: int) -> bytes | None:
        """Return a footer, or None if it is missing."""
        start, length = self._locations[file].tolist()
        try:
            with open(self.path, "rb", opener=no_link) as opened:
                opened.seek(start)
                raw = opened.read(length)
        except OSError:
            return None
        return raw if raw and len(raw) == length else None

    def discard(self) -> None:
        """Remove the damaged file; the next start creates it again."""
        with suppress(OSError):
            os.unlink(self.path)

    def reindexed(self, numbers: IntArray) -> StoredFooters:
        """Return the same footers for another list of files: `numbers` has the index of each here, or -1."""
        locations = np.where(numbers[:, None] < 0, 0, self._locations[numbers])
        return StoredFooters(self.path, locations)


class FooterCache:
    """Parsed footers by file; beyond a limit in bytes, the least recently used are dropped. Any thread may use it.

    The lock guards the table only and is never held during a read: two threads that miss the same footer both read it.
    A footer that is read again has to be identical to the first one.

    Args:
        filesystem: The file system of the files.
        files: The files.
        digests: uint64 ``[files]``, the digest of each footer that was read before, else 0. Updated by each read.
        remote: Fetches from `filesystem` if that is not local.
        names: Renames columns to those of the table that the files belong to; None keeps the files' own names.
    """

    def __init__(
        self,
        filesystem: pafs.FileSystem,
        files: tuple[SourceFile, ...],
        digests: Digests | None = None,
        remote: RemoteStore | None = None,
        names: FooterNames | None = None,
    ) -> None:
        self._filesystem = filesystem
        self.remote = remote
        self._names = names
        self.stored: StoredFooters | None = None
        self.record: Callable[[int, bytes], None] | None = None
        self._files = files
        self.digests = np.zeros(len(files), np.uint64) if digests is None else digests
        self._lock = Lock()
        self._pid = os.getpid()
        self._kept: OrderedDict[int, tuple[Metadata, int]] = OrderedDict()
        self._held_bytes = 0
        self._limit_bytes = 64 * 2**20
        self._origin: weakref.ref[FooterCache] | None = None
        self.largest_bytes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process without the footers, which are read again there."""
        return _footer_cache, (
            self._filesystem,
            self._files,
            self.digests,
            self.remote,
            self._limit_bytes,
            self.stored,
            self._names,
        )

    def for_one_loader(self) -> FooterCache:
        """Return a cache of the same footers with its own limit.

        While this cache exists, both share the footers that they read.
        """
        remote = None if self.remote is None else self.remote.for_one_loader()
        own = FooterCache(self._filesystem, self._files, self.digests, remote, self._names)
        own.stored = self.stored
        self._renew_lock_after_fork()
        with self._lock:
            own._kept = self._kept.copy()
            own._held_bytes, own._limit_bytes = self._held_bytes, self._limit_bytes
            own.largest_bytes = self.largest_bytes
        own._origin = weakref.ref(self)
        return own

    @property
    def names(self) -> Names | None:
        """The column names of the table and its files; None if the files keep their own names."""
        return None if self._names is None else self._names.names

    @property
    def held_bytes(self) -> int:
        """Estimated memory of the footers kept."""
        return self._held_bytes

    def limit(self, limit_bytes: int) -> None:
        """Set the limit; the footer used last is always kept."""
        with self._lock:
            self._limit_bytes = limit_bytes
            self._trim()

    def clear(self) -> None:
        """Release all footers."""
        with self._lock:
            self._kept.clear()
            self._held_bytes = 0

    def get(self, file: int, fetcher: RangeFetcher | None = None) -> Metadata:
        """Return a file's footer; if it is not cached, read it, through `fetcher` if the file is remote.

        Raises:
            SourceError: the file cannot be opened, has no valid footer, or its footer has changed.
        """
        kept = self.cached(file)
        if kept is not None:
            return kept
        return self._keep(file, self._read(file, fetcher))

    def _read(self, file: int, fetcher: RangeFetcher | None) -> Footer:
        return read_footer(self._filesystem, self._files[file], fetcher or self.remote, self._names)

    async def fetched(self, file: int, fetcher: Fetcher) -> Metadata:
        """As `get`, on the event loop of a fetcher; concurrent calls share one request."""
        kept = self.cached(file)
        return kept if kept is not None else await fetcher.once((self, file), partial(self._fetched, file, fetcher))

    async def _fetched(self, file: int, fetcher: Fetcher) -> Metadata:
        return self._keep(file, await fetch_footer(fetcher, self._files[file], self._names))

    def cached(self, file: int) -> Metadata | None:
        """Return a footer from memory or the local disk, or None."""
        kept = self._peek(file)
        origin = None if self._origin is None else self._origin()
        if kept is None and origin is not None:
            kept = origin._peek(file)
            if kept is not None:
                self._put(file, kept)
        if kept is not None or self.stored is None or not self.digests[file]:
            return kept
        raw = self.stored.read(file)
        if raw is None:
            return None
        if footer_digest(raw) != self.digests[file]:
            self.stored.discard()
            return None
        return self._keep(file, checked_footer(raw, self._files[file], self._names), is_new=False)

    def _peek(self, file: int) -> Metadata | None:
        self._renew_lock_after_fork()
        with self._lock:
            kept = self._kept.get(file)
            if kept is None:
                return None
            self._kept.move_to_end(file)
            return kept[0]

    def _renew_lock_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._lock, self._pid = Lock(), os.getpid()  # a thread of the parent may have held it

    def _keep(self, file: int, read: Footer, *, is_new: bool = True) -> Metadata:
        if self.digests[file] not in (0, read.digest):
            raise SourceError(
                f"{self._files[file].name}: the file has changed since its footer was read first; "
                "make a new loader to read it"
            )
        self.digests[file] = read.digest
        if is_new and self.record is not None:
            self.record(file, read.raw)
        origin = None if self._origin is None else self._origin()
        if origin is not None:
            origin._put(file, read.parsed)
        self._put(file, read.parsed)
        return read.parsed

    def _put(self, file: int, footer: Metadata) -> None:
        size = _BYTES_PER_FOOTER + footer.num_row_groups * footer.num_columns * _BYTES_PER_CHUNK
        self._renew_lock_after_fork()
        with self._lock:
            if file not in self._kept:
                self._kept[file] = (footer, size)
                self._held_bytes += size
                self.largest_bytes = max(self.largest_bytes, size)
                self._trim()

    def _trim(self) -> None:
        while self._held_bytes > self._limit_bytes and len(self._kept) > 1:
            _, (_, size) = self._kept.popitem(last=False)
            self._held_bytes -= size


def _footer_cache(
    filesystem: pafs.FileSystem,
    files: tuple[SourceFile, ...],
    digests: Digests,
    remote: RemoteStore | None,
    limit_bytes: int,
    stored: StoredFooters | None,
    names: FooterNames | None,
) -> FooterCache:
    cache = FooterCache(filesystem, files, digests, remote, names)
    cache.stored = stored
    cache.limit(limit_bytes)
    return cache


def same_content(one: SourceFile, other: SourceFile) -> bool:
    """Whether two listings of a file have the same content, by its size and ETag, or else modification time."""
    if one.size_bytes != other.size_bytes:
        return False
    if one.etag is not None and other.etag is not None:
        return same_etag(one.etag, other.etag)
    return one.mtime_ns is not None and one.mtime_ns == other.mtime_ns
