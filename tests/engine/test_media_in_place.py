"""Media are decoded where their bytes were staged: in any order, from one block or several, and shared by rows."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, Encoded, Scalar, Schema, Text
from tests.support.transforms import doubled

ROWS, BATCH, WINDOW = 1200, 32, 250
SCHEMA = Schema(
    {
        "own": Encoded("int32", (None, None)),
        "id": Scalar("int64"),
        "shared": Encoded("int32", (None, None)),
        "gap": Encoded("int32", (2, 3), null="mask"),
        "text": Text(),
    }
)


def saved(array: npt.NDArray[Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def row(number: int) -> dict[str, Any]:
    """Return a row; the later half of the rows is longer."""
    height = 1 + number % 5 if number < ROWS // 2 else 400 + number % 600
    return {
        "own": np.full((height, 3), number, np.int32),
        "id": number,
        "shared": np.full((7, 2), number % 4, np.int32),
        "gap": None if number % 3 == 0 else np.full((2, 3), number, np.int32),
        "text": "t" * (number % 7),
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("media") / "rows.parquet"
    rows = [row(number) for number in range(ROWS)]
    stored = [{k: saved(v) if isinstance(v, np.ndarray) else v for k, v in found.items()} for found in rows]
    pq.write_table(pa.Table.from_pylist(stored), path, row_group_size=60, use_dictionary=["shared"])
    return path


def without_twice(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch without the column that the transform adds."""
    return {name: array for name, array in batch.items() if name != "twice"}


def check(batch: dict[str, Any]) -> list[int]:
    """Check each row of a batch; return their numbers."""
    assert list(batch) == ["own", "id", "shared", "gap", "gap_valid", "text"]
    for at, number in enumerate(batch["id"].tolist()):
        expected = row(number)
        for name in ("own", "shared"):
            np.testing.assert_array_equal(np.asarray(batch[name][at]), expected[name])
        assert bool(batch["gap_valid"][at]) == (expected["gap"] is not None)
        gap = np.zeros((2, 3)) if expected["gap"] is None else expected["gap"]
        np.testing.assert_array_equal(np.asarray(batch["gap"][at]), gap)
        assert batch["text"][at] == expected["text"]
    found: list[int] = batch["id"].tolist()
    return found


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"num_threads": 3}, marks=pytest.mark.slow), {"isolation": "process"}, {"transform_workers": 1}],
    ids=str,
)
def test_each_row_has_its_media(source: Path, options: dict[str, Any]) -> None:
    if "transform_workers" in options:
        options = {**options, "transform": doubled}
    expected: list[list[int]] = []
    with BatchedDataLoader(source, BATCH, schema=SCHEMA, shuffle=True, seed=3, window_rows=WINDOW, **options) as loader:
        for _ in range(2):
            expected.append([number for batch in loader for number in check(without_twice(batch))])
            assert sorted(expected[-1]) == list(range(ROWS))
        loader.seek(1, 11)  # within a window
        assert [number for batch in loader for number in check(without_twice(batch))] == expected[1][11 * BATCH :]


@pytest.mark.parametrize("shuffle", [pytest.param(True, marks=pytest.mark.slow), False])
def test_kept_batches_do_not_change(source: Path, shuffle: bool) -> None:
    # In their order, the later rows take a second block, because the first one has the size of average rows.
    with BatchedDataLoader(source, BATCH, schema=SCHEMA, shuffle=shuffle, seed=3, window_rows=WINDOW) as loader:
        kept = list(loader)
        again = list(loader)
    assert sorted(number for batch in kept for number in check(batch)) == list(range(ROWS))
    assert sorted(number for batch in again for number in check(batch)) == list(range(ROWS))
