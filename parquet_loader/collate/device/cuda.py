"""Copies each batch to a GPU on a side stream while the previous batch is trained on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from parquet_loader.collate.ahead import begun_ahead
from parquet_loader.collate.output import Batch
from parquet_loader.errors import ConfigurationError, MissingDeviceError


def check_device(device: Any) -> torch.device | None:
    """Return the named device, or None.

    Raises:
        ConfigurationError: It does not name a CPU or CUDA device.
        MissingDeviceError: This machine has no such GPU.
    """
    if device is None:
        return None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigurationError(f"device={device!r}: expected 'cpu' or 'cuda', such as 'cuda:0'") from error
    if found.type == "cpu":
        return found
    if found.type != "cuda":
        raise ConfigurationError(f"device={device!r}: expected 'cpu' or 'cuda', such as 'cuda:0'")
    if not torch.cuda.is_available():
        raise MissingDeviceError(
            f"device={device!r}: this torch sees no CUDA device; leave device out to stay on the CPU"
        )
    if found.index is not None and found.index >= torch.cuda.device_count():
        raise MissingDeviceError(
            f"device={device!r}: this machine has {torch.cuda.device_count()} CUDA devices; choose a lower index"
        )
    return found if found.index is not None else torch.device("cuda", torch.cuda.current_device())


def copied_ahead(batches: Iterator[Batch], device: torch.device, side: torch.cuda.Stream) -> Iterator[Batch]:
    """Yield the batches on a CUDA device; the next one is copied while the caller uses this one.

    Runs in the caller's thread. Before a batch is yielded, the caller's current stream waits for its copy, and the
    batch is recorded on that stream, so its memory is not reused while kernels queued there read it. A pinned source
    may be released as soon as its copy is queued, because torch's host allocator waits for the copy.

    Args:
        batches: The batches.
        device: The CUDA device.
        side: The stream for the copies, the same in all epochs: torch reuses freed device memory only on its stream.
    """

    def begin(batch: Batch) -> UploadedBatch | tuple[Batch, torch.cuda.Event]:
        return batch if isinstance(batch, UploadedBatch) else _start_copy(batch, device, side)

    def end(copy: UploadedBatch | tuple[Batch, torch.cuda.Event]) -> Batch:
        return copy.handed_over() if isinstance(copy, UploadedBatch) else _on_current_stream(*copy, device)

    yield from begun_ahead(batches, begin, end)


@contextmanager
def on_stream(side: torch.cuda.Stream, device: torch.device) -> Iterator[None]:
    """Queue operations on a stream of a device.

    The device is chosen first: to leave a stream of another device than the current one, torch selects the current one
    again, and so makes a CUDA context there.
    """
    with torch.cuda.device(device), torch.cuda.stream(side):
        yield


class Upload:
    """The copies of one window that are queued on a stream; on the CPU they are already done.

    Args:
        device: The device.
        side: The stream on which they are queued; None on the CPU.
        tensors: The tensors of which batches are views.

    Attributes:
        event: Recorded behind the copies on their stream; None on the CPU.
    """

    def __init__(self, device: torch.device, side: torch.cuda.Stream | None, tensors: list[Any]) -> None:
        self._device = device
        self._tensors = tensors
        self._users: set[int] = set()
        self.event: torch.cuda.Event | None = None
        if side is not None:
            self.event = torch.cuda.Event()
            self.event.record(side)

    def await_on_current_stream(self) -> None:
        """Let the caller's stream wait for the window, and record the window's tensors on it; once for each stream."""
        if self.event is None:
            return
        stream = torch.cuda.current_stream(self._device)
        if stream.cuda_stream in self._users:
            return
        self._users.add(stream.cuda_stream)
        stream.wait_event(self.event)
        for tensor in self._tensors:
            _record(tensor, stream)


class UploadedBatch(dict[str, Any]):
    """A batch on the device; views of an `Upload`."""

    __slots__ = ("_upload",)

    def __init__(self, values: Iterable[tuple[str, Any]], upload: Upload) -> None:
        super().__init__(values)
        self._upload = upload

    def handed_over(self) -> Batch:
        """Return the batch, for use on the caller's current stream."""
        self._upload.await_on_current_stream()
        return dict(self)


def handed_over(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the batches of a CPU "device" as `copied_ahead` yields those of a GPU."""
    return begun_ahead(
        batches, lambda batch: batch, lambda batch: batch.handed_over() if isinstance(batch, UploadedBatch) else batch
    )


def _start_copy(batch: Batch, device: torch.device, side: torch.cuda.Stream) -> tuple[Batch, torch.cuda.Event]:
    with on_stream(side, device):
        copies = {name: moved(value, device) for name, value in batch.items()}
        event = torch.cuda.Event()
        event.record(side)
    return copies, event


def moved(value: Any, device: torch.device) -> Any:
    """Return a column of a batch on the device; its copy is queued on the current stream."""
    if isinstance(value, list):
        return [moved(v, device) for v in value]
    if isinstance(value, int):
        return value
    return value.to(device, non_blocking=True)


def _on_current_stream(batch: Batch, event: torch.cuda.Event, device: torch.device) -> Batch:
    stream = torch.cuda.current_stream(device)
    stream.wait_event(event)
    for value in batch.values():
        _record(value, stream)
    return batch


def _record(value: Any, stream: torch.cuda.Stream) -> None:
    if isinstance(value, list):
        for v in value:
            _record(v, stream)
    elif not isinstance(value, int):
        value.record_stream(stream)
