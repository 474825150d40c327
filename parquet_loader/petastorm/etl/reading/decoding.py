"""Decodes stored columns: into the values of rows, or the arrays of a batch."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.decode import cut_at_once, one_array, plain
from parquet_loader.petastorm.codecs import NdarrayCodec, ScalarCodec, is_number_type
from parquet_loader.petastorm.errors import DecodeFieldError
from parquet_loader.petastorm.unischema import Unischema, UnischemaField
from parquet_loader.schema import Encoded, is_list_like, is_text, object_array


def decode_columns(table: pa.Table, schema: Unischema, origin: str) -> dict[str, list[Any]]:
    """Return the decoded values of the schema's columns, a list for each column that the table holds.

    Raises:
        DecodeFieldError: a value cannot be decoded; names file, row group and field.
    """
    found = {}
    for name in table.column_names:
        if name in schema.fields:
            try:
                found[name] = decode_column(table.column(name), schema.fields[name])
            except Exception as error:
                raise DecodeFieldError(f"{origin}: decoding field {name!r} failed: {error}") from error
    return found


def decode_column(column: pa.ChunkedArray, field: UnischemaField) -> list[Any]:
    """Return the values of one column. As in pandas, nulls are NaN for floats, NaT for times, and None otherwise."""
    array = one_array(plain(column))
    if field.codec is not None and not isinstance(field.codec, ScalarCodec):
        return _decode_encoded(array, field)
    dtype: Any = field.numpy_dtype
    if is_list_like(array.type):
        values = array.to_pylist() if is_text(array.type.value_type) else None
        lists = values if values is not None else [None if v is None else v.values for v in array]
        return [None if v is None else _as_array(v, dtype) for v in lists]
    if dtype is Decimal:
        return [None if v is None else v if isinstance(v, Decimal) else Decimal(v) for v in array.to_pylist()]
    if not isinstance(dtype, type) or not issubclass(dtype, np.generic):
        return list(array.to_pylist())
    if issubclass(dtype, np.datetime64) and pa.types.is_temporal(array.type):
        values = list(array.to_numpy(zero_copy_only=False))
        if pa.types.is_date(array.type) and array.null_count:
            return [None if np.isnat(v) else v for v in values]
        return values
    has_numbers = not is_text(array.type) and not pa.types.is_decimal(array.type)
    has_gaps = array.null_count and not pa.types.is_floating(array.type)
    if np.dtype(dtype).kind in "biuf" and has_numbers and not has_gaps:
        return list(array.to_numpy(zero_copy_only=False).astype(dtype))
    return [None if v is None else dtype(v) for v in array.to_pylist()]


def _as_array(value: Any, dtype: Any) -> Any:
    array = value.to_numpy(zero_copy_only=False) if isinstance(value, pa.Array) else np.asarray(value)
    if isinstance(dtype, type) and issubclass(dtype, np.generic) and not issubclass(dtype, np.datetime64):
        return array.astype(dtype)
    return array


def _decode_encoded(array: pa.Array, field: UnischemaField) -> list[Any]:
    encoded = array.cast(pa.large_binary())
    if isinstance(field.codec, NdarrayCodec) and field.shape and all(field.shape) and not array.null_count:
        dtype = np.dtype(field.numpy_dtype)
        if dtype.kind in "biuf":
            shape = tuple(n for n in field.shape if n is not None)
            rows = cut_at_once(encoded, Encoded(dtype, shape), shape)
            if rows is not None:
                return list(rows.reshape(len(array), *shape))
    decode = field.codec.decode
    return [None if not value.is_valid else decode(field, value.as_buffer()) for value in encoded]


def batch_arrays(table: pa.Table, schema: Unischema, origin: str) -> dict[str, Any]:
    """Return each column as a numpy array; lists become a matrix.

    Raises:
        DecodeFieldError: lists differ in length; names file, row group and field.
    """
    return {
        name: _batch_array(table.column(name), schema.fields.get(name), f"{origin}, column {name!r}")
        for name in table.column_names
    }


def _batch_array(column: pa.ChunkedArray, field: UnischemaField | None, where: str) -> Any:
    column = plain(column)
    type_ = column.type
    if is_list_like(type_):
        return _matrix(column, field, where)
    if is_text(type_):
        values = column.to_pylist()
        return object_array(values) if column.null_count else np.array(values, np.str_)
    if pa.types.is_date(type_) or pa.types.is_decimal(type_):
        return object_array(column.to_pylist())
    if pa.types.is_boolean(type_) and column.null_count:
        return object_array(column.to_pylist())
    array = column.to_numpy()
    return array if array.flags.writeable else array.copy()


def _matrix(column: pa.ChunkedArray, field: UnischemaField | None, where: str) -> Any:
    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(lengths) > 1 or None in lengths:
        raise DecodeFieldError(
            f"{where}: the lists of a batch must have one length, and these have "
            f"{sorted(n for n in lengths if n is not None)}"
            f"{' and nulls' if None in lengths else ''}; make them equal with a TransformSpec, "
            "or read them as they are with parquet_loader.BatchedDataLoader"
        )
    values = pa.chunked_array([chunk.flatten() for chunk in column.chunks], column.type.value_type)
    flat = np.array(values.to_pylist(), np.str_) if is_text(values.type) else values.to_numpy()
    matrix = flat.reshape(len(column), lengths[0] if lengths else 0)
    if field is not None and len(field.shape) > 1:
        matrix = matrix.reshape(len(column), *field.shape)
    return matrix if matrix.flags.writeable else matrix.copy()


def decode_stored_row(row: dict[str, Any], schema: Unischema) -> dict[str, Any]:
    """Return a row that Spark has read, with the schema's fields decoded.

    Raises:
        DecodeFieldError: a value cannot be decoded; names the field.
    """
    found: dict[str, Any] = {}
    for name, value in row.items():
        field = schema.fields.get(name)
        if field is None:
            continue
        try:
            if value is None:
                found[name] = None
            elif field.codec is not None:
                found[name] = field.codec.decode(field, value)
            else:
                found[name] = field.numpy_dtype(value) if is_number_type(field.numpy_dtype) else value
        except Exception as error:
            raise DecodeFieldError(f"decoding field {name!r} failed: {error}") from error
    return found
