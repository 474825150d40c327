"""`copy_dataset` writes a Petastorm data set in this library's layout; `print_dataset` describes one."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Collection, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TextIO

import numpy as np
import pyarrow as pa

from parquet_loader.common import (
    PathLike,
    ReadOptions,
    ShowProgress,
    format_count,
    progress_bar,
    shown_progress,
    starting_threads,
)
from parquet_loader.decode import TableOrigin, ValueProblem, number_type, one_array, unpack
from parquet_loader.errors import DataError, SchemaError
from parquet_loader.petastorm.errors import PetastormMetadataError
from parquet_loader.petastorm.etl.reading.dataset import RowGroups, StoredColumns
from parquet_loader.read import RowGroupReader
from parquet_loader.schema import Encoded, Field, Image, Schema, Tensor, unpacked_field
from parquet_loader.source import Snapshot, declared_unischema
from parquet_loader.source import schema_of as _schema_of
from parquet_loader.write import DatasetWriter, WriteOptions

COPY_ROWS = 4096
COPY_BYTES = 32 * 2**20


def target_schema(schema: Schema) -> Schema:
    """Return the schema of a copy: arrays of a fixed shape as tensors, RGB images as images, other fields unchanged."""
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
    progress: bool | ShowProgress = False,
    filesystem: Any = None,
) -> Schema:
    """Copy a Petastorm data set into this library's layout: tensors as raw bytes, the schema as JSON in each file.

    Rows keep their order. A slice of at most 4096 rows or about 32 MiB is read while the one before is written, so
    memory does not depend on the size of row groups.

    Args:
        source: The data set.
        path: Directory of the copy; it must not hold a data set already.
        columns: Names of the fields to copy; None copies all.
        options: How files are written.
        progress: True shows a progress bar (needs tqdm); a function is called with the rows copied and all rows.
        filesystem: A `pyarrow.fs.FileSystem` of the source.

    Returns:
        The schema of the copy.

    Raises:
        SchemaError: the source carries no Unischema, or a field that cannot be copied.
        DataError: a value cannot be decoded; the message names file, row group and column.
        WriteError: the copy cannot be written; nothing of it remains.
    """
    dataset = RowGroups(source, filesystem)
    declared = declared_unischema(dataset.snapshot.filesystem, dataset.snapshot.files)
    if declared is None:
        raise SchemaError(f"{source}: the data set carries no Unischema; rewrite_dataset copies other Parquet")
    snapshot = dataset.snapshot
    found = _schema_of(declared, snapshot.schemas[0], snapshot.partition_schema)
    schema = found if columns is None else found.select(columns)
    if not schema:
        raise SchemaError("copy_dataset: columns names no field; None copies all")
    target = target_schema(schema)
    done = 0
    make_bar = progress_bar() if progress and not callable(progress) else None
    with (
        shown_progress(make_bar, desc="copy", unit="row", unit_scale=True) as show,
        DatasetWriter(path, target, options=options) as opened,
        dataset.opened(),
        contextlib.closing(_ahead(_slices(snapshot, schema, target))) as slices,
    ):
        for table in slices:
            opened.write(table)
            done += len(table)
            (progress if callable(progress) else show)(done, snapshot.rows)
    return target


class _Unpacked(StoredColumns):
    """Converts columns to the form of the copy: unpacks encoded arrays of a known layout, and no others. Immutable."""

    def __init__(self, schema: Schema, file_schema: pa.Schema, partition_schema: pa.Schema) -> None:
        super().__init__(list(schema), file_schema, partition_schema)
        self._unpacked = {
            name: (field, unpacked)
            for name, field in schema.items()
            if isinstance(field, Encoded) and (unpacked := unpacked_field(field)) is not None
        }

    def decode(
        self,
        table: pa.Table,
        partitions: Mapping[str, pa.Scalar],
        origin: TableOrigin,
        deferred: Collection[str] = (),
    ) -> pa.Table:
        """Return the columns, row for row; none is ever deferred.

        Raises:
            DataError: a value cannot be decoded; the message names file, row group, column and row.
        """
        stored = super().decode(table, partitions, origin, deferred)
        for name, (field, unpacked) in self._unpacked.items():
            column = stored.column(name)
            try:
                array = _as_written(unpack(one_array(column), field), unpacked)
            except ValueProblem as problem:
                row = origin.first_row + (problem.row or 0)
                raise DataError(f"{origin.name}, column {name!r}, row {row}: {problem}") from None
            stored = stored.set_column(stored.column_names.index(name), name, array)
        return stored


def _slices(
    snapshot: Snapshot, schema: Schema, target: Schema, *, most_rows: int = COPY_ROWS, most_bytes: int = COPY_BYTES
) -> Iterator[pa.Table]:
    """Yield the rows of the copy in their order, a slice of a row group at a time."""
    decoders = [_Unpacked(schema, file_schema, snapshot.partition_schema) for file_schema in snapshot.schemas]
    reader = RowGroupReader(snapshot, decoders, None, ReadOptions())
    decoded_bytes = sum(field.width_bytes for field in target.values() if isinstance(field, Tensor))
    for index in range(snapshot.row_groups):
        row_group = snapshot.row_group(index)
        stored_bytes = row_group.encoded_bytes // max(1, row_group.rows)
        yield from reader.stream(row_group, max(1, min(most_rows, most_bytes // max(1, stored_bytes, decoded_bytes))))


def _ahead(slices: Iterator[pa.Table]) -> Generator[pa.Table]:
    """Yield the items of an iterator, while a thread computes the next one."""
    with ThreadPoolExecutor(1, thread_name_prefix="parquet_loader-petastorm") as thread:
        with starting_threads("copying a data set"):
            coming = thread.submit(next, slices, None)
        while (table := coming.result()) is not None:
            coming = thread.submit(next, slices, None)
            yield table


def _as_written(array: pa.Array, field: Any) -> pa.Array:
    """Return raw rows as lists of numbers if the writer takes only those."""
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
    """Print the Unischema of a data set, the schema derived from it, its indexes and row groups.

    Args:
        source: The data set.
        file: The output; None for standard output.
        filesystem: A `pyarrow.fs.FileSystem` of the source.
    """
    text = io.StringIO()
    _describe(RowGroups(source, filesystem), text)
    (file or sys.stdout).write("".join(map(_visible, text.getvalue())))


def _visible(character: str) -> str:
    """Return a character, or its escape if a terminal would interpret it."""
    shown = character.isprintable() or character == "\n"
    return character if shown else character.encode("unicode_escape").decode("ascii")


def _describe(dataset: RowGroups, out: io.StringIO) -> None:
    snapshot = dataset.snapshot
    out.write(f"{dataset.unischema}\n")
    declared = declared_unischema(snapshot.filesystem, snapshot.files)
    if declared is not None:
        out.write(f"{_schema_of(declared, snapshot.schemas[0], snapshot.partition_schema)!r}\n")
        try:
            indexes = dataset.indexes()
        except PetastormMetadataError:
            indexes = {}
        out.writelines(
            f"index {name!r} of {', '.join(indexer.column_names)}: {len(indexer.indexed_values)} values\n"
            for name, indexer in indexes.items()
        )
    rows, row_groups = format_count(snapshot.rows, "row"), format_count(snapshot.row_groups, "row group")
    out.write(f"{rows} in {row_groups} of {format_count(len(snapshot.files), 'file')}\n")
    for index in range(snapshot.row_groups):
        group = snapshot.row_group(index)
        out.write(f"  {index}: {group.rows} rows, {group.encoded_bytes} bytes: {group.name}\n")
