"""Signals: deferred around short critical sections; SIGINT is also noticed in long waits.

Python's handlers run on the main thread, between two bytecodes. If SIGINT arrives just before the main thread blocks on
a lock, or is delivered to another thread, the main thread does not wake until the lock is released. So it waits for
stores and workers in a loop with a timeout, and notices such a SIGINT at most `SIGINT_POLL_S` later.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, TypeVar

from parquet_loader.common.failures import starting_threads

S = TypeVar("S")
T = TypeVar("T")

SIGINT_POLL_S = 1.0
# Signals whose handlers may raise an exception, such as those of job schedulers and of time limits.
_DEFERRED = [
    getattr(signal, name)
    for name in ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGINT")
    if hasattr(signal, name)
]


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL; most real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def uninterrupted(work: Callable[[], object]) -> None:
    """Call `work`, and defer signals that arrive meanwhile until it has returned; for work of milliseconds.

    Only the main thread handles signals, and only handlers in Python can be deferred; otherwise this is a plain call.
    """
    if current_thread() is main_thread():
        for number in _DEFERRED:
            handler = signal.getsignal(number)
            if callable(handler):
                work = partial(_deferring, number, handler, work)
    work()


def _deferring(number: int, handler: Callable[[int, FrameType | None], Any], work: Callable[[], object]) -> None:
    came: list[FrameType | None] = []
    try:
        signal.signal(number, lambda _, frame: came.append(frame))
        work()
    finally:
        try:
            signal.signal(number, handler)
        except BaseException:  # raised by the handler of another signal, which runs before this one is set
            signal.signal(number, handler)
            raise
        if came:
            handler(number, came[-1])


def wait_for_lock(lock: Any) -> None:
    """Acquire a lock, and notice SIGINT while waiting; see above."""
    if current_thread() is not main_thread():
        lock.acquire()
        return
    while not lock.acquire(timeout=SIGINT_POLL_S):
        pass


def result_of(future: Future[T]) -> T:
    """Return a future's result or raise its error, and notice SIGINT while waiting."""
    try:
        while current_thread() is main_thread() and not future.done():
            with suppress(TimeoutError):
                future.exception(SIGINT_POLL_S)
        return future.result()
    finally:
        del future  # breaks a reference cycle: the traceback of its error refers to this frame


def in_order(pool: Executor, work: Callable[[S], T], things: Iterable[S]) -> Iterator[T]:
    """Yield the results as `pool.map` does, and notice SIGINT while waiting.

    Raises:
        SystemReadError: The system starts no more threads.
    """
    futures: list[Future[T]] = []
    try:
        with starting_threads("work in parallel"):
            # An executor does not wait for a thread whose start was interrupted.
            uninterrupted(lambda: futures.extend(pool.submit(work, thing) for thing in things))
        futures.reverse()
        while futures:
            yield result_of(futures.pop())
    finally:
        for future in futures:
            future.cancel()


def in_threads(work: Callable[[S], T], things: Sequence[S], most: int, name: str) -> list[T]:
    """Return the result of `work` for each thing, on at most `most` threads with names that begin with `name`.

    If one fails, those that have not begun are cancelled, and its error is raised when the running ones have ended. If
    no thread can be started, as in functions of `atexit`, this thread does all the work; if only some can be started,
    this is a `SystemReadError`.
    """
    if len(things) < 2 or most < 2:
        return [work(thing) for thing in things]
    with ThreadPoolExecutor(min(most, len(things)), thread_name_prefix=name) as pool:
        try:
            uninterrupted(lambda: pool.submit(int))
        except RuntimeError:
            return [work(thing) for thing in things]
        return list(in_order(pool, work, things))
