"""``isolation="process"``: the same batches from a process of its own, which never outlives its use."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from parquet_loader import BatchedDataLoader
from parquet_loader.engine.child import client
from parquet_loader.engine.child.channel import Channel
from parquet_loader.engine.child.client import ReadingProcess
from parquet_loader.engine.child.process import NICENESS
from parquet_loader.engine.child.shared_memory import SharedMemoryReceiver, SharedMemorySender
from parquet_loader.engine.engine import Engine
from parquet_loader.errors import DataError, LoaderStateError, ReadingProcessError, TransformError
from parquet_loader.schema.ragged import Ragged
from tests.support import oracle
from tests.support.datasets import Layout, write_layout, write_numbered
from tests.support.processes import children, needs_transform_processes
from tests.support.signals import interrupted_at_random_moments
from tests.support.transforms import failing, of_all_kinds, unequal

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="isolation='process' needs Linux (memfd)"),
]

KINDS = ("double", "flag", "half_null", "text", "blob", "ragged", "ragged_text", "wide", "decimal", "category")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """300 rows of several kinds of columns, in files of several row groups."""
    path = str(tmp_path_factory.mktemp("isolation") / "data")
    write_layout(Layout(((30, 20), (50,), (25,) * 8), KINDS, dictionary=False), path)
    return path


def isolated(source: str, batch_size: int = 10, **options: Any) -> BatchedDataLoader:
    return BatchedDataLoader(source, batch_size, isolation="process", **options)


def assert_same(one: Any, other: Any) -> None:
    """Equal bit for bit: names, dtypes, shapes and values."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, Ragged):
        assert one.kind == other.kind
        assert_same(one.values, other.values)
        assert_same(one.offsets, other.offsets)
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.numpy().tobytes() == other.numpy().tobytes()


@pytest.mark.parametrize(
    ("options", "transform"),
    [
        pytest.param({"shuffle": True, "window_rows": 70}, None, marks=pytest.mark.slow),
        ({"shuffle": True, "num_threads": 1}, of_all_kinds),
        pytest.param({"drop_last": True}, of_all_kinds, marks=pytest.mark.slow),
    ],
)
def test_the_batches_are_those_of_threads_bit_for_bit(root: str, options: dict[str, Any], transform: Any) -> None:
    with BatchedDataLoader(root, 7, transform=transform, **options) as threads:
        expected = [list(threads), list(threads)]
    with isolated(root, 7, transform=transform, **options) as process:
        for epoch in expected:  # all of an epoch's batches are kept while it goes on, and then the next one is read
            assert_same(list(process), epoch)


@pytest.mark.slow  # the batches are compared to those of threads above
def test_every_row_comes_once(root: str) -> None:
    with isolated(root, shuffle=True, window_rows=40) as loader:
        delivered = oracle.delivered_columns(loader)
    oracle.assert_columns_equal(delivered, oracle.expected_columns(root), ordered=False)


def test_batches_that_are_kept_never_change_and_never_stall_reading(tmp_path: Path) -> None:
    rows = 20_000
    values = np.arange(rows * 64, dtype="f4").reshape(rows, 64)
    rows_as_bytes = pa.FixedSizeBinaryArray.from_buffers(pa.binary(256), rows, [None, pa.py_buffer(values.tobytes())])
    table = pa.table({"id": np.arange(rows), "wide": rows_as_bytes})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1000)
    with isolated(str(tmp_path), 100, shuffle=True, window_rows=2000, memory_limit="16MiB") as loader:
        kept = [batch for _ in range(3) for batch in loader]
    assert len(kept) == 600
    for batch in kept:
        wide = batch["wide"].numpy().view("f4")
        assert (wide == values[batch["id"].numpy()]).all()


@pytest.mark.parametrize("window_rows", [40, pytest.param(300, marks=pytest.mark.slow)])
def test_any_position_may_be_chosen_after_an_epoch_whose_next_one_was_prepared(root: str, window_rows: int) -> None:
    options: dict[str, Any] = {"shuffle": True, "window_rows": window_rows}
    with isolated(root, **options) as loader, BatchedDataLoader(root, 10, **options) as threads:
        for epoch, batch in ((0, 0), (1, 0), (5, 0), (6, 3), (2, 29), (3, 0), (1, 0)):
            for each in (loader, threads):
                each.seek(epoch, batch)
            assert_same(list(loader), list(threads))


