"""Each file comes once, whatever links lead to it; loops end; only a broken link that is needed is an error."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from parquet_loader import BatchedDataLoader, OutputOptions, SourceError
from tests.source.layouts import put, remove_amid_listing

NUMPY = OutputOptions(format="numpy")


def load(source: Any, **options: Any) -> list[int]:
    with BatchedDataLoader(source, 64, columns=["id"], output_options=NUMPY, **options) as loader:
        return sorted(int(i) for batch in loader for i in batch["id"])


def paths(source: Any) -> list[str]:
    with BatchedDataLoader(source, 64, columns=["id"], output_options=NUMPY) as loader:
        return [file.path for file in loader._dataset.snapshot.files]


@pytest.mark.parametrize("target", [".", "..", "../..", "../deep", "/"])
@pytest.mark.parametrize("pattern", ["", "/**", "/**/*.parquet", "/*", "/d*/*.parquet"])
def test_links_that_lead_upwards_end(tmp_path: Path, target: str, pattern: str) -> None:
    put(tmp_path / "set" / "deep" / "a.parquet")
    if "d*" not in pattern:
        put(tmp_path / "set" / "b.parquet", 10)
    (tmp_path / "set" / "deep" / "up").symlink_to(target)
    rows = load(f"{tmp_path}/set{pattern}")
    assert rows == list(range(10 if "d*" in pattern else 20))


def test_links_that_lead_to_each_other_end(tmp_path: Path) -> None:
    put(tmp_path / "set" / "a" / "a.parquet")
    put(tmp_path / "set" / "b" / "b.parquet", 10)
    (tmp_path / "set" / "a" / "to_b").symlink_to("../b")
    (tmp_path / "set" / "b" / "to_a").symlink_to("../a")
    assert load(tmp_path / "set") == list(range(20))
    assert load(f"{tmp_path}/set/**/*.parquet") == list(range(20))


def test_a_loop_outside_of_the_source_ends(tmp_path: Path) -> None:
    put(tmp_path / "other" / "deep" / "a.parquet")
    (tmp_path / "other" / "deep" / "again").symlink_to("..")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "in").symlink_to("../other")
    assert load(tmp_path / "set") == list(range(10))


def test_a_file_comes_once_by_its_own_path_whatever_links_lead_to_it(tmp_path: Path) -> None:
    own = put(tmp_path / "set" / "runs" / "7" / "x.parquet")
    (tmp_path / "set" / "latest").symlink_to("runs/7")
    (tmp_path / "set" / "a.parquet").symlink_to("runs/7/x.parquet")
    (tmp_path / "set" / "b.parquet").symlink_to("a.parquet")
    assert load(tmp_path / "set") == list(range(10))
    assert paths(tmp_path / "set") == [str(own)]
    os.link(own, tmp_path / "set" / "hard.parquet")
    assert load(tmp_path / "set") == list(range(10))


def test_a_file_is_found_through_the_link_that_a_glob_names(tmp_path: Path) -> None:
    put(tmp_path / "runs" / "7" / "step9" / "x.parquet")
    put(tmp_path / "runs" / "8" / "step5" / "x.parquet", 10)
    put(tmp_path / "runs" / "8" / "step6" / "x.parquet", 20)
    (tmp_path / "runs" / "7" / "last").symlink_to("step9")
    (tmp_path / "runs" / "8" / "last").symlink_to("step6")
    (tmp_path / "runs" / "up").symlink_to(".")
    assert load(f"{tmp_path}/runs/*/last/*.parquet") == [*range(10), *range(20, 30)]
    assert load(f"{tmp_path}/runs/**/last/*.parquet") == [*range(10), *range(20, 30)]
    assert load(f"{tmp_path}/runs/up/*/last/*") == [*range(10), *range(20, 30)]


@pytest.mark.parametrize("link", ["symbolic", "hard"])
def test_one_file_under_two_names_of_a_list_is_refused(tmp_path: Path, link: str) -> None:
    own = put(tmp_path / "a.parquet")
    other = tmp_path / "b.parquet"
    other.symlink_to(own) if link == "symbolic" else os.link(own, other)
    for source in ([own, other], [f"{tmp_path}/a*", f"{tmp_path}/b*"], [tmp_path, other]):
        with pytest.raises(SourceError, match=r"names this file twice.*; name it once$"):
            load(source)


def test_one_file_in_two_partitions_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "rows" / "a.parquet")
    (tmp_path / "set").mkdir()
    for year in (2020, 2021):
        (tmp_path / "set" / f"year={year}").symlink_to("../rows")
    with pytest.raises(SourceError, match=r"the same directory .* under another partition"):
        load(tmp_path / "set")
    for year in (2022, 2023):
        (tmp_path / "hard" / f"year={year}").mkdir(parents=True)
        os.link(tmp_path / "rows" / "a.parquet", tmp_path / "hard" / f"year={year}" / "a.parquet")
    with pytest.raises(SourceError, match=r"the same file .* under another partition"):
        load(tmp_path / "hard")


@pytest.mark.parametrize("name", ["notes.txt", "a.json", ".hidden", "_old.parquet", "log.csv.gz"])
def test_broken_links_that_no_row_needs_are_ignored(tmp_path: Path, name: str) -> None:
    put(tmp_path / "set" / "a.parquet")
    (tmp_path / "set" / name).symlink_to("gone")
    assert load(tmp_path / "set") == list(range(10))
    (tmp_path / "set" / "other.parquet").symlink_to("gone")
    assert load(f"{tmp_path}/set/a*.parquet") == list(range(10))


@pytest.mark.parametrize("name", ["b.parquet", "b", "year=2020"])
def test_plain_broken_links_that_rows_may_lie_behind_are_named(tmp_path: Path, name: str) -> None:
    put(tmp_path / "set" / "a.parquet")
    (tmp_path / "set" / name).symlink_to("gone")
    with pytest.raises(SourceError, match=f"{name}: the link leads nowhere: 'gone' is not there"):
        load(tmp_path / "set")


def test_a_broken_link_that_is_the_source_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").symlink_to("gone")
    with pytest.raises(SourceError, match="the link leads nowhere: 'gone' is not there; repair or remove the link"):
        load(tmp_path / "a.parquet")


def test_links_that_lead_upwards_end_below_a_directory_taken_for_a_store(tmp_path: Path) -> None:
    put(tmp_path / "set" / "a.parquet")
    (tmp_path / "set" / "latest").symlink_to(".")
    assert load("set", filesystem=pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())) == list(range(10))
    fsspec = pytest.importorskip("fsspec.implementations.local", reason="fsspec is not installed")
    wrapped = pafs.PyFileSystem(pafs.FSSpecHandler(fsspec.LocalFileSystem()))
    assert load(str(tmp_path / "set"), filesystem=wrapped) == list(range(10))


def test_plain_copies_are_files_of_their_own(tmp_path: Path) -> None:
    own = put(tmp_path / "a.parquet")
    shutil.copy2(own, tmp_path / "b.parquet")
    assert load(tmp_path) == sorted([*range(10)] * 2)


def test_plain_links_to_directories_and_files_elsewhere_are_followed(tmp_path: Path) -> None:
    put(tmp_path / "other" / "a.parquet")
    put(tmp_path / "single.parquet", 10)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "year=2020").symlink_to("../other")
    (tmp_path / "set" / "b.parquet").symlink_to("../single.parquet")
    assert load(tmp_path / "set") == list(range(20))
    (tmp_path / "linked").symlink_to("set")
    assert load(tmp_path / "linked") == list(range(20))


@pytest.mark.parametrize("below", ["day=1", ""])
def test_a_file_that_is_removed_while_its_directory_is_listed_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    put(tmp_path / below / "a.parquet")
    put(tmp_path / below / "b.parquet", 10)
    remove_amid_listing(monkeypatch, tmp_path / below / "a.parquet")
    assert load(tmp_path) == list(range(10, 20))
