"""The command line: the same results as the functions, errors as one message, nothing but the result on stdout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import Scalar, Schema, Tensor
from tests.support import petastorm_oracle as oracle

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

from tests.support.command_line import run_here


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    (tmp_path / "source").mkdir()
    for number in range(2):
        table = pa.table({"[x]": rng.random(500, dtype=np.float32), "n": pa.array(rng.integers(0, 3, 500))})
        pq.write_table(table, tmp_path / f"source/{number}.parquet", row_group_size=200)
    return tmp_path / "source"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "parquet_loader", *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_rewrite_and_info_from_a_shell(source: Path, tmp_path: Path) -> None:
    done = run("rewrite", source, tmp_path / "target", "--shuffle")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1,000 rows in 1 file," in done.stdout
    assert "[x]" in done.stdout, "names are not taken for markup"
    assert "philox-sort-64, seed 0" in done.stdout
    shown = run_here("info", tmp_path / "target")
    assert shown.returncode == 0
    assert "[x]: Scalar('float32', fill=nan)" in shown.stdout
    assert "not null" in shown.stdout
    again = run_here("rewrite", source, tmp_path / "target")
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.startswith("error: ")
    assert "is not empty" in again.stderr
    assert "Traceback" not in again.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_a_closed_stdout_is_no_error(source: Path) -> None:
    command = [sys.executable, "-m", "parquet_loader", "inspect", str(source)]
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_option_reaches_the_function(source: Path, tmp_path: Path) -> None:
    from parquet_loader.cli import commands

    schema = Schema({"n": Scalar("int32"), "[x]": Scalar("float32")})
    (tmp_path / "schema.json").write_text(schema.to_json())
    options = f"""--schema {tmp_path}/schema.json --columns n --seed 3 --objective size
        --memory-limit 64MiB --row-group-bytes 1KiB --file-bytes 1MiB --mode overwrite --json"""
    target = str(tmp_path / "target")
    result = CliRunner().invoke(commands, ["rewrite", str(source), target, *options.split()])
    assert result.exception is None, result.output
    report = json.loads(result.stdout)
    assert [c["name"] for c in report["columns"]] == ["n"]
    assert (report["rows"], report["objective"], report["row_group_bytes"]) == (1000, "size", 1024)
    assert Schema.from_arrow(pq.read_schema(next(Path(target).glob("*.parquet")))) == schema.select(["n"])
    files = sorted(map(str, source.glob("*.parquet")))
    result = CliRunner().invoke(commands, ["info", "--json", *files])
    facts = json.loads(result.stdout)
    assert (facts["rows"], facts["files"], facts["row_groups"]["count"]) == (1000, 2, 6)
    assert [c["path"] for c in facts["columns"]] == ["[x]", "n"]
    assert all(c["nullable"] for c in facts["columns"])


def test_a_petastorm_data_set_is_shown_and_copied(tmp_path: Path) -> None:
    shown = run_here("petastorm", "info", oracle.EVERYTHING)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "UnischemaField('matrix', float32, (3, 4), NdarrayCodec(), False)" in shown.stdout
    assert "'matrix': Encoded('float32', (3, 4))" in shown.stdout
    assert "index 'by_id' of id: 24 values" in shown.stdout
    assert "24 rows in 4 row groups of 4 files" in shown.stdout
    columns = "id, matrix,png_any,part,points"
    sizes = ("--row-group-bytes", "1KiB", "--file-bytes", "2KiB")
    copied = run_here(
        "petastorm", "copy", oracle.EVERYTHING, tmp_path / "copy", "--columns", columns, *sizes, "--progress"
    )
    assert copied.returncode == 0, copied.stderr
    assert "24.0/24.0" in copied.stderr
    files = sorted((tmp_path / "copy").glob("*.parquet"))
    assert f"24 rows in {len(files)} files" in copied.stdout
    assert len(files) > 1
    assert "Schema({\n    'id': " in copied.stdout
    again = run_here("petastorm", "copy", oracle.EVERYTHING, tmp_path / "copy")
    assert again.stderr.endswith("; copy to a new directory\n")
    schema = Schema.from_arrow(pq.read_schema(files[0]))
    assert list(schema) == ["id", "matrix", "png_any", "part", "points"]
    assert schema["matrix"] == Tensor("float32", (3, 4))
    matrices = pa.concat_tables([pq.read_table(file) for file in files])["matrix"]
    assert matrices.type == pa.binary(48)
    for found, row in zip(matrices.to_pylist(), oracle.rows(), strict=True):
        np.testing.assert_array_equal(np.frombuffer(found, np.float32).reshape(3, 4), row["matrix"])
    failed = run_here("petastorm", "copy", oracle.PLAIN, tmp_path / "other")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("error: ")
    assert "carries no Unischema" in failed.stderr
    assert not (tmp_path / "other").exists()


def test_without_its_packages_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['rich'] = None; import runpy; runpy.run_module('parquet_loader', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("pip install 'torch-parquet-loader[cli]'")
