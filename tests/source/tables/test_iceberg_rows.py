"""Iceberg tables as sources: the rows that are delivered are those of the format's own reader."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table import StaticTable, Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
)

from parquet_loader import (
    BatchedDataLoader,
    ParquetDataset,
    SchemaError,
    Shard,
    SourceError,
    WriteError,
    rewrite_dataset,
)
from parquet_loader.source.tables.iceberg import IcebergSource
from tests.source.tables.iceberg_rows import counted, delivered
from tests.source.tables.iceberg_tables import HandTable, Version


def at(*parts: int) -> dt.datetime:
    return dt.datetime(*parts)  # type: ignore[arg-type]  # noqa: DTZ001 (the column has no time zone)


UNIX = at(1970, 1, 1)


def check(table: HandTable) -> None:
    """Compare all snapshots with the rows that the table recorded."""
    for snapshot in table.snapshots:
        schema = table.schemas[snapshot.schema_id]
        names = [field.name for field in schema.fields]
        found = delivered(IcebergSource(table.root, snapshot_id=snapshot.number), names)
        assert counted(found) == counted(table.expected(snapshot, schema))
    names = [field.name for field in table.schema.fields]
    assert counted(delivered(IcebergSource(table.root), names)) == counted(table.expected())


def check_with_pyiceberg(table: Table) -> None:
    """Compare all snapshots with what `pyiceberg` reads."""
    for snapshot in table.snapshots():
        expected = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
        if expected.num_rows:
            found = delivered(IcebergSource(table, snapshot_id=snapshot.snapshot_id), expected.column_names)
            assert counted(found) == counted(row.values() for row in expected.to_pylist())


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    made = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    made.create_namespace("db")
    yield made
    made.close()


# Written by pyiceberg

STRANGE = ["plain", "with space", "a/b", "100%", "k=v", "é", "", "null", None]


def test_inserts_deletes_overwrites_and_upserts(catalog: Catalog) -> None:
    schema = IcebergSchema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "part", StringType()),
        NestedField(3, "value", DoubleType()),
        identifier_field_ids=[1],
    )
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
    table = catalog.create_table("db.t", schema, partition_spec=spec)
    arrow = pa.schema([pa.field("id", pa.int64(), nullable=False), ("part", pa.string()), ("value", pa.float64())])

    def rows(first: int, stop: int) -> pa.Table:
        numbers = range(first, stop)
        columns = [list(numbers), [STRANGE[n % 9] for n in numbers], [None if n % 4 == 0 else n / 2 for n in numbers]]
        return pa.table(columns, schema=arrow)

    table.append(rows(0, 40))
    table.delete("id < 5 or part == 'a/b'")
    table.upsert(rows(30, 50))
    table.overwrite(rows(100, 103), overwrite_filter="part == 'with space'")
    table.dynamic_partition_overwrite(rows(200, 203))
    table.delete("part is null")
    table.overwrite(rows(0, 9))
    check_with_pyiceberg(table)
    assert len(table.snapshots()) > 8


def test_renames_drops_promotions_and_partition_evolution(catalog: Catalog) -> None:
    schema = pa.schema([("a", pa.int32()), ("b", pa.float32()), ("c", pa.string()), ("d", pa.decimal128(9, 2))])
    table = catalog.create_table("db.t", schema)
    old = pa.table(
        [[1, 2, None], [0.5, None, 1.5], ["x", "y", None], [Decimal("1.25"), None, Decimal("-3.00")]], schema=schema
    )
    table.append(old)
    with table.update_schema() as update:
        update.rename_column("c", "text")
        update.update_column("a", LongType())
        update.update_column("b", DoubleType())
        update.update_column("d", DecimalType(18, 2))
    with table.update_schema() as update:
        update.move_first("text")
    with table.update_spec() as spec:
        spec.add_field("text", IdentityTransform(), "by_text")
    new = pa.schema([("text", pa.string()), ("a", pa.int64()), ("b", pa.float64()), ("d", pa.decimal128(18, 2))])
    table.append(pa.table([["z"], [2**40], [1e300], [Decimal("123456789012.34")]], schema=new))
    with table.update_spec() as spec:
        spec.remove_field("by_text")
    with table.update_schema() as update:
        update.delete_column("text")
    with table.update_schema() as update:
        update.add_column("text", IntegerType())
    with table.update_spec() as spec:
        spec.add_field("text", IdentityTransform(), "by_number")
    table.append(
        pa.table({"a": [7], "b": [7.0], "d": pa.array([None], pa.decimal128(18, 2)), "text": pa.array([7], pa.int32())})
    )
    table.delete("a == 2")
    check_with_pyiceberg(table)
    rows = delivered(table, ["a", "text"])
    assert counted(rows) == counted([(1, None), (None, None), (2**40, None), (7, 7)])


def test_a_table_can_be_named_in_all_ways(catalog: Catalog) -> None:
    table = catalog.create_table("db.t", pa.schema([("a", pa.int64())]))
    table.append(pa.table({"a": [1, 2]}))
    table.append(pa.table({"a": [3]}))
    table.delete("a = 2")
    root = table.location().removeprefix("file://")
    sources: list[Any] = [
        table,
        StaticTable.from_metadata(table.metadata_location),
        IcebergSource("db.t", catalog=catalog),
        root,
        f"file://{root}",
        Path(root),
        [root],
        IcebergSource(table.metadata_location),
        table.metadata_location,
    ]
    for source in sources:
        assert sorted(delivered(source, ["a"])) == [(1,), (3,)]
    assert [ParquetDataset(source).num_rows for source in sources] == [2] * len(sources)


# Files without ids, and migrated tables


def test_files_without_ids_are_read_by_the_name_mapping(catalog: Catalog, tmp_path: Path) -> None:
    table = catalog.create_table("db.t", pa.schema([("a", pa.int64()), ("b", pa.string())]))
    pq.write_table(pa.table({"b": ["x", "y"], "a": [1, 2], "other": [0, 0]}).select(["b", "a"]), tmp_path / "f.parquet")
    table.add_files([str(tmp_path / "f.parquet")])
    with table.update_schema() as update:
        update.rename_column("a", "number")
        update.delete_column("b")
    with table.update_schema() as update:
        update.add_column("b", StringType())
    table.append(pa.table({"number": [3], "b": ["new"]}))
    check_with_pyiceberg(table)
    # pyiceberg gives the name in files to the new column
    assert counted(delivered(table, ["number", "b"])) == counted([(1, "x"), (2, "y"), (3, "new")])


def test_files_without_ids_are_refused_without_a_name_mapping(tmp_path: Path) -> None:
    table = HandTable(tmp_path / "t", [("id", "long")], with_ids=False)
    (data,) = table.insert([{1: 5}])
    with pytest.raises(SourceError, match=rf"{data}.*field id"):
        ParquetDataset(str(table.root))
    table.properties["schema.name-mapping.default"] = '[{"field-id": 1, "names": ["other", "id"]}]'
    table.write_metadata()
    check(table)


def test_partition_columns_that_files_lack_come_from_the_manifest(tmp_path: Path) -> None:
    fields = [
        ("id", "long"),
        ("day", "date"),
        ("p", "string"),
        ("price", "decimal(9,2)"),
        ("n", "int"),
        ("at", "timestamp"),
    ]
    table = HandTable(tmp_path / "t", fields, partition_by=[(name, "identity") for name, _ in fields[1:]])
    rows: list[dict[int, Any]] = [
        {1: 1, 2: dt.date(2020, 2, 29), 3: "a b/%", 4: Decimal("1.20"), 5: -3, 6: at(2020, 1, 1, 1, 1, 1, 5)},
        {1: 2, 2: None, 3: None, 4: None, 5: None, 6: None},
    ]
    stored = [row | {2: _days(row[2]), 6: _micros(row[6])} for row in rows]
    groups = [table.write_data([row], without=[name for name, _ in fields[1:]])[0] for row in rows]
    for file, row in zip(groups, stored, strict=True):
        file.partition._data[:] = [row[number] for number in range(2, 7)]
    table.commit(added=groups)
    check(table)
    table.replace("n", field_type=LongType(), name="m")
    table.replace("price", field_type=DecimalType(12, 2))
    table.write_metadata()
    check(table)
    for filters, ids in [
        (pc.field("m") == -3, [1]),
        (pc.field("p") == "a b/%", [1]),
        (pc.field("p").is_null(), [2]),
        (pc.field("p") == "x", []),
    ]:
        with BatchedDataLoader(IcebergSource(table.root), 4, columns=["id"], filters=filters) as loader:
            assert [number for batch in loader for number in batch["id"].tolist()] == ids


def _days(day: Any) -> Any:
    return None if day is None else (day - dt.date(1970, 1, 1)).days


def _micros(time: Any) -> Any:
    return None if time is None else (time - UNIX) // dt.timedelta(microseconds=1)


def test_a_column_in_a_file_goes_before_its_partition_value(tmp_path: Path) -> None:
    table = HandTable(tmp_path / "t", [("id", "long"), ("p", "long")], partition_by=[("p", "identity")])
    data = table.write_data([{1: 1, 2: 5}])
    data[0].partition = type(data[0].partition)(6)
    table.commit(added=data)
    assert delivered(IcebergSource(table.root), ["id", "p"]) == [(1, 5)]
    with BatchedDataLoader(IcebergSource(table.root), 4, filters=pc.field("p") == 5) as loader:
        assert [batch["id"].tolist() for batch in loader] == [[1]]


# Version 3


def test_defaults_fill_files_that_are_older_than_the_column(tmp_path: Path) -> None:
    table = HandTable(tmp_path / "t", [("id", "long")], version=3)
    table.insert([{1: number} for number in range(5)])
    for name, type_, default in [
        ("text", "string", "none é"),
        ("number", "int", -7),
        ("share", "double", 0.25),
        ("flag", "boolean", True),
        ("price", "decimal(9,2)", Decimal("14.20")),
        ("day", "date", dt.date(2017, 11, 16)),
        ("at", "timestamp", at(2017, 11, 16, 22, 31, 8, 123456)),
        ("raw", "binary", b"\x00\xff"),
    ]:
        table.add(name, type_, default=default)
    table.insert([{1: 9, 2: "given", 3: None, 4: None, 5: None, 6: None, 7: None, 8: None, 9: None}])
    check(table)


def test_dates_become_timestamps(tmp_path: Path) -> None:
    table = HandTable(tmp_path / "t", [("id", "long"), ("at", "date")], version=3)
    table.insert([{1: 1, 2: dt.date(1969, 12, 30)}, {1: 2, 2: None}])
    table.replace("at", field_type="timestamp")
    table.insert([{1: 3, 2: at(2020, 1, 1, 0, 0, 1)}])
    expected = [(1, at(1969, 12, 30)), (2, None), (3, at(2020, 1, 1, 0, 0, 1))]
    assert counted(delivered(IcebergSource(table.root), ["id", "at"])) == counted(expected)


def test_columns_of_the_type_unknown_are_null_until_they_have_a_type(tmp_path: Path) -> None:
    table = HandTable(tmp_path / "t", [("id", "long"), ("later", "unknown")], version=3)
    table.commit(added=table.write_data([{1: 1}], without=["later"]))
    table.replace("later", field_type=StringType())
    table.insert([{1: 2, 2: "x"}])
    assert counted(delivered(IcebergSource(table.root), ["id", "later"])) == counted([(1, None), (2, "x")])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("long", "int"),
        ("int", "double"),
        ("double", "float"),
        ("string", "int"),
        ("int", "string"),
        ("date", "timestamptz"),
    ],
)
def test_other_changes_of_a_type_are_refused(tmp_path: Path, old: str, new: str) -> None:
    table = HandTable(tmp_path / "t", [("id", "long"), ("value", old)], version=3)
    values = {"string": "x", "date": dt.date(2020, 1, 1)}
    table.insert([{1: 1, 2: values.get(old, 1)}])
    table.replace("value", field_type=new)
    table.write_metadata()
    with pytest.raises(SchemaError, match="'value'"):
        delivered(IcebergSource(table.root), ["value"])


def test_parts_of_columns_are_found_by_their_ids(tmp_path: Path) -> None:
    inner = StructType(NestedField(10, "x", IntegerType()), NestedField(11, "y", StringType()))
    fields = [NestedField(1, "id", LongType()), NestedField(2, "point", inner)]
    table = HandTable(tmp_path / "t", [], version=2)
    table._set_schema([*fields, NestedField(3, "list", ListType(12, IntegerType(), element_required=False))])
    table.last_column = 20
    table.insert([{1: 1, 2: {"x": 5, "y": "old"}, 3: [1, 2]}, {1: 2, 2: {"x": None, "y": None}, 3: []}])
    moved = StructType(
        NestedField(13, "x", StringType()), NestedField(11, "why", StringType()), NestedField(10, "z", LongType())
    )
    table._set_schema(
        [NestedField(2, "p", moved), NestedField(3, "l", ListType(12, LongType(), element_required=False)), fields[0]]
    )
    table.insert([{1: 3, 2: {"x": "new", "why": "w", "z": 2**40}, 3: [2**40]}])
    names = ["id", "p.x", "p.why", "p.z"]
    assert counted(delivered(IcebergSource(table.root), names)) == counted(
        [(1, None, "old", 5), (2, None, None, None), (3, "new", "w", 2**40)]
    )
    lists = [list(value) for (value,) in delivered(IcebergSource(table.root), ["l"])]
    assert sorted(lists) == [[], [1, 2], [2**40]]


# Deletes, length, ranks, resume


@pytest.mark.parametrize("version", [2, 3])
def test_length_ranks_split_and_resume_are_exact_with_deletes(tmp_path: Path, version: Version) -> None:
    table = HandTable(tmp_path / "t", [("id", "long")], version=version)
    for first in range(0, 300, 100):
        table.insert([{1: number} for number in range(first, first + 100)], row_group_rows=16)
    table.delete({path: set(range(first, 100, 3)) for first, path in enumerate(sorted(table.files))}, together=True)
    table.delete({min(table.files): set(range(40, 80))})
    alive = sorted(row[1] for row in table.rows())
    data = ParquetDataset(IcebergSource(table.root))
    assert data.num_rows == len(alive)
    ranks = [delivered(IcebergSource(table.root), ["id"], shuffle=True, shard=Shard(rank, 3)) for rank in range(3)]
    whole = [row[0] for rank in ranks for row in rank]
    assert set(whole) == set(alive)
    assert len(whole) - len(alive) <= 2  # that fill up the last steps
    with data.batches(16, shuffle=True, seed=3) as loader:
        batches = iter(loader)
        seen = [next(batches)["id"].tolist() for _ in range(4)]
        state = loader.state_dict()
        rest = [batch["id"].tolist() for batch in batches]
        assert sorted(number for numbers in [*seen, *rest] for number in numbers) == alive
    with data.batches(16, shuffle=True, seed=3) as loader:
        loader.load_state_dict(state)
        assert [batch["id"].tolist() for batch in loader] == rest


def test_a_state_names_the_snapshot_and_says_how_to_open_it(tmp_path: Path) -> None:
    table = HandTable(tmp_path / "t", [("id", "long")])
    table.insert([{1: number} for number in range(50)])
    with BatchedDataLoader(str(table.root), 8) as loader:
        next(iter(loader))
        state = loader.state_dict()
    number = table.snapshots[-1].number
    assert f"iceberg version {number}" in repr(state)
    table.delete({next(iter(table.files)): {1}})
    with (
        BatchedDataLoader(str(table.root), 8) as loader,
        pytest.raises(Exception, match=rf"IcebergSource\('{table.root}', snapshot_id={number}\)"),
    ):
        loader.load_state_dict(state)
    with BatchedDataLoader(IcebergSource(table.root, snapshot_id=number), 8) as loader:
        loader.load_state_dict(state)
        assert sum(len(batch["id"]) for batch in loader) == 42


def test_a_data_file_that_is_gone_or_another_is_an_error_that_says_so(tmp_path: Path) -> None:
    table = HandTable(tmp_path / "t", [("id", "long")])
    (data,) = table.insert([{1: number} for number in range(50)])
    raw = Path(data).read_bytes()
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"id": pa.array(range(49), pa.int64())}), other)
    Path(data).unlink()
    with pytest.raises(SourceError, match="expiry of snapshots"):
        ParquetDataset(str(table.root))
    Path(data).write_bytes(raw + b"x")
    with pytest.raises(SourceError, match=Path(data).name):
        ParquetDataset(str(table.root))
    Path(data).write_bytes(other.read_bytes())
    with pytest.raises(SourceError, match=Path(data).name):
        ParquetDataset(str(table.root))


def test_each_epoch_of_a_followed_table_reads_its_newest_snapshot(catalog: Catalog) -> None:
    table = catalog.create_table("db.t", pa.schema([("a", pa.int64())]))
    table.append(pa.table({"a": [1, 2]}))
    root = table.location().removeprefix("file://")
    for source in (IcebergSource(table, follow=True), IcebergSource(root, follow=True)):
        before = sorted(catalog.load_table("db.t").scan().to_arrow()["a"].to_pylist())
        with BatchedDataLoader(source, 1) as loader:
            assert sorted(batch["a"].item() for batch in loader) == before
            table.append(pa.table({"a": [len(before) + 1]}))
            assert sorted(batch["a"].item() for batch in loader) == [*before, len(before) + 1]


def test_an_epoch_of_a_followed_table_has_its_columns_of_now(catalog: Catalog) -> None:
    table = catalog.create_table("db.t", pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    table.append(pa.table({"a": [1, 2], "b": [10, 20]}))
    with BatchedDataLoader(IcebergSource(table, follow=True), 2) as loader:
        assert [batch["a"].tolist() for batch in loader] == [[1, 2]]
        for old, new in (("a", "c"), ("b", "a"), ("c", "b")):  # no new snapshot
            with table.update_schema() as update:
                update.rename_column(old, new)
        assert [batch["a"].tolist() for batch in loader] == [[10, 20]]
        with table.update_schema() as update:
            update.move_before("b", "a")
        with table.update_schema() as update:
            update.move_before("a", "b")
        assert [batch["a"].tolist() for batch in loader] == [[10, 20]]


def test_the_rows_of_a_table_can_be_rewritten(tmp_path: Path) -> None:
    table = HandTable(tmp_path / "t", [("id", "long")])
    (data,) = table.insert([{1: number} for number in range(20)])
    table.delete({data: {0, 5}})
    sources: list[Any] = [str(table.root), IcebergSource(table.root)]
    for number, source in enumerate(sources):
        report = rewrite_dataset(source, tmp_path / f"new{number}")
        assert report.rows == 18
        assert sorted(delivered(tmp_path / f"new{number}", ["id"])) == [(n,) for n in range(20) if n not in (0, 5)]
    with pytest.raises(WriteError, match="an Iceberg table"):
        rewrite_dataset(IcebergSource(table.root), table.root / "new")
