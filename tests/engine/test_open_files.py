"""Running out of file descriptors is an error that says so: no hang, no damage, nothing skipped."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import pickle
import resource
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, OutputOptions, SampleStore, Scalar, Schema
from parquet_loader.engine.child.shared_memory import map_shared
from parquet_loader.errors import OpenFilesError, OutOfMemoryError, SystemReadError
from parquet_loader.source import SourceFile
from parquet_loader.source.footer_reading import read_footer
from parquet_loader.store.commits import read_commits
from parquet_loader.store.files.paths import StorePaths
from parquet_loader.store.leases import read_lease

NUMPY = OutputOptions(format="numpy")

PREAMBLE = """
import os, resource, signal, sys, threading, faulthandler
faulthandler.dump_traceback_later(90, exit=True)
from parquet_loader import BatchedDataLoader, OutputOptions
from parquet_loader.errors import OpenFilesError, OutOfMemoryError

def limited(limit):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

def all_but(free):
    held = []
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    for _ in range(free):
        os.close(held.pop())
    return held

def loader(path, **options):
    return BatchedDataLoader(path, 100, shuffle=True, isolation="process", memory_limit="1GiB",
                             output_options=OutputOptions(format="numpy"), **options)
"""


def run(code: str, *arguments: str) -> str:
    """Run code in a process of its own, whose limit it may lower; return what it prints."""
    program = PREAMBLE + textwrap.dedent(code) + "\nos._exit(0)\n"
    done = subprocess.run(
        [sys.executable, "-u", "-c", program, *arguments], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of 20,000 rows with 40 columns of 128 bytes: each window needs dozens of shared blocks."""
    path = str(tmp_path_factory.mktemp("wide") / "a.parquet")
    rng = np.random.default_rng(0)
    schema = pa.schema([(f"c{i}", pa.binary(128)) for i in range(40)])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for _ in range(8):
            columns = {
                name: pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(128), 2500, [None, pa.py_buffer(rng.bytes(2500 * 128))]
                )
                for name in schema.names
            }
            writer.write_table(pa.table(columns))
    return path


