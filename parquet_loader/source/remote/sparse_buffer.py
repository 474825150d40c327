"""Holds fetched bytes at their offsets in the file, so that Arrow reads them with the file's own footer."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from parquet_loader.source.byte_ranges import ByteRange
from parquet_loader.source.remote.client import Bytes

_PAGE = mmap.PAGESIZE


class SparseFile:
    """A mapping as long as a file, in which only the written ranges take memory.

    Other bytes read as zeros, which are not a valid page, so Arrow reports them as damage. The mapping lives as long as
    the buffer, or an array that Arrow made over it; then the memory is returned to the system.

    Args:
        file_bytes: Length of the file.
        ranges: The ranges that will be written.
    """

    def __init__(self, file_bytes: int, ranges: Sequence[ByteRange]) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        mapping = mmap.mmap(-1, max(1, file_bytes), flags=flags)
        self._bytes: Bytes = np.frombuffer(mapping, np.uint8)
        self.buffer: pa.Buffer = pa.py_buffer(mapping).slice(0, file_bytes)
        self.held_bytes = held_bytes(ranges)

    def view(self, span: ByteRange) -> Bytes:
        """Return the memory of a range, uint8 ``[bytes]``, to fetch into."""
        return self._bytes[span.start : span.stop]


def held_bytes(ranges: Sequence[ByteRange]) -> int:
    """Return the bytes of memory that ranges take, in whole pages."""
    pages, before = 0, -1
    for start, stop in sorted(ranges):
        first, last = start // _PAGE, (stop - 1) // _PAGE
        pages += last - max(first, before + 1) + 1 if last > before else 0
        before = max(before, last)
    return pages * _PAGE
