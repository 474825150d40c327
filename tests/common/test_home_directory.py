"""`~` and `~user` stand for home directories wherever a local path is taken; environment variables are not expanded."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from click.testing import CliRunner

from parquet_loader import (
    BatchedDataLoader,
    LocalCache,
    OutputOptions,
    SampleStore,
    Scalar,
    Schema,
    SourceError,
    rewrite_dataset,
    write_dataset,
)
from parquet_loader.cli import commands
from parquet_loader.common.storage.filesystem import resolve
from parquet_loader.petastorm.cache import LocalDiskCache
from parquet_loader.write.jobs.job_runner import package_archive

NUMPY = OutputOptions(format="numpy")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_within_a_given_local_filesystem_knows_home(home: Path, kind: Any) -> None:
    write_dataset({"id": [1, 2]}, kind("~/set"), filesystem=pafs.LocalFileSystem())
    assert len(list((home / "set").iterdir())) == 1
    for source in (kind("~/set"), [kind("~/set")], kind("~/s*/*.parquet")):
        with BatchedDataLoader(source, 2, output_options=NUMPY, filesystem=pafs.LocalFileSystem()) as loader:
            assert next(iter(loader))["id"].tolist() == [1, 2]
    assert os.listdir() == []


def test_caches_and_archives_know_home(home: Path) -> None:
    frame = "pandas.DataFrame({'id': [1]})"  # kept until the process ends, and longer
    numpy = "output_options=OutputOptions(format='numpy')"
    code = f"from_pandas({frame}, 1, cache_dir='~/frames', keep_files=True, {numpy})"
    lines = f"import pandas; from parquet_loader import OutputOptions, from_pandas; {code}.close()"
    subprocess.run([sys.executable, "-c", lines], check=True, timeout=60)
    LocalDiskCache("~/rows", 2**20).get("key", lambda: pa.table({"id": [1]}))
    package_archive("~/package.zip")
    assert {"frames", "rows", "package.zip"} <= set(os.listdir(home))
    done = CliRunner().invoke(commands, ["cache", "info", "~/cache"])
    assert "has no local cache" in str(done.exception)
    assert os.listdir() == []


def test_plain_sources_writers_stores_and_caches_know_home(home: Path) -> None:
    write_dataset({"id": [1, 2]}, "~/set")
    rewrite_dataset("~/set", Path("~/new"))
    SampleStore("~/store", schema=Schema({"id": Scalar("int64")}))
    assert LocalCache(Path("~/cache"), "1MiB").path == str(home / "cache")
    assert CliRunner().invoke(commands, ["info", "~/new"]).exit_code == 0
    assert {"set", "new", "store"} <= set(os.listdir(home))
    assert os.listdir() == []


def test_plain_users_have_homes_and_variables_are_left_as_they_are(home: Path) -> None:
    user = pwd.getpwuid(os.getuid())
    assert resolve(f"~{user.pw_name}/x")[1] == os.path.join(user.pw_dir, "x")
    with pytest.raises(SourceError, match=r"\$HOME/set: no such file"):
        BatchedDataLoader("$HOME/set", 1, output_options=NUMPY)
