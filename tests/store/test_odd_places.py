"""Odd clocks, full disks, read-only directories, missing locks, forks: each behaves as documented."""

from __future__ import annotations

import builtins
import contextlib
import errno
import fcntl
import gc
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    SampleStore,
    Schema,
    SourceError,
    StoreFullError,
    StoreOptions,
    SystemReadError,
    Tensor,
    WriteError,
)
from tests.store.samples import ONE, SCHEMA, SMALL, delivered, numbers, published, rows, used_bytes


def test_clocks_order_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, options=ONE)
    clock = iter([2_000_000_000, 2_000_000_000, 5, 0, 253_500_000_000, 1_000_000_000])
    monkeypatch.setattr(time, "time_ns", lambda: next(clock) * 10**9)
    for k in range(6):
        with store.writer() as writer:
            writer.write(rows(10 * k, 10))
    assert numbers(tmp_path) == list(range(60))
    assert [f.sequence for f in store.files()] == list(range(1, 7))
    assert [f.published_s for f in store.files()][2:4] == [5, 0]
    store.evict(to_bytes=used_bytes(tmp_path) - 1)
    assert numbers(tmp_path) == list(range(10, 60))
    with BatchedDataLoader(store, 7) as loader:
        assert delivered(loader) == list(range(10, 60))


@contextlib.contextmanager
def mounted(path: Path, *options: str) -> Iterator[None]:
    """A memory-backed file system of its own; skips where mounting is not allowed."""
    path.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", *options, "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_full_disk_loses_only_what_was_not_published(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "-o", "size=1m"):
        path = tmp_path / "disk" / "store"
        store = SampleStore(path, schema=SCHEMA, options=SMALL)
        with pytest.raises(WriteError, match=r"No space left.*rows written since are lost"), store.writer() as writer:
            writer.write(rows(100 * k, 100) for k in range(100))
        there = numbers(path)
        assert there == list(range(writer.done.rows))
        assert os.listdir(path / ".store" / "unfinished") == []
        assert store.evict(to_bytes=400_000).files > 0
        with SampleStore(path).writer() as writer:
            writer.write(rows(100_000, 10))
        assert numbers(path)[-1] == 100_009


def test_a_full_disk_stops_holds_and_leaves_nothing_and_states_are_still_taken(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "-o", "size=1m"):
        path = tmp_path / "disk" / "store"
        store = SampleStore(path, schema=SCHEMA, options=ONE)
        with store.writer() as writer:
            writer.write(rows(0, 1000))
        filler = tmp_path / "disk" / "filler"
        with BatchedDataLoader(store, 10) as loader:
            iterator = iter(loader)
            next(iterator)
            fill(filler)
            with pytest.warns(RuntimeWarning, match="list of this epoch's files cannot be kept"):
                state = loader.state_dict()
            assert delivered_rest(iterator) == list(range(10, 1000))
            with pytest.raises(WriteError, match=r"lease on the store's files cannot be written: No space left"):
                iter(loader)
            filler.unlink()
            loader.load_state_dict(state)
            assert delivered(loader) == list(range(10, 1000))
            store.hold(loader.state_dict())
        fill(filler)
        with pytest.raises(WriteError, match="store: the writer cannot begin: No space left"):
            store.writer()
        assert store.evict(to_bytes=1).files == 0  # all are held on purpose
        assert store.release(store.holds()[0])
        assert store.evict(to_bytes=1).files > 0
        assert SampleStore(path).status().readers == 0
        assert os.listdir(path / ".store" / "readers") == []


def test_an_epoch_goes_on_if_its_lease_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, options=ONE)
    with store.writer() as writer:
        writer.write(rows(0, 200))
    with BatchedDataLoader(store, 10) as loader:
        iterator = iter(loader)
        monkeypatch.setattr(os, "pwrite", refuse_space)
        assert delivered_rest(iterator) == list(range(200))
        monkeypatch.undo()
    assert store.evict(to_bytes=1).files > 0


def test_a_delivery_that_could_not_be_written_at_once_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, refused = SampleStore(tmp_path, schema=SCHEMA, options=SMALL), [1, 2]
    for first in range(0, 300, 100):
        with store.writer() as writer:
            writer.write(rows(first, 100))
    pwrite = os.pwrite

    def write_later(*arguments: Any) -> int:
        if refused:
            refused.pop()
            refuse_space()
        return pwrite(*arguments)

    with BatchedDataLoader(store, 10, window_rows=20) as loader:
        iterator = iter(loader)
        monkeypatch.setattr(os, "pwrite", write_later)
        assert delivered_rest(iterator) == list(range(300))
        monkeypatch.undo()
    store.recover()
    assert {file.epochs_seen for file in store.files()} == {1}
    assert refused == []


