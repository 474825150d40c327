"""Decodes column chunks of flat numbers and bytes with kernels, without Arrow.

The kernels decode plain, dictionary, DELTA_BINARY_PACKED, DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY, BYTE_STREAM_SPLIT
and boolean pages, with nulls or without, uncompressed or compressed by Snappy, LZ4, gzip or zstd, in one call for all
columns. That takes about half of Arrow's CPU time. Of byte arrays they deliver views (an address and a length) of
decompressed pages, from which each value is copied once. Arrow decodes everything else. The kernels accept a page only
if all levels, runs and lengths in it are consistent; otherwise Arrow decodes the column chunk, or reports the damage.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import KERNELS, LOADED_CODECS, READ_BEHIND, SYSTEM, IntArray
from parquet_loader.decode.native.list_reader import ListReader
from parquet_loader.decode.page_headers import most_bytes_of_page
from parquet_loader.source import Metadata, ReadableChunk, RowGroupFooter

_CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "LZ4": 2, "GZIP": 3, "ZSTD": 4}
_LEVELS = {"RLE", "BIT_PACKED"}
_ENCODINGS = {"PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "BYTE_STREAM_SPLIT", *_LEVELS}
# Conversions, as in `decimals.h` and `timestamps.h`; the scale is added to the second.
_WIDE_DECIMALS, _NEAREST_DECIMALS, _INT96_TIMESTAMPS = 1, 2, 64
# Further encodings of a physical type.
_MORE_ENCODINGS = {
    "INT32": {"DELTA_BINARY_PACKED"},
    "INT64": {"DELTA_BINARY_PACKED"},
    "BYTE_ARRAY": {"DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"},
}
_BYTE_ARRAY, _TEXT = 4, 5  # numbers of physical types
_VIEW_BYTES, _INT96_BYTES = 16, 12
# For each physical type: its number in `chunks/column.h`, and the bytes of a value (of an unpacked boolean).
_PHYSICAL = {"INT32": (1, 4), "INT64": (1, 8), "FLOAT": (2, 4), "DOUBLE": (2, 8), "BOOLEAN": (3, 1)}


class NotDecodedError(ValueError):
    """The kernels cannot decode pages of some columns: nulls, other encodings, damage, or no memory for claimed sizes.

    Arrow then reads these columns, or reports the error.

    Attributes:
        columns: The columns, which the kernels refuse from now on.
        others: The rows of the other columns, if arrays were requested.
    """

    def __init__(self, columns: Iterable[str], others: Mapping[str, pa.Array] | None = None) -> None:
        self.columns = frozenset(columns)
        self.others = others or {}
        super().__init__(f"the kernels cannot decode the pages of {', '.join(sorted(self.columns))}")


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


def is_known_codec(name: str) -> bool:
    """Whether the kernels decompress a codec on this machine: gzip and zstd need the system's libraries."""
    codec = _CODECS.get(name.upper())
    return codec is not None and bool(LOADED_CODECS >> codec & 1)


def is_known_list(type_: pa.DataType) -> bool:
    """Whether a type is a list of numbers; the kernels decode it to rows if all lists have one length."""
    t = pa.types
    if not (t.is_list(type_) or t.is_large_list(type_) or t.is_fixed_size_list(type_)):
        return False
    return bool(t.is_integer(type_.value_type) or t.is_float32(type_.value_type) or t.is_float64(type_.value_type))


class AliveRows(NamedTuple):
    """Rows of a row group, some of which are deleted.

    Attributes:
        first: The first row, which is not deleted.
        stop: One more than the last row, which is not deleted.
        deleted: int64, contiguous, sorted, the deleted rows between these.
    """

    first: int
    stop: int
    deleted: npt.NDArray[np.int64]


class Dictionary(NamedTuple):
    """The dictionary of a column of byte arrays.

    Attributes:
        address: The address of the views of its entries, 16 bytes each.
        entries: Number of entries.
        nbytes: The bytes of all entries.
    """

    address: int = 0
    entries: int = 0
    nbytes: int = 0


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


class DecodableChunks(NamedTuple):
    """Column chunks of a row group that the kernels can probably decode.

    Attributes:
        names: The names of the columns.
        types: The Arrow types of the result, as in `pyarrow.parquet`.
        lines: int64 ``[columns, 14]``, the description of each for `chunks_open` of `chunks/column_chunks.c`.
        nullable: For each, whether it may have nulls, because the footer does not exclude them.
    """

    names: list[str]
    types: list[pa.DataType]
    lines: npt.NDArray[np.int64]
    nullable: list[bool]


