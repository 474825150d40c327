"""Compares the processor time per row of `to_grain` and Grain's own Parquet source, by row size, interleaved.

    python -m benchmarks.grain_rows

Both read the same files with the page cache warm, and deliver batches of numpy arrays. Grain's source does not shuffle.
Epochs of `to_grain` are those after the first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import grain
import numpy as np

from parquet_loader import BatchedDataLoader, OutputOptions, Scalar, Schema, Tensor, write_dataset

EPOCHS = 5
COLUMNS = {10: 40_000, 40: 20_000}
"""Rows, by the number of float32 columns."""
LISTS = {64: 40_000, 256: 20_000, 1024: 8_000, 4096: 3_000}
"""Rows, by the length of the only column, a list of float32."""


def write(path: str, columns: int, length: int, rows: int) -> None:
    rng = np.random.default_rng(0)
    if length:
        schema = Schema({"x": Tensor("float32", (length,), storage="list")})
        write_dataset({"x": rng.random((rows, length), dtype=np.float32)}, path, schema)
    else:
        names = [f"c{number}" for number in range(columns)]
        schema = Schema(dict.fromkeys(names, Scalar("float32")))
        write_dataset({name: rng.random(rows, dtype=np.float32) for name in names}, path, schema)


def measure(path: str, batch_size: int, rows: int, rounds: int) -> dict[str, Any]:
    files = [str(file) for file in sorted(Path(path).glob("*.parquet"))]
    options = OutputOptions(format="numpy")
    theirs, ours = [], []
    with BatchedDataLoader(
        path, batch_size, shuffle=True, drop_last=True, num_threads=2, output_options=options
    ) as loader:
        batches = loader.to_grain()
        for _ in range(rounds):
            start = time.process_time()
            for file in files:
                for batch in grain.experimental.ParquetIterDataset(file).batch(batch_size):
                    del batch
            theirs.append(time.process_time() - start)
            for number in range(1 + EPOCHS):
                if number == 1:
                    start = time.process_time()
                for batch in batches:
                    del batch
            ours.append((time.process_time() - start) / EPOCHS)
            loader.reset()  # so that nothing is read ahead while Grain's source is measured
    ratios = [one / other for one, other in zip(theirs, ours, strict=True)]
    return {
        "grain_us_per_row": round(statistics.median(theirs) / rows * 1e6, 2),
        "to_grain_us_per_row": round(statistics.median(ours) / rows * 1e6, 2),
        "times": round(statistics.median(ratios), 1),
        "lowest_and_highest": [round(min(ratios), 1), round(max(ratios), 1)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    kinds = [(columns, 0, rows, 4096) for columns, rows in COLUMNS.items()]
    kinds += [(1, length, rows, 256) for length, rows in LISTS.items()]
    for columns, length, rows, batch_size in kinds:
        with tempfile.TemporaryDirectory() as path:
            write(path, columns, length, rows)
            figures = measure(path, batch_size, rows, arguments.rounds)
        print(json.dumps({"columns": columns, "list_length": length, **figures}), flush=True)


if __name__ == "__main__":
    main()
