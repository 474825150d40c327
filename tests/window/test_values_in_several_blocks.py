"""Rows that take more bytes than expected lie in several blocks; they are gathered from there, not joined first."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from parquet_loader import Schema, Text
from parquet_loader.common import KERNELS
from parquet_loader.decode import columns_of
from parquet_loader.window.arena import Arenas
from parquet_loader.window.variable_width import SEGMENT_BYTES, RaggedRows


def texts(number: int, rows: int) -> list[bytes]:
    """Return rows of 0 to 30 bytes, of which the last is empty or short, and some that a kernel does not copy whole."""
    rng = np.random.default_rng(number)
    lengths = rng.choice([0, 1, 7, 30, 2000], rows, p=[0.1, 0.1, 0.2, 0.5, 0.1])
    lengths[-1] = number % 2
    return [bytes(rng.integers(97, 123, length).astype(np.uint8)) for length in lengths.tolist()]


def staged(chunks: list[list[bytes]], scattered: frozenset[str] = frozenset()) -> RaggedRows:
    """Return a window to which these chunks of rows are written, expected to take the least space."""
    rows = sum(map(len, chunks))
    columns, arenas = columns_of(Schema({"x": Text()})), Arenas(2**30, lambda nbytes: np.empty(nbytes, np.uint8))
    ragged = RaggedRows(columns, rows, 0, {}, arenas, arenas, scattered)
    ragged.prepare()
    first = 0
    for chunk in chunks:
        ragged.write_rows(first, {"x": pa.chunked_array([pa.array(chunk, pa.large_binary())])})
        first += len(chunk)
    return ragged


@pytest.mark.parametrize("is_scattered", [False, True])
def test_rows_of_several_blocks_are_delivered_in_order(*, is_scattered: bool) -> None:
    chunks = [texts(number, 2500) for number in range(10)]
    together = [text for chunk in chunks for text in chunk]
    assert sum(map(len, together)) > 4 * SEGMENT_BYTES
    order = np.random.default_rng(0).permutation(len(together)).astype(np.uint32)
    ragged = staged(chunks, frozenset({"x"}) if is_scattered else frozenset())
    delivered = len(together) - 100
    left = ragged.set_order({}, order, delivered)
    assert left["x"].to_pylist() == [together[number] for number in order[delivered:]]
    for start, stop in ((0, 7000), (7000, delivered)):
        ragged.gather(start, stop)
    done, scattered = ragged.finish()
    found = scattered["x"].ordered() if is_scattered else done["x"][0]
    expected = [together[number] for number in order[:delivered]]
    assert found.offsets.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
    assert found.values.tobytes() == b"".join(expected)


def test_rows_after_an_allocation_that_failed_stay_in_their_own_block() -> None:
    columns, refuses = columns_of(Schema({"x": Text()})), False

    def allocate(nbytes: int) -> np.ndarray[Any, Any]:
        if refuses:
            raise MemoryError
        return np.empty(nbytes, np.uint8)

    arenas = Arenas(2**30, allocate)
    ragged = RaggedRows(columns, 4, 0, {}, arenas, arenas)
    ragged.prepare()
    given = [b"a", bytes(3 * SEGMENT_BYTES), b"b" * 2 * SEGMENT_BYTES, b"c"]
    chunks = [pa.chunked_array([pa.array([text], pa.large_binary())]) for text in given]
    ragged.write_rows(0, {"x": chunks[0]})
    refuses = True
    with pytest.raises(MemoryError):
        ragged.write_rows(1, {"x": chunks[1]})
    refuses = False
    for number in (2, 3, 1):
        ragged.write_rows(number, {"x": chunks[number]})
    ragged.set_order({}, np.arange(4, dtype=np.uint32), 4)
    ragged.gather(0, 4)
    assert ragged.finish()[0]["x"][0].to_list() == [text.decode() for text in given]


@pytest.mark.skipif(KERNELS is None, reason="without kernels, values are joined first")
def test_gathering_takes_no_memory_but_that_of_the_ordered_rows() -> None:
    chunks = [[bytes(2**18)] for _ in range(32)]
    ragged = staged(chunks)
    tracemalloc.start()
    try:
        ragged.set_order({}, np.arange(32, dtype=np.uint32), 32)
        ragged.gather(0, 32)
        assert tracemalloc.get_traced_memory()[1] < 32 * 2**18 + SEGMENT_BYTES
    finally:
        tracemalloc.stop()
