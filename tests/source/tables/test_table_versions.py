"""The common form of all table formats: names, promoted types, constants, missing columns and deleted rows."""

from __future__ import annotations

import datetime as dt
import decimal
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    DataError,
    OutputOptions,
    ParquetDataset,
    RaggedList,
    ResumeError,
    Scalar,
    Schema,
    SchemaError,
    Shard,
    SourceError,
    Tensor,
    Text,
    split,
    split_rows,
)
from parquet_loader.source import ColumnName, InlineVector, Names, dump_snapshot, load_snapshot, open_snapshot
from tests.source.tables.made_tables import MadeTable, deleting, rows_of, table

X = pa.schema([("x", pa.int64())])


def numbers(first: int, stop: int) -> pa.Table:
    return pa.table({"x": pa.array(range(first, stop), pa.int64())})


def xs(source: Any, **options: Any) -> list[int]:
    return [row["x"] for row in rows_of(source, **options)]


# ---- deleted rows ----


def with_file(made: MadeTable, **changes: Any) -> MadeTable:
    """Return a table of one file that contradicts the table's metadata."""
    return MadeTable(replace(made.version, files=(made.version.files[0]._replace(**changes),)))


def test_deleted_rows_are_not_delivered(tmp_path: Path) -> None:
    made = table(tmp_path, [(numbers(0, 10), deleting(0, 4, 5, 6, 7)), (numbers(10, 12), None)], X)
    assert xs(made) == [1, 2, 3, 8, 9, 10, 11]
    assert ParquetDataset(made).num_rows == 7


@pytest.mark.parametrize("known", [True, False])
def test_a_row_group_may_lose_all_its_rows_and_a_file_too(tmp_path: Path, known: bool) -> None:
    files = [(numbers(0, 4), deleting(0, 1, 2, 3, known=known)), (numbers(4, 12), deleting(4, 5, 6, 7, known=known))]
    made = table(tmp_path, files, X)
    assert xs(made) == [4, 5, 6, 7]
    assert sorted(xs(made, shuffle=True)) == [4, 5, 6, 7]


