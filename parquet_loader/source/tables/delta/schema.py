"""Reads a Delta table's schema: Arrow types, and the names and ids of columns in data files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from parquet_loader.errors import SourceError
from parquet_loader.source.tables.names import ColumnName, Names

_PRIMITIVES = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")
_TEXT = re.compile(r"(?:var)?char\(\d+\)")
_MODES = ("none", "name", "id")
_MOST_NESTED = 100


class DeltaSchema(NamedTuple):
    """A table's schema.

    Attributes:
        arrow: Its columns.
        names: Their names in files; None if they are the same.
        partitions: The name of each partition column in the log.
    """

    arrow: pa.Schema
    names: Names | None
    partitions: dict[str, str]


def read_schema(metadata: Mapping[str, Any], features: frozenset[str], root: str) -> DeltaSchema:
    """Return the schema in an action `metaData`.

    Args:
        metadata: The action.
        features: The features that readers must support.
        root: The table's name for messages.

    Raises:
        SourceError: it is damaged, or has a type that is not supported.
    """
    try:
        fields = json.loads(metadata["schemaString"])["fields"]
        mode = str((metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none")).lower()
        if mode not in _MODES:
            raise SourceError(f"{root}: the table maps columns by {mode!r}, which this library does not know")
        if mode != "none" and "columnMapping" not in features:
            raise SourceError(
                f"{root}: the table maps columns by {mode}, and its protocol does not say so; repair the log"
            )
        columns = [_field(field, mode, f"{root}, column {field['name']!r}", 0) for field in fields]
        names = [field.name for field, _ in columns]
        if len({name.casefold() for name in names}) < len(names):
            raise SourceError(f"{root}: two columns of the table have one name; the log is damaged")
        stored = {column.name: column.stored[0] for _, column in columns}
        partitions = {str(name): stored[name] for name in metadata.get("partitionColumns") or ()}
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(
            f"{root}: the table's schema cannot be read: {type(error).__name__}: {error}; the log is damaged"
        ) from error
    own = None if mode == "none" else Names(tuple(column for _, column in columns), by_id=mode == "id")
    return DeltaSchema(pa.schema([field for field, _ in columns]), own, partitions)


def _field(field: Mapping[str, Any], mode: str, where: str, depth: int) -> tuple[pa.Field, ColumnName]:
    name, about = str(field["name"]), field.get("metadata") or {}
    type_, kind, members = _type(field["type"], mode, where, depth)
    stored, field_id = name, None
    if mode != "none":
        stored = str(about["delta.columnMapping.physicalName"])
        field_id = int(about["delta.columnMapping.id"])
    arrow = pa.field(name, type_, nullable=bool(field.get("nullable", True)))
    return arrow, ColumnName(name, (stored,), field_id, kind, members)


def _type(described: Any, mode: str, where: str, depth: int) -> tuple[pa.DataType, Any, tuple[ColumnName, ...]]:
    if depth > _MOST_NESTED:
        raise SourceError(f"{where}: the type is nested more than {_MOST_NESTED} deep")
    if isinstance(described, str):
        return _primitive(described, where), "leaf", ()
    kind = described["type"]
    if kind == "struct":
        inner = [_field(f, mode, f"{where}, member {f['name']!r}", depth + 1) for f in described["fields"]]
        return pa.struct([field for field, _ in inner]), "struct", tuple(column for _, column in inner)
    if kind == "array":
        element, inner_kind, members = _type(described["elementType"], mode, where, depth + 1)
        nullable = bool(described.get("containsNull", True))
        part = ColumnName("element", ("element",), None, inner_kind, members)
        return pa.list_(pa.field("element", element, nullable)), "list", (part,)
    if kind == "map":
        key, key_kind, key_members = _type(described["keyType"], mode, where, depth + 1)
        item, item_kind, item_members = _type(described["valueType"], mode, where, depth + 1)
        parts = (
            ColumnName("key", ("key",), None, key_kind, key_members),
            ColumnName("value", ("value",), None, item_kind, item_members),
        )
        return pa.map_(key, item), "map", parts
    raise SourceError(
        f"{where}: the type {kind!r} is not read by this library; export the rows with a reader that knows it"
    )


def _primitive(text: str, where: str) -> pa.DataType:
    known = _PRIMITIVES.get(text)
    if known is not None:
        return known
    decimal = _DECIMAL.fullmatch(text)
    if decimal is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if text == "decimal":
        return pa.decimal128(10, 0)
    if _TEXT.fullmatch(text):
        return pa.string()
    raise SourceError(
        f"{where}: the type {text!r} is not read by this library; export the rows with a reader that knows it"
    )


def promotes(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a type in a file may be delivered as another in the table: only if that is lossless."""
    kinds = pa.types
    if kinds.is_timestamp(wanted):
        return bool(kinds.is_timestamp(stored) or (kinds.is_date32(stored) and wanted.tz is None))
    if kinds.is_integer(stored):
        bits = stored.bit_width
        if kinds.is_signed_integer(wanted):
            return bool(wanted.bit_width > bits or (wanted.bit_width == bits and kinds.is_signed_integer(stored)))
        if kinds.is_float64(wanted):
            return bool(bits <= 32)
        digits = {8: 3, 16: 5, 32: 10, 64: 20}[bits]
        return bool(kinds.is_decimal(wanted) and wanted.precision - wanted.scale >= digits)
    if kinds.is_floating(stored):
        return bool(kinds.is_floating(wanted) and wanted.bit_width > stored.bit_width)
    if kinds.is_decimal(stored) and kinds.is_decimal(wanted):
        grown = wanted.scale - stored.scale
        return bool(grown >= 0 and wanted.precision - stored.precision >= grown)
    return bool(kinds.is_fixed_size_binary(stored) and kinds.is_binary(wanted))
