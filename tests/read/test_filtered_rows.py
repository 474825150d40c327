"""Rows that pass a filter, of all kinds of columns: those that are decoded to the window, and the filter's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader import (
    BatchedDataLoader,
    Bytes,
    Category,
    DataError,
    Group,
    OutputOptions,
    Ragged,
    RaggedList,
    Scalar,
    Schema,
    Tensor,
    Text,
)
from tests.support.examples import examples
from tests.support.mutated_pages import with_deletes

ROWS = 1500
WORDS = [f"word {n}" for n in range(9)]


def table() -> pa.Table:
    rng = np.random.default_rng(0)
    nulls = rng.random(ROWS) < 0.1
    few = rng.integers(0, 9, ROWS)
    return pa.table(
        {
            "id": np.arange(ROWS),
            "few": few,
            "x": pa.array(rng.random(ROWS), mask=nulls),
            "a": rng.random(ROWS, dtype=np.float32),
            "b": rng.random(ROWS),
            "flag": rng.random(ROWS) < 0.5,
            "text": pa.array([None if null else WORDS[n] * 3 for n, null in zip(few, nulls, strict=True)]),
            "word": [WORDS[n] for n in few],
            "blob": [b"\0" * (n % 7) for n in range(ROWS)],
            "list": pa.array([[n] * (n % 4) for n in range(ROWS)], pa.list_(pa.int32())),
            "row": pa.array([[n, n + 0.5] for n in range(ROWS)], pa.list_(pa.float64())),
            "wide": pa.array([bytes([n % 256]) * 400 for n in range(ROWS)]),
        }
    )


TABLE = table()
FIELDS = {
    "id": Scalar("int64"),
    "few": Scalar("float32"),
    "x": Scalar("float32", null="mask"),
    "g": Group({"a": Scalar("float32"), "b": Scalar("float32")}),
    "flag": Scalar("bool"),
    "text": Text(null="mask", fill="-"),
    "word": Category(WORDS),
    "blob": Bytes(),
    "list": RaggedList("int64"),
    "row": Tensor("float32", (2,)),
}
# By the number of a filter: the filter, and the rows that pass.
X = TABLE["x"].to_numpy()
ID, FEW, FLAG = TABLE["id"].to_numpy(), TABLE["few"].to_numpy(), TABLE["flag"].to_numpy(zero_copy_only=False)
FILTERS: list[tuple[Any, np.ndarray[Any, Any]]] = [
    (pc.field("id") >= 0, ID >= 0),
    ([("few", "<", 4)], FEW < 4),
    ([("few", "==", 11)], FEW == 11),
    (pc.field("x") < 0.5, X < 0.5),
    (pc.field("flag"), FLAG),
    ([("word", "in", ["word 1", "word 5"])], np.isin(FEW, [1, 5])),
    ([("id", "in", [3, 700, 701, 1499])], np.isin(ID, [3, 700, 701, 1499])),
    ((pc.field("b") > 0.9) & (pc.field("a") > 0.2), (TABLE["b"].to_numpy() > 0.9) & (TABLE["a"].to_numpy() > 0.2)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file, and a folder "table" with the same file for a Delta table."""
    found = tmp_path_factory.mktemp("filtered")
    (found / "table").mkdir()
    for path in (found / "a.parquet", found / "table" / "a.parquet"):
        pq.write_table(TABLE, path, row_group_size=600, data_page_size=2000, write_batch_size=50)
    return found


