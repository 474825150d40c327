"""A file object over byte ranges, for decoders that seek."""

from __future__ import annotations

import os
from collections.abc import Callable

_MOST_KEPT = 8


class RangeFile:
    """A readable, seekable file over a function that reads byte ranges. For one thread.

    Attributes:
        size: Bytes of the file.
        bytes_read: Bytes that were read so far.

    Args:
        read_at: Returns a number of bytes from an offset; the range is always within the file.
        size: Bytes of the file.
        block_bytes: The least bytes of a read.
    """

    def __init__(self, read_at: Callable[[int, int], bytes], size: int, block_bytes: int = 2**15) -> None:
        self._read_at = read_at
        self._block_bytes = block_bytes
        self.size = size
        self.bytes_read = 0
        self._position = 0
        self._kept: list[tuple[int, memoryview]] = []  # the latest ranges, the last one last

    def load(self, begin: int, end: int) -> None:
        """Read a range in one request, and keep it while few other ranges are read."""
        begin, end = max(begin, 0), min(end, self.size)
        if begin < end and self._find(begin, end) is None:
            data = self._read_at(begin, end - begin)
            self.bytes_read += len(data)
            self._kept = [*self._kept[1 - _MOST_KEPT :], (begin, memoryview(data))]

    def forget(self) -> None:
        """Release the ranges that are kept."""
        self._kept.clear()

    def _find(self, begin: int, end: int) -> memoryview | None:
        """Return the bytes of a range that is kept, or None."""
        for start, data in reversed(self._kept):
            if start <= begin and end <= start + len(data):
                return data[begin - start : end - start]
        return None

    def read(self, count: int = -1) -> bytes:
        """Return up to `count` bytes, and advance the position; b"" at the end."""
        begin = self._position
        if count < 0:
            count = self.size
        for start, data in reversed(self._kept):
            if start <= begin < start + len(data):
                found = data[begin - start : begin - start + count]
                break
        else:
            if begin >= self.size or not count:
                return b""
            self.load(begin, begin + self._block_bytes)
            found = self._kept[-1][1][:count]
        self._position = begin + len(found)
        return bytes(found)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position, and return it."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        if origin + offset < 0:
            raise ValueError(f"seek to {origin + offset}, before the beginning of the file")
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position
