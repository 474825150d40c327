"""Reads one row group into canonical columns: whole, or slice by slice with a cursor."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from parquet_loader.common import (
    BoolArray,
    IntArray,
    ReadOptions,
    from_numpy,
    is_shortage,
    reads_null_fixed_size_lists,
    system_error,
)
from parquet_loader.decode import (
    READ_ERRORS,
    ChunkRoute,
    Column,
    ColumnRoute,
    Decoder,
    DeferredColumns,
    LazyRows,
    NotDecodedError,
    NullError,
    SkippedRows,
    TableOrigin,
    chunk_routes,
    routes_of,
)
from parquet_loader.errors import DataError, ParquetLoaderError, SourceError, UnsupportedError
from parquet_loader.read.cache import LocalCache
from parquet_loader.read.chunk_locations import ChunkLocation
from parquet_loader.read.column_chunks import (
    BoundedMemo,
    ColumnChunkSource,
    ColumnSelection,
    OpenRowGroup,
    memo_bytes,
)
from parquet_loader.read.conform import Conform
from parquet_loader.read.int96 import Int96Check
from parquet_loader.read.joint_rows import JointRows, joint_rows
from parquet_loader.read.null_counts import NullAdvice
from parquet_loader.read.row_filter import RowFilter
from parquet_loader.read.value_ranges import ValueRanges
from parquet_loader.read.virtual_columns import Positions
from parquet_loader.schema import empty_table
from parquet_loader.source import RowGroupRef, Snapshot

# Rows are read straight to the window this many bytes at a time. If the training loop keeps the GIL, each step in
# Python may wait 5 ms for it, so there are few steps.
RAW_AT_ONCE_BYTES = 2**24

# A filter's columns are decoded this many rows at a time, or more if all widths are known. The budget counts only the
# delivered columns.
_FILTERED_ROWS = 65536

# Values of `ColumnSelection.window_routes`: all columns are decoded to arrays; all but lists of any length may be
# decoded to the window; lists may be, too.
_TO_ARRAYS: tuple[str, ...] = ()
_ROWS_TO_WINDOW: tuple[str, ...] = ("pages", "kernel")
_LISTS_TO_WINDOW: tuple[str, ...] = (*_ROWS_TO_WINDOW, "lists")
_NOTHING = pa.table({})

# The columns of the rows' numbers in the data set, and in the row group, while the filter runs. No column of a file has
# such a name.
_ROW_NUMBER, _POSITION = "\0row number", "\0position"
HIDDEN_ROW_NUMBERS = _ROW_NUMBER
"""Name of the column of the rows' numbers in the data set, if only decoding needs it."""


class _RowFacts(NamedTuple):
    """The facts about the rows of a row group that do not come from its column chunks.

    Attributes:
        row_group: The row group.
        row_filter: The filter; None if all rows pass.
        deleted: The deleted rows, or None.
        partitions: The values of the partition columns.
        ranges: The columns of values that stay in their files.
    """

    row_group: RowGroupRef
    row_filter: RowFilter | None
    deleted: IntArray | None
    partitions: Mapping[str, pa.Scalar]
    ranges: Mapping[str, pa.Array]


