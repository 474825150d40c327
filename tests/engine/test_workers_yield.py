"""Workers never preempt the loop that wakes them: `next` would otherwise wait for a time slice at each window."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from parquet_loader import BatchedDataLoader, OutputOptions
from tests.support.datasets import Layout, write_layout

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="not Linux")


@pytest.fixture
def root(tmp_path: Path) -> str:
    write_layout(Layout(((30, 20),), ("double",), dictionary=False), str(tmp_path / "data"))
    return str(tmp_path / "data")


def policies_of_an_epoch(root: str) -> set[int]:
    """Return the scheduling policies of the threads that ran `transform`."""
    found = set()

    def transform(columns: dict[str, Any], rng: Any) -> dict[str, Any]:
        found.add(os.sched_getscheduler(0))
        return columns

    options = OutputOptions(format="numpy")
    with BatchedDataLoader(root, 10, transform=transform, num_threads=2, output_options=options) as loader:
        assert sum(len(batch["id"]) for batch in loader) == 50
    return found


def test_workers_do_not_preempt_by_waking_up_and_the_loop_keeps_its_policy(root: str) -> None:
    before = os.sched_getscheduler(0)
    if before != os.SCHED_OTHER:
        pytest.skip("this process has a policy of its own")
    assert policies_of_an_epoch(root) == {os.SCHED_BATCH}
    assert os.sched_getscheduler(0) == before


def test_workers_keep_a_policy_that_the_caller_chose(root: str) -> None:
    found: set[int] = set()

    def idle() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        found.update(policies_of_an_epoch(root))

    caller = threading.Thread(target=idle)  # only this thread and those that it starts
    caller.start()
    caller.join()
    assert found == {os.SCHED_IDLE}
