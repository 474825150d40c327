"""Permutations by the kernel equal those of numpy's sort, bit for bit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader.common import (
    KERNELS,
    IndexedStream,
    IntArray,
    Stream,
    WordArray,
    bit_generator,
    order_of_words,
    permutation,
    random_words,
)
from parquet_loader.common.permutations import sorted_words

LAST = 2**64 - 1


def by_numpy(size: int, seed: int, stream: Stream, epoch: int, index: int = 0) -> IntArray:
    return sorted_words(bit_generator(seed, stream, epoch, index).random_raw(size))


def by_kernel(words: npt.NDArray[np.uint64]) -> IntArray:
    """The kernel's permutation of words that Philox is unlikely to generate, with a buffer to keep them and without.

    With the buffer, the kernel does not count words before it distributes them, unless there are too many for a bucket.
    """
    if KERNELS is None:
        pytest.skip("the kernels were not compiled: no C compiler at hand")
    count = len(words)
    counted, estimated = np.full((2, count + 2), -7, np.int64)
    kept = np.full(count + 2, 7, np.uint64)
    for order, address in (counted, None), (estimated, kept[1:].ctypes.data):
        assert KERNELS.permute(None, words.ctypes.data, count, order[1:].ctypes.data, address) == 0
        assert order[0] == order[-1] == -7
    assert kept[0] == kept[-1] == 7
    assert np.array_equal(counted, estimated)
    found: IntArray = counted[1:-1]
    return found


def test_all_small_sizes_are_permuted_as_numpy_does() -> None:
    for size in range(5001):
        assert np.array_equal(permutation(size, 3, Stream.ROWS, 1, 2), by_numpy(size, 3, Stream.ROWS, 1, 2)), size


@pytest.mark.parametrize("size", [2**16 - 1, 2**16, 2**16 + 1, 200_000, 1_000_003, 4_300_000])
def test_large_sizes_are_permuted_as_numpy_does(size: int) -> None:
    order = permutation(size, 5, Stream.ROWS, 0)
    assert order.dtype == np.int64
    assert np.array_equal(order, by_numpy(size, 5, Stream.ROWS, 0))


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, 5000, 300_001])
@pytest.mark.parametrize("is_kept", [True, False])
def test_permutations_in_given_memory_are_the_same(size: int, is_kept: bool) -> None:
    memory, words = np.full(size + 1, -7, np.int64), np.full(8 * size + 1, 0xA5, np.uint8)
    order = permutation(size, 5, Stream.ROWS, 0, 1, lambda rows: (memory[:rows], words[:-1] if is_kept else None))
    assert np.array_equal(order, by_numpy(size, 5, Stream.ROWS, 0, 1))
    assert KERNELS is None or order.ctypes.data == memory.ctypes.data
    assert memory[-1] == -7
    assert words[-1] == 0xA5


@given(
    size=st.integers(0, 3000),
    seed=st.integers(0, LAST),
    stream=st.sampled_from(Stream),
    epoch=st.integers(0, LAST),
    index=st.integers(0, LAST),
)
def test_any_seed_and_use_is_permuted_as_numpy_does(
    size: int, seed: int, stream: Stream, epoch: int, index: int
) -> None:
    assert np.array_equal(permutation(size, seed, stream, epoch, index), by_numpy(size, seed, stream, epoch, index))


def test_the_order_of_the_method_is_this_one() -> None:
    assert permutation(12, 1, Stream.ROWS, 2, 3).tolist() == [6, 11, 3, 10, 7, 1, 4, 8, 0, 9, 2, 5]


@pytest.mark.parametrize("seed", [-1, LAST + 1])
def test_a_seed_beyond_64_bits_is_refused(seed: int) -> None:
    with pytest.raises(OverflowError):
        permutation(3, seed, Stream.ROWS, 0)


@pytest.mark.parametrize("size", [1, 2, 24, 25, 100, 513, 5000, 40_000, 150_000])
def test_words_that_are_equal_or_crowded_keep_the_order_of_their_elements(size: int) -> None:
    rng = np.random.default_rng(size)
    any_word = rng.integers(0, LAST, size, np.uint64, endpoint=True)
    rising = np.arange(size, dtype=np.uint64)
    crowded = [
        np.zeros(size, np.uint64),
        np.full(size, LAST, np.uint64),
        rising,
        rising[::-1] << np.uint64(40),
        any_word & np.uint64(1),
        any_word & np.uint64(7 << 20),
        any_word >> np.uint64(60) << np.uint64(60),
        any_word >> np.uint64(30),
        any_word | np.uint64(0xFFFF << 48),
        np.where(any_word & np.uint64(1023), np.uint64(5 << 33), any_word),
    ]
    for words in crowded:
        assert np.array_equal(by_kernel(np.ascontiguousarray(words)), sorted_words(words.copy()))


@given(words=st.lists(st.sampled_from([0, 1, 2**20, 2**33, 2**33 + 1, 2**63, LAST]), max_size=300))
def test_any_words_are_sorted_as_numpy_does(words: list[int]) -> None:
    assert np.array_equal(by_kernel(np.array(words, np.uint64)), sorted_words(np.array(words, np.uint64)))


def drawn(size: int, seed: int, stream: Stream, epoch: int, index: int) -> WordArray:
    memory = np.full(size + 1, 7, np.uint64)
    found = random_words(size, seed, stream, epoch, index, lambda rows: memory[:rows])
    assert memory[-1] == 7
    return found


@given(
    size=st.one_of(st.integers(0, 70), st.integers(0, 9000)),
    seed=st.integers(0, LAST),
    epoch=st.integers(0, LAST),
    index=st.integers(0, LAST),
)
def test_permutations_follow_from_random_words(size: int, seed: int, epoch: int, index: int) -> None:
    order, words = permutation(size, seed, Stream.ROWS, epoch, index), drawn(size, seed, Stream.ROWS, epoch, index)
    kept = words.copy()
    assert np.array_equal(order_of_words(words), order)
    assert np.array_equal(words, kept)


@pytest.mark.parametrize("index", [0, 1, 7, 2**40, 2**63 - 1])
def test_the_generators_of_an_index_draw_the_numbers_of_its_own_bit_generator(index: int) -> None:
    stream = IndexedStream(5, Stream.MEDIA, 3)
    for before in (index, 9, 0):
        stream.generator(before).random(before % 4 + 1)  # also from the middle of a block of numbers
        own = bit_generator(5, Stream.MEDIA, 3, index)
        assert stream.generator(index).bit_generator.random_raw(11).tolist() == own.random_raw(11).tolist()
        assert stream.generator(index).integers(9, dtype=np.uint32) == np.random.Generator(
            bit_generator(5, Stream.MEDIA, 3, index)
        ).integers(9, dtype=np.uint32)
