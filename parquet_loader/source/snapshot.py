"""The files of a source and their footers, as an immutable list of row groups."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import Digests, IntArray, RemoteOptions
from parquet_loader.source.files import Lister, ListingContext, SourceFile
from parquet_loader.source.footers import FooterCache, same_content
from parquet_loader.source.listing import Selection, Source, list_files
from parquet_loader.source.local import LocalLister
from parquet_loader.source.metadata import Metadata
from parquet_loader.source.remote.fetcher import Fetcher
from parquet_loader.source.remote.listers import lister_for
from parquet_loader.source.remote.remote_filesystem import RemoteStore, store_of
from parquet_loader.source.remote.task_group import side_by_side


@dataclass(frozen=True, slots=True)
class RowGroupRef:
    """One row group of a snapshot, made on demand.

    Attributes:
        index: Its position in the snapshot, which the plan and arrays by row group use.
        file: Its file.
        file_number: Index of the file in the snapshot, which the footer cache uses.
        number: Its position in the file.
        rows: Rows before any filter.
        encoded_bytes: All columns as encoded, before compression.
        schema: The Arrow schema of the file's own columns.
        schema_number: Index of the schema in the snapshot.
    """

    index: int
    file: SourceFile
    file_number: int
    number: int
    rows: int
    encoded_bytes: int
    schema: pa.Schema
    schema_number: int

    @property
    def name(self) -> str:
        """How messages name it: its file, without secrets, and its number there."""
        return f"{self.file.name}, row group {self.number}"


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The files and row groups of a source, frozen when it was made.

    Attributes:
        filesystem: The file system of the files.
        files: The files, in their order.
        schemas: The distinct Arrow schemas of the files' own columns.
        file_schema: int32 ``[files]``, index into `schemas`.
        file_digest: uint64 ``[files]``, a digest of each footer's bytes.
        row_group_file: int32 ``[row groups]``, index into `files`.
        row_group_number: int32 ``[row groups]``, position within its file.
        row_group_rows: int64 ``[row groups]``.
        row_group_bytes: int64 ``[row groups]``, all columns as encoded, before compression.
        partition_schema: Columns that come from directory names: int64 if all values are integers, else string.
        footers: Parsed footers, kept within a limit and read again as needed.
        remote: Fetches from `filesystem`; None if that is local.
        listing_context: Names that were listed next to the files.
    """

    filesystem: pafs.FileSystem
    files: tuple[SourceFile, ...]
    schemas: tuple[pa.Schema, ...]
    file_schema: IntArray
    file_digest: Digests
    row_group_file: IntArray
    row_group_number: IntArray
    row_group_rows: IntArray
    row_group_bytes: IntArray
    partition_schema: pa.Schema
    footers: FooterCache
    remote: RemoteStore | None = None
    listing_context: ListingContext = field(default_factory=ListingContext)

    @property
    def rows(self) -> int:
        """Rows of all row groups."""
        return int(self.row_group_rows.sum())

    @property
    def row_groups(self) -> int:
        """Number of row groups."""
        return len(self.row_group_rows)

    @property
    def first_rows(self) -> IntArray:
        """Rows before each row group, and at last all: int64 ``[row groups + 1]``."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.row_group_rows)])

    def locate(self, row_numbers: IntArray) -> list[tuple[str, int, int]]:
        """Return the file, the row group in it, and the row in that, of each of these rows.

        Raises:
            IndexError: there is no such row.
        """
        starts = self.first_rows
        wrong = row_numbers[(row_numbers < 0) | (row_numbers >= starts[-1])]
        if len(wrong):
            raise IndexError(f"row number {wrong[0]} does not exist; the data set has rows 0 to {starts[-1] - 1}")
        groups = np.searchsorted(starts, row_numbers, side="right") - 1
        files = [self.files[number].path for number in self.row_group_file[groups].tolist()]
        rows = (row_numbers - starts[groups]).tolist()
        return list(zip(files, self.row_group_number[groups].tolist(), rows, strict=True))

    def for_one_loader(self) -> Snapshot:
        """Return the same files and row groups with a footer cache and requests of its own; nothing is read.

        Loaders that iterate at the same time then do not share a memory limit, or a fetcher that one of them closes.
        """
        footers = self.footers.for_one_loader()
        return replace(self, footers=footers, remote=footers.remote)

    def schema_of(self, file: int) -> pa.Schema:
        """Return the Arrow schema of one file's own columns."""
        return self.schemas[int(self.file_schema[file])]

    def row_group(self, index: int) -> RowGroupRef:
        """Return one row group as a value."""
        file = int(self.row_group_file[index])
        schema = int(self.file_schema[file])
        return RowGroupRef(
            index=index,
            file=self.files[file],
            file_number=file,
            number=int(self.row_group_number[index]),
            rows=int(self.row_group_rows[index]),
            encoded_bytes=int(self.row_group_bytes[index]),
            schema=self.schemas[schema],
            schema_number=schema,
        )

    def partition_values(self, file: int) -> dict[str, pa.Scalar]:
        """Return one file's values of the partition columns."""
        given = dict(self.files[file].partitions)
        return {f.name: _partition_scalar(given.get(f.name), f.type) for f in self.partition_schema}


