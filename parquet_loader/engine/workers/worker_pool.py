"""A pool of threads that serves consecutive epochs. One lock guards all state."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Condition, Lock, RLock, Thread, current_thread
from typing import Any, Protocol

from parquet_loader.common import prepare_thread, uninterrupted, wait_for_lock
from parquet_loader.errors import LoaderStateError, SystemReadError

_PREFIX = "parquet_loader-"


class _Client(Protocol):
    """An epoch that is served. Its methods are called with the pool's lock held; what `next_work` returns, without.

    Attributes:
        is_closing: Whether it has been removed, or will never be added; set with the pool's lock held.
    """

    is_closing: bool

    def next_work(self, thread: int) -> Callable[[], None] | None:
        """Return work for a thread; None to wait for a change. It calls `fail` instead of raising an error."""
        ...

    def fail(self, error: BaseException) -> None:
        """Take an error of its work, or of the pool, after which no more work of it begins; notifies the pool."""
        ...


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
    """A fixed number of threads that serve epochs, the one that began first before the others.

    Invariants: a thread serves one client at a time, and `_serving` names it until the work is over and all that it has
    changed is visible under the lock. After a client is removed, no work of it begins.

    Life: the first client that is added starts the threads. They end when no client is left and no thread works for a
    removed one, because such work may add a client; after that the pool takes no client. They are daemons, so an
    interpreter that exits without `remove` does not wait for them; a finaliser calls it before that.

    SIGINT can interrupt the main thread inside `Condition`, which then keeps its lock or releases it twice. So the
    caller's thread takes `lock` itself and waits for a `waker`, never for `changed`.

    Args:
        count: Number of threads that look for any work.
        lanes: Number of further threads, for which clients have work of their own.
    """

    def __init__(self, count: int, lanes: int = 0) -> None:
        self.lock = RLock()
        self.changed = Condition(self.lock)
        self._clients: list[_Client] = []
        self._serving: list[_Client | None] = [None] * (count + lanes)
        self._wakers: list[tuple[Any, Callable[[], bool]]] = []
        self._running = 0
        self._has_begun = False
        self._names = [f"worker-{number}" for number in range(count)] + [f"transform-{n}" for n in range(lanes)]
        self._threads: list[Thread] = []

    @property
    def queued_s(self) -> float | None:
        """Seconds that the threads have waited for a processor; None if the system does not report them."""
        waited = [queued_s(str(thread.native_id)) for thread in tuple(self._threads)]
        known = [seconds for seconds in waited if seconds is not None]
        return sum(known) if known else None

    def add(self, client: _Client) -> None:
        """Serve a client, unless it is closing; signals are deferred: a half-started thread cannot be joined.

        Raises:
            SystemReadError: The system allows no more threads.
            LoaderStateError: The threads, or some of them, have ended.
        """
        uninterrupted(partial(self._add, client))

    def _add(self, client: _Client) -> None:
        with self.lock:
            if client.is_closing:  # another thread has closed it before it began
                return
            # If an error has ended a thread, work that only this thread does would wait for ever.
            has_lost_thread = self._running < len(self._threads)
            if self._has_begun and (self._is_over or has_lost_thread):
                raise LoaderStateError("the threads of the epoch before have ended")
            has_begun, self._has_begun = self._has_begun, True
            self._clients.append(client)
            self.notify()
        if not has_begun:
            self._start()  # a thread may add the next client before the others are started

    def _start(self) -> None:
        for number, name in enumerate(self._names):
            thread = Thread(target=self._work, args=(number,), name=_PREFIX + name, daemon=True)
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
                    f"num_threads={len(self._names)}: {error}; lower num_threads, or allow the process more threads "
                    "(ulimit -u) or memory (ulimit -v)"
                ) from None
            self._threads.append(thread)

    def remove(self, client: _Client) -> None:
        """Begin no more work of a client, and let the threads end if it was the last one; idempotent."""
        with self.lock:
            if client in self._clients:
                self._clients.remove(client)
            self.notify()

    def wait_for_end_of(self, client: _Client) -> bool:
        """Wait until no thread works for a removed client and, if it was the last one, until the threads have ended.

        Returns:
            False, at once, on a thread of the library, or on one that holds the lock; else True.
        """
        # It holds the lock if a garbage collection runs a finaliser of the next epoch inside a method of this one.
        if current_thread().name.startswith(_PREFIX) or self.changed._is_owned():  # type: ignore[attr-defined]
            return False
        while (waker := self._waker_while_running(client)) is not None:
            wait_for_lock(waker)
        with self.lock:
            is_over = self._is_over
        if is_over:
            # SIGINT can make `join` return early. The threads have left their loop, so this wait is short.
            uninterrupted(self._join)
        return True

    def _waker_while_running(self, client: _Client) -> Any:
        with self.lock:
            is_running = client in self._serving or (self._running and self._is_over)
            return self.waker() if is_running else None

    @property
    def _is_over(self) -> bool:
        """Whether no client is left, and no thread works for a removed one."""
        return not self._clients and not any(self._serving)

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()

    def waker(self, is_enough: Callable[[], bool] = lambda: True) -> Any:
        """Return a lock that can be acquired after the next change after which `is_enough` returns True or fails.

        Call it with `lock` held, and acquire the result without it. `is_enough` is called with `lock` held, on any
        thread.
        """
        waker = Lock()
        waker.acquire()
        self._wakers.append((waker, is_enough))
        return waker

    def notify(self) -> None:
        """Wake the threads that wait, and the callers for whom this change is enough; called with `lock` held."""
        self.changed.notify_all()
        wakers, self._wakers = self._wakers, []
        try:
            while wakers:
                _, is_enough = wakers[-1]
                if is_enough():
                    wakers.pop()[0].release()
                else:
                    self._wakers.append(wakers.pop())
        finally:
            for waker, _ in wakers:  # after an error, such as MemoryError: these callers look for themselves
                waker.release()

    def _work(self, thread: int) -> None:
        try:
            yield_to_waker()
            prepare_thread()
            while self._serve(thread):
                pass
        except BaseException as error:  # not of a client, such as MemoryError
            with self.lock:
                for client in tuple(self._clients):
                    client.fail(error)
        finally:
            with self.lock:
                self._serving[thread] = None
                self._running -= 1
                self.notify()

    def _serve(self, thread: int) -> bool:
        """Wait for work, and do it; return False when the pool is over."""
        with self.lock:
            found = self._next(thread)
        if found is None:
            return False
        client, work = found
        try:
            work()
        except BaseException as error:
            with self.lock:
                client.fail(error)
        return True  # the frame is gone when the thread waits, so an idle thread keeps no memory alive

    def _next(self, thread: int) -> tuple[_Client, Callable[[], None]] | None:
        served, self._serving[thread] = self._serving[thread], None
        if served is not None and served not in self._clients:
            self.notify()  # somebody may wait for the end of this work
        del served
        while not self._is_over:
            for client in tuple(self._clients):  # a garbage collection may remove one meanwhile
                work = client.next_work(thread)
                if work is not None:
                    self._serving[thread] = client
                    return client, work
                del client
            self.changed.wait()
        return None
