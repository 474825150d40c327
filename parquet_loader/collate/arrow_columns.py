"""Makes Arrow arrays of the columns of a batch; numbers, lists and text keep their memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from parquet_loader.errors import UnsupportedError
from parquet_loader.schema import Ragged


def arrow_array(column: Any, valid: Any = None) -> pa.Array:
    """Return a column of a batch as an Arrow array, which keeps the column's memory alive.

    Args:
        column: An array ``[rows, ...]``, which becomes numbers, or fixed-size lists for each further axis; a `Ragged`,
            which becomes strings, binary or lists, with 64-bit offsets; or a list of arrays of different shapes, which
            becomes structs of ``data`` (the values in C order) and ``shape``.
        valid: bool, False for nulls: ``[rows]``, or the shape of the array if each element may be null. None without
            nulls.

    Raises:
        UnsupportedError: Arrow has no type for these numbers.
    """
    if isinstance(column, Ragged):
        return _ragged(column, valid)
    if isinstance(column, list):
        return _shaped(column, valid)
    values = np.ascontiguousarray(column)
    by_element = valid is not None and valid.ndim == values.ndim
    made = _numbers(values.reshape(-1), valid.reshape(-1) if by_element else None)
    for axis in reversed(range(1, values.ndim)):
        rows, size = math.prod(values.shape[:axis]), values.shape[axis]
        nulls = _bitmap(valid) if axis == 1 and not by_element else None
        made = pa.Array.from_buffers(pa.list_(made.type, size), rows, [nulls], children=[made])
    return made


def _numbers(values: Any, valid: Any) -> pa.Array:
    if values.dtype == np.bool_:
        return pa.array(values, mask=None if valid is None else ~valid)
    try:
        type_ = pa.from_numpy_dtype(values.dtype)
    except pa.ArrowNotImplementedError:
        type_ = None
    if type_ is None or not pa.types.is_primitive(type_):
        raise UnsupportedError(
            f"holds {values.dtype}, which Arrow has no type for; return real numbers from transform, such as a column "
            "for each part"
        )
    return pa.Array.from_buffers(type_, len(values), [_bitmap(valid), pa.py_buffer(values)])


def _ragged(column: Ragged, valid: Any) -> pa.Array:
    offsets = pa.py_buffer(np.ascontiguousarray(column.offsets, np.int64))
    if column.kind == "list":
        inner = arrow_array(column.values)
        return pa.Array.from_buffers(
            pa.large_list(inner.type), len(column), [_bitmap(valid), offsets], children=[inner]
        )
    type_ = pa.large_string() if column.kind == "text" else pa.large_binary()
    values = pa.py_buffer(np.ascontiguousarray(column.values))
    made = pa.Array.from_buffers(type_, len(column), [_bitmap(valid), offsets, values])
    if column.kind == "text":
        made.validate(full=True)  # pandas and Polars trust Arrow's text to be UTF-8
    return made


def _shaped(arrays: list[Any], valid: Any) -> pa.Array:
    data = arrow_array(Ragged.from_list([np.asarray(array).reshape(-1) for array in arrays]))
    axes = {array.ndim for array in arrays}
    if len(axes) > 1:
        raise UnsupportedError(
            f"holds arrays of {' and '.join(map(str, sorted(axes)))} axes in one batch; return arrays with the "
            "same number of axes from transform"
        )
    shapes = arrow_array(np.array([array.shape for array in arrays], np.int32))
    fields = [pa.field("data", data.type), pa.field("shape", shapes.type)]
    return pa.Array.from_buffers(pa.struct(fields), len(arrays), [_bitmap(valid)], children=[data, shapes])


def _bitmap(valid: Any) -> pa.Buffer | None:
    """Return the bits of a mask; None if there are no nulls."""
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))
