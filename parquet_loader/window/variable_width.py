"""Assembles a window's variable-width columns: staged as they are decoded, then permuted.

Rows are large binaries, also those of lists of numbers. Arrow's list kernel would build an index of every element
(0.2-0.4 GB/s, and three times the memory). Rows of bytes are copied at 4-5 GB/s: once by a kernel, or twice by Arrow,
about a MiB at a time into memory that is already in the page tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import KERNELS, IntArray, ragged_offsets, take_ragged
from parquet_loader.decode import Column
from parquet_loader.schema import Ragged
from parquet_loader.window.arena import Allocation, Allocator, Arenas, Block, Memory

SEGMENT_BYTES = 1 << 20


class RaggedRows:
    """The ragged columns of one window. `write_rows` may be called by several threads; the rest by one at a time.

    Rows are numbered in the order of arrival. `write_rows` returns the number of its first row, and `set_order` takes
    such numbers, so the result does not depend on the order of arrival.

    Args:
        columns: The columns, all canonical large binaries.
        capacities: Expected bytes of each column by name; if more arrive, the column is copied once more.
        staging: Provides the staging buffers.
        allocator: Provides the memory of delivered rows.
        scattered: The columns that are not gathered: `finish` returns views of the staging buffers, see `Scattered`.
        delivers_arrivals: Whether these go to a device, so that they are staged in the memory of delivered rows.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        capacities: Mapping[str, int],
        staging: Arenas,
        allocator: Allocator,
        scattered: frozenset[str] = frozenset(),
        *,
        delivers_arrivals: bool = False,
    ) -> None:
        self._columns = columns
        self._gathered = tuple(column for column in columns if column.name not in scattered)
        self._capacities = capacities
        self._staging = staging
        self._allocator = allocator
        self._arrivals: Allocator = allocator if delivers_arrivals else staging
        self._lock = Lock()
        self._rows = 0
        self._blocks: dict[str, list[_FilledBlock]] = {c.name: [] for c in columns}
        self._lengths: list[dict[str, IntArray]] = []
        self._sources: dict[str, _Staged] = {}
        self._indices: IntArray = np.zeros(0, np.int64)
        self._offsets: dict[str, IntArray] = {}
        self._out: dict[str, Allocation] = {}

    def blocks(self, share: float) -> list[Block]:
        """Return the blocks that `set_order` is expected to allocate for this share (0 to 1) of a full window."""
        sizes = [self._ordered_bytes(column.name) for column in self._gathered]
        return [Block(nbytes, ((0, int(share * nbytes)),)) for nbytes in sizes]

    def _ordered_bytes(self, name: str) -> int:
        return max(self._capacities.get(name, 0), 1)

    def write_rows(self, arrays: Mapping[str, pa.ChunkedArray | IntArray]) -> tuple[int, int]:
        """Copy rows to the staging buffers; return the arrival number of the first, and their bytes.

        Args:
            arrays: By column name, all of the same length: canonical large binaries, or views, int64 ``[rows, 2]``: an
                address and a length of each row.
        """
        chunks, lengths = dict[str, list[tuple[IntArray, Memory]]](), dict[str, IntArray]()
        views = dict[str, IntArray]()
        for name in self._blocks:
            array = arrays[name]
            if isinstance(array, np.ndarray):
                views[name], lengths[name] = array, np.ascontiguousarray(array[:, 1])
            else:
                chunks[name] = [_bytes_of(chunk) for chunk in array.chunks]
                lengths[name] = np.concatenate([np.diff(o) for o, _ in chunks[name]] or [_NONE])
        rows = len(next(iter(lengths.values())))
        with self._lock:
            first = self._rows
            self._rows += rows
            self._lengths.append(lengths)
            spaces = {name: self._reserve(name, int(lengths[name].sum())) for name in self._blocks}
        nbytes = 8 * rows * len(spaces)
        for name, space in spaces.items():
            at = 0
            if name in views:
                address = space.__array_interface__["data"][0]
                KERNELS.views_copy(views[name].ctypes.data, rows, address, address + len(space))
                nbytes += len(space)
                continue
            for _, data in chunks[name]:
                space[at : at + len(data)] = data
                at += len(data)
            nbytes += at
        return first, nbytes

    def _reserve(self, name: str, nbytes: int) -> Memory:
        blocks = self._blocks[name]
        if not blocks or blocks[-1].used + nbytes > blocks[-1].memory.nbytes:
            expected = max(self._capacities.get(name, 0), SEGMENT_BYTES)
            blocks.append(_FilledBlock(self._arrivals.allocate(max(nbytes, expected if not blocks else expected // 4))))
        return blocks[-1].reserve(nbytes)

    def set_order(self, indices: IntArray, delivered_rows: int) -> dict[str, pa.Array]:
        """Fix the order, by arrival numbers, int64 ``[rows]``; return a copy of the rows after `delivered_rows`."""
        self._indices = indices[:delivered_rows]
        left: dict[str, pa.Array] = {}
        for column in self._columns:
            name = column.name
            source = self._sources[name] = self._source(name)
            left[name] = source.taken(indices[delivered_rows:])
        for column in self._gathered:
            name = column.name
            offsets = self._offsets[name] = ragged_offsets(self._sources[name].offsets, self._indices)
            self._out[name] = self._allocator.allocate(max(self._ordered_bytes(name), int(offsets[-1])))
        return left

    def _source(self, name: str) -> _Staged:
        offsets: IntArray = self._staging.allocate(8 * (self._rows + 1)).array.view(np.int64)
        offsets[0] = at = 0
        for lengths in (chunk[name] for chunk in self._lengths):
            ends = offsets[at + 1 : at + 1 + len(lengths)]
            np.cumsum(lengths, out=ends)
            ends += offsets[at]
            at += len(lengths)
        blocks = self._blocks[name]
        allocation = blocks[0].allocation if blocks else Allocation(np.empty(0, np.uint8))
        if len(blocks) > 1:  # more bytes arrived than expected
            allocation = Allocation(np.concatenate([block.memory[: block.used] for block in blocks]))
            self._blocks[name] = []
        return _Staged(offsets, allocation.array, allocation.owner)

    def gather(self, start: int, stop: int) -> None:
        """Copy delivered rows ``start`` to ``stop`` (exclusive); calls for different ranges may run in parallel."""
        for column in self._gathered:
            source, offsets = self._sources[column.name], self._offsets[column.name][start:stop]
            out = self._out[column.name].array
            take_ragged(source.data, source.offsets, self._indices[start:stop], offsets, out)

    def finish(self) -> tuple[dict[str, tuple[Ragged, Any]], dict[str, Scattered]]:
        """Return the gathered columns, each with the owner of its memory, and the scattered ones."""
        done, scattered = {}, {}
        for column in self._columns:
            name = column.name
            if name in self._out:
                allocation, offsets = self._out[name], self._offsets[name]
                done[name] = ragged_rows(allocation.array[: offsets[-1]], offsets, column), allocation.owner
            else:
                source = self._sources[name]
                arrived = ragged_rows(source.data[: source.offsets[-1]], source.offsets, column)
                begins, ends = arrived.offsets[:-1][self._indices], arrived.offsets[1:][self._indices]
                scattered[name] = Scattered(arrived.values, begins, ends - begins, arrived.kind, source.owner)
        self._blocks, self._sources, self._out, self._lengths = {}, {}, {}, []
        return done, scattered


class Scattered(NamedTuple):
    """Ragged rows in the order of delivery, whose values are in the order of arrival.

    Attributes:
        values: ``[elements, ...]``, writable, in a staging buffer; they keep its memory.
        begins: int64 ``[rows]``: the first element of each row.
        lengths: int64 ``[rows]``: the elements of each row.
        kind: As in `Ragged`.
        owner: The object that owns the memory of the values; None: numpy.
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

    def ordered(self, first: int = 0) -> Ragged:
        """Return rows from number `first` on, in the order of delivery; a copy."""
        begins, lengths = self.begins[first:], self.lengths[first:]
        offsets: IntArray = np.concatenate([[0], np.cumsum(lengths)])
        numbers = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)
        return Ragged(self.values[numbers], offsets, self.kind)


class _Staged(NamedTuple):
    """Rows in the order of arrival: int64 offsets ``[rows + 1]``, the bytes, and the owner of their memory."""

    offsets: IntArray
    data: Memory
    owner: Any

    def taken(self, rows: IntArray) -> pa.Array:
        """Return a copy of rows as large binaries, in numpy's memory.

        Not by Arrow's take: if memory is short when a thread first needs some of Arrow, jemalloc ends the process.
        """
        offsets = ragged_offsets(self.offsets, rows)
        data = np.empty(offsets[-1], np.uint8)
        take_ragged(self.data, self.offsets, rows, offsets[:-1], data)
        return pa.Array.from_buffers(pa.large_binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


class _FilledBlock:
    """Memory that is filled from its beginning."""

    __slots__ = ("allocation", "memory", "used")

    def __init__(self, allocation: Allocation) -> None:
        self.allocation = allocation
        self.memory = allocation.array
        self.used = 0

    def reserve(self, nbytes: int) -> Memory:
        self.used += nbytes
        return self.memory[self.used - nbytes : self.used]


_NONE: IntArray = np.zeros(0, np.int64)


def _bytes_of(array: pa.Array) -> tuple[IntArray, npt.NDArray[np.uint8]]:
    """Return offsets ``[rows + 1]`` and the bytes of an array of large binaries, without a copy."""
    _, offsets, data = array.buffers()
    if offsets is None or not len(array):
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8)
    first, last = int(bounds[0]), int(bounds[-1])
    return bounds, np.frombuffer(data, np.uint8, last - first, first) if last > first else np.empty(0, np.uint8)


def ragged_rows(data: Memory, offsets: IntArray, column: Column) -> Ragged:
    """Return rows of bytes as the column's `Ragged`; `offsets`, int64 ``[rows + 1]``, count bytes."""
    if column.kind != "list":
        return Ragged(data, offsets, "text" if column.kind == "text" else "bytes")
    assert column.item is not None
    assert column.dtype is not None
    width = column.item.row_bytes or 1
    return Ragged(data.view(column.dtype).reshape(-1, *column.item.shape), offsets // width)
