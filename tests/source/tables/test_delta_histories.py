"""Random histories of Delta tables: for each version, the rows are those that deltalake reads."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parquet_loader import DeltaSource, ParquetDataset, Scalar, Schema, Text
from tests.source.tables.delta_logs import assert_same, oracle
from tests.support.examples import examples

OPERATIONS = (
    "append", "append", "delete", "update", "merge", "overwrite", "partition", "optimize", "column", "checkpoint",
    "restore", "vacuum",
)  # fmt: skip
PARTITIONS = ("a", "b/c=%20", "é", None)
VALUES = st.integers(0, 40)


def rows(first: int, count: int, p: Any, extra: int) -> pa.Table:
    ids = range(first, first + count)
    columns: dict[str, Any] = {
        "id": pa.array(ids, pa.int64()),
        "v": pa.array([None if i % 3 == 0 else 10 * i for i in ids], pa.int64()),
        "p": pa.array([p if i % 4 else None for i in ids], pa.string()),
    }
    columns |= {f"c{n}": pa.array([n + i for i in ids], pa.int64()) for n in range(extra)}
    return pa.table(columns)


def run(path: Path, steps: list[tuple[str, int, Any]], *, partitioned: bool) -> None:
    extra, vacuumed = 0, 0
    write_deltalake(path, rows(0, 8, "a", 0), partition_by=["p"] if partitioned else None)
    for name, number, p in steps:
        table = DeltaTable(path)
        if name in ("append", "column"):
            extra += name == "column" and extra < 3
            write_deltalake(path, rows(number, 6, p, extra), mode="append", schema_mode="merge")
        elif name == "delete":
            table.delete(f"id % 7 = {number % 7}")
        elif name == "update":
            table.update(updates={"v": "id + 1000"}, predicate=f"id > {number}")
        elif name == "merge":
            unique = rows(1000 + table.version() * 10, 4, p, 0)
            merge = table.merge(unique, "t.id = s.id", source_alias="s", target_alias="t")
            merge.when_matched_delete().when_not_matched_insert({c: f"s.{c}" for c in ("id", "v", "p")}).execute()
        elif name == "overwrite":
            write_deltalake(path, rows(number, 5, p, extra), mode="overwrite", schema_mode="merge")
        elif name == "partition" and partitioned and p is not None:
            only = rows(number, 6, p, extra).filter(pa.array([i % 4 != 0 for i in range(number, number + 6)]))
            write_deltalake(path, only, mode="overwrite", predicate=f"p = '{p}'", schema_mode="merge")
        elif name == "optimize":
            table.optimize.compact()
        elif name == "checkpoint":
            table.create_checkpoint()
        elif name == "restore" and table.version() > vacuumed:
            table.restore(vacuumed + number % (table.version() - vacuumed))
            extra = sum(field.name.startswith("c") for field in DeltaTable(path).schema().fields)
        elif name == "vacuum":
            table.vacuum(0, enforce_retention_duration=False, dry_run=False)
            vacuumed = DeltaTable(path).version()
    for version in range(vacuumed, DeltaTable(path).version() + 1):
        expected = oracle(path, version)
        source = DeltaSource(path, version)
        data = ParquetDataset(source)
        assert data.num_rows == len(expected)
        fields: dict[str, Any] = {name: Scalar("int64", fill=-1) for name in data.schema}
        schema = Schema({**fields, "p": Text(fill="null")})
        assert_same(source, expected, schema, shuffle=version % 2 == 1)


STEPS = st.lists(st.tuples(st.sampled_from(OPERATIONS), VALUES, st.sampled_from(PARTITIONS)), min_size=1, max_size=7)


def check(steps: list[tuple[str, int, Any]], partitioned: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder) / "t", steps, partitioned=partitioned)


@settings(max_examples=examples(12), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(STEPS, st.booleans())
def test_versions_of_random_histories_have_the_rows_that_deltalake_reads(
    steps: list[tuple[str, int, Any]], partitioned: bool
) -> None:
    check(steps, partitioned)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS, st.booleans())
def test_versions_of_five_hundred_random_histories(steps: list[tuple[str, int, Any]], partitioned: bool) -> None:
    check(steps, partitioned)
