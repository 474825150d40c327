"""Decodes columns of encoded arrays: the bytes of each row become numbers, raw rows, or lists of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.decode.array_formats import READERS, BlobProblem, header_length, npy_header
from parquet_loader.decode.columns import number_type
from parquet_loader.schema import Encoded


class ValueProblem(Exception):
    """A value that cannot be delivered.

    Attributes:
        row: Its row in the array, or None if the whole array is at fault.
        reason: The rest of the message: what was expected, what was found, what to do.
    """

    def __init__(self, row: int | None, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason

    def at(self, row: int | None, reason: str | None = None) -> ValueProblem:
        """Return the same problem at its row in the array that contains this one."""
        return type(self)(row, self.reason if reason is None else reason)


def unpack(array: pa.Array, field: Encoded) -> pa.Array:
    """Return one value for each row, null for nulls, in a type that the field's unpacked form takes.

    Args:
        array: Bytes, one chunk.
        field: An encoded field that has an unpacked form.

    Raises:
        ValueProblem: a row's bytes are not an array, or its shape or dtype is not the field's.
    """
    array = array.cast(pa.large_binary())
    if field.is_text:
        return _texts(array, field)
    if None in field.shape:
        return _lists(array, field)
    shape = tuple(n for n in field.shape if n is not None)
    rows = _raw_rows(array, field, shape)
    width = math.prod(shape) * field.dtype.itemsize
    validity, nulls = _validity(array)
    if not shape:
        return pa.Array.from_buffers(number_type(field.dtype), len(array), [validity, pa.py_buffer(rows)], nulls)
    return pa.Array.from_buffers(pa.binary(width), len(array), [validity, pa.py_buffer(rows)], nulls)


def read_array(data: bytes | memoryview, field: Encoded) -> npt.NDArray[Any]:
    """Return the array of one row.

    Raises:
        BlobProblem: the bytes are not an array, or its shape or dtype is not the field's.
    """
    array = READERS[field.encoding](data)
    if field.is_text:
        fits = array.dtype.kind == ("U" if pa.types.is_string(field.type) else "S") and array.ndim == len(field.shape)
    else:
        fits = array.dtype.newbyteorder("=") == field.dtype and matches(array.shape, tuple(field.shape))
    if not fits:
        raise BlobProblem(f"holds {array.dtype} of shape {array.shape}, expected {field.type} of {field.shape}")
    return array


def matches(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    """Whether a shape is the expected one; None stands for any length."""
    return len(shape) == len(expected) and all(b is None or a == b for a, b in zip(shape, expected, strict=True))


def _validity(array: pa.Array) -> tuple[pa.Buffer | None, int]:
    """Return the validity bitmap from the first row on (None without nulls), and the number of nulls."""
    if not array.null_count:
        return None, 0
    return pa.array(array.is_valid().to_numpy(zero_copy_only=False)).buffers()[1], array.null_count


def _blobs(array: pa.Array) -> Iterator[tuple[int, memoryview]]:
    """Yield the number and the bytes of each row that is not null."""
    offsets = _offsets(array)
    data = memoryview(array.buffers()[2] or b"")
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(valid).tolist():
        yield row, data[offsets[row] : offsets[row + 1]]


def _offsets(array: pa.Array) -> npt.NDArray[np.int64]:
    if not len(array):
        return np.zeros(1, np.int64)
    return np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, array.offset * 8)


def _read(row: int, data: memoryview, field: Encoded) -> npt.NDArray[Any]:
    try:
        return read_array(data, field)
    except BlobProblem as problem:
        raise ValueProblem(row, str(problem)) from None


def _raw_rows(array: pa.Array, field: Encoded, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return ``[rows, *shape]``, with zeros for nulls."""
    at_once = cut_at_once(array, field, shape) if field.encoding == "npy" else None
    if at_once is not None:
        return at_once
    rows = np.zeros((len(array), *shape), field.dtype)
    for row, data in _blobs(array):
        rows[row] = _read(row, data, field)
    return rows


def cut_at_once(array: pa.Array, field: Encoded, shape: tuple[int, ...]) -> npt.NDArray[Any] | None:
    """Return the values of all rows if they are in C order and all rows have the same header; else None."""
    rows = len(array)
    if not rows or array.null_count:
        return None
    offsets = _offsets(array)
    length = int(offsets[1] - offsets[0])
    if not length or (np.diff(offsets) != length).any():
        return None
    table = np.frombuffer(array.buffers()[2], np.uint8, rows * length, int(offsets[0])).reshape(rows, length)
    first = table[0].tobytes()
    try:
        begin = header_length(first)
        dtype, fortran, found, nbytes = npy_header(first, begin)
    except BlobProblem:
        return None
    if fortran or dtype != field.dtype or found != shape or length != begin + nbytes:
        return None
    if (table[:, :begin] != table[0, :begin]).any():
        return None
    return np.ascontiguousarray(table[:, begin:]).view(field.dtype)


def _lists(array: pa.Array, field: Encoded) -> pa.Array:
    """Return lists of numbers, or of raw rows if the shape has more than one length."""
    inner = tuple(n for n in field.shape[1:] if n is not None)
    lengths = np.zeros(len(array), np.int64)
    parts: list[npt.NDArray[Any]] = []
    for row, data in _blobs(array):
        part = _read(row, data, field)
        lengths[row] = len(part)
        if len(part):
            parts.append(part.astype(field.dtype, copy=False).reshape(len(part), -1))
    values = np.concatenate(parts) if parts else np.zeros((0, math.prod(inner)), field.dtype)
    type_ = pa.binary(math.prod(inner) * field.dtype.itemsize) if inner else number_type(field.dtype)
    flat = pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    mask = array.is_null() if array.null_count else None
    return pa.LargeListArray.from_arrays(pa.array(offsets), flat, mask=mask)


def _texts(array: pa.Array, field: Encoded) -> pa.Array:
    type_ = pa.large_string() if pa.types.is_string(field.type) else pa.large_binary()
    for _ in field.shape or (None,):
        type_ = pa.large_list(type_)
    rows: list[Any] = [None] * len(array)
    for row, data in _blobs(array):
        found = _read(row, data, field).tolist()
        rows[row] = found if field.shape else [found]
    try:
        return pa.array(rows, type_)
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        raise ValueProblem(0, f"holds text that is not UTF-8: {error}") from None
