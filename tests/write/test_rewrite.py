"""`rewrite_dataset`: every row exactly once with equal values, in the layout chosen, whatever the source is."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader import (
    BatchedDataLoader,
    Category,
    ConfigurationError,
    DataError,
    Encoded,
    Group,
    Image,
    MemoryLimitError,
    RaggedList,
    Scalar,
    Schema,
    SchemaError,
    SourceError,
    Tensor,
    Text,
    WriteError,
    rewrite_dataset,
    write_dataset,
)
from parquet_loader.common.permutations import Stream, bit_generator
from parquet_loader.source import open_snapshot
from parquet_loader.write import WriteJob, remove_dead_jobs
from parquet_loader.write.rewrite import external_shuffle as scatter
from parquet_loader.write.rewrite.external_shuffle import Buckets, RowKeys
from parquet_loader.write.rewrite.pipeline import bucket_sizes
from parquet_loader.write.rewrite.source_scan import Rows
from tests.support.datasets import Layout, layouts, write_layout
from tests.support.examples import each_kind, examples
from tests.support.oracle import assert_columns_equal, delivered_columns, expected_columns


def delivered(path: Any, **arguments: Any) -> dict[str, Any]:
    with BatchedDataLoader(path, 64, **arguments) as loader:
        return delivered_columns(loader)


def tables(path: Any) -> pa.Table:
    return pa.concat_tables([pq.read_table(f) for f in sorted(Path(path).glob("*.parquet"))])


def below(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*"))


@contextmanager
def source_of(layout: Layout) -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        write_layout(layout, os.path.join(folder, "source"))
        yield os.path.join(folder, "source"), os.path.join(folder, "target")


# -- every row exactly once --


@settings(max_examples=examples(25))
@given(layouts(), st.booleans(), st.integers(0, 3))
def test_every_row_of_any_source_is_there_once_with_equal_values(layout: Layout, shuffle: bool, seed: int) -> None:
    with source_of(layout) as (source, target):
        expected = expected_columns(source)
        report = rewrite_dataset(source, target, shuffle=shuffle, seed=seed)
        assert report.rows == layout.rows
        assert_columns_equal(delivered(target), expected, ordered=not shuffle)
        assert not [name for name in os.listdir(target) if name.startswith(".")]


@each_kind
def test_each_kind_of_column_survives_in_order_and_shuffled(kinds: tuple[str, ...]) -> None:
    with source_of(Layout(((40, 1, 0), (30,)), kinds, seed=9)) as (source, target):
        expected = expected_columns(source)
        rewrite_dataset(source, target)
        assert_columns_equal(delivered(target), expected, ordered=True)
        rewrite_dataset(source, f"{target}-s", shuffle=True, objective="size")
        assert_columns_equal(delivered(f"{target}-s"), expected, ordered=False)


def test_nulls_stay_nulls_and_masks_stay_masks(tmp_path: Path) -> None:
    masked = Schema(
        {
            "i": Scalar("int64", null="mask"),
            "f": Scalar("float32", null="mask"),
            "t": Scalar("timestamp[us, tz=UTC]", null="mask"),
            "d": Scalar("decimal128(12, 3)", null="mask"),
            "w": Category(("a", "b"), null="mask"),
            "s": Text(null="mask"),
            "l": RaggedList(Scalar("int32", fill=-1), null="mask"),
            "x": Tensor("float32", (2,), null="mask"),
            "never": Scalar("int8", null="mask"),
        }
    )
    rows: list[dict[str, Any]] = [
        {"i": 1, "f": None, "t": 5, "d": "1.250", "w": "a", "s": None, "l": [1, None], "x": [1, 2], "never": 1},
        {"i": None, "f": float("nan"), "t": None, "d": None, "w": None, "s": "", "l": None, "x": None, "never": 2},
        {"i": 3, "f": 0.5, "t": 7, "d": "-0.001", "w": "b", "s": "ß", "l": [], "x": [3, 4], "never": 3},
    ]
    arrow = pa.table(
        {
            "i": pa.array([r["i"] for r in rows], pa.int64()),
            "f": pa.array([r["f"] for r in rows], pa.float32()),
            "t": pa.array([r["t"] for r in rows], pa.timestamp("us", "UTC")),
            "d": pa.array([r["d"] for r in rows], pa.string()).cast(pa.decimal128(12, 3)),
            "w": pa.array([r["w"] for r in rows], pa.string()).dictionary_encode(),
            "s": pa.array([r["s"] for r in rows], pa.large_string()),
            "l": pa.array([r["l"] for r in rows], pa.list_(pa.int32())),
            "x": pa.array([r["x"] for r in rows], pa.list_(pa.float32())),
            "never": pa.array([r["never"] for r in rows], pa.int8()),
        }
    )
    (tmp_path / "source").mkdir()
    pq.write_table(arrow, tmp_path / "source" / "a.parquet", row_group_size=2)
    expected = delivered(tmp_path / "source", schema=masked)
    reports = {}
    for shuffle in (False, True):
        report = reports[shuffle] = rewrite_dataset(
            tmp_path / "source", tmp_path / f"{shuffle}", schema=masked, shuffle=shuffle
        )
        assert_columns_equal(delivered(tmp_path / f"{shuffle}"), expected, ordered=not shuffle)
        nullable = {c.name: c.nullable for c in report.columns}
        assert nullable == dict.fromkeys(masked, True) | {"never": False}
        stored = tables(tmp_path / f"{shuffle}")
        assert stored.schema.field("never").nullable is False
        assert stored.schema.field("d").type == pa.decimal128(12, 3)
        assert stored.schema.field("t").type == pa.timestamp("us", "UTC")
        assert sorted(map(str, stored["d"].to_pylist())) == sorted(map(str, arrow["d"].to_pylist()))
        assert sorted(map(str, stored["l"].to_pylist())) == sorted(map(str, arrow["l"].to_pylist()))
    again = rewrite_dataset(tmp_path / "False", tmp_path / "again")
    assert [c.nullable for c in again.columns] == [c.nullable for c in reports[True].columns]
    assert_columns_equal(delivered(tmp_path / "again"), expected, ordered=True)


def test_nulls_that_nobody_explained_are_kept_and_a_schema_given_refuses_them(tmp_path: Path) -> None:
    table = pa.table(
        {"i": pa.array([1, None, 3]), "l": pa.array([[1], None, [None, 2]]), "s": pa.array(["a", None, ""])}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    rewrite_dataset(tmp_path / "a.parquet", tmp_path / "kept")
    assert tables(tmp_path / "kept").to_pylist() == table.to_pylist()
    with pytest.raises(DataError, match=r"a\.parquet, row group 0, field 'i', row 1: the value is null"):
        rewrite_dataset(tmp_path / "a.parquet", tmp_path / "no", schema=Schema({"i": Scalar("int64")}))
    assert below(tmp_path) == ["a.parquet", "kept", *[f"kept/{n}" for n in os.listdir(tmp_path / "kept")]]


def many(tmp_path: Path, column: pa.Array, *, statistics: bool = True, at: str = "source") -> Path:
    """A data set whose oddity lies behind what a sample sees."""
    (tmp_path / at).mkdir()
    pq.write_table(
        pa.table({"n": pa.array(np.arange(len(column))), "x": column}),
        tmp_path / at / "a.parquet",
        row_group_size=len(column) // 4,
        write_statistics=statistics,
    )
    return tmp_path / at


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_null_that_footers_and_sample_do_not_show_is_never_lost(tmp_path: Path, shuffle: bool) -> None:
    values = np.arange(100_000.0)  # of the 25,000 rows of a row group a sample has 20,480
    column = pa.array(values, mask=values == 24_999)
    source = many(tmp_path, column, statistics=False)
    report = rewrite_dataset(source, tmp_path / "target", shuffle=shuffle, memory_limit="20MiB")
    stored = tables(tmp_path / "target").sort_by("n")
    assert stored["x"].null_count == 1
    assert stored["x"][24_999].as_py() is None
    assert {c.name: c.nullable for c in report.columns} == {"n": False, "x": True}
    assert len(report.notes) == (0 if shuffle else 1), "in order it was assumed, and written again"
    known = many(tmp_path, column, at="known")
    assert not rewrite_dataset(known, tmp_path / "target2", memory_limit="20MiB").notes, "the footers count it"


def test_nulls_of_a_column_are_kept_next_to_one_that_is_named_as_its_mask(tmp_path: Path) -> None:
    table = pa.table({"x": [1, None, 3], "x_valid": [True, False, True], "t": ["a", None, "b"], "t_valid": [1, 2, 3]})
    (tmp_path / "s").mkdir()
    pq.write_table(table, tmp_path / "s" / "a.parquet")
    rewrite_dataset(tmp_path / "s", tmp_path / "t")
    assert tables(tmp_path / "t").to_pydict() == table.to_pydict()


@pytest.mark.parametrize("item", [pa.list_(pa.int32(), 2), pa.list_(pa.float32(), 2), pa.binary(3)], ids=str)
def test_lists_of_tensors_are_rewritten_and_inferred(tmp_path: Path, item: pa.DataType) -> None:
    value = b"abc" if pa.types.is_fixed_size_binary(item) else [1, 2]
    table = pa.table({"x": pa.array([[value, value], None, []], pa.list_(item))})
    (tmp_path / "s").mkdir()
    pq.write_table(table, tmp_path / "s" / "a.parquet")
    assert "RaggedList(Tensor(" in repr(Schema.infer(tmp_path / "s", nulls="mask"))
    rewrite_dataset(tmp_path / "s", tmp_path / "t")
    assert tables(tmp_path / "t")["x"].to_pylist() == table["x"].to_pylist()
    schema = Schema.infer(tmp_path / "s", nulls="fill")
    found, expected = (delivered(tmp_path / name, schema=schema) for name in "ts")
    assert_columns_equal(found, expected, ordered=True)


@pytest.mark.parametrize("shuffle", [False, True])
def test_lists_of_one_length_become_tensors_unless_one_differs(tmp_path: Path, shuffle: bool) -> None:
    rows = [[float(i), 2.0, 3.0] for i in range(72_000)]  # so many that footers decide
    even = many(tmp_path, pa.array(rows[:12_000], pa.list_(pa.float32())), at="even")
    rewrite_dataset(even, tmp_path / "tensors", shuffle=shuffle)
    assert tables(tmp_path / "tensors").schema.field("x").type == pa.binary(12)
    assert_columns_equal(delivered(tmp_path / "tensors"), delivered(even), ordered=not shuffle)
    rows[17_700], rows[17_800] = [1.0, 2.0], [1.0, 2.0, 3.0, 4.0]  # a sample has 16,384 rows of each row group
    odd = many(tmp_path, pa.array(rows, pa.list_(pa.float32())), at="odd")
    report = rewrite_dataset(odd, tmp_path / "lists", shuffle=shuffle, memory_limit="20MiB")
    stored = tables(tmp_path / "lists").sort_by("n")
    assert stored["x"].to_pylist() == rows
    assert "lists of" in report.notes[0]


def test_packing_by_kind_leaves_out_what_cannot_be_packed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "f0": rng.random(500, dtype=np.float32),
            "f1": pa.array(rng.random(500, dtype=np.float32), mask=rng.random(500) < 0.1),
            "i0": rng.integers(0, 9, 500, dtype=np.int32),
            "i1": rng.integers(0, 9, 500, dtype=np.int32),
            "holes": pa.array(rng.integers(0, 9, 500, dtype=np.int32), mask=np.arange(500) == 499),
            "when": pa.array(rng.integers(0, 9, 500), pa.timestamp("us")),
            "y": rng.integers(0, 2, 500, dtype=np.int8),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    rewrite_dataset(tmp_path / "a.parquet", tmp_path / "packed", pack=True)
    assert tables(tmp_path / "packed").column_names == ["packed_float32", "packed_int32", "holes", "when", "y"]
    with BatchedDataLoader(tmp_path / "packed", 500, columns=["packed_float32", "packed_int32", "y"]) as loader:
        (batch,) = loader
    assert np.array_equal(batch["packed_int32"].numpy()[:, 1], table["i1"].to_numpy())
    assert np.array_equal(batch["packed_float32"].numpy()[:, 1], table["f1"].to_numpy(), equal_nan=True)
    rewrite_dataset(tmp_path / "a.parquet", tmp_path / "named", pack={"m": ["i1", "i0"]}, columns=["i0", "i1"])
    assert isinstance(Schema.from_arrow(tables(tmp_path / "named").schema)["m"], Group)
    for pack, error, message in (
        ({"m": ["i7"]}, SchemaError, "no column 'i7'"),
        ({"m": ["i0", "i0"]}, SchemaError, "packed twice"),
        ({"y": ["i0", "i1"]}, SchemaError, "name of a column that is not packed"),
        ({"m": "i0"}, ConfigurationError, "a list of column names"),
        ({"m": ["i0", "y"]}, ConfigurationError, "different dtypes"),
        ("all", ConfigurationError, "expected True"),
    ):
        with pytest.raises(error, match=message):
            rewrite_dataset(tmp_path / "a.parquet", tmp_path / "no", pack=pack)  # type: ignore[arg-type]
    assert not (tmp_path / "no").exists()


def test_a_packed_group_that_meets_a_hidden_null_gives_its_column_back(tmp_path: Path) -> None:
    mask = np.arange(60_000) == 14_999  # of the 15,000 rows of a row group a sample has 13,653
    source = many(tmp_path, pa.array(np.arange(60_000), mask=mask), statistics=False)
    table = pq.read_table(source / "a.parquet").append_column("z", pa.array(np.arange(60_000)))
    pq.write_table(table, source / "a.parquet", row_group_size=15_000, write_statistics=False)
    report = rewrite_dataset(source, tmp_path / "target", pack=True, memory_limit="20MiB")
    assert [c.name for c in report.columns] == ["packed_int64", "x"]
    assert tables(tmp_path / "target")["x"].null_count == 1


def test_images_categories_and_groups_of_a_schema_survive(tmp_path: Path) -> None:
    schema = Schema(
        {
            "image": Image((4, 4, 3)),
            "word": Category(("a", "b"), storage="words"),
            "group": Group(["p", "q"], "float32", storage="packed"),
            "lists": RaggedList(RaggedList(Text())),
            "listed": Tensor("int8", (2, 2), null="mask", storage="list"),
            "array": Encoded("float32", (None, 2), null="mask"),
            "whole": Encoded("int16", (3,), "npz"),
        }
    )
    rng = np.random.default_rng(0)
    rows = [
        {
            "image": rng.integers(0, 255, (4, 4, 3), np.uint8),
            "word": "ab"[i % 2],
            "p": i,
            "q": -i,
            "lists": [["x", str(i)], []],
            "listed": None if i % 3 else [[i, 0], [1, 2]],
            "array": None if i % 5 == 0 else np.full((i % 4, 2), i, np.float32),
            "whole": np.full(3, i, np.int16),
        }
        for i in range(60)
    ]
    write_dataset(rows, tmp_path / "source", schema)
    expected = delivered(tmp_path / "source")
    report = rewrite_dataset(tmp_path / "source", tmp_path / "target", shuffle=True)
    assert_columns_equal(delivered(tmp_path / "target"), expected, ordered=False)
    assert Schema.from_arrow(tables(tmp_path / "target").schema) == schema, "a schema that files carry is kept"
    assert not report.notes


def test_columns_filters_partitions_and_missing_columns(tmp_path: Path) -> None:
    for year in (2020, 2021):
        (tmp_path / f"s/year={year}").mkdir(parents=True)
        pq.write_table(
            pa.table({"a": list(range(100)), "b": ["x"] * 100}),
            tmp_path / f"s/year={year}/p.parquet",
            row_group_size=30,
        )
    report = rewrite_dataset(
        tmp_path / "s",
        tmp_path / "t",
        columns=["a", "year"],
        filters=(pc.field("a") < 45) & (pc.field("year") == 2021),
        shuffle=True,
    )
    assert report.rows == 45
    table = tables(tmp_path / "t")
    assert sorted(table["a"].to_pylist()) == list(range(45))
    assert set(table["year"].to_pylist()) == {2021}
    schema = Schema({"a": Scalar("float32"), "new": Scalar("int8", missing=7)})
    rewrite_dataset(tmp_path / "s", tmp_path / "u", schema=schema)
    assert set(tables(tmp_path / "u")["new"].to_pylist()) == {7}
    nothing = rewrite_dataset(tmp_path / "s", tmp_path / "v", filters=pc.field("a") > 1000, shuffle=True)
    assert (nothing.rows, tables(tmp_path / "v").num_rows) == (0, 0)
    json.dumps(nothing.to_dict())


# -- the order --


def order_of(path: Path) -> list[int]:
    return [i for f in sorted(path.glob("*.parquet"), key=_part) for i in pq.read_table(f)["id"].to_pylist()]


def _part(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def test_the_order_follows_from_the_seed_alone_whatever_the_memory(tmp_path: Path) -> None:
    write_layout(Layout(((3000, 100), (2500,)), ("text", "ragged"), seed=1), str(tmp_path / "s"))
    orders, spilled = [], []
    for number, limit in enumerate(["24MiB", "64MiB", "1GiB"]):
        report = rewrite_dataset(tmp_path / "s", tmp_path / f"{number}", shuffle=True, memory_limit=limit)
        orders.append(order_of(tmp_path / f"{number}"))
        spilled.append(report.temporary_bytes)
    assert orders[0] == orders[1] == orders[2]
    keys = np.concatenate(
        [np.asarray(bit_generator(0, Stream.REWRITE, 0, g).random_raw(n)) for g, n in enumerate((3000, 100, 2500))]
    )
    assert orders[0] == np.argsort(keys, kind="stable").tolist(), "rows are sorted by their keys"
    rewrite_dataset(tmp_path / "s", tmp_path / "other", shuffle=True, seed=1)
    assert order_of(tmp_path / "other") != orders[0]


@settings(max_examples=examples(25))
@given(
    sizes=st.lists(st.integers(0, 200), min_size=1, max_size=5),
    bucket_bytes=st.sampled_from([64, 700, 10**6]),
    buffer_bytes=st.sampled_from([1, 2000, 10**7]),
    expected_bytes=st.sampled_from([1, 10**4, 10**8]),
)
def test_buckets_sort_by_key_whatever_their_number_and_size(
    sizes: list[int], bucket_bytes: int, buffer_bytes: int, expected_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        schema = pa.schema([("id", pa.int64()), ("s", pa.string())])
        buckets = Buckets(
            schema, folder, "b", total_bytes=expected_bytes, bucket_bytes=bucket_bytes, buffer_bytes=buffer_bytes
        )
        keys, first = [], 0
        for group, rows in enumerate(sizes):
            keys.append(RowKeys(5, group).take(rows))
            ids = np.arange(first, first + rows)
            buckets.add(pa.table({"id": ids, "s": [str(i) for i in ids]}, schema=schema), keys[-1])
            first += rows
        found = list(buckets.sorted())
        expected = np.argsort(np.concatenate(keys), kind="stable").tolist()
        assert [i for t in found for i in t["id"].to_pylist()] == expected
        assert [s for t in found for s in t["s"].to_pylist()] == [str(i) for i in expected]
        assert os.listdir(folder) == []


@pytest.mark.parametrize("limit", ["20MiB", "100GiB"])
def test_sizes_follow_the_memory_within_what_arrow_can_order(tmp_path: Path, limit: str) -> None:
    write_dataset({"x": np.zeros((30_000, 256), "f4")}, tmp_path / "s")
    report = rewrite_dataset(tmp_path / "s", tmp_path / "t", shuffle=True, memory_limit=limit)
    assert report.row_group_bytes == (5 * 2**20 if limit == "20MiB" else 8 * 2**20)
    limit_bytes = {"20MiB": 20 * 2**20, "100GiB": 100 * 2**30}[limit]
    assert min(bucket_sizes(limit_bytes).values()) > 2**20
    assert sum(bucket_sizes(limit_bytes).values()) < limit_bytes / 4
    assert max(bucket_sizes(limit_bytes).values()) <= 2**30
    rewrite_dataset(tmp_path / "s", tmp_path / "u", memory_limit="20MiB", row_group_bytes="5MiB")
    with pytest.raises(MemoryLimitError, match=r"a quarter of memory_limit \(20.0 MiB\).*memory_limit=25165824"):
        rewrite_dataset(tmp_path / "s", tmp_path / "v", memory_limit="20MiB", row_group_bytes="6MiB")
    assert not (tmp_path / "v").exists()


def test_each_order_is_as_likely_as_any_other() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(6000):
        order = tuple(np.argsort(np.concatenate([RowKeys(seed, 0).take(2), RowKeys(seed, 1).take(1)]), kind="stable"))
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    chi2 = sum((n - 1000) ** 2 / 1000 for n in counts.values())
    assert chi2 < 20.5, "one in a thousand with 5 degrees of freedom"


# -- the layout --


def test_each_column_is_stored_by_the_sizes_of_a_sample(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 200_000
    table = pa.table(
        {
            "noise": rng.random(n, dtype=np.float32),
            "sparse": (rng.random(n) * (rng.random(n) < 0.2)).astype(np.float32),
            "codes": rng.integers(0, 9, n).astype(np.int32),
            "constant": np.zeros(n, np.int64),
            "words": pa.array(np.array(["alpha", "beta", "gamma delta"])[rng.integers(0, 3, n)]),
            "counts": pa.array([[i % 7] * (i % 3) for i in range(n)], pa.list_(pa.int32())),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd")
    fast = rewrite_dataset(tmp_path / "a.parquet", tmp_path / "fast")
    again = rewrite_dataset(tmp_path / "a.parquet", tmp_path / "again")
    small = rewrite_dataset(tmp_path / "a.parquet", tmp_path / "small", objective="size")
    assert not any(c.nullable for c in fast.columns)
    assert fast.columns == again.columns, "the layout is a function of the data"
    assert small.bytes_after < 0.7 * fast.bytes_after
    assert {c.name: (c.encoding, c.codec) for c in fast.columns} == {
        "noise": ("plain", "none"),
        "sparse": ("plain", "none"),
        "codes": ("plain", "none"),
        "constant": ("dictionary", "none"),
        "words": ("dictionary", "none"),
        "counts": ("plain", "none"),
    }
    chosen = {c.name: (c.encoding, c.codec) for c in small.columns}
    assert chosen["noise"] == ("plain", "zstd")
    assert chosen["sparse"] == ("plain", "zstd")
    assert chosen["codes"][0] == "dictionary"
    for report in (fast, small):
        for file in Path(report.path).glob("*.parquet"):
            group = pq.read_metadata(file).row_group(0)
            for number, c in enumerate(report.columns):
                stored = group.column(number)
                assert stored.path_in_schema.split(".")[0] == c.name
                assert stored.compression == ("UNCOMPRESSED" if c.codec == "none" else c.codec.upper())
                assert stored.has_dictionary_page == (c.encoding == "dictionary")
    assert fast.bytes_before == sum(c.bytes_before for c in fast.columns)
    assert fast.bytes_before <= os.path.getsize(tmp_path / "a.parquet")
    assert "noise" in str(fast)
    assert "200,000 rows" in str(fast)
    assert " of up to 8.0 MiB decoded\n" in str(fast)
    assert json.loads(json.dumps(fast.to_dict()))["columns"][0]["name"] == "noise"


@pytest.mark.parametrize("keyword", ["storage_bytes_per_s", "measure_gain"])
def test_a_removed_keyword_says_what_to_use(tmp_path: Path, keyword: str) -> None:
    arguments: dict[str, Any] = {keyword: 1}
    with pytest.raises(TypeError, match=rf"there is no argument '{keyword}'; (objective|loader\.stats)"):
        rewrite_dataset(tmp_path / "s", tmp_path / "t", **arguments)


def test_a_group_of_columns_with_nulls_is_refused(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([1, None, 3]), "b": [1, 2, 3]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"column 'a': there are nulls.*leave the column out of pack="):
        rewrite_dataset(tmp_path / "a.parquet", tmp_path / "t", pack={"m": ["a", "b"]})
    assert not (tmp_path / "t").exists()


# -- failures --


def test_source_and_target_must_not_overlap(tmp_path: Path) -> None:
    write_layout(Layout(((20,),), ("float",)), str(tmp_path / "s"))
    before = below(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "s")
    file = next((tmp_path / "s").glob("*.parquet"))
    for source, target in (
        (tmp_path / "s", tmp_path / "s"),
        (tmp_path / "s", tmp_path / "link"),
        (tmp_path / "link", tmp_path / "s"),
        (tmp_path / "s", tmp_path / "s/inner"),
        (tmp_path / "s", tmp_path),
        (file, tmp_path / "s"),
        ([file], tmp_path / "s"),
        (f"{tmp_path}/s/*.parquet", f"file://{tmp_path}/s"),
    ):
        for mode in ("error", "append", "overwrite"):
            with pytest.raises(WriteError, match="write to another directory"):
                rewrite_dataset(source, target, mode=mode)
    os.unlink(tmp_path / "link")
    assert below(tmp_path) == before


def test_modes_are_those_of_the_writer(tmp_path: Path) -> None:
    write_layout(Layout(((20,),), ("float",)), str(tmp_path / "s"))
    rewrite_dataset(tmp_path / "s", tmp_path / "t")
    with pytest.raises(WriteError, match="not empty"):
        rewrite_dataset(tmp_path / "s", tmp_path / "t")
    rewrite_dataset(tmp_path / "s", tmp_path / "t", mode="append")
    assert tables(tmp_path / "t").num_rows == 40
    rewrite_dataset(tmp_path / "s", tmp_path / "t", mode="overwrite", shuffle=True)
    assert tables(tmp_path / "t").num_rows == 20
    assert len(below(tmp_path / "t")) == 1
    assert all(name.startswith("part-") for name in os.listdir(tmp_path / "t")), "no directory of their own"
    report = rewrite_dataset(tmp_path / "s", tmp_path / "t", mode="append", filters=pc.scalar(False))
    assert (report.rows, report.files, report.row_groups) == (0, 0, 0)


def test_arguments_of_the_wrong_kind_are_refused(tmp_path: Path) -> None:
    write_layout(Layout(((20,),), ("float",)), str(tmp_path / "s"))
    for arguments, error in (
        ({"objective": "best"}, ConfigurationError),
        ({"seed": -1}, ConfigurationError),
        ({"shuffle": "yes"}, ConfigurationError),
        ({"memory_limit": "lots"}, ConfigurationError),
        ({"row_group_bytes": 0}, ConfigurationError),
        ({"file_bytes": "x"}, ConfigurationError),
        ({"schema": {"a": 1}}, ConfigurationError),
        ({"columns": ["nope"]}, SchemaError),
        ({"filters": pc.field("nope") > 1}, SchemaError),
        ({"mode": "w"}, ConfigurationError),
        ({"memory_limit": 1000}, MemoryLimitError),
        ({"memory_limit": "32MiB", "row_group_bytes": "64MiB"}, MemoryLimitError),
    ):
        with pytest.raises(error):
            rewrite_dataset(tmp_path / "s", tmp_path / "t", **arguments)
    with pytest.raises(SourceError, match="no such file"):
        rewrite_dataset(tmp_path / "none", tmp_path / "t")
    assert os.listdir(tmp_path) == ["s"]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three row groups of 4,000 rows of 320 bytes."""
    source = tmp_path_factory.mktemp("wide") / "s"
    write_layout(Layout(((4000,) * 3,), ("wide",)), str(source))
    return source


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_full_disk_leaves_nothing(wide: Path, tmp_path: Path, shuffle: bool) -> None:
    before = below(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(WriteError, match="/t: the data set could not be written, and nothing") as caught:
            rewrite_dataset(wide, tmp_path / "t", shuffle=shuffle, memory_limit="20MiB")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.strerror(errno.EFBIG) in str(caught.value)
    assert below(tmp_path) == before


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("at", ["add", "_in_order"])
def test_an_interruption_leaves_nothing(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException], at: str
) -> None:
    before = below(tmp_path)
    original, calls = getattr(Buckets, at), list[None]()
    last = 8 if at == "add" else 3

    def interrupt(self: Buckets, *args: Any) -> Any:
        calls.append(None)
        if len(calls) == last:
            assert list(tmp_path.glob(".t.job-*/tasks/bucket-*.tmp"))
            raise interruption
        return original(self, *args)

    monkeypatch.setattr(scatter.Buckets, at, interrupt)
    with pytest.raises(interruption):
        rewrite_dataset(wide, tmp_path / "t", shuffle=True, memory_limit="20MiB")
    assert below(tmp_path) == before


