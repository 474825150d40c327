"""Assembles a window's columns of numbers: decoded into a staging buffer, then permuted by kernels.

Numbers are 1 to 8 bytes wide. The kernels decode them directly into the staging buffer and permute one column at a
time, so that the source column stays in the CPU cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from parquet_loader.common import take_columns
from parquet_loader.decode import Column, Target
from parquet_loader.window.arena import Allocator, Arenas, Block, Memory
from parquet_loader.window.fixed_width import Delivered, Rows, as_delivered, padded, shift_staged

# Larger windows are written past the CPU caches, from which they would be evicted before they are read. Measured on
# windows of 427,000 and 214,000 rows: ordering them takes a sixth less time.
PAST_CACHE_BYTES = 16 * 2**20


class ScalarColumns:
    """The columns of numbers of one window.

    Several threads may write to `addresses` and `targets` and call `gather`, each for its own rows.

    Args:
        parts: The columns, in parts that are permuted in parallel.
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
        staging: Arenas,
        allocator: Allocator,
    ) -> None:
        self._parts = parts
        self._columns = {column.name: column for part in parts for column in part}
        self.row_bytes = sum(column.row_bytes or 0 for column in self._columns.values())
        self._capacity = capacity
        self._carried_rows = carried_rows
        self._staging = staging
        self._allocator = allocator
        self._staged: dict[str, Rows] = {}
        self._addresses: dict[str, int] = {}
        self._delivered: dict[str, tuple[Rows, Any]] = {}
        self._indices: npt.NDArray[Any] = np.zeros(0, np.uint32)

    def prepare(self) -> None:
        """Allocate the staging buffer of all columns."""
        if self._columns:
            space = self._staging.allocate(sum(map(self._column_bytes, self._columns.values()))).array
            for column in self._columns.values():
                mine, space = space[: self._column_bytes(column)], space[self._column_bytes(column) :]
                self._staged[column.name] = self._as_rows(column, mine)
                self._addresses[column.name] = mine.__array_interface__["data"][0]

    def memory(self, rows: int) -> list[Memory]:
        """Return the part of the buffer that `rows` rows will occupy."""
        return [staged[:rows].reshape(-1) for staged in self._staged.values()]

    def blocks(self, rows: int) -> list[Block]:
        """Return the blocks that `gather` will allocate for `rows` rows, one for each part."""
        found = []
        for part in self._parts:
            ends = list(accumulate(map(self._column_bytes, part), initial=0))
            starts = zip(ends, part, strict=False)
            written = tuple((start, start + rows * (column.row_bytes or 0)) for start, column in starts)
            found.append(Block(ends[-1], written))
        return found

    def _column_bytes(self, column: Column) -> int:
        return padded(self._capacity * (column.row_bytes or 0))

    def _as_rows(self, column: Column, memory: npt.NDArray[np.uint8]) -> Rows:
        width = column.row_bytes or 1
        return memory[: self._capacity * width].reshape(self._capacity, width)

    def address(self, name: str, first: int) -> int:
        """Return the address in the staging buffer of a column to which a kernel writes rows; 0: there is none.

        `first` is the number of the first one among the rows that the window reads.
        """
        base = self._addresses.get(name, 0)
        return base and base + (self._carried_rows + first) * self._staged[name].shape[1]

    def targets(self, first: int, count: int) -> list[Target]:
        """Return where in the staging buffers rows go; arguments as in `DirectRows.targets`."""
        slots = slice(self._carried_rows + first, self._carried_rows + first + count)
        return [(name, staged, slots) for name, staged in self._staged.items()]

    def set_order(self, carried: Mapping[str, Rows], indices: npt.NDArray[Any]) -> None:
        """Fix the order: `indices` count the carried rows first, then the rows that the window reads."""
        before = len(next(iter(carried.values()))) if carried else 0
        self._carried_rows += shift_staged(self._staged.values(), self._carried_rows, before)
        begin = self._carried_rows - before
        # If fewer rows were carried than planned, there is free space before them.
        self._indices = indices + indices.dtype.type(begin) if begin else indices
        for name, rows in carried.items():
            self._staged[name][begin : self._carried_rows] = rows

    def gather(self, part: int) -> None:
        """Order the columns of one part."""
        columns, total = self._parts[part], len(self._indices)
        space = self._allocator.allocate(sum(map(self._column_bytes, columns)))
        outs = []
        for column in columns:
            mine, space = space.cut(self._column_bytes(column))
            outs.append(self._as_rows(column, mine.array)[:total])
            self._delivered[column.name] = outs[-1], mine.owner
        is_large = total * self.row_bytes >= PAST_CACHE_BYTES
        take_columns([self._staged[column.name] for column in columns], self._indices, outs, is_large=is_large)

    def finish(self, delivered: int) -> tuple[dict[str, Delivered], dict[str, Rows]]:
        """Return the delivered rows by name, and a copy of the rows after them."""
        done, left = dict[str, Delivered](), dict[str, Rows]()
        for name, (out, owner) in self._delivered.items():
            done[name] = as_delivered(self._columns[name], out[:delivered]), owner
            left[name] = out[delivered:].copy()
        self._staged, self._delivered = {}, {}
        return done, left
