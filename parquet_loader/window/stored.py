"""A window whose rows keep the order of their files, for a device that permutes them.

The columns of fixed width share one block and are copied to the device together. `StoredWindow` is not a `Window`,
because all users of a `Window` need its rows in the order of delivery.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parquet_loader.common import IntArray, WordArray, order_of_words
from parquet_loader.decode import Column
from parquet_loader.schema import Ragged
from parquet_loader.window.arena import Allocation, Allocator, Block, Memory
from parquet_loader.window.fixed_width import shift_staged
from parquet_loader.window.narrow_columns import NarrowColumns
from parquet_loader.window.variable_width import Scattered

Array = npt.NDArray[Any] | Ragged


class BlockColumn(NamedTuple):
    """One column in the block of a `StoredWindow`.

    Attributes:
        name: Its name.
        dtype, shape: Of a row.
        start: Offset of row 0 in the block, in bytes; a multiple of 64.
        nbytes: Bytes of all rows.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    nbytes: int


class StoredSlice(NamedTuple):
    """Rows of a row group in the block of a `StoredWindow`.

    Attributes:
        row_group: Index in the snapshot.
        start: Number of the first row in its row group, counted after the filter.
        rows: Number of rows.
        slot: Number of the first row in the block.
    """

    row_group: int
    start: int
    rows: int
    slot: int


class UnsortedOrder(NamedTuple):
    """The order of a window's rows, for a device that sorts it.

    Attributes:
        words: uint64 ``[rows]``: the random words of the rows that the window reads; see `order_of_words`.
        owner: As in `StoredWindow`.
    """

    words: WordArray
    owner: Any

    def sorted(self, carried: int) -> IntArray:
        """Return the number of each row in the block, in order: int64 ``[carried + rows]``; carried rows are first."""
        return np.concatenate([np.arange(carried), order_of_words(self.words) + carried])


