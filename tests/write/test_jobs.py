"""The protocol that jobs share: exact rows or none, whatever happens to tasks and drivers."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader import (
    Bytes,
    ConfigurationError,
    DataError,
    Image,
    MissingPackageError,
    RaggedList,
    Scalar,
    Schema,
    SchemaError,
    Tensor,
    Text,
    WriteError,
    WriteOptions,
    from_spark,
)
from parquet_loader.common import no_progress
from parquet_loader.errors import UnfinishedCommitError
from parquet_loader.write import spark
from parquet_loader.write.dask import write_dask
from parquet_loader.write.jobs import lease
from parquet_loader.write.jobs.commit import Journal, publish_files, renames_directories
from parquet_loader.write.jobs.job import (
    JobSpec,
    WriteJob,
    WrittenFile,
    new_task_file,
    number_of,
    remove_dead_jobs,
)
from parquet_loader.write.jobs.job_runner import check_bucket_bytes
from parquet_loader.write.jobs.job_shuffle import Chunk, ShufflePlan, write_bucket, write_chunks
from parquet_loader.write.jobs.task import merge_files, plan_merges, write_partition
from tests.support.examples import examples
from tests.support.job_places import SCHEMA, SMALL, Hdfs, ObjectStore, Place, rows


@pytest.fixture(params=["local", "subtree", "objects", "hdfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path)


# ---- commit --------------------------------------------------------------------------------------------------------


def test_nothing_is_seen_before_the_commit_and_all_of_it_after(place: Place) -> None:
    with place.job() as job:
        reports = [file for n in (1, 0) for file in write_partition(job.spec, n, rows(n * 100, n * 100 + 100))]
        assert not [p for p in place.root.rglob("*") if p.is_file() and not p.name.startswith(".")]
        summary = job.commit(reports)
    assert place.ids() == list(range(200))
    assert summary.rows == 200
    assert summary.bytes == sum(p.stat().st_size for p in place.local.rglob("*.parquet"))
    assert summary.seconds > 0
    first = pq.read_table(summary.files[0], filesystem=place.filesystem, schema=SCHEMA.arrow_schema())
    assert first["id"][0].as_py() == 0  # the order of partitions, not of reports
    assert place.leftovers() == []


def test_only_what_a_successful_attempt_reported_is_published(place: Place) -> None:
    with place.job() as job:
        first = write_partition(job.spec, 0, rows(0, 50))
        second = write_partition(job.spec, 0, rows(0, 50))  # a speculative attempt that succeeded, too
        with pytest.raises(DataError):
            write_partition(job.spec, 1, iter([rows(50, 90), {"id": [None], "vector": np.zeros((1, 4))}]))
        again = write_partition(job.spec, 1, rows(50, 90))
        assert {f.name for f in first}.isdisjoint(f.name for f in second)
        job.commit([*second, *again, *again])
    assert place.ids() == list(range(90))
    assert place.leftovers() == []


def test_a_job_that_fails_leaves_nothing(place: Place) -> None:
    def unlucky() -> None:
        with place.job() as job:
            write_partition(job.spec, 0, rows(0, 50))
            raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck"):
        unlucky()
    assert place.ids() == []
    assert place.leftovers() == []


def test_append_overwrite_and_error(place: Place) -> None:
    place.write(0, 10)
    with pytest.raises(WriteError, match="not empty"):
        place.job()
    place.write(10, 20, "append")
    place.write(20, 30, "append")
    assert place.ids() == list(range(30))
    place.write(100, 110, "overwrite")
    assert place.ids() == list(range(100, 110))
    with pytest.raises(SchemaError, match="vector"):
        WriteJob(place.path, SCHEMA.select(["id"]), mode="append", filesystem=place.filesystem)
    assert place.leftovers() == []


def test_two_jobs_at_once_append_both_and_one_of_two_may_be_the_first(place: Place) -> None:
    with place.job("append") as one, place.job("append") as two:
        one.commit(write_partition(one.spec, 0, rows(0, 10)))
        two.commit(write_partition(two.spec, 0, rows(10, 20)))
    assert place.ids() == list(range(20))
    with place.job("overwrite") as one:
        one.commit(write_partition(one.spec, 0, rows(0, 5)))
    assert place.ids() == list(range(5))


def test_the_second_of_two_first_jobs_publishes_nothing(place: Place) -> None:
    with place.job() as one, place.job() as two:
        one.commit(write_partition(one.spec, 0, rows(0, 10)))
        with pytest.raises(WriteError, match="others wrote"):
            two.commit(write_partition(two.spec, 0, rows(10, 20)))
    assert place.ids() == list(range(10))
    assert place.leftovers() == []


def test_files_of_one_partition_stay_in_order_beyond_ten_thousand(tmp_path: Path) -> None:
    with WriteJob(tmp_path / "set", SCHEMA) as job:
        names = [os.path.basename(new_task_file(job.spec, 0, number).path) for number in (9_999, 10_000, 10_001)]
    assert names == sorted(names)
    assert [number_of(name) for name in names] == [9_999, 10_000, 10_001]


def test_a_job_without_rows_publishes_a_file_that_tells_the_schema(place: Place) -> None:
    with place.job() as job:
        summary = job.commit(write_partition(job.spec, 0, iter([])))
    assert (summary.rows, len(summary.files)) == (0, 1)
    with place.job("append") as job:
        assert job.commit([]).rows == 0
    assert place.ids() == []


def test_overwrite_refuses_what_is_no_data_set(place: Place) -> None:
    place.local.mkdir()
    (place.local / "thesis.tex").write_text("years of work")
    with pytest.raises(WriteError, match=r"thesis\.tex"):
        place.job("overwrite")
    assert (place.local / "thesis.tex").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="names are UTF-8")
def test_a_name_that_is_not_utf8_is_refused_in_the_directory_and_ignored_beside_it(tmp_path: Path) -> None:
    place = Place("local", tmp_path)
    (place.local.parent / os.fsdecode(b"\xff")).touch()
    place.write(0, 10)
    place.write(10, 20, "overwrite")
    assert place.ids() == list(range(10, 20))
    (place.local / os.fsdecode(b"\xfe")).touch()
    for mode in ("error", "append", "overwrite"):
        with pytest.raises(WriteError, match=r"it holds '.*\\udcfe', a name that is not UTF-8"):
            place.job(mode)


def test_a_reported_file_that_is_not_there_is_named(place: Place) -> None:
    with place.job() as job, pytest.raises(WriteError, match=r"part-7.* is not there; nothing was published"):
        job.commit([WrittenFile(0, ".part-7.parquet.tmp", 1, 10, 10)])
    assert place.ids() == []


def test_a_directory_that_cannot_be_exchanged_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place("local", tmp_path)
    place.write(0, 10)
    place.write(10, 20, "append")
    monkeypatch.setattr(os.path, "ismount", lambda path: True)
    place.write(20, 30, "append")
    assert place.ids() == list(range(30))
    place.write(30, 40, "overwrite")
    assert place.ids() == list(range(30, 40))
    assert place.leftovers() == []


# ---- killed drivers ------------------------------------------------------------------------------------------------

KILLED = """
    import os, signal, sys
    import pyarrow.fs as pafs
    from parquet_loader.write.jobs import commit
    from parquet_loader.write.jobs import job as jobs
    from parquet_loader.write.jobs.task import write_partition
    from tests.support.job_places import Hdfs, Place, rows
    from pathlib import Path

    place = Place(sys.argv[1], Path(sys.argv[2]))
    moment, mode = sys.argv[3], sys.argv[4]

    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    def after(function, count=1):
        calls = [0]
        def counted(*args, **kwargs):
            result = function(*args, **kwargs)
            calls[0] += 1
            if calls[0] == count:
                die()
            return result
        return counted

    with place.job(mode) as job:
        reports = [f for n in range(3) for f in write_partition(job.spec, n, rows(n * 100, n * 100 + 100))]
        if moment == "before the commit":
            die()
        elif moment == "amid renames":
            jobs.move_file = after(jobs.move_file, 2)
            commit.move_file = after(commit.move_file, 2)
        elif moment == "between the journals":
            move = Hdfs.move
            def cut(self, source, target):
                if target.endswith(commit.JOURNAL) and (Path(sys.argv[2]) / target).exists():
                    self.fs.delete_file(target)  # what pyarrow does on HDFS first
                    die()
                move(self, source, target)
            Hdfs.move = cut
        elif moment == "after the commit":
            job._directory.remove = die
            jobs.JobDirectory.remove_files = die
        job.commit(reports)
        die()
