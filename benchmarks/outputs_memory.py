"""Measures peak memory, threads and processor time of each framework's batches, each in a fresh process.

    python -m benchmarks.outputs_memory                    # torch, TensorFlow, JAX, Keras and Grain
    python -m benchmarks.outputs_memory --outputs torch to_tf --rounds 5 --out FILE

Columns are those of `benchmarks/outputs.py`, in data sets 2.5 and 3 times as large as `memory_limit`. Memory is the sum
of private and shared anonymous pages, sampled every 10 ms from outside. It is compared with two states of the process:
*imported*, with its framework imported, and *idle*, after a small epoch of the same columns, which includes everything
that the framework allocates and starts for its first batch. The consumer holds one batch at a time. All threads of the
process count, not only Python's; during an epoch they are counted at every tenth batch.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import parquet_loader  # noqa: F401  (before pyarrow: see "Allocator" in docs/tuning.md)

# isort: split
from benchmarks.memory import anonymous_bytes
from benchmarks.outputs import write

LIMIT_BYTES = 256 * 2**20
EPOCHS = 5
FEW_BATCHES = 4
ROWS = {"tabular": 4_000_000, "science": 48_000}
BATCH_SIZE = {"tabular": 4096, "science": 256}
PACKAGES = {
    "torch": "torch",
    "tensorflow": "tensorflow",
    "to_tf": "tensorflow",
    "jax": "jax",
    "keras": "keras",
    "grain": "grain",
}
Begin = Callable[[], Iterator[Any]]


def generate(workload: str, cache: Path) -> Path:
    """Write a data set, and a small one of the same columns, unless they are there."""
    folder = cache / workload
    for name, rows in (("few", FEW_BATCHES * BATCH_SIZE[workload]), ("all", ROWS[workload])):
        if (folder / name).exists():
            continue
        partial = folder / f".{name}.partial"
        partial.mkdir(parents=True)
        write(str(partial), workload, rows)
        partial.rename(folder / name)
    return folder


def beginner(loader: Any, output: str) -> Begin:
    """Return the function that begins an epoch."""
    if output == "to_tf":
        dataset = loader.to_tf()
        return lambda: iter(dataset)
    if output == "grain":
        batches = loader.to_grain()
        return lambda: iter(batches)
    if output == "keras":
        numbered = loader.to_keras()
        return lambda: map(numbered.__getitem__, range(len(numbered)))
    return lambda: iter(loader)


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def reached(what: str) -> None:
    """Tell the sampling process, and wait for it."""
    print(what, flush=True)
    sys.stdin.readline()


def consume(folder: Path, workload: str, output: str) -> None:
    """Run in the measured process: a small epoch, then some of the data set."""
    from parquet_loader import BatchedDataLoader, OutputOptions  # noqa: PLC0415  (before no framework is imported)

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    importlib.import_module(PACKAGES[output])
    form: Any = output if output in ("torch", "tensorflow", "jax") else "numpy"
    options: dict[str, Any] = {"shuffle": True, "drop_last": True, "num_threads": 2, "memory_limit": LIMIT_BYTES}
    options["output_options"] = OutputOptions(format=form)

    reached("imported")
    threads_imported = threads()
    with BatchedDataLoader(str(folder / "few"), BATCH_SIZE[workload], **options) as few:
        for _ in beginner(few, output)():
            pass
    gc.collect()
    threads_idle, files_idle = threads(), len(os.listdir("/proc/self/fd"))
    reached("idle")

    most_threads, after, processor = 0, [], []
    with BatchedDataLoader(str(folder / "all"), BATCH_SIZE[workload], **options) as loader:
        begin = beginner(loader, output)
        for _ in range(EPOCHS):
            start = time.process_time()
            for number, batch in enumerate(begin()):
                if number % 10 == 9:
                    most_threads = max(most_threads, threads())
                del batch
            processor.append(time.process_time() - start)
            after.append(threads())
        rows = loader.stats().rows
        del begin
    gc.collect()
    figures = {
        "rows": rows,
        "threads_imported": threads_imported,
        "threads_idle": threads_idle,
        "threads_in_epoch": most_threads,
        "threads_after_epoch": max(after),
        "threads_closed": threads(),
        "files_left": len(os.listdir("/proc/self/fd")) - files_idle,
        "processor_s": statistics.median(processor[1:]),
    }
    reached(json.dumps(figures))


def measure(folder: Path, workload: str, output: str) -> dict[str, Any]:
    """Run one output in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.outputs_memory", "--consume", str(folder), workload, output]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        ends: list[tuple[str, int, int]] = []  # what was reached, the memory then, and the peak before
        peak = 0
        while len(ends) < 3:
            now = anonymous_bytes(child.pid)
            peak = max(peak, now)
            said = child.stdout.readline()
            if said:
                ends.append((said, anonymous_bytes(child.pid), peak))
                peak = 0
                child.stdin.write("go\n")
                child.stdin.flush()
            elif child.poll() is not None:
                raise SystemExit(f"{workload}, {output}: the measured process failed")
            else:
                time.sleep(0.01)  # the sampling interval
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
    (_, imported, _), (_, idle, _), (said, closed, peak) = ends
    mebibytes = {
        "imported": imported,
        "peak_above_imported": peak - imported,
        "peak_above_idle": peak - idle,
        "closed_above_idle": closed - idle,
    }
    figures: dict[str, Any] = json.loads(said)
    return figures | {f"{name}_mib": round(size / 2**20, 1) for name, size in mebibytes.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", nargs="+", default=list(PACKAGES), choices=list(PACKAGES))
    parser.add_argument("--workloads", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "parquet_loader-bench" / "outputs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--consume", nargs=3, metavar=("FOLDER", "WORKLOAD", "OUTPUT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.consume:
        folder, workload, output = arguments.consume
        consume(Path(folder), workload, output)
        return
    outputs = [output for output in arguments.outputs if importlib.util.find_spec(PACKAGES[output]) is not None]
    results = []
    for workload in arguments.workloads:
        folder = generate(workload, arguments.cache)
        found: dict[str, list[dict[str, Any]]] = {output: [] for output in outputs}
        for _ in range(arguments.rounds):
            for output in outputs:
                found[output].append(measure(folder, workload, output))
        for output, rounds in found.items():
            medians = {name: statistics.median(figures[name] for figures in rounds) for name in rounds[0]}
            results.append({"workload": workload, "output": output, **medians})
            print(json.dumps(results[-1]), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
