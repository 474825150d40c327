"""Delivers batches of torch tensors: in ordinary memory, in pinned memory, or on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from parquet_loader.collate.device.cuda import check_device, copied_ahead, handed_over
from parquet_loader.collate.device.pinned_memory import PinnedMemory, pinned_copy
from parquet_loader.collate.device.static_inputs import check_inputs, filled
from parquet_loader.collate.device.windows import DeviceWindows, most_device_bytes
from parquet_loader.collate.output import Batch, DeviceFigures
from parquet_loader.collate.tensors import batch_tensors, window_batches
from parquet_loader.common import OutputOptions, format_bytes, is_worker
from parquet_loader.engine import ProcessedBatch
from parquet_loader.errors import ConfigurationError, MemoryLimitError
from parquet_loader.schema import Ragged, register_where_imported
from parquet_loader.window import Allocator, Arenas, StoredWindow, Window

register_where_imported(Ragged)


class TensorOutput:
    """Batches of tensors. See `Output`.

    Args:
        device: The device of the batches; None: the CPU, in pinned memory if there is a GPU.
        options: Whether a device permutes rows, whether memory is pinned, and which tensors of the caller are filled.

    Raises:
        ConfigurationError: `device` does not name a CPU or CUDA device, or there is none that could permute rows.
        MissingDeviceError: this machine has no such GPU.
    """

    def __init__(self, device: Any, options: OutputOptions) -> None:
        self._device = check_device(device)
        self._pins = options.pin_memory
        self._into = check_inputs(options.into or {})
        on_gpu = self._device is not None and self._device.type == "cuda"
        if options.shuffle_on_device and self._device is None:
            raise ConfigurationError(
                "OutputOptions(shuffle_on_device=True): device=None delivers batches on the CPU; pass device='cuda'"
            )
        self.permutes = options.shuffle_on_device
        # For what is copied with a window, and is not in its pinned memory: the order, and offsets.
        self._pinned = PinnedMemory() if on_gpu and self._pins else None
        self.figures = DeviceFigures()
        self._windows: DeviceWindows | None = None
        limit = options.device_memory_limit
        self.device_limit_bytes = limit if isinstance(limit, int) else None
        if limit is not None and not self.permutes:
            raise ConfigurationError(
                "OutputOptions(device_memory_limit=...): no windows are copied to a device; pass device='cuda' and "
                "shuffle_on_device=True, or leave device_memory_limit out"
            )

    def masked(self, masks: Mapping[str, str]) -> TensorOutput:  # noqa: ARG002
        """Return this output: masks are columns."""
        return self

    def allocator(self, keep_bytes: int) -> Allocator:
        """Return pinned memory if batches may go to a GPU, else ordinary memory."""
        on_gpu = self._device is not None and self._device.type == "cuda"
        may_pin = on_gpu if self._device is not None else torch.cuda.is_available() and not is_worker()
        return PinnedMemory() if may_pin and self._pins else Arenas(keep_bytes)

    def from_window(self, window: Window, batch_size: int, copied_to: Allocator | None) -> Iterator[Batch]:
        """Return the batches of a window; see `window_batches`."""
        return window_batches(window, batch_size, copied_to)

    def from_stored(self, window: StoredWindow, batch_size: int, copied_to: Allocator | None) -> Iterator[Batch]:
        """Return the batches of a window, which the device permutes; see `DeviceWindows.batches`."""
        assert self._device is not None
        if self._windows is None:  # not before, because it uses the GPU
            self._windows = DeviceWindows(self._device)
        return self._windows.batches(window, batch_size, copied_to or self._pinned, self.figures)

    def from_batch(self, batch: ProcessedBatch, copied_to: Allocator | None) -> Batch:
        """Return a processed batch as tensors."""
        if self.permutes:
            self.figures.count("transform or media")
        return batch_tensors(batch if copied_to is None else pinned_copy(batch, copied_to))

    def check_device_memory(self, rows: int, row_bytes: float, widest_bytes: int) -> None:
        """Check `device_memory_limit`; see `PermutingOutput`."""
        needed = most_device_bytes(rows, row_bytes, widest_bytes)
        if self.device_limit_bytes is not None and needed > self.device_limit_bytes:
            given = format_bytes(self.device_limit_bytes)
            raise MemoryLimitError(
                f"device_memory_limit={given} cannot hold two windows of {rows} rows of {row_bytes:.0f} bytes, and the "
                f"rows of one in their old order; use device_memory_limit={needed // 2**20 + 1}MiB or more, or a "
                "smaller window_rows"
            )

    def delivered(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Copy each batch to the GPU while the caller uses the one before, if the device is a GPU."""
        self.figures = DeviceFigures()
        if self._device is not None and self._device.type == "cuda":
            batches = copied_ahead(batches, self._device)
        elif self.permutes:
            batches = handed_over(batches)
        return filled(batches, self._into) if self._into else batches
