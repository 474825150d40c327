"""Delivers batches of torch tensors: in ordinary memory, in pinned memory, or on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from parquet_loader.collate.cuda import check_device, copied_ahead
from parquet_loader.collate.output import Batch
from parquet_loader.collate.pinned_memory import PinnedMemory, pinned_copy
from parquet_loader.collate.tensors import batch_tensors, window_batches
from parquet_loader.common import is_worker
from parquet_loader.engine import ProcessedBatch
from parquet_loader.schema import Ragged, register_where_imported
from parquet_loader.window import Allocator, Arenas, Window

register_where_imported(Ragged)


class TensorOutput:
    """Batches of tensors. See `Output`.

    Args:
        device: The device of the batches; None: the CPU, in pinned memory if there is a GPU.

    Raises:
        ConfigurationError: it does not name a CPU or CUDA device.
        MissingDeviceError: this machine has no such GPU.
    """

    def __init__(self, device: Any) -> None:
        self._device = check_device(device)

    def masked(self, masks: Mapping[str, str]) -> TensorOutput:  # noqa: ARG002
        """Return this output: masks are columns."""
        return self

    def allocator(self, keep_bytes: int) -> Allocator:
        """Return pinned memory if batches may go to a GPU, else ordinary memory."""
        on_gpu = self._device is not None and self._device.type == "cuda"
        is_pinned = on_gpu if self._device is not None else torch.cuda.is_available() and not is_worker()
        return PinnedMemory() if is_pinned else Arenas(keep_bytes)

    def from_window(self, window: Window, batch_size: int, copied_to: Allocator | None) -> Iterator[Batch]:
        """Return the batches of a window; see `window_batches`."""
        return window_batches(window, batch_size, copied_to)

    def from_batch(self, batch: ProcessedBatch, copied_to: Allocator | None) -> Batch:
        """Return a processed batch as tensors."""
        return batch_tensors(batch if copied_to is None else pinned_copy(batch, copied_to))

    def delivered(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Copy each batch to the GPU while the caller uses the one before, if the device is a GPU."""
        if self._device is None or self._device.type != "cuda":
            return batches
        return copied_ahead(batches, self._device)
