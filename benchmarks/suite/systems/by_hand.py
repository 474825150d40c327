"""Converts Arrow to torch as users write it, for systems that deliver Arrow. Needs numpy, pyarrow, torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from benchmarks.suite.systems.base import Job
from benchmarks.suite.workloads import Column


def tensors(job: Job, table: Any) -> dict[str, Any]:
    """Convert a table or record batch to the columns of a batch."""
    return {column.name: tensor(column, table.column(column.name)) for column in job.columns}


def tensor(column: Column, array: Any) -> Any:
    """Turn a column into a tensor, or into (values, offsets)."""
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    if column.kind == "scalar":
        return torch.from_numpy(_owned(array.to_numpy(zero_copy_only=False)))
    if column.kind == "image":
        from benchmarks.suite.systems.pictures import decode_all  # noqa: PLC0415  (needs Pillow)

        return torch.from_numpy(decode_all(value.as_buffer() for value in array))
    if column.kind == "vector" and pa.types.is_fixed_size_binary(array.type):
        start = array.offset * array.type.byte_width
        raw = np.frombuffer(array.buffers()[1], np.uint8)[start : start + len(array) * array.type.byte_width]
        return torch.from_numpy(_owned(raw.view(column.dtype).reshape(len(array), column.width)))
    if column.kind == "text":
        array = array.cast(pa.binary())
        offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
        values = np.frombuffer(array.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
        return torch.from_numpy(_owned(values)), torch.from_numpy(offsets.astype(np.int64) - int(offsets[0]))
    values = array.flatten().to_numpy(zero_copy_only=False)
    if column.kind == "vector":
        return torch.from_numpy(_owned(values.reshape(len(array), column.width)))
    offsets = np.asarray(array.offsets).astype(np.int64)
    return torch.from_numpy(_owned(values)), torch.from_numpy(offsets - int(offsets[0]))


def end_to_end(rows: Iterable[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Join tensors of varying length to (values, offsets)."""
    rows = list(rows)
    lengths = torch.tensor([0, *(len(row) for row in rows)])
    return torch.cat(rows), lengths.cumsum(0)


def text_bytes(texts: Iterable[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Join texts to UTF-8 bytes and offsets."""
    encoded = [text.encode() for text in texts]
    lengths = torch.tensor([0, *map(len, encoded)])
    return torch.frombuffer(bytearray(b"".join(encoded)), dtype=torch.uint8), lengths.cumsum(0)


def _owned(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Copy views, because Arrow's memory is not writable and torch wants writable memory."""
    return values if values.flags.writeable else values.copy()
