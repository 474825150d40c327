"""Streams a row group from a store while it is decoded, if it is too large to hold in memory."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from parquet_loader.source.byte_ranges import ByteRange
from parquet_loader.source.remote.client import Bytes

# Arrow reads about this much at a time; smaller parts of a column chunk would only mean more requests.
_LEAST_PART_BYTES = 2**16


class _Chunk:
    """A column chunk that is read forward in parts; at most two are held: the one being read, and the next one."""

    def __init__(self, span: ByteRange, parts: int) -> None:
        self.span = span
        self.parts = parts
        self.held: dict[int, Bytes] = {}
        self.reading = -1
        self.fetched = -1

    def part(self, number: int) -> ByteRange:
        start, size = self.span.start, self.span.size
        return ByteRange(start + size * number // self.parts, start + size * (number + 1) // self.parts)

    def number_of(self, at: int) -> int:
        number = (at - self.span.start) * self.parts // max(1, self.span.size)
        while self.part(number).stop <= at:  # parts begin at whole bytes
            number += 1
        return number


class StreamedFile:
    """A Python file for Arrow that fetches column chunks in parts, for all columns at the same time.

    All column chunks except small ones have the same number of parts, because rows that are decoded together are at
    about the same share of each chunk: the part that one column needs next, the others will need soon. Used by one
    thread at a time.

    Args:
        fetch_into: Fills buffers with ranges of the file; see `RemoteStore.fetch_into`, whose errors `read` raises.
        file_bytes: The file's length.
        chunks: The column chunks that are read.
        held_bytes: The most bytes in memory; but each column takes at least twice 64 KiB.
        request_bytes: The most bytes of a part.
        check: Called with the offset and the bytes of each read of a column chunk, before Arrow gets them; may raise.
    """

    def __init__(
        self,
        fetch_into: Callable[[Sequence[ByteRange], Sequence[Bytes]], None],
        file_bytes: int,
        chunks: Sequence[ByteRange],
        held_bytes: int,
        request_bytes: int,
        check: Callable[[int, Bytes], None] = lambda start, found: None,  # noqa: ARG005 - names for the reader
    ) -> None:
        self._fetch_into = fetch_into
        self._check = check
        self._file_bytes = file_bytes
        self._at = 0
        self.closed = False
        spans = sorted(span for span in chunks if span.size)
        total, largest = sum(span.size for span in spans), max((span.size for span in spans), default=1)
        parts = max(1, -(-2 * total // max(1, held_bytes)), -(-largest // request_bytes))
        least = min(_LEAST_PART_BYTES, request_bytes)
        self._chunks = [_Chunk(span, max(1, min(parts, span.size // least))) for span in spans]
        self._starts = [span.start for span in spans]

    def read(self, nbytes: int = -1) -> pa.Buffer:
        """Return the next bytes; fewer than `nbytes` only at the end of the file."""
        stop = self._file_bytes if nbytes < 0 else min(self._file_bytes, self._at + nbytes)
        start, self._at = self._at, max(self._at, stop)
        return pa.py_buffer(self._between(start, stop) if stop > start else b"")

    def _between(self, start: int, stop: int) -> Bytes:
        number = bisect_right(self._starts, start) - 1
        chunk = self._chunks[number] if number >= 0 else None
        if chunk is None or stop > chunk.span.stop:  # not inside one column chunk
            buffer = np.empty(stop - start, np.uint8)
            self._fetch_into([ByteRange(start, stop)], [buffer])
            self._check(start, buffer)
            return buffer
        first, found = start, list[Bytes]()
        while start < stop:
            number = chunk.number_of(start)
            span, held = chunk.part(number), self._part(chunk, number)
            found.append(held[start - span.start : stop - span.start])
            start = span.stop
        joined = found[0] if len(found) == 1 else np.concatenate(found)
        self._check(first, joined)
        return joined

    def _part(self, chunk: _Chunk, number: int) -> Bytes:
        """Return a part of a column chunk; if it has to be fetched, also fetch those that other columns need next."""
        chunk.reading = number
        for before in [n for n in chunk.held if n < number]:
            del chunk.held[before]
        if number not in chunk.held:
            others = (c for c in self._chunks if c is not chunk and c.fetched == c.reading < c.parts - 1)
            wanted = [(chunk, number), *((other, other.fetched + 1) for other in others)]
            buffers = [np.empty(one.part(n).size, np.uint8) for one, n in wanted]
            self._fetch_into([one.part(n) for one, n in wanted], buffers)
            for (one, n), buffer in zip(wanted, buffers, strict=True):
                one.held[n] = buffer
                one.fetched = max(one.fetched, n)
        return chunk.held[number]

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to an offset, and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file_bytes}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """Return the offset."""
        return self._at

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def writable(self) -> bool:
        """Whether it can be written."""
        return False

    def seekable(self) -> bool:
        """Whether it has offsets."""
        return True

    def close(self) -> None:
        """Release the parts held."""
        self.closed = True
        self._chunks, self._starts = [], []
