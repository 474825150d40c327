"""Measures the rate of an epoch, compared with decoding alone and a memory copy, and the longest wait.

    python benchmarks/throughput.py [--cache DIR] [--rounds 5] [--out benchmarks/results/throughput.json]

Workloads, generated from a seed and kept: *tabular*, 4 M rows of 13 float32, 26 skewed int32 and 1 int8 label in 8
files, pyarrow's defaults with row groups of 50,000; *science*, 65,536 rows of 4,096 random float32 as raw bytes, 1 GiB.

All systems run in one process, in turn, with the same number of threads; figures are medians and the range of all
rounds. Timed batches are finished tensors. A separate epoch compares the loader's checksum with one from plain pyarrow.
Page checksums are not verified. *Stall*: a consumer works a fixed time per batch, 1.5 times the loader's time for one.
The longest wait after the first batch is given in such steps, as the median of five epochs.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from parquet_loader import BatchedDataLoader, Schema, Tensor

TABULAR_WINDOW = 400_000
SCIENCE_WINDOW = 8192
STALL_EPOCHS = 15
SCIENCE = Schema({"x": Tensor("float32", (4096,))})


def write_tabular(folder: Path) -> None:
    """8 files of 500,000 rows in pyarrow's default layout."""
    rng = np.random.default_rng(0)
    for number in range(8):
        rows = 500_000
        columns = {f"d{i}": rng.random(rows, dtype=np.float32) for i in range(13)}
        columns |= {f"c{i}": np.minimum(rng.zipf(1.3, rows), 10**6).astype(np.int32) for i in range(26)}
        columns["y"] = rng.integers(0, 2, rows).astype(np.int8)
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", row_group_size=50_000)


def write_science(folder: Path) -> None:
    """4 files of 16,384 rows of raw tensors, not-null, uncompressed."""
    rng = np.random.default_rng(0)
    schema = pa.schema([pa.field("x", pa.binary(16384), nullable=False)])
    for number in range(4):
        raw = pa.py_buffer(rng.random((16384, 4096), dtype=np.float32))
        array = pa.FixedSizeBinaryArray.from_buffers(schema.field("x").type, 16384, [None, raw])
        pq.write_table(
            pa.Table.from_arrays([array], schema=schema),
            folder / f"{number}.parquet",
            row_group_size=1024,
            compression="none",
            use_dictionary=False,
            write_statistics=False,
        )


def generate(cache: Path, name: str, write: Callable[[Path], None]) -> Path:
    """Write a workload unless it is there."""
    folder, partial = cache / name, cache / f".{name}"
    if not folder.exists():
        partial.mkdir(parents=True, exist_ok=True)
        write(partial)
        partial.rename(folder)
    return folder


def decode_seconds(folder: Path, threads: int) -> float:
    """Time bare decoding: each row group into an Arrow table, several at a time."""
    paths = sorted(folder.glob("*.parquet"))
    footers = {path: pq.read_metadata(path) for path in paths}
    groups = [(path, number) for path in paths for number in range(footers[path].num_row_groups)]

    def decode(item: tuple[Path, int]) -> int:
        with pq.ParquetFile(item[0], metadata=footers[item[0]], pre_buffer=False) as file:
            return int(file.read_row_group(item[1], use_threads=False).num_rows)

    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        sum(pool.map(decode, groups))
        return time.perf_counter() - began


