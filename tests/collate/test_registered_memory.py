"""Shared memory that is registered with CUDA: with a stand-in for CUDA's runtime, and on a GPU where there is one."""

from __future__ import annotations

import contextlib
import gc
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from parquet_loader import BatchedDataLoader, OutputOptions, Ragged
from parquet_loader.collate.device.registered_memory import HeldSources, RegisteredMemory
from parquet_loader.collate.device.windows import DeviceWindows
from tests.support.outputs import leaves


class Runtime:
    """Stands for `torch.cuda.cudart()`: knows which memory is registered."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.registered: dict[int, int] = {}
        self.count = 0

    def cudaHostRegister(self, start: int, nbytes: int, flags: int) -> int:  # noqa: N802
        assert flags == 0
        if not self.error:
            assert start not in self.registered
            self.registered[start] = nbytes
            self.count += 1
        return self.error

    def cudaHostUnregister(self, start: int) -> int:  # noqa: N802
        del self.registered[start]
        return 0


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    found = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: found)
    return found


@pytest.fixture
def table(tmp_path: Path) -> str:
    """2,000 rows of `id`, `wide`, `text` and `nested`."""
    ids = np.arange(2000)
    wide = pa.FixedSizeListArray.from_arrays(np.repeat(ids, 300).astype(np.float32), 300)
    nested = [[[i] * (i % 3), [i]] for i in ids.tolist()]
    rows = pa.table({"id": ids, "wide": wide, "text": [str(i) for i in ids], "nested": nested})
    pq.write_table(rows, tmp_path / "0.parquet", row_group_size=100, compression="NONE")
    return str(tmp_path)


def on_device(path: str, **options: Any) -> BatchedDataLoader:
    """Return a loader as with a GPU, which registers the memory of its child process."""
    loader = BatchedDataLoader(
        path,
        64,
        shuffle=True,
        window_rows=500,
        device="cpu",
        isolation="process",
        output_options=OutputOptions(shuffle_on_device=True),
        **options,
    )
    output: Any = loader._output
    output._registered = RegisteredMemory(torch.device("cpu"))
    return loader


def assert_same_batches(loader: BatchedDataLoader, path: str) -> list[dict[str, Any]]:
    batches = list(loader)
    with BatchedDataLoader(path, 64, shuffle=True, window_rows=500) as plain:
        plain.set_epoch(loader.state_dict()["epoch"] - 1)
        for batch, expected in zip(batches, plain, strict=True):
            for name in expected:
                for mine, its in zip(leaves(batch[name]), leaves(expected[name]), strict=True):
                    assert mine.tobytes() == its.tobytes()
    return batches


def test_windows_are_copied_from_registered_memory_which_is_registered_once(
    table: str, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied_from: list[tuple[int, int]] = []
    copy = DeviceWindows._copy

    def recording(self: DeviceWindows, source: torch.Tensor) -> torch.Tensor:
        copied_from.append((source.data_ptr(), source.nbytes))
        return copy(self, source)

    monkeypatch.setattr(DeviceWindows, "_copy", recording)
    with on_device(table) as loader:
        for _ in range(3):
            assert_same_batches(loader, table)
        blocks = [(start, start + nbytes) for start, nbytes in runtime.registered.items()]
        inside = [any(a <= start and start + nbytes <= b for a, b in blocks) for start, nbytes in copied_from]
        assert sum(inside) >= 3 * 4  # the columns of numbers of each window
        assert runtime.count == len(blocks) < 3 * 4
        figures = loader.stats().device
        assert figures is not None
        assert not figures.copied
    del loader
    gc.collect()
    assert not runtime.registered


def is_registered(values: torch.Tensor, runtime: Runtime) -> bool:
    return any(start <= values.data_ptr() < start + nbytes for start, nbytes in runtime.registered.items())


@pytest.mark.parametrize("columns", [pytest.param(["nested"], marks=pytest.mark.slow), ["id", "nested"]])
def test_lists_of_lists_are_kept_until_their_copies_are_done(
    table: str, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, columns: list[str]
) -> None:
    kept: list[tuple[int, int]] = []
    copied: list[int] = []

    def moved(batch: Ragged, _: Any) -> Ragged:
        assert is_registered(batch.values.values, runtime)
        copied.append(batch.values.values.data_ptr())
        return batch

    def hold(_: HeldSources, __: Any, sources: list[Any]) -> None:
        kept.extend((source.ctypes.data, source.ctypes.data + source.nbytes) for source in sources)

    monkeypatch.setattr("parquet_loader.collate.device.windows.moved", moved)
    monkeypatch.setattr(HeldSources, "hold", hold)
    with on_device(table, columns=columns) as loader:
        for batch in loader:
            del batch
        assert len(copied) == len(loader)
        assert all(any(start <= address < stop for start, stop in kept) for address in copied)


def test_batches_that_the_cpu_permutes_are_not_in_registered_memory(
    table: str, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are copied to the device one by one, and nothing keeps their memory until then."""

    def failing(*_: Any) -> torch.Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(DeviceWindows, "_copy", failing)
    with on_device(table) as loader:
        for batch in assert_same_batches(loader, table):
            for values in (batch["id"], batch["wide"], batch["text"].values, batch["nested"].values.values):
                assert not is_registered(values, runtime)
        assert runtime.registered
        figures = loader.stats().device
        assert figures is not None
        assert not figures.windows


def test_memory_of_batches_that_the_child_process_has_made_is_not_registered(table: str, runtime: Runtime) -> None:
    with on_device(table, transform=lambda columns, _: columns) as loader:
        assert_same_batches(loader, table)
    assert not runtime.count