"""


def killed_job(place: Place, kind: str, moment: str, mode: str) -> None:
    code = textwrap.dedent(KILLED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, kind, str(place.root), moment, mode]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == -9, done.stderr


QUICK = {("local", "before the commit", "append"), ("local", "after the commit", "overwrite")}
QUICK |= {("objects", "amid renames", "append")}
QUICK |= {("hdfs", "amid renames", "overwrite")}
MOMENTS = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
    for case in itertools.product(
        ("local", "objects", "hdfs"), ("before the commit", "amid renames", "after the commit"), ("append", "overwrite")
    )
]
MOMENTS.append(pytest.param("hdfs", "between the journals", "overwrite"))


@pytest.mark.parametrize(("kind", "moment", "mode"), MOMENTS)
def test_a_killed_driver_leaves_exact_rows_or_none_and_the_next_job_no_leftovers(
    tmp_path: Path, kind: str, moment: str, mode: str
) -> None:
    place = Place(kind, tmp_path)
    place.write(1000, 1010)
    killed_job(place, kind, moment, mode)
    old, new = list(range(1000, 1010)), list(range(300))
    before, after = old, new if mode == "overwrite" else new + old
    is_done = moment in ("after the commit", "between the journals")
    if kind == "local":
        assert place.ids() == (after if is_done else before)
    expire_leases(place)
    with place.job("append"):
        assert place.ids() == (after if is_done else before)
    assert place.leftovers() == []


def expire_leases(place: Place) -> None:
    """Let leases expire without waiting, if there are no locks: as if they had not been renewed for long."""
    for path in place.root.rglob(".*.lease"):
        os.utime(path, (0, 0))


def test_a_job_that_is_alive_is_left_alone(place: Place) -> None:
    with place.job("append") as job:
        reports = write_partition(job.spec, 0, rows(0, 10))
        place.write(10, 20, "append")
        job.commit(reports)
    assert place.ids() == list(range(20))


def test_a_store_that_does_not_answer_holds_nobody_up(tmp_path: Path) -> None:
    place, hangs, go = Place("objects", tmp_path), threading.Event(), threading.Event()
    held = lease.JobLease(place.filesystem, "lease", renew_s=0.001, join_s=0.01)
    held.acquire()

    def hang(operation: str, path: str) -> None:
        if operation == "write":
            hangs.set()
            assert go.wait(60)

    place.handler.before = hang
    assert hangs.wait(60)
    held.release()
    assert not (tmp_path / "lease").exists()
    go.set()


def test_a_lease_may_be_released_by_the_thread_that_renews_it(tmp_path: Path) -> None:
    place, errors = Place("objects", tmp_path), list[BaseException | None]()
    held = lease.JobLease(place.filesystem, "lease", renew_s=0.001)
    done = threading.Event()

    def collect(operation: str, path: str) -> None:  # as the collector may
        if threading.current_thread().name == "parquet_loader-lease" and operation == "write" and not done.is_set():
            try:
                held.release()
                errors.append(None)
            except BaseException as error:
                errors.append(error)
            done.set()

    place.handler.before = collect
    held.acquire()
    assert done.wait(60)
    assert errors == [None]


def test_a_job_that_is_swept_while_it_makes_its_lease_makes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, swept = fcntl.flock, list[list[str]]()

    def swept_before(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and len(swept) < 3:
            swept.append(os.listdir(tmp_path))
            remove_dead_jobs(pafs.LocalFileSystem(), str(tmp_path / "set"))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", swept_before)
    with WriteJob(tmp_path / "set", SCHEMA, mode="append", options=SMALL) as job:
        assert [len(names) for names in swept] == [1, 1, 1]
        assert job._directory.lease.is_held()
        remove_dead_jobs(pafs.LocalFileSystem(), str(tmp_path / "set"))
        assert job._directory.lease.is_held()
        assert os.path.isdir(job.spec.directory)
    assert os.listdir(tmp_path) == []


FORKED = """
import os, signal, sys
import pyarrow.fs as pafs
from parquet_loader.write.jobs.lease import JobLease
lease = JobLease(pafs.LocalFileSystem(), sys.argv[1])
lease.acquire()
if not os.fork():
    lease.release()
    print(os.getpid(), lease.is_held(), os.path.exists(sys.argv[1]), flush=True)
    signal.pause()
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_forked_child_neither_keeps_nor_releases_a_lease(tmp_path: Path) -> None:
    path, local = str(tmp_path / "lease"), pafs.LocalFileSystem()
    command = [sys.executable, "-c", FORKED, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        child, held, exists = process.stdout.readline().split()
        try:
            assert (held, exists) == ("False", "True")
            with lease.dead_lease(local, path) as is_dead:
                assert not is_dead
            process.stdin.write("\n")
            process.stdin.flush()
            process.wait(60)
            with lease.dead_lease(local, path) as is_dead:
                assert is_dead, "the child lives, and has no copy of the lock"
        finally:
            os.kill(int(child), signal.SIGKILL)


def test_a_lease_that_never_got_its_name_is_removed(tmp_path: Path) -> None:
    (tmp_path / f".set.job-{'0' * 32}.lease.new").touch()
    with WriteJob(tmp_path / "set", SCHEMA, mode="error", options=SMALL):
        assert not (tmp_path / f".set.job-{'0' * 32}.lease.new").exists()


@pytest.mark.parametrize("jobs", [100, pytest.param(400, marks=pytest.mark.slow)])
def test_jobs_that_begin_at_once_never_take_one_another_for_dead(tmp_path: Path, jobs: int) -> None:
    def begin(number: int) -> bool:
        with WriteJob(tmp_path / "set", SCHEMA, mode="append", options=SMALL) as job:
            return job._directory.lease.is_held()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(begin, range(jobs)))


