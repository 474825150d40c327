"""Measures the rate of each format of batches next to that of tensors, interleaved.

    python benchmarks/outputs.py                           # numpy, tables, JAX and TensorFlow, those that are installed
    python benchmarks/outputs.py --formats torch jax --pairs 9

Columns: `tabular`, 40 float32 columns, batches of 4096; `packed`, the same as one group of 40; `science`, rows of
16 KiB, batches of 256. Rates are of epochs after the first.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from parquet_loader import BatchedDataLoader, Group, OutputOptions, Scalar, Schema, Tensor, write_dataset

PACKAGES = {
    "torch": "torch",
    "pandas": "pandas",
    "polars": "polars",
    "jax": "jax",
    "tensorflow": "tensorflow",
    "to_tf": "tensorflow",
}
FORMATS = ("torch", "numpy", "arrow", "pandas", "polars", "jax", "tensorflow", "to_tf")
EPOCHS = 3
NAMES = [f"c{number}" for number in range(40)]
WORKLOADS: dict[str, tuple[int, int]] = {
    "tabular": (1_000_000, 4096),
    "packed": (1_000_000, 4096),
    "science": (12_000, 256),
}


def write(path: str, workload: str, rows: int) -> None:
    rng = np.random.default_rng(0)
    step = 100_000 if workload != "science" else 4_000

    def batches() -> Iterator[dict[str, Any]]:
        for start in range(0, rows, step):
            size = min(step, rows - start)
            if workload == "science":
                yield {"x": rng.random((size, 4096), dtype=np.float32)}
            else:
                yield {name: rng.random(size, dtype=np.float32) for name in NAMES}

    schemas = {
        "tabular": Schema(dict.fromkeys(NAMES, Scalar("float32"))),
        "packed": Schema({"x": Group(NAMES, Scalar("float32"), storage="packed")}),
        "science": Schema({"x": Tensor("float32", (4096,))}),
    }
    write_dataset(batches(), path, schemas[workload])


def batches_of(loader: BatchedDataLoader, form: str) -> Callable[[], Iterator[Any]]:
    if form != "to_tf":
        return lambda: iter(loader)
    dataset = loader.to_tf()
    return lambda: iter(dataset)


def epochs(loader: BatchedDataLoader, begin: Callable[[], Iterator[Any]]) -> tuple[float, float]:
    """Return the seconds and the processor seconds of an epoch that follows others; each reads the next one ahead."""
    wall = processor = 0.0
    for number in range(1 + EPOCHS):
        if number == 1:
            wall, processor = time.perf_counter(), time.process_time()
        for batch in begin():
            del batch
    taken = (time.perf_counter() - wall) / EPOCHS, (time.process_time() - processor) / EPOCHS
    loader.reset()  # so that nothing is read ahead while others are measured
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows")
    arguments = parser.parse_args()
    forms = [f for f in arguments.formats if importlib.util.find_spec(PACKAGES.get(f, "pyarrow")) is not None]
    for workload in arguments.workloads:
        rows, batch_size = WORKLOADS[workload]
        rows = int(rows * arguments.scale)
        with tempfile.TemporaryDirectory() as path:
            write(path, workload, rows)
            loaders = {}
            for form in forms:
                options = OutputOptions(format="numpy" if form == "to_tf" else form)
                loaders[form] = BatchedDataLoader(
                    path, batch_size, shuffle=True, drop_last=True, num_threads=2, output_options=options
                )
            begins = {form: batches_of(loader, form) for form, loader in loaders.items()}
            times: dict[str, list[tuple[float, float]]] = {form: [] for form in forms}
            for _ in range(arguments.pairs):
                for form, begin in begins.items():
                    times[form].append(epochs(loaders[form], begin))
            for loader in loaders.values():
                loader.close()
        medians = {f: [statistics.median(t) for t in zip(*taken, strict=True)] for f, taken in times.items()}
        first = medians[forms[0]]
        for form, (wall, processor) in medians.items():
            figures = {
                "workload": workload,
                "format": form,
                "rows_per_s": round(rows / wall),
                f"rate_to_{forms[0]}": round(first[0] / wall, 2),
                "processor_s": round(processor, 3),
                f"processor_to_{forms[0]}": round(processor / first[1], 2),
            }
            print(json.dumps(figures))


if __name__ == "__main__":
    main()
