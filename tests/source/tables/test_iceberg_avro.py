"""The reader of Avro files returns the requested fields, and refuses damaged files without a crash."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from parquet_loader.source.tables.iceberg.avro import AvroError, arrow_type_of, fields_of, read_avro

_INNER = StructType(
    NestedField(11, "day", DateType(), required=False),
    NestedField(12, "price", DecimalType(9, 2), required=False),
    NestedField(13, "at", TimestampType(), required=False),
    NestedField(14, "since", TimestamptzType(), required=False),
)
_SCHEMA = Schema(
    NestedField(1, "text", StringType(), required=True),
    NestedField(2, "sizes", MapType(20, LongType(), 21, LongType(), value_required=True), required=False),
    NestedField(3, "bounds", MapType(22, LongType(), 23, StringType(), value_required=True), required=False),
    NestedField(4, "inner", _INNER, required=True),
    NestedField(5, "offsets", ListType(24, LongType(), element_required=True), required=False),
    NestedField(6, "flag", BooleanType(), required=True),
    NestedField(7, "small", FloatType(), required=True),
    NestedField(8, "large", DoubleType(), required=True),
    NestedField(9, "number", LongType(), required=False),
)


def _written(path: Path, rows: int, codec: str = "null") -> bytes:
    records = [
        Record(
            f"row {number} é",
            {key: -(2**key) for key in range(number % 40)},
            {key: "x" * key for key in range(3)},
            Record(number, Decimal(number).scaleb(-2), number * 10**9, None),
            list(range(number % 5)),
            number % 2 == 0,
            number / 2,
            number / 4,
            None if number % 3 else -(2**62) + number,
        )
        for number in range(rows)
    ]
    output = PyArrowFileIO().new_output(str(path))
    with AvroOutputFile[Any](output, _SCHEMA, "row", metadata={"avro.codec": codec}) as writer:
        writer.write_block(records[: rows // 2])
        writer.write_block(records[rows // 2 :])
    return path.read_bytes()


@pytest.mark.parametrize("codec", ["null", "deflate", "zstandard", "bzip2"])
def test_the_wanted_fields_are_read_and_others_skipped(tmp_path: Path, codec: str) -> None:
    file = read_avro(_written(tmp_path / "f.avro", 90, codec), {1: None, 4: {12: None, 11: None}, 9: None})
    assert file.records == [
        {
            1: f"row {number} é",
            4: {11: number, 12: Decimal(number).scaleb(-2)},
            9: None if number % 3 else -(2**62) + number,
        }
        for number in range(90)
    ]


def test_all_kinds_of_values_are_read(tmp_path: Path) -> None:
    wanted = {**dict.fromkeys((5, 6, 7, 8, 99)), 4: dict.fromkeys((13, 14))}
    record = read_avro(_written(tmp_path / "f.avro", 4), wanted).records[3]
    assert record == {4: {13: 3 * 10**9, 14: None}, 5: [0, 1, 2], 6: False, 7: 1.5, 8: 0.75}


def test_partition_fields_have_arrow_types(tmp_path: Path) -> None:
    schema = read_avro(_written(tmp_path / "f.avro", 1), {}).schema
    (inner,) = (field.schema for field in fields_of(schema) if field.field_id == 4)
    assert {field.field_id: arrow_type_of(field.schema) for field in fields_of(inner)} == {
        11: pa.date32(),
        12: pa.decimal128(9, 2),
        13: pa.timestamp("us"),
        14: pa.timestamp("us", "UTC"),
    }


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_damaged_file_is_an_error_or_still_has_records(tmp_path: Path, codec: str) -> None:
    whole = _written(tmp_path / "f.avro", 12, codec)
    chance = random.Random(3)
    refused = 0
    for _ in range(600):
        raw = bytearray(whole)
        at = chance.randrange(len(raw))
        kind = chance.random()
        if kind < 0.6:
            raw[at] = chance.randrange(256)
        elif kind < 0.8:
            raw[at:at] = chance.randbytes(chance.randrange(1, 9))
        else:
            del raw[at:]
        try:
            assert isinstance(read_avro(bytes(raw), {1: None, 4: None}).records, list)
        except AvroError:
            refused += 1
    assert refused > 200


def test_every_cut_of_a_file_but_between_blocks_is_refused(tmp_path: Path) -> None:
    whole = _written(tmp_path / "f.avro", 6)
    read = []
    for end in range(len(whole)):
        try:
            read.append(len(read_avro(whole[:end], {1: None}).records))
        except AvroError:
            continue
    assert read == [0, 3]


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "array", "items": "long"}, "not records"),
        ({"type": "record", "name": "r", "fields": [{"name": "a", "type": "what"}]}, "unknown type"),
        ({"type": "record", "name": "r", "fields": [{"name": "a", "type": "r"}]}, "nested"),
        ({"type": "record", "name": "r"}, "damaged"),
    ],
)
def test_a_schema_that_cannot_be_read_is_refused(schema: Any, says: str) -> None:
    text = json.dumps(schema).encode()
    header = b"Obj\x01\x02\x16avro.schema" + _long(len(text)) + text + b"\x00" + bytes(16)
    with pytest.raises(AvroError, match=says):
        read_avro(header, {1: None})


def test_an_unknown_codec_is_named() -> None:
    text = b'{"type": "record", "name": "r", "fields": []}'
    header = b"Obj\x01\x04\x16avro.schema" + _long(len(text)) + text + b"\x14avro.codec\x06zip\x00" + bytes(16)
    with pytest.raises(AvroError, match="'zip'"):
        read_avro(header, {})


def _long(number: int) -> bytes:
    number, made = number << 1, b""
    while number >= 128:
        made += bytes([number & 127 | 128])
        number >>= 7
    return made + bytes([number])
