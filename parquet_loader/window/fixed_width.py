"""Assembles a window's wide columns: rows of at least `WIDE_BYTES` are copied once, directly to their final slot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import IntArray, join_columns
from parquet_loader.decode import Column, Target
from parquet_loader.window.arena import Allocation, Allocator, Memory

Rows = npt.NDArray[np.uint8]
Bytes = TypeVar("Bytes", int, IntArray)
Delivered = tuple[npt.NDArray[Any], Any]
"""``[rows, ...]``, and the owner of its memory; see `Window.owners`."""


class DirectRows:
    """The wide columns of one window. Several threads may write to `targets`, each rows of its own.

    Args:
        columns: The columns.
        capacity: Capacity in rows.
        carried_rows: Rows that the previous window leaves over, according to the plan; they come first.
        allocator: Provides the memory of delivered rows.
    """

    def __init__(self, columns: Sequence[Column], capacity: int, carried_rows: int, allocator: Allocator) -> None:
        self._columns = columns
        self._widths = {column.name: column.arrow_type.byte_width for column in columns}
        self._capacity = capacity
        self._carried_rows = carried_rows
        self._allocator = allocator
        self._slots: IntArray | None = None
        self._arenas: dict[str, Allocation] = {}

    def prepare(self, order: IntArray | None) -> None:
        """Allocate the arenas, and invert the permutation to get the slot of each row."""
        if not self._columns:
            return
        if order is not None:
            self._slots = np.empty(len(order), np.int64)
            self._slots[order] = np.arange(self._carried_rows, self._carried_rows + len(order))
        for column in self._columns:
            self._arenas[column.name] = self._allocator.allocate(self._capacity * column.arrow_type.byte_width)

    def memory(self, rows: int) -> list[Memory]:
        """Return the part of the buffers that `rows` rows will occupy."""
        return [self._rows_of(column)[:rows].reshape(-1) for column in self._columns]

    def targets(self, first: int, count: int) -> list[Target]:
        """Return where rows go; `first` is the number of the first one among the rows that the window reads."""
        slots: IntArray | slice = slice(self._carried_rows + first, self._carried_rows + first + count)
        if self._slots is not None:
            slots = self._slots[first : first + count]
        return [(column.name, self._rows_of(column), slots) for column in self._columns]

    def holds(self, name: str) -> bool:
        """Whether a column is wide."""
        return name in self._widths

    def address(self, name: str, first: int) -> int:
        """Return the address of slot 0 if rows have `slots`, else of row `first`; arguments as in `targets`."""
        arena: int = self._arenas[name].array.__array_interface__["data"][0]
        skipped = 0 if self._slots is not None else self._carried_rows + first
        return arena + skipped * int(self._widths[name])

    def slots(self, name: str, first: int, count: int) -> IntArray | None:
        """Return the slots of a column's rows; None if they are consecutive, or if the column is not wide."""
        return self._slots[first : first + count] if self._slots is not None and name in self._widths else None

    def finish(
        self, carried: Mapping[str, Rows], present: Callable[[], IntArray] | None, total: int, delivered: int
    ) -> tuple[dict[str, Delivered], dict[str, Rows]]:
        """Return the delivered rows by name, and a copy of the rows left over.

        Args:
            carried: Rows that the previous window left over.
            present: Returns the positions of the rows that were read; None if all rows were read and the planned number
                of rows was carried.
            total: Rows delivered or left over.
            delivered: Rows delivered.
        """
        done, left = dict[str, Delivered](), dict[str, Rows]()
        for column in self._columns:
            out = self._rows_of(column)
            before = len(carried[column.name]) if carried else 0
            if present is not None:  # close the gaps
                out[before:total] = out[self._carried_rows + present()]
            if before:
                out[:before] = carried[column.name]
            left[column.name] = out[delivered:total].copy()
            done[column.name] = as_delivered(column, out[:delivered]), self._arenas[column.name].owner
        self._arenas = {}
        return done, left

    def _rows_of(self, column: Column) -> Rows:
        return self._arenas[column.name].array.reshape(self._capacity, column.arrow_type.byte_width)


def copy_column(array: pa.ChunkedArray, out: Rows, slots: IntArray | slice) -> None:
    """Copy a canonical fixed-width column to these rows of `out`, uint8 ``[rows, width]``."""
    done = 0
    for chunk in array.chunks:
        end = done + len(chunk)
        if isinstance(slots, slice):
            out[slots.start + done : slots.start + end] = fixed_rows(chunk, out.shape[1])
        else:
            out[slots[done:end]] = fixed_rows(chunk, out.shape[1])
        done = end


def join_rows(columns: npt.NDArray[Any], out: Rows, slots: IntArray | slice) -> None:
    """Interleave columns of numbers, ``[columns, rows]``, and write the rows to these rows of `out`."""
    if isinstance(slots, slice):
        join_columns(columns, out[slots].view(columns.dtype))
        return
    matrix = np.empty(columns.shape[::-1], columns.dtype)
    join_columns(columns, matrix)
    out[slots] = matrix.view(np.uint8)


def shift_staged(staged: Iterable[npt.NDArray[Any]], planned: int, carried: int) -> int:
    """Move staged rows back if more rows are carried than planned; return the distance in rows.

    A window that leaves out row groups carries another number of rows than planned.
    """
    more = max(0, carried - planned)
    for rows in staged if more else ():
        rows[carried:] = rows[planned : len(rows) - more]
    return more


def padded(nbytes: Bytes) -> Bytes:
    """Round up to a cache line, so that columns cut from one block are aligned."""
    return -(-nbytes // 64) * 64


def as_delivered(column: Column, rows: Rows) -> npt.NDArray[Any]:
    """Return rows of bytes as an array of the column's dtype and shape."""
    assert column.dtype is not None
    return rows.reshape(-1).view(column.dtype).reshape(len(rows), *column.shape)


def fixed_rows(array: pa.Array, width: int) -> Rows:
    """Return a canonical fixed-width array as uint8 ``[rows, width]``, without a copy."""
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.empty((0, width), np.uint8)
    return np.frombuffer(buffer, np.uint8, len(array) * width, array.offset * width).reshape(len(array), width)