class Fills(NamedTuple):
    """The values that replace nulls of some columns.

    Attributes:
        values: uint8 ``[columns, 16]``: the bytes of a number or view, followed by zeros.
        are_given: bool ``[columns]``: whether a column has such a value.
        viewed: The bytes of each view, by name, followed by zeros that the kernels may read.
        addresses: int64 ``[columns]``: the address of each column's value; 0 without one.
    """

    values: npt.NDArray[np.uint8]
    are_given: npt.NDArray[np.bool_]
    viewed: Mapping[str, npt.NDArray[np.uint8]]
    addresses: npt.NDArray[np.int64]

    @classmethod
    def of_columns(cls, names: Sequence[str], values: Mapping[str, bytes], byte_arrays: Collection[str] = ()) -> Self:
        """Return the values of columns, by name: at most 8 bytes each, except of `byte_arrays`."""
        given = [name for name in names if name in values]
        viewed = {n: np.frombuffer(values[n] + bytes(READ_BEHIND), np.uint8) for n in given if n in byte_arrays}
        words = dict(values)
        for name, held in viewed.items():
            words[name] = np.array([held.ctypes.data, len(values[name])], np.int64).tobytes()
        joined = b"".join(words.get(name, b"").ljust(_VIEW_BYTES, b"\0") for name in names)
        are_given = np.array([name in values for name in names], np.bool_)
        bytes_of_all = np.frombuffer(joined, np.uint8).reshape(-1, _VIEW_BYTES)
        first = bytes_of_all.__array_interface__["data"][0]
        addresses = np.where(are_given, first + _VIEW_BYTES * np.arange(len(names)), 0)
        return cls(bytes_of_all, are_given, viewed, addresses)


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
    demands: Mapping[str, RowDemand] | None = None,
    refused: dict[str, str] | None = None,
    floats: Collection[str] = (),
    texts: Collection[str] = (),
) -> DecodableChunks:
    """Return the column chunks of a row group that the kernels can probably decode.

    Args:
        footer: The footer's entries for the columns of `names`, and perhaps others.
        names: The columns that are read.
        schema: The file's Arrow schema.
        rows: Rows of the row group.
        demands: The conditions of columns whose rows are decoded to their slots.
        refused: Receives the reason for each column that is not returned.
        floats: Columns of decimals that become the nearest float64.
        texts: Columns for which the kernels check that values are UTF-8.
    """
    reasons: dict[str, str] = {} if refused is None else refused
    types, known, nullable = dict[str, pa.DataType](), dict[str, tuple[int, ...]](), list[bool]()
    always_compressed = is_always_compressed(footer.metadata.created_by)
    for name in dict.fromkeys(names):
        chunks = footer.chunks[name]
        # Arrow resolves names that are ambiguous: two columns of one name, or a dot that may separate a struct's field.
        if "." in name or len(chunks) != 1 or not footer.has_clear_names:
            reasons[name] = "it has several leaves, or its name is not clear"
            continue
        (chunk,), indices = chunks, schema.get_all_field_indices(name)
        type_ = schema.field(indices[0]).type if len(indices) == 1 else pa.null()
        if not isinstance(chunk, ReadableChunk):  # a `MetadataError`
            reasons[name] = str(chunk)
            continue
        list_values, demand = 0, (demands or {}).get(name)
        if demand is not None and not demand.allows(chunk):
            reasons[name] = "the footer does not say that it has no nulls"
            continue
        elements = 0
        if is_known_list(type_) and demand is None and not pa.types.is_fixed_size_list(type_):
            elements = 1 + schema.field(indices[0]).nullable
        elif is_known_list(type_):
            list_values = _list_values(type_, chunk, rows)
            if list_values != demand.values if demand is not None else not list_values or chunk.nulls != 0:
                reasons[name] = "the footer does not say that all lists have one length and no nulls"
                continue
        elif demand is None and is_known_bytes(type_):
            reasons[name] = "the kernels decode text and bytes only to the window"
            continue
        elif chunk.leaf.path != name or not (is_known_type(type_) or is_known_bytes(type_)):
            reasons[name] = f"{type_} is not a number, text, bytes, or a list of numbers"
            continue
        line = _line(type_, chunk, rows, list_values, elements, is_text=name in texts)
        if line is None:
            reasons[name] = _why_not(type_, chunk)
        else:
            of_lists = (rows, elements) if elements else (list_values, 0)
            conversion = _WIDE_DECIMALS if pa.types.is_decimal128(type_) else 0
            if conversion and name in floats:
                type_, conversion = pa.float64(), _NEAREST_DECIMALS + type_.scale
            elif chunk.leaf.physical_type == "INT96":
                conversion = _INT96_TIMESTAMPS
            types[name] = type_
            known[name] = (*line, int(always_compressed), *of_lists, conversion, most_bytes_of_page(chunk))
            nullable.append(chunk.leaf.max_definition_level > 0 and chunk.nulls != 0)
    lines = np.array([*known.values()], np.int64).reshape(-1, 14)
    return DecodableChunks(list(known), [types[name] for name in known], lines, nullable)


