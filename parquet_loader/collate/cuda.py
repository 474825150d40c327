"""Copies each batch to a GPU on a side stream while the previous batch is trained on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from parquet_loader.collate.ahead import begun_ahead
from parquet_loader.collate.output import Batch
from parquet_loader.errors import ConfigurationError, MissingDeviceError


def check_device(device: Any) -> torch.device | None:
    """Return the named device, or None.

    Raises:
        ConfigurationError: it does not name a CPU or CUDA device.
        MissingDeviceError: this machine has no such GPU.
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


def copied_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield the batches on a CUDA device; the next one is copied while the caller uses this one.

    Runs in the caller's thread. Before a batch is yielded, the caller's current stream waits for its copy, and the
    batch is recorded on that stream, so its memory is not reused while kernels queued there read it. A pinned source
    may be released when its copy is queued, because torch's host allocator waits for the copy.
    """
    side = torch.cuda.Stream(device)
    yield from begun_ahead(
        batches, lambda batch: _start_copy(batch, device, side), lambda copy: _on_current_stream(*copy, device)
    )


def _start_copy(batch: Batch, device: torch.device, side: torch.cuda.Stream) -> tuple[Batch, torch.cuda.Event]:
    with torch.cuda.stream(side):
        moved = {name: _moved(value, device) for name, value in batch.items()}
        event = torch.cuda.Event()
        event.record(side)
    return moved, event


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, list):
        return [_moved(v, device) for v in value]
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
