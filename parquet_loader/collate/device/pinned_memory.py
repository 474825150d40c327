"""Page-locked memory for windows and batches that `cuda.py` copies to a GPU."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from parquet_loader.engine import ProcessedBatch
from parquet_loader.schema import Ragged
from parquet_loader.window import Allocation, Allocator


def pinned_copy(batch: ProcessedBatch, allocator: Allocator) -> ProcessedBatch:
    """Return a batch copied into one block of the allocator's memory; lists of images are not copied."""
    sizes = {name: _padded(array) for name, array in batch.arrays.items() if not isinstance(array, list)}
    space = allocator.allocate(max(sum(sizes.values()), 1))
    arrays: dict[str, Any] = dict(batch.arrays)
    owners: dict[str, Any] = {}
    for name, size in sizes.items():
        mine, space = space.cut(size)
        array = arrays[name]
        values = array.values if isinstance(array, Ragged) else array
        if isinstance(values, Ragged):
            continue
        copy = mine.array[: values.nbytes].view(values.dtype).reshape(values.shape)
        copy[...] = values
        arrays[name], owners[name] = (
            (Ragged(copy, array.offsets, array.kind) if isinstance(array, Ragged) else copy),
            mine.owner,
        )
    return replace(batch, arrays=arrays, owners=owners)


def _padded(array: Any) -> int:
    """Return the bytes of an array in a shared block: whole cache lines."""
    values = array.values if isinstance(array, Ragged) else array
    return 0 if isinstance(values, Ragged) else -(-int(values.nbytes) // 64) * 64


class PinnedMemory:
    """Page-locked memory from torch's caching host allocator, for copies to a GPU that overlap with compute.

    The allocator reuses a freed block only after all copies from it are done. It tracks copies by the tensor that owns
    the memory, so all tensors are made from the owner, never from the numpy view.

    A forked process cannot use its parent's CUDA, so there `allocate` returns ordinary memory.
    """

    is_required = True

    def __init__(self) -> None:
        self._pid = os.getpid()

    def taken_bytes(self, nbytes: int) -> int:
        """Return the next power of two, to which torch rounds pinned memory."""
        return 1 << max(nbytes - 1, 0).bit_length()

    def allocate(self, nbytes: int) -> Allocation:
        """Return `nbytes` of pinned memory, with the tensor that owns it."""
        if self._pid != os.getpid():
            return Allocation(np.empty(nbytes, np.uint8))
        # The device is named, because the caller may have changed torch's default device.
        owner = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        return Allocation(owner.numpy(), owner)
