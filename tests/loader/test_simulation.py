"""The simulator: bounds that every forecast keeps, and forecasts that come true."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader import DataError, LocalCache, SourceChange
from parquet_loader.loader.simulation.calibration import LoaderSetup, calibrate, loader_of, opened
from parquet_loader.loader.simulation.model import (
    MOST_WINDOWS,
    EngineLimits,
    EpochLoad,
    ReadLoad,
    WindowLoad,
    WorkRates,
    forecast,
    paced,
    windows_taken_s,
)
from parquet_loader.loader.simulation.network import LinkRates, Network
from parquet_loader.loader.simulation.prices import Prices, provider_of
from tests.support.examples import examples

ROW_BYTES = 8


@st.composite
def loads(draw: st.DrawFn, *, remote: bool = False) -> EpochLoad:
    windows = []
    for _ in range(draw(st.integers(1, 8))):
        rows = draw(st.lists(st.integers(1, 5000), min_size=1, max_size=6))
        nbytes = [draw(st.integers(1, 10**7)) if remote else 0 for _ in rows]
        reads = [
            ReadLoad(n, 2 * n * ROW_BYTES, size, draw(st.integers(1, 3)) if remote else 0, size)
            for n, size in zip(rows, nbytes, strict=True)
        ]
        windows.append(WindowLoad(tuple(reads), draw(st.integers(0, 20))))
    windows.append(WindowLoad((ReadLoad(1, 1),), 1))
    reads = [read for window in windows for read in window.reads]
    return EpochLoad(
        tuple(windows),
        sum(window.rows for window in windows),
        sum(window.batches for window in windows),
        sum(read.requests for read in reads),
        sum(read.fetched_bytes for read in reads),
    )


def limits_of(threads: int = 2, limit_bytes: int = 10**6, **others: object) -> EngineLimits:
    limits = EngineLimits(threads, 2, True, limit_bytes, limit_bytes // 2, 10**8, ROW_BYTES, order_jobs=2)
    return replace(limits, **others)  # type: ignore[arg-type]


RATES = WorkRates(1e-6, 5e-7, 2e-6, 1e-6, 2, 1e-5)
STEPS = st.sampled_from([0.0, 1e-5, 1e-3])


@given(loads(), st.integers(1, 8), st.sampled_from([1000, 10**5, 10**8]), STEPS)
@settings(max_examples=examples(30), deadline=None)
def test_an_epoch_takes_at_least_its_work_and_its_steps(
    load: EpochLoad, threads: int, limit_bytes: int, step_s: float
) -> None:
    found = forecast(load, RATES, limits_of(threads, limit_bytes), step_s=step_s)
    work_s = load.rows * (RATES.read_s + RATES.order_s)
    assert found.seconds >= work_s / threads - 1e-9
    assert found.seconds >= load.batches * (step_s + RATES.batch_s) - 1e-9
    assert found.seconds == pytest.approx(found.wait_s + load.batches * step_s)
    assert 0 < found.first_batch_s <= found.wait_s + 1e-12
    assert 0 <= found.busy_share <= 1
    assert found.peak_bytes >= max(window.rows for window in load.windows) * ROW_BYTES
    assert found == forecast(load, RATES, limits_of(threads, limit_bytes), step_s=step_s)


@given(loads(), st.sampled_from([10**5, 10**8]))
@settings(max_examples=examples(30), deadline=None)
def test_one_worker_takes_the_sum_of_its_jobs(load: EpochLoad, limit_bytes: int) -> None:
    rates = replace(RATES, first_windows=0, batch_s=0.0)
    found = forecast(load, rates, limits_of(1, limit_bytes))
    released_s = len(load.windows) * 1e-3
    assert load.rows * 1.5e-6 - 1e-9 <= found.seconds <= load.rows * 1.5e-6 + released_s + 1e-9


@given(loads(remote=True), st.floats(0.001, 0.2), st.sampled_from([1e6, 1e8]), st.sampled_from([5e5, 1e7]))
@settings(max_examples=examples(40), deadline=None)
def test_a_remote_epoch_takes_at_least_its_latency_and_its_bytes(
    load: EpochLoad, latency_s: float, link: float, connection: float
) -> None:
    rates = replace(RATES, network=LinkRates(latency_s, connection, link))
    found = forecast(load, rates, limits_of(waits_for_second=False, limit_bytes=10**9))
    assert found.seconds >= latency_s
    assert found.seconds >= load.fetched_bytes / link * 0.999
    assert found.requests == load.requests
    slower = replace(rates, network=LinkRates(10 * latency_s, connection, link))
    assert forecast(load, slower, limits_of(waits_for_second=False, limit_bytes=10**9)).first_batch_s > latency_s


def test_requests_share_the_link() -> None:
    network = Network(LinkRates(0.1, 50.0, 100.0), 64)
    for key in range(4):
        network.fetch(key, 100, 1)
    done, now = list[int](), 0.0
    while network.next_s < float("inf"):
        now = network.next_s
        done += network.advance(now)
    assert sorted(done) == [0, 1, 2, 3]
    assert now == pytest.approx(0.1 + 400 / 100)
    assert network.fetched_bytes == 400
    assert network.requests == 4


def test_a_single_request_has_the_rate_of_one_connection() -> None:
    network = Network(LinkRates(0.1, 50.0, 100.0), 64)
    network.fetch(7, 100, 1)
    network.advance(network.next_s)
    assert network.next_s == pytest.approx(0.1 + 2)
    assert network.advance(network.next_s) == [7]


def test_long_epochs_are_extrapolated() -> None:
    window = WindowLoad(tuple(ReadLoad(1000, 100) for _ in range(4)), 10)
    short = EpochLoad((window,) * MOST_WINDOWS, 4000 * MOST_WINDOWS, 10 * MOST_WINDOWS)
    long = replace(short, rows=10 * short.rows, batches=10 * short.batches)
    found, tenth = forecast(long, RATES, limits_of(step := 1)), forecast(short, RATES, limits_of(step))
    assert found.seconds == pytest.approx(10 * tenth.seconds, rel=0.03)
    assert found.simulated_share == pytest.approx(0.1)


@given(loads(), loads(remote=True), st.sampled_from([0.4, 1.0, 2.5, 9.0]), st.integers(0, 3), st.booleans())
@settings(max_examples=examples(40), deadline=None)
def test_rates_are_brought_to_the_pace_of_a_trial(
    local: EpochLoad, remote: EpochLoad, slower: float, left_out: int, is_remote: bool
) -> None:
    load, limits = remote if is_remote else local, limits_of(waits_for_second=not is_remote)
    rates = replace(RATES, network=LinkRates(0.02, 1e7, 5e7) if is_remote else None)
    names = ("read_s", "order_s", "first_read_s", "first_order_s")
    true = replace(rates, **{name: slower * getattr(rates, name) for name in names})
    if is_remote:
        true = replace(true, network=LinkRates(0.02 * slower, 1e7 / slower, 5e7 / slower))
    taken_s = windows_taken_s(load, true, limits)
    trial = taken_s[: len(taken_s) - left_out]
    found = paced(rates, load, limits, trial)
    if found == rates:  # few windows, which were ready before they were asked for
        return
    again = windows_taken_s(load, found, limits)[: len(trial)]
    # The times of batches are not scaled.
    constant_s = sum(window.batches * RATES.batch_s for window in load.windows)
    assert again[-1] - again[0] == pytest.approx(trial[-1] - trial[0], rel=0.05, abs=constant_s)


@pytest.mark.parametrize("windows", [1, 2, 3 * MOST_WINDOWS])
def test_trials_of_one_window_and_of_more_than_are_simulated(windows: int) -> None:
    one = WindowLoad((ReadLoad(1000, 100),), 10)
    load = EpochLoad((one,) * min(windows, MOST_WINDOWS), 1000 * windows, 10 * windows)
    taken_s = [0.01 * number for number in range(windows)]
    found = paced(RATES, load, limits_of(), taken_s)
    marks = windows_taken_s(load, found, limits_of())
    if windows < 3:  # the first batch waits for both windows
        assert found == RATES
    else:
        last = len(load.windows) - 1
        assert marks[last] - marks[0] == pytest.approx(taken_s[last], rel=0.05)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("source")
    rng = np.random.default_rng(0)
    columns = {f"x{n}": rng.random(400_000, dtype=np.float32) for n in range(8)}
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=10_000, compression="snappy")
    return str(folder)


def test_memory_and_rows_come_true(source: str) -> None:
    setup = LoaderSetup(source, 500, memory_limit="32MiB", num_threads=2)
    found = calibrate(setup, seconds=0.2)
    predicted = found.forecast()
    with loader_of(setup, opened(setup)) as loader:
        for _ in loader:
            pass
        stats = loader.stats()
    assert (predicted.rows, predicted.batches) == (stats.rows, stats.batches)
    # How far workers read ahead depends on what else this machine does, and so does the memory that they hold.
    assert 0.5 * stats.peak_bytes <= predicted.peak_bytes <= 2 * stats.peak_bytes
    assert found.row_group_requests == 40
    # Ten times more or less, because times depend on what else this machine does: an error of units would be more.
    trial = found.trials[-1].stats
    work_s = trial.cpu_s["read"] + trial.blocked_s["read"]
    rates = found.trials[-1].rates
    fastest, slowest = sorted((rates.read_s, rates.first_read_s))
    assert 0.1 * fastest <= work_s / (trial.row_groups * 10_000) <= 10 * slowest
    assert found.forecast(1.0).seconds == pytest.approx(800, rel=0.2)


def test_ranks_share_the_rows(source: str) -> None:
    found = calibrate(LoaderSetup(source, 500, ranks=4, memory_limit="32MiB"), seconds=0.05)
    assert found.forecast().rows == 100_000


def test_a_source_without_a_batch_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.zeros(0)}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="no batch to predict"):
        calibrate(LoaderSetup(str(tmp_path), 500))


def test_printed_stats_show_how_a_source_has_changed(source: str) -> None:
    setup = LoaderSetup(source, 500)
    with loader_of(setup, opened(setup)) as loader:
        next(iter(loader))
        stats = loader.stats()
    assert "source:" not in str(stats)
    assert "source:" not in str(replace(stats, growth=SourceChange()))
    grown = replace(stats, growth=SourceChange(new_files=2, new_rows=30, version="version 7"))
    assert "\nsource: version 7: +30 rows in 2 files, -0 rows in 0 files\n" in str(grown)


def test_a_store_with_and_without_a_cache(source: str, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    far = pytest.importorskip("tests.support.far")
    archive = pytest.importorskip("demo.archive")
    try:
        archive.find_rclone()
    except RuntimeError as error:
        pytest.skip(str(error))
    os.makedirs(tmp_path / "served" / "bucket")
    shutil.copy(Path(source, "a.parquet"), tmp_path / "served" / "bucket" / "a.parquet")
    large = tmp_path / "served" / "bucket" / "large"
    large.mkdir()
    columns = pq.read_table(source).slice(0, 300_000)
    pq.write_table(columns, large / "b.parquet", row_group_size=300_000, compression="none", use_dictionary=False)
    with archive.Server(tmp_path / "served") as server, far.Proxy(server.endpoint, far.Line(0.05)) as proxy:
        user = f"{archive.ACCESS_KEY}:{archive.SECRET_KEY}"
        url = f"s3://{user}@bucket/a.parquet?endpoint_override={proxy.endpoint}&scheme=http&region=other"
        cache = LocalCache(tmp_path / "cache", "1GB")
        cached = LoaderSetup(url, 500, memory_limit="64MiB", cache=cache)
        first = calibrate(cached, seconds=0.2)
        with loader_of(cached, opened(cached)) as loader:
            for _ in loader:
                pass
        second = calibrate(cached, seconds=0.2)
        few = LoaderSetup(url.replace("a.parquet", "large"), 500, memory_limit="12MiB", window_rows=2000)
        streamed = calibrate(few, seconds=0.05)
    assert first.rates.network is not None
    assert first.rates.network.latency_s >= 0.05
    assert first.row_group_requests == 40
    assert second.load.requests == 0
    assert second.load.fetched_bytes == 0
    assert first.streamed_bytes == second.streamed_bytes == 0
    assert 9_600_000 < streamed.streamed_bytes < 9_700_000


def test_prices_are_for_requests_and_bytes() -> None:
    assert Prices(0.4, 5.0, 0.1).cost(2000, 1000, 2**30) == pytest.approx(0.8 + 5 + 0.1)
    assert [provider_of(url) for url in ("s3a://b", "gs://b", "data/train", "abfs://c@d")] == [
        "s3",
        "gcs",
        "s3",
        "azure",
    ]
