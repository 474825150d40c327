"""``parquet-loader bench``: every case runs, spreads are those of the runs, plots are whole."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from parquet_loader.loader.report.bars import Bar, bars, bars_page
from parquet_loader.loader.simulation.calibration import LoaderSetup, opened
from parquet_loader.loader.simulation.comparison import Case, Outcome, cases_of, compare
from tests.support.command_line import run_here


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("source")
    pq.write_table(pa.table({"x": np.arange(20_000.0)}), folder / "a.parquet", row_group_size=1_000)
    return str(folder)


def test_cases_differ_in_one_argument_and_the_source_has_rows_for_them(source: str) -> None:
    setup = LoaderSetup(source, 500, num_threads=3, window_rows=4_000)
    cases = cases_of(setup, opened(setup))
    assert {"1", "2", "3"} <= {case.value for case in cases if case.group == "threads"}
    assert [c.setup.window_rows for c in cases if c.group == "window_rows"] == [1_000, 4_000, 16_000]
    assert [c.setup.batch_size for c in cases if c.group == "batch_size"] == [125, 500, 2_000]
    assert [c.value for c in cases if c.group == "isolation"] == ["thread", "process"]


def test_no_window_is_larger_than_the_source(source: str) -> None:
    setup = LoaderSetup(source, 500)  # its default window has more than the 20,000 rows
    cases = cases_of(setup, opened(setup))
    assert [c.setup.window_rows for c in cases if c.group == "window_rows"] == [5_000, 20_000]


def test_runs_are_counted_but_for_the_first(source: str) -> None:
    setup = LoaderSetup(source, 500, num_threads=1, window_rows=2_000)
    seen: list[tuple[int, int]] = []
    too_small = Case("threads", "2", LoaderSetup(source, 500, memory_limit=2**16))
    found = compare(
        setup, repeats=2, seconds=0.01, cases=[Case("threads", "1", setup), too_small],
        progress=lambda done, of: seen.append((done, of)),
    )  # fmt: skip
    assert len(found[0].rows_per_s) == len(found[0].first_batch_s) == 2
    assert min(found[0].rows_per_s) > 0
    assert found[0].peak_bytes > 0
    assert "memory_limit=64.0 KiB" in found[1].problem
    assert found[1].rows_per_s == []
    assert seen[-1] == (6, 6)


@pytest.mark.parametrize(
    ("rates", "middle", "spread"),
    [([3.0, 1.0], 2.0, (1.0, 3.0)), ([4.0, 1.0, 2.0, 3.0, 5.0], 3.0, (2.0, 4.0)), ([], 0.0, (0.0, 0.0))],
)
def test_spreads_are_quartiles_or_extremes(rates: list[float], middle: float, spread: tuple[float, float]) -> None:
    outcome = Outcome(Case("threads", "1", LoaderSetup("x", 1)), rates)
    assert outcome.median == middle
    assert outcome.spread == spread


def test_plots_are_xml_without_requests() -> None:
    svg = bars('<&">', [("threads", [Bar("1", 2.0, 1.0, 4.0, "<2>"), Bar("2", 0.0, 0.0, 0.0, "0")])])
    root = ET.fromstring(svg)
    rects = [float(e.attrib["width"]) for e in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert rects[0] > 0
    assert rects[1] == 0
    page = bars_page("t", svg, "<about>")
    assert "<script" not in page
    assert page.count("http") == 1  # the name of the SVG format
    assert "&lt;about&gt;" in page


@pytest.mark.skipif(sys.platform != "linux", reason="isolation='process' needs Linux")
def test_the_command_prints_json_and_draws(source: str, tmp_path: Path) -> None:
    plot = tmp_path / "bench.html"
    done = run_here(
        "bench",
        source,
        "--batch-size",
        500,
        "--threads",
        1,
        "--repeats",
        2,
        "--seconds",
        0.01,
        "--plot",
        plot,
        "--json",
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {case["argument"] for case in found["cases"]} == {"threads", "isolation", "window_rows", "batch_size"}
    assert all(case["problem"] or len(case["rows_per_s"]) == 2 for case in found["cases"])
    assert "<svg" in plot.read_text()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="isolation='process' needs Linux")
def test_the_rates_are_printed_even_if_the_plot_cannot_be_written(source: str, tmp_path: Path) -> None:
    plot = tmp_path / "none" / "bench.html"
    done = run_here("bench", source, "--threads", 1, "--repeats", 2, "--seconds", 0.01, "--plot", plot)
    assert done.returncode == 1
    assert "No such file or directory" in done.stderr
    assert "rows/s" in done.stdout


def test_another_kind_of_plot_is_refused(source: str) -> None:
    done = run_here("bench", source, "--plot", "bench.png")
    assert done.returncode == 2
    assert "ends in .html or .svg" in done.stderr
