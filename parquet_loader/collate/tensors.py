"""Makes batches of tensors from windows and processed batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from parquet_loader.collate.device.pinned_memory import pinned_copy
from parquet_loader.collate.output import Batch
from parquet_loader.engine import ProcessedBatch
from parquet_loader.schema import Ragged, split_ragged
from parquet_loader.window import Allocator, Window

# Torch slices smaller batches, several at a time, in half the time for each tensor. numpy slices larger ones, because
# it keeps the GIL: torch releases it in every call and then waits for the workers (measured: longest waits of 7 ms
# instead of 2 ms).
SPLIT_BELOW_ROWS = 1024
# Batches sliced at a time. Given a list of sizes, torch takes 0.40 microseconds for each tensor; given one size for
# all, 0.55. Each call takes another 2.
SPLIT_BATCHES = 32
# Tensors sliced at a time, if that many make `_FEWEST_BATCHES`: fewer than the 700 objects after which Python's garbage
# collector runs. Measured with 40 columns: 24 microseconds a batch instead of 29.
_HOST_SPLIT_TENSORS = 600
_FEWEST_BATCHES = 12
# The same on a device, for any number of columns.
DEVICE_SPLIT_TENSORS = 320


def window_batches(window: Window, batch_size: int, pinned: Allocator | None = None) -> Iterator[Batch]:
    """Yield a window's batches in order; each is a view, and keeps the window's memory alive.

    Args:
        window: The window.
        batch_size: Rows of a batch.
        pinned: Provides the memory that each batch is copied to; None for views.
    """
    if pinned is None and (window.owners or batch_size < SPLIT_BELOW_ROWS):
        columns = {name: host_tensor(array, window.owners.get(name)) for name, array in window.arrays.items()}
        yield from _split_batches(columns, window.rows, batch_size)
        return
    for number, arrays in enumerate(window.batches(batch_size)):
        batch = ProcessedBatch(min(batch_size, window.rows - number * batch_size), dict(arrays), {}, 0)
        yield batch_tensors(batch if pinned is None else pinned_copy(batch, pinned))


def _split_batches(columns: dict[str, Any], rows: int, batch_size: int) -> Iterator[Batch]:
    names, rest = tuple(columns), list(columns.values())
    few = _HOST_SPLIT_TENSORS // max(1, len(names))
    at_once = batch_size * (SPLIT_BATCHES if few < _FEWEST_BATCHES else min(few, SPLIT_BATCHES))
    for first in range(0, rows if names else 0, at_once):
        last = min(first + at_once, rows)
        sizes = [min(batch_size, last - start) for start in range(first, last, batch_size)]
        sizes_and_rest = [*sizes, rows - last]
        slices = list[Sequence[Any]]()
        for number, column in enumerate(rest):
            if isinstance(column, Ragged):
                slices.append(split_ragged(column, first, last, batch_size))
            else:
                # Autograd lets callers write to these views. Slicing the rest apart would take another microsecond.
                slices.append(parts := torch.unsafe_split_with_sizes(column, sizes_and_rest))
                rest[number] = parts[-1]
        for batch in islice(zip(*slices, strict=False), len(sizes)):
            yield dict(zip(names, batch, strict=True))
        del slices


def batch_tensors(batch: ProcessedBatch) -> Batch:
    """Return a processed batch as tensors."""
    return {name: host_tensor(array, batch.owners.get(name)) for name, array in batch.arrays.items()}


def host_tensor(array: Any, owner: Any) -> Any:
    """Return an array, `Ragged` or list of arrays as tensors of the same memory.

    Args:
        array: The array.
        owner: The tensor that owns the array's memory, from its first byte on; None if numpy owns it.
    """
    if isinstance(array, Ragged):
        return Ragged(host_tensor(array.values, owner), torch.from_numpy(array.offsets), array.kind)
    if isinstance(array, list):
        return [torch.from_numpy(a if a.flags.writeable else a.copy()) for a in array]
    tensor = torch.from_numpy(array)
    if owner is None:
        return tensor
    # A view of the tensor that owns the memory, so that torch tracks copies that read it.
    return owner[: array.nbytes].view(tensor.dtype).view(tensor.shape)
