"""Spark's ML vectors, as they come in Arrow batches, to lists of numbers that a `Tensor` or `RaggedList` takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.errors import DataError

_MEMBERS = {"type", "size", "indices", "values"}
_DENSE = 1


def is_vector_type(type_: pa.DataType) -> bool:
    """Whether the Arrow type is how Spark sends a vector: struct<type, size, indices, values>."""
    return bool(pa.types.is_struct(type_)) and {type_.field(i).name for i in range(type_.num_fields)} == _MEMBERS


def with_plain_vectors(batch: Any, first_row: int = 0) -> Any:
    """Return the record batch or table with vectors, dense and sparse, as lists of float64; other columns as they are.

    Args:
        batch: Rows.
        first_row: Number of its first row, for errors.

    Raises:
        DataError: a sparse vector has a value outside its size.
    """
    for number, field in enumerate(batch.schema):
        if is_vector_type(field.type):
            column = batch.column(number)
            array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            try:
                lists = _plain(array)
            except _Wrong as wrong:
                raise DataError(f"field {field.name!r}, row {first_row + wrong.row}: {wrong}") from None
            batch = batch.set_column(number, field.name, lists)
    return batch


class _Wrong(Exception):
    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


def _plain(array: pa.StructArray) -> pa.Array:
    """Return ``list<double>``, with a null for each null vector."""
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    vectors = array.filter(pa.array(valid)) if array.null_count else array  # the values behind nulls are undefined
    dense = pc.equal(vectors.field("type"), _DENSE).to_numpy(zero_copy_only=False)
    values = vectors.field("values")
    if dense.all() and valid.all():
        return values
    try:
        numbers, lengths = _expanded(vectors, dense)
    except _Wrong as wrong:
        raise _Wrong(int(np.flatnonzero(valid)[wrong.row]), str(wrong)) from None
    offsets = np.zeros(len(array) + 1, np.int64)
    offsets[1:][valid] = lengths
    offsets = np.cumsum(offsets)
    if offsets[-1] > np.iinfo(np.int32).max:
        raise _Wrong(0, "a batch holds more than 2**31 values; lower spark.sql.execution.arrow.maxRecordsPerBatch")
    mask = None if valid.all() else pa.array(~valid)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(numbers), mask=mask)


def _expanded(vectors: pa.StructArray, dense: Any) -> tuple[Any, Any]:
    """Return the numbers of vectors without nulls end to end, float64, and the length of each."""
    values, indices = vectors.field("values"), vectors.field("indices")
    counts = _lengths(values)
    index_counts = np.where(dense, 0, _lengths(indices))
    unequal = np.flatnonzero(~dense & (index_counts != counts))
    if len(unequal):
        row = int(unequal[0])
        raise _Wrong(row, f"a sparse vector has {counts[row]} values at {index_counts[row]} positions")
    sizes = np.where(dense, counts, pc.fill_null(vectors.field("size"), 0).to_numpy(zero_copy_only=False))
    starts = np.cumsum(sizes) - sizes
    rows = np.repeat(np.arange(len(vectors)), counts)
    positions = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    is_sparse = ~dense[rows]
    positions[is_sparse] = indices.filter(pa.array(~dense)).flatten().to_numpy(zero_copy_only=False)
    outside = np.flatnonzero((positions < 0) | (positions >= sizes[rows]))
    if len(outside):
        row = int(rows[outside[0]])
        raise _Wrong(row, f"a sparse vector of size {sizes[row]} has a value at {positions[outside[0]]}")
    numbers = np.zeros(int(sizes.sum()))
    numbers[starts[rows] + positions] = values.flatten().to_numpy(zero_copy_only=False)
    return numbers, sizes


def _lengths(lists: pa.Array) -> Any:
    return pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
