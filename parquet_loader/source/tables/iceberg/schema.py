"""Converts Iceberg's schemas and values to Arrow's, and maps field ids to columns of files."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from parquet_loader.errors import SourceError
from parquet_loader.schema import NOT_UNDERSTOOD_KEY, is_bytes
from parquet_loader.source.tables.names import ColumnName, Names

Entry: TypeAlias = dict[str, Any]

_PLAIN: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", "UTC"),
    "string": pa.string(),
    "uuid": pa.binary(16),
    "binary": pa.binary(),
    "unknown": pa.null(),
}
_KINDS: Mapping[str, Literal["struct", "list", "map"]] = {"StructType": "struct", "ListType": "list", "MapType": "map"}
# Delivered only if the caller's schema declares them, as the bytes in the files.
_WITHOUT_ARRAYS = ("geometry", "geography")


def arrow_schema_of(schema: Any, table: str) -> pa.Schema:
    """Return the columns of a `pyiceberg.schema.Schema`.

    Raises:
        SourceError: a type is not known.
    """
    return pa.schema([_field(field, table, field.name) for field in schema.fields])


def names_of(schema: Any, name_mapping: str | None, table: str) -> Names:
    """Return the names of a schema's columns, found in files by field id, or by name if a file has no ids.

    Args:
        schema: A `pyiceberg.schema.Schema`.
        name_mapping: The table's property ``schema.name-mapping.default``, which files without ids need.
        table: The table's name for messages.

    Raises:
        SourceError: the property cannot be read, or a part of a column has a default value.
    """
    entries = None if name_mapping is None else _entries_of(name_mapping, table)
    columns = tuple(_column_name(field, entries, table, field.name, is_top=True) for field in schema.fields)
    return Names(columns=columns, by_id=True, names_without_ids=entries is not None)


def promotes(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether the format allows a column's type `wanted` if a file has the type `stored`.

    Files of other programs that were added to a table may also hold narrower integers, timestamps in other units or
    without a time zone, and text without the annotation of text.
    """
    t = pa.types
    if t.is_null(stored):
        return True
    if t.is_integer(stored) and t.is_integer(wanted):
        return _holds(wanted, stored)
    if t.is_float32(stored):
        return bool(t.is_float64(wanted))
    if t.is_decimal(stored) and t.is_decimal(wanted):
        return bool(stored.scale == wanted.scale and stored.precision <= wanted.precision)
    if t.is_date32(stored):
        return bool(t.is_timestamp(wanted) and wanted.tz is None)
    if t.is_timestamp(stored) and t.is_timestamp(wanted):
        return True
    if t.is_time(stored) and t.is_time(wanted):
        return True
    return bool(is_bytes(stored) and t.is_string(wanted))


def _holds(wanted: pa.DataType, stored: pa.DataType) -> bool:
    is_signed = pa.types.is_signed_integer(stored)
    return bool(wanted.bit_width >= stored.bit_width if is_signed else wanted.bit_width > stored.bit_width)


def defaults_of(schema: Any, table: str) -> dict[str, pa.Scalar]:
    """Return the default values of columns, for files written before these were added, by name.

    Raises:
        SourceError: a default value cannot be read.
    """
    found: dict[str, pa.Scalar] = {}
    for field in schema.fields:
        if field.initial_default is not None:
            found[field.name] = _default(field, table)
    return found


def arrow_type(type_: Any, table: str, name: str) -> pa.DataType:
    """Return the Arrow type of an Iceberg type; strings and lists with 32-bit offsets, a UUID as 16 bytes.

    Raises:
        SourceError: the type is not known.
    """
    text = str(type_)
    plain = _PLAIN.get(text)
    if plain is not None:
        return plain
    kind = type(type_).__name__
    if kind == "DecimalType":
        return pa.decimal128(type_.precision, type_.scale)
    if kind == "FixedType":
        return pa.binary(len(type_))
    if kind == "StructType":
        return pa.struct([_field(field, table, f"{name}.{field.name}") for field in type_.fields])
    if kind == "ListType":
        return pa.list_(_field(type_.element_field, table, name))
    if kind == "MapType":
        return pa.map_(_field(type_.key_field, table, f"{name}.key"), _field(type_.value_field, table, f"{name}.value"))
    if text.startswith(_WITHOUT_ARRAYS):
        return pa.binary()
    raise SourceError(f"{table}: column {name!r} has the type {text}, which this library does not know")


