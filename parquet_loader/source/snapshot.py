"""The files of a source and their footers, as an immutable list of row groups."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import Digests, IntArray, RemoteOptions, hub_of, in_threads, scalar
from parquet_loader.errors import SourceError
from parquet_loader.source.files import Lister, ListingContext, SourceFile
from parquet_loader.source.footers import FooterCache, same_content
from parquet_loader.source.listing import FoundTableError, Selection, Source, list_files
from parquet_loader.source.local import LocalLister
from parquet_loader.source.metadata import Metadata, RowGroupFooter
from parquet_loader.source.named_splits import ALL
from parquet_loader.source.remote.fetcher import Fetcher
from parquet_loader.source.remote.listers import lister_for
from parquet_loader.source.remote.remote_filesystem import RemoteStore, store_of
from parquet_loader.source.remote.task_group import side_by_side
from parquet_loader.source.tables.deleted_rows import DeletedRows
from parquet_loader.source.tables.hub_commits import HUB, HubSource, commits_of
from parquet_loader.source.tables.names import FooterNames
from parquet_loader.source.tables.recognised import local_table, table_source_of
from parquet_loader.source.tables.resolved import (
    alive_rows,
    check_rows,
    constants_of,
    footer_names,
    of_split,
    root_of,
    source_files,
    table_schemas,
)
from parquet_loader.source.tables.table_version import TableInfo, TableSource, TableVersion, VersionedSource

_AT_ONCE = 16  # most footers that a thread reads as one task


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
        """Its file, without secrets, and its number there, for messages."""
        return f"{self.file.name}, row group {self.number}"


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The files and row groups of a source at one time. Immutable.

    Attributes:
        filesystem: The file system of the files.
        files: The files, in their order.
        schemas: The distinct Arrow schemas of the files' own columns.
        file_schema: int32 ``[files]``, index into `schemas`.
        file_digest: uint64 ``[files]``, a digest of each footer's bytes.
        row_group_file: int32 ``[row groups]``, index into `files`.
        row_group_number: int32 ``[row groups]``, position within its file.
        row_group_rows: int64 ``[row groups]``, rows in the file.
        row_group_bytes: int64 ``[row groups]``, all columns as encoded, before compression.
        row_group_unencoded_bytes: int64 ``[row groups]``, the same, but text and bytes count without dictionaries, if
            the writer states their size.
        partition_schema: Columns that may be missing in files: from directory names (int64 if all values are integers,
            else string) or a table's metadata.
        footers: Parsed footers, kept within a limit and read again as needed.
        remote: Fetches from `filesystem`; None if that is local.
        listing_context: Other names in the listing of the files.
        table: The table and its version; None if the files do not belong to a table.
        stored_schemas: The columns of `schemas` with the types that they have in files, in the same order; the same
            schemas without a table.
        row_group_alive: int64 ``[row groups]``, rows that the table has not deleted; None if none are deleted.
        deleted: The deleted rows, or None.
        constants: A table's values of `partition_schema`, one row for each file.
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
    row_group_unencoded_bytes: IntArray
    partition_schema: pa.Schema
    footers: FooterCache
    remote: RemoteStore | None = None
    listing_context: ListingContext = field(default_factory=ListingContext)
    table: TableInfo | None = None
    stored_schemas: tuple[pa.Schema, ...] = ()
    row_group_alive: IntArray | None = None
    deleted: DeletedRows | None = None
    constants: pa.Table | None = None

    def __post_init__(self) -> None:
        if not self.stored_schemas:
            object.__setattr__(self, "stored_schemas", self.schemas)

    @property
    def alive(self) -> IntArray:
        """Rows of each row group that are not deleted, int64 ``[row groups]``."""
        return self.row_group_rows if self.row_group_alive is None else self.row_group_alive

    @property
    def rows(self) -> int:
        """Rows of all row groups that are not deleted."""
        return int(self.alive.sum())

    @property
    def column_names(self) -> list[str]:
        """The columns in the table's order, or those of the first schema and then the partition columns."""
        if self.table is not None and self.table.schema is not None:
            return list(self.table.schema.names)
        return [*self.schemas[0].names, *self.partition_schema.names]

    @property
    def row_groups(self) -> int:
        """Number of row groups."""
        return len(self.row_group_rows)

    @property
    def first_rows(self) -> IntArray:
        """Number of rows before each row group that are not deleted, and of all: int64 ``[row groups + 1]``."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.alive)])

    def deleted_rows(self, row_group: int) -> IntArray | None:
        """Return the deleted rows of a row group, int64, sorted, counted from its first row; None without any.

        Raises:
            SourceError: they cannot be read, or their number differs from that when the snapshot was opened.
        """
        expected = int(self.row_group_rows[row_group] - self.alive[row_group])
        if not expected or self.deleted is None:
            return None
        file = int(self.row_group_file[row_group])
        positions = self.deleted.positions(file)
        if positions is None:
            return None
        before = int(self.row_group_rows[int(np.searchsorted(self.row_group_file, file)) : row_group].sum())
        low, high = np.searchsorted(positions, [before, before + int(self.row_group_rows[row_group])])
        found = positions[low:high] - before
        if len(found) != expected:
            raise SourceError(
                f"{self.files[file].name}: {len(found)} rows of row group {self.row_group_number[row_group]} are "
                f"deleted, and {expected} were when the table was opened; its list of deleted rows has changed"
            )
        return found

    def locate(self, row_numbers: IntArray) -> list[tuple[str, int, int]]:
        """Return file, row group in the file, and row in the row group, for each row number.

        Raises:
            IndexError: there is no such row.
        """
        starts = self.first_rows
        wrong = row_numbers[(row_numbers < 0) | (row_numbers >= starts[-1])]
        if len(wrong):
            has = f"rows 0 to {starts[-1] - 1}" if starts[-1] else "no rows"
            raise IndexError(f"row number {wrong[0]} does not exist; the data set has {has}")
        groups = np.searchsorted(starts, row_numbers, side="right") - 1
        files = [self.files[number].path for number in self.row_group_file[groups].tolist()]
        rows = row_numbers - starts[groups]
        for group in np.unique(groups[self.alive[groups] < self.row_group_rows[groups]]).tolist():
            deleted = self.deleted_rows(group)
            here = groups == group
            if deleted is not None:  # add the number of deleted rows before each row
                rows[here] += np.searchsorted(deleted - np.arange(len(deleted)), rows[here], side="right")
        return list(zip(files, self.row_group_number[groups].tolist(), rows.tolist(), strict=True))

    def for_one_loader(self) -> Snapshot:
        """Return the same files and row groups with a separate footer cache and fetcher; reads nothing.

        So loaders that iterate at the same time do not share a memory limit, or a fetcher that one of them closes.
        """
        footers = self.footers.for_one_loader()
        deleted = None if self.deleted is None else self.deleted.for_one_loader(footers.remote)
        return replace(self, footers=footers, remote=footers.remote, deleted=deleted)

    def schema_of(self, file: int) -> pa.Schema:
        """Return the Arrow schema of one file's own columns."""
        return self.schemas[int(self.file_schema[file])]

    def example_of(self, schema: int) -> str:
        """Return the name of the first file with a schema, or of the table if it has no files, for messages."""
        numbers = np.flatnonzero(self.file_schema == schema)
        if len(numbers) or self.table is None:
            return self.files[int(numbers[0]) if len(numbers) else 0].name
        return self.table.root

    def row_group(self, index: int) -> RowGroupRef:
        """Return one row group."""
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

    def footer_of(
        self, row_group: RowGroupRef, columns: tuple[str, ...], *, chunks: bool, arrow: bool
    ) -> RowGroupFooter:
        """Return the footer's entries for some columns of a row group; see `Metadata.of_row_group`.

        Raises:
            SourceError: the footer has to be read again, and that fails.
        """
        footer = self.footers.get(row_group.file_number)
        return footer.of_row_group(row_group.number, columns, chunks=chunks, arrow=arrow)

    def partition_values(self, file: int) -> dict[str, pa.Scalar]:
        """Return one file's values of the partition columns."""
        if self.constants is not None:
            return {name: self.constants.column(name)[file] for name in self.constants.column_names}
        given = dict(self.files[file].partitions)
        return {f.name: scalar(given.get(f.name), pa.string()).cast(f.type) for f in self.partition_schema}

    def has_columns_of(self, other: Snapshot) -> bool:
        """Whether another snapshot of the same source has the same columns, found in files in the same way."""
        schemas = [None if one.table is None else one.table.schema for one in (self, other)]
        return bool(schemas[0] == schemas[1] and self.footers.names == other.footers.names)

    def numbers_of(self, other: Snapshot) -> IntArray:
        """Return the index here of each file of another snapshot of the same source, int64 ``[files]``, or -1.

        A file of a table must have the same rows: its content, its deleted rows, and the table's columns.
        """
        numbers = {file.lasting_key: number for number, file in enumerate(self.files)}
        found = np.array([numbers.get(file.lasting_key, -1) for file in other.files], np.int64)
        if self.table is None and other.table is None:
            return found
        if self.table is None or other.table is None or not self.has_columns_of(other):
            return np.full(len(other.files), -1, np.int64)
        digests = np.where(found < 0, 0, self.file_digest[found]) if len(self.files) else np.zeros(len(found))
        found[digests != other.file_digest] = -1
        before = {} if self.deleted is None else self.deleted.by_file
        for file, number in enumerate(found.tolist()):
            deletes = None if other.deleted is None else other.deleted.by_file.get(file)
            if number >= 0 and before.get(number) != deletes:
                found[file] = -1
        here = np.flatnonzero(found >= 0)
        if self.partition_schema != other.partition_schema:
            found[:] = -1
        elif self.constants is None or other.constants is None:
            found[:] = found if self.constants is other.constants else -1
        elif not other.constants.take(here).equals(self.constants.take(found[here])):
            found[:] = -1
        return found

    def partition_column(self, name: str) -> pa.ChunkedArray | pa.Array:
        """Return all files' values of a partition column, in the order of the files."""
        if self.constants is not None:
            return self.constants.column(name)
        values = [self.partition_values(number)[name].as_py() for number in range(len(self.files))]
        return pa.array(values, self.partition_schema.field(name).type)


