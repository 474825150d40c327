"""Measures the reasons for the writer's defaults: size and decoding speed of columns, row groups and pages.

    python benchmarks/layout.py            about two minutes; writes benchmarks/results/layout.json
    python benchmarks/layout.py --only gain    only the gain of rewriting the tabular workload; other results are kept

All variants of a measurement take turns, round after round, so that other load affects them alike. Figures are medians
over the rounds, and `spread` is (slowest - fastest) / median. Files are in the page cache. Page checksums are written
in all files, and verified only in the measurement about them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader import ReadOptions, Scalar, Schema, rewrite_dataset, write_dataset
from parquet_loader.dataset import Counted, Dataset, LazyBudget, WindowNeeds, open_dataset, resolve_source
from parquet_loader.engine import Engine, EngineOptions, NextPlan
from parquet_loader.plan import everything
from parquet_loader.source import open_snapshot
from parquet_loader.window import Arenas

ROUNDS = 9
MIB = 2**20
THREADS = 2
PLAIN = {"compression": "NONE", "use_dictionary": False}
WAYS: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "lz4": {"compression": "LZ4", "use_dictionary": False},
    "zstd": {"compression": "ZSTD", "use_dictionary": False},
    "dictionary": {"compression": "NONE", "use_dictionary": True},
    "dictionary+lz4": {"compression": "LZ4", "use_dictionary": True},
}

_BATCH_ROWS = 1024
# All data sets keep their windows' memory from epoch to epoch; together they must not take more than one would alone.
_SHARE_OF_WINDOW = 3

# The share of the limit for an epoch: the loader of one data set keeps its memory while the other has its turn.
_SHARE_OF_LIMIT = 0.75


def columns(rng: np.random.Generator, size_bytes: int) -> dict[str, pa.Array]:
    """Return one column of each kind, of about `size_bytes` once decoded."""
    words = np.array([f"category {i:02d}" for i in range(50)])
    letters = rng.integers(97, 123, size_bytes, dtype=np.uint8)
    text_offsets = np.arange(0, size_bytes + 1, 32, dtype=np.int32)
    half_zero = rng.random(size_bytes // 4, dtype=np.float32) * (rng.random(size_bytes // 4) < 0.4)
    sparse = rng.integers(0, 256, size_bytes, dtype=np.uint8) * (rng.random(size_bytes) < 0.2)
    noise = rng.standard_normal(size_bytes // 4, dtype=np.float32)
    eights = size_bytes // 8
    return {
        "float32 noise": pa.array(noise),
        "float32, 60 % zeros": pa.array(half_zero.astype(np.float32)),
        "float32, 2 decimals below 1000": pa.array(np.round(rng.random(size_bytes // 4) * 1000, 2).astype(np.float32)),
        "int64 noise below 2**40": pa.array(rng.integers(0, 2**40, eights)),
        "int64 below 1000": pa.array(rng.integers(0, 1000, eights)),
        "int64 rising": pa.array(np.cumsum(rng.integers(0, 5000, eights))),
        "int8 codes of 16 words": pa.array(rng.integers(0, 16, size_bytes // 4, dtype=np.int8)),
        "text, 50 words": pa.array(words[rng.integers(0, 50, size_bytes // 16)]),
        "text, random letters": pa.Array.from_buffers(
            pa.string(), len(text_offsets) - 1, [None, pa.py_buffer(text_offsets), pa.py_buffer(letters)]
        ),
        "tensor 16 KiB float32 noise": raw(noise, 16384),
        "tensor 784 B uint8, 80 % zeros": raw(sparse.astype(np.uint8)[: size_bytes // 784 * 784], 784),
    }


def raw(values: np.ndarray[Any, Any], width_bytes: int) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(width_bytes), values.nbytes // width_bytes, [None, pa.py_buffer(values)])


def write(table: pa.Table, path: str, row_group_rows: int, **arguments: Any) -> None:
    settings = {"write_statistics": False, "max_rows_per_page": 2**31 - 1, "write_page_checksum": True} | arguments
    with pq.ParquetWriter(path, table.schema, **settings) as writer:
        writer.write_table(table, row_group_size=row_group_rows)


def not_null(**arrays: pa.Array) -> pa.Table:
    schema = pa.schema([pa.field(name, array.type, nullable=False) for name, array in arrays.items()])
    return pa.Table.from_arrays(list(arrays.values()), schema=schema)


def decode(path: str, threads: int = 1, *, verify: bool = False) -> None:
    """Decode all row groups, each on one of `threads`, and release each at once."""

    def read(groups: range) -> None:
        with pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=verify) as file:
            for group in groups:
                file.read_row_group(group, use_threads=False)

    count = pq.read_metadata(path).num_row_groups
    if threads == 1:
        read(range(count))
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(read, [range(i, count, threads) for i in range(threads)]))


def in_turns(ways: dict[str, Callable[[], None]], rounds: int) -> dict[str, dict[str, float]]:
    """Return median seconds and spread of each way."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, run in ways.items():
            start = time.perf_counter()
            run()
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    return {
        name: {"s": statistics.median(s), "spread": round((max(s) - min(s)) / statistics.median(s), 2)}
        for name, s in seconds.items()
    }


