"""Replacements for features that older versions of pyarrow and numpy lack; tries a feature, never compares versions.

pyarrow 20, the oldest supported version, lacks float16 in some functions, sizes of view arrays, and UUIDs; this module
replaces them. Features without a replacement raise: pyarrow 20 cannot write views or 32-bit decimals, and pyarrow
before 26 cannot read fixed-size lists with nulls.
"""

from __future__ import annotations

import io
import math
import uuid
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_WORDS = 2**64
_INTEGERS = pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()
_NUMBERS = {**{type_: str(type_) for type_ in _INTEGERS}, pa.float32(): "float32", pa.float64(): "float64"}


def scalar(value: Any, type_: pa.DataType | None = None) -> pa.Scalar:
    """Return `pyarrow.scalar(value, type_)`; pyarrow 20 makes a float16 only from numpy's.

    pyarrow's own function imports pandas if it is installed, which takes 0.3 s. Values of other types, and numbers that
    do not fit, are left to it.
    """
    if type_ is None:
        return pa.scalar(value)
    if value is None:
        return pa.nulls(1, type_)[0]
    if pa.types.is_float16(type_):
        value = np.float16(value)
    if pa.types.is_string(type_) and type(value) is str:
        return text_array([value])[0]
    if pa.types.is_large_binary(type_) and type(value) is bytes:
        buffers = [pa.py_buffer(np.array([0, len(value)], np.int64)), pa.py_buffer(value)]
    elif type_ in _NUMBERS and type(value) in (int, float):
        is_nan = pa.types.is_floating(type_) and math.isnan(value)
        number = np.asarray([value]).astype(_NUMBERS[type_]) if is_nan or abs(value) < _WORDS else None
        if number is None or (number[0] != value and not is_nan):
            return pa.scalar(value, type_)
        buffers = [pa.py_buffer(number)]
    else:
        return pa.scalar(value, type_)
    return pa.Array.from_buffers(type_, 1, [None, *buffers])[0]


def text_array(texts: Sequence[str | None]) -> pa.Array:
    """Return `pyarrow.array(texts, pyarrow.string())`; does not import pandas."""
    encoded = [b"" if text is None else text.encode() for text in texts]
    offsets = pa.py_buffer(np.cumsum([0, *map(len, encoded)], dtype=np.int64))
    valid = from_numpy(np.array([text is not None for text in texts], np.bool_)).buffers()[1]
    buffers = [valid, offsets, pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.large_string(), len(texts), buffers).cast(pa.string())


def from_numpy(values: np.ndarray[Any, Any]) -> pa.Array:
    """Return `pyarrow.array(values)` of an array ``[n]``; does not import pandas if it holds numbers or booleans."""
    if values.dtype.kind == "b":
        bits = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])
    if values.dtype.kind not in "iuf" or values.dtype.itemsize > 8 or not values.dtype.isnative:
        return pa.array(values)
    data = pa.py_buffer(np.require(values, requirements=["C", "A"]))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, data])


def fill_null(array: Any, value: Any) -> Any:
    """Replace the nulls of an array or chunked array by a number; pyarrow 20 cannot do so for float16."""
    if not pa.types.is_float16(array.type):
        return pc.fill_null(array, scalar(value, array.type))
    bits = scalar(int(np.float16(value).view(np.int16)), pa.int16())
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array([_filled_halves(chunk, bits) for chunk in array.chunks], array.type)
    return _filled_halves(array, bits)


def _filled_halves(array: pa.Array, bits: pa.Scalar) -> pa.Array:
    return pc.fill_null(array.view(pa.int16()), bits).view(pa.float16())


def referenced_bytes(data: Any) -> int:
    """Return `data.nbytes` of an array or table; with views, pyarrow before 24 can only count whole buffers."""
    try:
        return int(data.nbytes)
    except pa.ArrowException:
        return int(data.get_total_buffer_size())


def inferred_array(values: list[Any]) -> pa.Array:
    """Return `pyarrow.array(values)`; pyarrow before 24 cannot infer the type of UUIDs."""
    try:
        return pa.array(values)
    except pa.ArrowException:
        if not any(isinstance(value, uuid.UUID) for value in values):
            raise
        if not all(value is None or isinstance(value, uuid.UUID) for value in values):
            raise
        return pa.array([None if value is None else value.bytes for value in values], pa.binary(16))


@cache
def reads_null_fixed_size_lists() -> bool:
    """Whether pyarrow reads fixed-size lists with nulls; before version 26 it reports them as damaged."""
    rows = pa.array([[1], None], pa.list_(pa.int8(), 1))
    file = io.BytesIO()
    try:
        pq.write_table(pa.table({"x": rows}), file)
        return bool(pq.ParquetFile(file).read().column(0).null_count == 1)
    except pa.ArrowException:
        return False


def words(*numbers: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return integers as uint64.

    Raises:
        OverflowError: one is negative or too large; numpy 1.26 would wrap the negative ones.
    """
    for number in numbers:
        if not 0 <= number < _WORDS:
            raise OverflowError(f"{number} is not within 0 and 2**64 - 1")
    return np.array(numbers, dtype=np.uint64)