class RowGroupReader:
    """Reads row groups of a snapshot. It keeps footers and offsets only; any thread may use it.

    Args:
        snapshot: The files and row groups.
        decoders: One for each of the snapshot's schemas.
        row_filter: Which rows to keep; None keeps all.
        options: How to read.
        row_numbers: Name of an additional column of rows' numbers in the data set, or None.
        cache: The local cache of row groups, or None.
        null_advice: The advice about other columns in an error about a null, or None.

    Attributes:
        snapshot: As given.
        columns: Canonical columns, in the order of delivery.
        chunks: The locations of the row groups' column chunks.
        conforms: For each of the snapshot's schemas, the conversion of a file's stored types to it.
        ranges: Finds values that stay in their files.
        positions: The rows' positions if the filter uses them, or None.
        row_numbers: As given.
        passing: Whether each row group passes the filter as a whole, bool ``[row groups]``; see `_passing_whole`.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        decoders: Sequence[Decoder],
        row_filter: RowFilter | None,
        options: ReadOptions,
        row_numbers: str | None = None,
        cache: LocalCache | None = None,
        null_advice: NullAdvice | None = None,
    ) -> None:
        self.snapshot = snapshot
        self._null_advice = null_advice
        self._advised: dict[str, str] = {}  # by column
        self._decoders = decoders
        self._filter = row_filter
        self.columns = decoders[0].columns
        # By schema: the files' own columns that the filter uses.
        filtered = () if row_filter is None else row_filter.columns
        self._filter_columns_of = [[name for name in filtered if name in schema.names] for schema in snapshot.schemas]
        self.conforms = [
            Conform(stored, schema) for stored, schema in zip(snapshot.stored_schemas, snapshot.schemas, strict=True)
        ]
        columns_of = [
            conform.readable([*decoder.read_columns, *filtering])
            for conform, decoder, filtering in zip(self.conforms, decoders, self._filter_columns_of, strict=True)
        ]
        self.chunks = ColumnChunkSource(snapshot, options, columns_of, cache)
        self._routes = [
            routes_of(conform.sources(decoder.sources), columns, filtering, schema, options)
            for conform, decoder, columns, filtering, schema in zip(
                self.conforms, decoders, columns_of, self._filter_columns_of, snapshot.stored_schemas, strict=True
            )
        ]
        # By schema: the filter's columns, which are read to count rows.
        self._counted_of = [
            ColumnSelection(tuple(columns), tuple(route for route in routes if route.stored in columns))
            for columns, routes in zip(self._filter_columns_of, self._routes, strict=True)
        ]
        # By schema and `window_routes`: the columns that are read to deliver rows.
        choices = (_TO_ARRAYS, _ROWS_TO_WINDOW, _LISTS_TO_WINDOW)
        self._delivered_of = [
            {choice: ColumnSelection(tuple(columns), routes, choice) for choice in choices}
            for columns, routes in zip(columns_of, self._routes, strict=True)
        ]
        # By schema: as with `_ROWS_TO_WINDOW`, but the filter's columns are decoded to arrays, which the filter needs.
        self._filtered_of = [
            ColumnSelection(
                tuple(columns),
                tuple(replace(r, window=None) if r.stored in filtering else r for r in routes),
                _ROWS_TO_WINDOW,
            )
            for columns, routes, filtering in zip(columns_of, self._routes, self._filter_columns_of, strict=True)
        ]
        self._widths_of = [_widths_of(decoder.columns) for decoder in decoders]
        # By schema: the bytes per row of the filter's columns in the files' types; None if rows differ.
        self._filter_bytes_of = [
            _bytes_of(schema.field(name).type for name in filtering)
            for filtering, schema in zip(self._filter_columns_of, snapshot.schemas, strict=True)
        ]
        self._partition_values = BoundedMemo[int, Mapping[str, pa.Scalar]]()
        self._constants_of = BoundedMemo[tuple[int, Hashable], pa.Table]()  # by schema, and partition or file
        self._int96 = Int96Check(snapshot, self.chunks, columns_of)
        # Whether lists of any length may be decoded to the window; False after kernels have refused any column.
        self._writes_lists = True
        self.ranges = ValueRanges(snapshot, [decoder.ranges for decoder in decoders])
        self.positions = Positions(snapshot) if row_filter is not None and row_filter.positions else None
        self.passing = self._passing_whole()
        self.row_numbers = row_numbers
        # The number of the first row of each row group, by the name of the column of rows' numbers.
        self._numbered = {} if row_numbers is None else {row_numbers: snapshot.first_rows}
        if row_numbers is not None:
            self.columns += (Column(row_numbers, "fixed", pa.int64(), np.dtype(np.int64)),)

    def routes(self, row_group: RowGroupRef) -> tuple[ColumnRoute, ...]:
        """Return the routes of a row group's columns. If a filter selects rows, its own columns become arrays."""
        return self._routes[row_group.schema_number]

    def chunk_routes(self, row_group: RowGroupRef) -> dict[str, ChunkRoute]:
        """Return the expected route of each delivered column of a row group, by its footer; see `chunk_routes`."""
        routes = self.routes(row_group)
        names = self._delivered_of[row_group.schema_number][_LISTS_TO_WINDOW].columns
        footer = self.snapshot.footer_of(row_group, names, chunks=True, arrow=False)
        schema = self.snapshot.stored_schemas[row_group.schema_number]
        return chunk_routes(routes, footer, schema, row_group.rows, is_local=self.snapshot.remote is None)

    def read(self, row_group: RowGroupRef) -> pa.Table:
        """Return one row group's canonical rows that pass the filter. Raises as `stream` does."""
        columns = self.chunks.columns_read(row_group)
        try:
            location = self.chunks.locate(row_group, columns)
        except READ_ERRORS as error:
            raise self.explained(row_group, columns, error) from error
        tables = [rows.table for rows in self._lazy_batches(row_group, max(1, row_group.rows), _TO_ARRAYS, location)]
        if not tables:
            facts = _RowFacts(row_group, None, None, self._partitions(row_group), self.ranges.empty(row_group))
            return self._canonical(facts, empty_table(row_group.schema), 0, ())[0]
        return pa.concat_tables(tables)

    def empty_table(self) -> pa.Table:
        """Return a canonical table without rows."""
        return pa.Table.from_batches([], pa.schema([(c.name, c.arrow_type) for c in self.columns]))

    def stream(self, row_group: RowGroupRef, batch_rows: int) -> Iterator[pa.Table]:
        """Yield one row group's canonical rows that pass the filter, about `batch_rows` file rows at a time.

        Each step decodes only the pages it needs.

        Raises:
            DataError: the data cannot be decoded or delivered; the message names file, row group and column.
            SourceError: the file has vanished or changed since its footer was read.
        """
        for batch in self._lazy_batches(row_group, batch_rows, _TO_ARRAYS, None):
            yield batch.table

    def lazy_batches(
        self,
        row_group: RowGroupRef,
        batch_rows: int,
        location: ChunkLocation | None = None,
        refused: frozenset[str] = frozenset(),
        *,
        is_whole: bool = False,
    ) -> Iterator[LazyRows]:
        """As `stream`, but leave columns in the file if they can be read straight to the window's buffers.

        Read these columns of a batch before the batch after the next one is requested, and before the iterator is
        closed.

        Args:
            row_group: The row group.
            batch_rows: About how many rows are decoded at a time.
            location: The location of its bytes; None finds it now, and fetches the bytes if necessary.
            refused: Columns that kernels could not decode to the window, see `NotDecodedError`: Arrow decodes them, or,
                if they are lists of any length, kernels decode them to arrays.
            is_whole: Whether one window takes all rows.
        """
        window_routes = _ROWS_TO_WINDOW
        if refused:  # perhaps because of nulls, which other row groups may have, too
            self._writes_lists = False
        elif is_whole and self._writes_lists and self._deleted(row_group) is None:
            window_routes = _LISTS_TO_WINDOW if self._row_filter(row_group) is None else _ROWS_TO_WINDOW
        return self._lazy_batches(row_group, batch_rows, window_routes, location, refused)

    def _lazy_batches(
        self,
        row_group: RowGroupRef,
        batch_rows: int,
        window_routes: tuple[str, ...],
        location: ChunkLocation | None,
        refused: frozenset[str] = frozenset(),
    ) -> Iterator[LazyRows]:
        """As `lazy_batches`; `window_routes` are those of `ColumnSelection`.

        If a copy in the local cache is found damaged, this continues in the file itself, after the rows that were
        yielded.
        """
        row_filter, deleted = self._row_filter(row_group), self._deleted(row_group)
        selections = self._delivered_of[row_group.schema_number]
        selection = selections[window_routes]
        if window_routes and row_filter is not None:
            selection = self._filtered_of[row_group.schema_number]
        selection = selection.by_arrow(refused) if refused else selection
        columns = selection.columns
        is_filtered = row_filter is not None
        rows_at_once = partial(self._rows_at_once, row_group, batch_rows=batch_rows, is_filtered=is_filtered)
        partitions = self._partitions(row_group)
        try:
            facts = _RowFacts(row_group, row_filter, deleted, partitions, self.ranges.of(row_group))
            location = location or self.chunks.locate_forward(row_group, columns)
        except READ_ERRORS as error:
            raise self.explained(row_group, columns, error) from error
        first_row, is_unchanged = 0, False
        while True:
            try:
                with self.chunks.opened(row_group, selection, location, rows_at_once, keeps_plan=not refused) as opened:
                    chunks, deferred = opened.chunks, opened.chunks.plan.deferred
                    if chunks.lists and not self._fits_one_step(row_group, opened):
                        selection = selections[_ROWS_TO_WINDOW]  # lists of any length are decoded to arrays
                        continue
                    is_all_deferred = 0 < len(deferred) == len(self._decoder(row_group).columns)
                    is_all_deferred = is_all_deferred and self.row_numbers is None and row_filter is None
                    at_once = opened.batch_rows if is_all_deferred and not chunks.lists else None
                    steps = opened
                    if is_all_deferred or chunks.lists:  # one step: nothing is decoded here, or see `_fits_one_step`
                        steps = opened._replace(batch_rows=row_group.rows)
                    names = () if chunks.straight is None else chunks.straight.names
                    explained = partial(self._not_written, row_group, columns, location)
                    for batch in _after(first_row, self._batches(row_group, selection, location, steps)):
                        table, left_out = _NOTHING, None
                        if not is_all_deferred:
                            stored = pa.Table.from_batches([batch])
                            table, left_out = self._canonical(facts, stored, first_row, deferred)
                        elif deleted is not None:
                            left_out = _deleted_among(deleted, first_row, len(batch))
                        rows, skipped = len(table), None
                        if deferred:  # then the table may have no columns
                            rows = len(batch) - (0 if left_out is None else len(left_out))
                            skipped = None if left_out is None else SkippedRows(left_out, first_row)
                        deferred_columns = DeferredColumns(
                            chunks.raw, first_row, explained, chunks.straight, names, skipped, chunks.plan.masks,
                            chunks.lists, chunks.plan.groups,
                        )  # fmt: skip
                        yield LazyRows(table, rows, deferred_columns, chunks.plan.stored_bytes, at_once)
                        first_row += len(batch)
                is_unchanged = chunks.is_as_listed  # when it was closed
                break
            except ParquetLoaderError:
                raise
            except READ_ERRORS as error:
                if not location.is_cached or is_shortage(error):
                    raise self.explained(row_group, columns, error, location) from error
                self.chunks.invalidate(location)
                # the rest is read from the file itself
                location = self.chunks.locate_forward(row_group, columns, asks_cache=False)
        self.check_rows(row_group, first_row)
        if not is_unchanged:
            self.chunks.check_unchanged(row_group)

    def joint_selection(self, row_group: int) -> ColumnSelection | None:
        """Return the columns with which `joint_rows` may read a row group together with others; None: it cannot.

        Takes no lock and does no I/O.

        Args:
            row_group: Index of the row group in the snapshot.
        """
        snapshot, chunks = self.snapshot, self.chunks
        if self._filter is not None and (self.passing is None or not self.passing[row_group]):
            return None
        if not chunks.are_local:
            return None
        if snapshot.deleted is not None and snapshot.alive[row_group] < snapshot.row_group_rows[row_group]:
            return None
        schema = int(snapshot.file_schema[snapshot.row_group_file[row_group]])
        selection = self._delivered_of[schema][_LISTS_TO_WINDOW if self._writes_lists else _ROWS_TO_WINDOW]
        patterns = chunks.patterns(selection)
        is_whole = bool(patterns) and patterns[0].is_straight and not self._decoders[schema].ranges
        return selection if is_whole else None

    def joint_rows(self, row_groups: Sequence[int], selection: ColumnSelection) -> AbstractContextManager[JointRows]:
        """Return all rows of the first of these row groups; see `joint_rows` of `joint_rows.py`.

        Args:
            row_groups: Indices in the snapshot of small row groups.
            selection: Their `joint_selection`.
        """
        numbered = {name: first_rows[row_groups] for name, first_rows in self._numbered.items()}
        return joint_rows(self.snapshot, row_groups, self.chunks.patterns(selection), self._constants, numbered)

    def _constants(self, row_group: RowGroupRef, deferred: Collection[str]) -> pa.Table:
        """Return one row of the canonical columns that no column chunk has: partition columns, and missing ones.

        Args:
            row_group: The row group.
            deferred: The columns that stay in the file.
        """
        values = row_group.file.partitions if self.snapshot.constants is None else row_group.file_number
        key = row_group.schema_number, values
        found = self._constants_of.get(key)
        if found is None:
            one = pa.Table.from_batches([_no_columns(1)])
            found = self._decoded(row_group, one, self._partitions(row_group), TableOrigin(row_group, 0), deferred)
            self._constants_of.keep(key, found, memo_bytes(found.num_columns))
        return found

    def _fits_one_step(self, row_group: RowGroupRef, opened: OpenRowGroup) -> bool:
        """Whether all rows can be written in one step: no column but lists takes memory in addition to its rows.

        Also if one batch has all rows.
        """
        if opened.batch_rows >= row_group.rows:
            return True
        if self.row_numbers is not None:
            return False
        lists, plan, columns = opened.chunks.lists, opened.chunks.plan, self._decoder(row_group).columns
        deferred = plan.deferred.difference(plan.groups)
        return all(c.name in deferred and (c.row_bytes is not None or c.name in lists) for c in columns)

    def _rows_at_once(
        self, row_group: RowGroupRef, deferred: Collection[str], batch_rows: int, *, is_filtered: bool
    ) -> int:
        """Return the rows of a batch: more if the deferred columns, which are read to the window, have most bytes."""
        batch_rows = min(batch_rows, _FILTERED_ROWS) if is_filtered else batch_rows
        widths = self._widths_of[row_group.schema_number]
        filter_bytes = self._filter_bytes_of[row_group.schema_number] if is_filtered else 0
        if not deferred or widths is None or filter_bytes is None:
            return batch_rows
        row_bytes = sum(widths.values())
        deferred_bytes = sum(map(widths.__getitem__, deferred))
        as_decoded = batch_rows * row_bytes // max(1, row_bytes - deferred_bytes + filter_bytes)
        return max(batch_rows, min(as_decoded, RAW_AT_ONCE_BYTES // deferred_bytes))

    def _deleted(self, row_group: RowGroupRef) -> IntArray | None:
        """Return the deleted rows of a row group, or None."""
        return None if self.snapshot.deleted is None else self.snapshot.deleted_rows(row_group.index)

    def _partitions(self, row_group: RowGroupRef) -> Mapping[str, pa.Scalar]:
        """Return the values of the partition columns of a row group's file."""
        if not len(self.snapshot.partition_schema):
            return {}
        values = self._partition_values.get(row_group.file_number)
        if values is None:
            values = self.snapshot.partition_values(row_group.file_number)
            self._partition_values.keep(row_group.file_number, values, memo_bytes(len(values)))
        return values

    def _batches(
        self, row_group: RowGroupRef, selection: ColumnSelection, location: ChunkLocation, opened: OpenRowGroup
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns that do not stay in the file, with the types of the file's table."""
        conform = self.conforms[row_group.schema_number]
        batches = self.stored_batches(row_group, selection, location, opened)
        return (conform.batch(batch) for batch in batches) if conform else batches

    def stored_batches(
        self, row_group: RowGroupRef, selection: ColumnSelection, location: ChunkLocation, opened: OpenRowGroup
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of the columns that kernels and Arrow decode, with their stored types."""
        rows, done, kernel, plan = row_group.rows, 0, opened.chunks.kernel, opened.chunks.plan
        with ExitStack() as stack:
            by_arrow = list[_ForwardRows]()
            if opened.arrow is not None:
                self._int96.check(row_group, location, plan.arrow)
                decoded = opened.arrow.batches(opened.batch_rows)
                if kernel is None:
                    yield from decoded
                    return
                by_arrow.append(_ForwardRows(decoded))
            while done < rows:
                step_rows = min(opened.batch_rows, rows - done)
                columns = dict[str, pa.Array]()
                try:
                    if kernel is not None:
                        names = kernel.names
                        columns = dict(zip(names, kernel.read(step_rows), strict=True))
                except NotDecodedError as error:
                    columns = dict(error.others)
                    names = [name for name in selection.columns if name in error.columns]
                    routes = [route for route in selection.routes if 0 < route.dictionary_rows <= opened.batch_rows]
                    as_dictionary = [route.stored for route in routes if route.stored in names]
                    self._int96.check(row_group, location, names)
                    others = self.chunks.open(row_group, names, location, read_dictionary=as_dictionary)
                    stack.callback(others.close)
                    by_arrow.append(_ForwardRows(_after(done, others.batches(opened.batch_rows))))
                batches = [forward.take(step_rows) for forward in by_arrow]
                found = min((len(batch) for batch in batches), default=step_rows)
                for batch in batches:
                    columns |= dict(zip(batch.schema.names, batch.columns, strict=True))
                if not columns:
                    yield _no_columns(step_rows)
                elif found:
                    arrays = [column if len(column) == found else column.slice(0, found) for column in columns.values()]
                    yield pa.RecordBatch.from_arrays(arrays, names=list(columns))
                done += found
                if found < step_rows:  # the pages hold fewer rows than the footer states
                    return

    def count(self, row_group: RowGroupRef, batch_rows: int = _FILTERED_ROWS) -> int:
        """Return how many rows of a row group pass the filter, reading only the filter's columns. Raises as `read`."""
        alive = int(self.snapshot.alive[row_group.index])
        if self._filter is None:
            return alive
        if not self._filter.differs_within(row_group.schema.names):
            return alive if self._row_filter(row_group) is None else 0
        columns = self._filter_columns_of[row_group.schema_number]
        location: ChunkLocation | None = None
        try:
            location = self.chunks.locate(row_group, columns)
            return self._count(row_group, batch_rows, location)
        except ParquetLoaderError:
            raise
        except READ_ERRORS as error:
            if location is None or not location.is_cached or is_shortage(error):
                raise self.explained(row_group, columns, error, location) from error
        try:
            passing = self._count(row_group, batch_rows, self.chunks.fetch(row_group, columns))
        except READ_ERRORS as error:
            raise self.explained(row_group, columns, error) from error
        self.chunks.invalidate(location)
        return passing

    def passing_rows(self, row_group: RowGroupRef) -> IntArray | None:
        """Return the rows that are alive and pass the filter, int64, sorted; None for all. Raises as `count`."""
        deleted = self._deleted(row_group)
        if self._row_filter(row_group) is None:
            return None if deleted is None else np.delete(np.arange(row_group.rows), deleted)
        columns = self._filter_columns_of[row_group.schema_number]
        found: list[IntArray] = []
        try:
            location = self.chunks.fetch(row_group, columns)
            self._count(row_group, _FILTERED_ROWS, location, found)
        except READ_ERRORS as error:
            raise self.explained(row_group, columns, error) from error
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def canonical(self, row_group: RowGroupRef, table: pa.Table, origin: TableOrigin) -> pa.Table:
        """Convert rows of files of one schema to canonical columns; complete an error about a null with advice.

        Args:
            row_group: The row group of the rows, or of the first ones if the files have no partition columns.
            table: The files' columns, with the types of the files' table.
            origin: The origin of the table, for messages.

        Raises:
            DataError: a value cannot be delivered.
        """
        return self._decoded(row_group, table, self._partitions(row_group), origin, ())

    def counted_bytes(self, row_group: RowGroupRef) -> int:
        """Return the stored bytes of the columns that `count` reads. Raises if the footer cannot be read."""
        return self.chunks.encoded_bytes(row_group, self._filter_columns_of[row_group.schema_number])

    def _count(
        self,
        row_group: RowGroupRef,
        batch_rows: int,
        location: ChunkLocation,
        found: list[IntArray] | None = None,
    ) -> int:
        """Return how many rows pass the filter; append their positions to `found`."""
        assert self._filter is not None
        passing, read = 0, 0
        selection, deleted = self._counted_of[row_group.schema_number], self._deleted(row_group)
        with self.chunks.opened(row_group, selection, location, lambda _: batch_rows) as opened:
            for batch in self._batches(row_group, selection, location, opened):
                table = self._with_known_columns(row_group, pa.Table.from_batches([batch]), read)
                if found is not None:
                    table = table.append_column(_ROW_NUMBER, pa.array(np.arange(read, read + len(table))))
                if deleted is not None:
                    table = table.filter(pa.array(_alive_mask(deleted, read, len(table))))
                table = self._filter.apply(table, row_group.schema_number, row_group)
                passing += len(table)
                if found is not None:
                    found.append(table.column(_ROW_NUMBER).to_numpy())
                read += len(batch)
        self.check_rows(row_group, read)
        return passing

    def _passing_whole(self) -> BoolArray | None:
        """Return which row groups pass the filter whole; None without a filter, or if it may divide a row group."""
        snapshot = self.snapshot
        if self._filter is None or self._filter.has_stand_ins:
            return None
        if any(self._filter.differs_within(schema.names) for schema in snapshot.schemas):
            return None
        table = pa.table({_ROW_NUMBER: pa.array(np.arange(snapshot.row_groups))})
        if self.positions is not None:
            for column in self._filter.positions:
                constants = self.positions.constants(column, 0, snapshot.row_groups)
                table = table.append_column(column.name, pa.array(constants))
        for column in snapshot.partition_schema:
            if column.name in self._filter.columns:
                by_file = snapshot.partition_column(column.name)
                table = table.append_column(column.name, by_file.take(pa.array(snapshot.row_group_file)))
        passing = np.zeros(snapshot.row_groups, np.bool_)
        passing[self._filter.apply(table).column(_ROW_NUMBER).to_numpy()] = True
        return passing

    def _row_filter(self, row_group: RowGroupRef) -> RowFilter | None:
        """Return the filter for a row group's rows, or None if all of them are known to pass."""
        if self.passing is not None:
            return None if self.passing[row_group.index] else self._filter
        if self._filter is None or self._filter.differs_within(row_group.schema.names):
            return self._filter
        one = self._with_known_columns(row_group, pa.Table.from_batches([_no_columns(1)]), 0)
        return None if len(self._filter.apply(one, row_group.schema_number)) else self._filter

    def _decoder(self, row_group: RowGroupRef) -> Decoder:
        return self._decoders[row_group.schema_number]

    def _canonical(
        self, facts: _RowFacts, table: pa.Table, first_row: int, deferred: Collection[str]
    ) -> tuple[pa.Table, IntArray | None]:
        """Return canonical rows; if columns are deferred, also the rows among them that are left out, or None."""
        row_group, row_filter, deleted, partitions, ranges = facts
        origin, rows = TableOrigin(row_group, first_row), len(table)
        left_out = None if deleted is None or not deferred else _deleted_among(deleted, first_row, rows)
        if row_filter is not None and deferred:
            table = table.append_column(_POSITION, pa.array(np.arange(first_row, first_row + rows)))
        for name, of_rows in ranges.items():
            table = table.append_column(name, of_rows.slice(first_row, len(table)))
        if row_filter is not None:
            table = self._with_known_columns(row_group, table, first_row)
        if deleted is not None:
            table = table.filter(from_numpy(_alive_mask(deleted, first_row, len(table))))
            origin = TableOrigin(row_group, is_filtered=True)
        if self.row_numbers is not None:
            before = 0 if deleted is None else int(np.searchsorted(deleted, first_row))
            first_number = int(self._numbered[self.row_numbers][row_group.index]) + first_row - before
            table = table.append_column(_ROW_NUMBER, from_numpy(np.arange(first_number, first_number + len(table))))
        if row_filter is not None:
            table = row_filter.apply(table, row_group.schema_number, row_group)
            origin = TableOrigin(row_group, is_filtered=True)
            if deferred:
                is_out = np.ones(rows, np.bool_)
                is_out[table.column(_POSITION).to_numpy() - first_row] = False
                left_out = np.flatnonzero(is_out) + first_row
        decoded = self._decoded(row_group, table, partitions, origin, deferred)
        if self.row_numbers is None:
            return decoded, left_out
        # If all columns are still in the file, the table has no columns, and so no rows to append a column to.
        columns = [*decoded.columns, table.column(_ROW_NUMBER)]
        return pa.Table.from_arrays(columns, names=[*decoded.column_names, self.row_numbers]), left_out

    def _decoded(
        self,
        row_group: RowGroupRef,
        table: pa.Table,
        partitions: Mapping[str, pa.Scalar],
        origin: TableOrigin,
        deferred: Collection[str],
    ) -> pa.Table:
        try:
            return self._decoder(row_group).decode(table, partitions, origin, deferred)
        except NullError as error:
            if self._null_advice is None:
                raise
            if error.column not in self._advised:
                self._advised[error.column] = self._null_advice.text(error.column)
            raise DataError(f"{error.problem}; {self._advised[error.column]}") from None

    def _with_known_columns(self, row_group: RowGroupRef, table: pa.Table, first_row: int) -> pa.Table:
        """Append the filter's columns that are not in the file: partition columns and positions."""
        if self._filter is not None and self.positions is not None:
            for column in self._filter.positions:
                table = table.append_column(
                    column.name, self.positions.column(column, row_group, first_row, len(table))
                )
        if self._filter is not None:
            for name, value in self._partitions(row_group).items():
                if name in self._filter.columns and name not in table.column_names:
                    table = table.append_column(name, pa.repeat(value, len(table)))
        return table

    def check_rows(self, row_group: RowGroupRef, found: int) -> None:
        """Raise `DataError` if the pages hold another number of rows than the footer says."""
        if found != row_group.rows:
            raise DataError(
                f"{row_group.name}: the footer says {row_group.rows} rows, the pages hold {found}; the file is damaged"
            )

    def _not_written(
        self, row_group: RowGroupRef, columns: Sequence[str], location: ChunkLocation, error: Exception
    ) -> Exception:
        """Return the error of columns that could not be read to the window.

        A damaged copy in the local cache is dropped, and the columns are decoded again, by Arrow from the file itself.
        """
        if isinstance(error, ParquetLoaderError) or not location.is_cached or is_shortage(error):
            return self.explained(row_group, columns, error, location)
        self.chunks.invalidate(location)
        return NotDecodedError(columns)

    def explained(
        self, row_group: RowGroupRef, columns: Sequence[str], error: Exception, location: ChunkLocation | None = None
    ) -> Exception:
        """Return an error that names the column of a failed read, or says that the file has changed.

        To find the column, it reads the columns again one by one: at `location`, or in the file if that is None or in
        the cache.
        """
        if isinstance(error, ParquetLoaderError):
            return error
        where = row_group.name
        failure = system_error(where, error)
        if failure is not None and is_shortage(error):
            return failure
        try:
            self.chunks.check_unchanged(row_group)
        except SourceError as changed:
            return changed
        if failure is not None:
            return failure
        if location is None or location.is_cached:
            location = self.chunks.unread(row_group)
        culprit = ""
        for column in columns if len(columns) > 1 else ():
            try:
                with closing(self.chunks.open(row_group, [column], location)) as alone:
                    for _ in alone.batches(_FILTERED_ROWS):
                        pass
            except READ_ERRORS as narrower:
                failure = system_error(f"{where}, column {column!r}", narrower)
                if failure is not None:
                    return failure
                culprit, error = column, narrower
                break
        if len(columns) == 1:
            culprit = columns[0]
        reason = "".join(c if c.isprintable() else "?" for c in str(error).split("\n")[0])
        where += f", column {culprit!r}" if culprit else ""
        if "Expected all lists to be of size" in reason and not reads_null_fixed_size_lists():
            return UnsupportedError(
                f"{where}: pyarrow {pa.__version__} cannot read nulls in fixed-size lists; install pyarrow 26 or newer"
            )
        return DataError(
            f"{where}: the data cannot be decoded: {reason}; a loader with on_error='skip' skips such row groups"
        )


class _ForwardRows:
    """Takes rows from batches in steps of any size."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._batch: pa.RecordBatch | None = None

    def take(self, rows: int) -> pa.RecordBatch:
        """Return the next rows; fewer, or none, at the end."""
        parts = list[pa.RecordBatch]()
        while rows:
            if self._batch is None:
                self._batch = next(self._batches, None)
                if self._batch is None:
                    break
            batch, self._batch = self._batch, None
            if len(batch) > rows:
                batch, self._batch = batch.slice(0, rows), batch.slice(rows)
            parts.append(batch)
            rows -= len(batch)
        if len(parts) == 1:
            return parts[0]
        return pa.concat_batches(parts) if parts else _no_columns(0)


def _after(rows: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows after the first `rows`."""
    for batch in batches:
        if rows < len(batch):
            yield batch.slice(rows) if rows else batch
        rows = max(0, rows - len(batch))


def _alive_mask(deleted: IntArray, first_row: int, rows: int) -> BoolArray:
    """Return which rows of a range in a row group are not deleted, bool ``[rows]``."""
    mask = np.ones(rows, np.bool_)
    mask[_deleted_among(deleted, first_row, rows) - first_row] = False
    return mask


def _deleted_among(deleted: IntArray, first_row: int, rows: int) -> IntArray:
    """Return the deleted rows of a range in a row group."""
    low, high = np.searchsorted(deleted, [first_row, first_row + rows])
    return deleted[low:high]


def _widths_of(columns: Sequence[Column]) -> dict[str, int] | None:
    """Return the bytes of a row of each column, by name; None if a column has rows of varying width."""
    widths = {column.name: column.row_bytes for column in columns if column.row_bytes is not None}
    return widths if len(widths) == len(columns) else None


def _bytes_of(types: Iterable[pa.DataType]) -> int | None:
    """Return the bytes per row of columns of these types; None if a type has values of varying width."""
    try:
        return sum(-(-int(type_.bit_width) // 8) for type_ in types)
    except ValueError:
        return None


@lru_cache(maxsize=64)
def _no_columns(rows: int) -> pa.RecordBatch:
    # Nothing here releases the GIL, because a batch of columns in the file needs one of these for every read.
    return pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.null(), rows, [None])], names=[""])
