"""Puts some pages of a column chunk into a Parquet file in memory, which kernels and Arrow decode like any other file.

The file has one column, one row group, unchanged pages, and a footer with only these.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.common import IntArray
from parquet_loader.decode.chunk_pages import ARROW_CODECS
from parquet_loader.decode.converters import first_beyond_nanoseconds, one_array
from parquet_loader.decode.native.column_reader import NativeChunks, NotDecodedError
from parquet_loader.decode.native.decodable import decodable_columns
from parquet_loader.decode.native.page_check import check_pages
from parquet_loader.decode.native.page_list import pages_between
from parquet_loader.decode.page_headers import DATA_PAGE, DATA_PAGE_V2, bounds_of_chunks
from parquet_loader.schema import plain_type
from parquet_loader.source import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    ColumnChunk,
    FileSchema,
    Metadata,
    ReadableChunk,
    RowGroupFooter,
    SchemaElement,
    schema_tree,
)

LeafChain: TypeAlias = tuple[tuple[int, SchemaElement], ...]
_MARK = b"PAR1"
# Bytes of a plain value that is zero or empty.
_VALUE_BYTES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
_ARROW_SCHEMA = b"ARROW:schema"


class BeyondNanosecondsError(ValueError):
    """A page holds an INT96 timestamp that does not fit into nanoseconds.

    Attributes:
        seconds: The timestamp.
    """

    def __init__(self, seconds: int) -> None:
        super().__init__(f"an INT96 timestamp of {seconds} s does not fit timestamp[ns]")
        self.seconds = seconds


class PageFileSchema(NamedTuple):
    """The schema of a file that has one leaf column of another file.

    Attributes:
        leaf: Its number in the other file.
        path: Names of its schema elements, below the root, each after its length.
        elements: The serialised list of schema elements.
        key_values: The serialised list of keys and values; b"" without one.
    """

    leaf: int
    path: tuple[bytes, ...]
    elements: bytes
    key_values: bytes


class PageFile(NamedTuple):
    """Some pages of a column chunk.

    Attributes:
        data: Their bytes, at the offsets of `chunk`.
        chunk: The column chunk that consists of them.
        data_at: Offset of the first data page.
        starts: int64 ``[pages]``, offset of each data page.
        values: int64 ``[pages]``, the values of each data page.
        rows: int64 ``[pages]``, rows of each data page of version 2, else -1.
    """

    data: npt.NDArray[np.uint8]
    chunk: ReadableChunk
    data_at: int
    starts: IntArray
    values: IntArray
    rows: IntArray


def page_file_buffer(dictionary_bytes: int, data_bytes: int) -> tuple[npt.NDArray[np.uint8], int]:
    """Return memory for a file of pages, and the offset of the dictionary page; the data pages follow it."""
    data = np.empty(len(_MARK) + dictionary_bytes + data_bytes, np.uint8)
    data[: len(_MARK)] = np.frombuffer(_MARK, np.uint8)
    return data, len(_MARK)


def opening_page(chunk: ReadableChunk) -> bytes:
    """Return a data page of one row with one value, to put before pages that begin within a row.

    Arrow refuses a column chunk that begins within a row. With this page, the values before the first row of the other
    pages become values of its row, which is not delivered.
    """
    leaf = chunk.leaf
    repetitions, definitions = (
        b"\x02" + level.to_bytes((most.bit_length() + 7) // 8, "little")
        for level, most in ((0, leaf.max_repetition_level), (leaf.max_definition_level, leaf.max_definition_level))
    )
    value = bytes(leaf.length if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" else _VALUE_BYTES[leaf.physical_type])
    body = b"".join(len(levels).to_bytes(4, "little") + levels for levels in (repetitions, definitions)) + value
    codec = ARROW_CODECS.get(chunk.codec_name)
    stored = body if codec is None else pa.Codec(codec).compress(body).to_pybytes()
    described = b"".join(_field(1, I32, _number(number)) for number in (1, 0, 3, 3)) + b"\0"
    header = b"".join(_field(1, I32, _number(number)) for number in (DATA_PAGE, len(body), len(stored)))
    return header + _field(2, STRUCT, described) + b"\0" + stored


def file_of_pages(data: npt.NDArray[np.uint8], dictionary_bytes: int, chunk: ReadableChunk) -> PageFile | None:
    """Return the pages in a buffer as a column chunk; None if a header contradicts the bytes.

    Args:
        data: See `page_file_buffer`.
        dictionary_bytes: Bytes of the dictionary page.
        chunk: Their column chunk; an opening page may precede them.
    """
    first = len(_MARK)
    lines = pages_between(pa.py_buffer(data), len(data), first, len(data), chunk.values + 1)
    if lines is None:
        return None
    is_data = (lines[:, 2] == DATA_PAGE) | (lines[:, 2] == DATA_PAGE_V2)
    found, data_at = lines[is_data], first + dictionary_bytes
    if not len(found) or found[0, 0] != data_at or found[-1, [0, 1, 3]].sum() != len(data):
        return None
    values = found[:, 4].copy()
    part = chunk._replace(
        start=first,
        stored_bytes=len(data) - first,
        values=int(values.sum()),
        dictionary_at=first if dictionary_bytes else -1,
        nulls=0 if chunk.nulls == 0 else None,
    )
    return PageFile(data, part, data_at, found[:, 0].copy(), values, found[:, 5].copy())


def page_file_footer(
    schema: PageFileSchema, file: PageFile, original: ColumnChunk, created_by: str, rows: int
) -> bytes:
    """Return the serialised footer of a file of pages, with its length and magic bytes."""
    chunk, offset = file.chunk, len(_MARK)
    encodings = [number for number in range(62) if original.encodings >> number & 1]
    column = b"".join(
        (
            _field(1, I32, _number(original.physical_type)),
            _field(1, LIST, _list(I32, [_number(encoding) for encoding in encodings])),
            _field(1, LIST, _list(BINARY, schema.path)),
            _field(1, I32, _number(original.codec)),
            _field(1, I64, _number(chunk.values)),
            _field(1, I64, _number(chunk.encoded_bytes)),
            _field(1, I64, _number(chunk.stored_bytes)),
            _field(2, I64, _number(file.data_at)),
            _field(2, I64, _number(offset)) if chunk.dictionary_at >= 0 else b"",
            b"\0",
        )
    )
    described = _field(2, I64, _number(offset)) + _field(1, STRUCT, column) + b"\0"
    group = b"".join(
        (
            _field(1, LIST, _list(STRUCT, [described])),
            _field(1, I64, _number(chunk.encoded_bytes)),
            _field(1, I64, _number(rows)),
            b"\0",
        )
    )
    footer = b"".join(
        (
            _field(1, I32, _number(2)),
            _field(1, LIST, schema.elements),
            _field(1, I64, _number(rows)),
            _field(1, LIST, _list(STRUCT, [group])),
            _field(1, LIST, schema.key_values) if schema.key_values else b"",
            _field(1 if schema.key_values else 2, BINARY, _binary(created_by.encode())),
            b"\0",
        )
    )
    return footer + len(footer).to_bytes(4, "little") + _MARK


def decode_pages(
    schema: PageFileSchema,
    file: PageFile,
    footer: Metadata,
    original: ColumnChunk,
    counts: Sequence[int],
    kernel: tuple[str, pa.Schema] | None,
    *,
    verify_checksums: bool,
) -> list[pa.Array] | None:
    """Decode pages to one array for each count of rows, each in its own memory, with the types of Arrow's reader.

    Args:
        schema: The schema of the pages' file.
        file: The pages.
        footer: The footer of the original file.
        original: Its entry for their column chunk.
        counts: Rows of each array; their sum is the number of rows that begin in the pages, plus one if the first page
            begins within a row.
        kernel: The name of the column and the Arrow schema of its file, if a kernel may decode it; else None.
        verify_checksums: Whether the pages are compared with their CRC.

    Returns:
        The arrays, or None if the pages do not hold this many rows.

    Raises:
        FalseClaimError: a page header claims more than its page can hold.
        BeyondNanosecondsError: an INT96 timestamp does not fit into nanoseconds.
        OSError, pyarrow.ArrowException: the pages are damaged.
    """
    buffer, rows = pa.py_buffer(file.data), sum(counts)
    name = "" if kernel is None else kernel[0]
    described = RowGroupFooter(footer, None, file.chunk.stored_bytes, {name: (file.chunk,)}, True)
    check_pages(buffer, bounds_of_chunks(described, [name]))
    if kernel is not None and not verify_checksums:
        known = decodable_columns(described, [name], kernel[1], rows)
        with suppress(NotDecodedError):
            if known.names:
                with NativeChunks(buffer, known) as chunks:
                    return [chunks.read(count)[0] for count in counts]
    # One more row than expected is requested: if there is one, the rows of each page are not known after all.
    more = 1 if file.chunk.leaf.max_repetition_level else 0
    raw = page_file_footer(schema, file, original, footer.created_by, rows + more)
    options = {"pre_buffer": False, "page_checksum_verification": verify_checksums}
    metadata = pq.read_metadata(pa.BufferReader(raw))
    with pq.ParquetFile(pa.BufferReader(buffer), metadata=metadata, **options) as opened:
        column = opened.read_row_group(0, use_threads=False).column(0)
    if file.chunk.leaf.physical_type == "INT96":
        with pq.ParquetFile(
            pa.BufferReader(buffer), metadata=metadata, coerce_int96_timestamp_unit="s", **options
        ) as opened:
            in_seconds = opened.read_row_group(0, use_threads=False).column(0)
        seconds = first_beyond_nanoseconds(one_array(in_seconds), one_array(column))
        if seconds is not None:
            raise BeyondNanosecondsError(seconds)
    if len(column) != rows:
        return None
    if len(counts) == 1:
        return [one_array(column)]
    firsts = np.concatenate([[0], np.cumsum(counts)]).tolist()
    nothing = one_array(column.slice(0, 0))
    # `one_array` copies if it joins chunks, so pages that are kept can be released one by one.
    parts = (one_array(column.slice(first, count)) for first, count in zip(firsts, counts, strict=False))
    return [pa.concat_arrays([part, nothing]) for part in parts]


def page_file_schema(schema: FileSchema, leaf: int, chain: LeafChain) -> PageFileSchema | None:
    """Return the schema of a file with one leaf column of another; None if its Arrow type cannot be derived.

    Args:
        schema: The schema of the other file.
        leaf: The number of the leaf column.
        chain: The leaf's item of `leaf_chains`.
    """
    steps = [number for number, _ in chain[1:]]
    lines = [_with_one_child(one, schema.elements) for _, one in chain]
    key_values = b""
    if _ARROW_SCHEMA in schema.key_values:
        field = _pruned(schema.arrow.field(steps[0]), steps[1:])
        if field is None:
            return None
        text = base64.b64encode(pa.schema([field]).serialize().to_pybytes())
        pair = _field(1, BINARY, _binary(_ARROW_SCHEMA)) + _field(1, BINARY, _binary(text)) + b"\0"
        key_values = _list(STRUCT, [pair])
    elif _pruned(schema.arrow.field(steps[0]), steps[1:]) is None:
        return None
    names = tuple(schema.elements[slice(*one.name_span)] for _, one in chain[1:])
    return PageFileSchema(leaf, names, _list(STRUCT, lines), key_values)


def leaf_chains(schema: FileSchema) -> list[LeafChain]:
    """Return for each leaf the elements from the root to it, each with its number among its parent's children."""
    return list(_chains(0, schema_tree(schema.elements)))


