"""Rows by index: `ParquetDataset.rows().take` next to Lance's `take` and map-style access of Hugging Face `datasets`.

    python -m benchmarks.rows [--rows 1000000] [--rounds 7] [--out benchmarks/results/rows.json]

Ten columns: integers, floats, few words and distinct texts. Batches of 256 random indices, files in the page cache. All
systems take turns in each round, and each uses the threads that it uses by default. Those that are not installed are
left out. `python -m pip install pylance datasets` installs both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader import OutputOptions, ParquetDataset

BATCH_ROWS = 256
SECONDS = 1.0
Take = Callable[[Any], Any]


def table(rows: int) -> pa.Table:
    """Return the data."""
    rng = np.random.default_rng(0)
    words = np.array([f"word {n}" for n in range(1000)])
    columns: dict[str, Any] = {f"long{n}": rng.integers(0, 2**60, rows) for n in range(2)}
    columns |= {f"double{n}": rng.random(rows) for n in range(2)}
    columns |= {f"float{n}": rng.random(rows, dtype=np.float32) for n in range(2)}
    columns |= {"small": rng.integers(0, 100, rows).astype(np.int32), "label": rng.integers(0, 10, rows)}
    columns |= {"word": words[rng.integers(0, 1000, rows)], "text": np.char.add("row ", np.arange(rows).astype(str))}
    return pa.table(columns)


def ours(data: pa.Table, folder: Path, *, cache_bytes: str = "256MiB", **options: Any) -> Take:
    """Return a function that takes rows with this library."""
    pq.write_table(data, folder / "rows.parquet", **options)
    rows = ParquetDataset(folder).rows(output_options=OutputOptions(format="numpy"), cache_bytes=cache_bytes)
    return rows.take


def lance(data: pa.Table, folder: Path) -> Take:
    """Return a function that takes rows with Lance."""
    from lance import write_dataset  # noqa: PLC0415  (may be absent)

    return write_dataset(data, str(folder / "rows.lance")).take  # type: ignore[no-any-return]


def huggingface(data: pa.Table, folder: Path) -> Take:
    """Return a function that takes rows with `datasets`, which maps a converted copy into memory."""
    from datasets import Dataset  # noqa: PLC0415  (may be absent)

    pq.write_table(data, folder / "rows.parquet")
    found = Dataset.from_parquet(str(folder / "rows.parquet"), cache_dir=str(folder / "cache")).with_format("numpy")
    return lambda indices: found[indices]


SYSTEMS: dict[str, Callable[[pa.Table, Path], Take]] = {
    "ours, pyarrow's defaults": ours,
    "ours, pyarrow's defaults, cache_bytes='16MiB'": lambda d, f: ours(d, f, cache_bytes="16MiB"),
    "ours, max_rows_per_page=1000, cache_bytes='16MiB'": lambda d, f: ours(
        d, f, cache_bytes="16MiB", max_rows_per_page=1000
    ),
    "Lance": lance,
    "datasets": huggingface,
}


def measured(take: Take, rows: int, seed: int) -> tuple[float, float]:
    """Return rows a second, and milliseconds of processor time of a batch."""
    rng, batches = np.random.default_rng(seed), 0
    began, began_cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < SECONDS:
        take(rng.integers(0, rows, BATCH_ROWS))
        batches += 1
    return batches * BATCH_ROWS / (time.perf_counter() - began), 1e3 * (time.process_time() - began_cpu) / batches


def measure(rows: int, rounds: int) -> dict[str, Any]:
    """Measure all systems in turns."""
    data, takes, found = table(rows), dict[str, Take](), dict[str, Any]()
    with tempfile.TemporaryDirectory() as root:
        for number, (name, opened) in enumerate(SYSTEMS.items()):
            folder = Path(root) / str(number)
            folder.mkdir()
            try:
                takes[name] = opened(data, folder)
            except ImportError as error:
                found[name] = {"skipped": f"not installed: {error}"}
                continue
            began = time.perf_counter()
            takes[name](np.arange(0, rows, max(1, rows // BATCH_ROWS))[:BATCH_ROWS])
            found[name] = {"first_batch_ms": 1e3 * (time.perf_counter() - began), "rows_s": [], "batch_cpu_ms": []}
        for turn in range(rounds + 1):  # the first round fills caches
            for name, take in takes.items():
                rate, cpu = measured(take, rows, turn)
                if turn:
                    found[name]["rows_s"].append(rate)
                    found[name]["batch_cpu_ms"].append(cpu)
    for figures in found.values():
        if "rows_s" in figures:
            figures |= {f"median_{key}": statistics.median(figures[key]) for key in ("rows_s", "batch_cpu_ms")}
    return found


def main() -> None:
    """Print the figures as lines, and write them if a file is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = measure(arguments.rows, arguments.rounds)
    for name, figures in found.items():
        line = figures.get("skipped") or (
            f"{figures['median_rows_s']:,.0f} rows/s, {figures['median_batch_cpu_ms']:.1f} ms of processor time a "
            f"batch, first batch {figures['first_batch_ms']:.0f} ms"
        )
        sys.stdout.write(f"{name}: {line}\n")
    if arguments.out:
        arguments.out.write_text(json.dumps({"rows": arguments.rows, "systems": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