@dataclass(slots=True)
class _FileFooters:
    """One file's part of a snapshot."""

    rows: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))


def open_snapshot(
    source: Source,
    filesystem: Any = None,
    num_threads: int | None = None,
    remote: RemoteOptions | None = None,
    known: Snapshot | None = None,
    record: Callable[[int, bytes], None] | None = None,
    selection: Selection | None = None,
) -> Snapshot:
    """List a source and read all its footers, several at a time.

    Args:
        source: As in `BatchedDataLoader`.
        filesystem: As in `BatchedDataLoader`.
        num_threads: Footers read at a time; default: the processors for local files, `RemoteOptions.max_requests` for
            others.
        remote: How files that are not local are fetched.
        known: An earlier snapshot; of files that have not changed since, nothing is read.
        record: Takes the number of a file, and its footer as it was read, of those that are read.
        selection: Which of the files are read.

    Raises:
        SourceError: see `list_files` and `read_footer`; the first file in order that fails is the one named.
    """
    settings = remote or RemoteOptions()
    threads = num_threads or settings.max_requests
    with ExitStack() as stack:
        store: RemoteStore | None = None  # one for all that is fetched, passes too: they use its connections again
        fetcher: Fetcher | None = None

        def lister_of(home: pafs.FileSystem) -> Lister:
            nonlocal store, fetcher
            store = store_of(home, settings)
            if store is None:
                return LocalLister()
            # Listings and footers are small: it is latency that they wait for.
            fetcher = stack.enter_context(store.fetcher(threads))
            return lister_for(store, fetcher, [] if known is None else [f.path for f in known.files])

        home, files, listing_context = list_files(source, filesystem, lister_of, selection)
        footers, examined = _all_examined(home, files, fetcher, store, num_threads, known, record)
    schemas, file_schema = _distinct([e.schema for e in examined])
    counts = [len(e.rows) for e in examined]
    return Snapshot(
        filesystem=home,
        files=files,
        schemas=schemas,
        file_schema=file_schema,
        file_digest=footers.digests,
        row_group_file=np.repeat(np.arange(len(files), dtype=np.int32), counts),
        row_group_number=np.concatenate([np.arange(n, dtype=np.int32) for n in counts]),
        row_group_rows=np.array([n for e in examined for n in e.rows], dtype=np.int64),
        row_group_bytes=np.array([n for e in examined for n in e.sizes], dtype=np.int64),
        partition_schema=_partition_schema(files),
        footers=footers,
        remote=footers.remote,
        listing_context=listing_context,
    )


