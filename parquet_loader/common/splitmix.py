"""Stable hashes of numbers and byte strings: SplitMix64, in Python integers and in numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Words = npt.NDArray[np.uint64]

GOLDEN = 0x9E3779B97F4A7C15
STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31
MASK = 2**64 - 1

# Words hashed at a time, which bounds temporary memory to a few MiB.
_BLOCK_WORDS = 2**16


def mixed(value: int) -> int:
    """Return SplitMix64's hash of 64 bits (Steele, Lea and Flood 2014), in Python integers."""
    value = (value + GOLDEN) & MASK
    for shift, factor in STEPS:
        value = (value ^ (value >> shift)) * factor & MASK
    return value ^ (value >> LAST_SHIFT)


def mixed_words(words: Words) -> Words:
    """Return `mixed` of each word, uint64 of the same shape."""
    words = words + np.uint64(GOLDEN)
    for shift, factor in STEPS:
        words ^= words >> np.uint64(shift)
        words *= np.uint64(factor)
    words ^= words >> np.uint64(LAST_SHIFT)
    return words


def hashed_bytes(values: pa.LargeBinaryArray, block_words: int = _BLOCK_WORDS) -> Words:
    """Return a hash of each byte string, uint64 ``[values]``, by method ``splitmix-bytes-1``; a null has any.

    A string is cut into little-endian words of 8 bytes; the last one is padded with zero bytes. The hash is the sum of
    ``mixed(word ^ mixed(i))`` over its words (i counts from 0) plus its length in bytes, modulo 2**64. `block_words`
    bounds temporary memory and does not change hashes.
    """
    offsets = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]
    lengths = np.diff(offsets)
    hashes = lengths.astype(np.uint64)
    words = (lengths + 7) >> 3
    ends = np.cumsum(words)
    begins = ends - words
    data = values.buffers()[2]
    total = int(ends[-1]) if len(ends) else 0
    for first in range(0, total, block_words):
        last = min(total, first + block_words)
        row = np.arange(np.searchsorted(ends, first, "right"), np.searchsorted(begins, last, "left"))
        row = row[words[row] > 0]
        counts = np.minimum(ends[row], last) - np.maximum(begins[row], first)
        of_word = np.repeat(row, counts)
        number = np.arange(first, last) - begins[of_word]
        loaded = _loaded(data, offsets[of_word] + 8 * number, lengths[of_word] - 8 * number)
        loaded ^= mixed_words(number.astype(np.uint64))
        hashes[row] += np.add.reduceat(mixed_words(loaded), np.cumsum(counts) - counts)
    return hashes


def _loaded(data: pa.Buffer, begins: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Words:
    """Return up to 8 bytes from each of these offsets, as numbers."""
    if data.size < 8:
        data = pa.py_buffer(data.to_pybytes().ljust(8, b"\0"))
    at_any_byte = np.ndarray((data.size - 7,), np.dtype("<u8"), data, strides=(1,))
    # Near the end of the buffer, the last 8 bytes are read and shifted.
    offsets = np.minimum(begins, data.size - 8)
    words = at_any_byte[offsets].astype(np.uint64) >> (8 * (begins - offsets)).astype(np.uint64)
    kept: Words = words & (np.uint64(MASK) >> (8 * (8 - np.minimum(lengths, 8))).astype(np.uint64))
    return kept
