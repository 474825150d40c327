"""The order of an epoch as a pure function: no I/O, no threads, no clock, no global random state.

`plan_epoch` turns the rows of every row group into windows, each a list of slices of row groups; `permutation` is the
only source of randomness, with a method that is written down and versioned (`PERMUTATION_METHOD`), because numpy
promises the raw stream of a bit generator but not what its `Generator` methods make of it (NEP 19).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice

import numpy as np

from parquet_loader.types import IntArray

PERMUTATION_METHOD = "philox-radix-1"


class Stream(IntEnum):
    """What random numbers are for: each use has a stream of its own, the second word of the Philox key."""

    ROW_GROUPS = 1
    ROWS = 2
    TRANSFORM = 3


def bit_generator(seed: int, stream: Stream, epoch: int, index: int = 0) -> np.random.Philox:
    """Return the Philox bit generator of one use: key (seed, stream), counter (0, 0, index, epoch).

    Streams never overlap: a use draws fewer than 2**128 numbers, and the counter's upper words name the use.
    """
    key = np.array([seed, stream], dtype=np.uint64)
    counter = np.array([0, 0, index, epoch], dtype=np.uint64)
    return np.random.Philox(key=key, counter=counter)


def permutation(size: int, seed: int, stream: Stream, epoch: int, index: int = 0) -> IntArray:
    """Return a permutation of ``range(size)``, int64 ``[size]``.

    Method ``philox-radix-1``: every element gets 32 random bits, the elements are sorted by them, and equal bits keep
    their order (one pair in 2**32 does, which no statistic of a batch can see). The bits are the raw stream's words
    cut into little-endian 16-bit halves: the first ``size`` are the low halves, the next ``size`` the high ones.
    Sorting 16-bit keys stably is a radix sort, so the whole takes about 15 ns an element.
    """
    words = bit_generator(seed, stream, epoch, index).random_raw((2 * size + 3) // 4)
    halves = np.asarray(words, dtype="<u8").view("<u2")
    by_low = np.argsort(halves[:size], kind="stable")
    by_high = np.argsort(halves[size : 2 * size][by_low], kind="stable")
    return by_low[by_high]


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows ``start`` to ``stop`` (exclusive) of one row group, counted after the filter."""

    row_group: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Plan:
    """One epoch's windows, kept as arrays: 24 bytes a slice.

    Attributes:
        row_group, start, stop: int64 ``[slices]``, as in `Slice`.
        window_slices: int64 ``[windows + 1]``: window ``w`` is slices ``window_slices[w]`` to ``window_slices[w + 1]``.
        window_ends: int64 ``[windows + 1]``: rows of the epoch before each window, and at last all of them.
        batch_size: Rows of a batch.
        drop_last: Whether rows that do not fill a last batch are left out.
        shuffle, seed, epoch: What the permutations are drawn from.
    """

    row_group: IntArray
    start: IntArray
    stop: IntArray
    window_slices: IntArray
    window_ends: IntArray
    batch_size: int
    drop_last: bool
    shuffle: bool
    seed: int
    epoch: int

    @property
    def windows(self) -> int:
        """Number of windows."""
        return len(self.window_slices) - 1

    @property
    def rows(self) -> int:
        """Rows that the windows hold together."""
        return int(self.window_ends[-1])

    @property
    def batches(self) -> int:
        """Number of batches delivered."""
        return batch_count(self.rows, self.batch_size, self.drop_last)

    def slices(self, window: int) -> list[Slice]:
        """Return the slices of one window, in the order in which its rows lie before the permutation."""
        first, last = int(self.window_slices[window]), int(self.window_slices[window + 1])
        columns = (self.row_group[first:last], self.start[first:last], self.stop[first:last])
        return [Slice(*numbers) for numbers in zip(*(c.tolist() for c in columns), strict=True)]

    def window_rows(self, window: int) -> int:
        """Return the number of rows the window reads."""
        return int(self.window_ends[window + 1] - self.window_ends[window])

    def carried_rows(self, window: int) -> int:
        """Return how many rows the windows before left over, which go to the front of this one."""
        return int(self.window_ends[window]) % self.batch_size

    def order(self, window: int) -> IntArray | None:
        """Return where each delivered row of the window lies among its rows read, or None for as they lie."""
        if not self.shuffle:
            return None
        return permutation(self.window_rows(window), self.seed, Stream.ROWS, self.epoch, window)

    def __iter__(self) -> Iterator[list[Slice]]:
        return (self.slices(window) for window in range(self.windows))


