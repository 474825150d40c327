"""A pool of threads that ask for the most urgent job; one lock guards all state."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition, Lock, RLock, Thread, current_thread, get_native_id
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from parquet_loader.common import is_out_of_memory, out_of_memory, uninterrupted
from parquet_loader.errors import SystemReadError

Stage: TypeAlias = Literal["read", "permute", "gather", "process"]
STAGES: tuple[Stage, ...] = ("read", "permute", "gather", "process")

T = TypeVar("T")

resource: Any
try:
    resource = importlib.import_module("resource")
    resource = resource if hasattr(resource, "RUSAGE_THREAD") else None
except ImportError:  # not on Windows
    resource = None


@dataclass(slots=True)
class Job(Generic[T]):
    """One piece of work.

    Attributes:
        stage: What it counts as.
        run: The work; called without the lock.
        done: Takes the result, under the lock.
        failed: Takes what `run` raised, under the lock.
    """

    stage: Stage
    run: Callable[[], T]
    done: Callable[[T], None]
    failed: Callable[[BaseException], None]


@dataclass(slots=True)
class StageTimes:
    """What the workers spent; belongs to their lock.

    Attributes:
        cpu_s: Processor seconds by stage.
        blocked_s: Seconds by stage in a job without a processor.
        disk_bytes: Bytes that the jobs had to fetch from a local disk, where the system tells.
    """

    cpu_s: dict[Stage, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    blocked_s: dict[Stage, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    disk_bytes: int = 0


def disk_bytes() -> int:
    """Return the bytes this thread has fetched from disks so far (Linux); 0 if the system does not tell."""
    return 512 * resource.getrusage(resource.RUSAGE_THREAD).ru_inblock if resource is not None else 0


def queued_s(thread: str) -> float | None:
    """Return how long a thread of this process has waited for a processor (Linux); None: the system does not tell."""
    try:
        with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _nothing() -> Job[Any] | None:
    return None


class WorkerPool:
    """A fixed number of threads that ask `choose` for jobs.

    Invariants: `choose`, `done` and `failed` are called with `changed` held and do no work of their own; `run` is
    called without it. After every job all waiters are woken, since any outcome may make any other job possible.

    Life: `start` begins the threads, `close` ends them after the job each is in. They are daemons, so that an
    interpreter that exits without `close` is not held up; a finaliser calls `close` before that.

    Ctrl-C reaches the main thread between any two steps, inside `Condition` too, which then keeps its lock or releases
    it twice. So the caller's thread takes `lock` itself and waits for a `waker`, never for `changed`.

    Args:
        choose: Returns the most urgent job that may start now, or None to wait for a change.
        count: Number of threads.
    """

    def __init__(self, choose: Callable[[], Job[Any] | None], count: int) -> None:
        self.lock = RLock()
        self.changed = Condition(self.lock)
        self.is_closing = False
        self.broken: BaseException | None = None
        self.times = StageTimes()
        self.helper: Thread | None = None
        self._wakers: list[Any] = []
        self._running = 0
        self._queued_s: dict[int, float | None] = {}  # of threads that have ended
        self._choose = choose
        self._pid = os.getpid()
        self._threads = [
            Thread(target=self._work, args=(number,), name=f"parquet_loader-worker-{number}", daemon=True)
            for number in range(count)
        ]

    @property
    def queued_s(self) -> float | None:
        """How long the threads have waited for a processor; None: the system does not tell."""
        told = []
        for number, thread in enumerate(self._threads):
            now = queued_s(str(thread.native_id))
            told.append(self._queued_s.get(number, now))
        known = [seconds for seconds in told if seconds is not None]
        return sum(known) if known else None

    def start(self) -> None:
        """Start the threads; Ctrl-C waits so long, since a thread half started could not be joined.

        Raises:
            SystemReadError: the system allows no more threads.
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

    def close(self) -> bool:
        """End the threads; return whether they have ended.

        They have not if the caller is one of them, or the `helper` that takes the same lock (a finaliser that the
        collector happened to run there): then they end by themselves. In a forked child there are none.
        """
        if self._pid != os.getpid():
            return False
        with self.lock:
            self.is_closing = True
            self.notify()
        if current_thread() in (*self._threads, self.helper):
            return False
        while (waker := self._waker_while_running()) is not None:
            waker.acquire()
        # Interrupted, `join` may take a running thread for an ended one; what is left to wait for takes no time.
        uninterrupted(self._join)
        self._choose = _nothing  # or the engine, which knows its workers, would wait for the garbage collector
        return True

    def _waker_while_running(self) -> Any:
        with self.lock:
            return self.waker() if self._running else None

    def _join(self) -> None:
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def waker(self) -> Any:
        """Return a lock that can be taken after the next change; called with `lock` held, and taken without it."""
        waker = Lock()
        waker.acquire()
        self._wakers.append(waker)
        return waker

    def notify(self) -> None:
        """Say that something has changed; called with `lock` held."""
        self.changed.notify_all()
        wakers, self._wakers = self._wakers, []
        for waker in wakers:
            waker.release()

    def _work(self, number: int) -> None:
        try:
            self._work_until_closed()
        except BaseException as error:  # in the engine's own steps (memory that ran out, say): the caller must know
            with self.lock:
                if is_out_of_memory(error):
                    error = out_of_memory("a step of the engine", error)
                self.broken = self.broken or error
        finally:
            self._queued_s[number] = queued_s(str(get_native_id()))
            with self.lock:
                self._running -= 1
                self.notify()

    def _work_until_closed(self) -> None:
        while True:
            with self.changed:
                job = self._next()
            if job is None:
                return
            self._run(job)
            del job  # an idle worker keeps nothing alive

    def _next(self) -> Job[Any] | None:
        while not self.is_closing:
            job = self._choose()
            if job is not None:
                return job
            self.changed.wait()
        return None

    def _run(self, job: Job[Any]) -> None:
        started, started_cpu, started_disk = time.perf_counter(), time.thread_time(), disk_bytes()
        outcome: Any = None
        error: BaseException | None = None
        try:
            outcome = job.run()
        except BaseException as raised:  # handed to whoever waits for the job
            error = raised
        cpu_s = time.thread_time() - started_cpu
        wall_s = time.perf_counter() - started
        read_bytes = disk_bytes() - started_disk
        with self.changed:
            self.times.cpu_s[job.stage] += cpu_s
            self.times.blocked_s[job.stage] += max(0.0, wall_s - cpu_s)
            self.times.disk_bytes += read_bytes
            if error is None:
                job.done(outcome)
            else:
                job.failed(error)
            self.notify()
