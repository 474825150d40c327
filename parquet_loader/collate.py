"""From numpy to torch: a window's arrays become tensors once, and batches are views of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import torch

from parquet_loader.arena import Allocation
from parquet_loader.process import ProcessedBatch
from parquet_loader.types import Ragged
from parquet_loader.window import Window

SPLIT_BATCHES = 8

Batch: TypeAlias = "dict[str, Any]"
"""One training batch: `torch.Tensor` ``[rows, ...]`` or `Ragged` by name; a list of tensors for images of any size."""


def window_batches(window: Window, batch_size: int) -> Iterator[Batch]:
    """Yield a window's batches in order; each is a view, and keeps the window's memory alive.

    Columns are split some batches at a time: one by one costs three times as much, and a whole window at once would
    make its first batch late.
    """
    names = list(window.arrays)
    columns = [_tensor(window.arrays[name], window.owners.get(name)) for name in names]
    rows, block = window.rows, SPLIT_BATCHES * batch_size
    del window
    for start in range(0, rows if columns else 0, block):
        pieces = [_split(column, start, min(start + block, rows), batch_size) for column in columns]
        for values in zip(*pieces, strict=True):
            yield dict(zip(names, values, strict=True))
            del values
        del pieces


def batch_tensors(batch: ProcessedBatch) -> Batch:
    """Return a processed batch as tensors."""
    return {name: _tensor(array, batch.owners.get(name)) for name, array in batch.arrays.items()}


def _tensor(array: Any, owner: Any) -> Any:
    if isinstance(array, Ragged):
        return Ragged(_tensor(array.values, owner), torch.from_numpy(array.offsets), array.kind)
    if isinstance(array, list):
        return [torch.from_numpy(a if a.flags.writeable else a.copy()) for a in array]
    tensor = torch.from_numpy(array)
    if owner is None:
        return tensor
    # The same bytes, but through the tensor that owns them, so that torch's guard of pinned memory sees the copies.
    return owner[: array.nbytes].view(tensor.dtype).view(tensor.shape)


def _split(column: Any, start: int, stop: int, batch_size: int) -> Iterator[Any]:
    if isinstance(column, Ragged):
        return (column.slice(row, min(row + batch_size, stop)) for row in range(start, stop, batch_size))
    return iter(column[start:stop].split(batch_size))


class PinnedMemory:
    """Page-locked memory from torch's caching host allocator, for copies to a GPU that overlap with compute.

    The allocator keeps freed blocks for later, and does not give out a block again before the copies that read it are
    done; that is why tensors are made from the tensor that owns the memory, never from the numpy view.
    """

    copies_gathered = True

    def taken_bytes(self, nbytes: int) -> int:
        """Return the next power of two, to which torch rounds pinned memory."""
        return 1 << max(nbytes - 1, 0).bit_length()

    def allocate(self, nbytes: int) -> Allocation:
        """Return `nbytes` of pinned memory."""
        owner = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        return Allocation(owner.numpy(), owner)


def tensor_bytes(batch: Mapping[str, Any]) -> int:
    """Return the bytes of a batch's tensors."""

    def size(value: Any) -> int:
        if isinstance(value, Ragged):
            return size(value.values) + size(value.offsets)
        return sum(map(size, value)) if isinstance(value, list) else int(value.nbytes)

    return sum(map(size, batch.values()))
