"""Compares a Petastorm script with the same script on this library, with `BatchedDataLoader`, and with a copy.

    python benchmarks/petastorm.py --petastorm-python PATH/bin/python      writes benchmarks/results/petastorm.json

PATH is an environment with Petastorm 0.13.1 (see tests/interop/make_petastorm.py) and torch. Without it, only this
library is timed, and nothing is written. Each run is a process that reads the data set once to warm up and then
`--epochs` times. The programs take turns, run after run, so that other load affects them alike. Figures are medians
over all epochs. CPU time is that of the whole process; it is more reliable than wall time if other programs use the
machine.

petastorm   the script, with Petastorm
import      the script, with the import changed
loader      `BatchedDataLoader` on the same data set, shuffled
copy        `BatchedDataLoader` on a copy that `copy_dataset` made
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.petastorm import copy_dataset
from parquet_loader.petastorm.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec
from parquet_loader.petastorm.etl.dataset_metadata import write_metadata
from parquet_loader.petastorm.unischema import Unischema, UnischemaField
from parquet_loader.source.unischema.records import SparkType

MEASURE = """
import json, sys, time, warnings
import numpy, pyarrow, torch
warnings.simplefilter("ignore")
url, batch_size, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
{program}
wall, cpu, ids = [], [], []
for epoch in range(epochs + 1):
    start, used, rows, total = time.perf_counter(), time.process_time(), 0, 0.0
    with loader() as batches:
        for batch in batches:
            rows += len(batch["id"])
            total += float(batch["id"].sum())
    wall.append(time.perf_counter() - start)
    cpu.append(time.process_time() - used)
    ids.append([rows, total])
versions = {{m.__name__: m.__version__ for m in (numpy, pyarrow, torch)}}
versions["python"] = sys.version.split()[0]
print(json.dumps({{"ids": ids[1:], "wall_s": wall[1:], "cpu_s": cpu[1:], "versions": versions}}))
"""
ROW_READER = """
from {package} import make_reader
from {package}.pytorch import DataLoader

def loader():
    return DataLoader(make_reader(url, workers_count=4, seed=1), batch_size=batch_size)
"""
BATCH_READER = """
from {package} import make_batch_reader
from {package}.pytorch import BatchedDataLoader

def loader():
    reader = make_batch_reader(url, workers_count=4, seed=1)
    return BatchedDataLoader(reader, batch_size=batch_size, shuffling_queue_capacity=20 * batch_size)
"""
OUR_LOADER = """
import contextlib
from parquet_loader import BatchedDataLoader

kept = BatchedDataLoader(url, batch_size=batch_size, shuffle=True, seed=1)

def loader():
    return contextlib.nullcontext(kept)
"""
SCRIPTS = {"arrays": ROW_READER, "images": ROW_READER, "columns": BATCH_READER}
WHAT = {
    "arrays": "make_reader and DataLoader: an id and 32 x 32 float32 by NdarrayCodec, row groups of 500, batch 64",
    "images": "make_reader and DataLoader: an id and 128 x 128 x 3 uint8 as PNG, row groups of 250, batch 64",
    "columns": "make_batch_reader and BatchedDataLoader (shuffling queue of 20 batches): "
    "plain Parquet, an id and 20 float32, row groups of 20,000, batch 1024",
}


def write_encoded(folder: Path, field: UnischemaField, values: Any, row_group_rows: int) -> str:
    """Write a Petastorm data set: an id, and a field in its encoded form."""
    schema = Unischema("Bench", [UnischemaField("id", np.int64, (), ScalarCodec(SparkType("LongType")), False), field])
    encoded = [bytes(field.codec.encode(field, value)) for value in values]
    folder.mkdir()
    table = pa.table({"id": np.arange(len(encoded)), field.name: pa.array(encoded, pa.binary())})
    pq.write_table(table, folder / "part-0.parquet", row_group_size=row_group_rows, compression="snappy")
    write_metadata(f"file://{folder}", schema)
    return f"file://{folder}"


def write_arrays(folder: Path, rows: int) -> str:
    """Write matrices of noise."""
    rng = np.random.default_rng(0)
    field = UnischemaField("matrix", np.float32, (32, 32), NdarrayCodec(), False)
    return write_encoded(folder, field, (rng.random((32, 32), np.float32) for _ in range(rows)), 500)


def write_images(folder: Path, rows: int) -> str:
    """Write smooth images with a little noise, which PNG makes about half as large."""
    rng = np.random.default_rng(0)
    slope = np.add.outer(np.arange(128), np.arange(128))[..., None] * np.array([1, 2, 3]) // 4
    field = UnischemaField("image", np.uint8, (128, 128, 3), CompressedImageCodec("png"), False)
    images = ((slope + n + rng.integers(0, 8, (128, 128, 3))).astype(np.uint8) for n in range(rows))
    return write_encoded(folder, field, images, 250)


def write_columns(folder: Path, rows: int) -> str:
    """Write plain Parquet: an id and 20 columns of float32."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {f"x{n}": rng.random(rows, np.float32) for n in range(20)}
    folder.mkdir()
    pq.write_table(pa.table({"id": np.arange(rows), **columns}), folder / "part-0.parquet", row_group_size=20_000)
    return f"file://{folder}"


