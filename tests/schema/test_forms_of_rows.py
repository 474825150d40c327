"""`write_dataset` takes single rows, data sets of other libraries, and frames without column names."""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from parquet_loader import (
    BatchedDataLoader,
    DataError,
    DatasetWriter,
    RaggedList,
    Scalar,
    Schema,
    SchemaError,
    Tensor,
    Text,
    from_pandas,
    write_dataset,
)
from parquet_loader.schema import iter_tables

ROWS = [{"id": i, "text": f"row {i}", "values": np.arange(i % 3)} for i in range(10)]
STORED = {
    "id": list(range(10)),
    "text": [f"row {i}" for i in range(10)],
    "values": [[0, 1][: i % 3] for i in range(10)],
}


def stored(data: Any, path: Path, schema: Schema | None = None) -> dict[str, list[Any]]:
    write_dataset(data, path / "data", schema)
    columns: dict[str, list[Any]] = pq.read_table(path / "data").to_pydict()
    return columns


class Rows(IterableDataset[dict[str, Any]]):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(ROWS)


@pytest.mark.parametrize(
    "make",
    [
        lambda: (row for row in ROWS),
        lambda: map(dict, ROWS),
        lambda: filter(None, ROWS),
        lambda: {str(row["id"]): row for row in ROWS}.values(),
        lambda: (ROWS[start : start + 3] for start in range(0, 10, 3)),
        lambda: tuple(ROWS),
        Rows,
    ],
    ids=["generator", "map", "filter", "view", "lists of rows", "tuple", "IterableDataset"],
)
def test_rows_are_written_from_any_iterable(make: Callable[[], Any], tmp_path: Path) -> None:
    assert stored(make(), tmp_path) == STORED


NESTED = {
    "words": [["a", "b"], [], ["c"]],
    "bytes": [[], [b"a"], []],
    "flags": [[True, None], [], [False]],
    "days": [[dt.date(2020, 1, 1)], [], []],
    "numbers": [[[1, 2], [3]], [], [[]]],
    "pairs": [[{"a": 1, "b": "x"}], [], [{"a": 2, "b": "y"}]],
}


@pytest.mark.parametrize("name", NESTED)
def test_lists_that_pandas_read_from_parquet_are_written_again(name: str, tmp_path: Path) -> None:
    """Pandas makes arrays of Python objects of them."""
    pq.write_table(pa.table({name: NESTED[name]}), tmp_path / "a.parquet")
    frame = pd.read_parquet(tmp_path / "a.parquet")
    assert frame[name][0].dtype == object or name == "pairs"
    schema = Schema({name: RaggedList(Scalar("bool", fill=False))}) if name == "flags" else None
    write_dataset(frame, tmp_path / "data", schema)
    source = tmp_path / "a.parquet"
    with BatchedDataLoader(source, 3, schema=schema) as loader, BatchedDataLoader(tmp_path / "data", 3) as again:
        (expected,), (batch,) = loader, again
    assert list(batch) == list(expected)
    assert all(batch[column] == expected[column] for column in expected)


