"""Jobs that write to HDFS itself: one rename, exact rows or none; from Dask's workers and from Spark's executors."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from parquet_loader import BatchedDataLoader, OutputOptions, Scalar, Schema, WriteError
from parquet_loader.common.storage.filesystem import look_up
from parquet_loader.write.dask import write_dask
from parquet_loader.write.jobs import lease
from parquet_loader.write.jobs.job import WriteJob
from parquet_loader.write.jobs.task import write_partition
from tests.support import hdfs
from tests.support.job_places import SCHEMA, SMALL, rows

if (reason := hdfs.missing()) is not None:
    pytest.skip(reason, allow_module_level=True)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # Dask's own sockets at its end
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


cluster = hdfs.cluster


@pytest.fixture
def url(cluster: hdfs.Cluster) -> str:
    return f"{cluster.url}/tests/{uuid.uuid4().hex}/set"


def ids(url: str) -> list[int]:
    with BatchedDataLoader(url, 100, columns=["id"], output_options=OutputOptions(format="numpy")) as loader:
        return sorted(i for batch in loader for i in batch["id"].tolist())


def leftovers(url: str) -> list[str]:
    filesystem, path = pafs.FileSystem.from_uri(url)
    found = filesystem.get_file_info(pafs.FileSelector(os.path.dirname(path), recursive=True))
    return sorted(info.path for info in found if info.base_name.startswith((".", "_")))


def written(url: str, first: int, stop: int, mode: Any = "error") -> None:
    with WriteJob(url, SCHEMA, mode=mode, options=SMALL) as job:
        middle = (first + stop) // 2
        reports = [write_partition(job.spec, 1, rows(middle, stop)), write_partition(job.spec, 0, rows(first, middle))]
        job.commit([file for report in reports for file in report])


def path_of(cluster: hdfs.Cluster, url: str) -> str:
    return url.removeprefix(cluster.url)


@pytest.mark.parametrize("mode", ["error", "append", "overwrite"])
def test_the_files_of_a_job_appear_by_one_rename(cluster: hdfs.Cluster, url: str, mode: Any) -> None:
    old = [] if mode == "error" else list(range(1000, 1010))
    if old:
        written(url, 1000, 1010)
    before = len(cluster.renames_to(path_of(cluster, url)))
    written(url, 0, 300, mode)
    renames = cluster.renames_to(path_of(cluster, url))[before:]
    assert len(renames) == 1
    assert "/.set.job-" in renames[0] or "/.job-" in renames[0]
    assert ids(url) == list(range(300)) + (old if mode == "append" else [])
    assert leftovers(url) == []


def test_a_job_into_an_empty_directory_takes_its_place_and_the_second_of_two_publishes_nothing(url: str) -> None:
    filesystem, path = pafs.FileSystem.from_uri(url)
    filesystem.create_dir(path)
    with WriteJob(url, SCHEMA, options=SMALL) as one, WriteJob(url, SCHEMA, options=SMALL) as two:
        one.commit(write_partition(one.spec, 0, rows(0, 10)))
        with pytest.raises(WriteError, match="others wrote"):
            two.commit(write_partition(two.spec, 0, rows(10, 20)))
    assert ids(url) == list(range(10))
    assert leftovers(url) == []
    with pytest.raises(WriteError, match="not empty"):
        WriteJob(url, SCHEMA)


def test_a_job_that_writes_amid_anothers_commit_loses_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two find an empty directory; one publishes between the other's look and its rename."""
    from parquet_loader.write.jobs import commit

    filesystem, path = pafs.FileSystem.from_uri(url)
    filesystem.create_dir(path)
    looked = look_up
    with (
        WriteJob(url, SCHEMA, mode="append", options=SMALL) as one,
        WriteJob(url, SCHEMA, mode="append", options=SMALL) as two,
    ):
        reports = write_partition(one.spec, 0, rows(0, 10)), write_partition(two.spec, 0, rows(10, 20))

        def slow(fs: pafs.FileSystem, asked: str) -> pafs.FileInfo:
            found = looked(fs, asked)
            if asked == path:
                monkeypatch.setattr(commit, "look_up", looked)
                two.commit(reports[1])
            return found

        monkeypatch.setattr(commit, "look_up", slow)
        one.commit(reports[0])
    assert ids(url) == list(range(20))
    assert leftovers(url) == []


@contextlib.contextmanager
def expired_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let leases expire without waiting: pyarrow cannot set the time of a file on HDFS."""
    has_expired = lease._has_expired
    with monkeypatch.context() as patch:
        patch.setattr(lease, "_has_expired", lambda filesystem, path, _: has_expired(filesystem, path, -1.0))
        yield


KILLED = """
    import os, signal, sys
    from parquet_loader.write.jobs import commit
    from parquet_loader.write.jobs import job as jobs
    from parquet_loader.write.jobs.job import WriteJob
    from parquet_loader.write.jobs.task import write_partition
    from tests.support.job_places import SCHEMA, SMALL, rows

    url, moment, mode = sys.argv[1:]

    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    with WriteJob(url, SCHEMA, mode=mode, options=SMALL) as job:
        reports = [f for n in range(3) for f in write_partition(job.spec, n, rows(n * 100, n * 100 + 100))]
        if moment == "before the commit":
            die()
        elif moment == "amid renames":
            move, calls = jobs.move_file, []
            jobs.move_file = lambda *arguments: die() if len(calls) == 2 else (move(*arguments), calls.append(1))
        elif moment == "after the rename":
            jobs.JobDirectory.remove_files = job._directory.remove = die
            commit._remove_all = die
        job.commit(reports)
        die()
