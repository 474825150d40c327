"""Files of different splits are never mixed unasked, and `split=` picks one by the rules of the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    OutputOptions,
    ResumeError,
    SampleStore,
    Scalar,
    Schema,
    SourceError,
    rewrite_dataset,
    split,
    split_rows,
)
from parquet_loader.cli import commands
from parquet_loader.petastorm import make_batch_reader
from tests.support.examples import grid

NUMPY = OutputOptions(format="numpy")


def names_in(source: Any, **options: Any) -> set[str]:
    """Return the names of the files that are read, which each of their rows holds."""
    with BatchedDataLoader(source, 64, columns=["name"], output_options=NUMPY, **options) as loader:
        return {name for batch in loader for name in batch["name"].to_list()}


def lay_out(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": [1], "name": [name]}), root / name)
    return root


LAYOUTS = {
    "hub": (
        "data/train-00000-of-00002.parquet",
        "data/train-00001-of-00002.parquet",
        "data/validation-00000-of-00001-ab12.parquet",
    ),
    "hub at the root": ("train-00000-of-00001.parquet", "test-00000-of-00001.parquet"),
    "converted by the hub": ("default/train/0000.parquet", "default/validation/0000.parquet"),
    "configs": ("en/train-00000-of-00001.parquet", "en/test-00000-of-00001.parquet", "fr/train-00000-of-00001.parquet"),
    "kaggle": ("train.parquet", "test.parquet", "sample_submission.parquet"),
    "directories": ("train/a.parquet", "val/b.parquet"),
    "directories with more": ("my-training_2/a.parquet", "dev.clean/b.parquet"),
    "words": ("my_train_file.parquet", "EVAL 3.parquet"),
    "numbers": ("train1.parquet", "dev1.parquet"),
    "classes in splits": ("train/dev_tools/a.parquet", "train/test tubes/b.parquet", "val/train_stations/c.parquet"),
    "partitions": ("split=train/a.parquet", "split=test/b.parquet"),
}
TRAIN = {
    "hub": LAYOUTS["hub"][:2],
    "configs": LAYOUTS["configs"][::2],
    "classes in splits": LAYOUTS["classes in splits"][:2],
}


@grid(
    "where, layout",
    ["local", "store", "list", "glob"],
    list(LAYOUTS),
    everyday=lambda where, layout: where == "local" or layout in ("hub", "partitions"),
)
def test_splits_are_not_mixed_unasked_and_one_is_picked_by_name(tmp_path: Path, layout: str, where: str) -> None:
    root = lay_out(tmp_path / "repo", *LAYOUTS[layout])
    (root / "README.md").write_text("a data set")
    source: Any = {"list": [str(root / name) for name in LAYOUTS[layout]], "glob": f"{root}/**/*.parquet"}.get(
        where, root
    )
    options: dict[str, Any] = {}
    if where == "store":
        options, source = {"filesystem": pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())}, "repo"
    with pytest.raises(SourceError, match=r"mixes the splits .*'train' .*split='train'.*split='all'"):
        names_in(source, **options)
    assert names_in(source, split="train", **options) == set(TRAIN.get(layout, LAYOUTS[layout][:1]))
    assert names_in(source, split="all", **options) == set(LAYOUTS[layout])


@pytest.mark.parametrize("word", ["validation", "valid", "val", "dev", "Dev"])
def test_words_for_one_split_are_interchangeable(tmp_path: Path, word: str) -> None:
    lay_out(tmp_path, "train.parquet", "valid.parquet", "evaluation.parquet")
    assert names_in(tmp_path, split=word) == {"valid.parquet"}
    assert names_in(tmp_path, split="testing") == {"evaluation.parquet"}


def test_splits_of_any_name_are_picked_as_the_hub_names_them(tmp_path: Path) -> None:
    files = [f"data/{name}-00000-of-00001.parquet" for name in ("train_sft", "train_gen", "test_sft")]
    lay_out(tmp_path, *files)
    with pytest.raises(SourceError, match=r"mixes the splits 'test_sft'.*'train_gen'.*'train_sft'"):
        names_in(tmp_path)
    assert names_in(tmp_path, split="train_gen") == {files[1]}
    with pytest.raises(SourceError, match=r"no file there is of this split\. Did you mean 'train_"):
        names_in(tmp_path, split="train")


def test_a_name_of_two_splits_is_neither(tmp_path: Path) -> None:
    lay_out(tmp_path, "train_val.parquet", "train.parquet")
    with pytest.raises(SourceError, match=r"mixes the splits 'train' .*'train\+validation'"):
        names_in(tmp_path)
    assert names_in(tmp_path, split="train") == {"train.parquet"}


@pytest.mark.parametrize(
    "names",
    [
        ("latest.parquet", "contest-1.parquet", "trainer.parquet", "evaluator.parquet", "devices.parquet"),
        ("training_logs/a.parquet", "other/b.parquet"),
        ("test/a.parquet", "eval-2.parquet"),
        ("train-0.parquet", "train-1.parquet", "extra.parquet"),
        ("part-00000-of-00002.parquet", "part-00001-of-00002.parquet"),
        ("data/en-00000-of-00001.parquet", "data/fr-00000-of-00001.parquet"),
        ("stage=test/a.parquet", "stage=train/b.parquet"),
    ],
)
def test_plain_names_and_a_single_split_are_read_whole(tmp_path: Path, names: tuple[str, ...]) -> None:
    assert names_in(lay_out(tmp_path / "test" / "x", *names)) == set(names)


def test_plain_paths_within_one_split_are_read_whole(tmp_path: Path) -> None:
    lay_out(tmp_path, "data/train/a.parquet", "data/train/b.parquet", "data/test/c.parquet")
    for source in (tmp_path / "data" / "train", f"{tmp_path}/data/train/*.parquet"):
        assert names_in(source) == {"data/train/a.parquet", "data/train/b.parquet"}


def test_a_directory_of_one_split_has_that_split_alone(tmp_path: Path) -> None:
    lay_out(tmp_path, "data/train/a.parquet", "data/test/c.parquet")
    assert names_in(tmp_path / "data" / "train", split="train") == {"data/train/a.parquet"}
    with pytest.raises(SourceError, match="no file there is of this split"):
        names_in(tmp_path / "data" / "train", split="test")


def test_directories_above_the_source_name_no_split(tmp_path: Path) -> None:
    lay_out(tmp_path, "dev/sales/a.parquet", "dev/sales/2024/b.parquet")
    sales = tmp_path / "dev" / "sales"
    for source in (sales, f"{sales}/*.parquet", sales / "a.parquet", [sales / "a.parquet", sales / "2024"]):
        for wanted in ("validation", "train"):
            with pytest.raises(SourceError, match="no name of a file or directory there names a split"):
                names_in(source, split=wanted)
    assert names_in(tmp_path / "dev", split="validation") == {"dev/sales/a.parquet", "dev/sales/2024/b.parquet"}


def test_a_split_that_no_name_knows_is_refused(tmp_path: Path) -> None:
    lay_out(tmp_path, "a.parquet")
    with pytest.raises(SourceError, match="no name of a file or directory there names a split; leave split out"):
        names_in(tmp_path, split="train")
    for wrong in ("", 1, ["train"]):
        with pytest.raises(ConfigurationError, match="expected a split's name, 'all', or None"):
            names_in(tmp_path, split=wrong)


def test_filters_over_a_column_named_split_choose_themselves(tmp_path: Path) -> None:
    lay_out(tmp_path, *LAYOUTS["partitions"])
    assert names_in(tmp_path, filters=pc.field("split") == "test") == {"split=test/b.parquet"}
    for other in (split("id", 0, 1), split_rows(0, 1), pc.field("id") > 0):
        with pytest.raises(SourceError, match="mixes the splits"):
            names_in(tmp_path, filters=other)


def test_rewriting_info_and_petastorm_mix_no_splits(tmp_path: Path) -> None:
    source = lay_out(tmp_path / "set", "train/a.parquet", "test/b.parquet")
    with pytest.raises(SourceError, match="mixes the splits"):
        rewrite_dataset(source, tmp_path / "new")
    rewrite_dataset(source, tmp_path / "new", split="test")
    assert names_in(tmp_path / "new") == {"test/b.parquet"}
    refused = CliRunner().invoke(commands, ["info", str(source)])
    assert "mixes the splits" in str(refused.exception)
    assert "1 row in 1 file," in CliRunner().invoke(commands, ["info", str(source), "--split", "test"]).output
    with pytest.raises(SourceError, match="mixes the splits"):
        make_batch_reader(f"file://{source}")
    with make_batch_reader([f"file://{source}/train", f"file://{source}/test"], num_epochs=1) as reader:
        assert sum(len(rows.id) for rows in reader) == 2


def test_a_state_of_one_split_is_refused_by_another(tmp_path: Path) -> None:
    lay_out(tmp_path, "train.parquet", "test.parquet")
    with BatchedDataLoader(tmp_path, 1, split="train", output_options=NUMPY) as loader:
        state = loader.state_dict()
        loader.load_state_dict(state)
    with (
        BatchedDataLoader(tmp_path, 1, split="test", output_options=NUMPY) as other,
        pytest.raises(ResumeError, match="files"),
    ):
        other.load_state_dict(state)


def test_a_store_has_no_splits_by_name(tmp_path: Path) -> None:
    store = SampleStore(tmp_path / "store", schema=Schema({"id": Scalar("int64")}))
    with pytest.raises(ConfigurationError, match="a store's files do not belong to splits"):
        BatchedDataLoader(store, 1, split="train", output_options=NUMPY)
