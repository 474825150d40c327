"""Parquet files of every kind that the kernels know, and changes to their pages, drawn from a seed."""

from __future__ import annotations

import itertools
import json
import math
import struct
import sys
import tempfile
import zlib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from parquet_loader import (
    BatchedDataLoader,
    Bytes,
    Category,
    DeltaSource,
    OutputOptions,
    ParquetLoaderError,
    Ragged,
    RaggedList,
    Scalar,
    Schema,
    Tensor,
    Text,
)
from parquet_loader.decode.converters import convert, validity
from parquet_loader.decode.encoded_columns import ValueProblem
from parquet_loader.schema import Field, policy_of
from parquet_loader.source.tables.deletes import roaring_bytes
from tests.support.page_rewriter import (
    CODEC,
    DICTIONARY,
    ENCODINGS,
    INT32,
    INT64,
    KIND,
    NULL_COUNT,
    PAGE_BYTES,
    PLAIN_BYTES,
    STATISTICS,
    STRUCT,
    V1,
    V2,
    VALUES,
    Chunk,
    Page,
    PagesOfFile,
    pages_of,
)

CODECS = {0: None, 1: "snappy", 2: "gzip", 6: "zstd", 7: "lz4_raw"}
ROWS = 150
WINDOW_ROWS = [128, 2 * ROWS]
NULL_TEXT = "none"
WORDS = ["", "ü", "hello", "hello world", "日本語", "help", "x" * 70, "hello wörld", "zebra"]
SIZES = [-1, 0, 1, 2, 7, 8, 9, 63, 64, 2**15, 2**31 - 1, -(2**31)]


class Kind(NamedTuple):
    """A table that is changed, and how it is written."""

    name: str
    table: pa.Table
    options: dict[str, Any]

    @property
    def schema(self) -> Schema:
        """Delivers NaN for the nulls of floats, and `NULL_TEXT` for those of bytes, as `arrows_values` does."""
        fields = Schema.from_arrow(flattened(self.table).schema)
        ragged = {}
        for stored in flattened(self.table).schema:
            name = stored.name.rpartition(".")[2]
            if name in ("full", "holes", "required"):
                item = Scalar(stored.type.value_type, fill=math.nan if name == "holes" else None)
                ragged[stored.name] = RaggedList(item, fill=None if name == "full" else ())
        lists = {name: Tensor("int32", (3,)) for name in ("fixed", "any") if name in fields}
        lists |= {"long": Tensor("int32", (70,))} if "long" in fields else {}
        nan = {
            n: Scalar(t.type, fill=math.nan) for n, t in fields.items() if isinstance(t, Scalar) and t.dtype.kind == "f"
        }
        texts = {n: Text(fill=NULL_TEXT) for n, t in fields.items() if isinstance(t, Text)}
        blobs = {n: Bytes(fill=NULL_TEXT.encode()) for n, t in fields.items() if isinstance(t, Bytes)}
        return Schema({**fields, **nan, **lists, **texts, **blobs, **ragged})

    @property
    def conversions(self) -> Schema:
        """Delivers numbers in other types, words as codes, and masks."""
        fields: dict[str, Field] = {}
        for stored in flattened(self.table).schema:
            if pa.types.is_floating(stored.type):
                fields[stored.name] = Scalar(
                    "float64" if stored.type.bit_width < 64 else "float32", null="mask", fill=-1
                )
            elif pa.types.is_integer(stored.type):
                fields[stored.name] = Scalar("float64" if stored.type.bit_width == 64 else "uint8", fill=7)
            elif pa.types.is_decimal(stored.type):
                fields[stored.name] = Scalar("float32", null="mask")
            elif pa.types.is_boolean(stored.type):
                fields[stored.name] = Scalar("bool", null="mask")
            elif stored.name in ("full", "required"):
                fields[stored.name] = RaggedList("float64")
            elif pa.types.is_string(stored.type):
                fields[stored.name] = Category(WORDS, "int16", null="mask", unknown=WORDS[1])
        return Schema(fields)


