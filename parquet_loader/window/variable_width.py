"""Assembles a window's variable-width columns: staged as they are decoded, then permuted.

All rows are large binaries here, lists of numbers too. Arrow's list kernel would build an index of every element (0.2
to 0.4 GB/s, and three times the memory). Rows of bytes are copied at 4 to 5 GB/s: once by a kernel, or twice by Arrow,
about 1 MiB at a time into memory that is already in the page tables. Long rows are not copied: the kernel reads or
decompresses their pages to the staging buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import KERNELS, READ_BEHIND, IntArray, RaggedOrder, order_ragged, take_ragged
from parquet_loader.decode import Column, Dictionary, EncodedRows, PageMemory, element_bytes, ragged_rows
from parquet_loader.errors import DataError
from parquet_loader.schema import Ragged
from parquet_loader.window.arena import Allocation, Allocator, Arenas, Block, Memory
from parquet_loader.window.fixed_width import shift_staged

SEGMENT_BYTES = 1 << 20
MORE_VALUES = 64  # for unused bytes behind some values, see `reserve_lists`; more of them take another block
_MOST_VALUES = 2**32 - 1
# From this many bytes a row, values stay where their pages are decompressed. Each then takes 12 bytes more: its length
# in the page, and where it begins.
LONG_ROW = 512
_GIVEN, _FOUND, _STAGED = 4, 6, 10  # numbers of a column: arguments and results of `views_measure`, `views_stage`
_NO_DICTIONARY = Dictionary()


class RaggedRows:
    """The ragged columns of one window. `write_rows` may be called by several threads; the rest by one at a time.

    Threads stage values in the order in which they read them, with the number of each row's value, so the result does
    not depend on that order. An entry of a dictionary is staged once for many rows.

    Args:
        columns: The columns, all canonical large binaries.
        capacity: Capacity in rows.
        carried_rows: Rows that the previous window leaves over, according to the plan; their numbers come first.
        capacities: Expected bytes of each column, by name; a column that exceeds them is copied once more.
        staging: Provides the staging buffers.
        allocator: Provides the memory of delivered rows.
        scattered: The columns that are not gathered: `finish` returns views of the staging buffers, see `Scattered`.
        device_permutes: Whether a device permutes the scattered columns; then they are staged in memory of `allocator`.

    Attributes:
        shared_bytes: Bytes by which the gathered rows exceed the staged ones, because rows share values of a
            dictionary there; known after `set_order`.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        capacity: int,
        carried_rows: int,
        capacities: Mapping[str, int],
        staging: Arenas,
        allocator: Allocator,
        scattered: frozenset[str] = frozenset(),
        *,
        device_permutes: bool = False,
    ) -> None:
        self._columns = columns
        self._gathered = tuple(column for column in columns if column.name not in scattered)
        self._capacity = capacity
        self._carried_rows = carried_rows
        self._capacities = capacities
        self._staging = staging
        # With a device, scattered columns are delivered in their staging buffers. Gathered ones are copied once more.
        self._scattered_allocator: Allocator = allocator if device_permutes else staging
        self._gathered_allocator: Allocator = staging if device_permutes else allocator
        self._lock = Lock()
        self._values: dict[str, _StagedValues] = {}
        self._numbers: dict[str, npt.NDArray[np.uint32]] = {}
        self._number_addresses: dict[str, int] = {}
        self._sources: dict[str, _StagedBytes] = {}
        self._begins: dict[str, IntArray] = {}
        self._offsets: dict[str, IntArray] = {}
        self._out: dict[str, Allocation] = {}
        self.shared_bytes = 0

    def prepare(self) -> None:
        """Allocate the staging buffers of the rows' numbers."""
        for column in self._columns:
            expected, allocator = self._expected_bytes(column.name), self._scattered_allocator
            if column in self._gathered:
                allocator = self._staging
            is_long = KERNELS is not None and self._capacities.get(column.name, 0) >= LONG_ROW * self._capacity
            self._values[column.name] = _StagedValues(
                expected, self._capacity, allocator, self._staging, takes_pages=is_long and column.kind != "list"
            )
            memory = self._staging.allocate(4 * self._capacity).array
            self._numbers[column.name] = memory.view(np.uint32)
            self._number_addresses[column.name] = memory.ctypes.data

    def _expected_bytes(self, name: str) -> int:
        return max(self._capacities.get(name, 0), SEGMENT_BYTES)

    def memory(self, rows: int) -> list[Memory]:
        """Return the part of these buffers that `rows` rows will occupy."""
        return [numbers[:rows].view(np.uint8) for numbers in self._numbers.values()]

    def blocks(self, share: float) -> list[Block]:
        """Return the blocks that `set_order` is expected to allocate for this share (0 to 1) of a full window."""
        sizes = [self._ordered_bytes(column.name) for column in self._gathered]
        return [Block(nbytes, ((0, int(share * nbytes)),)) for nbytes in sizes]

    def _ordered_bytes(self, name: str) -> int:
        return max(self._capacities.get(name, 0), 1)

    def page_memory(self, names: Sequence[str], rows: int) -> PageMemory | None:
        """Return the memory for pages of these columns, if any has some; the window reads the next `rows` rows."""
        values = [self._values.get(name) for name in names]
        addresses = [0 if staged is None else staged.address for staged in values]
        return PageMemory(np.array(addresses, np.int64), rows) if any(addresses) else None

    def write_rows(self, first: int, arrays: Mapping[str, pa.ChunkedArray]) -> int:
        """Copy rows to the staging buffers; return their bytes.

        Args:
            first: Number of the first row among those that the window reads.
            arrays: Canonical large binaries by column name, without columns of `write_views` and `reserve_lists`.
        """
        found = {name: _ArrowRows(array) for name, array in arrays.items()}
        with self._lock:
            spaces = {name: self._values[name].reserve(rows.rows, rows.nbytes) for name, rows in found.items()}
        begin = self._carried_rows + first
        for name, rows in found.items():
            rows.write(spaces[name], self._numbers[name][begin : begin + rows.rows])
        return sum(12 * rows.rows + rows.nbytes for rows in found.values())

    def write_views(
        self,
        first: int,
        views: Views,
        dictionaries: Mapping[str, Dictionary],
        masks: Mapping[str, tuple[Memory, int]],
    ) -> int:
        """Copy the rows to which views refer to the staging buffers; return their bytes.

        Args:
            first: As in `write_rows`.
            views: The views, as the kernels write them.
            dictionaries: The dictionaries to whose entries they refer, by column name. A whole dictionary is copied,
                instead of a value for each such row, if it has at most half as many values and bytes as these rows.
            masks: For columns that have a mask: the memory of it, contiguous, and the address in the view of a null.
        """
        of_masks = {name: (mask.ctypes.data, null) for name, (mask, null) in masks.items()}
        staging = {name: self._values[name].address for name in views.addresses}
        measured = views.measured(
            [(at, *of_masks.get(name, (0, 0)), staging[name]) for name, at in views.addresses.items()]
        )
        copied, staged_bytes = [], 0
        for name, (coded, coded_bytes, staged, in_staging, others, other_bytes) in zip(
            views.addresses, measured, strict=True
        ):
            dictionary, values, nbytes = dictionaries.get(name, _NO_DICTIONARY), others, other_bytes
            if not dictionary.entries or 2 * dictionary.entries > coded or 2 * dictionary.nbytes > coded_bytes:
                dictionary, values, nbytes = _NO_DICTIONARY, others + coded, other_bytes + coded_bytes
            ends = 2 * (staged + values) if staging[name] else values
            copied.append((dictionary, dictionary.entries + ends, dictionary.nbytes + nbytes))
            staged_bytes += 4 * staged + in_staging
        with self._lock:
            spaces = [
                self._values[name].reserve_addresses(values, nbytes)
                for name, (_, values, nbytes) in zip(views.addresses, copied, strict=True)
            ]
        lines = []
        for (name, at), (entries, _, nbytes), space in zip(views.addresses.items(), copied, spaces, strict=True):
            to, begin, ends, number = space
            numbers = self._number_addresses[name] + 4 * (self._carried_rows + first)
            given = at, entries.address, entries.entries, to, to + nbytes, begin, ends, number, numbers, staging[name]
            lines.append(given)
        views.stage(lines)
        return staged_bytes + sum(4 * views.rows + 8 * values + nbytes for _, values, nbytes in copied)

    def reserve_lists(self, name: str, rows: int, nbytes: int) -> _Space | None:
        """Return space for rows of a column that a kernel writes there, of at most `nbytes`; see `add_lists`.

        The space has one value more, for the bytes that are not needed: all, if the kernel fails. None if `nbytes` is
        more than twice the bytes that a whole window is expected to have: the pages may lack values that the footer
        claims.
        """
        if nbytes > 2 * self._expected_bytes(name):
            return None
        with self._lock:
            space = self._values[name].reserve(rows + 1, nbytes)
        space.ends[-1] = space.begin + nbytes  # where the next value begins
        return space

    def add_lists(self, name: str, first: int, space: _Space, offsets: IntArray) -> None:
        """Add rows that were written to a space.

        Args:
            name: The column.
            first: As in `write_rows`.
            space: The space.
            offsets: int64 ``[rows + 1]``: the byte of the space at which each row begins, and the end of the last one.
        """
        np.add(offsets[1:], space.begin, out=space.ends[:-1])
        begin, rows = self._carried_rows + first, len(offsets) - 1
        self._numbers[name][begin : begin + rows] = np.arange(space.number, space.number + rows)

    def set_order(
        self, carried: Mapping[str, pa.Array], indices: npt.NDArray[Any], delivered_rows: int
    ) -> dict[str, pa.Array]:
        """Fix the order; return a copy of the rows after `delivered_rows`.

        Args:
            carried: The rows that the previous window left over.
            indices: The order; they number the carried rows first, then the rows that the window reads.
            delivered_rows: Number of rows delivered.
        """
        before = len(next(iter(carried.values()))) if carried else 0
        self._carried_rows += shift_staged(self._numbers.values(), self._carried_rows, before)
        if before:
            self.write_rows(-before, {name: pa.chunked_array([array]) for name, array in carried.items()})
        begin = self._carried_rows - before
        # If fewer rows were carried than planned, there is free space before them.
        indices = indices + indices.dtype.type(begin) if begin else indices
        orders: dict[str, RaggedOrder] = {}
        for column in self._columns:
            name = column.name
            is_joined = column not in self._gathered or KERNELS is None
            self._sources[name], offsets = self._values.pop(name).finish(is_joined=is_joined)
            begins, starts = self._numbers_of_rows(len(indices)), self._numbers_of_rows(len(indices) + 1)
            orders[name] = RaggedOrder(offsets, self._numbers.pop(name), begins, starts)
        order_ragged(tuple(orders.values()), indices)
        left: dict[str, pa.Array] = {}
        for name, (_, _, begins, starts) in orders.items():
            rest = starts[delivered_rows:] - starts[delivered_rows]
            left[name] = _taken(self._sources[name], begins[delivered_rows:], rest)
            self._begins[name], self._offsets[name] = begins[:delivered_rows], starts[: delivered_rows + 1]
        for column in self._gathered:
            ordered = int(self._offsets[column.name][-1])
            self.shared_bytes += max(0, ordered - self._sources[column.name].nbytes)
            nbytes = max(self._ordered_bytes(column.name), ordered)
            self._out[column.name] = self._gathered_allocator.allocate(nbytes)
        return left

    def _numbers_of_rows(self, rows: int) -> IntArray:
        """Return reused memory, int64 ``[rows]``."""
        memory = self._staging.allocate(8 * (self._capacity + 1)).array
        return memory[: 8 * rows].view(np.int64)

    def gather(self, start: int, stop: int) -> None:
        """Copy delivered rows ``start`` to ``stop`` (exclusive); calls for different ranges may run in parallel."""
        for column in self._gathered:
            name = column.name
            begins, starts = self._begins[name][start:stop], self._offsets[name][start : stop + 1]
            self._sources[name].take(begins, starts, self._out[name].array)

    def finish(self) -> tuple[dict[str, tuple[Ragged, Any]], dict[str, Scattered]]:
        """Return the gathered columns, each with the owner of its memory, and the scattered ones."""
        done, scattered = {}, {}
        for column in self._columns:
            name = column.name
            offsets = self._offsets[name]
            if name in self._out:
                allocation = self._out[name]
                done[name] = ragged_rows(allocation.array[: offsets[-1]], offsets, column), allocation.owner
            else:
                (source,), width = self._sources[name].blocks, element_bytes(column)
                arrived = ragged_rows(source.array, offsets, column)
                begins, lengths = self._begins[name] // width, np.diff(arrived.offsets)
                scattered[name] = Scattered(arrived.values, begins, lengths, arrived.kind, source.owner)
        self._sources, self._begins, self._offsets, self._out = {}, {}, {}, {}
        return done, scattered


