"""`RowReader`: rows of a data set by their index, as a batch or one by one."""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.collate import Batch, open_output
from parquet_loader.common import (
    IntArray,
    OutputOptions,
    ReadOptions,
    check_int,
    check_kind,
    from_numpy,
    is_worker,
    parse_bytes,
)
from parquet_loader.dataset import OpenRows, PriorCounts, default_num_threads, open_rows
from parquet_loader.decode import Column, TableOrigin
from parquet_loader.engine import BatchProcessor, ProcessedBatch, ReferencedFiles, files_named_by
from parquet_loader.errors import ConfigurationError, DataError, LoaderStateError, SchemaError
from parquet_loader.read import HIDDEN_ROW_NUMBERS, LocalCache, PageReader
from parquet_loader.schema import Ragged, Schema, masks_of
from parquet_loader.source import RowGroupRef
from parquet_loader.window import Arenas, Window, window_of

if TYPE_CHECKING:
    from parquet_loader.dataset import ResolvedSource

Row: TypeAlias = dict[str, Any]
"""One row: the value of each column without the first axis; text is str, bytes are bytes."""


class _Wanted(NamedTuple):
    """Rows of one row group, sorted and without duplicates."""

    row_group: RowGroupRef
    rows: IntArray


class _Opened(NamedTuple):
    """The opened source and its page reader, in one process."""

    rows: OpenRows
    ends: IntArray  # for each row group, the rows up to its end that pass the filter
    pages: PageReader


