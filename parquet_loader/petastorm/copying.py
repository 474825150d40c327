"""A Petastorm data set in this library's layout, and what one holds, for people to read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TextIO

import numpy as np
import pyarrow as pa

from parquet_loader.columns import number_type
from parquet_loader.errors import DataError, SchemaError
from parquet_loader.filesystem import PathLike
from parquet_loader.petastorm.dataset import RowGroups
from parquet_loader.petastorm.errors import PetastormMetadataError
from parquet_loader.schema import Encoded, Field, Image, Schema, Tensor, unpacked_field
from parquet_loader.unischema import schema_of as _schema_of
from parquet_loader.unischema.files import declared_unischema
from parquet_loader.unpack import RowProblem, unpack
from parquet_loader.write import DatasetWriter, WriteOptions

COPY_ROWS = 4096
COPY_BYTES = 32 * 2**20


def target_schema(schema: Schema) -> Schema:
    """Return the schema of a copy: arrays of a fixed shape as raw tensors, RGB images as images, the rest as it is."""
    fields: dict[str, Field] = {}
    for name, field in schema.items():
        fields[name] = field
        if not isinstance(field, Encoded):
            continue
        unpacked = unpacked_field(field)
        if unpacked is not None:
            fields[name] = unpacked
        elif field.is_image and field.type == pa.uint8() and field.shape[2:] == (3,):
            height, width = field.shape[:2]
            fixed = (height, width, 3) if height is not None and width is not None else (None, None, 3)
            if field.null == "refuse" or fixed[0] is not None:
                encoding: Any = field.encoding
                fields[name] = Image(fixed, encoding, null=field.null)
    return Schema(fields)


def copy_dataset(
    source: PathLike,
    path: PathLike,
    *,
    columns: list[str] | None = None,
    options: WriteOptions | None = None,
    progress: bool | Callable[[int, int], None] = False,
    filesystem: Any = None,
) -> Schema:
    """Copy a Petastorm data set into this library's layout: tensors as raw bytes, the schema as JSON in each file.

    Rows keep their order. At most one row group as stored, and about 32 MiB of it decoded, are held at a time.

    Args:
        source: The data set.
        path: Directory of the copy; it must not hold a data set already.
        columns: Names of the fields to copy; None: all.
        options: How files are written.
        progress: True prints a line a row group to stderr; a function is called with rows copied and rows in all.
        filesystem: A `pyarrow.fs.FileSystem` of the source.

    Returns:
        The schema of the copy.

    Raises:
        SchemaError: the source carries no Unischema, or a field that cannot be kept.
        DataError: a value cannot be decoded; names file, row group and column.
        WriteError: the copy cannot be written; nothing of it is left then.
    """
    dataset = RowGroups(source, filesystem)
    declared = declared_unischema(dataset.snapshot.filesystem, dataset.snapshot.files)
    if declared is None:
        raise SchemaError(f"{source}: the data set carries no Unischema; write_dataset copies other Parquet")
    snapshot = dataset.snapshot
    found = _schema_of(declared, snapshot.schemas[0], snapshot.partition_schema)
    schema = found if columns is None else found.select(columns)
    target = target_schema(schema)
    report = _report if progress is True else progress or None
    done, total = 0, snapshot.rows
    with (
        DatasetWriter(path, target, options=options) as opened,
        ThreadPoolExecutor(1, thread_name_prefix="parquet_loader-petastorm") as ahead,
    ):
        groups = range(snapshot.row_groups)
        future = ahead.submit(dataset.read, 0, list(schema)) if groups else None
        for group in groups:
            assert future is not None
            table = future.result()
            future = ahead.submit(dataset.read, group + 1, list(schema)) if group + 1 in groups else None
            for piece in _pieces(table):
                opened.write(_converted(piece, schema, dataset.describe(group)))
            done += len(table)
            if report is not None:
                report(done, total)
    return target


def _report(done: int, total: int) -> None:
    sys.stderr.write(f"{done} of {total} rows\n")


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    row_bytes = max(1, table.nbytes // max(1, len(table)))
    step = max(1, min(COPY_ROWS, COPY_BYTES // row_bytes))
    return (table.slice(start, step) for start in range(0, len(table), step))


def _converted(table: pa.Table, schema: Schema, place: str) -> pa.Table:
    """Return a table in which encoded arrays of a known layout are taken apart."""
    arrays: dict[str, Any] = {}
    for name, field in schema.items():
        column = table.column(name)
        arrays[name] = column
        if isinstance(field, Encoded) and unpacked_field(field) is not None:
            whole = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
            try:
                arrays[name] = _as_written(unpack(whole, field), unpacked_field(field))
            except RowProblem as problem:
                raise DataError(f"{place}, column {name!r}, row {problem.row}: {problem}") from None
    return pa.table(arrays)


def _as_written(array: pa.Array, field: Any) -> pa.Array:
    """Return raw rows as lists of numbers where the writer takes those only."""
    if isinstance(field, Tensor) or not hasattr(field, "item") or not isinstance(field.item, Tensor):
        return array
    inner = field.item
    flat = array.flatten()
    numbers = np.frombuffer(
        flat.buffers()[1] or b"", inner.dtype, len(flat) * inner.size, flat.offset * inner.width_bytes
    )
    values: Any = pa.array(numbers.astype(bool) if inner.dtype == np.bool_ else numbers)
    type_ = inner.type
    values = values if values.type == type_ else values.cast(number_type(inner.dtype))
    for length in reversed(inner.shape):
        values = pa.FixedSizeListArray.from_arrays(values, length)
    mask = array.is_null() if array.null_count else None
    return pa.LargeListArray.from_arrays(array.offsets, values, mask=mask)


def print_dataset(source: PathLike, file: TextIO | None = None, *, filesystem: Any = None) -> None:
    """Print a data set's Unischema, what `BatchedDataLoader` makes of it, its row groups and indexes.

    Args:
        source: The data set.
        file: Where to; None: standard output.
        filesystem: A `pyarrow.fs.FileSystem` of the source.
    """
    out = file or sys.stdout
    dataset = RowGroups(source, filesystem)
    snapshot = dataset.snapshot
    out.write(f"{dataset.unischema}\n")
    declared = declared_unischema(snapshot.filesystem, snapshot.files)
    if declared is not None:
        out.write(f"{_schema_of(declared, snapshot.schemas[0], snapshot.partition_schema)!r}\n")
        try:
            indexes = dataset.indexes()
        except PetastormMetadataError:
            indexes = {}
        for name, indexer in indexes.items():
            out.write(f"index {name!r} of {', '.join(indexer.column_names)}: {len(indexer.indexed_values)} values\n")
    out.write(f"{snapshot.rows} rows in {snapshot.row_groups} row groups of {len(snapshot.files)} files\n")
    for group in range(snapshot.row_groups):
        rows, nbytes = int(snapshot.row_group_rows[group]), int(snapshot.row_group_bytes[group])
        out.write(f"  {group}: {rows} rows, {nbytes} bytes: {dataset.describe(group)}\n")
