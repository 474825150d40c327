"""`parquet-loader inspect`: sizes, what columns become, and the routes that they really take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from parquet_loader import ParquetDataset, ReadOptions, write_dataset
from parquet_loader.common.native.bindings import IS_BUILT
from parquet_loader.dataset import open_rows, resolve_source
from parquet_loader.source import open_snapshot
from tests.support.command_line import run_here

ROWS = 8192
RNG = np.random.default_rng(0)


def inspected(*source: object) -> dict[str, Any]:
    done = run_here("inspect", "--json", *source)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def routes_of(facts: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {c["name"]: (c["routes"][0]["route"], c["routes"][0]["reason"]) for c in facts["delivered"]}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixed")
    numbers, rows = RNG.random(ROWS), RNG.random((ROWS, 16), dtype=np.float32)
    raw = pa.array([row.tobytes() for row in rows], pa.binary(64))
    columns: dict[str, tuple[pa.Array, bool]] = {
        "plain": (pa.array(numbers), True),
        "zstd": (pa.array(numbers), True),
        "brotli": (pa.array(numbers), True),
        "delta": (pa.array(RNG.integers(0, 99, ROWS)), True),
        "delta_bytes": (pa.array([b"abcd"] * ROWS, pa.binary(4)), True),
        "raw": (raw, False),
        "raw_nullable": (raw, True),
        "raw_snappy": (raw, False),
        "raw_dictionary": (raw, False),
        "lists": (pa.array(list(rows), pa.list_(pa.float32())), True),
        "ragged": (pa.array([[1], [2, 3]] * (ROWS // 2)), True),
        "nested": (pa.array([[[1]], [[2, 3], []]] * (ROWS // 2)), True),
        "text": (pa.array(["text"] * ROWS), True),
        "price": (pa.array(["1.25"] * ROWS).cast(pa.decimal128(20, 2)), True),
        "day": (pa.array(np.arange(ROWS, dtype=np.int32)).cast(pa.date32()), True),
        "flag": (pa.array(numbers > 0.5), True),
        "point": (pa.array([{"x": 1.0, "y": 2}] * ROWS), True),
    }
    schema = pa.schema([pa.field(name, array.type, nullable) for name, (array, nullable) in columns.items()])
    codecs = dict.fromkeys(columns, "none") | {"zstd": "zstd", "brotli": "brotli", "raw_snappy": "snappy"}
    codecs |= {"point.x": "none", "point.y": "none"}
    pq.write_table(
        pa.table([array for array, _ in columns.values()], schema=schema),
        folder / "a.parquet",
        row_group_size=ROWS // 2,
        compression=codecs,
        use_dictionary=["raw_dictionary"],
        column_encoding={"delta": "DELTA_BINARY_PACKED", "delta_bytes": "DELTA_BYTE_ARRAY"},
        write_page_index=True,
    )
    return folder


@pytest.mark.skipif(not IS_BUILT, reason="the kernels were not compiled: no C compiler at hand")
def test_columns_take_the_routes_that_inspect_names(mixed: Path) -> None:
    found = routes_of(inspected(mixed))
    options = ReadOptions()
    source = resolve_source(open_snapshot(str(mixed)), None, None, options)
    reader = open_rows(source, filters=None, read_options=options, cache=None, skips=False, num_threads=1).reader
    row_group = source.snapshot.row_group(0)
    location, selections = reader.chunks.unread(row_group), reader._delivered_of[0]
    with reader.chunks.opened(row_group, selections["pages", "kernel"], location, lambda _: ROWS) as opened:
        assert opened.chunks.plan.kernel.names == ["ragged"]  # if windows take slices of the row group
    with reader.chunks.opened(row_group, selections["pages", "kernel", "lists"], location, lambda _: ROWS) as opened:
        plan = opened.chunks.plan
        taken = dict.fromkeys(plan.arrow, "arrow") | dict.fromkeys(plan.kernel.names, "kernel")
        taken |= dict.fromkeys(plan.straight.names, "kernel to window") | dict.fromkeys(plan.raw, "pages to window")
    assert {name: route for name, (route, _) in found.items()} == taken
    assert set(taken.values()) == {"arrow", "kernel to window", "pages to window"}


@pytest.mark.skipif(not IS_BUILT, reason="the kernels were not compiled: no C compiler at hand")
def test_inspect_says_why_a_column_takes_no_faster_route(mixed: Path) -> None:
    found = routes_of(inspected(mixed))
    assert found["plain"] == ("kernel to window", "")
    assert found["raw"] == ("pages to window", "")
    reasons = {name: reason for name, (_, reason) in found.items()}
    assert reasons["raw_nullable"] == "it is nullable"
    assert reasons["raw_snappy"] == "it is compressed with snappy"
    assert reasons["raw_dictionary"] == "it has a dictionary"
    assert reasons["lists"] == "it is a list"
    assert reasons["brotli"] == "the kernels do not decompress brotli"
    assert reasons["delta_bytes"] == "the kernels do not decode DELTA_BYTE_ARRAY"
    assert found["ragged"] == ("kernel to window", "")
    assert found["point.x"] == ("kernel to window", "")
    assert found["text"] == ("kernel to window", "")
    assert "not a number" in reasons["nested"]


@pytest.mark.skipif(not IS_BUILT, reason="the kernels were not compiled: no C compiler at hand")
def test_inspect_says_what_keeps_text_and_members_of_structs_from_the_kernels(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", "b"], "point": [{"x": 1.0, "list": [1]}, {"x": 2.0, "list": []}]})
    pq.write_table(table, tmp_path / "a.parquet", compression="brotli")
    found = routes_of(inspected(tmp_path))
    assert found == dict.fromkeys(found, ("arrow", "the kernels do not decompress brotli"))
    assert list(found) == ["text", "point.x", "point.list"]


def test_inspect_tells_what_columns_become(mixed: Path) -> None:
    found = {c["name"]: c for c in inspected(mixed)["delivered"]}
    assert {name: c["becomes"] for name, c in found.items()} | {} == {
        "plain": "float64 [rows]",
        "zstd": "float64 [rows]",
        "brotli": "float64 [rows]",
        "delta": "int64 [rows]",
        "delta_bytes": "uint8 [rows, 4]",
        "raw": "uint8 [rows, 64]",
        "raw_nullable": "uint8 [rows, 64]",
        "raw_snappy": "uint8 [rows, 64]",
        "raw_dictionary": "uint8 [rows, 64]",
        "lists": "float32 [rows, 16]",
        "ragged": "Ragged of int64",
        "nested": "Ragged of Ragged of int64",
        "text": "Ragged of text",
        "price": "float64 [rows]",
        "day": "int32 [rows]",
        "flag": "bool [rows]",
        "point.x": "float64 [rows]",
        "point.y": "int64 [rows]",
    }
    assert (found["lists"]["kind"], found["lists"]["dtype"], found["lists"]["shape"]) == ("tensor", "float32", [16])
    assert {found[name]["kind"] for name in ("plain", "ragged", "text")} == {"number", "ragged", "text"}


def test_sizes_agree_with_pyarrow(mixed: Path) -> None:
    facts = inspected(mixed)
    footer = pq.read_metadata(mixed / "a.parquet")
    columns = {c["path"]: c for c in facts["columns"]}
    for name, number in (("plain", 0), ("zstd", 1), ("text", 12)):
        chunks = [footer.row_group(group).column(number) for group in range(footer.num_row_groups)]
        assert columns[name]["stored_bytes"] == sum(c.total_compressed_size for c in chunks)
        assert columns[name]["encoded_bytes"] == sum(c.total_uncompressed_size for c in chunks)
        assert columns[name]["parquet_types"] == [chunks[0].physical_type]
    assert sum(c["stored_share"] for c in facts["columns"]) == pytest.approx(1)
    assert {c["page_index"] for c in facts["columns"]} == {1.0}
    groups = facts["row_groups"]
    assert (groups["count"], groups["least_rows"], groups["median_rows"], groups["most_rows"]) == (2, 4096, 4096, 4096)
    assert groups["most_bytes"] == max(footer.row_group(g).total_byte_size for g in range(2))


def test_a_column_that_differs_between_row_groups_has_both_routes(tmp_path: Path) -> None:
    for number, codec in enumerate(("none", "brotli", "brotli")):
        pq.write_table(pa.table({"x": RNG.random(100)}), tmp_path / f"{number}.parquet", compression=codec)
    (column,) = inspected(tmp_path)["delivered"]
    if IS_BUILT:
        found = [(r["route"], r["row_groups"]) for r in column["routes"]]
        assert found == [("arrow", 2), ("kernel to window", 1)]
        assert "arrow (67%), kernel to window (33%)" in run_here("inspect", tmp_path).stdout


def test_info_is_the_same_command(mixed: Path) -> None:
    assert run_here("info", mixed).stdout == run_here("inspect", mixed).stdout
    assert "Example: parquet-loader inspect data/train" in run_here("inspect", "--help").stdout


def test_a_delta_table_names_its_version_and_only_its_own_files(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    table = str(tmp_path / "table")
    deltalake.write_deltalake(table, pa.table({"x": [1.0, 2.0], "day": ["a", "b"]}), partition_by=["day"])
    deltalake.write_deltalake(table, pa.table({"x": [3.0], "day": ["a"]}), mode="overwrite", partition_by=["day"])
    facts = inspected(table)
    assert (facts["rows"], facts["files"], facts["table"]) == (1, 1, {"format": "delta", "version": 1})
    assert [c["name"] for c in facts["delivered"]] == ["x", "day"]
    assert "delta table, version 1" in run_here("inspect", table).stdout


def test_a_glob_and_the_loader_agree_about_columns(tmp_path: Path) -> None:
    write_dataset({"x": RNG.random((50, 3)), "t": ["a"] * 50}, tmp_path / "data")
    glob = str(tmp_path / "data/*.parquet")
    assert [c["name"] for c in inspected(glob)["delivered"]] == list(ParquetDataset(glob).schema)
