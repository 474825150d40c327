"""Measures the rate of each format of batches next to that of tensors, interleaved.

    python benchmarks/outputs.py                           # numpy, tables, JAX and TensorFlow, those that are installed
    python benchmarks/outputs.py --formats torch jax --pairs 9

Columns: `tabular`, 40 float32 columns, batches of 4096; `packed`, the same as one group of 40; `science`, rows of
16 KiB, batches of 256. Rates are of epochs after the first.

`to_tf_compiled` takes the batches of `to_tf` in a loop inside `tf.function`. `tf_memory` and `jax_memory` read nothing:
`tf.data` and the loader's output for JAX cut as many batches of the same shapes from arrays in memory. That is what the
framework itself takes.
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
from parquet_loader.window import Window

PACKAGES = {
    "torch": "torch",
    "pandas": "pandas",
    "polars": "polars",
    "jax": "jax",
    "tensorflow": "tensorflow",
    "to_tf": "tensorflow",
    "to_tf_compiled": "tensorflow",
    "tf_memory": "tensorflow",
    "jax_memory": "jax",
}
FORMATS = (
    *("torch", "numpy", "arrow", "pandas", "polars"),
    *("jax", "jax_memory", "tensorflow", "to_tf", "to_tf_compiled", "tf_memory"),
)
LOADED = ("torch", "numpy", "arrow", "pandas", "polars", "jax", "tensorflow")
EPOCHS = 3
WINDOW_BYTES = 1 << 26
ALIGNMENT = 64
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
    if form in LOADED:
        return lambda: iter(loader)
    if form == "jax_memory":
        window = window_of(loader)
        return lambda: jax_batches(window, loader.batch_size, len(loader))
    dataset = tf_batches(loader) if form == "tf_memory" else loader.to_tf()
    if form != "to_tf_compiled":
        return lambda: iter(dataset)

    import tensorflow as tf  # noqa: PLC0415  (only for this format)

    def take_all(iterator: Any) -> None:
        for _ in iterator:
            pass

    compiled = tf.function(take_all)

    def begin() -> Iterator[Any]:
        compiled(iter(dataset))
        return iter(())

    return begin


def window_of(loader: BatchedDataLoader) -> dict[str, np.ndarray[Any, Any]]:
    """Return arrays ``[batches * batch size, ...]`` for several batches, at addresses that frameworks share."""
    batch = next(iter(loader))
    loader.reset()
    batches = WINDOW_BYTES // sum(array.nbytes for array in batch.values())
    found = {}
    for name, array in batch.items():
        memory = np.zeros(batches * array.nbytes + ALIGNMENT, np.uint8)
        start = -memory.__array_interface__["data"][0] % ALIGNMENT
        found[name] = memory[start : start + batches * array.nbytes].view(array.dtype).reshape(-1, *array.shape[1:])
    return found


def tf_batches(loader: BatchedDataLoader) -> Any:
    import tensorflow as tf  # noqa: PLC0415  (only for this format)

    size = loader.batch_size
    window = {name: array.reshape(-1, size, *array.shape[1:]) for name, array in window_of(loader).items()}
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False
    return tf.data.Dataset.from_tensor_slices(window).repeat().take(len(loader)).with_options(options)


def jax_batches(window: dict[str, np.ndarray[Any, Any]], size: int, batches: int) -> Iterator[Any]:
    from parquet_loader.collate.jax_output import JaxOutput  # noqa: PLC0415  (imports JAX)

    output = JaxOutput(None, None)
    rows = len(next(iter(window.values())))
    while batches > 0:
        taken = min(rows, batches * size)
        yield from output.from_window(
            Window(taken, {name: array[:taken] for name, array in window.items()}, {}), size, None
        )
        batches -= rows // size


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
                options = OutputOptions(format=form if form in LOADED else "numpy")
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
