"""Converts fixed-shape tensors, in any form that callers use, to their stored form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.common import fill_null, from_numpy
from parquet_loader.schema.arrow_types import is_bytes, is_list_like
from parquet_loader.schema.encode.inputs import Values, numbers_to_arrow, numpy_array, plain_storage
from parquet_loader.schema.encode.lossless import Misfit, cast, from_python
from parquet_loader.schema.fields import Tensor
from parquet_loader.schema.ragged import Ragged


def encode_tensor(field: Tensor, values: Values) -> pa.Array:
    """Return the column of `field.arrow_type` for rows given as one array ``[n, *shape]``, arrays, or Arrow lists."""
    if isinstance(values, pa.Array):
        if pa.types.is_fixed_size_binary(values.type) or is_bytes(values.type):
            return _from_raw(field, values)
        elements, valid = _from_arrow(field, values)
    elif isinstance(values, np.ndarray):
        if values.shape[1:] != field.shape:
            raise Misfit(f"the array has the shape {values.shape}, expected {(len(values), *field.shape)}")
        elements, valid = _cast_elements(field, values), None
    elif isinstance(values, Ragged):
        raise Misfit(f"the rows have varying lengths, expected the shape {field.shape}; a RaggedList holds such rows")
    else:
        elements, valid = _from_rows(field, values)
    return _store(field, np.ascontiguousarray(elements).reshape(-1, field.size), valid)


def tensor_of(field: Tensor, rows: int, number: float) -> pa.Array:
    """Return `rows` tensors filled with one number."""
    return _store(field, np.full((rows, field.size), number, dtype=field.dtype), None)


def _store(field: Tensor, elements: np.ndarray[Any, Any], valid: np.ndarray[Any, Any] | None) -> pa.Array:
    mask = None if valid is None else from_numpy(~valid)
    if field.storage == "list":
        flat = cast(from_numpy(elements.reshape(-1)), field.type)
        return pa.FixedSizeListArray.from_arrays(flat, type=field.arrow_type, mask=mask)
    bitmap = None if valid is None else from_numpy(valid).buffers()[1]
    return pa.Array.from_buffers(field.arrow_type, len(elements), [bitmap, pa.py_buffer(elements)])


def _cast_elements(field: Tensor, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array in the field's dtype; a misfit names the row and the index within it."""
    if values.dtype == field.dtype:
        return values
    flat = np.ascontiguousarray(values).reshape(-1)
    try:
        out = cast(numbers_to_arrow(flat), field.type)
    except Misfit as misfit:
        raise _within_row(misfit, values.shape[1:]) from None
    return out.to_numpy(zero_copy_only=False).reshape(values.shape)  # type: ignore[no-any-return]


def _within_row(misfit: Misfit, shape: tuple[int, ...]) -> Misfit:
    if misfit.row is None:
        return misfit
    row, element = divmod(misfit.row, math.prod(shape))
    index = ", ".join(str(int(i)) for i in np.unravel_index(element, shape))
    return Misfit(f"element [{index}]: {misfit.reason}", row)


