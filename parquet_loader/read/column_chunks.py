"""Locates and opens the column chunks of a row group, and remembers where their pages are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

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
from parquet_loader.read.page_locations import BoundedMemo, bytes_kept
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

# Smaller column chunks are left to Arrow, which takes many in one call.
RAW_BYTES = 2**18

# What may lie in memory of a row group that is read from the store as it is decoded, outside an epoch.
STREAMED_BYTES = 8 * 2**20


class ColumnChunkSource:
    """The column chunks of a snapshot's row groups. Any thread may use it.

    Args:
        snapshot: What there is.
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
        """What fetches row groups; None if files are local."""
        return self._snapshot.remote

    async def fetched(
        self, row_group: RowGroupRef, fetcher: Fetcher, most_bytes: int, streamed_bytes: int
    ) -> ChunkLocation:
        """Fetch a row group's columns, or find them in the cache, on the event loop of a fetcher.

        If they take more than `most_bytes` of memory, and the cache does not take them, they are to be streamed, in
        `streamed_bytes`.

        Raises:
            SourceError: see `RangeFetcher`. DataError: the footer names bytes that the file does not have.
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
        """Return the memory that a row group takes when it is fetched; None if its footer is not at hand.

        Raises as `ranges`.
        """
        assert self.remote is not None
        footer = self._snapshot.footers.cached(row_group.file_number)
        return None if footer is None else held_bytes(self.ranges(row_group, footer, self.remote.options))

    def ranges(
        self, row_group: RowGroupRef, footer: Metadata, options: RemoteOptions, columns: Sequence[str] | None = None
    ) -> tuple[ByteRange, ...]:
        """Return the bytes of a row group that are to be fetched: of what is read of it, or of these columns.

        Raises:
            DataError: the footer is wrong about a column, or one is encrypted.
        """
        wanted = self.columns_read(row_group) if columns is None else columns
        try:
            return row_group_ranges(footer, row_group.number, wanted, request_bytes=int(options.request_bytes))
        except MetadataError as error:
            raise DataError(
                f"{row_group.name}, {error}; a loader with on_error='skip' leaves such row groups out"
            ) from error

    def unread(self, row_group: RowGroupRef, streamed_bytes: int = STREAMED_BYTES) -> ChunkLocation:
        """Return a row group's own file; if that is in a store, it is fetched as it is decoded, so much at a time."""
        remote = self._snapshot.remote
        if remote is not None:
            return StreamedChunks(remote, row_group.file, streamed_bytes)
        return OwnFile(row_group.file.path, self._snapshot.filesystem, partial(self._check_once, row_group))

    def fetch(self, row_group: RowGroupRef, columns: Sequence[str]) -> ChunkLocation:
        """Return these columns of a row group from its own file, fetched now if that is in a store."""
        remote = self._snapshot.remote
        if remote is None or not columns:
            return self.unread(row_group)
        file, footer = row_group.file, self._snapshot.footers.get(row_group.file_number)
        ranges = self.ranges(row_group, footer, remote.options, columns)
        sparse = SparseFile(file.size_bytes, ranges)
        remote.fetch_into(file, ranges, [sparse.view(span) for span in ranges])
        return FetchedChunks(sparse)

    def locate(self, row_group: RowGroupRef, columns: Sequence[str]) -> ChunkLocation:
        """Return these columns of a row group from the cache, from a local file, or fetched now."""
        return self._cached(row_group, columns) or self.fetch(row_group, columns)

    def locate_forward(
        self, row_group: RowGroupRef, columns: Sequence[str], *, asks_cache: bool = True
    ) -> ChunkLocation:
        """Return these columns of a row group for a reader that goes forward and need not come to their end.

        If they are not in the cache, and take more than one request, they are fetched as they are decoded.
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
        """Drop a copy from the local cache that could not be read, though the file itself could."""
        assert self.cache is not None
        assert location.path is not None
        self.cache.invalidate(location.path)

    def close(self) -> None:
        """Let go of the local cache; idempotent. Nothing is to be read afterwards."""
        if self.cache is not None:
            self.cache.close()

    def is_cached(self, row_group: RowGroupRef) -> bool:
        """Whether a row group was in the local cache when it was last read; nothing is looked at, or waited for."""
        return self.cache is not None and self.cache.is_known(row_group)

    def cache_figures(self, before: CacheStats | None = None) -> CacheStats | None:
        """Return what the local cache did, since an earlier time; None without one."""
        if self.cache is None:
            return None
        return self.cache.figures if before is None else self.cache.figures.since(before)

    def open(
        self, row_group: RowGroupRef, columns: Sequence[str], location: ChunkLocation, **as_arrow: Any
    ) -> pq.ParquetFile:
        """Open a location of a row group for Arrow to read these columns; whoever asks closes it.

        Args:
            row_group: The row group.
            columns: The columns to read.
            location: The location of its bytes.
            as_arrow: What `pyarrow.parquet.ParquetFile` takes about the types in which values arrive.

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
        self._checked.get((row_group.index, tuple(columns)), check, lambda _: bytes_kept(len(columns)))

    @contextmanager
    def raw(
        self, row_group: RowGroupRef, routes: Sequence[ColumnRoute], location: ChunkLocation
    ) -> Iterator[dict[str, RawColumn]]:
        """Open those of the columns on these routes whose values the system can copy from their pages.

        If there are any, whoever asks makes sure that the file is unchanged before taking a value.

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
            yield {name: RawColumn(file, where) for name, where in pages.items()}

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
            self.check_unchanged(row_group)  # before anything of it is kept
            return found

        def bytes_of(found: Mapping[str, RawPages]) -> int:
            pages = sum(len(where.starts) for where in found.values())
            return bytes_kept(len(types) + 4 * len(found), pages)

        # Copies may be damaged, and are fetched again then: what is found there is not kept.
        return self._pages.get((row_group.index, tuple(types)), find, bytes_of) if may_keep else find()

    @contextmanager
    def native(
        self, row_group: RowGroupRef, columns: Sequence[str], location: ChunkLocation
    ) -> Iterator[NativeChunks | None]:
        """Open those of the columns, all on a kernel's route, that a kernel can decode; None if there are none.

        If there are any, whoever asks makes sure that the file is unchanged before taking a value.
        """
        source = location.path if location.memory is None else location.memory
        known = self._known_chunks(row_group, columns) if columns and source is not None else None
        if source is None or known is None or not known.names:
            yield None
            return
        with NativeChunks(source, known) as chunks:
            yield chunks

    def _known_chunks(self, row_group: RowGroupRef, columns: Sequence[str]) -> DecodableChunks:
        def find() -> DecodableChunks:
            footer = self._snapshot.footers.get(row_group.file_number)
            stored = self._snapshot.stored_schemas[row_group.schema_number]
            return decodable_chunks(footer, row_group.number, columns, stored)

        return self._known.get((row_group.index, tuple(columns)), find, lambda _: bytes_kept(len(columns)))

    def encoded_bytes(self, row_group: RowGroupRef, columns: Sequence[str] | None = None) -> int:
        """Return the bytes in the file of the columns that are read of a row group, or of these."""
        footer = self._snapshot.footers.get(row_group.file_number)
        leaves = self._leaves(row_group.file_number) if columns is None else selected(footer.paths, columns)
        return footer.stored_bytes(row_group.number, leaves)

    def column_chunks(self, row_groups: IntArray) -> int:
        """Return how many column chunks reading these row groups (indices in the snapshot) touches."""
        files = self._snapshot.row_group_file[row_groups]
        _, firsts, counts = np.unique(self._snapshot.file_schema[files], return_index=True, return_counts=True)
        of_each = zip(files[firsts].tolist(), counts.tolist(), strict=True)
        return sum(len(self._leaves(file)) * count for file, count in of_each)

    def _leaves(self, file: int) -> Sequence[int]:
        """Return the numbers of the leaf columns that are read of a file; the same for all files of a schema."""
        schema = int(self._snapshot.file_schema[file])
        if schema not in self._leaves_of:
            footer = self._snapshot.footers.get(file)
            self._leaves_of[schema] = selected(footer.paths, self._columns_of[schema])
        return self._leaves_of[schema]

    def check_unchanged(self, row_group: RowGroupRef) -> None:
        """Check that a local row group's file is the one whose footer was read.

        Raises:
            SourceError: it has vanished or changed since.
        """
        if self._snapshot.remote is not None:  # requests notice it, if the store says
            return
        changed = changed_since(self._snapshot.filesystem, row_group.file)
        if changed:
            raise SourceError(f"{row_group.name}: the file {changed}; make a new loader to read it")