def measure_columns(folder: str, rounds: int) -> dict[str, Any]:
    """How small and how fast each kind of column is in each way of storing it, one thread, row groups of 8 MiB."""
    out: dict[str, Any] = {}
    for kind, array in columns(np.random.default_rng(0), 32 * MIB).items():
        table = not_null(x=array)
        paths = {way: os.path.join(folder, f"{way}.parquet") for way in WAYS}
        for way, path in paths.items():
            write(table, path, max(1, table.num_rows // 4), **WAYS[way])
        times = in_turns({way: lambda path=path: decode(path) for way, path in paths.items()}, rounds)  # type: ignore[misc]
        base = os.path.getsize(paths["plain"])
        out[kind] = {
            way: {
                "size": round(os.path.getsize(paths[way]) / base, 3),
                "GB/s": round(table.nbytes / t["s"] / 1e9, 2),
                "spread": t["spread"],
            }
            for way, t in times.items()
        }
    return out


def narrow_and_tensors(size_bytes: int) -> dict[str, pa.Table]:
    rng = np.random.default_rng(1)
    rows = size_bytes // (40 * 4)
    narrow = {f"c{i}": pa.array(rng.standard_normal(rows, dtype=np.float32)) for i in range(40)}
    tensors = raw(rng.standard_normal(size_bytes // 4, dtype=np.float32), 16384)
    return {"40 float32 columns": not_null(**narrow), "tensors of 16 KiB": not_null(x=tensors)}


def measure_row_groups(folder: str, rounds: int) -> dict[str, Any]:
    """Decoding speed by size of a row group, two threads over row groups; and bytes of footer a row group."""
    out: dict[str, Any] = {}
    sizes = [MIB // 4, MIB // 2, MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB, 64 * MIB]
    for kind, table in narrow_and_tensors(128 * MIB).items():
        paths = {f"{size / MIB:g} MiB": os.path.join(folder, f"{size}.parquet") for size in sizes}
        for size, path in zip(sizes, paths.values(), strict=True):
            write(table, path, max(1, int(table.num_rows * size / table.nbytes)), **PLAIN)
        times = in_turns({n: lambda path=path: decode(path, THREADS) for n, path in paths.items()}, rounds)  # type: ignore[misc]
        out[kind] = {
            n: {"GB/s": round(table.nbytes / t["s"] / 1e9, 2), "spread": t["spread"]} for n, t in times.items()
        }
        for path in paths.values():
            os.remove(path)
    return out


def measure_pages(folder: str, rounds: int) -> dict[str, Any]:
    """Decoding speed by size of a page, with and without verifying checksums, one thread, row groups of 8 MiB."""
    out: dict[str, Any] = {}
    sizes = [64 * 2**10, 256 * 2**10, MIB, 4 * MIB, 8 * MIB]
    for kind, table in narrow_and_tensors(64 * MIB).items():
        ways: dict[str, Callable[[], None]] = {}
        for size in sizes:
            path = os.path.join(folder, f"page-{size}.parquet")
            write(table, path, table.num_rows // 8, data_page_size=size, write_batch_size=64, **PLAIN)
            ways[f"{size // 1024} KiB"] = lambda path=path: decode(path)  # type: ignore[misc]
            ways[f"{size // 1024} KiB, verified"] = lambda path=path: decode(path, verify=True)  # type: ignore[misc]
        times = in_turns(ways, rounds)
        out[kind] = {
            n: {"GB/s": round(table.nbytes / t["s"] / 1e9, 2), "spread": t["spread"]} for n, t in times.items()
        }
    return out


def measure_files(folder: str, rounds: int) -> dict[str, Any]:
    """Milliseconds to open a file and parse its footer, 40 columns, by number of row groups."""
    table = narrow_and_tensors(MIB)["40 float32 columns"]
    paths: dict[str, str] = {}
    for groups in (1, 8, 64, 256):
        paths[f"{groups} row groups"] = path = os.path.join(folder, f"{groups}.parquet")
        with pq.ParquetWriter(path, table.schema, **PLAIN) as writer:
            for _ in range(groups):
                writer.write_table(table.slice(0, 8))

    def open_twenty(path: str) -> None:
        for _ in range(20):
            pq.read_metadata(path)

    times = in_turns({n: lambda path=path: open_twenty(path) for n, path in paths.items()}, rounds)  # type: ignore[misc]
    return {n: {"ms": round(t["s"] / 20 * 1e3, 3), "spread": t["spread"]} for n, t in times.items()}


def write_tabular(folder: str) -> None:
    """1 M rows of 13 float32, 26 skewed int32 and an int8 label in two files, as pyarrow writes them by default."""
    rng = np.random.default_rng(0)
    for number in range(2):
        rows = 500_000
        table = {f"d{i}": rng.random(rows, dtype=np.float32) for i in range(13)}
        table |= {f"c{i}": np.minimum(rng.zipf(1.3, rows), 10**6).astype(np.int32) for i in range(26)}
        table["y"] = rng.integers(0, 2, rows).astype(np.int8)
        pq.write_table(pa.table(table), os.path.join(folder, f"{number}.parquet"), row_group_size=50_000)


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
    datasets: list[Dataset], num_threads: int, seed: int, *, rounds: int, sample_bytes: int
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
    allocators = [
        (Arenas(part.sizing.windows_and_batches_bytes), Arenas(part.sizing.windows_and_batches_bytes)) for part in parts
    ]
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
    wanted_rows = max(_BATCH_ROWS, int(sample_bytes / max(dataset.sizing.row.decoded, 1.0)))
    stride = max(1, dataset.rows // wanted_rows)
    counts = np.zeros_like(dataset.counts)
    counts[groups[::stride]] = dataset.counts[groups[::stride]]
    window = dataset.sizing.window_rows
    window = max(min(window, 2 * _BATCH_ROWS), window // _SHARE_OF_WINDOW)
    part = replace(dataset, counted=Counted(counts))
    part = part.with_window(window, None, WindowNeeds(min(_BATCH_ROWS, window), shuffle=True))
    limit, reads = int(_SHARE_OF_LIMIT * part.sizing.limit_bytes), int(_SHARE_OF_LIMIT * part.sizing.reads_bytes)
    sizing = replace(part.sizing, limit_bytes=limit, reads_bytes=reads)
    return replace(part, budget=LazyBudget(limit, sizing.row, lambda _: sizing))


def _load(dataset: Dataset, arenas: tuple[Arenas, Arenas], threads: int, seed: int, epoch: int) -> tuple[float, float]:
    division = everything(dataset.rows, _BATCH_ROWS, drop_last=False)
    plan = NextPlan(division, _BATCH_ROWS, False, True, seed, epoch)(dataset)
    engine = Engine(
        dataset,
        plan,
        EngineOptions(None, seed, threads, skips=False),
        first_batch=0,
        allocator=arenas[0],
        staging=arenas[1],
        is_first=False,
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


def measure_gain(folder: str, rounds: int) -> dict[str, Any]:
    """Whole shuffled epochs of the loader's engine over the same rows in several layouts: rows/s, processor seconds."""
    source = os.path.join(folder, "default")
    os.mkdir(source)
    write_tabular(source)
    tables = (pq.read_table(os.path.join(source, f"{n}.parquet")) for n in range(2))
    names = [f"d{i}" for i in range(13)], [f"c{i}" for i in range(26)]
    write_dataset(tables, os.path.join(folder, "write_dataset"), Schema(
        dict.fromkeys(names[0], Scalar("float32")) | dict.fromkeys(names[1], Scalar("int32")) | {"y": Scalar("int8")}
    ))  # fmt: skip
    ways: dict[str, dict[str, Any]] = {
        "rewritten": {},
        "rewritten, objective size": {"objective": "size"},
        "rewritten, packed": {"pack": {"dense": names[0], "categories": names[1]}},
    }
    for name, arguments in ways.items():
        rewrite_dataset(source, os.path.join(folder, name), **arguments)
    layouts = sorted(os.listdir(folder))
    opened = [
        open_dataset(
            resolve_source(open_snapshot(os.path.join(folder, name)), None, None, ReadOptions()),
            filters=None,
            needs=WindowNeeds(4096, shuffle=True),
            window_rows=200_000,
            memory_limit_bytes=2**30,
            transform=False,
            read_options=ReadOptions(),
            skips=False,
            num_threads=THREADS,
        )
        for name in layouts
    ]
    rates = dict(zip(layouts, load_rates(opened, THREADS, 0, rounds=rounds, sample_bytes=2**40), strict=True))
    base = rates["default"]
    return {
        name: {
            "MB": round(sum(e.stat().st_size for e in os.scandir(os.path.join(folder, name))) / 1e6, 1),
            "M rows/s": round(rate.rows_per_s / 1e6, 2),
            "times": round(rate.rows_per_s / base.rows_per_s, 2),
            "cpu s/M rows": round(rate.cpu_s_per_million_rows, 4),
            "times less cpu": round(base.cpu_s_per_million_rows / rate.cpu_s_per_million_rows, 2),
        }
        for name, rate in rates.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", default=os.path.join(os.path.dirname(__file__), "results", "layout.json"))
    parser.add_argument("--only", choices=["columns", "row_groups", "pages", "files", "gain"])
    arguments = parser.parse_args()
    pa.set_cpu_count(THREADS)
    results: dict[str, Any] = {}
    if arguments.only and os.path.exists(arguments.out):
        with open(arguments.out, encoding="utf-8") as file:
            results = json.load(file)
    results |= {
        "command": "python benchmarks/layout.py",
        "machine": {"processor": processor(), "cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {"pyarrow": pa.__version__, "numpy": np.__version__},
        "rounds": arguments.rounds,
    }
    for name, measure in {
        "columns": measure_columns,
        "row_groups": measure_row_groups,
        "pages": measure_pages,
        "files": measure_files,
        "gain": measure_gain,
    }.items():
        if arguments.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory() as folder:
            results[name] = measure(folder, arguments.rounds)
        print(name, json.dumps(results[name], indent=1))
    with open(arguments.out, "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1)
        file.write("\n")


def processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next(
            (line.split(":")[1].strip() for line in file if line.startswith("model name")), platform.processor()
        )


if __name__ == "__main__":
    main()
