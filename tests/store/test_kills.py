"""Kill -9 at random moments: what is seen is whole, what was acknowledged is there, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.kills import Outcome, kill_at_random


def test_a_few_kills_of_each_kind(tmp_path: Path) -> None:
    outcome = kill_at_random(tmp_path / "store", writers=12, jobs=6, readers=5, evictors=5, seed=1)
    check(outcome)
    assert outcome.kills == 28


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_kills_of_each_kind(tmp_path: Path) -> None:
    outcome = kill_at_random(tmp_path / "store", writers=300, jobs=100, readers=100, evictors=100, seed=2)
    check(outcome)
    assert outcome.kills == 600
    assert outcome.epochs > 0
    assert outcome.committed_jobs > 0


def check(outcome: Outcome) -> None:
    assert outcome.errors == []
    assert outcome.published_rows > 0
    assert outcome.acknowledged_rows > 0