@pytest.mark.parametrize(("module", "call"), [(os, "pwrite"), (os, "ftruncate"), (fcntl, "flock")])
def test_errors_name_the_record_that_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, call: str
) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, options=ONE)
    with store.writer() as writer:
        writer.write(rows(0, 100))
    with BatchedDataLoader(store, 10) as loader:
        next(iter(loader))
        held = store.hold(loader.state_dict())
    reader = BatchedDataLoader(store, 10)
    monkeypatch.setattr(module, call, refuse_space)
    for operation in (
        store.recover,
        lambda: store.evict(to_bytes=1),
        lambda: store.hold({"snapshot": held.snapshot, "epoch": 0, "batch": 2}),
        lambda: store.release(held),
        lambda: store.snapshot().__enter__(),
        lambda: iter(reader),
    ):
        with pytest.raises(WriteError, match=r"No space left on device: .*/\.store/ledger; free some space") as caught:
            operation()
        assert isinstance(caught.value.__cause__, OSError)
    reader.close()


def test_a_file_that_the_system_cannot_look_up_is_a_system_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, options=ONE)
    with store.writer() as writer:
        writer.write(rows(0, 10))
    (path,) = published(tmp_path)
    stat = os.stat

    def fail(name: Any, **options: Any) -> os.stat_result:
        if name == path:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return stat(name, **options)

    again = SampleStore(tmp_path)
    with BatchedDataLoader(store, 10) as loader:
        monkeypatch.setattr(os, "stat", fail)
        for read in (again.files, lambda: BatchedDataLoader(again, 10)):
            with pytest.raises(SystemReadError, match=r"\.parquet: the system could not read the file: .*Stale"):
                read()
        monkeypatch.undo()
        assert delivered(loader) == list(range(10))


@pytest.mark.parametrize(("folder", "kind"), [("", SourceError), ("_delta_log", WriteError)])
def test_a_directory_that_cannot_be_listed_becomes_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, kind: type[Exception]
) -> None:
    """Failed on 6429ba6f: callers got the bare OSError."""

    def listdir(path: str) -> list[str]:
        if path == os.path.join(tmp_path, folder).rstrip("/"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return []

    monkeypatch.setattr(os, "listdir", listdir)
    with pytest.raises(kind, match=r"Input/output error.*check its permissions"):
        SampleStore(tmp_path, schema=SCHEMA)


def test_a_reservation_that_could_not_be_looked_up_is_not_used_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, max_bytes=60_000, options=ONE)
    rename, stat, writers = os.rename, os.stat, str(tmp_path / ".store" / "writers")

    def refuse(path: Any, *arguments: Any, **more: Any) -> os.stat_result:
        if str(path).startswith(writers):
            raise OSError(5, "Input/output error")
        return stat(path, *arguments, **more)

    def publish(*arguments: Any) -> None:
        rename(*arguments)
        monkeypatch.setattr(os, "stat", refuse)

    with store.writer() as writer:
        writer.write(rows(0, 30))
        monkeypatch.setattr(os, "rename", publish)
        writer.flush()
        monkeypatch.undo()
        assert store.status().reserved_bytes == 0
        writer.write(rows(30, 370))
        assert used_bytes(tmp_path) <= 60_000


def refuse_space(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def fill(path: Path) -> None:
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def delivered_rest(iterator: Iterator[Any]) -> list[int]:
    return [i for batch in iterator for i in batch["i"].tolist()]


def test_a_signal_while_a_writer_starts_its_thread_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed on 6429ba6f: the thread died, or was never ended, and the writer's reservation stayed."""
    store = SampleStore(tmp_path, schema=SCHEMA)
    name = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"
    start = getattr(threading, name)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        begun = start(*arguments, **options)
        signal.raise_signal(signal.SIGALRM)
        return begun

    def raises(*_: object) -> None:
        raise InterruptedError("in the handler")

    monkeypatch.setattr(threading, name, interrupted)
    before = signal.signal(signal.SIGALRM, raises)
    try:
        with pytest.raises(InterruptedError, match="in the handler"):
            store.writer()
    finally:
        signal.signal(signal.SIGALRM, before)
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name == "parquet_loader-roller"]
    assert os.listdir(tmp_path / ".store" / "writers") == []


