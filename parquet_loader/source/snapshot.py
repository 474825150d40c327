"""`Snapshot`: the files of a source and their footers, as an immutable list of row groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import BoolArray, Digests, IntArray, scalar
from parquet_loader.errors import SourceError
from parquet_loader.source.files import ListingContext, SourceFile
from parquet_loader.source.footers import FooterCache
from parquet_loader.source.metadata import ChunkPattern, RowGroupEntries, RowGroupFooter
from parquet_loader.source.remote.remote_filesystem import RemoteStore
from parquet_loader.source.tables.deleted_rows import DeletedRows
from parquet_loader.source.tables.table_version import TableInfo


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

    def match_patterns(
        self, row_groups: Sequence[RowGroupRef], patterns: Sequence[ChunkPattern]
    ) -> list[tuple[IntArray, BoolArray]]:
        """Return `ChunkPattern.extents` of one pattern after another, until each row group matches one of them.

        The result has at least one element, and fewer than `patterns` if the first ones suffice. Raises as `footer_of`.
        """
        leaves: IntArray = np.unique(np.concatenate([pattern.leaves for pattern in patterns]))
        in_files = dict[int, list[int]]()
        for at, one in enumerate(row_groups):
            in_files.setdefault(one.file_number, []).append(at)
        files = list[RowGroupEntries]()
        for file, some in in_files.items():  # each footer is read once at most
            files.append(self.footers.get(file).entries([row_groups[at].number for at in some], leaves))
        in_order = np.argsort(np.concatenate(list(in_files.values())))
        found = list[tuple[IntArray, BoolArray]]()
        missing = np.ones(len(row_groups), np.bool_)
        for pattern in patterns:
            extents, match = pattern.extents(files)
            found.append((extents[in_order], match[in_order]))
            missing &= ~found[-1][1]
            if not missing.any():
                break
        return found

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
