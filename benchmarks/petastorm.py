"""The same script with Petastorm and with this library, nothing changed but the import.

    python benchmarks/petastorm.py --petastorm-python PATH/bin/python

PATH is an environment with Petastorm 0.13.1 (see tests/interop/make_petastorm.py) and torch. Without it only this
library is timed. Runs of the two are interleaved; each is a process of its own, which reads the data set once to warm
up and then `--epochs` times. The data set is written by this library, and read by both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.petastorm.codecs import NdarrayCodec, ScalarCodec
from parquet_loader.petastorm.etl.dataset_metadata import write_metadata
from parquet_loader.petastorm.unischema import Unischema, UnischemaField
from parquet_loader.schema.encode.blobs import encode_array
from parquet_loader.unischema import SparkType

SCRIPT = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
from {package} import make_batch_reader, make_reader
from {package}.pytorch import BatchedDataLoader, DataLoader

kind, url, batch_size, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

def loader():
    if kind == "rows":
        return DataLoader(make_reader(url, workers_count=4, seed=1), batch_size=batch_size)
    reader = make_batch_reader(url, workers_count=4, seed=1)
    return BatchedDataLoader(reader, batch_size=batch_size, shuffling_queue_capacity=20 * batch_size)

times = []
for epoch in range(epochs + 1):
    start, rows, total = time.perf_counter(), 0, 0.0
    with loader() as batches:
        for batch in batches:
            rows += len(batch["id"])
            total += float(batch["id"].sum())
    times.append(time.perf_counter() - start)
print(json.dumps({{"rows": rows, "sum": total, "seconds": times[1:]}}))
"""


def write_rows(folder: Path, rows: int) -> str:
    """Write a Petastorm data set: an id and a matrix of 32 x 32 float32 a row."""
    schema = Unischema(
        "Bench",
        [
            UnischemaField("id", np.int64, (), ScalarCodec(SparkType("LongType")), False),
            UnischemaField("matrix", np.float32, (32, 32), NdarrayCodec(), False),
        ],
    )
    rng = np.random.default_rng(0)
    matrices = [encode_array(rng.random((32, 32), np.float32), "npy") for _ in range(rows)]
    folder.mkdir()
    table = pa.table({"id": np.arange(rows), "matrix": pa.array(matrices, pa.binary())})
    pq.write_table(table, folder / "part-0.parquet", row_group_size=500, compression="snappy")
    write_metadata(f"file://{folder}", schema)
    return f"file://{folder}"


def write_columns(folder: Path, rows: int) -> str:
    """Write plain Parquet: an id and 20 columns of float32."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {f"x{n}": rng.random(rows, np.float32) for n in range(20)}
    folder.mkdir()
    pq.write_table(pa.table({"id": np.arange(rows), **columns}), folder / "part-0.parquet", row_group_size=20_000)
    return f"file://{folder}"


def run(python: str, package: str, kind: str, url: str, batch_size: int, epochs: int) -> dict[str, Any]:
    """Run the script once in a process of its own; return what it printed."""
    command = [python, "-c", SCRIPT.format(package=package), kind, url, str(batch_size), str(epochs)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)} if package != "petastorm" else None
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Time both, and print rows a second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--petastorm-python", help="a Python with Petastorm 0.13.1 and torch")
    parser.add_argument("--rows", type=int, default=10_000, help="rows for the row reader")
    parser.add_argument("--columns-rows", type=int, default=400_000, help="rows for the batch reader")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    libraries = {"ours": (sys.executable, "parquet_loader.petastorm")}
    if arguments.petastorm_python:
        libraries["petastorm"] = (arguments.petastorm_python, "petastorm")
    else:
        print("Petastorm is not timed: --petastorm-python names no environment of it")
    with tempfile.TemporaryDirectory() as folder:
        cases = {
            "rows": (write_rows(Path(folder) / "rows", arguments.rows), arguments.rows, 64),
            "columns": (write_columns(Path(folder) / "columns", arguments.columns_rows), arguments.columns_rows, 1024),
        }
        for kind, (url, rows, batch_size) in cases.items():
            seconds: dict[str, list[float]] = {name: [] for name in libraries}
            sums = set()
            for _ in range(arguments.runs):
                for name, (python, package) in libraries.items():
                    found = run(python, package, kind, url, batch_size, arguments.epochs)
                    if found["rows"] != rows:
                        raise SystemExit(f"{name} delivered {found['rows']} of {rows} rows")
                    sums.add(found["sum"])
                    seconds[name] += found["seconds"]
            if len(sums) != 1:
                raise SystemExit(f"the libraries delivered different values: {sums}")
            for name, taken in seconds.items():
                median = statistics.median(taken)
                print(
                    f"{kind:8} {name:10} {rows / median:12,.0f} rows/s, median of {len(taken)} epochs "
                    f"({rows / max(taken):,.0f} to {rows / min(taken):,.0f}), batch {batch_size}"
                )


if __name__ == "__main__":
    main()
