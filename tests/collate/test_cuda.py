"""Batches on a GPU. What can be checked without one is checked without one."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from parquet_loader import (
    BatchedDataLoader,
    LoaderStateError,
    OutputOptions,
    ParquetIterable,
    RaggedList,
    Scalar,
    Schema,
    Tensor,
    Text,
    write_dataset,
)
from parquet_loader.collate.device.cuda import copied_ahead, on_stream
from parquet_loader.collate.device.pinned_memory import PinnedMemory
from parquet_loader.collate.torch_output import TensorOutput
from parquet_loader.window.arena import Allocation, Arenas

SCHEMA = Schema(
    {
        "id": Scalar("int64"),
        "wide": Tensor("float32", (128,)),
        "flag": Scalar("bool"),
        "list": RaggedList("int32"),
        "text": Text(),
    }
)
ROWS = 2000


@pytest.fixture
def folder(tmp_path: Path) -> str:
    ids = np.arange(ROWS)
    rows = {
        "id": ids,
        "wide": np.repeat(ids[:, None], 128, axis=1).astype(np.float32),
        "flag": ids % 2 == 0,
        "list": [[i] * (i % 4) for i in ids.tolist()],
        "text": [str(i) for i in ids.tolist()],
    }
    write_dataset(rows, tmp_path / "data", SCHEMA)
    return str(tmp_path / "data")


def check(loader: BatchedDataLoader) -> list[int]:
    seen: list[int] = []
    for batch in loader:
        ids = batch["id"].cpu()
        assert torch.equal(batch["wide"].cpu(), ids[:, None].expand(-1, 128).float())
        assert torch.equal(batch["flag"].cpu(), ids % 2 == 0)
        assert torch.equal(batch["list"].lengths.cpu(), ids % 4)
        assert torch.equal(batch["list"].values.cpu().long(), ids.repeat_interleave(ids % 4))
        seen += ids.tolist()
    return seen


@pytest.mark.cuda
@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("transform", [None, lambda columns, _: columns])
def test_batches_arrive_on_the_device_in_the_same_order(folder: str, transform: Any, isolation: Any) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "window_rows": 500}
    on_cpu = check(BatchedDataLoader(folder, 64, device="cpu", **options))
    loader = BatchedDataLoader(folder, 64, device="cuda", transform=transform, isolation=isolation, **options)
    assert next(iter(loader))["wide"].is_cuda
    loader.reset()
    loader.set_epoch(0)
    assert check(loader) == on_cpu


@pytest.mark.cuda
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_with_a_gpu_batches_are_pinned_and_safe_to_copy_asynchronously(folder: str, isolation: Any) -> None:
    loader = BatchedDataLoader(folder, 64, shuffle=True, window_rows=500, isolation=isolation)
    copies = []
    for batch in loader:
        assert batch["wide"].is_pinned()
        assert batch["id"].is_pinned()
        # The pinned batch is released at once, while its copy is in progress.
        copies.append((batch["id"].to("cuda", non_blocking=True), batch["wide"].to("cuda", non_blocking=True)))
    torch.cuda.synchronize()
    for ids, wide in copies:
        assert torch.equal(wide, ids[:, None].expand(-1, 128).float())


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_memory_owned_by_tensors_gives_the_same_batches(
    folder: str, monkeypatch: pytest.MonkeyPatch, isolation: Any
) -> None:
    """The path of pinned memory, with tensors that are not pinned: all tensors are made from the owner's memory."""
    owners: list[torch.Tensor] = []

    def allocate(_: PinnedMemory, nbytes: int) -> Allocation:
        owner = torch.empty(nbytes, dtype=torch.uint8)
        owners.append(owner)  # several threads allocate
        return Allocation(owner.numpy(), owner)

    monkeypatch.setattr(PinnedMemory, "allocate", allocate)
    monkeypatch.setattr("parquet_loader.collate.torch_output.TensorOutput.allocator", lambda *_: PinnedMemory())
    loader = BatchedDataLoader(folder, 64, shuffle=True, window_rows=500, isolation=isolation)
    storages = set()
    for batch in loader:
        tensors = (batch["id"], batch["wide"], batch["flag"], batch["list"].values, batch["text"].values)
        storages |= {t.untyped_storage().data_ptr() for t in tensors}
    assert storages <= {owner.untyped_storage().data_ptr() for owner in owners}
    loader.set_epoch(0)
    assert sorted(check(loader)) == list(range(ROWS))
    processed = BatchedDataLoader(
        folder, 64, shuffle=True, window_rows=500, transform=lambda columns, _: columns, isolation=isolation
    )
    assert sorted(check(processed)) == list(range(ROWS))
    for each in (loader, processed):
        each.close()


