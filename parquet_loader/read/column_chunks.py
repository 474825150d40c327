"""Locates and opens the column chunks of a row group, and memoizes the locations of their pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.common import IntArray, ReadOptions, RemoteOptions, check_private
from parquet_loader.decode import (
    ColumnRoute,
    DecodableChunks,
    NativeChunks,
    RawColumn,
    RawFile,
    RawPages,
    decodable_chunks,
    raw_pages,
)
from parquet_loader.errors import DataError, SourceError
from parquet_loader.read.cache import CacheStats, LocalCache, RowGroupCache, is_worth_it
from parquet_loader.read.chunk_locations import CachedFile, ChunkLocation, FetchedChunks, OwnFile, StreamedChunks
from parquet_loader.source import (
    ByteRange,
    Fetcher,
    Metadata,
    MetadataError,
    RemoteStore,
    RowGroupRef,
    Snapshot,
    SparseFile,
    changed_since,
    held_bytes,
    row_group_ranges,
    selected,
)

# Smaller column chunks are left to Arrow, which decodes many in one call.
RAW_BYTES = 2**18

# The most bytes in memory of a row group that is streamed from the store outside an epoch.
STREAMED_BYTES = 8 * 2**20

# The default limit of a `BoundedMemo`, and the bytes of an entry, a column and a page of it.
MEMO_BYTES = 4 * 2**20
_ENTRY_BYTES, _COLUMN_BYTES, _PAGE_BYTES = 1024, 128, 16

K = TypeVar("K")
T = TypeVar("T")


def memo_bytes(columns: int, pages: int = 0) -> int:
    """Return about how many bytes a memo entry of that many columns and pages takes."""
    return _ENTRY_BYTES + _COLUMN_BYTES * columns + _PAGE_BYTES * pages


class BoundedMemo(Generic[K, T]):
    """A memo about files that do not change. Any thread may use it.

    Bounded: when it is full, new entries are not kept. An LRU would have no hits, because each epoch reads all entries.

    Args:
        most_bytes: The most bytes that it keeps, as `bytes_of` counts them; the last entry may exceed it.
    """

    def __init__(self, most_bytes: int = MEMO_BYTES) -> None:
        self._most_bytes = most_bytes
        self._entries: dict[K, T] = {}
        self._nbytes = 0

    def get(self, key: K, find: Callable[[], T], bytes_of: Callable[[T], int]) -> T:
        """Return the entry of a key, or find it now; concurrent calls may make the byte count inexact."""
        try:
            return self._entries[key]
        except KeyError:
            found = find()
        if self._nbytes < self._most_bytes:
            self._entries[key] = found
            self._nbytes += bytes_of(found)
        return found


class ColumnChunkSource:
    """The column chunks of a snapshot's row groups. Any thread may use it.

    Args:
        snapshot: The files and row groups.
        options: How to read.
        columns_of: For each of the snapshot's schemas, the names to ask the Parquet reader for.
        cache: The local cache of row groups, or None.
    """

    def __init__(
        self, snapshot: Snapshot, options: ReadOptions, columns_of: Sequence[list[str]], cache: LocalCache | None
    ) -> None:
        self._snapshot = snapshot
        self._options = options
        self._columns_of = columns_of
        self._leaves_of: dict[int, Sequence[int]] = {}
        self._checked = BoundedMemo[tuple[int, tuple[str, ...]], None]()
        self._known = BoundedMemo[tuple[int, tuple[str, ...]], DecodableChunks]()
        self._pages = BoundedMemo[tuple[int, tuple[str, ...]], dict[str, RawPages]]()
        self.cache: RowGroupCache | None = None
        if cache is not None and is_worth_it(cache, snapshot):
            _, firsts = np.unique(snapshot.file_schema[snapshot.row_group_file], return_index=True)
            columns = [self.columns_read(snapshot.row_group(index)) for index in firsts.tolist()]
            if not cache.shared:
                check_private(str(cache.path), "LocalCache(path=...)", "pass shared=True")
            self.cache = RowGroupCache(cache, snapshot, columns)

    def columns_read(self, row_group: RowGroupRef) -> list[str]:
        """Return the names to ask the Parquet reader for."""
        return self._columns_of[row_group.schema_number]

    @property
    def remote(self) -> RemoteStore | None:
        """The store from which row groups are fetched; None if files are local."""
        return self._snapshot.remote

    async def fetched(
        self, row_group: RowGroupRef, fetcher: Fetcher, most_bytes: int, streamed_bytes: int
    ) -> ChunkLocation:
        """Fetch a row group's columns, or find them in the cache; runs on the event loop of a fetcher.

        If they take more than `most_bytes` of memory and are not cached, nothing is fetched: the result streams them,
        with `streamed_bytes` in memory.

        Raises:
            SourceError: see `RangeFetcher`.
            DataError: the footer names bytes that the file does not have.
        """
        footer = await self._snapshot.footers.fetched(row_group.file_number, fetcher)
        file, ranges = row_group.file, self.ranges(row_group, footer, fetcher.options)
        if self.cache is not None and ranges:
            path = await fetcher.call(partial(self.cache.local_path, row_group, self.columns_read(row_group)))
            if path is not None:
                return CachedFile(path)
        if held_bytes(ranges) > most_bytes:
            return self.unread(row_group, streamed_bytes)
        sparse = SparseFile(file.size_bytes, ranges)
        await fetcher.read_all(file, ranges, [sparse.view(span) for span in ranges])
        fetcher.figures.row_groups += 1
        fetcher.figures.row_group_requests += len(ranges)
        return FetchedChunks(sparse)

    def fetched_bytes(self, row_group: RowGroupRef) -> int | None:
        """Return the bytes of memory that a fetched row group takes; None if its footer is not in memory.

        Raises as `ranges`.
        """
        assert self.remote is not None
        footer = self._snapshot.footers.cached(row_group.file_number)
        return None if footer is None else held_bytes(self.ranges(row_group, footer, self.remote.options))

    def ranges(
        self, row_group: RowGroupRef, footer: Metadata, options: RemoteOptions, columns: Sequence[str] | None = None
    ) -> tuple[ByteRange, ...]:
        """Return the byte ranges to fetch for a row group: for all columns that are read, or for these.

        Raises:
            DataError: the footer's entry of a column is invalid, or a column is encrypted.
        """
        wanted = self.columns_read(row_group) if columns is None else columns
        try:
            return row_group_ranges(footer, row_group.number, wanted, request_bytes=int(options.request_bytes))
        except MetadataError as error:
            raise DataError(
                f"{row_group.name}, {error}; a loader with on_error='skip' skips such row groups"
            ) from error

    def unread(self, row_group: RowGroupRef, streamed_bytes: int = STREAMED_BYTES) -> ChunkLocation:
        """Return the location of a row group in its own file, which is streamed if it is in a store."""
        remote = self._snapshot.remote
        if remote is not None:
            return StreamedChunks(remote, row_group.file, streamed_bytes)
        return OwnFile(row_group.file.path, self._snapshot.filesystem, partial(self._check_once, row_group))

    def fetch(self, row_group: RowGroupRef, columns: Sequence[str]) -> ChunkLocation:
        """Return the location of these columns in the row group's own file; from a store they are fetched now."""
        remote = self._snapshot.remote
        if remote is None or not columns:
            return self.unread(row_group)
        file, footer = row_group.file, self._snapshot.footers.get(row_group.file_number)
        ranges = self.ranges(row_group, footer, remote.options, columns)
        sparse = SparseFile(file.size_bytes, ranges)
        remote.fetch_into(file, ranges, [sparse.view(span) for span in ranges])
        return FetchedChunks(sparse)

    def locate(self, row_group: RowGroupRef, columns: Sequence[str]) -> ChunkLocation:
        """Return the location of these columns in the cache or in the file; from a store they are fetched now."""
        return self._cached(row_group, columns) or self.fetch(row_group, columns)

    def locate_forward(
        self, row_group: RowGroupRef, columns: Sequence[str], *, asks_cache: bool = True
    ) -> ChunkLocation:
        """Return the location of these columns for a forward read, which may stop before their end.

        Columns of a store that are not cached and take more than one request are streamed.
        """
        cached = self._cached(row_group, columns) if asks_cache else None
        if cached is not None:
            return cached
        remote = self._snapshot.remote
        if remote is not None and columns:
            footer = self._snapshot.footers.get(row_group.file_number)
            if len(self.ranges(row_group, footer, remote.options, columns)) == 1:
                return self.fetch(row_group, columns)
        return self.unread(row_group)

    def _cached(self, row_group: RowGroupRef, columns: Sequence[str]) -> CachedFile | None:
        path = self.cache.local_path(row_group, columns) if self.cache is not None and columns else None
        return None if path is None else CachedFile(path)

    def invalidate(self, location: ChunkLocation) -> None:
        """Drop a damaged copy from the local cache."""
        assert self.cache is not None
        assert location.path is not None
        self.cache.invalidate(location.path)

    def close(self) -> None:
        """Release the local cache; idempotent. Nothing may be read afterwards."""
        if self.cache is not None:
            self.cache.close()

    def is_cached(self, row_group: RowGroupRef) -> bool:
        """Whether a row group was in the local cache at its last read; does no I/O and takes no lock."""
        return self.cache is not None and self.cache.is_known(row_group)

    def cache_figures(self, before: CacheStats | None = None) -> CacheStats | None:
        """Return the counters of the local cache, since `before` if given; None without a cache."""
        if self.cache is None:
            return None
        return self.cache.figures if before is None else self.cache.figures.since(before)

    def open(
        self, row_group: RowGroupRef, columns: Sequence[str], location: ChunkLocation, **as_arrow: Any
    ) -> pq.ParquetFile:
        """Open a location of a row group for Arrow to read these columns; the caller closes the result.

        Args:
            row_group: The row group.
            columns: The columns to read.
            location: The location of its bytes.
            as_arrow: Arguments of `pyarrow.parquet.ParquetFile` about the types of values.

        Raises:
            As `ChunkLocation.open` does.
        """
        footer = self._snapshot.footers.get(row_group.file_number)
        return location.open(
            footer,
            row_group.number,
            columns,
            metadata=footer.arrow,
            pre_buffer=False,
            page_checksum_verification=self._options.verify_checksums,
            **as_arrow,
        )

    def _check_once(self, row_group: RowGroupRef, columns: Sequence[str], check: Callable[[], None]) -> None:
        self.check_unchanged(row_group)
        self._checked.get((row_group.index, tuple(columns)), check, lambda _: memo_bytes(len(columns)))

    @contextmanager
    def raw(
        self, row_group: RowGroupRef, routes: Sequence[ColumnRoute], location: ChunkLocation
    ) -> Iterator[dict[str, RawColumn]]:
        """Open the columns of these routes whose values the system can copy from their pages.

        If there are any, the caller checks that the file is unchanged before it reads a value.

        Raises:
            SourceError: the file has vanished or changed since its footer was read.
        """
        fields = [route.source.field for route in routes if route.window == "pages" and route.source.field is not None]
        types = {field.name: field.type for field in fields if field.type.byte_width * row_group.rows >= RAW_BYTES}
        if not types or location.path is None:
            yield {}
            return
        with closing(RawFile(location.path)) as file:
            pages = self._raw_pages(row_group, file, types, may_keep=not location.is_cached)
            yield {name: RawColumn(file, column_pages) for name, column_pages in pages.items()}

    def _raw_pages(
        self, row_group: RowGroupRef, file: RawFile, types: Mapping[str, pa.DataType], *, may_keep: bool
    ) -> dict[str, RawPages]:
        def find() -> dict[str, RawPages]:
            footer = self._snapshot.footers.get(row_group.file_number)
            leaves = {path: leaf for leaf, path in enumerate(footer.paths)}
            found = dict[str, RawPages]()
            for name, type_ in types.items():
                chunk = footer.check(row_group.number, leaves[name])
                pages = raw_pages(file, chunk, footer.schema.leaves[leaves[name]], row_group.rows, type_)
                found |= {} if pages is None else {name: pages}
            self.check_unchanged(row_group)  # before the result is memoized
            return found

        def bytes_of(found: Mapping[str, RawPages]) -> int:
            pages = sum(len(column_pages.starts) for column_pages in found.values())
            return memo_bytes(len(types) + 4 * len(found), pages)

        # A cached copy may be damaged and then fetched again, so its pages are not memoized.
        return self._pages.get((row_group.index, tuple(types)), find, bytes_of) if may_keep else find()

    @contextmanager
    def native(
        self,
        row_group: RowGroupRef,
        columns: Sequence[str],
        location: ChunkLocation,
        fills: Mapping[str, bytes] | None = None,
    ) -> Iterator[NativeChunks | None]:
        """Open those of these columns that a kernel can decode; None if there are none. `fills`: see `NativeChunks`.

        If there are any, the caller checks that the file is unchanged before it reads a value.
        """
        source = location.path if location.memory is None else location.memory
        known = self._known_chunks(row_group, columns) if columns and source is not None else None
        if source is None or known is None or not known.names:
            yield None
            return
        with NativeChunks(source, known, fills) as chunks:
            yield chunks

    def _known_chunks(self, row_group: RowGroupRef, columns: Sequence[str]) -> DecodableChunks:
        def find() -> DecodableChunks:
            footer = self._snapshot.footers.get(row_group.file_number)
            stored = self._snapshot.stored_schemas[row_group.schema_number]
            return decodable_chunks(footer, row_group.number, columns, stored)

        return self._known.get((row_group.index, tuple(columns)), find, lambda _: memo_bytes(len(columns)))

    def encoded_bytes(self, row_group: RowGroupRef, columns: Sequence[str] | None = None) -> int:
        """Return the stored bytes of a row group's columns: of all that are read, or of these."""
        footer = self._snapshot.footers.get(row_group.file_number)
        leaves = self._leaves(row_group.file_number) if columns is None else selected(footer.paths, columns)
        return footer.stored_bytes(row_group.number, leaves)

    def column_chunks(self, row_groups: IntArray) -> int:
        """Return the number of column chunks that are read of these row groups (indices in the snapshot)."""
        files = self._snapshot.row_group_file[row_groups]
        _, firsts, counts = np.unique(self._snapshot.file_schema[files], return_index=True, return_counts=True)
        of_each = zip(files[firsts].tolist(), counts.tolist(), strict=True)
        return sum(len(self._leaves(file)) * count for file, count in of_each)

    def _leaves(self, file: int) -> Sequence[int]:
        """Return the numbers of the leaf columns that are read of a file; they depend only on its schema."""
        schema = int(self._snapshot.file_schema[file])
        if schema not in self._leaves_of:
            footer = self._snapshot.footers.get(file)
            self._leaves_of[schema] = selected(footer.paths, self._columns_of[schema])
        return self._leaves_of[schema]

    def check_unchanged(self, row_group: RowGroupRef) -> None:
        """Check that a local file has not changed since its footer was read.

        Raises:
            SourceError: it has vanished or changed since.
        """
        if self._snapshot.remote is not None:  # requests compare ETags
            return
        changed = changed_since(self._snapshot.filesystem, row_group.file)
        if changed:
            raise SourceError(f"{row_group.name}: the file {changed}; make a new loader to read it")
