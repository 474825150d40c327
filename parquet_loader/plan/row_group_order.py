"""The order in which row groups are read. Pure functions of the seed and the epoch."""

from __future__ import annotations

import numpy as np

from parquet_loader.common import IntArray, Stream, bit_generator


def spread_order(size: int, seed: int, epoch: int) -> IntArray:
    """Return a permutation of ``range(size)``, int64 ``[size]``, whose every part is spread evenly over the range.

    Method of ``spread-1``: the first `size` elements of a van der Corput sequence with random bits (Owen scrambling),
    each replaced by its rank among them, and the sequence turned: it begins with a random element, and after the last
    one comes the first. Of any ``2**k`` consecutive elements, counted from a multiple of ``2**k`` in the sequence, one
    lies in each of the ``2**k`` equal intervals of its range, the smallest power of two that is not below `size`. So
    neighbours are far apart, and every number is equally probable everywhere.

    Philox runs with the key (seed, stream of strata) and the counter (0, 0, 0, epoch). The first word of the raw stream
    gives the element with which the order begins, the high word of its product with `size`. Later words are bits,
    lowest first: bit ``2**level + i`` says in which half of its interval element i lies, and element ``2**level + i``
    lies in the other half.
    """
    if not size:
        return np.zeros(0, np.int64)
    levels = (size - 1).bit_length()
    words = bit_generator(seed, Stream.STRATA, epoch).random_raw(2 + (1 << levels) // 64)
    bits = np.unpackbits(words[1:].astype("<u8").view(np.uint8), bitorder="little")
    order: IntArray = np.zeros(1, np.int64)
    for level in range(levels):
        halves = 2 * order + bits[1 << level : 2 << level]
        order = np.concatenate([halves, halves ^ 1])
    is_used = np.zeros(1 << levels, np.int64)
    is_used[order[:size]] = 1
    ranks = (np.cumsum(is_used) - 1)[order[:size]]
    return np.roll(ranks, -(int(words[0]) * size >> 64))


def dealt(rows: IntArray, lanes: int) -> IntArray:
    """Return the lane of each row group, int64 ``[row groups]``: row groups are dealt to the lanes in turn.

    If the last turn has too few row groups for all lanes, its largest ones go to the lanes with the fewest rows.

    Args:
        rows: int64 ``[row groups]``, their rows, in the order of dealing.
        lanes: Number of lanes.
    """
    lane = np.arange(len(rows)) % lanes
    full = len(rows) - len(rows) % lanes
    if full:
        loads = np.bincount(lane[:full], rows[:full], minlength=lanes)
        largest = full + np.argsort(-rows[full:], kind="stable")
        lane[largest] = np.argsort(loads, kind="stable")[: len(largest)]
    return lane
