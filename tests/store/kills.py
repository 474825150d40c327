"""Processes that write, run jobs, read and evict, and a parent that kills them at random moments and looks after."""

from __future__ import annotations

import os
import random
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow.parquet as pq

from benchmarks.store_crowd import used_bytes
from parquet_loader.common.storage.file_locks import exclusive
from parquet_loader.schema import Scalar, Schema, Tensor
from parquet_loader.store import SampleStore, StoreOptions
from parquet_loader.store.files.file_names import FileName
from parquet_loader.write.jobs.store_job import StoreJob
from parquet_loader.write.jobs.task import write_partition
from tests.support.doomed import Doomed, doomed, said, say
from tests.support.processes import forkserver

SCHEMA = Schema({"x": Tensor("uint8", (512,)), "writer": Scalar("int64"), "i": Scalar("int64")})
OPTIONS = StoreOptions(file_bytes=24_000, row_group_bytes=12_000, roll_s=0.2)
LIMIT_BYTES = 600_000
ROWS = 20
JOB_FILES, JOB_ROWS = 3, 17  # rows of each file, by which files of jobs are known
LIVE = {"write": 4, "job": 2, "read": 2, "evict": 1}
SIGNS = {"write": "acknowledged", "job": "committing", "read": "reading", "evict": "evicting"}
LIFE_S = 0.3  # at most, once at work; half of the readers live for an epoch first

Start: TypeAlias = Callable[[str, str, int, str], Any]


@dataclass(slots=True)
class Outcome:
    """What came of it; `errors` is empty if all was well."""

    errors: list[str] = field(default_factory=list)
    kills: int = 0
    published_rows: int = 0
    acknowledged_rows: int = 0
    epochs: int = 0
    hosts: list[tuple[str, int]] = field(default_factory=list)
    committed_jobs: int = 0
    most_bytes: int = 0


def batch(writer: int, first: int, rows: int = ROWS) -> dict[str, Any]:
    i = np.arange(first, first + rows)
    x = np.random.default_rng((writer, first)).integers(0, 256, (rows, 512), dtype=np.uint8)
    return {"x": x, "writer": np.full(rows, writer), "i": i}


def evictions(path: Path) -> str:
    return str(path.parent / "evictions.log")


def work(kind: str, path: str, number: int, log: str, evicted: str) -> None:
    """What a process does until it is killed; an error ends it, and is told. Evictions are told before they happen."""
    unlink = os.unlink

    def told(name: str, *arguments: Any, **more: Any) -> None:
        if FileName.parse(os.path.basename(name)):
            say(evicted, evicted=os.path.basename(name))
        unlink(name, *arguments, **more)

    os.unlink = told  # type: ignore[assignment]
    try:
        {"write": write, "job": run_jobs, "read": read, "evict": evict}[kind](path, number, log)
    except BaseException:
        say(log, error=traceback.format_exc())
        raise


def write(path: str, number: int, log: str) -> None:
    """Write until killed; say after each flush how many rows are acknowledged, and by which writer."""
    store = SampleStore(path)
    with store.writer() as writer:
        first = 0
        while True:
            writer.write(batch(number, first))
            first += ROWS
            if first % (3 * ROWS) == 0:
                done = writer.flush()
                say(log, acknowledged=done.rows, identity=writer._state.reservation.writer)


def run_jobs(path: str, number: int, log: str) -> None:
    """Run jobs until killed; all files of each appear together."""
    store = SampleStore(path)
    first = 0
    while True:
        with StoreJob(store, SCHEMA) as job:
            reports = []
            for partition in range(JOB_FILES):
                reports += write_partition(job.spec, partition, batch(number, first, JOB_ROWS))
                first += JOB_ROWS
            say(log, committing=True)
            published = job.commit(reports)
        name = FileName.parse(os.path.basename(published.files[0]))
        assert name is not None
        say(log, acknowledged=published.rows, identity=name.writer, jobs=1)


def read(path: str, number: int, log: str) -> None:
    """Read epochs until killed, every row of the snapshot once; take states on the way."""
    from parquet_loader import BatchedDataLoader

    store = SampleStore(path)
    store.wait(rows=1)
    say(log, reading=True)
    with BatchedDataLoader(store, 16, shuffle=True, seed=number, num_threads=1, window_rows=64) as loader:
        while True:
            seen: list[tuple[int, int]] = []
            for count, one in enumerate(loader):
                seen += zip(one["writer"].tolist(), one["i"].tolist(), strict=True)
                if count % 3 == 0:
                    loader.state_dict()
            if not len(set(seen)) == len(seen) == loader._dataset.rows:
                say(log, error=f"{len(seen)} rows, {len(set(seen))} different, of {loader._dataset.rows}")
            say(log, epochs=1, rows=len(seen))


