"""Hashes of byte strings equal a model in plain Python after the docstring, at any alignment in memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader.common import splitmix as hashing
from parquet_loader.common.splitmix import MASK, hashed_bytes, mixed, mixed_words

FIXED = [
    0,
    10361829843645232398,
    10361829843645232399,
    5722974942129660192,
    4409554789167952353,
    14226527024824695053,
]
VALUES = st.lists(st.none() | st.binary(max_size=40), max_size=30)


def plain(value: bytes) -> int:
    words = [int.from_bytes(value[first : first + 8], "little") for first in range(0, len(value), 8)]
    return (sum(mixed(word ^ mixed(number)) for number, word in enumerate(words)) + len(value)) & MASK


@given(values=VALUES, skipped=st.integers(0, 5), block=st.integers(1, 7))
def test_the_hash_is_the_documented_one(values: list[bytes | None], skipped: int, block: int) -> None:
    array = pa.array(values, pa.large_binary()).slice(skipped)
    found = hashed_bytes(array, block).tolist()
    expected = [plain(value) if value is not None else None for value in values[skipped:]]
    assert [f if e is not None else None for f, e in zip(found, expected, strict=True)] == expected


def test_some_hashes_as_they_will_always_be() -> None:
    """If these hashes change, every existing split changes."""
    values = pa.array([b"", b"a", b"a\0", b"user-17", "Größe".encode(), bytes(range(100))], pa.large_binary())
    assert hashed_bytes(values).tolist() == FIXED


def test_words_are_mixed_as_numbers_are() -> None:
    words = [0, 1, 2**63, MASK, 0x123456789ABCDEF]
    assert mixed_words(np.array(words, np.uint64)).tolist() == [mixed(word) for word in words]


def test_a_value_longer_than_a_block_is_hashed_whole() -> None:
    value = np.random.default_rng(0).bytes(8 * hashing._BLOCK_WORDS + 13)
    assert hashed_bytes(pa.array([b"x", value, b"y"], pa.large_binary())).tolist() == [
        plain(b"x"),
        plain(value),
        plain(b"y"),
    ]
