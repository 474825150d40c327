"""However an epoch ends, it ends at once and leaves no thread, child process or open file behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader
from parquet_loader.errors import ParquetLoaderError
from tests.support.datasets import Layout, write_layout, write_numbered
from tests.support.examples import grid
from tests.support.footers import column_chunk, put, rewrite_footer
from tests.support.processes import children

# On a machine of its own everything ends within a second; on a busy one a hang must still be told from a slow start.
SECONDS_TO_END = float(os.environ.get("SECONDS_TO_END", "60"))
BATCHES = 30


@pytest.fixture
def root(tmp_path: Path) -> str:
    """30 batches of 10 rows in files of several row groups."""
    write_layout(
        Layout(((30, 20), (50,), (25,) * 8), ("double", "text", "ragged"), dictionary=False), str(tmp_path / "data")
    )
    return str(tmp_path / "data")


def loader_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("parquet_loader")]


def open_files(root: str) -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if target.startswith((root, "/memfd:")):
            found.append(target)
    return found


def assert_nothing_is_left(root: str, started: float) -> None:
    """All ends within a second of `started`, without help from `close()`."""
    for thread in loader_threads():
        thread.join(max(0.0, started + SECONDS_TO_END - time.monotonic()))
    left = [t.name for t in loader_threads()]
    assert not left, f"threads left: {left}"
    assert time.monotonic() - started < SECONDS_TO_END
    assert open_files(root) == []
    assert children() == set()


# ---- abandoned -----------------------------------------------------------------------------------------------------


@grid(
    "window_rows, shuffle",
    [pytest.param(10, id="narrow windows"), pytest.param(75, id="windows"), pytest.param(None, id="one window")],
    [pytest.param(False, id="False"), pytest.param(True, id="True")],
    everyday=lambda window_rows, shuffle: window_rows and shuffle == (window_rows == 10),
)
def test_an_iterator_abandoned_at_any_batch_ends(root: str, shuffle: bool, window_rows: int | None) -> None:
    with BatchedDataLoader(root, 10, shuffle=shuffle, window_rows=window_rows, num_threads=3) as loader:
        for taken in range(BATCHES + 1):
            iterator = iter(loader)
            for _ in range(taken):
                next(iterator)
            started = time.monotonic()
            del iterator
            if taken == BATCHES:
                loader.reset()  # the next epoch is read ahead
            assert_nothing_is_left(root, started)
        assert len(list(loader)) == BATCHES


def test_leaving_the_loop_ends_the_epoch(root: str) -> None:
    with BatchedDataLoader(root, 10, window_rows=20) as loader:
        for stop in range(1, BATCHES, 4):
            for number, _ in enumerate(loader, 1):
                if number == stop:
                    break
            assert_nothing_is_left(root, time.monotonic())


def test_closing_the_loader_ends_an_epoch_at_any_batch(root: str) -> None:
    for taken in range(0, BATCHES + 1, 3):
        loader = BatchedDataLoader(root, 10, window_rows=20)
        iterator = iter(loader)
        for _ in range(taken):
            next(iterator)
        started = time.monotonic()
        loader.close()
        assert_nothing_is_left(root, started)


def test_leaving_the_with_block_by_an_exception_ends_the_epoch(root: str) -> None:
    def leave() -> None:
        with BatchedDataLoader(root, 10, window_rows=20) as loader:
            for _ in loader:
                raise MishapError

    with pytest.raises(MishapError):
        leave()
    assert_nothing_is_left(root, time.monotonic())


def test_an_unfinished_iterator_and_its_loader_are_collected(root: str) -> None:
    loader = BatchedDataLoader(root, 10, window_rows=20)
    iterator = iter(loader)
    next(iterator)
    gone = weakref.ref(loader)
    started = time.monotonic()
    del loader, iterator
    gc.collect()
    assert gone() is None
    assert_nothing_is_left(root, started)


def test_an_unfinished_iterator_in_a_reference_cycle_is_collected(root: str) -> None:
    class Holder:
        pass

    holder = Holder()
    holder.myself = holder  # type: ignore[attr-defined]
    holder.iterator = iter(BatchedDataLoader(root, 10, window_rows=20))  # type: ignore[attr-defined]
    next(holder.iterator)  # type: ignore[attr-defined]
    started = time.monotonic()
    del holder
    gc.collect()
    assert_nothing_is_left(root, started)


def test_an_iterator_outlives_the_name_of_its_loader(root: str) -> None:
    assert sum(len(batch["id"]) for batch in iter(BatchedDataLoader(root, 10, window_rows=20))) == 10 * BATCHES
    assert_nothing_is_left(root, time.monotonic())


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("is_iterated", [False, True])
def test_a_closed_loader_needs_no_garbage_collector(root: str, isolation: Any, is_iterated: bool) -> None:
    """Whose turn comes late beside torch: footers would pile up for ten thousand files, and then stop training."""

    def kept() -> int:
        return sum(type(found) in {pq.FileMetaData, BatchedDataLoader} for found in gc.get_objects())

    def load() -> None:
        with BatchedDataLoader(root, 10, shuffle=True, isolation=isolation) as loader:
            for _ in loader if is_iterated else ():
                pass

    load()
    gc.collect()
    gc.disable()
    try:
        before = kept()
        load()
        assert kept() == before
    finally:
        gc.enable()


def test_a_finished_epoch_leaves_nothing_after_reset_while_the_loader_lives(root: str) -> None:
    loader = BatchedDataLoader(root, 10, window_rows=20)
    for _ in range(3):
        assert len(list(loader)) == BATCHES
        loader.reset()  # releases what is read of the next epoch
        assert_nothing_is_left(root, time.monotonic())
    loader.close()


def test_a_loader_that_is_never_iterated_leaves_nothing(root: str) -> None:
    loader = BatchedDataLoader(root, 10)
    assert len(loader) == BATCHES
    loader.plan()
    repr(loader)
    assert_nothing_is_left(root, time.monotonic())
    loader.close()


# ---- an exception in every stage -----------------------------------------------------------------------------------


class MishapError(Exception):
    pass


def _transform_fails(columns: Any, rng: Any) -> Any:
    if (columns["id"] == 77).any():
        raise MishapError
    return columns


def _break_nothing(files: list[str]) -> None:
    pass


def _break_the_read(files: list[str]) -> None:
    os.unlink(files[-1])


def _break_the_page(files: list[str]) -> None:
    offset = pq.ParquetFile(files[-1]).metadata.row_group(4).column(1).data_page_offset
    before = os.stat(files[-1])
    with open(files[-1], "r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * 30)
    os.utime(files[-1], ns=(before.st_atime_ns, before.st_mtime_ns))


def _break_the_chunk(files: list[str]) -> None:
    rewrite_footer(files[-1], lambda footer: put(column_chunk(footer, 4, 1), 9, 2**30))


def _break_the_footer(files: list[str]) -> None:
    os.truncate(files[-1], 50)


def _break_the_values(files: list[str]) -> None:
    table = pq.read_table(files[-1])
    text = table["text"].to_pylist()
    text[100] = None
    table = table.set_column(table.schema.get_field_index("text"), "text", pa.array(text, pa.string()))
    pq.write_table(table, files[-1], row_group_size=25)


STAGES: dict[str, tuple[Callable[[list[str]], None], bool, Any]] = {
    "footer": (_break_the_footer, True, None),
    "file gone": (_break_the_read, False, None),
    "page": (_break_the_page, True, None),
    "offset": (_break_the_chunk, True, None),
    "null": (_break_the_values, True, None),
    "transform": (_break_nothing, True, _transform_fails),
}


@grid(
    "stage, window_rows, shuffle",
    [pytest.param(stage, id=stage) for stage in STAGES],
    [pytest.param(10, id="narrow windows"), pytest.param(None, id="one window")],
    [pytest.param(False, id="False"), pytest.param(True, id="True")],
    everyday=lambda stage, window_rows, shuffle: shuffle == (window_rows is not None),
)
def test_an_exception_in_any_stage_ends_the_epoch(
    root: str, stage: str, shuffle: bool, window_rows: int | None
) -> None:
    break_it, at_first, transform = STAGES[stage]
    files = sorted(str(path) for path in Path(root).iterdir())
    options = {"shuffle": shuffle, "window_rows": window_rows, "transform": transform, "num_threads": 3}
    loaders = []
    if at_first:
        break_it(files)

    def run() -> None:
        loader = BatchedDataLoader(root, 10, **options)
        loaders.append(loader)
        assert len(loader) == BATCHES
        if not at_first:
            break_it(files)
        for _ in loader:
            pass

    with pytest.raises((ParquetLoaderError, MishapError)):
        run()
    assert_nothing_is_left(root, time.monotonic())
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_exception_in_the_loop_ends_the_epoch(root: str, shuffle: bool) -> None:
    loader = BatchedDataLoader(root, 10, shuffle=shuffle, window_rows=20)
    with pytest.raises(MishapError):
        _raise_in_the_loop(loader)
    gc.collect()
    assert_nothing_is_left(root, time.monotonic())
    assert len(list(loader)) == BATCHES
    loader.close()


def _raise_in_the_loop(loader: BatchedDataLoader) -> None:
    for number, _ in enumerate(loader):
        if number == 5:
            raise MishapError


# ---- whole processes -----------------------------------------------------------------------------------------------

PREAMBLE = """
import gc, os, select, signal, sys, threading
from parquet_loader import BatchedDataLoader, OutputOptions

