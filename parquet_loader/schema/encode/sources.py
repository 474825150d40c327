"""What callers hand over as a batch, cut into pieces of bounded size: columns by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from parquet_loader.errors import DataError, SchemaError
from parquet_loader.schema.encode.inputs import count_rows, row_bytes, slice_rows
from parquet_loader.schema.encode.lossless import Misfit

_FORMS = (
    "expected a dict of columns, a list of row dicts, an Arrow table, record batch or reader, "
    "a pandas or Polars frame, or an iterator of these"
)


def pieces(data: Any, piece_bytes: int) -> Iterator[dict[str, Any]]:
    """Yield the columns of `data` a slice of rows at a time; a reader or iterator is never held as a whole.

    Args:
        data: As `to_table` takes it; an iterator yields anything of that, batch after batch.
        piece_bytes: About how large a slice may be.

    Raises:
        SchemaError: `data` is of another form, or a column is none.
        DataError: columns of unequal length.
    """
    if isinstance(data, pa.RecordBatchReader):
        empty = True
        for batch in data:
            empty = False
            yield from pieces(batch, piece_bytes)
        if empty:
            yield from pieces(data.schema.empty_table(), piece_bytes)
    elif isinstance(data, pa.Table | pa.RecordBatch):
        _refuse_repeated(data.schema.names)
        columns = dict(zip(data.schema.names, data.columns, strict=True))
        yield from _slices(columns, data.num_rows, data.nbytes, piece_bytes)
    elif isinstance(data, Mapping):
        yield from _of_mapping(data, piece_bytes)
    elif type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns"):
        yield from _of_mapping(_pandas_columns(data), piece_bytes)
    elif hasattr(data, "__arrow_c_stream__"):
        try:
            reader = pa.RecordBatchReader.from_stream(data)
        except (pa.ArrowException, ValueError) as error:
            raise SchemaError(f"{type(data).__name__} is no batch: {str(error).splitlines()[0]}; {_FORMS}") from None
        yield from pieces(reader, piece_bytes)
    elif hasattr(data, "__arrow_c_array__"):
        yield from pieces(pa.record_batch(data), piece_bytes)
    elif isinstance(data, Iterator):
        for batch in data:
            yield from pieces(batch, piece_bytes)
    elif isinstance(data, Sequence) and not isinstance(data, str | bytes):
        yield from _of_rows(data, piece_bytes)
    else:
        raise SchemaError(f"{type(data).__name__} is no batch; {_FORMS}")


def _slices(columns: dict[str, Any], rows: int, size: float, piece_bytes: int) -> Iterator[dict[str, Any]]:
    step = max(1, int(piece_bytes * rows / max(1.0, size)))
    if rows <= step:
        yield columns
        return
    for start in range(0, rows, step):
        yield {name: slice_rows(values, start, min(start + step, rows)) for name, values in columns.items()}


def _of_mapping(data: Mapping[Any, Any], piece_bytes: int) -> Iterator[dict[str, Any]]:
    columns: dict[str, Any] = {}
    for name, values in data.items():
        if not isinstance(name, str):
            raise SchemaError(f"the column name {name!r} is no str")
        columns[name] = values
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
        raise DataError(f"columns of unequal length: {first!r} has {counts[first]} rows, {other!r} has {counts[other]}")
    rows = next(iter(counts.values()), 0)
    yield from _slices(columns, rows, rows * sum(sizes.values()), piece_bytes)


def _pandas_columns(frame: Any) -> dict[Any, Any]:
    named = [name for name in frame.index.names if name is not None]
    if named:
        raise SchemaError(
            f"the frame's index is named {named[0]!r}, and an index is not written; "
            "reset_index() makes it a column, reset_index(drop=True) leaves it out"
        )
    _refuse_repeated(list(frame.columns))
    return dict(frame.items())


def _refuse_repeated(names: list[Any]) -> None:
    seen = set()
    for name in names:
        if name in seen:
            raise SchemaError(f"column {name!r}: there are two of this name; rename one of them")
        seen.add(name)


def _of_rows(rows: Sequence[Any], piece_bytes: int) -> Iterator[dict[str, Any]]:
    step = max(1, int(piece_bytes / max(1.0, row_bytes(rows))))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        names: dict[str, None] = {}
        for place, row in enumerate(part, start):
            if not isinstance(row, Mapping):
                raise SchemaError(f"item {place} of the list is {type(row).__name__}, not a dict of one row; {_FORMS}")
            names.update(dict.fromkeys(row))
        yield from _of_mapping({name: [row.get(name) for row in part] for name in names}, 2**62)
