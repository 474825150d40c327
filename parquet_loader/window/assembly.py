"""Assembles one window from decoded slices: writes or gathers each row once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import IntArray, OrderMemory, WordArray, addresses_of, order_after, order_of_words
from parquet_loader.decode import (
    DeferredColumns,
    Dictionary,
    LazyRows,
    NotDecodedError,
    StraightTargets,
    flat_arrays,
    flat_columns,
    joined_lists,
)
from parquet_loader.window.arena import Allocator, Arenas, Block, Memory
from parquet_loader.window.column_groups import ColumnGroups
from parquet_loader.window.fixed_width import DirectRows, Rows, copy_column, join_rows
from parquet_loader.window.narrow_columns import NarrowColumns
from parquet_loader.window.stored import BlockColumns, StoredSlice, StoredWindow, UnsortedOrder
from parquet_loader.window.variable_width import RaggedRows, Scattered, Views
from parquet_loader.window.window import Array, Window

_NOTHING: Memory = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class Remainder:
    """Rows that did not fill a batch, copied from their window; they come first in the next window.

    Attributes:
        rows: Number of rows, less than a batch.
        wide: uint8 ``[rows, width]`` by name. A `StoredWindow` keeps these rows and those of `narrow`.
        narrow: The other columns of fixed width, as `NarrowColumns.finish` returns them.
        ragged: Large binaries by name.
    """

    rows: int = 0
    wide: Mapping[str, Rows] = field(default_factory=dict)
    narrow: Memory = field(default_factory=lambda: _NOTHING)
    ragged: Mapping[str, pa.Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BufferSizes:
    """Sizes of a window's buffers, the same for all windows of an epoch so that buffers are reused.

    Attributes:
        rows: Capacity in rows.
        ragged_bytes: Bytes expected for each ragged column, by name.
        staging: Provides the memory in which rows are staged.
        allocator: Provides the memory of delivered rows.
    """

    rows: int
    ragged_bytes: Mapping[str, int]
    staging: Arenas
    allocator: Allocator


class Assembly:
    """Assembles one window. The engine calls each step once, in this order.

    `prepare` allocates buffers. `write_rows` takes the rows of all slices, in any order and in parallel. After the
    previous window is finished, `begin_gathering` fixes the order. `gather` runs once for each of the
    `ColumnGroups.jobs`, in parallel. `finish` returns the window.

    Args:
        columns: The columns.
        slice_rows: Rows of each slice.
        carried_rows: Rows that the previous window leaves over, according to the plan.
        batch_size: Rows of a batch.
        buffer_sizes: Sizes and allocators of the buffers.
        deliver_rest: Whether rows that fill no batch are delivered (at the end of the epoch) instead of carried.
        left_out: Number of rows at the end of the order that are neither delivered nor carried.
        origins: The row group of each slice, and the slice's first row in it; only `StoredWindow` needs them.
    """

    def __init__(
        self,
        columns: ColumnGroups,
        slice_rows: Sequence[int],
        carried_rows: int,
        batch_size: int,
        buffer_sizes: BufferSizes,
        *,
        deliver_rest: bool,
        left_out: int = 0,
        origins: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._columns = columns
        self._origins = origins
        self._ends = np.concatenate([[0], np.cumsum(np.asarray(slice_rows, np.int64))])
        self._planned_carry = carried_rows
        self._batch_size = batch_size
        self._buffer_sizes = buffer_sizes
        self._deliver_rest = deliver_rest
        self._left_out = left_out
        self._total_rows = 0
        self._order: IntArray | None = None
        # The words of the order, if a device sorts them, and the owner of their memory.
        self._words: WordArray | None = None
        self._words_owner: Any = None
        self._wide = () if columns.device_permutes else columns.wide
        self._direct = DirectRows(self._wide, buffer_sizes.rows, carried_rows, buffer_sizes.allocator)
        self._stored: BlockColumns | None = None
        if columns.device_permutes:
            self._stored = BlockColumns(
                columns.stored, columns.wide, buffer_sizes.rows, carried_rows, buffer_sizes.allocator
            )
        self._narrow = self._stored or NarrowColumns(
            columns.narrow, buffer_sizes.rows, carried_rows, buffer_sizes.staging, buffer_sizes.allocator
        )
        self._ragged = RaggedRows(
            columns.ragged,
            buffer_sizes.rows,
            carried_rows,
            buffer_sizes.ragged_bytes,
            buffer_sizes.staging,
            buffer_sizes.allocator,
            columns.scattered,
            device_permutes=columns.device_permutes,
        )
        self._missing: set[int] = set()
        self._carry = Remainder()
        self._delivered: dict[str, tuple[Array, Any]] = {}
        self._left_ragged: dict[str, pa.Array] = {}

    def prepare(
        self,
        draw: Callable[[OrderMemory], IntArray | None],
        draw_words: Callable[[Callable[[int], WordArray]], WordArray | None],
    ) -> None:
        """Allocate the buffers of fixed-width columns, and draw the permutation.

        Args:
            draw: Draws the permutation; see `Plan.order`.
            draw_words: Draws the random words of which a device makes the permutation; see `Plan.order_words`.
        """
        self._narrow.prepare()
        self._ragged.prepare()
        if self._columns.stored and len(self._columns.stored) == len(self._columns.columns):
            self._words = draw_words(self._words_memory)
        if self._words is None:
            self._order = draw(self._order_memory)
        self._direct.prepare(self._order)

    def _order_memory(self, rows: int) -> tuple[IntArray, Memory | None]:
        """Return an array for the order, and scratch memory: the staging buffer is unused until rows are written."""
        staging, scratch = self._buffer_sizes.staging, self._narrow.unwritten(8 * rows)
        nbytes = max(8 * rows, 8 * self._buffer_sizes.rows, 1)  # the same for all windows, so that it is reused
        order: IntArray = staging.allocate(nbytes).array[: 8 * rows].view(np.int64)
        if scratch is None and self._columns.ragged:  # the memory is reused for the offsets of ragged rows
            scratch = staging.allocate(nbytes).array[: 8 * rows]
        return order, scratch

    def _words_memory(self, rows: int) -> WordArray:
        memory, self._words_owner = self._buffer_sizes.allocator.allocate(max(8 * self._buffer_sizes.rows, 1))
        return memory[: 8 * rows].view(np.uint64)

    def to_be_written(self) -> tuple[list[Memory], list[Block]]:
        """Return the parts of the buffers that will be written, and the blocks that will be allocated later."""
        rows = self._planned_carry + int(self._ends[-1])
        stages = (self._direct, self._narrow, self._ragged)
        buffers = [memory for stage in stages for memory in stage.memory(rows)]
        ragged = self._ragged.blocks(rows / max(1, self._buffer_sizes.rows))
        return buffers, [*self._narrow.blocks(rows), *ragged]

    def write_rows(self, number: int, at_row: int, rows: LazyRows, skipped: int, count: int) -> int:
        """Write rows of one slice to the window's buffers.

        Args:
            number: Number of the slice.
            at_row: Position in the slice of the first row to write.
            rows: Rows of the slice's row group; columns that are still in the file are read now.
            skipped: Number of these rows before the first row to write.
            count: Number of rows to write.

        Returns:
            The bytes that the window now holds for these rows.

        Raises:
            NotDecodedError: Arrow has to decode some columns, from these rows to the end of their row group; then the
                rows have to be written again.
            DataError: See `RowGroupReader.read`.
        """
        first = int(self._ends[number]) + at_row
        deferred, table = rows.deferred, rows.table
        if skipped or count < rows.rows:
            table = table.slice(skipped, count)
        targets = self._narrow.targets(first, count, deferred.straight_names)
        targets += self._direct.targets(first, count)
        from_pages = [target for target in targets if target[0] in deferred.columns]
        viewed = [
            column.name
            for column in self._columns.ragged
            if column.name in deferred.straight_names and column.name not in deferred.lists
        ]
        views = Views(viewed, count) if viewed else None
        groups = deferred.groups
        members = {
            name: np.empty((len(groups[name]), count), f"u{out.shape[1] // len(groups[name])}")
            for name, out, _ in targets
            if name in groups
        }
        staged_rows = int(self._ends[number + 1] - first)
        # Columns that are still in the file: straight ones and lists by kernels, the others copied from their pages.
        straight = self._straight_targets(first, count, deferred, views, members, staged_rows)
        dictionaries: Mapping[str, Dictionary] = {}
        # These come first, because they may raise NotDecodedError.
        if straight is not None or from_pages:
            dictionaries = deferred.write(skipped, count, straight, from_pages)
        kept = self._write_lists(first, count, deferred) if deferred.lists else 0
        # Decoded columns; and of the straight ones, those that have to be brought into their final form.
        done = {*deferred.straight_names, *deferred.columns}
        masks = dict[str, tuple[Memory, int]]()
        for name, out, slots in targets:
            if name in deferred.masks:
                column, null = deferred.masks[name]
                if null:
                    masks[column] = out[slots], null
            elif name in members:
                join_rows(members[name], out, slots)
            elif name not in done:
                copy_column(table.column(name), out, slots)
        kept += count * self._narrow.row_bytes
        if self._columns.ragged:
            decoded = self._large_binaries(table, {*viewed, *deferred.lists})
            if decoded:
                kept += self._ragged.write_rows(first, decoded)
            if views is not None:
                kept += self._ragged.write_views(first, views, dictionaries, masks)
                deferred.release()
        return kept

    def _large_binaries(self, table: pa.Table, without: Collection[str]) -> dict[str, pa.ChunkedArray]:
        """Return rows of the decoded columns of varying width, except `without`, as large binaries by name."""
        found = {name: table.column(name) for name in self._columns.plain if name not in without}
        for column in self._columns.nested:
            found |= flat_arrays(table.column(column.name), column)
        return found

    def _write_lists(self, first: int, count: int, deferred: DeferredColumns) -> int:
        """Write lists of any length that are still in the file; return the bytes that the window now holds for them.

        These rows are all rows of their row groups; see `DeferredColumns.lists`. Raises `NotDecodedError`.
        """
        spaces = {}
        for name, nbytes in deferred.lists.items():
            space = self._ragged.reserve_lists(name, count, nbytes)
            if space is None:
                raise NotDecodedError([name])
            spaces[name] = space
        offsets = deferred.write_lists({name: space.memory for name, space in spaces.items()})
        for name, space in spaces.items():
            self._ragged.add_lists(name, first, space, offsets[name])
        return sum(len(space.memory) + 12 * count for space in spaces.values())

    def _straight_targets(
        self,
        first: int,
        count: int,
        deferred: DeferredColumns,
        views: Views | None,
        members: Mapping[str, npt.NDArray[Any]],
        staged_rows: int,
    ) -> StraightTargets | None:
        """Return where kernels write straight columns: the window's buffers, `views` or `members`; None without any.

        Args:
            first, count: The rows.
            deferred: The columns.
            views: Memory for the views of byte arrays; None without byte arrays.
            members: Memory for the members of each group, ``[members, rows]``.
            staged_rows: The rows of the slice, from `first` on.
        """
        names = deferred.straight_names
        if not names:
            return None
        # The addresses of columns whose rows are not written directly to the window's buffers.
        given = {} if views is None else dict(views.addresses)
        for group, array in members.items():
            given.update(zip(deferred.groups[group], addresses_of(array).tolist(), strict=True))
        direct = self._direct
        addresses = self._narrow.addresses(first, names)
        for number in np.flatnonzero(addresses == 0).tolist():
            name = names[number]
            if name in given:
                addresses[number] = given[name]
            elif direct.holds(name):  # lists of any length have no address here
                addresses[number] = direct.address(name, first)
        slots = [direct.slots(name, first, count) for name in names] if self._wide else []
        of_numbers = {column: mask for mask, (column, null) in deferred.masks.items() if not null}
        masks = None
        if of_numbers:
            masks = np.zeros(len(names), np.int64)
            masked = [number for number, name in enumerate(names) if name in of_numbers]
            masks[masked] = self._narrow.addresses(first, [of_numbers[names[number]] for number in masked])
        staging = None if views is None else self._ragged.page_memory(names, staged_rows)
        return StraightTargets(addresses, slots, masks, staging)

    def leave_out(self, number: int) -> None:
        """Leave out a slice that cannot be read, including rows of it that are written already."""
        self._missing.add(number)

    def begin_gathering(self, carry: Remainder) -> None:
        """Add the rows that the previous window left over, and fix the order of all rows."""
        self._carry = carry
        if self._words is not None:
            self._total_rows = carry.rows + len(self._words)
            if self._is_as_planned and not self._left_out:
                return
            # Some rows of the order are left out: the CPU sorts it.
            self._order, self._words = order_of_words(self._words), None
        order = self._planned_order()
        if self._missing:
            order = order[~np.isin(self._slice_of(order), list(self._missing))]
        self._total_rows = carry.rows + len(order)
        indices = order_after(carry.rows, order, int(self._ends[-1]))
        if self._stored is not None:
            self._stored.number_rows(carry.rows, indices)
        else:
            self._narrow.set_order(carry.narrow, carry.rows, indices)
        if self._columns.ragged:
            self._left_ragged = self._ragged.set_order(carry.ragged, indices, self._delivered_rows)

    @property
    def shared_bytes(self) -> int:
        """Bytes by which ordered rows exceed the bytes that `write_rows` returned, because rows share them."""
        return self._ragged.shared_bytes

    def _planned_order(self) -> IntArray:
        """Return the order of the rows that are delivered or carried, including those of missing slices."""
        rows = int(self._ends[-1]) - self._left_out
        return np.arange(rows) if self._order is None else self._order[:rows]

    @property
    def _is_as_planned(self) -> bool:
        """Whether all slices were read, and the planned number of rows was carried."""
        return self._carry.rows == self._planned_carry and not self._missing

    def _slice_of(self, order: IntArray) -> IntArray:
        return np.searchsorted(self._ends, order, side="right") - 1

    @property
    def _delivered_rows(self) -> int:
        total = self._total_rows
        return total if self._deliver_rest else total - total % self._batch_size

    def gather(self, job: int) -> None:
        """Run one of the `ColumnGroups.jobs`: order a part of the columns, or a range of rows."""
        ranges = self._columns.narrow_ranges
        narrow = ranges * len(self._columns.narrow)
        if job < narrow:
            part, number = divmod(job, ranges)
            total = self._total_rows
            self._narrow.gather(part, total * number // ranges, total * (number + 1) // ranges)
        else:
            number, ranges = job - narrow, self._columns.ranges
            delivered = self._delivered_rows
            self._ragged.gather(delivered * number // ranges, delivered * (number + 1) // ranges)

    def finish(self) -> tuple[Window | StoredWindow, Remainder]:
        """Return the finished window and its remainder."""
        rows, total = self._delivered_rows, self._total_rows
        carried = {c.name: self._carry.wide[c.name] for c in self._wide if self._carry.rows}
        direct, left_direct = self._direct.finish(
            carried, None if self._is_as_planned else self._present_positions, total, rows
        )
        narrow, left_narrow = self._narrow.finish(rows) if self._stored is None else ({}, _NOTHING)
        self._delivered.update(direct | narrow)
        scattered: dict[str, Scattered] = {}
        if self._columns.ragged:
            gathered, scattered = self._ragged.finish()
            for column in self._columns.nested:
                flat = [gathered.pop(part.name) for part in flat_columns(column)]
                (_, owner_of_values) = flat[-1]
                gathered[column.name] = joined_lists(column, [rows for rows, _ in flat]), owner_of_values
            self._delivered.update(gathered)
        carry = Remainder()
        if rows < total:
            carry = Remainder(total - rows, left_direct, left_narrow, self._left_ragged)
        all_names = tuple(c.name for c in self._columns.columns)
        in_block = {c.name for c in self._columns.stored}
        names = [name for name in all_names if name not in in_block and name not in scattered]
        arrays = {name: self._delivered[name][0] for name in names}
        owners = {name: self._delivered[name][1] for name in names if self._delivered[name][1] is not None}
        carried_rows = self._carry.rows
        self._delivered, self._carry, self._left_ragged = {}, Remainder(), {}
        if self._stored is None:
            return Window(rows, arrays, owners, scattered), carry
        slots, block, columns, row_numbers = self._stored.finish_stored(int(self._ends[-1]))
        order: npt.NDArray[Any] | UnsortedOrder = row_numbers
        if self._words is not None:
            order = UnsortedOrder(self._words, self._words_owner)
        first = slots - int(self._ends[-1])
        slices = tuple(
            StoredSlice(*origin, stop - start, first + start)
            for number, (origin, (start, stop)) in enumerate(
                zip(self._origins, pairwise(self._ends.tolist()), strict=bool(self._origins))
            )
            if number not in self._missing
        )
        window = StoredWindow(
            rows=rows,
            left=carry.rows,
            slots=slots,
            carried=carried_rows,
            carried_slot=first - carried_rows,
            block=block.array,
            owner=block.owner,
            columns=columns,
            order=order,
            ragged=scattered,
            arrays=arrays,
            owners=owners,
            names=all_names,
            slices=slices,
        )
        return window, carry

    def _present_positions(self) -> IntArray:
        """Return the positions in the order whose rows were read, int64 ``[n]``."""
        return np.flatnonzero(~np.isin(self._slice_of(self._planned_order()), list(self._missing)))
