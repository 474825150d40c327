"""Maps the rows of a column chunk to its pages, for reads of single rows.

The offset index of a file gives the first row of each page. Without one, the page headers are read. Pages of lists in
version 1 may begin within a row, and their headers count values instead of rows; then the repetition levels of all
pages are read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import BoolArray, IntArray
from parquet_loader.decode.native.page_list import pages_between
from parquet_loader.decode.page_headers import DATA_PAGE, DATA_PAGE_V2, DICTIONARY_PAGE, Peek, bounds_of, page_header
from parquet_loader.source import I32, I64, LIST, STRUCT, CompactReader, ReadableChunk, ThriftError

# Arrow's names of the codecs that it decompresses without other libraries.
ARROW_CODECS = {"SNAPPY": "snappy", "GZIP": "gzip", "ZSTD": "zstd", "BROTLI": "brotli", "LZ4": "lz4_raw"}


class PageMap(NamedTuple):
    """The data pages of a column chunk, and the rows that begin in each.

    Attributes:
        dictionary: Offset of the dictionary page with its header, and of its end; None without one.
        starts, stops: int64 ``[pages]``, the same offsets of each data page.
        first_rows: int64 ``[pages + 1]``, rows that begin before each page; the last element is all rows.
        continues: bool ``[pages]``, whether a page begins within a row; None if none does.
        values: int64 ``[pages]``, the values of each page, including nulls; None if they are not known.
    """

    dictionary: tuple[int, int] | None
    starts: IntArray
    stops: IntArray
    first_rows: IntArray
    continues: BoolArray | None = None
    values: IntArray | None = None

    @property
    def nbytes(self) -> int:
        """Its approximate size in memory."""
        return 512 + 40 * len(self.starts)

    def unit_of(self, page: int) -> int:
        """Return the last page with values of the rows that begin in a page."""
        last = page
        if self.continues is not None:
            while last + 1 < len(self.starts) and self.continues[last + 1]:
                last += 1
                if self.first_rows[last + 1] > self.first_rows[last]:
                    break
        return last


def indexed_pages(index: bytes, chunk: ReadableChunk, data_at: int, rows: int) -> PageMap | None:
    """Return the pages in an offset index; None if it contradicts the footer.

    Args:
        index: The offset index.
        chunk: The column chunk.
        data_at: Offset of its first data page, as the footer says.
        rows: Rows of the row group.
    """
    try:
        found = np.array([*_locations(CompactReader(index))], np.int64).reshape(-1, 3)
    except ThriftError:
        return None
    stop = chunk.start + chunk.stored_bytes
    if not len(found):
        return None
    starts, stops, first_rows = found[:, 0], found[:, 0] + found[:, 1], np.append(found[:, 2], rows)
    is_consistent = (
        first_rows[0] == 0
        and (np.diff(first_rows) > 0).all()
        and starts[0] == data_at
        and (found[:, 1] > 0).all()
        and (starts[1:] == stops[:-1]).all()
        and stops[-1] <= stop
    )
    if not is_consistent:
        return None
    dictionary = (chunk.start, data_at) if chunk.start < data_at else None
    return PageMap(dictionary, starts, stops, first_rows)


def _locations(reader: CompactReader) -> Iterator[tuple[int, int, int]]:
    for field, kind in reader.fields():
        if (field, kind) != (1, LIST):
            reader.skip(kind)
            continue
        for _ in range(reader.count(STRUCT)):
            numbers = {1: -1, 2: -1, 3: -1}
            for inner, inner_kind in reader.fields():
                if (inner, inner_kind) in ((1, I64), (2, I32), (3, I64)):
                    numbers[inner] = reader.number(inner_kind)
                else:
                    reader.skip(inner_kind)
            yield numbers[1], numbers[2], numbers[3]


def walked_pages(
    source: int | pa.Buffer | Peek, size: int, chunk: ReadableChunk, rows: int, read: Peek
) -> PageMap | None:
    """Return the pages of a column chunk by their headers; None if the rows of each cannot be determined.

    Args:
        source: See `pages_between`.
        size: The file's length.
        chunk: The column chunk.
        rows: Rows of the row group.
        read: Returns the bytes of the file between two offsets.

    Raises:
        OSError, MemoryError: the file cannot be read.
    """
    lines = pages_between(source, size, chunk.start, chunk.start + chunk.stored_bytes, chunk.values)
    if lines is None or int(lines[:, 4].sum()) != chunk.values:
        return None
    dictionaries = lines[lines[:, 2] == DICTIONARY_PAGE]
    data = lines[(lines[:, 2] == DATA_PAGE) | (lines[:, 2] == DATA_PAGE_V2)]
    data = data[data[:, 4] > 0]
    if len(dictionaries) > 1 or not len(data) or (len(dictionaries) and dictionaries[0, 0] > data[0, 0]):
        return None
    dictionary = None
    if len(dictionaries):
        at, header, _, nbytes, _, _ = dictionaries[0].tolist()
        dictionary = at, at + header + nbytes
    starts, stops, values = data[:, 0].copy(), data[:, 0] + data[:, 1] + data[:, 3], data[:, 4].copy()
    continues: BoolArray | None = None
    if not chunk.leaf.max_repetition_level:
        begun = values
    elif (data[:, 2] == DATA_PAGE_V2).all():  # pages of version 2 never begin within a row
        begun = data[:, 5]
    else:
        counted = _begun_rows(chunk, data, read)
        if counted is None:
            return None
        begun, continues = counted
    first_rows = np.concatenate([[0], np.cumsum(begun)])
    if first_rows[-1] != rows or (begun < 0).any():
        return None
    if continues is not None and not continues.any():
        continues = None
    return PageMap(dictionary, starts, stops, first_rows, continues, values)


def _begun_rows(
    chunk: ReadableChunk, pages: IntArray, read: Callable[[int, int], bytes]
) -> tuple[IntArray, BoolArray] | None:
    """Return, by the repetition levels, how many rows begin in each page, and whether it begins within a row."""
    codec = ARROW_CODECS.get(chunk.codec_name)
    if "BIT_PACKED" in chunk.encoding_names or (codec is None and chunk.codec_name != "UNCOMPRESSED"):
        return None
    decompressor = None if codec is None else pa.Codec(codec)
    begun, continues = np.zeros(len(pages), np.int64), np.zeros(len(pages), np.bool_)
    for number, (at, header, kind, nbytes, values, rows) in enumerate(pages.tolist()):
        if kind == DATA_PAGE_V2:
            begun[number] = rows
            continue
        page = read(at, at + header + nbytes)
        levels = _repetition_levels(page, header, decompressor)
        counted = None if levels is None else _count_zeros(levels, values, chunk.leaf.max_repetition_level.bit_length())
        if counted is None:
            return None
        begun[number], continues[number] = counted
    return begun, continues


def begins_within_row(page: bytes, chunk: ReadableChunk) -> bool | None:
    """Return whether a data page begins within a row; None if that cannot be determined.

    Args:
        page: The page with its header.
        chunk: Its column chunk.
    """
    codec = ARROW_CODECS.get(chunk.codec_name)
    if "BIT_PACKED" in chunk.encoding_names or (codec is None and chunk.codec_name != "UNCOMPRESSED"):
        return None
    try:
        header = page_header(page)
    except ThriftError:
        return None
    if header.kind not in (DATA_PAGE, DATA_PAGE_V2) or header.plain_bytes > bounds_of(chunk).largest_bytes:
        return None
    if header.kind == DATA_PAGE_V2:
        levels: memoryview | None = memoryview(page)[header.nbytes : header.nbytes + max(0, header.repetition_bytes)]
    else:
        levels = _repetition_levels(page, header.nbytes, None if codec is None else pa.Codec(codec))
    counted = None if levels is None else _count_zeros(levels, 1, chunk.leaf.max_repetition_level.bit_length())
    return None if counted is None else counted[1]


def _repetition_levels(page: bytes, header: int, codec: pa.Codec | None) -> memoryview | None:
    """Return the encoded repetition levels of a page of version 1; None if there are none."""
    body = memoryview(page)[header:]
    if codec is not None:
        try:
            body = memoryview(codec.decompress(body, page_header(page[:header]).plain_bytes))
        except (pa.ArrowException, OSError, ValueError):
            return None
    length = int.from_bytes(body[:4], "little")
    return body[4 : 4 + length] if len(body) >= 4 + length else None


def _count_zeros(levels: memoryview, values: int, width: int) -> tuple[int, bool] | None:
    """Return how many of a page's levels are 0, and whether the first one is not; None if they are damaged."""
    reader, at, left, zeros, first = CompactReader(bytes(levels)), 0, values, 0, -1
    data = np.frombuffer(levels, np.uint8)
    value_bytes = (width + 7) // 8
    try:
        while left > 0:
            head = reader.varint()
            at = reader.position
            if head & 1:
                nbytes = (head >> 1) * width
                packed = data[at : at + nbytes]
                count = min(left, len(packed) * 8 // width)
                if not count:
                    return None
                bits: npt.NDArray[np.uint8] = np.unpackbits(packed, bitorder="little")
                is_set: BoolArray = np.any(bits[: count * width].reshape(-1, width), axis=1)
                zeros += count - int(np.count_nonzero(is_set))
                first = int(is_set[0]) if first < 0 else first
            else:
                count, nbytes = min(left, head >> 1), value_bytes
                if not count or at + nbytes > len(data):
                    return None
                level = int.from_bytes(data[at : at + nbytes].tobytes(), "little")
                zeros += 0 if level else count
                first = int(level > 0) if first < 0 else first
            left -= count
            reader.position = at + nbytes
    except ThriftError:
        return None
    return zeros, bool(first)
