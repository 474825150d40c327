"""Makes batches of tensors from windows and processed batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from parquet_loader.collate.output import Batch
from parquet_loader.collate.pinned_memory import _tensor, moved
from parquet_loader.engine import ProcessedBatch
from parquet_loader.schema import Ragged
from parquet_loader.window import Allocator, Window

# Torch slices smaller batches, several at a time, in half the time for each tensor. Numpy slices larger ones and holds
# the GIL throughout: torch releases it in every call and then waits for the workers, for all columns when a window
# begins (measured: longest waits of 2 instead of 7 ms).
SPLIT_BELOW_ROWS = 1024


# Batches sliced at a time; each tensor that waits costs time in Python's garbage collector.
SPLIT_BATCHES = 16


def window_batches(window: Window, batch_size: int, pinned: Allocator | None = None) -> Iterator[Batch]:
    """Yield a window's batches in order; each is a view, and keeps the window's memory alive.

    Args:
        window: The window.
        batch_size: Rows of a batch.
        pinned: Provides the memory that each batch is copied to; None: no copy.
    """
    rows, arrays, owners = window.rows, window.arrays, window.owners
    del window
    if pinned is None and (owners or batch_size < SPLIT_BELOW_ROWS):
        yield from _split_batches({n: _tensor(a, owners.get(n)) for n, a in arrays.items()}, rows, batch_size)
        return
    for start in range(0, rows if arrays else 0, batch_size):
        stop = min(start + batch_size, rows)
        cut: dict[str, Any] = {
            name: array.slice(start, stop) if isinstance(array, Ragged) else array[start:stop]
            for name, array in arrays.items()
        }
        batch = ProcessedBatch(stop - start, cut, {}, 0)
        yield batch_tensors(batch if pinned is None else moved(batch, pinned))
        del batch, cut  # frees their window while the next one is awaited


def _split_batches(columns: dict[str, Any], rows: int, batch_size: int) -> Iterator[Batch]:
    at_once = batch_size * SPLIT_BATCHES
    for first in range(0, rows if columns else 0, at_once):
        last = min(first + at_once, rows)
        slices = [_split(column, first, last, batch_size) for column in columns.values()]
        for batch in zip(*slices, strict=True):
            yield dict(zip(columns, batch, strict=True))
        del slices


def _split(column: Any, first: int, last: int, batch_size: int) -> Sequence[Any]:
    """Return rows ``first`` to ``last`` in slices of `batch_size` rows: views that count as tensors of their own."""
    if isinstance(column, Ragged):
        return [column.slice(start, min(start + batch_size, last)) for start in range(first, last, batch_size)]
    return torch.unsafe_split(column[first:last], batch_size)


def batch_tensors(batch: ProcessedBatch) -> Batch:
    """Return a processed batch as tensors."""
    return {name: _tensor(array, batch.owners.get(name)) for name, array in batch.arrays.items()}


def tensor_bytes(batch: Mapping[str, Any]) -> int:
    """Return the bytes of a batch's tensors."""

    def size(value: Any) -> int:
        if isinstance(value, Ragged):
            return size(value.values) + size(value.offsets)
        return sum(map(size, value)) if isinstance(value, list) else int(value.nbytes)

    return sum(map(size, batch.values()))
