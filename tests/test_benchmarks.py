"""The benchmarks, tiny: sums that notice what is wrong, two systems run and agree, and the page follows the results."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.suite import places
from benchmarks.suite.checksum import Checksum, ChecksumError
from benchmarks.suite.claims import faster_peers, ratio
from benchmarks.suite.entries import ENTRIES, rows_of, select
from benchmarks.suite.workloads import WORKLOADS, Column

COLUMNS = (
    Column("x", "float32"),
    Column("k", "int8"),
    Column("v", "float32", "vector", 4),
    Column("t", "int32", "list", 3),
)


def batch(rows: int = 50, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 6, rows)
    return {
        "x": rng.random(rows, dtype=np.float32),
        "k": rng.integers(-5, 5, rows).astype(np.int8),
        "v": rng.random((rows, 4), dtype=np.float32),
        "t": (rng.integers(0, 9, lengths.sum()).astype(np.int32), np.concatenate([[0], np.cumsum(lengths)])),
    }


def rows_at(columns: dict[str, Any], rows: np.ndarray[Any, Any]) -> dict[str, Any]:
    values, offsets = columns["t"]
    pieces = [values[offsets[row] : offsets[row + 1]] for row in rows]
    lists = (np.concatenate([np.empty(0, np.int32), *pieces]), np.concatenate([[0], np.cumsum([*map(len, pieces)])]))
    return {name: lists if name == "t" else columns[name][rows] for name in columns}


def total(*batches: dict[str, Any]) -> str:
    checksum = Checksum(COLUMNS)
    for each in batches:
        checksum.add(each)
    return str(checksum)


def test_a_checksum_does_not_depend_on_order_batches_or_wider_types() -> None:
    columns = batch()
    order = np.random.default_rng(1).permutation(50)
    wider = rows_at(columns, order) | {"k": columns["k"][order].astype(np.int64)}
    assert total(columns) == total(wider)
    assert total(columns) == total(rows_at(columns, order[:13]), rows_at(columns, order[13:]))


@pytest.mark.parametrize("name", ["lost", "doubled", "value", "moved", "columns", "list", "lengths"])
def test_a_checksum_notices(name: str) -> None:
    columns, all_rows, all_values = batch(), np.arange(50), np.arange(51)
    values, offsets = columns["t"]
    changes: dict[str, Callable[[], dict[str, Any]]] = {
        "lost": lambda: rows_at(columns, all_rows[1:]),
        "doubled": lambda: rows_at(columns, np.append(all_rows[1:], 7)),
        "value": lambda: columns | {"x": np.where(all_rows == 3, np.float32(9), columns["x"])},
        "moved": lambda: columns | {"x": np.roll(columns["x"], 1)},  # the same values, in other rows
        "columns": lambda: columns | {"v": columns["v"][:, ::-1].copy()},
        "list": lambda: columns | {"t": (values[::-1].copy(), offsets)},
        "lengths": lambda: columns | {"t": (values, np.where(all_values < 50, 0, len(values)))},
    }
    assert total(changes[name]()) != total(columns)


def test_a_checksum_refuses_missing_columns_and_lost_digits() -> None:
    columns = batch()
    with pytest.raises(ChecksumError, match="expected the columns"):
        total({name: columns[name] for name in ("x", "v", "t")})
    with pytest.raises(ChecksumError, match="do not fit"):
        total(columns | {"k": columns["k"].astype(np.int64) + 1000})


def test_every_system_has_a_module_and_every_environment_its_pins() -> None:
    for entries in ENTRIES.values():
        assert len({entry.name for entry in entries}) == len(entries)
        for entry in entries:
            assert (places.ROOT / "benchmarks" / "suite" / "systems" / f"{entry.system}.py").is_file()
            assert (places.REQUIREMENTS / f"{entry.environment}.txt").is_file()


def test_entries_are_chosen_by_entry_system_and_first_word() -> None:
    def names(*chosen: str) -> list[str]:
        return [entry.name for entry in select(WORKLOADS["science"], chosen)]

    assert names("tfrecord") == ["tfrecord"]
    assert names("torch") == ["torch-0", "torch-2", "torch-0-raw"]
    assert names("lance_format") == ["lance", "lance-take"]
    assert names("decode-polars") == []  # only in other workloads
    with pytest.raises(KeyError):
        names("tfrecords")
    slow = next(entry for entry in ENTRIES["tabular"] if entry.share_rows)
    assert rows_of(WORKLOADS["tabular"], slow, 1.0) == slow.share_rows


def run_suite(home: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.suite", "run", "tabular", "--scale", "0.0005", "--rounds", "2"]
    command += ["--home", str(home), "--here", *arguments]
    done = subprocess.run(command, cwd=places.ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    entries: dict[str, Any] = json.loads((home / "small-results" / "tabular.json").read_text())["entries"]
    return entries


@pytest.mark.slow
def test_a_run_verifies_rows(tmp_path: Path) -> None:
    (entry,) = run_suite(tmp_path, "--system", "ours-packed").values()
    assert entry["status"] == "ok", entry["reason"]
    assert entry["verified"] is True
    assert len(entry["seconds"]["all"]) == 2
    assert entry["rows"] == 2000


@pytest.mark.slow
@pytest.mark.timeout(300)  # many interpreters start
def test_a_run_verifies_times_and_takes_up_where_it_stopped(tmp_path: Path) -> None:
    both = ("--system", "ours-packed", "--system", "decode-packed")
    entries = run_suite(tmp_path, *both)
    assert set(entries) == {"ours-packed", "decode-packed"}
    for entry in entries.values():
        assert entry["status"] == "ok", entry["reason"]
        assert entry["verified"] is True
        assert len(entry["seconds"]["all"]) == len(entry["processor_s"]["all"]) == 2
        assert entry["first_epoch"]["seconds"] > 0
        assert entry["rows"] == 2000
    found = ratio(entries, "ours-packed", "decode-packed")
    assert found is not None
    assert found.paired

    # Rows that are not those expected are found out, and `--missing` measures that entry again and no other.
    marker = tmp_path / "data" / "tabular-2000" / "packed.json"
    right = marker.read_text()
    marker.write_text(json.dumps(json.loads(right) | {"checksum": "0" * 16}))
    entries = run_suite(tmp_path, "--system", "decode-packed")
    assert entries["decode-packed"]["status"] == "wrong"
    assert "delivered 2000 rows" in entries["decode-packed"]["reason"]
    before = entries["ours-packed"]["run"]["date"]
    marker.write_text(right)
    entries = run_suite(tmp_path, *both, "--missing")
    assert entries["decode-packed"]["status"] == "ok"
    assert entries["ours-packed"]["run"]["date"] == before


def sample_entry(rate: float, role: str = "peer", **more: Any) -> dict[str, Any]:
    def spread(value: float) -> dict[str, Any]:
        return {"median": value, "min": value * 0.9, "max": value * 1.1, "all": [value * 0.9, value, value * 1.1]}

    hardware = {"processor": "A processor", "cores": 2, "cores_used": 2, "memory_gib": 8.0}
    run = {"date": "2026-01-01T00:00:00+00:00", "command": "a command", "rounds": 3, "threads": 2, "hardware": hardware}
    entry = {
        "title": f"A {role}",
        "role": role,
        "shuffles": "rows of a window",
        "rows": 100,
        "status": "ok",
        "reason": "",
    }
    rates = {name: spread(rate) for name in ("seconds", "rows_per_s", "bytes_per_s")}
    return {**entry, "verified": True, "run": run, **rates, "figures": {}, **more}


@pytest.mark.slow
def test_the_gpu_benchmark_keeps_no_batch_when_it_measures_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from benchmarks import gpu

    def used_bytes(_: gpu.Bench) -> int:
        gc.collect()
        return sum(one.nbytes for one in gc.get_objects() if type(one) is torch.Tensor and one.shape[1:] == (4096,))

    monkeypatch.setattr(gpu.Bench, "used_bytes", used_bytes)
    found = gpu.memory(gpu.Bench("cpu", tmp_path, 0.001, 1))
    assert set(found.values()) == {0}


def test_the_page_says_who_is_ahead_and_what_failed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.suite.report import write

    entries = {
        "ours": sample_entry(
            5e6,
            "ours",
            figures={"cpu_s": {"read": 3.0, "permute": 0.5, "gather": 1.0, "process": 0.0}},
            first_epoch={"seconds": 9.0, "processor_s": 8.0},
            processor_s={"median": 5.5},
        ),
        "decode": sample_entry(1e7, "limit"),
        "petastorm": sample_entry(1e5),
        "lance": sample_entry(7e6, shuffles="nothing"),
        "ray": {**sample_entry(1), "status": "failed", "reason": "ImportError: no such thing\nmore"},
    }
    about = {
        "workload": "tabular",
        "rows": 100,
        "batch_size": 4096,
        "window_rows": 10,
        "unit": "rows",
        "data": "numbers",
    }
    results, page = tmp_path / "results", tmp_path / "docs" / "benchmarks.md"
    results.mkdir()
    (results / "tabular.json").write_text(json.dumps({**about, "entries": entries}))
    write(results, page, tmp_path / "docs" / "images")
    text = page.read_text()
    assert "Ahead of `ours` here: `lance` is 1.40 times as fast (shuffles nothing)" in text
    assert "failed: ImportError: no such thing\n" in text
    assert "| *tabular* | 9.000 | 5000000.000 | 5.500 | 3.000 | 0.500 | 1.000 | 0.000 | 1.000 |" in text
    assert "| *tabular* | compared with Petastorm | 50 | 50 to 50 | 18 | yes |" in text
    assert (
        "| *tabular* | default layout, batch 4096, compared with decoding alone | 0.50 | 0.50 to 0.50 | 1 | **no** |"
        in text
    )
    for plot in ("tabular.png", "stages.png"):
        assert (tmp_path / "docs" / "images" / plot).read_bytes().startswith(b"\x89PNG")
        assert f"images/{plot})" in text
    ((peer, ratio),) = faster_peers(entries)
    assert peer == "lance"
    assert ratio == pytest.approx(1.4)