def _from_rows(field: Tensor, rows: list[Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]:
    """Stack arrays or nested lists, one per row; None is a null row."""
    valid = np.array([row is not None for row in rows], dtype=bool)
    arrays: list[np.ndarray[Any, Any]] = []
    indexes: list[int] = []
    for index, row in enumerate(rows):
        if row is None:
            continue
        array = _row_array(field, row, index)
        if array.shape != field.shape:
            advice = _advice_on_shape(field, array.shape)
            raise Misfit(f"the tensor has the shape {array.shape}, expected {field.shape}{advice}", index)
        arrays.append(array)
        indexes.append(index)
    out = np.zeros((len(rows), *field.shape), dtype=field.dtype)
    if arrays and len({a.dtype for a in arrays}) == 1:
        try:
            out[indexes] = _cast_elements(field, np.stack(arrays))
        except Misfit as misfit:
            raise Misfit(misfit.reason, None if misfit.row is None else indexes[misfit.row]) from None
    else:
        for index, array in zip(indexes, arrays, strict=True):
            try:
                out[index] = _cast_elements(field, array[None])[0]
            except Misfit as misfit:
                raise Misfit(misfit.reason, index) from None
    return out, None if valid.all() else valid


def _advice_on_shape(field: Tensor, shape: tuple[int, ...]) -> str:
    """Return which field holds rows of both shapes."""
    if len(shape) != len(field.shape):
        return ""
    dtype = field.dtype.name
    if shape[1:] == field.shape[1:]:
        item = f"Tensor({dtype!r}, {shape[1:]})" if shape[1:] else repr(dtype)
        return f"; rows of several lengths need RaggedList({item}) in schema="
    lengths = tuple(a if a == b else None for a, b in zip(shape, field.shape, strict=True))
    return f"; rows of several shapes need Encoded({dtype!r}, {lengths}) in schema="


def _row_array(field: Tensor, row: Any, index: int) -> np.ndarray[Any, Any]:
    try:
        array = numpy_array(row)
    except (TypeError, ValueError, RuntimeError) as error:
        raise Misfit(f"the value is not an array of shape {field.shape} ({error})", index) from None
    if not hasattr(row, "dtype") and array.dtype.kind == "f" and (np.abs(array) >= _FIRST_INEXACT).any():
        array = np.array(row, dtype=object)  # numpy makes floats of large and mixed integers
    if array.dtype.kind == "O" and array.shape == field.shape:
        flat = from_python(array.reshape(-1).tolist())
        if flat.null_count and field.fill is not None:
            flat = fill_null(cast(flat, field.type), field.fill)
        if flat.null_count:
            raise Misfit(f"an element of the tensor is null, and {_NO_NULL_ELEMENTS}", index)
        return flat.to_numpy(zero_copy_only=False).reshape(field.shape)  # type: ignore[no-any-return]
    return array


_FIRST_INEXACT = 2.0**53
_NO_NULL_ELEMENTS = "only whole rows can be null; give fill=<value>, or replace it"


def _from_raw(field: Tensor, array: pa.Array) -> pa.Array:
    """Convert rows given as raw bytes, in the stored form of this schema's files."""
    lengths = pc.binary_length(array)
    wrong = pc.index(pc.not_equal(lengths, field.width_bytes), True).as_py()
    if wrong >= 0:
        raise Misfit(f"the value has {lengths[wrong]} bytes, expected {field.width_bytes}", wrong)
    if not pa.types.is_fixed_size_binary(array.type):
        array = pc.cast(pc.cast(array, pa.binary()), pa.binary(field.width_bytes))
    if field.storage == "raw":
        return array
    valid = None if array.null_count == 0 else array.is_valid().to_numpy(zero_copy_only=False)
    return _store(field, raw_elements(field, array).reshape(-1, field.size), valid)


def raw_elements(field: Tensor, array: pa.Array) -> np.ndarray[Any, Any]:
    """Return the elements of all rows of a raw column, ``[rows * size]``, sharing its memory."""
    count = len(array) * field.size
    if not count:
        return np.empty(0, field.dtype)
    return np.frombuffer(array.buffers()[1], field.dtype, count, array.offset * field.width_bytes)


def _from_arrow(field: Tensor, array: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]:
    """Convert lists: nested ones with the lengths of `shape`, or flat ones with all elements of a row."""
    if isinstance(array, pa.FixedShapeTensorArray):
        if array.null_count == 0:
            values = array.to_numpy_ndarray()
            if values.shape[1:] != field.shape:
                raise Misfit(f"the tensors have the shape {values.shape[1:]}, expected {field.shape}")
            return _cast_elements(field, values), None
        if array.type.permutation is not None:
            raise Misfit("null rows in a tensor column with a permutation; fill them first")
        array = array.storage
    rows = len(array)
    if pa.types.is_null(array.type):
        return np.zeros((rows, field.size), field.dtype), np.zeros(rows, bool)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    indexes = np.flatnonzero(valid)
    if not is_list_like(array.type):
        raise Misfit(f"the values are of type {array.type}, expected lists of the shape {field.shape}")
    expected = [math.prod(field.shape)] if not is_list_like(array.type.value_type) else list(field.shape)
    flat, stride = array, 1
    for depth, length in enumerate(expected):
        if not is_list_like(flat.type):
            raise Misfit(f"the lists are nested {depth} deep, expected {len(expected)} for the shape {field.shape}")
        flat = _unnest(flat, length, stride, indexes)
        stride *= length
    try:
        flat = cast(flat, field.type)
    except Misfit as misfit:
        misfit = _within_row(misfit, tuple(field.shape))
        raise Misfit(misfit.reason, None if misfit.row is None else int(indexes[misfit.row])) from None
    if flat.null_count and field.fill is not None:
        flat = fill_null(flat, field.fill)
    if flat.null_count:
        row = int(indexes[pc.index(flat.is_null(), True).as_py() // field.size])
        raise Misfit(f"an element of the tensor is null, and {_NO_NULL_ELEMENTS}", row)
    elements = flat.to_numpy(zero_copy_only=False).reshape(-1, field.size)
    if valid.all():
        return elements, None
    out = np.zeros((rows, field.size), field.dtype)
    out[indexes] = elements
    return out, valid


def _unnest(array: pa.Array, length: int, stride: int, indexes: np.ndarray[Any, Any]) -> pa.Array:
    """Return the items of lists of one `length`; `stride` lists belong to each row of `indexes`."""
    lengths = pc.list_value_length(array)
    if stride > 1 and array.null_count:
        row = int(indexes[pc.index(array.is_null(), True).as_py() // stride])
        raise Misfit(f"a list within the tensor is null, and {_NO_NULL_ELEMENTS}", row)
    wrong = pc.index(pc.not_equal(lengths, length), True).as_py()
    if wrong >= 0:
        row = wrong if stride == 1 else int(indexes[wrong // stride])
        raise Misfit(f"a list has {lengths[wrong]} items, expected {length}", row)
    return plain_storage(array.flatten())