def test_length_and_ranks_count_the_rows_that_are_left(tmp_path: Path) -> None:
    made = table(tmp_path, [(numbers(0, 40), deleting(*range(0, 40, 3))), (numbers(40, 60), deleting(19))], X)
    alive = [x for x in range(60) if not (x < 40 and x % 3 == 0) and x != 59]
    with BatchedDataLoader(made, 5, drop_last=False) as loader:
        assert len(loader) == -(-len(alive) // 5)
        assert len(loader.dataset) == len(alive)
    parts = [xs(made, shuffle=True, seed=3, shard=Shard(rank, 3)) for rank in range(3)]
    delivered = sorted(x for part in parts for x in part)
    assert set(delivered) <= set(alive)
    assert len(set(delivered)) == len(delivered) >= len(alive) - 3 * 3


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_an_epoch_goes_on_after_any_batch_with_the_same_rows(tmp_path: Path, isolation: Any) -> None:
    made = table(tmp_path, [(numbers(0, 50), deleting(*range(1, 50, 4))), (numbers(50, 90), deleting(3, 4, 5))], X)
    options = {"shuffle": True, "seed": 5, "window_rows": 16, "isolation": isolation}
    whole = xs(made, **options)
    with BatchedDataLoader(made, 3, output_options=OutputOptions(format="numpy"), **options) as loader:
        states = [loader.state_dict() for _ in loader]
    for batch in (1, 7, len(states) - 1) if isolation == "thread" else (7,):
        with BatchedDataLoader(made, 3, output_options=OutputOptions(format="numpy"), **options) as loader:
            loader.load_state_dict(states[batch - 1])
            assert [x for found in loader for x in found["x"].tolist()] == whole[batch * 3 :]


def test_a_state_of_another_version_says_how_to_open_it(tmp_path: Path) -> None:
    made = table(tmp_path, [(numbers(0, 10), None)], X)
    with BatchedDataLoader(made, 3) as loader:
        next(iter(loader))
        state = loader.state_dict()
    assert state["table"] == "made version 7"
    other = table(tmp_path, [(numbers(0, 10), deleting(2))], X, number=8)
    with BatchedDataLoader(other, 3) as loader, pytest.raises(ResumeError, match=r"MadeTable\(version=7\)"):
        loader.load_state_dict(state)


def test_filters_count_and_deliver_rows_that_are_left(tmp_path: Path) -> None:
    made = table(tmp_path, [(numbers(0, 20), deleting(*range(5, 15))), (numbers(20, 30), deleting(0))], X)
    wanted = [x for x in range(30) if not 5 <= x < 15 and x != 20 and x % 2 == 0]
    keep = pc.equal(pc.bit_wise_and(pc.field("x"), 1), 0)
    assert xs(made, filters=keep) == wanted
    with BatchedDataLoader(made, 3, filters=keep) as loader:
        assert len(loader.dataset) == len(wanted)


def test_splits_divide_the_rows_that_are_left_and_deletes_move_none(tmp_path: Path) -> None:
    before = table(tmp_path, [(numbers(0, 200), None)], X, row_group_size=32)
    after = table(tmp_path, [(numbers(0, 200), deleting(*range(0, 200, 5)))], X, row_group_size=32)
    alive = {x for x in range(200) if x % 5}
    for first, second in ((split("x", 0, 0.7), split("x", 0.7, 1)), (split_rows(0, 0.7), split_rows(0.7, 1))):
        sides = [set(xs(after, filters=side)) for side in (first, second)]
        assert sides[0] | sides[1] == alive
        assert not sides[0] & sides[1]
        assert sides[0] == set(xs(before, filters=first)) & alive


def test_row_numbers_count_the_rows_that_are_left_and_locate_finds_them(tmp_path: Path) -> None:
    made = table(tmp_path, [(numbers(0, 10), deleting(0, 1, 5, 9)), (numbers(10, 20), deleting(3))], X)
    options = OutputOptions(format="numpy", row_numbers="n")
    found = rows_of(made, output_options=options, shuffle=True, filters=pc.field("x") > 3)
    ordered = [x for x in range(20) if x not in (0, 1, 5, 9, 13)]
    assert {row["n"]: row["x"] for row in found} == {n: x for n, x in enumerate(ordered) if x > 3}
    places = ParquetDataset(made).locate([row["n"] for row in found])
    for row, (path, group, number) in zip(found, places, strict=True):
        assert pq.ParquetFile(path).read_row_group(group).column("x")[number].as_py() == row["x"]


def test_no_data_pages_and_no_lists_are_read_to_know_the_length_of_files_of_one_row_group(tmp_path: Path) -> None:
    made = table(tmp_path, [(numbers(0, 10), deleting(1, 2))], X, row_group_size=10)
    damaged = InlineVector(b"", 2)
    made = with_file(made, deletes=damaged)
    data = ParquetDataset(made)
    assert data.num_rows == 8
    with pytest.raises(SourceError, match="its deleted rows cannot be read: the bitmap ends early"):
        xs(made)


@pytest.mark.parametrize("rows", [10, 4])
def test_deleted_rows_behind_the_end_of_a_file_are_refused(tmp_path: Path, rows: int) -> None:
    made = table(tmp_path, [(numbers(0, 10), deleting(3, 10))], X, row_group_size=rows)
    with pytest.raises(SourceError, match=r"row 10 of it is deleted, and it has 10 rows|are deleted, and 2 were"):
        xs(made)


def test_more_deleted_rows_than_rows_are_refused(tmp_path: Path) -> None:
    made = table(tmp_path, [(numbers(0, 3), deleting(0, 1, 2, 3))], X)
    with pytest.raises(SourceError, match="row 3 of it is deleted, and it has 3 rows"):
        ParquetDataset(made)


# ---- files ----


def test_a_file_that_was_removed_is_named_with_the_version_and_the_reason(tmp_path: Path) -> None:
    made = table(tmp_path, [(numbers(0, 3), None)], X)
    data = ParquetDataset(made)
    (tmp_path / "part-0.parquet").unlink()
    with pytest.raises(SourceError, match=r"gone, and version 7 of the table .* needs it; a cleaner removed it"):
        ParquetDataset(made)
    with data.batches(3) as loader, pytest.raises(SourceError, match="a cleaner removed it"):
        next(iter(loader))


def test_a_file_of_another_size_or_with_other_rows_is_refused(tmp_path: Path) -> None:
    made = table(tmp_path, [(numbers(0, 3), None)], X)
    pq.write_table(numbers(0, 4000), tmp_path / "part-0.parquet")
    with pytest.raises(SourceError, match=r"the file has \d+ bytes, and version 7 .* says \d+"):
        ParquetDataset(made)
    made = with_file(made, size_bytes=(tmp_path / "part-0.parquet").stat().st_size)
    with pytest.raises(SourceError, match=r"the file holds 4000 rows, and version 7 .* says 3"):
        ParquetDataset(made)


def test_a_table_without_files_has_its_columns_and_no_rows(tmp_path: Path) -> None:
    made = table(tmp_path, [], pa.schema([("x", pa.int64()), ("s", pa.struct([("t", pa.string())]))]))
    data = ParquetDataset(made)
    assert (data.num_rows, list(data.schema), len(data.row_groups)) == (0, ["x", "s.t"], 0)
    assert rows_of(made) == []
    assert rows_of(made, filters=pc.field("x") > 3) == []


# ---- names and types ----


def name(logical: str, stored: str, *members: ColumnName, kind: Any = "leaf", id_: int | None = None) -> ColumnName:
    return ColumnName(logical, (stored,), id_, kind, tuple(members))


def test_columns_are_found_by_the_names_in_the_files(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "c1": pa.array([1, 2], pa.int64()),
            "c2": pa.array([10, 20], pa.int64()),
            "gone": [5, 6],
            "c3": pa.array([{"m1": "a", "m2": 1}, {"m1": "b", "m2": 2}]),
            "c4": pa.array([[{"m1": 1.5}], [{"m1": 2.5}, {"m1": 3.5}]]),
        }
    )
    schema = pa.schema(
        [
            ("b", pa.int64()),
            ("a", pa.int64()),
            ("gone", pa.string()),
            ("s", pa.struct([("u", pa.int64()), ("t", pa.string())])),
            ("l", pa.list_(pa.struct([("f", pa.float64())]))),
        ]
    )
    names = Names(
        (
            name("b", "c1"),
            name("a", "c2"),
            name("gone", "another"),
            name("s", "c3", name("u", "m2"), name("t", "m1"), kind="struct"),
            name("l", "c4", name("element", "element", name("f", "m1"), kind="struct"), kind="list"),
        )
    )
    made = table(tmp_path, [(rows, None)], schema, names=names)
    assert rows_of(made, columns=["b", "a"]) == [{"b": 1, "a": 10}, {"b": 2, "a": 20}]
    assert rows_of(made, columns=["s.t", "s.u", "l.f"]) == [
        {"s.t": "a", "s.u": 1, "l.f": [1.5]},
        {"s.t": "b", "s.u": 2, "l.f": [2.5, 3.5]},
    ]
    assert [row["b"] for row in rows_of(made, columns=["b"], filters=pc.field("a") == 20)] == [2]