def test_a_driver_whose_lease_was_taken_publishes_nothing(tmp_path: Path) -> None:
    place = Place("objects", tmp_path)
    with place.job("append") as job:
        reports = write_partition(job.spec, 0, rows(0, 10))
        expire_leases(place)
        place.write(10, 20, "append")
        with pytest.raises(WriteError, match=r"considered this one dead|is not there"):
            job.commit(reports)
    assert place.ids() == list(range(10, 20))
    assert place.leftovers() == []


def test_a_lease_that_cannot_be_read_is_not_that_of_a_dead_job(tmp_path: Path) -> None:
    place = Place("objects", tmp_path)

    def read(path: str) -> Any:
        raise OSError("no answer")

    with place.job() as job:
        reports = write_partition(job.spec, 0, rows(0, 10))
        place.handler.open_input_stream = read  # type: ignore[method-assign]
        with pytest.raises(WriteError, match="nothing of it was published: no answer"):
            job.commit(reports)


def test_a_lease_is_renewed_although_the_store_did_not_answer_once(tmp_path: Path) -> None:
    handler = ObjectStore(str(tmp_path))
    read, write, failed, renewed = handler.open_input_stream, handler.open_output_stream, [False], threading.Event()

    def reading(path: str) -> Any:
        if not failed[0]:
            failed[0] = True
            raise OSError("no answer")
        return read(path)

    def writing(path: str, metadata: Any) -> Any:
        if failed[0]:
            renewed.set()
        return write(path, metadata)

    handler.open_input_stream, handler.open_output_stream = reading, writing  # type: ignore[method-assign]
    held = lease.JobLease(pafs.PyFileSystem(handler), "lease", renew_s=0.01)
    held.acquire()
    assert renewed.wait(60)
    held.release()
    assert list(tmp_path.iterdir()) == []


