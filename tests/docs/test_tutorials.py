"""What tutorials show beside Python blocks: the script for many GPUs, under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.test_docs import run

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_script_for_many_gpus_trains_on_one_rank_and_resumes_on_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(ROOT / "docs/tutorials/many_gpus.md", {"python"})
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]

    def train(command: list[str], steps: int) -> dict[str, Any]:
        done = subprocess.run(
            [*command, "train.py", str(steps)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        state: dict[str, Any] = torch.load("checkpoint.pt")
        return state

    train([sys.executable], 20)
    train([*torchrun, "4"], 20)
    resumed = train([*torchrun, "2"], 20)
    Path("checkpoint.pt").unlink()
    straight = train([sys.executable], 60)
    assert resumed["loader"]["batch"] == straight["loader"]["batch"] == 60
    for name, weights in straight["model"].items():
        torch.testing.assert_close(resumed["model"][name], weights)