def test_columns_are_found_by_field_ids(tmp_path: Path) -> None:
    def file(*columns: tuple[str, int]) -> pa.Table:
        fields = [pa.field(n, pa.int64(), metadata={"PARQUET:field_id": str(id_)}) for n, id_ in columns]
        return pa.table([pa.array([id_, 10 * id_]) for _, id_ in columns], schema=pa.schema(fields))

    names = Names((name("x", "?", id_=1), name("y", "?", id_=2)), by_id=True)
    schema = pa.schema([("x", pa.int64()), ("y", pa.int64())])
    made = table(
        tmp_path, [(file(("x", 2), ("z", 1)), None), (file(("a", 1), ("x", 3), ("b", 2)), None)], schema, names=names
    )
    assert rows_of(made) == [{"x": 1, "y": 2}, {"x": 10, "y": 20}] * 2
    without = table(tmp_path, [(pa.table({"x": [1], "y": [2]}), None)], schema, names=names)
    with pytest.raises(SourceError, match="finds columns by field ids, and this file has none"):
        ParquetDataset(without)


def test_names_that_differ_in_case_alone_are_refused(tmp_path: Path) -> None:
    for names in (None, Names((name("x", "x"),))):
        made = table(tmp_path, [(pa.table({"X": [1, 2]}), None)], X, names=names)
        with pytest.raises((SourceError, SchemaError), match="'X' is called 'x' in the table"):
            ParquetDataset(made)