def test_tasks_of_a_job_that_is_over_can_write_no_more(tmp_path: Path) -> None:
    place = Place("local", tmp_path)
    with place.job() as job:
        spec = job.spec
    with pytest.raises(WriteError, match="the job is over, or this machine does not see a path on storage"):
        write_partition(spec, 0, rows(0, 10))
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_all_be_renamed_are_taken_back(tmp_path: Path) -> None:
    place = Place("objects", tmp_path)
    place.write(0, 10)
    with place.job("append") as job:
        reports = [f for n in range(4) for f in write_partition(job.spec, n, rows(10, 20))]
        place.handler.fail_after = 2
        with pytest.raises(WriteError, match="connection was reset"):
            job.commit(reports)
    assert place.ids() == list(range(10))
    assert place.leftovers() == []


def refusing(operation: str, part: str, error: type[BaseException], *, after: int = 0) -> Any:
    """What makes an object store raise at the calls that concern a path, once it has allowed some."""
    calls = itertools.count()

    def before(this: str, path: str) -> None:
        if this == operation and part in path and next(calls) >= after:
            raise error("503 slow down")

    return before


def cut_short(place: Place, mode: Any, expected: type[BaseException], message: str) -> None:
    with place.job(mode) as job:
        reports = [f for n in range(4) for f in write_partition(job.spec, n, rows(n * 10, n * 10 + 10))]
        with pytest.raises(expected, match=message):
            job.commit(reports)


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_overwrite_whose_deletes_fail_is_finished_by_the_next_job(tmp_path: Path, error: Any) -> None:
    place = Place("objects", tmp_path)
    for first in (1000, 1010, 1020):
        place.write(first, first + 10, "append")
    place.handler.before = refusing("delete", "set/part-", error, after=1)
    expected = UnfinishedCommitError if error is OSError else error
    cut_short(place, "overwrite", expected, "new files are published.*next job on this path|503")
    assert set(range(40)) < set(place.ids())
    place.handler.before = lambda operation, path: None
    with place.job("append"):
        assert place.ids() == list(range(40))
    assert place.leftovers() == []


