"""Decides by the footer which column chunks the kernels can decode, and describes these for the kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import LOADED_CODECS
from parquet_loader.decode.native.vocabulary import Vocabulary
from parquet_loader.decode.page_headers import SMALL_PAGE_BYTES, most_bytes_of_page
from parquet_loader.source import Metadata, ReadableChunk, RowGroupFooter

_CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "LZ4": 2, "GZIP": 3, "ZSTD": 4}
_LEVELS = {"RLE", "BIT_PACKED"}
_ENCODINGS = {"PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "BYTE_STREAM_SPLIT", *_LEVELS}
# As in `conversions/conversions.h`; the scale is added to the second, and the types of a cast to the last one.
_WIDE_DECIMALS, _NEAREST_DECIMALS, _INT96_TIMESTAMPS, _WORD_CODES, _CASTS = 1, 2, 64, 65, 128
_CAST_TYPES = tuple(pa.from_numpy_dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8))
_CAST_TYPES += pa.float32(), pa.float64()
# The encodings of physical types that have further ones.
_ENCODINGS_OF = {
    "INT32": _ENCODINGS | {"DELTA_BINARY_PACKED"},
    "INT64": _ENCODINGS | {"DELTA_BINARY_PACKED"},
    "BYTE_ARRAY": _ENCODINGS | {"DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"},
}
BYTE_ARRAY, _TEXT = 4, 5  # numbers of physical types
VIEW_BYTES, _INT96_BYTES = 16, 12
_MOST_DEFINED = 7  # as in `pages/levels.h`
# For each physical type: its number in `chunks/column.h`, and the bytes of a value (of an unpacked boolean).
_PHYSICAL = {"INT32": (1, 4), "INT64": (1, 8), "FLOAT": (2, 4), "DOUBLE": (2, 8), "BOOLEAN": (3, 1)}


def is_known_type(type_: pa.DataType) -> bool:
    """Whether pages store values of an Arrow type in Arrow's form, or extended to a wider integer."""
    return bool(
        pa.types.is_integer(type_)
        or pa.types.is_boolean(type_)
        or pa.types.is_floating(type_)
        or pa.types.is_temporal(type_)
        or pa.types.is_decimal128(type_)
        or (pa.types.is_fixed_size_binary(type_) and type_.byte_width > 0)
    )


def is_known_bytes(type_: pa.DataType) -> bool:
    """Whether a type is text or bytes, with offsets of 32 or 64 bits."""
    t = pa.types
    return bool(t.is_string(type_) or t.is_binary(type_) or t.is_large_string(type_) or t.is_large_binary(type_))


def stored_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of the values that pages store, behind extension types, views, and dictionaries of bytes."""
    while isinstance(type_, pa.BaseExtensionType):
        type_ = type_.storage_type
    if pa.types.is_dictionary(type_) and is_known_bytes(type_.value_type):
        return type_.value_type
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(type_, type_)


def is_known_codec(name: str) -> bool:
    """Whether the kernels decompress a codec on this machine: gzip and zstd need the system's libraries."""
    codec = _CODECS.get(name.upper())
    return codec is not None and bool(LOADED_CODECS >> codec & 1)


def is_known_list(type_: pa.DataType) -> bool:
    """Whether a type is a list of numbers, of any of the three list types of Arrow that the kernels decode."""
    t = pa.types
    if not (t.is_list(type_) or t.is_large_list(type_) or t.is_fixed_size_list(type_)):
        return False
    return bool(t.is_integer(type_.value_type) or t.is_float32(type_.value_type) or t.is_float64(type_.value_type))


def can_convert(stored: pa.DataType, delivered: pa.DataType) -> bool:
    """Whether the kernels convert numbers of one type to another one."""
    if pa.types.is_decimal128(stored):
        return delivered in (pa.float32(), pa.float64()) and 0 <= stored.scale <= 38
    return stored in _CAST_TYPES and delivered in _CAST_TYPES and stored != delivered


class RowDemand(NamedTuple):
    """The condition under which a kernel decodes rows to their slots.

    Attributes:
        values: Numbers of a row, if rows are lists.
        refuses_nulls: Whether a null is an error; then the footer need not state their number.
        fills_nulls: Whether nulls are replaced; then nulls are allowed.
    """

    values: int
    refuses_nulls: bool
    fills_nulls: bool = False

    def allows(self, chunk: ReadableChunk) -> bool:
        """Whether a column chunk meets the condition on nulls, by its footer."""
        has_none = chunk.nulls == 0 or not chunk.leaf.max_definition_level
        return has_none or self.fills_nulls or (chunk.nulls is None and self.refuses_nulls)


