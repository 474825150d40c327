"""Locates and opens the column chunks of a row group, and memoizes the locations of their pages."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.common import IntArray, ReadOptions, RemoteOptions, check_private
from parquet_loader.decode import ChunkPlan, ColumnRoute, OpenChunks, PlanPattern, open_chunks
from parquet_loader.errors import DataError, SourceError
from parquet_loader.read.cache import CacheStats, LocalCache, RowGroupCache, is_worth_it
from parquet_loader.read.chunk_locations import CachedFile, ChunkLocation, FetchedChunks, OwnFile, StreamedChunks
from parquet_loader.source import (
    ByteRange,
    Fetcher,
    Metadata,
    MetadataError,
    RemoteStore,
    RowGroupFooter,
    RowGroupRef,
    Snapshot,
    SparseFile,
    changed_since,
    held_bytes,
    row_group_ranges,
    selected,
)

# The most bytes in memory of a row group that is streamed from the store outside an epoch.
STREAMED_BYTES = 8 * 2**20

# The default limit of a `BoundedMemo`, and the bytes of an entry, a column and a page of it.
MEMO_BYTES = 4 * 2**20
_ENTRY_BYTES, _COLUMN_BYTES, _PAGE_BYTES = 1024, 128, 16

# The most patterns of a selection. Row groups of one data set may differ in codec, and in encodings: some writers leave
# out dictionaries where they find many values.
MOST_PATTERNS = 4

K = TypeVar("K")
T = TypeVar("T")


def memo_bytes(columns: int, pages: int = 0) -> int:
    """Return about how many bytes a memo entry of that many columns and pages takes."""
    return _ENTRY_BYTES + _COLUMN_BYTES * columns + _PAGE_BYTES * pages


class BoundedMemo(Generic[K, T]):
    """A memo about files that do not change. Any thread may use it.

    Bounded: when it is full, new entries are not kept. An LRU would have no hits, because each epoch reads all entries.

    Args:
        most_bytes: The most bytes that it keeps; the last entry may exceed it.
    """

    def __init__(self, most_bytes: int = MEMO_BYTES) -> None:
        self._most_bytes = most_bytes
        self._entries: dict[K, T] = {}
        self._nbytes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process without the entries, because those of a `ChunkPlan` have addresses in memory."""
        return BoundedMemo, (self._most_bytes,)

    def get(self, key: K) -> T | None:
        """Return the entry of a key; None if there is none."""
        return self._entries.get(key)

    def keep(self, key: K, found: T, nbytes: int) -> None:
        """Add an entry of that many bytes if there is space; concurrent calls may make the byte count inexact."""
        if self._nbytes < self._most_bytes:
            self._entries[key] = found
            self._nbytes += nbytes


@dataclass(frozen=True, slots=True, eq=False)
class ColumnSelection:
    """Columns that are read together from the files of one schema, and their routes; compared by identity.

    Attributes:
        columns: The names to read.
        routes: The routes of the columns.
        window_routes: The routes to the window that they may take; see `open_chunks`.
        needs_arrow: Whether Arrow has to decode at least one of them.
    """

    columns: tuple[str, ...]
    routes: tuple[ColumnRoute, ...]
    window_routes: tuple[str, ...] = ()
    needs_arrow: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs_arrow", any(r.stored and r.decoder == "arrow" for r in self.routes))

    def by_arrow(self, names: Collection[str]) -> ColumnSelection:
        """Return the same columns, with `names` decoded by Arrow.

        Lists of any length are left to the kernels, which decode those with nulls to arrays.
        """
        routes = (
            replace(r, window=None, decoder="arrow") if r.stored in names and not r.source.are_lists else r
            for r in self.routes
        )
        return ColumnSelection(self.columns, tuple(routes), self.window_routes)