def test_types_are_promoted_before_filters_and_delivery(tmp_path: Path) -> None:
    old = pa.table(
        {
            "i": pa.array([1, -2], pa.int32()),
            "f": pa.array([0.1, 2.5], pa.float32()),
            "d": pa.array([decimal.Decimal("1.25"), decimal.Decimal("-0.50")], pa.decimal128(5, 2)),
            "t": pa.array([-1, 1_700_000_000_123_456_789], pa.timestamp("ns")),
            "day": pa.array([0, 19_000], pa.date32()),
            "n": pa.array([{"v": 1}, {"v": 2}], pa.struct([("v", pa.int16())])),
        }
    )
    schema = pa.schema(
        [
            ("i", pa.int64()),
            ("f", pa.float64()),
            ("d", pa.decimal128(12, 4)),
            ("t", pa.timestamp("us", "UTC")),
            ("day", pa.timestamp("us")),
            ("n", pa.struct([("v", pa.int64())])),
        ]
    )
    new = pa.table(
        {
            "i": pa.array([2**40]),
            "f": [0.1],
            "d": pa.array([decimal.Decimal("7.1234")], pa.decimal128(12, 4)),
            "t": pa.array([5], pa.timestamp("us", "UTC")),
            "day": pa.array([86_400_000_000], pa.timestamp("us")),
            "n": pa.array([{"v": 2**40}]),
        }
    )
    made = table(tmp_path, [(old, None), (new, None)], schema)
    with BatchedDataLoader(made, 3, output_options=OutputOptions(format="numpy")) as loader:
        (batch,) = loader
    assert batch["i"].tolist() == [1, -2, 2**40]
    assert batch["f"].tolist() == [float(np.float32(0.1)), 2.5, 0.1]
    assert batch["n.v"].tolist() == [1, 2, 2**40]
    assert batch["d"].tolist() == [1.25, -0.5, 7.1234]
    assert batch["t"].dtype == np.int64 or batch["t"].dtype.kind == "M"
    assert batch["t"].astype(np.int64).tolist() == [-1, 1_700_000_000_123_456, 5]
    assert batch["day"].astype(np.int64).tolist() == [0, 19_000 * 86_400_000_000, 86_400_000_000]
    assert [row["i"] for row in rows_of(made, columns=["i"], filters=pc.field("i") > 2**35)] == [2**40]
    wide = pa.scalar(-1, pa.timestamp("us", "UTC"))
    assert [row["i"] for row in rows_of(made, columns=["i"], filters=pc.field("t") == wide)] == [1]
    both = [{row["i"] for row in rows_of(made, columns=["i"], filters=split("t", *b))} for b in ((0, 0.5), (0.5, 1))]
    assert both[0] | both[1] == {1, -2, 2**40}


def test_a_type_that_cannot_be_promoted_is_refused_by_name(tmp_path: Path) -> None:
    made = table(tmp_path, [(pa.table({"x": ["a"]}), None)], X)
    with pytest.raises(
        SchemaError, match="column 'x': the file holds string, which cannot be read as the table's int64"
    ):
        ParquetDataset(made)


def test_columns_that_files_lack_are_null_and_constants_are_columns(tmp_path: Path) -> None:
    members = pa.struct([("a", pa.int64()), ("b", pa.int32())])
    schema = pa.schema(
        [("day", pa.date32()), ("x", pa.int64()), ("y", pa.string()), ("s", members), ("l", pa.list_(members))]
    )
    old = pa.table({"x": [1, 2], "s": pa.array([{"a": 1}, None]), "l": pa.array([[{"a": 5}], []])})
    one = {"a": 3, "b": 4}
    new = pa.table({"x": [3], "y": ["new"], "s": pa.array([one], members), "l": pa.array([[one]], pa.list_(members))})
    days = [dt.date(2020, 1, 1), None]
    made = table(tmp_path, [(old, None), (new, deleting())], schema, constants={"day": days})
    data = ParquetDataset(made)
    assert list(data.schema) == ["day", "x", "y", "s.a", "s.b", "l.a", "l.b"]
    assert Schema.infer(made, nulls="mask")["day"] != data.schema["day"], "it may be null"
    filled = Schema({"y": Text(fill="none"), "s.a": Scalar("int64", fill=-1), "s.b": Scalar("int32", fill=-2)})
    assert rows_of(made, schema=filled) == [
        {"y": "none", "s.a": 1, "s.b": -2},
        {"y": "none", "s.a": -1, "s.b": -2},
        {"y": "new", "s.a": 3, "s.b": 4},
    ]
    of_list = Schema({"l.b": RaggedList(Scalar("int32", fill=-2))})
    assert rows_of(made, schema=of_list) == [{"l.b": [-2]}, {"l.b": []}, {"l.b": [4]}]
    assert rows_of(made, schema=Schema({"s.b": Scalar("int32", fill=-2)})) == [{"s.b": -2}, {"s.b": -2}, {"s.b": 4}]
    with pytest.raises(DataError, match="column 'y', row 0: is null"):
        rows_of(made, columns=["y"])

    def passing(keep: pc.Expression) -> list[int]:
        return [row["x"] for row in rows_of(made, columns=["x"], filters=keep)]

    assert passing(pc.field("day").is_null()) == [3]
    assert passing(pc.field("day") < dt.date(2021, 1, 1)) == [1, 2]
    assert passing(pc.field("y").is_null()) == [1, 2]
    assert passing((pc.field("y") == "new") & (pc.field("x") == 3)) == [3]


