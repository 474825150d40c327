"""Parses footers: the row groups, and offset, codec, encodings and statistics of each column chunk.

Footers are untrusted input, and pyarrow crashes the process on some damaged ones. So this module parses them itself,
bounded by their length. pyarrow gets only consistent footers: it derives the Arrow schema, and reads column chunks that
`Metadata.check` has accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.common import ENDED, IS_BUILT, KERNELS, BoolArray, IntArray
from parquet_loader.source.arrow_schema import UNKNOWN_ARROW_SCHEMA_KEY
from parquet_loader.source.file_schema import (
    LENGTH_AND_MARK_BYTES,
    MARK,
    FileSchema,
    Leaf,
    MetadataError,
    file_schema,
    without_later_annotations,
)
from parquet_loader.source.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    CompactReader,
    ThriftError,
    TruncatedThriftError,
)

PHYSICAL_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4_HADOOP", "ZSTD", "LZ4")  # LZ4: raw, as pyarrow says
ENCODINGS = (
    "PLAIN",
    "GROUP_VAR_INT",
    "PLAIN_DICTIONARY",
    "RLE",
    "BIT_PACKED",
    "DELTA_BINARY_PACKED",
    "DELTA_LENGTH_BYTE_ARRAY",
    "DELTA_BYTE_ARRAY",
    "RLE_DICTIONARY",
    "BYTE_STREAM_SPLIT",
)

_ARROW_SCHEMA_KEY = b"ARROW:schema"  # as long as the key that replaces it, so all offsets stay

# The most bytes or values that a row group or column chunk may claim.
_MOST = 2**40

# Numbers for a file, a row group and a column chunk; keep in step with `footer_read` in `common/native/src/footers.c`.
FILE_NUMBERS, GROUP_NUMBERS, CHUNK_NUMBERS = 12, 3, 21
_FEW_GROUPS, _FEW_CHUNKS = 8, 256
_ELSEWHERE, _ENCRYPTED = 1, 2
_KIND = [0, 1, 2, 8]  # physical type, codec, encodings and flags of a `ColumnChunk`
_TYPE_ORDER = b"\x1c\x00\x00"  # a union whose field 1 is an empty struct
_NO_CHUNK = (-1, -1, 0, 0, 0, 0, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, -1, 0, -1)


class ColumnChunk(NamedTuple):
    """A footer's entry for a column chunk, not validated; missing numbers are -1.

    Attributes:
        physical_type: Index in `PHYSICAL_TYPES`; may be out of range.
        codec: Index in `CODECS`; may be out of range.
        encodings: One bit for each index in `ENCODINGS`; bit 62 for others.
        values: Number of values, including nulls.
        encoded_bytes, stored_bytes: Size before and after compression, including page headers.
        data_at, dictionary_at: Offsets of the first data page and of the dictionary page in the file.
        flags: Bit 0: it is in another file; bit 1: it is encrypted.
        nulls: Number of nulls.
        least_at, least_bytes, greatest_at, greatest_bytes: Offset and size of the smallest and largest value in the
            footer.
        old_least_at, old_least_bytes, old_greatest_at, old_greatest_bytes: The same for the deprecated fields.
        index_at, index_bytes: Offset and size of its offset index in the file.
        unencoded_bytes: Bytes of all its values, without lengths, if they are byte arrays; few writers tell it.
    """

    physical_type: int
    codec: int
    encodings: int
    values: int
    encoded_bytes: int
    stored_bytes: int
    data_at: int
    dictionary_at: int
    flags: int
    nulls: int
    least_at: int
    least_bytes: int
    greatest_at: int
    greatest_bytes: int
    old_least_at: int
    old_least_bytes: int
    old_greatest_at: int
    old_greatest_bytes: int
    index_at: int
    index_bytes: int
    unencoded_bytes: int

    @property
    def start(self) -> int:
        """Offset of its first page in the file."""
        return self.dictionary_at if 0 < self.dictionary_at < self.data_at else self.data_at

    @property
    def codec_name(self) -> str:
        """The name of the codec."""
        return CODECS[self.codec] if 0 <= self.codec < len(CODECS) else f"codec {self.codec}"

    @property
    def encoding_names(self) -> list[str]:
        """The names of the encodings of pages and levels."""
        return list(_encoding_names(self.encodings))


@lru_cache(maxsize=256)
def _encoding_names(bits: int) -> tuple[str, ...]:
    """Return the names of `ColumnChunk.encodings`."""
    named = tuple(name for number, name in enumerate(ENCODINGS) if bits >> number & 1)
    return named + ("unknown",) * bool(bits >> len(ENCODINGS))


class ReadableChunk(NamedTuple):
    """A column chunk that `Metadata.check` has accepted, as plain values for decoders.

    Attributes:
        leaf: Its column.
        start: Offset of its first page in the file.
        stored_bytes, encoded_bytes, values, dictionary_at, encodings, codec_name, encoding_names: As in `ColumnChunk`.
        nulls: See `Metadata.null_count`.
    """

    leaf: Leaf
    start: int
    stored_bytes: int
    encoded_bytes: int
    values: int
    dictionary_at: int
    encodings: int
    codec_name: str
    encoding_names: Sequence[str]
    nulls: int | None


class RowGroupEntries(NamedTuple):
    """A footer's entries for some leaves of some row groups; keeps nothing else of the footer.

    Attributes:
        elements, created_by: The schema elements and the writer of the file.
        leaves: The leaves, int64 ``[chunks]``, sorted.
        chunks: The entries of their column chunks, int64 ``[row groups, chunks, 21]``.
        rows: Rows of each row group, int64 ``[row groups]``.
        file_bytes: The bytes of the file.
    """

    elements: bytes
    created_by: str
    leaves: IntArray
    chunks: IntArray
    rows: IntArray
    file_bytes: int


class ChunkPattern(NamedTuple):
    """The footer's entries of one row group, to which other row groups are compared; each chunk is a column of its own.

    `Metadata.check` has accepted these chunks.

    Attributes:
        elements, created_by: The schema elements and the writer of their file.
        leaves: The leaf of each, int64 ``[chunks]``.
        entries: The footer's entries, int64 ``[chunks, 21]``.
        takes_nulls: Whether it does not matter which of them have nulls, bool ``[chunks]``.
        row_values: The values of a row, int64 ``[chunks]``: 1, the length of lists of one length, or 0 for lists of any
            length.
    """

    elements: bytes
    created_by: str
    leaves: IntArray
    entries: IntArray
    takes_nulls: BoolArray
    row_values: IntArray

    def extents(self, files: Sequence[RowGroupEntries]) -> tuple[IntArray, BoolArray]:
        """Return where the column chunks of other row groups are, and which row groups match this one.

        Args:
            files: For each file, the entries of some of its row groups, for these leaves and perhaps others.

        Returns:
            Int64 ``[row groups, chunks, 4]``: the start and end of each column chunk, its bytes before compression, and
            its values. And bool ``[row groups]``: whether a row group differs from this one in nothing else. False if
            `Metadata.check` may refuse a chunk, or if the file's schema or writer, a type, codec or encoding, or the
            presence of nulls differs.
        """
        counts, at = [len(one.rows) for one in files], np.searchsorted(files[0].leaves, self.leaves)
        fit = [one.elements == self.elements and one.created_by == self.created_by for one in files]
        of_files = zip(files, counts, fit, strict=True)
        entries = np.concatenate([one.chunks[:, at] if fits else [self.entries] * n for one, n, fits in of_files])
        rows, same = np.concatenate([one.rows for one in files])[:, None], np.repeat(fit, counts)
        file_bytes = np.repeat([one.file_bytes for one in files], counts)[:, None]
        values, encoded, stored, data_at, dictionary_at, nulls = np.moveaxis(entries[..., [3, 4, 5, 6, 7, 9]], -1, 0)
        starts = np.where((dictionary_at > 0) & (dictionary_at < data_at), dictionary_at, data_at)
        may_be_null = (np.sign(nulls) == np.sign(self.entries[:, 9])) | self.takes_nulls
        match = (
            may_be_null
            & (entries[..., _KIND] == self.entries[:, _KIND]).all(-1)
            & (np.where(self.row_values, values == rows * self.row_values, values >= rows) & (values <= _MOST))
            & ((nulls <= values) & (encoded >= 0) & (encoded <= _MOST))
            & ((starts >= 0) & (stored >= 0) & (stored <= file_bytes - starts))
        )
        return np.stack([starts, starts + stored, encoded, values], axis=-1), match.all(-1) & same


@dataclass(frozen=True, slots=True)
class RowGroupFooter:
    """The footer's entries for some columns of one row group, as plain values.

    Attributes:
        metadata: The whole footer.
        arrow: The footer for pyarrow's readers; None if it was not requested.
        stored_bytes: Bytes of these columns in the file.
        chunks: The column chunks at and below each name, or the error why one cannot be read; empty if they were not
            requested.
        has_clear_names: Whether all leaf columns of the file have different names.
        pattern: The entries of `chunks`, for `ChunkPattern.extents`; None without them.
    """

    metadata: Metadata
    arrow: pq.FileMetaData | None
    stored_bytes: int
    chunks: Mapping[str, tuple[ReadableChunk | MetadataError, ...]]
    has_clear_names: bool
    pattern: ChunkPattern | None = None


class Numbers(NamedTuple):
    """A footer as plain numbers.

    Attributes:
        file: Rows; row groups; column chunks; begin and end of the schema in the footer; of the keys and values;
            whether the footer names an encryption algorithm; begin and end of the column orders; of the writer's name.
        groups: int64 ``[row groups, 3]``: rows, bytes, columns.
        chunks: int64 ``[column chunks, 21]``, as in `ColumnChunk`.
    """

    file: Sequence[int]
    groups: IntArray
    chunks: IntArray


class Metadata:
    """A parsed footer. Immutable; any thread may use it.

    Attributes:
        raw: Its bytes, without annotations that pyarrow refuses.
        file_bytes: The size of its file.
        schema: The file's schema.
        num_rows, num_columns, num_row_groups: As in the footer.
        created_by: The program that wrote the file.
        has_type_order: Whether the statistics of all columns use the order that their type defines.
        row_group_rows, row_group_bytes: int64 ``[row groups]``, rows, and bytes before compression.
        row_group_unencoded_bytes: int64 ``[row groups]``, as `row_group_bytes`, but text and bytes count without
            dictionaries, if the writer states their size.

    Args:
        raw: The footer, with its length and magic bytes.
        file_bytes: The size of its file.

    Raises:
        MetadataError, ValueError, pyarrow.ArrowException: the footer is damaged, or contradicts itself.
    """

    def __init__(self, raw: bytes, file_bytes: int) -> None:
        raw, numbers, self.schema = read_schema(raw)
        self.raw = raw
        self.file_bytes = file_bytes
        self.num_rows: int = numbers.file[0]
        self.num_columns = len(self.schema.leaves)
        self.num_row_groups = len(numbers.groups)
        self.created_by = raw[slice(*numbers.file[10:12])].decode("utf-8", "replace")
        orders = raw[numbers.file[8] : numbers.file[9]]
        self.has_type_order = bool(orders) and orders.endswith(_TYPE_ORDER * self.num_columns)
        self._chunks = numbers.chunks
        self._passed = set[tuple[int, int]]()
        self.row_group_rows: IntArray = numbers.groups[:, 0]
        self.row_group_bytes: IntArray = self._bytes(numbers.groups[:, 1])
        self.row_group_unencoded_bytes: IntArray = self.row_group_bytes
        self._check(numbers.groups[:, 2])
        if (self._chunks[:, 20] > self._chunks[:, 4]).any():
            self.row_group_unencoded_bytes = self._unencoded_bytes()

    @cached_property
    def arrow(self) -> pq.FileMetaData:
        """The footer for pyarrow's readers, parsed on first use. Do not use its attributes.

        Raises:
            pyarrow.ArrowException, OSError: pyarrow refuses the footer.
        """
        return pq.read_metadata(pa.BufferReader(self.raw))

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the leaf columns, in their order."""
        return self.schema.paths

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the leaf columns, in their order; see `FileSchema`."""
        return self.schema.names

    def arrow_names(self, columns: Iterable[str]) -> list[str]:
        """Return the names that select the leaves at and below these names in pyarrow's readers."""
        leaves = _leaves_below(self.names, tuple(columns))[1]
        return list(dict.fromkeys(self.paths[leaf] for leaf in leaves))

    def chunk(self, row_group: int, column: int) -> ColumnChunk:
        """Return the entry of a column chunk, not validated; see `check`."""
        return ColumnChunk(*self._chunks[row_group * self.num_columns + column].tolist())

    def chunks(self, row_group: int) -> npt.NDArray[np.int64]:
        """Return the entries of a row group's column chunks, int64 ``[columns, 21]``, as in `ColumnChunk`."""
        first = row_group * self.num_columns
        return self._chunks[first : first + self.num_columns]

    def entries(self, row_groups: Sequence[int], leaves: IntArray) -> RowGroupEntries:
        """Return a copy of the entries of leaves of row groups; undefined for leaves that the file does not have."""
        columns = np.minimum(leaves, self.num_columns - 1)
        chunks = self._chunks[np.asarray(row_groups)[:, None] * self.num_columns + columns]
        rows = self.row_group_rows[row_groups]
        return RowGroupEntries(self.schema.elements, self.created_by, leaves, chunks, rows, self.file_bytes)

    def stored_bytes(self, row_group: int, columns: Sequence[int]) -> int:
        """Return the stored bytes of column chunks of a row group, as the footer states them."""
        return int(np.clip(self.chunks(row_group)[columns, 5], 0, _MOST).sum()) if len(columns) else 0

    def check(self, row_group: int, column: int) -> ColumnChunk:
        """Return the entry of a column chunk after validating it.

        Raises:
            MetadataError: it contradicts the schema, the row group or the file's size, or is not supported.
        """
        chunk, leaf = self.chunk(row_group, column), self.schema.leaves[column]
        if (row_group, column) in self._passed:
            return chunk
        start, stop = chunk.start, chunk.start + chunk.stored_bytes
        rows = int(self.row_group_rows[row_group])
        if chunk.flags & _ENCRYPTED:
            raise MetadataError("the column is encrypted, which this library does not read; leave it out by columns=")
        if chunk.flags & _ELSEWHERE:
            raise MetadataError("the footer says that its values are in another file, which this library does not read")
        if not 0 <= chunk.physical_type < 8 or PHYSICAL_TYPES[chunk.physical_type] != leaf.physical_type:
            known = 0 <= chunk.physical_type < 8
            type_ = PHYSICAL_TYPES[chunk.physical_type] if known else str(chunk.physical_type)
            raise MetadataError(f"the footer says that the pages hold {type_}, and the schema {leaf.physical_type}")
        if not 0 <= chunk.codec < len(CODECS):
            raise MetadataError(f"the footer names the compression codec {chunk.codec}, which does not exist")
        if not 0 <= start <= stop <= self.file_bytes:
            raise MetadataError(f"the footer says that it is at bytes {start} to {stop} of {self.file_bytes}")
        if not 0 <= chunk.values <= _MOST or not 0 <= chunk.encoded_bytes <= _MOST:
            raise MetadataError(f"the footer says that it has {chunk.values} values in {chunk.encoded_bytes} bytes")
        if chunk.values != rows and not leaf.max_repetition_level:
            raise MetadataError(f"the footer says that it has {chunk.values} values in {rows} rows")
        self._passed.add((row_group, column))
        return chunk

    def readable(self, row_group: int, column: int) -> ReadableChunk:
        """Return a column chunk for decoders. Raises as `check`."""
        chunk = self.check(row_group, column)
        nulls = chunk.nulls if 0 <= chunk.nulls <= chunk.values else None
        return ReadableChunk(
            self.schema.leaves[column],
            chunk.start,
            chunk.stored_bytes,
            chunk.encoded_bytes,
            chunk.values,
            chunk.dictionary_at,
            chunk.encodings,
            chunk.codec_name,
            _encoding_names(chunk.encodings),
            nulls,
        )

    def of_row_group(self, row_group: int, columns: tuple[str, ...], *, chunks: bool, arrow: bool) -> RowGroupFooter:
        """Return the entries for some columns of a row group.

        Args:
            row_group: The row group's number in the file.
            columns: Names of leaves, or of columns and structs above them; see `names`.
            chunks: Whether to return column chunks.
            arrow: Whether to return the footer for pyarrow's readers. Raises as `arrow`.
        """
        below, leaves, has_clear_names = _leaves_below(self.names, columns)
        found = dict[str, tuple[ReadableChunk | MetadataError, ...]]()
        for name in columns if chunks else ():
            found[name] = tuple(self._readable_or_not(row_group, leaf) for leaf in below[name])
        pattern = None
        if chunks:
            numbers = np.array([leaf for name in columns for leaf in below[name]], np.int64)
            entries = self.chunks(row_group)[numbers]
            takes_nulls, row_values = np.zeros(len(numbers), np.bool_), np.ones(len(numbers), np.int64)
            pattern = ChunkPattern(self.schema.elements, self.created_by, numbers, entries, takes_nulls, row_values)
        return RowGroupFooter(
            self,
            self.arrow if arrow else None,
            self.stored_bytes(row_group, leaves),
            found,
            has_clear_names,
            pattern,
        )

    def _readable_or_not(self, row_group: int, column: int) -> ReadableChunk | MetadataError:
        try:
            return self.readable(row_group, column)
        except MetadataError as error:
            return error

    def null_count(self, row_group: int, column: int) -> int | None:
        """Return the number of nulls of a column chunk; None if the footer states none, or an impossible one."""
        chunk = self.chunk(row_group, column)
        return chunk.nulls if 0 <= chunk.nulls <= chunk.values else None

    def _bytes(self, claimed: IntArray) -> IntArray:
        """Return the bytes of each row group before compression; the stored bytes if the claim is impossible."""
        wrong = np.flatnonzero((claimed < 0) | (claimed > _MOST))
        if not len(wrong):
            return claimed
        claimed = claimed.copy()
        for group in wrong.tolist():
            claimed[group] = int(np.clip(self.chunks(group)[:, 5], 0, _MOST // max(self.num_columns, 1)).sum())
        return claimed

    def _unencoded_bytes(self) -> IntArray:
        """Return the bytes of each row group if text and bytes have no dictionaries."""
        values, encoded = self._chunks[:, 3], np.clip(self._chunks[:, 4], 0, _MOST)
        # No value is longer than the pages of its column chunk.
        most = np.minimum(self._chunks[:, 20], np.clip(values, 0, _MOST) * encoded.astype(np.float64))
        more: IntArray = np.maximum(np.minimum(most, _MOST) - encoded, 0).astype(np.int64)
        with_them: IntArray = self.row_group_bytes + more.reshape(self.num_row_groups, -1).sum(axis=1)
        return with_them

    def _check(self, columns: IntArray) -> None:
        """Check the numbers of columns and rows, on which all other code relies."""
        others = np.flatnonzero(columns != self.num_columns)
        if len(others):
            group = int(others[0])
            raise MetadataError(f"row group {group} has {columns[group]} columns, and the schema {self.num_columns}")
        flat = next((i for i, leaf in enumerate(self.schema.leaves) if not leaf.max_repetition_level), None)
        for group, rows in enumerate(self.row_group_rows.tolist()):
            values, flags = rows, 0
            if flat is not None:
                chunk = self.chunk(group, flat)
                values, flags = chunk.values, chunk.flags
            if not 0 <= rows <= _MOST or (values != rows and not flags & _ENCRYPTED):
                raise MetadataError(f"row group {group} claims {rows} rows, and a column of {values} values")
        rows = sum(self.row_group_rows.tolist())
        if rows != self.num_rows:
            raise MetadataError(f"the footer contradicts itself: {self.num_rows} rows in all, {rows} in row groups")


def read_schema(raw: bytes) -> tuple[bytes, Numbers, FileSchema]:
    """Parse a footer's schema; return the footer without annotations that pyarrow refuses, its numbers, and the schema.

    pyarrow opens no column of a file whose Arrow schema has a type that it lacks, such as Polars' 128-bit integers. The
    returned footer names such an Arrow schema by `UNKNOWN_ARROW_SCHEMA_KEY`, so that only the Parquet types count.

    Raises:
        MetadataError, ValueError, pyarrow.ArrowException: the footer is damaged.
    """
    numbers = footer_numbers(raw, len(raw) - LENGTH_AND_MARK_BYTES)
    at, end = numbers.file[3:5]
    elements, refused = without_later_annotations(raw[at:end])
    if len(elements) != end - at:
        footer = raw[:at] + elements + raw[end:-LENGTH_AND_MARK_BYTES]
        raw = footer + len(footer).to_bytes(4, "little") + MARK
        numbers = footer_numbers(raw, len(footer))
    at, end = numbers.file[5:7]
    key_values = raw[at:end]
    try:
        return raw, numbers, file_schema(elements, key_values, refused)
    except pa.ArrowNotImplementedError:
        renamed = key_values.replace(_ARROW_SCHEMA_KEY, UNKNOWN_ARROW_SCHEMA_KEY)
        return raw[:at] + renamed + raw[end:], numbers, file_schema(elements, renamed, refused)


@lru_cache(maxsize=32)
def _leaves_below(
    names: tuple[str, ...], columns: tuple[str, ...]
) -> tuple[Mapping[str, tuple[int, ...]], tuple[int, ...], bool]:
    """Return the leaf columns at and below each name, all of these, and whether the file's names are all different."""
    below: dict[str, list[int]] = {name: [] for name in columns}
    leaves = list[int]()
    for number, name in enumerate(names):
        heads = [name, *(name[:at] for at, sign in enumerate(name) if sign == ".")]
        named = [head for head in heads if head in below]
        for head in named:
            below[head].append(number)
        leaves += [number] if named else []
    return {name: tuple(numbers) for name, numbers in below.items()}, tuple(leaves), len(set(names)) == len(names)


def footer_numbers(raw: bytes, nbytes: int) -> Numbers:
    """Return a footer of `nbytes` bytes as plain numbers, by the kernel if possible (a hundredth of the time).

    Raises:
        ThriftError: the bytes are not a footer.
    """
    if not IS_BUILT:
        return read_numbers(raw, nbytes)
    file = np.empty(FILE_NUMBERS, np.int64)
    most_groups, most_chunks = _FEW_GROUPS, _FEW_CHUNKS
    while True:
        groups = np.empty((most_groups, GROUP_NUMBERS), np.int64)
        chunks = np.empty((most_chunks, CHUNK_NUMBERS), np.int64)
        buffers = (file.ctypes.data, groups.ctypes.data, most_groups, chunks.ctypes.data, most_chunks)
        code = KERNELS.footer_read(raw, nbytes, *buffers)
        if code == ENDED:
            raise TruncatedThriftError("the bytes end within a field")
        if code:
            raise ThriftError("it is not valid in Thrift's compact protocol")
        group_count, chunk_count = file[1:3].tolist()
        if group_count <= most_groups and chunk_count <= most_chunks:
            return Numbers(file.tolist(), groups[:group_count].copy(), chunks[:chunk_count].copy())
        most_groups, most_chunks = group_count, chunk_count


def read_numbers(raw: bytes, nbytes: int) -> Numbers:
    """As `footer_numbers`, without the kernel."""
    reader = CompactReader(raw, 0, nbytes)
    file, groups, chunks = [0] * FILE_NUMBERS, list[tuple[int, int, int]](), list[list[int]]()
    found = set[int]()
    for field, kind in reader.fields():
        at = reader.position
        if (field, kind) == (3, I64):
            file[0] = reader.number()
        elif (field, kind) == (1, I32):
            reader.number(I32)
        elif (field, kind) == (6, BINARY):
            begin, size = reader.span()
            file[10:12] = begin, begin + size
        elif (field, kind) == (4, LIST):
            groups = [_group(reader, chunks) for _ in range(reader.count(STRUCT))]
        else:
            reader.skip(kind)
            file[7] |= (field, kind) == (8, STRUCT)
            to = {2: 3, 5: 5, 7: 8}.get(field) if kind == LIST else None
            if to is None:
                continue
            file[to : to + 2] = at, reader.position
        found.add(field)
    _require(found, {1, 2, 3, 4})
    file[1:3] = len(groups), len(chunks)
    return Numbers(
        file,
        np.array(groups, np.int64).reshape(-1, GROUP_NUMBERS),
        np.array(chunks, np.int64).reshape(-1, CHUNK_NUMBERS),
    )


def _require(found: set[int], fields: set[int]) -> None:
    if not fields <= found:
        raise ThriftError(f"field {min(fields - found)} is missing")


def _group(reader: CompactReader, chunks: list[list[int]]) -> tuple[int, int, int]:
    numbers, found = [0, 0, 0], set[int]()
    for field, kind in reader.fields():
        if (field, kind) == (1, LIST):
            numbers[2] = reader.count(STRUCT)
            chunks += [_chunk(reader) for _ in range(numbers[2])]
        elif kind == I64 and field in (2, 3):
            numbers[3 - field] = reader.number()
        else:
            reader.skip(kind)
            continue
        found.add(field)
    _require(found, {1, 2, 3})
    return numbers[0], numbers[1], numbers[2]


def _chunk(reader: CompactReader) -> list[int]:
    chunk, is_described = list(_NO_CHUNK), False
    for field, kind in reader.fields():
        if (field, kind) == (3, STRUCT):
            _column(reader, chunk)
            is_described = True
            continue
        if (field, kind) == (4, I64):
            chunk[18] = reader.number()
            continue
        if (field, kind) == (5, I32):
            chunk[19] = reader.number(I32)
            continue
        if (field, kind) == (1, BINARY):
            if reader.span()[1]:  # an empty path is this file
                chunk[8] |= _ELSEWHERE
            continue
        if (field, kind) in ((8, STRUCT), (9, BINARY)):
            chunk[8] |= _ENCRYPTED
        reader.skip(kind)
    if not is_described and not chunk[8] & _ENCRYPTED:
        raise ThriftError("a column chunk is not described")
    return chunk


_COLUMN_I64 = {5: 3, 6: 4, 7: 5, 9: 6, 11: 7}
_COLUMN_I32 = {1: 0, 4: 1}
_BOUNDS = {1: 16, 2: 14, 5: 12, 6: 10}  # old maximum and minimum, then the new ones


def _column(reader: CompactReader, chunk: list[int]) -> None:
    found = set[int]()
    for field, kind in reader.fields():
        if kind == I64 and field in _COLUMN_I64:
            chunk[_COLUMN_I64[field]] = reader.number()
        elif kind == I32 and field in _COLUMN_I32:
            chunk[_COLUMN_I32[field]] = reader.number(I32)
        elif (field, kind) == (2, LIST):
            for _ in range(reader.count(I32)):
                encoding = reader.number(I32)
                chunk[2] |= 1 << (encoding if 0 <= encoding < 62 else 62)
        elif (field, kind) == (12, STRUCT):
            _statistics(reader, chunk)
        elif (field, kind) == (16, STRUCT):
            _sizes(reader, chunk)
        else:
            reader.skip(kind)
            if (field, kind) != (3, LIST):
                continue
        found.add(field)
    _require(found, {1, 2, 3, 4, 5, 6, 7, 9})


def _statistics(reader: CompactReader, chunk: list[int]) -> None:
    for field, kind in reader.fields():
        if kind == BINARY and field in _BOUNDS:
            to = _BOUNDS[field]
            chunk[to : to + 2] = reader.span()
        elif (field, kind) == (3, I64):
            chunk[9] = reader.number()
        else:
            reader.skip(kind)


def _sizes(reader: CompactReader, chunk: list[int]) -> None:
    for field, kind in reader.fields():
        if (field, kind) == (1, I64):
            chunk[20] = reader.number()
        else:
            reader.skip(kind)
