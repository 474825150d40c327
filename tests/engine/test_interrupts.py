"""Ctrl-C at any moment of a pass ends the pass, while the exception and all frames of its traceback are still held."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parquet_loader import BatchedDataLoader
from tests.support.datasets import Layout, write_layout
from tests.support.signals import interrupted, interrupted_at_random_moments


@pytest.fixture
def root(tmp_path: Path) -> str:
    """30 batches of 10 rows in files of several row groups."""
    write_layout(
        Layout(((30, 20), (50,), (25,) * 8), ("double", "text", "ragged"), dictionary=False), str(tmp_path / "data")
    )
    return str(tmp_path / "data")


def reading_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("parquet_loader")]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of Ctrl-C in callbacks of weakrefs
@pytest.mark.parametrize("transform", [pytest.param(None, marks=pytest.mark.slow), lambda columns, rng: columns])
def test_ctrl_c_at_every_moment_of_the_beginning_ends_the_pass(root: str, transform: Any) -> None:
    with BatchedDataLoader(root, 10, shuffle=True, window_rows=40, num_threads=2, transform=transform) as loader:
        state = loader.state_dict()  # makes the memory budget, which the first beginning would make otherwise
        _, moments = interrupted(loader, 0)
        loader.reset()
        came = 0
        for moment in range(1, moments + 1):
            held, _ = interrupted(loader, moment)
            came += held is not None
            assert held is None or not reading_threads(), moment
            loader.reset()
            assert loader.state_dict() == state, moment
            del held
        assert came > moments // 2
        assert sum(1 for _ in loader) == 30


LEFT_AFTER_RESET = """loader.reset()
    if left():
        print("left after reset()", attempt, left())"""


@pytest.mark.parametrize(
    ("output", "transform"),
    [
        pytest.param("torch", "None", marks=pytest.mark.slow),
        ("numpy", "lambda columns, rng: columns"),
    ],
)
def test_ctrl_c_at_random_moments_ends_the_pass_while_the_exception_is_still_held(
    root: str, output: str, transform: str
) -> None:
    options = f"window_rows=40, num_threads=2, transform={transform}, output_options=OutputOptions(format={output!r})"
    said = interrupted_at_random_moments(
        root, options, attempts=60, longest_s=(0.002, 0.01, 0.04), after=LEFT_AFTER_RESET
    )
    assert said == "done True True []"


def once_it_is_there(file: str, columns: Any, rng: Any) -> Any:
    while not os.path.exists(file):
        time.sleep(0.01)
    return columns


@pytest.mark.parametrize(("isolation", "waits"), [("thread", "wait_for_lock"), ("process", "wait")])
def test_ctrl_c_that_does_not_wake_the_main_thread_is_noticed_while_it_waits(
    root: str, tmp_path: Path, isolation: Any, waits: str
) -> None:
    main, heard, noticed = threading.get_ident(), threading.Event(), list[bool]()

    def interrupt() -> None:
        while sys._current_frames()[main].f_code.co_name != waits:
            heard.wait(0.01)
        heard.wait(0.1)  # the main thread has the GIL, and blocks
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # as if it came just before the wait
        noticed.append(heard.wait(60))
        (tmp_path / "go").touch()

    before = signal.signal(signal.SIGINT, lambda *_: heard.set())
    transform = partial(once_it_is_there, str(tmp_path / "go"))
    interrupting = threading.Thread(target=interrupt)
    try:
        with BatchedDataLoader(root, 10, num_threads=1, transform=transform, isolation=isolation) as loader:
            batches = iter(loader)
            interrupting.start()
            assert sum(1 for _ in batches) == 30
    finally:
        (tmp_path / "go").touch()
        interrupting.join(60)
        signal.signal(signal.SIGINT, before)
    assert noticed == [True]
