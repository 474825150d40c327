"""Advice is a pure function of an epoch's figures: each cause is named with its number, and nothing else is."""

from __future__ import annotations

import json
import sys
import weakref
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from parquet_loader.loader.advice import findings_of
from parquet_loader.loader.live_source import SourceChange
from parquet_loader.loader.mixing import MixingFigures, MixingMeter, SortingFigures, overlap_share
from parquet_loader.loader.stats import (
    CodecFigures,
    LoaderStats,
    ShuffleFigures,
    SkippedRowGroup,
    SlowColumns,
    StorageFigures,
)
from parquet_loader.read.cache import CacheStats
from parquet_loader.source.remote.request_scheduler import RemoteFigures

MIB = 2**20


@pytest.fixture(autouse=True)
def has_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)


def stages(**seconds: float) -> dict[str, float]:
    return dict.fromkeys(("read", "permute", "gather", "process"), 0.0) | seconds


SHUFFLING = ShuffleFigures(
    is_shuffled=True,
    batch_size=1000,
    rows=10_000_000,
    windows=20,
    window_rows=500_000,
    row_groups=100,
    largest_row_group_rows=100_000,
    row_groups_per_window=16.0,
    measured=MixingFigures("label", 20, 0.001, 10.0, 10),
)
STORAGE = StorageFigures(row_bytes=100.0, columns=10, codecs=(CodecFigures("snappy", 10, 1.0, 2.0),), number_share=1.0)
# Decoding keeps two workers busy, and the loop waits for them: as it is when files are as they should be.
DECODING = LoaderStats(
    epoch=1,
    rows=10_000_000,
    batches=10_000,
    seconds=10.0,
    wait_s=8.0,
    first_batch_s=0.1,
    longest_wait_s=0.1,
    cpu_s=stages(read=12.0, gather=4.0),
    blocked_s=stages(read=1.0),
    idle_s=3.0,
    bytes_read=500 * MIB,
    bytes_from_disk=0,
    row_groups=100,
    skipped_row_groups=(),
    held_bytes=100 * MIB,
    peak_bytes=200 * MIB,
    memory_limit_bytes=1024 * MIB,
    num_threads=2,
    queued_s=0.5,
    processors=2,
    storage=STORAGE,
    shuffling=SHUFFLING,
)
HEALTHY = replace(DECODING, wait_s=0.3)


@dataclass(frozen=True)
class Case:
    causes: tuple[str, ...]
    says: tuple[str, ...]
    changes: dict[str, Any]


def zstd(rate: float) -> StorageFigures:
    return replace(STORAGE, codecs=(CodecFigures("zstd", 10, 0.9, 4.0, rate), CodecFigures("snappy", 1, 0.1, 2.0)))


REMOTE = RemoteFigures(requests=1234, fetched_bytes=500 * MIB, retries=7, most_in_flight=32)
WAITING = {"cpu_s": stages(read=2.0, gather=1.0), "blocked_s": stages(), "idle_s": 17.0, "queued_s": 0.0}