def test_rows_of_torch_tensors_are_written(tmp_path: Path) -> None:
    rows = ({"x": torch.full((2,), float(i)), "y": torch.tensor(i)} for i in range(3))
    schema = Schema({"x": Tensor("float32", (2,)), "y": Scalar("int64")})
    write_dataset(rows, tmp_path / "data", schema)
    with BatchedDataLoader(tmp_path / "data", 3) as loader:
        batch = next(iter(loader))
    assert batch["x"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert batch["y"].tolist() == [0, 1, 2]
    assert stored(({"y": torch.tensor(i)} for i in range(3)), tmp_path / "inferred") == {"y": [0, 1, 2]}


def test_rows_are_converted_in_pieces_of_bounded_size() -> None:
    asked = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal asked
        for number in range(1000):
            asked += 1
            yield {"id": number, "data": b"x" * 1000}

    tables = iter_tables(rows(), slice_bytes=20_000)
    first = next(tables)
    assert first.num_rows == asked < 50
    assert first.num_rows + sum(table.num_rows for table in tables) == 1000


def test_an_error_names_the_row_of_the_whole_iterable(tmp_path: Path) -> None:
    rows = ({"id": 2**40 if i == 700 else i, "pad": "x" * 200_000} for i in range(1000))
    schema = Schema({"id": Scalar("int32")})
    with pytest.raises(DataError, match="field 'id', row 700"):
        write_dataset(({"id": row["id"]} for row in rows), tmp_path / "data", schema)
    assert not (tmp_path / "data").exists()


def test_a_csv_reader_is_written_row_by_row(tmp_path: Path) -> None:
    assert stored(csv.DictReader(io.StringIO("a,b\n1,x\n2,y\n")), tmp_path) == {"a": ["1", "2"], "b": ["x", "y"]}


@pytest.mark.parametrize(
    "make",
    [
        lambda: ({"a": pa.array([0, 1, 2])} for _ in range(2)),
        lambda: (pa.table({"a": [0, 1, 2]}) for _ in range(2)),
        lambda: iter([pd.DataFrame({"a": [0, 1, 2]})] * 2),
    ],
    ids=["columns", "tables", "frames"],
)
def test_iterators_of_batches_are_written_as_before(make: Callable[[], Any], tmp_path: Path) -> None:
    assert stored(make(), tmp_path) == {"a": [0, 1, 2, 0, 1, 2]}


@pytest.mark.parametrize(
    "make",
    [
        lambda: [pd.DataFrame({"a": [0, 1, 2]})] * 2,
        lambda: (pa.table({"a": [0, 1, 2]}),) * 2,
        lambda: np.array([(0,), (1,), (2,)] * 2, dtype=[("a", "i8")]),
        lambda: DataLoader([{"a": i % 3} for i in range(6)], batch_size=2),  # type: ignore[arg-type]
    ],
    ids=["frames", "tables", "structured array", "DataLoader"],
)
def test_lists_of_batches_structured_arrays_and_torch_loaders_are_written(
    make: Callable[[], Any], tmp_path: Path
) -> None:
    assert stored(make(), tmp_path) == {"a": [0, 1, 2, 0, 1, 2]}


def test_arrow_data_sets_scanners_and_fragments_are_written(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [0, 1, 2]}), tmp_path / "source.parquet")
    source = pads.dataset(tmp_path / "source.parquet")
    for number, data in enumerate((source, source.scanner(), next(source.get_fragments()))):
        assert stored(data, tmp_path / str(number)) == {"a": [0, 1, 2]}


