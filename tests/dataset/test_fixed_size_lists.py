"""Lists of one length become tensors by what footers say; column data is read only if these leave it in doubt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, DataError, OutputOptions, ParquetDataset, RaggedList, Scalar, Schema

NUMPY = OutputOptions(format="numpy")
MANY = 10_000


def written(path: Path, lists: list[Any], **options: Any) -> Path:
    table = pa.table({"x": pa.array(lists, pa.list_(pa.float32()))})
    pq.write_table(table, path, compression="none", **options)
    return path


def kind_of(path: Path) -> str:
    return type(ParquetDataset(path).schema["x"]).__name__


def without_column_data(path: Path) -> Path:
    """Overwrite everything except the footer, so that reading a page fails."""
    raw = path.read_bytes()
    footer = int.from_bytes(raw[-8:-4], "little") + 8
    path.write_bytes(b"PAR1" + b"\xff" * (len(raw) - footer - 4) + raw[-footer:])
    return path


def test_footers_of_many_rows_decide_without_column_data(tmp_path: Path) -> None:
    path = without_column_data(written(tmp_path / "a.parquet", [[1.0, 2.0]] * MANY))
    assert kind_of(path) == "Tensor"


def test_row_groups_with_other_numbers_of_values_a_row_are_ragged_without_column_data(tmp_path: Path) -> None:
    lists = [[1.0, 2.0]] * 10 + [[1.0, 2.0, 3.0]] * 10
    assert kind_of(without_column_data(written(tmp_path / "a.parquet", lists, row_group_size=10))) == "RaggedList"


@pytest.mark.parametrize("lists", [[[1], [1, 2, 3]], [[1, 2]] * 8 + [[1], [1, 2, 3]], [[1]] * 5 + [[]], [[], []]])
def test_rows_decide_where_footers_of_few_rows_agree_by_chance(tmp_path: Path, lists: list[Any]) -> None:
    assert kind_of(written(tmp_path / "a.parquet", lists)) == "RaggedList"
    assert kind_of(written(tmp_path / "a.parquet", lists, write_statistics=False)) == "RaggedList"


@pytest.mark.parametrize("statistics", [True, False])
def test_lists_of_one_value_or_none_are_no_tensor_however_many(tmp_path: Path, statistics: bool) -> None:
    path = written(tmp_path / "a.parquet", [[1.0]] * MANY + [[]], write_statistics=statistics, row_group_size=MANY)
    assert kind_of(path) == "RaggedList"
    assert kind_of(written(tmp_path / "b.parquet", [[1.0]] * MANY + [[None]], write_statistics=statistics)) == "Tensor"


def test_a_row_of_another_length_names_the_field_to_declare(tmp_path: Path) -> None:
    lists: list[Any] = [[1.0, 2.0]] * MANY
    lists[4000:4002] = [[1.0], [1.0, 2.0, 3.0]]
    path = written(tmp_path / "a.parquet", lists)
    with (
        BatchedDataLoader(path, 100, output_options=NUMPY) as loader,
        pytest.raises(DataError, match=r"'x', row 4000: .*declare RaggedList\(\.\.\.\) for the column in schema="),
    ):
        list(loader)
    declared = Schema({"x": RaggedList(Scalar("float32"))})
    with BatchedDataLoader(path, MANY, schema=declared, output_options=NUMPY) as loader:
        (batch,) = loader
    assert [row.tolist() for row in batch["x"].to_list()] == lists
