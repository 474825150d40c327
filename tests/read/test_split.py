"""Splits by the hash of a column are exact, disjoint, complete, even, and independent of the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader import BatchedDataLoader, ConfigurationError, ResumeError, SchemaError, Shard, split
from parquet_loader.common.splitmix import hashed_bytes, mixed

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


def test_pyarrow_reads_the_same_rows_by_the_same_filter(tmp_path: Path) -> None:
    table = pa.table(
        {"x": [7] * 50 + list(range(150)), "row": range(200)}
    )  # a row group of one value, known by statistics
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=50)
    for ends in ((0, 0.4), (0.4, 1)):
        with BatchedDataLoader(str(tmp_path), 16, filters=split("x", *ends)) as loader:
            rows = [row for batch in loader for row in batch["row"].tolist()]
        assert pq.read_table(tmp_path, filters=split("x", *ends))["row"].to_pylist() == rows


def test_shares_are_even_and_seeds_independent() -> None:
    values = np.arange(100_000).tolist()
    first = [set(kept(values, 0.2, 0.5, seed)) for seed in (0, 1)]
    for rows in first:
        assert abs(len(rows) - 30_000) < 600
    assert abs(len(first[0] & first[1]) - 9_000) < 400


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
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


TEXTS = [f"user-{number}" for number in range(200)] + ["", "ä", None]
TEXT_TYPES = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.large_binary(),
    pa.binary_view(),
    pa.dictionary(pa.int32(), pa.string()),
]


def is_on_side(value: bytes, start: float, stop: float, seed: int) -> bool:
    bits = int(hashed_bytes(pa.array([value], pa.large_binary()))[0])
    return int(start * 2**64) <= mixed(bits ^ mixed(seed)) < int(stop * 2**64)


@pytest.mark.parametrize("type_", TEXT_TYPES, ids=str)
def test_text_is_on_the_side_of_its_bytes_whatever_its_type(tmp_path: Path, type_: pa.DataType) -> None:
    values = pa.array(TEXTS, pa.string()).cast(pa.binary() if "binary" in str(type_) else pa.string())
    column = values.dictionary_encode() if pa.types.is_dictionary(type_) else values.cast(type_)
    table = pa.table({"user": column, "row": pa.array(range(len(TEXTS)))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=50)
    for start, stop, seed in ((0, 0.3, 0), (0.3, 1, 0), (0.25, 0.75, 2**64 - 1)):
        expected = [r for r, t in enumerate(TEXTS) if t is not None and is_on_side(t.encode(), start, stop, seed)]
        chosen = split("user", start, stop, seed, text=True)
        with BatchedDataLoader(str(tmp_path), 16, columns=["row"], filters=chosen) as loader:
            assert loader.plan().rows == len(expected)
            assert [row for batch in loader for row in batch["row"].tolist()] == expected


def test_fixed_bytes_and_values_of_directories_are_split_as_text_is(tmp_path: Path) -> None:
    for city in ("Rome", "Oslo", "Lima", "Cairo"):
        (tmp_path / f"city={city}").mkdir()
        keys = pa.array([f"{city}{number:04}".ljust(10).encode() for number in range(50)], pa.binary(10))
        pq.write_table(pa.table({"key": keys}), tmp_path / f"city={city}" / "a.parquet")
    for column, width in (("key", 10), ("city", 0)):
        sides = []
        for start, stop in ((0, 0.5), (0.5, 1)):
            with BatchedDataLoader(str(tmp_path), 7, filters=split(column, start, stop, text=True)) as loader:
                sides.append({bytes(key) for batch in loader for key in batch["key"].numpy()})
                if width:
                    assert all(is_on_side(key, start, stop, 0) for key in sides[-1])
                else:
                    assert all(is_on_side(key[:-4].rstrip(b"0123456789 "), start, stop, 0) for key in sides[-1])
        assert not sides[0] & sides[1]
        assert len(sides[0] | sides[1]) == 200


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_text_splits_go_to_ranks_processes_and_states(tmp_path: Path, isolation: Any) -> None:
    for number in range(3):
        users = [f"user-{row % 40}" for row in range(number * 100, number * 100 + 100)]
        table = pa.table({"user": users, "row": range(number * 100, number * 100 + 100)})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=30)
    both = split("user", 0, 0.7, text=True) & split("row", 0, 0.9)

    def loader(**more: Any) -> BatchedDataLoader:
        given = {"filters": both, "isolation": isolation, **more}
        return BatchedDataLoader(str(tmp_path), 8, columns=["row"], shuffle=True, **given)

    with loader() as alone:
        iterator = iter(alone)
        next(iterator)
        state = alone.state_dict()
        rest = [batch["row"].tolist() for batch in iterator]
    with loader() as again:
        again.load_state_dict(state)
        assert [batch["row"].tolist() for batch in again] == rest
    with loader(filters=split("user", 0.7, 1, text=True)) as validation, pytest.raises(ResumeError, match="filters: "):
        validation.load_state_dict(state)
    found = []
    for rank, isolation_of_rank in enumerate(("thread", isolation, "thread")):
        with loader(shard=Shard(rank, 3), isolation=isolation_of_rank) as part:
            found += [row for batch in part for row in batch["row"].tolist()]
    of_user = {row for row in range(300) if is_on_side(f"user-{row % 40}".encode(), 0, 0.7, 0)}
    passing = of_user & set(kept(list(range(300)), 0, 0.9, 0))
    assert set(found) == passing
    assert len(found) - len(passing) < 3  # repeated, so that steps are equal


def test_a_file_whose_keys_are_all_null_has_no_row_on_a_side(tmp_path: Path) -> None:
    pq.write_table(pa.table({"user": ["a", "b"], "number": [1, 2]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"user": pa.nulls(3), "number": pa.nulls(3)}), tmp_path / "1.parquet")
    pq.write_table(
        pa.table({"user": pa.array([], pa.string()), "number": pa.array([], pa.int64())}), tmp_path / "2.parquet"
    )
    for chosen in (split("user", 0, 1, text=True), split("number", 0, 1)):
        with BatchedDataLoader(str(tmp_path), 8, filters=chosen) as loader:
            assert [batch["number"].tolist() for batch in loader] == [[1, 2]]


def test_columns_of_the_wrong_kind_are_refused_with_what_to_write(tmp_path: Path) -> None:
    table = pa.table(
        {
            "text": ["12", "13"],
            "number": [1, 2],
            "real": [0.5, 0.25],
            "day": pa.array([1, 2], pa.date32()),
            "when": pa.array([1, 2], pa.timestamp("us")),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    for chosen, message in (
        (split("text", 0, 0.5), r"split\('text'\): the column is string; split\('text', ..., text=True\) hashes text"),
        (split("real", 0, 0.5), r"the column is double; split hashes integers, booleans and timestamps"),
        (split("day", 0, 0.5), r"the column is date32\[day\]; split hashes integers, booleans and timestamps"),
        (split("number", 0, 0.5, text=True), r"neither text nor bytes; leave text=True out"),
    ):
        with pytest.raises(SchemaError, match=message):
            BatchedDataLoader(str(tmp_path), 1, filters=chosen)
    for name in ("number", "when"):
        with BatchedDataLoader(str(tmp_path), 1, columns=["number"], filters=split(name, 0, 1)) as loader:
            assert loader.plan().rows == 2
    with pytest.raises(ConfigurationError, match="text='yes'"):
        split("text", 0, 1, text="yes")  # type: ignore[arg-type]
