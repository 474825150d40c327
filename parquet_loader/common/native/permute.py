"""Permutes rows and interleaves columns: one kernel call for many columns, or numpy and Arrow without kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common.native.bindings import KERNELS

# Bytes beyond a row that kernels may read: SLACK in `kernels.h`.
READ_BEHIND = 128
# Without kernels, columns are joined in blocks of this size, which fit the cache: writing a whole column of a large
# matrix loads each of its cache lines again. Measured on 50,000 rows: 26 columns 3.8 ns a value, in blocks 1.4; 13
# columns 1.7, in blocks 1.2. Smaller blocks are not faster, and numpy releases the GIL once for each column of a block.
_BLOCK_BYTES = 2**20
# Without kernels, rows of varying length are copied twice, about this many bytes at a time: the first copy then reuses
# memory without page faults.
_SEGMENT_BYTES = 2**20


def take_columns(
    source: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    widths: npt.NDArray[np.int64],
    rows: npt.NDArray[Any],
    out: npt.NDArray[np.uint8],
    out_starts: npt.NDArray[np.int64],
    *,
    is_large: bool = False,
    loaded_rows: int = 0,
) -> None:
    """Permute columns: row `i` of each column of the result is its row ``rows[i]``.

    Args:
        source: The memory of the columns, ``[nbytes]``.
        starts: Offset of each column in `source`, ``[columns]``.
        widths: Bytes per row of each column, ``[columns]``, contiguous.
        rows: ``[n]``, contiguous, uint32 for the kernel, other integers for numpy; not checked.
        out: The memory of the result, ``[nbytes]``, writable.
        out_starts: Offset of each column in `out`, ``[columns]``.
        is_large: Whether the whole result, of which this may be a part, exceeds the caches before it is read.
        loaded_rows: Number of rows at the start of each column to load to the CPU cache first, in order; all of them if
            most of the column's rows are among `rows`, else 0.
    """
    if KERNELS is None or rows.dtype != np.uint32:
        for start, width, out_start in zip(starts.tolist(), widths.tolist(), out_starts.tolist(), strict=True):
            if not width:
                continue
            column = source[start : start + (len(source) - start) // width * width]
            taken = out[out_start : out_start + len(rows) * width]
            if width in (1, 2, 4, 8):
                np.take(column.view(f"u{width}"), rows, out=taken.view(f"u{width}"), mode="clip")
            else:
                np.take(column.reshape(-1, width), rows, axis=0, out=taken.reshape(-1, width), mode="clip")
        return
    sources, targets = starts + source.ctypes.data, out_starts + out.ctypes.data
    data = sources.ctypes.data, widths.ctypes.data
    out_data = targets.ctypes.data
    KERNELS.columns_take(*data, len(widths), rows.ctypes.data, len(rows), out_data, is_large, loaded_rows)


def copy_columns(
    source: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    widths: npt.NDArray[np.int64],
    rows: int,
    out: npt.NDArray[np.uint8],
    out_starts: npt.NDArray[np.int64],
) -> None:
    """Copy the first rows of columns; arguments as in `take_columns`."""
    if KERNELS is None:
        for start, width, out_start in zip(starts.tolist(), widths.tolist(), out_starts.tolist(), strict=True):
            out[out_start : out_start + rows * width] = source[start : start + rows * width]
        return
    sources, targets = starts + source.ctypes.data, out_starts + out.ctypes.data
    KERNELS.columns_copy(sources.ctypes.data, widths.ctypes.data, len(widths), rows, targets.ctypes.data)


def order_after(carried: int, order: npt.NDArray[np.int64], read: int) -> npt.NDArray[Any]:
    """Return the order of carried rows followed by others: ``[rows]``, uint32 if that is wide enough, else int64.

    Args:
        carried: Number of carried rows.
        order: The order of the others, contiguous, all less than `read`.
        read: Number of rows that the window reads.
    """
    indices = np.empty(carried + len(order), np.uint32 if carried + read < 2**32 else np.int64)
    if KERNELS is not None and indices.dtype == np.uint32:
        KERNELS.order_after(carried, order.ctypes.data, len(order), indices.ctypes.data)
        return indices
    indices[:carried] = np.arange(carried)
    np.add(order, carried, out=indices[carried:], casting="unsafe")
    return indices


def addresses_of(rows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the addresses of the rows of an array, int64 ``[rows]``; the array must outlive them."""
    found: npt.NDArray[np.int64] = np.arange(len(rows)) * rows.strides[0] + rows.ctypes.data
    return found


