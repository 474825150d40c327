"""Processes that die at a chosen step: before the n-th call that changes the file system, as kill -9 would end them."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

from parquet_loader import SampleStore
from parquet_loader.write.jobs.store_job import StoreJob
from parquet_loader.write.jobs.task import write_partition
from tests.support.job_places import SCHEMA, rows
from tests.support.processes import forkserver

DIED, ALIVE = 9, 0
FILES = 3
ROWS = 60
CHANGES = ("rename", "replace", "unlink", "pwrite", "ftruncate", "fsync")


def dies_at(step: int, changes: tuple[str, ...] = CHANGES) -> None:
    """Let this process end before its `step`-th change, from 1."""
    steps = itertools.count(1)

    def dying(call: Any) -> Any:
        def change(*arguments: Any, **more: Any) -> Any:
            if next(steps) == step:
                os._exit(DIED)
            return call(*arguments, **more)

        return change

    for name in changes:
        setattr(os, name, dying(getattr(os, name)))


def run_job(path: str, step: int, changes: tuple[str, ...]) -> None:
    """A driver that dies at a step of its commit."""
    store = SampleStore(path)
    with StoreJob(store, SCHEMA) as job:
        reports = [
            file
            for number in range(FILES)
            for file in write_partition(job.spec, number, rows(number * ROWS, (number + 1) * ROWS))
        ]
        dies_at(step, changes)
        job.commit(reports)
    os._exit(ALIVE)


def open_store(path: str, step: int, changes: tuple[str, ...]) -> None:
    """A process that dies at a step of opening the store."""
    dies_at(step, changes)
    SampleStore(path)
    os._exit(ALIVE)


def ends(what: Any, path: Path, step: int, changes: tuple[str, ...] = CHANGES) -> int:
    """Run a process until its end, and return whether it died."""
    process = forkserver().Process(target=what, args=(str(path), step, changes))
    process.start()
    process.join()
    code = process.exitcode
    process.close()
    assert code in (DIED, ALIVE)
    return int(code)
