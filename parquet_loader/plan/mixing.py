"""How well a plan mixes, compared with a full shuffle and with a shuffle buffer. Pure functions; nothing is read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parquet_loader.common import IntArray, format_count
from parquet_loader.plan.epoch import Plan

CLASSES = 100
# Windows and runs in the sample; more of them change the figures by less than their differences between epochs.
MOST_WINDOWS = 64
MOST_RUNS = 4096

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MixingScore:
    """How well an epoch mixes rows that are sorted by a label of 100 classes, each on the same number of rows.

    Rows in random order are mixed perfectly, whatever the score.

    Attributes:
        score: ``1 / chi_square``: 1 for a full shuffle, about ``1 / batch_size`` for no shuffle at all.
        chi_square: The mean of Pearson's chi-square of the labels of a batch, divided by that of a full shuffle. The
            excess over 1 is the part of the labels' variance that a full shuffle would not have.
        row_groups: Row groups from which a batch is drawn: as many equal ones would repeat a row group as often.
        buffer_rows: Rows of a shuffle buffer (as in tf.data or WebDataset, fed by row groups in random order) with the
            same excess; at most all rows.
    """

    score: float
    chi_square: float
    row_groups: float
    buffer_rows: int

    def __str__(self) -> str:
        buffer = format_count(self.buffer_rows, "row")
        return (
            f"mixing score {self.score:.2f}: as a shuffle buffer of {buffer}; batches are drawn from "
            f"{self.row_groups:,.1f} row groups at a time"
        )


def mixing_score(plan: Plan, counts: IntArray, classes: int = CLASSES) -> MixingScore | None:
    """Return how well a plan mixes; None if it does not shuffle, or has no rows.

    The score is exact for up to `MOST_WINDOWS` windows. Of more, that many are used, evenly spaced. Rows that a
    window leaves over for the next one count where they are read.

    Args:
        plan: The epoch of one rank.
        counts: int64 ``[row groups]``, rows of each row group of the snapshot that pass the filter.
        classes: Number of labels by which the rows are sorted.
    """
    total = int(counts.sum())
    if not plan.shuffle or not plan.rows or not plan.windows:
        return None
    firsts = np.cumsum(counts) - counts
    edges = np.linspace(0, total, classes + 1)
    chosen = np.unique(np.linspace(0, plan.windows - 1, MOST_WINDOWS).astype(np.int64)).tolist()
    rows, repeats, statistics, excesses = np.zeros((4, len(chosen)))
    for number, window in enumerate(chosen):
        group, begin, end = _slices(plan, window, firsts)
        rows[number] = (end - begin).sum()
        in_group = np.bincount(np.unique(group, return_inverse=True)[1], end - begin) / rows[number]
        repeats[number] = np.square(in_group).sum()
        in_class = _shares(begin, end, edges)
        statistics[number] = _chi_square(in_class, rows[number], min(plan.batch_size, rows[number]))
        excesses[number] = (np.square(in_class).sum() - 1 / classes) / (1 - 1 / classes)
    full = (classes - 1) * (total - min(plan.batch_size, total)) / max(1, total - 1)
    ratio = max(1.0, float(np.average(statistics, weights=rows)) / full) if full else 1.0
    return MixingScore(
        score=1 / ratio,
        chi_square=ratio,
        row_groups=float(1 / np.average(repeats, weights=rows)),
        buffer_rows=_buffer_rows(
            float(np.average(excesses, weights=rows)), _runs(np.append(firsts, edges), total), total
        ),
    )


def _slices(plan: Plan, window: int, firsts: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return a window's slices: their row groups, and the numbers in the data set of their rows, begin and end."""
    found = []
    for part in plan.parts:
        for begin, end in part.ranges(window, plan.begins):
            if begin == end:
                continue
            low = int(np.searchsorted(plan.begins, begin, "right")) - 1
            high = int(np.searchsorted(plan.begins, end, "left"))
            group, bounds = plan.row_group[low:high], plan.begins[low : high + 1]
            shift = firsts[group] - bounds[:-1]
            found.append((group, np.maximum(bounds[:-1], begin) + shift, np.minimum(bounds[1:], end) + shift))
    group, begins, ends = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    return group, begins, ends


def _shares(begin: IntArray, end: IntArray, edges: Floats) -> Floats:
    """Return the share of rows between each two edges, of the rows of disjoint ranges."""
    order = np.argsort(begin)
    begin, lengths = begin[order], (end - begin)[order]
    before = np.concatenate([[0], np.cumsum(lengths)])
    at = np.maximum(np.searchsorted(begin, edges, "right") - 1, 0)
    below = before[at] + np.clip(edges - begin[at], 0, lengths[at])
    shares: Floats = np.diff(below) / before[-1]
    return shares


def _chi_square(shares: Floats, rows: float, batch: float) -> float:
    """Return the mean chi-square of batches that are drawn without replacement from rows with these shares of labels.

    A label with share ``q`` has ``batch * q`` rows in a batch on average, with the hypergeometric variance; the rest of
    the chi-square is the distance of the shares from those of all rows.
    """
    repeats, left = float(np.square(shares).sum()), (rows - batch) / max(1.0, rows - 1)
    return len(shares) * ((1 - repeats) * left + batch * (repeats - 1 / len(shares)))


def _runs(bounds: Floats, total: int) -> Floats:
    """Return lengths of runs, which begin and end at these rows; a sample, weighted by rows."""
    bounds = np.unique(bounds)
    lengths = np.diff(bounds)
    middles = (np.arange(MOST_RUNS) + 0.5) * total / MOST_RUNS
    sampled: Floats = lengths[np.searchsorted(bounds, middles, "right") - 1]
    return sampled


def _buffer_rows(excess: float, runs: Floats, total: int) -> int:
    """Return the size of the shuffle buffer in which two rows of a batch are of one run this often beyond chance.

    A buffer of ``n`` rows delays a row by a geometrically distributed time of mean ``n``. So two rows that were read
    ``d`` rows apart leave it in immediate succession with density ``exp(-d / n) / 2n``, which over a run of ``r`` rows
    is ``1 - (n / r) * (1 - exp(-r / n))``. A buffer of many of the rows is better still, because it ends as a window.
    """

    def repeats(buffer: float) -> float:
        return float((1 + buffer / runs * np.expm1(-runs / buffer)).mean()) * (1 - buffer / total) ** 2

    low, high = 1.0, float(total)
    if excess <= repeats(high):
        return total
    for _ in range(40):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if repeats(middle) > excess else (low, middle)
    return round(low)
