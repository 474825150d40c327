"""Delivers batches of numpy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from parquet_loader.collate.output import Batch, Output
from parquet_loader.engine import ProcessedBatch
from parquet_loader.errors import ConfigurationError
from parquet_loader.window import Allocator, Arenas, Window


class ArrayOutput(Output):
    """Batches of numpy arrays, without torch.

    Args:
        device: None or ``"cpu"``.
        format: The name of the format, for error messages.

    Raises:
        ConfigurationError: It is another device.
    """

    def __init__(self, device: Any, format: str = "numpy") -> None:  # noqa: A002
        if device not in (None, "cpu"):
            raise ConfigurationError(
                f"device={device!r} with OutputOptions(format={format!r}): arrays stay on the CPU; leave device out"
            )
        self._format = format

    def allocator(self, keep_bytes: int) -> Allocator:
        """Return ordinary memory."""
        return Arenas(keep_bytes)

    def from_window(self, window: Window, batch_size: int, copied_to: Allocator | None) -> Iterator[Batch]:
        """Yield views of a window, ``[batch_size, ...]`` by name, which keep its memory alive."""
        assert copied_to is None
        yield from window.batches(batch_size)

    def from_batch(self, batch: ProcessedBatch, copied_to: Allocator | None) -> Batch:
        """Return the arrays of the batch."""
        assert copied_to is None
        return dict(batch.arrays)
