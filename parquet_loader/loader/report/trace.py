"""The record of an epoch in Chrome's trace event format, which Perfetto also reads. Pure functions."""

from __future__ import annotations

from typing import Any

from parquet_loader.engine import STAGES, events_of
from parquet_loader.loader.epochs.epoch_figures import EpochRecord
from parquet_loader.loader.stats import LoaderStats

_LOOP, _FIRST_WORKER = 1, 2


def trace_of(stats: LoaderStats, record: EpochRecord) -> dict[str, Any]:
    """Return an epoch as a JSON value: a track for the training loop and for each worker, and counters.

    Times are microseconds since the epoch began, or since its first job if it was read ahead.
    """
    jobs, waits = events_of(record.engine.jobs), events_of(record.waits)
    start = min([record.began, *(job.began for job in jobs)])

    def at(seconds: float) -> float:
        return round((seconds - start) * 1e6, 3)

    def named(what: str, thread: int, name: str) -> dict[str, Any]:
        return {"ph": "M", "pid": 1, "tid": thread, "name": what, "args": {"name": name}}

    workers = sorted({job.worker for job in jobs})
    events = [named("process_name", _LOOP, "parquet_loader"), named("thread_name", _LOOP, "training loop")]
    events += [named("thread_name", _FIRST_WORKER + worker, f"worker {worker}") for worker in workers]
    epoch = {"ph": "X", "pid": 1, "tid": _LOOP, "name": f"epoch {stats.epoch}", "cat": "epoch"}
    events.append({**epoch, "ts": at(record.began), "dur": round((record.ended - record.began) * 1e6, 3)})
    for wait in waits:
        one = {"ph": "X", "pid": 1, "tid": _LOOP, "name": "wait for a batch", "cat": "wait"}
        events.append({**one, "ts": at(wait.began), "dur": round(wait.seconds * 1e6, 3)})
    for job in jobs:
        one = {"ph": "X", "pid": 1, "tid": _FIRST_WORKER + job.worker, "name": STAGES[job.kind], "cat": "job"}
        cpu = {"cpu_ms": round(job.cpu_s * 1e3, 3)}
        events.append({**one, "ts": at(job.began), "dur": round(job.seconds * 1e6, 3), "args": cpu})
    for sample in record.engine.samples:
        for name, value in (("held_bytes", sample.held_bytes), ("ready", sample.ready), ("requests", sample.requests)):
            events.append({"ph": "C", "pid": 1, "name": name, "ts": at(sample.at), "args": {name: value}})
    for progress in record.progress:
        events.append({"ph": "C", "pid": 1, "name": "rows", "ts": at(progress.at), "args": {"rows": progress.rows}})
    dropped = max(0, record.engine.jobs_added - len(jobs))
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"dropped_jobs": dropped, **stats.to_dict()}}
