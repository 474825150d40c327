"""Jobs whose target is a store: rows of successful tasks once each, nothing before the end, the store's limit kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    DataError,
    SampleStore,
    Scalar,
    Schema,
    SchemaError,
    WriteOptions,
)
from parquet_loader.store import StoreOptions
from parquet_loader.write.dask import write_dask
from parquet_loader.write.jobs.store_job import StoreJob
from parquet_loader.write.jobs.task import write_partition
from tests.support.broken_rows import Broken, KillOnce
from tests.support.field_kinds import KINDS, kind_rows
from tests.support.job_places import SCHEMA, rows

pytest.importorskip("dask", reason="dask is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning")


@pytest.fixture
def store(tmp_path: Path) -> SampleStore:
    return SampleStore(tmp_path / "samples", schema=SCHEMA)


def parts(count: int) -> list[Any]:
    import dask

    return [dask.delayed(rows)(n * 100, n * 100 + 100) for n in range(count)]


def ids(store: SampleStore) -> list[int]:
    return [i for file in store.files() for i in pq.ParquetFile(file.path).read()["id"].to_pylist()]


def content(store: SampleStore) -> pa.Table:
    return pa.concat_tables([pq.ParquetFile(file.path).read().replace_schema_metadata() for file in store.files()])


def beside(store: SampleStore) -> list[str]:
    """What lies beside the store, and within it under names of jobs."""
    home = Path(store.path)
    return [p.name for p in home.parent.iterdir() if p != home] + [p.name for p in home.glob(".job*")]


def test_rows_are_added_in_order_and_the_files_know_their_job(store: SampleStore) -> None:
    with store.writer() as writer:
        writer.write(rows(1000, 1010))
    summary = write_dask(parts(5), store, scheduler="synchronous")
    assert ids(store) == [*range(1000, 1010), *range(500)]
    assert summary.rows == 500
    assert summary.bytes == sum(os.path.getsize(file) for file in summary.files)
    assert [file.path for file in store.files() if "job" in file.metadata] == list(summary.files)
    with BatchedDataLoader(store, 51) as loader:
        assert sum(len(batch["id"]) for batch in loader) == 510
    assert beside(store) == []


def test_every_kind_of_field_arrives_as_a_writer_of_the_store_stores_it(tmp_path: Path) -> None:
    import dask

    one = SampleStore(tmp_path / "one", schema=KINDS)
    with one.writer() as writer:
        writer.write(kind_rows(120))
    two = SampleStore(tmp_path / "two", schema=KINDS)
    write_dask([dask.delayed(kind_rows(120)[n : n + 40]) for n in (0, 40, 80)], two, scheduler="synchronous")
    assert content(two).equals(content(one))


def test_a_shuffled_job_adds_every_row_once(store: SampleStore) -> None:
    write_dask(parts(5), store, shuffle=True, seed=3, bucket_bytes=3000, scheduler="synchronous")
    assert sorted(ids(store)) == list(range(500)) != ids(store)


def test_what_no_report_names_does_not_go_in(store: SampleStore) -> None:
    with StoreJob(store, SCHEMA) as job:
        write_partition(job.spec, 0, rows(0, 50))  # an attempt that nobody heard of
        second = write_partition(job.spec, 0, rows(0, 50))
        with pytest.raises(DataError):
            write_partition(job.spec, 1, iter([rows(50, 90), {"id": [None], "vector": np.zeros((1, 4))}]))
        again = write_partition(job.spec, 1, rows(50, 90))
        assert ids(store) == []  # nothing before the end
        job.commit([*second, *again, *again])
    assert ids(store) == list(range(90))
    assert beside(store) == []


def test_a_job_that_fails_adds_nothing(store: SampleStore) -> None:
    import dask

    bad = dask.delayed({"id": [None], "vector": np.zeros((1, 4))})
    with pytest.raises(DataError, match="partition 2: field 'id', row 0"):
        write_dask([*parts(2), bad], store, scheduler="synchronous")
    assert ids(store) == []
    assert beside(store) == []


def test_a_store_evicts_what_is_old_for_a_job_and_keeps_its_limit(tmp_path: Path) -> None:
    options = StoreOptions(file_bytes="4KiB", row_group_bytes="2KiB")
    store = SampleStore(tmp_path / "samples", schema=SCHEMA, max_bytes="64KiB", options=options)
    with store.writer() as writer:
        writer.write(rows(10_000, 12_000))
    write_dask(parts(10), store, scheduler="synchronous")
    assert ids(store)[-1000:] == list(range(1000))
    assert sum(file.size_bytes for file in store.files()) <= 64 * 1024


def test_what_a_store_has_no_use_for_is_refused(store: SampleStore) -> None:
    for arguments in ({"mode": "overwrite"}, {"options": WriteOptions()}, {"filesystem": object()}):
        with pytest.raises(ConfigurationError, match="for directories"):
            write_dask(parts(1), store, scheduler="synchronous", **arguments)
    other = Schema({"id": Scalar("int32"), "vector": SCHEMA["vector"]})
    with pytest.raises(SchemaError, match="differs from the store's in 'id'"):
        write_dask(parts(1), store, other, scheduler="synchronous")
    turned = SCHEMA.select(["vector", "id"])
    with pytest.raises(SchemaError, match="order of its columns"):
        write_dask(parts(1), store, turned, scheduler="synchronous")
    assert ids(store) == []


KILLED = """
    import os, signal, sys
    from parquet_loader import SampleStore
    from parquet_loader.store import atomic_publish as together
    from parquet_loader.write.jobs.store_job import StoreJob
    from parquet_loader.write.jobs.task import write_partition
    from tests.support.job_places import SCHEMA, rows

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    with StoreJob(SampleStore(sys.argv[1]), SCHEMA) as job:
        reports = [f for n in range(3) for f in write_partition(job.spec, n, rows(n * 100, n * 100 + 100))]
        if sys.argv[2] == "amid":
            together.finish_commit = die
            job.commit(reports)
        die()
