"""Locates and opens the column chunks of a row group: in a local file, in the cache, or fetched."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.common import IS_BUILT, IntArray, ReadOptions, RemoteOptions, check_private, is_local
from parquet_loader.decode import (
    IS_POSSIBLE,
    DecodableChunks,
    Decoder,
    FeedCheck,
    NativeChunks,
    RawColumn,
    RawFile,
    RawPages,
    check_pages,
    chunk_bounds,
    decodable_chunks,
    raw_pages,
)
from parquet_loader.errors import DataError, SourceError
from parquet_loader.read.cache import CacheStats, LocalCache, RowGroupCache, is_worth_it
from parquet_loader.read.page_locations import BoundedMemo, bytes_kept
from parquet_loader.source import (
    ByteRange,
    Fetcher,
    FromStore,
    Metadata,
    MetadataError,
    RemoteStore,
    RowGroupRef,
    Snapshot,
    SparseFile,
    StreamedFile,
    changed_since,
    chunk_ranges,
    held_bytes,
    row_group_ranges,
    selected,
)

# Column chunks are read through a buffer of this size instead of whole, so that what a read holds next to its rows is
# pages; measured no slower than whole chunks from the page cache.
BUFFER_BYTES = 1 << 16

# Smaller column chunks are left to Arrow, which takes many in one call.
RAW_BYTES = 2**18

# What may lie in memory of a row group that is read from the store as it is decoded, outside an epoch.
STREAMED_BYTES = 8 * 2**20

# Where a row group's bytes lie as in their own file: in a local one, or in memory, or only in the store. None: in the
# file itself.
Copy: TypeAlias = str | pa.Buffer | FromStore | None


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

    async def fetched(self, row_group: RowGroupRef, fetcher: Fetcher, most_bytes: int) -> SparseFile | str | None:
        """Return a row group's columns as they lie in the file, on the event loop of a fetcher: in memory, or cached.

        None: they take more than `most_bytes` of memory, and the cache does not take them.

        Raises:
            SourceError: see `RangeFetcher`. DataError: the footer names bytes that the file does not have.
        """
        footer = await self._snapshot.footers.fetched(row_group.file_number, fetcher)
        file, ranges = row_group.file, self.ranges(row_group, footer, fetcher.options)
        if self.cache is not None and ranges:
            path = await fetcher.call(partial(self.cache.local_path, row_group, self.columns_read(row_group)))
            if path is not None:
                return path
        if held_bytes(ranges) > most_bytes:
            return None
        sparse = SparseFile(file.size_bytes, ranges)
        await fetcher.read_all(file, ranges, [sparse.view(span) for span in ranges])
        fetcher.figures.row_groups += 1
        fetcher.figures.row_group_requests += len(ranges)
        return sparse

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
            return row_group_ranges(
                footer,
                row_group.number,
                wanted,
                gap_bytes=int(options.gap_bytes),
                request_bytes=int(options.request_bytes),
            )
        except MetadataError as error:
            raise DataError(
                f"{row_group.name}, {error}; a loader with on_error='skip' leaves such row groups out"
            ) from error

    def fetch(self, row_group: RowGroupRef, columns: Sequence[str]) -> pa.Buffer | None:
        """Return these columns of a row group as they lie in the file, waiting for them; None if it is local."""
        remote = self._snapshot.remote
        if remote is None or not columns:
            return None
        file, footer = row_group.file, self._snapshot.footers.get(row_group.file_number)
        ranges = self.ranges(row_group, footer, remote.options, columns)
        sparse = SparseFile(file.size_bytes, ranges)
        remote.fetch_into(file, ranges, [sparse.view(span) for span in ranges])
        buffer: pa.Buffer = sparse.buffer
        return buffer

    def copy(self, row_group: RowGroupRef, columns: Sequence[str]) -> Copy:
        """Return where a row group's columns lie as they do in their own file: in a local one, or fetched now."""
        cached = self.cache.local_path(row_group, columns) if self.cache is not None and columns else None
        return self.fetch(row_group, columns) if cached is None else cached

    def forward(self, row_group: RowGroupRef, columns: Sequence[str], *, asks_cache: bool = True) -> Copy:
        """Return from where a row group's columns are to be read forward, by a reader that need not come to their end.

        What is not in the cache, and is more than one request, is not fetched before.
        """
        cached = (
            self.cache.local_path(row_group, columns) if self.cache is not None and columns and asks_cache else None
        )
        remote = self._snapshot.remote
        if cached is not None or remote is None or not columns:
            return cached
        footer = self._snapshot.footers.get(row_group.file_number)
        if len(self.ranges(row_group, footer, remote.options, columns)) == 1:
            return self.fetch(row_group, columns)
        return FromStore(STREAMED_BYTES)

    def invalidate(self, copy: str) -> None:
        """Drop a copy from the local cache that could not be read, though the file itself could."""
        assert self.cache is not None
        self.cache.invalidate(copy)

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
        self, row_group: RowGroupRef, columns: Sequence[str], copy: Copy = None, **as_arrow: Any
    ) -> pq.ParquetFile:
        """Return a row group's file, or the copy of it, opened to read these columns; whoever asks closes it.

        Args:
            row_group: The row group.
            columns: What is read of it.
            copy: Where its bytes are, if not in the file.
            as_arrow: What `pyarrow.parquet.ParquetFile` takes about the types in which values arrive.

        Raises:
            MetadataError: the footer is wrong about one of them.
            FalseClaimError: a page header claims more than its column chunk can hold; Arrow would allocate that much.
        """
        footer = self._snapshot.footers.get(row_group.file_number)
        for leaf in selected(footer.paths, columns):
            footer.check(row_group.number, leaf)
        is_fetched = isinstance(copy, pa.Buffer)
        opened = pa.BufferReader(copy) if is_fetched else copy
        if self._snapshot.remote is not None and (copy is None or isinstance(copy, FromStore)):
            opened = self._streamed(row_group, columns, STREAMED_BYTES if copy is None else copy.held_bytes)
        else:
            self._check_pages(row_group, columns, copy)
        maps = self._options.memory_map and (isinstance(copy, str) or self._snapshot.remote is None)
        return pq.ParquetFile(
            opened or row_group.file.path,
            filesystem=self._snapshot.filesystem if opened is None else None,
            metadata=footer.arrow,
            pre_buffer=False,
            memory_map=maps,
            buffer_size=0 if is_fetched or maps else BUFFER_BYTES,
            page_checksum_verification=self._options.verify_checksums,
            **as_arrow,
        )

    def _streamed(self, row_group: RowGroupRef, columns: Sequence[str], most_bytes: int) -> pa.PythonFile:
        remote, file = self._snapshot.remote, row_group.file
        assert remote is not None
        footer = self._snapshot.footers.get(row_group.file_number)
        self.ranges(row_group, footer, remote.options, columns)  # says what is wrong with them
        chunks = chunk_ranges(footer, row_group.number, columns)
        fetch_into, request_bytes = partial(remote.fetch_into, file), int(remote.options.request_bytes)
        check = FeedCheck(self._chunk_bounds(row_group, columns), file.size_bytes)
        streamed = StreamedFile(fetch_into, file.size_bytes, chunks, most_bytes, request_bytes, check)
        return pa.PythonFile(streamed, mode="r")

    def _check_pages(self, row_group: RowGroupRef, columns: Sequence[str], copy: str | pa.Buffer | None) -> None:
        """Check the page headers of columns before Arrow reads them; of a file that has not changed since, once.

        Raises:
            FalseClaimError: one claims more than its column chunk can hold.
            SourceError: the file has vanished or changed since its footer was read.
        """
        if copy is not None:  # may be damaged, and is fetched again then
            check_pages(copy, self._chunk_bounds(row_group, columns))
            return
        path = row_group.file.path

        def check() -> None:
            check_pages(path, self._chunk_bounds(row_group, columns))

        self.check_unchanged(row_group)
        self._checked.get((row_group.index, tuple(columns)), check, lambda _: bytes_kept(len(columns)))

    def _chunk_bounds(self, row_group: RowGroupRef, columns: Sequence[str]) -> IntArray:
        footer = self._snapshot.footers.get(row_group.file_number)
        leaves = selected(footer.paths, columns)
        return chunk_bounds(footer, row_group.number, leaves)

    @contextmanager
    def raw(
        self, row_group: RowGroupRef, decoder: Decoder, columns: Collection[str], copy: Copy
    ) -> Iterator[dict[str, RawColumn]]:
        """Open those of the columns whose values can be taken from the file as they are.

        If there are any, whoever asks makes sure that the file is unchanged before taking a value.

        Raises:
            SourceError: the file has vanished or changed since its footer was read.
        """
        types, widths = decoder.raw_columns, decoder.raw_widths
        wanted = [name for name in columns if name in widths and widths[name] * row_group.rows >= RAW_BYTES]
        options, own = self._options, self._own_path(row_group)
        path = copy if isinstance(copy, str) else own
        if not wanted or not IS_POSSIBLE or path is None or options.memory_map or options.verify_checksums:
            yield {}
            return
        with closing(RawFile(path)) as file:
            pages = self._raw_pages(row_group, file, wanted, types, may_keep=path is own)
            yield {name: RawColumn(file, where) for name, where in pages.items()}

    def _own_path(self, row_group: RowGroupRef) -> str | None:
        """Return where a row group's own file lies on a local disk; None: it does not."""
        if not is_local(self._snapshot.filesystem):
            return None
        return row_group.file.path

    def _raw_pages(
        self,
        row_group: RowGroupRef,
        file: RawFile,
        names: Sequence[str],
        types: Mapping[str, pa.DataType],
        *,
        may_keep: bool,
    ) -> dict[str, RawPages]:
        def find() -> dict[str, RawPages]:
            footer = self._snapshot.footers.get(row_group.file_number)
            leaves = {path: leaf for leaf, path in enumerate(footer.paths)}
            found = dict[str, RawPages]()
            for name in names:
                chunk = footer.check(row_group.number, leaves[name])
                pages = raw_pages(file, chunk, footer.schema.leaves[leaves[name]], row_group.rows, types[name])
                found |= {} if pages is None else {name: pages}
            self.check_unchanged(row_group)  # before anything of it is kept
            return found

        def bytes_of(found: Mapping[str, RawPages]) -> int:
            pages = sum(len(where.starts) for where in found.values())
            return bytes_kept(len(names) + 4 * len(found), pages)

        # Copies may be damaged, and are fetched again then: what is found there is not kept.
        return self._pages.get((row_group.index, tuple(names)), find, bytes_of) if may_keep else find()

    @contextmanager
    def native(self, row_group: RowGroupRef, columns: Sequence[str], copy: Copy) -> Iterator[NativeChunks | None]:
        """Open those of the columns that need not be decoded by Arrow; None if there are none.

        If there are any, whoever asks makes sure that the file is unchanged before taking a value.
        """
        options, own = self._options, self._own_path(row_group)
        source = copy if isinstance(copy, str | pa.Buffer) else own
        is_possible = IS_BUILT and columns and not options.memory_map and not options.verify_checksums
        known = self._known_chunks(row_group, columns) if is_possible and source is not None else None
        if source is None or known is None or not known.names:
            yield None
            return
        with NativeChunks(source, known) as chunks:
            yield chunks

    def _known_chunks(self, row_group: RowGroupRef, columns: Sequence[str]) -> DecodableChunks:
        def find() -> DecodableChunks:
            footer = self._snapshot.footers.get(row_group.file_number)
            return decodable_chunks(footer, row_group.number, columns, row_group.schema)

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
        """Make sure that a row group's file is the one whose footer was read.

        Raises:
            SourceError: it has vanished or changed since.
        """
        changed = changed_since(self._snapshot.filesystem, row_group.file)
        if changed:
            raise SourceError(f"{row_group.name}: the file {changed}; make a new loader to read it")
