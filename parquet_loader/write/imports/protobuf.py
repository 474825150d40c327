"""The parts of the Protocol Buffers wire format that records need: fields of a message, and packed numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

_LONGEST_VARINT = 10


class WireError(Exception):
    """The bytes are not a message."""


def fields_of(data: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Yield number, wire type and value of each field: an int, or the bytes of all other types.

    Raises:
        WireError: The bytes end within a field, or a field has an unknown type.
    """
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if not number:
            raise WireError("a field has number 0")
        if kind == VARINT:
            value, at = _varint(data, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            length, at = _varint(data, at)
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise WireError(f"a field has wire type {kind}")
        if length > end - at:
            raise WireError("a field is longer than its message")
        yield number, kind, data[at : at + length]
        at += length


def varints_of(data: memoryview) -> npt.NDArray[np.int64]:
    """Return packed int64, two's complement.

    Raises:
        WireError: The last number is cut short, or a number has more than 10 bytes.
    """
    raw = np.frombuffer(data, np.uint8)
    if not len(raw):
        return np.empty(0, np.int64)
    ends = np.flatnonzero(raw < 128)
    if not len(ends) or ends[-1] != len(raw) - 1:
        raise WireError("a number is cut short")
    begins = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - begins + 1
    longest = int(lengths.max())
    if longest > _LONGEST_VARINT:
        raise WireError("a number has more than 10 bytes")
    found = np.zeros(len(ends), np.uint64)
    for step in range(longest):
        has = lengths > step
        part = (raw[begins[has] + step] & 127).astype(np.uint64)
        found[has] |= part << np.uint64(7 * step)
    return found.view(np.int64)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    for position in range(at, min(len(data), at + _LONGEST_VARINT)):
        byte = data[position]
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, position + 1
        shift += 7
    raise WireError("a number is cut short, or has more than 10 bytes")
