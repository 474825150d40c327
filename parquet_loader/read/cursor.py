"""Reads a row group forward, one slice at a time."""

from __future__ import annotations

from parquet_loader.errors import DataError
from parquet_loader.read.chunk_locations import ChunkLocation
from parquet_loader.read.lazy_rows import LazyRows
from parquet_loader.read.row_group_reader import RowGroupReader
from parquet_loader.source import RowGroupRef


class Cursor:
    """A row group held open, read forward a slice at a time. Used by one thread at a time.

    Args:
        reader: Reads it.
        row_group: Which.
        batch_rows: About how many rows are decoded at a time; rows that are not decoded may come more at a time.
        location: Where its bytes are; None: it is found now, and fetched if need be.
        straight: See `RowGroupReader.lazy_batches`.
    """

    def __init__(
        self,
        reader: RowGroupReader,
        row_group: RowGroupRef,
        batch_rows: int,
        location: ChunkLocation | None = None,
        *,
        straight: bool = True,
    ) -> None:
        self._stream = reader.lazy_batches(row_group, batch_rows, location, straight=straight)
        self._left: LazyRows | None = None
        self.position = 0

    def next(self, most: int) -> LazyRows:
        """Return the next canonical rows, at least one and `most` at most, to be read before more are asked for."""
        batch, self._left = self._left, None
        while batch is None or not batch.rows:
            batch = next(self._stream, None)
            if batch is None:
                raise DataError(f"a row group ended {most} rows early: it changed since its rows were counted")
        if batch.rows > most:
            batch, self._left = batch.slice(0, most), batch.slice(most, batch.rows)
        self.position += batch.rows
        return batch

    def finish(self) -> None:
        """Read to the end of the row group, which checks that its rows were those the footer promised, and close."""
        if any(batch.rows for batch in self._stream):
            raise DataError("a row group holds more rows than were counted: it changed since")
        self.close()

    def close(self) -> None:
        """Close the file and release what is buffered."""
        self._stream.close()  # type: ignore[attr-defined]
        self._left = None