def test_the_umask_of_one_user_does_not_hide_records_from_another(tmp_path: Path) -> None:
    """Failed on c4ba27e2: records had mode 0600, so the files of a lease or hold were evicted by other users."""
    before = os.umask(0)
    try:
        store = SampleStore(tmp_path, schema=SCHEMA, options=ONE)
        os.umask(0o077)
        with store.writer() as writer:
            writer.write(rows(0, 100))
            writer.flush()
            with BatchedDataLoader(store, 10) as loader:
                assert delivered(loader) == list(range(100))
                store.recover()
                iterator = iter(loader)
                next(iterator)
                store.hold(loader.state_dict())
                SampleStore(tmp_path, max_bytes=used_bytes(tmp_path))
                full = store.writer(when_full="fail")
                with pytest.raises(StoreFullError):
                    full.write(rows(0, 100))
                found = {path: path.stat().st_mode for path in (tmp_path / ".store").rglob("*")}
                full.abort()
    finally:
        os.umask(before)
    records = {path: stat.S_IMODE(mode) for path, mode in found.items() if stat.S_ISREG(mode)}
    folders = {path.relative_to(tmp_path / ".store").parts[0] for path in records}
    assert folders >= {"ledger", "store.json", "seen", "leaving", "writers", "readers", "snapshots", "holds"}
    assert set(records.values()) == {0o666}


def test_the_umask_of_one_user_does_not_keep_another_from_opening_the_store(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        (tmp_path / ".store").mkdir()
        os.umask(0o077)
        SampleStore(tmp_path, schema=SCHEMA)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / ".store").iterdir() if path.is_file()}
    assert modes == {"ledger": 0o666, "store.json": 0o666}


def test_the_umask_of_one_user_does_not_hide_files_from_another(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = SampleStore(tmp_path / "store", schema=SCHEMA, options=ONE)
        os.umask(0o077)
        with store.writer() as writer:
            writer.write(rows(0, 100))
        of_job = next((tmp_path / "store").glob("*.parquet"))
        shutil.copyfile(of_job, tmp_path / "of_job.parquet")
        store.publish([str(tmp_path / "of_job.parquet")])
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "store").glob("*.parquet")]
    assert set(modes) == {0o666}


@pytest.mark.parametrize("folder", ["readers", "holds", "commits"])
def test_nothing_is_evicted_while_a_record_of_another_user_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """Failed on c4ba27e2: such a record was ignored."""
    store = SampleStore(tmp_path, schema=SCHEMA, options=ONE)
    with store.writer() as writer:
        writer.write(rows(0, 100))
    with BatchedDataLoader(store, 10) as loader:
        iterator = iter(loader)
        next(iterator)
        store.hold(loader.state_dict())
        (tmp_path / ".store" / "commits" / "0123456789abcdef").write_text("[]")

        opened = open

        def refuse(path: Any, *arguments: Any, **options: Any) -> Any:
            if os.path.dirname(path) == str(tmp_path / ".store" / folder):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return opened(path, *arguments, **options)

        monkeypatch.setattr(builtins, "open", refuse)
        with pytest.raises(WriteError, match=rf"files cannot be evicted: Permission denied: .*/\.store/{folder}/"):
            store.evict(to_bytes=1)
        monkeypatch.undo()
        assert delivered_rest(iterator) == list(range(10, 100))


def test_a_read_only_directory_can_be_read(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk"):
        path = tmp_path / "disk" / "store"
        with SampleStore(path, schema=SCHEMA, options=SMALL).writer() as writer:
            writer.write(rows(0, 100))
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "disk")], check=True)
        store = SampleStore(path)
        with BatchedDataLoader(store, 10) as loader:
            assert delivered(loader) == list(range(100))
        assert store.status().rows == 100
        with pytest.raises(WriteError, match="read-only"):
            store.writer()
        with pytest.raises(WriteError, match="read-only"):
            store.evict(to_bytes=1)
        with pytest.raises(WriteError, match="read-only"):
            SampleStore(path, max_bytes=10)


def test_no_hard_link_is_ever_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    store = SampleStore(tmp_path, schema=SCHEMA, max_bytes=100_000, options=SMALL)
    with store.writer() as writer:
        writer.write(rows(0, 1000))
    with BatchedDataLoader(store, 10) as loader:
        assert len(delivered(loader)) == store.rows
    assert {os.stat(f).st_nlink for f in published(tmp_path)} == {1}


def test_locks_that_do_not_exclude_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    with pytest.raises(ConfigurationError, match="one lock to two holders"):
        SampleStore(tmp_path, schema=SCHEMA)


def test_locks_that_are_missing_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ConfigurationError, match="has no locks"):
        SampleStore(tmp_path, schema=SCHEMA)


def test_a_forked_child_neither_keeps_nor_drops_what_its_parent_holds(tmp_path: Path) -> None:
    code = f"""
import os, sys, signal
from parquet_loader import SampleStore
store = SampleStore({str(tmp_path)!r})
held = store.snapshot(); files = held.__enter__()
writer = store.writer()
child = os.fork()
if not child:
    sys.stdout.write("child\\n"); sys.stdout.flush()
    signal.pause()
sys.stdout.write(f"{{child}}\\n"); sys.stdout.flush()
signal.pause()
"""
    store = SampleStore(tmp_path, schema=SCHEMA, options=SMALL)
    with store.writer() as writer:
        writer.write(rows(0, 100))
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    said = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
    child = int(next(word for word in said if word != "child"))
    try:
        assert (store.status().readers, store.status().writers) == (1, 1)
        assert store.evict(to_bytes=1).files == 0
        parent.kill()
        parent.wait()
        assert (store.status().readers, store.status().writers) == (0, 0)
        assert store.evict(to_bytes=1).files > 0
    finally:
        os.kill(child, 9)
        parent.stdout.close()


