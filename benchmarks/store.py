"""Measures a sample store while it is written and read: rates, waiting, epoch starts, many processes, and kills.

    python -m benchmarks.store sustained --path /dev/shm/bench-store --seconds 60
    python -m benchmarks.store sustained --path .bench-store --seconds 60     # compared with the disk's own limit
    python -m benchmarks.store start --files 10000 --new 10
    python -m benchmarks.store crowd --seconds 120
    python -m benchmarks.store kills --writers 300 --jobs 100 --readers 100 --evictors 100
    python -m benchmarks.store kills --path /mnt/a/try --also /mnt/b/try      # two mounts of one network directory

`sustained`: 16 KiB records of pregenerated random bytes; other processes write, and this process reads. With
``--train-mb-s``, a training step takes as long as its batch would at that rate, as on a GPU: this process sleeps, and
the time that it waits beyond that is the share of waiting. Without it, batches are taken as fast as possible. ``--out``
adds the figures to a file of results, with the load of the machine before and after.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import platform
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.store_crowd import crowd
from parquet_loader import BatchedDataLoader, SampleStore, Scalar, Schema, StoreOptions, Tensor
from parquet_loader.store import Samplers

RECORD_BYTES = 16384
SCHEMA = Schema({"record": Tensor("uint8", (RECORD_BYTES,)), "number": Scalar("int64")})
MB = 1e6


def records(number: int, batch_rows: int) -> Iterator[dict[str, Any]]:
    """Yield pregenerated records as fast as they are taken."""
    block = np.random.default_rng(number).integers(0, 256, (4 * batch_rows, RECORD_BYTES), dtype=np.uint8)
    for first in itertools.count(0, batch_rows):
        place = first // batch_rows % 4 * batch_rows
        yield {"record": block[place : place + batch_rows], "number": np.arange(first, first + batch_rows)}


@dataclass(slots=True)
class Moment:
    """Totals at a moment; `a - b` gives the work between two moments.

    Attributes:
        s: Seconds of the clock.
        written: Bytes that the store has published.
        writing_s, reading_s: Processor time of the processes that write, and of this one.
    """

    s: float
    written: int
    writing_s: float
    reading_s: float

    @classmethod
    def now(cls, store: SampleStore, samplers: Samplers) -> Moment:
        """Look at the clock, the store and the processes."""
        own = resource.getrusage(resource.RUSAGE_SELF)
        writing_s = sum(cpu_seconds(status.pid) for status in samplers.status())
        return cls(time.perf_counter(), store.status().written_bytes, writing_s, own.ru_utime + own.ru_stime)

    def __sub__(self, other: Moment) -> Moment:
        return Moment(
            self.s - other.s,
            self.written - other.written,
            self.writing_s - other.writing_s,
            self.reading_s - other.reading_s,
        )


def cpu_seconds(pid: int | None) -> float:
    """Return the processor time of a live process and its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sustained(
    path: str, seconds: float, writers: int, max_bytes: str, train_mb_s: float, *, durable: bool
) -> dict[str, Any]:
    """Write and read at once for so long, first until the store is full; return rates in MB/s of records."""
    store = SampleStore(path, schema=SCHEMA, max_bytes=max_bytes, options=StoreOptions(durable=durable))
    limit = store.settings.max_bytes or 0
    read_bytes, wait_s, starts = 0, 0.0, list[float]()
    most_bytes = 0
    with (
        store.sample(records, processes=writers, arguments=(512,)) as samplers,
        BatchedDataLoader(store_with_rows(store, limit), 256, shuffle=True, memory_limit="1GiB") as loader,
    ):
        for _ in itertools.islice(loader, 64):  # memory is touched, and the first files are evicted
            pass
        loader.reset()
        began = Moment.now(store, samplers)
        ends = asked = began.s
        ends += seconds
        while asked < ends:
            first = asked
            for batch in loader:
                got = time.perf_counter()
                wait_s += got - asked
                if first:
                    starts.append(got - first)
                    first = 0.0
                read_bytes += batch["record"].numel()
                if train_mb_s:
                    time.sleep(max(0.0, got + batch["record"].numel() / MB / train_mb_s - time.perf_counter()))
                asked = time.perf_counter()
                if asked >= ends:
                    break
            status = store.status()
            most_bytes = max(most_bytes, status.bytes + status.reserved_bytes)
        done = Moment.now(store, samplers) - began
        samplers_said = samplers.stop()
    return {
        "written_mb_s": done.written / done.s / MB,
        "read_mb_s": read_bytes / done.s / MB,
        "wait_share": wait_s / done.s,
        # What a second of a processor gave: tells more than the rates do where other programs had most of them.
        "written_mb_per_cpu_s": done.written / done.writing_s / MB,
        "read_mb_per_cpu_s": read_bytes / done.reading_s / MB,
        "cpus_used": (done.writing_s + done.reading_s) / done.s,
        "train_mb_s": train_mb_s or None,
        "epochs": len(starts),
        "first_batch_s": median(starts),
        "seconds": done.s,
        "evicted_mb": store.status().evicted_bytes / MB,
        "most_bytes": most_bytes,
        "max_bytes": limit,
        "writers_waited_s": sum(s.waited_s for s in samplers_said),
        "restarts": sum(s.starts for s in samplers_said) - writers,
    }


