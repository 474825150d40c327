"""Builds a window's fixed-width columns.

Rows of at least `WIDE_BYTES` are copied once, directly to their delivered position. Narrower rows are staged: copied
next to one another as they are decoded, into reused memory, and permuted when all are there. For rows of 52 bytes,
gathering them from all over a window costs half as much as scattering them over one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import IntArray, take_rows
from parquet_loader.decode import Column
from parquet_loader.read import DeferredColumns
from parquet_loader.window.arena import Allocation, Allocator, Arenas, Block, Memory

Rows = npt.NDArray[np.uint8]
Delivered = tuple[npt.NDArray[Any], Any]
"""``[rows, ...]``, and what tensors are to be made from."""


class DirectRows:
    """The wide columns of one window. `write_rows` may be called by several threads, each with rows of its own.

    Args:
        columns: The columns.
        capacity: Rows to take memory for.
        carried_rows: Rows that the window before leaves over, by the plan: they come first.
        allocator: Where delivered rows go.
    """

    def __init__(self, columns: Sequence[Column], capacity: int, carried_rows: int, allocator: Allocator) -> None:
        self._columns = columns
        self._capacity = capacity
        self._carried_rows = carried_rows
        self._allocator = allocator
        self._slots: IntArray | None = None
        self._arenas: dict[str, Allocation] = {}

    def prepare(self, order: IntArray | None) -> None:
        """Take memory, and find out where each row goes, given which row comes at each place (None: as they lie)."""
        if not self._columns:
            return
        if order is not None:
            self._slots = np.empty(len(order), np.int64)
            self._slots[order] = np.arange(self._carried_rows, self._carried_rows + len(order))
        for column in self._columns:
            self._arenas[column.name] = self._allocator.allocate(self._capacity * column.arrow_type.byte_width)

    def memory(self, rows: int) -> list[Memory]:
        """Return where that many rows will be written as they are decoded."""
        return [self._rows_of(column)[:rows].reshape(-1) for column in self._columns]

    def write_rows(self, first: int, rows: int, table: pa.Table, raw: DeferredColumns | None) -> None:
        """Copy rows to their slots; the first of them is row `first` of the window as it is read."""
        slots: IntArray | slice = slice(self._carried_rows + first, self._carried_rows + first + rows)
        if self._slots is not None:
            slots = self._slots[first : first + rows]
        for column in self._columns:
            copy_rows(column, table, raw, self._rows_of(column), slots)

    def finish(
        self, carried: Mapping[str, Rows], present: Callable[[], IntArray] | None, total: int, delivered: int
    ) -> tuple[dict[str, Delivered], dict[str, Rows]]:
        """Return what is delivered, and the rows left over, copied.

        Args:
            carried: Rows that the window before left.
            present: Returns which slots of the order have their rows, where some have not or fewer rows were carried
                than planned; None: all.
            total: Rows delivered or left over.
            delivered: Of these, rows delivered.
        """
        done, left = dict[str, Delivered](), dict[str, Rows]()
        for column in self._columns:
            out = self._rows_of(column)
            before = len(carried[column.name]) if carried else 0
            if present is not None:  # move rows together
                out[before:total] = out[self._carried_rows + present()]
            if before:
                out[:before] = carried[column.name]
            left[column.name] = out[delivered:total].copy()
            done[column.name] = as_delivered(column, out[:delivered]), self._arenas[column.name].owner
        self._arenas = {}
        return done, left

    def _rows_of(self, column: Column) -> Rows:
        return self._arenas[column.name].array.reshape(self._capacity, column.arrow_type.byte_width)


class StagedRows:
    """The narrower columns of one window.

    Several threads may call `write_rows` and `gather`, each for its own rows.

    Args:
        columns: The columns.
        capacity: Rows to take memory for.
        carried_rows: Rows that the window before leaves over, by the plan: space for them comes first.
        staging: Where rows wait.
        allocator: Where delivered rows go.
    """

    def __init__(
        self, columns: Sequence[Column], capacity: int, carried_rows: int, staging: Arenas, allocator: Allocator
    ) -> None:
        self._columns = columns
        self._capacity = capacity
        self._carried_rows = carried_rows
        self._staging = staging
        self._allocator = allocator
        self._staged: dict[str, Rows] = {}
        self._out: dict[str, Allocation] = {}
        self._indices: npt.NDArray[Any] = np.zeros(0, np.int64)

    def prepare(self) -> None:
        """Take memory for rows as they come."""
        for column in self._columns:
            width = column.arrow_type.byte_width
            self._staged[column.name] = self._staging.allocate(self._capacity * width).array.reshape(-1, width)

    def memory(self, rows: int) -> list[Memory]:
        """Return where that many rows will be written as they are decoded."""
        return [staged[:rows].reshape(-1) for staged in self._staged.values()]

    def blocks(self, rows: int) -> list[Block]:
        """Return what `set_order` will ask the allocator for, to put that many rows into order."""
        widths = [column.arrow_type.byte_width for column in self._columns]
        return [Block(self._capacity * width, ((0, rows * width),)) for width in widths]

    def write_rows(self, first: int, rows: int, table: pa.Table, raw: DeferredColumns | None) -> int:
        """Copy rows in, the first of them row `first` of the window as it is read; return the bytes they take."""
        slots = slice(self._carried_rows + first, self._carried_rows + first + rows)
        for column in self._columns:
            copy_rows(column, table, raw, self._staged[column.name], slots)
        return rows * sum(column.row_bytes or 0 for column in self._columns)

    def set_order(self, carried: Mapping[str, Rows], indices: npt.NDArray[Any]) -> None:
        """Fix the order: rows that the window before left, and behind them the rows of the window as it was read."""
        if not self._columns:
            return
        before = len(next(iter(carried.values()))) if carried else 0
        self._carried_rows += make_room(self._staged.values(), self._carried_rows, before)
        begin = self._carried_rows - before
        # Where fewer rows were carried than planned, there is space before them.
        self._indices = indices + indices.dtype.type(begin) if begin else indices
        for column in self._columns:
            if before:
                self._staged[column.name][begin : self._carried_rows] = carried[column.name]
            self._out[column.name] = self._allocator.allocate(self._capacity * column.arrow_type.byte_width)

    def gather(self, start: int, stop: int) -> None:
        """Put the rows of slots ``start`` to ``stop`` there; different ranges may run in parallel."""
        for column in self._columns:
            take_rows(self._staged[column.name], self._indices[start:stop], self._rows_of(column)[start:stop])

    def finish(self, delivered: int) -> tuple[dict[str, Delivered], dict[str, Rows]]:
        """Return what is delivered, and the rows beyond, copied."""
        done, left = dict[str, Delivered](), dict[str, Rows]()
        for column in self._columns:
            out = self._rows_of(column)
            left[column.name] = out[delivered : len(self._indices)].copy()
            done[column.name] = as_delivered(column, out[:delivered]), self._out[column.name].owner
        self._staged, self._out = {}, {}
        return done, left

    def _rows_of(self, column: Column) -> Rows:
        return self._out[column.name].array.reshape(self._capacity, column.arrow_type.byte_width)


def copy_rows(column: Column, table: pa.Table, raw: DeferredColumns | None, out: Rows, slots: IntArray | slice) -> None:
    """Copy rows of a column, from the table or straight from the file, to these rows of `out`."""
    if raw is not None and column.name in raw.columns:
        raw.read(column.name, out, slots)
        return
    done = 0
    for chunk in table.column(column.name).chunks:
        end = done + len(chunk)
        if isinstance(slots, slice):
            out[slots.start + done : slots.start + end] = fixed_rows(chunk, out.shape[1])
        else:
            out[slots[done:end]] = fixed_rows(chunk, out.shape[1])
        done = end


def make_room(staged: Iterable[Rows], planned: int, carried: int) -> int:
    """Move staged rows where more are carried to them than planned; return by how many.

    That happens behind rows that could not be read, which leave the end of a window elsewhere.
    """
    more = max(0, carried - planned)
    for rows in staged if more else ():
        rows[carried:] = rows[planned : len(rows) - more]
    return more


def padded(nbytes: int) -> int:
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
