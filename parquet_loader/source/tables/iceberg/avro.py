"""Reads selected fields of Avro files by Iceberg's field ids.

Manifests are untrusted input. `pyiceberg` decodes them in compiled code without bounds checks, so a damaged one may
crash the process. Here a damaged file raises `AvroError`. Dates and times are read as numbers.
"""

from __future__ import annotations

import decimal
import importlib
import json
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

T = TypeVar("T")
_Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
_Skip: TypeAlias = Callable[[bytes, int], int]
Wanted: TypeAlias = Mapping[int, Any]
"""The wanted fields of a record by field id: None for the whole value, or the wanted fields of a nested record."""

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_MOST_NESTED = 32
_MOST_BYTES = 2**31
_NUMBERS = ("int", "long")
_PARTS = ("record", "array", "map", "fixed", "enum")
_DAMAGE = (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, struct.error)
_DAMAGE_OF_CODECS = (zlib.error, OSError, EOFError, ImportError, pa.ArrowException)


class AvroError(ValueError):
    """An Avro file is damaged, or uses a feature that is not supported."""


class AvroField(NamedTuple):
    """A field of a record.

    Attributes:
        field_id: Its id, or -1.
        schema: Its Avro schema; for a nullable field, the branch of the union that is not null.
    """

    field_id: int
    schema: Any


class AvroFile(NamedTuple):
    """The records of an Avro file.

    Attributes:
        records: The wanted values by field id, without fields that the file lacks.
        schema: The schema of the records.
        about: The header's other entries.
    """

    records: list[dict[int, Any]]
    schema: Any
    about: dict[str, bytes]


def read_avro(raw: bytes, wanted: Wanted) -> AvroFile:
    """Return the records of a file.

    Raises:
        AvroError: it is damaged, or uses a feature that is not supported.
    """
    try:
        return _file(raw, wanted)
    except AvroError:
        raise
    except (*_DAMAGE, *_DAMAGE_OF_CODECS) as error:
        raise AvroError(f"it is damaged: {type(error).__name__}: {error}") from error


def fields_of(schema: Any) -> list[AvroField]:
    """Return the fields of a record."""
    return [AvroField(int(field.get("field-id", -1)), _present(field["type"])) for field in schema["fields"]]


def arrow_type_of(schema: Any) -> pa.DataType:
    """Return the Arrow type of values of a primitive schema.

    Raises:
        AvroError: it is not primitive.
    """
    kind, logical = (schema, None) if isinstance(schema, str) else (schema.get("type"), schema.get("logicalType"))
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if logical in ("timestamp-micros", "timestamp-nanos"):
        zone = "UTC" if schema.get("adjust-to-utc", True) else None
        return pa.timestamp("us" if logical == "timestamp-micros" else "ns", zone)
    if kind == "fixed":
        return pa.binary(schema["size"])
    found = _ARROW.get((kind, logical), _ARROW.get((kind, None)))
    if found is None:
        raise AvroError(f"the type {schema} is not one of a partition")
    return found


_ARROW = {
    ("int", None): pa.int32(),
    ("int", "date"): pa.date32(),
    ("long", None): pa.int64(),
    ("long", "time-micros"): pa.time64("us"),
    ("boolean", None): pa.bool_(),
    ("float", None): pa.float32(),
    ("double", None): pa.float64(),
    ("string", None): pa.string(),
    ("bytes", None): pa.binary(),
}


def _file(raw: bytes, wanted: Wanted) -> AvroFile:
    if raw[:4] != _MAGIC:
        raise AvroError("it does not begin like an Avro file")
    about, at = _map_reader(_read_bytes)(raw, 4)
    sync = _some(raw, at, _SYNC_BYTES)
    at += _SYNC_BYTES
    schema, read = _compiled(about["avro.schema"].decode(), _frozen(wanted))
    unpack = _codec(about.get("avro.codec", b"null").decode())
    records: list[dict[int, Any]] = []
    while at < len(raw):
        count, at = _read_long(raw, at)
        size, at = _read_long(raw, at)
        block = unpack(_some(raw, at, size))
        at += size
        if raw[at : at + _SYNC_BYTES] != sync:
            raise AvroError("a block does not end with the file's marker")
        at += _SYNC_BYTES
        if not 0 <= count <= len(block):
            raise AvroError(f"a block of {len(block)} bytes claims {count} records")
        inner = 0
        for _ in range(count):
            record, inner = read(block, inner)
            records.append(record)
        if inner != len(block):
            raise AvroError(f"{len(block) - inner} bytes of a block follow its records")
    return AvroFile(records, schema, about)