@dataclass(slots=True)
class _FileFooters:
    """One file's part of a snapshot."""

    rows: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    unencoded: list[int] = field(default_factory=list)
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))  # for a file of a table, the stored schema


def open_snapshot(
    source: Source | VersionedSource,
    filesystem: Any = None,
    remote: RemoteOptions | None = None,
    known: Snapshot | None = None,
    record: Callable[[int, bytes], None] | None = None,
    selection: Selection | None = None,
) -> Snapshot:
    """List a source and read all its footers, several at a time.

    Args:
        source: As in `BatchedDataLoader`.
        filesystem: As in `BatchedDataLoader`.
        remote: How remote files are fetched.
        known: An earlier snapshot; footers of files that have not changed since are not read again.
        record: Called with the number of each file whose footer is read, and the footer's bytes.
        selection: Which of the files are read.

    Raises:
        SourceError: see `list_files`, `read_footer` and `TableSource.open_version`; the message names the first file
            in order that fails.
    """
    settings = remote or RemoteOptions()
    chosen = selection or Selection()
    if isinstance(source, HubSource):
        source = source.address
    if not isinstance(source, VersionedSource):
        table = None if chosen.ignore_table_format or not chosen.reads_tables else local_table(source, filesystem)
        if table is None:
            try:
                return _open_listed(source, filesystem, settings, known, record, chosen)
            except FoundTableError as error:
                found = table_source_of(error.table.format, source) if error.is_all and chosen.reads_tables else None
                if found is None:
                    raise
                table = found
        source = table
    assert isinstance(source, TableSource)
    version = source.open_version(filesystem, settings)
    if chosen.split not in (None, ALL):
        version = of_split(version, str(chosen.split))
    return _open_table(version, settings, known, record)