def test_the_members_of_a_column_that_a_table_added_later_may_be_null(tmp_path: Path) -> None:
    members = pa.struct([("a", pa.int64()), ("tags", pa.map_(pa.string(), pa.int32()))])
    new = pa.table({"x": [2], "s": pa.array([{"a": 3, "tags": [("t", 4)]}], members)})
    made = table(tmp_path, [(numbers(0, 1), None), (new, None)], X.append(pa.field("s", members)))
    with pytest.raises(DataError, match=r"columns that may have some, as statistics do not say: 's\.a'"):
        rows_of(made, columns=["s.a"])
    assert rows_of(made, schema=Schema.infer(made, nulls="fill")) == [
        {"x": 0, "s.a": 0, "s.tags.key": [], "s.tags.value": []},
        {"x": 2, "s.a": 3, "s.tags.key": ["t"], "s.tags.value": [4]},
    ]


def test_the_members_that_a_table_added_to_the_structs_of_a_list_may_be_null(tmp_path: Path) -> None:
    old, new = pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.int64())]))])
    rows = pa.table(
        {
            "x": [1],
            "s": pa.array([[{"a": 2}]], pa.list_(old)),
            "m": pa.array([[("k", {"a": 3})]], pa.map_(pa.string(), old)),
        }
    )
    schema = X.append(pa.field("s", pa.list_(new))).append(pa.field("m", pa.map_(pa.string(), new)))
    made = table(tmp_path, [(rows, None)], schema)
    with pytest.raises(DataError, match=r"columns that may have some, as statistics do not say: 's\.b\.c'"):
        rows_of(made, columns=["s.b.c"])
    found = [{"x": 1, "s.a": [2], "s.b.c": [0], "m.key": ["k"], "m.value.a": [3], "m.value.b.c": [0]}]
    assert rows_of(made, schema=Schema.infer(made, nulls="fill")) == found


def test_a_name_with_a_dot_leads_into_no_other_column_whose_type_differs(tmp_path: Path) -> None:
    member, members = pa.struct([("b", pa.int64())]), pa.struct([("b", pa.int64()), ("c", pa.int64())])
    rows = pa.table({"s": pa.array([{"b": 1}], member), "s.t": pa.array([{"b": 2}], member), "s.u": [3]})
    schema = pa.schema([("s", members), ("s.t", member), ("s.u", pa.int64())])
    made = table(tmp_path, [(rows, None)], schema)
    filled = Schema({"s.c": Scalar("int64", fill=-1)}, extra="infer")
    assert rows_of(made, schema=filled) == [{"s.b": 1, "s.c": -1, "s.t.b": 2, "s.u": 3}]


def test_a_filter_on_constants_opens_no_data_of_other_files(tmp_path: Path) -> None:
    made = table(
        tmp_path,
        [(numbers(0, 2), None), (numbers(2, 4), None)],
        X.append(pa.field("p", pa.string())),
        constants={"p": ["a", "b"]},
    )
    data = ParquetDataset(made)
    path = tmp_path / "part-1.parquet"
    damaged, stat = bytearray(path.read_bytes()), path.stat()
    damaged[4:40] = bytes(36)
    path.write_bytes(damaged)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert xs(data, filters=pc.field("p") == "a") == [0, 1]


@pytest.mark.parametrize("wins", [True, False])
def test_the_format_decides_whether_a_constant_goes_before_a_file_of_that_column(tmp_path: Path, wins: bool) -> None:
    schema = X.append(pa.field("p", pa.int64()))
    files = [(pa.table({"x": [1], "p": [5]}), None), (pa.table({"x": [2]}), None)]
    made = table(tmp_path, files, schema, constants={"p": [7, 8]}, constants_win=wins)
    assert rows_of(made) == [{"x": 1, "p": 7 if wins else 5}, {"x": 2, "p": 8}]
    assert [row["x"] for row in rows_of(made, filters=pc.field("p") == 7)] == ([1] if wins else [])