def test_the_old_files_stay_until_the_next_job_if_the_disk_does_not_confirm_the_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, fsync = Place("local", tmp_path), os.fsync
    place.write(1000, 1010)

    def refuse(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), os.stat(tmp_path)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        cut_short(place, "overwrite", UnfinishedCommitError, r"published, but .*Input/output error\); the old ones")
    assert place.ids() == list(range(40))
    (old,) = tmp_path.glob(".set.job-*/data/*.parquet")
    assert pq.read_table(old)["id"].to_pylist() == list(range(1000, 1010))
    with place.job("append"):
        assert place.ids() == list(range(40))
    assert place.leftovers() == []


def test_a_commit_asks_an_object_store_nothing_about_single_files(tmp_path: Path) -> None:
    place, asked = Place("objects", tmp_path), list[str]()
    for first in range(3):
        place.write(first, first + 1, "append")
    ask = place.handler.get_file_info

    def noted(paths: list[str]) -> Any:
        asked.extend(paths)
        return ask(paths)

    place.handler.get_file_info = noted  # type: ignore[method-assign]
    place.write(10, 20, "overwrite")
    assert asked
    assert not [path for path in asked if path.endswith((".parquet", ".parquet.tmp"))]


def test_files_that_cannot_be_taken_back_are_taken_back_by_the_next_job(tmp_path: Path) -> None:
    place = Place("objects", tmp_path)
    place.write(1000, 1010)
    place.handler.before = refusing("delete", "set/part-", OSError)
    place.handler.fail_after = 2
    cut_short(place, "append", UnfinishedCommitError, r"connection was reset\), and 2 of .* removed \(503.*next job")
    assert len(place.ids()) == 30
    place.handler.before, place.handler.fail_after = (lambda operation, path: None), None
    with place.job("append"):
        assert place.ids() == list(range(1000, 1010))
    assert place.leftovers() == []


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize(("mode", "operation", "after"), [("append", "delete", 0), ("overwrite", "write", 1)])
def test_a_commit_that_cannot_be_written_down_is_none(
    tmp_path: Path, error: Any, mode: Any, operation: str, after: int
) -> None:
    place = Place("objects", tmp_path)
    place.write(1000, 1010)
    refuse, calls = refusing(operation, "journal.json", error, after=after), list[str]()

    def once(this: str, path: str) -> None:
        if not calls:
            try:
                refuse(this, path)
            except BaseException:
                calls.append(path)
                raise

    place.handler.before = once
    cut_short(place, mode, WriteError if error is OSError else error, "nothing of it was published: 503|503")
    assert calls
    assert place.ids() == list(range(1000, 1010))
    assert place.leftovers() == []


