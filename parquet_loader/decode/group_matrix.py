"""Joins several number columns into one contiguous matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import IS_BUILT
from parquet_loader.decode.native import join_columns

# Rows are written by blocks of that many bytes, which stay in the cache: a whole column of a large matrix takes each of
# its cache lines anew. Measured on 50,000 rows: 26 columns at once 3.8 ns a value, by blocks 1.4; 13 columns 1.7, 1.2.
# Smaller blocks are no faster, and numpy releases the GIL for each of their columns.
_BLOCK_BYTES = 2**20


def matrix(arrays: list[pa.ChunkedArray], dtype: np.dtype[Any]) -> pa.ChunkedArray:
    """Return columns of numbers as one column of raw rows, ``[rows, columns]`` in C order."""
    rows, kept = len(arrays[0]), np.dtype(np.uint8) if dtype == np.bool_ else dtype
    # Arrow's memory is used again while warm.
    buffer = pa.allocate_buffer(rows * len(arrays) * kept.itemsize)
    out = np.frombuffer(buffer, kept).reshape(rows, len(arrays))
    columns = [_values(array, out.dtype) for array in arrays]
    if IS_BUILT:
        join_columns(columns, out)
        return _as_rows(buffer, out)
    at_once = max(1, _BLOCK_BYTES // out.strides[0])
    for start in range(0, rows, at_once):
        block = out[start : start + at_once]
        for number, column in enumerate(columns):
            block[:, number] = column[start : start + at_once]
    return _as_rows(buffer, out)


def _as_rows(buffer: pa.Buffer, out: npt.NDArray[Any]) -> pa.ChunkedArray:
    rows, width = out.shape
    raw = pa.binary(out.itemsize * width)
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
