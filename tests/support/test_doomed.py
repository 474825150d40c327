"""What tests kill does not outlive them."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.doomed import Doomed, doomed, said, say
from tests.support.processes import forkserver


def wait_for_ever(log: str) -> None:
    say(log, is_at_work=True)
    signal.pause()


def start(log: Path, sign: str = "is_at_work") -> Doomed:
    log.touch()
    process = forkserver().Process(target=wait_for_ever, args=(str(log),))
    process.start()
    return Doomed(process, log, sign)


def test_one_is_killed_once_it_is_at_work(tmp_path: Path) -> None:
    with doomed() as running:
        running.append(start(tmp_path / "log"))
        pid = running[0].process.pid
        while (state := running[0].step(random.Random(0), 0.01)) == "lives":
            pass
        running.clear()
    assert state == "killed"
    assert list(said(tmp_path / "log")) == [{"is_at_work": True}]
    assert not psutil.pid_exists(pid)


def fail(folder: Path, pids: list[int]) -> None:
    with doomed() as running:
        running += [start(folder / name, "never") for name in ("one", "other")]
        pids += [one.process.pid for one in running]
        assert running[0].step(random.Random(0), 0.0) == "lives"
        raise ZeroDivisionError


def test_none_runs_on_where_the_body_fails(tmp_path: Path) -> None:
    pids: list[int] = []
    with pytest.raises(ZeroDivisionError):
        fail(tmp_path, pids)
    assert len(pids) == 2
    assert not any(map(psutil.pid_exists, pids))