@pytest.mark.parametrize("commits", [True, False])
def test_ctrl_c_while_files_of_a_job_are_removed_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    place = Place("local", tmp_path)
    rmdir, calls = os.rmdir, list[Any]()

    def interrupt(path: Any, **options: Any) -> None:
        calls.append(path)
        signal.raise_signal(signal.SIGINT)
        rmdir(path, **options)

    job = place.job("error")
    reports = write_partition(job.spec, 0, rows(0, 10))
    monkeypatch.setattr(os, "rmdir", interrupt)
    with pytest.raises(KeyboardInterrupt):
        job.commit(reports) if commits else job.abort()
    assert calls
    assert place.ids() == (list(range(10)) if commits else [])
    assert place.leftovers() == []


def test_ctrl_c_amid_a_commit_waits_for_the_renames_under_way(tmp_path: Path) -> None:
    place = Place("objects", tmp_path)
    place.write(1000, 1010)
    begun, go, move, moved = itertools.count(1), threading.Event(), place.handler.move, list[str]()

    def slowly(source: str, target: str) -> None:
        if next(begun) == 4:
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # which does not wake the main thread
        assert go.wait(60)
        move(source, target)
        moved.append(target)

    def interrupted(*_: Any) -> None:
        threading.Timer(0.1, go.set).start()  # renames under way take longer than what comes next
        raise KeyboardInterrupt

    place.handler.move = slowly  # type: ignore[method-assign]
    before = signal.signal(signal.SIGINT, interrupted)
    try:
        with place.job("append") as job:
            reports = [f for n in range(4) for f in write_partition(job.spec, n, rows(n * 10, n * 10 + 10))]
            with pytest.raises(KeyboardInterrupt):
                job.commit(reports)
    finally:
        signal.signal(signal.SIGINT, before)
    for thread in threading.enumerate():
        if thread.name.startswith("parquet_loader-commit"):
            thread.join(60)
    assert len(moved) == 4
    assert place.ids() == list(range(1000, 1010))  # all of them were taken back, and nothing appeared later
    assert place.leftovers() == []


def test_a_job_killed_between_the_two_renames_of_an_exchange_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place("local", tmp_path)
    place.write(1000, 1010)
    job = place.job("overwrite")
    write_partition(job.spec, 0, rows(0, 10))
    os.rename(place.local, f"{job._directory.data}.old")
    job._finalizer.detach()
    job._directory.lease.release()
    with place.job("append"):
        assert place.ids() == list(range(1000, 1010))
    assert place.leftovers() == []


@pytest.mark.parametrize("mode", ["error", "append", "overwrite"])
def test_on_hdfs_the_files_of_a_job_appear_by_one_rename(tmp_path: Path, mode: Any) -> None:
    place = Place("hdfs", tmp_path)
    if mode != "error":
        place.write(1000, 1010)
    old, new = place.ids(), list(range(300))
    seen = [old]
    change = place.handler.move

    def looking(source: str, target: str) -> None:
        change(source, target)
        if place.ids() != seen[-1]:
            seen.append(place.ids())

    place.handler.move = looking  # type: ignore[method-assign]
    with place.job(mode) as job:
        job.commit([f for n in range(3) for f in write_partition(job.spec, n, rows(n * 100, n * 100 + 100))])
    assert seen == [old, new + old]
    assert place.ids() == (new if mode == "overwrite" else new + old)  # the old files go one by one, after the rename


@pytest.mark.parametrize(
    ("name", "expected"),
    [("hdfs", True), ("fsspec+hdfs", True), ("fsspec+webhdfs", True), ("fsspec+s3", False), ("hdfs+cache", False)],
)
def test_a_filesystem_that_says_that_it_is_hdfs_renames_directories(tmp_path: Path, name: str, expected: bool) -> None:
    handler = Hdfs(str(tmp_path))
    handler.get_type_name = lambda: name  # type: ignore[method-assign]
    filesystem = pafs.PyFileSystem(handler)
    assert renames_directories(filesystem) is renames_directories(pafs.SubTreeFileSystem("x", filesystem)) is expected


def test_a_journal_is_gone_when_all_is_done(tmp_path: Path) -> None:
    filesystem = pafs.LocalFileSystem()
    for name in ("hidden", "old"):
        (tmp_path / name).write_text(name)
    journal = Journal(filesystem, f"{tmp_path}/journal")
    publish_files(filesystem, str(tmp_path), [(f"{tmp_path}/hidden", f"{tmp_path}/new")], [f"{tmp_path}/old"], journal)
    assert not journal.is_needed
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new"]