class ArrowColumns:
    """Columns of one row group, open for Arrow; the caller closes them.

    Args:
        file: The file that holds them.
        row_group: The row group's number in the file.
        names: Arrow's names of their leaves; see `Metadata.arrow_names`.
    """

    def __init__(self, file: pq.ParquetFile, row_group: int, names: Sequence[str]) -> None:
        self._file = file
        self._which = {"row_groups": [row_group], "columns": names}

    def batches(self, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Decode the columns, that many rows at a time."""
        return self._file.iter_batches(batch_rows, use_threads=False, **self._which)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class OpenRowGroup(NamedTuple):
    """Columns of one row group, open for a forward read.

    Attributes:
        chunks: The chunks that kernels or the system read.
        arrow: The others (`ChunkPlan.arrow`), or None.
        batch_rows: About how many rows to decode at a time.
    """

    chunks: OpenChunks
    arrow: ArrowColumns | None
    batch_rows: int


class ColumnChunkSource:
    """The column chunks of a snapshot's row groups. Any thread may use it.

    Args:
        snapshot: The files and row groups.
        options: How to read.
        columns_of: For each of the snapshot's schemas, the names to read.
        cache: The local cache of row groups, or None.
    """

    def __init__(
        self, snapshot: Snapshot, options: ReadOptions, columns_of: Sequence[list[str]], cache: LocalCache | None
    ) -> None:
        self._snapshot = snapshot
        self._options = options
        self._columns_of = columns_of
        self._leaves_of: dict[int, Sequence[int]] = {}
        self._plans = BoundedMemo[tuple[int, ColumnSelection], ChunkPlan]()
        self._patterns = BoundedMemo[ColumnSelection, tuple[PlanPattern, ...]]()
        self.cache: RowGroupCache | None = None
        if cache is not None and is_worth_it(cache, snapshot):
            _, firsts = np.unique(snapshot.file_schema[snapshot.row_group_file], return_index=True)
            columns = [self.columns_read(snapshot.row_group(index)) for index in firsts.tolist()]
            if not cache.shared:
                check_private(str(cache.path), "LocalCache(path=...)", "pass shared=True")
            self.cache = RowGroupCache(cache, snapshot, columns)

    def columns_read(self, row_group: RowGroupRef) -> list[str]:
        """Return the names to read."""
        return self._columns_of[row_group.schema_number]

    @property
    def remote(self) -> RemoteStore | None:
        """The store that row groups are fetched from; None if files are local."""
        return self._snapshot.remote

    @property
    def are_local(self) -> bool:
        """Whether all of them are in their own files on a local disk."""
        return self.cache is None and self.remote is None

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
        return OwnFile(row_group.file.path, self._snapshot.filesystem)

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

    def holds(self, row_group: RowGroupRef) -> bool:
        """Whether the local cache has a file for a row group's columns; lists a directory, and reads no file."""
        return self.cache is not None and self.cache.holds(row_group, self.columns_read(row_group))

    def cache_figures(self, before: CacheStats | None = None) -> CacheStats | None:
        """Return the counters of the local cache, since `before` if given; None without a cache."""
        if self.cache is None:
            return None
        return self.cache.figures if before is None else self.cache.figures.since(before)

    def open(
        self, row_group: RowGroupRef, columns: Sequence[str], location: ChunkLocation, **as_arrow: Any
    ) -> ArrowColumns:
        """Check the page headers of columns, and open a location of a row group for Arrow; the caller closes it.

        Args:
            row_group: The row group.
            columns: The columns to read.
            location: The location of its bytes.
            as_arrow: Arguments of `pyarrow.parquet.ParquetFile` about the types of values.

        Raises:
            As `ChunkLocation.check` and `ChunkLocation.open` do.
            SourceError: the file has vanished or changed since its footer was read.
        """
        footer = self._snapshot.footers.get(row_group.file_number)
        if isinstance(location, OwnFile):
            self.check_unchanged(row_group)
        location.check(footer, row_group.number, columns)
        return self._open(row_group, columns, location, footer, footer.arrow, as_arrow)

    def _open(
        self,
        row_group: RowGroupRef,
        columns: Sequence[str],
        location: ChunkLocation,
        footer: Metadata,
        arrow: pq.FileMetaData,
        as_arrow: Mapping[str, Any],
    ) -> ArrowColumns:
        words = [n for n in as_arrow.get("read_dictionary") or () if _can_be_dictionary(footer, row_group.number, n)]
        file = location.open(
            footer,
            row_group.number,
            columns,
            metadata=arrow,
            pre_buffer=False,
            page_checksum_verification=self._options.verify_checksums,
            **{**as_arrow, "read_dictionary": words or None},
        )
        return ArrowColumns(file, row_group.number, footer.arrow_names(columns))

    @contextmanager
    def opened(
        self,
        row_group: RowGroupRef,
        selection: ColumnSelection,
        location: ChunkLocation,
        rows_at_once: Callable[[Collection[str]], int],
        *,
        keeps_plan: bool = True,
    ) -> Iterator[OpenRowGroup]:
        """Open columns of a row group, each on its route, after checking that the file has not changed.

        Args:
            row_group: The row group.
            selection: The columns.
            location: The location of its bytes.
            rows_at_once: Returns how many rows to decode at a time if these columns stay in the file.
            keeps_plan: Whether the selection is used again, so that its plan is memoized.

        Raises:
            As `open_chunks` and `ChunkLocation.open` do.
            SourceError: the file has vanished or changed since its footer was read.
        """
        # A cached copy may be damaged and then fetched again, so its pages are not memoized.
        key = (row_group.index, selection) if keeps_plan and isinstance(location, OwnFile) else None
        known = None if key is None else self._plans.get(key)
        patterns = self.patterns(selection) if known is None and location.source is not None else ()
        matched = self._matched(row_group, patterns)
        footer: RowGroupFooter | None = None
        if matched is None and (known is None or not known.is_native):
            # A file that has been replaced is not opened: a named pipe in its place would never answer.
            self.check_unchanged(row_group)
        if matched is None and (known is None or known.arrow):
            arrow = selection.needs_arrow if known is None else bool(known.arrow)
            footer = self._snapshot.footer_of(row_group, selection.columns, chunks=known is None, arrow=arrow)
        schema = self._snapshot.stored_schemas[row_group.schema_number]
        listed = (-1, -1)
        if isinstance(location, OwnFile) and row_group.file.mtime_ns is not None:
            listed = row_group.file.size_bytes, row_group.file.mtime_ns
        chunks = open_chunks(
            location.source,
            selection.routes,
            selection.window_routes,
            footer,
            schema,
            row_group.rows,
            known,
            listed,
            matched,
        )
        with closing(chunks), ExitStack() as stack:
            plan = chunks.plan
            columns, batch_rows = None, rows_at_once(plan.deferred.difference(plan.groups))
            if footer is not None and plan.arrow:
                rows_of = {r.stored: r.dictionary_rows for r in selection.routes if r.dictionary_rows}
                words = [name for name in plan.arrow if 0 < rows_of.get(name, 0) <= batch_rows]
                arrow_footer = footer.metadata.arrow if footer.arrow is None else footer.arrow
                as_arrow = {"read_dictionary": words}
                columns = self._open(row_group, plan.arrow, location, footer.metadata, arrow_footer, as_arrow)
                stack.callback(columns.close)
            if not chunks.is_as_listed:
                self.check_unchanged(row_group)  # before a value is read, and before the plan is memoized
            if chunks.pattern is not None and keeps_plan and len(patterns) < MOST_PATTERNS:
                self._patterns.keep(selection, (*patterns, chunks.pattern), memo_bytes(len(selection.columns)))
            if key is not None and known is None:
                pages = sum(len(column_pages.starts) for column_pages in plan.raw.values())
                self._plans.keep(key, plan, memo_bytes(len(selection.columns) + 4 * len(plan.raw), pages))
            yield OpenRowGroup(chunks, columns, batch_rows)

    def _matched(self, row_group: RowGroupRef, patterns: Sequence[PlanPattern]) -> tuple[PlanPattern, IntArray] | None:
        """Return the pattern that a row group follows, and the row group's extents; or None."""
        if not patterns:
            return None
        found = self._snapshot.match_patterns([row_group], [pattern.chunks for pattern in patterns])
        extents, match = found[-1]
        return (patterns[len(found) - 1], extents[0]) if match[0] else None

    def patterns(self, selection: ColumnSelection) -> Sequence[PlanPattern]:
        """Return the patterns of a selection's plans; takes no lock, and does no I/O."""
        return self._patterns.get(selection) or ()

    def encoded_bytes(self, row_group: RowGroupRef, columns: Sequence[str] | None = None) -> int:
        """Return the stored bytes of a row group's columns: of all that are read, or of these."""
        footer = self._snapshot.footers.get(row_group.file_number)
        leaves = self.leaves(row_group.file_number) if columns is None else selected(footer.names, columns)
        return footer.stored_bytes(row_group.number, leaves)

    def column_chunks(self, row_groups: IntArray) -> int:
        """Return the number of column chunks that are read of these row groups (indices in the snapshot)."""
        files = self._snapshot.row_group_file[row_groups]
        _, firsts, counts = np.unique(self._snapshot.file_schema[files], return_index=True, return_counts=True)
        of_each = zip(files[firsts].tolist(), counts.tolist(), strict=True)
        return sum(len(self.leaves(file)) * count for file, count in of_each)

    def leaves(self, file: int) -> Sequence[int]:
        """Return the numbers of the leaf columns that are read of a file; they depend only on its schema."""
        schema = int(self._snapshot.file_schema[file])
        if schema not in self._leaves_of:
            footer = self._snapshot.footers.get(file)
            self._leaves_of[schema] = selected(footer.names, self._columns_of[schema])
        return self._leaves_of[schema]

    def check_unchanged(self, row_group: RowGroupRef) -> None:
        """Check that a local file has not changed since its footer was read.

        Raises:
            SourceError: it has vanished or changed since.
        """
        if self._snapshot.remote is not None:  # requests compare ETags
            return
        file = row_group.file
        with suppress(OSError, ValueError):
            found = os.stat(file.path)
            if (found.st_size, found.st_mtime_ns) == (file.size_bytes, file.mtime_ns) and stat.S_ISREG(found.st_mode):
                return
        changed = changed_since(self._snapshot.filesystem, file)
        if changed:
            raise SourceError(f"{row_group.name}: the file {changed}; make a new loader to read it")


def _can_be_dictionary(footer: Metadata, row_group: int, name: str) -> bool:
    """Whether Arrow can read a column chunk of text as a dictionary: it cannot for pages of differences."""
    leaves = selected(footer.names, [name])
    return not any(e.startswith("DELTA") for leaf in leaves for e in footer.chunk(row_group, leaf).encoding_names)