def tables() -> list[Kind]:
    """Small tables of several pages a column chunk."""
    rng = np.random.default_rng(0)
    few, runs = rng.integers(0, 9, ROWS), np.repeat(rng.integers(0, 40, ROWS // 10), 10)
    full = {"i32": pa.array(few, pa.int32()), "i8": pa.array(runs, pa.int8()), "f64": pa.array(few / 8)}
    full["bool"] = pa.array(few > 6)
    holes = pa.array([None if n % 11 == 5 else float(n % 7) for n in range(ROWS)], pa.float64())
    nulls = {"f64": holes, "f32": holes.cast(pa.float32())}
    spread = np.cumsum(rng.integers(-(2**40), 2**41, ROWS)) * (rng.random(ROWS) < 0.7)
    encoded = {"i16": full["i32"].cast(pa.int16()), "i64": pa.array(spread), "f32": holes.cast(pa.float32())}
    encoded |= {"i32": full["i32"], "bool": full["bool"], "f64": pa.array(rng.random(ROWS))}
    encodings = dict.fromkeys(("i16", "i64", "i32"), "DELTA_BINARY_PACKED") | {"bool": "RLE"}
    encodings |= dict.fromkeys(("f32", "f64"), "BYTE_STREAM_SPLIT")
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rng.integers(0, 9, 3 * ROWS), pa.int32()), 3)
    long = pa.FixedSizeListArray.from_arrays(pa.array(rng.integers(0, 9, 70 * ROWS), pa.int32()), 70)
    listed = {"fixed": lists, "any": lists.cast(pa.list_(pa.int32())), "long": long.cast(pa.list_(pa.int32()))}
    ragged = {"full": ragged_lists(rng, pa.int64(), 0, 0), "holes": ragged_lists(rng, pa.float32(), 0.1, 0.1)}
    required = pa.list_(pa.field("n", pa.int32(), nullable=False))
    ragged["required"] = ragged_lists(rng, pa.int32(), 0, 0.2).cast(required)
    of_ragged = {"full.list.element": "DELTA_BINARY_PACKED", "holes.list.element": "BYTE_STREAM_SPLIT"}
    decimals = {"d4": few_decimals(rng, pa.decimal128(9, 2), 0.1), "d8": few_decimals(rng, pa.decimal128(18, 4), 0)}
    decimals |= {
        "d16": few_decimals(rng, pa.decimal128(38, 6), 0),
        "long": few_decimals(rng, pa.decimal128(30, 25), 0.1),
    }
    reversed_words = [WORDS[n].encode()[::-1] for n in runs % 9]
    texts = {"text": pa.array([WORDS[n] for n in few]), "bytes": pa.array(reversed_words)}
    unsure = pa.array([None if n % 7 == 3 else WORDS[n % 9] + WORDS[n % 5] for n in range(ROWS)])
    texts |= {"unsure": unsure, "large": unsure.cast(pa.large_binary())}
    long_texts = {name: pc.binary_repeat(column, 60) for name, column in texts.items()}
    # One member each: the levels of two members may disagree on whether their struct is null.
    inner = pa.StructArray.from_arrays([holes], ["f64"], mask=pa.array(few == 2))
    structs = {
        "deep": pa.StructArray.from_arrays([inner], ["in"], mask=pa.array(few == 4)),
        "s": pa.StructArray.from_arrays([unsure], ["text"], mask=pa.array(few == 3)),
        "whole": pa.StructArray.from_arrays([full["f64"]], ["f64"]),
        "list": pa.StructArray.from_arrays([ragged["holes"]], ["holes"], mask=pa.array(few == 5)),
        "dense": pa.StructArray.from_arrays([ragged["full"]], ["full"]),
    }
    deltas = {"text": "DELTA_BYTE_ARRAY", "bytes": "DELTA_LENGTH_BYTE_ARRAY"}
    deltas |= {"unsure": "DELTA_LENGTH_BYTE_ARRAY", "large": "DELTA_BYTE_ARRAY"}
    small: dict[str, Any] = {"data_page_size": 64, "write_batch_size": 32}
    found = []
    codecs = ["none", "snappy", "lz4", "gzip", "zstd"]
    for version, codec, coded in itertools.product(["1.0", "2.0"], codecs, [True, False]):
        options = {"data_page_version": version, "compression": codec, "use_dictionary": coded, **small}
        name = f"v{version[0]} {codec} {'coded' if coded else 'plain'}"
        found.append(Kind(name, pa.table(full), options))
        if codec in ("none", "snappy", "zstd"):
            found.append(Kind(f"{name} texts", pa.table(texts), options))
            if not coded:
                found.append(Kind(f"{name} deltas", pa.table(texts), {**options, "column_encoding": deltas}))
                # The kernels decompress these pages to the window; two windows share a page.
                long_pages = {**options, "write_batch_size": 20}
                found.append(Kind(f"{name} long texts", pa.table(long_texts), long_pages))
                long_pages = {**long_pages, "column_encoding": deltas}
                found.append(Kind(f"{name} long deltas", pa.table(long_texts), long_pages))
        if codec in ("none", "snappy"):
            found.append(Kind(f"{name} with nulls", pa.table(nulls), options))
            found.append(Kind(f"{name} lists", pa.table(listed), options))
            found.append(Kind(f"{name} structs", pa.table(structs), options))
            found.append(Kind(f"{name} decimals", pa.table(decimals), options))
            found.append(
                Kind(f"{name} ragged", pa.table(ragged), {**options, "column_encoding": None if coded else of_ragged})
            )
            if not coded:
                found.append(Kind(f"{name} encoded", pa.table(encoded), {**options, "column_encoding": encodings}))
                of_integers = {**options, "store_decimal_as_integer": True}
                of_integers["column_encoding"] = dict.fromkeys(("d4", "d8"), "DELTA_BINARY_PACKED")
                of_integers["column_encoding"] |= dict.fromkeys(("d16", "long"), "BYTE_STREAM_SPLIT")
                found.append(Kind(f"{name} encoded decimals", pa.table(decimals), of_integers))
    data = rng.integers(0, 256, 600 * 512).astype(np.uint8)
    wide = pa.Array.from_buffers(pa.binary(512), 600, [None, pa.py_buffer(data)])
    for version in ("1.0", "2.0"):
        schema = pa.schema([pa.field("wide", wide.type, nullable=False)])
        options = {"compression": "none", "use_dictionary": False, "data_page_size": 2**16, "write_batch_size": 64}
        found.append(Kind(f"v{version[0]} wide", pa.Table.from_arrays([wide], schema=schema), options))
    return found