class WindowForm(NamedTuple):
    """How a kernel delivers a column to the window.

    Attributes:
        demand: The condition under which rows or byte arrays are decoded; None for numbers, and lists of any length.
        number: The type of numbers that are delivered in another type than the file's, see `can_convert`; of elements,
            if rows are lists. The integer type of codes. None for all others.
        is_text: Whether the kernel checks that byte arrays are UTF-8.
        vocabulary: Gives the codes of byte arrays that are words of a category; else None.
        member: The type in the file, if the column is a member of structs; else None.
    """

    demand: RowDemand | None = None
    number: pa.DataType | None = None
    is_text: bool = False
    vocabulary: Vocabulary | None = None
    member: pa.DataType | None = None


_AS_STORED = WindowForm()


class Line(IntEnum):
    """The numbers of a line of `DecodableChunks`, as `chunks_open` of `chunks/column_chunks.c` describes them."""

    START = 0
    END = 1
    VALUES = 2
    WIDTH = 3
    KEPT = 4
    CODEC = 5
    DEFINITION_LEVEL = 6
    ENCODINGS = 7
    PHYSICAL = 8
    ALWAYS_COMPRESSED = 9
    ROW_VALUES = 10  # of lists of any length, the number of rows
    ELEMENT_LEVEL = 11
    CONVERSION = 12
    MOST_PAGE_BYTES = 13
    OUT = 14
    VOCABULARY = 15


class DecodableChunks(NamedTuple):
    """Column chunks of a row group that the kernels can probably decode.

    Attributes:
        names: The names of the columns.
        types: The Arrow types of the result, as in `pyarrow.parquet`.
        lines: int64 ``[columns, 16]``, the description of each for `chunks_open`; see `Line`.
        nullable: For each, whether it may have nulls, because the footer does not exclude them.
        vocabularies: The vocabularies whose addresses are in `lines`.
    """

    names: list[str]
    types: list[pa.DataType]
    lines: npt.NDArray[np.int64]
    nullable: list[bool]
    vocabularies: tuple[Vocabulary, ...] = ()

    def moved(self, extents: npt.NDArray[np.int64], rows: int | npt.NDArray[np.int64]) -> DecodableChunks:
        """Return the chunks of the same columns in another row group, or in several.

        Args:
            extents: Four numbers of each column chunk, ``[columns, 4]``; for several row groups,
                ``[row groups, columns, 4]``. See `ChunkPattern.extents`.
            rows: Rows of the row group; for several, ``[row groups, 1]``.
        """
        lines = np.empty((*extents.shape[:-1], self.lines.shape[1]), np.int64)
        lines[:] = self.lines
        lines[..., [Line.START, Line.END]], lines[..., Line.VALUES] = extents[..., :2], extents[..., 3]
        are_lists = self.lines[:, Line.ELEMENT_LEVEL]
        lines[..., Line.ROW_VALUES] = np.where(are_lists, rows, self.lines[:, Line.ROW_VALUES])
        lines[..., Line.MOST_PAGE_BYTES] = np.maximum(SMALL_PAGE_BYTES, extents[..., 2])
        return self._replace(lines=lines)


def decodable_chunks(footer: Metadata, row_group: int, names: Iterable[str], schema: pa.Schema) -> DecodableChunks:
    """Return the column chunks of a row group that the kernels can probably decode.

    Args:
        footer: The file's footer.
        row_group: The row group's number in the file.
        names: The columns that are read.
        schema: The file's Arrow schema.
    """
    asked = tuple(name for name in names if "." not in name)
    described = footer.of_row_group(row_group, asked, chunks=True, arrow=False)
    return decodable_columns(described, asked, schema, int(footer.row_group_rows[row_group]))


