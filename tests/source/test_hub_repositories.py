"""Repositories of the Hugging Face Hub: configurations are not mixed unasked, and splits of any name are found."""

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, ReadOptions, SourceError, rewrite_dataset
from parquet_loader.petastorm import make_batch_reader

README = """---
license: mit  # configs: none
dataset_info:
- config_name: en
  features:
  - name: id
    dtype: int64
configs:
- config_name: en
  default: true
  data_files:
  - split: train
    path: en/train-*
  - split: validation
    path: "en/validation-*"
- config_name: fr
  data_files:
  - split: train
    path:
    - fr/train-0*
    - fr/more/*.parquet
- config_name: de
  data_dir: de
tags:
- config_name: other
---
configs:
- config_name: text
"""
FILES = (
    "en/train-00000-of-00001.parquet",
    "en/validation-00000-of-00001.parquet",
    "en/unsupervised-00000-of-00001.parquet",
    "fr/train-00000-of-00001.parquet",
    "fr/more/train.parquet",
    "de/train.parquet",
)


def lay_out(root: Path, *names: str, readme: str = README) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"name": [name]}), root / name)
    (root / "README.md").write_text(readme)
    return root


def names_in(source: Any, **options: Any) -> list[str]:
    with BatchedDataLoader(source, 64, **options) as loader:
        return sorted(name for batch in loader for name in batch["name"].to_list())


def test_configurations_that_the_readme_lists_are_not_mixed_unasked(tmp_path: Path) -> None:
    repo = lay_out(tmp_path, *FILES)
    expected = rf"mixes the configurations 'en', 'fr', 'de', which .*README.md lists .* such as '{repo}/en', or those"
    with pytest.raises(SourceError, match=expected):
        names_in(repo, split="train")
    with pytest.raises(SourceError, match=expected):
        rewrite_dataset(repo, tmp_path / "copy", split="train")
    assert names_in(repo / "en", split="train") == ["en/train-00000-of-00001.parquet"]
    assert names_in(repo / "fr", split="train") == ["fr/more/train.parquet", "fr/train-00000-of-00001.parquet"]
    assert len(names_in([repo / "en", repo / "fr"], split="train")) == 3
    assert len(names_in(repo / "*/train-*.parquet")) == 2
    assert len(names_in(repo, split="all")) == 6


def test_petastorms_readers_do_not_mix_configurations(tmp_path: Path) -> None:
    readme = "---\nconfigs:\n- config_name: en\n  data_dir: en\n- config_name: fr\n  data_dir: fr\n---\n"
    repo = lay_out(tmp_path, "en/a.parquet", "fr/b.parquet", readme=readme)
    with pytest.raises(SourceError, match="mixes the configurations"):
        make_batch_reader(f"file://{repo}")


@pytest.mark.parametrize("below", ["", "/data"])
def test_a_store_is_asked_for_the_readme_of_a_repository(tmp_path: Path, below: str) -> None:
    readme = README.replace("en/", "data/en/").replace("fr/", "data/fr/").replace("data_dir: de", "data_dir: data/de")
    lay_out(tmp_path / "repo", *(f"data/{name}" for name in FILES), readme=readme)
    store = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    with pytest.raises(SourceError, match=r"mixes the configurations 'en', 'fr', 'de', which repo/README.md lists"):
        names_in(f"repo{below}", split="train", filesystem=store)
    assert len(names_in(f"repo{below}", split="all", filesystem=store)) == 6
    assert len(names_in("repo/data/en", split="train", filesystem=store)) == 1


def test_a_store_that_hides_the_readme_is_read(tmp_path: Path) -> None:
    lay_out(tmp_path / "repo", "en/a.parquet", "fr/b.parquet", readme="").joinpath("README.md").unlink()
    store = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    assert len(names_in("repo", filesystem=store)) == 2
    (tmp_path / "repo" / "README.md").mkdir()
    assert len(names_in("repo", filesystem=store)) == 2


