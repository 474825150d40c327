"""Opens a resolved source for one loader: counts the rows that pass its filters, and divides its memory limit."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.common import IntArray, Ranks, ReadOptions, available_processors
from parquet_loader.dataset.memory_budget import SHARE_FOOTERS, LazyBudget, MemoryBudget, WindowNeeds, divide
from parquet_loader.dataset.resolved_source import ResolvedSource
from parquet_loader.dataset.row_counts import Counted, PriorCounts, count_rows
from parquet_loader.dataset.row_sizes import guessed_sizes, has_varying, row_sizes, sampled_sizes
from parquet_loader.dataset.schema_resolution import decoders_of
from parquet_loader.decode import columns_of
from parquet_loader.errors import SchemaError
from parquet_loader.read import HIDDEN_ROW_NUMBERS, LocalCache, NullAdvice, RowFilter, RowGroupReader
from parquet_loader.schema import Scalar, Schema
from parquet_loader.source import Snapshot


@dataclass(frozen=True, slots=True)
class OpenRows:
    """Rows of a source that can be read.

    Attributes:
        snapshot: The files and row groups.
        schema: The schema of the delivered columns.
        reader: Reads row groups by the schema.
        counted: The number of rows of each row group that pass the filter.
    """

    snapshot: Snapshot
    schema: Schema
    reader: RowGroupReader
    counted: Counted


@dataclass(frozen=True, slots=True)
class Dataset(OpenRows):
    """A snapshot with a schema, a filter and a memory budget. Immutable, except that the budget is computed once.

    Attributes:
        budget: The division of the memory limit, computed before the first plan.
    """

    budget: LazyBudget

    @property
    def sizing(self) -> MemoryBudget:
        """The division of the memory limit; the first use decodes some rows if columns vary in width.

        Raises:
            DataError, SourceError, MemoryLimitError: see `LazyBudget.get`.
        """
        return self.budget.get()

    @property
    def counts(self) -> IntArray:
        """Rows of each row group that pass the filter, int64 ``[row groups]``."""
        return self.counted.counts

    @property
    def skipped(self) -> tuple[tuple[int, str], ...]:
        """Row groups left out when rows were counted, each with its reason."""
        return self.counted.skipped

    @property
    def rows(self) -> int:
        """Rows of an epoch."""
        return int(self.counts.sum())

    def with_window(self, window_rows: int, open_row_groups: int | None, needs: WindowNeeds) -> Dataset:
        """Return the same data set with windows of another size.

        `open_row_groups` row groups share a window; None chooses as `divide` does.

        Raises:
            MemoryLimitError: windows of this size do not fit.
        """
        sizing = self.sizing
        divided = partial(
            divide,
            sizing.limit_bytes,
            snapshot=self.snapshot,
            counts=self.counts,
            needs=needs,
            window_rows=window_rows,
            num_threads=sizing.num_threads,
            open_row_groups=open_row_groups,
        )
        return replace(self, budget=LazyBudget(sizing.limit_bytes, sizing.row, divided))


def open_dataset(
    source: ResolvedSource,
    *,
    filters: pc.Expression | None,
    needs: WindowNeeds,
    window_rows: int | None,
    memory_limit_bytes: int,
    transform: bool,
    read_options: ReadOptions,
    cache: LocalCache | None = None,
    skips: bool,
    num_threads: int,
    ranks: Ranks | None = None,
    row_numbers: str | None = None,
    names_rows: bool = False,
    decodes_windows: bool = False,
    known: PriorCounts | None = None,
) -> Dataset:
    """Count the rows that pass the filter, and divide the memory limit; arguments as in `BatchedDataLoader`.

    All `ranks` together count rows, except those that are `known`. With `names_rows`, columns that are decoded batch by
    batch come with the rows' numbers. With `decodes_windows`, media are decoded window by window instead.

    With a filter, this reads the filter's columns of all row groups that may match. If columns vary in width, a few
    thousand rows are decoded at the first use of the memory budget: the first plan, or `state_dict` before it. They are
    decoded now only if the limit may be too small by the footers, so that the error is raised here.

    Raises:
        SchemaError, DataError, SourceError, MemoryLimitError, ConfigurationError: as in `BatchedDataLoader`.
    """
    snapshot = source.snapshot
    snapshot.footers.limit(int(memory_limit_bytes * SHARE_FOOTERS))
    opened = open_rows(
        source,
        filters=filters,
        read_options=read_options,
        cache=cache,
        skips=skips,
        num_threads=num_threads,
        ranks=ranks,
        row_numbers=_numbered(source.schema, row_numbers, names_rows=names_rows),
        known=known,
        finds_ranges=True,
    )
    reader, counts = opened.reader, opened.counted.counts
    divided = partial(
        divide,
        memory_limit_bytes,
        snapshot=snapshot,
        counts=counts,
        needs=needs,
        window_rows=window_rows,
        num_threads=num_threads,
    )
    processes = transform or (not decodes_windows and any(c.image is not None for c in reader.columns))
    if known is not None and known.row is not None:
        budget = LazyBudget(memory_limit_bytes, known.row, divided)
    elif has_varying(reader.columns) and counts.any():
        measured = {"processes": processes, "decodes_windows": decodes_windows}
        sample = partial(sampled_sizes, reader, counts, skips=skips, **measured)
        budget = LazyBudget(memory_limit_bytes, sample, divided)
        budget.get_if_tight(guessed_sizes(reader, counts, **measured))
    else:
        row = row_sizes(reader, counts, processes=processes, decodes_windows=decodes_windows, reads_headers=True)
        budget = LazyBudget(memory_limit_bytes, row, divided)
    return Dataset(snapshot, opened.schema, reader, opened.counted, budget)


def _numbered(schema: Schema, row_numbers: str | None, *, names_rows: bool) -> str | None:
    """Return the name of the column of the rows' numbers, hidden if only decoding needs it, or None."""
    media = [c.image for c in columns_of(schema) if c.image is not None]
    if row_numbers is None and media and (names_rows or any(getattr(field, "is_random", False) for field in media)):
        return HIDDEN_ROW_NUMBERS
    return row_numbers


