"""Filters on types that Arrow itself cannot compare (views, extensions), or only some of whose values it can."""

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, DataError, ParquetDataset, Schema

FILTERS: dict[str, Any] = {
    "equal": (pc.field("word") == "b", [2, 3]),
    "less": (pc.field("word") < "b", [0, 1]),
    "in": ([("word", "in", ["a", "c"])], [0, 5]),
    "null": (pc.field("word").is_null(), [4]),
    "another column": (pc.field("id") > 3, [4, 5]),
}


def _passing(path: Path, filters: Any, **options: Any) -> list[int]:
    with BatchedDataLoader(path, 10, columns=["id"], filters=filters, **options) as loader:
        return [row for batch in loader for row in batch["id"].tolist()]


@pytest.mark.parametrize("type_", [pa.string_view(), pa.binary_view()], ids=str)
@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_compares_views(tmp_path: Path, type_: pa.DataType, name: str) -> None:
    words = pa.array(["a", "aa", "b", "b", None, "c"], pa.string())
    words = words.cast(pa.binary()).cast(type_) if type_ == pa.binary_view() else words.cast(type_)
    pq.write_table(pa.table({"id": range(6), "word": words}), tmp_path / "a.parquet", row_group_size=2)
    filters, expected = FILTERS[name]
    with BatchedDataLoader(tmp_path, 10, columns=["id"], filters=filters) as loader:
        assert [row for batch in loader for row in batch["id"].tolist()] == expected
        assert loader.plan().row_groups == len({row // 2 for row in expected})


def test_a_filter_compares_views_next_to_null_lists_of_values_that_are_not_nullable(tmp_path: Path) -> None:
    pair = pa.list_(pa.field("element", pa.int32(), nullable=False), 2)
    pairs = pa.FixedSizeListArray.from_arrays(
        pa.array([1, 2, 3, 4], pa.int32()), type=pair, mask=pa.array([False, True])
    )
    pq.write_table(pa.table({"word": pa.array(["a", "b"], pa.string_view()), "pair": pairs}), tmp_path / "a.parquet")
    schema = Schema.infer(tmp_path, nulls="mask")
    with BatchedDataLoader(tmp_path, 2, schema=schema, filters=pc.field("word") != "c") as loader:
        assert [batch["pair_valid"].tolist() for batch in loader] == [[True, False]]


@pytest.mark.parametrize("store_schema", [False, True])
def test_a_filter_compares_json_as_text(tmp_path: Path, store_schema: bool) -> None:
    words = pa.array(["[1]", "{}", "[1]", None])
    table = pa.table({"id": range(4), "json": pa.ExtensionArray.from_storage(pa.json_(), words)})
    pq.write_table(table, tmp_path / "a.parquet", store_schema=store_schema)
    assert _passing(tmp_path, pc.field("json") == "[1]") == [0, 2]
    assert _passing(tmp_path, [("json", "not in", ["[1]"])]) == [1, 3]
    data = ParquetDataset(tmp_path, columns=["json"], filters=pc.field("json") == "{}")
    assert [batch["json"].to_list() for batch in data.batches(10)] == [["{}"]]


def test_a_filter_compares_uuids_as_bytes(tmp_path: Path) -> None:
    keys = pa.array([b"0" * 16, b"1" * 16], pa.binary(16))
    table = pa.table({"id": range(2), "key": pa.ExtensionArray.from_storage(pa.uuid(), keys)})
    pq.write_table(table, tmp_path / "a.parquet")
    assert _passing(tmp_path, pc.field("key") == b"1" * 16) == [1]


def test_durations_are_found_in_a_list(tmp_path: Path) -> None:
    days = [dt.timedelta(days=day) for day in (1, 2, 3)]
    pq.write_table(pa.table({"id": range(3), "days": days}), tmp_path / "a.parquet", row_group_size=1)
    assert _passing(tmp_path, [("days", "in", days[1:])]) == [1, 2]


@pytest.mark.parametrize("type_", [pa.float32(), pa.float64()], ids=str)
def test_a_zero_is_found_in_a_list_if_all_values_of_a_row_group_are_zero(tmp_path: Path, type_: pa.DataType) -> None:
    table = pa.table({"id": range(4), "label": pa.array([0, 0, 1, 1], type_)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)  # the least label is -0.0, as the format demands
    assert _passing(tmp_path, [("label", "in", [0.0, 1.0])]) == [0, 1, 2, 3]
    with BatchedDataLoader(tmp_path, 10, filters=[("label", "in", [1.0])]) as loader:
        assert loader.plan().row_groups == 1


@pytest.mark.parametrize("statistics", [False, True])
def test_unsigned_numbers_beyond_int64_are_compared_or_the_error_says_how(tmp_path: Path, statistics: bool) -> None:
    table = pa.table({"id": range(2), "key": pa.array([5, 2**64 - 1], pa.uint64())})
    pq.write_table(table, tmp_path / "a.parquet", write_statistics=statistics)
    assert _passing(tmp_path, pc.field("key") == pa.scalar(5, pa.uint64())) == [0]
    with pytest.raises(DataError, match=r"row group 0: filters=\(key == 5\) cannot be applied .* pa\.uint64\(\)"):
        _passing(tmp_path, pc.field("key") == 5)


def test_a_filter_that_fails_for_a_row_does_not_call_the_file_damaged(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(3), "x": [1, 0, 2]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"row group 0: filters=.* cannot be applied to these rows: divide by zero"):
        _passing(tmp_path, pc.field("id") / pc.field("x") > 0)
