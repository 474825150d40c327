"""Sampling processes: what they yield is written, who dies starts again, and all end when told to."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parquet_loader import ConfigurationError, SampleStore
from parquet_loader.store.sampling_processes import next_pause_s
from tests.store.samples import ONE, SCHEMA, fail_at_first, fork_and_be_killed, numbers, yield_for_ever, yield_some


def test_functions_that_end_are_done_and_what_they_yield_is_there(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, options=ONE)
    with store.sample(yield_some, processes=2, arguments=(5,)) as samplers:
        assert samplers.join(90)
    done = samplers.status()
    assert [s.rows for s in done] == [50, 50]
    assert sorted(numbers(tmp_path)) == [*range(50), *range(1000, 1050)]
    assert "50 rows" in str(samplers)


def test_what_cannot_run_in_a_process_is_refused_before_one_starts(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, options=ONE)
    with pytest.raises(ConfigurationError, match=r"cannot be sent to another process: .*; define it at the top level"):
        store.sample(lambda number: iter([]))
    with pytest.raises(ConfigurationError, match="arguments=5: expected a list or a tuple"):
        store.sample(yield_some, arguments=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"arguments=\(\): .* and missing a required argument: 'batches'"):
        store.sample(yield_some)
    with pytest.raises(ConfigurationError, match=r"arguments=\(5, 6\): .* and too many positional arguments"):
        store.sample(yield_some, arguments=(5, 6))
    with pytest.raises(ConfigurationError, match="when_full='x': expected 'wait', 'drop' or 'fail'"):
        store.sample(yield_some, when_full="x")
    with pytest.raises(TypeError, match="'process'"):
        store.sample(yield_some, process=2)


def test_a_function_that_no_other_process_can_import_is_refused(tmp_path: Path) -> None:
    code = (
        "from parquet_loader import SampleStore, Scalar, Schema\n"
        "def rows(number):\n    yield {'x': [1]}\n"
        f"SampleStore({str(tmp_path)!r}, schema=Schema({{'x': Scalar('int64')}})).sample(rows)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "is defined in a notebook, at a prompt or by python -c" in done.stderr


def test_one_that_raises_starts_again(tmp_path: Path) -> None:
    store = SampleStore(tmp_path / "store", schema=SCHEMA, max_bytes=500_000, options=ONE)
    with store.sample(fail_at_first, arguments=(str(tmp_path),)) as samplers:
        assert samplers.join(90)
    (status,) = samplers.status()
    assert status.starts == 2
    assert status.last_error == "ValueError: the archive is away"
    assert store.status().writers == 0


def test_the_pause_doubles_to_its_limit_however_often_one_fails() -> None:
    pauses = [0.0]
    for _ in range(2000):  # a night of pauses of half a minute
        pauses.append(next_pause_s(pauses[-1], lived_s=1))
    assert pauses[1:5] == [0.1, 0.2, 0.4, 0.8]
    assert set(pauses[10:]) == {30.0}
    assert next_pause_s(30.0, lived_s=3600) == 0


@pytest.mark.slow  # the next test is the same for one whose fork lives
def test_one_that_is_killed_starts_again(tmp_path: Path) -> None:
    store = SampleStore(tmp_path / "store", schema=SCHEMA, max_bytes=500_000, options=ONE)
    with store.sample(yield_for_ever) as samplers:
        assert samplers.wait_for(lambda status: status[0].rows > 0, timeout_s=90)
        pid = samplers.status()[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert samplers.wait_for(lambda status: status[0].starts == 2, timeout_s=90)
        assert samplers.status()[0].last_error == "killed by SIGKILL"
        assert not samplers.wait_for(lambda status: status[0].starts == 3, timeout_s=0.01)
    assert samplers.status()[0].pid is None
    assert store.status().writers == 0


@pytest.mark.parametrize(
    ("tells_ends", "killer", "name"),
    [
        pytest.param(True, signal.SIGRTMIN + 1, f"signal {signal.SIGRTMIN + 1}", id="pidfd"),
        pytest.param(False, signal.SIGKILL, "SIGKILL", id="older kernel", marks=pytest.mark.slow),
    ],
)
def test_one_that_is_killed_while_what_it_forked_lives_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tells_ends: bool, killer: int, name: str
) -> None:
    if not tells_ends:
        monkeypatch.delattr(os, "pidfd_open")
    os.mkfifo(tmp_path / "fifo")
    fifo = os.open(tmp_path / "fifo", os.O_RDWR)
    store = SampleStore(tmp_path / "store", schema=SCHEMA, options=ONE)
    with store.sample(fork_and_be_killed, arguments=(str(tmp_path), killer)) as samplers:
        try:
            assert samplers.join(60)
        finally:
            os.close(fifo)
    (status,) = samplers.status()
    assert (status.starts, status.rows) == (2, 5)
    assert status.last_error == f"killed by {name}"


def test_samplers_collected_inside_the_stores_lock_do_not_wait_for_it(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, options=ONE)
    gc.disable()
    try:
        samplers = store.sample(yield_for_ever)
        assert samplers.wait_for(lambda status: status[0].rows > 0, timeout_s=90)
        shared, thread = samplers._shared, samplers._thread
        ring: list[Any] = [samplers]
        ring.append(ring)
        del samplers, ring
        with store._parts().ledger.transaction():
            gc.collect()
            assert thread.is_alive()  # the process cannot end before the lock is free
    finally:
        gc.enable()
    thread.join(60)
    assert not thread.is_alive()
    assert shared.samplers[0].status.last_error is None  # it ended by itself, and was not killed


def test_a_sampler_that_waits_for_room_ends_when_told_to(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, max_bytes=30_000, evict="never", options=ONE)
    with store.sample(yield_for_ever) as samplers:
        store.wait(rows=20, timeout_s=90)
    assert samplers.status()[0].last_error is None  # it ended by itself, and was not killed
    assert store.status().reserved_bytes == 0
