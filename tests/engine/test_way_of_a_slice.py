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
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import parquet_loader
from parquet_loader import BatchedDataLoader, OutputOptions
from parquet_loader.common import IS_BUILT

ROOT = os.path.dirname(parquet_loader.__file__) + os.sep
SLICE, TOGETHER = "ReadScheduler._slice_job.<locals>.run", "ReadScheduler._joint_job.<locals>.run"


class Way:
    """The packages that one job enters, and how often control returns from one package to another."""

    def __init__(self, job: str) -> None:
        self.job = job
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
        if event == "call" and (self._stack or code.co_qualname in (SLICE, TOGETHER)):
            if not self._stack:
                self.ways.append(Way(code.co_qualname))
            self._stack.append(code.co_filename[len(ROOT) :].split(os.sep)[0])
            self.ways[-1].packages.add(self._stack[-1])
            self.ways[-1].opens |= code.co_qualname == "Cursor._begin"
        elif event == "return" and self._stack:
            left = self._stack.pop()
            self.ways[-1].returns += bool(self._stack) and self._stack[-1] != left


def ways_of(source: Path, epochs: int = 1, **options: Any) -> list[Way]:
    """Return the way of each slice of the epochs."""
    profiler, slices = Profiler(), 0
    output = OutputOptions(format="numpy")
    with BatchedDataLoader(source, 100, shuffle=True, num_threads=1, output_options=output, **options) as loader:
        threading.setprofile(profiler)  # for the threads that an epoch starts
        try:
            for epoch in range(epochs):
                plan = loader._plan(epoch)
                slices += sum(len(plan.slices(window)) for window in range(plan.windows))
                assert sum(1 for _ in loader) == plan.batches
        finally:
            threading.setprofile(None)
    return profiler.ways[:slices]  # the thread reads the epoch after these ahead


ROWS = 8_000
PACKAGES = {"engine", "read", "source", "decode", "window"}


def columns_of(kind: str) -> dict[str, Any]:
    rows = np.arange(ROWS)
    match kind:
        case "text":
            return {"id": rows, "x": [f"row {row}" for row in rows]}
        case "many columns":
            return {"id": rows, **{f"c{number}": rows.astype(np.float32) for number in range(40)}}
    return {"id": rows, "x": rows}


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="profiles frames")
@pytest.mark.skipif(not IS_BUILT, reason="without kernels page headers are parsed by the Thrift parser of source")
@pytest.mark.parametrize("filters", [None, pc.field("id") != 7], ids=["all rows", "filter"])
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "slices"])
@pytest.mark.parametrize(
    ("kind", "codec"),
    [
        ("numbers", "snappy"),
        ("text", "snappy"),
        pytest.param("many columns", "snappy", marks=pytest.mark.slow),
        ("numbers", "brotli"),
    ],
)
def test_a_slice_enters_five_packages_and_returns_a_few_times(
    tmp_path: Path, kind: str, codec: str, is_whole: bool, filters: Any
) -> None:
    # Without a filter, two row groups of a window would be read together.
    row_group_rows = 2_000 if not is_whole else 1_000 if filters is None else 250
    table = pa.table(columns_of(kind))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=row_group_rows, compression=codec)
    ways = ways_of(tmp_path, window_rows=1_000, memory_limit="256MiB", filters=filters)
    opening = [way for way in ways if way.opens]
    assert {way.job for way in ways} == {SLICE}
    assert len(opening) == ROWS // row_group_rows  # each row group is opened once
    assert (len(ways) > len(opening)) != is_whole
    assert all(way.packages <= PACKAGES for way in ways)
    # The columns of a filter are decoded to arrays before the others are decoded to the window.
    assert max(way.returns for way in ways) < (9 if filters is None else 11)


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="profiles frames")
@pytest.mark.skipif(not IS_BUILT, reason="only kernels read row groups together")
@pytest.mark.parametrize("kind", ["numbers", "text", pytest.param("many columns", marks=pytest.mark.slow)])
def test_small_row_groups_are_read_together(tmp_path: Path, kind: str) -> None:
    pq.write_table(pa.table(columns_of(kind)), tmp_path / "a.parquet", row_group_size=50)
    ways = ways_of(tmp_path, window_rows=1_000, memory_limit="256MiB")
    single, joint = ([way for way in ways if way.job == job] for job in (SLICE, TOGETHER))
    assert (
        len(single) < 20
    )  # of 160 row groups: the first one, whose plan the others follow, and what is left of a window
    assert joint
    assert all(way.packages <= PACKAGES for way in joint)
    assert max(way.returns for way in joint) < 12 + 20  # one for each row group


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="profiles frames")
def test_page_headers_are_parsed_in_the_first_epoch_alone(tmp_path: Path) -> None:
    rows = pa.FixedSizeBinaryArray.from_buffers(pa.binary(512), ROWS, [None, pa.py_buffer(bytes(512 * ROWS))])
    table = pa.table([rows], pa.schema([pa.field("x", pa.binary(512), nullable=False)]))
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False}
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2_000, **options)
    first = ways_of(tmp_path, 1, window_rows=1_000)
    later = ways_of(tmp_path, 2, window_rows=1_000)[len(first) :]
    assert max(way.returns for way in first if way.opens) >= 8  # the Thrift parser is a part of source
    assert len(later) == len(first)
    assert max(way.returns for way in later) < 8