def decodable_columns(
    footer: RowGroupFooter,
    names: Iterable[str],
    schema: pa.Schema,
    rows: int,
    forms: Mapping[str, WindowForm] | None = None,
    refused: dict[str, str] | None = None,
) -> DecodableChunks:
    """Return the column chunks of a row group that the kernels can probably decode.

    Args:
        footer: The footer's entries for the columns of `names`, and perhaps others.
        names: The columns that are read.
        schema: The file's Arrow schema.
        rows: Rows of the row group.
        forms: How columns are delivered to the window; None for arrays.
        refused: Receives the reason for each column that is not returned.
    """
    found = dict[str, _Described]()
    always_compressed = is_always_compressed(footer.metadata.created_by)
    for name in dict.fromkeys(names):
        chunks, form = footer.chunks[name], (forms or {}).get(name, _AS_STORED)
        indices = schema.get_all_field_indices(name)
        # Arrow resolves names that are ambiguous: two columns of one name, or a dot that may separate a struct's field.
        if ("." in name and form.member is None) or len(chunks) != 1 or not footer.has_clear_names:
            described: _Described | str = "it has several leaves, or its name is not clear"
        elif not isinstance(chunks[0], ReadableChunk):
            described = str(chunks[0])  # a `MetadataError`
        elif form.member is not None:
            described = _described(name, chunks[0], form.member, rows, form, always_compressed)
        else:
            field = schema.field(indices[0]) if len(indices) == 1 else pa.field(name, pa.null())
            type_ = field.type if forms is None else stored_type(field.type)
            described = _described(name, chunks[0], type_, rows, form, always_compressed)
        if not isinstance(described, str):
            found[name] = described
        elif refused is not None:
            refused[name] = described
    lines = np.array([described.line for described in found.values()], np.int64).reshape(-1, len(Line))
    vocabularies = tuple(form.vocabulary for form in (forms or {}).values() if form.vocabulary is not None)
    types, nullable = [d.type for d in found.values()], [d.is_nullable for d in found.values()]
    return DecodableChunks(list(found), types, lines, nullable, vocabularies)


class _Described(NamedTuple):
    """A column chunk that the kernels can probably decode; the attributes are elements of `DecodableChunks`."""

    type: pa.DataType
    line: tuple[int, ...]
    is_nullable: bool


def _described(
    name: str,
    chunk: ReadableChunk,
    type_: pa.DataType,
    rows: int,
    form: WindowForm,
    always_compressed: bool,
) -> _Described | str:
    """Return the description of a column chunk; text with the reason if the kernels cannot decode it.

    Args:
        name: The name of the column.
        chunk: The column chunk.
        type_: The type in the file.
        rows: Rows of the row group.
        form: How the column is delivered.
        always_compressed: See `is_always_compressed`.
    """
    demand = form.demand
    if demand is not None and not demand.allows(chunk):
        return "the footer does not say that it has no nulls"
    list_values = elements = 0
    if is_known_list(type_) and demand is None and not pa.types.is_fixed_size_list(type_):
        elements = chunk.leaf.element_level
    elif is_known_list(type_):
        list_values = _list_values(type_, chunk, rows)
        if list_values != demand.values if demand is not None else not list_values or chunk.nulls != 0:
            return "the footer does not say that all lists have one length and no nulls"
    elif demand is None and form.vocabulary is None and is_known_bytes(type_):
        return "the kernels decode text and bytes only to the window"
    elif chunk.leaf.path != name or not (is_known_type(type_) or is_known_bytes(type_)):
        return f"{type_} is not a number, text, bytes, or a list of numbers"
    line = _line(type_, chunk, rows, list_values, elements, form)
    if line is None:
        return _why_not(type_, chunk)
    item = type_.value_type if list_values or elements else type_
    of_lists = (rows, elements) if elements else (list_values, 0)
    conversion, out = _conversion_of(item, chunk, line[Line.KEPT], form)
    vocabulary = 0 if form.vocabulary is None else form.vocabulary.address
    more = int(always_compressed), *of_lists, conversion, most_bytes_of_page(chunk), out, vocabulary
    if form.number is not None:
        type_ = pa.large_list(form.number) if elements else form.number
    return _Described(type_, (*line, *more), chunk.leaf.max_definition_level > 0 and chunk.nulls != 0)


def _conversion_of(type_: pa.DataType, chunk: ReadableChunk, width: int, form: WindowForm) -> tuple[int, int]:
    """Return the conversion of a column chunk's values, and the bytes of a delivered one.

    Args:
        type_: The type of the values.
        chunk: The column chunk.
        width: The bytes of a value that is not converted.
        form: How the column is delivered.
    """
    is_decimal = pa.types.is_decimal128(type_)
    if form.number is not None and form.vocabulary is not None:
        return _WORD_CODES, form.number.bit_width // 8
    if form.number is not None and is_decimal:
        return _NEAREST_DECIMALS + type_.scale, form.number.bit_width // 8
    if form.number is not None:
        types = len(_CAST_TYPES) * _CAST_TYPES.index(type_) + _CAST_TYPES.index(form.number)
        return _CASTS + types, form.number.bit_width // 8
    if is_decimal:
        return _WIDE_DECIMALS, type_.bit_width // 8
    return (_INT96_TIMESTAMPS, 8) if chunk.leaf.physical_type == "INT96" else (0, width)


