"""Reads a row group forward, one slice at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from parquet_loader.decode import LazyRows, NotDecodedError
from parquet_loader.errors import DataError
from parquet_loader.read.chunk_locations import ChunkLocation
from parquet_loader.read.row_group_reader import RowGroupReader
from parquet_loader.source import RowGroupRef


class Writer(Protocol):
    """Receives the rows of a slice."""

    def __call__(self, at_row: int, rows: LazyRows, first: int, count: int) -> int:
        """Write rows ``first`` to ``first + count`` of `rows`, and return the bytes that are kept for them.

        Args:
            at_row: Number of the first of these rows in the slice.
            rows: Rows of the row group; columns that are still in the file are read now.
            first: The first row to write.
            count: Number of rows to write.

        Raises:
            NotDecodedError: Arrow has to decode some columns, from these rows to the end of the row group; the rows
                have to be written again.
        """
        ...


class Closing(Protocol):
    """Tells workers that the engine is closing."""

    is_closing: bool


class Cursor:
    """A row group that is read forward, a slice at a time. Used by one thread at a time.

    The first slice opens the row group. It stays open until the call of `read_slice` with `is_last`, or until an error.

    Args:
        reader: Reads the row group.
        row_group: The row group.
        passing_rows: Number of its rows that pass the filter.
        batch_rows: About how many rows are decoded at a time; more if columns are left in the file.
        is_whole: Whether one slice has all rows.

    Attributes:
        location: The location of its bytes, set before the first slice is read; if None, it is found then, and the
            bytes are fetched if necessary.
        position: Number of rows read, counting rows that pass the filter.
        stored_bytes: Bytes in the file of its column chunks that are read; 0 before the first slice.
        is_closed: Whether no slice can be read any more.
    """

    def __init__(
        self,
        reader: RowGroupReader,
        row_group: RowGroupRef,
        passing_rows: int,
        batch_rows: int,
        *,
        is_whole: bool = False,
    ) -> None:
        self._reader = reader
        self._row_group = row_group
        self._passing_rows = passing_rows
        self._batch_rows = batch_rows
        self._is_whole = is_whole
        self._stream: Iterator[LazyRows] | None = None
        self._batch: LazyRows | None = None
        self._done = 0  # rows of the batch that were written
        self._refused: frozenset[str] = frozenset()
        self.location: ChunkLocation | None = None
        self.position = 0
        self.stored_bytes = 0
        self.is_closed = False

    def read_slice(self, start: int, stop: int, write: Writer, closing: Closing, *, is_last: bool) -> int:
        """Read rows ``start`` to ``stop``, counting rows that pass the filter; return the bytes kept for them.

        Rows before the slice are decoded too, because the number of rows in a page is known only from its header. At
        the end of the row group this checks that it has as many rows as its footer states, and that its file has not
        changed.

        Args:
            start, stop: The slice; `start` is at least `position`.
            write: Receives the rows.
            closing: Says when to end early; then the cursor stays open.
            is_last: Whether no other slice follows.

        Raises:
            DataError: the number of rows differs from the counted one; or see `RowGroupReader.stream`.
            SourceError: see `RowGroupReader.stream`.
        """
        kept_bytes, row = 0, start  # the next row to write
        try:
            while row < stop and not closing.is_closing:
                batch, first = self._open_batch(stop - row)
                is_wanted = self.position == row
                count = min(batch.rows - first, (stop if is_wanted else row) - self.position)
                if is_wanted and batch.at_once is not None:
                    count = min(count, batch.at_once)
                if is_wanted:
                    try:
                        kept_bytes += write(row - start, batch, first, count)
                    except NotDecodedError as error:
                        self._refused |= error.columns
                        self._begin()
                        continue
                    row += count
                self._done += count
                self.position += count
            if is_last and not closing.is_closing:
                self._end()
        except BaseException:
            self.close()
            raise
        return kept_bytes

    def _begin(self) -> None:
        """Begin at the first row, without the columns that kernels could not decode to the window."""
        self._release()
        self._stream = self._reader.lazy_batches(
            self._row_group, self._batch_rows, self.location, self._refused, is_whole=self._is_whole
        )
        self.position = 0

    def _open_batch(self, missing: int) -> tuple[LazyRows, int]:
        """Return a batch with rows that were not written yet, and how many of its rows were."""
        if self._stream is None:
            self._begin()
        while self._batch is None or self._done == self._batch.rows:
            assert self._stream is not None
            self._batch, self._done = next(self._stream, None), 0
            if self._batch is None:
                raise DataError(
                    f"{self._row_group.name}: the row group ended {missing} rows early; it changed after its rows were "
                    "counted: make a new loader to read it"
                )
            self.stored_bytes = self._batch.stored_bytes
        return self._batch, self._done

    def _end(self) -> None:
        """Close the row group; at its end, run the last checks before."""
        if self.position == self._passing_rows and self._stream is not None:
            has_more = self._batch is not None and self._done < self._batch.rows
            if has_more or any(batch.rows for batch in self._stream):
                raise DataError(
                    f"{self._row_group.name}: the row group holds more rows than were counted; it changed since: make "
                    "a new loader to read it"
                )
        self.close()

    def close(self) -> None:
        """Close the file and release buffers; idempotent."""
        self._release()
        self.location, self.is_closed = None, True

    def _release(self) -> None:
        if self._stream is not None:
            self._stream.close()  # type: ignore[attr-defined]
        self._stream = self._batch = None
        self._done = 0
