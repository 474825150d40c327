"""Nested lists in columns of bytes: windows order these columns and join them again."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader import BatchedDataLoader, OutputOptions, Ragged, RaggedList, Schema, Tensor, Text
from parquet_loader.decode import columns_of, flat_arrays, flat_columns, flat_widths, joined_lists, ragged_rows

FIELDS: dict[str, Any] = {
    "lists": RaggedList(RaggedList("int32")),
    "lists of lists": RaggedList(RaggedList(RaggedList("int16"))),
    "texts": RaggedList(Text()),
    "lists of texts": RaggedList(RaggedList(Text())),
    "lists of pairs": RaggedList(RaggedList(Tensor("float32", (2,)))),
}
LEAVES: dict[str, Any] = {
    "lists": st.binary(max_size=12).map(lambda data: data[: len(data) // 4 * 4]),
    "lists of lists": st.binary(max_size=8).map(lambda data: data[: len(data) // 2 * 2]),
    "texts": st.text("aä", max_size=4).map(str.encode),
    "lists of texts": st.text("b", max_size=3).map(str.encode),
    "lists of pairs": st.binary(max_size=24).map(lambda data: data[: len(data) // 8 * 8]),
}


def values_of(rows: Any) -> Any:
    """Return rows as lists of lists of bytes."""
    if not isinstance(rows, Ragged):
        return rows.tobytes()
    if isinstance(rows.values, Ragged):
        return [values_of(rows[row]) for row in range(len(rows))]
    width = rows.values.itemsize * int(np.prod(rows.values.shape[1:]))
    data = rows.values.tobytes()
    return [data[a * width : b * width] for a, b in pairwise(rows.offsets)]


@given(kind=st.sampled_from(sorted(FIELDS)), data=st.data())
def test_rows_of_all_depths_are_joined_from_their_columns_of_bytes(kind: str, data: st.DataObject) -> None:
    (column,) = columns_of(Schema({"x": FIELDS[kind]}))
    rows_of: Any = LEAVES[kind]
    item = column.item
    while item is not None and not item.is_ragged:
        rows_of, item = st.lists(rows_of, max_size=3), item.item
    rows = data.draw(st.lists(st.lists(rows_of, max_size=3), max_size=6))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    whole = pa.array([[], *rows, []], column.arrow_type)  # each chunk is a slice of it
    bounds = [0, *cuts, len(rows)]
    chunks = [whole.slice(1 + a, b - a) for a, b in pairwise(bounds)]
    flat = flat_arrays(pa.chunked_array(chunks, column.arrow_type), column)
    parts = flat_columns(column)
    assert list(flat) == [part.name for part in parts]
    joined = []
    for part in parts:
        pieces = flat[part.name].to_pylist()
        assert len(pieces) == len(rows)
        offsets = np.cumsum([0, *map(len, pieces)])
        joined.append(ragged_rows(np.frombuffer(b"".join(pieces), np.uint8), offsets, part))
    found = joined_lists(column, joined)
    assert len(found) == len(rows)
    assert values_of(found) == rows
    widths = flat_widths([column], {"x": 10.0}, pa.table({"x": pa.chunked_array(chunks, column.arrow_type)}))
    assert sum(widths.values()) == pytest.approx(10.0)
    assert list(widths) == list(flat)


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"isolation": "process"}, marks=pytest.mark.slow),
        {"drop_last": True},
        {"filters": [("id", "<", 900)]},
    ],
)
def test_windows_deliver_nested_lists_with_their_rows(tmp_path: Path, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    lists = [[rng.integers(0, 9, n).tolist() for n in rng.integers(0, 4, k)] for k in rng.integers(0, 4, 1000)]
    texts = [["ä" * n for n in rng.integers(0, 4, k)] for k in rng.integers(0, 3, 1000)]
    pq.write_table(pa.table({"id": range(1000), "lists": lists, "texts": texts}), tmp_path / "a.parquet", 130)
    with BatchedDataLoader(
        tmp_path,
        32,
        shuffle=True,
        window_rows=300,
        num_threads=2,
        output_options=OutputOptions(format="numpy"),
        **options,
    ) as loader:
        for _ in range(2):
            kept = list(loader)  # no batch is overwritten
            found = [
                (row, batch["lists"][i], batch["texts"][i])
                for batch in kept
                for i, row in enumerate(batch["id"].tolist())
            ]
            assert len({row for row, _, _ in found}) == len(found) >= 880
            for row, numbers, words in found:
                assert [part.tolist() for part in numbers] == lists[row]
                assert list(words) == texts[row]


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_no_name_of_a_column_is_taken_for_a_part_of_another(tmp_path: Path, isolation: Any) -> None:
    lists, others = [[[1], [2, 3]], [[4]]], {"x\0": [b"ab", b"c"], "x\x000": [[5], [6, 7]]}
    table = pa.table({"x": pa.array(lists, pa.list_(pa.list_(pa.int32()))), **others})
    pq.write_table(table, tmp_path / "a.parquet")
    numpy = OutputOptions(format="numpy")
    with BatchedDataLoader(tmp_path / "a.parquet", 2, isolation=isolation, output_options=numpy) as loader:
        (batch,) = loader
    assert values_of(batch["x"]) == [[np.array(part, np.int32).tobytes() for part in row] for row in lists]
    assert batch["x\0"].to_list() == others["x\0"]
    assert [row.tolist() for row in batch["x\x000"]] == others["x\x000"]
