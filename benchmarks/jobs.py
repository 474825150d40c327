"""Compares writing from Dask and Spark with their own writers, and loading the results: pairs in one run.

    python benchmarks/jobs.py [--gigabytes 2] [--workers 2] [--rounds 3] [--engines dask,spark]
        [--shapes mixed,vectors] [--folder DIR]

There are two kinds of rows: `mixed` (20 float32, 5 int64, two texts, a vector of 16 float32) and `vectors` (1024
float32). The source is Parquet files written by pyarrow, with vectors as lists. Each engine reads them and writes the
same rows with its own writer and with ours, in turns; the order of the two alternates from round to round. Then both
results are loaded, shuffled, in turns. Times are medians of the rounds, and include reading the source.

Memory is the increase of a worker's peak memory (VmHWM) over a small job, with partitions of 64 MiB, and then of
512 MiB. On Dask, partitions are lazy batches of 4 MiB, so the increase comes from the writer alone.

Needs dask[distributed], pyspark with Java 17, pandas, psutil and torch. Results are merged into `--out`.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from parquet_loader import Scalar, Schema, Tensor, Text
from parquet_loader.write.dask import write_dask
from parquet_loader.write.spark import write_spark

PARTITION_BYTES = 64 * 2**20
LARGE_PARTITION_BYTES = 8 * PARTITION_BYTES
WORDS = pa.array(["alpha", "beta", "gamma", "delta", "a longer piece of text that says a little more"])
SHAPES = {
    "mixed": Schema(
        {f"f{n}": Scalar("float32") for n in range(20)}
        | {f"i{n}": Scalar("int64") for n in range(5)}
        | {"word": Text(), "name": Text(), "vector": Tensor("float32", (16,))}
    ),
    "vectors": Schema({"id": Scalar("int64"), "vector": Tensor("float32", (1024,))}),
}
ROW_BYTES = {"mixed": 230, "vectors": 4104}
Works = dict[str, Callable[[str], Any]]


def table(number: int, shape: str, rows: int) -> pa.Table:
    """Return rows, the same every time, in types that engines know; vectors as lists."""
    rng = np.random.default_rng(number)
    columns: dict[str, Any] = {}
    for name, field in SHAPES[shape].items():
        if isinstance(field, Tensor):
            length = field.shape[0]
            offsets = pa.array(np.arange(0, rows * length + 1, length, dtype="i4"))
            columns[name] = pa.ListArray.from_arrays(offsets, pa.array(rng.standard_normal(rows * length, dtype="f4")))
        elif isinstance(field, Text):
            words = WORDS.take(pa.array(rng.integers(len(WORDS), size=rows)))
            digits = pa.array(rng.integers(10**6, size=rows)).cast(pa.string())
            columns[name] = words if name == "word" else pc.binary_join_element_wise(words, digits, "")
        elif name == "id":
            columns[name] = np.arange(number * rows, (number + 1) * rows)
        else:
            wide = rng.integers(0, 10**6, rows)
            columns[name] = wide if name.startswith("i") else (wide / 7).astype("f4")
    return pa.table(columns)


def rows_of(shape: str, size: int = PARTITION_BYTES) -> int:
    return size // ROW_BYTES[shape]


def write_source(folder: str, shape: str, gigabytes: float) -> list[str]:
    files = []
    for number in range(max(2, round(gigabytes * 1e9 / PARTITION_BYTES))):
        files.append(os.path.join(folder, f"{number:05}.parquet"))
        pq.write_table(table(number, shape, rows_of(shape)), files[-1])
    return files


def in_turns(rounds: int, works: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds):
        for name, work in list(works.items())[:: -1 if number % 2 else 1]:
            began = time.perf_counter()
            work()
            times[name].append(round(time.perf_counter() - began, 3))
    return times


def shown(what: str, times: dict[str, list[float]]) -> dict[str, Any]:
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    for name, seconds in times.items():
        print(f"  {what:16} {name:14} {medians[name]:8.2f} s  ({min(seconds):.2f} to {max(seconds):.2f})")
    theirs, ours = medians.values()
    print(f"  {what:16} ours takes {ours / theirs:.2f} times as long", flush=True)
    return {"seconds": times, "median_s": medians, "ours_to_theirs": round(ours / theirs, 3)}


def size(folder: str) -> float:
    return sum(os.path.getsize(os.path.join(d, f)) for d, _, names in os.walk(folder) for f in names) / 1e9


def load(folder: str) -> None:
    from parquet_loader import BatchedDataLoader  # noqa: PLC0415  (workers import this file, and need no torch)

    with BatchedDataLoader(folder, 1024, shuffle=True) as loader:
        for _ in loader:
            pass


def compare(engine: str, shape: str, folder: str, rounds: int, works: Works) -> dict[str, Any]:
    """Write and load in turns; the writer named first is the engine's own."""
    targets = {name: os.path.join(folder, f"{engine}-{shape}-{name}") for name in works}

    def write(name: str) -> None:
        shutil.rmtree(targets[name], ignore_errors=True)
        works[name](targets[name])

    print(f"{engine}, {shape}")
    writing = shown("write", in_turns(rounds, {name: partial(write, name) for name in works}))
    stored = {name: round(size(target), 3) for name, target in targets.items()}
    print(f"  stored, GB       {stored}")
    loading = shown("load, shuffled", in_turns(rounds, {name: partial(load, t) for name, t in targets.items()}))
    for target in targets.values():
        shutil.rmtree(target)
    return {"write": writing, "stored_gb": stored, "load": loading}