def wait_for_a_signal():
    while True:  # signal.pause() would wait for ever if the signal came just before it
        select.select([], [], [], 0.05)

def left():
    threads = [t for t in threading.enumerate() if t.name.startswith("parquet_loader")]
    for thread in threads:
        thread.join(60)
    return [t.name for t in threads if t.is_alive()]

root = sys.argv[1]
options = dict(shuffle=True, window_rows=20, num_threads=3, output_options=OutputOptions(format=sys.argv[2]))
"""


def start(root: str, code: str, output: str = "numpy") -> subprocess.Popen[str]:
    """Start a script in a session of its own, where everything it leaves behind can be found.

    With arrays for an output it starts without torch, in a third of the time.
    """
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PREAMBLE + textwrap.dedent(code), root, output],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=Path(__file__).parents[2],
    )


def assert_session_is_empty(process: subprocess.Popen[str]) -> None:
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if line != word:
        process.kill()
        raise AssertionError(f"{line!r} instead of {word!r}: {process.communicate()[1]}")


def finish(process: subprocess.Popen[str], seconds: float) -> tuple[str, str]:
    try:
        return process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"still running after {seconds} s: {out} {err}")


INTERRUPTED = {
    "in the loop": """
        with BatchedDataLoader(root, 10, **options) as loader:
            try:
                while True:
                    for number, batch in enumerate(loader):
                        if number == 3:
                            print("ready", flush=True)
                            wait_for_a_signal()
            except KeyboardInterrupt:
                del batch
                print("interrupted", left(), flush=True)
        """,
    "while it waits for a batch": """
        never, once = threading.Event(), threading.Lock()
        def transform(columns, rng):
            if 100 in columns["id"] and once.acquire(blocking=False):
                print("ready", flush=True)
                never.wait(0.5)
            return columns
        loader = BatchedDataLoader(root, 10, transform=transform, **options)
        try:
            while True:
                for batch in loader:
                    pass
        except KeyboardInterrupt:
            print("interrupted", left(), flush=True)
        """,
    "and nobody catches it": """
        loader = BatchedDataLoader(root, 10, **options)
        for number, batch in enumerate(loader):
            if number == 3:
                print("ready\\ninterrupted []", flush=True)
                wait_for_a_signal()
        """,
}


@pytest.mark.parametrize(
    ("place", "output"),
    [*((place, "numpy") for place in INTERRUPTED), pytest.param("in the loop", "torch", marks=pytest.mark.slow)],
)
def test_control_c_ends_the_process(root: str, place: str, output: str) -> None:
    process = start(root, INTERRUPTED[place], output)
    wait_for(process, "ready")
    process.send_signal(signal.SIGINT)
    wait_for(process, "interrupted []")
    _, err = finish(process, 60)
    if place == "and nobody catches it":
        assert process.returncode == -signal.SIGINT
        assert err.rstrip().endswith("KeyboardInterrupt")
        assert "Exception ignored" not in err
        assert "Fatal" not in err
    else:
        assert (process.returncode, err) == (0, "")
    assert_session_is_empty(process)


EXITS = {
    "with the iterator alive": """
        loader = BatchedDataLoader(root, 10, **options)
        iterator = iter(loader)
        next(iterator)
        print("ready", flush=True)
        """,
    "by sys.exit in the loop": """
        for batch in BatchedDataLoader(root, 10, **options):
            print("ready", flush=True)
            sys.exit(0)
        """,
    "in a function of a thread": """
        def work():
            for number, batch in enumerate(BatchedDataLoader(root, 10, **options)):
                if number == 2:
                    return
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        print("ready", flush=True)
        """,
    "with the iterator in a cycle": """
        class Holder: pass
        holder = Holder()
        holder.me = holder
        holder.loader = BatchedDataLoader(root, 10, **options)
        holder.iterator = iter(holder.loader)
        next(holder.iterator)
        sys.modules["kept"] = holder
        print("ready", flush=True)
        """,
}


@pytest.mark.parametrize(
    "way",
    [
        "with the iterator alive",
        "in a function of a thread",
        pytest.param("by sys.exit in the loop", marks=pytest.mark.slow),
        pytest.param("with the iterator in a cycle", marks=pytest.mark.slow),
    ],
)
def test_the_interpreter_exits_in_the_middle_of_an_epoch(root: str, way: str) -> None:
    process = start(root, EXITS[way], "torch" if way == "with the iterator alive" else "numpy")
    wait_for(process, "ready")
    out, err = finish(process, 60)
    assert (process.returncode, out, err) == (0, "", "")
    assert_session_is_empty(process)


def test_a_killed_process_leaves_nothing(root: str) -> None:
    process = start(root, EXITS["with the iterator alive"] + "\n        wait_for_a_signal()")
    wait_for(process, "ready")
    before = sorted(os.listdir(root))
    process.kill()
    finish(process, 60)
    assert_session_is_empty(process)
    assert sorted(os.listdir(root)) == before


def test_a_forked_child_iterates_the_same_loader_and_so_does_its_parent(root: str) -> None:
    process = start(
        root,
        """
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        loader = BatchedDataLoader(root, 10, **options)
        whole = [batch["id"].tolist() for batch in loader]
        iterator = iter(loader)
        second = [next(iterator)["id"].tolist()]
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            del iterator
            fresh = BatchedDataLoader(root, 10, **options)
            same = [batch["id"].tolist() for batch in fresh] == whole
            loader.set_epoch(0)
            same = same and [batch["id"].tolist() for batch in loader] == whole
            os._exit(0 if same else 1)
        status = os.waitpid(child, 0)[1]
        second += [batch["id"].tolist() for batch in iterator]
        same = sorted(sum(second, [])) == sorted(sum(whole, []))
        loader.reset()  # the next epoch is read ahead
        print("child", os.waitstatus_to_exitcode(status), len(second), same)
        print(left())
        """,
    )
    out, err = finish(process, 60)
    assert (out.split("\n")[:2], err) == (["child 0 30 True", "[]"], "")
    assert_session_is_empty(process)


# ---- many epochs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "last"), [(30, 79), pytest.param(60, 199, marks=pytest.mark.slow)])
def test_many_epochs_hold_memory_threads_and_open_files_flat(tmp_path: Path, first: int, last: int) -> None:
    write_layout(Layout(((2000,) * 4, (3000,)), ("double", "text", "ragged")), str(tmp_path))
    me = psutil.Process()
    held: dict[int, tuple[int, int, int]] = {}
    with BatchedDataLoader(str(tmp_path), 500, shuffle=True, window_rows=4000, num_threads=2) as loader:
        for epoch in range(last + 1):
            batches = sum(1 for _ in loader)
            assert batches == 22
            if epoch in {first, last}:
                gc.collect()
                held[epoch] = (me.memory_info().rss, me.num_fds(), me.num_threads())
    (rss, fds, threads), (rss_after, fds_after, threads_after) = held[first], held[last]
    assert rss_after - rss < 16 * 2**20
    # The next epoch's first windows are being read, with more files open or fewer. A leak of one an epoch would be 49.
    assert fds_after - fds < 20
    assert threads_after - threads < 5


@pytest.mark.slow  # the test before counts the same over epochs
@pytest.mark.parametrize(("first", "last"), [(30, 79), pytest.param(60, 199, marks=pytest.mark.slow)])
def test_many_loaders_hold_memory_threads_and_open_files_flat(tmp_path: Path, first: int, last: int) -> None:
    write_numbered(str(tmp_path), ((200,) * 3,), ("double",))
    me = psutil.Process()
    held: dict[int, tuple[int, int, int]] = {}
    for number in range(last + 1):
        iterator: Iterator[Any] = iter(BatchedDataLoader(str(tmp_path), 50, shuffle=True, window_rows=100))
        next(iterator)
        del iterator
        if number in {first, last}:
            gc.collect()
            held[number] = (me.memory_info().rss, me.num_fds(), me.num_threads())
    (rss, fds, threads), (rss_after, fds_after, threads_after) = held[first], held[last]
    assert rss_after - rss < 16 * 2**20
    # The worker of an epoch that was left may still be ending. A leak of one a loader would be 49.
    assert fds_after - fds < 20
    assert threads_after - threads < 5
