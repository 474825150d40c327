"""Measures loaders that differ in one argument, on the same source: interleaved runs, medians and spreads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median, quantiles

from parquet_loader.common import available_processors
from parquet_loader.errors import MemoryLimitError
from parquet_loader.loader.parquet_dataset import ParquetDataset
from parquet_loader.loader.simulation.calibration import LoaderSetup, loader_of, opened

# Windows that are read before the first batch.
_READ_AT_FIRST = 2


@dataclass(frozen=True, slots=True)
class Case:
    """One loader.

    Attributes:
        group: The argument that differs: ``"threads"``, ``"isolation"``, ``"window_rows"`` or ``"batch_size"``.
        value: Its value.
        setup: The loader.
    """

    group: str
    value: str
    setup: LoaderSetup


@dataclass(slots=True)
class Outcome:
    """The measurements of a case.

    Attributes:
        case: The loader.
        rows_per_s: The rate of each run, from its first batch to its last one.
        first_batch_s: Seconds of each run until its first batch.
        peak_bytes: The most memory held in a run.
        problem: Why the case could not run; "" if it ran.
    """

    case: Case
    rows_per_s: list[float] = field(default_factory=list)
    first_batch_s: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    problem: str = ""

    @property
    def median(self) -> float:
        """The median rate."""
        return median(self.rows_per_s) if self.rows_per_s else 0.0

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles of the rates; with fewer than 4 runs, the lowest and the highest."""
        if len(self.rows_per_s) < 4:
            return min(self.rows_per_s, default=0.0), max(self.rows_per_s, default=0.0)
        low, _, high = quantiles(self.rows_per_s, n=4, method="inclusive")
        return low, high


def cases_of(setup: LoaderSetup, data: ParquetDataset) -> list[Case]:
    """Return the cases of a source: each differs from the loader of `setup` in one argument.

    Threads are powers of two up to the processors, or to the given number. Windows and batches have a quarter, once and
    four times the given size, as far as the source has rows for them.
    """
    with loader_of(setup, data) as loader:
        given, rows = loader.num_threads, loader.plan().rows
        window = min(loader.window_rows, max(rows, 2 * setup.batch_size))  # a larger one holds the same rows
    most, threads, found = max(available_processors(), given), 1, {given}
    while threads <= most:
        found.add(threads)
        threads *= 2
    cases = [Case("threads", str(count), replace(setup, num_threads=count)) for count in sorted(found)]
    cases += [Case("isolation", name, replace(setup, isolation=name)) for name in ("thread", "process")]
    windows = sorted({max(2 * setup.batch_size, size) for size in (window // 4, window, 4 * window)})
    windows = [size for size in windows if size <= max(window, rows)]
    cases += [Case("window_rows", f"{size:,}", replace(setup, window_rows=size)) for size in windows]
    batches = [size for size in (setup.batch_size // 4, setup.batch_size, 4 * setup.batch_size) if 0 < size <= rows]
    return cases + [Case("batch_size", f"{size:,}", replace(setup, batch_size=size)) for size in batches]


def compare(
    setup: LoaderSetup,
    *,
    repeats: int,
    seconds: float,
    cases: Sequence[Case] | None = None,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> list[Outcome]:
    """Run every case `repeats` times, in turns, after one run that does not count.

    A run is the beginning of an epoch, up to `seconds` seconds after its first batch. Interleaved runs expose all cases
    to the same other load of the machine.

    Args:
        setup: The loader from which cases differ in one argument.
        repeats: Runs of each case.
        seconds: Seconds of a run.
        cases: The cases; default: those of `cases_of`.
        progress: Called with the number of runs done, and of all runs.
    """
    data = opened(setup)
    outcomes = [Outcome(case) for case in (cases_of(setup, data) if cases is None else cases)]
    total = len(outcomes) * (repeats + 1)
    for turn in range(repeats + 1):
        for number, outcome in enumerate(outcomes):
            progress(turn * len(outcomes) + number, total)
            if outcome.problem:
                continue
            try:
                rate, first_s, peak = _run(outcome.case.setup, data, seconds)
            except MemoryLimitError as error:
                outcome.problem = str(error)
                continue
            if turn:
                outcome.rows_per_s.append(rate)
                outcome.first_batch_s.append(first_s)
                outcome.peak_bytes = max(outcome.peak_bytes, peak)
    progress(total, total)
    return outcomes


def _run(setup: LoaderSetup, data: ParquetDataset, seconds: float) -> tuple[float, float, int]:
    """Return rows per second, seconds of the first batch, and bytes held at most."""
    with loader_of(setup, data) as loader:
        began = time.perf_counter()
        first = now = began
        windows = loader.plan().windows
        for number, _batch in enumerate(loader):
            now = time.perf_counter()
            if not number:
                first = now
            elif now - first > seconds:
                break
        stats = loader.stats()
    # The first batch waits for up to two windows. If the source has no more windows, that time counts.
    if windows <= _READ_AT_FIRST:
        return stats.rows / max(now - began, 1e-9), first - began, stats.peak_bytes
    rows = stats.rows - min(setup.batch_size, stats.rows)
    return rows / max(now - first, 1e-9), first - began, stats.peak_bytes
