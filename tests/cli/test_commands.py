"""The command line: versions, types and nulls as people write them, whole words, one-line errors, exit statuses."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from parquet_loader import Scalar, Schema
from parquet_loader.cli import commands
from parquet_loader.cli.type_names import type_text
from tests.support.command_line import run_here

ROWS = 1000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    table = pa.table(
        {
            "id": np.arange(ROWS),
            "time": pa.array([dt.datetime(2020, 1, 1, tzinfo=dt.UTC)] * ROWS, pa.timestamp("us", "UTC")),
            "price": pa.array([decimal.Decimal("1.25")] * ROWS, pa.decimal128(10, 2)),
            "embedding": pa.array([[1.0, 2.0]] * ROWS, pa.list_(pa.float32(), 2)),
            "tags": pa.array([["x"], []] * (ROWS // 2)),
            "holes": pa.array([1, None, 3, 4] * (ROWS // 4)),
            "point": pa.array([{"x": 1.0, "name": "a"}] * ROWS),
            "nothing": pa.nulls(ROWS),
            "nothing_either": pa.nulls(ROWS),
            "a name with spaces, 'quotes'\nand\x1b[31m more": ["text"] * ROWS,
        }
    )
    pq.write_table(table, folder / "a.parquet", row_group_size=10, compression="zstd", write_statistics=["id", "holes"])
    return folder


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "parquet_loader", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, **options)


def on_terminal(columns: int, *arguments: object) -> str:
    """Return what a terminal of so many columns shows."""
    fcntl, pty, struct, termios = map(pytest.importorskip, ("fcntl", "pty", "struct", "termios"))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")} | {"TERM": "xterm"}
    command = [sys.executable, "-m", "parquet_loader", *map(str, arguments)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, close_fds=True)
    os.close(theirs)
    shown = b""
    while True:
        try:
            some = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not some:
            break
        shown += some
    os.close(ours)
    process.wait(60)
    return shown.decode().replace("\r\n", "\n")


def test_version_names_what_a_bug_report_needs_and_imports_no_torch() -> None:
    code = (
        "import sys; sys.argv[1:] = ['--version']\n"
        "from parquet_loader.__main__ import main\n"
        "try: main()\n"
        "finally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("parquet-loader 0.")
    assert lines[1].startswith("Python 3.")
    assert f"pyarrow {pa.__version__}" in lines
    assert f"numpy {np.__version__}" in lines
    assert any(line.startswith("torch ") for line in lines)
    assert lines[-1].startswith("kernels: ")


@pytest.mark.parametrize(
    ("command", "variables", "said"),
    [
        pytest.param(
            "--version",
            {"PARQUET_LOADER_NATIVE": "0"},
            "PARQUET_LOADER_NATIVE=0 is set; unset",
            marks=pytest.mark.slow,
        ),
        ("info", {"PARQUET_LOADER_KERNELS": "/nowhere.so"}, "it was not compiled when the package was installed"),
    ],
)
def test_missing_kernels_are_said_with_their_reason(
    source: Path, command: str, variables: dict[str, str], said: str
) -> None:
    arguments = [source] if command == "info" else []
    assert f"kernels: no: {said}" in run(command, *arguments, env=os.environ | variables).stdout


def test_info_prints_types_and_nulls_as_people_write_them(source: Path) -> None:
    done = run_here("info", source)
    assert (done.returncode, done.stderr) == (0, "")
    table = done.stdout[done.stdout.index("\ncolumn") :].splitlines()
    found = {line.split("  ")[0]: line.split()[1:] for line in table if line}
    assert found["id"][:3] == ["int64", "0", "zstd"]
    assert found["time"][:3] == ["timestamp[us,", "UTC]", "unknown"]
    assert found["price"][:2] == ["decimal(10,", "2)"]
    assert found["embedding"][0] == "list<float32>[2]"
    assert found["tags"][:2] == ["list<string>", "unknown"]
    assert found["holes"][:3] == ["int64", "250", "(25.0%)"]
    assert found["point.x"][0] == "float64"
    assert found["point.name"][0] == "string"


def test_info_lists_all_that_would_be_refused_and_what_is_slow(source: Path) -> None:
    text = run_here("info", source).stdout
    refused = text[text.index("would be refused:") : text.index("\ncolumn")]
    for name in ("nothing: has the type null", "nothing_either: has the type null", "holes: holds 250 nulls (25.0%)"):
        assert name in refused
    assert "point.x: Scalar('float64'" in text[: text.index("would be refused:")], "the others are still shown"
    assert "note: row groups are small" in text
    facts = json.loads(run_here("info", "--json", source).stdout)
    assert [p["column"] for p in facts["problems"]] == ["nothing", "nothing_either", "holes"]
    assert {c["path"]: c["nulls"] for c in facts["columns"]}["holes"] == 250
    assert {c["path"]: c["nulls"] for c in facts["columns"]}["tags"] is None


def test_a_source_that_can_be_loaded_has_nothing_refused_and_a_large_row_group_is_noted(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.random.default_rng(0).random(9_000_000)}), tmp_path / "a.parquet",
                   row_group_size=9_000_000, use_dictionary=False, compression="none")  # fmt: skip
    text = run_here("info", tmp_path).stdout
    assert "refused" not in text
    assert "1 row group of 9,000,000 rows" in text
    assert "note: 1 row group of 68.7 MiB: windows mix neighbouring rows only" in text


def test_a_pipe_gets_whole_lines_without_colour(source: Path) -> None:
    done = run("info", source, env=os.environ | {"COLUMNS": "20", "TERM": "xterm"})
    assert "\x1b" not in done.stdout
    assert "a name with spaces, 'quotes'\\nand\\x1b[31m more  string" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_narrow_terminal_breaks_lines_between_words(source: Path) -> None:
    shown = on_terminal(60, "info", source)
    words = {"timestamp[us,", "decimal(10,", "list<float32>[2]", "Tensor('float32',", "zstd"}
    assert words <= {word.rstrip(",") if word.rstrip(",") in words else word for word in shown.split()}
    assert max(map(len, shown.splitlines())) <= 60


@pytest.mark.slow  # a pipe gets whole lines, too
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_wide_terminal_breaks_no_line(source: Path) -> None:
    wide = on_terminal(200, "info", source)
    assert "id" in wide.split()
    assert any(line.split()[:3] == ["id", "int64", "0"] for line in wide.splitlines())


def test_a_thousand_columns_and_a_thousand_files(tmp_path: Path) -> None:
    (tmp_path / "wide").mkdir()
    (tmp_path / "many").mkdir()
    pq.write_table(pa.table({f"column_{i}": [i] for i in range(1000)}), tmp_path / "wide/a.parquet")
    wide = run_here("info", tmp_path / "wide")
    assert wide.returncode == 0
    assert sum(line.startswith("column_") and "  int64  " in line for line in wide.stdout.splitlines()) == 1000
    for number in range(1000):
        pq.write_table(pa.table({"x": [number, None]}), tmp_path / f"many/{number:04}.parquet")
    many = run_here("info", tmp_path / "many")
    assert many.returncode == 0
    assert "2,000 rows in 1,000 files" in many.stdout
    assert "x       int64  1,000 (50.0%)" in many.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("info", "/nowhere"), 1, "/nowhere"),
        (("info", "--nonsense", "x"), 2, "No such option"),
        (("info",), 2, "Missing argument"),
        (("nonsense",), 2, "No such command 'nonsense'"),
        (("rewrite", "a"), 2, "expected SOURCE and TARGET, found 'a' alone"),
        (("rewrite", "a", "b", "--objective", "beauty"), 2, "beauty"),
        (("rewrite", "a", "b", "--schema", "/nowhere.json"), 2, "/nowhere.json"),
        (("cache", "info", "/nowhere/at/all"), 1, "/nowhere"),
        (("petastorm", "info", "/nowhere"), 1, "/nowhere"),
    ],
)
def test_errors_are_one_line_with_a_status(arguments: tuple[str, ...], status: int, said: str) -> None:
    done = run_here(*arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ")
    assert said in done.stderr


def test_the_schema_that_an_error_proposes_can_be_pasted(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, None]}), tmp_path / "a.parquet")
    done = run_here("simulate", tmp_path / "a.parquet")
    said, blank, *statements = done.stderr.splitlines()
    assert (done.returncode, said.startswith("error: "), said.endswith("such as"), blank) == (1, True, True, "")
    names: dict[str, Any] = {}
    exec("\n".join(statements), names)
    assert names["schema"] == Schema({"x": Scalar("int64", null="mask")}, extra="infer")


def test_a_schema_that_is_not_one_is_one_line(source: Path, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text("[not a schema")
    done = run_here("rewrite", source, tmp_path / "target", "--schema", tmp_path / "schema.json")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
def test_a_reader_that_has_seen_enough_and_names_that_no_locale_knows_end_no_command_badly(tmp_path: Path) -> None:
    pq.write_table(pa.table({f"ä{i}": [1] for i in range(1000)}), tmp_path / "a.parquet")  # more than a pipe holds
    command = f"{sys.executable} -m parquet_loader info {tmp_path} | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    plain = run("info", tmp_path, env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert plain.returncode == 0, plain.stderr
    assert len(plain.stdout) > 2**17
    assert "\\xe40" in plain.stdout


def test_every_command_has_help_with_an_example() -> None:
    def check(command: Any, words: list[str]) -> None:
        epilog = command.epilog or ""
        assert epilog.startswith("Example: parquet-loader"), words
        assert " ".join(words) in epilog or not words or hasattr(command, "commands")
        for name, child in getattr(command, "commands", {}).items():
            check(child, [*words, name])

    check(commands, [])
    assert "Example: parquet-loader info" in run_here("info", "--help").stdout


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (pa.list_(pa.float32(), 768), "list<float32>[768]"),
        (pa.large_list(pa.list_(pa.float16())), "list<list<float16>>"),
        (pa.list_view(pa.int8()), "list<int8>"),
        (pa.timestamp("ns"), "timestamp[ns]"),
        (pa.timestamp("us", "Europe/Paris"), "timestamp[us, Europe/Paris]"),
        (pa.decimal256(40, 3), "decimal(40, 3)"),
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.binary(16), "binary[16]"),
        (pa.date32(), "date"),
        (pa.time64("us"), "time[us]"),
        (pa.duration("s"), "duration[s]"),
        (pa.bool_(), "bool"),
        (pa.map_(pa.string(), pa.float64()), "map<string, float64>"),
        (pa.struct({"a": pa.int32(), "b": pa.list_(pa.string())}), "struct<a: int32, b: list<string>>"),
        (pa.dictionary(pa.int32(), pa.string()), "dictionary<string>"),
        (pa.uuid(), "arrow.uuid<binary[16]>"),
        (pa.null(), "null"),
        (pa.month_day_nano_interval(), "month_day_nano_interval"),
    ],
    ids=str,
)
def test_types_are_written_as_people_write_them(type_: pa.DataType, text: str) -> None:
    assert type_text(type_) == text


def test_without_its_packages_both_ways_still_say_what_to_install() -> None:
    for name in ("click", "rich"):
        code = f"import sys; sys.modules[{name!r}] = None; from parquet_loader.__main__ import main; main()"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
        assert "pip install 'torch-parquet-loader[cli]'" in done.stderr