KILLED = """
import os, signal, sys
import parquet_loader
from parquet_loader.write.rewrite import pipeline as attempt
from parquet_loader.write.rewrite import external_shuffle as scatter
from parquet_loader.write import staging
from parquet_loader.write.jobs import job
where, name = {
    "sorting": (scatter.Buckets, "_in_order"),
    "closing": (attempt.WriteJob, "commit"),
    "before removing the old": (job.JobDirectory, "remove"),
    "amid removing the old": (job, "remove_tree"),
    "between two renames": (staging.os, "rename"),
}[sys.argv[3]]
if sys.argv[3] == "between two renames":
    import ctypes
    ctypes.CDLL = lambda *_, **__: object()  # a C library without renameat2
original, calls = getattr(where, name), []
def kill(self, *args):
    if name == "remove_tree":
        if not os.path.isdir(self + "/data"):
            return
        os.unlink(next(entry.path for entry in os.scandir(self + "/data") if entry.name.endswith(".parquet")))
    if name == "rename":
        if not self.endswith("/t"):
            return original(self, *args)
        original(self, *args)
    calls.append(None)
    if len(calls) == (3 if sys.argv[3] == "sorting" else 1):
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, *args)
setattr(where, name, kill)
parquet_loader.rewrite_dataset(
    sys.argv[1], sys.argv[2], shuffle=True, mode=sys.argv[4], memory_limit="20MiB", row_group_bytes="64KiB"
)
"""