def run(python: str, program: str, url: str, batch_size: int, epochs: int) -> dict[str, Any]:
    """Run a program once in its own process; return its output."""
    command = [python, "-c", MEASURE.format(program=program), url, str(batch_size), str(epochs)]
    environment = dict(os.environ)
    if python == sys.executable:
        environment["PYTHONPATH"] = str(Path(__file__).parent.parent)
    else:
        environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(
    programs: dict[str, tuple[str, str, str]], rows: int, batch_size: int, epochs: int, runs: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run programs in turns; return figures and versions by program.

    Petastorm's readers may end before they begin: the thread that hands out row groups and the one that asks whether
    all are done race each other. An epoch that lacks rows is counted, and left out of the figures; here it is an error.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in programs}
    for _ in range(runs):
        for name, (python, program, url) in programs.items():
            one = run(python, program, url, batch_size, epochs)
            one["is_whole"] = [ids == [rows, rows * (rows - 1) / 2] for ids in one["ids"]]
            if name != "petastorm" and not all(one["is_whole"]):
                raise SystemExit(f"{name} delivered rows and a sum of ids of {one['ids']}")
            found[name].append(one)
    figures = {}
    for name, ones in found.items():
        whole = [is_whole for one in ones for is_whole in one["is_whole"]]
        wall, cpu = (
            [s for one in ones for s, is_whole in zip(one[key], one["is_whole"], strict=True) if is_whole]
            for key in ("wall_s", "cpu_s")
        )
        figures[name] = {
            "rows_per_s": round(rows / statistics.median(wall)),
            "slowest_rows_per_s": round(rows / max(wall)),
            "fastest_rows_per_s": round(rows / min(wall)),
            "cpu_us_per_row": round(statistics.median(cpu) / rows * 1e6, 3),
            "epochs": len(wall),
            "epochs_that_lacked_rows": whole.count(False),
        }
    return figures, {name: ones[0]["versions"] for name, ones in found.items()}


def main() -> None:
    """Time all programs, print rows a second, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--petastorm-python", help="a Python with Petastorm 0.13.1 and torch")
    parser.add_argument("--arrays", type=int, default=20_000, help="rows of the data set of arrays")
    parser.add_argument("--images", type=int, default=2_000, help="rows of the data set of images")
    parser.add_argument("--columns", type=int, default=1_000_000, help="rows of the plain data set")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", default=str(Path(__file__).parent / "results" / "petastorm.json"))
    given = parser.parse_args()
    if given.petastorm_python is None:
        print("Petastorm is not timed: --petastorm-python names no environment of it")
    results: dict[str, Any] = {
        "command": "python benchmarks/petastorm.py --petastorm-python PATH/bin/python",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": {"processor": processor(), "cores": os.cpu_count(), "load_before": round(os.getloadavg()[0], 1)},
        "cases": {},
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        cases = {
            "arrays": (write_arrays(folder / "arrays", given.arrays), given.arrays, 64),
            "images": (write_images(folder / "images", given.images), given.images, 64),
            "columns": (write_columns(folder / "columns", given.columns), given.columns, 1024),
        }
        for kind, (url, rows, batch_size) in cases.items():
            script, ours = SCRIPTS[kind], sys.executable
            programs = {"petastorm": (given.petastorm_python or "", script.format(package="petastorm"), url)}
            programs["import"] = (ours, script.format(package="parquet_loader.petastorm"), url)
            programs["loader"] = (ours, OUR_LOADER, url)
            if kind != "columns":
                copy_dataset(url, folder / f"{kind}-copy")
                programs["copy"] = (ours, OUR_LOADER, f"file://{folder}/{kind}-copy")
            if given.petastorm_python is None:
                del programs["petastorm"]
            figures, versions = compare(programs, rows, batch_size, given.epochs, given.runs)
            results["cases"][kind] = {"what": WHAT[kind], "rows": rows, "figures": figures}
            results["versions"] = {"here": versions["import"], "petastorm": versions.get("petastorm")}
            print(WHAT[kind], flush=True)
            for name, one in figures.items():
                spread = f"{one['slowest_rows_per_s']:,} to {one['fastest_rows_per_s']:,}"
                cpu = f"{one['cpu_us_per_row']} CPU us a row"
                print(f"  {name:10} {one['rows_per_s']:12,} rows/s ({spread}), {cpu}", flush=True)
    results["machine"]["load_after"] = round(os.getloadavg()[0], 1)
    if given.petastorm_python is not None:
        results["versions"]["petastorm"]["petastorm"] = "0.13.1"
        Path(given.out).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def processor() -> str:
    """Return the processor's name."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