CASES = {
    "tiny row groups": Case(
        ("tiny_row_groups",),
        ("100 rows (9.8 KiB decoded)", "100,000", "120 µs", "8 MiB", "rewrite SOURCE TARGET"),
        {"row_groups": 100_000},
    ),
    "tiny row groups, and a loop that was left": Case(
        ("tiny_row_groups",),
        ("100 rows (9.8 KiB decoded)",),
        {"row_groups": 100_000, "rows": 10_000, "shuffling": replace(SHUFFLING, row_groups=100_000)},
    ),
    "small batches": Case(
        ("small_batches",),
        ("4 rows each", "3 µs whatever it holds, with 10 columns", "idle 85%", "batch_size"),
        {"batches": 2_500_000, "cpu_s": stages(read=0.4), "blocked_s": stages(), "queued_s": 0.0, "idle_s": 17.0},
    ),
    "few rows of many columns": Case(
        ("tiny_row_groups",), ("1,000 rows",), {"row_groups": 10_000, "storage": replace(STORAGE, columns=100)}
    ),
    "zstd": Case(
        ("compression",), ("zstd", "about 31% of the decoding time", "500 MB/s a thread"), {"storage": zstd(500e6)}
    ),
    "kernels": Case(
        ("kernels",),
        ("not compiled", "100% of the decoded bytes", "build.py"),
        {"kernels": "it was not compiled when the package was installed"},
    ),
    "encoding": Case(
        ("slow_encoding",),
        ("2 columns of numbers ('a', 'b'; 60% of the decoded bytes)", "the kernels do not know the encodings"),
        {"storage": replace(STORAGE, slow=(SlowColumns("encoding", ("a", "b"), 0.6),))},
    ),
    "checksums": Case(
        ("slow_options",),
        ("1 column of numbers ('a'; 100% of the decoded bytes)", "verify_checksums"),
        {"storage": replace(STORAGE, slow=(SlowColumns("options", ("a",), 1.0),))},
    ),
    "nothing special": Case(("decoding",), ("Decoding takes 73%", "44 MB/s"), {}),
    "one row group": Case(
        ("few_row_groups", "mixing"),
        ("idle 60%", "there is one row group"),
        {
            "num_threads": 4,
            "processors": 4,
            "idle_s": 24.0,
            "row_groups": 1,
            "shuffling": replace(SHUFFLING, row_groups=1, row_groups_per_window=1.0, measured=None),
        },
    ),
    "memory_limit": Case(
        ("memory_limit",),
        ("memory_limit=100.0 MiB prevents reading ahead", "idle 60%"),
        {
            "memory_limit_bytes": 100 * MIB,
            "peak_bytes": 60 * MIB,
            "idle_s": 12.0,
            "shuffling": replace(SHUFFLING, is_cut_by_memory=True),
        },
    ),
    "too few threads": Case(
        ("too_few_threads",),
        ("num_threads=16", "32 processors"),
        {"processors": 32, "idle_s": 0.5, "storage": None},
    ),
    "too many threads": Case(
        ("too_many_threads",),
        ("16 workers share 2 processors", "num_threads=2"),
        {"num_threads": 16, "blocked_s": stages(read=60.0), "queued_s": 58.0, "idle_s": 20.0},
    ),
    "busy processors": Case(
        ("busy_processors",), ("busy with other work",), {"blocked_s": stages(read=30.0), "queued_s": 29.0}
    ),
    "disk": Case(
        ("disk",),
        ("50.0 MiB a second", "waited 80%"),
        {
            "bytes_from_disk": 500 * MIB,
            "cpu_s": stages(read=2.0),
            "blocked_s": stages(read=8.0),
            "queued_s": 0.0,
            "idle_s": 10.0,
        },
    ),
    "network": Case(
        ("network",),
        ("50.0 MiB a second", "1,234 requests, 7 of them retries", "LocalCache"),
        {**WAITING, "remote": REMOTE, "max_requests": 64},
    ),
    "network, all requests in flight": Case(
        ("network",), ("max_requests (now 32)",), {**WAITING, "remote": REMOTE, "max_requests": 32}
    ),
    "network, without reading ahead": Case(
        ("network",),
        ("workers waited 85% of the time", "One wait of 7.9 s is most of it"),
        {
            **WAITING,
            "idle_s": 0.0,
            "blocked_s": stages(read=17.0),
            "bytes_from_disk": 500 * MIB,
            "longest_wait_s": 7.9,
            "remote": REMOTE,
        },
    ),
    "network, memory": Case(
        ("network",),
        ("memory_limit (now 1.0 GiB)",),
        {**WAITING, "remote": REMOTE, "max_requests": 64, "peak_bytes": 700 * MIB},
    ),
    "GIL in transform": Case(
        ("gil",),
        ("4 workers ran it for 9.0 s", "waited 25.0 s for each other", "large numpy calls", "transform_workers=8"),
        {
            "transforms": True,
            "num_threads": 4,
            "processors": 8,
            "cpu_s": stages(read=0.5, process=9.0),
            "blocked_s": stages(process=25.0),
            "queued_s": 0.0,
            "idle_s": 5.0,
        },
    ),
    "transform that waits": Case(
        ("transform_waits",),
        ("blocked for 18.0 s of its 18.5 s",),
        {
            "transforms": True,
            "cpu_s": stages(read=0.5, process=0.5),
            "blocked_s": stages(process=18.0),
            "queued_s": 0.0,
            "idle_s": 1.0,
        },
    ),
    "transform that computes": Case(
        ("transform",),
        ("1.5 ms of processor time a batch",),
        {
            "transforms": True,
            "cpu_s": stages(read=1.0, process=15.0),
            "blocked_s": stages(process=1.0),
            "queued_s": 0.5,
        },
    ),
    "transform in too few processes": Case(
        ("transform",),
        ("15.0 ms of processor time a batch in 2 processes", "8 processors: raise transform_workers (now 2)"),
        {
            "transforms": True,
            "transform_workers": 2,
            "num_threads": 2,
            "processors": 8,
            "batches": 1000,
            "cpu_s": stages(read=1.0, process=15.0),
            "blocked_s": stages(process=3.0),
            "queued_s": 0.0,
            "idle_s": 19.0,
        },
    ),
    "transform that waits in processes": Case(
        ("transform_waits",),
        ("blocked for 18.0 s of its 18.5 s", "more transform_workers"),
        {
            "transforms": True,
            "transform_workers": 2,
            "cpu_s": stages(read=0.5, process=0.5),
            "blocked_s": stages(process=18.0),
            "queued_s": 0.0,
            "idle_s": 19.0,
        },
    ),
    "GIL of the loop": Case(
        ("gil_of_the_loop",),
        ("isolation='process'",),
        {"wait_s": 4.0, "cpu_s": stages(read=5.0), "blocked_s": stages(read=6.0), "queued_s": 0.0, "storage": None},
    ),
    "narrow columns": Case(
        ("narrow_columns",),
        ("40 narrow columns", "Group("),
        {
            "cpu_s": stages(read=2.0, gather=14.0),
            "storage": replace(STORAGE, columns=40, row_bytes=160.0),
        },
    ),
    "sorted by a label": Case(
        ("decoding", "mixing"),
        ("98% of the variance of 'label'", "4 of its 100 values", "5.0% of the rows, from 2 of 100 row groups"),
        {
            "shuffling": replace(
                SHUFFLING, row_groups_per_window=2.0, measured=MixingFigures("label", 20, 0.98, 4.0, 100)
            )
        },
    ),
    "sorted row numbers": Case(
        ("decoding", "mixing"),
        ("harmless if 'id' only numbers the rows",),
        {"shuffling": replace(SHUFFLING, measured=MixingFigures("id", 20, 0.98, 4096.0, None, is_distinct=True))},
    ),
    "sorted by words": Case(
        ("decoding", "mixing"),
        ("sorted by 'country': the footers say that 3.0% of pairs of row groups have values in common",),
        {"shuffling": replace(SHUFFLING, row_groups_per_window=4.0, sorting=SortingFigures("country", 0.03))},
    ),
    "sorted by words, many row groups a window": Case(
        ("decoding",), ("Decoding",), {"shuffling": replace(SHUFFLING, sorting=SortingFigures("country", 0.03))}
    ),
    "windows cut by memory_limit": Case(
        ("decoding", "mixing"),
        ("Raise memory_limit (now 1.0 GiB",),
        {"shuffling": replace(SHUFFLING, is_cut_by_memory=True, measured=MixingFigures("label", 20, 0.5))},
    ),
    "neighbours only": Case(
        ("decoding", "mixing"),
        ("If the rows are sorted or grouped",),
        {"shuffling": replace(SHUFFLING, row_groups_per_window=1.0, measured=None)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_cause_is_named_with_its_numbers_and_its_remedy(name: str) -> None:
    case = CASES[name]
    found = findings_of(replace(DECODING, **case.changes))
    assert tuple(sorted(f.cause for f in found)) == tuple(sorted(case.causes))
    text = "\n".join(f.text for f in found)
    missing = [part for part in case.says if part not in text]
    assert not missing, text


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "mixing" not in case.causes])
def test_nothing_is_said_if_the_epoch_is_short_or_the_loop_does_not_wait(name: str) -> None:
    changed = replace(DECODING, **CASES[name].changes)
    assert not findings_of(replace(changed, seconds=0.9))
    assert not findings_of(replace(changed, wait_s=0.5))
    assert not findings_of(replace(changed, batches=1))


@pytest.mark.parametrize(
    "shuffling",
    [
        replace(SHUFFLING, is_shuffled=False, row_groups_per_window=1.0, measured=None),
        replace(SHUFFLING, windows=1, row_groups=1, row_groups_per_window=1.0, measured=None),
        replace(SHUFFLING, row_groups_per_window=1.0),
        None,
    ],
    ids=["in order", "one window", "mixed all the same", "unknown"],
)
def test_mixing_is_praised_by_silence(shuffling: ShuffleFigures | None) -> None:
    assert findings_of(replace(HEALTHY, shuffling=shuffling)) == ()


def test_the_loop_is_not_blamed_for_waits_before_the_first_batch() -> None:
    gil = replace(DECODING, **CASES["GIL of the loop"].changes)
    assert [found.cause for found in findings_of(gil)] == ["gil_of_the_loop"]
    assert [found.cause for found in findings_of(replace(gil, first_batch_s=3.95))] == ["decoding"]


@pytest.mark.parametrize("name", ["GIL in transform", "GIL of the loop", "transform that computes"])
def test_no_gil_is_blamed_on_a_free_threaded_python(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    found = findings_of(replace(DECODING, **CASES[name].changes))
    assert found
    assert not [finding for finding in found if "GIL" in finding.text or "gil" in finding.cause]


def test_large_batches_that_come_slowly_are_not_called_small() -> None:
    slow = replace(DECODING, batches=100, cpu_s=stages(read=0.4), blocked_s=stages(), queued_s=0.0, idle_s=17.0)
    assert findings_of(slow) == ()
    assert slow.bound_by == "delivery"


def test_findings_come_by_cost_and_mixing_first() -> None:
    both = replace(
        DECODING,
        num_threads=4,
        row_groups=100_000,
        blocked_s=stages(read=14.0),
        queued_s=14.0,
        storage=zstd(2e9),
        shuffling=replace(SHUFFLING, measured=MixingFigures("label", 20, 0.98)),
    )
    found = findings_of(both)
    assert [f.cause for f in found] == ["mixing", "tiny_row_groups", "too_many_threads"]
    assert found[0].cost_s == 0
    assert both.wait_s >= found[1].cost_s >= found[2].cost_s > 0


def test_advice_is_empty_and_the_verdict_says_why() -> None:
    assert HEALTHY.advice == ""
    assert HEALTHY.verdict == ("loading is not the bottleneck: the loop waited 3% of the time; the training step is")
    assert replace(HEALTHY, seconds=0.2).verdict == "too short to judge: advice needs 1 s and 2 batches"
    assert DECODING.verdict == "bound by decoding: the loop waited 80% of the time"


def test_figures_survive_json_with_the_derived_ones() -> None:
    stats = replace(
        DECODING,
        remote=REMOTE,
        cache=CacheStats(hits=1, bytes_from_cache=3, bytes_fetched=1),
        growth=SourceChange(new_files=1),
        skipped_row_groups=(SkippedRowGroup("a.parquet", 3, "damaged"),),
    )
    stats = replace(stats, findings=findings_of(replace(stats, remote=None)))
    told = stats.to_dict()
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert told["rows_per_s"] == 1_000_000
    assert told["wait_share"] == 0.8
    assert told["idle_share"] == 0.15
    assert told["cache_hit_rate"] == 0.75
    assert told["verdict"] == stats.verdict
    assert [f["cause"] for f in told["advice"]] == ["decoding"]
    assert told["advice"][0]["cost_s"] > 0
    assert told["storage"]["codecs"][0]["codec"] == "snappy"
    assert told["skipped_row_groups"] == [{"file": "a.parquet", "row_group": 3, "reason": "damaged"}]


def test_a_notebook_shows_lines_and_not_a_constructor() -> None:
    stats = replace(DECODING, findings=findings_of(DECODING), kernels="none")
    assert repr(stats) == str(stats)
    lines = repr(stats).splitlines()
    assert lines[0] == "epoch 1: 10000000 rows in 10000 batches, 10.00 s, 1,000,000 rows/s"
    assert "kernels not used: none" in lines
    assert lines[-1].startswith("- Decoding takes 73%")
    assert max(map(len, lines[:-1])) < 120


@pytest.mark.parametrize("distribution", ["uniform", "lognormal", "outlier", "constant", "labels", "bool"])
def test_the_meter_finds_no_fault_with_rows_in_random_order(distribution: str) -> None:
    rng = np.random.default_rng(0)
    values: Any = {
        "uniform": rng.random(40_000),
        "lognormal": rng.lognormal(0, 4, 40_000),
        "outlier": np.append(np.zeros(39_999), 1e300),
        "constant": np.full(40_000, 7),
        "labels": rng.integers(0, 10, 40_000),
        "bool": rng.random(40_000) < 0.01,
    }[distribution]
    meter = MixingMeter()
    for window in np.split(rng.permutation(values), 8):
        meter.observe({"x": window})
    worst = meter.worst()
    assert worst is None or worst.between_share < 0.1


def test_the_meter_names_the_sorted_column_among_others_and_counts_its_values() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(100), 400)
    meter = MixingMeter()
    for window in np.split(labels, 10):
        meter.observe(
            {"noise": rng.random(4000), "label": rng.permutation(window), "nan": np.full(4000, np.nan), "text": ["a"]}
        )
    worst = meter.worst()
    assert worst is not None
    assert (worst.column, worst.windows, worst.values_in_window, worst.values) == ("label", 10, 10.0, 100)
    assert worst.between_share > 0.98


def test_the_meter_names_a_label_rather_than_row_numbers() -> None:
    meter = MixingMeter()
    for number in range(8):
        rows = np.arange(number * 1000, (number + 1) * 1000)
        meter.observe({"id": np.random.default_rng(0).permutation(rows), "label": rows // 500})
    worst = meter.worst()
    assert worst is not None
    assert (worst.column, worst.is_distinct) == ("label", False)


@pytest.mark.parametrize(
    ("least", "greatest", "expected"),
    [
        (range(10), range(10), 0.1),
        ([0] * 10, [9] * 10, 1.0),
        (np.arange(10) // 5, np.arange(10) // 5, 0.5),
        (["a", "b", "c"], ["b", "c", "d"], 7 / 9),
        ([3], [4], 1.0),
    ],
    ids=["sorted", "random", "two labels", "text", "one"],
)
def test_ranges_of_row_groups_tell_sorted_data(least: Any, greatest: Any, expected: float) -> None:
    assert overlap_share(np.array(least), np.array(greatest)) == pytest.approx(expected)


@pytest.mark.parametrize("calls", [2, 3, 5, 40])
def test_windows_measured_a_few_columns_at_a_time_give_the_same(calls: int) -> None:
    rng = np.random.default_rng(0)
    at_once, in_parts = MixingMeter(), MixingMeter()
    for number in range(6):
        arrays: dict[str, Any] = {f"f{n}": rng.random(500) + number * (n == 3) for n in range(5)}
        arrays |= {"label": np.full(500, number), "nan": np.full(500, np.nan), "skewed": rng.zipf(1.5, 500)}
        at_once.observe(arrays)
        in_parts.observe(arrays, calls)
        for _ in range(calls - 1):
            in_parts.go_on()
    assert at_once.worst() is not None
    assert in_parts.worst() == at_once.worst()


def test_a_window_that_is_measured_is_let_go_of() -> None:
    meter, window = MixingMeter(), np.arange(500)
    seen = weakref.ref(window)
    meter.observe({"x": window, "y": window}, 2)
    del window
    assert seen() is not None
    meter.go_on()
    assert seen() is None


def test_the_meter_says_nothing_after_few_windows() -> None:
    meter = MixingMeter()
    for value in range(3):
        meter.observe({"x": np.full(100, value)})
    assert meter.worst() is None


def test_a_window_left_early_is_measured_and_let_go_of() -> None:
    rng, meter = np.random.default_rng(0), MixingMeter()
    meter.observe({"x": rng.random(500), "y": rng.random(500)})
    last = rng.random(500)
    meter.observe({"x": last, "y": rng.random(500)}, 2)
    figures = meter.worst(fewest_windows=2)
    assert figures is not None
    assert (figures.column, figures.windows) == ("y", 2)
    seen = weakref.ref(last)
    del last
    meter.finish()
    assert seen() is None
    figures = meter.worst(fewest_windows=2)
    assert figures is not None
    assert figures.between_share < 0.1