def scalar_of(value: Any, stored: pa.DataType, logical: pa.DataType, table: str, name: str) -> pa.Scalar:
    """Return a value of a manifest's partition as a value of a column.

    Args:
        value: As it was read from the manifest: dates and times are numbers.
        stored: Its type in the manifest, which may be the column's former type.
        logical: The column's type.
        table, name: For messages.

    Raises:
        SourceError: the value does not fit.
    """
    if value is None:
        return pa.scalar(None, logical)
    is_date = pa.types.is_int32(stored) and pa.types.is_date32(logical)  # without its annotation
    try:
        return _typed(value, logical if is_date else stored).cast(logical)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SourceError(
            f"{table}: column {name!r}: the partition value {value!r} is not of the type {logical}: {error}"
        ) from error


def _typed(value: Any, type_: pa.DataType) -> pa.Scalar:
    if isinstance(value, int) and not isinstance(value, bool) and pa.types.is_temporal(type_):
        return pa.scalar(value, pa.int32() if type_.bit_width == 32 else pa.int64()).cast(type_)
    return pa.scalar(value, type_)


def _field(field: Any, table: str, name: str) -> pa.Field:
    marks = {}
    if str(field.field_type).startswith(_WITHOUT_ARRAYS):
        marks = {NOT_UNDERSTOOD_KEY: json.dumps({field.name: str(field.field_type)}).encode()}
    return pa.field(field.name, arrow_type(field.field_type, table, name), nullable=field.optional, metadata=marks)


def _column_name(field: Any, entries: list[Entry] | None, table: str, path: str, *, is_top: bool) -> ColumnName:
    if not is_top and field.initial_default is not None:
        raise SourceError(
            f"{table}: {path!r}, a part of a column, has a default value for files that lack it, which this library "
            "does not fill in; rewrite the table's files with an engine that does"
        )
    entry = None if entries is None else _entry_of(entries, field.field_id, table)
    inner = None if entries is None else list((entry or {}).get("fields") or ())
    return ColumnName(
        name=field.name,
        stored=tuple((entry or {}).get("names") or ()),
        field_id=field.field_id,
        kind=_KINDS.get(type(field.field_type).__name__, "leaf"),
        members=tuple(
            _column_name(child, inner, table, f"{path}.{child.name}", is_top=False)
            for child in _children(field.field_type)
        ),
    )


def _children(type_: Any) -> Sequence[Any]:
    kind = type(type_).__name__
    if kind == "StructType":
        return tuple(type_.fields)
    if kind == "ListType":
        return (type_.element_field,)
    if kind == "MapType":
        return type_.key_field, type_.value_field
    return ()


def _entries_of(text: str, table: str) -> list[Entry]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SourceError(f"{table}: the property schema.name-mapping.default is not JSON: {error}") from error
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise SourceError(f"{table}: the property schema.name-mapping.default is not a list of fields")
    return found


def _entry_of(entries: list[Entry], field_id: int, table: str) -> Entry | None:
    found = [entry for entry in entries if entry.get("field-id") == field_id]
    if len(found) > 1:
        raise SourceError(f"{table}: the property schema.name-mapping.default has the field id {field_id} twice")
    return found[0] if found else None


def _default(field: Any, table: str) -> pa.Scalar:
    type_ = arrow_type(field.field_type, table, field.name)
    value = field.initial_default
    if pa.types.is_nested(type_):
        raise SourceError(
            f"{table}: column {field.name!r}, of the type {type_}, has a default value, which this library does not "
            "fill in"
        )
    try:
        if isinstance(value, uuid.UUID):
            value = value.bytes
        elif isinstance(value, str) and not pa.types.is_string(type_):
            value = _parsed(value, type_)
        return pa.scalar(value, type_)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, decimal.InvalidOperation) as error:
        raise SourceError(
            f"{table}: column {field.name!r}: the default value {value!r} is not one of the type {type_}: {error}"
        ) from error


def _parsed(text: str, type_: pa.DataType) -> Any:
    """Parse the format's JSON text of a value."""
    if pa.types.is_decimal(type_):
        return decimal.Decimal(text)
    if pa.types.is_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return bytes.fromhex(text.replace("-", ""))
    if pa.types.is_date(type_):
        return dt.date.fromisoformat(text)
    if pa.types.is_time(type_):
        return dt.time.fromisoformat(text)
    return pa.scalar(text).cast(type_).as_py() if type_ != pa.timestamp("ns") else pa.scalar(text).cast(type_).value