@pytest.mark.parametrize(
    ("moment", "mode"),
    [
        pytest.param("sorting", "error", marks=pytest.mark.slow),
        ("sorting", "overwrite"),
        ("closing", "error"),
        pytest.param("closing", "overwrite", marks=pytest.mark.slow),
        pytest.param("before removing the old", "overwrite", marks=pytest.mark.slow),
        pytest.param("amid removing the old", "overwrite", marks=pytest.mark.slow),
        ("between two renames", "overwrite"),
    ],
)
def test_what_a_killed_run_left_is_hidden_and_removed_by_the_next(
    wide: Path, tmp_path: Path, moment: str, mode: str
) -> None:
    if mode == "overwrite":
        write_layout(Layout(((7,),), ("wide",)), str(tmp_path / "t"))
    arguments = [str(wide), str(tmp_path / "t"), moment, mode]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    left = [name for name in below(tmp_path) if "/." in name or name.startswith(".")]
    assert any(".t.job-" in name for name in left), "it was killed in the middle"
    with WriteJob(str(tmp_path / "t"), Schema({"x": Scalar("int64")}), mode="overwrite") as alive:
        remove_dead_jobs(pafs.LocalFileSystem(), str(tmp_path / "t"))
        assert os.path.isdir(alive.spec.directory), "a run that lives keeps its directory"
    is_new = moment.endswith("removing the old")
    assert [n for n in below(tmp_path) if "/." in n or n.startswith(".")] == []
    visible = sorted((tmp_path / "t").glob("[!.]*"))
    assert [pq.read_metadata(file).num_rows for file in visible] == (
        [12_000] if is_new else [7] * (mode == "overwrite")
    )
    rewrite_dataset(wide, tmp_path / "t", shuffle=True, mode=mode)  # type: ignore[arg-type]
    assert tables(tmp_path / "t").num_rows == 12_000
    assert not [name for name in below(tmp_path) if "/." in name or name.startswith(".")]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_source_that_loses_rows_meanwhile_replaces_nothing(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool
) -> None:
    write_layout(Layout(((7,),), ("wide",)), str(tmp_path / "t"))
    before, slices = below(tmp_path), Rows.slices
    monkeypatch.setattr(Rows, "slices", lambda self, group: [t.slice(1) for t in slices(self, group)])
    with pytest.raises(DataError, match=r"rows were read, but the source has 12000.*nothing was published"):
        rewrite_dataset(wide, tmp_path / "t", mode="overwrite", shuffle=shuffle)
    assert below(tmp_path) == before
    assert tables(tmp_path / "t").num_rows == 7


