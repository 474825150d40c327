"""Parses page headers and checks them against their column chunk before Arrow allocates the sizes they claim.

A page header holds the page's compressed size, its decompressed size, and its number of values. Arrow allocates these
sizes before it finds that the chunk is shorter. So the headers are checked before Arrow decodes a chunk, and a false
claim is an error. `native/page_check.py` calls `pages_check` of `page_headers.c`, which has its own parser; without
kernels it uses `HeaderWalk`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from parquet_loader.common import IntArray
from parquet_loader.source import (
    I32,
    STRUCT,
    CompactReader,
    Metadata,
    MetadataError,
    ReadableChunk,
    RowGroupFooter,
    ThriftError,
    TruncatedThriftError,
)

Peek: TypeAlias = Callable[[int, int], bytes]
"""Returns at least the requested number of bytes of a file from an offset on; fewer at its end."""

DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3

FIRST_READ_BYTES = 128
_LONGEST_HEADER_BYTES = 2**24  # Arrow's own limit

# Arrow reads this far past the end of a column chunk: old versions of parquet-cpp did not count the header of the
# dictionary page in its length (PARQUET-816).
BEHIND_CHUNK_BYTES = 100

# The most bytes that one compressed byte can expand to, by the format of each codec; Brotli and others have no bound.
_EXPANSION = {"UNCOMPRESSED": 1, "SNAPPY": 64, "LZ4": 256, "LZ4_HADOOP": 256, "GZIP": 1040, "ZSTD": 2**15}
# Smaller pages are accepted whatever the footer says: some writers store a wrong `total_uncompressed_size`.
SMALL_PAGE_BYTES = 16 * 2**20
_ENTRY_BYTES = {"INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}


class Reason(IntEnum):
    """The kinds of false claims; the same numbers as in `page_headers.c`."""

    NO_HEADER = 1
    LONGER_THAN_CHUNK = 2
    LARGER_THAN_CODEC = 3
    LARGER_THAN_FOOTER = 4
    TOO_MANY_ENTRIES = 5
    TOO_MANY_VALUES = 6


_MESSAGES = {
    Reason.NO_HEADER: "there is no page header at byte {at}",
    Reason.LONGER_THAN_CHUNK: "the page header at byte {at} claims {claimed} bytes, its column chunk has {most} left",
    Reason.LARGER_THAN_CODEC: (
        "the page header at byte {at} claims {claimed} bytes when decompressed, its codec allows at most {most}"
    ),
    Reason.LARGER_THAN_FOOTER: (
        "the page header at byte {at} claims {claimed} bytes when decompressed, the footer allows at most {most}"
    ),
    Reason.TOO_MANY_ENTRIES: (
        "the page header at byte {at} claims {claimed} dictionary entries, its bytes can hold at most {most}"
    ),
    Reason.TOO_MANY_VALUES: "the page header at byte {at} claims {claimed} values, its column chunk has {most}",
}


class FalseClaim(NamedTuple):
    """A false claim of a page header about its page.

    Attributes:
        line: Number of the column chunk among those checked.
        reason: See `wrong_claim` in `page_headers.c`.
        offset: Offset of the header in the file.
        claimed: The claimed number.
        most: The largest possible number.
    """

    line: int
    reason: int
    offset: int
    claimed: int
    most: int


class FalseClaimError(ValueError):
    """A page header claims more than its column chunk can hold; the message says what."""

    def __init__(self, claim: FalseClaim) -> None:
        super().__init__(
            _MESSAGES[Reason(claim.reason)].format(at=claim.offset, claimed=claim.claimed, most=claim.most)
        )


class ChunkBounds(NamedTuple):
    """The limits for the claims of a column chunk's page headers.

    Attributes:
        first: Offset of the chunk's first byte in the file.
        end: Offset after its last byte.
        values: Values, nulls included.
        entry_bytes: The least bytes of a dictionary entry.
        expansion: The most bytes that one compressed byte can expand to; 1 without a codec, 0 if there is no bound.
        largest_bytes: The most bytes of a decompressed page.
    """

    first: int
    end: int
    values: int
    entry_bytes: int
    expansion: int
    largest_bytes: int


def chunk_bounds(footer: Metadata, row_group: int, leaves: Iterable[int]) -> IntArray:
    """Return the `ChunkBounds` of leaf columns of a row group as int64 ``[leaves, 6]``.

    Raises:
        MetadataError: the footer's entry of one of them is invalid.
    """
    return _as_array(bounds_of(footer.readable(row_group, leaf)) for leaf in leaves)


def bounds_of_chunks(footer: RowGroupFooter, names: Iterable[str]) -> IntArray:
    """Return the same for the leaf columns at and below these names, without duplicates.

    Raises:
        MetadataError: the footer's entry of one of them is invalid.
    """
    lines = dict[ChunkBounds, None]()
    for name in names:
        for chunk in footer.chunks[name]:
            if isinstance(chunk, MetadataError):
                raise chunk
            lines[bounds_of(chunk)] = None
    return _as_array(lines)


def most_bytes_of_page(chunk: ReadableChunk) -> int:
    """Return the most bytes of a decompressed page, by the footer."""
    return max(SMALL_PAGE_BYTES, chunk.encoded_bytes)


def bounds_of(chunk: ReadableChunk) -> ChunkBounds:
    """Return the limits for one column chunk."""
    type_ = chunk.leaf.physical_type
    entry_bytes = chunk.leaf.length if type_ == "FIXED_LEN_BYTE_ARRAY" else _ENTRY_BYTES.get(type_, 1)
    largest = most_bytes_of_page(chunk)
    end = min(chunk.start + chunk.stored_bytes, 2**62)
    expansion = _EXPANSION.get(chunk.codec_name, 0)
    return ChunkBounds(chunk.start, end, chunk.values, max(entry_bytes, 1), expansion, largest)


def _as_array(lines: Iterable[ChunkBounds]) -> IntArray:
    return np.array([*lines], np.int64).reshape(-1, 6)


class HeaderWalk:
    """Walks the page headers of a column chunk, as far as Arrow would, and checks their claims.

    Args:
        number: Number of the chunk among those checked.
        bounds: Limits for the claims of its headers.
        file_bytes: The file's length.

    Attributes:
        at: Offset of the next header.
        behind: Offset after the last byte that a header may occupy.
    """

    def __init__(self, number: int, bounds: ChunkBounds, file_bytes: int) -> None:
        self._number, self._bounds = number, bounds
        self._values_left = bounds.values
        self._partial = b""
        self.at, self._end = bounds.first, min(bounds.end, file_bytes)
        self.behind = min(self._end + BEHIND_CHUNK_BYTES, file_bytes)

    @property
    def is_done(self) -> bool:
        """Whether Arrow would read no further."""
        return self._values_left <= 0 or not 0 <= self.at < self._end

    def take_header(self, data: bytes | memoryview) -> bool:
        """Check the header at the beginning of `data`, at offset `at`, and go to the next.

        Returns:
            False if the header is longer than `data`.

        Raises:
            FalseClaimError: there is no header, or it makes a false claim.
        """
        header = None
        for nbytes in (FIRST_READ_BYTES, _LONGEST_HEADER_BYTES):
            try:
                header = page_header(bytes(data[:nbytes]))
                break
            except TruncatedThriftError:
                continue
            except ThriftError:
                raise self._false(Reason.NO_HEADER) from None
        if header is None:
            if len(data) >= min(_LONGEST_HEADER_BYTES, self.behind - self.at):
                raise self._false(Reason.NO_HEADER)
            return False
        self._check(header)
        if header.kind in (DATA_PAGE, DATA_PAGE_V2):
            self._values_left -= header.values
        self.at += header.nbytes + header.page_bytes
        return True

    def feed(self, start: int, data: memoryview) -> None:
        """Check the headers in the next bytes of the chunk, from offset `start` on. Raises as `take_header`."""
        partial = self._partial
        if partial:
            if start != self.at + len(partial):
                return  # these bytes were read before
            start, data = self.at, memoryview(partial + bytes(data))
        self._partial = b""
        while not self.is_done and start <= self.at < start + len(data):
            rest = data[self.at - start : self.behind - start]
            if not self.take_header(rest):
                self._partial = bytes(rest)
                return

    def _check(self, header: PageHeader) -> None:
        bounds, space = self._bounds, self._end - self.at - header.nbytes
        plain_bytes = header.plain_bytes
        if not 0 <= header.page_bytes <= space + BEHIND_CHUNK_BYTES:
            raise self._false(Reason.LONGER_THAN_CHUNK, header.page_bytes, max(space, 0))
        by_codec = header.page_bytes * bounds.expansion
        if plain_bytes < 0 or (bounds.expansion > 1 and plain_bytes > by_codec):
            raise self._false(Reason.LARGER_THAN_CODEC, plain_bytes, by_codec)
        if bounds.expansion != 1 and plain_bytes > bounds.largest_bytes:
            raise self._false(Reason.LARGER_THAN_FOOTER, plain_bytes, bounds.largest_bytes)
        if header.kind == DICTIONARY_PAGE:
            entries = (header.page_bytes if bounds.expansion == 1 else plain_bytes) // bounds.entry_bytes
            if not 0 <= header.values <= entries:
                raise self._false(Reason.TOO_MANY_ENTRIES, header.values, entries)
        elif header.kind in (DATA_PAGE, DATA_PAGE_V2) and not 0 <= header.values <= bounds.values:
            raise self._false(Reason.TOO_MANY_VALUES, header.values, bounds.values)

    def _false(self, reason: int, claimed: int = 0, most: int = 0) -> FalseClaimError:
        return FalseClaimError(FalseClaim(self._number, reason, self.at, claimed, most))


def walks(bounds: IntArray, file_bytes: int) -> list[HeaderWalk]:
    """Return a walk for each column chunk."""
    return [HeaderWalk(n, ChunkBounds(*line), file_bytes) for n, line in enumerate(bounds.tolist())]


class FeedCheck:
    """Checks the page headers of column chunks in the bytes of a forward read.

    Args:
        bounds: See `chunk_bounds`.
        file_bytes: The file's length.
    """

    def __init__(self, bounds: IntArray, file_bytes: int) -> None:
        self._walks = sorted(walks(bounds, file_bytes), key=lambda walk: walk.at)
        self._starts: Sequence[int] = [walk.at for walk in self._walks]

    def __call__(self, start: int, data: npt.NDArray[np.uint8]) -> None:
        """Check the headers in bytes of the file from `start` on. Raises as `HeaderWalk.take_header`."""
        number = bisect_right(self._starts, start) - 1
        if number >= 0:
            self._walks[number].feed(start, memoryview(data.data))


class PageHeader(NamedTuple):
    """A page header.

    Attributes:
        nbytes: Length of the header.
        kind: Kind of page: 0 a data page, 2 a dictionary, 3 a data page of version 2.
        plain_bytes, page_bytes: Bytes of the page before and after compression.
        values: Values, nulls included; entries of a dictionary; 0 for other kinds of page.
        encoding: 0 is PLAIN; -1 if the header has none.
        nulls, rows, levels_bytes, repetition_bytes: Further fields of a data page of version 2; 0 for other pages.
    """

    nbytes: int
    kind: int
    plain_bytes: int
    page_bytes: int
    values: int = 0
    encoding: int = -1
    nulls: int = 0
    rows: int = 0
    levels_bytes: int = 0
    repetition_bytes: int = 0


# The required int32 fields of each struct in a page header; 0 is the header itself.
_REQUIRED = {0: {1, 2, 3}, 5: {1, 2, 3, 4}, 7: {1, 2}, 8: {1, 2, 3, 4, 5, 6}}
_STRUCT_OF = {DATA_PAGE: 5, DICTIONARY_PAGE: 7, DATA_PAGE_V2: 8}


def page_header(data: bytes) -> PageHeader:
    """Return the page header at the beginning of `data`, in Thrift's compact protocol.

    A field of the wrong type is skipped like an unknown one, as in Thrift's own code.

    Raises:
        TruncatedThriftError: the header is longer than the data.
        ThriftError: the data do not begin with a page header.
    """
    reader = CompactReader(data)
    structs: dict[int, dict[int, int]] = {}
    _read_struct(reader, 0, structs)
    top = structs[0]
    body = structs.get(_STRUCT_OF.get(top[1], -1))
    if body is None:
        return PageHeader(reader.position, top[1], top[2], top[3])
    if top[1] == DATA_PAGE_V2:
        return PageHeader(reader.position, top[1], top[2], top[3], body[1], body[4], body[2], body[3], body[5], body[6])
    return PageHeader(reader.position, top[1], top[2], top[3], body[1], body[2])


def header_at(peek: Peek, at: int, end: int) -> PageHeader | None:
    """Return the page header at an offset of a file; None if there is none before `end`."""
    nbytes = FIRST_READ_BYTES
    while nbytes <= _LONGEST_HEADER_BYTES:
        data = peek(at, min(nbytes, end - at))
        try:
            return page_header(data)
        except TruncatedThriftError:
            if len(data) < nbytes:
                return None
            nbytes *= 8
        except ThriftError:
            return None
    return None


def _read_struct(reader: CompactReader, part: int, structs: dict[int, dict[int, int]]) -> None:
    """Read the required fields of a struct of a page header, and of the structs inside it."""
    fields, required = structs.setdefault(part, {}), _REQUIRED[part]
    for number, type_ in reader.fields():
        if type_ == I32 and number in required:
            fields[number] = reader.number(I32)
        elif type_ == STRUCT and part == 0 and number in _STRUCT_OF.values():
            _read_struct(reader, number, structs)
        else:
            reader.skip(type_)
    if not required <= fields.keys():
        raise ThriftError("a page header lacks a field")
