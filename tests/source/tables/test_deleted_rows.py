"""Rows that a table has deleted are left out, and the others come in the order in which a filter delivers them.

A loader whose filter selects the rows that are alive is the model: it decodes with Arrow, because only Arrow verifies
checksums, and orders the same rows.
"""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader import BatchedDataLoader, OutputOptions, ReadOptions, Schema, Shard
from parquet_loader.source.tables.deletes import DeletesError, roaring_positions
from tests.source.tables.made_tables import MadeTable, deleting, table
from tests.support.examples import examples
from tests.support.outputs import leaves

ROWS = 600
PATTERNS = ("none", "one", "all", "few", "many", "first", "last", "block", "alternate")


def columns_of(rows: int, seed: int) -> dict[str, pa.Array]:
    """Return a column for each route to a window."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 2**31, rows)

    def with_nulls(array: pa.Array) -> pa.Array:
        return pa.array(array.to_pylist(), array.type, mask=rng.random(rows) < 0.1)

    wide = pa.array(np.repeat(numbers % 251, 600).astype(np.uint8))
    ends = np.concatenate([[0], np.cumsum(numbers % 5)]).astype(np.int32)
    return {
        "flag": pa.array(numbers % 3 == 0),
        "u8": with_nulls(pa.array((numbers % 200).astype(np.uint8))),
        "i16": pa.array((numbers % 9).astype(np.int16)),
        "i64": with_nulls(pa.array(numbers % 40)),
        "id": pa.array(np.arange(rows) + seed * 10_000),
        "f32": with_nulls(pa.array(numbers.astype(np.float32))),
        "f64": pa.array(rng.standard_normal(rows)),
        "pair": pa.FixedSizeListArray.from_arrays(pa.array(rng.standard_normal(2 * rows)), 2),
        "triple": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(numbers, 3).astype(np.int32)), 3),
        "wide": pa.FixedSizeListArray.from_arrays(wide, 600),
        "bytes": pa.array([bytes([n % 256] * 16) for n in numbers.tolist()], pa.binary(16)),
        "text": with_nulls(pa.array([f"t{n % 30}" * (n % 3) for n in numbers.tolist()])),
        "list": pa.ListArray.from_arrays(ends, pa.array(rng.integers(0, 99, int(ends[-1])))),
    }


def positions_of(pattern: str, rows: int, rng: np.random.Generator) -> list[int]:
    found = {
        "none": [],
        "one": [int(rng.integers(rows))],
        "all": list(range(rows)),
        "few": np.flatnonzero(rng.random(rows) < 0.05).tolist(),
        "many": np.flatnonzero(rng.random(rows) < 0.6).tolist(),
        "first": list(range(rows // 7 + 1)),
        "last": list(range(rows - rows // 9 - 1, rows)),
        "block": list(range(rows // 3, rows // 2)),
        "alternate": list(range(0, rows, 2)),
    }
    return list(found[pattern])


def made_table(folder: Path, patterns: list[str], group_rows: int, options: dict[str, Any], seed: int) -> MadeTable:
    """Write two files, delete rows of each row group by the patterns in turn, and say in `is_alive` which are left."""
    rng, files, number = np.random.default_rng(seed), list[tuple[pa.Table, Any]](), 0
    schema = pa.schema([])
    for file in range(2):
        gone = list[int]()
        for begin in range(0, ROWS, group_rows):
            rows = min(group_rows, ROWS - begin)
            gone += [begin + at for at in positions_of(patterns[number % len(patterns)], rows, rng)]
            number += 1
        alive = np.ones(ROWS, np.bool_)
        alive[gone] = False
        rows_of_file = pa.table(columns_of(ROWS, file) | {"is_alive": pa.array(alive)})
        schema = rows_of_file.schema
        files.append((rows_of_file, deleting(*gone) if gone else None))
    return table(folder, files, schema, row_group_size=group_rows, **options)


def delivered(source: Any, batch_size: int, **options: Any) -> list[dict[str, list[bytes]]]:
    """Return the batches of two epochs, as bytes."""
    options.setdefault("output_options", OutputOptions(format="numpy"))
    with BatchedDataLoader(source, batch_size, **options) as loader:
        return [
            {name: [leaf.tobytes() for leaf in leaves(values)] for name, values in batch.items()}
            for _ in range(2)
            for batch in loader
        ]


def assert_as_filtered(folder: Path, made: MadeTable, nulls: Any, batch_size: int, **options: Any) -> int:
    """Assert that a table delivers what a filter selects from its files; return the number of batches."""
    files = [str(path) for path in sorted(folder.glob("*.parquet"))]
    inferred = Schema.infer(files, nulls=nulls)
    schema = Schema({name: field for name, field in inferred.items() if name != "is_alive"})
    model = {
        name: options[name] for name in ("shuffle", "seed", "window_rows", "shard", "drop_last") if name in options
    }
    by_arrow = ReadOptions(verify_checksums=True)
    filters = [("is_alive", "==", True)]
    expected = delivered(files, batch_size, schema=schema, filters=filters, read_options=by_arrow, **model)
    found = delivered(made, batch_size, schema=schema, **options)
    assert found == expected
    return len(found)


LAYOUTS: list[dict[str, Any]] = [
    {"compression": "snappy", "data_page_size": 700, "write_batch_size": 50},
    {"compression": "none", "use_dictionary": False},
    {"compression": "zstd", "use_dictionary": False, "data_page_size": 3000, "data_page_version": "2.0"},
    {"compression": "none", "data_page_size": 500, "write_batch_size": 30},
]


@settings(max_examples=examples(6), deadline=None)
@given(
    patterns=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=5),
    group_rows=st.sampled_from([37, 200, ROWS]),
    layout=st.sampled_from(LAYOUTS),
    nulls=st.sampled_from(["fill", "mask"]),
    batch_size=st.sampled_from([7, 64, 500]),
    window_rows=st.sampled_from([90, 333, 5000]),
    threads=st.sampled_from([1, 3]),
    shuffle=st.booleans(),
    on_device=st.booleans(),
    shard=st.sampled_from([None, None, Shard(1, 2)]),
    seed=st.integers(0, 9),
)
def test_rows_that_are_left_come_in_the_order_of_a_filter(
    tmp_path_factory: pytest.TempPathFactory,
    patterns: list[str],
    group_rows: int,
    layout: dict[str, Any],
    nulls: str,
    batch_size: int,
    window_rows: int,
    threads: int,
    shuffle: bool,
    on_device: bool,
    shard: Shard | None,
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("deleted")
    made = made_table(folder, patterns, group_rows, layout, seed)
    options: dict[str, Any] = {
        "shuffle": shuffle,
        "seed": seed,
        "window_rows": max(window_rows, batch_size),
        "shard": shard,
    }
    if on_device:
        options |= {"device": "cpu", "output_options": OutputOptions(shuffle_on_device=True)}
    assert_as_filtered(folder, made, nulls, batch_size, num_threads=threads, **options)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_tables_of_large_row_groups_deliver_the_rows_that_are_left(tmp_path: Path, isolation: str) -> None:
    made = made_table(tmp_path, ["few", "many"], ROWS, LAYOUTS[0], 3)
    options: dict[str, Any] = {"shuffle": True, "window_rows": 200, "isolation": isolation, "num_threads": 2}
    assert assert_as_filtered(tmp_path, made, "fill", 32, **options) > 40


def digest(folder: Path) -> str:
    """Return a hash of batches with deleted rows, and their number."""
    made = made_table(folder, ["few", "one", "all", "many"], 200, LAYOUTS[0], 5)
    columns = ["flag", "i16", "id", "f64", "pair", "wide", "bytes", "list"]
    batches = delivered(made, 50, columns=columns, shuffle=True, window_rows=400)
    return f"{len(batches)} {hashlib.sha256(repr(batches).encode()).hexdigest()}"


def test_batches_are_the_same_without_kernels(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys\n"
        "from tests.source.tables.test_deleted_rows import digest\n"
        "print(digest(pathlib.Path(sys.argv[1])))\n"
    )
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "without")],
        env={**os.environ, "PARQUET_LOADER_NATIVE": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == digest(tmp_path / "with")


@pytest.mark.parametrize("kind", ["runs", "containers", "bitmaps"])
def test_a_damaged_list_of_deleted_rows_takes_no_memory(kind: str) -> None:
    bitmaps, containers, runs = (200 if kind == name else 1 for name in ("bitmaps", "containers", "runs"))
    heads = b"".join(struct.pack("<HH", key, 65535) for key in range(containers))
    marks, offsets = bytes([255]) * -(-containers // 8), bytes(4 * containers if containers > 3 else 0)
    body = struct.pack("<I", 12347 | containers - 1 << 16) + marks + heads + offsets
    body += (struct.pack("<H", runs) + struct.pack("<HH", 0, 65535) * runs) * containers
    data = struct.pack("<iQ", 1681511377, bitmaps) + b"".join(struct.pack("<I", n) + body for n in range(bitmaps))
    tracemalloc.start()
    try:
        with pytest.raises(DeletesError):
            roaring_positions(data, 100_000)
        assert tracemalloc.get_traced_memory()[1] < 4e6
    finally:
        tracemalloc.stop()
