"""An LMDB becomes rows of keys and values, in the order of its keys; values that are pickles are refused."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import Bytes, Image, MissingPackageError, ParquetDataset, SourceError, Text
from parquet_loader.write import WriteOptions
from parquet_loader.write.imports import import_lmdb
from tests.support.imports import assert_continues_after_an_interruption

JPEG = b"\xff\xd8\xff\xe0"
SMALL = WriteOptions(row_group_bytes=500, file_bytes=1200)


def database(path: Path, entries: dict[bytes, bytes], **options: Any) -> Path:
    lmdb = pytest.importorskip("lmdb", reason="needs the package lmdb")
    with lmdb.open(str(path), map_size=2**24, **options) as environment, environment.begin(write=True) as transaction:
        for key, value in entries.items():
            transaction.put(key, value)
    return path


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.concat_tables([pq.read_table(f) for f in sorted(path.iterdir())]).to_pylist()
    return rows


ENTRIES = {f"{number:03}".encode(): JPEG + bytes([number] * 40) for number in range(40)}


@pytest.mark.parametrize("subdir", [True, False])
def test_entries_become_rows_in_the_order_of_keys(subdir: bool, tmp_path: Path) -> None:
    path = database(tmp_path / "x.lmdb", {**ENTRIES, b"__len__": b"40"}, subdir=subdir)
    report = import_lmdb(path, tmp_path / "out", options=SMALL)
    assert rows_of(tmp_path / "out") == [{"key": key.decode(), "value": value} for key, value in ENTRIES.items()]
    assert [(s.reason, s.count) for s in report.skipped] == [("its key is that of an entry about the database", 1)]
    assert dict(ParquetDataset(str(tmp_path / "out")).schema) == {"key": Text(), "value": Image()}


def test_keys_and_values_that_are_no_text_stay_bytes(tmp_path: Path) -> None:
    path = database(tmp_path / "x.lmdb", {b"\xff\x01": b"text", b"a": b"\xfe" * 48})
    import_lmdb(path, tmp_path / "out")
    assert rows_of(tmp_path / "out") == [{"key": b"a", "value": b"\xfe" * 48}, {"key": b"\xff\x01", "value": b"text"}]
    assert dict(ParquetDataset(str(tmp_path / "out")).schema) == {"key": Bytes(), "value": Bytes()}


@pytest.mark.parametrize("values", [[b"P1 is text", b"text"], [b"text", b"P6 " + "é".encode() * 20]])
def test_text_that_begins_like_an_image_is_text(values: list[bytes], tmp_path: Path) -> None:
    path = database(tmp_path / "x.lmdb", dict(zip([b"a", b"b"], values, strict=True)))
    import_lmdb(path, tmp_path / "out")
    assert ParquetDataset(str(tmp_path / "out")).schema["value"] == Text()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_are_refused_by_name(protocol: int, tmp_path: Path) -> None:
    path = database(tmp_path / "x.lmdb", {b"a": b"1", b"b": pickle.dumps({"x": 1}, protocol)})
    with pytest.raises(SourceError, match="the value of 'b' is a pickle"):
        import_lmdb(path, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.lmdb"]


def test_what_is_no_lmdb_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("lmdb")
    (tmp_path / "x.mdb").write_bytes(b"not a database" * 1000)
    with pytest.raises(SourceError, match="cannot be read as an LMDB"):
        import_lmdb(tmp_path / "x.mdb", tmp_path / "out")
    with pytest.raises(SourceError, match="not an LMDB; expected a directory"):
        import_lmdb(tmp_path, tmp_path / "out")


@pytest.mark.parametrize("share", [0.3, 0.7, 0.99])
def test_a_truncated_database_is_an_error_and_no_crash(share: float, tmp_path: Path) -> None:
    file = database(tmp_path / "x", {b"%03d" % n: bytes([n]) * 3000 for n in range(100)}) / "data.mdb"
    os.truncate(file, int(share * file.stat().st_size))
    with pytest.raises(SourceError, match=r"data.mdb: the file is truncated: it has [0-9,]+ bytes"):
        import_lmdb(tmp_path / "x", tmp_path / "out")


def test_named_databases_are_refused(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path / "x.lmdb"), map_size=2**24, max_dbs=2) as environment:
        inner = environment.open_db(b"inner")
        with environment.begin(write=True, db=inner) as transaction:
            transaction.put(b"a", b"1")
    with pytest.raises(SourceError, match="named database"):
        import_lmdb(tmp_path / "x.lmdb", tmp_path / "out")


def test_without_the_package_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.mdb").write_bytes(b"x")
    monkeypatch.setitem(__import__("sys").modules, "lmdb", None)
    with pytest.raises(MissingPackageError, match=r"torch-parquet-loader\[lmdb\]"):
        import_lmdb(tmp_path, tmp_path / "out")


def test_interrupted_the_same_call_finishes_with_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = database(tmp_path / "x.lmdb", ENTRIES)
    (tmp_path / "imports").mkdir()

    def run(target: Path) -> Any:
        return import_lmdb(path, target, options=SMALL)

    assert_continues_after_an_interruption(run, tmp_path / "imports", 7, monkeypatch)
