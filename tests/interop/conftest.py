"""Schedulers of others on this machine: Dask's and Spark's."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A client of a Dask cluster of two worker processes."""
    distributed = pytest.importorskip("distributed", reason="dask's distributed scheduler is not installed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """A session of Spark's on two cores of this machine, whose Python workers find the tests."""
    sql = pytest.importorskip("pyspark.sql", reason="pyspark is not installed")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        sql.SparkSession.builder.master("local[2,3]")  # a task may fail twice
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(sys.path))
        .getOrCreate()
    )
    yield session
    session.stop()
