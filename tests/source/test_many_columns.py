"""Opening takes time proportional to the columns. Lists of one length are found together, as if each were alone."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader import (
    BatchedDataLoader,
    OutputOptions,
    ParquetDataset,
    Ragged,
    RaggedList,
    ReadOptions,
    Schema,
    Tensor,
)
from parquet_loader.dataset.fixed_size_lists import _lengths, _of_other_length
from parquet_loader.dataset.schema_resolution import _wanting, decoders_of
from parquet_loader.decode.decoder import _steps
from parquet_loader.read.row_group_reader import RowGroupReader
from parquet_loader.source import open_snapshot

NUMPY = OutputOptions(format="numpy")


def calls_of(work: Callable[[], object]) -> int:
    """Return how many functions are called in this thread, Python's own among them."""
    count = 0

    def called(_: Any, event: str, __: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def numbers(count: int) -> pa.Table:
    return pa.table({f"c{n}": [0.5, 1.5] for n in range(count)})


def lists(count: int) -> pa.Table:
    return pa.table({f"c{n}": [[1, 2], [3, 4]] for n in range(count)})


def struct(count: int) -> pa.Table:
    return pa.table({"s": pa.StructArray.from_arrays([pa.array([1, 2])] * count, [f"f{n}" for n in range(count)])})


def every_second(count: int) -> list[str]:
    return [f"c{n}" for n in range(0, count, 2)]


@pytest.mark.parametrize(
    ("kind", "columns"),
    [(numbers, None), (numbers, every_second), (lists, None), (struct, None)],
    ids=["numbers", "some", "lists", "struct"],
)
def test_twice_the_columns_are_twice_the_work(tmp_path: Path, kind: Any, columns: Any) -> None:
    def opening(count: int) -> int:
        path = tmp_path / f"{count}.parquet"
        pq.write_table(kind(count), path)
        wanted = None if columns is None else columns(count)

        def work() -> None:
            with BatchedDataLoader(path, 1, columns=wanted, output_options=NUMPY):
                pass

        work()  # the first time modules are imported
        return calls_of(work)

    smallest, middle, largest = (opening(count) for count in (50, 100, 200))
    assert largest - middle < 2.2 * (middle - smallest)


@pytest.mark.parametrize("kind", [numbers, lists, pytest.param(struct, marks=pytest.mark.slow)])
def test_rows_of_twice_the_columns_are_twice_the_work(tmp_path: Path, kind: Any) -> None:
    def reading(count: int) -> int:
        path = tmp_path / f"{count}.parquet"
        pq.write_table(kind(count), path)

        def work() -> None:
            with ParquetDataset(path).rows(output_options=NUMPY, num_threads=1) as rows:
                rows[0]

        work()  # the first time modules are imported
        return calls_of(work)

    smallest, middle, largest = (reading(count) for count in (50, 100, 200))
    assert largest - middle < 2.2 * (middle - smallest)


@pytest.mark.parametrize(("statistics", "most"), [(True, 1), (False, 16)])
def test_lists_are_looked_at_together(tmp_path: Path, statistics: bool, most: int) -> None:
    rows = 30
    table: dict[str, Any] = {f"even{n}": [[n, n + 1]] * rows for n in range(20)}
    table |= {f"long{n}": [list(range(1000 + n))] * rows for n in range(3)}
    table["uneven"] = [[1, 2]] * (rows - 2) + [[1], [1, 2, 3]]
    table["holes"] = pa.array([[1, 2]] * (rows - 1) + [None])
    table["within"] = pa.array([[1, 2]] * (rows - 1) + [[None, 3]])
    table["empty"] = pa.array([[]] * rows, pa.list_(pa.int64()))
    table["pairs"] = pa.array([[{"x": 1, "y": 2}, {"x": 3, "y": 4}]] * rows)
    pq.write_table(pa.table(table), tmp_path / "a.parquet", row_group_size=10, write_statistics=statistics)
    snapshot, looks = open_snapshot(tmp_path / "a.parquet"), list[set[str]]()
    lists = Schema({name: RaggedList("int64") for name in table if name != "pairs"})

    def reader_of(names: Iterable[str]) -> RowGroupReader:
        looks.append(set(names))
        return RowGroupReader(snapshot, decoders_of(lists.select(list(names)), snapshot), None, ReadOptions())

    items: Any = {name: field.item for name, field in lists.items()}  # type: ignore[union-attr]
    lengths = _lengths(snapshot, range(3), items)
    in_doubt = {name: length * 8 for name, (length, _) in lengths.items()}
    assert len(in_doubt) > 23
    assert _of_other_length(snapshot.row_group(0), in_doubt, reader_of) == (["empty"] if "empty" in in_doubt else [])
    assert len(looks) == 1
    looks.clear()
    others = _of_other_length(snapshot.row_group(2), in_doubt, reader_of)
    assert "uneven" in others
    assert set(others) <= {"uneven", "within", "empty"}
    assert len(looks) <= most  # halved beside a null

    with BatchedDataLoader(tmp_path, 10, output_options=NUMPY, on_error="skip") as loader:
        schema = loader.schema
    kinds = {name: type(field).__name__ for name, field in schema.items()}
    assert all(kinds[f"even{n}"] == "Tensor" for n in range(20))
    assert all(schema[f"long{n}"].shape == (1000 + n,) for n in range(3))  # type: ignore[union-attr]
    ragged = {name for name, kind in kinds.items() if kind != "Tensor"}
    assert ragged >= {"uneven", "holes", "within", "empty"}

    # Each column alone gives the same result.
    for name in ("even3", "long1", "uneven", "holes", "within", "empty"):
        with BatchedDataLoader(tmp_path, 10, columns=[name], output_options=NUMPY, on_error="skip") as loader:
            assert loader.schema[name] == schema[name]


def test_lists_of_one_length_beside_others_hold_their_values(tmp_path: Path) -> None:
    table = {"even": [[1, 2], [3, 4]], "uneven": [[1], [2, 3, 4]]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    with BatchedDataLoader(tmp_path, 2, output_options=NUMPY) as loader:
        (batch,) = loader
    assert batch["even"].tolist() == [[1, 2], [3, 4]]
    assert isinstance(batch["uneven"], Ragged)


dotted = st.lists(st.sampled_from(["a", "b", "ab", ""]), min_size=1, max_size=4).map(".".join)


@given(names=st.lists(dotted, max_size=6, unique=True), name=dotted)
def test_a_dotted_name_is_split_behind_the_longest_column_that_is_there(names: list[str], name: str) -> None:
    found = [n for n in names if name == n or name.startswith(n + ".")]
    expected = (max(found, key=len), name[len(max(found, key=len)) + 1 :]) if found else None
    fields = [(n, pa.int8()) for n in names]
    assert _steps(name, pa.schema(fields)) == expected
    assert _steps(name, pa.struct(fields)) == expected


@given(columns=st.lists(dotted, max_size=5), column=dotted)
def test_a_leaf_is_wanted_if_it_or_what_it_lies_in_is_asked_for(columns: list[str], column: str) -> None:
    def stands_for(one: str, other: str) -> bool:
        return other == one or other.startswith(f"{one}.")

    expected = any(stands_for(name, column) for name in columns)
    assert _wanting(columns)(column) == expected
    assert _wanting(None)(column)


def kind_of(path: Path, name: str, columns: list[str] | None = None) -> Any:
    with BatchedDataLoader(path, 1, columns=columns, output_options=NUMPY, on_error="skip") as loader:
        return loader.schema[name]


@pytest.mark.parametrize("statistics", [True, False])
def test_gaps_in_lists_of_floats_are_no_other_length(tmp_path: Path, statistics: bool) -> None:
    table = {
        "gaps": pa.array([[1.0, 2.0]] * 5 + [[1.0, None]]),
        "alone": pa.array([[None]] * 5 + [[1.5]], pa.list_(pa.float32())),
        "null": pa.array([[1.0]] * 5 + [None]),
        "ints": pa.array([[1, 2]] * 5 + [[1, None]]),
    }
    pq.write_table(pa.table(table), tmp_path / "a.parquet", write_statistics=statistics)
    for name, expected in {"gaps": "Tensor", "alone": "Tensor", "null": "RaggedList", "ints": "RaggedList"}.items():
        assert type(kind_of(tmp_path, name)).__name__ == expected
        assert kind_of(tmp_path, name) == kind_of(tmp_path, name, [name])


def test_a_list_that_was_ruled_out_does_no_harm_to_others(tmp_path: Path) -> None:
    uneven = [[1, 2]] * 8 + [[1], [1, 2, 3]] + [[1, 2]] * 9 + [[None, 1]]
    table = pa.table({"a": [[1, 2]] * 20, "b": uneven})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10, write_statistics=False)
    assert isinstance(kind_of(tmp_path, "a"), Tensor)
    assert isinstance(kind_of(tmp_path, "b"), RaggedList)


def test_lists_of_one_length_of_what_no_tensor_holds_stay_lists(tmp_path: Path) -> None:
    days, sums = [dt.date(2026, 1, 1), dt.date(2026, 1, 2)], [Decimal("1.5"), Decimal("2.5")]
    pq.write_table(pa.table({"days": [days] * 3, "sums": [sums] * 3, "n": [[1, 2]] * 3}), tmp_path / "a.parquet")
    with BatchedDataLoader(tmp_path, 3, output_options=NUMPY) as loader:
        (batch,) = loader
    assert batch["days"].values.tolist() == [20454, 20455] * 3
    assert batch["sums"].values.tolist() == [1.5, 2.5] * 3
    assert batch["n"].tolist() == [[1, 2]] * 3
