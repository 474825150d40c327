"""Runs many processes on one store for minutes: eight write, two read, one evicts. The limit is a tenth of the bytes.

Each reader checks that it gets every row of its epoch's snapshot once. The parent compares the size of the directory
with the limit, and measures the memory and open files of all processes.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from parquet_loader import SampleStore, Scalar, Schema, StoreOptions, Tensor

RECORD_BYTES = 16384
BATCH_ROWS = 64
SCHEMA = Schema({"record": Tensor("uint8", (RECORD_BYTES,)), "writer": Scalar("int64"), "number": Scalar("int64")})


def crowd(path: str, seconds: float, written_bytes: int) -> dict[str, Any]:
    """Run it; return what was seen.

    Args:
        path: An empty directory.
        seconds: How long writers write.
        written_bytes: How much they write in all, evenly over that time; the limit is a tenth of it.
    """
    limit = written_bytes // 10
    SampleStore(path, schema=SCHEMA, max_bytes=limit, options=StoreOptions(durable=False))
    context = multiprocessing.get_context("spawn")
    ended = context.Event()
    said: dict[str, Any] = {}
    rows_each = written_bytes // RECORD_BYTES // 8
    processes: dict[str, Any] = {}
    for kind, count in {"write": 8, "read": 2, "evict": 1}.items():
        for number in range(count):
            hear, tell = context.Pipe(duplex=False)
            arguments = (kind, path, number, rows_each, seconds, ended, tell)
            process = context.Process(target=_work, args=arguments, name=f"{kind} {number}")
            process.start()
            tell.close()
            said[process.name] = hear
            processes[process.name] = process
    memory: dict[str, list[float]] = defaultdict(list)
    files: dict[str, list[int]] = defaultdict(list)
    most = 0
    tick = threading.Event()
    while any(p.is_alive() for name, p in processes.items() if name.startswith("write")):
        tick.wait(0.1)
        most = max(most, used_bytes(path))
        for name, process in processes.items():
            rss, descriptors = footprint(process.pid)
            if rss:
                memory[name].append(rss / 2**20)
                files[name].append(descriptors)
    ended.set()
    results = {name: pipe.recv() for name, pipe in said.items()}
    for process in processes.values():
        process.join()
    status = SampleStore(path).status()
    errors = [f"{name}: {result['error']}" for name, result in results.items() if "error" in result]
    epochs = [epoch for name, result in results.items() for epoch in result.get("epochs", [])]
    return {
        "limit_bytes": limit,
        "most_bytes": most,
        "limit_kept": most <= limit,
        "written_bytes": status.written_bytes,
        "evicted_bytes": status.evicted_bytes,
        "errors": errors,
        "epochs": len(epochs),
        "epochs_exact": all(rows == different == expected for rows, different, expected in epochs),
        "rows_read": sum(rows for rows, _, _ in epochs),
        "writers_waited_s": sum(result.get("waited_s", 0.0) for result in results.values()),
        "memory_mib": {name: quarters(values) for name, values in memory.items()},
        "open_files": {name: quarters(values) for name, values in files.items()},
    }


def quarters(values: list[Any]) -> list[float]:
    """Return the median of each quarter of the time, and at last the largest: flat, or not."""
    parts = np.array_split(np.array(values), 4)
    return [*(round(median(part.tolist()), 1) for part in parts if len(part)), round(max(values), 1)]


def used_bytes(path: str) -> int:
    """Return the bytes of all published files and files under way."""
    total = 0
    for directory in (path, os.path.join(path, ".store", "unfinished")):
        for entry in os.scandir(directory):
            if entry.name.endswith(".parquet"):
                try:
                    total += entry.stat().st_size
                except FileNotFoundError:
                    continue
    return total


def footprint(pid: int) -> tuple[int, int]:
    """Return resident bytes of memory that no other process shares, and open files; 0 where the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
        return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{pid}/fd"))
    except (OSError, IndexError):
        return 0, 0


def _work(kind: str, path: str, number: int, rows: int, seconds: float, ended: Any, tell: Any) -> None:
    try:
        tell.send(
            {"write": _write, "read": _read, "evict": _evict}[kind](SampleStore(path), number, rows, seconds, ended)
        )
    except BaseException as error:
        tell.send({"error": f"{type(error).__name__}: {error}"})
        raise


def _write(store: SampleStore, number: int, rows: int, seconds: float, ended: Any) -> dict[str, Any]:
    block = np.random.default_rng(number).integers(0, 256, (BATCH_ROWS, RECORD_BYTES), dtype=np.uint8)
    began = time.monotonic()
    with store.writer() as writer:
        for first in range(0, rows, BATCH_ROWS):
            ended.wait(max(0.0, began + seconds * first / rows - time.monotonic()))  # at an even pace
            numbers = np.arange(first, first + BATCH_ROWS)
            writer.write({"record": block, "writer": np.full(BATCH_ROWS, number), "number": numbers})
    return {"waited_s": writer.done.waited_s, "rows": writer.done.rows}


def _read(store: SampleStore, number: int, rows: int, seconds: float, ended: Any) -> dict[str, Any]:
    from parquet_loader import BatchedDataLoader  # noqa: PLC0415  (torch takes a second, which writers need not wait)

    del rows, seconds
    store.wait(rows=1)
    epochs: list[tuple[int, int, int]] = []
    with BatchedDataLoader(store, 64, shuffle=True, seed=number, num_threads=1, memory_limit="256MiB") as loader:
        while not ended.is_set():
            seen = np.concatenate([(b["writer"] * 2**40 + b["number"]).numpy() for b in loader])
            epochs.append((len(seen), len(np.unique(seen)), loader._dataset.rows))
    return {"epochs": epochs}


def _evict(store: SampleStore, number: int, rows: int, seconds: float, ended: Any) -> dict[str, Any]:
    del rows, seconds
    limit = store.settings.max_bytes or 0
    draw = np.random.default_rng(number)
    while not ended.wait(0.2):
        store.evict(int(limit * draw.uniform(0.7, 1.0)))
    return {}