@lru_cache(64)
def _compiled(text: str, wanted: Any) -> tuple[Any, _Read]:
    """Return a schema and the function that reads its records; cached, because manifests of a table share a schema."""
    schema = json.loads(text)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise AvroError("its values are not records")
    return schema, _Compiler().reader(schema, wanted, 0)


def _frozen(wanted: Wanted) -> tuple[tuple[int, Any], ...]:
    return tuple((number, None if inner is None else _frozen(inner)) for number, inner in wanted.items())


class _Compiler:
    """Makes functions that read or skip values of a schema."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}

    def reader(self, schema: Any, wanted: Any, depth: int) -> _Read:
        """Return a function that reads a value; of a record only the wanted fields, or all with None."""
        schema, kind = self._resolved(schema, depth)
        if isinstance(schema, list):
            return _union([self.reader(branch, wanted, depth + 1) for branch in schema])
        if kind == "record":
            return self._record_reader(schema, wanted, depth)
        if kind == "array":
            return _array_reader(self.reader(schema["items"], None, depth + 1))
        if kind == "map":
            return _map_reader(self.reader(schema["values"], None, depth + 1))
        logical = schema.get("logicalType") if isinstance(schema, dict) else None
        if logical == "decimal":
            return _decimal_reader(self._plain_reader(schema, kind), int(schema.get("scale", 0)))
        return self._plain_reader(schema, kind)

    def skipper(self, schema: Any, depth: int) -> _Skip:
        """Return a function that returns the offset at which a value ends."""
        schema, kind = self._resolved(schema, depth)
        if isinstance(schema, list):
            return _union([self.skipper(branch, depth + 1) for branch in schema])
        if kind == "record":
            return _record_skipper([self.skipper(field["type"], depth + 1) for field in schema["fields"]])
        if kind == "array":
            return _blocks_skipper(self.skipper(schema["items"], depth + 1), self._numbers_in(schema["items"]))
        if kind == "map":
            return _blocks_skipper(_record_skipper([_skip_bytes, self.skipper(schema["values"], depth + 1)]), 0)
        if kind in (*_NUMBERS, "enum"):
            return _skip_long
        if kind in ("bytes", "string"):
            return _skip_bytes
        size = _size_of(schema, kind)
        return lambda raw, at: _checked(raw, at + size)

    def _resolved(self, schema: Any, depth: int) -> tuple[Any, str]:
        if depth > _MOST_NESTED:
            raise AvroError(f"its schema is nested more than {_MOST_NESTED} times")
        if isinstance(schema, str):
            schema = self._named.get(schema, schema)
        if isinstance(schema, list):
            return schema, "union"
        kind = schema if isinstance(schema, str) else schema["type"]
        if isinstance(kind, dict | list):
            return self._resolved(kind, depth + 1)
        if isinstance(schema, dict) and kind in _PARTS and "name" in schema:
            self._named[schema["name"]] = schema
        return schema, kind

    def _record_reader(self, schema: Any, wanted: Any, depth: int) -> _Read:
        chosen = None if wanted is None else dict(wanted)
        steps: list[tuple[int, _Read | None, _Skip | None]] = []
        for field in schema["fields"]:
            number = int(field.get("field-id", -1))
            if chosen is None or number in chosen:
                inner = None if chosen is None else chosen[number]
                steps.append((number, self.reader(field["type"], inner, depth + 1), None))
            else:
                steps.append((number, None, self.skipper(field["type"], depth + 1)))

        def read(raw: bytes, at: int) -> tuple[dict[int, Any], int]:
            found: dict[int, Any] = {}
            for number, reads, skips in steps:
                if reads is not None:
                    found[number], at = reads(raw, at)
                elif skips is not None:
                    at = skips(raw, at)
            return found, at

        return read

    def _numbers_in(self, items: Any) -> int:
        """Return how many varints an item of an array consists of; 0 if it has other parts."""
        items, kind = self._resolved(items, 0)
        if kind in _NUMBERS:
            return 1
        if kind != "record":
            return 0
        kinds = [self._resolved(field["type"], 0)[1] for field in items["fields"]]
        return len(kinds) if all(kind in _NUMBERS for kind in kinds) else 0

    @staticmethod
    def _plain_reader(schema: Any, kind: str) -> _Read:
        if kind in (*_NUMBERS, "enum"):
            return _read_long
        if kind == "string":
            return _read_text
        if kind == "bytes":
            return _read_bytes
        if kind == "null":
            return lambda _, at: (None, at)
        if kind == "boolean":
            return lambda raw, at: (_bool_of(raw[at]), at + 1)
        size = _size_of(schema, kind)
        if kind == "fixed":
            return lambda raw, at: (_some(raw, at, size), at + size)
        unpack = struct.Struct("<f" if kind == "float" else "<d").unpack_from
        return lambda raw, at: (unpack(raw, at)[0], at + size)


def _size_of(schema: Any, kind: str) -> int:
    if kind == "fixed":
        size = schema["size"]
        if not isinstance(size, int) or size < 0:
            raise AvroError(f"a fixed value has {size} bytes")
        return size
    sizes = {"null": 0, "boolean": 1, "float": 4, "double": 8}
    if kind not in sizes:
        raise AvroError(f"its schema has the unknown type {kind!r}")
    return sizes[kind]


def _present(schema: Any) -> Any:
    """Return the branch of a union that is not null."""
    if not isinstance(schema, list):
        return schema
    others = [branch for branch in schema if branch != "null"]
    return others[0] if others else "null"


def _checked(raw: bytes, end: int) -> int:
    if end > len(raw):
        raise AvroError(f"a value ends {end - len(raw)} bytes behind the data")
    return end


def _some(raw: bytes, at: int, size: int) -> bytes:
    if size < 0:
        raise AvroError(f"a value has {size} bytes")
    return raw[at : _checked(raw, at + size)]


def _bool_of(byte: int) -> bool:
    if byte > 1:
        raise AvroError(f"a value is true or false, not {byte}")
    return byte == 1


def _read_long(raw: bytes, at: int) -> tuple[int, int]:
    byte = raw[at]
    at += 1
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at
    found, shift = byte & 127, 7
    while byte >= 128:
        byte = raw[at]
        at += 1
        found |= (byte & 127) << shift
        shift += 7
        if shift > 70:
            raise AvroError("a number is longer than 10 bytes")
    return (found >> 1) ^ -(found & 1), at


def _skip_long(raw: bytes, at: int) -> int:
    while raw[at] >= 128:
        at += 1
    return at + 1


def _read_bytes(raw: bytes, at: int) -> tuple[bytes, int]:
    size, at = _read_long(raw, at)
    return _some(raw, at, size), at + size


def _read_text(raw: bytes, at: int) -> tuple[str, int]:
    size, at = _read_long(raw, at)
    return _some(raw, at, size).decode(), at + size


def _skip_bytes(raw: bytes, at: int) -> int:
    size, at = _read_long(raw, at)
    if size < 0:
        raise AvroError(f"a value has {size} bytes")
    return _checked(raw, at + size)


def _decimal_reader(read: _Read, scale: int) -> _Read:
    def read_decimal(raw: bytes, at: int) -> tuple[decimal.Decimal, int]:
        found, at = read(raw, at)
        number = decimal.Decimal(int.from_bytes(found, "big", signed=True))
        return number.scaleb(-scale, decimal.Context(prec=100)), at

    return read_decimal


def _union(branches: list[Callable[[bytes, int], T]]) -> Callable[[bytes, int], T]:
    """Return a function that reads or skips a value as the branch of its type does."""

    def chosen(raw: bytes, at: int) -> T:
        number, at = _read_long(raw, at)
        if not 0 <= number < len(branches):
            raise AvroError(f"a union of {len(branches)} types has no type {number}")
        return branches[number](raw, at)

    return chosen


def _record_skipper(fields: list[_Skip]) -> _Skip:
    def skip(raw: bytes, at: int) -> int:
        for field in fields:
            at = field(raw, at)
        return at

    return skip


def _block_size(raw: bytes, at: int) -> tuple[int, int, int | None]:
    """Return the number of items in a block of an array or map, their offset, and the block's size if it is stored."""
    count, at = _read_long(raw, at)
    size = None
    if count < 0:
        count = -count
        size, at = _read_long(raw, at)
        if size < 0:
            raise AvroError(f"a block has {size} bytes")
        _checked(raw, at + size)
    if count > len(raw) - at:
        raise AvroError(f"{len(raw) - at} bytes claim to be {count} items")
    return count, at, size