class RowReader:
    """Rows of a data set by index, in the order in which an unshuffled loader delivers them.

    ``reader[i]`` is one row, ``reader.take(indices)`` a batch. Any thread may use it. Between calls it holds neither
    threads nor open files, but decoded pages up to `cache_bytes`, which `close` and the garbage collector release. It
    can be pickled (without the pages) and used in forked processes, so torch's `DataLoader` accepts it as a map-style
    data set.

    Made by `ParquetDataset.rows`.
    """

    def __init__(
        self,
        source: Any,  # a `ResolvedSource`, which is not public
        *,
        filters: pc.Expression | None,
        read_options: ReadOptions,
        cache: LocalCache | None,
        skips: bool,
        output_options: OutputOptions | None,
        cache_bytes: int | str,
        num_threads: int | None,
    ) -> None:
        check_kind("output_options", output_options, OutputOptions)
        if num_threads is not None:
            check_int("num_threads", num_threads, 1, 256)
        self._source: ResolvedSource = source
        self._filters = filters
        self._read_options = read_options
        self._cache = cache
        self._skips = skips
        self._output_options = output_options or OutputOptions()
        self._cache_bytes = parse_bytes(cache_bytes, "cache_bytes")
        self._num_threads = num_threads
        self._known: PriorCounts | None = None
        self._is_closed = False
        self._begin()

    def _begin(self) -> None:
        self._lock = os.getpid(), threading.Lock()
        self._state: _Opened | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the reader with the counts of rows, and without pages."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_state")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the reader, without pages."""
        self.__dict__.update(state)
        self._begin()

    @property
    def schema(self) -> Schema:
        """The fields of a batch, by name."""
        return self._opened().rows.schema

    def __len__(self) -> int:
        """Return the number of rows that pass the filters; the first call counts them if there are filters.

        Raises:
            DataError, SourceError: The rows cannot be counted.
        """
        if self._filters is None:
            return self._source.snapshot.rows
        ends = self._opened().ends
        return int(ends[-1]) if len(ends) else 0

    def __getitem__(self, index: Any) -> Any:
        """Return one row for an integer; a batch for a slice, or for integers ``[rows]``, as `take` does.

        A row is a dict of the columns without the first axis: a scalar (an array or tensor of no axis), an array or
        tensor of a row, str for text, bytes for bytes, a `Ragged` for lists of lists.

        Raises:
            IndexError: The row does not exist.
            TypeError: The index has another type.
        """
        if isinstance(index, slice):
            return self.take(np.arange(*index.indices(len(self))))
        if isinstance(index, list | tuple | range) or getattr(index, "ndim", 0) > 0:
            return self.take(index)
        if isinstance(index, bool | np.bool_) or str(getattr(index, "dtype", "")).endswith("bool"):
            raise _not_indices(index)
        try:
            number = operator.index(index)
        except TypeError:
            raise _not_indices(index) from None
        return {name: column[0] for name, column in self._arrays([number]).items()}

    def __getitems__(self, indices: Sequence[int]) -> list[Row]:
        """Return rows one by one, read together; torch's `DataLoader` passes them to its `collate_fn`."""
        batch = self._arrays(indices)
        columns = [_rows_of(column) for column in batch.values()]
        return [dict(zip(batch, row, strict=True)) for row in zip(*columns, strict=True)]

    def take(self, indices: Any, *, output_options: OutputOptions | None = None) -> Batch:
        """Return rows as a batch: the columns, dtypes and values that a loader of the data set delivers.

        Args:
            indices: Integers ``[rows]``: a list, an array or a tensor, in any order, repeated or not; negative ones
                count from the end.
            output_options: A column of row numbers; the format of batches. Default: those of the reader.

        Raises:
            IndexError: A row does not exist.
            TypeError: The indices are not integers.
            DataError: A row cannot be decoded or delivered; the message names file, row group and column.
            SourceError: A file has vanished or changed since its footer was read.
            LoaderStateError: The reader is closed.
        """
        check_kind("output_options", output_options, OutputOptions)
        options = output_options or self._output_options
        if options.into is not None:
            raise ConfigurationError("OutputOptions(into=...): tensors of batches are for loaders; leave into out")
        output = open_output(options, None).masked(masks_of(self.schema))
        opened = self._opened()
        numbers = _checked(indices, int(opened.ends[-1]) if len(opened.ends) else 0)
        unique, inverse = np.unique(numbers, return_inverse=True)
        wanted = _divided(opened, unique)
        row_numbers = options.row_numbers
        if row_numbers is None and any(getattr(c.image, "is_random", False) for c in opened.rows.reader.columns):
            row_numbers = HIDDEN_ROW_NUMBERS
        table, columns = self._canonical(opened, wanted, row_numbers)
        window = window_of(table.take(from_numpy(inverse)), columns)
        files = files_named_by(columns, opened.rows.reader.snapshot)
        return output.from_batch(_processed(window, columns, wanted, inverse, row_numbers, files), None)

    def _arrays(self, indices: Any) -> Batch:
        """Return rows as a dict of columns: tensors with format "torch", else numpy arrays."""
        options = self._output_options
        is_torch = options.format == "torch"
        return self.take(indices, output_options=options if is_torch else replace(options, format="numpy"))

    def _canonical(
        self, opened: _Opened, wanted: Sequence[_Wanted], row_numbers: str | None
    ) -> tuple[pa.Table, tuple[Column, ...]]:
        """Return rows in canonical form, and the columns."""
        reader = opened.rows.reader
        columns = reader.columns
        tables = [reader.empty_table()]
        batches = opened.pages.read(wanted)
        # Consecutive row groups of one schema are converted together.
        begin = 0
        for end in range(1, len(wanted) + 1):
            if end < len(wanted) and self._is_alike(wanted[begin].row_group, wanted[end].row_group):
                continue
            tables.append(_converted(opened, wanted[begin:end], batches[begin:end]))
            begin = end
        table = pa.concat_tables(tables)
        if row_numbers is not None:
            if row_numbers in table.column_names:
                raise SchemaError(f"row_numbers={row_numbers!r}: a column has this name already; choose another name")
            columns += (Column(row_numbers, "fixed", pa.int64(), np.dtype(np.int64)),)
            table = table.append_column(row_numbers, from_numpy(self._row_numbers(opened, wanted)))
        return table.combine_chunks(), columns

    def _is_alike(self, one: RowGroupRef, other: RowGroupRef) -> bool:
        if len(self._source.snapshot.partition_schema):
            return one.file_number == other.file_number
        return one.schema_number == other.schema_number

    def _row_numbers(self, opened: _Opened, wanted: Sequence[_Wanted]) -> IntArray:
        """Return the numbers of rows in the data set, before filters."""
        snapshot = opened.rows.reader.snapshot
        firsts, found = snapshot.first_rows, [np.zeros(0, np.int64)]
        for row_group, rows in wanted:
            deleted = snapshot.deleted_rows(row_group.index)
            before = 0 if deleted is None else np.searchsorted(deleted, rows)
            found.append(firsts[row_group.index] + rows - before)
        return np.concatenate(found)

    def _opened(self) -> _Opened:
        """Return the opened source; the first call counts rows if there are filters."""
        if self._is_closed:
            raise LoaderStateError("the row reader is closed; make another one with ParquetDataset.rows()")
        if self._lock[0] != os.getpid():  # a thread of the parent may have held the lock during the fork
            self._lock = os.getpid(), threading.Lock()
        with self._lock[1]:
            if self._state is None:
                self._state = self._open()
            return self._state

    def _open(self) -> _Opened:
        threads = self._num_threads or (1 if is_worker() else default_num_threads())
        rows = open_rows(
            self._source.for_one_loader(),
            filters=self._filters,
            read_options=self._read_options,
            cache=self._cache,
            skips=self._skips,
            num_threads=threads,
            known=self._known,
        )
        self._known = PriorCounts(self._source.snapshot, rows.counted)
        pages = PageReader(rows.reader, self._read_options, self._cache_bytes, threads)
        return _Opened(rows, np.cumsum(rows.counted.counts), pages)

    @property
    def held_bytes(self) -> int:
        """Bytes of the decoded pages, and of their locations, held now."""
        return 0 if self._state is None else self._state.pages.held_bytes

    def close(self) -> None:
        """Release the decoded pages and the local cache; idempotent. The reader cannot be used afterwards."""
        state, self._state, self._is_closed = self._state, None, True
        if state is not None:
            state.pages.close()
            state.rows.reader.chunks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        snapshot = self._source.snapshot
        return f"RowReader({snapshot.rows} rows in {len(snapshot.files)} files{', closed' if self._is_closed else ''})"


