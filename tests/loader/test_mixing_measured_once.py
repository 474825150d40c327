"""Mixing is measured in the first complete epoch of data that does not change, and reported in later ones."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, LoaderStats, OutputOptions


def mixing_of(stats: LoaderStats) -> Any:
    return stats.to_dict()["shuffling"]["measured"]


@pytest.fixture
def loader(tmp_path: Path) -> BatchedDataLoader:
    rows = np.arange(40_000)
    table = pa.table({"label": rows // 10_000, "x": np.random.default_rng(0).random(len(rows))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1000)
    return BatchedDataLoader(
        tmp_path, 100, shuffle=True, window_rows=4000, output_options=OutputOptions(format="numpy")
    )


def test_later_epochs_report_what_the_first_complete_one_measured(loader: BatchedDataLoader) -> None:
    with loader:
        list(loader)
        first = mixing_of(loader.stats())
        assert first is not None
        assert first["windows"] == 10
        list(loader)
        assert mixing_of(loader.stats()) == first


def test_an_epoch_that_ended_early_is_measured_again(loader: BatchedDataLoader) -> None:
    with loader:
        next(iter(loader))
        list(loader)
        assert mixing_of(loader.stats())["windows"] == 10


def test_a_window_is_released_when_its_epoch_ends_early(loader: BatchedDataLoader) -> None:
    with loader:
        batch = next(iter(loader))
        seen = [weakref.ref(array.base) for array in batch.values()]
        del batch
        gc.collect()
        assert [window() for window in seen] == [None] * len(seen)


def test_signalling_nans_are_measured_without_a_warning(tmp_path: Path) -> None:
    bits = np.full(100, 0x7F800001, np.uint32)
    pq.write_table(pa.table({"x": bits.view(np.float32)}), tmp_path / "a.parquet")
    with BatchedDataLoader(tmp_path, 100, output_options=OutputOptions(format="numpy")) as loader:
        (batch,) = loader  # pytest makes warnings errors
    assert batch["x"].view(np.uint32).tolist() == bits.tolist()