def batch_count(rows: int, batch_size: int, drop_last: bool) -> int:
    """Return the number of batches that `rows` rows make."""
    return rows // batch_size if drop_last else -(-rows // batch_size)


def plan_epoch(
    rows: IntArray,
    *,
    window_rows: int,
    open_row_groups: int,
    batch_size: int,
    drop_last: bool,
    shuffle: bool,
    seed: int,
    epoch: int,
) -> Plan:
    """Divide an epoch into windows.

    Row groups come in seeded order (as they lie without `shuffle`). With one row group open at a time a window takes
    whole row groups, and a slice of one only where it would be less than half full otherwise. With several open, each
    of them gives an equal share of every window, whole where it is smaller than that, so that sorted data mixes. A row
    group's slices are always taken in order, by one streaming cursor. Every window but the last few is at least half
    full, so with ``window_rows >= 2 * batch_size`` a batch touches two windows at most.

    Args:
        rows: int64 ``[row groups]``, rows of each that pass the filter.
        window_rows: Most rows a window reads, at least 1.
        open_row_groups: Most row groups that windows share at a time.
        batch_size, drop_last: As in the loader.
        shuffle, seed, epoch: As in the loader.
    """
    order = np.flatnonzero(rows)
    if shuffle:
        order = order[permutation(len(order), seed, Stream.ROW_GROUPS, epoch)]
    ordered = rows[order]
    if open_row_groups == 1 or not shuffle or int(ordered.sum()) <= window_rows:
        row_group, start, stop, window_slices = _one_after_another(ordered, window_rows)
    else:
        row_group, start, stop, window_slices = _side_by_side(ordered, window_rows, open_row_groups)
    taken = np.concatenate([[0], np.cumsum(stop - start)])
    return Plan(
        row_group=order[row_group],
        start=start,
        stop=stop,
        window_slices=window_slices,
        window_ends=taken[window_slices],
        batch_size=batch_size,
        drop_last=drop_last,
        shuffle=shuffle,
        seed=seed,
        epoch=epoch,
    )


def _one_after_another(rows: IntArray, window_rows: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """End each window where a row group ends, unless that leaves it less than half full."""
    ends = np.cumsum(rows)
    total = int(ends[-1]) if len(ends) else 0
    cuts = [0]
    while cuts[-1] < total:
        full = min(cuts[-1] + window_rows, total)
        whole = int(ends[np.searchsorted(ends, full, side="right") - 1]) if full >= ends[0] else 0
        cuts.append(whole if 2 * (whole - cuts[-1]) >= window_rows else full)
    bounds = np.union1d(cuts, ends)
    row_group = np.searchsorted(ends, bounds[:-1], side="right")
    begins = (ends - rows)[row_group]
    return row_group, bounds[:-1] - begins, bounds[1:] - begins, np.searchsorted(bounds, cuts)


def _side_by_side(
    rows: IntArray, window_rows: int, open_row_groups: int
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Let several lanes of row groups each give an equal share of every window."""
    sizes = rows.tolist()
    following = iter(range(len(sizes)))
    lanes: list[tuple[int, int]] = [(group, 0) for group in islice(following, open_row_groups)]
    slices: list[tuple[int, int, int]] = []
    bounds = [0]
    while lanes:
        kept: list[tuple[int, int]] = []
        room = window_rows
        for number, lane in enumerate(lanes):
            share = room // (len(lanes) - number)
            half = share // 2
            group, position = lane
            while share > 0:
                take = min(share, sizes[group] - position)
                slices.append((group, position, position + take))
                share, room, position = share - take, room - take, position + take
                if position < sizes[group]:
                    kept.append((group, position))
                    break
                fresh = next(following, None)
                if fresh is None:
                    break
                group, position = fresh, 0
                if share <= half and share < sizes[group] <= 2 * half:
                    share = 0  # a small row group stays whole: it waits for the next window
            else:
                if position < sizes[group]:
                    kept.append((group, position))
        lanes = kept
        bounds.append(len(slices))
    table = np.array(slices, dtype=np.int64).reshape(-1, 3)
    return table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy(), np.array(bounds)
