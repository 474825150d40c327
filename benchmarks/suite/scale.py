"""Measures how cost grows with threads, files, row groups, columns, batch size and ranks; and the first batch.

    python -m benchmarks.suite scale

All figures are those of our own loader, compared with decoding or parsing alone if that is the limit. Compared systems
take turns; figures are medians of all rounds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.suite.generate import generate
from benchmarks.suite.results import hardware, load, now, save, spread
from benchmarks.suite.workloads import TABULAR
from parquet_loader import BatchedDataLoader, Shard, UnsupportedError
from parquet_loader.plan.epoch import plan_epoch

Study = dict[str, Any]
BATCH_SIZE = 4096
WINDOW_ROWS = 400_000


class Bench:
    """What every study needs to know."""

    def __init__(self, data: Path, rounds: int, threads: int, scale: float) -> None:
        self.data, self.rounds, self.threads, self.scale = data, rounds, threads, scale

    def tabular(self, share: float = 1.0) -> tuple[Path, int]:
        """Return the tabular data set in pyarrow's default layout, and its rows."""
        rows = max(TABULAR.files * 16, round(TABULAR.rows * self.scale * share))
        home = self.data / f"{TABULAR.name}-{rows}"
        generate(TABULAR, rows, TABULAR.layouts[0], home)
        return home / TABULAR.layouts[0], rows

    def sizes(self, *wanted: int) -> list[int]:
        """Return sizes, smaller where the data sets are."""
        return sorted({max(1, round(size * min(1.0, 8 * self.scale))) for size in wanted})

    def in_turns(self, ways: Mapping[Any, Callable[[], Any]], rounds: int | None = None) -> dict[Any, dict[str, Any]]:
        """Return seconds of each way; one round before warms up."""
        seconds: dict[Any, list[float]] = {name: [] for name in ways}
        for number in range((rounds or self.rounds) + 1):
            for name, run in ways.items():
                began = time.perf_counter()
                run()
                if number:
                    seconds[name].append(time.perf_counter() - began)
        return {name: spread(values) for name, values in seconds.items()}


def drain(loader: BatchedDataLoader) -> None:
    for _ in loader:
        pass


def open_loader(folder: Path, threads: int, batch_size: int = BATCH_SIZE, **more: Any) -> BatchedDataLoader:
    """Open a shuffling loader with a window that fits the batch."""
    window = max(batch_size, WINDOW_ROWS)
    return BatchedDataLoader(folder, batch_size, shuffle=True, window_rows=window, num_threads=threads, **more)


def decode(folder: Path, threads: int) -> None:
    """Decode all row groups, several at a time, and release each."""
    paths = sorted(folder.glob("*.parquet"))
    footers = {path: pq.read_metadata(path) for path in paths}

    def read(item: tuple[Path, int]) -> None:
        with pq.ParquetFile(item[0], metadata=footers[item[0]], pre_buffer=False) as file:
            file.read_row_group(item[1], use_threads=False)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(read, [(path, group) for path in paths for group in range(footers[path].num_row_groups)]))


def rate(seconds: Mapping[str, Any], amount: float) -> dict[str, Any]:
    """Turn seconds into amounts a second."""
    return spread([amount / value for value in seconds["all"]])


def text(value: Mapping[str, float], digits: int = 3) -> str:
    return f"{value['median']:.{digits}g} ({value['min']:.{digits}g} to {value['max']:.{digits}g})"


def threads(bench: Bench) -> Study:
    folder, rows = bench.tabular()
    cores = len(os.sched_getaffinity(0))
    counts = sorted({1, 2, 3, 4, cores} - {n for n in (3, 4) if n > 2 * cores})
    loaders = {count: open_loader(folder, count) for count in counts}
    ways: dict[Any, Callable[[], Any]] = {}
    for count in counts:
        ways["loader", count] = partial(drain, loaders[count])
        ways["decoding", count] = partial(decode, folder, count)
    found = {key: rate(seconds, rows / 1e6) for key, seconds in bench.in_turns(ways).items()}
    for loader in loaders.values():
        loader.close()
    series = {
        "parquet_loader": [(n, found["loader", n]) for n in counts],
        "decoding alone": [(n, found["decoding", n]) for n in counts],
    }
    return {
        "title": "Threads",
        "about": f"*tabular* in pyarrow's default layout, batches of {BATCH_SIZE:,}, on {cores} processors.",
        "head": ["threads", "parquet_loader, M rows/s", "decoding alone, M rows/s"],
        "rows": [[n, text(found["loader", n]), text(found["decoding", n])] for n in counts],
        "panels": [_panel("Throughput against threads", "threads", "M rows/s", series)],
    }


OPEN = """
import sys, time, torch
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import pyarrow.parquet as pq
from parquet_loader import BatchedDataLoader
what, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
began = time.perf_counter()
if what == "open":
    BatchedDataLoader(folder, 64, shuffle=True).close()
else:
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(pq.read_metadata, sorted(folder.iterdir())))
print(time.perf_counter() - began)
"""