def _not_indices(found: Any) -> TypeError:
    return TypeError(
        f"rows are chosen by an integer, a slice, or integers [rows], found {found!r:.60}; "
        "for a mask write take(np.flatnonzero(mask))"
    )


def _checked(indices: Any, rows: int) -> IntArray:
    """Return indices as non-negative int64.

    Raises:
        IndexError: A row does not exist.
        TypeError: The indices are not integers.
    """
    try:
        found = np.asarray(indices.cpu() if hasattr(indices, "cpu") else indices)
    except (ValueError, TypeError, OverflowError):
        raise _not_indices(indices) from None
    if isinstance(indices, list | tuple | range) and found.dtype.kind in "fO" and all(type(i) is int for i in indices):
        found = np.array(indices, object)  # integers that no dtype holds
    elif found.ndim != 1 or (found.dtype.kind not in "iu" and len(found)):
        raise _not_indices(indices)
    outside = found[(found >= rows) | (found < -rows)] if len(found) else found
    if len(outside):
        has = f"has rows 0 to {rows - 1}" if rows else "has no rows"
        raise IndexError(f"row {outside[0]} does not exist; the data set {has}")
    numbers: IntArray = found.astype(np.int64)
    numbers[numbers < 0] += rows
    return numbers


def _divided(opened: _Opened, numbers: IntArray) -> list[_Wanted]:
    """Divide rows by row group; `numbers` are sorted and without duplicates."""
    reader, counts = opened.rows.reader, opened.rows.counted.counts
    groups = np.searchsorted(opened.ends, numbers, side="right")
    cuts = np.flatnonzero(np.diff(groups)) + 1
    found = []
    for some in np.split(np.arange(len(numbers)), cuts) if len(numbers) else ():
        group = int(groups[some[0]])
        row_group = reader.snapshot.row_group(group)
        inside = numbers[some] - (opened.ends[group] - counts[group])
        found.append(_Wanted(row_group, opened.pages.positions(row_group, inside, int(counts[group]))))
    return found


def _converted(opened: _Opened, wanted: Sequence[_Wanted], batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Convert stored rows of files with one schema to canonical form."""
    reader, first = opened.rows.reader, wanted[0]
    stored = pa.Table.from_batches(batches).combine_chunks()
    try:
        return reader.canonical(first.row_group, stored, TableOrigin(first.row_group, is_filtered=True))
    except DataError:
        for (row_group, rows), batch in zip(wanted, batches, strict=True):
            for number, row in enumerate(rows.tolist()):
                one = pa.Table.from_batches([batch.slice(number, 1)])
                reader.canonical(row_group, one, TableOrigin(row_group, row))
        raise


def _processed(
    window: Window,
    columns: Sequence[Column],
    wanted: Sequence[_Wanted],
    inverse: IntArray,
    row_numbers: str | None,
    files: ReferencedFiles | None,
) -> ProcessedBatch:
    """Return a window as a batch with its media decoded; random crops are those of epoch 0 with seed 0."""
    if not BatchProcessor.is_needed(columns, None):
        return ProcessedBatch(window.rows, dict(window.arrays), {}, 0)
    processor = BatchProcessor(columns, None, 0, 0, 0, row_numbers=row_numbers, files=files)
    memory = Arenas(0)
    try:
        return processor(window, 0, window.rows, 0, memory)
    except DataError:
        origins = [(row_group, row) for row_group, rows in wanted for row in rows.tolist()]
        for number, (row_group, row) in enumerate(origins[i] for i in inverse.tolist()):
            try:
                processor(window, number, number + 1, 0, memory)
            except DataError as error:
                reason = str(error).replace(", row 0 of batch 0", "")
                raise DataError(f"{row_group.name}, row {row}, {reason}") from error.__cause__
        raise


def _rows_of(column: Any) -> list[Any]:
    """Return the rows of a column of a batch."""
    if isinstance(column, Ragged):
        return [column[number] for number in range(len(column))]
    return list(column.unbind(0)) if hasattr(column, "unbind") else list(column)
