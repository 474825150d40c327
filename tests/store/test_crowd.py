"""Many processes on one store: the measurement of `benchmarks/store_crowd.py`, short."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.store_crowd import crowd


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_crowd_keeps_the_limit_and_every_epoch_is_exact(tmp_path: Path) -> None:
    found = crowd(str(tmp_path / "store"), seconds=10, written_bytes=200_000_000)
    assert found["errors"] == []
    assert found["limit_kept"]
    assert found["epochs"] > 0
    assert found["epochs_exact"]
    assert found["written_bytes"] >= 10 * found["limit_bytes"]
