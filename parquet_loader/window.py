"""One window from decoded pieces to shuffled columns: rows are placed or gathered once, and cut into batches by views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.arena import Allocation, Allocator
from parquet_loader.columns import Column
from parquet_loader.types import IntArray, Ragged

Array: TypeAlias = "npt.NDArray[Any] | Ragged"


@dataclass(frozen=True, slots=True)
class Window:
    """The rows of one window in the order of delivery; all batches of it are views.

    Attributes:
        rows: Rows delivered: a multiple of the batch size, but for the end of the epoch.
        arrays: ``[rows, ...]`` by name.
        owners: For arrays whose memory is not numpy's: what tensors are to be made from.
    """

    rows: int
    arrays: Mapping[str, Array]
    owners: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Carry:
    """Rows that did not fill a batch, copied out of their window; they go to the front of the next one.

    Attributes:
        rows: How many, less than a batch.
        gathered: Canonical tables, one a part.
        wide: uint8 ``[rows, width]`` by name.
    """

    rows: int = 0
    gathered: tuple[pa.Table, ...] = ()
    wide: Mapping[str, npt.NDArray[np.uint8]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parts:
    """How columns are dealt with: wide ones are placed as they come, the others gathered in parts of about equal size.

    Attributes:
        wide: Columns whose rows are copied to their place when decoded.
        gathered: Parts of the other columns; each is gathered by one call, and parts run in parallel.
    """

    wide: tuple[Column, ...]
    gathered: tuple[tuple[Column, ...], ...]

    @classmethod
    def of(cls, columns: Sequence[Column], parts: int) -> Parts:
        """Divide columns; ragged ones count as 64 bytes a row."""
        narrow = [c for c in columns if not c.is_wide]
        weights = np.cumsum([c.row_bytes or 64 for c in narrow])
        numbers = np.minimum(weights * parts // (weights[-1] + 1), parts - 1) if narrow else np.zeros(0, np.int64)
        chosen = [tuple(c for c, n in zip(narrow, numbers, strict=True) if n == part) for part in range(parts)]
        return cls(tuple(c for c in columns if c.is_wide), tuple(part for part in chosen if part))


class Assembly:
    """A window while it is made. Not locked: the engine sees to it that each step is taken once, and in this order.

    `prepare` draws the permutation and takes memory; `place` takes each slice's rows, in any order and in parallel;
    then, when the window before is done, `gather` makes each part, in parallel; then `finish` makes the window.

    Args:
        parts: The columns.
        slice_rows: Rows of each slice.
        carried_rows: Rows that the window before leaves over, by the plan.
        batch_size: Rows of a batch.
        capacity_rows: Rows to take memory for, the same for all windows so that memory is used again.
        deliver_rest: Whether rows that fill no batch are delivered (the end of the epoch), else carried.
        allocator: Where delivered memory comes from.
    """

    def __init__(
        self,
        parts: Parts,
        slice_rows: Sequence[int],
        carried_rows: int,
        batch_size: int,
        capacity_rows: int,
        *,
        deliver_rest: bool,
        allocator: Allocator,
    ) -> None:
        self._parts = parts
        self._ends = np.concatenate([[0], np.cumsum(np.asarray(slice_rows, np.int64))])
        self._planned_carry = carried_rows
        self._batch_size = batch_size
        self._capacity_rows = max(capacity_rows, carried_rows + int(self._ends[-1]))
        self._deliver_rest = deliver_rest
        self._allocator = allocator
        self._order: IntArray | None = None
        self._places: IntArray | None = None
        self._arenas: dict[str, Allocation] = {}
        self._pieces: list[list[list[pa.Table]] | None] = [None] * len(slice_rows)
        self._missing: set[int] = set()
        self._carry = Carry()
        self._indices: pa.Array | None = None
        self._delivered: dict[str, tuple[Array, Any]] = {}
        self._left: list[pa.Table | None] = [None] * len(parts.gathered)

    def prepare(self, order: IntArray | None) -> None:
        """Take the permutation (None: as the rows lie) and memory for the wide columns."""
        self._order = order
        if self._parts.wide:
            if order is not None:
                self._places = np.empty(len(order), np.int64)
                self._places[order] = np.arange(self._planned_carry, self._planned_carry + len(order))
            for column in self._parts.wide:
                width = column.arrow_type.byte_width
                self._arenas[column.name] = self._allocator.allocate(self._capacity_rows * width)

    def place(self, number: int, at_row: int, table: pa.Table) -> int:
        """Take rows of one slice, from its row `at_row` on; return the bytes that stay with the window for them."""
        first = int(self._ends[number]) + at_row
        for column in self._parts.wide:
            out = self._rows_of(column)
            start = first
            for chunk in table.column(column.name).chunks:
                rows = _raw(chunk)
                if self._places is None:
                    out[self._planned_carry + start : self._planned_carry + start + len(rows)] = rows
                else:
                    out[self._places[start : start + len(rows)]] = rows
                start += len(rows)
        pieces = self._pieces[number]
        if pieces is None:
            pieces = self._pieces[number] = [[] for _ in self._parts.gathered]
        kept = 0
        for part, columns in enumerate(self._parts.gathered):
            piece = table.select([c.name for c in columns])
            pieces[part].append(piece)
            kept += piece.nbytes
        return kept

    def leave_out(self, number: int) -> None:
        """Go on without a slice that cannot be read."""
        self._pieces[number] = None
        self._missing.add(number)

    def begin_gathering(self, carry: Carry) -> None:
        """Take over the rows that the window before left."""
        self._carry = carry
        order = self._order
        if order is None and self._missing:
            order = np.arange(int(self._ends[-1]))
        if order is not None and self._missing:
            slice_of = np.searchsorted(self._ends, order, side="right") - 1
            is_here = ~np.isin(slice_of, list(self._missing))
            lost = np.cumsum([0, *(n in self._missing for n in range(len(self._pieces)))])
            shift = np.concatenate([[0], np.cumsum(np.diff(self._ends) * (np.diff(lost) > 0))])
            order = order[is_here] - shift[slice_of[is_here]]
        if order is not None and self._parts.gathered:
            indices = np.concatenate([np.arange(carry.rows), order + carry.rows])
            self._indices = pa.array(indices.view(np.uint64))

    @property
    def _total_rows(self) -> int:
        lost = sum(int(self._ends[n + 1] - self._ends[n]) for n in self._missing)
        return self._carry.rows + int(self._ends[-1]) - lost

    @property
    def _delivered_rows(self) -> int:
        total = self._total_rows
        return total if self._deliver_rest else total - total % self._batch_size

    def gather(self, part: int) -> int:
        """Put the rows of one part of the columns into order; return the bytes of the result."""
        columns = self._parts.gathered[part]
        tables = [self._carry.gathered[part]] if self._carry.rows else []
        for pieces in self._pieces:
            if pieces is not None:
                tables.extend(pieces[part])
                pieces[part] = []
        if not tables:
            tables = [pa.schema([(c.name, c.arrow_type) for c in columns]).empty_table()]
        together = pa.concat_tables(tables)
        del tables
        result = together.combine_chunks() if self._indices is None else together.take(self._indices)
        del together
        rows = self._delivered_rows
        if rows < self._total_rows:
            rest = np.arange(rows, self._total_rows).view(np.uint64)
            self._left[part] = result.take(pa.array(rest))
        for column in columns:
            array = delivered(_one_array(result.column(column.name)).slice(0, rows), column)
            owner = None
            if self._allocator.copies_gathered and isinstance(array, np.ndarray):
                array, owner = copied(array, self._allocator)
            self._delivered[column.name] = array, owner
        return int(result.nbytes)

    def finish(self) -> tuple[Window, Carry]:
        """Return the finished window, and the rows it leaves over."""
        rows, total = self._delivered_rows, self._total_rows
        wide: dict[str, npt.NDArray[np.uint8]] = {}
        for column in self._parts.wide:
            name, out = column.name, self._rows_of(column)
            if self._carry.rows == self._planned_carry and not self._missing:
                if self._carry.rows:
                    out[: self._carry.rows] = self._carry.wide[name]
            else:
                out = self._closed_up(column, out, total)
            wide[name] = out[rows:total].copy()
            array = out[:rows].reshape(-1).view(column.dtype).reshape(rows, *column.shape)
            self._delivered[name] = array, self._arenas[name].owner
        carry = Carry(total - rows, tuple(t for t in self._left if t is not None), wide) if rows < total else Carry()
        arrays = {name: array for name, (array, _) in self._delivered.items()}
        owners = {name: owner for name, (_, owner) in self._delivered.items() if owner is not None}
        window = Window(rows, arrays, owners)
        self._arenas, self._delivered, self._carry = {}, {}, Carry()
        return window, carry

    def _rows_of(self, column: Column) -> npt.NDArray[np.uint8]:
        return self._arenas[column.name].array.reshape(self._capacity_rows, column.arrow_type.byte_width)

    def _closed_up(self, column: Column, rows: npt.NDArray[np.uint8], total: int) -> npt.NDArray[np.uint8]:
        """Move rows together where slices are missing or fewer rows were carried than planned."""
        size = int(self._ends[-1])
        order = np.arange(size) if self._order is None else self._order
        slice_of = np.searchsorted(self._ends, order, side="right") - 1
        here = np.flatnonzero(~np.isin(slice_of, list(self._missing)))
        kept = rows[self._planned_carry + here]
        rows[self._carry.rows : total] = kept
        if self._carry.rows:
            rows[: self._carry.rows] = self._carry.wide[column.name]
        return rows


def _raw(chunk: pa.Array) -> npt.NDArray[np.uint8]:
    """Return an array of fixed-size binaries as uint8 ``[rows, width]``, without a copy."""
    width = chunk.type.byte_width
    buffer = chunk.buffers()[1]
    if buffer is None or not len(chunk):
        return np.empty((0, width), np.uint8)
    return np.frombuffer(buffer, np.uint8, len(chunk) * width, chunk.offset * width).reshape(len(chunk), width)


def _one_array(array: pa.ChunkedArray) -> pa.Array:
    if array.num_chunks == 1:
        return array.chunk(0)
    return pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)


def delivered(array: pa.Array, column: Column) -> Array:
    """Return a canonical array as numpy: ``[rows, *shape]`` of the delivered dtype, or `Ragged`; no copy if it can."""
    if column.kind == "fixed":
        assert column.dtype is not None
        width = column.row_bytes or 1
        buffer = array.buffers()[1]
        if buffer is None or not len(array):
            return np.empty((0, *column.shape), column.dtype)
        flat = np.frombuffer(buffer, np.uint8, len(array) * width, array.offset * width)
        if not flat.flags.writeable:
            flat = flat.copy()
        return flat.view(column.dtype).reshape(len(array), *column.shape)
    buffers = array.buffers()
    offsets = np.zeros(len(array) + 1, np.int64)
    if buffers[1] is not None and len(array):
        offsets[:] = np.frombuffer(buffers[1], np.int64, len(array) + 1, array.offset * 8)
    first, last = int(offsets[0]), int(offsets[-1])
    offsets -= first
    if column.kind == "list":
        assert column.item is not None
        return Ragged(delivered(array.values.slice(first, last - first), column.item), offsets)
    data = np.empty(0, np.uint8)
    if buffers[2] is not None and last > first:
        data = np.frombuffer(buffers[2], np.uint8, last - first, first)
    if not data.flags.writeable:
        data = data.copy()
    return Ragged(data, offsets, "text" if column.kind == "text" else "bytes")


def copied(array: npt.NDArray[Any], allocator: Allocator) -> tuple[npt.NDArray[Any], Any]:
    """Copy an array into the allocator's memory."""
    allocation = allocator.allocate(max(array.nbytes, 1))
    copy = allocation.array[: array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy, allocation.owner


def nbytes_of(array: Array) -> int:
    """Return the bytes of an array or of ragged rows."""
    if isinstance(array, Ragged):
        return nbytes_of(array.values) + int(array.offsets.nbytes)
    return int(array.nbytes)