def _chains(number: int, element: SchemaElement) -> Iterator[LeafChain]:
    if not element.children:
        yield ((number, element),)
    for place, child in enumerate(element.children):
        yield from (((number, element), *chain) for chain in _chains(place, child))


def _with_one_child(element: SchemaElement, elements: bytes) -> bytes:
    """Return the bytes of an element; a group gets one member."""
    (first, last), (begin, end) = element.span, element.children_span
    return elements[first:begin] + _number(1) + elements[end:last] if element.children else elements[first:last]


def _pruned(field: pa.Field, steps: Sequence[int]) -> pa.Field | None:
    """Return an Arrow field with only the leaf to which steps through structs lead; None if it cannot be derived."""
    type_ = field.type
    if not pa.types.is_nested(type_) and not isinstance(type_, pa.BaseExtensionType):
        return field
    if pa.types.is_struct(type_):
        if not steps or steps[0] >= type_.num_fields:
            return None
        member = _pruned(type_.field(steps[0]), steps[1:])
        return None if member is None else field.with_type(pa.struct([member]))
    return field if leaves_in(type_) == 1 else None


def leaves_in(type_: pa.DataType) -> int:
    """Return how many leaves a type has in Parquet."""
    type_ = plain_type(type_)
    if not pa.types.is_nested(type_):
        return 1
    return sum(leaves_in(type_.field(number).type) for number in range(type_.num_fields))


# ---- Thrift's compact protocol ----


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(value: int) -> bytes:
    return _varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _binary(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _field(step: int, kind: int, value: bytes) -> bytes:
    """Serialise a field whose number is `step` more than that of the previous field."""
    return bytes([step << 4 | kind]) + value


def _list(kind: int, values: Sequence[bytes]) -> bytes:
    head = bytes([len(values) << 4 | kind]) if len(values) < 15 else bytes([0xF0 | kind]) + _varint(len(values))
    return head + b"".join(values)
