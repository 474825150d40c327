"""Files whose groups have a logical type that pyarrow does not know, as those of the type FILE."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, ParquetDataset, Scalar, Schema, SchemaError, write_dataset
from parquet_loader.petastorm.etl.dataset_metadata import add_to_metadata
from tests.support.footers import I32, STRUCT, ThriftStruct, rewrite_footer

FILE, LATER = 19, 30


def annotated(path: Path, table: pa.Table, name: str, number: int, more: ThriftStruct | None = None) -> Path:
    """Write a table, with an annotation of one group, and more fields of its schema element."""
    pq.write_table(table, path, row_group_size=2)

    def change(footer: ThriftStruct) -> None:
        (element,) = (e for e in footer[2][1][1:] if e[4][1] == name.encode())
        element[10] = (STRUCT, {number: (STRUCT, {})})
        element.update(more or {})

    rewrite_footer(str(path), change)
    return path


def points() -> pa.Table:
    return pa.table({"a": [1, 2, 3], "p": [{"x": n, "y": n / 2} for n in range(3)], "z": [[n] for n in range(3)]})


@pytest.mark.parametrize(
    "more",
    [{}, {11: (I32, 3)}, {25: (I32, 3)}, {26: (I32, 3)}],
    ids=["last field", "another field behind it", "one that becomes too far away", "one that is far away"],
)
def test_a_group_of_an_unknown_type_is_refused_by_name_and_can_be_left_out(tmp_path: Path, more: ThriftStruct) -> None:
    path = annotated(tmp_path / "a.parquet", points(), "p", LATER, more)
    with pytest.raises(SchemaError, match="column 'p' has the Parquet type an annotation that this version"):
        _ = ParquetDataset(path).schema
    with BatchedDataLoader(path, 3, columns=["a", "z"]) as loader:
        (batch,) = loader
    assert batch["a"].tolist() == [1, 2, 3]
    assert batch["z"].flatten().tolist() == [0, 1, 2]


def test_a_declared_schema_reads_the_members_of_a_group_of_an_unknown_type(tmp_path: Path) -> None:
    path = annotated(tmp_path / "a.parquet", points(), "p", LATER)
    with BatchedDataLoader(path, 3, schema=Schema({"p.x": Scalar("int64"), "a": Scalar("int64")})) as loader:
        (batch,) = loader
    assert batch["p.x"].tolist() == [0, 1, 2]


def test_a_group_within_a_list_may_have_an_unknown_type(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2], "l": [[{"x": 1}], [{"x": 2}]]})
    path = annotated(tmp_path / "a.parquet", table, "element", LATER)
    with pytest.raises(SchemaError, match="column 'l' has the Parquet type"):
        _ = ParquetDataset(path).schema
    with BatchedDataLoader(path, 2, columns=["a"]) as loader:
        assert next(iter(loader))["a"].tolist() == [1, 2]


def test_the_members_of_a_file_reference_are_columns_without_a_schema(tmp_path: Path) -> None:
    table = pa.table({"f": [{"uri": f"{n}.png", "offset": n, "size": 9} for n in range(3)]})
    path = annotated(tmp_path / "a.parquet", table, "f", FILE)
    with BatchedDataLoader(path, 3) as loader:
        (batch,) = loader
    assert batch["f.uri"].to_list() == ["0.png", "1.png", "2.png"]
    assert batch["f.offset"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("change", [lambda f: f, lambda f: {**f, 10: (STRUCT, {3: (STRUCT, {})})}])
def test_other_annotations_stay(tmp_path: Path, change: Callable[[ThriftStruct], ThriftStruct]) -> None:
    pq.write_table(points(), tmp_path / "a.parquet")

    def changed(footer: ThriftStruct) -> None:
        elements = footer[2][1]
        (number,) = (n for n, e in enumerate(elements) if n and e[4][1] == b"z")
        elements[number] = change(elements[number])

    rewrite_footer(str(tmp_path / "a.parquet"), changed)
    assert ParquetDataset(tmp_path / "a.parquet").schema.keys() == {"a", "p.x", "p.y", "z"}


def test_metadata_files_may_have_groups_of_unknown_types(tmp_path: Path) -> None:
    annotated(tmp_path / "a.parquet", points(), "p", LATER)
    annotated(tmp_path / "_common_metadata", points().slice(0, 0), "p", LATER)
    with BatchedDataLoader(tmp_path, 3, columns=["a"]) as loader:
        assert next(iter(loader))["a"].tolist() == [1, 2, 3]
    add_to_metadata(pafs.LocalFileSystem(), str(tmp_path), {b"key": b"value"})
    assert pq.read_metadata(tmp_path / "_common_metadata").metadata[b"key"] == b"value"


def test_appending_to_a_group_of_an_unknown_type_names_the_column(tmp_path: Path) -> None:
    annotated(tmp_path / "a.parquet", points(), "p", LATER)
    with pytest.raises(SchemaError, match="column 'p' has the Parquet type an annotation that this version"):
        write_dataset(points(), tmp_path, mode="append")
    with pytest.raises(SchemaError, match=r"appending would add column 'b', .* and aliases=<names> for renamed"):
        write_dataset({"b": [1]}, tmp_path, schema=Schema({"b": Scalar("int64")}), mode="append")
