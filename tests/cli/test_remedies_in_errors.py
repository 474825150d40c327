"""An error names what its caller can pass: options of the commands, and nothing that Petastorm's readers lack."""

import re
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from parquet_loader import SourceError
from parquet_loader.petastorm import make_batch_reader
from tests.support.command_line import run_here


@pytest.fixture
def splits(tmp_path: Path) -> Path:
    for name in ("train", "test"):
        pq.write_table(pa.table({"id": [1, 2]}), tmp_path / f"{name}.parquet")
    return tmp_path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log/00000000000000000000.json").write_text("{}")
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "part-0.parquet")
    return tmp_path


@pytest.mark.parametrize("command", ["info", "rewrite"])
def test_a_command_takes_the_split_as_its_error_says(splits: Path, command: str) -> None:
    target = [f"{splits}-new"] if command == "rewrite" else []
    refused = run_here(command, str(splits), *target)
    named = re.findall(r"--split \w+", refused.stderr)
    assert named == ["--split train", "--split all"]
    assert "split=" not in refused.stderr
    for option in named:
        assert run_here(command, str(splits), *target, *shlex.split(option)).returncode == 0
        target = [f"{part}-2" for part in target]
    assert (
        "--split nothing: no file there is of this split" in run_here("info", str(splits), "--split", "nothing").stderr
    )


@pytest.mark.parametrize("command", ["info", "rewrite"])
def test_a_command_reads_a_table_anyway_as_its_error_says(table: Path, command: str) -> None:
    target = [f"{table}-new"] if command == "rewrite" else []
    file = str(table / "part-0.parquet")  # the directory would be read as the table
    refused = run_here(command, file, *target)
    assert "this is a Delta table" in refused.stderr
    assert "ReadOptions" not in refused.stderr
    assert refused.stderr.rstrip().endswith("or take every row of every file with --ignore-table-format")
    assert run_here(command, file, *target, "--ignore-table-format").returncode == 0


def test_a_rewrite_takes_the_mode_as_its_error_says(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    command = ["rewrite", str(tmp_path / "a.parquet"), str(tmp_path / "new")]
    assert run_here(*command).returncode == 0
    refused = run_here(*command).stderr
    assert refused.endswith("; --mode append adds files, --mode overwrite replaces all of it\n")
    assert run_here(*command, "--mode", "overwrite").returncode == 0


def test_petastorms_readers_are_told_of_no_option_that_they_lack(splits: Path) -> None:
    with pytest.raises(SourceError, match=r"pass the directory or files of one of them, or a list of several$"):
        make_batch_reader(f"file://{splits}")
    with make_batch_reader([f"file://{splits}/train.parquet", f"file://{splits}/test.parquet"], num_epochs=1) as reader:
        assert sum(len(batch.id) for batch in reader) == 4


def test_petastorms_readers_are_told_how_to_export_a_table(table: Path) -> None:
    with pytest.raises(SourceError, match=r"such as write_dataset\(deltalake.*\.\.\.\)$"):
        make_batch_reader(f"file://{table}")
