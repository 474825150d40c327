"""A dict that an iterable yields is a row or a batch of columns by its schema; what may be either is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from parquet_loader import (
    BatchedDataLoader,
    DatasetWriter,
    ParquetIterable,
    Ragged,
    RaggedList,
    Scalar,
    Schema,
    SchemaError,
    Tensor,
    Text,
    write_dataset,
)

TOKENS = [[7, 8, 9], [5, 6], []]


def stored(data: Any, path: Path, schema: Schema | None = None) -> dict[str, list[Any]]:
    write_dataset(data, path / "data", schema)
    columns: dict[str, list[Any]] = pq.read_table(path / "data").to_pydict()
    return columns


@pytest.mark.parametrize(
    "rows",
    [
        [{"ids": ids} for ids in TOKENS],
        [{"ids": ids, "mask": [1] * len(ids)} for ids in TOKENS],
        [{"ids": np.array(ids)} for ids in TOKENS],
        [{"ids": torch.tensor(ids)} for ids in TOKENS],
        [{"image": np.zeros((4, 4)), "target": np.zeros((4, 4))}],
        [{"words": ["a", "b"]}],
        [{"ids": [[1, 2], [3]]}],
    ],
    ids=["list", "lists", "array", "tensor", "images", "words", "nested"],
)
def test_what_may_be_a_row_or_a_batch_is_refused_without_a_schema(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="item 0 is a dict of lists or arrays") as caught:
        write_dataset(iter(rows), tmp_path / "data")
    assert "pass schema=, or yield a row in a list, [row], or a batch as a table" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_each_way_out_that_the_error_names_works(tmp_path: Path) -> None:
    rows = [{"ids": ids} for ids in TOKENS]
    expected = {"ids": TOKENS}
    assert stored(iter(rows), tmp_path / "schema", Schema({"ids": RaggedList("int64")})) == expected
    assert stored(([row] for row in rows), tmp_path / "list") == expected
    assert stored((pa.table({"ids": [ids]}) for ids in TOKENS), tmp_path / "table") == expected
    assert stored(rows, tmp_path / "all") == expected


@pytest.mark.parametrize(
    ("field", "item", "expected"),
    [
        (RaggedList("int64"), [7, 8], [[7, 8]]),
        (RaggedList("int64"), np.array([7, 8]), [[7, 8]]),
        (RaggedList("int64"), [[7, 8], [9]], [[7, 8], [9]]),
        (RaggedList("int64"), [[], [9]], [[], [9]]),
        (RaggedList(Text()), ["a", "b"], [["a", "b"]]),
        (RaggedList(RaggedList("int64")), [[7], [8, 9]], [[[7], [8, 9]]]),
        (Scalar("int64"), [7, 8], [7, 8]),
        (Scalar("int64"), [], []),
        (Text(), ["a", "b"], ["a", "b"]),
        (Tensor("int64", (2,), storage="list"), [7, 8], [[7, 8]]),
        (Tensor("int64", (2,), storage="list"), np.array([[7, 8], [9, 10]]), [[7, 8], [9, 10]]),
    ],
)
def test_the_schema_tells_rows_from_batches(field: Any, item: Any, expected: list[Any], tmp_path: Path) -> None:
    assert stored(iter([{"x": item}]), tmp_path, Schema({"x": field})) == {"x": expected}


def test_one_column_with_a_field_tells_for_the_others(tmp_path: Path) -> None:
    schema = Schema({"ids": RaggedList("int32")}, extra="infer")
    rows = ({"ids": ids, "scores": [0.5] * len(ids)} for ids in ([7, 8], [9]))
    assert stored(rows, tmp_path, schema) == {"ids": [[7, 8], [9]], "scores": [[0.5, 0.5], [0.5]]}


def test_rows_that_follow_the_first_may_be_empty(tmp_path: Path) -> None:
    rows = ({"ids": ids, "mask": ids} for ids in ([7], [], [8, 9]))
    schema = Schema({"ids": RaggedList("int64"), "mask": RaggedList("int64")})
    assert stored(rows, tmp_path, schema)["ids"] == [[7], [], [8, 9]]


def test_a_first_row_of_empty_lists_is_refused_although_there_is_a_schema(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"batch of columns; yield a row in a list, \[row\]"):
        stored(iter([{"ids": []}, {"ids": [1]}]), tmp_path, Schema({"ids": RaggedList("int64")}))


@pytest.mark.parametrize(
    "column",
    [pa.array([1, 2]), pd.Series([1, 2]), pd.array([1, 2]), pa.chunked_array([[1], [2]])],
    ids=["Arrow", "Series", "pandas", "chunked"],
)
def test_what_can_only_be_columns_is_a_batch(column: Any, tmp_path: Path) -> None:
    assert stored(iter([{"x": column, "y": [3, 4]}]), tmp_path) == {"x": [1, 2], "y": [3, 4]}
    ragged = Ragged(np.array([1, 2, 3]), np.array([0, 2, 3]))
    assert stored(iter([{"x": ragged}]), tmp_path / "ragged") == {"x": [[1, 2], [3]]}


class Rows(IterableDataset[dict[str, Any]]):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter([{"a": 0}, {"a": 1}, {"a": 2}])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda loader: loader,
        lambda loader: ParquetIterable(loader),
        lambda loader: DataLoader(ParquetIterable(loader), batch_size=None),
        lambda _: DataLoader([{"a": i} for i in range(3)], batch_size=2),  # type: ignore[arg-type]
        lambda _: DataLoader(Rows(), batch_size=2),
    ],
    ids=["loader", "ParquetIterable", "DataLoader of it", "DataLoader", "DataLoader of rows"],
)
def test_loaders_yield_batches(wrap: Callable[[Any], Any], tmp_path: Path) -> None:
    write_dataset({"a": [0, 1, 2]}, tmp_path / "first")
    with BatchedDataLoader(tmp_path / "first", 2) as loader:
        assert stored(wrap(loader), tmp_path) == {"a": [0, 1, 2]}


def test_dicts_of_a_streaming_hugging_face_data_set_are_rows(tmp_path: Path) -> None:
    class Streaming:
        """Has the names and methods of `datasets.IterableDataset`, which is not a development package."""

        features = None

        def with_format(self, _: None) -> Iterator[dict[str, Any]]:
            return iter([{"ids": ids, "mask": [1] * len(ids)} for ids in TOKENS])

    data = type("IterableDataset", (Streaming,), {"__module__": "datasets.iterable_dataset"})()
    assert stored(data, tmp_path) == {"ids": TOKENS, "mask": [[1, 1, 1], [1, 1], []]}


def test_a_data_loader_without_batches_yields_items_that_may_be_either(tmp_path: Path) -> None:
    items: Any = DataLoader([{"a": torch.arange(2)}], batch_size=None)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="may be one row or a batch"):
        stored(items, tmp_path)


def test_a_writer_that_gets_one_row_as_a_dict_says_that_rows_belong_in_a_list(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="not a list of values; rows given as dicts belong in a list"),
        DatasetWriter(tmp_path / "data", Schema({"ids": RaggedList("int64")})) as writer,
    ):
        writer.write({"ids": [7, 8]})
