"""How fast a data set loads: the loader's engine run over a part of it, without torch."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from parquet_loader.dataset import Counted, Dataset
from parquet_loader.engine import Engine
from parquet_loader.plan import everything
from parquet_loader.window import Arenas

BATCH_ROWS = 1024
_ROUNDS = 3
_SAMPLE_BYTES = 64 * 2**20
# All data sets keep their windows' memory from pass to pass, and together they must not take more than one would.
_SHARE_OF_WINDOW = 3

# Of the limit, what a pass may take: memory that one data set's passes keep warm stays while the other's turn is.
_SHARE_OF_LIMIT = 0.75


@dataclass(frozen=True, slots=True)
class LoadRate:
    """What loading a part of a data set took, the median of a few passes.

    Attributes:
        rows: Rows of the part.
        rows_per_s: Rows a second that passed, with all threads.
        cpu_s_per_million_rows: Processor seconds of the loader's threads; what else the machine does hardly enters it.
    """

    rows: int
    rows_per_s: float
    cpu_s_per_million_rows: float


def load_rates(
    datasets: list[Dataset], num_threads: int, seed: int, *, rounds: int = _ROUNDS, sample_bytes: int = _SAMPLE_BYTES
) -> list[LoadRate]:
    """Load a part of each data set in turns, shuffled, from the page cache if it has room; images stay encoded.

    Args:
        datasets: What to load; row groups spread over each until about `sample_bytes` of rows.
        num_threads: Workers.
        seed: Of the shuffle.
        rounds: Passes over each, one more to warm up.
        sample_bytes: See above.
    """
    parts = [_part(dataset, sample_bytes) for dataset in datasets]
    allocators = [(Arenas(part.sizing.made_bytes), Arenas(part.sizing.made_bytes)) for part in parts]
    seconds: list[list[tuple[float, float]]] = [[] for _ in parts]
    for number in range(rounds + 1):
        for part, arenas, found in zip(parts, allocators, seconds, strict=True):
            took = _load(part, arenas, num_threads, seed, number)
            if number:  # the first round warms caches and memory
                found.append(took)
    rates: list[LoadRate] = []
    for part, found in zip(parts, seconds, strict=True):
        wall, cpu = (float(np.median([f[i] for f in found])) for i in (0, 1))
        rates.append(LoadRate(part.rows, part.rows / max(wall, 1e-9), cpu / max(part.rows, 1) * 1e6))
    return rates


def _part(dataset: Dataset, sample_bytes: int) -> Dataset:
    """Return the data set with only some row groups, spread over it, and smaller windows."""
    groups = np.flatnonzero(dataset.counts)
    wanted_rows = max(BATCH_ROWS, int(sample_bytes / max(dataset.sizing.row.decoded, 1.0)))
    stride = max(1, dataset.rows // wanted_rows)
    counts = np.zeros_like(dataset.counts)
    counts[groups[::stride]] = dataset.counts[groups[::stride]]
    window = dataset.sizing.window_rows
    window = max(min(window, 2 * BATCH_ROWS), window // _SHARE_OF_WINDOW)
    part = replace(dataset, counted=Counted(counts))
    part = part.with_window(window, batch_size=min(BATCH_ROWS, window), shuffle=True, side_by_side=1)
    limit, reads = int(_SHARE_OF_LIMIT * part.sizing.limit_bytes), int(_SHARE_OF_LIMIT * part.sizing.reads_bytes)
    return replace(part, sizing=replace(part.sizing, limit_bytes=limit, reads_bytes=reads))


def _load(dataset: Dataset, arenas: tuple[Arenas, Arenas], threads: int, seed: int, epoch: int) -> tuple[float, float]:
    division = everything(dataset.rows, BATCH_ROWS, drop_last=False)
    plan = dataset.plan(division, batch_size=BATCH_ROWS, drop_last=False, shuffle=True, seed=seed, epoch=epoch)
    engine = Engine(
        plan,
        dataset.counts,
        dataset.reader,
        dataset.sizing,
        processor=None,
        allocator=arenas[0],
        staging=arenas[1],
        num_threads=threads,
        is_first=False,
        skips=False,
    )
    began = time.perf_counter()
    try:
        engine.start()
        while (window := engine.next_window()) is not None:
            del window
            engine.release_previous()
        return time.perf_counter() - began, sum(engine.workers.times.cpu_s.values())
    finally:
        engine.close()
