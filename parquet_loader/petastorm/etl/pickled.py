"""Writes metadata as the pickles that Petastorm reads: opcode by opcode, with the names of its classes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from parquet_loader.errors import UnsupportedError
from parquet_loader.petastorm.codecs import CompressedImageCodec, ScalarCodec
from parquet_loader.petastorm.etl.rowgroup_indexers import FieldNotNullIndexer
from parquet_loader.petastorm.unischema import Unischema, UnischemaField, dtype_name
from parquet_loader.source import SparkType

_KNOWN_CODECS = ("ScalarCodec", "NdarrayCodec", "CompressedNdarrayCodec", "CompressedImageCodec")
_AT_ONCE = 1000


def dump_unischema(schema: Unischema) -> bytes:
    """Return a Unischema as a pickle of protocol 2.

    Raises:
        UnsupportedError: Petastorm does not know the codec or type of a field.
    """
    fields = {name: _Raw(_field(field)) for name, field in schema.fields.items()}
    named = _call("collections", "OrderedDict", b")") + _pairs(fields)
    state: dict[str, Any] = {"_name": schema._name, "_fields": _Raw(named), **fields}
    return b"\x80\x02" + _object("petastorm.unischema", "Unischema", state) + b"."


def dump_indexes(indexers: Mapping[str, Any]) -> bytes:
    """Return indexers by name as a pickle of protocol 2."""
    made = {}
    for name, indexer in indexers.items():
        data = indexer._index_data
        if isinstance(indexer, FieldNotNullIndexer):
            content = _set(data)
        else:
            body = _in_parts([_value(key) + _set(value) for key, value in data.items()], b"u")
            content = _call("collections", "defaultdict", _global("__builtin__", "set") + b"\x85") + body
        state = {"_index_name": name, "_column_name": indexer.column_names[0], "_index_data": _Raw(content)}
        made[name] = _Raw(_object("petastorm.etl.rowgroup_indexers", type(indexer).__name__, state))
    return b"\x80\x02}" + _pairs(made) + b"."


class _Raw(bytes):
    """Opcodes of a value."""


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode("ascii")


def _call(module: str, name: str, arguments: bytes) -> bytes:
    return _global(module, name) + arguments + b"R"


def _object(module: str, name: str, state: Mapping[str, Any]) -> bytes:
    made = _global(module, name) + b")\x81"
    return made + (b"}" + _pairs(state) + b"b" if state else b"")


def _pairs(values: Mapping[Any, Any]) -> bytes:
    return _in_parts([_value(key) + _value(value) for key, value in values.items()], b"u")


def _in_parts(items: list[bytes], opcode: bytes) -> bytes:
    """Return opcodes that add items to the value below them on the stack, no more at once than pickle adds."""
    parts = [items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE)]
    return b"".join(b"(" + b"".join(part) + opcode for part in parts)


def _set(numbers: Any) -> bytes:
    items = _in_parts([_value(int(n)) for n in sorted(numbers)], b"e")
    return _call("__builtin__", "set", b"]" + items + b"\x85")


def _value(value: Any) -> bytes:
    if isinstance(value, _Raw):
        return bytes(value)
    if isinstance(value, np.generic):
        value = value.item()
    match value:
        case None:
            return b"N"
        case bool():
            return b"\x88" if value else b"\x89"
        case int():
            if -(2**31) <= value < 2**31:
                return b"J" + struct.pack("<i", value)
            raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            return b"\x8a" + bytes([len(raw)]) + raw
        case float():
            return b"G" + struct.pack(">d", value)
        case str():
            raw = value.encode("utf-8", "surrogatepass")
            return b"X" + struct.pack("<I", len(raw)) + raw
        case Decimal():
            return _call("decimal", "Decimal", _value(str(value)) + b"\x85")
        case tuple():
            return b"(" + b"".join(map(_value, value)) + b"t"
    raise UnsupportedError(f"Petastorm's metadata cannot hold a {type(value).__name__}: {value!r:.60}")


def _field(field: UnischemaField) -> bytes:
    name = dtype_name(field.numpy_dtype)
    # All numpy versions have `bool_`.
    dtype = (
        _global("decimal", "Decimal") if name == "Decimal" else _global("numpy", "bool_" if name == "bool" else name)
    )
    parts = _value(field.name) + dtype + _value(tuple(field.shape)) + _codec(field) + _value(bool(field.nullable))
    return _global("petastorm.unischema", "UnischemaField") + b"(" + parts + b"t\x81"


def _codec(field: UnischemaField) -> bytes:
    codec = field.codec
    if codec is None:
        return b"N"
    kind = type(codec).__name__
    if kind not in _KNOWN_CODECS:
        raise UnsupportedError(f"field {field.name!r}: Petastorm has no codec {kind}")
    state: dict[str, Any] = {}
    if isinstance(codec, ScalarCodec):
        state["_spark_type"] = _Raw(_spark_type(codec._spark_type))
    elif isinstance(codec, CompressedImageCodec):
        state |= {"_image_codec": codec._image_codec, "_quality": codec._quality}
    return _object("petastorm.codecs", kind, state)


def _spark_type(type_: Any) -> bytes:
    name = type_.name if isinstance(type_, SparkType) else type(type_).__name__
    state: dict[str, Any] = {}
    if name == "DecimalType":
        state = {"precision": type_.precision, "scale": type_.scale, "hasPrecisionInfo": True}
    return _object("pyspark.sql.types", name, state)
