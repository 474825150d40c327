"""Reads a row group forward, a slice at a time."""

from __future__ import annotations

from collections.abc import Iterator

from parquet_loader.errors import DataError
from parquet_loader.read.chunk_locations import ChunkLocation
from parquet_loader.read.lazy_rows import LazyRows
from parquet_loader.read.row_group_reader import RowGroupReader
from parquet_loader.source import RowGroupRef


class Cursor:
    """An open row group. Used by one thread at a time.

    Args:
        reader: Reads the row group.
        row_group: The row group.
        batch_rows: About how many rows are decoded at a time; batches with deferred columns may be larger.
        location: The location of its bytes; None: locate it now, and fetch it if necessary.

    Attributes:
        position: Number of rows read, of those that pass the filter.
        stored_bytes: Stored bytes of the column chunks that are read.
    """

    def __init__(
        self, reader: RowGroupReader, row_group: RowGroupRef, batch_rows: int, location: ChunkLocation | None = None
    ) -> None:
        self._reader = reader
        self._row_group = row_group
        self._batch_rows = batch_rows
        self._location = location
        self.stored_bytes = reader.chunks.encoded_bytes(row_group)
        self._open(straight=True)

    def _open(self, *, straight: bool) -> None:
        self._stream: Iterator[LazyRows] = self._reader.lazy_batches(
            self._row_group, self._batch_rows, self._location, straight=straight
        )
        self._rest: LazyRows | None = None
        self.position = 0

    def next(self, most: int) -> LazyRows:
        """Return the next 1 to `most` canonical rows; they are valid until the next call.

        Raises:
            DataError: the row group has no more rows, or see `RowGroupReader.read`.
            SourceError: see `RowGroupReader.read`.
        """
        batch, self._rest = self._rest, None
        while batch is None or not batch.rows:
            batch = next(self._stream, None)
            if batch is None:
                raise DataError(
                    f"a row group ended {most} rows early: it changed since its rows were counted; make a new loader"
                )
        if batch.rows > most:
            batch, self._rest = batch.slice(0, most), batch.slice(most, batch.rows)
        self.position += batch.rows
        return batch

    def restart(self) -> None:
        """Begin again at the first row, now with Arrow decoding the numbers that kernels could not decode."""
        self.close()
        self._open(straight=False)

    def finish(self) -> None:
        """Read to the end of the row group, which checks that it has as many rows as its footer says, and close."""
        if any(batch.rows for batch in self._stream):
            raise DataError("a row group holds more rows than were counted: it changed since; make a new loader")
        self.close()

    def close(self) -> None:
        """Close the file and release buffers; idempotent."""
        self._stream.close()  # type: ignore[attr-defined]
        self._rest = None