@settings(max_examples=examples(40), deadline=None)
@given(
    number=st.integers(0, len(FILTERS) - 1),
    columns=st.sets(st.sampled_from(list(FIELDS)), min_size=1),
    window_rows=st.sampled_from([100, 500, 5000]),
    batch_size=st.sampled_from([7, 100]),
    options=st.sampled_from([{}, {}, {"isolation": "process"}, {"num_threads": 1}]),
    has_numbers=st.booleans(),
    shuffle=st.booleans(),
    share=st.sampled_from([0, 0, 0.3]),
)
def test_rows_that_pass_are_delivered_whatever_way_their_columns_take(
    folder: Path,
    number: int,
    columns: set[str],
    window_rows: int,
    batch_size: int,
    options: dict[str, Any],
    has_numbers: bool,
    shuffle: bool,
    share: float,
) -> None:
    filters, passing = FILTERS[number]
    if shuffle:
        columns |= {"id"}
    names = [name for name in FIELDS if name in columns]
    source: Any = folder / "a.parquet"
    deleted = np.zeros(0, np.int64)
    if share:
        deleted = np.flatnonzero(np.random.default_rng(number).random(ROWS) < share)
        source = with_deletes(folder / "table" / "a.parquet", TABLE.schema, deleted)
        passing = passing & ~np.isin(ID, deleted)
    schema = Schema({name: FIELDS[name] for name in names})
    with BatchedDataLoader(
        source,
        batch_size,
        schema=schema,
        filters=filters,
        shuffle=shuffle,
        window_rows=window_rows,
        output_options=OutputOptions(format="numpy", row_numbers="number" if has_numbers else None),
        **options,
    ) as loader:
        batches = [dict(batch) for batch in loader]
    rows = np.flatnonzero(passing)
    assert sum(len(batch[names[0]]) for batch in batches) == len(rows)
    if not len(rows):
        return
    found: dict[str, Any] = {
        name: (Ragged.cat if isinstance(array, Ragged) else np.concatenate)([batch[name] for batch in batches])
        for name, array in batches[0].items()
    }
    if shuffle:
        assert sorted(found["id"].tolist()) == rows.tolist()
        rows = found["id"]
    taken = TABLE.take(rows)
    expected: dict[str, Any] = {name: taken[name].to_pylist() for name in taken.column_names}
    expected["g"] = np.stack([taken["a"].to_numpy(), taken["b"].to_numpy()], axis=1).astype(np.float32).tolist()
    expected["x"] = [0 if x is None else float(np.float32(x)) for x in expected["x"]]
    expected["text"] = ["-" if text is None else text for text in expected["text"]]
    expected["word"] = taken["few"].to_pylist()
    for name in names:
        own = found[name].to_list() if isinstance(found[name], Ragged) else found[name].tolist()
        assert [row.tolist() if isinstance(row, np.ndarray) else row for row in own] == expected[name], name
    if has_numbers:
        alive = np.setdiff1d(np.arange(ROWS), deleted)
        assert alive[found["number"]].tolist() == rows.tolist()
    for name in {"x", "text"} & columns:
        assert found[f"{name}_valid"].tolist() == taken[name].is_valid().to_pylist()


@pytest.mark.parametrize("use_dictionary", [True, False])
def test_a_value_that_does_not_fit_does_not_matter_in_a_row_that_is_filtered_out(
    tmp_path: Path, use_dictionary: bool
) -> None:
    numbers, words = [n % 50 for n in range(3000)], ["a"] * 3000
    numbers[1234], words[1777] = 2**40, "b"
    rows = pa.table({"id": range(3000), "x": numbers, "word": words})
    pq.write_table(rows, tmp_path / "a.parquet", use_dictionary=use_dictionary, row_group_size=1000)
    schema = Schema({"id": Scalar("int64"), "x": Scalar("int8"), "word": Category(["a"])})
    options: dict[str, Any] = {"schema": schema, "window_rows": 400, "output_options": OutputOptions(format="numpy")}
    with BatchedDataLoader(tmp_path, 64, filters=[("id", "not in", [1234, 1777])], **options) as loader:
        batches = [dict(batch) for batch in loader]
    ids = np.concatenate([batch["id"] for batch in batches])
    assert ids.tolist() == [n for n in range(3000) if n not in (1234, 1777)]
    assert np.concatenate([batch["x"] for batch in batches]).tolist() == (ids % 50).tolist()
    refused = pytest.raises(DataError, match=f"column 'x', row .*{2**40}")
    with BatchedDataLoader(tmp_path, 64, filters=[("id", ">", 3)], **options) as loader, refused:
        list(loader)


@pytest.mark.parametrize("is_delivered", [False, True])
def test_words_that_a_filter_compares_are_decoded_a_few_rows_at_a_time(tmp_path: Path, is_delivered: bool) -> None:
    pq.write_table(pa.table({"id": range(70_000), "word": ["word" * 50] * 70_000}), tmp_path / "a.parquet")
    code = {"word": Category(["word" * 50], dtype="int8")} if is_delivered else {}
    schema = Schema({"id": Scalar("int64"), **code})
    with BatchedDataLoader(tmp_path, 64, schema=schema, filters=[("word", "==", "word" * 50)]) as loader:
        reader: Any = loader._dataset.reader
        row_group = reader.snapshot.row_group(0)
        found = [[batch.rows for batch in reader.lazy_batches(row_group, rows)] for rows in (10_000, 70_000)]
    assert found == [[10_000] * 7, [65536, 70_000 - 65536]]