def copy_seconds(nbytes: int) -> float:
    """Time a one-thread memory copy of `nbytes` bytes, 256 MiB at a time, into memory that is faulted in."""
    source = np.ones(256 * 2**20, np.uint8)
    target = np.ones_like(source)
    began = time.perf_counter()
    for _ in range(nbytes // source.nbytes):
        np.copyto(target, source)
    return time.perf_counter() - began


def checksum(batch: dict[str, torch.Tensor]) -> int:
    """Return a sum over the bits of all values; it does not depend on the order of rows."""
    total = 0
    for tensor in batch.values():
        bits = {1: torch.int8, 4: torch.int32}[tensor.element_size()]
        total += int(tensor.contiguous().view(bits).sum(dtype=torch.int64))
    return total


def oracle_checksum(folder: Path) -> int:
    """The same from plain pyarrow."""
    total = 0
    for path in sorted(folder.glob("*.parquet")):
        for column in pq.read_table(path).columns:
            for chunk in column.chunks:
                width = np.int8 if column.type == pa.int8() else np.int32
                data = np.frombuffer(chunk.buffers()[1], np.uint8)
                size = len(chunk) * column.type.bit_width // 8
                start = chunk.offset * column.type.bit_width // 8
                total += int(data[start : start + size].view(width).sum(dtype=np.int64))
    return total


def epoch_seconds(loader: BatchedDataLoader) -> tuple[float, dict[str, Any]]:
    """Time one epoch of finished tensors; return the loader's own figures too."""
    began = time.perf_counter()
    for _ in loader:
        pass
    seconds = time.perf_counter() - began
    stats = loader.stats()
    busy = {stage: stats.cpu_s[stage] for stage in stats.cpu_s}
    return seconds, busy


def stall_steps(loader: BatchedDataLoader, batch_seconds: float) -> dict[str, Any]:
    """Wait a fixed time per batch, 1.5 times the loader's; return the longest later wait in such steps."""
    step, waits = 1.5 * batch_seconds, []
    for _ in range(STALL_EPOCHS):
        for _ in loader:
            until = time.perf_counter() + step
            while (left := until - time.perf_counter()) > 0:
                time.sleep(left)  # the consumer's work, which needs no processor
        waits.append(loader.stats().longest_wait_s)
    longest = statistics.median(waits)
    return {
        "step_s": step,
        "longest_wait_s": longest,
        "longest_wait_steps": longest / step,
        "all_longest_wait_s": waits,
    }


def measure(cache: Path, rounds: int, threads: int) -> dict[str, Any]:
    """Run everything and return the results."""
    torch.set_num_threads(1)
    tabular = generate(cache, "tabular", write_tabular)
    science = generate(cache, "science", write_science)
    loaders = {
        "tabular": BatchedDataLoader(tabular, 4096, shuffle=True, window_rows=TABULAR_WINDOW, num_threads=threads),
        "science": BatchedDataLoader(
            science, 256, schema=SCIENCE, shuffle=True, window_rows=SCIENCE_WINDOW, num_threads=threads
        ),
    }
    science_bytes = 65536 * 16384
    sums = {name: sum(map(checksum, loader)) for name, loader in loaders.items()}
    times: dict[str, list[float]] = {"decode": [], "tabular": [], "copy": [], "science": []}
    stages: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        times["decode"].append(decode_seconds(tabular, threads))
        seconds, stages["tabular"] = epoch_seconds(loaders["tabular"])
        times["tabular"].append(seconds)
        times["copy"].append(copy_seconds(science_bytes))
        seconds, stages["science"] = epoch_seconds(loaders["science"])
        times["science"].append(seconds)
    median = {name: statistics.median(values) for name, values in times.items()}
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "command": "python benchmarks/throughput.py",
        "threads": threads,
        "rounds": rounds,
        "page_checksums_verified": False,
        "versions": {
            "python": platform.python_version(),
            "pyarrow": pa.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "hardware": {"cores": os.cpu_count(), "machine": platform.machine(), "processor": processor()},
        "seconds": {name: {"median": median[name], "all": values} for name, values in times.items()},
        "tabular": {
            "rows_per_s": 4e6 / median["tabular"],
            "decode_rows_per_s": 4e6 / median["decode"],
            "share_of_decoding": statistics.median(
                d / t for d, t in zip(times["decode"], times["tabular"], strict=True)
            ),
            "cpu_s_by_stage": stages["tabular"],
            "checksum_equal": sums["tabular"] == oracle_checksum(tabular),
            "stall": stall_steps(loaders["tabular"], median["tabular"] / len(loaders["tabular"])),
        },
        "science": {
            "bytes_per_s": science_bytes / median["science"],
            "copy_bytes_per_s": science_bytes / median["copy"],
            "share_of_copy": statistics.median(c / s for c, s in zip(times["copy"], times["science"], strict=True)),
            "cpu_s_by_stage": stages["science"],
            "checksum_equal": sums["science"] == oracle_checksum(science),
            "stall": stall_steps(loaders["science"], median["science"] / len(loaders["science"])),
        },
    }


def processor() -> str:
    """Return the processor's name where the system tells."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            return next(line.split(":")[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "parquet_loader-bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results = measure(arguments.cache, arguments.rounds, arguments.threads)
    tabular, science = results["tabular"], results["science"]
    print(
        f"tabular  {tabular['rows_per_s'] / 1e6:.2f} M rows/s = {tabular['share_of_decoding']:.2f} of bare decoding "
        f"({tabular['decode_rows_per_s'] / 1e6:.2f}); checksum equal: {tabular['checksum_equal']}; longest wait "
        f"{tabular['stall']['longest_wait_steps']:.2f} steps"
    )
    print(
        f"science  {science['bytes_per_s'] / 1e9:.2f} GB/s = {science['share_of_copy']:.2f} of a memory copy "
        f"({science['copy_bytes_per_s'] / 1e9:.2f}); checksum equal: {science['checksum_equal']}; longest wait "
        f"{science['stall']['longest_wait_steps']:.2f} steps"
    )
    print("processor seconds by stage:", json.dumps({n: results[n]["cpu_s_by_stage"] for n in ("tabular", "science")}))
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