def _array_reader(read_item: _Read) -> _Read:
    def read(raw: bytes, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while True:
            count, at, _ = _block_size(raw, at)
            if not count:
                return found, at
            for _ in range(count):
                item, at = read_item(raw, at)
                found.append(item)

    return read


def _map_reader(read_value: _Read) -> _Read:
    def read(raw: bytes, at: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        while True:
            count, at, _ = _block_size(raw, at)
            if not count:
                return found, at
            for _ in range(count):
                name, at = _read_text(raw, at)
                found[name], at = read_value(raw, at)

    return read


def _blocks_skipper(skip_item: _Skip, numbers: int) -> _Skip:
    """Return a function that skips an array or a map.

    Args:
        skip_item: Skips one item.
        numbers: How many varints an item consists of; 0 if it has other parts.
    """

    def skip(raw: bytes, at: int) -> int:
        while True:
            count, at, size = _block_size(raw, at)
            if not count:
                return at
            if size is not None:
                at += size
            elif numbers and count * numbers <= 1000:
                match = _numbers(count * numbers).match(raw, at)
                if match is None:
                    raise AvroError("a number ends behind the data")
                at = match.end()
            else:
                for _ in range(count):
                    at = skip_item(raw, at)

    return skip


@lru_cache(256)
def _numbers(count: int) -> re.Pattern[bytes]:
    """Return a pattern of `count` varints: each ends with the first byte below 128."""
    return re.compile(rb"(?:[\x80-\xff]*+[\x00-\x7f]){%d}" % count, re.DOTALL)


def _codec(name: str) -> Callable[[bytes], bytes]:
    found = _CODECS.get(name)
    if found is None:
        raise AvroError(f"its codec is {name!r}; known are {', '.join(_CODECS)}")
    return found


def _inflated(block: bytes) -> bytes:
    inflater = zlib.decompressobj(-15)
    found = inflater.decompress(block, _MOST_BYTES)
    if inflater.unconsumed_tail or not inflater.eof:
        raise AvroError("a block ends early, or is longer than 2 GiB")
    return found


def _unsnapped(block: bytes) -> bytes:
    """Decompress a block of the codec "snappy", which ends with a checksum."""
    body, check = block[:-4], block[-4:]
    size = shift = 0
    for byte in body[:5]:
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if size > _MOST_BYTES:
        raise AvroError("a block is longer than 2 GiB")
    found: bytes = pa.Codec("snappy").decompress(body, decompressed_size=size, asbytes=True)
    if zlib.crc32(found) != int.from_bytes(check, "big"):
        raise AvroError("the checksum of a block does not match")
    return found


def _unzstd(block: bytes) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(block), "zstd") as stream:
        return bytes(stream.read())


def _unxz(block: bytes) -> bytes:
    lzma: Any = importlib.import_module("lzma")
    try:
        return bytes(lzma.decompress(block))
    except lzma.LZMAError as error:
        raise AvroError(f"a block is damaged: {error}") from error


_CODECS: Mapping[str, Callable[[bytes], bytes]] = {
    "null": lambda block: block,
    "deflate": _inflated,
    "snappy": _unsnapped,
    "zstandard": _unzstd,
    "bzip2": lambda block: bytes(importlib.import_module("bz2").decompress(block)),
    "xz": _unxz,
}
