"""Threads serve consecutive epochs, and end whatever happens to them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from parquet_loader.engine.workers import worker_pool
from parquet_loader.engine.workers.epoch_workers import EpochWorkers, Job
from parquet_loader.engine.workers.worker_pool import WorkerPool
from parquet_loader.errors import LoaderStateError

SECONDS = 60


class Epoch:
    """An epoch whose jobs the test gives, in their order, to any thread that asks.

    Attributes:
        done: The results of jobs, in the order in which these have ended.
    """

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self.done: list[Any] = []
        self._given: list[Callable[[], Any]] = []
        self.workers = EpochWorkers(self._choose, threads)

    def _choose(self) -> Job[Any] | None:
        return Job("read", self._given.pop(0), self.done.append, self.done.append) if self._given else None

    def give(self, *runs: Callable[[], Any]) -> None:
        with self.workers.lock:
            self._given += runs
            self.workers.notify()

    def wait_for(self, count: int) -> None:
        with self.workers.changed:
            assert self.workers.changed.wait_for(lambda: len(self.done) >= count, SECONDS)


def following(before: Epoch) -> Epoch:
    after = Epoch(before.threads)
    after.workers.share(before.workers)
    after.workers.start()
    return after


def started(threads: int = 1) -> Epoch:
    epoch = Epoch(threads)
    epoch.workers.start()
    return epoch


def waiting(runs: threading.Event, go_on: threading.Event) -> None:
    runs.set()
    assert go_on.wait(SECONDS)


def test_threads_without_memory_for_their_figures_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_memory(thread: str) -> float | None:
        raise MemoryError(thread)

    monkeypatch.setattr(worker_pool, "queued_s", without_memory)
    epoch = started(2)
    assert epoch.workers.close()
    assert epoch.workers.queued_s is None


def test_a_waker_is_released_by_the_first_change_that_is_enough() -> None:
    pool, is_ready = WorkerPool(0), False
    with pool.lock:
        of_any, of_one = pool.waker(), pool.waker(lambda: is_ready)
        pool.notify()
        assert of_any.acquire(blocking=False)
        assert not of_one.acquire(blocking=False)
        is_ready = True
        assert not of_one.acquire(blocking=False)
        pool.notify()
        assert of_one.acquire(blocking=False)


def test_a_waker_is_released_if_it_cannot_be_known_whether_a_change_is_enough() -> None:
    """There may be no further change, so the caller has to look for itself."""
    pool = WorkerPool(0)

    def without_memory() -> bool:
        raise MemoryError("at this moment")

    with pool.lock:
        wakers = [pool.waker(), pool.waker(without_memory), pool.waker(without_memory), pool.waker()]
        with pytest.raises(MemoryError):
            pool.notify()
        assert all(waker.acquire(blocking=False) for waker in wakers)
        pool.notify()  # releases none of them again


def test_jobs_of_the_earlier_epoch_come_first() -> None:
    earlier = started()
    later, go_on = following(earlier), threading.Event()
    earlier.give(lambda: go_on.wait(SECONDS))
    names: list[str] = []
    later.give(lambda: names.append("later"))
    earlier.give(lambda: names.append("earlier"))
    go_on.set()
    later.wait_for(1)
    assert names == ["earlier", "later"]
    assert earlier.workers.close()
    assert later.workers.close()


def test_the_threads_of_an_epoch_go_on_with_the_next_one_and_end_with_the_last() -> None:
    first = started()
    first.give(threading.get_ident)
    first.wait_for(1)
    second = following(first)
    assert first.workers.close()
    second.give(threading.get_ident)
    second.wait_for(1)
    assert second.done == first.done
    assert second.workers.close()
    assert first.done[0] not in {thread.ident for thread in threading.enumerate()}
    with pytest.raises(LoaderStateError, match="have ended"):
        following(second)


def test_an_epoch_that_is_closed_before_it_begins_starts_no_threads() -> None:
    """Another thread may close the loader while `iter` opens an epoch."""
    before = set(threading.enumerate())
    epoch = Epoch()
    assert epoch.workers.close()
    epoch.workers.start()
    assert set(threading.enumerate()) <= before


def test_an_epoch_ends_when_its_own_jobs_have_ended() -> None:
    first, second_runs, go_on = started(), threading.Event(), threading.Event()
    second = following(first)
    second.give(lambda: waiting(second_runs, go_on))
    assert second_runs.wait(SECONDS)
    assert first.workers.close()  # while the job of the second epoch runs
    assert not second.done
    go_on.set()
    assert second.workers.close()
    assert len(second.done) == 1  # its job has ended


def test_the_last_job_of_an_epoch_that_ends_may_begin_the_next_one() -> None:
    first, runs, go_on = started(2), threading.Event(), threading.Event()

    def begin() -> Epoch:
        waiting(runs, go_on)
        return following(first)

    first.give(begin)
    assert runs.wait(SECONDS)
    first.workers.stop()
    go_on.set()
    assert first.workers.close()
    second = first.done[0]
    both = threading.Barrier(2)
    second.give(*[lambda: both.wait(SECONDS)] * 2)  # needs both threads
    second.wait_for(2)
    assert second.workers.close()


def test_no_epoch_begins_without_a_thread_that_an_error_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its work may need that thread, such as the one of a process for `transform`."""
    first, runs, go_on = started(2), threading.Event(), threading.Event()

    def begin() -> Epoch:
        waiting(runs, go_on)
        return following(first)

    def fails(_: int) -> None:
        raise MemoryError

    first.give(begin)
    assert runs.wait(SECONDS)
    monkeypatch.setattr(first.workers, "next_work", fails)
    with first.workers.changed:
        first.workers.notify()
        assert first.workers.changed.wait_for(lambda: first.workers.broken is not None, SECONDS)
        assert first.workers.changed.wait_for(lambda: first.workers._pool._running == 1, SECONDS)
    go_on.set()
    first.wait_for(1)
    assert isinstance(first.done[0], LoaderStateError)
    assert first.workers.close()


