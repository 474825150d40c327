"""`Window`: rows in the order of delivery, of which batches are views."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.decode import Column, EncodedRows, one_array, ragged_rows
from parquet_loader.schema import Ragged, split_ragged
from parquet_loader.window.arena import Allocator
from parquet_loader.window.fixed_width import as_delivered, fixed_rows
from parquet_loader.window.stored import CarriedRows, StoredWindow
from parquet_loader.window.variable_width import Scattered

Array: TypeAlias = "npt.NDArray[Any] | Ragged"

# Rows of ragged columns that are sliced at a time. Six columns in batches of 256 rows take 0.3 of the consumer's time
# of single slices. Larger batches gain nothing, and the offsets of more rows would leave the CPU's cache too early.
_SLICED_ROWS = 2**12


@dataclass(frozen=True, slots=True)
class Window:
    """The rows of one window in the order of delivery; all batches of it are views.

    Attributes:
        rows: Rows delivered: a multiple of the batch size, except at the end of the epoch.
        arrays: ``[rows, ...]`` by name.
        owners: The objects that own memory not allocated by numpy, by column name; tensors are made from them.
        scattered: The columns of `ColumnGroups.scattered`, by name; they are not in `arrays`.
    """

    rows: int
    arrays: Mapping[str, Array]
    owners: Mapping[str, Any]
    scattered: Mapping[str, Scattered] = field(default_factory=dict)

    def batches(self, batch_size: int) -> Iterator[dict[str, Array]]:
        """Yield the batches in order, each as `slice` returns it; none if the window has no arrays."""
        count = _SLICED_ROWS // batch_size
        at_once = batch_size * max(1, count)
        for first in range(0, self.rows if self.arrays else 0, at_once):
            last = min(first + at_once, self.rows)
            if count < 2:
                yield self.slice(first, last)
                continue
            ragged = {
                name: iter(split_ragged(array, first, last, batch_size))
                for name, array in self.arrays.items()
                if isinstance(array, Ragged)
            }
            for start in range(first, last, batch_size):
                stop = min(start + batch_size, last)
                yield {
                    name: next(ragged[name]) if name in ragged else array[start:stop]
                    for name, array in self.arrays.items()
                }

    def slice(self, start: int, stop: int) -> dict[str, Array]:
        """Return views of rows ``start`` to ``stop`` (exclusive) of all arrays, by name."""
        return {
            name: array.slice(start, stop) if isinstance(array, Ragged) else array[start:stop]
            for name, array in self.arrays.items()
        }

    def encoded_slice(self, names: Sequence[str], start: int, stop: int) -> dict[str, Array | EncodedRows]:
        """Return rows of the named columns as `slice` does, in their order; the scattered columns are media."""
        arrays = self.slice(start, stop)
        return {name: arrays[name] if name in arrays else self.scattered[name].encoded(start, stop) for name in names}


def ordered_window(stored: StoredWindow, carried: CarriedRows) -> Window:
    """Return a stored window with its rows in the order of delivery; see `StoredWindow.ordered`."""
    arrays = stored.ordered(carried)
    return Window(stored.rows, {name: arrays[name] for name in stored.names}, stored.owners)


def nested_rows(array: pa.Array, column: Column) -> Array:
    """Return a canonical column as numpy arrays: views of the Arrow array if its memory is writable, else copies."""
    if column.kind == "fixed":
        assert column.dtype is not None
        rows = fixed_rows(array, column.row_bytes or 1)
        return as_delivered(column, rows if rows.flags.writeable else rows.copy())
    offsets = np.zeros(len(array) + 1, np.int64)
    buffers = array.buffers()
    if buffers[1] is not None and len(array):
        offsets[:] = np.frombuffer(buffers[1], np.int64, len(array) + 1, array.offset * 8)
    first, last = int(offsets[0]), int(offsets[-1])
    offsets -= first
    if not column.is_ragged:
        assert column.item is not None
        return Ragged(nested_rows(array.values.slice(first, last - first), column.item), offsets)
    data = np.empty(0, np.uint8)
    if buffers[2] is not None and last > first:
        data = np.frombuffer(buffers[2], np.uint8, last - first, first)
    return ragged_rows(data if data.flags.writeable else data.copy(), offsets, column)


def window_of(table: pa.Table, columns: Sequence[Column]) -> Window:
    """Return canonical rows in their order as a window, in the table's memory if that is writable."""
    arrays = {c.name: nested_rows(one_array(table.column(c.name)), c) for c in columns}
    return Window(len(table), arrays, {})


def copied(array: npt.NDArray[Any], allocator: Allocator) -> tuple[npt.NDArray[Any], Any]:
    """Copy an array into the allocator's memory; return the copy, and the owner of the memory."""
    allocation = allocator.allocate(max(array.nbytes, 1))
    copy = allocation.array[: array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy, allocation.owner


def nbytes_of(array: Array) -> int:
    """Return the bytes of an array or of ragged rows."""
    if isinstance(array, Ragged):
        return nbytes_of(array.values) + int(array.offsets.nbytes)
    return int(array.nbytes)