def store_with_rows(store: SampleStore, limit: int) -> SampleStore:
    """Wait until nine tenths of the store are full, so that writers evict from the first moment that is measured."""
    store.wait(rows=int(0.9 * limit / (RECORD_BYTES + 8)), timeout_s=300)
    return store


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


def epoch_starts(path: str, files: int, new: int, rounds: int, filters: bool) -> dict[str, Any]:
    """Time the work of a loader before an epoch's first read, over many files of which a few are new."""
    schema = Schema({"x": Scalar("float32"), "y": Scalar("int64")})
    store = SampleStore(path, schema=schema, options=StoreOptions(durable=False))
    rows = 64

    def publish(count: int) -> None:
        with store.writer() as writer:
            for number in range(count):
                writer.write({"x": np.zeros(rows, np.float32), "y": np.full(rows, number)})
                writer.flush()

    publish(files - new * rounds)
    chosen = pc.field("y") >= 1 if filters else None
    began = time.perf_counter()
    begins: list[float] = []
    cpu: list[float] = []
    with BatchedDataLoader(store, 64, shuffle=True, filters=chosen, window_rows=256) as loader:
        opened = time.perf_counter() - began
        iter(loader)
        for _ in range(rounds):
            loader.reset()
            publish(new)
            began, used = time.perf_counter(), time.thread_time()
            iterator = iter(loader)
            begins.append(time.perf_counter() - began)
            cpu.append(time.thread_time() - used)
            del iterator
        growth = loader.stats().growth
        loader.reset()
    return {
        "files": files,
        "new": new,
        "filters": filters,
        "first_open_s": opened,
        "median_ms": 1e3 * median(begins),
        "least_ms": 1e3 * min(begins),
        "most_ms": 1e3 * max(begins),
        "median_cpu_ms": 1e3 * median(cpu),
        "new_files_seen": growth.new_files if growth else None,
    }


def result(path: str, given: argparse.Namespace) -> dict[str, Any]:
    """Run one of the measurements."""
    if given.what == "crowd":
        return crowd(path, given.seconds, given.written_mb * 10**6)
    if given.what == "start":
        return epoch_starts(path, given.files, given.new, given.rounds, given.filters)
    if given.what == "kills":
        from tests.store.kills import kill_at_random, start_on_mounts  # noqa: PLC0415  (the tests are beside this)

        os.makedirs(os.path.dirname(path), exist_ok=True)
        counts = {name: getattr(given, name) for name in ("writers", "jobs", "readers", "evictors")}
        paths = [path, *([os.path.join(given.also, "store")] if given.also else [])]
        outcome = kill_at_random(Path(path), **counts, seed=3, start=start_on_mounts(paths))
        return counts | {name: getattr(outcome, name) for name in outcome.__slots__}
    in_memory = path.startswith("/dev/shm/")  # noqa: S108  (a memory-backed file system to write to)
    found: dict[str, Any] = {"in_memory": in_memory}
    if not in_memory:
        found["disk_mb_s_before"] = disk_limit(path, min(10.0, given.seconds))
    found |= sustained(path, given.seconds, given.processes, given.max_bytes, given.train_mb_s, durable=not in_memory)
    if not in_memory:
        found["disk_mb_s_after"] = disk_limit(path, min(10.0, given.seconds))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["sustained", "start", "crowd", "kills"], default="start")
    parser.add_argument("--path", help="an empty or new directory; default: a temporary one")
    parser.add_argument("--also", help="the same directory by another mount, which every other process is to use")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--max-bytes", default="4GB")
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--new", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--writers", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--readers", type=int, default=100)
    parser.add_argument("--evictors", type=int, default=100)
    parser.add_argument("--train-mb-s", type=float, default=0.0)
    parser.add_argument("--written-mb", type=int, default=4000)
    parser.add_argument("--filters", action="store_true")
    parser.add_argument("--out", help="a file of results, to which this one is added")
    parser.add_argument("--name", help="of the result there; default: what was measured")
    given = parser.parse_args()
    path = os.path.join(given.path or tempfile.mkdtemp(), "store")
    before = os.getloadavg()[0]
    try:
        found = result(path, given)
    finally:
        shutil.rmtree(path, ignore_errors=True)
    found = {
        "command": f"python -m benchmarks.store {' '.join(sys.argv[1:])}",
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {"pyarrow": pa.__version__, "numpy": np.__version__},
        "load_average": {"before": round(before, 1), "after": round(os.getloadavg()[0], 1)},
        **found,
    }
    print(json.dumps(found, indent=1))
    if given.out:
        results = Path(given.out)
        known = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
        known[given.name or given.what] = found
        results.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    multiprocessing.freeze_support()
    main()
