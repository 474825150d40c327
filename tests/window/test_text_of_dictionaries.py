"""Text that many rows have in common: every row is delivered with its own value, however pages hold it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader import BatchedDataLoader, OutputOptions, Schema, Text
from tests.support.examples import examples

ROWS = 2000
NUMPY = OutputOptions(format="numpy")
ISOLATIONS = ("thread", "process")


def table_of(seed: int, distinct: tuple[int, ...], nulls: float) -> pa.Table:
    """Return numbered rows, and columns of words of which so many are distinct, some empty, some long."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {"n": np.arange(seed * ROWS, (seed + 1) * ROWS)}
    for i, count in enumerate(distinct):
        lengths = rng.choice([0, 1, 9, 33, 120], count)
        vocabulary = [f"{seed}.{k}.ü" * (n // 6) + "x" * (n % 6) for k, n in enumerate(lengths.tolist())]
        numbers = np.where(rng.random(ROWS) < nulls, -1, rng.integers(0, count, ROWS)).tolist()
        found = [None if number < 0 else vocabulary[number] for number in numbers]
        columns[f"t{i}"] = pa.array(found, pa.string())
    return pa.table(columns)


@settings(max_examples=examples(12), deadline=None)
@given(
    dictionary_bytes=st.sampled_from([300, 20_000, 2**20]),  # beyond that a column goes on with plain pages
    page_bytes=st.sampled_from([200, 2**20]),
    group_rows=st.sampled_from([190, 3000]),
    window_rows=st.sampled_from([128, 1111, 10_000]),
    nulls=st.sampled_from([0.0, 0.2]),
    shuffle=st.booleans(),
)
def test_every_row_has_its_own_text(
    tmp_path_factory: pytest.TempPathFactory,
    dictionary_bytes: int,
    page_bytes: int,
    group_rows: int,
    window_rows: int,
    nulls: float,
    shuffle: bool,
) -> None:
    folder = tmp_path_factory.mktemp("texts")
    tables = [table_of(seed, (1, 7, 60, 1400), nulls) for seed in range(2)]
    for number, table in enumerate(tables):
        pq.write_table(
            table,
            folder / f"{number}.parquet",
            row_group_size=group_rows,
            dictionary_pagesize_limit=dictionary_bytes,
            data_page_size=page_bytes,
            write_batch_size=64,
        )
    expected = pa.concat_tables(tables)
    names = [name for name in expected.column_names if name != "n"]
    texts = {name: [b"-" if v is None else v.encode() for v in expected[name].to_pylist()] for name in names}
    schema = Schema({name: Text(fill="-") for name in names}, extra="infer")
    numbers: list[int] = []
    with BatchedDataLoader(
        folder,
        64,
        schema=schema,
        shuffle=shuffle,
        window_rows=window_rows,
        output_options=NUMPY,
    ) as loader:
        for _ in range(2):
            numbers.clear()
            for batch in loader:
                numbers += batch["n"].tolist()
                for name in names:
                    values, offsets = batch[name].values.tobytes(), batch[name].offsets.tolist()
                    found = [values[a:b] for a, b in pairwise(offsets)]
                    assert found == [texts[name][n] for n in batch["n"].tolist()]
            assert sorted(numbers) == list(range(2 * ROWS))
            assert shuffle or numbers == sorted(numbers)


@pytest.mark.parametrize("shuffle", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_child_process_delivers_the_same_text(tmp_path: Path, shuffle: bool) -> None:
    pq.write_table(table_of(0, (1, 7, 60, 1400), 0.0), tmp_path / "0.parquet", row_group_size=300)
    found: list[list[bytes]] = []
    for isolation in ISOLATIONS:
        options: dict[str, Any] = {"isolation": isolation, "output_options": NUMPY}
        with BatchedDataLoader(tmp_path, 64, shuffle=shuffle, window_rows=500, **options) as loader:
            found.append([])
            for batch in loader:
                texts = [array for name, array in batch.items() if name != "n"]
                arrays = [batch["n"], *(text.values for text in texts), *(text.offsets for text in texts)]
                found[-1] += [array.tobytes() for array in arrays]
    assert found[0] == found[1]
    assert len(found[0]) == 32 * 9