def test_images_of_any_size(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    from parquet_loader import Image, Schema, write_dataset

    def png(size: int) -> bytes:
        data = io.BytesIO()
        image.new("RGB", (size, size + 1), (size, 2, 3)).save(data, "PNG")
        return data.getvalue()

    schema = Schema({"image": Image()})
    write_dataset({"image": [png(3 + n % 5) for n in range(40)]}, str(tmp_path), schema)
    with BatchedDataLoader(str(tmp_path), 8) as threads, isolated(str(tmp_path), 8) as process:
        assert_same(list(process), list(threads))


@pytest.mark.parametrize("moment", ["start_process", "send"])
def test_closing_while_the_process_starts_is_the_error_of_the_thread_that_began(
    root: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    begun, stopped, raised = threading.Event(), threading.Event(), list[Exception]()
    place: Any = client if moment == "start_process" else Channel
    original, stop = getattr(place, moment), ReadingProcess.stop

    def paused(*arguments: Any, **options: Any) -> Any:
        made = original(*arguments, **options) if moment == "start_process" else None
        begun.set()
        assert stopped.wait(60)
        return original(*arguments, **options) if moment == "send" else made

    def stopping(*arguments: Any) -> None:
        stop(*arguments)
        if threading.current_thread() is threading.main_thread():
            stopped.set()

    def iterate() -> None:
        try:
            next(iter(loader))
        except Exception as error:
            raised.append(error)

    loader = isolated(root)
    monkeypatch.setattr(place, moment, paused)
    monkeypatch.setattr(ReadingProcess, "stop", stopping)
    thread = threading.Thread(target=iterate)
    thread.start()
    assert begun.wait(60)
    loader.close()
    thread.join()
    (error,) = raised
    assert isinstance(error, LoaderStateError)
    assert "the loader was closed or reset before the last batch" in str(error)
    assert children() == set()


# ---- errors --------------------------------------------------------------------------------------------------------


def test_a_damaged_page_is_the_same_error_in_the_same_place(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((50, 50, 50, 50),))
    (file,) = tmp_path.glob("*.parquet")
    chunk, before = pq.read_metadata(file).row_group(2).column(0), os.stat(file)
    with file.open("r+b") as opened:
        opened.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
        opened.write(b"\xff" * 30)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    found = []
    for isolation in ("thread", "process"):
        delivered = 0
        with BatchedDataLoader(str(tmp_path), 10, window_rows=20, isolation=isolation) as loader:
            with pytest.raises(DataError) as raised:  # noqa: PT012
                for _ in loader:
                    delivered += 1
            found.append((str(raised.value), delivered, "".join(getattr(raised.value, "__notes__", []))))
            assert children() == set()
    assert found[0][:2] == found[1][:2]
    assert "in the child process that reads" in found[1][2]


def test_what_a_transform_raises_arrives(root: str) -> None:
    with (
        isolated(root, transform=unequal) as loader,
        pytest.raises(TransformError, match="expected the batch's 10 rows"),
    ):
        next(iter(loader))
    with (
        isolated(root, transform=failing) as loader,
        pytest.raises(ReadingProcessError, match=r"OddError: odd 1 and 2"),
    ):
        next(iter(loader))
    assert children() == set()


def test_a_transform_that_cannot_be_sent_is_refused_at_once(root: str) -> None:
    lock = threading.Lock()
    with pytest.raises(ValueError, match=r"transform=.* cannot be sent to another process"):
        isolated(root, transform=lambda columns, rng: columns if lock.locked() else {})


def test_what_cannot_be_brought_in_there_is_raised_here(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def same(columns, rng):\n    return columns\n", encoding="utf-8")
    with monkeypatch.context() as patched:
        patched.syspath_prepend(str(tmp_path))
        loader = isolated(root, transform=importlib.import_module("only_here").same)
    with loader, pytest.raises(ModuleNotFoundError, match="only_here") as raised:
        next(iter(loader))
    assert "raised while transform was unpickled in the child process that reads" in raised.value.__notes__
    assert children() == set()


# ---- endings -------------------------------------------------------------------------------------------------------


def test_a_killed_reading_process_raises_at_once_and_the_next_pass_starts_another(root: str) -> None:
    with isolated(root, shuffle=True, window_rows=20) as loader:
        iterator = iter(loader)
        next(iterator)
        (child,) = children()
        child.kill()
        with pytest.raises(ReadingProcessError, match=r"killed by SIGKILL \(exit code -9\)") as raised:
            list(iterator)
        assert raised.value.exitcode == -9
        assert len(list(loader)) == 30
        (idle,) = children()
        idle.kill()
        idle.wait(60)
        assert len(list(loader)) == 30


def test_a_reading_process_that_ends_while_an_epoch_begins_is_named(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with isolated(root) as loader:
        list(loader)
        (idle,) = children()
        idle.kill()
        assert loader._reading_process is not None
        child = loader._reading_process._child
        assert child is not None
        assert child.process.wait(60) == -signal.SIGKILL
        with monkeypatch.context() as patched:
            patched.setattr(child.process, "poll", lambda: None)  # it was asked just before
            with pytest.raises(ReadingProcessError, match="killed by SIGKILL"):
                iter(loader)
        assert len(list(loader)) == 30


@pytest.mark.parametrize(
    "options",
    [
        {"isolation": "process"},
        pytest.param({"transform": of_all_kinds, "transform_workers": 1}, marks=needs_transform_processes),
    ],
)
def test_a_frozen_program_is_not_started_again(
    root: str, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)  # as PyInstaller; sys.executable is the program
    with BatchedDataLoader(root, 64, **options) as loader, pytest.raises(ReadingProcessError, match="a frozen program"):
        next(iter(loader))
    assert children() == set()


def test_the_reading_process_lets_the_caller_go_first(root: str) -> None:
    with isolated(root) as loader:
        list(loader)
        (child,) = children()
        assert child.nice() == min(psutil.Process().nice() + NICENESS, 19)
    assert children() == set()


@pytest.mark.parametrize("places", [(11,), pytest.param((1, 11, 29), marks=pytest.mark.slow)])
def test_a_pass_left_early_leaves_no_process_and_a_finished_one_keeps_it_until_the_loader_goes(
    root: str, places: tuple[int, ...]
) -> None:
    loader = isolated(root, window_rows=20)
    for taken in places:
        for number, _ in enumerate(loader, 1):
            if number == taken:
                break
        assert children() == set()
    list(loader)
    (child,) = children()
    list(loader)
    assert children() == {child}
    del loader
    gc.collect()
    assert children() == set()


@pytest.mark.parametrize("transform_workers", [0, pytest.param(1, marks=[needs_transform_processes, pytest.mark.slow])])
def test_a_killed_process_that_ends_late_is_no_error_of_close(
    root: str, monkeypatch: pytest.MonkeyPatch, transform_workers: int
) -> None:
    options = {"transform": of_all_kinds, "transform_workers": 1} if transform_workers else {"isolation": "process"}
    loader = BatchedDataLoader(root, 10, **options)
    next(iterator := iter(loader))
    late = list[Any]()

    def too_late(process: Any, timeout: float | None = None) -> int:
        late.append(process)
        raise subprocess.TimeoutExpired(process.args, timeout or 0)

    with monkeypatch.context() as patched:
        patched.setattr(subprocess.Popen, "wait", too_late)
        loader.close()
    del iterator
    assert late
    for process in late:
        assert process.wait(60) in (0, -signal.SIGKILL)  # the end of its socket ends it, too


@pytest.mark.slow  # test_open_files.py counts the files of an epoch
def test_a_thousand_columns_do_not_take_a_thousand_files(tmp_path: Path) -> None:
    rows = 200
    columns = {f"number{i}": np.arange(rows).astype(["float32", "int64", "int8", "int16"][i % 4]) for i in range(400)}
    texts = {f"text{i}": ["ab" * (row % 7) for row in range(rows)] for i in range(100)}
    pq.write_table(pa.table(columns | texts), tmp_path / "wide.parquet", row_group_size=50)
    with isolated(str(tmp_path), shuffle=True, window_rows=100) as loader:
        for _ in range(2):
            assert sum(len(batch["number0"]) for batch in loader) == rows
            (child,) = children()
            assert psutil.Process().num_fds() < 150
            assert child.num_fds() < 150


def test_passes_leave_open_files_and_mappings_as_they_were(root: str) -> None:
    def seen(process: psutil.Process) -> tuple[int, int]:
        maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8").count("memfd:parquet_loader")
        return process.num_fds(), maps

    with isolated(root, shuffle=True, window_rows=20) as loader:
        for _ in range(3):
            list(loader)
        (child,) = children()
        before = seen(psutil.Process()), seen(child)
        for _ in range(8):
            list(loader)
        after = seen(psutil.Process()), seen(child)
    assert after[0][0] - after[0][1] <= before[0][0] - before[0][1]  # each mapping keeps its file
    assert after[1][0] <= before[1][0] + 6  # footers, and files that are read ahead; less than one file an epoch
    for seen_before, seen_after in zip(before, after, strict=True):
        assert seen_after[1] <= 1.2 * seen_before[1] + 5


SCRIPT = """
    import os, signal, sys
    from parquet_loader import BatchedDataLoader, OutputOptions

    numpy = OutputOptions(format="numpy")  # imports no torch
    scale = 3
    def scaled(columns, rng):
        return {"id": columns["id"] * scale}

    loader = BatchedDataLoader(sys.argv[1], 10, isolation="process", transform=scaled, output_options=numpy)
    total = 0
    for batch in loader:
        total += int(batch["id"].sum())
    print(total, flush=True)
    iterator = iter(loader)
    next(iterator)
    print(*[p.pid for p in __import__("psutil").Process().children()], flush=True)
    ENDING
"""


def numbered(path: Path) -> str:
    write_numbered(str(path / "numbered"), ((100, 100), (100,)))
    return str(path / "numbered")


def running(code: str, source: str, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-", source]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )
    assert process.stdin is not None
    process.stdin.write(textwrap.dedent(code))
    process.stdin.close()
    process.stdin = None
    return process


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        assert process.stderr is not None
        pytest.fail(process.stderr.read())
    return line


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("sys.exit(7)", 7),
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", -9, marks=pytest.mark.slow),
        pytest.param("os._exit(3)", 3, marks=pytest.mark.slow),
        pytest.param("raise KeyboardInterrupt", -2, marks=pytest.mark.slow),
        ("if not os.fork():\n        signal.pause()\n    os.kill(os.getpid(), signal.SIGKILL)", -9),
    ],
    ids=["exit", "kill", "_exit", "ctrl-c", "kill with a forked child alive"],
)
def test_a_script_without_a_main_guard_and_however_it_ends(tmp_path: Path, ending: str, code: int) -> None:
    process = running(SCRIPT.replace("ENDING", ending), numbered(tmp_path), start_new_session=True)
    try:
        assert read_line(process) == str(3 * sum(range(300)))
        (child,) = read_line(process).split()
        with contextlib.suppress(psutil.NoSuchProcess):  # it may have gone with its parent already
            psutil.Process(int(child)).wait(60)
        process.wait(60)
        assert process.returncode == code
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("attempts", [8, pytest.param(25, marks=pytest.mark.slow)])
def test_ctrl_c_at_random_moments_ends_the_process(tmp_path: Path, attempts: int) -> None:
    options = 'window_rows=20, isolation="process", output_options=OutputOptions(format="numpy")'  # imports no torch
    said = interrupted_at_random_moments(numbered(tmp_path), options, attempts=attempts, longest_s=(0.002, 0.1, 0.6))
    assert said == "done True True []"


# ---- places --------------------------------------------------------------------------------------------------------


class InWorkers(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """A loader that is made where it is used."""

    def __init__(self, source: str) -> None:
        self.source = source

    def __iter__(self) -> Any:
        with isolated(self.source) as loader:
            for batch in loader:
                yield {"id": batch["id"]}


def test_it_works_inside_the_workers_of_a_torch_data_loader(tmp_path: Path) -> None:
    batches = list(torch.utils.data.DataLoader(InWorkers(numbered(tmp_path)), batch_size=None, num_workers=2))
    assert sorted(int(i) for b in batches for i in b["id"]) == sorted([*range(300), *range(300)])
    deadline = time.monotonic() + 60
    while left := children():
        assert time.monotonic() < deadline, left
        psutil.wait_procs(left, 1)


def test_nothing_has_a_name_in_shared_memory(root: str) -> None:
    def mapped(name: str) -> set[str]:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        return {line.split(maxsplit=5)[5] for line in lines if name in line}

    before = mapped("/dev/shm/")
    with isolated(root) as loader:
        iterator = iter(loader)
        batch = next(iterator)
        assert mapped("/dev/shm/") <= before  # a collection may free semaphores of earlier tests
        assert mapped("memfd:parquet_loader")
        del batch, iterator


# ---- the pieces ----------------------------------------------------------------------------------------------------


def test_the_coming_window_is_the_one_that_comes(root: str) -> None:
    with BatchedDataLoader(root, 10, shuffle=True, window_rows=40) as loader:
        engine = loader._engine(loader._plan(0))
        assert isinstance(engine, Engine)
        assert engine.coming_window(waits=False) is None  # nothing is read before `start`
        engine.start()
        windows = []
        while (window := engine.coming_window(waits=True)) is not None:
            assert engine.coming_window(waits=False) is window
            assert engine.next_window() is window
            engine.release_previous()
            windows.append(window.rows)
        assert engine.next_window() is None
        assert sum(windows) == 300
        assert len(windows) > 2
        engine.close()
        assert engine.coming_window(waits=True) is None


def test_what_is_packed_and_not_sent_is_freed_and_its_blocks_are_sent_later() -> None:
    giver, taker = SharedMemorySender(), SharedMemoryReceiver()
    giver.arenas.keep_bytes = 2**30
    window = giver.arenas.allocate(400_000).array
    address = window.ctypes.data
    withdrawn, _ = giver.pack(window)
    del window
    giver.withdraw(withdrawn)
    again = giver.arenas.allocate(400_000).array
    assert again.ctypes.data == address
    again[:] = 5
    parcel, files = giver.pack(again)
    assert parcel.new == withdrawn.new
    for (block, nbytes), file in zip(parcel.new, files, strict=True):
        taker.add_block(block, nbytes, file)
    giver.sent(parcel)
    assert (taker.unpack(parcel) == 5).all()


def test_pieces_that_share_a_block_come_back_one_by_one() -> None:
    giver, taker = SharedMemorySender(), SharedMemoryReceiver()
    giver.arenas.keep_bytes = 2**30
    kept = []
    for number in range(50):
        window = {name: giver.arenas.allocate(400_000).array for name in "abc"}
        window["id"] = giver.arenas.allocate(1000).array
        for array in window.values():
            array[:] = number
        parcel, files = giver.pack(window)
        for (block, nbytes), file in zip(parcel.new, files, strict=True):
            taker.add_block(block, nbytes, file)
        found = taker.unpack(parcel)
        giver.sent(parcel)
        kept.append(found["id"])
        del window, found, array
        giver.take_back(taker.ended())
    assert len(giver._blocks) <= 3
    assert all((array == number).all() for number, array in enumerate(kept))


def test_a_forked_process_takes_no_pages_from_those_who_see_them() -> None:
    giver = SharedMemorySender()
    piece = giver.arenas.allocate(900_000).array
    piece[:] = 3
    child = os.fork()
    if not child:
        giver.arenas.clear()
        del piece
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (piece == 3).all()
    parcel, _ = giver.pack(piece)
    giver.sent(parcel)  # closes the files


def test_a_piece_that_is_let_go_of_takes_no_memory_whoever_its_neighbours_are() -> None:
    def shared() -> int:
        lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss_Shmem:"))

    before = shared()
    giver = SharedMemorySender()
    neighbours, others = [], []
    for _ in range(40):
        others.append(giver.arenas.allocate(900_000).array)
        neighbours.append(giver.arenas.allocate(1000).array)
        others[-1][:] = 1
        neighbours[-1][:] = 2
    del others
    giver.arenas.allocate(1)  # what has ended is looked after here
    assert shared() - before < 2 * 2**20  # of 36 MB
    assert all((array == 2).all() for array in neighbours)
    parcel, _ = giver.pack(neighbours)
    giver.sent(parcel)  # closes the files


def test_parcels_lie_in_blocks_and_blocks_come_back_when_no_array_sees_them() -> None:
    import socket

    giver, taker = SharedMemorySender(), SharedMemoryReceiver()
    ends = [Channel(end) for end in socket.socketpair()]

    def handed(thing: Any) -> Any:
        parcel, files = giver.pack(thing)
        sender = threading.Thread(target=ends[0].send, args=(parcel, files))
        sender.start()
        received = ends[1].receive()
        for block, nbytes in received.new:
            ends[1].receive_file(partial(taker.add_block, block, nbytes))
        sender.join()
        giver.sent(parcel)
        return taker.unpack(received)

    large = 16 * 2**20  # a block of its own
    block = giver.arenas.allocate(large).array
    block[:128] = 7
    arrays = {"in": block[64:128].view(np.int32), "stray": np.arange(5), "none": np.empty((0, 3)), "text": "kept"}
    found = handed(arrays)
    assert (found["in"] == arrays["in"]).all()
    assert (found["stray"] == np.arange(5)).all()
    assert found["none"].shape == (0, 3)
    assert found["text"] == "kept"
    address = block.ctypes.data
    del block, arrays
    assert giver.arenas.allocate(large).array.ctypes.data != address  # the other side still sees it
    part = found["in"][:2]
    del found
    assert len(taker.ended()) == 1  # the stray's block
    del part
    giver.take_back(taker.ended())
    assert giver.arenas.allocate(large).array.ctypes.data == address
    many = {n: giver.arenas.allocate(large).array[:4096] for n in range(300)}  # more than files fit into one message
    for n, array in many.items():
        array[:] = n % 256
    assert all((array == n % 256).all() for n, array in handed(many).items())
    del many
    small = {n: giver.arenas.allocate(n).array for n in range(1, 5000)}  # all in a few blocks
    for n, array in small.items():
        array[:] = n % 256
    parcel, files = giver.pack(small)
    giver.sent(parcel)
    assert len(files) == len(parcel.new) < 6
    assert all((array == n % 256).all() for n, array in small.items())
    for end in ends:
        end.close()
