"""Worker threads end whatever happens to them."""

from __future__ import annotations

import pytest

from parquet_loader.engine import worker_pool
from parquet_loader.engine.worker_pool import WorkerPool


def test_threads_without_memory_for_their_figures_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_memory(thread: str) -> float | None:
        raise MemoryError(thread)

    monkeypatch.setattr(worker_pool, "queued_s", without_memory)
    pool = WorkerPool(lambda: None, 2)
    pool.start()
    assert pool.close()


def test_a_waker_is_released_by_the_first_change_that_is_enough() -> None:
    pool, is_ready = WorkerPool(lambda: None, 0), False
    with pool.lock:
        of_any, of_one = pool.waker(), pool.waker(lambda: is_ready)
        pool.notify()
        assert of_any.acquire(blocking=False)
        assert not of_one.acquire(blocking=False)
        is_ready = True
        assert not of_one.acquire(blocking=False)
        pool.notify()
        assert of_one.acquire(blocking=False)
