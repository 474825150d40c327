"""Lists the pages of a column chunk by their headers: by a kernel, or in Python without kernels."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa

from parquet_loader.common import KERNELS, NO_MEMORY, SYSTEM, IntArray, failed_read
from parquet_loader.decode.page_headers import BEHIND_CHUNK_BYTES, DATA_PAGE, DATA_PAGE_V2, Peek, header_at

# Numbers of a page: offset of the header, its bytes, kind, bytes after the header, values, and rows of a page of
# version 2, else -1.
PAGE_NUMBERS = 6

_FEW_PAGES = 256


def pages_between(source: int | pa.Buffer | Peek, size: int, start: int, stop: int, values: int) -> IntArray | None:
    """Return the pages of a column chunk, int64 ``[pages, 6]``; None if a header is wrong.

    The pages may hold fewer values than `values`, but not more.

    Args:
        source: A file descriptor, the file's bytes in memory, or a function that reads them.
        size: The file's length.
        start: Offset of the chunk's first page.
        stop: Offset after its last page.
        values: The most values that its data pages may hold, including nulls.

    Raises:
        OSError, MemoryError: the headers cannot be read.
    """
    if KERNELS is None or callable(source):
        return _walked(_peek_of(source), size, start, stop, values)
    descriptor, address = (source, None) if isinstance(source, int) else (-1, source.address)
    lines, count = np.empty((_FEW_PAGES, PAGE_NUMBERS), np.int64), np.zeros(1, np.int64)
    while True:
        code = KERNELS.pages_list(
            descriptor, address, size, start, stop, values, lines.ctypes.data, len(lines), count.ctypes.data
        )
        if code == SYSTEM:
            raise failed_read()
        if code == NO_MEMORY:
            raise MemoryError
        if code:
            return None
        if count[0] <= len(lines):
            return lines[: int(count[0])].copy()
        lines = np.empty((int(count[0]), PAGE_NUMBERS), np.int64)


def _peek_of(source: int | pa.Buffer | Peek) -> Peek:
    if isinstance(source, int):
        return lambda at, nbytes: os.pread(source, nbytes, at)
    if callable(source):
        return source
    return lambda at, nbytes: source[at : at + nbytes].to_pybytes()


def _walked(peek: Peek, size: int, start: int, stop: int, values: int) -> IntArray | None:
    lines, at, behind = list[tuple[int, ...]](), start, min(stop + BEHIND_CHUNK_BYTES, size)
    while values > 0 and 0 <= at < min(stop, size):
        header = header_at(peek, at, behind)
        if header is None:
            return None
        found = header.values if header.kind in (DATA_PAGE, DATA_PAGE_V2) else 0
        if not 0 <= header.page_bytes <= behind - at - header.nbytes or not 0 <= found <= values:
            return None
        rows = header.rows if header.kind == DATA_PAGE_V2 else -1
        lines.append((at, header.nbytes, header.kind, header.page_bytes, found, rows))
        at += header.nbytes + header.page_bytes
        values -= found
    return np.array(lines, np.int64).reshape(-1, PAGE_NUMBERS)
