"""Measures the cost of skipping rows of a large row group, as after a resume: reading, decoding, and all together.

    python -m benchmarks.skipping [--out benchmarks/results/skipping.json]

One row group of 400,000 rows of 20 columns, in several layouts, in the page cache; processor time of one thread, the
median of 7. A loader's cursor skips all its rows. For comparison, Arrow alone decodes them, and the file's bytes are
read.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader import BatchedDataLoader
from parquet_loader.read.cursor import Cursor

ROWS, COLUMNS, WINDOW = 400_000, 20, 65_536
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "random float32, pyarrow's defaults": ("float", {}),
    "random float32, LZ4, plain": ("float", {"compression": "lz4", "use_dictionary": False}),
    "random float32, uncompressed, plain": ("float", {"compression": "none", "use_dictionary": False}),
    "skewed int32, pyarrow's defaults": ("int", {}),
    "skewed int32, zstd": ("int", {"compression": "zstd"}),
}


def processor_ms(work: Callable[[], None]) -> float:
    """Return the processor time of some work, in milliseconds."""
    times = []
    for _ in range(7):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return 1e3 * statistics.median(times)


def read_bytes(path: str) -> None:
    """Read a file through a small buffer, as Arrow does."""
    buffer = bytearray(1 << 16)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def decode(path: str) -> None:
    """Let Arrow decode a file's row group forward."""
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 16) as file:
        for _ in file.iter_batches(WINDOW, use_threads=False):
            pass


def pass_over(loader: BatchedDataLoader) -> None:
    """Let a cursor of the loader's pass over all rows but one."""
    dataset = loader._dataset
    cursor = Cursor(dataset.reader, dataset.snapshot.row_group(0), ROWS, dataset.sizing.stream_rows)
    cursor.read_slice(ROWS - 1, ROWS, lambda *_: 0, SimpleNamespace(is_closing=False), is_last=True)


def measure() -> dict[str, Any]:
    """Measure all layouts."""
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/rows.parquet"
        for name, (kind, options) in LAYOUTS.items():
            columns: dict[str, Any] = {}
            for number in range(COLUMNS):
                skewed = kind == "int"
                values = np.minimum(rng.zipf(1.3, ROWS), 10**6).astype(np.int32) if skewed else rng.random(ROWS, "f4")
                columns[f"c{number}"] = values
            pq.write_table(pa.table(columns), path, row_group_size=ROWS, **options)
            with BatchedDataLoader(path, 1024, shuffle=True, window_rows=WINDOW) as loader:
                found[name] = {
                    "read_ms": processor_ms(partial(read_bytes, path)),
                    "arrow_ms": processor_ms(partial(decode, path)),
                    "cursor_ms": processor_ms(partial(pass_over, loader)),
                }
            print(name, found[name], flush=True)
    return found


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    found = measure()
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
