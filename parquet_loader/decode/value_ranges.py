"""Finds the byte range of each value of a column of byte arrays, so that the values can stay in the file.

This requires plain, uncompressed pages without nulls. Only page headers and the lengths before values are read. A
window then holds a `ValueRange` of each row instead of its bytes.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Self

from parquet_loader.decode.page_headers import DATA_PAGE, DATA_PAGE_V2, DICTIONARY_PAGE, Peek, header_at
from parquet_loader.source import ReadableChunk, SourceFile

_PLAIN = 0
_NUMBERS = struct.Struct("<QQQq")


class ValueRange(NamedTuple):
    """The byte range of a value.

    Attributes:
        offset, size: Its offset in the file, and its length.
        file_bytes, mtime_ns: Size and modification time of the file (-1 if not known) when its footer was read.
        path: The file.
    """

    offset: int
    size: int
    file_bytes: int
    mtime_ns: int
    path: str

    def packed(self) -> bytes:
        """Return it as the value of a column."""
        return _NUMBERS.pack(*self[:4]) + self.path.encode("utf-8", "surrogateescape")

    @classmethod
    def unpacked(cls, data: bytes | memoryview) -> Self:
        """Undo `packed`."""
        offset, size, file_bytes, mtime_ns = _NUMBERS.unpack_from(data)
        path = bytes(data[_NUMBERS.size :]).decode("utf-8", "surrogateescape")
        return cls(offset, size, file_bytes, mtime_ns, path)


def packed_ranges(peek: Peek, chunk: ReadableChunk, rows: int, file: SourceFile) -> list[bytes]:
    """Return the packed `ValueRange` of each row of a column chunk.

    Args:
        peek: Reads the file.
        chunk: The column chunk.
        rows: Rows of the row group.
        file: The file.

    Raises:
        ValueError: the values have no byte ranges, or the pages are damaged; the message says which, as a clause.
    """
    mtime_ns = -1 if file.mtime_ns is None else file.mtime_ns
    found = _ranges(peek, chunk, rows)
    return [ValueRange(offset, size, file.size_bytes, mtime_ns, file.path).packed() for offset, size in found]


def _ranges(peek: Peek, chunk: ReadableChunk, rows: int) -> list[tuple[int, int]]:
    if problem := why_no_ranges(chunk, rows):
        raise ValueError(problem)
    found: list[tuple[int, int]] = []
    at, end = chunk.start, chunk.start + chunk.stored_bytes
    while len(found) < rows:
        header = header_at(peek, at, end) if at < end else None
        if header is None:
            raise ValueError(f"there is no page header at byte {at}")
        begin = at + header.nbytes
        at = begin + header.page_bytes
        if header.page_bytes < 0 or at > end or header.levels_bytes < 0 or header.repetition_bytes < 0:
            raise ValueError(f"the page at byte {begin} claims {header.page_bytes} bytes, and its chunk ends at {end}")
        if header.kind not in (DATA_PAGE, DATA_PAGE_V2, DICTIONARY_PAGE):
            continue  # readers skip pages of other kinds
        if header.kind == DICTIONARY_PAGE or header.encoding != _PLAIN:
            raise ValueError("its pages are not all plain")
        if header.page_bytes != header.plain_bytes:
            raise ValueError(f"the page at byte {begin} has {header.page_bytes} of {header.plain_bytes} bytes")
        if header.values < 0 or len(found) + header.values > rows:
            raise ValueError(f"its pages hold more than the {rows} rows of the row group")
        if header.kind == DATA_PAGE_V2:
            begin += header.levels_bytes + header.repetition_bytes
        elif chunk.leaf.max_definition_level:
            begin += 4 + int.from_bytes(peek(begin, 4), "little")
        for _ in range(header.values):
            size = int.from_bytes(peek(begin, 4), "little")
            begin += 4
            # Nulls have no bytes; with nulls, the page ends before it has as many values as its header states.
            if begin + size > at:
                raise ValueError(f"row {len(found)} or one before it is null, or the page is damaged")
            found.append((begin, size))
            begin += size
        if begin != at:
            raise ValueError(f"the values of a page end at byte {begin}, the page itself at {at}")
    return found


def why_no_ranges(chunk: ReadableChunk, rows: int) -> str:
    """Return why the values of a column chunk have no byte ranges; "" if the footer shows no reason."""
    if chunk.leaf.max_repetition_level or chunk.leaf.physical_type != "BYTE_ARRAY":
        return "it is not a column of byte arrays"
    if chunk.codec_name != "UNCOMPRESSED":
        return f"it is compressed with {chunk.codec_name.lower()}"
    if chunk.nulls:
        return f"{chunk.nulls} of its values are null"
    if chunk.values != rows:
        return f"the footer says {chunk.values} values for {rows} rows"
    return ""
