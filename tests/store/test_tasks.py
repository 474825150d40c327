"""Spark reads a store as it is; tasks of Spark and Dask write to one with nothing but its path."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parquet_loader import SampleStore, Schema, Tensor
from tests.store.samples import ONE, SCHEMA, numbers, rows


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    sql = pytest.importorskip("pyspark.sql", reason="pyspark is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # so that executors find the tests
        session = (
            sql.SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .getOrCreate()
        )
        yield session
        session.stop()


def write_part(path: str, number: int) -> int:
    """What a task does: the store's path is all it knows."""
    with SampleStore(path).writer() as writer:
        writer.write(rows(1000 * number, 50))
    return writer.done.rows


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets that pyspark 3.5 leaves
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("storage", ["raw", "list"])
def test_spark_reads_the_store_as_it_is(tmp_path: Path, spark: Any, storage: Any) -> None:
    schema = Schema({**SCHEMA, "x": Tensor("uint8", (256,), storage=storage)})
    store = SampleStore(tmp_path / "store", schema=schema, options=ONE)
    with store.writer() as writer:
        writer.write(rows(0, 200))
        writer.flush()
        writer.write(rows(200, 20))  # under way, and so in .store, which Spark skips
        found = spark.read.parquet(store.path).orderBy("i").collect()
    expected = rows(0, 200)
    assert [row["i"] for row in found] == list(range(200))
    for row, x in zip(found, expected["x"], strict=True):
        assert np.array(list(row["x"]), np.uint8).tolist() == x.tolist()


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets that pyspark 3.5 leaves
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_executors_write_with_nothing_but_the_path(tmp_path: Path, spark: Any) -> None:
    store = SampleStore(tmp_path / "store", schema=SCHEMA, options=ONE)
    path = store.path
    written = spark.sparkContext.parallelize(range(4), 4).map(lambda number: write_part(path, number)).collect()
    assert written == [50] * 4
    assert sorted(numbers(path)) == [1000 * n + i for n in range(4) for i in range(50)]
    assert store.status().writers == 0


@pytest.mark.slow
def test_dask_workers_write_with_nothing_but_the_path_or_with_the_store(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed")
    store = SampleStore(tmp_path / "store", schema=SCHEMA, options=ONE)
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",
            local_directory=str(tmp_path),
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert client.gather(client.map(write_part, [store.path] * 3, range(3))) == [50] * 3
        assert client.submit(write_part_into, store, 3).result() == 50  # a store travels, and opens there
    assert sorted(numbers(store.path)) == [1000 * n + i for n in range(4) for i in range(50)]


def write_part_into(store: SampleStore, number: int) -> int:
    with store.writer() as writer:
        writer.write(rows(1000 * number, 50))
    return writer.done.rows