def few_decimals(rng: np.random.Generator, type_: pa.DataType, null_share: float) -> pa.Array:
    """Decimals of few digits, and some of 60 bits and more."""
    digits = rng.integers(-40, 40, ROWS).tolist()
    numbers = [n * (10**20 + 1) if type_.precision > 20 and n % 5 == 0 else n for n in digits]
    mask = (rng.random(ROWS) < null_share).tolist()
    values = [None if is_null else Decimal(n).scaleb(-type_.scale) for n, is_null in zip(numbers, mask, strict=True)]
    return pa.array(values, type_)


def ragged_lists(rng: np.random.Generator, type_: pa.DataType, null_share: float, list_share: float) -> pa.Array:
    """Lists of 0 to 7 elements, some of them null."""
    lengths = rng.integers(0, 8, ROWS) * (rng.random(ROWS) < 0.8)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    numbers = pa.array(rng.integers(0, 9, offsets[-1]), mask=rng.random(offsets[-1]) < null_share).cast(type_)
    mask = pa.array(rng.random(ROWS) < list_share) if list_share else None
    return pa.ListArray.from_arrays(offsets, numbers, mask=mask)


class Mutator:
    """Changes a file in one to three places.

    Args:
        rng: Chooses.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def mutate(self, file: PagesOfFile) -> str:
        """Change the file; return what was done."""
        return ", ".join(self._one(file) for _ in range(int(self._rng.choice([1, 1, 1, 2, 3]))))

    def _one(self, file: PagesOfFile) -> str:
        chunk: Chunk = self._any(file.chunks)
        bits, lengths = [self._bit, self._packed_bit] * 3, [self._resized, self._order, self._footer]
        change = self._any([*bits, *lengths, self._header_field, self._described_field, self._described_field])
        return f"{change.__name__.strip('_')}: {change(chunk)}"

    def _any(self, choices: Any) -> Any:
        return choices[int(self._rng.integers(len(choices)))]

    def _near_begin(self, length: int) -> int:
        """Return a place in so many bytes, most often among the first: there the levels and runs begin."""
        return int(self._rng.integers(length if self._rng.random() < 0.4 else min(length, 12)))

    def _flipped(self, body: bytes) -> tuple[bytes, str]:
        changed = bytearray(body)
        at, bit = self._near_begin(len(body)), int(self._rng.integers(8))
        changed[at] ^= 1 << bit
        return bytes(changed), f"byte {at} bit {bit}"

    def _bit(self, chunk: Chunk) -> str:
        page: Page = self._any(chunk.pages)
        # What a damaged frame of zstd without a checksum gives depends on the library's version.
        if not page.body or CODECS[chunk.metadata[CODEC][1]] == "zstd":
            return "nothing"
        page.body, done = self._flipped(page.body)
        return done

    def _packed_bit(self, chunk: Chunk) -> str:
        """Flip a bit of a page's bytes before compression, so that no codec notices."""
        return self._repacked(chunk, lambda body: self._flipped(body) if body else (body, "nothing"))

    def _resized(self, chunk: Chunk) -> str:
        """Cut or lengthen a page, and let its header say so."""

        def resize(body: bytes) -> tuple[bytes, str]:
            by = int(self._any([-9, -8, -2, -1, 1, 2, 8, 9]))
            return (body + bytes(by) if by > 0 else body[:by]), f"by {by}"

        return self._repacked(chunk, resize)

    def _repacked(self, chunk: Chunk, change: Any) -> str:
        page: Page = self._any(chunk.pages)
        name = CODECS[chunk.metadata[CODEC][1]]
        levels = 0
        if page.kind == 3:
            described = page.described
            levels = sum(described.get(number, (INT32, 0))[1] for number in (5, 6))
            if 7 in described and not described[7][1]:
                name = None
        if not 0 <= levels <= len(page.body):
            return "nothing"
        head, rest = page.body[:levels], page.body[levels:]
        plain_bytes = page.header[PLAIN_BYTES][1] - levels
        if name is not None:
            try:
                rest = pa.Codec(name).decompress(rest, plain_bytes).to_pybytes() if rest else rest
            except (OSError, ValueError, OverflowError):
                return "nothing"
        body: bytes
        done: str
        body, done = change(head + rest)
        page.header[PLAIN_BYTES] = (INT32, len(body))
        head, rest = body[:levels], body[levels:]
        page.body = head + (rest if name is None else pa.Codec(name).compress(rest).to_pybytes())
        page.header[PAGE_BYTES] = (INT32, len(page.body))
        return done

    def _header_field(self, chunk: Chunk) -> str:
        page: Page = self._any(chunk.pages)
        number = int(self._any([KIND, PLAIN_BYTES, PAGE_BYTES, PLAIN_BYTES]))
        value = self._near(page.header[number][1])
        page.header[number] = (INT32, value)
        return f"field {number} is {value}"

    def _described_field(self, chunk: Chunk) -> str:
        page: Page = self._any(chunk.pages)
        if page.kind not in (0, 2, 3):
            return "nothing"
        described = page.header.get({0: V1, 2: DICTIONARY, 3: V2}[page.kind], (STRUCT, {}))[1]
        numbers = [number for number, (type_, _) in described.items() if type_ in (1, 2, INT32)]
        if not numbers:
            return "nothing"
        number = self._any(numbers)
        if self._rng.random() < 0.1:
            del described[number]
            return f"kind {page.kind} field {number} is not there"
        if described[number][0] in (1, 2):
            described[number] = (1, not described[number][1])
            return f"field {number} is turned"
        value = self._near(described[number][1])
        described[number] = (INT32, value) if self._rng.random() < 0.9 else (INT64, value)
        return f"kind {page.kind} field {number} is {value}"

    def _near(self, value: int) -> int:
        by = int(self._any([-8, -1, 1, 2, 8, -value]))
        return int(self._any([value + by, value + by, self._any(SIZES)]))

    def _order(self, chunk: Chunk) -> str:
        first, second = (int(self._rng.integers(len(chunk.pages))) for _ in range(2))
        what = self._any(["swapped", "repeated", "lost", "another kind", "trailing"])
        if what == "swapped":
            chunk.pages[first], chunk.pages[second] = chunk.pages[second], chunk.pages[first]
        elif what == "repeated":
            copy = chunk.pages[first]
            chunk.pages.insert(second, Page(dict(copy.header), copy.body))
        elif what == "lost" and len(chunk.pages) > 1:
            del chunk.pages[first]
        elif what == "another kind":
            header = {KIND: (INT32, self._any([1, 4, 9])), PLAIN_BYTES: (INT32, 3), PAGE_BYTES: (INT32, 3)}
            chunk.pages.insert(first, Page(header, b"abc"))
        else:
            chunk.behind = bytes(self._rng.integers(0, 256, 5).astype(np.uint8))
        return f"{what} {first} {second}"

    def _footer(self, chunk: Chunk) -> str:
        what = self._any(["nulls", "encodings", "values", "codec"])
        if what == "nulls" and STATISTICS in chunk.metadata:
            chunk.metadata[STATISTICS][1][NULL_COUNT] = (INT64, 0)
            for page in chunk.pages:
                if page.kind == 3 and 2 in page.described:
                    page.described[2] = (INT32, 0)
        elif what == "encodings":
            chunk.metadata[ENCODINGS] = (9, (INT32, [int(self._any([0, 2, 3, 5, 6, 7, 8, 9]))]))
        elif what == "values":
            chunk.metadata[VALUES] = (INT64, chunk.metadata[VALUES][1] + int(self._any([-1, 1])))
        elif what == "codec":
            chunk.metadata[CODEC] = (INT32, int(self._any([0, 1, 2, 6, 7])))
        return str(what)


