"""The order of an epoch as a pure function: no I/O, no threads, no clock, no global random state.

`plan_epoch` turns the row counts of all row groups into windows, each a list of slices of row groups. A formula gives
the first row of a window (`ShardWindows.window_begin`), so a plan holds two numbers for each row group, whatever the
number of windows, and computes any window from its number.

`permutation` is the only source of randomness, with a documented and versioned method
(`PERMUTATION_METHOD`), because numpy promises the raw stream of a bit generator but not the results of its `Generator`
methods (NEP 19).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from parquet_loader.common import IntArray, OrderMemory, Stream, WordArray, permutation, random_words
from parquet_loader.plan.row_group_order import dealt, spread_order
from parquet_loader.plan.sharding import Division, PartRows, everything

# The method of ordering row groups and dividing them into lanes, which states name.
WINDOW_METHOD = "spread-1"

# Row groups of at most 1/4 of a window are not cut at the end of a window.
WHOLE_SHARE = 4
# How many numbers of windows are tried to make windows end between row groups.
TRIALS = 16


@dataclass(frozen=True, slots=True)
class RowGroupSlice:
    """Rows ``start`` to ``stop`` (exclusive) of one row group, counted after the filter.

    Attributes:
        row_group: Index in the snapshot.
        start, stop: The rows.
        first, last: The rows of this row group that this shard reads, in consecutive slices; all of its rows, unless
            two shards share it.
        key: Distinguishes the cursors of one row group, because two shards of a rank may begin at the same row of it.
    """

    row_group: int
    start: int
    stop: int
    first: int
    last: int
    key: int = 0

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    @property
    def run(self) -> tuple[int, int]:
        """The identity of the cursor that reads this slice."""
        return self.row_group, self.key


@dataclass(frozen=True, slots=True)
class ShardWindows:
    """One shard's rows of the epoch, divided into windows of about equal size.

    Attributes:
        number: Number of the shard in random streams; 0 if there is one shard.
        first, stop: The rows, counted in the order in which row groups are read.
        lanes: Rows of the shard before each lane; the last element is all rows. A lane is a sequence of whole row
            groups; each lane gives the same share of its rows to every window.
        windows: Number of windows.
        step_rows: Rows of each window except the last; 0 if sizes differ by at most one row.
        whole_rows: Row groups of at most this many rows are not cut at the end of a window: the window ends before or
            after them, whichever is nearer. Only with one lane.
        ahead_rows: For each element of `lanes`, how many rows more than an equal share the lanes before it have read,
            between the ramps; empty if none. Lanes are ahead or behind by different shares of a row group, so that row
            groups do not begin in the same window in all lanes.
        ramp_rows: The number of rows at the beginning of the shard in which lanes get ahead, and at its end in which
            they lose this advance.
    """

    number: int
    first: int
    stop: int
    lanes: tuple[int, ...]
    windows: int
    step_rows: int = 0
    whole_rows: int = 0
    ahead_rows: tuple[int, ...] = ()
    ramp_rows: int = 0

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.first

    def window_begin(self, window: int, begins: IntArray) -> int:
        """Return the number of rows of the shard before a window.

        Args:
            window: From 0 to `windows`, for which the result is all rows.
            begins: int64 ``[row groups + 1]``, as in `Plan`.
        """
        if window in (0, self.windows):
            return self.rows if window else 0
        if self.step_rows:
            return window * self.step_rows
        begin = self.rows * window // self.windows
        if not self.whole_rows:
            return begin
        # As `_snapped`, for one number, in a tenth of the time.
        at = begin + self.first
        group = min(bisect_right(begins, at), len(begins) - 1) - 1
        low, high = begins[group : group + 2].tolist()
        if high - low <= self.whole_rows:
            low, high = max(low, self.first), min(high, self.stop)
            at = low if 2 * at <= low + high else high
        return int(at - self.first)

    def window_ends(self, begins: IntArray) -> IntArray:
        """Return the rows of the shard before each window, int64 ``[windows + 1]``; the last element is all rows."""
        numbers = np.arange(self.windows + 1)
        if self.step_rows:
            ends = numbers * self.step_rows
            ends[-1] = self.rows
            return ends
        quotient, rest = divmod(self.rows, max(1, self.windows))
        ends = quotient * numbers + rest * numbers // max(1, self.windows)
        if self.whole_rows:
            ends[1:-1] = self._snapped(ends[1:-1], begins)
        return ends

    def largest_window_rows(self, begins: IntArray) -> int:
        """Return the number of rows of the largest window."""
        if not self.windows:
            return 0
        if self.whole_rows:
            return int(np.diff(self.window_ends(begins)).max())
        if self.step_rows:
            return max(self.step_rows, self.rows - (self.windows - 1) * self.step_rows)
        return -(-self.rows // self.windows)

    def _snapped(self, rows: IntArray, begins: IntArray) -> IntArray:
        """Move window ends that are inside small row groups to the nearer end of the row group."""
        at = rows + self.first
        group = np.minimum(np.searchsorted(begins, at, side="right"), len(begins) - 1) - 1
        low, high = np.maximum(begins[group], self.first), np.minimum(begins[group + 1], self.stop)
        nearer = np.where(2 * at <= low + high, low, high)
        return np.where(begins[group + 1] - begins[group] <= self.whole_rows, nearer, at) - self.first

    def ranges(self, window: int, begins: IntArray) -> list[tuple[int, int]]:
        """Return the first row, and the row after the last, of each lane in a window; counted like `first`."""
        begin, end = self.window_begin(window, begins), self.window_begin(window + 1, begins)
        if len(self.lanes) == 2:
            return [(self.first + begin, self.first + end)]
        found: list[tuple[int, int]] = []
        for lane, low in enumerate(self.lanes[:-1]):
            starts, stops = (self.lane_rows(lane, at) for at in (begin, end))
            found.append((self.first + low + starts, self.first + low + stops))
        return found

    def lane_rows(self, lane: int, at: Any) -> Any:
        """Return the rows of a lane among the first `at` of the shard; those of all lanes add to `at`.

        Args:
            lane: Number of the lane.
            at: An int, or an array; of Python integers if products of three row numbers exceed int64.
        """
        low, high, rows, ramp = self.lanes[lane], self.lanes[lane + 1], self.rows, self.ramp_rows
        if not ramp:
            return high * at // rows - low * at // rows
        advance = min(at, rows - at, ramp) if isinstance(at, int) else np.minimum(np.minimum(at, rows - at), ramp)
        before, behind = self.ahead_rows[lane] * rows, self.ahead_rows[lane + 1] * rows
        share = rows * ramp
        return (high * ramp * at + behind * advance) // share - (low * ramp * at + before * advance) // share

    def window_of(self, row: int, begins: IntArray) -> int:
        """Return the number of the window that holds a row of the shard."""
        window = min(row // self.step_rows if self.step_rows else row * self.windows // self.rows, self.windows - 1)
        while self.window_begin(window, begins) > row:
            window -= 1
        while self.window_begin(window + 1, begins) <= row:
            window += 1
        return window


@dataclass(frozen=True, slots=True)
class Plan:
    """One epoch of one rank; takes 16 bytes for each row group.

    Attributes:
        row_group: int64 ``[row groups]``: snapshot indices of the row groups with rows, in the order of reading.
        begins: int64 ``[row groups + 1]``: rows of the epoch before each row group; the last element is all rows.
        parts: The shards that this rank reads. Each batch holds the same number of rows of each shard.
        batch_size: Rows of a batch.
        batches: Number of batches delivered.
        delivered_rows: Rows delivered.
        drop_last: Whether a last batch that is not full is left out.
        shuffle, seed, epoch: The inputs of the permutations.
        start_window: The first window that is read.
        stop_window: The window after the last one that is read; None reads all windows.
    """

    row_group: IntArray
    begins: IntArray
    parts: tuple[ShardWindows, ...]
    batch_size: int
    batches: int
    delivered_rows: int
    drop_last: bool
    shuffle: bool
    seed: int
    epoch: int
    start_window: int = 0
    stop_window: int | None = None

    @property
    def windows(self) -> int:
        """Number of windows, up to the last one that is read."""
        return self.parts[0].windows if self.stop_window is None else self.stop_window

    @property
    def rows(self) -> int:
        """Rows of all windows."""
        return sum(part.rows for part in self.parts)

    @property
    def row_groups_read(self) -> IntArray:
        """Indices of the row groups read, int64 ``[n]``, sorted, without duplicates."""
        runs = [
            self.row_group[np.searchsorted(self.begins, p.first, side="right") - 1 : _end_of(self.begins, p.stop)]
            for p in self.parts
            if p.rows
        ]
        return np.unique(np.concatenate([*runs, np.zeros(0, np.int64)]))

    def has_rows_of(self, other: Plan) -> bool:
        """Whether this plan delivers all batches of another plan with the same data set and arguments."""
        is_equal = self.epoch == other.epoch and self.parts == other.parts and self.batches == other.batches
        return is_equal and np.array_equal(self.row_group, other.row_group)

    def slices(self, window: int) -> list[RowGroupSlice]:
        """Return the slices of one window; their rows, concatenated, are the input of the permutation."""
        return [
            slice_
            for part in self.parts
            for begin, end in part.ranges(window, self.begins)
            for slice_ in self._slices_of(part, begin, end)
        ]

    def _slices_of(self, part: ShardWindows, begin: int, end: int) -> Iterator[RowGroupSlice]:
        if begin == end:
            return
        low, high = bisect_right(self.begins, begin) - 1, _end_of(self.begins, end)
        groups, bounds = self.row_group[low:high].tolist(), self.begins[low : high + 1].tolist()
        for group, (first, last) in zip(groups, pairwise(bounds), strict=True):
            yield RowGroupSlice(
                group,
                max(begin, first) - first,
                min(end, last) - first,
                max(part.first, first) - first,
                min(part.stop, last) - first,
                part.number,
            )

    def window_begin(self, window: int) -> int:
        """Return the number of rows of all windows before this one."""
        return sum(part.window_begin(window, self.begins) for part in self.parts)

    def window_rows(self, window: int) -> int:
        """Return the number of rows the window reads."""
        return self.window_begin(window + 1) - self.window_begin(window)

    @property
    def largest_window_rows(self) -> int:
        """Rows that the largest window reads."""
        return sum(part.largest_window_rows(self.begins) for part in self.parts)

    def carried_rows(self, window: int) -> int:
        """Return how many rows the previous windows leave over; they come first in this one."""
        return self.window_begin(window) % self.batch_size

    def order(self, window: int, begun_rows: int = 0, memory: OrderMemory | None = None) -> IntArray | None:
        """Return the permutation of a window: int64 ``[rows]``, the number of each delivered row among the rows read.

        None means the identity.

        Args:
            window: Number of the window.
            begun_rows: Number of rows at the beginning of the order that were delivered before a resume; they move to
                the end, after those `left_out`.
            memory: Provides the memory of the permutation; None allocates it.
        """
        if len(self.parts) > 1:
            order = self._side_by_side(window)
        elif self.shuffle or begun_rows:
            order = self._permutation(self.parts[0], window, memory)
        else:
            return None
        return np.concatenate([order[begun_rows:], order[:begun_rows]]) if begun_rows else order

    def order_words(self, window: int, begun_rows: int, memory: Callable[[int], WordArray]) -> WordArray | None:
        """Return the random words from which `order` follows by `order_of_words`; None if it follows in another way.

        Args:
            window, begun_rows: As in `order`.
            memory: Returns memory for as many words as it is passed.
        """
        if not self.shuffle or begun_rows or len(self.parts) > 1:
            return None
        part = self.parts[0]
        return random_words(self._rows(part, window), *self._random_key(part, window), memory)

    def _rows(self, part: ShardWindows, window: int) -> int:
        return part.window_begin(window + 1, self.begins) - part.window_begin(window, self.begins)

    def _random_key(self, part: ShardWindows, window: int) -> tuple[int, Stream, int, int]:
        """Return the key of a window's random numbers: seed, stream, epoch, index."""
        return self.seed, Stream.ROWS, self.epoch, part.number << 40 | window

    def _permutation(self, part: ShardWindows, window: int, memory: OrderMemory | None = None) -> IntArray:
        rows = self._rows(part, window)
        return permutation(rows, *self._random_key(part, window), memory) if self.shuffle else np.arange(rows)

    def _side_by_side(self, window: int) -> IntArray:
        """Return the order that interleaves the shards by batch shares; rows beyond a shard's share come last."""
        share = self.batch_size // len(self.parts)
        delivered = self.delivered_rows // len(self.parts)
        lists, before = [], 0
        for part in self.parts:
            own = self._permutation(part, window)
            lists.append(own + before)
            before += len(own)
        rows = min(delivered - self.parts[0].window_begin(window, self.begins), *map(len, lists))
        full = rows - rows % share
        turns = np.stack([own[:full] for own in lists]).reshape(len(lists), -1, share).transpose(1, 0, 2)
        return np.concatenate([turns.reshape(-1), *(own[full:rows] for own in lists), *(own[rows:] for own in lists)])

    def left_out(self, window: int) -> int:
        """Return how many rows at the end of the window's order are not delivered, so that ranks get equal steps."""
        end = self.window_begin(window + 1)
        return min(max(0, end - self.delivered_rows), end - self.window_begin(window))

    def beginning_of(self, batch: int) -> tuple[int, int]:
        """Return the window in which a batch begins, and the number of rows before the batch in the window's order.

        For a batch after the last one this is the window after the last one.
        """
        if batch >= self.batches:
            return self.windows, 0
        row = batch * self.batch_size
        window = self.parts[0].window_of(row // len(self.parts), self.begins)
        return window, row - self.window_begin(window)

    def __iter__(self) -> Iterator[list[RowGroupSlice]]:
        return (self.slices(window) for window in range(self.windows))


def _end_of(begins: IntArray, row: int) -> int:
    """Return the index after the row group that holds the row before `row`."""
    return bisect_left(begins, row)  # numpy's `searchsorted` releases the GIL, which may take long to get back


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
    division: Division | None = None,
) -> Plan:
    """Divide an epoch into windows.

    Row groups are in the order of `spread_order`, or without `shuffle` in that of the snapshot. Windows have about the
    same number of rows and are at least half full, so with ``window_rows >= 2 * batch_size`` a batch spans at most two
    windows. With one row group open at a time, windows take whole row groups if these have at most a quarter of a
    window's rows. With several open, the row groups are dealt to that many lanes in turn, and each lane gives an equal
    share of its rows to every window, which mixes sorted data. One cursor reads all slices of a row group, in order.

    Args:
        rows: int64 ``[row groups]``, rows of each row group that pass the filter.
        window_rows: The most rows that a window reads, at least 1.
        open_row_groups: The most row groups that windows may share at a time.
        batch_size, drop_last: As in the loader.
        shuffle, seed, epoch: As in the loader.
        division: The rows to read, and how many of them to deliver; default: all.
    """
    order = np.flatnonzero(rows)
    if shuffle:
        order = order[spread_order(len(order), seed, epoch)]
    begins = _sums(rows[order])
    if division is None:
        division = everything(int(begins[-1]), batch_size, drop_last=drop_last)
    lanes = max(1, open_row_groups // division.side_by_side) if shuffle else 1
    window_rows = max(1, window_rows // division.side_by_side)
    in_lanes: dict[int, IntArray] = {}
    if lanes > 1:
        for part in division.parts:
            low, high = _row_groups_of(part, begins)
            lane = dealt(rows[order[low:high]], lanes)
            order[low:high] = order[low:high][np.argsort(lane, kind="stable")]
            in_lanes[part.number] = np.bincount(lane, minlength=lanes)
        begins = _sums(rows[order])
    divided = _Lanes(begins, in_lanes)
    if len(division.parts) > 1 or division.side_by_side > 1:
        share = batch_size // len(division.parts)
        parts = [_in_steps(r, divided, window_rows, share, division) for r in division.parts]
    else:
        parts = [_in_windows(r, divided, window_rows) for r in division.parts]
    return Plan(
        row_group=order,
        begins=begins,
        parts=tuple(parts),
        batch_size=batch_size,
        batches=division.batches,
        delivered_rows=division.delivered_rows,
        drop_last=drop_last,
        shuffle=shuffle,
        seed=seed,
        epoch=epoch,
    )


def _sums(rows: IntArray) -> IntArray:
    """Return the rows before each row group, int64 ``[row groups + 1]``; the last element is all rows."""
    begins = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(rows, out=begins[1:])
    return begins


def _row_groups_of(part: PartRows, begins: IntArray) -> tuple[int, int]:
    """Return the positions of a shard's first and last row group.

    Other shards may read the first rows of the first one and the last rows of the last one, so these two keep their
    positions. The row groups between belong to this shard.
    """
    if not part.rows:
        return 0, 0
    return int(np.searchsorted(begins, part.first, "right")) - 1, int(np.searchsorted(begins, part.stop, "left")) - 1


@dataclass(frozen=True, slots=True)
class _Lanes:
    """Divides shards into lanes.

    Attributes:
        begins: As in `Plan`.
        in_lanes: By the number of a shard, the number of row groups in each lane; the shard's last row group stays
            last. Empty if one row group is open at a time.
    """

    begins: IntArray
    in_lanes: Mapping[int, IntArray]

    def of(self, part: PartRows, windows: int) -> ShardWindows:
        """Return a shard in lanes, each with rows for every window."""
        if not part.rows or not self.in_lanes:
            return ShardWindows(part.number, part.first, part.stop, (0, part.rows), windows)
        low, high = _row_groups_of(part, self.begins)
        ends = self.begins[low + np.cumsum(self.in_lanes[part.number][:-1])] - part.first
        bounds = _apart(ends, part.rows, 8 * windows)
        lanes = np.diff(bounds)
        cycle = min(part.rows // (high - low + 1), int(lanes.min()) // 2)
        if len(lanes) == 1 or not cycle:
            return ShardWindows(part.number, part.first, part.stop, bounds, windows)
        # Lane l of n is ahead by the share (l + 1/2) / n - 1/2 of a row group. The ramp is long enough that within it,
        # each lane reads at least half of its usual share of each window.
        behind = [cycle * (len(lanes) - 1 - 2 * lane) // (2 * len(lanes)) for lane in range(len(lanes) // 2)]
        ahead = [-rows for rows in behind] + [0] * (len(lanes) % 2) + behind[::-1]
        ramp = -(-cycle * part.rows // int(lanes.min()))
        sums = (0, *np.cumsum(ahead).tolist())
        return ShardWindows(part.number, part.first, part.stop, bounds, windows, ahead_rows=sums, ramp_rows=ramp)


def _apart(ends: IntArray, rows: int, least: int) -> tuple[int, ...]:
    """Return 0, those of the `ends` that leave at least `least` rows to every lane, and `rows`."""
    bounds = [0]
    for end in ends.tolist():
        if min(end - bounds[-1], rows - end) >= least:
            bounds.append(end)
    return (*bounds, rows)


def _in_windows(part: PartRows, divided: _Lanes, window_rows: int) -> ShardWindows:
    """Divide a shard into windows of nearly equal size: with lanes, or else, if possible, between row groups."""
    windows, begins = -(-part.rows // window_rows), divided.begins
    if divided.in_lanes and windows > 1:
        in_lanes = divided.of(part, windows)
        if len(in_lanes.lanes) > 2:
            return in_lanes
    plain = ShardWindows(part.number, part.first, part.stop, (0, part.rows), windows)
    return _between_row_groups(plain, begins, window_rows) if 1 < windows < len(begins) else plain


def _in_steps(part: PartRows, divided: _Lanes, window_rows: int, share: int, division: Division) -> ShardWindows:
    """Divide a shard into windows that, except the last one, all have the same number of its shares of batches.

    So all shards have the same number of windows, and windows end between batches.

    Args:
        part: The shard.
        divided: Divides it into lanes.
        window_rows: The most rows of this shard in a window.
        share: Rows of this shard in a batch.
        division: The rows that all shards deliver.
    """
    batches = division.batches
    windows = -(-batches // max(1, window_rows // share - 1))
    if not windows:
        return ShardWindows(part.number, part.first, part.first, (0, 0), 0)
    step = -(-batches // windows) * share
    windows = -(-batches * share // step)
    return replace(divided.of(part, windows), step_rows=step)


def _between_row_groups(part: ShardWindows, begins: IntArray, window_rows: int) -> ShardWindows:
    """Let windows end between row groups, if no window becomes too large or less than half full.

    Tries larger numbers of windows, by at most a third, until this succeeds; otherwise windows cut row groups.
    """
    fewest = part.windows
    for windows in sorted({fewest + fewest * trial // (3 * TRIALS) for trial in range(TRIALS + 1)}):
        uncut = replace(part, windows=windows, whole_rows=window_rows // WHOLE_SHARE)
        sizes = np.diff(uncut.window_ends(begins))
        if sizes.max() <= window_rows and 2 * sizes.min() >= window_rows:
            return uncut
    return part
