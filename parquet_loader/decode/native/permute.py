"""Permutes rows and interleaves columns, in one call for many columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parquet_loader.common import KERNELS


def take_columns(
    columns: Sequence[npt.NDArray[np.uint8]],
    rows: npt.NDArray[Any],
    outs: Sequence[npt.NDArray[np.uint8]],
    *,
    is_large: bool = False,
) -> None:
    """Put columns into order: row `i` of each of `outs` becomes row ``rows[i]`` of that column.

    Args:
        columns: Each ``[m, width]``, contiguous.
        rows: ``[n]``, uint32 for the kernel, other integers for numpy; not checked.
        outs: Each ``[n, width]``, contiguous and writable.
        is_large: Whether so much is written, here and elsewhere, that it will have left the caches when it is read.
    """
    if rows.dtype != np.uint32:
        for column, out in zip(columns, outs, strict=True):
            np.take(column, rows, axis=0, out=out, mode="clip")
        return
    sources, targets = (
        np.array([array.__array_interface__["data"][0] for array in arrays], np.uintp) for arrays in (columns, outs)
    )
    widths = np.array([column.shape[1] for column in columns], np.int64)
    data = sources.ctypes.data, widths.ctypes.data
    KERNELS.columns_take(*data, len(columns), rows.ctypes.data, len(rows), targets.ctypes.data, is_large)


def join_columns(columns: Sequence[npt.NDArray[Any]], out: npt.NDArray[Any]) -> None:
    """Put columns side by side.

    Args:
        columns: Each ``[rows]``, contiguous, of the dtype of `out`.
        out: ``[rows, columns]`` in C order, writable.
    """
    places = np.array([column.__array_interface__["data"][0] for column in columns], np.uintp)
    KERNELS.columns_join(places.ctypes.data, len(columns), out.itemsize, len(out), out.ctypes.data)


def take_rows(rows_in: npt.NDArray[np.uint8], rows: npt.NDArray[np.uint32], out: npt.NDArray[np.uint8]) -> None:
    """Put rows of bytes into order: row `i` of `out` becomes row ``rows[i]`` of `rows_in`.

    Args:
        rows_in: ``[m, width]``, contiguous.
        rows: ``[n]``, contiguous; not checked.
        out: ``[n, width]``, contiguous and writable.
    """
    source, numbers, target = (array.__array_interface__["data"][0] for array in (rows_in, rows, out))
    KERNELS.rows_take(source, rows_in.shape[1], numbers, len(rows), target)


def take_ragged(
    data: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
    out: npt.NDArray[np.uint8],
) -> None:
    """Put rows of bytes that differ in length into order: the next row of `out` becomes row ``rows[i]`` of `data`.

    Args:
        data: The rows, one behind another.
        offsets: ``[m + 1]``, where in `data` each begins, and the last one ends.
        rows: ``[n]``, contiguous; not checked.
        places: ``[n]``, contiguous: where in `out` each begins.
        out: Writable, with space for them.
    """
    arrays = data, offsets, rows, places, out
    source, begins, numbers, starts, target = (array.__array_interface__["data"][0] for array in arrays)
    KERNELS.ragged_take(source, begins, numbers, len(rows), starts, target)