def mutants(folder: Path, count: int, seed: int = 0) -> Iterator[tuple[str, Path, Schema]]:
    """Write `count` changed files, one after another under one name; yield what each is, where, and how to read it."""
    kinds = tables()
    for number, kind in enumerate(kinds):
        pq.write_table(kind.table, folder / f"whole {number}.parquet", **kind.options)
    path = folder / "changed.parquet"
    for number in range(count):
        kind = kinds[number % len(kinds)]
        file = pages_of(folder / f"whole {number % len(kinds)}.parquet")
        done = Mutator(np.random.default_rng([seed, number])).mutate(file)
        file.write(path)
        yield f"{number}: {kind.name}: {done}", path, kind.schema


def flattened(table: pa.Table) -> pa.Table:
    """Return the table with members instead of structs, null where a struct around them is."""
    while any(pa.types.is_struct(column.type) for column in table.columns):
        table = table.flatten()
    return table


def arrows_table(path: Path, columns: list[str] | None = None, *, checks_text: bool = True) -> pa.Table | None:
    """Return what pyarrow reads, with members instead of structs; None: it raises, or text is not UTF-8."""
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            table = file.read(columns, use_threads=False)
            if len(table) != file.metadata.num_rows:
                return None
            table.validate(full=checks_text)
            return flattened(table)
    except (pa.ArrowException, OSError, ValueError, OverflowError):
        return None


