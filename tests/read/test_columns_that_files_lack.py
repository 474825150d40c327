"""A field with `missing` or `aliases` stands for a column that some files lack: in structs, and in filters."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, Category, Group, Scalar, Schema, SchemaError, Text, split


def _load(source: Any, schema: Schema, **options: Any) -> dict[str, list[Any]]:
    rows: dict[str, list[Any]] = {}
    with BatchedDataLoader(source, batch_size=3, schema=schema, **options) as loader:
        for batch in loader:
            for name, values in batch.items():
                rows.setdefault(name, []).extend(values.to_list() if hasattr(values, "to_list") else values.tolist())
    return rows


def _write(folder: Path, **tables: Any) -> Path:
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_member_of_a_struct_may_be_missing_in_some_files(tmp_path: Path, isolation: str) -> None:
    _write(tmp_path, a={"s": [{"x": 1}, {"x": 2}]}, b={"s": [{"x": 3, "y": "c"}]})
    schema = Schema({"s.x": Scalar("int64"), "s.y": Text(missing="none")})
    assert _load(tmp_path, schema, isolation=isolation) == {"s.x": [1, 2, 3], "s.y": ["none", "none", "c"]}
    assert _load(tmp_path, Schema({"s.y": Text(missing="none")}, extra="infer"))["s.y"] == ["none", "none", "c"]


def test_a_member_that_all_files_lack_may_be_all_there_is_to_deliver(tmp_path: Path) -> None:
    _write(tmp_path, a={"s": [{"x": 1}, {"x": 2}]})
    assert _load(tmp_path, Schema({"s.y": Scalar("int64", missing=7)})) == {"s.y": [7, 7]}


def test_a_member_deep_in_structs_may_be_missing(tmp_path: Path) -> None:
    _write(tmp_path, a={"s": [{"t": {"x": 1}}]}, b={"s": [{"t": {"x": 2, "y": 5}}]})
    assert _load(tmp_path, Schema({"s.t.y": Scalar("int64", missing=0)})) == {"s.t.y": [0, 5]}


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    """Return files of three days: a column was added, then one was renamed."""
    return _write(
        tmp_path,
        day1={"id": pa.array([1, 2], pa.int32()), "price": pa.array([0.5, 2.5], pa.float32())},
        day2={"id": [3, 4], "price": [0.25, 4.0], "discount": [0.0, 0.75]},
        day3={"id": [5, 6], "cost": [0.5, 8.0], "discount": [0.5, 0.25]},
    )


_GROWING = Schema(
    {
        "id": Scalar("int64"),
        "price": Scalar("float64", aliases=["cost"]),
        "discount": Scalar("float64", missing=0.5),
    }
)


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_a_filter_compares_missing_in_files_that_lack_the_column(growing: Path, isolation: str) -> None:
    kept = _load(growing, _GROWING, filters=pc.field("discount") >= 0.5, isolation=isolation)
    assert kept == {"id": [1, 2, 4, 5], "price": [0.5, 2.5, 4.0, 0.5], "discount": [0.5, 0.5, 0.75, 0.5]}
    assert _load(growing, _GROWING, filters=pc.field("discount") < 0.5)["id"] == [3, 6]
    assert _load(growing, _GROWING, filters=[("discount", "in", [0.5])], columns=["id"])["id"] == [1, 2, 5]


def test_a_filter_compares_the_column_under_its_other_names(growing: Path) -> None:
    assert _load(growing, _GROWING, filters=[("price", ">", 1)])["id"] == [2, 4, 6]
    both = (pc.field("price") > 1) & (pc.field("discount") > 0.3)
    assert _load(growing, _GROWING, filters=both)["id"] == [2, 4]


def test_len_counts_the_rows_that_pass(growing: Path) -> None:
    for filters, rows in ((pc.field("discount") >= 0.5, 4), (pc.field("price") > 1, 3), (pc.field("discount") > 9, 0)):
        with BatchedDataLoader(growing, batch_size=1, schema=_GROWING, filters=filters) as loader:
            assert len(loader) == rows == sum(1 for _ in loader)


def test_a_column_that_all_files_lack_can_be_filtered_and_delivered_alone(growing: Path) -> None:
    schema = Schema({"new": Scalar("int64", missing=3)})
    assert _load(growing, schema, filters=[("new", "==", 3)]) == {"new": [3] * 6}
    with BatchedDataLoader(growing, batch_size=2, schema=schema, filters=[("new", "==", 4)]) as loader:
        assert len(loader) == 0


def test_a_missing_nan_passes_no_comparison_and_is_found_by_is_nan(growing: Path) -> None:
    schema = Schema({"id": Scalar("int64"), "discount": Scalar("float64", missing=float("nan"))})
    assert _load(growing, schema, filters=pc.field("discount") < 9)["id"] == [3, 4, 5, 6]
    assert _load(growing, schema, filters=pc.field("discount").is_nan())["id"] == [1, 2]


def test_partitions_and_missing_columns_are_filtered_together(tmp_path: Path) -> None:
    for day, columns in (("1", {"x": [1, 2]}), ("2", {"x": [3, 4], "new": [1, 0]})):
        (tmp_path / f"day={day}").mkdir()
        _write(tmp_path / f"day={day}", part=columns)
    schema = Schema({"x": Scalar("int64"), "new": Scalar("int64", missing=1)})
    assert _load(tmp_path, schema, filters=[("new", "==", 1)])["x"] == [1, 2, 3]
    assert _load(tmp_path, schema, filters=[("new", "==", 1), ("day", "==", 1)])["x"] == [1, 2]
    assert _load(tmp_path, schema, filters=[("new", "==", 0), ("day", "==", 1)]) == {}


def test_words_and_group_members_stand_in_too(tmp_path: Path) -> None:
    _write(tmp_path, a={"town": ["Cork", "Bonn"], "x": [1.0, 2.0]}, b={"city": ["Bonn"], "x": [3.0], "y": [4.0]})
    _write(tmp_path, c={"x": [5.0], "y": [0.0]})
    city = Category(["Bonn", "Cork"], aliases=["town"], missing="Cork")
    group = Group({"x": Scalar("float32"), "y": Scalar("float32", missing=1.0)})
    schema = Schema({"city": city, "xy": group})
    assert _load(tmp_path, schema, filters=pc.field("city") == "Cork")["xy"] == [[1.0, 1.0], [5.0, 0.0]]
    assert _load(tmp_path, schema, filters=pc.field("y") == 1)["city"] == [1, 0]


def test_a_key_under_its_other_name_falls_on_the_same_side_of_a_split(tmp_path: Path) -> None:
    _write(tmp_path, a={"id": list(range(50))}, b={"uid": list(range(50, 100))})
    schema = Schema({"id": Scalar("int64", aliases=["uid"])})
    held, kept = (_load(tmp_path, schema, filters=split("id", *part))["id"] for part in ((0, 0.3), (0.3, 1)))
    assert sorted(held + kept) == list(range(100))
    one = tmp_path / "one"
    one.mkdir()
    _write(one, all={"id": list(range(100))})
    assert _load(one, schema, filters=split("id", 0, 0.3))["id"] == held


def test_a_filter_on_a_column_that_nothing_stands_for_is_refused(growing: Path) -> None:
    schema = Schema({"id": Scalar("int64")})
    with pytest.raises(SchemaError, match="filters name the column 'discount'"):
        _load(growing, schema, filters=pc.field("discount") > 0)
    with pytest.raises(SchemaError, match="filters name the column 'prise'"):
        _load(growing, _GROWING, filters=pc.field("prise") > 0)


def test_a_missing_column_whose_name_has_a_dot_is_filtered_too(tmp_path: Path) -> None:
    _write(tmp_path, a={"id": [1, 2], "v.x": [5, 6]}, b={"id": [3]}, c={"id": [4], "w.x": [6]})
    schema = Schema({"id": Scalar("int64"), "v.x": Scalar("int64", missing=-1, aliases=["w.x"])})
    assert _load(tmp_path, schema, filters=[("v.x", "!=", 5)]) == {"id": [2, 3, 4], "v.x": [6, -1, 6]}
    _write(tmp_path, d={"id": [5], "v": [{"x": 7}]})
    with pytest.raises(SchemaError, match=r"d\.parquet: filters name the column 'v\.x', which does not exist"):
        _load(tmp_path, schema, filters=[("v.x", "!=", 5)])


def test_a_filter_by_the_dotted_name_of_a_member_is_told_its_path(tmp_path: Path) -> None:
    pq.write_table(pa.table({"p": [{"x": 1, "q": {"y": 2}}]}), tmp_path / "a.parquet")
    for name, path in (("p.x", "'p', 'x'"), ("p.q.y", "'p', 'q', 'y'")):
        with pytest.raises(SchemaError, match=rf"does not exist; the member of the struct is pc.field\({path}\)"):
            BatchedDataLoader(tmp_path, 1, filters=[(name, ">", 0)])
    with BatchedDataLoader(tmp_path, 1, filters=pc.field("p", "q", "y") == 2) as loader:
        assert len(loader) == 1
