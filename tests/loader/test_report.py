"""The report and the trace of an epoch: whole, safe, without requests, and true to what happened."""

from __future__ import annotations

import json
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, LoaderStateError, OutputOptions, write_dataset
from parquet_loader.engine import STAGES, EngineRecord, EventLog, Progress, Sample, SampleLog, events_of
from parquet_loader.engine.workers.record import MOST_EVENTS, MOST_SAMPLES
from parquet_loader.loader.epochs.epoch_figures import EpochRecord
from parquet_loader.loader.report.charts import Series, chart
from parquet_loader.loader.report.timeline import MOST_INTERVALS, timeline_of

ISOLATIONS = ["thread", "process"] if sys.platform == "linux" else ["thread"]
NUMPY = OutputOptions(format="numpy")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("<b>&'source")
    columns = {f"x{i}": np.random.default_rng(i).random(60_000) for i in range(3)}
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=3_000, compression="zstd")
    return str(folder)


class Page(HTMLParser):
    """Checks that elements are closed, and collects what a page loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.figures = 0
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.figures += tag == "figure"
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    "isolation", [ISOLATIONS[0], *(pytest.param(one, marks=pytest.mark.slow) for one in ISOLATIONS[1:])]
)
def test_a_report_is_one_file_with_all_charts_and_no_requests(source: str, tmp_path: Path, isolation: Any) -> None:
    with BatchedDataLoader(source, 500, shuffle=True, window_rows=9_000, isolation=isolation) as loader:
        for _ in loader:
            pass
        loader.report(tmp_path / "epoch.html")
        stats = loader.stats()
    text = (tmp_path / "epoch.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.loads == []
    assert "url(" not in text
    assert "http" not in text
    assert page.figures == 6
    assert "prefers-color-scheme: dark" in text
    assert f"{stats.rows:,}" in text
    assert "nan" not in re.findall(r'd="[^"]*"', text)
    embedded = re.search(r'id="stats">(.*?)</script>', text)
    assert embedded is not None
    figures, expected = json.loads(embedded[1]), stats.to_dict()
    for key in ("held_bytes", "peak_bytes"):  # footers that were parsed since
        assert abs(figures.pop(key) - expected.pop(key)) < 2**20
    assert figures == expected


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_trace_holds_every_job_on_the_track_of_its_worker(source: str, tmp_path: Path, isolation: Any) -> None:
    with BatchedDataLoader(source, 500, shuffle=True, window_rows=9_000, num_threads=2, isolation=isolation) as loader:
        for _ in loader:
            pass
        loader.trace(tmp_path / "epoch.json")
        stats = loader.stats()
    trace = json.loads((tmp_path / "epoch.json").read_text(encoding="utf-8"))
    jobs = [event for event in trace["traceEvents"] if event.get("cat") == "job"]
    assert trace["otherData"]["dropped_jobs"] == 0
    for stage in STAGES:
        of_stage = [event for event in jobs if event["name"] == stage]
        assert sum(e["args"]["cpu_ms"] for e in of_stage) / 1e3 == pytest.approx(stats.cpu_s[stage], abs=2e-3, rel=0.02)
    assert {event["tid"] for event in jobs} <= {2, 3}
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in jobs)
    for track in (2, 3):
        spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in jobs if event["tid"] == track)
        assert all(end <= begin + 50 for (_, end), (begin, _) in pairwise(spans)), "one at a time"
    counters = {event["name"] for event in trace["traceEvents"] if event["ph"] == "C"}
    assert counters == {"held_bytes", "ready", "requests", "rows"}
    rows = [event["args"]["rows"] for event in trace["traceEvents"] if event["name"] == "rows"]
    assert rows == sorted(rows)
    assert rows[-1] == 60_000


def test_a_report_of_a_running_epoch_shows_what_was_delivered(source: str, tmp_path: Path) -> None:
    with BatchedDataLoader(source, 500, shuffle=True, window_rows=9_000, output_options=NUMPY) as loader:
        with pytest.raises(LoaderStateError, match=r"report\(\): no epoch has begun yet"):
            loader.report(tmp_path / "epoch.html")
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        loader.report(tmp_path / "epoch.html")
        loader.trace(tmp_path / "epoch.json")
        assert "1,500" in (tmp_path / "epoch.html").read_text(encoding="utf-8")
        assert len(list(batches)) == 117


def test_names_of_files_are_no_markup(source: str, tmp_path: Path) -> None:
    shown = chart("<b>", [(0.0, 1.0)], [Series("<i>&", "read", [1.0])], seconds=1.0, text=str)
    assert "<b>" not in shown
    assert "<i>&" not in shown
    with BatchedDataLoader(source, 500, columns=["x0"]) as loader:
        next(iter(loader))
        loader.report(tmp_path / "epoch.html")
    assert "<b>&'source" not in (tmp_path / "epoch.html").read_text(encoding="utf-8")


def test_a_log_keeps_the_latest_events_in_order() -> None:
    log = EventLog()
    for number in range(2 * MOST_EVENTS + 10):
        log.add(float(number), 0.0, 0.0, 0, 0)
    found = [event.began for event in events_of(log.packed())]
    assert found == [float(number) for number in range(MOST_EVENTS + 10, 2 * MOST_EVENTS + 10)]
    assert log.added == 2 * MOST_EVENTS + 10
    assert len(events_of(log.take())) == MOST_EVENTS
    assert log.packed() == b""


def test_a_log_can_be_read_while_another_thread_adds_events() -> None:
    log = EventLog()

    def work() -> None:
        for number in range(4 * MOST_EVENTS):
            log.add(float(number), 1.0, 2.0, 3, 4)

    thread = Thread(target=work)
    thread.start()
    while thread.is_alive():
        found = events_of(log.packed())
        assert {event[1:] for event in found} <= {(1.0, 2.0, 3, 4)}
        assert [event.began for event in found] == [found[0].began + number for number in range(len(found))]


def test_samples_stay_bounded_and_cover_a_long_epoch() -> None:
    log = SampleLog[Progress]()
    for number in range(200_000):
        if number * 0.01 >= log.due:
            log.add(Progress(number * 0.01, number, number, 0.0))
    found = [sample.at for sample in log.copy()]
    assert MOST_SAMPLES / 3 < len(found) <= MOST_SAMPLES
    assert found == sorted(found)
    assert found[-1] > 1_990
    assert max(np.diff(found)) < 20, "evenly spaced"


def test_no_interval_has_more_work_than_its_workers_can_do() -> None:
    nothing = (0.0,) * 4
    samples = [Sample(0.5, nothing, nothing, 0, 0, 0, 0, 0), Sample(1.0, (1.6, 0, 0, 0), (0.2, 0, 0, 0), 7, 1, 9, 0, 0)]
    waits = (Progress(1.0, 100, 1, 1.0),)
    record = EpochRecord(0.0, 1.0, EngineRecord(b"", tuple(samples)), b"", waits, 1)
    first, last = timeline_of(record, 2).work
    assert sum(last.cpu) + last.blocked == pytest.approx(2)
    assert sum(first.cpu) + first.blocked == pytest.approx(1.6)
    assert [(d.rows_per_s, d.wait_share) for d in timeline_of(record, 2).deliveries] == [(100, 1)]


def test_what_was_read_ahead_is_no_work_of_the_epoch() -> None:
    nothing = (0.0,) * 4
    samples = (Sample(4.0, (3.0, 0, 0, 0), nothing, 5, 1, 9, 0, 0), Sample(6.0, (3.5, 0, 0, 0), nothing, 5, 1, 9, 0, 0))
    (interval,) = timeline_of(EpochRecord(5.0, 6.0, EngineRecord(b"", samples), b"", (), 0), 4).work
    assert (interval.begin, interval.end) == (0.0, 1.0)
    assert interval.cpu[0] == pytest.approx(0.5)


def test_a_long_record_is_drawn_in_few_intervals() -> None:
    nothing = (0.0,) * 4
    samples = tuple(Sample(0.1 * n, (0.05 * n, 0, 0, 0), nothing, n, 0, n, 0, 0) for n in range(1, 513))
    timeline = timeline_of(EpochRecord(0.0, 52.0, EngineRecord(b"", samples), b"", (), 0), 2)
    assert len(timeline.work) <= MOST_INTERVALS
    assert timeline.work[-1].end == pytest.approx(51.2)
    assert {round(one.cpu[0], 6) for one in timeline.work} == {0.5}


def test_figures_are_json_without_numbers_that_json_lacks(source: str) -> None:
    with BatchedDataLoader(source, 500, shuffle=True, output_options=NUMPY) as loader:
        for _ in loader:
            pass
        figures = loader.stats().to_dict()
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    page = (Path(__file__).parents[2] / "docs/tuning.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_]+)`", page))
    assert set(figures) - named == set(), "docs/tuning.md names every key"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium (Debian: apt-get install chromium)")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_chromium_draws_the_report(source: str, tmp_path: Path, scheme: str) -> None:
    with BatchedDataLoader(source, 100, shuffle=True, window_rows=9_000, output_options=NUMPY) as loader:
        for _ in loader:
            time.sleep(0.0005)
        loader.report(tmp_path / "epoch.html")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    command += [f"--blink-settings=preferredColorScheme={int(scheme == 'light')}", "--window-size=900,1600"]
    picture = tmp_path / "page.png"
    subprocess.run([*command, f"--screenshot={picture}", str(tmp_path / "epoch.html")], check=True, timeout=100,
                   capture_output=True)  # fmt: skip
    image = pytest.importorskip("PIL.Image").open(picture).convert("RGB")
    pixels = np.asarray(image)
    assert (pixels[0, 0].mean() > 200) == (scheme == "light")
    blue = (40, 102, 208) if scheme == "light" else (110, 163, 255)
    assert np.count_nonzero((pixels == blue).all(axis=2)) > 1_000, "the charts are filled"


@pytest.mark.parametrize("method", ["report", "trace"])
def test_a_report_that_cannot_be_written_leaves_no_part_of_it(method: str, tmp_path: Path) -> None:
    write_dataset({"x": range(100)}, tmp_path / "data")
    with BatchedDataLoader(tmp_path / "data", 10) as loader:
        deque(loader, maxlen=0)
        write = getattr(loader, method)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        (tmp_path / "old").write_text("of before")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            for name in ("new", "old"):
                with pytest.raises(OSError, match=f"File too large: .*{tmp_path / name}"):
                    write(tmp_path / name)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, before)
        assert {path.name for path in tmp_path.iterdir()} == {"data", "old"}
        assert (tmp_path / "old").read_text() == "of before"
        (tmp_path / "old").chmod(0o640)
        write(tmp_path / "old")
        assert (tmp_path / "old").stat().st_mode & 0o777 == 0o640
        (tmp_path / "link").symlink_to(tmp_path / "named")
        write(tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "named").stat().st_size > 1000
        with pytest.raises(FileNotFoundError, match=f"'{tmp_path}/none/page'"):
            write(tmp_path / "none" / "page")
