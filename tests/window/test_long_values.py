"""Long text and bytes, which stay where their pages are decompressed: every row is delivered with its own value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader import BatchedDataLoader, Bytes, OutputOptions, Scalar, Schema, Text
from parquet_loader.common import KERNELS
from parquet_loader.window import variable_width
from tests.support.examples import examples

ROWS = 600
NUMPY = OutputOptions(format="numpy")
pytestmark = pytest.mark.skipif(KERNELS is None, reason="without kernels, values are copied")


def table_of(seed: int, mean: int, nulls: float) -> pa.Table:
    """Return numbered rows of text and bytes of `mean` bytes, and of few long words."""
    rng = np.random.default_rng(seed)
    lengths = rng.choice([0, 1, mean // 2, mean, 3 * mean], ROWS, p=[0.1, 0.1, 0.3, 0.3, 0.2]).tolist()
    is_null = rng.random(ROWS) < nulls
    text = [f"{seed} {row} " + "ü" * (length // 2) for row, length in enumerate(lengths)]
    words = [f"{seed} {word} " + "w" * mean for word in range(5)]
    return pa.table(
        {
            "n": np.arange(seed * ROWS, (seed + 1) * ROWS),
            "t": pa.array(text, mask=is_null),
            "b": pa.array([rng.bytes(length) for length in lengths], mask=is_null),
            "w": [words[row] for row in rng.integers(0, 5, ROWS).tolist()],
        }
    )


def delivered(loader: BatchedDataLoader) -> dict[int, tuple[Any, ...]]:
    """Return the rows of an epoch by their number, each once."""
    found: dict[int, tuple[Any, ...]] = {}
    for batch in loader:
        columns = [batch[name].to_list() for name in "tbw"]
        for number, *values in zip(batch["n"].tolist(), *columns, strict=True):
            assert number not in found
            found[number] = tuple(values)
    return found


@settings(max_examples=examples(25), deadline=None)
@given(
    mean=st.sampled_from([300, 1500, 8000]),
    page_bytes=st.sampled_from([1000, 2**15, 2**20]),
    encoding=st.sampled_from(["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "dictionary"]),
    codec=st.sampled_from(["none", "snappy", "zstd"]),
    version=st.sampled_from(["1.0", "2.0"]),
    group_rows=st.sampled_from([19, 170, ROWS]),
    window_rows=st.sampled_from([128, 500, 10_000]),
    nulls=st.sampled_from([0.0, 0.2]),
    shuffle=st.booleans(),
)
def test_every_row_has_its_own_value(tmp_path_factory: pytest.TempPathFactory, **case: Any) -> None:
    folder = tmp_path_factory.mktemp("long")
    tables = [table_of(seed, case["mean"], case["nulls"]) for seed in range(2)]
    is_coded = case["encoding"] == "dictionary"
    for number, table in enumerate(tables):
        pq.write_table(
            table,
            folder / f"{number}.parquet",
            row_group_size=case["group_rows"],
            compression=case["codec"],
            data_page_version=case["version"],
            data_page_size=case["page_bytes"],
            write_batch_size=8,
            use_dictionary=["t", "b", "w"] if is_coded else False,
            dictionary_pagesize_limit=2**14,  # beyond that, pages are plain
            column_encoding=None if is_coded else dict.fromkeys("tbw", case["encoding"]),
        )
    schema = Schema({"n": Scalar("int64"), "t": Text(fill="none"), "b": Bytes(fill=b"none"), "w": Text()})
    loader = BatchedDataLoader(
        folder,
        50,
        schema=schema,
        shuffle=case["shuffle"],
        seed=1,
        window_rows=case["window_rows"],
        num_threads=2,
        output_options=NUMPY,
    )
    expected = {
        row["n"]: (row["t"] or "none", b"none" if row["b"] is None else row["b"], row["w"])
        for table in tables
        for row in table.to_pylist()
    }
    with loader:
        for _ in range(2):
            assert delivered(loader) == expected
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        loader.load_state_dict(loader.state_dict())
        rest = delivered(loader)
    assert len(rest) == len(expected) - 250
    assert all(values == expected[number] for number, values in rest.items())


def test_pages_that_a_window_reads_as_a_whole_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(0, 1500, 0.0).select(["n", "b"])
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, data_page_size=2**14, write_batch_size=8)
    copied, staged = [], []
    measured = variable_width.Views.measured

    def counted(views: variable_width.Views, lines: Any) -> list[list[int]]:
        found = measured(views, lines)
        staged.append(found[0][2])
        copied.append(found[0][4])
        return found

    monkeypatch.setattr(variable_width.Views, "measured", counted)
    for window_rows, most in ((ROWS, 0.0), (ROWS // 4, 0.3)):
        copied.clear()
        staged.clear()
        with BatchedDataLoader(tmp_path, 50, shuffle=True, window_rows=window_rows, output_options=NUMPY) as loader:
            assert sum(len(batch["n"]) for batch in loader) == ROWS
        # A window of a part of the row group copies the rows of the page that another window reads further.
        assert sum(staged) + sum(copied) >= ROWS
        assert sum(copied) <= most * sum(staged)


def test_values_beyond_the_expected_bytes_take_further_blocks(tmp_path: Path) -> None:
    """The bytes of a row are estimated from a sample, so one window can hold more of them than expected."""
    rng = np.random.default_rng(0)
    sizes = np.where(np.arange(4000) % 1000 < 900, 600, 9000)
    values = [rng.bytes(size) for size in sizes.tolist()]
    table = pa.table({"n": np.arange(4000), "b": values})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100, use_dictionary=False, compression="none")
    with BatchedDataLoader(tmp_path, 50, window_rows=200, num_threads=2, output_options=NUMPY) as loader:
        found = [value for batch in loader for value in batch["b"].to_list()]
    assert found == values
