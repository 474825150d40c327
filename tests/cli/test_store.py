"""``parquet-loader store status``: what Python's `store.status()` says, once, or again and again until Ctrl-C."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from parquet_loader import SampleStore, Scalar, Schema
from tests.support.command_line import run_here


@pytest.fixture
def store(tmp_path: Path) -> SampleStore:
    made = SampleStore(tmp_path / "samples", schema=Schema({"x": Scalar("int64")}), max_bytes="1MB")
    add(made)
    return made


def add(store: SampleStore) -> None:
    with store.writer() as writer:
        writer.write({"x": np.arange(100)})


def test_status_says_what_python_says(store: SampleStore) -> None:
    done = run_here("store", "status", store.path)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == store.path
    assert [line.split() for line in lines[1:3]] == [["files", "1"], ["rows", "100"]]
    found = json.loads(run_here("store", "status", store.path, "--json").stdout)
    expected = dataclasses.asdict(store.status())
    assert found.keys() == expected.keys()
    assert {name: found[name] for name in ("rows", "bytes", "max_bytes")} == {
        name: expected[name] for name in ("rows", "bytes", "max_bytes")
    }


@pytest.mark.parametrize("name", [".", "missing"])
def test_a_directory_that_is_no_store_stays_as_it_is(tmp_path: Path, name: str) -> None:
    done = run_here("store", "status", tmp_path / name)
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert "there is no sample store here; pass a store's directory, or create a store in Python" in said
    assert "pass schema=" not in said  # the command has no such option
    assert list(tmp_path.iterdir()) == []


def test_watch_shows_what_writers_add_until_ctrl_c(store: SampleStore) -> None:
    command = [sys.executable, "-m", "parquet_loader", "store", "status", store.path]
    watching = subprocess.Popen([*command, "--watch", "--every", "0.1", "--json"], stdout=subprocess.PIPE, text=True)
    try:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["rows"] == 100
        add(store)
        for line in watching.stdout:
            if json.loads(line)["rows"] == 200:
                break
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == 0
    finally:
        watching.kill()
        watching.communicate()
