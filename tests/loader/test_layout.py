"""`parquet-loader doctor` finds causes planted in real files first, and its own command mends them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from parquet_loader import write_dataset
from parquet_loader.common.native.bindings import IS_BUILT
from parquet_loader.loader.layout.facts import examine
from parquet_loader.loader.layout.rules import layout_findings, rewrite_command
from tests.support.command_line import run_here

RNG = np.random.default_rng(0)


def write(path: Path, columns: dict[str, Any] | pa.Table, **options: Any) -> None:
    path.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, path / f"{len(list(path.iterdir()))}.parquet", **options)


def not_null(**columns: Any) -> pa.Table:
    arrays = {name: pa.array(values) for name, values in columns.items()}
    return pa.table(list(arrays.values()), pa.schema([pa.field(n, a.type, nullable=False) for n, a in arrays.items()]))


def rows_of_bytes(rows: int, width: int) -> pa.Array:
    return pa.array([row.tobytes() for row in RNG.integers(0, 255, (rows, width), np.uint8)], pa.binary(width))


PLAIN: dict[str, Any] = {"compression": "none", "use_dictionary": False}


def tiny_row_groups(path: Path) -> None:
    write(path, not_null(x=RNG.random(10_000), n=RNG.integers(0, 9, 10_000)), row_group_size=100, **PLAIN)


def giant_row_groups(path: Path) -> None:
    write(path, not_null(x=rows_of_bytes(2_000, 16_000)), row_group_size=10_000, **PLAIN)
    write(path, not_null(x=rows_of_bytes(10, 16_000)), row_group_size=10_000, **PLAIN)


def sorted_by_label(path: Path) -> None:
    label = np.repeat(np.arange(500), 400)
    for part in np.array_split(np.arange(len(label)), 25):
        write(path, not_null(label=label[part], **{f"x{i}": RNG.random(len(part)) for i in range(8)}), **PLAIN)


def sorted_without_statistics(path: Path) -> None:
    label = np.repeat(np.arange(500), 400)
    columns = not_null(label=label, **{f"x{i}": RNG.random(len(label)) for i in range(8)})
    write(path, columns, row_group_size=50_000, write_statistics=False, **PLAIN)


def heavy_zstd(path: Path) -> None:
    columns = {f"x{i}": RNG.normal(size=100_000).round(3) for i in range(4)}
    write(path, not_null(**columns), compression="zstd", compression_level=15, use_dictionary=False)


def brotli(path: Path) -> None:
    write(path, not_null(x=RNG.random(100_000)), compression="brotli", use_dictionary=False)


def nullable(path: Path) -> None:
    write(path, pa.table({"x": rows_of_bytes(4_000, 1_024)}), row_group_size=1_000, **PLAIN)


def lists(path: Path) -> None:
    rows = list(RNG.random((4_000, 256), dtype=np.float32))
    write(path, pa.table({"x": pa.array(rows, pa.list_(pa.float32()))}), row_group_size=1_000, **PLAIN)


def unknown_encoding(path: Path) -> None:
    column = rows_of_bytes(100_000, 8)
    write(path, not_null(x=column), use_dictionary=False, column_encoding={"x": "DELTA_BYTE_ARRAY"})


def dots_in_names(path: Path) -> None:
    write(path, not_null(**{f"point.{name}": RNG.random(100_000) for name in "abcd"}), **PLAIN)


def dictionary_fallback(path: Path) -> None:
    write(path, not_null(x=RNG.random(400_000)), row_group_size=200_000, compression="none", use_dictionary=True)


def many_files(path: Path) -> None:
    rows = rows_of_bytes(300, 1_024)
    for _ in range(110):
        write(path, not_null(x=rows), **PLAIN)


def healthy(path: Path) -> None:
    rows = 40_000
    columns = {"x": RNG.random((rows, 64), dtype=np.float32), "y": RNG.integers(0, 9, rows), "t": ["text"] * rows}
    write_dataset(columns, path)


def refused_types(path: Path) -> None:
    write(path, pa.table({"x": RNG.random(20_000), "nothing": pa.nulls(20_000)}))


def refused_nulls(path: Path) -> None:
    write(path, pa.table({"n": pa.array([1, None] * 10_000)}), use_dictionary=False)


def megabytes(path: Path) -> None:
    write(path, not_null(x=rows_of_bytes(80, 2**20)), row_group_size=8, **PLAIN)


def null_partition(path: Path) -> None:
    for value in ("1", "__HIVE_DEFAULT_PARTITION__"):
        write(path / f"k={value}", not_null(x=RNG.random(10_000)), **PLAIN)


def null_lists(path: Path) -> None:
    write(path, {"x": pa.array([[1], None, []] * 5_000)})


def damaged(path: Path) -> None:
    write(path, {"x": RNG.random(20_000)}, compression="snappy", use_dictionary=False)
    data = bytearray((path / "0.parquet").read_bytes())
    data[20:4_000] = b"\xff" * 3_980
    (path / "0.parquet").write_bytes(data)


def few_row_groups(path: Path) -> None:
    write(path, not_null(x=rows_of_bytes(80_000, 1_024)), row_group_size=20_000, **PLAIN)


def small_rows(path: Path) -> None:
    write(path, not_null(x=RNG.random(10_000)), **PLAIN)


CASES: list[tuple[Callable[[Path], None], str, str, bool]] = [
    # who plants it, options, the cause, whether the command mends it
    (tiny_row_groups, "", "tiny_row_groups", True),
    (giant_row_groups, "--memory 200MiB --batch-size 64", "giant_row_groups", True),
    (sorted_by_label, "--memory 40MiB --seconds 0", "mixing", True),
    (sorted_without_statistics, "--memory 40MiB", "mixing", True),
    (heavy_zstd, "", "compression", True),
    (brotli, "", "compression", True),
    (nullable, "", "nullable", True),
    (lists, "", "lists", True),
    (unknown_encoding, "", "slow_columns", True),
    (dots_in_names, "", "slow_columns", False),
    (dictionary_fallback, "", "dictionary", True),
    (many_files, "", "many_files", True),
    (small_rows, "--ranks 8 --batch-size 1000", "uneven_ranks", False),
    (few_row_groups, "--ranks 8 --batch-size 125", "few_row_groups", True),
    (small_rows, "--batch-size 20000", "batch_size", False),
    (small_rows, "--batch-size 1", "batch_size", False),
    (megabytes, "--batch-size 70", "huge_values", False),
    (megabytes, "--memory 64MiB --batch-size 64", "memory_limit", False),
    (refused_types, "", "refused_types", False),
    (refused_nulls, "", "refused_nulls", False),
    (null_partition, "", "refused_nulls", False),
    (null_lists, "", "refused_nulls", False),
    (damaged, "", "unreadable", False),
]
NEED_KERNELS = ("compression", "nullable", "lists", "slow_columns")


def doctor(path: Path, options: str) -> tuple[int, dict[str, Any]]:
    given = options.split() if "--seconds" in options else [*options.split(), "--seconds", "60"]
    done = run_here("doctor", path, "--json", *given)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("plant", "options", "cause", "is_mended"), CASES, ids=[f"{c[0].__name__}-{c[2]}" for c in CASES]
)
def test_a_planted_cause_is_found_first_and_mended(
    plant: Callable[[Path], None], options: str, cause: str, is_mended: bool, tmp_path: Path
) -> None:
    if cause in NEED_KERNELS and not IS_BUILT:
        pytest.skip("the kernels were not compiled: no C compiler at hand")
    plant(tmp_path / "data")
    status, found = doctor(tmp_path / "data", options)
    warned = [f["cause"] for f in found["findings"] if f["level"] != "note"]
    assert warned[:1] == [cause], found["findings"]
    assert (status, found["healthy"]) == (1, False)
    finding = found["findings"][0]
    assert finding["text"]
    assert finding["remedy"]
    if is_mended:
        assert finding["gain"]
        program, *words = shlex.split(finding["command"])
        assert program == "parquet-loader"
        assert run_here(*words).returncode == 0
        _, after = doctor(Path(words[2]), options)
        assert cause not in [f["cause"] for f in after["findings"] if f["level"] != "note"], after["findings"]


@pytest.mark.parametrize("options", ["", "--ranks 4 --batch-size 100", "--seconds 0"])
def test_a_healthy_data_set_has_no_warning(options: str, tmp_path: Path) -> None:
    healthy(tmp_path / "data")
    status, found = doctor(tmp_path / "data", options)
    assert [f for f in found["findings"] if f["level"] != "note"] == []
    assert (status, found["healthy"], found["is_measured"]) == (0, True, "--seconds 0" not in options)
    assert "nothing to mend" in run_here("doctor", tmp_path / "data", "--seconds", 0).stdout


def test_rows_in_random_order_are_silent_in_one_row_group(tmp_path: Path) -> None:
    columns = not_null(label=RNG.integers(0, 9, 200_000), **{f"x{i}": RNG.random(200_000) for i in range(8)})
    write(tmp_path / "data", columns, row_group_size=200_000, **PLAIN)
    _, found = doctor(tmp_path / "data", "--memory 48MiB")
    assert "mixing" not in [f["cause"] for f in found["findings"]]


def test_notes_say_what_may_be_missing_and_leave_the_status_0(tmp_path: Path) -> None:
    columns = not_null(**{f"x{i}": RNG.random(20_000, dtype=np.float32) for i in range(40)})
    write(tmp_path / "data", columns, write_statistics=False, **PLAIN)
    status, found = doctor(tmp_path / "data", "")
    assert {f["cause"]: f["level"] for f in found["findings"]} == dict.fromkeys(
        ("narrow_columns", "page_index", "statistics"), "note"
    )
    assert status == 0


def test_columns_of_nulls_in_some_files_are_not_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write(data, pa.table({"x": [1.5], "n": [1], "s": [{"a": 1, "b": 2}]}))
    write(data, pa.table({"x": pa.nulls(1), "n": ["a"], "s": [{"a": None, "b": 2}]}))
    (problem,) = examine(str(data), trial_s=0).problems
    assert problem.column is None
    assert problem.reason.startswith("column 'n' differs")
    write(data, pa.table({"x": [1.5], "n": [1], "t": pa.nulls(1)}))
    assert [problem.column for problem in examine(str(data), trial_s=0).problems] == ["t", None]
    (first, _) = [finding for finding in layout_findings(examine(str(data), trial_s=0)) if finding.level == "error"]
    assert first.remedy == "Leave out 't': BatchedDataLoader(..., columns=[...])."


def test_the_command_to_rewrite_keeps_the_split_and_makes_no_partition(tmp_path: Path) -> None:
    for split in ("train", "test"):
        tiny_row_groups(tmp_path / f"split={split}")
    source = str(tmp_path)
    assert rewrite_command(examine(source, split="train", trial_s=0)) == (
        f"parquet-loader rewrite {source} {source}-fast --split train"
    )
    source = str(tmp_path / "split=train")
    assert rewrite_command(examine(source, trial_s=0)) == f"parquet-loader rewrite {source} TARGET"


def test_findings_are_printed_with_the_command_and_the_gain(tmp_path: Path) -> None:
    tiny_row_groups(tmp_path / "my data")
    done = run_here("doctor", tmp_path / "my data", "--seconds", 0.2)
    assert done.returncode == 1
    assert "warning: tiny_row_groups: Row groups are tiny: 100 of 100 rows" in done.stdout
    assert f"$ parquet-loader rewrite '{tmp_path}/my data' '{tmp_path}/my data-fast'" in done.stdout
    assert "(measured)" in done.stdout


def test_an_error_is_told_from_findings_by_its_output(tmp_path: Path) -> None:
    done = run_here("doctor", tmp_path / "nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert run_here("doctor", tmp_path, "--ranks", 0).returncode == 2
    assert run_here("doctor", tmp_path, "--memory", "much").returncode == 1


def test_rules_are_pure_functions_of_facts(tmp_path: Path) -> None:
    healthy(tmp_path / "data")
    facts = examine(str(tmp_path / "data"), trial_s=0.2)
    assert layout_findings(facts) == layout_findings(facts)
    deleted = replace(facts, alive_rows=facts.alive_rows // 2, table="delta")
    (first, *_) = layout_findings(deleted)
    assert (first.cause, first.level) == ("deleted_rows", "warning")
    assert "50% of the stored rows are deleted" in first.text
    assert "OPTIMIZE" in first.remedy
    (first, *_) = layout_findings(replace(facts, kernels="there is no compiler"))
    assert (first.cause, first.level) == ("kernels", "warning")


def test_fewer_rows_than_ranks_are_reported_once(tmp_path: Path) -> None:
    write(tmp_path / "data", pa.table({"x": np.arange(5.0)}))
    found = layout_findings(examine(str(tmp_path / "data"), ranks=8, batch_size=1, trial_s=0))
    (finding,) = [finding for finding in found if finding.cause in ("uneven_ranks", "batch_size")]
    assert finding.cause == "uneven_ranks"
    assert finding.text == "There are 5 rows for 8 ranks, so ranks repeat the rows of others."
    assert finding.remedy == "Use fewer ranks, or more data."


def test_a_source_without_rows_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "data", pa.table({"x": pa.array([], pa.float32())}))
    done = run_here("doctor", tmp_path / "data")
    assert done.returncode == 1
    assert "there are no rows to judge" in done.stderr