def test_pinned_memory_is_on_the_cpu_whatever_the_default_device(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty

    def without_pinning(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return empty(*size, **options)

    with torch.device("meta"):
        assert empty(1).is_meta  # torch lists its functions at the first use, before `empty` is replaced
    monkeypatch.setattr(torch, "empty", without_pinning)
    monkeypatch.setattr("parquet_loader.collate.torch_output.TensorOutput.allocator", lambda *_: PinnedMemory())
    # With `isolation`, and with `shuffle_on_device`, the caller's thread allocates.
    options: dict[str, Any] = {"shuffle": True, "window_rows": 500, "device": "cpu"}
    on_device = OutputOptions(shuffle_on_device=True)
    with (
        torch.device("meta"),
        BatchedDataLoader(folder, 64, isolation="process", **options) as isolated,
        BatchedDataLoader(folder, 64, output_options=on_device, **options) as permuted,
    ):
        monkeypatch.setattr(permuted._output, "_pinned", PinnedMemory())
        for loader in (isolated, permuted):
            assert all(batch["wide"].device.type == "cpu" for batch in loader)
        assert ParquetIterable(isolated)._epochs.device.type == "cpu"


class Queue:
    """Stands for a CUDA stream: does nothing until somebody waits for it."""

    def __init__(self, *_: Any) -> None:
        self.work: list[Any] = []

    def wait_event(self, event: Queue) -> None:
        for work in event.work:
            work()

    def record(self, stream: Queue) -> None:
        """As an event: stands for what the stream has been given so far."""
        self.work = list(stream.work)


def test_batches_are_handed_over_behind_their_copies(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way to a device, with streams that put copies off as long as they may, and one error in their midst."""
    side, callers = Queue(), Queue()
    recorded: list[tuple[int, Queue]] = []
    begun = 0

    def later(source: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        nonlocal begun
        begun += 1
        copy = torch.full_like(source, 0)
        side.work.append(lambda: copy.copy_(source))
        return copy

    monkeypatch.setattr(torch.cuda, "Event", Queue)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: callers)
    monkeypatch.setattr(torch.Tensor, "to", later)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: recorded.append((id(self), stream)))

    def batches() -> Iterator[dict[str, Any]]:
        yield from BatchedDataLoader(folder, 64, shuffle=True, window_rows=500, drop_last=True)
        raise ValueError("the last one")

    seen: list[int] = []
    of_side: Any = side
    copied = copied_ahead(batches(), torch.device("cuda"), of_side)
    with pytest.raises(ValueError, match="the last one"):  # noqa: PT012 - in its place, behind every batch
        for batch in copied:
            tensors = [batch["id"], batch["wide"], batch["flag"]]
            tensors += [t for name in ("list", "text") for t in (batch[name].values, batch[name].offsets)]
            assert {(id(t), callers) for t in tensors} <= set(recorded)
            assert begun == min(len(seen) // 64 + 2, ROWS // 64) * len(tensors)  # the next batch is under way
            assert torch.equal(batch["wide"], batch["id"][:, None].expand(-1, 128).float())
            seen += batch["id"].tolist()
    assert len(seen) == ROWS // 64 * 64
    assert len(set(seen)) == len(seen)


def test_all_epochs_copy_on_one_stream_which_exists_before_the_workers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.device] = []

    def stream(device: torch.device) -> Queue:
        made.append(device)
        return Queue()

    output = TensorOutput("cpu", OutputOptions())
    output._device = torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "Stream", stream)
    for _ in range(3):
        output.delivered(iter(()))  # as when an iterator is made: no batch has been requested
        assert made == [output._device]


@pytest.mark.cuda
def test_later_epochs_take_no_more_device_memory_than_the_first(folder: str) -> None:
    with BatchedDataLoader(folder, 64, shuffle=True, device="cuda", columns=["wide"]) as loader:
        reserved = []
        for _ in range(6):
            for batch in loader:
                del batch
            torch.cuda.synchronize()
            reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] <= reserved[0] + (2 << 20)  # a block more, if the GPU was slower


def test_the_device_of_a_stream_is_current_before_the_stream_and_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[str, Any]] = []

    @contextlib.contextmanager
    def step(name: str, chosen: Any) -> Iterator[None]:
        steps.append((f"enter {name}", chosen))
        yield
        steps.append((f"leave {name}", chosen))

    monkeypatch.setattr(torch.cuda, "device", functools.partial(step, "device"))
    monkeypatch.setattr(torch.cuda, "stream", functools.partial(step, "stream"))
    side: Any = Queue()
    second = torch.device("cuda", 1)
    with on_stream(side, second):
        pass
    of_stream = [("enter stream", side), ("leave stream", side)]
    assert steps == [("enter device", second), *of_stream, ("leave device", second)]


ON_THE_SECOND = """
import sys, torch
from parquet_loader import BatchedDataLoader, OutputOptions
for permutes in (False, True):
    for isolation in ("thread", "process"):
        output = OutputOptions(shuffle_on_device=permutes)
        with BatchedDataLoader(
            sys.argv[1], 64, shuffle=True, device="cuda:1", isolation=isolation, output_options=output
        ) as loader:
            assert all(batch["wide"].device == torch.device("cuda", 1) for batch in loader)
assert not torch._C._cuda_hasPrimaryContext(0)
"""


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_loader_for_the_second_gpu_takes_no_memory_on_the_first(folder: str) -> None:
    subprocess.run([sys.executable, "-c", ON_THE_SECOND, folder], check=True)


def test_a_forked_process_uses_ordinary_memory(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = PinnedMemory()
    assert memory.taken_bytes(5) == 8
    memory._pid -= 1
    array, owner = memory.allocate(5)
    assert array.nbytes == 5
    assert owner is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    output = TensorOutput(None, OutputOptions())
    assert isinstance(output.allocator(0), PinnedMemory)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    assert isinstance(output.allocator(0), Arenas)
    monkeypatch.setattr("parquet_loader.collate.torch_output.TensorOutput.allocator", lambda *_: memory)
    with BatchedDataLoader(folder, 64, shuffle=True, window_rows=500) as loader:
        assert sorted(check(loader)) == list(range(ROWS))


@pytest.mark.cuda
def test_forked_workers_read_with_a_loader_that_has_used_pinned_memory(folder: str) -> None:
    with BatchedDataLoader(folder, 64) as loader:
        assert next(iter(loader))["id"].is_pinned()
        loader.reset()
        workers = DataLoader(ParquetIterable(loader), batch_size=None, num_workers=2, multiprocessing_context="fork")
        assert sorted(torch.cat([batch["id"] for batch in workers]).tolist()) == list(range(ROWS))


@pytest.mark.cuda
def test_a_ragged_moves_pins_and_is_recorded_like_a_tensor(folder: str) -> None:
    with BatchedDataLoader(
        folder, 64, columns=["list", "text"], output_options=OutputOptions(format="numpy")
    ) as loader:
        batch = next(iter(loader))
    for ragged in batch.values():
        pinned = ragged.to_tensors().pin_memory()
        assert pinned.is_pinned()
        moved = pinned.to("cuda", non_blocking=True)
        moved.record_stream(torch.cuda.current_stream())
        assert moved.device.type == moved.values.device.type == "cuda"
        assert moved == ragged
        assert moved[[3, 1]].to("cpu") == ragged[[3, 1]]
        assert moved.to_padded().device.type == "cuda"


@pytest.mark.cuda
def test_a_new_iterator_ends_one_whose_next_batch_is_being_copied(folder: str) -> None:
    with BatchedDataLoader(folder, 64, device="cuda") as loader:
        old = iter(loader)
        next(old)
        assert sorted(check(loader)) == list(range(ROWS))
        with pytest.raises(LoaderStateError, match="was called again"):
            next(old)