def evict(path: str, number: int, log: str) -> None:
    """Evict until killed."""
    store = SampleStore(path)
    draw = random.Random(number)
    say(log, evicting=True)
    while True:
        store.evict(draw.randrange(LIMIT_BYTES // 4, LIMIT_BYTES))
        store.status()


def starting() -> Any:
    """Return what starts processes."""
    return forkserver()


def start_on_mounts(paths: Sequence[str]) -> Start:
    """Return what starts processes that see the store in turn under each of these paths: mounts of one directory."""

    def start_on_mount(kind: str, path: str, number: int, log: str) -> Any:
        arguments = (kind, paths[number % len(paths)], number, log, evictions(Path(path)))
        process = starting().Process(target=work, args=arguments)
        process.start()
        return process

    return start_on_mount


def kill_at_random(
    path: Path,
    *,
    writers: int,
    jobs: int,
    readers: int,
    evictors: int,
    seed: int,
    start: Start | None = None,
) -> Outcome:
    """Start processes, kill each at a random moment, start the next; look at the store all the while."""
    draw = random.Random(seed)
    start = start or start_on_mounts([str(path)])
    SampleStore(path, schema=SCHEMA, max_bytes=LIMIT_BYTES, options=OPTIONS)
    Path(evictions(path)).touch()
    outcome = Outcome()
    left = {"write": writers, "job": jobs, "read": readers, "evict": evictors}
    acknowledged: dict[str, int] = {}
    began = 0
    with doomed() as running:
        while any(left.values()) or running:
            for kind, live in LIVE.items():
                while left[kind] and sum(r.kind == kind for r in running) < live:
                    left[kind] -= 1
                    began += 1
                    log = path.parent / f"{kind}-{began}.log"
                    log.touch()
                    process = start(kind, str(path), began, str(log))
                    sign = "epochs" if kind == "read" and draw.random() < 0.5 else SIGNS[kind]
                    running.append(Doomed(process, log, sign, kind))
            for one in list(running):
                state = one.step(draw, LIFE_S)
                if state == "lives":
                    continue
                running.remove(one)
                if state == "killed":
                    outcome.kills += 1
                    hear(one.log, outcome, acknowledged)
                else:
                    outcome.errors.append(f"{one.log.stem} ended by itself: {one.log.read_text()[-2000:]}")
            look(path, outcome)
    finish(path, outcome, acknowledged)
    return outcome


def hear(log: Path, outcome: Outcome, acknowledged: dict[str, int]) -> None:
    for line in said(log):
        outcome.epochs += line.get("epochs", 0)
        outcome.committed_jobs += line.get("jobs", 0)
        if "host" in line:
            outcome.hosts.append((line["host"], line["pid"]))
        if "error" in line:
            outcome.errors.append(f"{log.stem}: {line['error']}")
        if "acknowledged" in line:
            acknowledged[line["identity"]] = line["acknowledged"]
    log.unlink()


def look(path: Path, outcome: Outcome) -> None:
    """Every file that is visible is whole, and all files together are within the limit."""
    total = used_bytes(str(path))
    if total > LIMIT_BYTES:  # perhaps counted while a file went and another came
        with exclusive(str(store_of(path, "ledger"))):
            total = used_bytes(str(path))
    outcome.most_bytes = max(outcome.most_bytes, total)
    if total > LIMIT_BYTES:
        outcome.errors.append(f"{total} bytes, limit {LIMIT_BYTES}")
    newest = sorted(n for n in os.listdir(path) if n.endswith(".parquet"))[-1:]
    for name in newest:
        try:
            table = pq.read_table(path / name)
        except FileNotFoundError:
            continue
        check_table(table, name, outcome)


def store_of(path: Path, place: str) -> Path:
    return path / ".store" / place


def check_table(table: Any, name: str, outcome: Outcome) -> None:
    writers, i = table["writer"].to_pylist(), table["i"].to_pylist()
    if len(set(writers)) != 1 or i != list(range(i[0], i[0] + len(i))):
        outcome.errors.append(f"{name}: rows {i[:3]}... of writers {set(writers)}")


def finish(path: Path, outcome: Outcome, acknowledged: dict[str, int]) -> None:
    """After the next open nothing is left of the dead, and what was acknowledged was published without a gap."""
    store = SampleStore(path)
    left = [
        name for place in ("writers", "readers", "unfinished", "commits") for name in os.listdir(store_of(path, place))
    ]
    left += [name for place in ("", "snapshots") for name in os.listdir(store_of(path, place)) if name.endswith(".tmp")]
    if left:
        outcome.errors.append(f"left behind: {left}")
    status = store.status()
    files = sorted(n for n in os.listdir(path) if n.endswith(".parquet"))
    if (status.files, status.bytes) != (len(files), sum((path / n).stat().st_size for n in files)):
        outcome.errors.append(f"the account is wrong: {status}")
    for name in files:
        check_table(pq.read_table(path / name), name, outcome)
    evicted = {line["evicted"] for line in said(evictions(path))}
    rows, of_jobs = Counter[str](), Counter[str]()
    for parsed in map(FileName.parse, {*files, *evicted}):
        assert parsed is not None
        rows[parsed.writer] += parsed.rows
        of_jobs[parsed.writer] += parsed.rows == JOB_ROWS
    parts = {identity: count for identity, count in of_jobs.items() if count not in (0, JOB_FILES)}
    if parts:
        outcome.errors.append(f"files of jobs of which a part appeared, of {JOB_FILES}: {parts}")
    for identity, count in acknowledged.items():
        if rows[identity] < count:
            outcome.errors.append(f"writer {identity}: {count} rows acknowledged, {rows[identity]} there or evicted")
    outcome.acknowledged_rows = sum(acknowledged.values())
    outcome.published_rows = status.rows
