"""Splits a caller's batch of any form into slices of bounded size: columns by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from parquet_loader.common import referenced_bytes
from parquet_loader.errors import DataError, SchemaError
from parquet_loader.schema.arrow_types import empty_table
from parquet_loader.schema.encode.containers import as_items, what_to_use
from parquet_loader.schema.encode.inputs import count_rows, row_bytes, slice_rows, value_bytes
from parquet_loader.schema.encode.lossless import Misfit
from parquet_loader.schema.encode.rows import is_row
from parquet_loader.schema.fields import Field

_FORMS = (
    "expected a dict of columns, a list of row dicts, an Arrow table, record batch or reader, "
    "a pandas or Polars frame, or an iterable of rows or of these"
)


class Slice(NamedTuple):
    """Some rows of a caller's data.

    Attributes:
        columns: By name.
        arrow_schema: The schema of the Arrow table or the features of the data set that they belong to, if any.
    """

    columns: dict[str, Any]
    arrow_schema: pa.Schema | None = None


def slices_of(data: Any, slice_bytes: int, schema: Mapping[str, Field] | None = None) -> Iterator[Slice]:
    """Yield `data` a slice of rows at a time; a reader or iterable is never held as a whole.

    Args:
        data: As in `to_table`; an iterable yields row dicts, or batches of any other of these forms.
        slice_bytes: About how large a slice may be.
        schema: The columns' schema, if known: it distinguishes the dict of one row from that of a batch.

    Raises:
        SchemaError: `data` is of another form, a column is not a column, or a dict may be a row as well as a batch.
        DataError: columns of unequal length.
    """
    items = as_items(data)
    if items is not None:
        for part in _of_iterable(items.items, slice_bytes, schema, are_rows=items.are_rows):
            yield part if items.arrow_schema is None else Slice(part.columns, items.arrow_schema)
    elif isinstance(data, pa.RecordBatchReader):
        arrow_schema = data.schema
        empty = True
        for batch in data:
            empty = False
            for part in slices_of(batch, slice_bytes):
                yield Slice(part.columns, arrow_schema)
        if empty:
            yield from slices_of(empty_table(arrow_schema), slice_bytes)
    elif isinstance(data, pa.Table | pa.RecordBatch):
        arrow_schema = data.schema
        _check_names(arrow_schema.names)
        columns = dict(zip(arrow_schema.names, data.columns, strict=True))
        for part in _slices(columns, data.num_rows, referenced_bytes(data), slice_bytes):
            yield Slice(part.columns, arrow_schema)
    elif isinstance(data, Mapping):
        yield from _of_mapping(data, slice_bytes)
    elif type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns"):
        yield from _of_mapping(_pandas_columns(data), slice_bytes)
    elif isinstance(data, np.ndarray) and data.dtype.names is not None and data.ndim == 1:
        yield from _of_mapping({name: data[name] for name in data.dtype.names}, slice_bytes)
    elif (advice := what_to_use(data)) is not None:
        raise SchemaError(f"{type(data).__name__} is not a batch; {advice}")
    elif hasattr(data, "__arrow_c_stream__"):
        _check_no_objects(data)
        try:
            reader = pa.RecordBatchReader.from_stream(data)
        except MemoryError:
            raise  # memory that ran out says nothing about the data
        except (pa.ArrowException, ValueError) as error:
            _check_types(data)
            raise SchemaError(f"{type(data).__name__} is not a batch: {str(error).splitlines()[0]}; {_FORMS}") from None
        yield from slices_of(reader, slice_bytes)
    elif hasattr(data, "__arrow_c_array__"):
        yield from slices_of(pa.record_batch(data), slice_bytes)
    elif isinstance(data, Sequence) and (not len(data) or isinstance(data[0], Mapping)):
        yield from _of_rows(data, slice_bytes)
    elif isinstance(data, Iterable):
        yield from _of_iterable(data, slice_bytes, schema)
    else:
        raise SchemaError(f"{type(data).__name__} is not a batch; {_FORMS}")


def is_in_memory(data: Any) -> bool:
    """Whether all rows of `data` are in memory; else they come from a reader, a loader or another iterable."""
    package = type(data).__module__.partition(".")[0]
    return package in ("pandas", "polars") or isinstance(
        data, pa.Table | pa.RecordBatch | Mapping | np.ndarray | list | tuple
    )


def _of_iterable(
    items: Iterable[Any], slice_bytes: int, schema: Mapping[str, Field] | None, *, are_rows: bool | None = None
) -> Iterator[Slice]:
    """Yield slices of batches in order, or of single rows that are collected up to `slice_bytes`.

    Args:
        items: Rows, or batches of any form.
        slice_bytes: As in `slices_of`.
        schema: As in `slices_of`.
        are_rows: Whether dicts among the items are rows; None: the first one decides.
    """
    rows: list[Mapping[Any, Any]] = []
    size = 0.0
    for number, item in enumerate(items):
        if isinstance(item, tuple | str | bytes | float | int | np.generic | None):
            raise SchemaError(
                f"item {number} is {_a(item)}, neither a row nor a batch; "
                "a row is a dict, such as {'image': array, 'label': 3}"
            )
        found = isinstance(item, Mapping) and (are_rows or is_row(item, schema))
        if found is None and are_rows is None:
            advice = "" if schema else "pass schema=, or "
            raise SchemaError(
                f"item {number} is a dict of lists or arrays ({_some(item)}), which may be one row or a batch of "
                f"columns; {advice}yield a row in a list, [row], or a batch as a table, pyarrow.table(batch)"
            )
        if are_rows is not None and bool(found) != are_rows:
            kind, before = ("the dict of one row", "batches") if found else (f"{_a(item)}", "dicts of one row")
            raise SchemaError(f"item {number} is {kind}, and the items before it are {before}; yield one kind only")
        are_rows = bool(found)
        if not are_rows:
            yield from _of_mapping(item, slice_bytes) if isinstance(item, Mapping) else slices_of(item, slice_bytes)
            continue
        rows.append(item)
        size += value_bytes(item)
        if size >= slice_bytes:
            yield from _of_rows(rows, 2**62)
            rows, size = [], 0.0
    if rows:
        yield from _of_rows(rows, 2**62)


def _check_no_objects(frame: Any) -> None:
    """Refuse columns of Python objects in a Polars frame, which Polars exports as the addresses of the objects."""
    if type(frame).__module__.partition(".")[0] != "polars":
        return
    objects = [name for name, dtype in frame.schema.items() if str(dtype) == "Object"]
    if objects:
        raise SchemaError(
            f"column {objects[0]!r} holds Python objects (pl.Object), which have no Arrow form; "
            f"give it a type, or pass it as a list: frame.to_dict() | {{{objects[0]!r}: list(frame[{objects[0]!r}])}}"
        )


def _check_types(frame: Any) -> None:
    """Refuse columns of a Polars frame whose type Arrow lacks, such as 128-bit integers."""
    if type(frame).__module__.partition(".")[0] != "polars":
        return
    for name, dtype in frame.schema.items():
        try:
            pa.RecordBatchReader.from_stream(frame.select(name).clear())
        except pa.ArrowException:
            raise SchemaError(
                f"column {name!r} has the Polars type {dtype}, which Arrow lacks; cast it to another type, "
                "such as pl.Int64"
            ) from None


def _some(item: Mapping[Any, Any]) -> str:
    names = list(map(repr, item))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _a(item: Any) -> str:
    name = "None" if item is None else type(item).__name__
    return name if item is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _slices(columns: dict[str, Any], rows: int, size: float, slice_bytes: int) -> Iterator[Slice]:
    step = max(1, int(slice_bytes * rows / max(1.0, size)))
    if rows <= step:
        yield Slice(columns)
        return
    for start in range(0, rows, step):
        yield Slice({name: slice_rows(values, start, min(start + step, rows)) for name, values in columns.items()})


def _of_mapping(data: Mapping[Any, Any], slice_bytes: int) -> Iterator[Slice]:
    named = [(_column_name(name), values) for name, values in data.items()]
    _check_names([name for name, _ in named])
    columns = dict(named)
    sizes: dict[str, float] = {}
    counts: dict[str, int] = {}
    for name, values in columns.items():
        try:
            counts[name] = count_rows(values)
            sizes[name] = row_bytes(values)
        except Misfit as misfit:
            raise SchemaError(f"column {name!r}: {misfit.reason}") from None
    if len(set(counts.values())) > 1:
        first = next(iter(counts))
        other = next(name for name in counts if counts[name] != counts[first])
        raise DataError(
            f"columns of unequal length: {first!r} has {counts[first]} rows, {other!r} has {counts[other]}; "
            "a dict is one batch of columns; rows are dicts in a list"
        )
    rows = next(iter(counts.values()), 0)
    yield from _slices(columns, rows, rows * sum(sizes.values()), slice_bytes)


def _column_name(name: Any) -> str:
    """Return a name as it is stored: integers, which pandas gives to columns without names, as their digits."""
    if isinstance(name, str):
        return name
    if isinstance(name, int | np.integer) and not isinstance(name, bool):
        return str(int(name))
    if isinstance(name, tuple):
        raise SchemaError(
            f"the column name {name!r} has several levels; give each column one name, in pandas by "
            "frame.columns = ['_'.join(map(str, name)) for name in frame.columns]"
        )
    raise SchemaError(
        f"the column name {name!r} is {_a(name)}, not a str; in pandas, frame.columns = frame.columns.map(str) names it"
    )


def _pandas_columns(frame: Any) -> dict[Any, Any]:
    named = [name for name in frame.index.names if name is not None]
    if named or frame.index.nlevels > 1:
        what = f"is named {named[0]!r}" if named else f"has {frame.index.nlevels} levels"
        raise SchemaError(
            f"the frame's index {what}, and an index is not written; "
            "reset_index() makes it a column, reset_index(drop=True) leaves it out"
        )
    _check_names(list(frame.columns))
    return dict(frame.items())


def _check_names(names: list[Any]) -> None:
    if not names:
        raise SchemaError("there are no columns; leave such batches out (in pandas, reset_index() makes the index one)")
    seen = set()
    for name in names:
        if name in seen:
            raise SchemaError(f"column {name!r}: there are two of this name; rename one of them")
        seen.add(name)


def _of_rows(rows: Sequence[Any], slice_bytes: int) -> Iterator[Slice]:
    step = max(1, int(slice_bytes / max(1.0, row_bytes(rows))))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        names: dict[str, None] = {}
        for number, row in enumerate(part, start):
            if not isinstance(row, Mapping):
                raise SchemaError(f"item {number} of the list is {type(row).__name__}, not a dict of one row; {_FORMS}")
            names.update(dict.fromkeys(row))
        yield from _of_mapping({name: [row.get(name) for row in part] for name in names}, 2**62)