def _open_listed(
    source: Source,
    filesystem: Any,
    settings: RemoteOptions,
    known: Snapshot | None,
    record: Callable[[int, bytes], None] | None,
    selection: Selection,
) -> Snapshot:
    with ExitStack() as stack:
        store: RemoteStore | None = None  # one for the listing, the footers and all epochs, which reuse its connections
        fetcher: Fetcher | None = None

        def lister_of(home: pafs.FileSystem) -> Lister:
            nonlocal store, fetcher
            store = store_of(home, settings)
            if store is None:
                return LocalLister()
            # Listings and footers are small, so latency dominates: start with all requests.
            fetcher = stack.enter_context(store.fetcher(settings.max_requests))
            return lister_for(store, fetcher, [] if known is None else [f.path for f in known.files])

        home, files, listing_context = list_files(source, filesystem, lister_of, selection)
        if known is not None and known.table is not None and known.table.format != HUB:
            known = None
        footers, examined = _all_examined(home, files, fetcher, store, known, record)
    schemas, file_schema = _distinct([e.schema for e in examined])
    return Snapshot(
        filesystem=home,
        files=files,
        schemas=schemas,
        file_schema=file_schema,
        **_arrays(footers, examined),
        partition_schema=_partition_schema(files),
        footers=footers,
        remote=footers.remote,
        listing_context=listing_context,
        table=None if hub_of(home) is None else commits_of([file.path for file in files]),
    )


def _open_table(
    version: TableVersion,
    settings: RemoteOptions,
    known: Snapshot | None,
    record: Callable[[int, bytes], None] | None,
) -> Snapshot:
    """Return the snapshot of a table version; the other arguments as in `open_snapshot`."""
    home, files, names = version.filesystem, source_files(version), footer_names(version)
    store = store_of(home, settings)
    if known is not None and not _has_columns_of(known, version, names):
        known = None
    with ExitStack() as stack:
        fetcher = None
        if store is not None:
            fetcher = stack.enter_context(store.fetcher(settings.max_requests))
        footers, examined = _all_examined(home, files, fetcher, store, known, record, names)
        check_rows(version, files, [sum(e.rows) for e in examined])
        arrays = _arrays(footers, examined)
        by_file = {number: f.deletes for number, f in enumerate(version.files) if f.deletes is not None}
        deleted = DeletedRows(by_file, files, home, store) if by_file else None
        alive = None
        if deleted is not None:
            alive = alive_rows(version, deleted, arrays["row_group_file"], arrays["row_group_rows"], fetcher)
    stored, file_schema = _distinct([e.schema for e in examined])
    firsts = [files[int((file_schema == number).argmax())] for number in range(len(stored))]
    schemas, own = table_schemas(version, stored, firsts)
    constants = constants_of(version, schemas)
    return Snapshot(
        filesystem=home,
        files=files,
        schemas=schemas,
        file_schema=file_schema,
        **arrays,
        partition_schema=pa.schema([]) if constants is None else constants.schema,
        footers=footers,
        remote=footers.remote,
        listing_context=ListingContext(root=root_of(version)),
        table=version.info,
        stored_schemas=own,
        row_group_alive=alive,
        deleted=deleted,
        constants=constants,
    )


