"""Measures how well a shuffled epoch mixes: the share of a column's variance that lies between windows.

Rows of a window are permuted, so batches are badly mixed only if windows differ. For rows in random order, the variance
of the means of windows of `n` rows is 1/n of the column's variance. For data sorted by the column, it is nearly all of
it. A few windows suffice for any distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

# Rows of a window are in random order, so its last rows are a random sample.
SAMPLE_ROWS = 4096
MOST_WINDOWS = 64
MOST_COLUMNS = 32
FEWEST_WINDOWS = 4
# In epochs that mix well, at most this share of a column's variance lies between windows.
WELL_MIXED_SHARE = 0.1
# 4,096 rows in random order hold at least this share of up to 4,096 values that all windows hold together.
LEAST_VALUES_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class MixingFigures:
    """The column that is mixed worst.

    Attributes:
        column: Its name.
        windows: Number of windows in which it was measured.
        between_share: The share of its variance that lies between windows, 0 (perfectly mixed) to 1.
        values_in_window, values: Distinct values of an integer column, in a window on average, and in all windows;
            None for other columns, and if there are too many values.
        is_distinct: Whether it is an integer column without repeated values, which may only number the rows.
    """

    column: str
    windows: int
    between_share: float
    values_in_window: float | None = None
    values: int | None = None
    is_distinct: bool = False

    @property
    def misses_values(self) -> bool:
        """Whether a window lacks most of the values, although their means may be equal."""
        if self.values_in_window is None or self.values is None or self.is_distinct:
            return False
        return self.values_in_window < LEAST_VALUES_SHARE * self.values


@dataclass(frozen=True, slots=True)
class SortingFigures:
    """A column by which the data is sorted, according to the footers' statistics.

    Attributes:
        column: Its name.
        overlap_share: The share of pairs of row groups whose ranges of values overlap, 0 to 1.
    """

    column: str
    overlap_share: float


def overlap_share(least: npt.NDArray[Any], greatest: npt.NDArray[Any]) -> float:
    """Return the share of pairs of ranges that overlap, including each range with itself.

    Args:
        least, greatest: Bounds ``[ranges]``, in any order.
    """
    begun = np.searchsorted(np.sort(least), greatest, "right")
    ended = np.searchsorted(np.sort(greatest), least, "left")
    return float((begun - ended).mean() / len(least))


@dataclass(slots=True)
class _Column:
    means: list[float] = field(default_factory=list)
    squares: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    values: npt.NDArray[Any] | None = None
    is_distinct: bool = False


class MixingMeter:
    """Measures windows as they are delivered.

    Takes about 15 microseconds for each column and window, and 150 for integers until they have too many values. This
    is the caller's time, so the columns of a window are measured a few at a time, between its batches.
    """

    def __init__(self) -> None:
        self._windows = 0
        self._columns: dict[str, _Column] | None = None
        self._rest: dict[str, npt.NDArray[Any]] = {}
        self._at_once = 0

    def observe(self, arrays: Mapping[str, Any], calls: int = 1) -> None:
        """Begin to measure the columns of numbers, ``[rows]``, among a window's arrays.

        Args:
            arrays: The arrays.
            calls: Number of calls that measure all of them: this one, and those of `go_on`. The arrays are kept until
                then, and at most until the next window.
        """
        self.finish()
        if self._windows >= MOST_WINDOWS:
            return
        if self._columns is None:
            flat = {name: array for name, array in arrays.items() if isinstance(array, np.ndarray) and array.ndim == 1}
            numbers = [name for name, array in flat.items() if array.dtype.kind in "biuf"]
            self._columns = {
                name: _Column(values=np.empty(0, arrays[name].dtype), is_distinct=True)
                if arrays[name].dtype.kind in "iu"
                else _Column()
                for name in numbers[:MOST_COLUMNS]
            }
        self._windows += 1
        self._at_once = -(-len(self._columns) // calls)
        self._rest = {name: arrays[name][-SAMPLE_ROWS:] for name in self._columns}
        self.go_on()

    def go_on(self) -> None:
        """Measure the next few columns of the window."""
        self._measure_some(self._at_once)

    def finish(self) -> None:
        """Measure the other columns of the window, which is then released; any thread may call it."""
        self._measure_some(len(self._rest))

    def _measure_some(self, most: int) -> None:
        for _ in range(min(most, len(self._rest))):
            try:
                name, sample = self._rest.popitem()
            except KeyError:  # another thread has taken the last column
                return
            self._measure(name, sample)

    def _measure(self, name: str, sample: npt.NDArray[Any]) -> None:
        assert self._columns is not None
        column = self._columns[name]
        with np.errstate(all="ignore"):  # columns that are not finite are dropped below
            numbers = sample.astype(np.float64)
            mean = float(numbers.mean()) if len(numbers) else 0.0
            square = float(np.square(numbers - mean).mean()) if len(numbers) else 0.0
        if not np.isfinite(square) or not np.isfinite(mean):
            del self._columns[name]
            return
        column.means.append(mean)
        column.squares.append(square)
        if column.values is not None:
            distinct = _distinct(sample)
            column.counts.append(len(distinct))
            column.is_distinct &= len(distinct) == len(sample)
            column.values = _distinct(np.concatenate([column.values, distinct]))
            if len(column.values) > SAMPLE_ROWS:
                column.values = None

    def worst(self, fewest_windows: int = FEWEST_WINDOWS) -> MixingFigures | None:
        """Return the column that is mixed worst; None if none was measured in at least `fewest_windows` windows."""
        known = list((self._columns or {}).items())  # another thread may drop one
        columns = {name: column for name, column in known if len(column.means) >= fewest_windows}
        if not columns:
            return None
        shares = {name: _between_share(column) for name, column in columns.items()}
        # Sorted row numbers are harmless, so another column is preferred if it is also badly mixed.
        labels = {name: share for name, share in shares.items() if not columns[name].is_distinct}
        worst_label = max(labels, key=lambda name: labels[name], default=None)
        name = max(shares, key=lambda name: shares[name])
        if worst_label is not None and labels[worst_label] > WELL_MIXED_SHARE:
            name = worst_label
        column, in_window = columns[name], None
        if column.values is not None:
            in_window = float(np.mean(column.counts))
        values = None if column.values is None else len(column.values)
        return MixingFigures(name, len(column.means), shares[name], in_window, values, column.is_distinct)


def _distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the distinct values, sorted; `np.unique` takes six times as long for 4,096 integers."""
    found = np.sort(values)
    is_new = np.ones(len(found), bool)
    np.not_equal(found[1:], found[:-1], out=is_new[1:])
    return np.asarray(found[is_new])


def _between_share(column: _Column) -> float:
    between = float(np.var(column.means, ddof=1))
    total = float(np.mean(column.squares)) + float(np.var(column.means))
    return min(1.0, between / total) if total > 0 else 0.0