def test_a_store_is_asked_for_each_readme_once_and_on_threads_that_nobody_waits_for(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec.implementations.dirfs", reason="fsspec is not installed")
    asked: list[tuple[str, bool]] = []

    class Watched(fsspec.DirFileSystem):  # type: ignore[name-defined,misc]
        def info(self, path: str, **options: Any) -> Any:
            asked.append((path, threading.current_thread() is threading.main_thread()))
            return super().info(path, **options)

    below = [f"part{number}/{half}" for number in range(3) for half in ("left", "right")]
    lay_out(tmp_path / "all", *(f"{folder}/a.parquet" for folder in below), readme="")
    (tmp_path / "all" / "README.md").unlink()
    store = pafs.PyFileSystem(pafs.FSSpecHandler(Watched(str(tmp_path))))
    assert len(names_in([f"all/part{number}" for number in range(3)], filesystem=store)) == 6
    readmes = [path for path, _ in asked if path.endswith("README.md")]
    assert readmes == ["all/README.md"]
    assert not any(is_main for path, is_main in asked if path.endswith("README.md"))


@pytest.mark.parametrize("is_remote", [False, True])
def test_configurations_that_the_hub_converted_are_told_apart_without_a_readme(tmp_path: Path, is_remote: bool) -> None:
    repo = lay_out(tmp_path / "repo", "en/train/0000.parquet", "en/test/0000.parquet", "fr/partial-train/0000.parquet")
    (repo / "README.md").unlink()
    options: dict[str, Any] = {"split": "train"}
    if is_remote:
        options["filesystem"] = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    root = "repo" if is_remote else str(repo)
    with pytest.raises(SourceError, match=rf"configurations 'en', 'fr', as directories .* name one .* '{root}/en', or"):
        names_in(root, **options)
    assert names_in(f"{root}/en", **options) == ["en/train/0000.parquet"]
    assert names_in([f"{root}/en", f"{root}/fr"], **options) == [
        "en/train/0000.parquet",
        "fr/partial-train/0000.parquet",
    ]
    assert len(names_in(root, **{**options, "split": "all"})) == 3


def test_plain_partitions_are_not_taken_for_configurations(tmp_path: Path) -> None:
    names = ("year=2024/train/0000.parquet", "year=2025/train/0000.parquet")
    repo = lay_out(tmp_path / "repo", *names, readme="")
    assert names_in(str(repo)) == list(names)


def test_a_split_of_one_configuration_next_to_files_of_none_is_refused(tmp_path: Path) -> None:
    repo = lay_out(tmp_path, "en/validation-00000-of-00001.parquet", "more/validation-00000-of-00001.parquet")
    with pytest.raises(SourceError, match="the configuration 'en' and files of none"):
        names_in(repo, split="validation")


def test_the_readme_is_found_above_the_source(tmp_path: Path) -> None:
    readme = "---\nconfigs:\n- config_name: a\n  data_files: data/a-*\n- config_name: b\n  data_files: 'data/b-*'\n"
    repo = lay_out(tmp_path, "data/a-1.parquet", "data/b-1.parquet", readme=readme)
    with pytest.raises(SourceError, match=rf"such as '{repo}/data/a-\*'"):
        names_in(repo / "data")
    assert names_in(repo / "data/a-*") == ["data/a-1.parquet"]


@pytest.mark.parametrize(
    "readme",
    [
        "no metadata\n---\nconfigs:\n- config_name: en\n  data_dir: en\n- config_name: fr\n  data_dir: fr\n",
        "---\nconfigs:\n- config_name: en\n  data_dir: en\n---\n",
        "---\nconfigs:\n- config_name: all\n  data_files: '**'\n- config_name: fr\n  data_dir: fr\n---\n",
        "---\nconfigs:\n- config_name: x\n  data_dir: x\n- config_name: y\n  data_dir: y\n---\n",
        "---\nconfigs: [\n",
        "---\n",
        "",
    ],
)
def test_plain_directories_with_other_readmes_are_read(tmp_path: Path, readme: str) -> None:
    assert len(names_in(lay_out(tmp_path, "en/a.parquet", "fr/b.parquet", readme=readme))) == 2


def test_a_split_of_any_name_is_found_in_the_directory_of_a_configuration(tmp_path: Path) -> None:
    repo = lay_out(tmp_path, *FILES)
    assert names_in(repo / "en", split="unsupervised") == ["en/unsupervised-00000-of-00001.parquet"]
    with pytest.raises(SourceError, match="There are: 'train', 'unsupervised', 'validation'"):
        names_in(repo / "en", split="xyz")


@pytest.mark.parametrize("folder", ["data", "en", "."])
def test_a_numbered_split_of_any_name_is_not_mixed_with_training_files(tmp_path: Path, folder: str) -> None:
    names = [f"{folder}/{name}-00000-of-00001.parquet" for name in ("train", "unsupervised")]
    repo = lay_out(tmp_path, *names, readme="")
    with pytest.raises(SourceError, match=r"mixes the splits 'train' .* 'unsupervised'"):
        names_in(repo)
    assert names_in(repo, split="train") == [names[0]]
    assert names_in(repo, split="unsupervised") == [names[1]]


def test_plain_numbered_files_without_a_split_are_read_together(tmp_path: Path) -> None:
    names = [f"{name}-00000-of-00001.parquet" for name in ("north", "south")]
    assert len(names_in(lay_out(tmp_path, *names, readme=""), read_options=ReadOptions())) == 2
