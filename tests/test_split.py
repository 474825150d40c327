"""Splits by the hash of a column: exact, disjoint, complete, even, and the same whatever files there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader import BatchedDataLoader, ConfigurationError, split
from parquet_loader.split import mixed

VALUES = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=50)
SEEDS = st.integers(0, 2**64 - 1)


def kept(values: list[int], start: float, stop: float, seed: int) -> list[int]:
    table = pa.table({"x": pa.array(values, pa.int64())})
    found: list[int] = table.filter(split("x", start, stop, seed))["x"].to_pylist()
    return found


@given(values=VALUES, cut=st.floats(0.01, 0.99), seed=SEEDS)
def test_arrows_hash_is_splitmix64_and_the_parts_are_all_rows(values: list[int], cut: float, seed: int) -> None:
    def is_first(value: int) -> bool:
        return mixed((value % 2**64) ^ mixed(seed)) < int(cut * 2**64)

    assert kept(values, 0, cut, seed) == [value for value in values if is_first(value)]
    assert kept(values, cut, 1, seed) == [value for value in values if not is_first(value)]
    assert kept(values, 0, 1, seed) == values


def test_the_hash_is_that_of_the_published_generator() -> None:
    """SplitMix64 seeded with 1234567: its first outputs are hashes of the seed and of the seed plus its increment."""
    assert mixed(1234567) == 6457827717110365317
    assert mixed((1234567 + 0x9E3779B97F4A7C15) % 2**64) == 3203168211198807973


def test_shares_are_even_and_seeds_independent() -> None:
    values = np.arange(100_000).tolist()
    first = [set(kept(values, 0.2, 0.5, seed)) for seed in (0, 1)]
    for rows in first:
        assert abs(len(rows) - 30_000) < 600
    assert abs(len(first[0] & first[1]) - 9_000) < 400


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_loaders_of_both_sides_share_no_row_as_files_come(tmp_path: Path, isolation: Any) -> None:
    def write(number: int) -> None:
        ids = pa.array(np.arange(300) * 7 + number, pa.int32())
        pq.write_table(pa.table({"id": ids, "day": ids.cast(pa.date32())}), tmp_path / f"{number}.parquet")

    def sides() -> list[set[int]]:
        found = []
        for start, stop in ((0, 0.8), (0.8, 1)):
            chosen = split("id", start, stop, seed=5)
            with BatchedDataLoader(str(tmp_path), 32, filters=chosen, shuffle=True, isolation=isolation) as loader:
                found.append({row for batch in loader for row in batch["id"].tolist()})
        return found

    write(0)
    train, validation = sides()
    assert not train & validation
    assert len(train | validation) == 300
    write(1)
    larger_train, larger_validation = sides()
    assert train < larger_train
    assert validation < larger_validation
    assert not larger_train & larger_validation
    assert len(larger_train | larger_validation) == 600


@pytest.mark.parametrize("bounds", [(0.5, 0.5), (-0.1, 0.5), (0.5, 1.1), (float("nan"), 1)])
def test_ranges_that_are_none_are_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(ConfigurationError, match="expected 0 <= start < stop <= 1"):
        split("x", *bounds)
    with pytest.raises(ConfigurationError, match="expected a column's name"):
        split("", 0, 1)
