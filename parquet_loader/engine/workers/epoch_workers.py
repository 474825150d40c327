"""The jobs of one epoch: chosen, run by the threads of a `WorkerPool`, and recorded."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Condition, RLock
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from parquet_loader.common import is_out_of_memory, out_of_memory
from parquet_loader.engine.workers.nvtx_ranges import Mark, marking
from parquet_loader.engine.workers.record import EventLog, Sample, SampleLog
from parquet_loader.engine.workers.worker_pool import WorkerPool

Stage: TypeAlias = Literal["read", "permute", "gather", "process"]
STAGES: tuple[Stage, ...] = ("read", "permute", "gather", "process")
_NUMBERS = {stage: number for number, stage in enumerate(STAGES)}

T = TypeVar("T")

resource: Any
try:
    resource = importlib.import_module("resource")
    resource = resource if hasattr(resource, "RUSAGE_THREAD") else None
except ImportError:  # not on Windows
    resource = None


@dataclass(slots=True)
class Job(Generic[T]):
    """One unit of work.

    Attributes:
        stage: The stage to which its time is counted.
        run: Does the work; called without the lock.
        done: Called with the result, with the lock held.
        failed: Called with the error of `run`, with the lock held.
        elsewhere_s: Returns the processor seconds that `run` took in another process.
    """

    stage: Stage
    run: Callable[[], T]
    done: Callable[[T], None]
    failed: Callable[[BaseException], None]
    elsewhere_s: Callable[[], float] = float


@dataclass(slots=True)
class StageTimes:
    """Time that the workers spent. Guarded by the pool's lock.

    Attributes:
        cpu_s: Processor seconds by stage.
        blocked_s: Seconds by stage that jobs spent without a processor.
        disk_bytes: Bytes that the jobs read from a local disk, if the system reports them.
    """

    cpu_s: dict[Stage, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    blocked_s: dict[Stage, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    disk_bytes: int = 0


def disk_bytes() -> int:
    """Return the bytes that this thread has read from disks so far (Linux); 0 if the system does not report them."""
    return 512 * resource.getrusage(resource.RUSAGE_THREAD).ru_inblock if resource is not None else 0


class EpochWorkers:
    """The threads of a `WorkerPool`, as one epoch uses them.

    Invariants: `choose`, `done` and `failed` are called with `lock` held and do no I/O or computation; `run` is called
    without it. After every job all idle threads are woken, because any result may make any other job possible.

    Args:
        choose: Returns the most urgent job that may start now, or None to wait for a change.
        count: Number of threads.
        sample: Returns the counters of the epoch, for the record; called like `done`, with the time, when due.
        lanes: Functions that further threads, one each, ask for jobs instead of `choose`.

    Attributes:
        times, jobs, samples: The record of the epoch; guarded by `lock`.
        broken: An error of `choose`, `done` or `failed`, such as MemoryError; the epoch cannot go on after it.
        is_closing: Whether no more jobs of the epoch begin.
    """

    def __init__(
        self,
        choose: Callable[[], Job[Any] | None],
        count: int,
        sample: Callable[[float], Sample] | None = None,
        lanes: Sequence[Callable[[], Job[Any] | None]] = (),
    ) -> None:
        self.is_closing = False
        self.broken: BaseException | None = None
        self.times = StageTimes()
        self.jobs = EventLog()
        self.samples = SampleLog[Sample]()
        self._sample = sample
        self._mark: Mark[Any] | None = marking()
        self._choosers = [*[choose] * count, *lanes]
        self._pool = WorkerPool(count, len(lanes))
        self._queued_before: float | None = 0.0
        self._queued_s: float | None = None  # set when the epoch ends
        self._pid = os.getpid()

    @property
    def lock(self) -> RLock:
        """The pool's lock, which guards all state of the epoch."""
        return self._pool.lock

    @property
    def changed(self) -> Condition:
        """Notified after each change; not for the caller's thread, see `WorkerPool`."""
        return self._pool.changed

    def waker(self, is_enough: Callable[[], bool] = lambda: True) -> Any:
        """See `WorkerPool.waker`."""
        return self._pool.waker(is_enough)

    def notify(self) -> None:
        """See `WorkerPool.notify`."""
        self._pool.notify()

    def wake(self) -> None:
        """Let idle threads look for jobs; called without `lock`."""
        with self.lock:
            self.notify()

    @property
    def queued_s(self) -> float | None:
        """Seconds that the threads have waited for a processor; None if the system does not report them."""
        if self.is_closing:
            return self._queued_s
        now = self._pool.queued_s
        return None if now is None or self._queued_before is None else now - self._queued_before

    def share(self, before: EpochWorkers) -> None:
        """Use the threads of the epoch before, which has as many; call this before `start`."""
        self._pool = before._pool
        self._queued_before = self._pool.queued_s

    def start(self) -> None:
        """Start the threads, or let those of the epoch before look for jobs of this one too.

        Raises:
            SystemReadError: The system allows no more threads.
            LoaderStateError: The threads of the epoch before have ended.
        """
        self._pool.add(self)

    def stop(self) -> None:
        """Begin no more jobs."""
        if self._pid == os.getpid():
            if not self.is_closing:
                with suppress(Exception):  # only a figure; `MemoryError` must not keep the epoch open
                    self._queued_s = self.queued_s
            with self.lock:
                self.is_closing = True
                self._pool.remove(self)

    def close(self) -> bool:
        """Wait until no job runs, and end the threads if no other epoch uses them; return whether no job runs.

        On a thread of the library, or one that holds `lock`, this does not wait, and jobs end by themselves: a garbage
        collection can run a finaliser on any thread, and two epochs that waited for each other's jobs would hang. A
        forked child has no threads.
        """
        if self._pid != os.getpid():
            return False
        self.stop()
        if not self._pool.wait_for_end_of(self):
            return False
        # Breaks the reference cycle with the engine, so that the engine is freed at once.
        self._choosers, self._sample = [lambda: None] * len(self._choosers), None
        return True

    def next_work(self, thread: int) -> Callable[[], None] | None:
        """Return the most urgent job that may start now, for a thread of the pool; called with `lock` held."""
        if self.broken is not None:
            return None
        try:
            job = self._choosers[thread]()
        except BaseException as error:
            self.fail(error)
            return None
        return None if job is None else partial(self._run, job, thread)

    def fail(self, error: BaseException) -> None:
        """Let the caller raise an error; called with `lock` held."""
        self.broken = self.broken or error  # first, because a better error may need memory that is not there
        if self.broken is error and is_out_of_memory(error):
            self.broken = out_of_memory("a step of the engine", error)
        self.notify()

    def _run(self, job: Job[Any], thread: int) -> None:
        started, started_cpu, started_disk = time.perf_counter(), time.thread_time(), disk_bytes()
        outcome: Any = None
        error: BaseException | None = None
        try:
            outcome = job.run() if self._mark is None else self._mark(job.stage, job.run)
        except BaseException as raised:  # passed to `failed`
            error = raised
        cpu_s = time.thread_time() - started_cpu + job.elsewhere_s()
        wall_s = time.perf_counter() - started
        read_bytes = disk_bytes() - started_disk
        with self.lock:
            self.times.cpu_s[job.stage] += cpu_s
            self.times.blocked_s[job.stage] += max(0.0, wall_s - cpu_s)
            self.times.disk_bytes += read_bytes
            self.jobs.add(started, wall_s, cpu_s, _NUMBERS[job.stage], thread)
            if error is None:
                job.done(outcome)
            else:
                job.failed(error)
            if self._sample is not None and started + wall_s >= self.samples.due:
                self.samples.add(self._sample(started + wall_s))
            self.notify()