# ---- sizes ---------------------------------------------------------------------------------------------------------


def spec_at(path: Path, options: WriteOptions = SMALL) -> JobSpec:
    path.mkdir()
    return JobSpec(str(path), str(path), pafs.LocalFileSystem(), SCHEMA, options)


@settings(max_examples=examples(40))
@given(
    sizes=st.lists(st.integers(1, 400_000), max_size=40),
    row_group_bytes=st.integers(100, 10_000),
    file_bytes=st.integers(1_000, 300_000),
)
def test_every_file_is_kept_or_merged_once(sizes: list[int], row_group_bytes: int, file_bytes: int) -> None:
    files = [WrittenFile(n, f"{n:03}", 1, size, 2 * size) for n, size in enumerate(sizes)]
    options = WriteOptions(row_group_bytes=row_group_bytes, file_bytes=file_bytes)
    kept, groups = plan_merges(files, options, 1)
    assert sorted([f.name for f in kept] + [name for _, names in groups for name in names]) == [f.name for f in files]
    small = [f for f in kept if f.decoded_bytes < 4 * row_group_bytes and f.bytes < file_bytes]
    sums = [sum(int(sizes[int(n)]) for n in names) for _, names in groups]
    assert all(total <= file_bytes for total in sums)
    assert len(small) + len(groups) <= 2 * sum(sizes) / file_bytes + 1


def test_small_files_are_written_again_as_full_row_groups(tmp_path: Path) -> None:
    spec = spec_at(tmp_path / "job")
    reports = [f for n in range(40) for f in write_partition(spec, n, rows(n * 10, n * 10 + 10))]
    kept, groups = plan_merges(reports, spec.options, 1)
    assert len(groups) < len(reports) / 4
    merged = kept + [f for index in range(len(groups)) for f in merge_files(groups, spec, index)]
    tables, sizes = [], []
    for file in merged:
        parquet = pq.ParquetFile(f"{spec.directory}/{file.name}")
        sizes += [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups - 1)]
        tables.append(parquet.read())
    assert len(set(sizes)) == 1  # all but the last of each file
    assert pa.concat_tables(tables)["id"].to_pylist() == list(range(400))


# ---- shuffle -------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(40))
@given(
    sizes=st.lists(st.integers(1, 500), max_size=30),
    bucket_bytes=st.integers(1, 5000),
    seed=st.integers(0, 2**64 - 1),
)
def test_buckets_take_every_row_of_every_chunk_once_and_equal_shares(
    sizes: list[int], bucket_bytes: int, seed: int
) -> None:
    plan = ShufflePlan.from_chunks(
        [Chunk(n, 0, "", size, size * 8) for n, size in enumerate(sizes)], bucket_bytes, seed
    )
    position = np.zeros(len(sizes), np.int64)
    for bucket in range(plan.buckets):
        firsts, ends = plan.slices(bucket)
        assert (firsts == position).all()
        taken = ends - firsts
        assert (np.abs(taken - np.array(sizes, dtype=float) / plan.buckets) < 1).all()
        position = ends
    assert position.tolist() == sizes


def shuffled(directory: Path, partitions: list[tuple[int, int]], seed: int, bucket_bytes: int) -> list[int]:
    spec = spec_at(directory)
    chunks = [
        chunk
        for number, bounds in reversed(list(enumerate(partitions)))
        for chunk in write_chunks(spec, number, rows(*bounds), chunk_bytes=bucket_bytes, seed=seed)
    ]
    plan = ShufflePlan.from_chunks(chunks, bucket_bytes, seed)
    files = [f for bucket in range(plan.buckets) for f in write_bucket(plan, spec, bucket)]
    return [i for f in files for i in pq.read_table(f"{spec.directory}/{f.name}")["id"].to_pylist()]


def test_a_shuffled_job_is_a_function_of_seed_and_partitions(tmp_path: Path) -> None:
    parts = [(0, 700), (700, 701), (701, 2000)]
    one = shuffled(tmp_path / "a", parts, 1, 5000)
    assert sorted(one) == list(range(2000))
    assert one == shuffled(tmp_path / "b", parts, 1, 5000)
    assert one != shuffled(tmp_path / "c", parts, 2, 5000)