def test_a_loader_can_be_written_again(tmp_path: Path) -> None:
    write_dataset({"a": np.arange(10)}, tmp_path / "first")
    with BatchedDataLoader(tmp_path / "first", 4) as loader:
        assert stored(loader, tmp_path) == {"a": list(range(10))}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (((np.arange(3), 1) for _ in range(3)), "item 0 is a tuple, neither a row nor a batch; a row is a dict"),
        (range(3), "item 0 is an int, neither a row nor a batch"),
        (iter("ab"), "item 0 is a str, neither a row nor a batch"),
        (iter([{"a": 1}, pa.table({"a": [1]})]), "item 1 is a Table, and the items before it are dicts of one row"),
        (
            iter([{"a": pa.array([1, 2])}, {"a": [1], "b": 3}]),
            "item 1 is the dict of one row, and the items before it are batches",
        ),
        (np.zeros((3, 3)), "{'x': array} gives it a name"),
        (torch.zeros(3), "{'x': array} gives it a name"),
        (pd.Series([1]), "to_frame() makes it a frame"),
        (pl.DataFrame({"a": [1]}).lazy(), "collect() makes it a frame"),
        ("rows.parquet", "rewrite_dataset(source, path)"),
        (b"PAR1", "pyarrow.BufferReader(data)"),
        (TensorDataset(torch.zeros(3)), "({'x': x, 'y': y} for x, y in data)"),
        (TensorDataset(torch.zeros(3)), "(data[n] for n in range(len(data))) if they are dicts"),
        ({"a": [1], "b": [1, 2]}, "rows are dicts in a list"),
        (pd.DataFrame(), "there are no columns"),
        (pd.DataFrame(index=range(3)), "there are no columns"),
        ({}, "there are no columns"),
        (pa.table({}), "there are no columns"),
    ],
)
def test_other_things_are_refused_with_one_line_that_says_what_to_do(data: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((SchemaError, DataError)) as caught:
        write_dataset(data, tmp_path / "data")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_dask_collections_are_sent_to_write_dask(tmp_path: Path) -> None:
    frame = pytest.importorskip("dask.dataframe").from_pandas(pd.DataFrame({"a": [1, 2]}), npartitions=1)
    with pytest.raises(SchemaError, match="write_dask"):
        write_dataset(frame, tmp_path / "data")


def test_integer_column_names_become_text(tmp_path: Path) -> None:
    frame = pd.DataFrame(np.arange(6.0).reshape(3, 2))
    assert stored(frame, tmp_path / "frame") == {"0": [0, 2, 4], "1": [1, 3, 5]}
    assert stored({0: [1], np.int64(1): [2]}, tmp_path / "dict") == {"0": [1], "1": [2]}
    assert stored(({0: i} for i in range(2)), tmp_path / "rows") == {"0": [0, 1]}
    with from_pandas(frame, 3, cache_dir=tmp_path / "cache") as loader:
        assert next(iter(loader))["1"].tolist() == [1, 3, 5]
        assert loader.delete()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([1.5, "a"], "the column name 1.5 is a float, not a str; in pandas, frame.columns = frame.columns.map(str)"),
        (pd.Index([None, "a"], dtype=object), "the column name None is None, not a str"),
        ([pd.Timestamp("2020-01-01"), "a"], "is a Timestamp, not a str"),
        ([True, "a"], "the column name True is a bool"),
        (pd.MultiIndex.from_tuples([("a", "x"), ("a", "y")]), "has several levels; give each column one name"),
        ([0, "0"], "column '0': there are two of this name"),
    ],
)
def test_other_column_names_are_refused_with_the_way_to_rename_them(columns: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError) as caught:
        write_dataset(pd.DataFrame([[1, 2]], columns=columns), tmp_path / "data")
    assert message in str(caught.value)


def test_an_index_of_several_levels_is_not_dropped_in_silence(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1, 2]}, index=pd.MultiIndex.from_tuples([("x", 1), ("y", 2)]))
    with pytest.raises(SchemaError, match="the frame's index has 2 levels"):
        write_dataset(frame, tmp_path / "data")


def test_repeated_and_unknown_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="column 'a': there are two of this name"):
        write_dataset(pd.DataFrame([[1, 2]], columns=["a", "a"]), tmp_path / "data")


def test_an_empty_frame_with_types_is_an_empty_data_set(tmp_path: Path) -> None:
    assert stored(pd.DataFrame({"a": np.zeros(0)}), tmp_path) == {"a": []}


# The package `datasets` is not among the development packages: these have its names, and the methods that are used.
class StandIn:
    def __init__(self, table: pa.Table, columns: list[str] | None = None, kind: str | None = None) -> None:
        self.table = table
        self.format = {"type": kind, "columns": columns or table.column_names}
        self.features = None

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, rows: slice) -> pa.Table:
        return self.table[rows]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.table.to_pylist())

    def with_format(self, kind: str | None, columns: list[str] | None = None) -> StandIn:
        return type(self)(self.table, columns, kind)

    def iter(self, batch_size: int) -> Iterator[Any]:
        assert self.format["type"] == "arrow"
        yield from (pa.Table.from_batches([batch]) for batch in self.table.to_batches(max_chunksize=batch_size))


HuggingFace = type("Dataset", (StandIn,), {"__module__": "datasets.arrow_dataset"})
Streaming = type("IterableDataset", (StandIn,), {"__module__": "datasets.iterable_dataset"})
Splits = type("DatasetDict", (dict,), {"__module__": "datasets.dataset_dict"})
TABLE = pa.table({"text": [f"text {i}" for i in range(2500)], "label": [i % 2 for i in range(2500)]})


def test_a_hugging_face_data_set_is_written_through_its_arrow_tables(tmp_path: Path) -> None:
    assert stored(HuggingFace(TABLE), tmp_path / "all") == TABLE.to_pydict()
    assert stored(HuggingFace(TABLE, ["label"], "numpy"), tmp_path / "some") == TABLE.select(["label"]).to_pydict()
    assert stored(HuggingFace(TABLE[:0]), tmp_path / "none") == {"text": [], "label": []}


