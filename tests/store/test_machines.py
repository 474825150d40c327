"""Several machines on one directory, as far as one machine can be several: namespaces, each with a mount of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.store.kills import kill_at_random
from tests.store.machines import Machine, refusal
from tests.store.test_kills import check


def test_machines_with_the_same_process_ids_share_a_store_and_may_be_killed(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("namespaces are Linux's")
    if why := refusal(tmp_path / "probe"):
        pytest.skip(f"namespaces cannot be made here: {why}")
    outcome = kill_at_random(tmp_path / "store", writers=6, jobs=2, readers=3, evictors=2, seed=5, start=Machine)
    check(outcome)
    assert {pid for _, pid in outcome.hosts} == {1}  # nothing but locks tells the processes of these machines apart
    assert len({host for host, _ in outcome.hosts}) == len(outcome.hosts) == 13
