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
