"""Deleted rows of data files: 64-bit Roaring bitmaps in files or in the table's metadata, decoded by numpy alone.

The formats share one layout, the portable serialisation of 64-bit Roaring bitmaps (RoaringFormatSpec): little endian, a
count of 32-bit bitmaps, each with its upper 32 bits before it. A bitmap consists of containers of 65,536 values: sorted
arrays, bitmaps of 8 KiB, or runs.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from parquet_loader.common import IntArray

ReadBytes: TypeAlias = Callable[[str, int, int | None], bytes]
"""Returns bytes of a file; takes its path, and the first offset and the end of the range, or None for all."""

_MAGIC = 1681511377  # begins a bitmap in Delta's files and in Iceberg's Puffin blobs, little endian
_COOKIE_RUNS, _COOKIE = 12347, 12346
_FEWEST_WITH_OFFSETS = 4
_MOST_IN_ARRAY = 4096
_MOST_BITMAPS = 2**15


class DeletesError(ValueError):
    """A list of deleted rows is damaged."""


@dataclass(frozen=True, slots=True)
class InlineVector:
    """A bitmap in the table's metadata.

    Attributes:
        data: The magic number and the bitmap.
        count: Number of its rows, or None if that is unknown until `positions`.
    """

    data: bytes
    count: int | None = None

    def positions(self, read: ReadBytes) -> IntArray:  # noqa: ARG002 (nothing is read)
        """Return the positions in the data file, int64, sorted, without duplicates.

        Raises:
            DeletesError: the bitmap is damaged.
        """
        return _counted(roaring_positions(self.data, self.count), self.count)

    def to_json(self) -> list[Any]:
        """Return it as plain values, for `deletes_of`."""
        return ["inline", self.data.hex(), self.count]


@dataclass(frozen=True, slots=True)
class Vector:
    """A bitmap in a file, between its size and a checksum.

    Attributes:
        path: The file.
        offset: Offset of the size.
        size_bytes: Bytes of the bitmap with its magic number, without size and checksum.
        count: Number of its rows, or None if that is unknown until `positions`.
    """

    path: str
    offset: int
    size_bytes: int
    count: int | None = None

    def positions(self, read: ReadBytes) -> IntArray:
        """Return the positions as `InlineVector` does.

        Raises:
            DeletesError: the bitmap is damaged.
            OSError, SourceError: the file cannot be read.
        """
        framed = read(self.path, self.offset, self.offset + self.size_bytes + 8)
        if len(framed) != self.size_bytes + 8:
            raise DeletesError(f"the file ends after {len(framed)} of {self.size_bytes + 8} bytes")
        size = int.from_bytes(framed[:4], "big")
        if size != self.size_bytes:
            raise DeletesError(f"the file says that they take {size} bytes, but the table says {self.size_bytes}")
        data = framed[4:-4]
        if zlib.crc32(data) != int.from_bytes(framed[-4:], "big"):
            raise DeletesError("the checksum does not match")
        return _counted(roaring_positions(data, self.count), self.count)

    def to_json(self) -> list[Any]:
        """Return it as plain values, for `deletes_of`."""
        return ["file", self.path, self.offset, self.size_bytes, self.count]


Deletes: TypeAlias = InlineVector | Vector
"""The deleted rows of one data file. An immutable value."""


def deletes_of(found: list[Any]) -> Deletes:
    """Make any of these from the result of `to_json`."""
    kind, *rest = found
    if kind == "inline":
        return InlineVector(bytes.fromhex(rest[0]), rest[1])
    return Vector(*rest)


def _counted(positions: IntArray, count: int | None) -> IntArray:
    if count is not None and len(positions) != count:
        raise DeletesError(f"it names {len(positions)} rows, but the table's metadata says {count}")
    return positions


def roaring_positions(data: bytes, most: int | None = None) -> IntArray:
    """Return the values of a 64-bit Roaring bitmap with its magic number, int64, sorted.

    Args:
        data: The bitmap.
        most: The most values that it may have; more are refused before they take memory. None: any number.

    Raises:
        DeletesError: it is damaged, or has more values.
    """
    try:
        (magic,) = struct.unpack_from("<i", data)
        if magic != _MAGIC:
            raise DeletesError(f"the bitmap begins with {magic}, not with {_MAGIC}")
        (bitmaps,) = struct.unpack_from("<Q", data, 4)
        if bitmaps > _MOST_BITMAPS:
            raise DeletesError(f"the bitmap claims {bitmaps} parts")
        at, parts, before = 12, list[IntArray](), -1
        for _ in range(bitmaps):
            (high,) = struct.unpack_from("<I", data, at)
            if not before < high < 2**31:
                raise DeletesError("the parts of the bitmap are not in order")
            before = high
            low, at = _bitmap(data, at + 4, None if most is None else most - sum(map(len, parts)))
            parts.append(low + (high << 32))
    except struct.error:
        raise DeletesError("the bitmap ends early") from None
    if at != len(data):
        raise DeletesError(f"{len(data) - at} bytes follow the bitmap")
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _bitmap(data: bytes, at: int, most: int | None) -> tuple[IntArray, int]:
    """Return the values of a 32-bit bitmap, and its end offset. Raises as `roaring_positions`, `struct.error`."""
    (cookie,) = struct.unpack_from("<I", data, at)
    at += 4
    if cookie & 0xFFFF == _COOKIE_RUNS:
        count = (cookie >> 16) + 1
        marks = np.frombuffer(_some(data, at, (count + 7) // 8), np.uint8)
        is_run = np.unpackbits(marks, bitorder="little")[:count].astype(np.bool_)
        at += len(marks)
        has_offsets = count >= _FEWEST_WITH_OFFSETS
    elif cookie == _COOKIE:
        (count,) = struct.unpack_from("<I", data, at)
        at += 4
        if count > 65536:
            raise DeletesError(f"the bitmap claims {count} containers")
        is_run, has_offsets = np.zeros(count, np.bool_), True
    else:
        raise DeletesError(f"the bitmap has the unknown kind {cookie}")
    heads = np.frombuffer(_some(data, at, 4 * count), "<u2").reshape(-1, 2).astype(np.int64)
    at += 4 * count
    keys, sizes = heads[:, 0], heads[:, 1] + 1
    if np.any(np.diff(keys) <= 0):
        raise DeletesError("the containers of the bitmap are not in order")
    if most is not None and sizes.sum() > most:
        raise DeletesError("it names more rows than the table's metadata says")
    if has_offsets:
        at += len(_some(data, at, 4 * count))  # containers follow each other
    parts: list[IntArray] = []
    for key, size, run in zip(keys.tolist(), sizes.tolist(), is_run.tolist(), strict=True):
        if run:
            (runs,) = struct.unpack_from("<H", data, at)
            pairs = np.frombuffer(_some(data, at + 2, 4 * runs), "<u2").reshape(-1, 2).astype(np.int64)
            at += 2 + 4 * runs
            starts, lengths = pairs[:, 0], pairs[:, 1] + 1
            values = _spread(starts, lengths) if lengths.sum() == size else starts[:0]
        elif size <= _MOST_IN_ARRAY:
            values = np.frombuffer(_some(data, at, 2 * size), "<u2").astype(np.int64)
            at += 2 * size
        else:
            bits = np.frombuffer(_some(data, at, 8192), np.uint8)
            at += 8192
            values = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
        if len(values) != size or np.any(np.diff(values) <= 0) or (size and values[-1] > 65535):
            raise DeletesError("a container of the bitmap contradicts itself")
        parts.append(values + (key << 16))
    return (np.concatenate(parts) if parts else np.empty(0, np.int64)), at


def _spread(starts: IntArray, lengths: IntArray) -> IntArray:
    """Return the values in runs, given the start and the length of each."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    spread: IntArray = np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - lengths), lengths)
    return spread