def arrows_values(path: Path) -> dict[str, Any] | None:
    """Return what pyarrow reads, with NaN for nulls; None: it raises."""
    table = arrows_table(path)
    if table is None:
        return None
    return {name: values_of(column) for name, column in zip(table.column_names, table.columns, strict=True)}


def converted_values(path: Path, schema: Schema) -> dict[str, Any] | None:
    """Return what pyarrow reads, converted by Arrow; None: it raises, or a value cannot be delivered."""
    # Words are compared with those of the vocabulary, so nobody checks that they are UTF-8.
    table = arrows_table(path, list(schema), checks_text=False)
    found = dict[str, Any]()
    if table is None:
        return None
    for name, field in schema.items():
        try:
            converted = convert(table.column(name), field)
        except ValueProblem:
            return None
        if isinstance(field, RaggedList):
            found[name] = rows = np.empty(len(converted), object)
            rows[:] = [np.frombuffer(row, np.float64) for row in converted.to_pylist()]
            continue
        values = converted.to_numpy()
        found[name] = values.astype(np.bool_) if isinstance(field, Scalar) and field.dtype == np.bool_ else values
        if policy_of(field) == "mask":
            found[f"{name}_valid"] = validity(table.column(name)).to_numpy().astype(np.bool_)
    return found


