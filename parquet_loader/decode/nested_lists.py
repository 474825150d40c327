"""Lists of lists and of text as columns of bytes, so that a window orders them as it orders all rows of varying width.

A column whose rows are lists of ragged items has, for each level of items, a column with their lengths, and one column
with the bytes of the innermost items. A row of each is contiguous bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import IntArray
from parquet_loader.decode.columns import Column
from parquet_loader.schema import Ragged

# Between the name of a column and the number of a level. Names in files are UTF-8, which cannot hold it.
_SEPARATOR = "\ud800"


def flat_columns(column: Column) -> tuple[Column, ...]:
    """Return the columns of bytes that hold a column's rows: for nested lists, lengths from the outermost level on.

    Args:
        column: A canonical column whose rows differ in width.

    Returns:
        The column itself if its rows are bytes.
    """
    found: list[Column] = []
    innermost = column
    while not innermost.is_ragged:
        assert innermost.item is not None
        innermost = innermost.item
        name = f"{column.name}{_SEPARATOR}{len(found)}"
        length = Column(name, "fixed", pa.int64(), np.dtype(np.int64))
        found.append(Column(name, "list", pa.large_binary(), np.dtype(np.int64), (), length))
    if not found:
        return (column,)
    return (*found, Column(f"{column.name}{_SEPARATOR}", "bytes", pa.large_binary(), np.dtype(np.uint8)))


def flat_arrays(array: pa.ChunkedArray, column: Column) -> dict[str, pa.ChunkedArray]:
    """Return the rows of a column as large binaries, by the names of its `flat_columns`; bytes are not copied."""
    if column.is_ragged:
        return {column.name: array}
    parts = [_flat_chunk(chunk, column) for chunk in array.chunks]
    names = [flat.name for flat in flat_columns(column)]
    return {
        name: pa.chunked_array([part[number] for part in parts], pa.large_binary()) for number, name in enumerate(names)
    }


def _flat_chunk(array: pa.Array, column: Column) -> list[pa.Array]:
    """Return the large binaries of one chunk, in the order of `flat_columns`."""
    rows, bounds = len(array), _offsets(array)
    found = []
    while column.item is not None and not column.is_ragged:
        array, column = array.values, column.item
        offsets = _offsets(array)
        lengths = np.diff(offsets[bounds[0] : bounds[-1] + 1])
        found.append(_binaries(rows, (bounds - bounds[0]) * lengths.itemsize, pa.py_buffer(lengths)))
        bounds = offsets[bounds]
    found.append(_binaries(rows, bounds, array.buffers()[2]))
    return found


def _offsets(array: pa.Array) -> IntArray:
    """Return the offsets of large lists or large binaries, ``[rows + 1]``."""
    offsets = array.buffers()[1]
    if offsets is None or not len(array):
        return np.zeros(1, np.int64)
    return np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8)


def _binaries(rows: int, offsets: IntArray, data: pa.Buffer | None) -> pa.Array:
    return pa.Array.from_buffers(pa.large_binary(), rows, [None, pa.py_buffer(np.ascontiguousarray(offsets)), data])


def joined_lists(column: Column, flat: Sequence[Ragged]) -> Ragged:
    """Return the rows of nested lists.

    Args:
        column: The column.
        flat: Rows of its `flat_columns`: lengths as lists of int64, and bytes.
    """
    *levels, innermost = flat
    items: list[Column] = []
    while column.item is not None and not column.is_ragged:
        column = column.item
        items.append(column)
    rows = ragged_rows(innermost.values, _ends(levels[-1].values), items[-1])
    for level in reversed(range(len(levels))):
        rows = Ragged(rows, levels[level].offsets if level == 0 else _ends(levels[level - 1].values))
    return rows


def _ends(lengths: npt.NDArray[Any]) -> IntArray:
    """Return the offsets of items of these lengths, ``[items + 1]``."""
    offsets: IntArray = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def ragged_rows(data: npt.NDArray[np.uint8], offsets: IntArray, column: Column) -> Ragged:
    """Return rows of bytes as the column's `Ragged`; `offsets`, int64 ``[rows + 1]``, count bytes."""
    if column.kind != "list":
        return Ragged(data, offsets, "text" if column.kind == "text" else "bytes")
    assert column.item is not None
    assert column.dtype is not None
    values = data.view(column.dtype).reshape(-1, *column.item.shape)
    return Ragged(values, offsets // element_bytes(column))


def element_bytes(column: Column) -> int:
    """Return the bytes of an element of a row; rows of text are bytes."""
    return 1 if column.item is None else column.item.row_bytes or 1


def flat_widths(columns: Sequence[Column], widths: Mapping[str, float], sample: pa.Table) -> dict[str, float]:
    """Divide the bytes of a row of each column among its `flat_columns`, as in a sample.

    Args:
        columns: Canonical columns whose rows differ in width.
        widths: The bytes of a row, by column.
        sample: Rows of them.
    """
    found: dict[str, float] = {}
    for column in columns:
        sizes = {name: array.nbytes for name, array in flat_arrays(sample.column(column.name), column).items()}
        total = sum(sizes.values())
        for name, nbytes in sizes.items():
            found[name] = widths[column.name] * (nbytes / total if total else 1 / len(sizes))
    return found
