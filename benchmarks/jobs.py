"""Writing from Dask and Spark against their own writers, and loading what each wrote: pairs in one run.

    python benchmarks/jobs.py [--gigabytes 2] [--workers 2] [--rounds 3] [--engines dask,spark] [--folder DIR]

Two shapes of row: `mixed` (20 float32, 5 int64, two texts, a vector of 16 float32) and `vectors` (1024 float32).
Each engine writes the same rows from the same source with its own writer and with ours, in turns; then both results are
loaded, shuffled, in turns. Times are medians; memory is the most that any one worker process held, with what it had
loaded before. Needs dask[distributed], pyspark with Java 17, pandas, psutil and torch.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa

from parquet_loader import BatchedDataLoader, Scalar, Schema, Tensor, Text
from parquet_loader.write.dask import write_dask
from parquet_loader.write.spark import write_spark

PARTITION_BYTES = 64 * 2**20
WORDS = np.array(["alpha", "beta", "gamma", "delta", "a longer piece of text that says a little more"])
SHAPES = {
    "mixed": Schema(
        {f"f{n}": Scalar("float32") for n in range(20)}
        | {f"i{n}": Scalar("int64") for n in range(5)}
        | {"word": Text(), "name": Text(), "vector": Tensor("float32", (16,))}
    ),
    "vectors": Schema({"id": Scalar("int64"), "vector": Tensor("float32", (1024,))}),
}
ROW_BYTES = {"mixed": 230, "vectors": 4104}


def partition(number: int, shape: str, rows: int) -> pd.DataFrame:
    """Return the rows of one partition, the same every time."""
    rng = np.random.default_rng(number)
    columns: dict[str, Any] = {}
    for name, field in SHAPES[shape].items():
        if isinstance(field, Tensor):
            columns[name] = list(rng.standard_normal((rows, *field.shape), dtype="f4"))
        elif isinstance(field, Text):
            words = WORDS[rng.integers(len(WORDS), size=rows)]
            columns[name] = words if name == "word" else np.char.add(words, rng.integers(10**6, size=rows).astype("U7"))
            columns[name] = columns[name].astype(object)
        elif name == "id":
            columns[name] = np.arange(number * rows, (number + 1) * rows)
        else:
            wide = rng.integers(0, 10**6, rows)
            columns[name] = wide if field.dtype.kind == "i" else (wide / 7).astype("f4")  # type: ignore[union-attr]
    return pd.DataFrame(columns)


def lists(shape: str) -> pa.Schema:
    """Return the schema in which engines that know no tensors write the rows."""
    fields = []
    for name, field in SHAPES[shape].items():
        type_ = pa.list_(pa.float32()) if isinstance(field, Tensor) else field.arrow_type  # type: ignore[union-attr]
        fields.append(pa.field(name, type_))
    return pa.schema(fields)


class Peak(threading.Thread):
    """Watches the processes below this one; `bytes` is the most that one with `word` in its command held."""

    def __init__(self, word: str) -> None:
        super().__init__(name="peak", daemon=True)
        self.word, self.bytes, self.stop = word, 0, threading.Event()

    def run(self) -> None:
        """Look ten times a second until told to stop."""
        while not self.stop.wait(0.1):
            for process in psutil.Process().children(recursive=True):
                try:
                    if any(self.word in part for part in process.cmdline()):
                        self.bytes = max(self.bytes, process.memory_info().rss)
                except psutil.Error:
                    continue


@contextmanager
def peak(word: str) -> Iterator[Peak]:
    watcher = Peak(word)
    watcher.start()
    try:
        yield watcher
    finally:
        watcher.stop.set()
        watcher.join()


def in_turns(rounds: int, works: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            began = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - began)
    return times


def show(what: str, times: dict[str, list[float]], gigabytes: float) -> None:
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    for name, seconds in times.items():
        spread = f"{min(seconds):.1f}-{max(seconds):.1f}"
        print(f"  {what:24} {name:14} {medians[name]:8.2f} s ({spread})  {gigabytes / medians[name]:6.2f} GB/s")
    theirs, ours = medians.values()
    print(f"  {what:24} ours takes {ours / theirs:.2f} times as long", flush=True)


def size(folder: str) -> float:
    return sum(os.path.getsize(os.path.join(d, f)) for d, _, names in os.walk(folder) for f in names) / 1e9


def load(folder: str) -> None:
    with BatchedDataLoader(folder, 1024, shuffle=True) as loader:
        for _ in loader:
            pass


def compare(
    engine: str, shape: str, folder: str, options: argparse.Namespace, works: dict[str, Callable[[str], Any]], word: str
) -> None:
    peaks: dict[str, int] = dict.fromkeys(works, 0)

    def writing(name: str) -> Callable[[], None]:
        def write() -> None:
            target = os.path.join(folder, f"{engine}-{shape}-{name.replace(' ', '-')}")
            shutil.rmtree(target, ignore_errors=True)
            with peak(word) as watcher:
                works[name](target)
            peaks[name] = max(peaks[name], watcher.bytes)

        return write

    print(f"{engine}, {shape}")
    show("write", in_turns(options.rounds, {name: writing(name) for name in works}), options.gigabytes)
    targets = {name: os.path.join(folder, f"{engine}-{shape}-{name.replace(' ', '-')}") for name in works}
    for name, target in targets.items():
        print(f"  {'stored':24} {name:14} {size(target):8.2f} GB, most memory of a worker {peaks[name] / 1e6:.0f} MB")
    show("load, shuffled", in_turns(options.rounds, {n: partial(load, t) for n, t in targets.items()}),
         options.gigabytes)  # fmt: skip


def _to_parquet(frame: Any, shape: str, target: str) -> None:
    frame.to_parquet(target, write_index=False, schema=lists(shape))


def _ours(write: Callable[..., Any], frame: Any, schema: Schema, target: str) -> None:
    write(frame, target, schema)


def with_dask(options: argparse.Namespace, folder: str) -> None:
    import dask  # noqa: PLC0415
    import dask.dataframe as dd  # noqa: PLC0415
    from distributed import Client, LocalCluster  # noqa: PLC0415

    dask.config.set({"dataframe.convert-string": False})
    with (
        LocalCluster(n_workers=options.workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        for shape, schema in SHAPES.items():
            rows = PARTITION_BYTES // ROW_BYTES[shape]
            count = max(1, round(options.gigabytes * 1e9 / PARTITION_BYTES))
            frame = dd.from_map(partition, range(count), shape=shape, rows=rows, meta=partition(0, shape, 1)[:0])
            works: dict[str, Callable[[str], Any]] = {
                "to_parquet": partial(_to_parquet, frame, shape),
                "write_dask": partial(_ours, write_dask, frame, schema),
            }
            compare("dask", shape, folder, options, works, "spawn")


def with_spark(options: argparse.Namespace, folder: str) -> None:
    from pyspark.sql import SparkSession  # noqa: PLC0415

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    spark = (
        SparkSession.builder.master(f"local[{options.workers}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .getOrCreate()
    )
    try:
        for shape, schema in SHAPES.items():
            source = os.path.join(folder, f"source-{shape}")
            rows = PARTITION_BYTES // ROW_BYTES[shape]
            count = max(1, round(options.gigabytes * 1e9 / PARTITION_BYTES))
            os.makedirs(source)
            for number in range(count):  # plain files, which Spark reads as it reads anybody's
                partition(number, shape, rows).to_parquet(f"{source}/{number:05}.parquet", schema=lists(shape))
            frame = spark.read.parquet(source)
            works: dict[str, Callable[[str], Any]] = {
                "write.parquet": frame.write.parquet,
                "write_spark": partial(_ours, write_spark, frame, schema),
            }
            compare("spark", shape, folder, options, works, "pyspark.daemon")
    finally:
        spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="See the top of this file.")
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", default="dask,spark")
    parser.add_argument("--folder", help="where to write; default: a temporary directory")
    options = parser.parse_args()
    print(f"{options.gigabytes:g} GB, {options.workers} workers, {options.rounds} rounds; {platform.processor()} "
          f"{os.cpu_count()} processors, Python {platform.python_version()}, pyarrow {pa.__version__}")  # fmt: skip
    for engine in options.engines.split(","):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            {"dask": with_dask, "spark": with_spark}[engine](options, folder)


if __name__ == "__main__":
    main()
