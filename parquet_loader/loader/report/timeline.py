"""The record of an epoch as intervals of time with rates and levels. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from parquet_loader.engine import STAGES, Sample
from parquet_loader.loader.epochs.epoch_figures import EpochRecord

# The most intervals of a chart; more would be too narrow to see.
MOST_INTERVALS = 160

T = TypeVar("T")


class Interval(NamedTuple):
    """The workers' activity from `begin` to `end`, in seconds since the epoch began.

    Attributes:
        begin, end: The interval.
        cpu: Processor seconds per second, by stage in the order of `STAGES`.
        blocked: Seconds per second that workers were in a job without a processor.
        held_bytes: The most bytes held at its samples.
        ready: Windows or batches ready at its end.
        bytes_per_s: Stored bytes of column chunks read per second.
        requests_per_s, fetched_per_s: Remote requests and their bytes per second.
    """

    begin: float
    end: float
    cpu: tuple[float, ...]
    blocked: float
    held_bytes: int
    ready: int
    bytes_per_s: float
    requests_per_s: float
    fetched_per_s: float


class Delivery(NamedTuple):
    """The training loop's rows per second from `begin` to `end`, and the share of this time that it waited."""

    begin: float
    end: float
    rows_per_s: float
    wait_share: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """An epoch in intervals.

    Attributes:
        seconds: Its length.
        work: The workers' side.
        deliveries: The training loop's side.
    """

    seconds: float
    work: tuple[Interval, ...]
    deliveries: tuple[Delivery, ...]


def timeline_of(record: EpochRecord, num_threads: int) -> Timeline:
    """Return an epoch's record in intervals.

    A job counts when it ends, so work that exceeds the time of `num_threads` workers in an interval is moved to earlier
    intervals. Jobs that ran before the epoch began, because it was read ahead, are left out.
    """
    seconds = max(record.ended - record.began, 1e-9)
    return Timeline(seconds, tuple(_work(record, num_threads)), tuple(_deliveries(record, seconds)))


def _groups(samples: Sequence[T]) -> list[Sequence[T]]:
    """Return consecutive samples in at most `MOST_INTERVALS` groups."""
    size = -(-len(samples) // MOST_INTERVALS) or 1
    return [samples[first : first + size] for first in range(0, len(samples), size)]


def _work(record: EpochRecord, num_threads: int) -> list[Interval]:
    samples = record.engine.samples
    earlier = [sample for sample in samples if sample.at <= record.began]
    nothing = (0.0,) * len(STAGES)
    before = earlier[-1] if earlier else Sample(record.began, nothing, nothing, 0, 0, 0, 0, 0)
    before, found = before._replace(at=record.began), list[Interval]()
    for group in _groups([sample for sample in samples if sample.at > record.began]):
        after = group[-1]
        spent = max(after.at - before.at, 1e-6)
        found.append(
            Interval(
                before.at - record.began,
                after.at - record.began,
                tuple((late - early) / spent for early, late in zip(before.cpu_s, after.cpu_s, strict=True)),
                (sum(after.blocked_s) - sum(before.blocked_s)) / spent,
                max(sample.held_bytes for sample in group),
                after.ready,
                (after.bytes_read - before.bytes_read) / spent,
                (after.requests - before.requests) / spent,
                (after.fetched_bytes - before.fetched_bytes) / spent,
            )
        )
        before = after
    return _fitted(found, num_threads)


def _fitted(intervals: list[Interval], num_threads: int) -> list[Interval]:
    """Return the intervals; work that exceeds the workers' time in one is moved to earlier ones."""
    found, moved = list[Interval](), (0.0,) * (len(STAGES) + 1)
    for one in reversed(intervals):
        spent = max(one.end - one.begin, 1e-6)
        worked = [rate * spent + more for rate, more in zip((*one.cpu, one.blocked), moved, strict=True)]
        share = min(1.0, num_threads * spent / max(sum(worked), 1e-12))
        moved = tuple(seconds * (1 - share) for seconds in worked)
        rates = tuple(seconds * share / spent for seconds in worked)
        found.append(one._replace(cpu=rates[:-1], blocked=rates[-1]))
    return found[::-1]


def _deliveries(record: EpochRecord, seconds: float) -> list[Delivery]:
    begin, rows, waited, found = 0.0, 0, 0.0, list[Delivery]()
    for group in _groups(record.progress):
        after = group[-1]
        end = min(after.at - record.began, seconds)
        spent = max(end - begin, 1e-6)
        share = min(1.0, max(0.0, (after.wait_s - waited) / spent))
        found.append(Delivery(begin, end, (after.rows - rows) / spent, share))
        begin, rows, waited = end, after.rows, after.wait_s
    return found
