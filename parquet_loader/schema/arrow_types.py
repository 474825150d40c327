"""Arrow types by name, and the numpy dtypes in which their values are delivered."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.common import from_numpy, scalar
from parquet_loader.errors import ConfigurationError

_DECIMALS = {
    "decimal": pa.decimal128,
    "decimal32": pa.decimal32,
    "decimal64": pa.decimal64,
    "decimal128": pa.decimal128,
    "decimal256": pa.decimal256,
}


def arrow_type_of(spec: str | pa.DataType | np.dtype[Any] | type) -> pa.DataType:
    """Resolve an Arrow type, a numpy or torch dtype, or a name such as ``"timestamp[us, tz=UTC]"``."""
    if isinstance(spec, pa.DataType):
        return spec
    if type(spec).__module__ == "torch" and type(spec).__name__ == "dtype":
        return arrow_type_of(str(spec).removeprefix("torch."))
    if isinstance(spec, str):
        text = spec.strip()
        if text in {"date32", "date64"}:
            return pa.date32() if text == "date32" else pa.date64()
        if text == "bool":
            return pa.bool_()
        if text.startswith("decimal") and text.endswith(")"):
            name, _, arguments = text[:-1].partition("(")
            make = _DECIMALS.get(name)
            try:
                numbers = [int(a) for a in arguments.split(",")]
                if make is not None:
                    return make(*numbers)
            except (ValueError, TypeError) as error:
                raise ConfigurationError(f"{spec!r} is not a decimal type: {error}") from None
        if text.startswith("timestamp[") and text.endswith("]"):
            unit, _, zone = text[len("timestamp[") : -1].partition(",")
            zone = zone.strip().removeprefix("tz=")
            return pa.timestamp(unit.strip(), tz=zone or None)
        try:
            return pa.type_for_alias(text)
        except ValueError:
            pass
    # numpy reads None as float64, and anything that has a dtype, such as a field or an array, as that dtype.
    if isinstance(spec, type) or not (spec is None or hasattr(spec, "dtype")):
        with suppress(TypeError, pa.ArrowNotImplementedError):
            return pa.from_numpy_dtype(np.dtype(spec))
    raise ConfigurationError(
        f"{spec!r} names no Arrow or numpy type; use a name such as 'float32', 'int64', 'bool', "
        "'timestamp[us]', 'date32' or 'decimal128(10, 2)'"
    )


_KINDS = {
    "b": pa.types.is_boolean,
    "i": pa.types.is_integer,
    "f": pa.types.is_floating,
    "d": pa.types.is_decimal,
    "D": pa.types.is_date,
    "M": pa.types.is_timestamp,
    "t": pa.types.is_time,
    "m": pa.types.is_duration,
}


def scalar_kind(type_: pa.DataType) -> str:
    """Return the kind of a scalar type as a letter of `_KINDS`; ``?`` for any other type."""
    return next((kind for kind, is_kind in _KINDS.items() if is_kind(type_)), "?")


def is_scalar_type(type_: pa.DataType) -> bool:
    """Whether one value of the type fits one element of a tensor."""
    return scalar_kind(type_) != "?"


def delivered_dtype(type_: pa.DataType) -> np.dtype[Any]:
    """Return the numpy dtype in which a scalar Arrow type is delivered: times as integers, decimals as float64."""
    t = pa.types
    if t.is_boolean(type_):
        return np.dtype(np.bool_)
    if t.is_integer(type_) or t.is_floating(type_):
        return np.dtype(type_name(type_))  # `to_pandas_dtype` of pyarrow before 26 imports pandas
    if t.is_decimal(type_):
        return np.dtype(np.float64)
    if t.is_date32(type_) or t.is_time32(type_):
        return np.dtype(np.int32)
    if t.is_date64(type_) or t.is_time64(type_) or t.is_timestamp(type_) or t.is_duration(type_):
        return np.dtype(np.int64)
    raise ConfigurationError(f"{type_} is not a scalar type")


_NUMPY_NAMES = {
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
    "date32[day]": "date32",
    "date64[ms]": "date64",
}


def type_name(type_: pa.DataType) -> str:
    """Return the name of a scalar type, such as ``"timestamp[us, tz=UTC]"``; `arrow_type_of` takes it back."""
    text = str(type_)
    return _NUMPY_NAMES.get(text, text)


def plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the type behind dictionaries, run-end encoding and extension types."""
    while True:
        if isinstance(type_, pa.BaseExtensionType):
            type_ = type_.storage_type
        elif pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
            type_ = type_.value_type
        else:
            return type_


