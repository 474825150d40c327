"""Two processes at a time on one cache, killed at random: never a wrong row, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.read.cache.kills import LIMIT_BYTES, Outcome, kill_at_random


def test_a_few_kills(tmp_path: Path) -> None:
    check(kill_at_random(tmp_path, kills=16, seed=1))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_kills(tmp_path: Path) -> None:
    check(kill_at_random(tmp_path, kills=400, seed=2))


def check(outcome: Outcome) -> None:
    assert outcome.errors == []
    assert outcome.kills >= 16
    assert outcome.rows > 0
    assert outcome.hits > 0
    assert outcome.stored_bytes > 0
    assert outcome.most_bytes <= LIMIT_BYTES
    assert outcome.damaged == 0  # what is cut short never gets its name
