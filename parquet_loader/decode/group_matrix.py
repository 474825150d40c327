"""Joins several number columns into one contiguous matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import join_columns


def matrix(arrays: list[pa.ChunkedArray], dtype: np.dtype[Any]) -> pa.ChunkedArray:
    """Return columns of numbers as one column of raw rows, ``[rows, columns]`` in C order."""
    rows, kept = len(arrays[0]), np.dtype(np.uint8) if dtype == np.bool_ else dtype
    # Arrow's memory is used again while warm.
    buffer = pa.allocate_buffer(rows * len(arrays) * kept.itemsize)
    out = np.frombuffer(buffer, kept).reshape(rows, len(arrays))
    join_columns([_values(array, out.dtype) for array in arrays], out)
    raw = pa.binary(out.itemsize * len(arrays))
    return pa.chunked_array([pa.Array.from_buffers(raw, rows, [None, buffer])], raw)


def _values(array: pa.ChunkedArray, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return numbers without nulls as numpy; without a copy where they are one chunk, and no bits."""
    chunks = [_chunk_values(chunk, dtype) for chunk in array.chunks if len(chunk)]
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks or [np.empty(0, dtype)])


def _chunk_values(chunk: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if pa.types.is_boolean(chunk.type):
        bits: npt.NDArray[Any] = chunk.to_numpy(zero_copy_only=False)
        return bits
    return np.frombuffer(chunk.buffers()[1], dtype, len(chunk), chunk.offset * dtype.itemsize)
