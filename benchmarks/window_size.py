"""Measures the cost of larger windows: processor time and time of an epoch, wait for the first batch, memory held.

    python -m benchmarks.window_size [--cache DIR] [--rounds 3] [--out benchmarks/results/window_size.json]

It reads the two data sets of `throughput`, narrow rows of 157 bytes and wide rows of 16 KiB, in windows of 16 to
256 MiB, in turns; figures are medians. The memory limit is always 4 GiB, so only the window differs. A loader's first
epoch includes page faults, so only its wait for the first batch is given.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.throughput import SCIENCE, generate, write_science, write_tabular
from parquet_loader import BatchedDataLoader

WINDOWS_MIB = (16, 32, 64, 128, 256)
WORKLOADS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "tabular": (write_tabular, 157, {"batch_size": 4096}),
    "science": (write_science, 16384, {"batch_size": 256, "schema": SCIENCE}),
}


def one_pass(loader: BatchedDataLoader) -> dict[str, float]:
    """Run one epoch of finished tensors."""
    cpu, began = time.process_time(), time.perf_counter()
    for _ in loader:
        pass
    stats = loader.stats()
    return {
        "seconds": time.perf_counter() - began,
        "cpu_s": time.process_time() - cpu,
        "first_batch_s": stats.first_batch_s,
        "peak_mib": stats.peak_bytes / 2**20,
    }


def measure(cache: Path, rounds: int, threads: int) -> dict[str, Any]:
    """Time all sizes in turn; the first epoch of each loader is separate from the later ones."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name, (write, row_bytes, arguments) in WORKLOADS.items():
        folder = generate(cache, name, write)
        rows = {size: size * 2**20 // row_bytes for size in WINDOWS_MIB}
        passes: dict[int, list[list[dict[str, float]]]] = {size: [] for size in WINDOWS_MIB}
        for _ in range(rounds):
            for size in WINDOWS_MIB:
                with BatchedDataLoader(
                    folder,
                    shuffle=True,
                    window_rows=rows[size],
                    memory_limit="4GiB",
                    num_threads=threads,
                    **arguments,
                ) as loader:
                    passes[size].append([one_pass(loader) for _ in range(3)])
        found[name] = {}
        for size, runs in passes.items():
            later = [figures for run in runs for figures in run[1:]]
            found[name][f"{size} MiB"] = {
                "window_rows": rows[size],
                "first_pass_first_batch_s": statistics.median(run[0]["first_batch_s"] for run in runs),
                **{key: statistics.median(figures[key] for figures in later) for key in later[0]},
            }
            print(name, size, found[name][f"{size} MiB"], flush=True)
    return found


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "parquet_loader-bench")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    found = measure(chosen.cache, chosen.rounds, chosen.threads)
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