"""


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("moment", ["before the commit", "amid renames", "after the rename"])
def test_a_killed_driver_leaves_exact_rows_or_none_and_the_next_job_no_leftovers(
    url: str, monkeypatch: pytest.MonkeyPatch, moment: str, mode: str
) -> None:
    written(url, 1000, 1010)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(KILLED), url, moment, mode]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    old, new = list(range(1000, 1010)), list(range(300))
    with expired_at_once(monkeypatch):
        written(url, 2000, 2010, "append")
    after = new if mode == "overwrite" else new + old
    assert ids(url) == (after if moment == "after the rename" else old) + list(range(2000, 2010))
    assert leftovers(url) == []


def test_dask_workers_write_to_hdfs(cluster: hdfs.Cluster, url: str) -> None:
    distributed = pytest.importorskip("distributed", reason="dask's distributed scheduler is not installed")
    import dask

    def parts(first: int) -> list[Any]:
        return [dask.delayed(rows)(n, n + 500) for n in range(first, first + 2000, 500)]

    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as local,
        distributed.Client(local) as client,
    ):
        assert write_dask(parts(0), url, SCHEMA, scheduler=client, options=SMALL).rows == 2000
        assert len(cluster.renames_to(path_of(cluster, url))) == 1
        with pytest.raises(WriteError, match="not empty"):
            write_dask(parts(0), url, SCHEMA, scheduler=client)
        write_dask(parts(2000), url, SCHEMA, mode="append", shuffle=True, seed=1, scheduler=client, options=SMALL)
        assert ids(url) == list(range(4000))
        write_dask(parts(4000), url, SCHEMA, mode="overwrite", scheduler=client)
        assert ids(url) == list(range(4000, 6000))
    assert leftovers(url) == []


NUMBERS = Schema({"id": Scalar("int64")})


class Hurt:
    """Rows as they are; the first attempt that has come to row 1500 kills a process: its own worker, or another."""

    def __init__(self, marker: Path, pid: int | None = None) -> None:
        self.marker, self.pid = marker, pid

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if 1500 in batch.column(0).to_pylist() and not self.marker.exists():
                self.marker.touch()
                os.kill(self.pid or os.getpid(), signal.SIGKILL)


def connect() -> Any:
    """A Spark of two executors, each a JVM of its own, whose workers find Hadoop's client."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(sys.path))
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    )
    for name, value in hdfs.client_environment().items():
        session = session.config(f"spark.executorEnv.{name}", value)
    return session.getOrCreate()


@pytest.mark.spark
def test_spark_executors_write_to_hdfs(cluster: hdfs.Cluster, url: str, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from parquet_loader.write.spark import write_spark

    spark = connect()
    try:
        frame = spark.range(0, 4000, 1, 4)
        hurt = frame.mapInArrow(Hurt(tmp_path / "hurt"), frame.schema)
        assert write_spark(hurt, url, NUMBERS, options=SMALL).rows == 4000
        assert (tmp_path / "hurt").exists()
        assert len(cluster.renames_to(path_of(cluster, url))) == 1
        assert ids(url) == list(range(4000))
        with pytest.raises(WriteError, match="not empty"):
            write_spark(frame, url, NUMBERS)
        more = spark.range(4000, 6000, 1, 2)
        write_spark(more, url, NUMBERS, mode="append", shuffle=True, seed=1, options=SMALL)
        assert ids(url) == list(range(6000))
        read = spark.read.option("recursiveFileLookup", True).parquet(url)
        assert sorted(row.id for row in read.collect()) == list(range(6000))
        write_spark(more, url, NUMBERS, mode="overwrite")
        assert ids(url) == list(range(4000, 6000))
        assert leftovers(url) == []
        spark.range(0, 500).write.parquet(f"{url}-of-spark")  # by Spark's own client
        assert ids(f"{url}-of-spark") == list(range(500))
    finally:
        spark.stop()


DRIVER = """
    import os, sys
    from pathlib import Path
    from tests.interop.test_hdfs_jobs import Hurt, NUMBERS, SMALL, connect
    from parquet_loader.write.spark import write_spark

    url, marker = sys.argv[1:]
    hurt = Hurt(Path(marker), os.getpid())
    frame = connect().range(0, 4000, 1, 4)
    write_spark(frame.mapInArrow(hurt, frame.schema), url, NUMBERS, mode="append", options=SMALL)
"""


@pytest.mark.spark
def test_a_driver_of_spark_that_is_killed_amid_the_tasks_leaves_nothing_that_is_seen(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    with WriteJob(url, NUMBERS, options=SMALL) as job:
        job.commit(write_partition(job.spec, 0, {"id": range(10)}))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(DRIVER), url, str(tmp_path / "marker")]
    with (
        open(tmp_path / "log", "wb") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True) as driver,
    ):
        try:
            ended = driver.wait(600)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)  # with its machine: its JVM and the executors below it
    assert ended == -signal.SIGKILL, (tmp_path / "log").read_text()
    assert (tmp_path / "marker").exists()
    assert ids(url) == list(range(10))
    assert leftovers(url) != []  # so that the next lines show something
    with expired_at_once(monkeypatch), WriteJob(url, NUMBERS, mode="append", options=SMALL) as job:
        job.commit(write_partition(job.spec, 0, {"id": range(10, 20)}))
    assert ids(url) == list(range(20))