def test_a_transform_of_a_hugging_face_data_set_is_applied(tmp_path: Path) -> None:
    class Upper(StandIn):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            return ({"text": row["text"].upper()} for row in self.table.to_pylist())

    data = type("Dataset", (Upper,), {"__module__": "datasets.arrow_dataset"})(TABLE[:2], None, "custom")
    assert stored(data, tmp_path) == {"text": ["TEXT 0", "TEXT 1"]}


def test_a_streaming_hugging_face_data_set_is_written_by_iteration(tmp_path: Path) -> None:
    assert stored(Streaming(TABLE), tmp_path) == TABLE.to_pydict()


def test_splits_of_hugging_face_are_written_one_by_one(tmp_path: Path) -> None:
    with pytest.raises(
        SchemaError, match=r"holds the splits 'train', 'test'; .* write_dataset\(data\['train'\], path\)"
    ):
        write_dataset(Splits(train=HuggingFace(TABLE), test=HuggingFace(TABLE)), tmp_path / "data")


def test_a_writer_takes_single_rows_from_a_generator(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "data") as writer:
        for _ in range(2):
            writer.write(row for row in ROWS)
    assert pq.read_table(tmp_path / "data").num_rows == 20


class Items(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return ROWS[index]


def test_a_map_style_data_set_is_written_as_the_message_says(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="for x, y in data"):
        write_dataset(Items(), tmp_path / "data")
    data = Items()
    assert stored((data[i] for i in range(len(data))), tmp_path) == STORED


@pytest.mark.parametrize(
    "batch",
    [
        {"p": [None, None]},
        {"p": np.array([None, None])},
        pd.DataFrame({"p": [None, None]}),
        pa.table({"p": pa.nulls(2)}),
        [{"p": None}, {"p": None}],
    ],
    ids=["list", "array", "frame", "table", "rows"],
)
@pytest.mark.parametrize("extra", ["refuse", "infer", "drop"])
def test_a_batch_may_have_no_values_of_a_struct(batch: Any, extra: Any, tmp_path: Path) -> None:
    x, z = Scalar("int64", null="mask"), RaggedList(Text(), null="mask")
    with DatasetWriter(tmp_path / "data", Schema({"p.x": x, "p.q.z": z}, extra=extra)) as writer:
        writer.write({"p": [{"x": 1, "q": {"z": ["a"]}}]})
        writer.write(batch)
        writer.write({"p": [{"x": 2, "q": None}]})
    assert pq.read_table(tmp_path / "data").to_pydict() == {"p.x": [1, None, None, 2], "p.q.z": [["a"], *[None] * 3]}


@pytest.mark.parametrize("extra", ["refuse", "infer", "drop"])
def test_a_struct_without_values_leaves_a_member_that_is_given_by_itself(extra: Any, tmp_path: Path) -> None:
    schema = Schema({"p.x": Scalar("int64", null="mask")}, extra=extra)
    write_dataset({"p.x": [1, 2], "p": [None, None]}, tmp_path / "data", schema)
    assert pq.read_table(tmp_path / "data").to_pydict() == {"p.x": [1, 2]}
    with pytest.raises(SchemaError, match=r"column 'p\.x' is given by itself and as a part of 'p'"):
        write_dataset({"p.x": [1, 2], "p": [{"x": 3}, None]}, tmp_path / "other", schema)


def test_a_batch_may_have_only_empty_lists_of_structs(tmp_path: Path) -> None:
    fields = {"m.role": RaggedList(Text(), null="mask"), "m.n": RaggedList("int64", null="mask")}
    with DatasetWriter(tmp_path / "data", Schema(fields)) as writer:
        writer.write({"m": [[{"role": "a", "n": 1}]]})
        writer.write({"m": [[], None]})
    assert pq.read_table(tmp_path / "data").to_pydict() == {"m.role": [["a"], [], None], "m.n": [[1], [], None]}


def test_a_struct_without_values_is_refused_if_its_members_are(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"field 'p.x', row 0: the value is null, and the field refuses nulls"):
        write_dataset({"p": [None]}, tmp_path / "data", Schema({"p.x": Scalar("int64")}))
