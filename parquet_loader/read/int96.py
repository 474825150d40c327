"""Refuses INT96 timestamps beyond the range of nanoseconds, which Arrow would wrap."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack, closing
from functools import partial

import numpy as np
import pyarrow as pa

from parquet_loader.decode import first_beyond_nanoseconds
from parquet_loader.errors import DataError
from parquet_loader.read.chunk_locations import ChunkLocation
from parquet_loader.read.column_chunks import ColumnChunkSource
from parquet_loader.schema import heads
from parquet_loader.source import RowGroupRef, Snapshot, has_int96


class Int96Check:
    """Checks the INT96 timestamps that Arrow decodes; kernels leave those that do not fit to Arrow.

    Args:
        snapshot: The row groups.
        chunks: The locations of their column chunks.
        columns_of: For each of the snapshot's schemas, the columns that are read.
    """

    def __init__(self, snapshot: Snapshot, chunks: ColumnChunkSource, columns_of: Sequence[Sequence[str]]) -> None:
        self._chunks = chunks
        self._names_of = [
            _with_int96(schema, names) for schema, names in zip(snapshot.stored_schemas, columns_of, strict=True)
        ]
        # By row group: whether a column of `_names_of`, by its number there, was checked.
        most = max(map(len, self._names_of), default=0)
        self._checked = np.zeros((snapshot.row_groups if most else 0, most), np.bool_)

    def check(self, row_group: RowGroupRef, location: ChunkLocation, columns: Collection[str]) -> None:
        """Check columns of a row group, each once.

        Args:
            row_group: The row group.
            location: The location of its bytes.
            columns: The columns that Arrow decodes.

        Raises:
            DataError: one does not fit; the message names the column, the rows and the value.
        """
        found = self._names_of[row_group.schema_number]
        if not found:
            return
        checked = self._checked[row_group.index]
        left = [number for number, name in enumerate(found) if name in columns and not checked[number]]
        if not left:
            return
        names = [found[number] for number in left]
        beyond = self._first_beyond(row_group, location, names, ["s"])
        if beyond is not None:  # or in the first or last second of the range
            beyond = self._first_beyond(row_group, location, names, ["s", "ns"])
        if beyond is not None:
            raise beyond
        checked[left] = True

    def _first_beyond(
        self, row_group: RowGroupRef, location: ChunkLocation, names: Sequence[str], units: Sequence[str]
    ) -> DataError | None:
        """Return the error of a timestamp for which `first_beyond_nanoseconds` of these units finds a time."""
        with ExitStack() as stack:
            open_as = partial(self._chunks.open, row_group, names, location)
            opened = [stack.enter_context(closing(open_as(coerce_int96_timestamp_unit=unit))) for unit in units]
            first_row = 0
            for batches in zip(*(columns.batches(65536) for columns in opened), strict=True):
                for name, *columns in zip(batches[0].schema.names, *(batch.columns for batch in batches), strict=True):
                    seconds = first_beyond_nanoseconds(*columns)
                    if seconds is not None:
                        rows = f"rows {first_row} to {first_row + len(batches[0]) - 1}"
                        return beyond_nanoseconds(f"{row_group.name}, column {name!r}, {rows}", seconds)
                first_row += len(batches[0])
        return None


def _with_int96(schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """Return the columns that hold INT96 timestamps."""
    marked = {field.name for field in schema if has_int96(field)}
    return [name for name in names if any(head in marked for head in heads(name))] if marked else []


def beyond_nanoseconds(where: str, seconds: int) -> DataError:
    """Return the error of an INT96 timestamp that does not fit into nanoseconds."""
    return DataError(
        f"{where}: the INT96 timestamp {_date_of(seconds)} does not fit timestamp[ns]; leave the column out with "
        "columns=[...], or write it as TIMESTAMP(us) (Spark: "
        "spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS)"
    )


def _date_of(seconds: int) -> str:
    """Return a time as text, also for years that Python's datetime does not support."""
    return str(np.datetime64(seconds, "s")).replace("T", " ")
