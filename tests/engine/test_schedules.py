"""Jobs finish in any order, and the consumer asks at any time: the batches are the same. No threads here: the test
itself is the scheduler, and every schedule it draws can be drawn again."""

from __future__ import annotations

import io
import random
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parquet_loader.collate.tensors import batch_tensors, window_batches
from parquet_loader.engine.engine import Engine
from parquet_loader.errors import MemoryLimitError
from parquet_loader.loader.batched import BatchedDataLoader
from parquet_loader.plan.epoch import Plan
from parquet_loader.schema import Image, Schema
from parquet_loader.window import StoredWindow
from tests.support import oracle
from tests.support.datasets import Layout, layouts, write_layout
from tests.support.examples import examples, grid


class WouldWaitError(Exception):
    """The consumer asked too early."""


def drive(loader: BatchedDataLoader, schedule: random.Random, at_once: int) -> list[dict[str, Any]]:
    """Run one epoch's jobs, up to `at_once` of them begun at a time, finishing in an order drawn from `schedule`."""
    plan = loader._plan(0)
    engine = loader._engine(plan)
    assert isinstance(engine, Engine)

    def waker(is_enough: Any = None) -> Any:
        raise WouldWaitError

    engine.workers.waker = waker  # type: ignore[method-assign]
    begun: list[Any] = []
    batches: list[dict[str, Any]] = []
    with engine.workers.lock:
        while True:
            while len(begun) < at_once and (job := engine._choose()) is not None:
                begun.append(job)
            if not begun or schedule.random() < 0.3:
                try:
                    taken = _take(engine, plan)
                except WouldWaitError:
                    if not begun and (job := engine._choose()) is not None:
                        begun.append(job)
                    assert begun, "nothing is under way and nothing may start, but the consumer would wait for ever"
                else:
                    if taken is None:
                        break
                    batches += taken
                    continue
            job = begun.pop(schedule.randrange(len(begun)))
            try:
                outcome = job.run()
            except Exception as error:
                job.failed(error)
            else:
                job.done(outcome)
    assert not begun
    engine.close()
    return batches


def _take(engine: Engine, plan: Plan) -> list[dict[str, Any]] | None:
    if engine.processes:
        return [*map(batch_tensors, engine.next_batches())] or None
    window = engine.next_window()
    assert not isinstance(window, StoredWindow)
    return None if window is None else list(window_batches(window, plan.batch_size))


def same(columns: Any, rng: Any) -> Any:
    return columns


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    layout=layouts(kinds=("double", "text", "wide"), most_rows=200),
    batch_size=st.integers(1, 40),
    window_rows=st.integers(1, 200),
    shuffle=st.booleans(),
    transform=st.sampled_from([None, same]),
    at_once=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_the_order_in_which_jobs_finish_changes_nothing(
    layout: Layout, batch_size: int, window_rows: int, shuffle: bool, transform: Any, at_once: int, seed: int
) -> None:
    options: dict[str, Any] = {
        "window_rows": max(batch_size, window_rows),
        "shuffle": shuffle,
        "transform": transform,
    }
    with tempfile.TemporaryDirectory() as root:
        write_layout(layout, root)
        with BatchedDataLoader(root, batch_size, **options) as loader:
            in_turn = oracle.delivered_columns(drive(loader, random.Random(0), 1))
            oracle.assert_columns_equal(in_turn, oracle.expected_columns(root), ordered=not shuffle)
            mixed = oracle.delivered_columns(drive(loader, random.Random(seed), at_once))
            oracle.assert_columns_equal(mixed, in_turn, ordered=True)


@grid(
    "limit, transform",
    ["least", "1GiB"],
    [None, same],
    everyday=lambda limit, transform: limit == "least" and transform is None,
)
def test_with_little_memory_any_schedule_gives_the_same_rows(transform: Any, limit: str) -> None:
    layout = Layout(((2000, 300), (1500,), (40,) * 20), ("double", "text", "wide"), seed=4)
    options: dict[str, Any] = {"window_rows": 400, "shuffle": True, "transform": transform}
    with tempfile.TemporaryDirectory() as root:
        write_layout(layout, root)
        if limit == "least":
            with pytest.raises(MemoryLimitError) as refused:
                BatchedDataLoader(root, 30, memory_limit=1, **options)
            limit = re.findall(r"memory_limit=(\S+) or more", str(refused.value))[0]
        with BatchedDataLoader(root, 30, memory_limit=limit, **options) as loader:
            delivered = [oracle.delivered_columns(drive(loader, random.Random(n), 1 + n % 5)) for n in range(6)]
        oracle.assert_columns_equal(delivered[0], oracle.expected_columns(root), ordered=False)
        for columns in delivered[1:]:
            oracle.assert_columns_equal(columns, delivered[0], ordered=True)


@pytest.mark.parametrize(("memory_limit", "expected"), [("16MiB", 2), ("1GiB", 4)])
def test_few_batches_of_images_of_unknown_size_begin_before_one_is_decoded(
    tmp_path: Path, memory_limit: str, expected: int
) -> None:
    """A batch takes 6 MB, and its JPEGs, of which alone the size is known, 0.4 MB."""
    image = pytest.importorskip("PIL.Image", reason="Pillow writes the images")
    pixels = np.random.default_rng(0).integers(0, 256, (500, 500, 3), dtype=np.uint8)
    file = io.BytesIO()
    image.fromarray(pixels).save(file, "JPEG", quality=10)
    pq.write_table(pa.table({"image": [file.getvalue()] * 96}), tmp_path / "a.parquet", row_group_size=8)
    schema = Schema({"image": Image()})
    with BatchedDataLoader(tmp_path / "a.parquet", 8, schema=schema, memory_limit=memory_limit) as loader:
        engine = loader._engine(loader._plan(0))
        assert isinstance(engine, Engine)
        begun = 0
        with engine.workers.lock:
            while (job := engine._choose()) is not None:
                if job.stage == "process":
                    begun += 1
                else:
                    job.done(job.run())
        engine.close()
    assert begun == expected