def _has_columns_of(known: Snapshot, version: TableVersion, names: FooterNames | None) -> bool:
    """Whether a snapshot's columns of files are those of a table version."""
    has_names = known.footers.names == (None if names is None else names.names)
    return known.table is not None and known.table.schema == version.info.schema and has_names


def _arrays(footers: FooterCache, examined: Sequence[_FileFooters]) -> dict[str, Any]:
    """Return the arrays of a snapshot by file and by row group."""
    counts = [len(e.rows) for e in examined]
    numbers = [np.arange(n, dtype=np.int32) for n in counts]
    return {
        "file_digest": footers.digests,
        "row_group_file": np.repeat(np.arange(len(counts), dtype=np.int32), counts),
        "row_group_number": np.concatenate(numbers) if numbers else np.empty(0, np.int32),
        "row_group_rows": np.array([n for e in examined for n in e.rows], dtype=np.int64),
        "row_group_bytes": np.array([n for e in examined for n in e.sizes], dtype=np.int64),
        "row_group_unencoded_bytes": np.array([n for e in examined for n in e.unencoded], dtype=np.int64),
    }


def _all_examined(
    home: pafs.FileSystem,
    files: tuple[SourceFile, ...],
    fetcher: Fetcher | None,
    store: RemoteStore | None,
    known: Snapshot | None,
    record: Callable[[int, bytes], None] | None,
    names: FooterNames | None = None,
) -> tuple[FooterCache, list[_FileFooters]]:
    """Return a cache of the files' footers, and each file's part of a snapshot; arguments as in `open_snapshot`."""
    footers = FooterCache(home, files, remote=store, names=names)
    footers.record = record
    earlier = np.full(len(files), -1, np.int64) if known is None else _take_over(known, files, footers)

    def examine(number: int) -> _FileFooters:
        if known is not None and earlier[number] >= 0:
            return _examined(known, int(earlier[number]))
        return _described(footers.get(number))

    if fetcher is None:
        threads = os.cpu_count() or 1
        at_once = max(1, min(_AT_ONCE, -(-len(files) // threads)))  # a task costs as much as reading a footer
        firsts = range(0, len(files), at_once)

        def some(first: int) -> list[_FileFooters]:
            return [examine(number) for number in range(first, min(first + at_once, len(files)))]

        examined = list(chain.from_iterable(in_threads(some, firsts, threads, "parquet_loader-footers")))
    else:

        async def fetched(number: int) -> _FileFooters:
            return _described(await footers.fetched(number, fetcher))

        most = fetcher.options.max_requests
        new = np.flatnonzero(earlier < 0).tolist()
        found = dict(zip(new, fetcher.run(side_by_side(fetched, new, most)), strict=True))
        examined = [found[number] if number in found else examine(number) for number in range(len(files))]
    footers.record = None
    return footers, examined


def _described(footer: Metadata) -> _FileFooters:
    return _FileFooters(
        footer.row_group_rows.tolist(),
        footer.row_group_bytes.tolist(),
        footer.row_group_unencoded_bytes.tolist(),
        footer.schema.arrow,
    )


def _take_over(known: Snapshot, files: tuple[SourceFile, ...], footers: FooterCache) -> IntArray:
    """Take over the footers of unchanged files from an earlier snapshot; return each file's number there, or -1."""
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
    return _FileFooters(
        known.row_group_rows[low:high].tolist(),
        known.row_group_bytes[low:high].tolist(),
        known.row_group_unencoded_bytes[low:high].tolist(),
        known.stored_schemas[int(known.file_schema[file])],
    )


def _distinct(schemas: list[pa.Schema]) -> tuple[tuple[pa.Schema, ...], IntArray]:
    """Return the distinct schemas (columns and metadata), and the index of each file's schema."""
    distinct: list[pa.Schema] = []
    by_bytes: dict[bytes, int] = {}
    numbers: list[int] = []
    seen: dict[int, int] = {}  # by id: files of an earlier snapshot share the objects of schemas
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
