"""A bounded record of an epoch for reports and traces: jobs, waits, and samples of counters. Always on.

To record a job takes well under a microsecond. Only the latest `MOST_EVENTS` jobs are kept. Samples cover the whole
epoch: when there are too many, every second one is dropped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

MOST_EVENTS = 16_384
MOST_SAMPLES = 512
# Seconds between the first samples.
SAMPLED_EVERY_S = 0.01

# The fields of `Event`.
_EVENT = struct.Struct("<dffBB")


class Event(NamedTuple):
    """A job of a worker, or a wait of the consumer.

    Attributes:
        began: Seconds of `time.perf_counter`.
        seconds, cpu_s: Wall time and processor time.
        kind: Index in `STAGES`.
        worker: Number of the thread.
    """

    began: float
    seconds: float
    cpu_s: float
    kind: int
    worker: int


class Sample(NamedTuple):
    """Counters of the engine at one time.

    Attributes:
        at: Seconds of `time.perf_counter`.
        cpu_s: Processor seconds so far, by stage in the order of `STAGES`.
        blocked_s: Seconds without a processor so far, by stage in the order of `STAGES`.
        held_bytes: Bytes held now.
        ready: Windows or batches that are ready for the consumer.
        bytes_read: Stored bytes of the column chunks read so far.
        requests: Remote requests so far.
        fetched_bytes: Bytes that remote requests brought so far.
    """

    at: float
    cpu_s: tuple[float, ...]
    blocked_s: tuple[float, ...]
    held_bytes: int
    ready: int
    bytes_read: int
    requests: int
    fetched_bytes: int


class Progress(NamedTuple):
    """The consumer's progress at one time.

    Attributes:
        at: Seconds of `time.perf_counter`.
        rows, batches: Rows and batches delivered so far.
        wait_s: Seconds that the consumer has waited so far.
    """

    at: float
    rows: int
    batches: int
    wait_s: float


T = TypeVar("T", Sample, Progress)


class EventLog:
    """The latest events. Guarded by the lock of its owner, except that `packed` may be called without it.

    A list of packed events, because a list can be copied while another thread changes it. On free-threaded Python 3.13,
    the copy of a `bytearray` would hold freed memory.
    """

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self.added = 0

    def add(self, began: float, seconds: float, cpu_s: float, kind: int, worker: int) -> None:
        """Add an event; drop the oldest if there are too many."""
        self.added += 1
        self._events.append(_EVENT.pack(began, seconds, cpu_s, kind, worker & 255))
        self._drop_oldest()

    def extend(self, packed: bytes) -> None:
        """Add the events of `packed` without counting them; drop the oldest if there are too many."""
        self._events += [packed[at : at + _EVENT.size] for at in range(0, len(packed), _EVENT.size)]
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        if len(self._events) >= 2 * MOST_EVENTS:
            del self._events[:-MOST_EVENTS]

    def packed(self) -> bytes:
        """Return the events in their order, for `events_of`."""
        return b"".join(self._events[-MOST_EVENTS:])

    def take(self) -> bytes:
        """Return the events, as `packed` does, and forget them."""
        packed = self.packed()
        self._events = []
        return packed


def events_of(packed: bytes) -> list[Event]:
    """Return the events of `EventLog.packed`."""
    return [Event(*values) for values in _EVENT.iter_unpack(packed)]


class SampleLog(Generic[T]):
    """Samples of the whole epoch, evenly spaced in time. Guarded by the lock of its owner.

    Attributes:
        due: When the next sample is due, in seconds of `time.perf_counter`.
    """

    def __init__(self) -> None:
        self.due = 0.0
        self._every_s = SAMPLED_EVERY_S
        self._samples: list[T] = []

    def add(self, sample: T) -> None:
        """Add a sample that is due."""
        if len(self._samples) >= MOST_SAMPLES:
            del self._samples[::2]
            self._every_s *= 2
        self._samples.append(sample)
        self.due = sample[0] + self._every_s

    def extend(self, samples: Iterable[T]) -> None:
        """Add the samples that are due, in their order."""
        for sample in samples:
            if sample[0] >= self.due:
                self.add(sample)

    def copy(self) -> list[T]:
        """Return the samples."""
        return list(self._samples)

    def take(self) -> list[T]:
        """Return the samples, and forget them."""
        samples, self._samples = self._samples, []
        return samples


class EngineRecord(NamedTuple):
    """What an engine recorded; plain values that can be sent between processes.

    Attributes:
        jobs: The latest jobs, packed; `events_of` unpacks them.
        samples: The samples, in order of time.
        jobs_added: Number of jobs that ran, including those dropped from `jobs`.
    """

    jobs: bytes = b""
    samples: tuple[Sample, ...] = ()
    jobs_added: int = 0


class JoinedRecord:
    """Joins the records that an engine in another process sends one after another. Used by one thread at a time."""

    def __init__(self) -> None:
        self._jobs = EventLog()
        self._samples = SampleLog[Sample]()

    def add(self, record: EngineRecord) -> None:
        """Add the next record."""
        self._samples.extend(record.samples)
        self._jobs.extend(record.jobs)
        self._jobs.added = record.jobs_added

    def joined(self) -> EngineRecord:
        """Return all records as one."""
        return EngineRecord(self._jobs.packed(), tuple(self._samples.copy()), self._jobs.added)