class Scattered(NamedTuple):
    """Ragged rows in the order of delivery; their values are in the order of arrival.

    Attributes:
        values: ``[elements, ...]``, writable: a view that keeps the staging buffer alive.
        begins: int64 ``[rows]``: the first element of each row.
        lengths: int64 ``[rows]``: the number of elements of each row.
        kind: As in `Ragged`.
        owner: The object that owns the memory of `values`; None if numpy owns it.
    """

    values: npt.NDArray[Any]
    begins: IntArray
    lengths: IntArray
    kind: Literal["list", "text", "bytes"]
    owner: Any

    @property
    def offsets(self) -> IntArray:
        """Elements before each row in the order of delivery, int64 ``[rows + 1]``; the last one counts all."""
        found = np.zeros(len(self.lengths) + 1, np.int64)
        np.cumsum(self.lengths, out=found[1:])
        return found

    def encoded(self, start: int, stop: int) -> EncodedRows:
        """Return rows ``start`` to ``stop`` (exclusive), which are bytes."""
        begins = self.begins[start:stop]
        return EncodedRows.between(self.values, begins, begins + self.lengths[start:stop])

    def ordered(self, first: int = 0) -> Ragged:
        """Return a copy of the rows from `first` on, in the order of delivery."""
        begins, lengths = self.begins[first:], self.lengths[first:]
        offsets: IntArray = np.concatenate([[0], np.cumsum(lengths)])
        numbers = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)
        return Ragged(self.values[numbers], offsets, self.kind)


