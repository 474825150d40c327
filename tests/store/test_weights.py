"""How often samples come in an epoch: as their weight says, the same for the same snapshot, and counted."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader import BatchedDataLoader, ConfigurationError, SampleStore, SourceError
from parquet_loader.store import Arrival, AtMost, RecentFirst, StoredFile
from tests.store.samples import ONE, SCHEMA, SMALL, rows


def times(loader: BatchedDataLoader) -> Counter[int]:
    return Counter(i for batch in loader for i in batch["i"].tolist())


def file(**more: Any) -> StoredFile:
    return StoredFile("n", "p", 1, 0.0, 1, 1, "w", **more)


@pytest.fixture
def store(tmp_path: Path) -> SampleStore:
    return SampleStore(tmp_path / "store", schema=SCHEMA, options=ONE)


def write(store: SampleStore, first: int, count: int) -> None:
    with store.writer() as writer:
        writer.write(rows(first, count))


@given(st.floats(0, 1e6), st.floats(0.1, 1e4), st.floats(0, 10), st.floats(0.01, 10))
def test_recent_samples_weigh_half_as_much_with_every_half_life(
    age: float, half: float, low: float, more: float
) -> None:
    newest = low + more
    by_time = RecentFirst(half_life_s=half, newest=newest, least=low)
    by_epoch = RecentFirst(half_life_epochs=half, newest=newest, least=low)
    expected = max(low, newest * 0.5 ** (age / half))
    assert by_time(Arrival(file(), age, 0)) == pytest.approx(expected)
    assert by_epoch(Arrival(file(), 0.0, int(age))) == pytest.approx(max(low, newest * 0.5 ** (int(age) / half)))
    assert by_time(Arrival(file(), 0.0, 7)) == newest


def test_epochs_since_arrival_decide_how_often_rows_come(store: SampleStore) -> None:
    write(store, 0, 100)
    source = store.weighted(RecentFirst(half_life_epochs=1, newest=4.0, least=1.0))
    with BatchedDataLoader(source, 16, shuffle=True) as loader:
        assert times(loader) == Counter(dict.fromkeys(range(100), 4))
        write(store, 100, 50)
        assert times(loader) == Counter({i: 2 if i < 100 else 4 for i in range(150)})
        assert times(loader) == Counter({i: 1 if i < 100 else 2 for i in range(150)})
        assert times(loader) == Counter(range(150))


def test_ages_are_those_between_publications(store: SampleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for moment in (1000, 1010, 1030):  # the clocks of three writers
        monkeypatch.setattr(time, "time_ns", lambda moment=moment: moment * 10**9)
        write(store, moment, 10)
    source = store.weighted(RecentFirst(half_life_s=10, newest=8.0))
    with BatchedDataLoader(source, 16) as loader:
        found = times(loader)
    assert [found[i] for i in (1000, 1010, 1030)] == [1, 2, 8]


def test_no_sample_is_delivered_more_often_than_at_most(store: SampleStore) -> None:
    write(store, 0, 60)
    delivered: Counter[int] = Counter()
    source = store.weighted(AtMost(2))
    with BatchedDataLoader(source, 16, shuffle=True) as loader, BatchedDataLoader(store, 16) as other:
        delivered += times(loader)
        delivered += times(other)  # what other readers were given counts too
        write(store, 60, 30)
        second = times(loader)
        assert set(second) == set(range(60, 90))
        delivered += second
        assert max(delivered.values()) == 2
        times(loader)
        with pytest.raises(SourceError, match="weights leave out every sample"):
            iter(loader)
        assert store.status().readers == 0


def test_fractions_are_drawn_the_same_for_the_same_snapshot_and_anew_in_each_epoch(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, options=SMALL)
    write(store, 0, 4000)
    with (
        BatchedDataLoader(store.weighted(lambda _: 1.5, seed=1), 64) as one,
        BatchedDataLoader(store.weighted(lambda _: 1.5, seed=1), 64) as same,
        BatchedDataLoader(store.weighted(lambda _: 1.5, seed=2), 64) as other,
    ):
        first, second = times(one), times(one)
        assert (first, second) == (times(same), times(same))
        assert first not in (second, times(other))
    assert set(first) == set(range(4000))
    assert set(first.values()) == {1, 2}
    assert 5200 < first.total() < 6800


def test_weights_that_are_no_numbers_are_refused(store: SampleStore) -> None:
    write(store, 0, 10)
    wrong: list[Any] = [lambda _: -0.1, lambda _: float("nan"), lambda _: 1001, lambda _: True, lambda _: "one"]
    for weight in wrong:
        with pytest.raises(ConfigurationError, match="expected a number from 0 to 1000"):
            BatchedDataLoader(store.weighted(weight), 4)
    for build in (
        lambda: RecentFirst(),
        lambda: RecentFirst(half_life_s=1, half_life_epochs=1),
        lambda: RecentFirst(half_life_s=1, newest=0),
        lambda: RecentFirst(half_life_s=1, newest=1, least=2),
        lambda: AtMost(0),
        lambda: store.weighted("recent"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigurationError):
            build()
    assert store.status().readers == 0


@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_numbers_of_numpy_are_numbers(tmp_path: Path, kind: Any) -> None:
    options = replace(ONE, roll_s=kind(7))
    store = SampleStore(tmp_path / "store", schema=SCHEMA, options=options, evict=lambda file: kind(file.sequence))
    for first in (0, 100):
        with store.writer(priority=kind(2), wait_s=kind(3)) as writer:
            writer.write(rows(first, 100))
    assert {file.priority for file in store.files()} == {2.0}
    assert SampleStore(tmp_path / "store").settings.options == replace(ONE, roll_s=7.0)
    for weight in (RecentFirst(half_life_epochs=kind(1), newest=kind(2), least=kind(2)), lambda _: kind(2)):
        with BatchedDataLoader(store.weighted(weight, seed=3), 16) as loader:
            assert times(loader) == Counter(dict.fromkeys(range(200), 2))
    with pytest.raises(TimeoutError):
        store.wait(rows=1_000, timeout_s=kind(0))
    *older, newest = store.files()
    assert store.evict(to_bytes=newest.size_bytes).files == len(older)
    assert [file.name for file in store.files()] == [newest.name]
