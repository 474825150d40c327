"""One slice of a row group goes from its job to the window through few packages, and straight."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import parquet_loader
from parquet_loader import BatchedDataLoader, OutputOptions

ROOT = os.path.dirname(parquet_loader.__file__) + os.sep
JOB = "ReadScheduler._slice_job.<locals>.run"


class Way:
    """The packages that one job enters, and how often control returns from one package to another."""

    def __init__(self) -> None:
        self.packages: set[str] = set()
        self.returns = 0
        self.opens = False


class Profiler:
    """Follows the read jobs of one worker thread."""

    def __init__(self) -> None:
        self.ways: list[Way] = []
        self._stack: list[str] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(ROOT):
            return
        if event == "call" and (self._stack or code.co_qualname == JOB):
            if not self._stack:
                self.ways.append(Way())
            self._stack.append(code.co_filename[len(ROOT) :].split(os.sep)[0])
            self.ways[-1].packages.add(self._stack[-1])
            self.ways[-1].opens |= code.co_qualname == "Cursor.__init__"
        elif event == "return" and self._stack:
            left = self._stack.pop()
            self.ways[-1].returns += bool(self._stack) and self._stack[-1] != left


def ways_of(source: Path, **options: Any) -> list[Way]:
    """Return the way of each slice of an epoch."""
    profiler = Profiler()
    output = OutputOptions(format="numpy")
    with BatchedDataLoader(source, 100, shuffle=True, num_threads=1, output_options=output, **options) as loader:
        threading.setprofile(profiler)  # for the threads that an epoch starts
        try:
            for _ in loader:
                pass
        finally:
            threading.setprofile(None)
    return profiler.ways


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="profiles frames")
@pytest.mark.parametrize("kind", ["numbers", "text"])
def test_a_slice_enters_five_packages_and_returns_fewer_than_eight_times(tmp_path: Path, kind: str) -> None:
    rows = np.arange(40_000)
    column: Any = rows if kind == "numbers" else [f"row {row}" for row in rows]
    pq.write_table(pa.table({"id": rows, "x": column}), tmp_path / "a.parquet", row_group_size=10_000)
    ways = ways_of(tmp_path, window_rows=3_000, memory_limit="24MiB")
    continuing = [way for way in ways if not way.opens]
    assert len(ways) - len(continuing) == 4  # each row group is opened once
    assert len(continuing) >= 4
    assert all(way.packages <= {"engine", "read", "source", "decode", "window"} for way in ways)
    assert max(way.returns for way in continuing) < 8
