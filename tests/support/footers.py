"""Footers that lie: Parquet's metadata decoded from Thrift's compact protocol, altered, and written back.

A struct is a dict of field id to ``(type, value)``, a list is ``[element type, value, ...]``. Field ids are those of
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from parquet_loader.source.metadata import Metadata

MAGIC = b"PAR1"
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

ThriftStruct: TypeAlias = dict[int, tuple[int, Any]]


def split(data: bytes) -> tuple[bytes, bytes]:
    """A file's bytes before its footer, and the footer."""
    assert data[-4:] == MAGIC
    (length,) = struct.unpack("<I", data[-8:-4])
    return data[: -8 - length], data[-8 - length : -8]


def join(body: bytes, footer: bytes) -> bytes:
    return body + footer + struct.pack("<I", len(footer)) + MAGIC


def metadata_of(path: Path | str) -> Metadata:
    """The footer of a local file, parsed as the library does."""
    with open(path, "rb") as source:
        return metadata_in(source.read())


def metadata_in(data: bytes) -> Metadata:
    """The footer of a file's bytes, parsed as the library does."""
    return Metadata(data[-8 - len(split(data)[1]) :], len(data))


def rewrite_footer(file: str, change: Callable[[ThriftStruct], None]) -> None:
    """Apply `change` to the decoded `FileMetaData` of a file, in place."""
    with open(file, "rb") as source:
        body, footer = split(source.read())
    decoded = decode(footer)
    change(decoded)
    with open(file, "wb") as target:
        target.write(join(body, encode(decoded)))


def decode(footer: bytes) -> ThriftStruct:
    """A footer's `FileMetaData`."""
    decoded, end = _read_struct(footer, 0)
    assert end == len(footer)
    assert encode(decoded) == footer
    return decoded


def encode(decoded: ThriftStruct) -> bytes:
    """The footer of a `FileMetaData`."""
    return _write_struct(decoded)


def row_group(footer: ThriftStruct, number: int) -> ThriftStruct:
    found: ThriftStruct = footer[4][1][1 + number]
    return found


def column_chunk(footer: ThriftStruct, number: int, column: int) -> ThriftStruct:
    """`ColumnMetaData` of one column in one row group."""
    found: ThriftStruct = row_group(footer, number)[1][1][1 + column][3][1]
    return found


def put(fields: ThriftStruct, field: int, value: int) -> None:
    fields[field] = (fields[field][0], value)


# ---- the compact protocol ------------------------------------------------------------------------------------------


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _write_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_value(data: bytes, at: int, type_: int) -> tuple[Any, int]:
    match type_:
        case 1 | 2:
            return type_ == TRUE, at
        case 3:
            return data[at], at + 1
        case 4 | 5 | 6:
            raw, at = _read_varint(data, at)
            return raw >> 1 ^ -(raw & 1), at
        case 7:
            return data[at : at + 8], at + 8
        case 8:
            size, at = _read_varint(data, at)
            return data[at : at + size], at + size
        case 9 | 10:
            size, element, at = data[at] >> 4, data[at] & 15, at + 1
            if size == 15:
                size, at = _read_varint(data, at)
            items: list[Any] = [element]
            for _ in range(size):
                item, at = (data[at], at + 1) if element in {TRUE, FALSE} else _read_value(data, at, element)
                items.append(item)
            return items, at
        case 12:
            return _read_struct(data, at)
    raise ValueError(f"Parquet's footers hold no Thrift type {type_}")


def _read_struct(data: bytes, at: int) -> tuple[ThriftStruct, int]:
    fields: ThriftStruct = {}
    field = 0
    while data[at]:
        delta, type_ = data[at] >> 4, data[at] & 15
        at += 1
        if delta:
            field += delta
        else:
            raw, at = _read_varint(data, at)
            field = raw >> 1 ^ -(raw & 1)
        value, at = _read_value(data, at, type_)
        fields[field] = (type_, value)
    return fields, at + 1


def _write_value(type_: int, value: Any) -> bytes:
    match type_:
        case 1 | 2:
            return b""
        case 3:
            return bytes([value])
        case 4 | 5 | 6:
            return _write_varint((value << 1 ^ value >> 63) & (1 << 64) - 1)
        case 7:
            return bytes(value)
        case 8:
            return _write_varint(len(value)) + bytes(value)
        case 9 | 10:
            element, items = value[0], value[1:]
            size = len(items)
            head = bytes([size << 4 | element]) if size < 15 else bytes([15 << 4 | element]) + _write_varint(size)
            return head + b"".join(
                bytes([item]) if element in {TRUE, FALSE} else _write_value(element, item) for item in items
            )
    return _write_struct(value)


def _write_struct(fields: ThriftStruct) -> bytes:
    out, last = bytearray(), 0
    for field, (type_, value) in fields.items():
        delta = field - last
        head = bytes([delta << 4 | type_]) if 0 < delta < 16 else bytes([type_]) + _write_varint(field << 1)
        out += head + _write_value(type_, value)
        last = field
    return bytes(out) + b"\0"
