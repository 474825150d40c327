"""Which version of an Iceberg table a path names, and what is refused before any data is read."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table import StaticTable
from pyiceberg.types import BinaryType, FixedType, GeometryType, StringType, StructType, UUIDType

from parquet_loader.errors import ConfigurationError, MissingPackageError, SourceError
from parquet_loader.source.tables.iceberg import IcebergSource, is_table
from parquet_loader.source.tables.table_version import TableVersion
from tests.source.tables.iceberg_tables import HandFile, HandTable


@pytest.fixture
def table(tmp_path: Path) -> HandTable:
    made = HandTable(tmp_path / "table", [("id", "long"), ("name", "string")], version=3)
    made.insert([{1: number, 2: str(number)} for number in range(10)])
    made.insert([{1: number, 2: str(number)} for number in range(10, 15)])
    return made


def opened(source: Any, **options: Any) -> TableVersion:
    return IcebergSource(source, **options).open_version()


def number_of(source: Any, **options: Any) -> int | str:
    return opened(source, **options).info.version


def columns_of(source: Any, **options: Any) -> list[str]:
    schema = opened(source, **options).info.schema
    assert schema is not None
    return list(schema.names)


# Which metadata file


def test_a_directory_names_its_newest_version(table: HandTable) -> None:
    newest = table.snapshots[-1].number
    assert number_of(str(table.root)) == number_of(table.root) == number_of(f"file://{table.root}") == newest
    assert number_of(str(table.metadata_file)) == newest
    assert number_of(table.root / "metadata" / "v1.metadata.json") == table.snapshots[0].number


def test_a_stale_version_hint_does_not_hide_newer_versions(table: HandTable) -> None:
    (table.root / "metadata" / "version-hint.text").write_text("1\n")
    assert number_of(table.root) == table.snapshots[-1].number


def test_a_version_hint_may_name_a_file(table: HandTable) -> None:
    folder = table.root / "metadata"
    (folder / "version-hint.text").write_text("v1.metadata.json")
    assert number_of(table.root) == table.snapshots[0].number
    (folder / "version-hint.text").write_text("v7.metadata.json")
    with pytest.raises(SourceError, match=r"version-hint\.text names 'v7\.metadata\.json', which is not there"):
        opened(table.root)


@pytest.mark.parametrize("name", ["v2.gz.metadata.json", "v2.metadata.json.gz"])
def test_compressed_metadata_are_read(table: HandTable, name: str) -> None:
    raw = table.metadata_file.read_bytes()
    table.metadata_file.unlink()
    (table.root / "metadata" / name).write_bytes(gzip.compress(raw))
    assert number_of(table.root) == table.snapshots[-1].number


def test_versions_are_numbers_and_not_text(table: HandTable) -> None:
    folder = table.root / "metadata"
    for number, old in ((10, "v2"), (9, "v1")):
        (folder / f"{old}.metadata.json").rename(folder / f"{number:05d}-{'a' * 8}-bcde.metadata.json")
    (folder / "version-hint.text").unlink()
    assert number_of(table.root) == table.snapshots[-1].number


def test_two_newest_metadata_files_are_refused(table: HandTable) -> None:
    folder = table.root / "metadata"
    (folder / "version-hint.text").unlink()
    for name in ("00007-a", "00007-b"):
        shutil.copy(table.metadata_file, folder / f"{name}.metadata.json")
    for number in (1, 2):
        (folder / f"v{number}.metadata.json").unlink()
    with pytest.raises(SourceError, match=r"2 files of version 7, such as .*; pass the one that the catalog names"):
        opened(table.root)


def test_two_tables_in_one_directory_are_refused(table: HandTable) -> None:
    folder = table.root / "metadata"
    first, second = folder / "v1.metadata.json", folder / "v2.metadata.json"
    (folder / "version-hint.text").unlink()
    first.rename(folder / "00000-a.metadata.json")
    second.rename(folder / "00001-a.metadata.json")
    other = json.loads((folder / "00000-a.metadata.json").read_text())
    (folder / "00000-b.metadata.json").write_text(json.dumps(other))  # left by a failed commit
    assert number_of(table.root) == table.snapshots[-1].number
    (folder / "00000-b.metadata.json").write_text(json.dumps(other | {"table-uuid": "0" * 32}))
    with pytest.raises(SourceError, match="files of two tables"):
        opened(table.root)


def test_names_of_two_kinds_are_refused(table: HandTable) -> None:
    shutil.copy(table.metadata_file, table.root / "metadata" / "00001-a.metadata.json")
    with pytest.raises(SourceError, match="two ways of naming versions"):
        opened(table.root)


def test_metadata_that_are_cut_off_are_refused(table: HandTable) -> None:
    table.metadata_file.write_text(table.metadata_file.read_text()[:-20])
    with pytest.raises(SourceError, match="not a readable metadata file"):
        opened(table.root)


def test_a_directory_without_metadata_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    with pytest.raises(SourceError, match=r"holds no file \*\.metadata\.json of an Iceberg table"):
        opened(tmp_path)


def test_a_missing_metadata_file_is_named(table: HandTable) -> None:
    with pytest.raises(SourceError, match="there is no such metadata file"):
        opened(table.root / "metadata" / "v9.metadata.json")


# Objects of pyiceberg


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    made = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    made.create_namespace("db")
    yield made
    made.close()


def test_a_table_is_read_at_the_snapshot_that_it_was_loaded_with(catalog: Catalog) -> None:
    table = catalog.create_table("db.t", pa.schema([("a", pa.int64())]))
    table.append(pa.table({"a": [1]}))
    before = catalog.load_table("db.t")
    table.append(pa.table({"a": [2]}))
    assert is_table(before)
    assert [number_of(before), number_of(table)] == [snapshot.snapshot_id for snapshot in table.snapshots()]
    following = opened(before, follow=True)
    assert following.info.version == number_of("db.t", catalog=catalog) == number_of(table)
    assert [file.rows for file in following.files] == [1, 1]


def test_a_table_without_a_snapshot_has_columns_and_no_files(catalog: Catalog) -> None:
    empty = opened(catalog.create_table("db.t", pa.schema([("a", pa.int64())])))
    assert empty.files == ()
    assert empty.info.schema == pa.schema([("a", pa.int64())])
    assert empty.info.version == -1


def test_a_static_table_is_read_and_cannot_be_followed(table: HandTable) -> None:
    static = StaticTable.from_metadata(str(table.metadata_file))
    assert number_of(static) == table.snapshots[-1].number
    with pytest.raises(ConfigurationError, match="a StaticTable stays as it is"):
        opened(static, follow=True)


def test_a_table_that_the_catalog_lacks_is_named(catalog: Catalog) -> None:
    with pytest.raises(SourceError, match=r"db\.missing: the catalog has no such table"):
        opened("db.missing", catalog=catalog)
    with pytest.raises(ConfigurationError, match="catalog='nowhere'"):
        opened("db.t", catalog="nowhere")


def test_without_pyiceberg_the_extra_is_named(table: HandTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.table", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'torch-parquet-loader\[iceberg\]'"):
        opened(table.root)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"snapshot_id": "5"}, "is an int"),
        ({"ref": 5}, "is a str"),
        ({"snapshot_id": 5, "ref": "main"}, "name two snapshots"),
        ({"snapshot_id": 5, "follow": True}, "one that stays"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        IcebergSource("table", **arguments)
    with pytest.raises(ConfigurationError, match="a pyiceberg Table, a path or URL"):
        IcebergSource(5)


# Snapshots


def test_a_snapshot_id_of_numpy_is_a_number() -> None:
    made = IcebergSource("table", snapshot_id=np.int64(5))  # type: ignore[arg-type]
    assert made == IcebergSource("table", snapshot_id=5)
    assert type(made.snapshot_id) is int


def test_snapshots_branches_and_tags_are_read(table: HandTable) -> None:
    first, second = (snapshot.number for snapshot in table.snapshots)
    table.tag("old", first)
    table.refs["side"] = {"snapshot-id": first, "type": "branch"}
    table.replace("name", name="title")
    table.write_metadata()
    assert number_of(table.root, snapshot_id=first) == number_of(table.root, ref="old") == first
    assert number_of(table.root, ref="main") == second
    now, then = ["id", "title"], ["id", "name"]
    assert columns_of(table.root) == columns_of(table.root, ref="side") == now
    assert columns_of(table.root, snapshot_id=first) == columns_of(table.root, ref="old") == then


def test_a_followed_table_can_be_opened_at_an_earlier_snapshot(table: HandTable) -> None:
    first, second = (snapshot.number for snapshot in table.snapshots)
    table.replace("name", name="title")
    table.write_metadata()
    source = IcebergSource(table.root, follow=True)
    assert source.open_version().info.version == second
    earlier = source.at(first)
    assert not earlier.follow
    assert earlier.open_version().info.version == first
    assert earlier.open_version().info.schema == source.open_version().info.schema
    assert source.at(-1).open_version().files == ()
    with pytest.raises(SourceError, match=r"snapshot 7 is not in .* may have expired"):
        source.at(7).open_version()


def test_a_snapshot_that_is_not_there_may_have_expired(table: HandTable) -> None:
    newest = table.snapshots[-1].number
    with pytest.raises(SourceError, match=f"snapshot 7 is not in .*may have expired.* 2 snapshots.* is {newest}"):
        opened(table.root, snapshot_id=7)
    with pytest.raises(SourceError, match="there is no branch or tag 'dev'; there are: 'main'"):
        opened(table.root, ref="dev")


def test_a_missing_file_of_metadata_is_named(table: HandTable) -> None:
    for name in (table.manifests[0].manifest_path, table._snapshots[-1]["manifest-list"]):
        Path(name).unlink()
        with pytest.raises(SourceError, match=f"{name}.*is not there: expiry of snapshots .* may have removed it"):
            opened(table.root)


# What is refused


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format-version": 4}, "format version 4; this library reads the versions 1 to 3"),
        ({"format-version": None}, "format version None"),
        ({"encryption-keys": [{"key-id": "k"}]}, "encrypted"),
        ({"properties": {"encryption.key-id": "k"}}, "encrypted"),
        ({"current-snapshot-id": 5}, "damaged: the current snapshot is 5"),
        ({"current-snapshot-id": 5, "refs": {}}, "snapshot 5 is not in the table's metadata"),
        ({"current-snapshot-id": -1}, "the current snapshot is None"),
        ({"snapshots": []}, "is not in the table's metadata"),
        ({"current-schema-id": 9}, "cannot read this metadata file"),
        ({"properties": {"schema.name-mapping.default": "{"}}, "is not JSON"),
    ],
)
def test_metadata_that_need_more_or_contradict_themselves_are_refused(
    table: HandTable, changes: dict[str, Any], says: str
) -> None:
    table.write_metadata(**changes)
    with pytest.raises(SourceError, match=says):
        opened(table.root)


def test_columns_of_variants_are_named(table: HandTable) -> None:
    table.write_metadata(
        schemas=[
            {
                "type": "struct",
                "schema-id": 0,
                "fields": [{"id": 1, "name": "any", "required": False, "type": "variant"}],
            }
        ]
    )
    with pytest.raises(SourceError, match="column 'any' holds values of the type variant"):
        opened(table.root)


def test_types_of_the_schema_are_arrows(tmp_path: Path) -> None:
    names = ["boolean", "int", "long", "float", "double", "date", "time", "timestamp", "timestamptz", "timestamp_ns"]
    table = HandTable(tmp_path / "t", [(name, name) for name in names], version=3)
    table.add("decimal", "decimal(9,2)")
    table.add("uuid", UUIDType())
    table.add("fixed", FixedType(3))
    table.add("binary", BinaryType())
    table.add("unknown", "unknown")
    table.add("geometry", GeometryType())
    table.write_metadata()
    schema = opened(table.root).info.schema
    assert schema is not None
    assert dict(zip(schema.names, schema.types, strict=True)) == {
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "date": pa.date32(),
        "time": pa.time64("us"),
        "timestamp": pa.timestamp("us"),
        "timestamptz": pa.timestamp("us", "UTC"),
        "timestamp_ns": pa.timestamp("ns"),
        "decimal": pa.decimal128(9, 2),
        "uuid": pa.binary(16),
        "fixed": pa.binary(3),
        "binary": pa.binary(),
        "unknown": pa.null(),
        "geometry": pa.binary(),
    }
    assert b"parquet_loader.not_understood" in schema.field("geometry").metadata


def test_a_default_of_a_part_of_a_column_is_refused(tmp_path: Path) -> None:
    table = HandTable(tmp_path / "t", [("id", "long")], version=3)
    inner = table._field("x", "int", default=5)
    table.add("point", StructType(inner))
    table.write_metadata()
    with pytest.raises(SourceError, match=r"'point\.x', a part of a column, has a default value"):
        opened(table.root)


@pytest.mark.parametrize("format_", [FileFormat.ORC, FileFormat.AVRO])
def test_data_files_of_other_formats_are_named(table: HandTable, format_: FileFormat) -> None:
    file = table.write_data([{1: 1, 2: "x"}])[0]
    file.format = format_
    table.commit(added=[file])
    with pytest.raises(SourceError, match=rf"{file.path}: the data file is of the format {format_.value}"):
        opened(table.root)


def test_delete_files_of_other_formats_are_named(tmp_path: Path) -> None:
    table = HandTable(tmp_path / "t", [("id", "long")])
    (data,) = table.insert([{1: 1}])
    (delete,) = table.write_positions({data: {0}})
    delete.format = FileFormat.AVRO
    table.commit(added=[delete])
    with pytest.raises(SourceError, match=rf"{delete.path}: the delete file is of the format AVRO"):
        opened(table.root)


def equality_delete(table: HandTable, data: str) -> HandFile:
    file = table.files[data]
    (delete,) = table.write_positions({data: {0}})
    delete.content, delete.equality_ids, delete.positions = DataFileContent.EQUALITY_DELETES, [1], {}
    delete.spec_id, delete.partition = file.spec_id, file.partition
    return delete


def test_equality_deletes_are_refused_if_they_apply_to_a_file(tmp_path: Path) -> None:
    table = HandTable(tmp_path / "t", [("id", "long"), ("p", StringType())], partition_by=[("p", "identity")])
    first, second = table.insert([{1: 1, 2: "a"}, {1: 2, 2: "b"}])
    delete = equality_delete(table, first)
    table.commit(added=[delete])
    with pytest.raises(SourceError, match=r"equality deletes, such as .*-deletes\.parquet.*rewrite_data_files"):
        opened(table.root)
    table.commit(removed=[first])
    assert [file.path for file in opened(table.root).files] == [second]
    table.insert([{1: 1, 2: "a"}])  # newer than the deletes
    assert len(opened(table.root).files) == 2


@pytest.mark.parametrize("fields", [[], [("p", "void")]])
def test_equality_deletes_without_a_partition_apply_to_all_older_files(tmp_path: Path, fields: Any) -> None:
    table = HandTable(tmp_path / "t", [("id", "long"), ("p", StringType())], partition_by=fields)
    (data,) = table.insert([{1: 1, 2: "a"}])
    table.partition_by([("p", "identity")])
    table.insert([{1: 1, 2: "a"}])
    delete = equality_delete(table, data)
    table.commit(added=[delete], removed=[data])
    with pytest.raises(SourceError, match="equality deletes"):
        opened(table.root)


# Metadata that contradict themselves


def _rewritten(table: HandTable, **changes: Any) -> None:
    """Change the fields of the newest manifest in the manifest list."""
    for name, value in changes.items():
        table.manifests[-1]._data[_FIELDS[name]] = value
    table.commit()


_FIELDS = {"length": 1, "spec": 2, "content": 3, "sequence": 4, "least": 5, "added_files": 7, "added_rows": 10}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"length": 5}, "the manifest has .* bytes, but the manifest list says 5"),
        ({"added_files": 2}, "has 1 files that were added, but the manifest list says 2"),
        ({"added_rows": 6}, "has 5 rows that were added, but the manifest list says 6"),
        ({"spec": 3}, "the manifest's partition-spec-id is 0, but the manifest list says 3"),
        ({"content": 1}, "the manifest's content is data, but the manifest list says deletes"),
        ({"sequence": 9}, "the sequence number of the manifest .* is 9, but that of the snapshot .* is 2"),
        ({"sequence": 1}, "the sequence number of the manifest .* is 1, but that of the snapshot .* is 2"),
        ({"least": 7}, "is 2, but its files begin with 7, and that of the snapshot is 3"),
    ],
)
def test_a_manifest_that_differs_from_the_list_is_refused(table: HandTable, changes: dict[str, Any], says: str) -> None:
    _rewritten(table, **changes)
    with pytest.raises(SourceError, match=says):
        opened(table.root)


def test_a_manifest_list_without_one_of_the_manifests_is_refused(table: HandTable) -> None:
    table.manifests.pop()
    table.commit()
    with pytest.raises(SourceError, match="hold 1 data files, but its summary says 2; the metadata is damaged"):
        opened(table.root)


def test_a_data_file_that_is_named_twice_is_refused(table: HandTable) -> None:
    file = next(iter(table.files.values()))
    table.commit(added=[file])
    table._snapshots[-1]["summary"] = {"operation": "append"}
    table.write_metadata()
    with pytest.raises(SourceError, match=f"{file.path}: the snapshot names this data file twice"):
        opened(table.root)


def test_files_of_another_file_system_are_refused(table: HandTable) -> None:
    file = table.write_data([{1: 1, 2: "x"}])[0]
    file.path = "s3://bucket/data/a.parquet"
    table.commit(added=[file])
    with pytest.raises(SourceError, match=r"s3://bucket/data/a\.parquet: .* is on another file system"):
        opened(table.root)


def test_locations_are_not_unescaped(tmp_path: Path) -> None:
    root = tmp_path / "a b%20c"
    for location in (str(root), f"file:{root}", f"file://{root}"):
        shutil.rmtree(root, ignore_errors=True)
        table = HandTable(root, [("id", "long")], location=location)
        table.insert([{1: 1}])
        (file,) = opened(table.root).files
        assert Path(file.path).is_file()


def test_a_caller_may_give_the_file_system(table: HandTable) -> None:
    version = IcebergSource(table.root).open_version(pafs.LocalFileSystem())
    assert {file.path: file.rows for file in version.files} == {f.path: f.count for f in table.files.values()}
