"""Jobs on a real Dask cluster whose workers, whose cluster, or whose driver is killed amid them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parquet_loader.write.dask import write_dask
from tests.support.broken_rows import Broken, KillOnce
from tests.support.job_places import SCHEMA, SMALL, Place, rows

distributed = pytest.importorskip("distributed", reason="dask's distributed scheduler is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # Dask's own sockets at its end
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def nothing() -> None:
    """What disturbs nobody."""


class Stay:
    """Say that a task is amid its rows, and wait for what never comes."""

    def __call__(self) -> None:
        distributed.Event("amid").set()
        distributed.Event("never").wait()


def partitions(count: int, disturb: Callable[[], None]) -> list[Any]:
    """Delayed batches of 100 rows; the second one is disturbed."""
    import dask

    return [
        dask.delayed(Broken)(n * 100, n * 100 + 100, disturb) if n == 1 else dask.delayed(rows)(n * 100, n * 100 + 100)
        for n in range(count)
    ]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
def test_killed_workers_cost_and_double_no_row(client: Any, tmp_path: Path, shuffle: bool) -> None:
    place = Place("local", tmp_path / "sets")
    place.root.mkdir()
    before = set(client.run(os.getpid).values())
    write_dask(
        partitions(6, KillOnce(tmp_path / "marker")),
        place.path,
        SCHEMA,
        options=SMALL,
        shuffle=shuffle,
        bucket_bytes=3000,
    )
    client.wait_for_workers(2)
    assert set(client.run(os.getpid).values()) != before  # the nanny has started another
    assert place.ids() == list(range(600))
    assert names(place.root) == ["set"]


def test_a_worker_that_dies_with_finished_reports_costs_and_doubles_no_row(client: Any, tmp_path: Path) -> None:
    """The victim is the other worker, which has written partitions already and holds their reports."""
    place = Place("local", tmp_path / "sets")
    place.root.mkdir()
    client.wait_for_workers(2)
    victim = min(client.run(os.getpid).values())
    write_dask(partitions(8, KillOnce(tmp_path / "marker", victim)), place.path, SCHEMA, options=SMALL)
    assert (tmp_path / "marker").exists()
    assert place.ids() == list(range(800))
    assert names(place.root) == ["set"]


def test_a_cluster_that_restarts_amid_a_job_publishes_nothing(client: Any, tmp_path: Path) -> None:
    place = Place("local", tmp_path / "sets")
    place.root.mkdir()
    for event in ("amid", "never"):
        distributed.Event(event).clear()
    failures: list[BaseException] = []

    def drive() -> None:
        try:
            write_dask(partitions(4, Stay()), place.path, SCHEMA, options=SMALL, scheduler=client)
        except BaseException as error:
            failures.append(error)

    driver = threading.Thread(target=drive, name="driver")
    driver.start()
    assert distributed.Event("amid").wait(timeout=60)
    client.restart()
    driver.join(60)
    assert [type(error).__name__ for error in failures] in (["CancelledError"], ["FutureCancelledError"])
    assert names(place.root) == []
    write_dask(partitions(4, KillOnce(tmp_path / "marker")), place.path, SCHEMA, options=SMALL)
    assert place.ids() == list(range(400))
    assert names(place.root) == ["set"]


DRIVER = """
    import os, sys
    from pathlib import Path
    from distributed import Client, LocalCluster
    from parquet_loader.write.jobs import job
    from parquet_loader.write.dask import write_dask
    from tests.interop.test_dask_kills import KillOnce, nothing, partitions
    from tests.support.job_places import SCHEMA, SMALL

    root, moment = Path(sys.argv[1]), sys.argv[2]
    kill = KillOnce(root / "marker", os.getpid())

    if __name__ == "__main__":
        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
            amid = kill if moment == "amid the tasks" else nothing
            if moment == "before the commit":
                job.WriteJob.commit = lambda *_: kill()
            write_dask(partitions(6, amid), root / "sets" / "set", SCHEMA, options=SMALL, mode="append")
"""


@pytest.mark.parametrize("moment", ["amid the tasks", "before the commit"])
def test_a_killed_driver_leaves_what_was_there_and_the_next_job_no_leftovers(tmp_path: Path, moment: str) -> None:
    place = Place("local", tmp_path / "sets")
    place.root.mkdir()
    place.write(1000, 1010)
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(DRIVER))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), moment],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert place.ids() == list(range(1000, 1010))
    assert place.leftovers() != []  # so that the next line shows something
    write_dask(partitions(2, nothing), place.path, SCHEMA, options=SMALL, mode="append", scheduler="synchronous")
    assert place.ids() == [*range(200), *range(1000, 1010)]
    assert place.leftovers() == []
    assert names(place.root) == ["set"]
