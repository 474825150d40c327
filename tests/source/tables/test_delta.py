"""Delta tables: each version's rows are those of the format's own reader."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyroaring
import pytest
from deltalake import DeltaTable, write_deltalake

from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    DeltaSource,
    OutputOptions,
    ParquetDataset,
    RaggedList,
    ReadOptions,
    Scalar,
    Schema,
    SchemaError,
    SourceError,
    Text,
)
from parquet_loader.source import roaring_bytes, roaring_positions
from tests.source.layouts import remove_amid_listing
from tests.source.tables.delta_logs import (
    add,
    arrow_of,
    assert_same,
    bitmap,
    checkpoint_rows,
    column,
    commit,
    inline_vector,
    mapped,
    metadata,
    oracle,
    protocol,
    remove,
    stored_vectors,
)
from tests.source.tables.made_tables import rows_of
from tests.support.examples import grid

NULLS = Schema({"id": Scalar("int64"), "v": Scalar("int64", fill=-1), "s": Text(fill="null"), "p": Text(fill="null")})
X = [column("x", "long")]


def some(first: int, stop: int, p: Any = "a") -> pa.Table:
    ids = list(range(first, stop))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "v": pa.array([None if i % 5 == 0 else i * 10 for i in ids], pa.int64()),
            "s": pa.array([None if i % 7 == 0 else f"s{i}" for i in ids], pa.string()),
            "p": pa.array([p if i % 3 else None for i in ids], pa.string()),
        }
    )


def xs(source: Any, **options: Any) -> list[int]:
    return sorted(row["x"] for row in rows_of(source, **options))


def numbers(*values: int) -> pa.Table:
    return pa.table({"x": pa.array(values, pa.int64())})


@grid(
    "mapping, partitioned",
    ["none", "name"],
    [False, True],
    everyday=lambda mapping, partitioned: partitioned == (mapping == "none"),
)
def test_each_version_of_a_history_has_the_rows_that_deltalake_reads(
    tmp_path: Path, partitioned: bool, mapping: str
) -> None:
    path = tmp_path / "t"
    options: dict[str, Any] = {"partition_by": ["p"] if partitioned else None}
    configuration = {"delta.columnMapping.mode": mapping} if mapping != "none" else None
    write_deltalake(path, some(0, 20), configuration=configuration, **options)
    write_deltalake(path, some(20, 30, "b/c=%20é"), mode="append")
    DeltaTable(path).delete("id % 4 = 1")
    DeltaTable(path).update(updates={"v": "id + 1000"}, predicate="id > 22")
    source = some(28, 34, "merged")
    merge = DeltaTable(path).merge(source, "t.id = s.id", source_alias="s", target_alias="t")
    merge.when_matched_update({"v": "s.v"}).when_not_matched_insert_all().execute()
    DeltaTable(path).create_checkpoint()
    if mapping == "none":  # deltalake cannot do the other with mapped columns
        DeltaTable(path).optimize.compact()
    if partitioned:
        write_deltalake(
            path,
            some(60, 63, "b/c=%20é").filter(pc.is_valid(pc.field("p"))),
            mode="overwrite",
            predicate="p = 'b/c=%20é'",
        )
    DeltaTable(path).restore(2)
    write_deltalake(path, some(40, 44), mode="overwrite")
    for version in range(DeltaTable(path).version() + 1):
        assert_same(DeltaSource(path, version), oracle(path, version), NULLS)
        assert ParquetDataset(DeltaSource(path, version)).num_rows == len(oracle(path, version))
    assert_same(path, oracle(path), NULLS)
    assert_same(DeltaTable(path, version=3), oracle(path, 3), NULLS)
    assert_same(str(path), oracle(path), NULLS, shuffle=True, seed=4)
    keep = pc.field("p") == "a"
    assert_same(DeltaSource(path, 1), [r for r in oracle(path, 1) if r["p"] == "a"], NULLS, filters=keep)


def test_partition_values_of_all_types_come_from_the_log(tmp_path: Path) -> None:
    rows = {
        "t": pa.array(["a/b=c", "x y%20", None, "é+", "__HIVE_DEFAULT_PARTITION__x"]),
        "i": pa.array([1, -5, None, 2**31 - 1, 0], pa.int32()),
        "day": pa.array([dt.date(2020, 1, 1), None, dt.date(1969, 12, 31), dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
        "at": pa.array([0, -1, None, 1_600_000_000_123_456, -62_135_596_800_000_000], pa.timestamp("us", "UTC")),
        "ntz": pa.array([0, 10**6, None, 1_600_000_000_123_456, -1], pa.timestamp("us")),
        "d": pa.array(
            [decimal.Decimal(text) if text else None for text in ("1.50", "7.25", None, "99999.99", "0.00")],
            pa.decimal128(9, 2),
        ),
        "b": pa.array([True, False, None, True, False]),
        "f": pa.array([1.5, float("inf"), None, 1e-30, -2.0]),
    }
    path = tmp_path / "t"
    write_deltalake(path, pa.table({**rows, "x": pa.array(range(5), pa.int64())}), partition_by=list(rows))
    moved = tmp_path / "moved and % renamed"
    shutil.copytree(path, moved)
    snapshot = ParquetDataset(moved)._source.snapshot
    assert snapshot.constants is not None
    order = [row["x"] for row in rows_of(moved, columns=["x"])]
    for name, values in rows.items():
        found = snapshot.constants.column(name)
        assert found.type == values.type
        assert found.to_pylist() == values.take(pa.array(order)).to_pylist(), name
        for number, value in enumerate(values):
            keep = pc.field(name) == value if value.is_valid else pc.field(name).is_null()
            same = [n for n, other in enumerate(values.to_pylist()) if other == value.as_py()]
            assert xs(moved, columns=["x"], filters=keep) == same, (name, number)


def test_partition_values_that_readers_differ_about_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_deltalake(path, pa.table({"p": [b"\x01"], "x": [1]}), partition_by=["p"])
    with pytest.raises(SourceError, match="'p' bytes that may be escaped"):
        ParquetDataset(path)


def test_a_partition_value_that_is_not_of_its_type_is_refused(tmp_path: Path) -> None:
    fields = [*X, column("p", "integer")]
    commit(
        tmp_path, 0, protocol(), metadata(fields, ["p"]), add(tmp_path, "a", numbers(1), partitionValues={"p": "7x"})
    )
    with pytest.raises(SourceError, match="the partition column 'p' the value '7x', which is not a int32"):
        ParquetDataset(tmp_path)
    commit(tmp_path, 0, protocol(), metadata(fields, ["p"]), add(tmp_path, "a"))
    with pytest.raises(SourceError, match="gives the file 'a' no value of the partition column 'p'"):
        ParquetDataset(tmp_path)


def test_an_empty_partition_value_is_null_and_the_log_wins_over_a_column_in_the_file(tmp_path: Path) -> None:
    file = pa.table({"x": [1, 2], "p": ["wrong", "wrong"]})
    parts = {"p": ""}
    commit(
        tmp_path,
        0,
        protocol(),
        metadata([*X, column("p", "string")], ["p"]),
        add(tmp_path, "p=wrong/a", file, partitionValues=parts),
    )
    schema = Schema({"x": Scalar("int64"), "p": Text(fill="null")})
    assert rows_of(tmp_path, schema=schema) == [{"x": 1, "p": "null"}, {"x": 2, "p": "null"}]
    assert xs(tmp_path, columns=["x"], filters=pc.field("p") == "wrong") == []


# ---- paths


def test_paths_may_be_encoded_absolute_or_of_a_clone(tmp_path: Path) -> None:
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    name = "dir with space/50%25 é.parquet"
    there = add(origin, name, numbers(1, 2))["add"]
    here = add(clone, "own#1.parquet", numbers(3))["add"]
    there["path"] = (origin / name).as_uri()
    local = add(clone, name, numbers(4))["add"]
    local["path"] = quote(name)
    here["path"] = quote(here["path"])
    commit(clone, 0, protocol(), metadata(X), {"add": there}, {"add": here}, {"add": local})
    assert xs(clone) == [1, 2, 3, 4]
    there["path"] = "s3://bucket/x.parquet"
    commit(clone, 0, protocol(), metadata(X), {"add": there})
    with pytest.raises(SourceError, match=r"'s3://bucket/x.parquet', which is on another file system"):
        ParquetDataset(clone)


def test_one_file_under_two_names_is_refused(tmp_path: Path) -> None:
    one = add(tmp_path, "a.parquet", numbers(1))
    other = add(tmp_path, "a.parquet")
    other["add"]["path"] = "%61.parquet"
    commit(tmp_path, 0, protocol(), metadata(X), one, other)
    with pytest.raises(SourceError, match=r"holds the file .*a.parquet twice"):
        ParquetDataset(tmp_path)


# ---- columns


def test_columns_that_are_renamed_dropped_and_added_again_are_told_apart(tmp_path: Path) -> None:
    on = {"delta.columnMapping.mode": "name"}
    first = [mapped("a", "long", 1, "a"), mapped("b", "long", 2, "b")]
    commit(tmp_path, 0, protocol(2, 5), metadata(first, **on), add(tmp_path, "0", pa.table({"a": [1], "b": [10]})))
    second = [mapped("c", "long", 1, "a")]  # a renamed, b dropped
    commit(tmp_path, 1, metadata(second, **on), add(tmp_path, "1", pa.table({"a": [2]})))
    third = [mapped("b", "long", 3, "col-3"), mapped("c", "long", 1, "a")]  # another b
    commit(tmp_path, 2, metadata(third, **on), add(tmp_path, "2", pa.table({"col-3": [30], "a": [3]})))
    assert rows_of(DeltaSource(tmp_path, 0)) == [{"a": 1, "b": 10}]
    assert rows_of(DeltaSource(tmp_path, 1)) == [{"c": 1}, {"c": 2}]
    schema = Schema({"b": Scalar("int64", fill=-1), "c": Scalar("int64")})
    assert rows_of(tmp_path, schema=schema) == [{"b": -1, "c": 1}, {"b": -1, "c": 2}, {"b": 30, "c": 3}]
    assert_same(tmp_path, oracle(tmp_path), schema)


def test_columns_are_mapped_by_id_at_all_levels(tmp_path: Path) -> None:
    def field(name: str, type_: pa.DataType, id_: int) -> pa.Field:
        return pa.field(name, type_, metadata={"PARQUET:field_id": str(id_)})

    inner = pa.struct([field("m", pa.int64(), 4), field("gone", pa.int64(), 9)])
    stored = pa.schema(
        [field("p2", pa.list_(field("element", inner, 7)), 3), field("p1", pa.int64(), 1), field("x", pa.string(), 8)]
    )
    rows = pa.table([[[{"m": 5, "gone": 6}], []], [1, 2], ["not", "this"]], schema=stored)
    members = {"type": "struct", "fields": [mapped("n", "long", 4, "?"), mapped("new", "integer", 5, "?")]}
    fields = [
        mapped("x", "long", 1, "?"),
        mapped("l", {"type": "array", "elementType": members, "containsNull": True}, 3, "?"),
    ]
    on = {"delta.columnMapping.mode": "id"}
    commit(tmp_path, 0, protocol(2, 5), metadata(fields, **on), add(tmp_path, "0", rows))
    schema = Schema(
        {"x": Scalar("int64"), "l.n": RaggedList(Scalar("int64")), "l.new": RaggedList(Scalar("int32", fill=0))}
    )
    assert rows_of(tmp_path, schema=schema) == [{"x": 1, "l.n": [5], "l.new": [0]}, {"x": 2, "l.n": [], "l.new": []}]
    commit(tmp_path, 1, add(tmp_path, "1", numbers(3)))
    with pytest.raises(SourceError, match="finds columns by field ids, and this file has none"):
        ParquetDataset(tmp_path)


def test_a_mapping_that_the_protocol_does_not_name_is_refused(tmp_path: Path) -> None:
    on = {"delta.columnMapping.mode": "name"}
    commit(tmp_path, 0, protocol(1, 2), metadata([mapped("x", "long", 1, "c")], **on))
    with pytest.raises(SourceError, match="maps columns by name, and its protocol does not say so"):
        ParquetDataset(tmp_path)
    commit(
        tmp_path, 0, protocol(2, 5), metadata([mapped("x", "long", 1, "c")], **{"delta.columnMapping.mode": "magic"})
    )
    with pytest.raises(SourceError, match="maps columns by 'magic'"):
        ParquetDataset(tmp_path)


WIDENED = [
    ("byte", pa.int8(), "short", -128),
    ("short", pa.int16(), "integer", 32767),
    ("integer", pa.int32(), "long", -(2**31)),
    ("float", pa.float32(), "double", 0.1),
    ("integer", pa.int32(), "double", 2**31 - 1),
    ("integer", pa.int32(), "decimal(12,2)", 7),
    ("decimal(5,2)", pa.decimal128(5, 2), "decimal(10,4)", decimal.Decimal("1.25")),
    ("date", pa.date32(), "timestamp_ntz", dt.date(1969, 12, 31)),
]


@pytest.mark.parametrize(("before", "stored", "after", "value"), WIDENED, ids=lambda part: str(part).replace("/", ""))
def test_widened_types_deliver_equal_values(tmp_path: Path, before: str, stored: Any, after: str, value: Any) -> None:
    features = ["typeWidening", "timestampNtz"]
    old = pa.table({"x": pa.array([value], stored)})
    commit(tmp_path, 0, protocol(3, 7, features), metadata([column("x", before)]), add(tmp_path, "0", old))
    commit(tmp_path, 1, metadata([column("x", after)]))
    with BatchedDataLoader(tmp_path, 1, output_options=OutputOptions(format="numpy")) as loader:
        (batch,) = loader
    expected = np.float32(value) if stored == pa.float32() else value
    found = batch["x"][0]
    if isinstance(value, dt.date):
        assert int(found.astype(np.int64)) == -86_400_000_000
    else:
        assert float(found) == float(expected)


def test_a_type_that_was_narrowed_or_changed_is_refused(tmp_path: Path) -> None:
    for stored, type_ in (
        (pa.int64(), "integer"),
        (pa.string(), "long"),
        (pa.int64(), "double"),
        (pa.float64(), "float"),
    ):
        file = pa.table({"x": pa.array([None], stored)})
        commit(tmp_path, 0, protocol(), metadata([column("x", type_)]), add(tmp_path, "0", file))
        with pytest.raises(SchemaError, match=f"the file holds {stored}, which cannot be read as the table's"):
            ParquetDataset(tmp_path)


def test_timestamps_of_spark_come_in_the_unit_of_the_table(tmp_path: Path) -> None:
    when = [dt.datetime(2020, 1, 1, 0, 0, 0, 123456, tzinfo=dt.UTC), dt.datetime(1969, 1, 1, 1, 2, 3, 4, tzinfo=dt.UTC)]
    rows = pa.table({"t": pa.array(when, pa.timestamp("us", "UTC"))})
    pq.write_table(rows, tmp_path / "0", use_deprecated_int96_timestamps=True)
    commit(tmp_path, 0, protocol(), metadata([column("t", "timestamp")]), add(tmp_path, "0"))
    pq.write_table(rows, tmp_path / "1", coerce_timestamps="ms", allow_truncated_timestamps=True)
    commit(tmp_path, 1, add(tmp_path, "1"))
    with BatchedDataLoader(tmp_path, 4, output_options=OutputOptions(format="numpy")) as loader:
        (batch,) = loader
    exact = rows.column("t").cast(pa.int64()).to_pylist()
    in_ms = pq.read_table(tmp_path / "1").column("t").cast(pa.int64()).to_pylist()
    assert batch["t"].astype(np.int64).tolist() == [*exact, *(1000 * value for value in in_ms)]
    assert len(rows_of(tmp_path, filters=pc.field("t") == pa.scalar(when[1], pa.timestamp("us", "UTC")))) == 1


# ---- deletion vectors


@pytest.mark.parametrize("kind", ["inline", "relative", "prefixed", "absolute"])
def test_rows_of_deletion_vectors_are_not_delivered(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "my table"
    gone = [0, 3, 4, 19], [7], list(range(20))
    if kind == "inline":
        vectors = [inline_vector(positions) for positions in gone]
    else:
        folder = tmp_path / "elsewhere" if kind == "absolute" else path
        vectors = stored_vectors(folder, gone, prefix="ab" if kind == "prefixed" else "", absolute=kind == "absolute")
    files = [add(path, f"{n}.parquet", numbers(*range(100 * n, 100 * n + 20))) for n in range(4)]
    commit(path, 0, protocol(3, 7, ["deletionVectors"]), metadata(X), *files)
    changed = []
    for number, vector in enumerate(vectors):
        again = add(path, f"{number}.parquet", deletionVector=vector)
        changed += [remove(f"{number}.parquet"), again]
    commit(path, 1, *changed)
    expected = [100 * n + x for n in range(4) for x in range(20) if n == 3 or x not in gone[n]]
    assert xs(path) == expected
    assert xs(DeltaSource(path, 0)) == [100 * n + x for n in range(4) for x in range(20)]
    assert ParquetDataset(path).num_rows == len(expected)
    assert sorted(row["x"] for row in oracle(path)) == expected
    fewer = inline_vector([1])
    commit(path, 2, remove("0.parquet", deletionVector=vectors[0]), add(path, "0.parquet", deletionVector=fewer))
    assert xs(path)[:19] == [x for x in range(20) if x != 1]


def test_deletion_vectors_of_all_containers_are_decoded(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    dense = np.flatnonzero(generator.random(65536) < 0.5)
    parts = [[5, 70_000], dense + 3 * 65536, np.arange(2**18, 2**18 + 50_000), [2**32, 2**32 + 9, 2**40]]
    positions = np.unique(np.concatenate([np.asarray(part, np.int64) for part in parts]))
    assert roaring_positions(bitmap(positions.tolist())).tolist() == positions.tolist()
    assert roaring_positions(roaring_bytes(positions)).tolist() == positions.tolist()
    low = positions[positions < 2**32]
    assert list(pyroaring.BitMap.deserialize(roaring_bytes(low)[16:])) == low.tolist()
    assert len(roaring_positions(roaring_bytes(np.empty(0, np.int64)))) == 0


DAMAGE = (
    "checksum", "size", "huge size", "offset", "huge offset", "cut", "cardinality", "magic", "gone", "text", "kind",
)  # fmt: skip


@pytest.mark.parametrize("change", DAMAGE)
def test_a_damaged_deletion_vector_is_refused(tmp_path: Path, change: str) -> None:
    (vector,) = stored_vectors(tmp_path, [[1, 2, 3]])
    file = next(tmp_path.glob("*.bin"))
    data = bytearray(file.read_bytes())
    if change == "checksum":
        data[-1] ^= 1
    elif change == "magic":
        data[5] ^= 1
    elif change == "cut":
        del data[-3:]
    elif change == "gone":
        file.unlink()
    elif change == "text":
        vector["pathOrInlineDv"] = '"' * 20
    wrong: dict[str, dict[str, Any]] = {
        "size": {"sizeInBytes": 99},
        "huge size": {"sizeInBytes": 2**62},
        "offset": {"offset": -5},
        "huge offset": {"offset": 2**63},
        "cardinality": {"cardinality": 2},
        "kind": {"storageType": "x"},
    }
    vector |= wrong.get(change, {})
    if change != "gone":
        file.write_bytes(data)
    added = add(tmp_path, "0", numbers(*range(20)), deletionVector=vector)
    commit(tmp_path, 0, protocol(3, 7, ["deletionVectors"]), metadata(X), added)
    with pytest.raises(SourceError, match=r"deleted rows cannot be read|deletion vector of the file .* is damaged"):
        xs(tmp_path)


def test_a_deletion_vector_that_the_protocol_does_not_allow_is_refused(tmp_path: Path) -> None:
    commit(tmp_path, 0, protocol(), metadata(X), add(tmp_path, "0", numbers(1, 2), deletionVector=inline_vector([0])))
    with pytest.raises(SourceError, match="has a deletion vector, and the table's protocol does not say so"):
        ParquetDataset(tmp_path)


def test_a_file_with_two_deletion_vectors_is_refused(tmp_path: Path) -> None:
    one = add(tmp_path, "0", numbers(1, 2), deletionVector=inline_vector([0]))
    commit(tmp_path, 0, protocol(3, 7, ["deletionVectors"]), metadata(X), one)
    commit(tmp_path, 1, add(tmp_path, "0", deletionVector=inline_vector([1])))
    with pytest.raises(SourceError, match="version 1 holds the file '0' twice, with different deletion vectors"):
        ParquetDataset(tmp_path)
    assert xs(DeltaSource(tmp_path, 0)) == [2]


# ---- protocol


@pytest.mark.parametrize("feature", ["catalogManaged", "rowTracking", "variantShredding", "nobodyKnows"])
def test_a_reader_feature_that_is_not_known_is_refused_by_name(tmp_path: Path, feature: str) -> None:
    commit(tmp_path, 0, protocol(3, 7, ["deletionVectors", feature]), metadata(X), add(tmp_path, "0", numbers(1)))
    with pytest.raises(SourceError, match=f"the table uses the reader feature {feature} of the Delta protocol"):
        ParquetDataset(tmp_path)
    assert xs(tmp_path, read_options=ReadOptions(ignore_table_format=True)) == [1]


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (protocol(4, 8, []), "needs reader version 4"),
        (protocol(3, 7), "lists no reader features"),
        ({"protocol": {}}, "names no reader version"),
        ({"protocol": {"minReaderVersion": "2"}}, "names no reader version"),
    ],
)
def test_a_protocol_that_is_not_known_is_refused(tmp_path: Path, action: Any, reason: str) -> None:
    commit(tmp_path, 0, action, metadata(X), add(tmp_path, "0", numbers(1)))
    with pytest.raises(SourceError, match=reason):
        ParquetDataset(tmp_path)


@pytest.mark.parametrize("type_", ["variant", "interval day to second", {"type": "geometry"}])
def test_a_type_that_is_not_known_is_refused_by_name(tmp_path: Path, type_: Any) -> None:
    commit(
        tmp_path, 0, protocol(3, 7, ["variantType"]), metadata([*X, column("v", type_)]), add(tmp_path, "0", numbers(1))
    )
    with pytest.raises(SourceError, match=r"column 'v': the type '.*' is not read"):
        ParquetDataset(tmp_path)


# ---- the log


def many_versions(path: Path, count: int = 6) -> None:
    commit(path, 0, protocol(), metadata(X), add(path, "0", numbers(0)))
    for version in range(1, count):
        commit(path, version, add(path, str(version), numbers(version)))


def test_a_file_that_is_removed_while_the_log_is_listed_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_versions(tmp_path, 3)
    old = tmp_path / "_delta_log" / f"{0:020}.crc"
    old.touch()
    remove_amid_listing(monkeypatch, old)
    assert xs(tmp_path) == [0, 1, 2]


def test_a_missing_commit_is_named(tmp_path: Path) -> None:
    many_versions(tmp_path)
    (tmp_path / "_delta_log" / f"{3:020}.json").unlink()
    with pytest.raises(SourceError, match="commit 3 is missing from the log, and version 5 needs it"):
        ParquetDataset(tmp_path)
    assert xs(DeltaSource(tmp_path, 2)) == [0, 1, 2]
    with pytest.raises(SourceError, match=r"there is no version 6; the table's versions go up to 5"):
        ParquetDataset(DeltaSource(tmp_path, 6))


def test_a_log_that_was_cleaned_up_says_which_version_can_be_read(tmp_path: Path) -> None:
    many_versions(tmp_path)
    DeltaTable(tmp_path, version=3).create_checkpoint()
    for version in range(3):
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    assert xs(tmp_path) == list(range(6))
    assert xs(DeltaSource(tmp_path, 3)) == [0, 1, 2, 3]
    with pytest.raises(
        SourceError, match=r"version 2 can no longer be read: .* commit 0 is gone; the oldest version to read is 3"
    ):
        ParquetDataset(DeltaSource(tmp_path, 2))


@pytest.mark.parametrize("damage", ["json", "cut", "list", "size", "both", "line", "empty"])
def test_a_damaged_commit_is_refused_with_its_version(tmp_path: Path, damage: str) -> None:
    many_versions(tmp_path, 3)
    file = tmp_path / "_delta_log" / f"{2:020}.json"
    text = file.read_text()
    if damage == "both":
        commit(tmp_path, 2, add(tmp_path, "0"), remove("0"))
    elif damage == "line":
        commit(tmp_path, 2, add(tmp_path, "0") | remove("1"))
    else:
        changed = {"json": "{" + text, "cut": text[:-20], "list": "[1]\n", "size": text.replace('"size":', '"sizes":')}
        file.write_text(changed.get(damage, ""))
    if damage == "empty":
        (tmp_path / "_delta_log" / f"{0:020}.json").write_text("")
    with pytest.raises(SourceError, match=r"commit 2|holds no protocol"):
        ParquetDataset(tmp_path)


def test_numbers_that_differ_from_the_checksum_file_are_refused(tmp_path: Path) -> None:
    many_versions(tmp_path, 3)
    total = sum((tmp_path / str(n)).stat().st_size for n in range(3))
    crc = tmp_path / "_delta_log" / f"{2:020}.crc"
    crc.write_text(json.dumps({"numFiles": 3, "tableSizeBytes": total}))
    assert xs(tmp_path) == [0, 1, 2]
    file = tmp_path / "_delta_log" / f"{1:020}.json"
    kept = file.read_text()
    file.write_text("")
    with pytest.raises(SourceError, match="log of version 2 has 2 files, but its checksum file says 3"):
        ParquetDataset(tmp_path)
    file.write_text(kept)
    (tmp_path / "_delta_log" / f"{2:020}.json").unlink()
    with pytest.raises(SourceError, match="the newest commit is 1, but there is a checksum file of version 2"):
        ParquetDataset(tmp_path)


def test_a_vacuumed_file_is_named_with_the_version(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_deltalake(path, numbers(1, 2, 3))
    DeltaTable(path).delete("x = 2")
    assert xs(DeltaSource(path, 0)) == [1, 2, 3]
    DeltaTable(path).vacuum(0, enforce_retention_duration=False, dry_run=False)
    assert xs(path) == [1, 3]
    with pytest.raises(SourceError, match=r"the file is gone, and version 0 of the table .* needs it; VACUUM removes"):
        ParquetDataset(DeltaSource(path, 0))


def test_a_file_that_was_replaced_is_refused(tmp_path: Path) -> None:
    many_versions(tmp_path, 2)
    pq.write_table(numbers(*range(1000)), tmp_path / "1")
    with pytest.raises(SourceError, match=r"the file has \d+ bytes, and version 1 .* says \d+"):
        ParquetDataset(tmp_path)


def test_no_log_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no Delta table: _delta_log holds no commit"):
        ParquetDataset(DeltaSource(tmp_path / "nowhere"))


# ---- checkpoints


@pytest.mark.parametrize("kind", ["classic", "parts", "v2 json", "v2 parquet", "v2 classic name"])
def test_checkpoints_of_all_kinds_are_read(tmp_path: Path, kind: str) -> None:
    log = tmp_path / "_delta_log"
    v2 = ["v2Checkpoint"] if kind.startswith("v2") else []
    commit(
        tmp_path,
        0,
        protocol(3, 7, v2),
        metadata([*X, column("p", "string")], ["p"]),
        *(add(tmp_path, str(n), numbers(n), partitionValues={"p": None if n % 2 else "a"}) for n in range(9)),
    )
    commit(tmp_path, 1, remove("3"), remove("4"))
    rows = checkpoint_rows(tmp_path, 1)
    name = f"{1:020}.checkpoint"
    if kind == "classic":
        pq.write_table(arrow_of(rows), log / f"{name}.parquet")
    elif kind == "parts":
        for part in range(3):
            pq.write_table(arrow_of(rows[part::3]), log / f"{name}.{part + 1:010}.{3:010}.parquet")
        (log / f"{name}.{1:010}.{4:010}.parquet").write_bytes(b"a checkpoint that was never finished")
    else:
        (log / "_sidecars").mkdir()
        others = [row for row in rows if "add" not in row]
        adds = [row for row in rows if "add" in row]
        for part in range(2):
            side = log / "_sidecars" / f"{part}.parquet"
            pq.write_table(arrow_of(adds[part::2]), side)
            others.append({"sidecar": {"path": side.name, "sizeInBytes": side.stat().st_size, "modificationTime": 1}})
        others.append({"checkpointMetadata": {"version": 1}})
        uuid = "3a0d65cd-4056-49b8-937b-95f9e3ee90e5"
        if kind == "v2 json":
            (log / f"{name}.{uuid}.json").write_text("".join(json.dumps(row) + "\n" for row in others))
        else:
            pq.write_table(
                arrow_of(others), log / (f"{name}.parquet" if "classic" in kind else f"{name}.{uuid}.parquet")
            )
    for version in (0, 1):
        (log / f"{version:020}.json").unlink()
    commit(tmp_path, 2, add(tmp_path, "9", numbers(9), partitionValues={"p": "b"}))
    assert xs(tmp_path, columns=["x"]) == [0, 1, 2, 5, 6, 7, 8, 9]
    assert xs(DeltaSource(tmp_path, 1), columns=["x"]) == [0, 1, 2, 5, 6, 7, 8]
    assert xs(tmp_path, columns=["x"], filters=pc.field("p") == "a") == [0, 2, 6, 8]
    if kind.startswith("v2"):
        (log / "_sidecars" / "1.parquet").unlink()
        with pytest.raises(
            SourceError, match=r"the checkpoint of version 1 needs the file _sidecars/1.parquet, which is gone"
        ):
            ParquetDataset(tmp_path)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    many_versions(tmp_path)
    DeltaTable(tmp_path).create_checkpoint()
    file = next((tmp_path / "_delta_log").glob("*.checkpoint.parquet"))
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(SourceError, match="the checkpoint of version 5 cannot be read"):
        ParquetDataset(tmp_path)


# ---- time travel


def test_a_time_chooses_the_newest_version_that_is_not_younger(tmp_path: Path) -> None:
    many_versions(tmp_path, 4)
    for version in range(4):
        os.utime(tmp_path / "_delta_log" / f"{version:020}.json", (1_600_000_000 + 100 * version,) * 2)
    begin = dt.datetime.fromtimestamp(1_600_000_000, dt.UTC)
    for seconds, newest in ((0, 0), (99.999, 0), (100, 1), (250, 2), (10**6, 3)):
        when = begin + dt.timedelta(seconds=seconds)
        assert xs(DeltaSource(tmp_path, when)) == list(range(newest + 1))
        assert xs(DeltaSource(tmp_path, when.isoformat())) == list(range(newest + 1))
    assert xs(DeltaSource(tmp_path, "2020-09-13T12:28:20")) == [0, 1]
    with pytest.raises(SourceError, match="no version is as old as 2020-09-13 12:26:39"):
        ParquetDataset(DeltaSource(tmp_path, begin - dt.timedelta(seconds=1)))


def test_times_that_commits_state_go_before_those_of_files(tmp_path: Path) -> None:
    on = {"delta.enableInCommitTimestamps": "true", "delta.inCommitTimestampEnablementVersion": "2"}
    commit(tmp_path, 0, protocol(), metadata(X), add(tmp_path, "0", numbers(0)))
    commit(tmp_path, 1, add(tmp_path, "1", numbers(1)))
    for version in range(2, 7):
        stated = {"commitInfo": {"inCommitTimestamp": 5_000 + 1000 * version}}
        more = [metadata(X, **on)] if version == 2 else []
        commit(tmp_path, version, stated, *more, add(tmp_path, str(version), numbers(version)))
    for version in range(7):
        os.utime(tmp_path / "_delta_log" / f"{version:020}.json", (1.0 + version, 1.0 + version))
    for time_s, newest in ((1, 0), (6.9, 1), (7, 2), (8.5, 3), (11, 6), (99, 6)):
        when = dt.datetime.fromtimestamp(time_s, dt.UTC)
        assert xs(DeltaSource(tmp_path, when)) == list(range(newest + 1)), time_s


# ---- as a source


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": ""},
        {"path": 3},
        {"version": -1},
        {"version": True},
        {"version": "yesterday"},
        {"follow": 1},
        {"follow": True, "version": 2},
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="DeltaSource"):
        DeltaSource(**{"path": "x", **arguments})


def test_a_version_of_numpy_is_a_number() -> None:
    assert DeltaSource("x", np.int64(3)) == DeltaSource("x", 3)  # type: ignore[arg-type]
    assert type(DeltaSource("x", np.int64(3)).version) is int  # type: ignore[arg-type]


def test_files_of_a_table_are_refused_with_what_to_pass(tmp_path: Path) -> None:
    many_versions(tmp_path)
    for source in ([tmp_path / "1"], str(tmp_path / "[0-9]"), [tmp_path]):
        if source == [tmp_path]:
            continue
        with pytest.raises(SourceError, match=r"this is a Delta table, .*; pass the table's directory alone"):
            ParquetDataset(source)


def test_a_table_is_read_however_its_directory_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a table"
    many_versions(path, 3)
    (tmp_path / "link").symlink_to(path)
    for source in (path, f"{path}/", path.as_uri(), tmp_path / "link", os.path.relpath(path), DeltaTable(path)):
        assert xs(source) == [0, 1, 2], source


def test_rows_that_were_all_deleted_leave_an_empty_table(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_deltalake(path, some(0, 9))
    DeltaTable(path).delete()
    assert rows_of(path) == []
    assert list(ParquetDataset(path).schema) == ["id", "v", "s", "p"]
    shutil.rmtree(path)
    DeltaTable.create(path, some(0, 1).schema)
    assert ParquetDataset(path).num_rows == 0


@pytest.mark.parametrize("in_checkpoint", [False, True])
def test_a_column_may_be_called_as_the_count_of_rows_in_the_statistics(tmp_path: Path, in_checkpoint: bool) -> None:
    table = tmp_path / "t"
    rows = pa.table({"numRecords": pa.array([1, 2, 3], pa.int64())})
    stats = ['{"minValues":{"numRecords":1},"numRecords":3}', '{"maxValues":{"numRecords":9}}', "", '{"numRecords":3}']
    files = [add(table, f"{n}.parquet", rows, stats=text) for n, text in enumerate(stats)]
    commit(table, 0, protocol(), metadata([column("numRecords", "long")]), *files)
    if in_checkpoint:
        DeltaTable(table).create_checkpoint()
        (table / "_delta_log" / f"{0:020}.json").unlink()
    assert sorted(row["numRecords"] for row in rows_of(str(table))) == sorted([1, 2, 3] * 4)
