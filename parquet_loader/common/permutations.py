"""Seeded permutations, with a separate random stream for each use of the seed."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from parquet_loader.common.arrow_features import words
from parquet_loader.common.native.bindings import KERNELS
from parquet_loader.common.typing import IntArray

PERMUTATION_METHOD = "philox-sort-1"


class Stream(IntEnum):
    """The use of random numbers: each has its own stream, the second word of the Philox key."""

    ROW_GROUPS = 1
    ROWS = 2
    TRANSFORM = 3
    SEQUENCES = 4
    STRATA = 5
    MEDIA = 6
    REWRITE = 8
    # Write jobs that shuffle, see `write.shuffle`; they pass the partition instead of the epoch.
    JOB_CHUNK = 16
    JOB_PHASE = 17
    JOB_BUCKET = 18


def bit_generator(seed: int, stream: Stream, epoch: int, index: int = 0) -> np.random.Philox:
    """Return the Philox bit generator of one stream: key (seed, stream), counter (0, 0, index, epoch).

    Streams never overlap: index and epoch are the counter's upper words, and nobody draws 2**128 numbers.
    """
    key = words(seed, stream)
    counter = words(0, 0, index, epoch)
    return np.random.Philox(key=key, counter=counter)


class IndexedStream:
    """The bit generators of one stream by index: as `bit_generator`, in a sixth of the time. For one thread.

    Args:
        seed, stream, epoch: As in `bit_generator`.
    """

    def __init__(self, seed: int, stream: Stream, epoch: int) -> None:
        self._philox = bit_generator(seed, stream, epoch)
        self._generator = np.random.Generator(self._philox)
        self._state = self._philox.state

    def generator(self, index: int) -> np.random.Generator:
        """Return the generator of an index, from its first number; valid until the next call."""
        self._state["state"]["counter"][2] = index
        self._philox.state = self._state
        return self._generator


WordArray: TypeAlias = npt.NDArray[np.uint64]
OrderMemory: TypeAlias = "Callable[[int], tuple[IntArray, npt.NDArray[np.uint8] | None]]"
"""Returns memory for a permutation of `size` elements: int64 ``[size]``, and 8 bytes an element as scratch space for
the kernel, or None."""


def permutation(
    size: int, seed: int, stream: Stream, epoch: int, index: int = 0, memory: OrderMemory | None = None
) -> IntArray:
    """Return a permutation of ``range(size)``, int64 ``[size]``, in new memory or in that of `memory`.

    Method ``philox-sort-1``: element i gets the i-th 64-bit word of the raw stream. As many low bits as ``size - 1``
    has are replaced by i. The words are sorted, and their low bits are the permutation. So elements are sorted by at
    least 32 random bits for any size up to 2**32; elements with equal bits keep their order (which no statistic of a
    batch can detect). No two words are equal, so any sorting algorithm gives the same result. Takes 6 to 10 ns an
    element in pre-faulted memory, else 9 to 13; without kernels 10 to 70, depending on numpy's vector instructions.
    """
    if KERNELS is not None and size < 2**32:
        use = words(seed, stream, index, epoch)
        order, kept = (np.empty(size, np.int64), None) if memory is None else memory(size)
        if not KERNELS.permute(
            use.ctypes.data, None, size, order.ctypes.data, None if kept is None else kept.ctypes.data
        ):
            return order
    return sorted_words(bit_generator(seed, stream, epoch, index).random_raw(size))


def random_words(
    size: int, seed: int, stream: Stream, epoch: int, index: int, memory: Callable[[int], WordArray]
) -> WordArray:
    """Return the random words of `permutation`, uint64 ``[size]``, in the memory that `memory` returns for `size`."""
    found = memory(size)
    if KERNELS is None:
        found[:] = bit_generator(seed, stream, epoch, index).random_raw(size)
    else:
        use = words(seed, stream, index, epoch)
        KERNELS.random_words(use.ctypes.data, size, found.ctypes.data)
    return found


def order_of_words(words: WordArray) -> IntArray:
    """Return the permutation that follows from its random words, int64 ``[size]``."""
    if KERNELS is not None and len(words) < 2**32:
        order = np.empty(len(words), np.int64)
        if not KERNELS.permute(None, words.ctypes.data, len(words), order.ctypes.data, None):
            return order
    return sorted_words(words.copy())


def number_bits(size: int) -> np.uint64:
    """Return the low bits of the words that `permutation` replaces by the numbers of elements."""
    return np.uint64((1 << max(size - 1, 0).bit_length()) - 1)


def sorted_words(words: WordArray) -> IntArray:
    """Return the permutation of the method above from its random words, in their memory."""
    places = number_bits(len(words))
    words &= ~places
    words |= np.arange(len(words), dtype=np.uint64)
    words.sort()
    words &= places
    order: IntArray = words.view(np.int64)
    return order