def test_memory_stays_registered_as_long_as_an_array_views_it(runtime: Runtime) -> None:
    memory = RegisteredMemory(torch.device("cpu"))
    block = np.frombuffer(bytearray(1000), np.uint8)
    memory.register(block)
    part = block[100:200]
    assert memory.holds(part)
    assert memory.holds(part.view(np.float32))
    assert not memory.holds(np.zeros(10))
    del block
    assert memory.holds(part)
    assert len(runtime.registered) == 1
    del part
    assert not runtime.registered
    again = np.frombuffer(bytearray(1000), np.uint8)
    assert not memory.holds(again)
    memory.register(again)
    assert memory.holds(again)


def test_memory_is_registered_while_the_device_of_the_copies_is_the_current_one(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA would make a context on the first GPU too."""
    current: list[torch.device] = []
    found: list[list[torch.device]] = []

    @contextlib.contextmanager
    def device(chosen: torch.device) -> Iterator[None]:
        current.append(chosen)
        yield
        current.pop()

    def call(*_: int) -> int:
        found.append(current.copy())
        return 0

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(runtime, "cudaHostRegister", call)
    monkeypatch.setattr(runtime, "cudaHostUnregister", call)
    memory = RegisteredMemory(torch.device("cuda", 1))
    block = np.frombuffer(bytearray(1000), np.uint8)
    memory.register(block)
    assert memory.holds(block)
    del block
    assert found == [[torch.device("cuda", 1)]] * 2


@pytest.mark.parametrize("error", [2, pytest.param(None, marks=pytest.mark.slow)])
def test_a_window_whose_memory_cannot_be_registered_is_copied_and_counted(
    table: str, monkeypatch: pytest.MonkeyPatch, error: int | None
) -> None:
    def runtime() -> Runtime:
        if error is None:
            raise RuntimeError("Found no NVIDIA driver\nmore")
        return Runtime(error)

    monkeypatch.setattr(torch.cuda, "cudart", runtime)
    with on_device(table) as loader:
        assert_same_batches(loader, table)
        figures = loader.stats().device
        assert figures is not None
        reason = "Found no NVIDIA driver" if error is None else "cudaHostRegister: error 2"
        assert figures.copied == {reason: figures.windows}


class Event:
    """Stands for a CUDA event."""

    def __init__(self) -> None:
        self.is_done = False
        self.waits = 0

    def query(self) -> bool:
        return self.is_done

    def synchronize(self) -> None:
        self.waits += not self.is_done
        self.is_done = True


def test_sources_are_kept_until_their_copies_are_done_and_at_most_two_windows_of_them() -> None:
    held, events = HeldSources(), [Event(), Event(), Event()]
    sources = [[np.zeros(3)] for _ in events]
    alive = [weakref.ref(s[0]) for s in sources]
    for event, source in zip(events, sources, strict=True):
        held.release(most=1)
        held.hold(event, source)
    del sources, source
    assert [one() is not None for one in alive] == [False, True, True]
    assert [event.waits for event in events] == [1, 0, 0]
    events[1].is_done = True
    held.release(most=5)
    assert [one() is not None for one in alive] == [False, False, True]
    held.release()
    assert [one() is not None for one in alive] == [False, False, False]
    assert [event.waits for event in events] == [1, 0, 1]


def test_memory_of_an_interrupted_upload_is_kept_until_its_copies_are_done(
    table: str, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, waits = DeviceWindows._copy, 0

    class Side:
        def synchronize(self) -> None:
            nonlocal waits
            waits += 1
            assert windows._sources

    def interrupted(self: DeviceWindows, source: torch.Tensor) -> torch.Tensor:
        if source.dtype != torch.uint8:
            return copy(self, source)
        monkeypatch.setattr(self, "_side", Side())
        raise KeyboardInterrupt

    monkeypatch.setattr(DeviceWindows, "_copy", interrupted)
    with on_device(table) as loader:
        output: Any = loader._output
        windows: DeviceWindows = output._on_device()
        with pytest.raises(KeyboardInterrupt):
            next(iter(loader))
        assert waits == 1
        assert not windows._sources


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_leaves_the_batches_of_its_parent_alone(
    table: str, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA does not work there: waiting for copies, or freeing memory that a GPU uses, would fail."""
    released: list[int] = []
    with on_device(table) as loader:
        iterator = iter(loader)
        next(iterator)
        monkeypatch.setattr(DeviceWindows, "release", lambda _: released.append(os.getpid()))
        child = os.fork()
        if not child:
            try:
                loader.reset()
            finally:
                os._exit(len(released))
        _, status = os.waitpid(child, 0)
        assert status == 0
        loader.reset()
        assert released == [os.getpid()]


@pytest.mark.cuda
def test_on_a_gpu_windows_of_a_child_process_are_those_of_the_cpu(table: str) -> None:
    options: dict[str, Any] = {"shuffle": True, "window_rows": 500}
    output = OutputOptions(shuffle_on_device=True)
    with (
        BatchedDataLoader(table, 64, device="cuda", isolation="process", output_options=output, **options) as loader,
        BatchedDataLoader(table, 64, **options) as plain,
    ):
        for _ in range(5):
            for batch, expected in zip(loader, plain, strict=True):
                torch.cuda._sleep(100_000)  # copies wait while the process fills the next windows
                assert torch.equal(batch["id"].cpu(), expected["id"])
                assert torch.equal(batch["wide"].cpu(), expected["wide"])
        figures = loader.stats().device
        assert figures is not None
        assert not figures.copied