def files(bench: Bench) -> Study:
    cores = len(os.sched_getaffinity(0))
    counts = bench.sizes(100, 1000, 10_000)
    home = bench.data / "files"
    table = pa.table({f"c{i}": np.arange(64, dtype=np.float32) for i in range(40)})
    for count in counts:
        _files(home / str(count), count, table)
    # Each in a process of its own: what ten thousand footers leave in the allocator, the next would pay for.
    ways = [(what, count) for count in counts for what in ("open", "footers")]
    seconds: dict[tuple[str, int], list[float]] = {way: [] for way in ways}
    for _ in range(min(bench.rounds, 3)):
        for what, count in ways:
            (spent,) = _printed(OPEN, what, str(home / str(count)), str(cores))
            seconds[what, count].append(spent)
    found = {way: spread(values) for way, values in seconds.items()}
    series = {
        "opening a loader": [(n, found["open", n]) for n in counts],
        f"parsing the footers, {cores} threads": [(n, found["footers", n]) for n in counts],
    }
    return {
        "title": "Files",
        "about": "Seconds to open a loader over local files of 40 columns and one row group, until it can be iterated, "
        "in a fresh process after its imports, compared with only parsing the same footers.",
        "head": ["files", "opening, s", "footers alone, s"],
        "rows": [[f"{n:,}", text(found["open", n]), text(found["footers", n])] for n in counts],
        "panels": [_panel("Opening many files", "files", "seconds", series, "xy")],
    }


def _files(folder: Path, count: int, table: pa.Table) -> None:
    if folder.exists() and len(os.listdir(folder)) == count:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    first = folder / "0.parquet"
    pq.write_table(table, first)
    content = first.read_bytes()
    for number in range(1, count):
        (folder / f"{number}.parquet").write_bytes(content)


def row_groups(bench: Bench) -> Study:
    counts = bench.sizes(10_000, 100_000, 1_000_000)

    def plan(rows: Any) -> Any:
        return plan_epoch(
            rows, window_rows=WINDOW_ROWS, open_row_groups=1, batch_size=BATCH_SIZE, drop_last=False, shuffle=True,
            seed=0, epoch=0,
        )  # fmt: skip

    groups = {count: np.random.default_rng(0).integers(20_000, 60_000, count) for count in counts}
    found = bench.in_turns({count: partial(plan, groups[count]) for count in counts})
    held = {}
    for count in counts:
        tracemalloc.start()
        kept = plan(groups[count])
        held[count] = tracemalloc.get_traced_memory()[0] / count
        tracemalloc.stop()
        del kept
    series = {"planning": [(n, found[n]) for n in counts]}
    return {
        "title": "Row groups in a plan",
        "about": "Seconds to plan an epoch, and what the plan holds.",
        "head": ["row groups", "planning, s", "bytes each"],
        "rows": [[f"{n:,}", text(found[n]), f"{held[n]:.0f}"] for n in counts],
        "panels": [_panel("Planning an epoch", "row groups", "seconds", series, "xy")],
    }