def test_a_missing_column_that_is_never_null_is_refused(tmp_path: Path) -> None:
    made = table(tmp_path, [(numbers(0, 2), None)], X.append(pa.field("y", pa.int64(), nullable=False)))
    with pytest.raises(
        SchemaError, match=r"'y': files of version 7 .* lack it, and the table says that it is never null"
    ):
        ParquetDataset(made)


def test_a_snapshot_of_a_table_travels_to_other_ranks_and_processes(tmp_path: Path) -> None:
    names = Names((name("x", "c1"), name("p", "p")))
    files = [(pa.table({"c1": pa.array(range(9), pa.int32())}), deleting(0, 5)), (pa.table({"c1": [7]}), None)]
    made = table(tmp_path, files, X.append(pa.field("p", pa.string())), names=names, constants={"p": ["a", "b"]})
    snapshot = open_snapshot(made)
    loaded = load_snapshot(dump_snapshot(snapshot), snapshot.filesystem)
    for other in (loaded, pickle.loads(pickle.dumps(snapshot))):
        assert other.table == snapshot.table
        assert other.alive.tolist() == [3, 3, 1, 1]
        assert other.stored_schemas == snapshot.stored_schemas
        assert other.constants is not None
        assert other.constants.equals(snapshot.constants)
        deleted = other.deleted_rows(1)
        assert deleted is not None
        assert deleted.tolist() == [1]
        assert other.footers.get(0).paths == ("x",)
    data = ParquetDataset(made)
    with pickle.loads(pickle.dumps(data)).batches(20) as loader:
        assert loader.dataset.rows == 8


def test_a_directory_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="files do not belong to splits"):
        ParquetDataset(table(tmp_path, [(numbers(0, 2), None)], X), split="train")


@pytest.mark.parametrize("share", [0.05, 0.9])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_columns_that_go_straight_to_the_window_skip_deleted_rows(
    tmp_path: Path, share: float, shuffle: bool, compression: str
) -> None:
    generator = np.random.default_rng(3)
    count = 6000
    image = generator.integers(0, 256, (count, 300), np.uint8)
    small = generator.integers(0, 256, (count, 48), np.uint8)
    schema = pa.schema(
        [
            pa.field("x", pa.int64(), nullable=False),
            pa.field("f", pa.float32(), nullable=False),
            pa.field("n", pa.int16()),
            pa.field("image", pa.binary(300), nullable=False),
            pa.field("small", pa.binary(48), nullable=False),
        ]
    )
    columns = [
        pa.array(range(count)),
        generator.random(count, np.float32),
        pa.array((np.arange(count) % 1000).astype(np.int16)),
        pa.FixedSizeBinaryArray.from_buffers(pa.binary(300), count, [None, pa.py_buffer(image)]),
        pa.FixedSizeBinaryArray.from_buffers(pa.binary(48), count, [None, pa.py_buffer(small)]),
    ]
    gone = np.flatnonzero(generator.random(count) < share).tolist()
    made = table(
        tmp_path,
        [(pa.table(columns, schema=schema), deleting(*gone)), (pa.table(columns, schema=schema), None)],
        schema,
        row_group_size=2500,
        compression=compression,
        use_dictionary=False,
    )
    declared = Schema({"image": Tensor("uint8", (300,)), "small": Tensor("uint8", (48,))}, extra="infer")
    options = OutputOptions(format="numpy")
    with BatchedDataLoader(
        made, 64, schema=declared, shuffle=shuffle, window_rows=1000, output_options=options
    ) as loader:
        for _ in range(2):
            batches = list(loader)
            x = np.concatenate([batch["x"] for batch in batches])
            alive = np.delete(np.arange(count), gone)
            assert np.array_equal(np.sort(x), np.sort(np.concatenate([alive, np.arange(count)])))
            assert shuffle or np.array_equal(x, np.concatenate([alive, np.arange(count)]))
            assert np.array_equal(np.concatenate([b["f"] for b in batches]), columns[1][x])
            assert np.array_equal(np.concatenate([b["n"] for b in batches]), x % 1000)
            assert np.array_equal(np.concatenate([b["image"] for b in batches]), image[x])
            assert np.array_equal(np.concatenate([b["small"] for b in batches]), small[x])
