"""A growing store while it is written and read: rates, the share of waiting, epoch starts, and kills.

    python benchmarks/store.py sustained --path /dev/shm/bench-store --seconds 60
    python benchmarks/store.py sustained --path .bench-store --seconds 60     # beside the disk's own limit
    python benchmarks/store.py start --files 10000 --new 10
    python benchmarks/store.py kills --writers 300 --readers 100 --evictors 100

Records are 16 KiB of pregenerated random bytes. Writing runs in processes of its own, reading in this one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from parquet_loader import BatchedDataLoader, SampleStore, Scalar, Schema, StoreOptions, Tensor

RECORD_BYTES = 16384
SCHEMA = Schema({"record": Tensor("uint8", (RECORD_BYTES,)), "number": Scalar("int64")})
MB = 1e6


def records(number: int, batch_rows: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield pregenerated records as fast as they are taken."""
    block = np.random.default_rng(number).integers(0, 256, (4 * batch_rows, RECORD_BYTES), dtype=np.uint8)
    first, ends = 0, time.monotonic() + seconds
    while time.monotonic() < ends:
        place = first // batch_rows % 4 * batch_rows
        yield {"record": block[place : place + batch_rows], "number": np.arange(first, first + batch_rows)}
        first += batch_rows


def sustained(path: str, seconds: float, writers: int, max_bytes: str, durable: bool) -> dict[str, Any]:
    """Write and read at once; return rates in MB/s of records."""
    store = SampleStore(path, schema=SCHEMA, max_bytes=max_bytes, options=StoreOptions(durable=durable))
    read_bytes, wait_s, epochs, starts = 0, 0.0, 0, list[float]()
    most_bytes = 0
    with store.sample(records, processes=writers, arguments=(512, seconds)) as samplers:
        store.wait(rows=4096, timeout_s=120)
        began, written = time.perf_counter(), sum(s.bytes for s in samplers.status())
        with BatchedDataLoader(store, 256, shuffle=True, memory_limit="1GiB") as loader:
            while not samplers.is_done:
                asked = time.perf_counter()
                for number, batch in enumerate(loader):
                    if not number:
                        starts.append(time.perf_counter() - asked)
                    read_bytes += batch["record"].numel()
                status = store.status()
                most_bytes = max(most_bytes, status.bytes + status.reserved_bytes)
                wait_s += loader.stats().wait_s
                epochs += 1
        lasted = time.perf_counter() - began
        done = samplers.stop()
    status = store.status()
    return {
        "written_mb_s": (sum(s.bytes for s in done) - written) / lasted / MB,
        "read_mb_s": read_bytes / lasted / MB,
        "wait_share": wait_s / lasted,
        "epochs": epochs,
        "first_batch_s": median(starts) if starts else None,
        "seconds": lasted,
        "evicted_mb": status.evicted_bytes / MB,
        "most_bytes": most_bytes,
        "max_bytes": store.settings.max_bytes,
        "writers_waited_s": sum(s.waited_s for s in done),
        "restarts": sum(s.starts for s in done) - writers,
    }


def disk_limit(path: str, seconds: float) -> float:
    """Return how fast plain sequential writing with fsync of 8 MiB files goes in the same directory, in MB/s."""
    data = os.urandom(8 * 2**20)
    began, written = time.perf_counter(), 0
    os.makedirs(path, exist_ok=True)
    while time.perf_counter() - began < seconds:
        name = os.path.join(path, f"plain-{written % 8}")
        with open(name, "wb") as file:
            file.write(data)
            os.fsync(file.fileno())
        written += 1
    for number in range(8):
        Path(path, f"plain-{number}").unlink(missing_ok=True)
    return written * len(data) / (time.perf_counter() - began) / MB


def epoch_starts(path: str, files: int, new: int, rounds: int) -> dict[str, Any]:
    """Time what a loader does before an epoch's first read, over so many files of which a few are new."""
    schema = Schema({"x": Scalar("float32"), "y": Scalar("int64")})
    store = SampleStore(path, schema=schema, options=StoreOptions(durable=False))

    def publish(count: int) -> None:
        with store.writer() as writer:
            for number in range(count):
                writer.write({"x": np.zeros(4, np.float32), "y": np.full(4, number)})
                writer.flush()

    publish(files - new)
    began = time.perf_counter()
    with BatchedDataLoader(store, 1024, shuffle=True) as loader:
        opened = time.perf_counter() - began
        iterator = iter(loader)
        next(iterator)
        loader.reset()
        looks, begins = [], []
        for _ in range(rounds):
            publish(new)
            began = time.perf_counter()
            held = store.snapshot()
            with held:
                looks.append(time.perf_counter() - began)
            began = time.perf_counter()
            iterator = iter(loader)
            begins.append(time.perf_counter() - began)
            loader.reset()
            del iterator
    return {"files": files, "new": new, "first_open_s": opened, "iter_s": median(begins), "worst_s": max(begins)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["sustained", "start", "kills"], default="start")
    parser.add_argument("--path", help="an empty or new directory; default: a temporary one")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--max-bytes", default="4GB")
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--new", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--writers", type=int, default=300)
    parser.add_argument("--readers", type=int, default=100)
    parser.add_argument("--evictors", type=int, default=100)
    given = parser.parse_args()
    path = os.path.join(given.path or tempfile.mkdtemp(), "store")
    found: dict[str, Any] = {"cpus": os.cpu_count(), "machine": platform.processor(), "pyarrow": pa.__version__}
    try:
        if given.what == "sustained":
            in_memory = path.startswith("/dev/shm/")  # noqa: S108  (a memory-backed file system to write to)
            if not in_memory:
                found["disk_mb_s"] = disk_limit(path, min(10.0, given.seconds))
            found |= sustained(path, given.seconds, given.processes, given.max_bytes, durable=not in_memory)
        elif given.what == "start":
            found |= epoch_starts(path, given.files, given.new, given.rounds)
        else:
            sys.path.insert(0, str(Path(__file__).parent.parent))
            from tests.store.kills import kill_at_random  # noqa: PLC0415  (the tests are beside the benchmarks)

            os.makedirs(os.path.dirname(path), exist_ok=True)
            outcome = kill_at_random(
                Path(path), writers=given.writers, readers=given.readers, evictors=given.evictors, seed=3
            )
            found |= {name: getattr(outcome, name) for name in outcome.__slots__}
    finally:
        shutil.rmtree(path, ignore_errors=True)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    multiprocessing.freeze_support()
    main()