def _why_not(type_: pa.DataType, chunk: ReadableChunk) -> str:
    """Return why `_line` returns None for a column chunk."""
    if not is_known_codec(chunk.codec_name):
        return f"the kernels do not decompress {chunk.codec_name.lower()}"
    others = [e for e in chunk.encoding_names if e not in _known_encodings(chunk.leaf.physical_type)]
    if others:
        return f"the kernels do not decode {' and '.join(others)}"
    return f"the kernels do not decode {type_} that is stored as {chunk.leaf.physical_type}"


def _known_encodings(physical_type: str) -> set[str]:
    return _ENCODINGS_OF.get(physical_type, _ENCODINGS)


def is_always_compressed(created_by: str) -> bool:
    """Whether pages of version 2 are compressed whatever their headers say, as by parquet-cpp before Arrow 3.

    Arrow decides the same way; see PARQUET-10353.
    """
    return created_by.lower().split(" ")[0] == "parquet-cpp"


def _list_values(type_: pa.DataType, chunk: ReadableChunk, rows: int) -> int:
    """Return the length of a column chunk's lists if all can have the same one, of at least 2; else 0."""
    each = chunk.values // rows if rows > 0 and chunk.values % rows == 0 else 0
    # An empty or null list counts as a value, so the footer does not distinguish it from a list of one value.
    if each < 2 or (pa.types.is_fixed_size_list(type_) and type_.list_size != each):
        return 0
    return 0 if pa.types.is_list(type_) and chunk.values >= 2**31 else each


def _line(
    type_: pa.DataType, chunk: ReadableChunk, rows: int, list_values: int, elements: int, form: WindowForm
) -> tuple[int, ...] | None:
    """Return the first nine numbers of a column chunk's line for `chunks_open`; None if the kernels cannot decode it.

    Args:
        type_: The type in the file.
        chunk: The column chunk.
        rows: Rows of the row group.
        list_values: Values of a row if rows are lists of one length, else 0.
        elements: The definition level of an element if rows are lists of any length, else 0.
        form: How the column is delivered.
    """
    # The repetition level, and the most definition levels.
    levels = (1, _MOST_DEFINED) if list_values or elements else (0, 1 if form.member is None else _MOST_DEFINED)
    type_ = type_.value_type if list_values or elements else type_
    column, encodings = chunk.leaf, chunk.encoding_names
    is_boolean = pa.types.is_boolean(type_)
    physical, width = _PHYSICAL.get(column.physical_type, (0, 0))
    is_decimal, are_bytes = pa.types.is_decimal128(type_), column.physical_type == "FIXED_LEN_BYTE_ARRAY"
    if are_bytes and (pa.types.is_fixed_size_binary(type_) or pa.types.is_float16(type_) or is_decimal):
        width = column.length
    if column.physical_type == "BYTE_ARRAY" and is_known_bytes(type_):
        physical, width = _TEXT if form.is_text else BYTE_ARRAY, VIEW_BYTES
    delivered = 1 if is_boolean else VIEW_BYTES if is_known_bytes(type_) else type_.bit_width // 8
    # Decimals and INT96 are converted by the kernels.
    if is_decimal and width <= delivered:
        delivered = width
    if column.physical_type == "INT96" and type_ == pa.timestamp("ns"):
        width = delivered = _INT96_BYTES
    is_narrowed = column.physical_type == "INT32" and pa.types.is_integer(type_) and delivered < width
    if (
        not is_known_codec(chunk.codec_name)
        or width < 1  # varying width, as of some decimals
        or (width != delivered and not is_narrowed)
        or is_boolean != (column.physical_type == "BOOLEAN")
        or pa.types.is_date64(type_)  # days in the file
        or (not are_bytes and (physical == 2) != pa.types.is_floating(type_))
        or column.max_repetition_level != levels[0]
        or column.max_definition_level > levels[1]
        or not _known_encodings(column.physical_type).issuperset(encodings)
    ):
        return None
    place = chunk.start, chunk.start + chunk.stored_bytes
    widths, codec = (width, delivered), _CODECS[chunk.codec_name]
    values = chunk.values if elements else rows * max(1, list_values)
    return (*place, values, *widths, codec, column.max_definition_level, chunk.encodings, physical)
