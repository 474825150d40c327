"""Finds the samples of each window and divides them into batches, in the order of windows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from parquet_loader.common import IntArray
from parquet_loader.errors import DataError
from parquet_loader.plan import EpisodeSamples, Plan, WindowReads, window_reads
from parquet_loader.schema import Ragged


class Bridge(NamedTuple):
    """Rows of earlier windows, and the rows of this window that follow them, for samples that need both.

    Attributes:
        shift: int64 ``[slices]``: to be added to a row's number in the data set to get its index in `arrays`.
        arrays: The rows, by column.
    """

    shift: IntArray
    arrays: Mapping[str, Any]


class SampleWindow(NamedTuple):
    """The samples of one window.

    Attributes:
        window: The number of the window.
        numbers: int64 ``[samples]``: the numbers of the samples, in the order of delivery.
        reads: The rows that the window reads.
        arrays: The window's rows, by column.
        bridge: Rows of earlier windows; None if no sample needs them.
    """

    window: int
    numbers: IntArray
    reads: WindowReads
    arrays: Mapping[str, Any]
    bridge: Bridge | None


class SamplePart(NamedTuple):
    """Samples of one window that belong to one batch.

    Attributes:
        samples: The samples of the window.
        numbers: int64 ``[samples]``: the numbers of those in the batch, in the order of delivery.
    """

    samples: SampleWindow
    numbers: IntArray


class SampleCutter:
    """Divides the samples of windows into batches; used in the order of windows, by one thread at a time.

    If later windows continue a row group, its last rows, fewer than a sample has, are kept for samples that begin
    there. An incomplete batch keeps the rows of its windows until it is complete.

    Args:
        plan: The epoch of samples.
        samples: The samples.
        first_batch: The first batch of the epoch to make.
        names: The columns of batches.

    Attributes:
        next_window: The number of the next window.
    """

    def __init__(self, plan: Plan, samples: EpisodeSamples, first_batch: int, names: Collection[str]) -> None:
        self._plan = plan
        self._names = names
        self._samples = samples
        self._first_window, self._begun = plan.beginning_of(first_batch)
        self.next_window = self._first_window
        self._left = plan.batches - first_batch
        self._tails: dict[tuple[int, int], dict[str, Any]] = {}
        self._parts: list[SamplePart] = []
        self._count = 0

    @property
    def waiting(self) -> set[int]:
        """The numbers of the windows that the incomplete batch needs."""
        return {part.samples.window for part in self._parts}

    @property
    def has_row_less_window(self) -> bool:
        """Whether the next window reads no rows: its samples need only rows of earlier windows."""
        return self.next_window < self._plan.windows and not self._reads(self.next_window).rows

    def _reads(self, number: int) -> WindowReads:
        return window_reads(self._plan, self._samples, number, self._first_window)

    def add(self, arrays: Mapping[str, Any], rows: int) -> list[Sequence[SamplePart]]:
        """Add the next window; return the batches that it completes, at the end of the epoch also the last one.

        Args:
            arrays: All rows of the window, by column.
            rows: Number of rows.

        Raises:
            DataError: The window has more or fewer rows than planned.
        """
        number, size = self.next_window, self._plan.batch_size
        self.next_window += 1
        samples = self._samples_of({name: arrays[name] for name in self._names}, rows, number)
        complete: list[Sequence[SamplePart]] = []
        at, is_last = 0, self.next_window == self._plan.windows
        while at < len(samples.numbers) and self._left:
            some = samples.numbers[at : at + size - self._count]
            at += len(some)
            self._parts.append(SamplePart(samples, some))
            self._count += len(some)
            if self._count == size or (is_last and at == len(samples.numbers)):
                self._left -= 1
                complete.append(self._parts)
                self._parts, self._count = [], 0
        return complete

    def _samples_of(self, arrays: Mapping[str, Any], rows: int, number: int) -> SampleWindow:
        """Return the samples of a window, and keep the rows that later windows need."""
        plan, samples = self._plan, self._samples
        reads = self._reads(number)
        if rows != reads.rows:
            raise DataError(f"epoch {plan.epoch}, window {number}: {rows} rows were read, expected {reads.rows}")
        slices = np.array([(s.row_group, s.start, s.rows) for s in plan.slices(number)], np.int64).reshape(-1, 3)
        counts = slices[:, 2]
        shift = samples.numbers(slices[:, 0], slices[:, 1]) - (np.cumsum(counts) - counts)
        numbers = np.arange(counts.sum()) + np.repeat(shift, counts)
        order = plan.order(number)
        if order is not None:
            numbers = numbers[order]
        begun = self._begun if number == self._first_window else 0
        numbers = numbers[begun : len(numbers) - plan.left_out(number)]
        return SampleWindow(number, numbers, reads, arrays, self._bridge(arrays, reads))

    def _bridge(self, arrays: Mapping[str, Any], reads: WindowReads) -> Bridge | None:
        """Join the rows kept from earlier windows with those of this window, and keep the last rows of this window."""
        most = self._samples.rule.rows - 1
        shift = np.zeros(len(reads.run), np.int64)
        pieces: dict[str, list[Any]] = {name: [] for name in arrays}
        rows = 0
        for number, run in enumerate(reads.run):
            begin, place = int(reads.begin[number]), int(reads.place[number])
            before = None if reads.begins_run[number] else self._tails.pop(run)
            kept = 0 if before is None else _rows(before)
            if before is not None and kept:
                stop = place + min(most, int(reads.stop[number]) - begin)
                for name, array in arrays.items():
                    pieces[name] += (before[name], array[place:stop])
                shift[number] = rows - (begin - kept)
                rows += kept + stop - place
            if not reads.ends_run[number]:
                own = min(most, int(reads.main_stop[number]) - begin)
                end = place + int(reads.main_stop[number]) - begin
                self._tails[run] = {
                    name: _tail(None if before is None else before[name], array[end - own : end], most)
                    for name, array in arrays.items()
                }
        if not rows:
            return None
        return Bridge(shift, {name: cat(some) for name, some in pieces.items()})


def cat(arrays: list[Any]) -> Any:
    """Concatenate arrays or `Ragged` rows."""
    if len(arrays) == 1:
        return arrays[0]
    return Ragged.cat(arrays) if isinstance(arrays[0], Ragged) else np.concatenate(arrays)


def _tail(before: Any, array: Any, most: int) -> Any:
    """Return a copy of the last `most` rows of two arrays in a row."""
    if len(array) < most and before is not None and len(before):
        array = cat([before, array])
    array = array[max(0, len(array) - most) :]
    return Ragged.cat([array, array[:0]]) if isinstance(array, Ragged) else array.copy()


def _rows(arrays: Mapping[str, Any]) -> int:
    return len(next(iter(arrays.values()))) if arrays else 0