def _taken(source: _StagedBytes, begins: IntArray, offsets: IntArray) -> pa.Array:
    """Return a copy of rows as large binaries, in memory of numpy.

    Arrow's take is avoided: if memory is short when a thread first allocates with Arrow, jemalloc ends the process.
    """
    taken = np.empty(offsets[-1], np.uint8)
    source.take(begins, offsets, taken)
    return pa.Array.from_buffers(pa.large_binary(), len(begins), [None, pa.py_buffer(offsets), pa.py_buffer(taken)])


class _Space(NamedTuple):
    """Space for some staged values.

    Attributes:
        memory: uint8, for the bytes of the values.
        begin: Number of bytes before them.
        ends: int64, to be filled with the end of each value, in bytes since the first value.
        number: Number of values before them.
    """

    memory: Memory
    begin: int
    ends: IntArray
    number: int


class _StagedValues:
    """The values of a column, in the order of arrival. Guarded by the lock of its `RaggedRows`.

    Args:
        nbytes, values: Expected numbers of bytes and of values.
        allocator: Provides memory for the bytes.
        staging: Provides memory for the ends of values.
        takes_pages: Whether kernels decompress pages to this memory. Then bytes are not in the order of values, and
            where the next value begins is written like the end of one.

    Attributes:
        address: The address of the `Staging` for kernels; 0 without `takes_pages`.
    """

    def __init__(
        self, nbytes: int, values: int, allocator: Allocator, staging: Allocator, *, takes_pages: bool = False
    ) -> None:
        self._bytes = _FilledBlocks(nbytes, allocator)
        self.address = self._bytes.share() if takes_pages else 0
        self._ends = _FilledBlocks(8 * ((2 if takes_pages else 1) * values + 1 + MORE_VALUES), staging)
        self._ends.reserve(8)
        self._ends.part(0, 8).view(np.int64)[0] = 0

    def reserve(self, values: int, nbytes: int) -> _Space:
        """Return space for values that take `nbytes` together."""
        _, begin, _, number = self.reserve_addresses(values, nbytes)
        ends = self._ends.part(8 * (number + 1), 8 * values).view(np.int64)
        return _Space(self._bytes.part(begin, nbytes), begin, ends, number)

    def reserve_addresses(self, values: int, nbytes: int) -> tuple[int, int, int, int]:
        """Return the same as `reserve`, with the addresses of both arrays instead of the arrays."""
        memory, begin = self._bytes.reserve(nbytes)
        if self.address:
            self._ends.part(self._ends.reserve(8)[1], 8).view(np.int64)[0] = begin
        ends, at = self._ends.reserve(8 * values)
        number = at // 8 - 1
        if number + values > _MOST_VALUES:
            raise DataError(f"a window has more than {_MOST_VALUES} rows with text or lists; set window_rows to fewer")
        return memory, begin, ends, number

    def finish(self, *, is_joined: bool) -> tuple[_StagedBytes, IntArray]:
        """Return all bytes, in one block if `is_joined`, and the offsets of the values, int64 ``[values + 1]``."""
        staged = _StagedBytes([self._bytes.joined()]) if is_joined else _StagedBytes(self._bytes.blocks())
        return staged, self._ends.joined().array.view(np.int64)


