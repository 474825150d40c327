"""Measures the waits of a loop that needs no processor: within an epoch, and at the beginning of the next one.

    python -m benchmarks.waits [--cache DIR] [--step-ms 1.2] [--epochs 15] [--isolation thread]

The consumer sleeps a fixed time per batch, as if it waited for a GPU. It reads *tabular* of `throughput.py`, in batches
of 8,192 rows and windows of 400,000. Two epochs warm up. Waits are given in steps: medians and ranges over the epochs
of the longest wait after the first batch, and of the wait for the first batch. If a step is shorter than the loading
time of a batch, the result measures the loader's throughput instead: *free* is the time of a batch without any step.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.throughput import TABULAR_WINDOW, generate, write_tabular
from parquet_loader import BatchedDataLoader

BATCH_SIZE = 8192


def sleep_until(end: float) -> None:
    """Sleep, as often as the system wakes too early."""
    while (left := end - time.perf_counter()) > 0:
        time.sleep(left)


def measure(loader: BatchedDataLoader, step_s: float, epochs: int) -> dict[str, Any]:
    """Return the waits of each epoch in steps, and the seconds of a batch without any step."""
    free = []
    for _ in range(2):
        began = time.perf_counter()
        for _ in loader:
            pass
        free.append((time.perf_counter() - began) / len(loader))
    first, longest = [], []
    for _ in range(epochs):
        for _ in loader:
            sleep_until(time.perf_counter() + step_s)
        stats = loader.stats()
        first.append(stats.first_batch_s / step_s)
        longest.append(stats.longest_wait_s / step_s)
    # The epoch before the first of these did not sleep, so nothing was read ahead for it.
    return {"free_s": min(free), "first": first[1:], "longest": longest}


def said(values: list[float]) -> str:
    """Return the median and the range."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "parquet_loader_benchmarks")
    parser.add_argument("--step-ms", type=float, default=1.2)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isolation", choices=("thread", "process"), action="append")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = generate(arguments.cache, "tabular", write_tabular)
    step_s = arguments.step_ms / 1000
    for isolation in arguments.isolation or ("thread", "process"):
        with BatchedDataLoader(
            folder,
            BATCH_SIZE,
            shuffle=True,
            window_rows=TABULAR_WINDOW,
            num_threads=arguments.threads,
            isolation=isolation,
        ) as loader:
            found = measure(loader, step_s, arguments.epochs)
        print(
            f"{isolation}: step {arguments.step_ms} ms, free {1000 * found['free_s']:.2f} ms a batch, load "
            f"{os.getloadavg()[0]:.1f}; in steps: first batch {said(found['first'])}, longest wait after it "
            f"{said(found['longest'])}",
            flush=True,
        )


if __name__ == "__main__":
    main()
