"""Measures how `transform_workers` scales for a transform that holds the GIL for 5 ms per batch.

    python -m benchmarks.transforms [--workers 1 2] [--rounds 7] [--batches 60] [--out results.json]

There are two transforms. *held* sleeps without releasing the GIL, and uses no processor: it shows the cost of the GIL
and of passing batches, even on a busy machine. *computed* counts in Python for 5 ms of processor time: it needs one
free processor for each process. Threads and all numbers of processes take turns; the first epoch of each loader starts
the processes and is left out. All must deliver the same batches.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from parquet_loader import BatchedDataLoader, OutputOptions, write_dataset

HELD_S = 0.005
BATCH_SIZE = 32


def held(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Hold the GIL without a processor."""
    ctypes.PyDLL(None).usleep(int(HELD_S * 1e6))
    return {**columns, "drawn": rng.random(len(columns["id"]))}


def computed(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Hold the GIL and a processor."""
    began, count = time.thread_time(), 0
    while time.thread_time() - began < HELD_S:
        count += 1
    return {**columns, "drawn": rng.random(len(columns["id"]))}


def one_epoch(loader: BatchedDataLoader) -> tuple[float, str]:
    """Return the seconds of the first epoch, and a digest of its batches."""
    loader.set_epoch(0)
    digest, began = hashlib.sha256(), time.perf_counter()
    for batch in loader:
        for name in sorted(batch):
            digest.update(batch[name].tobytes())
    return time.perf_counter() - began, digest.hexdigest()


def measure(source: str, transform: Callable[..., Any], workers: list[int], rounds: int) -> dict[str, Any]:
    """Time threads and processes in turn; return medians and the fastest epochs, in seconds."""
    loaders = {
        count: BatchedDataLoader(
            source,
            BATCH_SIZE,
            shuffle=True,
            transform=transform,
            transform_workers=count,
            num_threads=2,
            output_options=OutputOptions(format="numpy"),
        )
        for count in (0, *workers)
    }
    seconds: dict[int, list[float]] = {count: [] for count in loaders}
    digests = {one_epoch(loader)[1] for loader in loaders.values()}
    for _ in range(rounds):
        for count, loader in loaders.items():
            took, digest = one_epoch(loader)
            seconds[count].append(took)
            digests.add(digest)
    for loader in loaders.values():
        loader.close()
    if len(digests) != 1:
        raise AssertionError(f"{transform.__name__}: the batches differ")
    return {
        "threads" if not count else f"{count} processes": {
            "median_s": round(statistics.median(times), 4),
            "fastest_s": round(min(times), 4),
        }
        for count, times in seconds.items()
    }


def main() -> None:
    """Measure, and print or write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = given.batches * BATCH_SIZE
    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "processors": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "batches": given.batches,
    }
    with tempfile.TemporaryDirectory() as folder:
        columns = {"id": np.arange(rows), "x": np.random.default_rng(0).random((rows, 16), "float32")}
        write_dataset(columns, folder)
        for transform in (held, computed):
            load = os.getloadavg()[0]
            figures = measure(folder, transform, given.workers, given.rounds)
            found[transform.__name__] = {"load_before": round(load, 1), **figures}
            print(transform.__name__, json.dumps(found[transform.__name__]))
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