def values_of(column: pa.ChunkedArray) -> Any:
    """Return a column's values: an array of numbers, decimals as the nearest float64, or a list of bytes."""
    if pa.types.is_decimal(column.type):
        return np.array([math.nan if value is None else float(value) for value in column.to_pylist()])
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        filled: list[Any] = column.cast(pa.large_binary()).fill_null(NULL_TEXT.encode()).to_pylist()
        return filled
    return column.to_numpy(zero_copy_only=False)


def with_deletes(path: Path, arrow: pa.Schema, deleted: np.ndarray[Any, np.dtype[np.int64]]) -> DeltaSource:
    """Write the log of a Delta table that has this file alone, without some of its rows."""

    def type_of(type_: pa.DataType) -> Any:
        if pa.types.is_struct(type_):
            return {"type": "struct", "fields": fields_of(type_)}
        if pa.types.is_nested(type_):
            return {"type": "array", "elementType": type_of(type_.value_type), "containsNull": True}
        if pa.types.is_decimal(type_):
            return f"decimal({type_.precision},{type_.scale})"
        return "binary" if pa.types.is_fixed_size_binary(type_) else _DELTA_TYPES[str(type_)]

    def fields_of(parent: Any) -> list[Any]:
        return [{"name": f.name, "type": type_of(f.type), "nullable": f.nullable, "metadata": {}} for f in parent]

    vector = roaring_bytes(deleted)
    file = path.with_suffix(".bin")
    file.write_bytes(b"\1" + struct.pack(">i", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector)))
    place = {"storageType": "p", "pathOrInlineDv": file.as_uri(), "offset": 1}
    stored = {**place, "sizeInBytes": len(vector), "cardinality": len(deleted)}
    schema = json.dumps({"type": "struct", "fields": fields_of(arrow)})
    about = {"id": "5fba94ed-9794-4965-ba6e-6ee3c0d22af9", "format": {"provider": "parquet", "options": {}}}
    add: dict[str, Any] = {"path": path.name, "size": path.stat().st_size, "partitionValues": {}, "dataChange": True}
    features = ["deletionVectors"]
    actions = [
        {"protocol": dict(zip(_PROTOCOL, (3, 7, features, features), strict=True))},
        {"metaData": {**about, "schemaString": schema, "partitionColumns": [], "configuration": {}}},
        {"add": {**add, "modificationTime": 1, "deletionVector": stored}},
    ]
    log = path.parent / "_delta_log" / f"{0:020}.json"
    log.parent.mkdir(exist_ok=True)
    log.write_text("\n".join(map(json.dumps, actions)))
    return DeltaSource(path.parent)


_PROTOCOL = ("minReaderVersion", "minWriterVersion", "readerFeatures", "writerFeatures")
_DELTA_TYPES = {"int8": "byte", "int16": "short", "int32": "integer", "int64": "long", "bool": "boolean"}
_DELTA_TYPES |= {"float": "float", "double": "double", "string": "string", "binary": "binary", "large_binary": "binary"}


def loaders_values(path: Path | DeltaSource, **arguments: Any) -> dict[str, Any] | ParquetLoaderError:
    """Return what the loader delivers, or its error."""
    options: dict[str, Any] = {"batch_size": 64, "output_options": OutputOptions(format="numpy"), **arguments}
    source = str(path) if isinstance(path, Path) else path
    try:
        with BatchedDataLoader(source, num_threads=1, **options) as loader:
            batches = [dict(batch) for batch in loader]
    except ParquetLoaderError as error:
        return error
    return {name: _joined([batch[name] for batch in batches]) for name in batches[0]} if batches else {}


def _joined(parts: list[Any]) -> Any:
    """Return all rows of a column: bytes as a list of them, lists as objects."""
    if not isinstance(parts[0], Ragged):
        return np.concatenate(parts)
    rows = [part.values[a:b] for part in parts for a, b in itertools.pairwise(part.offsets.tolist())]
    if parts[0].values.dtype == np.uint8:
        return [row.tobytes() for row in rows]
    found = np.empty(len(rows), object)
    for number, row in enumerate(rows):
        found[number] = row
    return found


