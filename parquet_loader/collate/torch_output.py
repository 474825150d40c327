"""Delivers batches of torch tensors: in ordinary memory, in pinned memory, or on a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from parquet_loader.collate.device.cuda import check_device, copied_ahead, handed_over
from parquet_loader.collate.device.images import DeviceImages, image_device_bytes
from parquet_loader.collate.device.kept_rows import KeptRows, check_kept
from parquet_loader.collate.device.pinned_memory import PinnedMemory, pinned_copy
from parquet_loader.collate.device.registered_memory import RegisteredMemory
from parquet_loader.collate.device.static_inputs import check_inputs, filled
from parquet_loader.collate.device.windows import DeviceWindows, most_device_bytes
from parquet_loader.collate.output import Batch, DeviceFigures, Output
from parquet_loader.collate.tensors import batch_tensors, window_batches
from parquet_loader.common import IntArray, OutputOptions, format_bytes, is_worker
from parquet_loader.decode import Column
from parquet_loader.engine import ProcessedBatch
from parquet_loader.errors import ConfigurationError, MemoryLimitError
from parquet_loader.schema import Ragged, register_where_imported
from parquet_loader.window import Allocator, Arenas, CarriedRows, KeptWindow, Memory, StoredWindow, Window

register_where_imported(Ragged)


class TensorOutput(Output):
    """Batches of tensors. See `Output`.

    Args:
        device: The device of the batches; None for the CPU, in pinned memory if there is a GPU.
        options: Whether a device permutes rows or decodes images, whether memory is pinned, and which tensors of the
            caller are filled.
        keeps: Whether rows stay on the device: ``cache="device"``.

    Raises:
        ConfigurationError: `device` does not name a CPU or CUDA device, or is None although a device permutes rows or
            decodes images.
        MissingDeviceError: This machine has no such GPU.
        MissingPackageError: No package decodes images on the device.
    """

    def __init__(self, device: Any, options: OutputOptions, *, keeps: bool = False) -> None:
        self._device = check_device(device)
        self._pins = options.pin_memory
        self._into = check_inputs(options.into or {})
        on_gpu = self._device is not None and self._device.type == "cuda"
        self.permutes = options.shuffle_on_device or keeps
        self.decodes = options.decode_on_device
        if (self.permutes or self.decodes) and self._device is None:
            option = "shuffle_on_device" if options.shuffle_on_device else "decode_on_device"
            asked = "cache='device'" if keeps else f"OutputOptions({option}=True)"
            raise ConfigurationError(f"{asked}: device=None delivers batches on the CPU; pass device='cuda'")
        self._images = DeviceImages(self._device) if self.decodes and self._device is not None else None
        self._keeps = keeps
        self._kept: KeptRows | None = None
        self._not_kept: str | None = None
        # For arrays that are uploaded with a window and are not in its pinned memory: the order, and offsets.
        self._pinned = PinnedMemory() if on_gpu and self._pins else None
        self._registered: RegisteredMemory | None = None
        if self._device is not None and on_gpu and self._pins and self.permutes:
            self._registered = RegisteredMemory(self._device)
        self.figures = DeviceFigures()
        self._side: torch.cuda.Stream | None = None
        self._windows: DeviceWindows | None = None
        limit = options.device_memory_limit
        self.device_limit_bytes = limit if isinstance(limit, int) else None
        if limit is not None and not (self.permutes or self.decodes):
            raise ConfigurationError(
                "OutputOptions(device_memory_limit=...): no windows are copied to a device; pass device='cuda' and "
                "shuffle_on_device=True, or leave device_memory_limit out"
            )

    def allocator(self, keep_bytes: int) -> Allocator:
        """Return pinned memory if batches may go to a GPU, else ordinary memory."""
        on_gpu = self._device is not None and self._device.type == "cuda"
        may_pin = on_gpu if self._device is not None else torch.cuda.is_available() and not is_worker()
        if torch.cuda._is_in_bad_fork():  # a process forked from one that uses CUDA
            may_pin = False
        return PinnedMemory() if may_pin and self._pins else Arenas(keep_bytes)

    def from_window(self, window: Window, batch_size: int, copied_to: Allocator | None) -> Iterator[Batch]:
        """Return the batches of a window; see `window_batches`."""
        return window_batches(window, batch_size, copied_to)

    def from_stored(
        self, window: StoredWindow, batch_size: int, copied_to: Allocator | None, carried: CarriedRows
    ) -> Iterator[Batch]:
        """Return the batches of a window, which the device permutes; see `DeviceWindows.batches`."""
        windows, kept = self._on_device(), self._kept
        if kept is not None and not windows.allocates(kept, window):
            self._keep_none(f"the device has no memory for them: {format_bytes(kept.nbytes)}")
            kept = None
        return windows.batches(window, batch_size, copied_to or self._pinned, self.figures, carried, kept)

    def _released_after(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        try:
            yield from batches
        finally:
            for uploads in (self._windows, self._images):
                if uploads is not None:
                    uploads.release()

    def _on_device(self) -> DeviceWindows:
        assert self._device is not None
        if self._windows is None:  # made at the first use, because it uses the GPU
            self._windows = DeviceWindows(self._device, self._registered)
        return self._windows

    def kept_rows(self, counts: IntArray, columns: Sequence[Column], window_rows: int) -> KeptRows | None:
        """Return the rows that stay on the device; see `PermutingOutput`."""
        if not self._keeps or self._not_kept is not None:
            return None
        if self._kept is None or not self._kept.is_of(counts):
            assert self._device is not None
            check_kept(columns)
            self._kept = KeptRows(self._device, counts, columns)
            widths = [column.row_bytes or 0 for column in columns]
            needed = self._kept.nbytes + most_device_bytes(window_rows, sum(widths), max(widths))
            limit = self.device_limit_bytes
            of = "device_memory_limit"
            if limit is None and self._device.type == "cuda":
                limit, of = torch.cuda.mem_get_info(self._device)[0] // 2, "half of the free memory of the device"
            if limit is not None and needed > limit:
                self._keep_none(f"they take {format_bytes(needed)} with two windows, and {of} is {format_bytes(limit)}")
        return self._kept

    def _keep_none(self, reason: str) -> None:
        self._kept, self._not_kept, self.figures.not_kept = None, reason, reason
        warnings.warn(
            f"cache='device': the rows do not stay on the device, and are read in each epoch: {reason}; read fewer "
            "columns or rows, or raise OutputOptions(device_memory_limit=...)",
            RuntimeWarning,
            stacklevel=2,
        )

    def from_kept(self, window: KeptWindow, batch_size: int) -> Iterator[Batch]:
        """Return the batches of a window of kept rows; see `DeviceWindows.kept_batches`."""
        assert self._kept is not None
        return self._on_device().kept_batches(window, batch_size, self._pinned, self.figures, self._kept)

    def register(self, memory: Memory) -> None:
        """Page-lock a block of shared memory; see `PermutingOutput`."""
        if self._registered is not None:
            self._registered.register(memory)

    def release(self) -> None:
        """Release the rows that are kept."""
        self._kept = None

    def from_batch(self, batch: ProcessedBatch, copied_to: Allocator | None) -> Batch:
        """Return a processed batch as tensors."""
        if self.permutes:
            self.figures.count("transform or media")
        if copied_to is not None:
            batch = pinned_copy(batch, copied_to)
        if self._images is not None and batch.encoded:
            return self._images.upload(batch, self.figures)
        if self._images is not None:
            self.figures.count("no images for the device")
        return batch_tensors(batch)

    def check_device_memory(self, rows: int, row_bytes: float, widest_bytes: float, *, is_ragged: bool) -> None:
        """Check `device_memory_limit`; see `PermutingOutput`."""
        needed = most_device_bytes(rows, row_bytes, widest_bytes, is_ragged=is_ragged)
        if self.device_limit_bytes is not None and needed > self.device_limit_bytes:
            given = format_bytes(self.device_limit_bytes)
            raise MemoryLimitError(
                f"device_memory_limit={given} cannot hold two windows of {rows} rows of {row_bytes:.0f} bytes, and the "
                f"rows of one in their old order; use device_memory_limit={needed // 2**20 + 1}MiB or more, or a "
                "smaller window_rows"
            )

    def check_image_memory(self, batch_bytes: float) -> None:
        """Check `device_memory_limit`; see `PermutingOutput`."""
        needed = image_device_bytes(batch_bytes)
        if self.device_limit_bytes is not None and needed > self.device_limit_bytes:
            given = format_bytes(self.device_limit_bytes)
            raise MemoryLimitError(
                f"device_memory_limit={given} cannot hold batches of {format_bytes(batch_bytes)} with images, and the "
                f"memory to decode them; use device_memory_limit={needed // 2**20 + 1}MiB or more, or a smaller "
                "batch_size"
            )

    def delivered(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches; with a GPU, each one is copied while the caller uses the previous one."""
        self.figures = DeviceFigures(not_kept=self._not_kept)
        if self._device is not None and self._device.type == "cuda":
            if self._side is None:
                # Made before the workers start. Otherwise their first pinned memory might make CUDA's context, and that
                # on device 0.
                self._side = torch.cuda.Stream(self._device)
            batches = copied_ahead(batches, self._device, self._side)
        elif self.permutes or self.decodes:
            batches = handed_over(batches)
        if self._registered is not None or self._images is not None:
            batches = self._released_after(batches)
        batches = _outside_inference_mode(batches)
        return filled(batches, self._into) if self._into else batches


def _outside_inference_mode(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the batches; make them of ordinary tensors, because later batches of the same window share their memory."""
    while True:
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):
                batch = next(batches, None)
        else:
            batch = next(batches, None)
        if batch is None:
            return
        yield batch
        del batch
