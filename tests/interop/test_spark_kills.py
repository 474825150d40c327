"""Jobs on real Spark executors, each a JVM of its own: killed, doubled by speculation, or without their driver."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parquet_loader import Scalar, Schema
from parquet_loader.write.spark import write_spark
from tests.support.job_places import SMALL, Place

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

SCHEMA = Schema({"id": Scalar("int64")})
ROWS = 4000
PARTITIONS = 4
HOSTS = ("127.0.0.1", "127.0.0.2")
CHANGED = 1500  # the row amid the second partition at which something happens


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A standalone cluster of two machines, as Spark sees them: it runs no task a second time on the same one."""
    pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed")
    launch = os.path.join(os.path.dirname(pyspark.__file__), "bin", "spark-class")
    logs = tmp_path_factory.mktemp("cluster")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    url = f"spark://127.0.0.1:{port}"
    roles = [["master.Master", "-h", "127.0.0.1", "-p", port]]
    roles += [["worker.Worker", "-h", host, "-c", "2", "-m", "2g", "-d", str(logs), url] for host in HOSTS]
    environment = {**os.environ, "SPARK_DAEMON_MEMORY": "256m"}
    with contextlib.ExitStack() as stack:
        for number, role in enumerate(roles):
            command = [launch, f"org.apache.spark.deploy.{role[0]}", *role[1:], "--webui-port", "0"]
            log = stack.enter_context(open(logs / f"{number}.log", "wb"))
            process = stack.enter_context(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            stack.callback(process.kill)
        yield url


@pytest.fixture(scope="module")
def spark(master: str) -> Iterator[Any]:
    session = connect(master)
    yield session
    session.stop()


def connect(master: str) -> Any:
    """An executor of one core on each machine; speculation begins as soon as half of the tasks are done."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    return (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.cores.max", "2")
        .config("spark.executor.cores", "1")
        .config("spark.executor.memory", "512m")
        .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(sys.path))
        .config("spark.speculation", "true")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.speculation.interval", "50ms")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        .getOrCreate()
    )


def once(marker: Path) -> bool:
    """Whether the caller is the first of all attempts."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Disturbed:
    """Rows as they are; once row `CHANGED` has been passed on, and written, `disturb` is called."""

    def __init__(self, disturb: Callable[[], None]) -> None:
        self.disturb = disturb

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if CHANGED in batch.column(0).to_pylist():
                self.disturb()


class Kill:
    """SIGKILL, once: to the executor's JVM, or to a given process."""

    def __init__(self, marker: Path, pid: int | None = None) -> None:
        self.marker, self.pid = marker, pid

    def __call__(self) -> None:
        if once(self.marker):
            os.kill(self.pid or _executor(), signal.SIGKILL)


def nothing() -> None:
    """What disturbs nobody."""


def _executor() -> int:
    import psutil

    parents: dict[str, int] = {" ".join(process.cmdline()): process.pid for process in psutil.Process().parents()}
    return next(pid for command, pid in parents.items() if "CoarseGrainedExecutorBackend" in command)


class WaitForTheOther:
    """The first attempt stops amid its rows until a second has come as far; then both go on."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self) -> None:
        pipe = self.directory / "pipe"
        if once(self.directory / "first"):
            with open(pipe, "rb") as reader:
                reader.read()
        elif once(self.directory / "second"):
            with open(pipe, "wb"):
                pass


def write(spark: Any, place: Place, disturb: Callable[[], None], **options: Any) -> Any:
    df = spark.range(0, ROWS, 1, PARTITIONS).mapInArrow(Disturbed(disturb), "id long")
    return write_spark(df, place.path, SCHEMA, options=SMALL, **options)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "sets").mkdir()
    return Place("local", tmp_path / "sets")


def names(place: Place) -> list[str]:
    return sorted(path.name for path in place.root.iterdir())


@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
def test_a_killed_executor_costs_and_doubles_no_row(spark: Any, place: Place, tmp_path: Path, shuffle: bool) -> None:
    write(spark, place, Kill(tmp_path / "marker"), shuffle=shuffle, bucket_bytes=3000)
    assert (tmp_path / "marker").exists()
    assert place.ids() == list(range(ROWS))
    assert names(place) == ["set"]


def test_a_task_that_speculation_runs_twice_at_once_doubles_no_row(spark: Any, place: Place, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    write(spark, place, WaitForTheOther(tmp_path))
    assert (tmp_path / "second").exists()
    assert place.ids() == list(range(ROWS))
    assert names(place) == ["set"]


DRIVER = """
    import os, sys
    from pathlib import Path
    from parquet_loader.write.jobs import job
    from tests.interop.test_spark_kills import Kill, connect, nothing, write
    from tests.support.job_places import Place

    root, moment = Path(sys.argv[1]), sys.argv[2]
    kill = Kill(root / "marker", os.getpid())
    if moment == "before the commit":
        job.WriteJob.commit = lambda *_: kill()
    amid = kill if moment == "amid the tasks" else nothing
    write(connect(sys.argv[3]), Place("local", root / "sets"), amid, mode="append")
"""


@pytest.mark.parametrize("moment", ["amid the tasks", "before the commit"])
def test_a_killed_driver_leaves_nothing_and_the_next_job_no_leftovers(
    spark: Any, master: str, place: Place, tmp_path: Path, moment: str
) -> None:
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(DRIVER))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), moment, master],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert place.ids() == []
    assert place.leftovers() != []  # so that the next lines show something
    write(spark, place, nothing, mode="append")
    assert place.ids() == list(range(ROWS))
    assert place.leftovers() == []
    assert names(place) == ["set"]
