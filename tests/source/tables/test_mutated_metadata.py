"""Changed bytes in a table's metadata give an error or the same rows, except as in docs/design/tables.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import IcebergSource, ParquetDataset, SourceError
from tests.source.tables.delta_logs import (
    add,
    arrow_of,
    checkpoint_rows,
    column,
    commit,
    mapped,
    metadata,
    protocol,
    remove,
    stored_vectors,
)
from tests.source.tables.iceberg_rows import counted
from tests.source.tables.iceberg_tables import HandTable
from tests.source.tables.made_tables import rows_of
from tests.source.tables.mutated_logs import Change, Outcomes, mutate

EVERYDAY = 12
MANY = 480


def delta_table(path: Path, mode: str | None) -> Path:
    """Two files with deletion vectors, one that came later, and one in the place of a removed one."""
    own = {name: name if mode is None else f"col-{name}" for name in "xyp"}
    types = {"x": "long", "y": "double", "p": "string"}
    columns = [column(*each) if mode is None else mapped(*each, ord(each[0]), own[each[0]]) for each in types.items()]
    about = {} if mode is None else {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "130"}

    def made(name: str, first: int, stop: int, part: str) -> dict[str, Any]:
        numbers = range(first, stop)
        rows = pa.table({own["x"]: pa.array(numbers, pa.int64()), own["y"]: [number / 2 for number in numbers]})
        stats = json.dumps({"numRecords": stop - first})
        return add(path, name, rows, partitionValues={own["p"]: part}, stats=stats)

    path.mkdir()
    features = ["deletionVectors", *([] if mode is None else ["columnMapping"])]
    commit(path, 0, protocol(3, 7, features), metadata(columns, ["p"], **about))
    first, second = made("a.parquet", 0, 20, "mon"), made("b.parquet", 20, 40, "tue")
    commit(path, 1, first, second)
    vectors = stored_vectors(path, [[1, 2, 3], [4, 5, 6]])
    again = [
        {"add": {**one["add"], "deletionVector": vector}} for one, vector in zip((first, second), vectors, strict=True)
    ]
    commit(path, 2, remove("a.parquet"), again[0], remove("b.parquet"), again[1])
    commit(path, 3, made("c.parquet", 40, 50, "mon"), made("d.parquet", 50, 60, "wed"))
    commit(path, 4, remove("c.parquet"), made("e.parquet", 60, 66, "mon"))
    return path


def delta_outcomes(folder: Path, mode: str | None, times: int, seed: int) -> Outcomes:
    outcomes = Outcomes()
    path = delta_table(folder / "t", mode)
    log = path / "_delta_log"

    def found() -> Any:
        return sorted(json.dumps(row, sort_keys=True) for row in rows_of(str(path), 32))

    mutate({"commit": sorted(log.glob("*.json")), "vector": list(path.glob("*.bin"))}, found, times, seed, outcomes)
    checkpoint = log / f"{3:020}.checkpoint.parquet"
    pq.write_table(arrow_of(checkpoint_rows(path, 3)), checkpoint, write_page_checksum=True)
    for version in range(4):
        (log / f"{version:020}.json").unlink()
    mutate({"checkpoint": [checkpoint]}, found, times, seed, outcomes)
    return outcomes


def is_documented(change: Change) -> bool:
    """Whether a commit was cut off between two lines, or only partition values or names of columns differ."""
    before, after = change
    if before.startswith(after) and before[len(after) - 1 : len(after) + 1].strip() in (b"}", b""):
        return True
    return [*map(_without_text, before.splitlines())] == [*map(_without_text, after.splitlines())]


def _without_text(line: bytes) -> Any:
    action = json.loads(line)
    for schema in action.get("schemas", ()):  # of Iceberg
        for one in schema["fields"]:
            one.pop("name")
    action.get("add", {}).pop("partitionValues", None)
    if "metaData" in action:
        schema = json.loads(action["metaData"]["schemaString"])
        action["metaData"]["schemaString"] = [(one["type"], one["nullable"]) for one in schema["fields"]]
    return action


def check(outcomes: Outcomes, documented: Iterable[str] = ()) -> None:
    bad = [
        f"{kind} {name}: {change}"
        for kind, name, change in outcomes.other
        if kind not in documented or not is_documented(change)
    ]
    assert not bad
    for kind in {kind for kind, _ in outcomes.counts}:
        assert outcomes.counts[kind, "refused"] > 0


@pytest.mark.parametrize("mode", [None, "name"])
def test_changed_bytes_of_a_delta_log(tmp_path: Path, mode: str | None) -> None:
    check(delta_outcomes(tmp_path, mode, EVERYDAY, 1), ["commit"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", [None, "name"])
def test_many_changed_bytes_of_a_delta_log(tmp_path: Path, mode: str | None, seed: int) -> None:
    check(delta_outcomes(tmp_path, mode, MANY // 4, seed), ["commit"])


def iceberg_outcomes(folder: Path, version: Any, times: int, seed: int) -> Outcomes:
    table = HandTable(
        folder / "t", [("id", "long"), ("p", "string")], version=version, partition_by=[("p", "identity")]
    )
    table.insert([{1: number, 2: "ab"[number % 2]} for number in range(30)], row_group_rows=6)
    table.insert([{1: number, 2: "a"} for number in range(50, 60)])
    table.delete({file: {0, 5, 9} for file in table.files}, together=True)
    table.insert([{1: 100 + number, 2: "c"} for number in range(5)])
    outcomes = Outcomes()
    kinds = {
        "metadata": [table.metadata_file],
        "list": [table.local(table._snapshots[-1]["manifest-list"])],
        "manifest": [table.local(one.manifest_path) for one in table.manifests],
        "deletes": [table.local(one.path) for one in table.deletes],
    }

    def found() -> Any:
        return counted(list(row.items()) for row in rows_of(IcebergSource(table.root), 32))

    mutate(kinds, found, times, seed, outcomes)
    return outcomes


@pytest.mark.filterwarnings("ignore:Encountered invalid snapshot summary")
@pytest.mark.parametrize("version", [2, 3])
def test_changed_bytes_of_iceberg_metadata(tmp_path: Path, version: int) -> None:
    check(iceberg_outcomes(tmp_path, version, EVERYDAY, 1), ["metadata"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Encountered invalid snapshot summary")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("version", [2, 3])
def test_many_changed_bytes_of_iceberg_metadata(tmp_path: Path, version: int, seed: int) -> None:
    check(iceberg_outcomes(tmp_path, version, MANY // 4, seed), ["metadata"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ((b'{"remove"', b'{"remowe"'), "commit 4, line 1: an action 'remowe', which this library does not know"),
        ((b"c.parquet", b"k.parquet"), "commit 4 removes the file 'k.parquet', which version 3 does not have"),
    ],
)
def test_a_removal_that_removes_nothing_is_refused(tmp_path: Path, change: tuple[bytes, bytes], says: str) -> None:
    file = delta_table(tmp_path / "t", None) / "_delta_log" / f"{4:020}.json"
    file.write_bytes(file.read_bytes().replace(*change, 1))
    with pytest.raises(SourceError, match=says):
        ParquetDataset(tmp_path / "t")


@pytest.mark.parametrize("in_checkpoint", [False, True])
def test_a_deletion_vector_by_another_name_is_refused(tmp_path: Path, in_checkpoint: bool) -> None:
    path = delta_table(tmp_path / "t", None)
    file = path / "_delta_log" / f"{2:020}.json"
    if in_checkpoint:
        file = path / "_delta_log" / f"{4:020}.checkpoint.parquet"
        pq.write_table(arrow_of(checkpoint_rows(path, 4)), file, store_schema=False)
    else:
        file.write_text(
            file.read_text().replace('{"remove": {"path": "a.parquet"', '{"remove": {"path": "b.parquet"', 1)
        )
        commit(path, 2, {"add": {**json.loads(file.read_text().splitlines()[1])["add"], "path": "c.parquet"}})
    file.write_bytes(file.read_bytes().replace(b"deletionVector", b"deletionVectos"))
    with pytest.raises(SourceError, match="a deletion vector called 'deletionVectos'"):
        ParquetDataset(path)


@pytest.mark.parametrize("in_checkpoint", [False, True])
def test_a_deletion_vector_whose_offset_has_another_name_is_refused(tmp_path: Path, in_checkpoint: bool) -> None:
    """Both vectors of the file are equally long, and the first is where an offset that is not given points to."""
    path = delta_table(tmp_path / "t", None)
    file = path / "_delta_log" / f"{2:020}.json"
    if in_checkpoint:
        file = path / "_delta_log" / f"{4:020}.checkpoint.parquet"
        pq.write_table(arrow_of(checkpoint_rows(path, 4)), file, store_schema=False)
    file.write_bytes(file.read_bytes().replace(b"offset", b"ofdset"))
    with pytest.raises(SourceError, match=r"the deletion vector of the file .* is damaged: a field 'ofdset'"):
        ParquetDataset(path)


def test_numbers_of_deletion_vectors_are_compared_with_the_checksum_file(tmp_path: Path) -> None:
    path = delta_table(tmp_path / "t", None)
    crc = path / "_delta_log" / f"{4:020}.crc"
    crc.write_text(json.dumps({"numFiles": 4, "numDeletionVectorsOpt": 2, "numDeletedRecordsOpt": 6}))
    assert ParquetDataset(path).num_rows == 50
    for changes, says in (
        ({"numDeletionVectorsOpt": 3}, "2 deletion vectors, but its checksum file says 3"),
        ({"numDeletionVectorsOpt": None, "numDeletedRecordsOpt": 7}, "6 deleted rows, but its checksum file says 7"),
    ):
        crc.write_text(json.dumps({"numFiles": 4, **changes}))
        with pytest.raises(SourceError, match=says):
            ParquetDataset(path)
