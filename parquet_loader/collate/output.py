"""The protocol of outputs: how an epoch turns windows and processed batches into batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias

from parquet_loader.engine import ProcessedBatch
from parquet_loader.window import Allocator, Window

Batch: TypeAlias = "dict[str, Any]"
"""One training batch: tensor or array ``[rows, ...]`` or `Ragged` by name; a list of them for images of any size."""


class Output(Protocol):
    """Makes batches of what the engine hands over. Used by the caller's thread."""

    def allocator(self, keep_bytes: int) -> Allocator:
        """Return the memory in which windows are to lie, of which so much may be kept warm between uses."""

    def from_window(self, window: Window, batch_size: int, copied_to: Allocator | None) -> Iterator[Batch]:
        """Yield a window's batches in order: views of it, or copies where memory for them is given."""

    def from_batch(self, batch: ProcessedBatch, copied_to: Allocator | None) -> Batch:
        """Return a batch that was processed by itself."""

    def delivered(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches where they are wanted."""