def open_rows(
    source: ResolvedSource,
    *,
    filters: pc.Expression | None,
    read_options: ReadOptions,
    cache: LocalCache | None,
    skips: bool,
    num_threads: int,
    ranks: Ranks | None = None,
    row_numbers: str | None = None,
    known: PriorCounts | None = None,
    finds_ranges: bool = False,
) -> OpenRows:
    """Count the rows that pass the filter; arguments as in `open_dataset`, and `finds_ranges` as in `Decoder`.

    Raises:
        SchemaError, DataError, SourceError, ConfigurationError: as in `BatchedDataLoader`.
    """
    snapshot, chosen, schema = source.snapshot, source.schema, source.declared
    row_filter = None if filters is None else RowFilter(filters, source.listed, schema)
    if row_filter is not None:
        row_filter.check_words(Schema({**(schema or {}), **chosen}))
    advice = NullAdvice(snapshot, chosen, schema)
    reader = RowGroupReader(
        snapshot,
        decoders_of(chosen, snapshot, finds_ranges=finds_ranges),
        row_filter,
        read_options,
        row_numbers,
        cache,
        advice,
    )
    if row_numbers is not None and row_numbers != HIDDEN_ROW_NUMBERS:
        if row_numbers in (column.name for column in reader.columns[:-1]):
            raise SchemaError(f"row_numbers={row_numbers!r}: a column has this name already; choose another name")
        chosen = Schema({**chosen, row_numbers: Scalar(pa.int64())})
    with nullcontext() if snapshot.remote is None else snapshot.remote.opened():
        counted = Counted(snapshot.alive)
        if row_filter is not None:
            counted = count_rows(reader, row_filter, num_threads, ranks, known, skips=skips)
        if reader.chunks.cache is not None:
            reader.chunks.cache.expect(counted.counts > 0)
    return OpenRows(snapshot, chosen, reader, counted)


def default_num_threads() -> int:
    """Return the number of processors this process may use, at most 8."""
    return min(8, available_processors())