def is_list_like(type_: pa.DataType) -> bool:
    """Whether a value of the type is a list, of fixed or varying length."""
    t = pa.types
    return bool(
        t.is_list(type_)
        or t.is_large_list(type_)
        or t.is_list_view(type_)
        or t.is_large_list_view(type_)
        or t.is_fixed_size_list(type_)
    )


def list_values(lists: pa.Array) -> pa.Array:
    """Return the values of lists. Arrow's `flatten` cannot make no values of a type with extension types inside."""
    return pa.nulls(0, lists.type.value_type) if lists.null_count == len(lists) else lists.flatten()


def empty_table(schema: pa.Schema) -> pa.Table:
    """Return a table without rows. Arrow's `empty_table` cannot make columns with extension types inside."""
    return pa.Table.from_arrays([pa.nulls(0, type_) for type_ in schema.types], schema=schema)


def is_text(type_: pa.DataType) -> bool:
    """Whether a value of the type is text."""
    t = pa.types
    return bool(t.is_string(type_) or t.is_large_string(type_) or t.is_string_view(type_))


def is_bytes(type_: pa.DataType) -> bool:
    """Whether a value of the type is bytes of any length."""
    t = pa.types
    return bool(t.is_binary(type_) or t.is_large_binary(type_) or t.is_binary_view(type_))


def is_element(type_: pa.DataType) -> bool:
    """Whether a tensor of fixed shape may have elements of the type."""
    return bool(pa.types.is_boolean(type_) or pa.types.is_integer(type_) or pa.types.is_floating(type_))


def decimals_to_float64(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return decimals as the nearest float64. Arrow's cast is off in the last bit for a third of all values."""
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array([decimals_to_float64(chunk) for chunk in array.chunks], pa.float64())
    divided = _divided(array)
    return pc.cast(pc.cast(array, pa.string()), pa.float64()) if divided is None else divided


def _divided(decimals: pa.Array) -> pa.Array | None:
    """Return decimals as float64 if a single division is correctly rounded; else None.

    It is if float64 holds both operands exactly: integers of up to 53 bits, and powers of ten up to 10**22.
    """
    type_, rows = decimals.type, len(decimals)
    if not pa.types.is_decimal128(type_) or not 0 <= type_.scale <= 22 or not rows:
        return None
    halves = np.frombuffer(decimals.buffers()[1], np.int64, 2 * rows, decimals.offset * 16).reshape(rows, 2)
    low, high = halves[:, 0], halves[:, 1]
    valid = pc.is_valid(decimals)
    if decimals.null_count:
        known = np.frombuffer(valid.cast(pa.uint8()).buffers()[1], np.bool_, rows)
        low, high = np.where(known, low, 0), np.where(known, high, 0)
    if (high != low >> 63).any() or (low > 2**53).any() or (low < -(2**53)).any():
        return None
    numbers = from_numpy(low / 10.0**type_.scale)
    return pc.if_else(valid, numbers, scalar(None, numbers.type)) if decimals.null_count else numbers


def stored_type(type_: pa.DataType) -> pa.DataType:
    """Return the scalar type as Parquet stores it: seconds become milliseconds, and date64 becomes date32."""
    if pa.types.is_timestamp(type_) and type_.unit == "s":
        return pa.timestamp("ms", tz=type_.tz)
    if pa.types.is_time32(type_):
        return pa.time32("ms")
    return pa.date32() if pa.types.is_date64(type_) else type_
