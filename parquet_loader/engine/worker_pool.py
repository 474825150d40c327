"""A pool of threads that ask for the most urgent job. One lock guards all state."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Condition, Lock, RLock, Thread, current_thread, get_native_id
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from parquet_loader.common import is_out_of_memory, out_of_memory, prepare_thread, uninterrupted, wait_for_lock
from parquet_loader.engine.ranges import Mark, marking
from parquet_loader.engine.record import EventLog, Sample, SampleLog
from parquet_loader.errors import SystemReadError

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


def queued_s(thread: str) -> float | None:
    """Return the seconds that a thread of this process has waited for a processor (Linux); None if not reported."""
    try:
        with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def yield_to_waker() -> None:
    """Prevent the calling thread from preempting another one when it wakes up (Linux).

    The consumer wakes the workers inside `next`. A worker that has slept would take the consumer's processor for a time
    slice of a few milliseconds, and delay the batch as much. The thread's share of the processors stays the same. Does
    nothing if the process has a scheduling policy of its own, or may not choose one.
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):
            if os.sched_getscheduler(0) == os.SCHED_OTHER:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


class WorkerPool:
    """A fixed number of threads that ask `choose` for jobs.

    Invariants: `choose`, `done` and `failed` are called with `changed` held and do no I/O or computation; `run` is
    called without it. After every job all idle workers are woken, because any result may make any other job possible.

    Life: `start` begins the threads, `close` ends each after its current job. They are daemons, so an interpreter that
    exits without `close` does not wait for them; a finaliser calls `close` before that.

    SIGINT can interrupt the main thread inside `Condition`, which then keeps its lock or releases it twice. So the
    caller's thread takes `lock` itself and waits for a `waker`, never for `changed`.

    Args:
        choose: Returns the most urgent job that may start now, or None to wait for a change.
        count: Number of threads.
        sample: Returns the counters of the epoch, for the record; called like `done`, with the time, when due.
        lanes: Functions that further threads, one each, ask for jobs instead of `choose`.

    Attributes:
        jobs, samples: The record of the epoch; guarded by `lock`.
    """

    def __init__(
        self,
        choose: Callable[[], Job[Any] | None],
        count: int,
        sample: Callable[[float], Sample] | None = None,
        lanes: Sequence[Callable[[], Job[Any] | None]] = (),
    ) -> None:
        self.lock = RLock()
        self.changed = Condition(self.lock)
        self.is_closing = False
        self.broken: BaseException | None = None
        self.times = StageTimes()
        self.jobs = EventLog()
        self.samples = SampleLog[Sample]()
        self._sample = sample
        self._mark: Mark[Any] | None = marking()
        self._wakers: list[tuple[Any, Callable[[], bool]]] = []
        self._running = 0
        self._queued_s: dict[int, float | None] = {}  # of threads that have ended
        self._choosers = [*[choose] * count, *lanes]
        self._pid = os.getpid()
        names = [f"worker-{number}" for number in range(count)] + [f"transform-{n}" for n in range(len(lanes))]
        self._threads = [
            Thread(target=self._work, args=(number,), name=f"parquet_loader-{name}", daemon=True)
            for number, name in enumerate(names)
        ]

    @property
    def queued_s(self) -> float | None:
        """Seconds that the threads have waited for a processor; None if the system does not report them."""
        waited = []
        for number, thread in enumerate(self._threads):
            now = queued_s(str(thread.native_id))
            waited.append(self._queued_s.get(number, now))
        known = [seconds for seconds in waited if seconds is not None]
        return sum(known) if known else None

    def start(self) -> None:
        """Start the threads; signals are deferred, because a half-started thread cannot be joined.

        Raises:
            SystemReadError: The system allows no more threads.
        """
        uninterrupted(self._start)

    def _start(self) -> None:
        for thread in self._threads:
            with self.lock:
                self._running += 1
            try:
                thread.start()
            except BaseException as error:
                with self.lock:
                    self._running -= 1
                if not isinstance(error, RuntimeError):
                    raise
                raise SystemReadError(
                    f"num_threads={len(self._threads)}: {error}; lower num_threads, or allow the process more threads "
                    "(ulimit -u) or memory (ulimit -v)"
                ) from None

    def stop(self) -> None:
        """Let each thread end after its current job."""
        if self._pid == os.getpid():
            with self.lock:
                self.is_closing = True
                self.notify()

    def close(self) -> bool:
        """End the threads; return whether they have ended.

        On a thread of the library this does not wait, and the threads end by themselves: a garbage collection can run a
        finaliser on any thread, and two epochs whose threads waited for each other would hang. A forked child has no
        threads.
        """
        if self._pid != os.getpid():
            return False
        self.stop()
        if current_thread().name.startswith("parquet_loader-"):
            return False
        while (waker := self._waker_while_running()) is not None:
            wait_for_lock(waker)
        # SIGINT can make `join` return early. The threads have left their loop, so this wait is short.
        uninterrupted(self._join)
        # Breaks the reference cycle with the engine, so that the engine is freed at once.
        self._choosers, self._sample = [lambda: None] * len(self._choosers), None
        return True

    def _waker_while_running(self) -> Any:
        with self.lock:
            return self.waker() if self._running else None

    def _join(self) -> None:
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def waker(self, is_enough: Callable[[], bool] = lambda: True) -> Any:
        """Return a lock that can be acquired after the next change after which `is_enough` returns True.

        Call it with `lock` held, and acquire the result without it. `is_enough` is called with `lock` held, on any
        thread.
        """
        waker = Lock()
        waker.acquire()
        self._wakers.append((waker, is_enough))
        return waker

    def notify(self) -> None:
        """Wake the workers that wait, and the callers for whom this change is enough; called with `lock` held."""
        self.changed.notify_all()
        wakers, self._wakers = self._wakers, []
        for waker, is_enough in wakers:
            if is_enough():
                waker.release()
            else:
                self._wakers.append((waker, is_enough))

    def _work(self, number: int) -> None:
        try:
            yield_to_waker()
            prepare_thread()
            self._work_until_closed(number)
        except BaseException as error:  # from `choose`, `done` or `failed`, such as MemoryError; the caller raises it
            with self.lock:
                self.broken = self.broken or error  # first, because a better error may need memory that is not there
                if self.broken is error and is_out_of_memory(error):
                    self.broken = out_of_memory("a step of the engine", error)
        finally:
            try:  # noqa: SIM105 - `suppress` takes memory
                self._queued_s[number] = queued_s(str(get_native_id()))
            except MemoryError:
                pass  # only a figure; `close` waits for what follows
            with self.lock:
                self._running -= 1
                self.notify()

    def _work_until_closed(self, number: int) -> None:
        while True:
            with self.changed:
                job = self._next(number)
            if job is None:
                return
            self._run(job, number)
            del job  # so that an idle worker keeps no memory alive

    def _next(self, worker: int) -> Job[Any] | None:
        while not self.is_closing:
            job = self._choosers[worker]()
            if job is not None:
                return job
            self.changed.wait()
        return None

    def _run(self, job: Job[Any], worker: int) -> None:
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
        with self.changed:
            self.times.cpu_s[job.stage] += cpu_s
            self.times.blocked_s[job.stage] += max(0.0, wall_s - cpu_s)
            self.times.disk_bytes += read_bytes
            self.jobs.add(started, wall_s, cpu_s, _NUMBERS[job.stage], worker)
            if error is None:
                job.done(outcome)
            else:
                job.failed(error)
            if self._sample is not None and started + wall_s >= self.samples.due:
                self.samples.add(self._sample(started + wall_s))
            self.notify()
