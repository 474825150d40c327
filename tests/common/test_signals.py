import gc
import signal
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.fs as pafs
import pytest

from parquet_loader import OutputOptions, ParquetDataset, SystemReadError
from parquet_loader.common import in_order, in_threads, uninterrupted
from tests.support.datasets import write_numbered


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM, signal.SIGINT])
def test_a_signal_whose_handler_raises_does_not_interrupt_short_work(number: int) -> None:
    done: list[str] = []

    def raises(*_: object) -> None:
        raise InterruptedError("in the handler")

    def work() -> None:
        signal.raise_signal(number)
        done.append("worked")

    before = signal.signal(number, raises)
    try:
        with pytest.raises(InterruptedError, match="in the handler"):
            uninterrupted(work)
        assert signal.getsignal(number) is raises
    finally:
        signal.signal(number, before)
    assert done == ["worked"]


@pytest.mark.parametrize("is_set", [False, True])
@pytest.mark.parametrize("call", range(4))
def test_all_handlers_come_back_if_one_raises_while_they_are_replaced(
    monkeypatch: pytest.MonkeyPatch, call: int, is_set: bool
) -> None:
    """Python runs handlers of signals that have come when `signal.signal` begins, and after it."""
    replace, calls = signal.signal, []

    def interrupted(number: int, handler: Any) -> Any:
        calls.append(number)
        if len(calls) != call + 1:
            return replace(number, handler)
        if is_set:
            replace(number, handler)
        raise InterruptedError("in the handler of a third signal")

    def others(*_: object) -> None:
        pass

    numbers = (signal.SIGALRM, signal.SIGINT)
    before = [signal.signal(number, others) for number in numbers]
    monkeypatch.setattr(signal, "signal", interrupted)
    try:
        with pytest.raises(InterruptedError, match="third"):
            uninterrupted(lambda: None)
        assert [signal.getsignal(number) for number in numbers] == [others, others]
    finally:
        monkeypatch.undo()
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


class Buffer:
    """Stands for the memory of a job that fails."""


@pytest.mark.parametrize("failing", [0, 3])
def test_an_error_of_a_pool_releases_the_memory_of_its_job_without_a_garbage_collection(failing: int) -> None:
    buffers: list[weakref.ref[Buffer]] = []

    def work(number: int) -> int:
        buffer = Buffer()
        buffers.append(weakref.ref(buffer))
        if number == failing:
            raise ValueError(number)
        return number

    done: list[int] = []
    gc.disable()
    try:
        with ThreadPoolExecutor(2) as pool:
            with pytest.raises(ValueError, match=str(failing)) as raised:
                done.extend(in_order(pool, work, range(6)))
            del raised
        alive = [reference for reference in buffers if reference() is not None]
    finally:
        gc.enable()
    assert not alive
    assert done == list(range(failing))


def test_a_signal_does_not_interrupt_the_start_of_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed on 6429ba6f: the start of the first thread turned the handler's exception into a KeyError."""
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def raises(*_: object) -> None:
        raise InterruptedError("in the handler")

    def interrupted(thread: threading.Thread) -> None:
        if not started:
            signal.raise_signal(signal.SIGALRM)
        start(thread)
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    before = signal.signal(signal.SIGALRM, raises)
    try:
        with pytest.raises(InterruptedError, match="in the handler"):
            in_threads(abs, range(50), 4, "some")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert started
    assert not any(thread.is_alive() for thread in started)


def test_threads_of_which_only_some_can_be_started_are_a_system_error(monkeypatch: pytest.MonkeyPatch) -> None:
    start, refused, done = threading.Thread.start, threading.Event(), []

    def start_one(thread: threading.Thread) -> None:
        if thread.name.endswith("_1"):
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    def work(number: int) -> None:
        refused.wait()
        done.append(number)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(SystemReadError, match=r"can't start new thread; allow the process more threads \(ulimit -u\)"):
        in_threads(work, range(50), 4, "some")
    assert len(done) < 50  # the rest is cancelled


@pytest.mark.parametrize("name", ["parquet_loader-count", "parquet_loader-remote"])
def test_a_data_set_that_is_opened_without_threads_is_a_system_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(name):
            raise RuntimeError("can't start new thread")
        start(thread)

    write_numbered(str(tmp_path / "a"), ((30, 11), (25,)), ("double",))
    source: dict[str, Any] = {"source": tmp_path / "a"}
    if name == "parquet_loader-remote":
        dirfs = pytest.importorskip("fsspec.implementations.dirfs")
        filesystem = pafs.PyFileSystem(pafs.FSSpecHandler(dirfs.DirFileSystem(str(tmp_path))))
        source = {"source": "a", "filesystem": filesystem}
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(SystemReadError, match="can't start new thread; allow the process more threads"):
        ParquetDataset(**source, filters=pc.field("id") > 20).batches(4, output_options=OutputOptions(format="numpy"))
