"""Scores how well an order mixes, and computes the orders of other loaders, by pure functions of row numbers.

The data set is sorted by a label of `labels` values, each with the same number of rows. `chi_square_ratio` compares the
labels of the batches with those of a full shuffle.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from parquet_loader.plan.epoch import plan_epoch

Rows = npt.NDArray[np.int64]


MOST_BATCHES = 2**16


def chi_square(order: Rows, labels: int, batch_size: int) -> npt.NDArray[np.float64]:
    """Return Pearson's chi-square of the label counts of full batches, 65,536 of them at most: ``[batches]``.

    Args:
        order: The numbers of the rows, in the order of delivery; row ``i`` has label ``i * labels // rows``.
        labels: Number of labels, each on the same number of rows.
        batch_size: Rows of a batch.
    """
    batches = len(order) // batch_size
    stride = max(1, -(-batches // MOST_BATCHES))
    rows = order[: batches * batch_size].reshape(batches, batch_size)[::stride]
    batches = len(rows)
    label = (rows * labels // len(order)).reshape(-1)
    place = np.repeat(np.arange(batches), batch_size) * labels + label
    counts = np.bincount(place, minlength=batches * labels).reshape(batches, labels)
    expected = batch_size / labels
    statistic: npt.NDArray[np.float64] = ((counts - expected) ** 2).sum(axis=1) / expected
    return statistic


def expected_chi_square(rows: int, labels: int, batch_size: int) -> float:
    """Return the mean of `chi_square` over the batches of full shuffles: that of draws without replacement."""
    return (labels - 1) * (rows - batch_size) / (rows - 1)


def predicted_ratio(rows: int, window_rows: int, run_rows: float, batch_size: int) -> float:
    """Estimate `chi_square_ratio` for windows of whole row groups in random order.

    Rows of one label come in runs, and the rows of a run are in the same window. So the counts of a batch vary as if it
    were drawn from ``window_rows / run_rows`` runs.

    Args:
        rows: Rows of the data set.
        window_rows: Rows of a window.
        run_rows: Length of the runs of one label in a row group, averaged over rows.
        batch_size: Rows of a batch.
    """
    return 1 + (batch_size - 1) * run_rows / window_rows * (1 - window_rows / rows)


def chi_square_ratio(order: Rows, labels: int, batch_size: int) -> float:
    """Return the mean chi-square of batches, in units of a full shuffle's; 1 is perfect."""
    mean = float(chi_square(order, labels, batch_size).mean())
    return mean / expected_chi_square(len(order), labels, batch_size)


def distance(order: Rows) -> float:
    """Return how far rows travel on average, as a share of the data set; a full shuffle's is 1/3."""
    return float(np.abs(order - np.arange(len(order))).mean() / len(order))


def lie_within(row_groups: int, row_group_rows: int, rng: np.random.Generator) -> Iterator[Rows]:
    """Yield the rows of each row group, row groups in random order."""
    for group in rng.permutation(row_groups).tolist():
        yield np.arange(group * row_group_rows, (group + 1) * row_group_rows)


def windows_order(row_groups: int, row_group_rows: int, window_rows: int, lanes: int, batch_size: int) -> Rows:
    """Return the order of this library, by its own plan."""
    counts = np.full(row_groups, row_group_rows, np.int64)
    options: dict[str, Any] = {"window_rows": window_rows, "open_row_groups": lanes, "batch_size": batch_size}
    plan = plan_epoch(counts, drop_last=False, shuffle=True, seed=0, epoch=0, **options)
    found = []
    for window in range(plan.windows):
        pieces = [np.arange(s.start, s.stop) + s.row_group * row_group_rows for s in plan.slices(window)]
        order = plan.order(window)
        assert order is not None
        found.append(np.concatenate(pieces)[order])
    return np.concatenate(found)


def petastorm_order(row_groups: int, row_group_rows: int, capacity: int, batch_size: int) -> Rows:
    """Return the order of Petastorm's `BatchedDataLoader`: row groups shuffled, then its shuffling buffer.

    A row group is added whole whenever the buffer holds fewer rows than its capacity; otherwise a batch of rows is
    drawn from it, uniformly and without replacement (`min_after_retrieve = shuffling_queue_capacity - 1`).
    """
    rng = np.random.default_rng(0)
    coming = lie_within(row_groups, row_group_rows, rng)
    buffer = np.empty(capacity + row_group_rows, np.int64)
    held, found = 0, []
    for rows in coming:
        buffer[held : held + len(rows)] = rows
        held += len(rows)
        if held < capacity:
            continue
        drawn = batch_size * ((held - capacity) // batch_size + 1)  # until it holds less than its capacity
        drawn = min(drawn, held)
        found.append(_drawn(buffer[:held], drawn, rng))
        held -= drawn
    found.append(rng.permutation(buffer[:held]))
    return np.concatenate(found)


def _drawn(buffer: Rows, count: int, rng: np.random.Generator) -> Rows:
    """Take `count` random elements off a buffer, whose first elements are those that stay."""
    chosen = rng.choice(len(buffer), count, replace=False)
    taken = buffer[chosen]
    stay = len(buffer) - count
    is_chosen = np.zeros(count, bool)
    is_chosen[chosen[chosen >= stay] - stay] = True
    buffer[chosen[chosen < stay]] = buffer[stay:][~is_chosen]
    return taken


def webdataset_order(row_groups: int, row_group_rows: int, bufsize: int) -> Rows:
    """Return the order of WebDataset: shards (here: row groups) shuffled, then `shuffle(bufsize, initial=bufsize)`.

    Once the buffer is full, each sample is appended, one of the ``bufsize`` is picked at random and yielded, and the
    last takes its place; at the end the rest is picked off in random order. So what is yielded from a place is what was
    put there the last time that it was picked.
    """
    rng = np.random.default_rng(0)
    samples = np.concatenate(list(lie_within(row_groups, row_group_rows, rng)))
    bufsize = min(bufsize, len(samples))
    first, later = samples[: bufsize - 1], samples[bufsize - 1 :]
    # The buffer before each pick: bufsize - 1 places, and behind them the new sample.
    place = rng.integers(0, bufsize, len(later))
    put = np.concatenate([first, later])
    where = np.concatenate([np.arange(bufsize - 1), place])
    is_last = where == bufsize - 1  # the new sample itself is picked, and no place changes
    yielded = later.copy()
    moves = np.flatnonzero(~is_last)
    by_place = moves[np.argsort(where[moves], kind="stable")]
    same = where[by_place[1:]] == where[by_place[:-1]]
    yielded[by_place[1:][same] - (bufsize - 1)] = put[by_place[:-1][same]]
    ends = np.concatenate([~same, np.ones(min(1, len(by_place)), bool)])
    return np.concatenate([yielded, rng.permutation(put[by_place[ends]])])