def test_a_damaged_source_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    (file,) = write_layout(Layout(((4000,),), ("double",), dictionary=False, compression="zstd"), str(tmp_path / "s"))
    at = pq.read_metadata(file).row_group(0).column(1).data_page_offset
    with open(file, "r+b") as stream:
        stream.seek(at)
        stream.write(b"\xff" * 100)
    with pytest.raises(DataError, match=r"part-000\.parquet, row group 0, column"):
        rewrite_dataset(tmp_path / "s", tmp_path / "t")
    assert os.listdir(tmp_path) == ["s"]


def test_source_and_target_on_other_filesystems(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    write_layout(Layout(((300, 200),), ("text", "float")), str(tmp_path / "s"))
    store = pafs.SubTreeFileSystem(str(tmp_path / "root"), pafs.LocalFileSystem())
    expected = expected_columns(str(tmp_path / "s"))
    report = rewrite_dataset(tmp_path / "s", "a/d", target_filesystem=store, shuffle=True, memory_limit="20MiB")
    assert report.path == "a/d"
    assert_columns_equal(delivered(tmp_path / "root/a/d"), expected, ordered=False)
    rewrite_dataset("a/d", tmp_path / "back", filesystem=store)
    assert_columns_equal(delivered(tmp_path / "back"), expected, ordered=False)
    with pytest.raises(WriteError, match="write to another directory"):
        rewrite_dataset("a/d", "a", filesystem=store, target_filesystem=store, mode="append")
    assert not [name for name in below(tmp_path) if "/." in name]


MEMORY = """
import sys, threading
import psutil
import parquet_loader
def anonymous():
    with open("/proc/self/status") as status:
        return sum(int(line.split()[1]) for line in status if line.startswith(("RssAnon", "RssShmem"))) * 1024
import numpy, pyarrow, pyarrow.parquet, parquet_loader.write.rewrite
before, peak, stop = anonymous(), [0], threading.Event()
def watch():
    while not stop.wait(0.005):
        peak[0] = max(peak[0], anonymous())
thread = threading.Thread(target=watch)
thread.start()
try:
    report = parquet_loader.rewrite_dataset(
        sys.argv[1], sys.argv[2], shuffle=sys.argv[3] == "True", memory_limit=sys.argv[4]
    )
finally:
    stop.set()
    thread.join()
print(peak[0] - before, report.temporary_bytes)
"""


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [False, True])
def test_memory_stays_within_the_limit(tmp_path: Path, shuffle: bool) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "s").mkdir()
    for number in range(4):
        columns = {f"f{i}": rng.random(500_000, dtype=np.float32) for i in range(38)}
        columns["text"] = np.array(["x" * 20, "yy" * 4, "z"])[rng.integers(0, 3, 500_000)]
        pq.write_table(pa.table(columns), tmp_path / f"s/{number}.parquet")  # one row group of 80 MB each
    limit = 256 * 2**20
    arguments = [str(tmp_path / "s"), str(tmp_path / "t"), str(shuffle), str(limit)]
    done = subprocess.run([sys.executable, "-c", MEMORY, *arguments], capture_output=True, text=True, check=True)
    used, spilled = map(int, done.stdout.split())
    assert used <= limit, f"{used / 2**20:.0f} MiB"
    decoded = 2_000_000 * (38 * 4 + 16)
    assert spilled <= 1.1 * decoded if shuffle else spilled == 0


def test_an_error_after_publication_says_that_the_rows_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset({"x": np.arange(10)}, tmp_path / "old")

    def opened(source: Any, *args: Any, **options: Any) -> Any:
        if isinstance(source, list):  # the new files
            raise SourceError("503 Slow Down")
        return open_snapshot(source, *args, **options)

    monkeypatch.setattr("parquet_loader.write.rewrite.rewrite.open_snapshot", opened)
    with pytest.raises(SourceError, match=r"new: all rows are written and published, .* 503 Slow Down"):
        rewrite_dataset(tmp_path / "old", tmp_path / "new")
    assert delivered(tmp_path / "new")["x"].values == list(range(10))