"""


@pytest.mark.parametrize("moment", ["before", "amid"])
def test_a_killed_driver_adds_all_or_nothing_and_the_next_job_cleans_up(store: SampleStore, moment: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(KILLED), store.path, moment]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert ids(store) == []
    assert beside(store) != []
    write_dask(parts(2), store, scheduler="synchronous")
    before = [] if moment == "before" else list(range(300))  # the record was there: whoever comes next finishes it
    assert ids(store) == [*before, *range(200)]
    assert beside(store) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_tasks_of_a_cluster_that_are_tried_again_double_nothing(store: SampleStore, tmp_path: Path) -> None:
    import dask

    distributed = pytest.importorskip("distributed", reason="dask's distributed scheduler is not installed")
    unlucky = dask.delayed(Broken)(0, 100, KillOnce(tmp_path / "marker"))
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        distributed.Client(cluster),
    ):
        write_dask([unlucky, *parts(5)[1:]], store)
    assert (tmp_path / "marker").exists()
    assert ids(store) == list(range(500))
    assert beside(store) == ["marker"]


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_spark_adds_to_a_store_through_tasks_that_die(tmp_path: Path) -> None:
    from pyspark.sql import SparkSession

    from parquet_loader.write.spark import write_spark

    marker = str(tmp_path / "marker")

    def dies_once(batches: Iterator[Any]) -> Iterator[Any]:
        import os

        for batch in batches:
            yield batch
            if 30 in batch.column(0).to_pylist() and not os.path.exists(marker):
                open(marker, "w").close()
                os._exit(1)

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2,3]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(sys.path))
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
        .getOrCreate()
    )
    store = SampleStore(tmp_path / "samples", schema=Schema({"id": Scalar("int64")}))
    try:
        summary = write_spark(spark.range(0, 100, 1, 2).mapInArrow(dies_once, "id long"), store)
    finally:
        spark.stop()
    assert os.path.exists(marker)
    assert summary.rows == 100
    assert sorted(ids(store)) == list(range(100))
    assert beside(store) == ["marker"]
