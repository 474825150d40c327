"""Which deletes apply to which data file of an Iceberg table, and damaged delete files."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.typedef import Record

from parquet_loader.errors import SourceError
from parquet_loader.source.tables.deletes import DeletesError
from parquet_loader.source.tables.iceberg import IcebergSource
from tests.source.tables.iceberg_tables import HandTable, Version, vector_blob


def made(tmp_path: Path, version: Version = 2, *, parts: bool = False) -> HandTable:
    by = [("part", "identity")] if parts else []
    return HandTable(tmp_path / "table", [("id", "long"), ("part", "string")], version=version, partition_by=by)


def rows(count: int, part: str = "a") -> list[dict[int, object]]:
    return [{1: number, 2: part} for number in range(count)]


def deleted(table: HandTable, number: int | None = None) -> dict[str, list[int]]:
    """Return the deleted positions of each data file that the newest, or another, snapshot has."""
    version = IcebergSource(table.root, snapshot_id=number).open_version()

    def read(path: str, start: int, stop: int | None) -> bytes:
        return Path(path).read_bytes()[start:stop]

    found = {}
    for file in version.files:
        if file.deletes is not None:
            found[file.path] = file.deletes.positions(read).tolist()
            assert file.deletes.count == len(found[file.path])
    return found


@pytest.mark.parametrize("together", [False, True])
def test_positions_of_all_delete_files_are_united(tmp_path: Path, together: bool) -> None:
    table = made(tmp_path, parts=True)
    first, second = table.insert([*rows(10), *rows(10, "b")])
    (third,) = table.insert(rows(10, "b"))
    table.delete({first: {1, 3}, second: {0}, third: {9}}, together=together)
    table.delete({first: {3, 4}, third: {0}}, together=together)
    assert deleted(table) == {first: [1, 3, 4], second: [0], third: [0, 9]}
    assert deleted(table, table.snapshots[2].number) == {first: [1, 3], second: [0], third: [9]}
    assert deleted(table, table.snapshots[1].number) == {}


def test_deletes_apply_to_files_of_the_same_commit_and_older_ones(tmp_path: Path) -> None:
    table = made(tmp_path)
    data = table.write_data(rows(5))
    table.files.update({file.path: file for file in data})
    table.commit(added=[*data, *table.write_positions({data[0].path: {2}})])
    assert deleted(table) == {data[0].path: [2]}
    (late,) = table.insert(rows(5))
    old = table.write_positions({late: {1}})
    table.commit(added=old, keep_sequence=1)  # older than the file
    assert deleted(table) == {data[0].path: [2]}


def test_files_that_are_rewritten_have_no_deletes(tmp_path: Path) -> None:
    table = made(tmp_path)
    (data,) = table.insert(rows(5))
    table.delete({data: {0, 1}})
    table.commit(added=table.write_data(rows(5)[2:]), removed=[data], keep_sequence=1)
    assert deleted(table) == {}


def test_deletes_are_found_after_manifests_are_merged(tmp_path: Path) -> None:
    table = made(tmp_path, parts=True)
    first, second = table.insert([*rows(5), *rows(5, "b")])
    table.delete({first: {0}, second: {1}}, together=True)
    table.commit(merge=True)
    table.partition_by([("id", "bucket[2]")])
    table.insert(rows(3))
    assert deleted(table) == {first: [0], second: [1]}


def test_vectors_are_read_where_the_manifest_says(tmp_path: Path) -> None:
    table = made(tmp_path, 3, parts=True)
    first, second = table.insert([*rows(100_000), *rows(10, "b")])
    table.delete({first: {0, 1, 70_000, 99_999}, second: {5}})
    table.delete({first: {2}})
    assert deleted(table) == {first: [0, 1, 2, 70_000, 99_999], second: [5]}
    assert deleted(table, table.snapshots[1].number) == {first: [0, 1, 70_000, 99_999], second: [5]}


def test_a_vector_replaces_positional_deletes(tmp_path: Path) -> None:
    table = made(tmp_path, 3)
    first, second = (table.insert(rows(5))[0] for _ in range(2))
    table.commit(added=table.write_positions({first: {0, 1}, second: {3}}))
    assert deleted(table) == {first: [0, 1], second: [3]}
    (vector,) = table.write_vectors({first: {2}})
    table.commit(added=[vector])
    assert deleted(table) == {first: [0, 1, 2], second: [3]}


def test_two_vectors_of_a_file_are_refused(tmp_path: Path) -> None:
    table = made(tmp_path, 3)
    (data,) = table.insert(rows(5))
    table.commit(added=[*table.write_vectors({data: {0}}), *table.write_vectors({data: {1}})])
    with pytest.raises(SourceError, match=f"{data}: the data file has two deletion vectors"):
        deleted(table)


def test_vectors_before_version_3_are_refused(tmp_path: Path) -> None:
    table = made(tmp_path)
    (data,) = table.insert(rows(5))
    table.commit(added=table.write_vectors({data: {0}}))
    with pytest.raises(SourceError, match="has a deletion vector, which format version 2 does not allow"):
        deleted(table)


@pytest.mark.parametrize("partition", ["b", "of no data file"])
@pytest.mark.parametrize("version", [2, 3])
def test_deletes_of_files_of_another_partition_are_refused(tmp_path: Path, version: Version, partition: str) -> None:
    table = made(tmp_path, version, parts=True)
    first, second = table.insert([*rows(5), *rows(5, "b")])
    write = table.write_vectors if version == 3 else table.write_positions
    (delete,) = write({first: {0}})
    delete.partition = Record(partition)
    table.commit(added=[delete])
    with pytest.raises(SourceError, match=r"another partition|of different partitions"):
        deleted(table)
    assert second in table.files


def test_deletes_of_files_that_are_gone_are_ignored(tmp_path: Path) -> None:
    versions: tuple[Version, ...] = (2, 3)
    for version in versions:
        table = made(tmp_path / str(version), version)
        (gone,), (data,) = table.insert(rows(5)), table.insert(rows(5))
        table.delete({gone: {0}, data: {1}}, together=True)
        table.commit(removed=[gone])
        assert deleted(table) == {data: [1]}


# Damaged files


def damaged_vector(tmp_path: Path, change: bytes, at: int) -> HandTable:
    table = made(tmp_path, 3)
    (data,) = table.insert(rows(50))
    (vector,) = table.write_vectors({data: set(range(0, 50, 3))})
    path = Path(vector.path)
    raw = bytearray(path.read_bytes())
    raw[4 + at : 4 + at + len(change)] = change
    path.write_bytes(bytes(raw))
    table.commit(added=[vector])
    return table


@pytest.mark.parametrize(
    ("change", "at", "says"),
    [
        (b"\x00\x00\x00\x01", 0, "take 1 bytes"),
        (b"XXXX", 4, "checksum"),
        (b"\xff", 12, "checksum"),
        (b"\xff\xff", 30, "checksum"),
    ],
)
def test_a_damaged_vector_is_refused(tmp_path: Path, change: bytes, at: int, says: str) -> None:
    with pytest.raises(DeletesError, match=says):
        deleted(damaged_vector(tmp_path, change, at))


def test_a_vector_with_another_count_is_refused(tmp_path: Path) -> None:
    table = made(tmp_path, 3)
    (data,) = table.insert(rows(5))
    (vector,) = table.write_vectors({data: {0, 1}})
    vector.count = 3
    table.commit(added=[vector])
    with pytest.raises(DeletesError, match="it names 2 rows, but the table's metadata says 3"):
        deleted(table)


@pytest.mark.parametrize("cut", ["referenced", "offset", "length"])
def test_a_vector_without_its_place_is_refused(tmp_path: Path, cut: str) -> None:
    table = made(tmp_path, 3)
    (data,) = table.insert(rows(5))
    (vector,) = table.write_vectors({data: {0, 1}})
    setattr(vector, cut, None)
    table.commit(added=[vector])
    with pytest.raises(SourceError, match="lacks referenced_data_file, content_offset or content_size_in_bytes"):
        deleted(table)


def positional(table: HandTable, pairs: Iterable[tuple[str | None, int | None]], *, count: int | None = None) -> None:
    """Commit a delete file with these rows."""
    (file,) = table.write_positions({next(iter(table.files)): {0}})
    paths, positions = zip(*pairs, strict=True)
    path = Path(file.path)
    columns = {"file_path": pa.array(paths, pa.string()), "pos": pa.array(positions, pa.int64())}
    pq.write_table(pa.table(columns), path)
    file.size, file.count = path.stat().st_size, len(paths) if count is None else count
    table.commit(added=[file])


def test_delete_files_need_not_be_sorted_and_may_name_a_row_twice(tmp_path: Path) -> None:
    table = made(tmp_path)
    (one,), (two,) = table.insert(rows(5)), table.insert(rows(5))
    positional(table, [(two, 4), (one, 1), (two, 0), (one, 1)])
    assert deleted(table) == {one: [1], two: [0, 4]}


@pytest.mark.parametrize("position", [5, -1])
def test_a_delete_of_a_row_that_is_not_there_is_refused(tmp_path: Path, position: int) -> None:
    table = made(tmp_path)
    (data,) = table.insert(rows(5))
    positional(table, [(data, position)])
    with pytest.raises(SourceError, match=f"name row {position} of {data}, which has 5 rows"):
        deleted(table)


def test_a_delete_file_with_other_rows_than_the_manifest_says_is_refused(tmp_path: Path) -> None:
    table = made(tmp_path)
    (data,) = table.insert(rows(5))
    positional(table, [(data, 1)], count=2)
    with pytest.raises(SourceError, match=r"has 1 rows of .*, but the manifest says 2 of file_path and pos"):
        deleted(table)


def test_a_delete_file_with_nulls_is_refused(tmp_path: Path) -> None:
    table = made(tmp_path)
    (data,) = table.insert(rows(5))
    positional(table, [(data, 1), (None, 2)])
    with pytest.raises(SourceError, match="rows without file_path or pos"):
        deleted(table)


def test_a_delete_file_of_another_size_or_that_is_gone_is_refused(tmp_path: Path) -> None:
    table = made(tmp_path)
    (data,) = table.insert(rows(5))
    table.delete({data: {0}})
    path = Path(table.deletes[0].path)
    raw = path.read_bytes()
    path.write_bytes(raw + b"x")
    with pytest.raises(
        SourceError, match=f"the delete file has {len(raw) + 1} bytes, but the manifest says {len(raw)}"
    ):
        deleted(table)
    path.write_bytes(raw[: len(raw) // 2] * 2 + raw[len(raw) // 2 * 2 :])
    with pytest.raises(SourceError, match="not a readable delete file"):
        deleted(table)
    path.unlink()
    with pytest.raises(SourceError, match="is not there: expiry of snapshots"):
        deleted(table)


def changed(path: str, old: bytes, new: bytes) -> None:
    """Change bytes of a delete file whose columns are not compressed, in its values and its statistics."""
    raw = pq.read_table(path)
    pq.write_table(raw, path, compression="none", use_dictionary=False)
    data = Path(path).read_bytes()
    assert old in data
    Path(path).write_bytes(data.replace(old, new))


@pytest.mark.parametrize("bounds", ["full", "truncated"])
@pytest.mark.parametrize("end", ["first", "last"])
def test_a_path_outside_of_the_bounds_of_the_manifest_is_refused(tmp_path: Path, bounds: Any, end: str) -> None:
    table = made(tmp_path)
    table.bounds = bounds
    (one,), (two,) = table.insert(rows(5)), table.insert(rows(5))
    files = table.write_positions({one: {1}, two: {0, 4}}, together=True)
    path = {"first": min(one, two), "last": max(one, two)}[end]
    wrong = path.replace("/", "." if end == "first" else "0")
    changed(files[0].path, path.encode(), wrong.encode())
    files[0].size = Path(files[0].path).stat().st_size
    table.commit(added=files)
    with pytest.raises(
        SourceError, match=r"the delete file has file_path from .*, but the manifest says from .*; it is damaged"
    ):
        deleted(table)


def test_a_position_outside_of_the_bounds_of_the_manifest_is_refused(tmp_path: Path) -> None:
    table = made(tmp_path)
    table.bounds = "full"
    (data,) = table.insert(rows(9))
    files = table.write_positions({data: {3, 5}})
    changed(files[0].path, (5).to_bytes(8, "little"), (7).to_bytes(8, "little"))
    files[0].size = Path(files[0].path).stat().st_size
    table.commit(added=files)
    with pytest.raises(SourceError, match="has pos from 3 to 7, but the manifest says from 3 to 5"):
        deleted(table)


@pytest.mark.parametrize("has_checksum", [False, True])
def test_a_path_that_its_own_footer_or_checksum_contradicts_is_refused(tmp_path: Path, has_checksum: bool) -> None:
    table = made(tmp_path)
    (one,), (two,) = table.insert(rows(5)), table.insert(rows(5))
    files = table.write_positions({one: {1}, two: {0, 4}}, together=True)
    path = Path(files[0].path)
    pq.write_table(
        pq.read_table(path),
        path,
        compression="none",
        use_dictionary=False,
        write_statistics=not has_checksum,
        write_page_checksum=has_checksum,
    )
    raw = path.read_bytes()
    footer = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    path.write_bytes(raw[:footer].replace(b"/data/", b"/dato/") + raw[footer:])
    files[0].size = len(raw)
    table.commit(added=files)
    says = "CRC checksum" if has_checksum else r"file_path from .*, but its footer says from .*; it is damaged"
    with pytest.raises(SourceError, match=says):
        deleted(table)


@pytest.mark.parametrize("is_vector", [False, True])
def test_a_manifest_with_another_path_than_the_delete_file_is_refused(tmp_path: Path, is_vector: bool) -> None:
    table = made(tmp_path, 3)
    (data,), _ = table.insert(rows(9)), table.insert(rows(9))
    files = (table.write_vectors if is_vector else table.write_positions)({data: {3, 5}})
    files[0].referenced = data.replace("data/", "dato/")
    table.commit(added=files)
    with pytest.raises(
        SourceError, match=rf"of {data}, but the manifest says .*dato/|{data}, but the manifest says only of"
    ):
        deleted(table)


def test_paths_of_other_files_than_the_referenced_one_are_refused(tmp_path: Path) -> None:
    table = made(tmp_path, 3)
    (data,) = table.insert(rows(9))
    files = table.write_positions({data: {3, 5}})
    files[0].referenced = data
    wrong = data.replace("data/", "dato/")
    changed(files[0].path, data.encode(), wrong.encode())
    files[0].size = Path(files[0].path).stat().st_size
    table.commit(added=files)
    with pytest.raises(SourceError, match=f"names rows of {wrong}, but the manifest says only of {data}"):
        deleted(table)


def test_bounds_of_other_paths_than_ascii_are_compared_as_all_writers_order_them(tmp_path: Path) -> None:
    """UTF-16 orders a character beyond 0xFFFF before some others, and UTF-8 behind them."""
    table = HandTable(tmp_path / "t\U0001f600 \uffe0", [("id", "long"), ("part", "string")], version=2)
    table.bounds = "full"
    (data,) = table.insert(rows(9))
    table.delete({data: {3, 5}})
    assert deleted(table) == {data: [3, 5]}


def test_the_blob_of_the_tests_is_that_of_the_format() -> None:
    blob = vector_blob([1, 5])
    assert blob[4:8] == b"\xd1\xd3\x39\x64"
    assert int.from_bytes(blob[:4], "big") == len(blob) - 8
    assert int.from_bytes(blob[-4:], "big") == zlib.crc32(blob[4:-4])