class _StagedBytes:
    """The bytes of a column's values, each in one of some blocks; offsets are those of all bytes together.

    Args:
        blocks: At least one; `READ_BEHIND` bytes behind each of several can be read.

    Attributes:
        blocks: As given.
        nbytes: Number of all bytes.
    """

    def __init__(self, blocks: Sequence[Allocation]) -> None:
        self.blocks = tuple(blocks)
        sizes = [block.array.nbytes for block in blocks]
        self.nbytes = sum(sizes)
        self._starts = np.cumsum([0, *sizes[:-1]])
        addresses = [block.array.__array_interface__["data"][0] for block in blocks]
        self._shifts = np.array(addresses, np.int64) - self._starts

    def take(self, begins: IntArray, starts: IntArray, out: Memory) -> None:
        """Copy rows, see `take_ragged`; `begins` are offsets."""
        if len(self.blocks) == 1:
            take_ragged(self.blocks[0].array, begins, starts, out)
        else:
            numbers = np.searchsorted(self._starts, begins, side="right") - 1
            take_ragged(None, begins + self._shifts[numbers], starts, out)


class _FilledBlocks:
    """Memory that is filled from the start: one block unless more bytes arrive than expected.

    Each reservation lies in one block. `READ_BEHIND` more bytes of each block are never reserved. Kernels may reserve
    bytes of the first block, too, see `share`.
    """

    def __init__(self, expected: int, allocator: Allocator) -> None:
        self._expected = expected
        self._allocator = allocator
        self._blocks: list[Allocation] = []
        self._begins: list[int] = []  # of each block: the bytes reserved before it
        self._all = self._free = self._next = 0  # bytes reserved; of the last block: free bytes, address of the first
        # The `Staging` of a shared first block, which kernels use as long as this object lives.
        self._staging: IntArray = np.empty(0, np.int64)
        self._is_shared = False  # whether the last block is shared

    def share(self) -> int:
        """Return the address of a `Staging`, by which kernels reserve bytes; called before all reservations."""
        block = self._allocator.allocate(self._expected + READ_BEHIND)
        self._blocks.append(block)
        self._begins.append(0)
        self._staging = np.array([block.array.ctypes.data, self._expected, 0], np.int64)
        self._is_shared = True
        return int(self._staging.ctypes.data)

    def _end_sharing(self) -> None:
        if self._is_shared:
            self._all, self._is_shared = KERNELS.staging_close(self._staging.ctypes.data), False

    def reserve(self, nbytes: int) -> tuple[int, int]:
        """Return the address of the reserved space, and the number of bytes reserved before it."""
        if self._is_shared:
            before = KERNELS.staging_take(self._staging.ctypes.data, nbytes)
            if before >= 0:
                return int(self._staging[0]) + before, before
        if nbytes > self._free or not self._blocks:
            free = max(nbytes, self._expected // 4 if self._blocks else self._expected)
            block = self._allocator.allocate(free + READ_BEHIND)  # if this fails, nothing has changed
            self._end_sharing()
            self._blocks.append(block)
            self._begins.append(self._all)
            self._free, self._next = free, block.array.ctypes.data
        address, before = self._next, self._all
        self._next += nbytes
        self._all += nbytes
        self._free -= nbytes
        return address, before

    def part(self, before: int, nbytes: int) -> Memory:
        """Return the space of the last reservation, which was of `nbytes`, with that many bytes reserved before it."""
        begin = before - self._begins[-1]
        return self._blocks[-1].array[begin : begin + nbytes]

    def blocks(self) -> list[Allocation]:
        """Return the reserved bytes of each block; call this or `joined` once, at the end."""
        self._end_sharing()
        blocks, self._blocks = self._blocks, []
        used = np.diff([*self._begins, self._all]).tolist()
        return [block.cut(nbytes)[0] for block, nbytes in zip(blocks, used, strict=True)]

    def joined(self) -> Allocation:
        """Return all reserved bytes as one allocation."""
        blocks = self.blocks()
        if len(blocks) == 1:
            return blocks[0]
        joined = self._allocator.allocate(self._all)
        np.concatenate([np.empty(0, np.uint8), *(block.array for block in blocks)], out=joined.array)
        return joined


class Views:
    """Rows of some columns whose bytes are in pages or in dictionaries: the address and length of each row.

    Args:
        names: The columns, at least one.
        rows: Number of rows.

    Attributes:
        rows: Number of rows.
        addresses: The address of each column's views, int64 ``[rows, 2]``, by name; valid while this object lives.
    """

    def __init__(self, names: Sequence[str], rows: int) -> None:
        # One array for all, because numpy takes a microsecond to return the address of an array.
        self._memory = np.empty(len(names) * (2 * rows + _GIVEN + _FOUND + _STAGED), np.int64)
        self._address: int = self._memory.ctypes.data
        self.rows = rows
        self.addresses = {name: self._address + 16 * rows * number for number, name in enumerate(names)}

    def measured(self, lines: Sequence[tuple[int, int, int, int]]) -> list[list[int]]:
        """Write the masks; return the six numbers of `views_measure` for each column. `lines` are its input."""
        count = len(lines)
        begin = 2 * self.rows * count
        middle, end = begin + _GIVEN * count, begin + (_GIVEN + _FOUND) * count
        self._memory[begin:middle].reshape(count, _GIVEN)[...] = lines
        KERNELS.views_measure(self._address + 8 * begin, count, self.rows, self._address + 8 * middle)
        found: list[list[int]] = self._memory[middle:end].reshape(count, _FOUND).tolist()
        return found

    def stage(self, lines: Sequence[tuple[int, ...]]) -> None:
        """Copy the values, and write the number of each row's value; the lines are those of `views_stage`."""
        count = len(lines)
        begin = (2 * self.rows + _GIVEN + _FOUND) * count
        self._memory[begin:].reshape(count, _STAGED)[...] = lines
        KERNELS.views_stage(self._address + 8 * begin, count, self.rows)


class _ArrowRows:
    """Rows that are large binaries.

    Attributes:
        rows: Number of rows.
        nbytes: Bytes of their values.
    """

    __slots__ = ("_chunks", "nbytes", "rows")

    def __init__(self, array: pa.ChunkedArray) -> None:
        self._chunks = [_bytes_of(chunk) for chunk in array.chunks]
        self.rows = len(array)
        self.nbytes = sum(len(data) for _, data in self._chunks)

    def write(self, space: _Space, numbers: npt.NDArray[np.uint32]) -> None:
        """Copy the values, and write the number of each row's value."""
        row = at = 0
        for offsets, data in self._chunks:
            space.memory[at : at + len(data)] = data
            np.add(offsets[1:], space.begin + at - offsets[0], out=space.ends[row : row + len(offsets) - 1])
            row += len(offsets) - 1
            at += len(data)
        numbers[:] = np.arange(space.number, space.number + self.rows)


def _bytes_of(array: pa.Array) -> tuple[IntArray, npt.NDArray[np.uint8]]:
    """Return offsets ``[rows + 1]`` and the bytes of an array of large binaries, without a copy."""
    _, offsets, data = array.buffers()
    if offsets is None or not len(array):
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8)
    first, last = int(bounds[0]), int(bounds[-1])
    return bounds, np.frombuffer(data, np.uint8, last - first, first) if last > first else np.empty(0, np.uint8)
