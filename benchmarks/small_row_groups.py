"""Measures data sets of many small row groups, beside bare decoding with pyarrow, interleaved.

    python benchmarks/small_row_groups.py --rounds 7

Both use two threads and read from the page cache. pyarrow reads whole files, and delivers nothing; the loader shuffles
in windows of 100,000 rows and delivers batches of tensors. Rates are of epochs after the first.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader import BatchedDataLoader

RNG = np.random.default_rng(0)
EPOCHS = 3  # of a round, one after another


def numbers(rows: int, nulls: float = 0.0) -> pa.Table:
    """Return 10 columns of float32."""
    return pa.table(
        {
            f"c{i}": pa.array(RNG.random(rows, dtype=np.float32), mask=RNG.random(rows) < nulls if nulls else None)
            for i in range(10)
        }
    )


def texts(rows: int) -> pa.Table:
    """Return texts of 10 to 500 bytes, titles with few distinct values, and labels."""
    letters = RNG.choice(list("abcdefghij klmnop"), 600).tolist()
    found = ["".join(letters[start : start + length]) for start, length in RNG.integers(10, 500, (rows, 2)).tolist()]
    titles = [f"title {number}" for number in RNG.integers(0, 100, rows)]
    return pa.table({"text": found, "title": titles, "label": RNG.integers(0, 5, rows)})


def lists(rows: int) -> pa.Table:
    """Return lists of up to 19 and of up to 39 numbers, and labels."""

    def of_mean(mean: int, dtype: str) -> pa.Array:
        offsets = np.concatenate([[0], RNG.integers(0, 2 * mean, rows).cumsum()])
        return pa.LargeListArray.from_arrays(offsets, RNG.integers(0, 50_000, offsets[-1]).astype(dtype))

    return pa.table({"ids": of_mean(10, "i4"), "weights": of_mean(20, "f4"), "label": RNG.integers(0, 5, rows)})


def files(folder: Path, count: int, rows: int, name: Callable[[int], str] = "{}.parquet".format) -> None:
    """Write files of one row group."""
    for number in range(count):
        path = folder / name(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(numbers(rows), path)


def groups(folder: Path, table: Callable[[int], pa.Table], rows: int, group: int) -> None:
    """Write four files of many row groups."""
    for number in range(4):
        pq.write_table(table(rows // 4), folder / f"{number}.parquet", row_group_size=group)


KINDS: dict[str, Callable[[Path], None]] = {
    "4,000 files of 250 rows of 10 numbers": lambda folder: files(folder, 4_000, 250),
    "3,000 files of 300 rows of 10 numbers, in 210 partitions": lambda folder: files(
        folder, 3_000, 300, lambda number: f"day={number % 30}/city=c{number % 7}/{number}.parquet"
    ),
    "row groups of 500 rows of 10 numbers": lambda folder: groups(folder, numbers, 1_000_000, 500),
    "row groups of 10,000 rows of 10 numbers": lambda folder: groups(folder, numbers, 2_000_000, 10_000),
    "row groups of 1,000 rows of 10 numbers, 10 % nulls": lambda folder: groups(
        folder, lambda rows: numbers(rows, 0.1), 800_000, 1_000
    ),
    "row groups of 1,000 texts, titles and labels": lambda folder: groups(folder, texts, 240_000, 1_000),
    "row groups of 1,000 rows of two short lists": lambda folder: groups(folder, lists, 240_000, 1_000),
}


def decode(path: Path) -> int:
    """Decode a file with pyarrow."""
    return int(pq.ParquetFile(path).read(use_threads=False).num_rows)


def main() -> None:
    """Print a line for each kind of data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    for kind, write in KINDS.items():
        folder = Path(tempfile.mkdtemp())
        try:
            write(folder)
            paths = sorted(folder.rglob("*.parquet"))
            found: dict[str, list[float]] = {"loader": [], "pyarrow": []}
            rows = 0
            with (
                ThreadPoolExecutor(2) as pool,
                BatchedDataLoader(folder, 1024, shuffle=True, window_rows=100_000, num_threads=2) as loader,
            ):
                for number in range(arguments.rounds + 1):
                    began = time.perf_counter()
                    for _ in range(EPOCHS):
                        rows = sum(len(next(iter(batch.values()))) for batch in loader)
                    loader_s = (time.perf_counter() - began) / EPOCHS
                    loader.seek(0, 0)  # forgets what was read ahead of the next epoch
                    began = time.perf_counter()
                    assert sum(pool.map(decode, paths)) == rows
                    if number:
                        found["loader"].append(loader_s)
                        found["pyarrow"].append(time.perf_counter() - began)
            ratio = statistics.median(bare / ours for ours, bare in zip(found["loader"], found["pyarrow"], strict=True))
            rate = rows / statistics.median(found["loader"])
            print(f"{kind}: {rate / 1e6:.2f} M rows/s, {ratio:.2f} times pyarrow", flush=True)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
