"""Assembles a window's narrow columns: decoded into a staging buffer, then permuted.

The kernels decode numbers directly into the staging buffer. One column is permuted at a time, so that numbers stay in
the CPU cache. For rows of 52 bytes, gathering them from a window costs half as much as scattering them over one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from parquet_loader.common import IntArray, copy_columns, take_columns
from parquet_loader.decode import Column, Target
from parquet_loader.window.arena import Allocation, Allocator, Block, Memory
from parquet_loader.window.fixed_width import Delivered, Rows, padded, shift_staged

# Larger windows bypass the CPU caches, which would evict them before they are read. Measured with windows of 427,000
# and 214,000 rows, ordering takes a sixth less time.
PAST_CACHE_BYTES = 16 * 2**20


class NarrowColumns:
    """The columns of numbers and of short rows of one window.

    Several threads may write to `addresses` and `targets` and call `gather`, each for its own rows. All columns share
    one staging buffer, and the columns of a part share one block of delivered rows. So a step for all columns, which
    may be thousands, is arithmetic with arrays of addresses.

    Args:
        parts: The columns, in parts that may be permuted in parallel.
        capacity: Capacity in rows.
        carried_rows: Rows that the previous window leaves over, according to the plan; their space comes first.
        staging: Provides the staging buffer.
        allocator: Provides the memory of delivered rows.

    Attributes:
        row_bytes: Bytes of a row of all columns.
    """

    def __init__(
        self,
        parts: Sequence[Sequence[Column]],
        capacity: int,
        carried_rows: int,
        staging: Allocator,
        allocator: Allocator,
    ) -> None:
        self._columns = [column for part in parts for column in part]
        self._positions = {column.name: number for number, column in enumerate(self._columns)}
        self._bounds = list(accumulate(map(len, parts), initial=0))  # the first column of each part
        self._widths: IntArray = np.array([column.row_bytes or 0 for column in self._columns], np.int64)
        self._starts = self._starts_of(capacity)  # of each column in the staging buffer
        self.row_bytes = int(self._widths.sum())
        self._capacity = capacity
        self._carried_rows = carried_rows
        self._staging = staging
        self._allocator = allocator
        self._staged: Memory = np.empty(0, np.uint8)
        self._delivered: list[Allocation] = []
        self._indices: npt.NDArray[Any] = np.zeros(0, np.uint32)

    def _starts_of(self, rows: int) -> IntArray:
        """Return where each column starts, and the last one ends, in a buffer for `rows` rows of each."""
        starts: IntArray = np.zeros(len(self._columns) + 1, np.int64)
        np.cumsum(padded(rows * self._widths), out=starts[1:])
        return starts

    def prepare(self) -> None:
        """Allocate the staging buffer of all columns."""
        if self._columns:
            self._staged = self._staging.allocate(int(self._starts[-1])).array

    def unwritten(self, nbytes: int) -> Memory | None:
        """Return `nbytes` of the staging buffer as scratch memory until rows are written; None if it is smaller."""
        return self._staged[:nbytes] if len(self._staged) >= nbytes else None

    def memory(self, rows: int) -> list[Memory]:
        """Return the part of the buffer that `rows` rows will occupy."""
        return [self._rows_of(number)[:rows].reshape(-1) for number in range(len(self._columns))]

    def blocks(self, rows: int) -> list[Block]:
        """Return the blocks that `set_order` will allocate for `rows` rows, one for each part."""
        found = []
        for first, last in pairwise(self._bounds):
            starts = (self._starts[first:last] - self._starts[first]).tolist()
            ends = (starts + rows * self._widths[first:last]).tolist()
            found.append(Block(int(self._starts[last] - self._starts[first]), tuple(zip(starts, ends, strict=True))))
        return found

    def _rows_of(self, number: int) -> Rows:
        """Return the staging buffer of a column."""
        start, width = int(self._starts[number]), int(self._widths[number])
        return self._staged[start : start + self._capacity * width].reshape(self._capacity, width)

    def addresses(self, first: int, names: Sequence[str]) -> IntArray:
        """Return the addresses in the staging buffer to which kernels write rows, int64 ``[names]``.

        The address of a column that is not narrow is 0. `first` is the number of the first row among those that the
        window reads.
        """
        if not self._columns:
            return np.zeros(len(names), np.int64)
        found: IntArray = np.zeros(len(self._columns) + 1, np.int64)
        address: int = self._staged.__array_interface__["data"][0]
        found[:-1] = self._starts[:-1] + (self._carried_rows + first) * self._widths + address
        return found[[self._positions.get(name, -1) for name in names]]

    def targets(self, first: int, count: int, straight: Sequence[str]) -> list[Target]:
        """Return where in the staging buffers rows go; `first` and `count` as in `DirectRows.targets`.

        `straight` names the columns that are written to `addresses`.
        """
        left = self._positions.keys() - straight
        if not left:
            return []
        slots = slice(self._carried_rows + first, self._carried_rows + first + count)
        return [(name, self._rows_of(number), slots) for name, number in self._positions.items() if name in left]

    def set_order(self, carried: Memory, before: int, indices: npt.NDArray[Any]) -> None:
        """Fix the order, and add the rows that the previous window left over.

        Args:
            carried: Those rows, as `finish` of the previous window returned them.
            before: Their number.
            indices: The order. It numbers the carried rows first, then the rows that the window reads.
        """
        staged = map(self._rows_of, range(len(self._columns)))
        self._carried_rows += shift_staged(staged, self._carried_rows, before)
        begin = self._carried_rows - before
        # If fewer rows were carried than planned, there is free space before them.
        self._indices = indices + indices.dtype.type(begin) if begin else indices
        if before:
            outs = self._starts[:-1] + begin * self._widths
            copy_columns(carried, self._starts_of(before)[:-1], self._widths, before, self._staged, outs)
        self._delivered = [self._allocator.allocate(block.nbytes) for block in self.blocks(len(indices))]

    def gather(self, part: int, start: int, stop: int) -> None:
        """Copy rows of one part to slots ``start`` to ``stop`` (exclusive)."""
        first, last = self._bounds[part], self._bounds[part + 1]
        starts, widths = self._starts[first:last], self._widths[first:last]
        is_large = len(self._indices) * self.row_bytes >= PAST_CACHE_BYTES
        outs = starts - starts[0] + start * widths
        indices, space = self._indices[start:stop], self._delivered[part].array
        loaded_rows = len(self._indices) if 2 * (stop - start) >= len(self._indices) else 0
        take_columns(self._staged, starts, widths, indices, space, outs, is_large=is_large, loaded_rows=loaded_rows)

    def finish(self, delivered: int) -> tuple[dict[str, Delivered], Memory]:
        """Return the delivered rows by name, and a copy of any rows after them, one column after the other."""
        done = dict[str, Delivered]()
        more = len(self._indices) - delivered
        left_starts = self._starts_of(more)
        left = np.empty(int(left_starts[-1]), np.uint8)
        for (first, last), space in zip(pairwise(self._bounds), self._delivered, strict=True):
            starts, widths = self._starts[first:last] - self._starts[first], self._widths[first:last]
            for column, start, width in zip(self._columns[first:last], starts.tolist(), widths.tolist(), strict=True):
                rows = np.ndarray((delivered, *column.shape), column.dtype, space.array, start)
                owner = None if space.owner is None else space.owner[start : start + self._capacity * width]
                done[column.name] = rows, owner
            if more:  # in one call: each call releases the GIL, and to get it back can take milliseconds
                copy_columns(space.array, starts + delivered * widths, widths, more, left, left_starts[first:last])
        self._staged, self._delivered = np.empty(0, np.uint8), []
        return done, left
