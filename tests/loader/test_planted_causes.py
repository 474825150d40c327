"""Causes planted in real files are found in an epoch over them, and sound files cause no advice."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import parquet_loader as pl
from parquet_loader import BatchedDataLoader, LoaderStats, ReadOptions
from parquet_loader.common.native.bindings import IS_BUILT
from parquet_loader.common.processors import available_processors
from parquet_loader.loader.advice import findings_of
from parquet_loader.loader.diagnosis import storage_figures

RNG = np.random.default_rng(0)
ISOLATIONS = ["thread", *([pytest.param("process", marks=pytest.mark.slow)] if sys.platform == "linux" else [])]


def write(path: Path, columns: dict[str, Any], **options: Any) -> str:
    path.mkdir()
    pq.write_table(pa.table(columns), path / "a.parquet", **options)
    return str(path)


def epoch(source: str, *, step_s: float = 0.0, **options: Any) -> LoaderStats:
    with BatchedDataLoader(source, 500, shuffle=True, **options) as loader:
        for _ in loader:
            if step_s:
                time.sleep(step_s)
        return loader.stats()


def judged(source: str, *, waits: bool = False, **options: Any) -> LoaderStats:
    """Return the figures of an epoch, with the advice that a longer one of the same costs is given.

    Waits of threads count only if a test is about them: other programs make threads wait, too.
    """
    with BatchedDataLoader(source, 500, shuffle=True, **options) as loader:
        for _ in loader:
            pass
        figures = replace(loader.stats(), storage=storage_figures(loader._dataset, ReadOptions()))
        if not waits:
            never = dict.fromkeys(figures.blocked_s, 0.0)
            figures = replace(figures, blocked_s=never, queued_s=0.0, first_batch_s=figures.wait_s)
        return replace(figures, findings=findings_of(figures, judged_from_s=0.0))


def causes(figures: LoaderStats) -> set[str]:
    assert json.loads(json.dumps(figures.to_dict()))["advice"] == figures.to_dict()["advice"]
    return {finding.cause for finding in figures.findings}


def test_tiny_row_groups_are_found(tmp_path: Path) -> None:
    source = write(tmp_path / "data", {"x": RNG.random(50_000), "n": RNG.integers(0, 9, 50_000)}, row_group_size=100)
    figures = judged(source)
    assert "tiny_row_groups" in causes(figures)
    assert "Row groups are tiny: 100 rows (1.6 KiB decoded) on average, and each of the 500 took" in figures.advice


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_one_row_group_sorted_by_label_is_found(tmp_path: Path, isolation: Any) -> None:
    columns = {"label": np.repeat(np.arange(100), 2000), "x": RNG.random(200_000)}
    figures = judged(write(tmp_path / "data", columns), window_rows=8000, isolation=isolation)
    assert "mixing" in causes(figures)
    assert figures.shuffling is not None
    measured = figures.shuffling.measured
    assert measured is not None
    assert measured.column == "label"
    assert measured.between_share > 0.95
    assert "of the variance of 'label' lies between windows" in figures.advice
    assert "from 1 of 1 row group" in figures.advice
    assert "4 of its 100 values" in figures.advice or "5 of its 100 values" in figures.advice


def test_one_large_row_group_is_named_before_mixing_can_be_measured(tmp_path: Path) -> None:
    source = write(tmp_path / "data", {"x": RNG.random(200_000)})
    with BatchedDataLoader(source, 100, shuffle=True, window_rows=50_000) as loader:
        next(iter(loader))
        advice = loader.stats().advice
    assert "Shuffling mixes neighbours only: a window holds 25% of the rows, from 1 of 1 row group" in advice


def test_data_sorted_by_words_is_known_from_footers(tmp_path: Path) -> None:
    names = np.sort(RNG.integers(100, 1000, 200_000)).astype(str)
    columns = {"id": np.arange(200_000), "name": names, "x": RNG.random(200_000)}
    source = write(tmp_path / "data", columns, row_group_size=10_000)
    with BatchedDataLoader(source, 100, shuffle=True, window_rows=20_000, columns=["id", "name", "x"]) as loader:
        next(iter(loader))
        figures = loader.stats()
    assert figures.shuffling is not None
    assert figures.shuffling.sorting is not None
    assert figures.shuffling.sorting.column == "name", "row numbers are passed over"
    assert figures.shuffling.sorting.overlap_share < 0.2
    if figures.shuffling.row_groups_per_window < 3:
        assert "The data is sorted by 'name': the footers say that" in figures.advice


def test_a_memory_limit_that_cuts_windows_is_named(tmp_path: Path) -> None:
    columns = {"label": np.repeat(np.arange(500), 1000), **{f"x{i}": RNG.random(500_000) for i in range(8)}}
    source = write(tmp_path / "data", columns, row_group_size=100_000)
    figures = epoch(source, memory_limit="52MiB")
    assert "Raise memory_limit (now 52.0 MiB, which cuts windows short)" in figures.advice


@pytest.mark.parametrize("size", [1000, 200_000])
def test_rows_in_random_order_are_silent_whatever_their_row_groups(tmp_path: Path, size: int) -> None:
    columns = {"label": RNG.integers(0, 10, 200_000), "x": RNG.random(200_000)}
    figures = epoch(write(tmp_path / "data", columns, row_group_size=size), window_rows=8000)
    assert "mixing" not in causes(figures)


@pytest.mark.parametrize("codec", [pytest.param("zstd", marks=pytest.mark.slow), "gzip"])
def test_heavy_compression_is_measured_on_the_files_own_pages(tmp_path: Path, codec: str) -> None:
    columns = {f"x{i}": RNG.normal(size=50_000).round(3) for i in range(6)}
    options = {"compression": codec, "compression_level": {"zstd": 19, "gzip": 9}[codec], "use_dictionary": False}
    source = write(tmp_path / "data", columns, row_group_size=25_000, **options)
    # Advice needs a loop that waits; if other programs stop the loop, the workers get ahead of it meanwhile.
    figures = max((judged(source) for _ in range(6)), key=lambda figures: figures.wait_share)
    assert figures.storage is not None
    (found,) = figures.storage.codecs
    assert (found.codec, found.columns, found.stored_share) == (codec, 6, 1.0)
    assert found.ratio > 1
    assert found.bytes_per_s is not None
    assert 1e6 < found.bytes_per_s < 1e11
    assert "compression" in causes(figures)
    assert f"Decompressing {codec} takes about" in figures.advice


@pytest.mark.skipif(not IS_BUILT, reason="the kernels were not compiled: no C compiler at hand")
def test_columns_that_the_kernels_cannot_decode_are_told_apart(tmp_path: Path) -> None:
    numbers = RNG.random(20_000)
    table = pa.table(
        {
            "plain": numbers,
            "nulls": pa.array(numbers, mask=numbers < 0.1),
            "unknown": numbers,
            "delta": pa.array([b"abcd"] * 20_000, pa.binary(4)),
            "text": ["a"] * 20_000,
        }
    )
    (tmp_path / "data").mkdir()
    pq.write_table(
        table, tmp_path / "data/a.parquet", use_dictionary=False, column_encoding={"delta": "DELTA_BYTE_ARRAY"},
        write_statistics=["plain", "nulls", "delta"],
    )  # fmt: skip
    schema = pl.Schema.from_arrow(table.schema)
    schema = pl.Schema({**schema, "nulls": pl.Scalar("float64", null="mask")})
    figures = judged(str(tmp_path / "data"), schema=schema)
    assert figures.storage is not None
    slow = {part.reason: part.columns for part in figures.storage.slow}
    assert slow == {"encoding": ("delta",)}


def test_a_transform_of_python_code_is_found(tmp_path: Path) -> None:
    def slow(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        total = 0.0
        for _ in range(200):
            for value in columns["x"].tolist():
                total += value * value
        return {"x": columns["x"] + total}

    figures = judged(write(tmp_path / "data", {"x": RNG.random(50_000)}), transform=slow, num_threads=4)
    assert "transform" in causes(figures)
    assert figures.bound_by == "transform"
    assert "large numpy calls" in figures.advice


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how long threads wait for a processor")
def test_a_transform_that_waits_is_found(tmp_path: Path) -> None:
    def waiting(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        time.sleep(0.05)
        return columns

    figures = judged(write(tmp_path / "data", {"x": RNG.random(10_000)}), transform=waiting, num_threads=2, waits=True)
    assert "transform_waits" in causes(figures)


def test_an_epoch_whose_training_step_sets_the_pace_is_silent(tmp_path: Path) -> None:
    pl.write_dataset({"x": RNG.random(60_000), "n": RNG.integers(0, 9, 60_000)}, tmp_path / "data")
    silent = "loading is not the bottleneck: the loop waited"
    figures = epoch(str(tmp_path / "data"), step_s=0.02)
    for _ in range(3):
        if not figures.verdict.startswith(silent):  # other programs may make an epoch wait
            figures = epoch(str(tmp_path / "data"), step_s=0.02)
    assert figures.is_judged
    assert figures.findings == ()
    assert figures.advice == ""
    assert figures.verdict.startswith(silent)


def test_an_epoch_too_short_to_judge_is_silent_whatever_its_files(tmp_path: Path) -> None:
    source = write(tmp_path / "data", {"x": RNG.random(1000)}, row_group_size=10)
    figures = epoch(source)
    if figures.seconds < 1:
        assert figures.findings == ()
        assert figures.verdict.startswith("too short to judge")


def test_files_that_have_gone_leave_the_figures_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "data", {"x": RNG.random(50_000)}, row_group_size=10_000)
    perf_counter = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: 1000 * perf_counter())  # else too short to be looked at
    with BatchedDataLoader(source, 500, shuffle=True) as loader:
        assert sum(len(batch["x"]) for batch in loader) == 50_000
        (tmp_path / "data/a.parquet").unlink()
        figures = loader.stats()
    assert figures.is_judged
    assert figures.rows == 50_000
    assert figures.storage is not None
    assert [codec.bytes_per_s for codec in figures.storage.codecs] == [None]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n"}, 1),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/docker/1\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_period_us": "100000\n",
            },
            1,
        ),
        ({"proc/self/cgroup": "nonsense"}, None),
        ({}, None),
    ],
    ids=["no quota", "one", "of a group above", "version 1", "unreadable", "no such system"],
)
def test_processors_are_those_of_the_containers_quota(
    tmp_path: Path, files: dict[str, str], expected: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_processors(str(tmp_path)) == (expected or available_processors(str(tmp_path / "nowhere")))
