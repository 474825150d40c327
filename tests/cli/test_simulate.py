"""``parquet-loader simulate``: text, JSON, the run beside it, its report, and wrong uses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from tests.support.command_line import run_here


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    pq.write_table(pa.table({"x": np.arange(50_000.0)}), folder / "a.parquet", row_group_size=5_000)
    return folder


def test_a_prediction_and_the_epoch_beside_it(source: Path, tmp_path: Path) -> None:
    page = tmp_path / "epoch.html"
    done = run_here("simulate", source, "--batch-size", 500, "--seconds", 0.1, "--run", "--report", page, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["predicted"]["rows"] == 50_000
    assert found["predicted"]["batches"] == 100
    assert found["measured"]["seconds"] > 0
    assert set(found["measured"]["predicted_at_this_step"]) >= {"seconds", "first_batch_s", "peak_bytes"}
    for given in (found["predicted"], found["measured"]["predicted_at_this_step"]):
        for name, (least, most) in given["ranges"].items():
            assert 0 <= least <= most, name
        assert set(given["ranges"]) >= {"seconds", "first_batch_s", "peak_bytes"}
    assert found["object_store"]["reads"] == 10
    assert found["object_store"]["cost_usd"] == pytest.approx(10 * 0.0004 / 1000)
    assert page.read_text().startswith("<!doctype html>")


def test_the_figures_are_printed_even_if_the_report_cannot_be_written(source: Path, tmp_path: Path) -> None:
    done = run_here("simulate", source, "--seconds", 0.05, "--run", "--report", tmp_path / "none" / "a.html", "--json")
    assert done.returncode == 1
    assert "No such file or directory" in done.stderr
    assert json.loads(done.stdout)["measured"]["seconds"] > 0


def test_text_names_what_is_predicted(source: Path) -> None:
    done = run_here("simulate", source, "--step-ms", 1, "--seconds", 0.05, "--ranks", 2, "--provider", "gcs")
    assert done.returncode == 0, done.stderr
    assert "one of 2 ranks: 25,000 rows in 98 batches" in done.stdout
    for line in ("first batch", "epoch", "most memory held", "10 requests"):
        assert line in done.stdout
    assert "measured" not in done.stdout


def test_prices_can_be_given(source: Path) -> None:
    done = run_here("simulate", source, "--seconds", 0.05, "--price-reads", 1000, "--price-gib", 0, "--json")
    assert json.loads(done.stdout)["object_store"]["cost_usd"] == pytest.approx(10)


@pytest.mark.parametrize("option", ["--step-ms", "--seconds", "--price-reads", "--price-gib"])
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_numbers_that_no_clock_and_no_json_holds_are_refused(source: Path, option: str, number: str) -> None:
    done = run_here("simulate", source, option, number)
    assert done.returncode == 2
    assert f"Invalid value for '{option}': {number} is not a finite number" in done.stderr


def test_wrong_uses_are_one_line(source: Path) -> None:
    assert run_here("simulate", source, "--report", "x.html").returncode == 2
    done = run_here("simulate", source / "none")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