def is_same(found: dict[str, Any], expected: dict[str, Any] | None) -> bool:
    """Whether values are the same; NaN is."""
    if expected is None or found.keys() != expected.keys():
        return False
    for name, values in expected.items():
        if isinstance(values, list):
            if values != found[name]:
                return False
            continue
        if found[name].dtype == object:
            pairs = zip(found[name], values, strict=True)
            if not all(
                np.array_equal(a, np.asarray([] if b is None else b, a.dtype), equal_nan=True) for a, b in pairs
            ):
                return False
            continue
        is_bytes = values.dtype == object
        wanted = (
            np.array([np.frombuffer(v, np.uint8) if isinstance(v, bytes) else v for v in values])
            if is_bytes
            else values
        )
        if not np.array_equal(found[name], wanted, equal_nan=wanted.dtype.kind == "f"):
            return False
    return True


def faults(folder: Path, count: int, seed: int) -> tuple[list[str], int]:
    """Return which changed files the loader reads otherwise than pyarrow, and how many both read."""
    found, both = list[str](), 0
    for number, (what, path, schema) in enumerate(mutants(folder, count, seed)):
        window_rows = int(np.random.default_rng([seed, number, 2]).choice(WINDOW_ROWS))
        expected, delivered = arrows_values(path), loaders_values(path, schema=schema, window_rows=window_rows)
        if isinstance(delivered, ParquetLoaderError):
            continue
        if not is_same(delivered, expected):
            found.append(what)
        both += expected is not None
    return found, both


def faults_of_conversions(folder: Path, count: int, seed: int) -> tuple[list[str], int]:
    """Return which changed files the loader converts otherwise than Arrow, and how many both read."""
    found, both = list[str](), 0
    kinds = tables()
    for number, (what, path, _) in enumerate(mutants(folder, count, seed)):
        schema = kinds[number % len(kinds)].conversions
        if not schema:
            continue
        expected, delivered = converted_values(path, schema), loaders_values(path, schema=schema)
        if isinstance(delivered, ParquetLoaderError):
            continue
        if not is_same(delivered, expected):
            found.append(what)
        both += expected is not None
    return found, both


def faults_with_deletes(folder: Path, count: int, seed: int) -> tuple[list[str], int]:
    """Return which changed files give other rows than pyarrow's without those that are deleted, and how many both read.

    A file that pyarrow refuses may be read: nobody looks at pages of deleted rows alone.
    """
    found, both = list[str](), 0
    kinds = tables()
    for number, (what, path, schema) in enumerate(mutants(folder, count, seed)):
        kind = kinds[number % len(kinds)]
        rng = np.random.default_rng([seed, number, 1])
        is_deleted = rng.random(len(kind.table)) < rng.choice([0.05, 0.05, 0.5, 0.95])
        start, length = int(rng.integers(len(is_deleted))), int(rng.integers(60))
        is_deleted[start : start + length] = True
        source = with_deletes(path, kind.table.schema, np.flatnonzero(is_deleted))
        expected, delivered = arrows_values(path), loaders_values(source, schema=schema)
        if expected is None or isinstance(delivered, ParquetLoaderError):
            continue
        if is_deleted.all() and not delivered:
            continue
        if not is_same(delivered, {name: _alive(values, is_deleted) for name, values in expected.items()}):
            found.append(what)
        both += 1
    return found, both


def _alive(values: Any, is_deleted: np.ndarray[Any, np.dtype[np.bool_]]) -> Any:
    return list(itertools.compress(values, ~is_deleted)) if isinstance(values, list) else values[~is_deleted]


def main() -> None:
    """Try so many changed files, in a process that was started with other kernels, or without."""
    for check in (faults, faults_of_conversions, faults_with_deletes):
        with tempfile.TemporaryDirectory() as folder:
            found, both = check(Path(folder), int(sys.argv[1]), int(sys.argv[2]))
        if found or not both:
            sys.exit("\n".join([check.__name__, *found]))


if __name__ == "__main__":
    main()
