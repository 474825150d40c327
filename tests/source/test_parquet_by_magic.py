"""No Parquet file of a directory or glob is ignored because of its name, and no other file is read as Parquet."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, OutputOptions, SourceError
from tests.source.layouts import put

NUMPY = OutputOptions(format="numpy")
ODD_NAMES = (
    "part-00000", "b.PARQUET", "c.parq", "d.pq", "e.parquet.snappy", "f.snappy.parquet", "g.parquet.gzip", "h.c000",
    "0001", "data.v2", "deep/part-00001", "x.parquet.part",
)  # fmt: skip
OTHERS = (
    "README", "LICENSE", "notes.txt", "a.csv", "a.csv.gz", "a.json", "a.parquet.crc", "a.parquet.tmp", "a.parquet.bak",
    "empty", "year=2020_$folder$", "a.parquet~",
)  # fmt: skip


def load(source: Any, **options: Any) -> list[int]:
    with BatchedDataLoader(source, 64, output_options=NUMPY, **options) as loader:
        return sorted(int(i) for batch in loader for i in batch["id"])


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    put(tmp_path / "set" / "a.parquet")
    for number, name in enumerate(ODD_NAMES, 1):
        put(tmp_path / "set" / name, 10 * number)
    for name in OTHERS:
        (tmp_path / "set" / name).write_bytes(b"" if "folder" in name or name == "empty" else b"nothing to read here")
    for hidden in ("_SUCCESS", ".hidden", "_temporary/0/part-0", ".x/part-0"):
        put(tmp_path / "set" / hidden, 1000)
    return tmp_path / "set"


@pytest.mark.parametrize("where", ["local", "store", "glob", "glob in a store"])
def test_files_without_the_suffix_are_read_next_to_one_with_it(mixed: Path, where: str) -> None:
    source: Any = f"{mixed}/**" if "glob" in where else mixed
    options: dict[str, Any] = {}
    if "store" in where:
        options["filesystem"] = pafs.SubTreeFileSystem(str(mixed.parent), pafs.LocalFileSystem())
        source = "set/**" if "glob" in where else "set"
    assert load(source, **options) == list(range(10 * (1 + len(ODD_NAMES))))


def test_a_file_that_is_cut_off_is_an_error_and_not_left_out(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet")
    whole = put(tmp_path / "part-0", 10).read_bytes()
    for damaged in (whole[:-30], b"XXXX" + whole[4:-40] + whole[-4:]):
        (tmp_path / "part-0").write_bytes(damaged)
        with pytest.raises(SourceError, match="part-0: not a readable Parquet file"):
            load(tmp_path)


def test_a_store_is_asked_about_few_files(tmp_path: Path) -> None:
    put(tmp_path / "set" / "a.parquet")
    for number in range(4):
        put(tmp_path / "set" / f"part-{number}", 10 + 10 * number)
    here = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    assert load("set", filesystem=here) == list(range(50))
    for number in range(4, 257):
        shutil.copy(tmp_path / "set" / "part-0", tmp_path / "set" / f"part-{number}")
    with pytest.raises(SourceError, match=r"set: 257 files next to 1 Parquet files .*; name those to read"):
        load("set", filesystem=here)


def test_a_directory_of_other_files_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    with pytest.raises(SourceError, match=r"holds no Parquet files .*; it holds 'a.csv'"):
        load(tmp_path)
    with pytest.raises(SourceError, match=r"matches no Parquet file; it holds 'a.csv'"):
        load(f"{tmp_path}/*.csv")


def test_plain_directories_without_any_suffix_are_read(tmp_path: Path) -> None:
    for number in range(3):
        put(tmp_path / "set" / f"part-{number}", 10 * number)
    assert load(tmp_path / "set") == list(range(30))
    here = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    assert load("set", filesystem=here) == list(range(30))


def test_plain_files_that_are_named_are_read_whatever_their_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "rows.csv")
    assert load(tmp_path / "rows.csv") == [1]
