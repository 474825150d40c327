"""Compares the loader's batches for TensorFlow and Grain with the frameworks' own readers, interleaved.

    python benchmarks/outputs_beside.py                    # tf.data over TFRecord, Grain's Parquet source
    python benchmarks/outputs_beside.py --workloads tabular --pairs 5

`tf.data` reads, shuffles, batches and parses uncompressed TFRecord files with parallel reads, parallel parsing of whole
batches, and prefetch. Grain reads the same Parquet files as the loader, in their order: its source does not shuffle.
Rates are of epochs after the first, with the page cache warm.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import grain
import numpy as np
import tensorflow as tf

from parquet_loader import BatchedDataLoader, OutputOptions, Scalar, Schema, Tensor, write_dataset

NAMES = [f"c{number}" for number in range(40)]
ROW_BYTES = 16 * 1024
FILES = 4
SHUFFLED_ROWS = 10_000
WORKLOADS: dict[str, tuple[int, int]] = {"tabular": (60_000, 4096), "science": (6_000, 256)}
Begin = Callable[[], Iterator[Any]]


def columns_of(workload: str, rows: int, rng: np.random.Generator) -> dict[str, Any]:
    if workload == "science":
        return {"x": rng.random((rows, ROW_BYTES // 4), dtype=np.float32)}
    return {name: rng.random(rows, dtype=np.float32) for name in NAMES}


def write(folder: Path, workload: str, rows: int) -> None:
    rng = np.random.default_rng(0)
    parts = [columns_of(workload, rows // FILES, rng) for _ in range(FILES)]
    if workload == "science":
        schema = Schema({"x": Tensor("float32", (ROW_BYTES // 4,), storage="list")})
    else:
        schema = Schema(dict.fromkeys(NAMES, Scalar("float32")))
    write_dataset(iter(parts), str(folder / "parquet"), schema)
    for number, columns in enumerate(parts):
        with tf.io.TFRecordWriter(str(folder / f"{number}.tfrecord")) as writer:
            for row in range(rows // FILES):
                features = {name: _feature(workload, values[row]) for name, values in columns.items()}
                writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def _feature(workload: str, value: Any) -> Any:
    if workload == "science":
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.tobytes()]))
    return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))


def tf_records(folder: Path, workload: str, batch_size: int) -> Begin:
    is_bytes = workload == "science"
    specs = (
        {"x": tf.io.FixedLenFeature((), tf.string)}
        if is_bytes
        else {name: tf.io.FixedLenFeature((), tf.float32) for name in NAMES}
    )

    def parsed(records: Any) -> Any:
        columns = tf.io.parse_example(records, specs)
        return {"x": tf.io.decode_raw(columns["x"], tf.float32)} if is_bytes else columns

    files = [str(path) for path in sorted(folder.glob("*.tfrecord"))]
    data = tf.data.TFRecordDataset(files, num_parallel_reads=tf.data.AUTOTUNE)
    data = data.shuffle(SHUFFLED_ROWS).batch(batch_size, drop_remainder=True)
    data = data.map(parsed, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    return lambda: iter(data)


def grain_rows(folder: Path, batch_size: int) -> Begin:
    files = [str(path) for path in sorted((folder / "parquet").glob("*.parquet"))]

    def begin() -> Iterator[Any]:
        for path in files:
            yield from grain.experimental.ParquetIterDataset(path).batch(batch_size)

    return begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--pairs", type=int, default=5)
    arguments = parser.parse_args()
    for workload in arguments.workloads:
        rows, batch_size = WORKLOADS[workload]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write(folder, workload, rows)
            measure(folder, workload, rows, batch_size, arguments.pairs)


def measure(folder: Path, workload: str, rows: int, batch_size: int, pairs: int) -> None:
    def new_loader(form: Any) -> BatchedDataLoader:
        options = OutputOptions(format=form)
        return BatchedDataLoader(
            str(folder / "parquet"), batch_size, shuffle=True, drop_last=True, num_threads=2, output_options=options
        )

    with new_loader("tensorflow") as eager, new_loader("numpy") as arrays:
        dataset, for_grain = arrays.to_tf(), arrays.to_grain()
        begins: dict[str, tuple[Begin, BatchedDataLoader | None]] = {
            "tf.data over TFRecord": (tf_records(folder, workload, batch_size), None),
            "to_tf": (lambda: iter(dataset), arrays),
            "format='tensorflow'": (lambda: iter(eager), eager),
            "Grain's Parquet source": (grain_rows(folder, batch_size), None),
            "to_grain": (lambda: iter(for_grain), arrays),
        }
        times: dict[str, list[float]] = {name: [] for name in begins}
        for _ in range(pairs):
            for name, (begin, loader) in begins.items():
                epochs, start = (1 if loader is None else 5), 0.0
                for number in range(1 + epochs):
                    if number == 1:
                        start = time.perf_counter()
                    for batch in begin():
                        del batch
                times[name].append((time.perf_counter() - start) / epochs)
                if loader is not None:
                    loader.reset()  # so that nothing is read ahead while others are measured
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    for name, seconds in medians.items():
        beside = "Grain's Parquet source" if "rain" in name else "tf.data over TFRecord"
        figures = {
            "workload": workload,
            "what": name,
            "rows_per_s": round(rows / seconds),
            "times": round(medians[beside] / seconds, 1),
            "lowest_and_highest_s": [round(min(times[name]), 4), round(max(times[name]), 4)],
        }
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