def _why_not(type_: pa.DataType, chunk: ReadableChunk) -> str:
    """Return why `_line` returns None for a column chunk."""
    if not is_known_codec(chunk.codec_name):
        return f"the kernels do not decompress {chunk.codec_name.lower()}"
    others = [e for e in chunk.encoding_names if e not in _known_encodings(chunk.leaf.physical_type)]
    if others:
        return f"the kernels do not decode {' and '.join(others)}"
    return f"the kernels do not decode {type_} that is stored as {chunk.leaf.physical_type}"


def _known_encodings(physical_type: str) -> set[str]:
    return _ENCODINGS | _MORE_ENCODINGS.get(physical_type, set())


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
    type_: pa.DataType, chunk: ReadableChunk, rows: int, list_values: int, elements: int, *, is_text: bool
) -> tuple[int, ...] | None:
    levels = (1, 3) if list_values else (0, 1)
    if elements:
        levels = 1, elements + type_.value_field.nullable
        if chunk.leaf.max_definition_level != levels[1]:
            return None
    type_ = type_.value_type if list_values or elements else type_
    column, encodings = chunk.leaf, chunk.encoding_names
    is_boolean = pa.types.is_boolean(type_)
    physical, width = _PHYSICAL.get(column.physical_type, (0, 0))
    is_decimal, are_bytes = pa.types.is_decimal128(type_), column.physical_type == "FIXED_LEN_BYTE_ARRAY"
    if are_bytes and (pa.types.is_fixed_size_binary(type_) or pa.types.is_float16(type_) or is_decimal):
        width = column.length
    if column.physical_type == "BYTE_ARRAY" and is_known_bytes(type_):
        physical, width = _TEXT if is_text else _BYTE_ARRAY, _VIEW_BYTES
    delivered = 1 if is_boolean else _VIEW_BYTES if is_known_bytes(type_) else type_.bit_width // 8
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


