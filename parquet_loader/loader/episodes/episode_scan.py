"""Finds the episodes of a source: reads the episode column once, and checks the order of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.common import IntArray, OutputOptions, format_bytes
from parquet_loader.dataset import ListedDataset, settings_of, with_columns, without_filters
from parquet_loader.errors import ConfigurationError, DataError, MemoryLimitError, SchemaError
from parquet_loader.loader.column_scan import ColumnScan, PassingRows, ScanOptions
from parquet_loader.read import REFUSES_NULLS, as_expression
from parquet_loader.schema import Category, Scalar, Schema, Text, policy_of

# Rows of a batch when the column is read.
_BATCH_ROWS = 16384


@dataclass(frozen=True, slots=True)
class EpisodeBounds:
    """The episodes of the rows that pass the filters.

    Attributes:
        rows: int64 ``[episodes + 1]``: the first row of each episode, and the number of rows.
        row_begins: int64 ``[row groups + 1]``: rows before each row group.
        ids: ``[episodes]``: the value of `by` in each episode.
    """

    rows: IntArray
    row_begins: IntArray
    ids: pa.Array


@dataclass(frozen=True, slots=True)
class _Runs:
    """Consecutive rows with one value.

    Attributes:
        value: ``[runs]``: the value of each run.
        begins: int64 ``[runs + 1]``: the first row of each run, and the number of rows.
        rows: The rows.
    """

    value: pa.Array
    begins: IntArray
    rows: PassingRows


def read_episodes(listed: ListedDataset, by: str, order: str | None, options: ScanOptions) -> EpisodeBounds:
    """Return the episodes, and check that the rows of each are consecutive and in order.

    With filters, the column is read a second time.

    Args:
        listed: The files.
        by, order: As in `Episodes`.
        options: How the columns are read.

    Raises:
        SchemaError: A column is missing or has the wrong type.
        DataError: The rows of an episode are not consecutive, or not in order.
        ConfigurationError: The filters keep only some rows of an episode.
        MemoryLimitError: The bounds of the episodes take more than half of the memory limit.
    """
    runs = _read_runs(without_filters(listed), by, order, replace(options, filters=None))
    _check_unique(runs, by)
    if settings_of(listed).combined(as_expression(options.filters)) is not None:
        passing = _read_runs(listed, by, None, options)
        _check_whole(passing, runs, by)
        runs = passing
    limit_bytes, nbytes = options.memory_limit_bytes, 48 * len(runs.value)
    if nbytes > limit_bytes // 2:
        raise MemoryLimitError(
            f"memory_limit={format_bytes(limit_bytes)}: the bounds of {len(runs.value)} episodes take "
            f"{format_bytes(nbytes)}, which may be at most half of it; pass at least {format_bytes(2 * nbytes)}"
        )
    return EpisodeBounds(runs.begins, runs.rows.begins, runs.value)


def _read_runs(listed: ListedDataset, by: str, order: str | None, options: ScanOptions) -> _Runs:
    columns = [by] if order in (None, by) else [by, order]
    _check_types(with_columns(listed, columns).schema, by, order)
    with ColumnScan(listed, columns, _BATCH_ROWS, options, OutputOptions(format="arrow")) as scan:

        def read() -> pa.Table:
            batches = ((at, pa.table(batch).slice(0, rows)) for at, rows, batch in scan.batches())
            try:
                return _joined([_runs_of(batch, by, order, at, scan.rows) for at, batch in batches])
            except DataError as error:
                found, refuses_nulls, _ = str(error).partition(f"; {REFUSES_NULLS}")
                if not refuses_nulls:
                    raise
                raise DataError(
                    f"{found}; each row needs {' and '.join(map(repr, columns))} to have its place in an episode: "
                    "write the files without the rows that have nulls there"
                ) from error

        runs = _joined(scan.gather(read, _packed, _unpacked))
    if order is not None and len(runs):
        _check_between(runs, by, order, scan.rows)
    begins = np.append(runs["begin"].to_numpy(), scan.rows.begins[-1])
    value = runs["value"].combine_chunks()
    if not len(runs):
        return _Runs(value, np.zeros(1, np.int64), scan.rows)
    is_new = np.append(True, pc.not_equal(value[1:], value[:-1]).to_numpy(zero_copy_only=False))
    return _Runs(value.filter(pa.array(is_new)), begins[np.append(is_new, True)], scan.rows)


def _check_types(schema: Schema, by: str, order: str | None) -> None:
    """Check the types of the columns.

    Raises:
        SchemaError: A column cannot identify episodes, or has no order, or replaces nulls.
    """
    of_episodes = schema[by]
    tells = isinstance(of_episodes, Text | Category) or (
        isinstance(of_episodes, Scalar) and not pa.types.is_floating(of_episodes.type)
    )
    if not tells:
        raise SchemaError(f"by={by!r}: expected a column of integers, text or categories, found {of_episodes!r}")
    if order is not None and not isinstance(schema[order], Scalar):
        raise SchemaError(f"order={order!r}: expected a column of numbers or times, found {schema[order]!r}")
    for label, name in (("by", by), ("order", order)):
        if name is None or policy_of(schema[name]) == "refuse":
            continue
        fill = getattr(schema[name], "fill", None)
        if isinstance(fill, float) and math.isnan(fill):  # NaN is never in rising order, so a null raises an error
            continue
        raise SchemaError(
            f"{label}={name!r}: {schema[name]!r} replaces nulls, which would then be a value like any other; give the "
            "column no fill and no mask"
        )


def _runs_of(batch: pa.Table, by: str, order: str | None, at: int, passing: PassingRows) -> pa.Table:
    """Return the runs of a batch: begin, value, and the values of `order` in the first and the last row.

    Raises:
        DataError: `order` does not rise within an episode.
    """
    value = batch[by].combine_chunks()
    if isinstance(value, pa.ChunkedArray):
        value = pa.concat_arrays(value.chunks)
    if pa.types.is_dictionary(value.type):
        value = value.dictionary_decode()
    is_new = np.append(True, pc.not_equal(value[1:], value[:-1]).to_numpy(zero_copy_only=False))
    begin = np.flatnonzero(is_new)
    columns = {"begin": begin + at, "value": value.take(pa.array(begin))}
    if order is not None:
        of_rows = batch[order].to_numpy()
        rises = of_rows[1:] > of_rows[:-1]
        if not (rises | is_new[1:]).all():
            row = int(np.flatnonzero(~(rises | is_new[1:]))[0]) + 1
            raise _not_ordered(by, order, value[row], of_rows[row - 1 : row + 1], at + row, passing)
        columns |= {"first": of_rows[begin], "last": of_rows[np.append(begin[1:], len(value)) - 1]}
    return pa.table(columns)


def _not_ordered(by: str, order: str, value: Any, found: Any, row: int, passing: PassingRows) -> DataError:
    remedy = (
        f"{order!r} has to rise from row to row of an episode: remove one of the two, or leave out order={order!r}"
        if found[0] == found[1]
        else f"the rows of an episode have to be in rising order: sort the files by {by!r} and {order!r}"
    )
    return DataError(
        f"{passing.name(row)}: column {order!r} is {found[1]}, and {found[0]} in the row before, of "
        f"the same episode ({by} {value}); {remedy}"
    )


def _check_between(runs: pa.Table, by: str, order: str, passing: PassingRows) -> None:
    """Check the order from one batch to the next. Raises as `_runs_of`."""
    value = runs["value"].combine_chunks()
    first, last, begin = (runs[name].to_numpy() for name in ("first", "last", "begin"))
    is_same = pc.equal(value[1:], value[:-1]).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(is_same & ~(first[1:] > last[:-1]))
    if len(wrong):
        run = int(wrong[0]) + 1
        raise _not_ordered(by, order, value[run], (last[run - 1], first[run]), int(begin[run]), passing)


def _check_unique(runs: _Runs, by: str) -> None:
    """Check that the rows of each episode are consecutive.

    Raises:
        DataError: The rows of an episode are not consecutive.
    """
    if len(pc.unique(runs.value)) == len(runs.value):
        return
    encoded = runs.value.dictionary_encode().indices.to_numpy()
    _, firsts = np.unique(encoded, return_index=True)
    again = np.ones(len(encoded), np.bool_)
    again[firsts] = False
    run = int(np.flatnonzero(again)[0])
    before = int(np.flatnonzero(encoded == encoded[run])[0])
    again_at, ended_at = int(runs.begins[run]), int(runs.begins[before + 1]) - 1
    raise DataError(
        f"{runs.rows.name(again_at)}: {by} is {runs.value[run]} again, whose rows ended in "
        f"{runs.rows.name(ended_at)}; the rows of an episode have to be consecutive: sort the files "
        f"by {by!r}"
    )


def _check_whole(passing: _Runs, runs: _Runs, by: str) -> None:
    """Check that filters keep or leave out whole episodes.

    Raises:
        ConfigurationError: The filters keep only some rows of an episode.
    """
    at = pc.index_in(passing.value, runs.value).to_numpy(zero_copy_only=False).astype(np.int64)
    kept, whole = np.diff(passing.begins), np.diff(runs.begins)[at]
    if not np.array_equal(kept, whole):
        run = int(np.flatnonzero(kept != whole)[0])
        raise ConfigurationError(
            f"filters: {kept[run]} of the {whole[run]} rows of {by} {passing.value[run]} pass; filters may choose "
            f"episodes, but not rows of one: filter by {by!r}, or by columns with one value an episode"
        )


def _joined(tables: list[pa.Table]) -> pa.Table:
    tables = [table for table in tables if len(table)] or tables[:1]
    if not tables:
        return pa.table({"begin": pa.array([], pa.int64()), "value": pa.array([], pa.int64())})
    return pa.concat_tables(tables)


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _unpacked(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()
