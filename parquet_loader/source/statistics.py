"""Turns the statistics of a column chunk into an Arrow expression that a filter is compared with.

Statistics that are damaged, contradict themselves or have no defined order are ignored.
"""

from __future__ import annotations

import decimal
import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.source.file_schema import Leaf, MetadataError
from parquet_loader.source.metadata import ColumnChunk, Metadata

_SIGNED = {"INT32": "<i", "INT64": "<q", "FLOAT": "<f", "DOUBLE": "<d"}
_UNSIGNED = {"INT32": "<I", "INT64": "<Q"}


def guarantees(footer: Metadata, row_group: int, names: Sequence[str], schema: pa.Schema) -> list[pc.Expression]:
    """Return an expression that is true for each row of a row group, by the statistics of these columns.

    Args:
        footer: The file's footer.
        row_group: The row group's number in the file.
        names: Columns; lists and structs are ignored.
        schema: The file's Arrow schema.
    """
    found: list[pc.Expression] = []
    for name in names:
        is_clear = footer.paths.count(name) == 1 and schema.names.count(name) == 1
        if is_clear and not pa.types.is_nested(schema.field(name).type):
            found += _guarantees(footer, row_group, footer.paths.index(name), schema.field(name))
    return found


def _guarantees(footer: Metadata, row_group: int, column: int, field: pa.Field) -> list[pc.Expression]:
    leaf, stored = footer.schema.leaves[column], footer.schema.stored.field(field.name).type
    try:
        chunk = footer.check(row_group, column)
    except MetadataError:
        return []
    name, nulls = pc.field(field.name), footer.null_count(row_group, column)
    if chunk.values and nulls == chunk.values and leaf.max_definition_level:
        return [name.is_null()]
    bounds = bounds_of(footer, chunk, leaf, stored)
    if bounds is None:
        return []
    try:
        low, high = _array(bounds, stored).cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, OverflowError, TypeError):
        return []
    # 0.0 and -0.0 are equal, but `is_in` tells them apart, so equal bounds of floats do not make a constant.
    is_constant = low.equals(high) and not pa.types.is_floating(low.type)
    limits = [name == low] if is_constant else [name >= low, name <= high]
    may_be_null = nulls != 0 and leaf.max_definition_level
    return [limit | name.is_null() for limit in limits] if may_be_null else limits


def bounds_of(footer: Metadata, chunk: ColumnChunk, leaf: Leaf, stored: pa.DataType) -> tuple[Any, Any] | None:
    """Return the smallest and the largest value; None if they are missing or invalid."""
    raw = footer.raw
    places: tuple[int, ...] = chunk[10:14]
    is_signed = leaf.physical_type in _SIGNED and not pa.types.is_unsigned_integer(stored)
    if not is_signed and not footer.has_type_order:
        return None  # old writers used different orders for these types
    if is_signed and places[1] < 0 and places[3] < 0:
        places = chunk[14:18]  # the deprecated fields
    if places[1] < 0 or places[3] < 0:
        return None
    low = _value(raw[places[0] : places[0] + places[1]], leaf, stored, signed=is_signed)
    high = _value(raw[places[2] : places[2] + places[3]], leaf, stored, signed=is_signed)
    return (low, high) if low is not None and high is not None and low <= high else None  # also None for NaN


def _value(raw: bytes, leaf: Leaf, stored: pa.DataType, *, signed: bool) -> Any:
    """Return a value of the statistics; None if it is damaged, or its type has no order."""
    form = (_SIGNED if signed else _UNSIGNED).get(leaf.physical_type)
    if form is not None:
        return struct.unpack(form, raw)[0] if struct.calcsize(form) == len(raw) else None
    if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" and len(raw) != leaf.length:
        return None
    if leaf.physical_type not in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"):
        return None
    if pa.types.is_decimal(stored):
        return int.from_bytes(raw, "big", signed=True) if raw else None
    kinds = pa.types
    has_order = kinds.is_string(stored) or kinds.is_binary(stored) or kinds.is_fixed_size_binary(stored)
    return raw if has_order else None


def _array(values: tuple[Any, Any], stored: pa.DataType) -> pa.Array:
    """Return two values as an array of their stored type. Raises as `pyarrow.array`."""
    if pa.types.is_decimal(stored):
        with decimal.localcontext(prec=stored.precision + abs(stored.scale) + 40):
            return pa.array([decimal.Decimal(value).scaleb(-stored.scale) for value in values], stored)
    if pa.types.is_string(stored):
        return pa.array([value.decode() for value in values], stored)
    if pa.types.is_temporal(stored):
        return pa.array(values, pa.int32() if stored.bit_width == 32 else pa.int64()).cast(stored)
    return pa.array(values, stored)