def memory_of(word: str, name: str) -> dict[int, int]:
    """Return a line of /proc/PID/status, in bytes, of each process below this one with `word` in its command."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, FileNotFoundError):
            if any(word in part for part in process.cmdline()):
                with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
                    lines = dict(line.split(":", 1) for line in status)
                found[process.pid] = int(lines[name].split()[0]) * 1024
    return found


def rises(word: str, small: Callable[[], Any], works: dict[str, Callable[[], Any]]) -> dict[str, int]:
    """Return in MB what a worker holds after a small job that imports everything, and how far each work raises it."""
    small()
    before = memory_of(word, "VmRSS")
    found = {"after a small job, MB": round(max(before.values()) / 1e6)}
    for name, work in works.items():
        for pid in memory_of(word, "VmRSS"):
            with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as file:
                file.write("5")  # begins VmHWM anew
        work()
        most = memory_of(word, "VmHWM")
        rise = max(most[pid] - before.get(pid, max(before.values())) for pid in most)
        found[f"rise with {name}, MB"] = round(rise / 1e6)
    print(f"  memory           {found}", flush=True)
    return found


# ---- Dask ----------------------------------------------------------------------------------------------------------


def frame_of(path: str) -> Any:
    return pq.ParquetFile(path).read(use_threads=False).to_pandas(ignore_metadata=True)


def to_parquet(frame: Any, shape: str, target: str) -> None:
    frame.to_parquet(target, write_index=False, schema=table(0, shape, 1).schema)


class Batches:
    """A partition as batches of 4 MiB, each made when it is asked for."""

    def __init__(self, number: int, shape: str, size: int) -> None:
        self.rest = iter(range(number * 1000, number * 1000 + size // 2**22))
        self.shape = shape

    def __iter__(self) -> Iterator[pa.Table]:
        return self

    def __next__(self) -> pa.Table:
        return table(next(self.rest), self.shape, rows_of(self.shape, 2**22))


def with_dask(options: argparse.Namespace, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    import dask  # noqa: PLC0415
    import dask.dataframe as dd  # noqa: PLC0415
    from distributed import Client, LocalCluster  # noqa: PLC0415

    dask.config.set({"dataframe.convert-string": False})
    cluster = partial(LocalCluster, n_workers=options.workers, threads_per_worker=1, dashboard_address=None)
    for shape in options.shapes.split(","):
        schema = SHAPES[shape]

        def write(size: int, shape: str = shape, schema: Schema = schema) -> None:
            parts = [dask.delayed(Batches)(number, shape, size) for number in range(2 * options.workers)]
            write_dask(parts, os.path.join(folder, "memory"), schema, mode="overwrite")

        with cluster() as workers, Client(workers):
            memory = rises("spawn", partial(write, 2**23), {
                "64 MiB": partial(write, PARTITION_BYTES),
                "512 MiB": partial(write, LARGE_PARTITION_BYTES),
            })  # fmt: skip
        shutil.rmtree(os.path.join(folder, "memory"))
        with tempfile.TemporaryDirectory(dir=folder) as source, cluster() as workers, Client(workers):
            files = write_source(source, shape, options.gigabytes)
            frame = dd.from_map(frame_of, files, meta=frame_of(files[0])[:0])
            works: Works = {
                "to_parquet": partial(to_parquet, frame, shape),
                "write_dask": partial(write_dask, frame, schema=schema),
            }
            yield shape, compare("dask", shape, folder, options.rounds, works) | {"memory": memory}


# ---- Spark ---------------------------------------------------------------------------------------------------------


def with_spark(options: argparse.Namespace, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    from pyspark.sql import SparkSession  # noqa: PLC0415

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    for shape in options.shapes.split(","):
        schema = SHAPES[shape]
        spark = (
            SparkSession.builder.master(f"local[{options.workers}]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.memory", "4g")
            .config("spark.sql.files.maxPartitionBytes", str(PARTITION_BYTES))
            .config("spark.sql.files.openCostInBytes", str(PARTITION_BYTES))  # each file is a partition
            .getOrCreate()
        )
        with tempfile.TemporaryDirectory(dir=folder) as source:
            files = write_source(source, shape, options.gigabytes)
            frame = spark.read.parquet(source)

            def own(target: str, frame: Any = frame) -> None:
                frame.write.parquet(target)

            def write(
                paths: list[str], partitions: int, spark: Any = spark, schema: Schema = schema, folder: str = folder
            ) -> None:
                rows = spark.read.parquet(*paths).coalesce(partitions)
                write_spark(rows, os.path.join(folder, "memory"), schema, mode="overwrite")

            own(os.path.join(folder, "warm"), spark.read.parquet(files[0]))
            shutil.rmtree(os.path.join(folder, "warm"))
            eight = files[: 8 * options.workers]
            memory = rises("pyspark.daemon", partial(write, files[: options.workers], 64), {
                "64 MiB": partial(write, eight, len(eight)),
                "512 MiB": partial(write, eight, max(1, len(eight) // 8)),
            })  # fmt: skip
            shutil.rmtree(os.path.join(folder, "memory"))
            works: Works = {"write.parquet": own, "write_spark": partial(write_spark, frame, schema=schema)}
            yield shape, compare("spark", shape, folder, options.rounds, works) | {"memory": memory}
        spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="See the top of this file.")
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", default="dask,spark")
    parser.add_argument("--shapes", default="mixed,vectors")
    parser.add_argument("--folder", help="where to write; default: a temporary directory")
    parser.add_argument("--out", default=os.path.join(os.path.dirname(__file__), "results", "jobs.json"))
    options = parser.parse_args()
    about = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), "pyarrow": pa.__version__, "numpy": np.__version__},
        "gigabytes": options.gigabytes,
        "workers": options.workers,
        "rounds": options.rounds,
    }
    for engine in options.engines.split(","):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            for shape, found in {"dask": with_dask, "spark": with_spark}[engine](options, folder):
                results: dict[str, Any] = {}
                if os.path.exists(options.out):
                    with open(options.out, encoding="utf-8") as file:
                        results = json.load(file)
                load_average = [round(value, 1) for value in os.getloadavg()]
                results[f"{engine}, {shape}"] = {"about": about | {"load_average": load_average}, **found}
                with open(options.out, "w", encoding="utf-8") as file:
                    json.dump(results, file, indent=1)
                    file.write("\n")


if __name__ == "__main__":
    main()
