"""A row group of a snapshot is a value that is made on demand."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.source import open_snapshot


def test_a_row_group_knows_its_file_its_number_and_its_schema(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "a.parquet", row_group_size=2)
    pq.write_table(pa.table({"x": [4.0]}), tmp_path / "b.parquet")
    snapshot = open_snapshot(str(tmp_path))
    found = [snapshot.row_group(index) for index in range(snapshot.row_groups)]
    assert [Path(group.file.path).name for group in found] == ["a.parquet", "a.parquet", "b.parquet"]
    assert [(group.index, group.file_number, group.number, group.rows) for group in found] == [
        (0, 0, 0, 2),
        (1, 0, 1, 1),
        (2, 1, 0, 1),
    ]
    assert [group.schema.field("x").type for group in found] == [pa.int64(), pa.int64(), pa.float64()]
    assert all(group.schema is snapshot.schemas[group.schema_number] for group in found)
    assert found[1].name == f"{tmp_path}/a.parquet, row group 1"
    assert found[1] == snapshot.row_group(1)


def test_a_snapshot_of_a_million_row_groups_holds_arrays_alone(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    small, groups = open_snapshot(str(tmp_path)), 1_000_000
    tracemalloc.start()
    try:
        snapshot = replace(
            small,
            row_group_file=np.zeros(groups, np.int32),
            row_group_number=np.arange(groups, dtype=np.int32),
            row_group_rows=np.ones(groups, np.int64),
            row_group_bytes=np.ones(groups, np.int64),
        )
        assert sum(snapshot.row_group(index).rows for index in range(0, groups, 100)) == groups // 100
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 25 * groups  # 24 bytes a row group in arrays
