"""Features that the oldest pyarrow and numpy lack are replaced, or raise; see `make test-oldest`."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import parquet_loader as pl
from parquet_loader.common import (
    fill_null,
    inferred_array,
    reads_null_fixed_size_lists,
    referenced_bytes,
    scalar,
)
from parquet_loader.common.arrow_features import words

HALVES = pa.array([np.float16(1.5), None, np.float16(-0.0), np.float16(np.nan)], pa.float16())


@pytest.mark.parametrize("fill", [0, 2.5, -0.0, float("inf")])
def test_nulls_of_halves_are_filled_and_no_other_bit_changes(fill: float) -> None:
    expected = np.array([1.5, fill, -0.0, np.nan], np.float16)
    for array in (HALVES, pa.chunked_array([HALVES[:2], HALVES[2:]]), pa.concat_arrays([HALVES, HALVES])[4:]):
        filled = fill_null(array, fill)
        assert filled.type == pa.float16()
        assert np.asarray(filled).view(np.int16).tolist() == expected.view(np.int16).tolist()


def test_scalars_of_halves_are_made_of_python_numbers() -> None:
    assert scalar(1.5, pa.float16()).as_py() == 1.5
    assert not scalar(None, pa.float16()).is_valid
    assert scalar(1.5).type == pa.float64()


def test_uuids_become_their_16_bytes_and_other_mixtures_are_refused() -> None:
    keys = [uuid.UUID(int=1), None, uuid.UUID(int=2)]
    array = inferred_array(keys)
    stored = array.storage if isinstance(array, pa.ExtensionArray) else array
    assert stored.to_pylist() == [None if key is None else key.bytes for key in keys]
    with pytest.raises((pa.ArrowException, TypeError)):
        inferred_array([uuid.UUID(int=1), 2.5])


@pytest.mark.parametrize("type_", [pa.string_view(), pa.list_view(pa.int64()), pa.int64()])
def test_arrays_of_any_type_have_a_size(type_: pa.DataType) -> None:
    value = {pa.string_view(): "a text of more than twelve bytes", pa.int64(): 1}.get(type_, [1, 2])
    assert referenced_bytes(pa.array([value] * 10, type_)) >= 80
    assert referenced_bytes(pa.table({"x": pa.array([value] * 10, type_)})) >= 80


def test_words_beyond_64_bits_are_refused() -> None:
    assert words(0, 2**64 - 1).tolist() == [0, 2**64 - 1]
    for number in (-1, 2**64):
        with pytest.raises(OverflowError, match=str(number)):
            words(number)


def test_nulls_in_fixed_size_lists_are_read_or_named_but_never_skipped(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    rows = [[1.0, 2.0], None, [5.0, 6.0], None]
    frame = polars.DataFrame({"x": polars.Series(rows, dtype=polars.Array(polars.Float32, 2))})
    frame.write_parquet(tmp_path / "a.parquet")
    schema = pl.Schema({"x": pl.Tensor("float32", (2,), null="mask")})
    output = pl.OutputOptions(format="numpy")
    with pl.BatchedDataLoader(str(tmp_path), 4, schema=schema, on_error="skip", output_options=output) as loader:
        if not reads_null_fixed_size_lists():
            with pytest.raises(pl.UnsupportedError, match="install pyarrow 26 or newer"):
                next(iter(loader))
            return
        (batch,) = loader
    assert batch["x"][[0, 2]].tolist() == [[1.0, 2.0], [5.0, 6.0]]
