"""The protocol of outputs: how an epoch turns windows and processed batches into batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeAlias

from parquet_loader.engine import ProcessedBatch
from parquet_loader.window import Allocator, Window

Batch: TypeAlias = dict[str, Any]
"""A batch: by column name a `torch.Tensor` or `Ragged`, with ``OutputOptions(format="numpy")`` a numpy array.

With the formats of tables a batch is a table, for which type checkers need a cast.

Images of different sizes are a list of tensors. To type checkers the values are `Any`; docs/design/typing.md says why.
"""


class Output(Protocol):
    """Makes batches of the engine's windows and processed batches. Used by the caller's thread."""

    def masked(self, masks: Mapping[str, str]) -> Output:
        """Return an output for batches in which columns have masks.

        Args:
            masks: The names of mask columns, by the names of the columns they belong to. Empty if there is a
                `transform`, whose columns may mean something else.
        """

    def allocator(self, keep_bytes: int) -> Allocator:
        """Return the allocator of windows, which may keep up to `keep_bytes` for reuse."""

    def from_window(self, window: Window, batch_size: int, copied_to: Allocator | None) -> Iterator[Batch]:
        """Yield a window's batches in order: views of it, or copies if `copied_to` is given.

        Args:
            window: The window; its memory lives as long as a view of it.
            batch_size: Rows of each batch except the last.
            copied_to: Provides the memory of copies; None: no copy.
        """

    def from_batch(self, batch: ProcessedBatch, copied_to: Allocator | None) -> Batch:
        """Return a processed batch, copied if `copied_to` is given."""

    def delivered(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches on the device that the caller chose."""


def rows_of(batch: Any) -> int:
    """Return the number of rows of a batch, in any format."""
    if isinstance(batch, dict):
        return len(next(iter(batch.values()))) if batch else 0
    return len(batch)