def _some(data: bytes, at: int, size: int) -> bytes:
    found = data[at : at + size]
    if len(found) != size:
        raise DeletesError("the bitmap ends early")
    return found


def roaring_bytes(positions: IntArray) -> bytes:
    """Return the bitmap with its magic number of sorted, distinct values, as `roaring_positions` reads it."""
    parts = [struct.pack("<i", _MAGIC)]
    highs, firsts = np.unique(positions >> 32, return_index=True)
    parts.append(struct.pack("<Q", len(highs)))
    for high, low in zip(highs.tolist(), np.split(positions, firsts[1:]), strict=False):
        values = low & 0xFFFFFFFF
        keys, starts = np.unique(values >> 16, return_index=True)
        containers = [part & 0xFFFF for part in np.split(values, starts[1:])]
        heads = np.array([[key, len(c) - 1] for key, c in zip(keys.tolist(), containers, strict=True)], "<u2")
        bodies = [_container(c) for c in containers]
        first = 8 + 8 * len(bodies)
        offsets = first + np.cumsum([0, *(len(body) for body in bodies[:-1])])
        parts += [struct.pack("<III", high, _COOKIE, len(bodies)), heads.tobytes(), offsets.astype("<u4").tobytes()]
        parts += bodies
    return b"".join(parts)


def _container(values: IntArray) -> bytes:
    if len(values) <= _MOST_IN_ARRAY:
        return values.astype("<u2").tobytes()
    bits = np.zeros(65536, np.uint8)
    bits[values] = 1
    return np.packbits(bits, bitorder="little").tobytes()