def _all_examined(
    home: pafs.FileSystem,
    files: tuple[SourceFile, ...],
    fetcher: Fetcher | None,
    store: RemoteStore | None,
    num_threads: int | None,
    known: Snapshot | None,
    record: Callable[[int, bytes], None] | None,
) -> tuple[FooterCache, list[_FileFooters]]:
    """Return a cache of the files' footers, and each file's part of a snapshot; arguments as in `open_snapshot`."""
    footers = FooterCache(home, files, remote=store)
    footers.record = record
    earlier = np.full(len(files), -1, np.int64) if known is None else _take_over(known, files, footers)

    def examine(number: int) -> _FileFooters:
        if known is not None and earlier[number] >= 0:
            return _examined(known, int(earlier[number]))
        return _described(footers.get(number))

    if fetcher is None:
        examined = _in_parallel(examine, len(files), num_threads or os.cpu_count() or 1)
    else:

        async def fetched(number: int) -> _FileFooters:
            return _described(await footers.fetched(number, fetcher))

        most = num_threads or fetcher.options.max_requests
        found = fetcher.run(side_by_side(fetched, np.flatnonzero(earlier < 0).tolist(), most))
        examined = [found[number] if number in found else examine(number) for number in range(len(files))]
    footers.record = None
    return footers, examined


def _described(footer: Metadata) -> _FileFooters:
    return _FileFooters(footer.row_group_rows.tolist(), footer.row_group_bytes.tolist(), footer.schema.arrow)


def _in_parallel(work: Callable[[int], _FileFooters], count: int, threads: int) -> list[_FileFooters]:
    """Return the result of `work` for each number, several at a time."""
    if count < 2 or threads == 1:
        return [work(number) for number in range(count)]
    with ThreadPoolExecutor(min(threads, count), thread_name_prefix="parquet_loader-footers") as pool:
        try:
            return list(pool.map(work, range(count)))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _take_over(known: Snapshot, files: tuple[SourceFile, ...], footers: FooterCache) -> IntArray:
    """Let footers of files that have not changed be those of an earlier snapshot; return their numbers there, or -1."""
    numbers = {file.lasting_path: number for number, file in enumerate(known.files)}
    earlier = np.array([numbers.get(file.lasting_path, -1) for file in files], np.int64)
    for number, before in enumerate(earlier.tolist()):
        if before >= 0 and not same_content(files[number], known.files[before]):
            earlier[number] = -1
    footers.digests[earlier >= 0] = known.file_digest[earlier[earlier >= 0]]
    if known.footers.stored is not None:
        footers.stored = known.footers.stored.reindexed(earlier)
    return earlier


def _examined(known: Snapshot, file: int) -> _FileFooters:
    low, high = np.searchsorted(known.row_group_file, [file, file + 1])
    rows, sizes = known.row_group_rows[low:high].tolist(), known.row_group_bytes[low:high].tolist()
    return _FileFooters(rows, sizes, known.schema_of(file))


def _distinct(schemas: list[pa.Schema]) -> tuple[tuple[pa.Schema, ...], IntArray]:
    """Return the distinct schemas (columns and metadata), and which one each file has."""
    distinct: list[pa.Schema] = []
    by_bytes: dict[bytes, int] = {}
    numbers: list[int] = []
    seen: dict[int, int] = {}  # schemas of an earlier snapshot come as the same objects
    for schema in schemas:
        if id(schema) in seen:
            numbers.append(seen[id(schema)])
            continue
        key = schema.serialize().to_pybytes()
        if key not in by_bytes:
            by_bytes[key] = len(distinct)
            distinct.append(schema)
        numbers.append(by_bytes[key])
        seen[id(schema)] = by_bytes[key]
    return tuple(distinct), np.array(numbers, dtype=np.int32)


def _partition_schema(files: tuple[SourceFile, ...]) -> pa.Schema:
    values: dict[str, set[str]] = {}
    for file in files:
        for key, value in file.partitions:
            values.setdefault(key, set()).update(() if value is None else (value,))
    return pa.schema(
        [(key, pa.int64() if texts and all(map(_is_int64, texts)) else pa.string()) for key, texts in values.items()]
    )


def _is_int64(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and text.isascii() and -(2**63) <= int(text) < 2**63


def _partition_scalar(text: str | None, type_: pa.DataType) -> pa.Scalar:
    return pa.scalar(text, pa.string()).cast(type_)