def join_columns(columns: Sequence[npt.NDArray[Any]] | npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Put columns side by side.

    Args:
        columns: Each ``[rows]``, contiguous, of the dtype of `out`; or all of them, ``[columns, rows]``.
        out: ``[rows, columns]`` in C order, writable.
    """
    if KERNELS is not None:
        if isinstance(columns, np.ndarray):
            addresses = addresses_of(columns)
        else:
            addresses = np.array([column.ctypes.data for column in columns], np.int64)
        KERNELS.columns_join(addresses.ctypes.data, len(columns), out.itemsize, len(out), out.ctypes.data)
        return
    at_once = max(1, _BLOCK_BYTES // (len(columns) * out.itemsize))
    for start in range(0, len(out), at_once):
        block = out[start : start + at_once]
        for number, column in enumerate(columns):
            block[:, number] = column[start : start + at_once]


class RaggedOrder(NamedTuple):
    """Where the entries of a column begin, and which of them each row has, to permute rows that differ in length.

    Attributes:
        offsets: int64 ``[m + 1]``, the offset of each entry, and the end of the last one.
        numbers: uint32, contiguous: the number of each row's entry; not checked by the kernel.
        begins: int64 ``[n]``, contiguous; receives the source offset of each row of the order.
        starts: int64 ``[n + 1]``, contiguous; receives the target offset of each row of the order, and the number of
            bytes of all.
    """

    offsets: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.uint32]
    begins: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]


def order_ragged(columns: Sequence[RaggedOrder], rows: npt.NDArray[Any]) -> None:
    """Find the source and target offsets for permuting rows of several columns.

    Args:
        columns: The columns.
        rows: The order, ``[n]``, contiguous; uint32 for the kernel, which does not check it; other integers for numpy.
    """
    if KERNELS is not None and rows.dtype == np.uint32:
        lines = np.array([[array.ctypes.data for array in column] for column in columns], np.int64)
        KERNELS.ragged_order(lines.ctypes.data, len(lines), rows.ctypes.data, len(rows))
        return
    for offsets, numbers, begins, starts in columns:
        taken = numbers[rows].astype(np.int64)
        begins[:] = offsets[taken]
        starts[0] = 0
        np.cumsum(offsets[taken + 1] - begins, out=starts[1:])


def take_ragged(
    data: npt.NDArray[np.uint8] | None,
    begins: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    out: npt.NDArray[np.uint8],
    sizes: npt.NDArray[np.int64] | None = None,
) -> None:
    """Copy rows of bytes that differ in length.

    Args:
        data: The bytes of the rows; rows may overlap. None if `begins` are addresses from which `READ_BEHIND` bytes can
            be read, also beyond the end of a row; only kernels take these.
        begins: ``[n]``, contiguous: the offset of each row in `data`; not checked by the kernel.
        starts: The offset of each row in `out`, contiguous, ascending: ``[n]``, or without `sizes` ``[n + 1]`` with the
            end of the last row. Bytes between a row's end and the next row may be overwritten.
        out: Writable, with space for the rows.
        sizes: ``[n]``, contiguous: the bytes of each row. With None, each row ends at the start of the next one.
    """
    if KERNELS is not None:
        addresses = [0 if array is None else array.ctypes.data for array in (data, begins, sizes, starts, out)]
        nbytes = 0 if data is None else len(data)
        KERNELS.ragged_take(addresses[0], nbytes, *addresses[1:3], len(begins), *addresses[3:])
        return
    assert data is not None
    ends = begins + (np.diff(starts) if sizes is None else sizes)
    first = 0
    while first < len(begins):
        after = int(np.searchsorted(starts, starts[first] + _SEGMENT_BYTES, side="right")) - 1
        after = min(max(after, first + 1), len(begins))
        # Every other value is a row. The last offset is len(data), because Arrow estimates a value's bytes from the
        # first and the last offset.
        offsets = np.empty(2 * (after - first) + 2, np.int64)
        offsets[0], offsets[1:-1:2], offsets[2:-1:2], offsets[-1] = 0, begins[first:after], ends[first:after], len(data)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        binaries = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
        _, bounds, taken = binaries.take(pa.array(np.arange(1, len(offsets) - 1, 2))).buffers()
        nbytes = int(np.frombuffer(bounds, np.int64)[after - first])
        if nbytes:
            out[starts[first] : starts[first] + nbytes] = np.frombuffer(taken, np.uint8, nbytes)
        first = after