class NativeChunks:
    """Column chunks of one row group, open for a forward read. Used by one thread at a time.

    Until `close` it holds a decompressed page and dictionary of each column, and a compressed page. Pages with
    delivered views are held until `release`, or until the next rows are read.

    Args:
        source: A path, or the file's bytes in memory.
        known: The column chunks to read.
        fills: Replaces nulls in `read_into` and `read_alive`, which refuse nulls of other columns.

    Attributes:
        names: The columns, without those that could not be decoded.

    Raises:
        OSError: the file cannot be opened.
        MemoryError: there is no memory.
    """

    def __init__(self, source: str | pa.Buffer, known: DecodableChunks, fills: Fills | None = None) -> None:
        self.names, self._types, lines, self._nullable = known
        self._fills = fills  # keeps the memory of `_fillers`
        self._fillers = None if fills is None else fills.addresses
        self._all_names = self.names
        self._refused = np.zeros(len(self.names), np.uint8)
        self._refused_address: int = self._refused.ctypes.data
        self._has_byte_arrays = bool((lines[:, 8] >= _BYTE_ARRAY).any())
        self._position = 0
        self._lines = lines
        self._list_readers = {
            n: ListReader(n, self._types[n], *lines[n, [2, 10]].tolist()) for n in np.flatnonzero(lines[:, 11]).tolist()
        }
        self._file, self._held, base = -1, None, None
        if isinstance(source, str):
            self._file = os.open(source, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            size = os.fstat(self._file).st_size
        else:
            self._held, base, size = source, source.address, source.size
        self._chunks = KERNELS.chunks_open(self._file, base, size, lines.ctypes.data, len(lines))
        if not self._chunks:
            self.close()
            raise MemoryError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @cached_property
    def _list_values(self) -> list[int]:
        """The number of values of each column's rows, if they are lists of one length; else 0."""
        lines = self._lines
        found: list[int] = np.where(lines[:, 11] == 0, lines[:, 10], 0).tolist()
        return found

    @cached_property
    def _widths(self) -> list[int]:
        """The bytes of a row of each column, without columns of lists of any length."""
        lines = self._lines
        of_converted = np.where(lines[:, 12] == _WIDE_DECIMALS, 16, 8)
        widths: IntArray = np.where(lines[:, 12] == 0, lines[:, 4], of_converted) * np.maximum(1, self._list_values)
        found: list[int] = np.where(lines[:, 11] == 0, widths, 0).tolist()
        return found

    def read(self, rows: int) -> list[pa.Array]:
        """Return the next rows of each column, each in its own memory, because they are released at different times.

        Raises:
            NotDecodedError: pages of some columns cannot be decoded, end too early, or claim more than memory can hold;
                the error has the rows of the other columns, which can be read further.
            OSError: the file cannot be read.
        """
        try:
            buffers = [pa.allocate_buffer(width * rows) for width in self._widths]
            defined = [np.empty(rows, np.bool_) if nullable else None for nullable in self._nullable]
        except (MemoryError, OverflowError) as error:
            raise NotDecodedError(self.names) from error
        addresses = np.array([buffer.address for buffer in buffers], np.int64)
        masks = np.array([0 if mask is None else mask.ctypes.data for mask in defined], np.int64)
        failed = frozenset[str]()
        try:
            self._read(rows, addresses, defined=masks)
        except NotDecodedError as error:
            failed = error.columns
        lists = self._read_lists(rows)
        failed |= {self._all_names[number] for number, array in lists.items() if array is None}
        arrays = {
            name: lists[number]
            if number in lists
            else _lists(type_, buffer, each, rows)
            if each
            else _array(type_, buffer, mask, rows)
            for number, name, type_, buffer, mask, each, is_refused in zip(
                range(len(self._all_names)),
                self._all_names,
                self._types,
                buffers,
                defined,
                self._list_values,
                self._refused.tolist(),
                strict=True,
            )
            if not is_refused
        }
        if failed:
            raise NotDecodedError(failed, arrays)
        return list(arrays.values())

    def _read_lists(self, rows: int) -> dict[int, pa.Array | None]:
        """Return the next rows of columns of lists of any length, by number; None for a column that failed."""
        found = dict[int, pa.Array | None]()
        for number, reader in self._list_readers.items():
            if self._refused[number]:
                continue
            try:
                found[number] = reader.read(self._chunks, rows)
            except (MemoryError, OverflowError):
                found[number] = None
            if found[number] is None:
                self._refused[number] = 1
                self.names = [name for name in self.names if name != self._all_names[number]]
        return found

    @property
    def most_list_bytes(self) -> dict[str, int]:
        """The most bytes that the remaining rows of each column of lists of any length take."""
        readers = self._list_readers.items()
        return {self._all_names[n]: reader.most_bytes for n, reader in readers if not self._refused[n]}

    def read_all_lists(self, memory: Mapping[str, npt.NDArray[np.uint8]]) -> dict[str, IntArray]:
        """Write the elements of all remaining rows of columns of lists of any length; see `ListReader.read_all`.

        Args:
            memory: Memory of `most_list_bytes`, by column; all of these columns.

        Raises:
            NotDecodedError: some columns have nulls, or their pages cannot be decoded; the others were written.
            OSError: the file cannot be read.
        """
        found = dict[str, IntArray]()
        for number, reader in self._list_readers.items():
            name = self._all_names[number]
            offsets = reader.read_all(self._chunks, memory[name])
            if offsets is not None:
                found[name] = offsets
        if len(found) < len(memory):
            raise NotDecodedError(memory.keys() - found.keys())
        return found

    def dictionaries(self) -> dict[str, Dictionary]:
        """Return the dictionaries to whose entries views may refer, by column; valid as long as the views."""
        if not self._has_byte_arrays:
            return {}
        found = np.zeros((len(self._all_names), 3), np.int64)
        KERNELS.chunks_dictionaries(self._chunks, found.ctypes.data)
        return {name: Dictionary(*line) for name, line in zip(self._all_names, found.tolist(), strict=True) if line[1]}

    def release(self) -> None:
        """Release the delivered views of byte arrays."""
        if self._chunks:
            KERNELS.chunks_release(self._chunks)

    def read_into(
        self, first: int, rows: int, addresses: npt.NDArray[np.int64], slots: Sequence[IntArray | None] = ()
    ) -> None:
        """Read the rows from row `first` of the row group on, each column to its own address.

        Lists of any length are not read; see `read_all_lists`.

        Args:
            first: The first row, not before the position of the reader; rows in between are skipped.
            rows: Number of rows.
            addresses: int64 ``[columns]``, the address of memory for that many values of each; not checked.
            slots: For each column, the target of each row, counted in rows from the address, not checked; None keeps
                the order. Empty means None for all.

        Raises:
            NotDecodedError: pages of some columns cannot be decoded; the rows of the others were written.
            OSError: the file cannot be read.
        """
        if first > self._position:
            self._read(first - self._position, None)
        self._read(rows, addresses, fillers=self._fillers, slots=slots)

    def read_alive(
        self, alive: AliveRows, addresses: npt.NDArray[np.int64], slots: Sequence[IntArray | None] = ()
    ) -> None:
        """Read rows of the row group, each column to its own address, and skip deleted ones.

        Args:
            alive: The rows, at least one, not before the position of the reader.
            addresses, slots: As in `read_into`; deleted rows also have slots.

        Raises:
            As `read_into` does.
        """
        if not len(alive.deleted):
            self.read_into(alive.first, alive.stop - alive.first, addresses, slots)
            return
        self._read(alive.stop - self._position, addresses, alive, fillers=self._fillers, slots=slots)

    def _read(
        self,
        rows: int,
        addresses: npt.NDArray[np.int64] | None,
        alive: AliveRows | None = None,
        *,
        defined: npt.NDArray[np.int64] | None = None,
        fillers: npt.NDArray[np.int64] | None = None,
        slots: Sequence[IntArray | None] = (),
    ) -> None:
        if not self._chunks:
            raise ValueError("the column chunks are closed")
        contiguous = [None if rows_of is None else np.ascontiguousarray(rows_of, np.int64) for rows_of in slots]
        places = None
        if contiguous:
            places = np.array([0 if rows_of is None else rows_of.ctypes.data for rows_of in contiguous], np.int64)
        arrays = (addresses, defined, fillers, places)
        pointers = [None if array is None else array.ctypes.data for array in arrays]
        gone: tuple[int | None, int, int, int] = (None, 0, 0, 0)
        if alive is not None:
            gone = (alive.deleted.ctypes.data, len(alive.deleted), alive.first - self._position, self._position)
        code = KERNELS.chunks_read(self._chunks, rows, *gone, *pointers, self._refused_address)
        self._position += rows
        if code == SYSTEM:
            raise OSError(errno.EIO, "the system could not read the file")
        if code:
            before = self.names
            self.names = [name for name, refused in zip(self._all_names, self._refused, strict=True) if not refused]
            if len(self.names) == len(before):  # the failure is not about single columns
                self._refused[:], self.names = 1, []
            raise NotDecodedError(set(before).difference(self.names))

    def close(self) -> None:
        """Close the file and release all buffers; idempotent."""
        chunks, self._chunks = getattr(self, "_chunks", None), None
        if chunks:
            KERNELS.chunks_close(chunks)
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
        self._held = None


def _array(type_: pa.DataType, values: pa.Buffer, defined: npt.NDArray[np.bool_] | None, rows: int) -> pa.Array:
    """Return an array of decoded values, in which booleans take a byte each; `defined` is False for null rows."""
    nulls = 0 if defined is None else rows - int(np.count_nonzero(defined))
    validity = None if defined is None or not nulls else pa.py_buffer(np.packbits(defined, bitorder="little"))
    if pa.types.is_boolean(type_):
        values = pa.py_buffer(np.packbits(np.frombuffer(values, np.uint8), bitorder="little"))
    return pa.Array.from_buffers(type_, rows, [validity, values], nulls)


def _lists(type_: pa.DataType, values: pa.Buffer, each: int, rows: int) -> pa.Array:
    """Return lists of `each` numbers."""
    numbers = pa.Array.from_buffers(type_.value_type, rows * each, [None, values], 0)
    buffers: list[pa.Buffer | None] = [None]
    if not pa.types.is_fixed_size_list(type_):
        offsets = np.arange(0, (rows + 1) * each, each)
        buffers.append(pa.py_buffer(offsets if pa.types.is_large_list(type_) else offsets.astype(np.int32)))
    return pa.Array.from_buffers(type_, rows, buffers, 0, children=[numbers])