def test_every_part_of_a_shuffled_job_is_like_all_of_it(tmp_path: Path) -> None:
    ids = np.array(shuffled(tmp_path / "a", [(n * 400, n * 400 + 400) for n in range(25)], 7, 40_000))
    for window in ids.reshape(20, 500):
        assert abs(window.mean() - 5000) < 4 * 10_000 / np.sqrt(12 * 500)
    neighbours = np.corrcoef(ids[:-1], ids[1:])[0, 1]
    assert abs(neighbours) < 0.05


@pytest.mark.parametrize("kind", [Text(), Bytes(), Image(), RaggedList("int32")], ids=repr)
def test_buckets_that_arrow_cannot_order_are_refused(kind: Any) -> None:
    fixed, varying = Schema({"id": Scalar("int64"), "v": Tensor("float32", (4,))}), Schema({"a": kind})
    check_bucket_bytes(4 * 2**30, fixed)
    check_bucket_bytes(2**30, varying)
    with pytest.raises(ConfigurationError, match=r"bucket_bytes=1.5 GiB: at most 1.0 GiB with columns .* \('a'\)"):
        check_bucket_bytes(3 * 2**29, varying)


def test_errors_name_partition_field_and_row_within_the_partition(tmp_path: Path) -> None:
    def batches() -> Iterator[Any]:
        yield rows(0, 30)
        yield pa.table({"id": [1, None], "vector": pa.array([[0.0] * 4] * 2)})

    spec = spec_at(tmp_path / "job")
    with pytest.raises(DataError, match="partition 5: field 'id', row 31: the value is null"):
        write_partition(spec, 5, batches())
    assert list((tmp_path / "job").iterdir()) == []


@pytest.mark.parametrize("package", ["parquet_loader", "pyarrow"])
def test_spark_workers_of_another_python_are_told_which_one_to_use(package: str) -> None:
    class Reports:
        def collect(self) -> list[Any]:
            raise RuntimeError(f"Traceback ...\nModuleNotFoundError: No module named '{package}'\n")

    class Frame:
        sparkSession = None  # noqa: N815  (Spark's name)

        def mapInArrow(self, *_: Any) -> Reports:  # noqa: N802  (Spark's name)
            return Reports()

    runner = spark._SparkRunner(Frame())
    with pytest.raises(MissingPackageError, match=f"no package '{package}'; .* PYSPARK_PYTHON to {sys.executable}"):
        runner._collect(Frame().mapInArrow(), no_progress)


def test_a_frame_of_pandas_is_not_called_a_frame_of_dask_or_spark(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1]})
    with pytest.raises(ConfigurationError, match=r"found a pandas.DataFrame; write_dataset\(data, path\)"):
        write_dask(frame, tmp_path / "a")
    with pytest.raises(ConfigurationError, match=r"found a pandas.DataFrame; write_dataset\(data, path\)"):
        spark.write_spark(frame, tmp_path / "a")
    with pytest.raises(ConfigurationError, match=r"from_spark: expected .* Spark .*, found a pandas.DataFrame; write"):
        from_spark(frame, 1, cache_dir=tmp_path)


# ---- Spark's settings ----------------------------------------------------------------------------------------------


class Session:
    """As much of a Spark session as has settings."""

    def __init__(self, **settings: str) -> None:
        self.settings = settings
        self.conf = self

    def get(self, name: str, default: str | None) -> str | None:
        return self.settings.get("rows", default)

    def set(self, name: str, value: str) -> None:
        self.settings["rows"] = value

    def unset(self, name: str) -> None:
        self.settings.pop("rows", None)


@pytest.mark.parametrize(
    ("before", "seen"), [(None, "50 50 200"), ("100", "50 50 100"), ("0", "50 50 200"), ("7", "7 7 7")]
)
def test_jobs_of_one_session_put_back_what_was_there(before: str | None, seen: str) -> None:
    session = Session(**({} if before is None else {"rows": before}))
    one, two = spark._batch_rows(session, 50), spark._batch_rows(session, 200)
    found = []
    one.__enter__()
    found.append(session.settings["rows"])
    two.__enter__()
    found.append(session.settings["rows"])
    one.__exit__(None, None, None)
    found.append(session.settings["rows"])
    two.__exit__(None, None, None)
    assert " ".join(found) == seen
    assert session.settings.get("rows") == before