@dataclass(slots=True)
class CarriedRows:
    """Rows in the block of a window that fill no batch; the next window delivers them first.

    They stay in the process that delivers batches: on the device, or in ordinary memory after a window that the CPU has
    permuted. One object serves all windows of an epoch, in order.

    Attributes:
        columns: The rows of each column, by name: an array of its dtype, ``[rows, ...]``, or what a device keeps.
    """

    columns: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredWindow:
    """The rows of one window, before they are permuted.

    Attributes:
        rows: Rows delivered: a multiple of the batch size, except at the end of the epoch.
        left: Rows that follow in the order and fill no batch. The next window delivers those of the block first; see
            `CarriedRows`.
        slots: Rows in the block.
        carried: Number of rows that the previous window left; they are delivered first. The block has slots for them,
            but not their values.
        carried_slot: The slot of the first of them.
        block: uint8, the columns of fixed width; only rows that the window has read are written.
        owner: The object that owns the memory of the block and from which tensors are made; None if numpy owns it.
        columns: The columns of the block, sorted by `start`.
        order: int32 or int64 ``[rows + left]``: the slots of the rows. Or the words to sort: then `ragged`
            and `arrays` are empty.
        ragged: Columns whose rows are text, bytes, or lists of numbers, by name.
        arrays: The other columns, ``[rows, ...]`` in the order of delivery, by name.
        owners: The objects that own memory of `arrays` not allocated by numpy, by column name.
        names: All columns, in the order of a batch.
        slices: The slices that the window has read, without skipped ones.
    """

    rows: int
    left: int
    slots: int
    carried: int
    carried_slot: int
    block: Memory
    owner: Any
    columns: tuple[BlockColumn, ...]
    order: npt.NDArray[Any] | UnsortedOrder
    ragged: dict[str, Scattered]
    arrays: dict[str, Array]
    owners: dict[str, Any]
    names: tuple[str, ...]
    slices: tuple[StoredSlice, ...] = ()

    def ordered(self, carried: CarriedRows) -> dict[str, Array]:
        """Return all columns in the order of delivery; those of the block are copies.

        Args:
            carried: The rows that the previous window left, as arrays; receives those that this window leaves.
        """
        rows = self._permuted(0)
        for name, column in rows.items():
            if self.carried:
                column[: self.carried] = carried.columns[name]
        # Copies, so that they do not keep the window's memory.
        carried.columns = {name: column[self.rows :].copy() for name, column in rows.items()} if self.left else {}
        ragged = {name: column.ordered(0) for name, column in self.ragged.items()}
        return {name: column[: self.rows] for name, column in rows.items()} | ragged | self.arrays

    def last(self, rows: int) -> dict[str, Array]:
        """Return the last `rows` delivered rows of all columns, in order; fewer if the window has read fewer."""
        start = max(self.carried, self.rows - rows)
        others = {
            name: array.slice(start, self.rows) if isinstance(array, Ragged) else array[start : self.rows]
            for name, array in self.arrays.items()
        }
        ragged = {name: column.ordered(start) for name, column in self.ragged.items()}
        return {name: column[: self.rows - start] for name, column in self._permuted(start).items()} | ragged | others

    def _permuted(self, start: int) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of the block from row `start` of the order on; carried rows have any values."""
        order = self.order.sorted(self.carried) if isinstance(self.order, UnsortedOrder) else self.order
        return {c.name: self._stored(c).take(order[start:], axis=0) for c in self.columns}

    def _stored(self, column: BlockColumn) -> npt.NDArray[Any]:
        return np.ndarray((self.slots, *column.shape), column.dtype, self.block, column.start)


@dataclass(frozen=True, slots=True)
class KeptWindow:
    """A window of rows that are already on the device.

    Attributes:
        rows: Rows delivered, as in `StoredWindow`.
        order: int32 or int64 ``[rows]``: the number of each delivered row in the data set, counted after the filter.
    """

    rows: int
    order: npt.NDArray[Any]


class BlockColumns(NarrowColumns):
    """All columns of fixed width of one window, narrow and wide, in one block of delivered memory.

    Rows are written and counted as in `NarrowColumns`, but not gathered: `finish_stored` returns them unordered, with
    their order.

    Args:
        columns: The columns.
        wide: The columns whose memory the engine counts when it is allocated, not as rows are written.
        capacity, carried_rows, allocator: As in `NarrowColumns`.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        wide: Sequence[Column],
        capacity: int,
        carried_rows: int,
        allocator: Allocator,
    ) -> None:
        super().__init__([columns], capacity, carried_rows, allocator, allocator)
        self.row_bytes -= sum(column.row_bytes or 0 for column in wide)
        self._block = Allocation(np.empty(0, np.uint8))

    def prepare(self) -> None:
        """Allocate the block."""
        if self._columns:
            self._block = self._allocator.allocate(int(self._starts[-1]))
            self._staged = self._block.array

    def blocks(self, rows: int) -> list[Block]:  # noqa: ARG002
        """Return no blocks: nothing is allocated later."""
        return []

    def number_rows(self, carried: int, indices: npt.NDArray[Any]) -> None:
        """Fix the order; `indices` number the `carried` rows first, then the rows that the window reads."""
        staged = map(self._rows_of, range(len(self._columns)))
        self._carried_rows += shift_staged(staged, self._carried_rows, carried)
        begin = self._carried_rows - carried
        self._indices = indices + indices.dtype.type(begin) if begin else indices

    def finish_stored(self, read_rows: int) -> tuple[int, Allocation, tuple[BlockColumn, ...], npt.NDArray[Any]]:
        """Return the number of slots in use, the block, its columns, and the order.

        `read_rows` is the number of rows that the window reads, including those of skipped slices.
        """
        slots = self._carried_rows + read_rows
        columns = tuple(
            BlockColumn(column.name, _dtype_of(column), column.shape, start, slots * width)
            for column, start, width in zip(self._columns, self._starts.tolist(), self._widths.tolist(), strict=False)
        )
        block, self._block, self._staged = self._block, Allocation(np.empty(0, np.uint8)), np.empty(0, np.uint8)
        return slots, block, columns, as_row_numbers(self._indices, slots)


def _dtype_of(column: Column) -> np.dtype[Any]:
    assert column.dtype is not None
    return column.dtype


def as_row_numbers(order: npt.NDArray[Any], slots: int) -> npt.NDArray[Any]:
    """Return row numbers below `slots` in a type that torch accepts: int32 if that is wide enough, else int64."""
    if slots >= 2**31:
        wide: IntArray = order.astype(np.int64)
        return wide
    return order.view(np.int32) if order.dtype == np.uint32 else order.astype(np.int32)
