"""Finds the samples of consecutive rows of an episode, and the rows that a window of samples needs: pure functions.

A sample is an *anchor* row with some rows before and after it. Samples are numbered in the order of the snapshot. A
sample belongs to the row group of its first existing row. So an epoch of samples is planned like one of rows: each row
group has a number of samples, and one cursor reads its slices of samples forward. If an episode continues in the next
row group, the needed rows are read from that row group's beginning, in a separate slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np

from parquet_loader.common import BoolArray, IntArray
from parquet_loader.plan.epoch import Plan, RowGroupSlice

SAMPLE_METHOD = "episodes-1"


@dataclass(frozen=True, slots=True)
class SampleRule:
    """Which rows are anchors, and how many rows around them belong to a sample.

    Attributes:
        before, after: Rows before and after the anchor, at least 0.
        stride: Rows from one anchor to the next one of the same episode.
        drops: Whether incomplete samples are left out. If so, the first anchor of an episode is its row `before`; if
            not, its first row.
    """

    before: int
    after: int
    stride: int
    drops: bool

    @property
    def rows(self) -> int:
        """Rows from the first to the last of a sample."""
        return self.before + 1 + self.after

    @property
    def first_anchor(self) -> int:
        """The first anchor in an episode."""
        return self.before if self.drops else 0

    def __str__(self) -> str:
        return f"{SAMPLE_METHOD} {'drop' if self.drops else 'mask'} -{self.before}+{self.after}/{self.stride}"


class SampleRows(NamedTuple):
    """The rows of samples, counted over the data set, each int64 ``[samples]``.

    Attributes:
        anchor: The anchor.
        first, stop: The episode's first row, and the row after its last.
    """

    anchor: IntArray
    first: IntArray
    stop: IntArray


class EpisodeSamples:
    """The samples of all episodes; takes 16 bytes an episode.

    Args:
        bounds: int64 ``[episodes + 1]``: the first row of each episode, counted over the rows that pass the filters;
            the last element is all rows.
        row_begins: int64 ``[row groups + 1]``: rows before each row group.
        rule: The anchors.

    Attributes:
        bounds, row_begins, rule: As given.
        begins: int64 ``[episodes + 1]``: samples before each episode.
        counts: int64 ``[row groups]``: samples of each row group.
    """

    def __init__(self, bounds: IntArray, row_begins: IntArray, rule: SampleRule) -> None:
        self.bounds = bounds
        self.row_begins = row_begins
        self.rule = rule
        lengths = np.diff(bounds)
        if rule.drops:
            in_episodes = np.maximum((lengths - rule.rows) // rule.stride + 1, 0)
        else:
            in_episodes = -(-lengths // rule.stride)
        self.begins: IntArray = np.zeros(len(bounds), np.int64)
        np.cumsum(in_episodes, out=self.begins[1:])
        self._sample_begins = self._before(row_begins)
        self.counts: IntArray = np.diff(self._sample_begins)

    @property
    def samples(self) -> int:
        """Number of samples."""
        return int(self.begins[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.bounds.nbytes + self.begins.nbytes + self.row_begins.nbytes + 2 * self.counts.nbytes

    def _before(self, rows: IntArray) -> IntArray:
        """Return the number of samples whose first row is before each of these rows."""
        rule = self.rule
        episode = np.minimum(np.searchsorted(self.bounds, rows, side="right") - 1, len(self.bounds) - 2)
        if len(self.bounds) < 2:
            return np.zeros(len(rows), np.int64)
        inside = rows - self.bounds[episode]
        most = self.begins[episode + 1] - self.begins[episode]
        before = -((rule.first_anchor - rule.before - inside) // rule.stride)
        before = np.where(inside > 0, np.clip(before, 0, most), 0)
        result: IntArray = self.begins[episode] + before
        return result

    def numbers(self, row_group: IntArray, sample: IntArray) -> IntArray:
        """Return the numbers in the data set of samples that are given by their numbers in their row groups."""
        found: IntArray = self._sample_begins[row_group] + sample
        return found

    def episodes_of(self, numbers: IntArray) -> IntArray:
        """Return the number of each sample's episode, in the order of the snapshot."""
        episode: IntArray = np.searchsorted(self.begins, numbers, side="right") - 1
        return episode

    def rows_of(self, numbers: IntArray) -> SampleRows:
        """Return the rows of samples."""
        episode = self.episodes_of(numbers)
        first = self.bounds[episode]
        anchor = first + self.rule.first_anchor + (numbers - self.begins[episode]) * self.rule.stride
        return SampleRows(anchor, first, self.bounds[episode + 1])

    def first_rows(self, numbers: IntArray) -> IntArray:
        """Return the first existing row of each sample; it ascends with the sample's number."""
        found = self.rows_of(numbers)
        result: IntArray = np.maximum(found.anchor - self.rule.before, found.first)
        return result

    def end_rows(self, numbers: IntArray) -> IntArray:
        """Return the row after the last existing row of each sample; it ascends with the sample's number."""
        found = self.rows_of(numbers)
        result: IntArray = np.minimum(found.anchor + self.rule.after + 1, found.stop)
        return result

    def most_rows(self, samples: int) -> int:
        """Estimate the most rows that consecutive samples span, from the first row of the first to the end of the last.

        The result may be too small by the rows of one sample.
        """
        samples = min(samples, self.samples)
        if not samples:
            return 0
        # The span is largest if the samples begin with an episode's last one, or end with an episode's first one.
        edges, last = np.unique(self.begins[:-1]), self.samples - samples
        first = np.unique(np.clip(np.concatenate([edges, edges - 1, edges - samples + 1, [0, last]]), 0, last))
        return int((self.end_rows(first + samples - 1) - self.first_rows(first)).max())

    def in_window(self, rows: int) -> int:
        """Estimate how many consecutive samples span at most `rows` rows, wherever they begin; at least 1.

        They may exceed `rows` by the rows of one sample.
        """
        samples = max(1, min(rows, self.samples))
        while samples > 1 and (most := self.most_rows(samples)) > rows + self.rule.rows:
            samples = max(1, min(samples - 1, samples * rows // most))
        return samples


class WindowReads(NamedTuple):
    """The rows that a window reads for its samples; arrays have an element for each slice of samples, in order.

    Attributes:
        slices: The slices of rows that are read, in the order of their rows in the window.
        rows: Their number of rows.
        sample: int64: the first sample of each slice.
        begin: int64: the first row that this window reads for each slice, counted over the data set.
        main_stop: int64: the row after the last one that the slice's own cursor reads.
        stop: int64: the row after the last one that its samples need.
        place: int64: the index of row `begin` in the window; the rows up to `stop` follow it.
        run: The slice's cursor; slices of one run in consecutive windows continue each other.
        begins_run: bool: whether the slice needs no rows of earlier windows.
        ends_run: bool: whether no later window continues the run.
    """

    slices: list[RowGroupSlice]
    rows: int
    sample: IntArray
    begin: IntArray
    main_stop: IntArray
    stop: IntArray
    place: IntArray
    run: list[tuple[int, int]]
    begins_run: BoolArray
    ends_run: BoolArray


def window_reads(plan: Plan, samples: EpisodeSamples, window: int, first_window: int) -> WindowReads:
    """Return the rows that a window of samples reads.

    Args:
        plan: The epoch of samples.
        samples: The samples.
        window: The window.
        first_window: The first window that is read, which cannot use rows of earlier windows.
    """
    parts = plan.slices(window)
    table = np.array([(s.row_group, s.start, s.stop, s.first, s.last, s.key) for s in parts], np.int64).reshape(-1, 6)
    table = table[np.argsort(samples.numbers(table[:, 0], table[:, 1]), kind="stable")]
    group = table[:, 0]
    low, high, run_low, run_high = (samples.numbers(group, table[:, column]) for column in (1, 2, 3, 4))
    group_begin, group_stop = samples.row_begins[group], samples.row_begins[group + 1]
    starts = low == run_low
    begins_run = starts | (window == first_window)
    read_before = np.minimum(samples.end_rows(np.where(starts, low, low - 1)), group_stop)
    begin = np.where(begins_run, samples.first_rows(low), read_before)
    stop = samples.end_rows(high - 1)
    main_stop = np.minimum(stop, group_stop)
    run_begin = samples.first_rows(run_low) - group_begin
    run_stop = np.minimum(samples.end_rows(run_high - 1), group_stop) - group_begin
    # The next slice holds the rest if it begins where this one's row group ends. If it begins a few rows later, because
    # its samples do not need the first rows, it also reads these.
    is_near = starts[1:] & (group_begin[1:] == group_stop[:-1]) & (begin[1:] - group_begin[1:] < samples.rule.rows)
    begin[1:] = np.where(is_near & (stop > group_stop)[:-1], group_begin[1:], begin[1:])
    needs_head = (stop > main_stop) & (np.append(begin[1:], -1) != group_stop)
    slices: list[RowGroupSlice] = []
    place = np.zeros(len(table), np.int64)
    rows = 0
    for number, (row_group, key) in enumerate(table[:, [0, 5]].tolist()):
        place[number] = rows
        first = int(group_begin[number])
        start, end = int(begin[number]) - first, int(main_stop[number]) - first
        if start < end:
            least = min(start, int(run_begin[number]))
            slices.append(RowGroupSlice(row_group, start, end, least, int(run_stop[number]), key))
        if needs_head[number]:
            slices.extend(_heads(samples, int(group_stop[number]), int(stop[number]), -1 - (window << 24 | number)))
            rows += int(stop[number] - main_stop[number])
        rows += end - start
    runs = [(row_group, key) for row_group, key in table[:, [0, 5]].tolist()]
    return WindowReads(slices, rows, low, begin, main_stop, stop, place, runs, begins_run, high == run_high)


def _heads(samples: EpisodeSamples, begin: int, stop: int, key: int) -> Iterator[RowGroupSlice]:
    """Yield slices of the rows from ``begin``, the first row of a row group, to ``stop``."""
    group = int(np.searchsorted(samples.row_begins, begin, side="right")) - 1
    while begin < stop:
        first, last = int(samples.row_begins[group]), int(samples.row_begins[group + 1])
        if first < last:
            rows = min(stop, last) - first
            yield RowGroupSlice(group, 0, rows, 0, rows, key)
            begin = first + rows
        group += 1


@dataclass(frozen=True, kw_only=True)
class ReadPlan(Plan):
    """The rows that an epoch of samples reads, window by window, in the order of the data set.

    Its windows correspond to those of the plan of samples. Rows are delivered unshuffled, and samples are made from
    them afterwards.

    Attributes:
        samples: The samples.
        planned: The epoch of samples.
        first_window: The first window that is read.
    """

    samples: EpisodeSamples
    planned: Plan
    first_window: int

    @classmethod
    def of(cls, planned: Plan, samples: EpisodeSamples, first_window: int = 0) -> ReadPlan:
        """Return the plan of the rows for the samples of a plan."""
        values = {field.name: getattr(planned, field.name) for field in fields(Plan)}
        values |= {"batch_size": 1, "drop_last": False, "shuffle": False}
        return cls(**values, samples=samples, planned=planned, first_window=first_window)

    @cached_property
    def _ends(self) -> IntArray:
        """Rows read before each window, int64 ``[windows + 1]``; 0 up to the first window that is read."""
        ends = np.zeros(self.windows + 1, np.int64)
        for window in range(self.first_window, self.windows):
            ends[window + 1] = self.reads(window).rows
        return np.cumsum(ends)

    def reads(self, window: int) -> WindowReads:
        """Return the rows that a window reads; see `window_reads`."""
        return window_reads(self.planned, self.samples, window, self.first_window)

    def slices(self, window: int) -> list[RowGroupSlice]:
        """Return the slices of rows of a window."""
        return list(self.reads(window).slices)

    def window_begin(self, window: int) -> int:
        """Return the number of rows of all windows before this one."""
        return int(self._ends[window])

    @property
    def rows(self) -> int:
        """Rows of all windows."""
        return int(self._ends[-1])

    @property
    def largest_window_rows(self) -> int:
        """Rows that the largest window reads."""
        return int(np.diff(self._ends).max(initial=0))

    def carried_rows(self, window: int) -> int:  # noqa: ARG002
        """Return 0: all rows of a window are delivered."""
        return 0

    def order(self, window: int, begun_rows: int = 0, memory: object = None) -> None:  # noqa: ARG002
        """Return None: rows are delivered in the order in which they are read."""
        return

    def left_out(self, window: int) -> int:  # noqa: ARG002
        """Return 0: all rows of a window are delivered."""
        return 0

    def beginning_of(self, batch: int) -> tuple[int, int]:  # noqa: ARG002
        """Return the first window that is read; none of its rows was delivered before."""
        return self.first_window, 0
