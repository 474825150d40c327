"""Filters compare columns of Arrow's view types, which delta-rs and others write; Arrow itself cannot compare views."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader

FILTERS: dict[str, Any] = {
    "equal": (pc.field("word") == "b", [2, 3]),
    "less": (pc.field("word") < "b", [0, 1]),
    "in": ([("word", "in", ["a", "c"])], [0, 5]),
    "null": (pc.field("word").is_null(), [4]),
    "another column": (pc.field("id") > 3, [4, 5]),
}


@pytest.mark.parametrize("type_", [pa.string_view(), pa.binary_view()], ids=str)
@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_compares_views(tmp_path: Path, type_: pa.DataType, name: str) -> None:
    words = pa.array(["a", "aa", "b", "b", None, "c"], pa.string())
    words = words.cast(pa.binary()).cast(type_) if type_ == pa.binary_view() else words.cast(type_)
    pq.write_table(pa.table({"id": range(6), "word": words}), tmp_path / "a.parquet", row_group_size=2)
    filters, expected = FILTERS[name]
    with BatchedDataLoader(tmp_path, 10, columns=["id"], filters=filters) as loader:
        assert [row for batch in loader for row in batch["id"].tolist()] == expected
        assert loader.plan().row_groups == len({row // 2 for row in expected})