def columns(bench: Bench) -> Study:
    values = max(2000 * 64, round(2**25 * bench.scale))
    counts = bench.sizes(10, 100, 500, 1000, 2000)
    home = bench.data / f"columns-{values}"
    rng = np.random.default_rng(0)
    for count in counts:
        folder = home / str(count)
        if not (folder / "whole").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            rows = values // count // 4
            for number in range(4):
                table = pa.table({f"c{i}": rng.random(rows, dtype=np.float32) for i in range(count)})
                pq.write_table(table, folder / f"{number}.parquet", row_group_size=max(64, rows // 4))
            (folder / "whole").touch()
    ways: dict[Any, Callable[[], Any]] = {}
    loaders = []
    for count in counts:
        paths = sorted((home / str(count)).glob("*.parquet"))
        window = max(64, values // count // 4)
        loader = BatchedDataLoader(
            paths, min(1024, window), shuffle=True, window_rows=window, num_threads=bench.threads
        )
        loaders.append(loader)
        ways["loader", count] = partial(drain, loader)
        ways["decoding", count] = partial(decode, home / str(count), bench.threads)
    found = {key: rate(seconds, values / 1e6) for key, seconds in bench.in_turns(ways).items()}
    for loader in loaders:
        loader.close()
    series = {
        "parquet_loader": [(n, found["loader", n]) for n in counts],
        "decoding alone": [(n, found["decoding", n]) for n in counts],
    }
    return {
        "title": "Columns",
        "about": f"{values:,} float32 values in all, however many columns they make; batches of 1,024 rows.",
        "head": ["columns", "parquet_loader, M values/s", "decoding alone, M values/s"],
        "rows": [[f"{n:,}", text(found["loader", n]), text(found["decoding", n])] for n in counts],
        "panels": [_panel("Throughput by columns", "columns", "M values/s", series, "x")],
    }


def batch_rows(bench: Bench) -> Study:
    folder, rows = bench.tabular(0.25)
    sizes = [16, 64, 256, 1024, 4096, 16_384, 65_536]
    loaders = {size: open_loader(folder, bench.threads, size) for size in sizes}
    ways = {size: partial(drain, loader) for size, loader in loaders.items()}
    found = {size: rate(seconds, rows / 1e6) for size, seconds in bench.in_turns(ways).items()}
    for loader in loaders.values():
        loader.close()
    series = {"40 tensors a batch": [(n, found[n]) for n in sizes]}
    return {
        "title": "Rows a batch",
        "about": f"*tabular* of {rows:,} rows, 40 separate tensors a batch.",
        "head": ["rows a batch", "M rows/s", "microseconds a batch"],
        "rows": [[f"{n:,}", text(found[n]), f"{n / found[n]['median']:.0f}"] for n in sizes],
        "panels": [_panel("Throughput by rows a batch", "rows a batch", "M rows/s", series, "x")],
    }


def ranks(bench: Bench) -> Study | None:
    folder, rows = bench.tabular()
    sizes = [1, 2, 4, 8, 64]
    try:
        loaders = {size: open_loader(folder, bench.threads, 256, shard=Shard(0, size)) for size in sizes}
    except UnsupportedError:
        return None
    found = bench.in_turns({size: partial(drain, loader) for size, loader in loaders.items()})
    steps = {size: len(loader) for size, loader in loaders.items()}
    for loader in loaders.values():
        loader.close()
    rates = {size: rate(found[size], steps[size] * 256 / 1e6) for size in sizes}
    return {
        "title": "Ranks",
        "about": f"One rank's epoch of *tabular* ({rows:,} rows over all ranks), batches of 256, alone on the machine.",
        "head": ["ranks", "batches of a rank", "its epoch, s", "M rows/s"],
        "rows": [[n, f"{steps[n]:,}", text(found[n]), text(rates[n])] for n in sizes],
        "panels": [_panel("A rank's throughput", "ranks", "M rows/s", {"": [(n, rates[n]) for n in sizes]}, "x")],
    }


FIRST = """
import sys, time, torch
from parquet_loader import BatchedDataLoader
began = time.perf_counter()
loader = BatchedDataLoader(sys.argv[1], 4096, shuffle=True, window_rows=int(sys.argv[2]), num_threads=int(sys.argv[3]))
opened = time.perf_counter() - began
next(iter(loader))
print(opened, time.perf_counter() - began)
"""


def first_batch(bench: Bench) -> Study:
    folder, _ = bench.tabular()
    rows = []
    for window in (200_000, WINDOW_ROWS):
        given = (str(folder), str(window), str(bench.threads))
        times = [_printed(FIRST, *given) for _ in range(bench.rounds)]
        rows.append([f"{window:,}", *(text(spread([t[part] for t in times])) for part in (0, 1))])
    return {
        "title": "First batch",
        "about": "*tabular*, in a fresh process after its imports: seconds from the call of the constructor.",
        "head": ["window", "constructed, s", "first batch, s"],
        "rows": rows,
        "panels": [],
    }


def _printed(script: str, *arguments: str) -> tuple[float, ...]:
    """Return the numbers that a script prints, run in a process of its own."""
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    return tuple(map(float, done.stdout.split()))


STUDIES: dict[str, Callable[[Bench], Study | None]] = {
    "threads": threads,
    "files": files,
    "row_groups": row_groups,
    "columns": columns,
    "batch_rows": batch_rows,
    "ranks": ranks,
    "first_batch": first_batch,
}


def _panel(title: str, x: str, y: str, series: Mapping[str, Sequence[Any]], log: str = "") -> dict[str, Any]:
    return {"title": title, "x": x, "y": y, "series": dict(series), "log": log}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", choices=[*STUDIES, []], default=[])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--command", default="python -m benchmarks.suite scale")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(arguments.data, arguments.rounds, arguments.threads, arguments.scale)
    path = arguments.results / "scale.json"
    for name in arguments.studies or STUDIES:
        study = STUDIES[name](bench)
        if study is None:
            print(f"{name}: not supported yet", flush=True)
            continue
        print(f"{name}: {study['head']}", *study["rows"], sep="\n  ", flush=True)
        about = {
            "date": now(),
            "command": arguments.command,
            "rounds": arguments.rounds,
            "threads": arguments.threads,
            "hardware": hardware(),
            "versions": {"pyarrow": pa.__version__, "torch": torch.__version__, "numpy": np.__version__},
        }
        studies = {**load(path).get("studies", {}), name: study}
        save(path, {**about, "studies": {key: studies[key] for key in STUDIES if key in studies}})


if __name__ == "__main__":
    main()