def test_a_thread_may_begin_the_next_epoch_before_the_other_threads_start(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    class EarlyThread(threading.Thread):
        def start(self) -> None:
            super().start()
            assert begun.wait(SECONDS)

    def begin() -> Epoch:
        after = following(first)
        begun.set()
        return after

    monkeypatch.setattr(worker_pool, "Thread", EarlyThread)
    before = set(threading.enumerate())
    first = Epoch(2)
    first.give(begin)
    first.workers.start()
    first.wait_for(1)
    assert len(set(threading.enumerate()) - before) == 2
    assert first.workers.close()
    assert first.done[0].workers.close()
    assert set(threading.enumerate()) <= before


def test_closing_does_not_wait_for_a_job_that_needs_the_lock_which_the_caller_holds() -> None:
    """A garbage collection may close the next epoch at any moment of this one."""
    first, runs, go_on = started(), threading.Event(), threading.Event()
    second = following(first)
    second.give(lambda: waiting(runs, go_on))
    assert runs.wait(SECONDS)
    with first.workers.lock:
        assert not second.workers.close()
    go_on.set()
    assert second.workers.close()
    assert first.workers.close()


def test_an_error_of_one_epoch_s_bookkeeping_is_not_one_of_the_other() -> None:
    first = started()
    second = following(first)

    def fails() -> Job[Any] | None:
        raise MemoryError

    broken = EpochWorkers(fails, 1)
    broken.share(first.workers)
    broken.start()
    second.give(lambda: None)
    second.wait_for(1)
    with broken.lock:
        assert broken.changed.wait_for(lambda: broken.broken is not None, SECONDS)
    assert first.workers.broken is None
    assert second.workers.broken is None
    for workers in (first.workers, second.workers, broken):
        assert workers.close()