def test_what_a_dead_writer_left_is_removed_by_the_next_open(tmp_path: Path) -> None:
    code = f"""
import os
from tests.store.samples import rows
from parquet_loader import SampleStore
writer = SampleStore({str(tmp_path)!r}).writer()
writer.write(rows(0, 50)); writer.flush(); writer.write(rows(50, 200))
os.kill(os.getpid(), 9)
"""
    SampleStore(
        tmp_path, schema=SCHEMA, max_bytes=10**6, options=StoreOptions(file_bytes=500_000, row_group_bytes=10_000)
    )
    subprocess.run(
        [sys.executable, "-c", code], check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    hidden = tmp_path / ".store"
    assert len(os.listdir(hidden / "unfinished")) == len(os.listdir(hidden / "writers")) == 1
    store = SampleStore(tmp_path)
    assert numbers(tmp_path) == list(range(50))
    assert os.listdir(hidden / "unfinished") == os.listdir(hidden / "writers") == []
    assert store.status().reserved_bytes == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_folders_and_links_among_its_records_are_ignored(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, max_bytes=100_000, options=SMALL)
    for folder in ("writers", "readers", "unfinished", "commits", "snapshots", "holds"):
        os.mkfifo(tmp_path / ".store" / folder / "pipe")
        (tmp_path / ".store" / folder / "folder.tmp").mkdir()
        (tmp_path / ".store" / folder / "folder").mkdir()
        (tmp_path / ".store" / folder / "link").symlink_to("nowhere")
    with store.writer() as writer:
        writer.write(rows(0, 1000))
    with BatchedDataLoader(SampleStore(tmp_path), 10) as loader:
        iterator = iter(loader)
        next(iterator)
        store.hold(loader.state_dict())
        assert (store.status().writers, store.status().readers, store.status().holds) == (0, 1, 1)
        assert len(delivered_rest(iterator)) == store.rows - 10


@pytest.mark.parametrize("lost", ["", ".store"])
def test_a_store_that_is_moved_while_it_is_open_says_so(tmp_path: Path, lost: str) -> None:
    path = tmp_path / "store"
    store = SampleStore(path, schema=SCHEMA, options=SMALL)
    with store.writer() as writer:
        writer.write(rows(0, 100))
    late = store.writer()
    late.write(rows(100, 10))
    with BatchedDataLoader(store, 10) as loader:
        iterator = iter(loader)
        next(iterator)
        (path / lost).rename(tmp_path / "moved")
        for use in (lambda: iter(loader), late.flush, store.writer, store.files, store.status, store.wait, store.holds):
            with pytest.raises(SourceError, match=r"\.store: this directory was moved or removed since"):
                use()
        with pytest.warns(RuntimeWarning, match="list of this epoch's files cannot be kept: .*moved or removed"):
            loader.state_dict()
    (path / lost).write_bytes(b"a file has the name now")
    with pytest.raises(SourceError, match="this directory was moved or removed since"):
        store.files()


@pytest.mark.parametrize("storage", ["raw", "list"])
def test_other_readers_read_the_store_as_it_is(tmp_path: Path, storage: Any) -> None:
    duckdb, pandas, polars = (pytest.importorskip(name) for name in ("duckdb", "pandas", "polars"))
    schema = Schema({**SCHEMA, "x": Tensor("uint8", (256,), storage=storage)})
    store = SampleStore(tmp_path, schema=schema, options=ONE)
    with store.writer() as writer:
        writer.write(rows(0, 200))
        writer.flush()
        writer.write(rows(200, 20))
        expected = rows(0, 200)["x"][7]
        found = {
            "pyarrow": pq.read_table(tmp_path).sort_by("i").to_pylist(),
            "pandas": pandas.read_parquet(tmp_path).sort_values("i").to_dict("records"),
            "polars": polars.read_parquet(tmp_path / "*.parquet").sort("i").to_dicts(),
            "duckdb": duckdb.sql(f"select * from '{tmp_path}/*.parquet' order by i").to_arrow_table().to_pylist(),
        }
        for name, records in found.items():
            assert [r["i"] for r in records] == list(range(200)), name
            x = records[7]["x"]
            assert (bytes(x) if storage == "raw" else bytes(list(x))) == expected.tobytes(), name
    shutil.rmtree(tmp_path / ".store")
    assert len(pq.read_table(tmp_path)) == 220