@contextlib.contextmanager
def no_free_descriptor() -> Iterator[None]:
    """Take every descriptor of this process, at a limit just above what it has open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
    held: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for file in held:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- isolation="process" -------------------------------------------------------------------------------------------


def test_an_epoch_needs_few_descriptors_in_the_process_that_trains(wide: str) -> None:
    said = run(
        """
        limited(256)
        batches = iter(loader(sys.argv[1], window_rows=5000))
        held = all_but(4)
        print(sum(1 for _ in batches))
        """,
        wide,
    )
    assert said.split() == ["200"]


def test_batches_that_are_kept_hold_no_descriptors(wide: str) -> None:
    said = run(
        """
        batches = iter(loader(sys.argv[1], window_rows=1000))
        first = next(batches)
        before = len(os.listdir("/proc/self/fd"))
        kept = [first, *batches]
        print(len(kept), len(os.listdir("/proc/self/fd")) - before)
        """,
        wide,
    )
    count, descriptors = map(int, said.split())
    assert count == 200
    assert descriptors <= 0


def test_no_free_descriptor_is_an_error_that_says_what_to_do(wide: str) -> None:
    said = run(
        """
        limited(256)
        batches = iter(loader(sys.argv[1], window_rows=5000))
        held = all_but(0)
        try:
            next(batches)
        except OpenFilesError as error:
            print(error.errno, error)
        """,
        wide,
    )
    assert said.startswith(
        "24 isolation='process': a window cannot be received: no free file descriptor is left of 256"
    )
    assert "at least 1 more is needed" in said
    assert "ulimit -n 4096" in said


def test_a_process_that_cannot_be_started_for_want_of_descriptors_says_so(wide: str) -> None:
    said = run(
        """
        limited(256)
        made = loader(sys.argv[1])
        len(made)
        held = all_but(1)
        try:
            iter(made)
        except OpenFilesError as error:
            print(error)
        """,
        wide,
    )
    assert "no process can be started" in said


def test_a_reader_without_descriptors_tells_the_caller(wide: str) -> None:
    said = run(
        """
        limited(24)  # the hard limit, which the process that reads cannot raise
        made = loader(sys.argv[1], window_rows=5000, num_threads=2)
        os.environ["HELD"] = "1"
        import parquet_loader.engine.child.process as isolated
        isolated._START = isolated._START.replace("main(int", "import os; [os.dup(0) for _ in range(13)]\\nmain(int")
        try:
            list(made)
        except OpenFilesError as error:
            print("told:", error)
        """,
        wide,
    )
    assert said.startswith("told:"), said
    assert "ulimit -n" in said


def test_a_second_of_ctrl_c_does_not_wait_for_a_stopped_reader(wide: str) -> None:
    said = run(
        """
        made = loader(sys.argv[1], window_rows=5000)
        batches = iter(made)
        next(batches)
        os.kill(made._reading_process._child.process.pid, signal.SIGSTOP)
        try:
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
            for _ in batches:
                pass
        except KeyboardInterrupt:
            print("interrupted")
        """,
        wide,
    )
    assert said.split() == ["interrupted"]


def test_ctrl_c_in_the_middle_of_a_message_is_heard(wide: str) -> None:
    said = run(
        """
        import socket
        from parquet_loader.engine.child.channel import Channel
        ours, theirs = socket.socketpair()
        theirs.sendall(bytes([100, 0, 0, 0, 0, 0, 0, 0]) + b"the beginning")  # and nothing more
        from parquet_loader.engine.child import client as isolated
        made = loader(sys.argv[1], window_rows=5000)
        batches = iter(made)
        made._reading_process._child.channel._end = ours
        try:
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
            next(batches)
        except KeyboardInterrupt:
            print("interrupted")
        """,
        wide,
    )
    assert said.split() == ["interrupted"]


# ---- in this process -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_file_that_cannot_be_opened_for_now_is_neither_damaged_nor_skipped(tmp_path: Path, on_error: str) -> None:
    for number in range(4):
        pq.write_table(pa.table({"id": range(number * 10, number * 10 + 10)}), tmp_path / f"{number}.parquet")
    loader = BatchedDataLoader(tmp_path, 5, on_error=on_error, output_options=NUMPY)  # type: ignore[arg-type]
    len(loader)
    with (
        no_free_descriptor(),
        pytest.raises(OpenFilesError, match=r"row group 0: the file cannot be opened.*ulimit -n"),
    ):
        list(loader)
    assert sum(len(batch["id"]) for batch in loader) == 40


def test_a_footer_that_cannot_be_read_for_now_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(10)}), path)
    file = SourceFile(str(path), path.stat().st_size, path.stat().st_mtime_ns)
    with no_free_descriptor(), pytest.raises(OpenFilesError, match=r"a\.parquet: the file cannot be opened"):
        read_footer(pafs.LocalFileSystem(), file)


def test_a_directory_that_cannot_be_listed_for_now_says_why(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "a.parquet")
    with no_free_descriptor(), pytest.raises(OpenFilesError, match="cannot be listed: no free file descriptor"):
        BatchedDataLoader(tmp_path, 5, output_options=NUMPY)


@pytest.mark.filterwarnings("ignore:Exception ignored:pytest.PytestUnraisableExceptionWarning")  # of asyncio's loop
def test_fetching_that_cannot_begin_for_want_of_descriptors_says_so(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "a.parquet")
    store = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())  # stands for an object store
    with no_free_descriptor(), pytest.raises(OpenFilesError, match="ulimit -n"):
        BatchedDataLoader("a.parquet", 5, filesystem=store, output_options=NUMPY)
    gc.collect()


def test_a_store_forgets_no_commit_and_no_lease_that_cannot_be_opened_for_now(tmp_path: Path) -> None:
    places = StorePaths(str(tmp_path))
    places.make()
    lease = Path(places.readers) / "0123456789abcdef"
    lease.write_bytes(b"{}\n")
    (Path(places.commits) / "0123456789abcdef").write_text("[]", encoding="utf-8")
    with no_free_descriptor():
        with pytest.raises(OSError, match="Too many open files"):
            read_lease(str(lease))
        with pytest.raises(OSError, match="Too many open files"):
            list(read_commits(places, "00000000"))


@pytest.mark.parametrize("use", ["epoch", "files", "status", "snapshot", "writer", "hold"])
def test_a_store_that_cannot_be_read_for_want_of_descriptors_says_so(tmp_path: Path, use: str) -> None:
    store = SampleStore(tmp_path, schema=Schema({"x": Scalar("int64")}))
    with store.writer() as writer:
        writer.write({"x": np.arange(100)})
    loader = BatchedDataLoader(store, 10, output_options=NUMPY)
    next(iter(loader))
    state = loader.state_dict()
    loader.reset()
    tried: dict[str, Callable[[], object]] = {
        "epoch": lambda: list(loader),
        "files": store.files,
        "status": store.status,
        "snapshot": lambda: store.snapshot().__enter__(),
        "writer": store.writer,
        "hold": lambda: store.hold(state),
    }
    with (
        no_free_descriptor(),
        pytest.raises(OpenFilesError, match=r"\.store.*no free file descriptor is left") as caught,
    ):
        tried[use]()
    assert "free some space" not in str(caught.value)
    assert sum(len(batch["x"]) for batch in loader) == 100


@pytest.mark.parametrize("use", ["files", "status", "rows"])
def test_a_store_whose_records_cannot_be_read_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    store = SampleStore(tmp_path, schema=Schema({"x": Scalar("int64")}))
    scandir = os.scandir

    def refuses(path: Any) -> Any:
        if str(path).endswith("commits"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return scandir(path)

    (tmp_path / ".store" / "ledger").write_bytes(b"damaged")  # so that `rows` counts the files
    monkeypatch.setattr(os, "scandir", refuses)
    with pytest.raises(SystemReadError, match=r"\.store/commits: .*Input/output error; check the disk") as caught:
        _ = store.rows if use == "rows" else getattr(store, use)()
    assert caught.value.errno == errno.EIO


def test_the_error_survives_pickling() -> None:
    again = pickle.loads(pickle.dumps(OpenFilesError("where: what; what to do")))
    assert str(again) == "where: what; what to do"
    assert again.errno == 24


def test_shared_memory_that_cannot_be_mapped_is_running_out_of_memory() -> None:
    file = os.memfd_create("test")
    try:
        with pytest.raises(OutOfMemoryError, match=r"cannot be mapped: .*; keep fewer batches.*vm\.max_map_count"):
            map_shared(file, 2**62)
    finally:
        os.close(file)
