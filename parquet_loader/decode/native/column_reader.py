"""Decodes column chunks of flat numbers and fixed-width bytes with kernels, without Arrow.

The kernels decode PLAIN and dictionary pages without nulls, uncompressed or compressed by Snappy, LZ4, gzip or zstd, in
one call for all columns. That takes about half of Arrow's CPU time. Arrow decodes everything else. The kernels accept a
page only if all levels, runs and lengths in it are consistent; otherwise Arrow decodes the column chunk, or reports the
damage.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import KERNELS, LOADED_CODECS, SYSTEM
from parquet_loader.source import ColumnChunk, Leaf, Metadata, MetadataError

_CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "LZ4": 2, "GZIP": 3, "ZSTD": 4}
_ENCODINGS = {"PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE", "BIT_PACKED"}
_CODED = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}
_PHYSICAL = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}


class NotDecodedError(ValueError):
    """The kernels cannot decode the pages: nulls, other encodings, damage, or no memory for the claimed sizes.

    Arrow then reads them, or reports the error.
    """


def is_known_type(type_: pa.DataType) -> bool:
    """Whether pages hold values of an Arrow type as Arrow does, or extended to a wider integer."""
    return bool(
        pa.types.is_integer(type_)
        or pa.types.is_float32(type_)
        or pa.types.is_float64(type_)
        or (pa.types.is_fixed_size_binary(type_) and type_.byte_width > 0)
    )


def is_known_codec(name: str) -> bool:
    """Whether the kernels decompress a codec on this machine: gzip and zstd need the system's libraries."""
    codec = _CODECS.get(name.upper())
    return codec is not None and bool(LOADED_CODECS >> codec & 1)


class DecodableChunks(NamedTuple):
    """Column chunks of a row group that the kernels can probably decode.

    Attributes:
        names: The names of the columns.
        types: The Arrow types of the result, as in `pyarrow.parquet`.
        lines: int64 ``[columns, 10]``, the description of each for `column_chunks.c`.
    """

    names: list[str]
    types: list[pa.DataType]
    lines: npt.NDArray[np.int64]


def decodable_chunks(footer: Metadata, row_group: int, names: Iterable[str], schema: pa.Schema) -> DecodableChunks:
    """Return the column chunks of a row group that the kernels can probably decode.

    Args:
        footer: The file's footer.
        row_group: The row group's number in the file.
        names: The columns that are read.
        schema: The file's Arrow schema.
    """
    paths = footer.paths
    # Arrow resolves names that are ambiguous: two columns of one name, or a dot, which may separate a struct's field.
    is_unambiguous = len(set(paths)) == len(paths)
    leaves = {path: number for number, path in enumerate(paths) if is_unambiguous and "." not in path}
    types = {field.name: field.type for field in schema if is_known_type(field.type)}
    known, rows = dict[str, tuple[int, ...]](), int(footer.row_group_rows[row_group])
    always_compressed = is_always_compressed(footer.created_by)
    for name in names:
        if name in leaves and name in types:
            leaf = leaves[name]
            try:
                chunk = footer.check(row_group, leaf)
            except MetadataError:  # raised again when Arrow reads the column
                continue
            has_nulls = footer.null_count(row_group, leaf) != 0
            line = _line(types[name], chunk, footer.schema.leaves[leaf], rows, has_nulls=has_nulls)
            known |= {} if line is None else {name: (*line, int(always_compressed))}
    return DecodableChunks(
        list(known), [types[name] for name in known], np.array([*known.values()], np.int64).reshape(-1, 10)
    )


def is_always_compressed(created_by: str) -> bool:
    """Whether pages of version 2 are compressed although their headers say otherwise, as before parquet-cpp of Arrow 3.

    Arrow decides the same way; see PARQUET-10353.
    """
    return created_by.lower().split(" ")[0] == "parquet-cpp"


def _line(
    type_: pa.DataType, chunk: ColumnChunk, column: Leaf, rows: int, *, has_nulls: bool
) -> tuple[int, ...] | None:
    width, delivered = _PHYSICAL.get(column.physical_type, 0), type_.bit_width // 8
    if column.physical_type == "FIXED_LEN_BYTE_ARRAY" and pa.types.is_fixed_size_binary(type_):
        width = column.length
    is_narrowed = column.physical_type == "INT32" and pa.types.is_integer(type_) and delivered < width
    nullable = column.max_definition_level
    if (
        not is_known_codec(chunk.codec_name)
        or (width != delivered and not is_narrowed)
        or column.max_repetition_level
        or nullable > 1
        or (nullable and has_nulls)
        or not _ENCODINGS.issuperset(encodings := chunk.encoding_names)
    ):
        return None
    plain, coded = "PLAIN" in encodings, not _CODED.isdisjoint(encodings)
    end = chunk.start + chunk.stored_bytes
    return (chunk.start, end, rows, width, delivered, _CODECS[chunk.codec_name], int(nullable), int(plain), int(coded))


class NativeChunks:
    """Column chunks of one row group, open for a forward read. Used by one thread at a time.

    Until `close` it holds a decompressed page and dictionary of each column, and the largest compressed page.

    Args:
        source: A path, or the file's bytes in memory.
        known: The column chunks to read.

    Raises:
        OSError: the file cannot be opened.
        MemoryError: there is no memory.
    """

    def __init__(self, source: str | pa.Buffer, known: DecodableChunks) -> None:
        self.names, self._types, lines = known
        self._position = 0
        self._widths: list[int] = lines[:, 4].tolist()
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

    def read(self, rows: int) -> list[pa.Array]:
        """Return the next rows of each column, each in its own memory, because they are released at different times.

        Raises:
            NotDecodedError: the pages cannot be decoded, end too early, or claim more than memory can hold; nothing
                more can be read.
            OSError: the file cannot be read.
        """
        try:
            buffers = [pa.allocate_buffer(width * rows) for width in self._widths]
        except (MemoryError, OverflowError) as error:
            raise NotDecodedError("there is no memory for this many rows") from error
        self._read(rows, np.array([buffer.address for buffer in buffers], np.int64))
        return [
            pa.Array.from_buffers(type_, rows, [None, buffer], null_count=0)
            for type_, buffer in zip(self._types, buffers, strict=True)
        ]

    def read_into(self, first: int, rows: int, addresses: npt.NDArray[np.int64]) -> None:
        """Read the rows from row `first` of the row group on, each column to its own address.

        Args:
            first: The first row, not before the position of the reader; rows in between are skipped.
            rows: Number of rows.
            addresses: int64 ``[columns]``, the address of space for that many values of each; not checked.

        Raises:
            As `read` does.
        """
        if first > self._position:
            self._read(first - self._position, None)
        self._read(rows, addresses)

    def _read(self, rows: int, addresses: npt.NDArray[np.int64] | None) -> None:
        code = KERNELS.chunks_read(self._chunks, rows, None if addresses is None else addresses.ctypes.data)
        self._position += rows
        if code == SYSTEM:
            raise OSError(errno.EIO, "the system could not read the file")
        if code:
            raise NotDecodedError("the pages do not match the footer")

    def close(self) -> None:
        """Close the file and release all buffers; idempotent."""
        chunks, self._chunks = getattr(self, "_chunks", None), None
        if chunks:
            KERNELS.chunks_close(chunks)
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
        self._held = None
