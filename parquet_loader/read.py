"""One row group from its file to canonical columns: whole, or a slice at a time by a streaming cursor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.columns import Column
from parquet_loader.decode import Decoder, Place
from parquet_loader.errors import DataError, ParquetLoaderError, SourceError
from parquet_loader.filesystem import is_local
from parquet_loader.filters import RowFilter
from parquet_loader.options import ReadOptions
from parquet_loader.snapshot import Snapshot
from parquet_loader.source import changed_since

# Column chunks are read through a buffer of this size instead of whole, so that what a read holds beside its rows is
# pages; measured no slower than whole chunks from the page cache.
BUFFER_BYTES = 1 << 16

# No file's column: what its rows are called on their way through the filter.
_ROW_NUMBER = "\0row number"

_READ_ERRORS = (pa.ArrowException, OSError, ValueError, OverflowError, RuntimeError)


class Reader:
    """Reads row groups of a snapshot. Stateless but for the snapshot's footers; any thread may use it.

    Args:
        snapshot: What there is.
        decoders: One for each of the snapshot's schemas.
        row_filter: Which rows to keep; None: all.
        options: How to read.
        row_numbers: Name of a column of rows' numbers in the data set to deliver beside the others, or None.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        decoders: Sequence[Decoder],
        row_filter: RowFilter | None,
        options: ReadOptions,
        row_numbers: str | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._decoders = decoders
        self._filter = row_filter
        self._options = options
        self.columns = decoders[0].columns
        self._row_numbers = row_numbers
        self._first_rows = snapshot.first_rows if row_numbers is not None else None
        if row_numbers is not None:
            self.columns += (Column(row_numbers, "fixed", pa.int64(), np.dtype(np.int64)),)

    def read(self, row_group: int) -> tuple[pa.Table, int]:
        """Return one row group's canonical rows that pass the filter, and the bytes read from the file.

        Raises:
            DataError: the data cannot be decoded or delivered; names file, row group and column.
            SourceError: the file has vanished or changed since its footer was read.
        """
        columns = self._file_columns(row_group)
        try:
            if columns:
                with self._open(row_group) as file:
                    number = int(self._snapshot.row_group_number[row_group])
                    table = file.read_row_group(number, columns=columns, use_threads=False)
            else:
                table = _rows_without_columns(int(self._snapshot.row_group_rows[row_group]))
        except _READ_ERRORS as error:
            raise self._explained(row_group, columns, error) from error
        self._check_rows(row_group, len(table))
        self._check_unchanged(row_group)
        return self._canonical(row_group, table, 0), self.encoded_bytes(row_group, columns)

    def empty_table(self) -> pa.Table:
        """Return a canonical table without rows."""
        return pa.schema([(c.name, c.arrow_type) for c in self.columns]).empty_table()

    def stream(self, row_group: int, batch_rows: int) -> Iterator[pa.Table]:
        """Yield one row group's canonical rows that pass the filter, about `batch_rows` file rows at a time.

        Each step decodes only the pages it needs. Raises as `read` does.
        """
        columns = self._file_columns(row_group)
        first_row = 0
        try:
            with self._open(row_group) as file:
                number = int(self._snapshot.row_group_number[row_group])
                for batch in file.iter_batches(batch_rows, row_groups=[number], columns=columns, use_threads=False):
                    yield self._canonical(row_group, pa.Table.from_batches([batch]), first_row)
                    first_row += len(batch)
        except ParquetLoaderError:
            raise
        except _READ_ERRORS as error:
            raise self._explained(row_group, columns, error) from error
        self._check_rows(row_group, first_row)
        self._check_unchanged(row_group)

    def count(self, row_group: int, batch_rows: int = 65536) -> int:
        """Return how many rows of a row group pass the filter, reading only the filter's columns. Raises as `read`."""
        rows = int(self._snapshot.row_group_rows[row_group])
        if self._filter is None:
            return rows
        columns = self._file_columns(row_group, decoded=False)
        if not columns:
            one = self._with_partitions(row_group, _rows_without_columns(1))
            return rows * len(self._filter.apply(one))
        passing, read = 0, 0
        try:
            with self._open(row_group) as file:
                number = int(self._snapshot.row_group_number[row_group])
                for batch in file.iter_batches(batch_rows, row_groups=[number], columns=columns, use_threads=False):
                    table = self._with_partitions(row_group, pa.Table.from_batches([batch]))
                    passing += len(self._filter.apply(table))
                    read += len(batch)
        except _READ_ERRORS as error:
            raise self._explained(row_group, columns, error) from error
        self._check_rows(row_group, read)
        return passing

    def encoded_bytes(self, row_group: int, columns: Sequence[str] | None = None) -> int:
        """Return the bytes that the columns of a row group take in the file."""
        wanted = self._file_columns(row_group) if columns is None else columns
        footer = self._snapshot.footers.get(int(self._snapshot.row_group_file[row_group]))
        group = footer.row_group(int(self._snapshot.row_group_number[row_group]))
        chunks = (group.column(i) for i in range(group.num_columns))
        by_path = {chunk.path_in_schema: chunk.total_compressed_size for chunk in chunks}
        return sum(by_path[path] for path in _selected(list(by_path), wanted))

    def column_chunks(self, row_groups: Iterable[int]) -> int:
        """Return how many column chunks reading these row groups touches."""
        total, by_schema = 0, dict[int, int]()
        for row_group in row_groups:
            file = int(self._snapshot.row_group_file[row_group])
            schema = int(self._snapshot.file_schema[file])
            if schema not in by_schema:
                footer = self._snapshot.footers.get(file)
                paths = [footer.schema.column(i).path for i in range(footer.num_columns)]
                wanted = _selected(paths, self._file_columns(row_group))
                by_schema[schema] = len(wanted)
            total += by_schema[schema]
        return total

    def _decoder(self, row_group: int) -> Decoder:
        return self._decoders[int(self._snapshot.file_schema[self._snapshot.row_group_file[row_group]])]

    def _file_columns(self, row_group: int, *, decoded: bool = True) -> list[str]:
        """Return the names to ask the Parquet reader for."""
        file = int(self._snapshot.row_group_file[row_group])
        columns = dict.fromkeys(self._decoder(row_group).read_columns if decoded else ())
        if self._filter is not None:
            own = self._snapshot.schema_of(file).names
            columns |= dict.fromkeys(name for name in self._filter.columns if name in own)
        return list(columns)

    def _open(self, row_group: int) -> pq.ParquetFile:
        file = int(self._snapshot.row_group_file[row_group])
        local = is_local(self._snapshot.filesystem)
        return pq.ParquetFile(
            self._snapshot.files[file].path,
            filesystem=self._snapshot.filesystem,
            metadata=self._snapshot.footers.get(file),
            pre_buffer=not local,
            memory_map=local and self._options.memory_map,
            buffer_size=BUFFER_BYTES if local and not self._options.memory_map else 0,
            page_checksum_verification=self._options.verify_checksums,
        )

    def _canonical(self, row_group: int, table: pa.Table, first_row: int) -> pa.Table:
        name = self._snapshot.describe(row_group)
        file = int(self._snapshot.row_group_file[row_group])
        if self._first_rows is not None:
            first_number = int(self._first_rows[row_group]) + first_row
            table = table.append_column(_ROW_NUMBER, pa.array(np.arange(first_number, first_number + len(table))))
        if self._filter is not None:
            table = self._filter.apply(self._with_partitions(row_group, table))
            name, first_row = f"{name} (rows that pass the filter)", 0
        decoded = self._decoder(row_group).decode(table, self._snapshot.partition_values(file), Place(name, first_row))
        if self._row_numbers is None:
            return decoded
        return decoded.append_column(self._row_numbers, table.column(_ROW_NUMBER))

    def _with_partitions(self, row_group: int, table: pa.Table) -> pa.Table:
        file = int(self._snapshot.row_group_file[row_group])
        for name, value in self._snapshot.partition_values(file).items():
            if name not in table.column_names:
                table = table.append_column(name, pa.repeat(value, len(table)))
        return table

    def _check_rows(self, row_group: int, found: int) -> None:
        expected = int(self._snapshot.row_group_rows[row_group])
        if found != expected:
            raise DataError(
                f"{self._snapshot.describe(row_group)}: the footer says {expected} rows, the pages hold {found}; "
                "the file is damaged"
            )

    def _check_unchanged(self, row_group: int) -> None:
        file = self._snapshot.files[int(self._snapshot.row_group_file[row_group])]
        changed = changed_since(self._snapshot.filesystem, file)
        if changed:
            raise SourceError(f"{self._snapshot.describe(row_group)}: the file {changed}; make a new loader to read it")

    def _explained(self, row_group: int, columns: Sequence[str], error: Exception) -> Exception:
        """Say which column a failed read is about, or that the file is not the one whose footer was read."""
        if isinstance(error, ParquetLoaderError):
            return error
        try:
            self._check_unchanged(row_group)
        except SourceError as changed:
            return changed
        number = int(self._snapshot.row_group_number[row_group])
        culprit = ""
        for column in columns if len(columns) > 1 else ():
            try:
                with self._open(row_group) as file:
                    file.read_row_group(number, columns=[column], use_threads=False)
            except _READ_ERRORS as narrower:
                culprit, error = column, narrower
                break
        if len(columns) == 1:
            culprit = columns[0]
        reason = "".join(c if c.isprintable() else "?" for c in str(error).split("\n")[0])
        where = self._snapshot.describe(row_group) + (f", column {culprit!r}" if culprit else "")
        return DataError(f"{where}: the data cannot be decoded: {reason}; on_error='skip' leaves such row groups out")


def _selected(paths: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the leaf columns that the Parquet reader takes for these names."""
    exact, below = {*names}, tuple(f"{name}." for name in names)
    return [path for path in paths if path in exact or path.startswith(below)]


def _rows_without_columns(rows: int) -> pa.Table:
    """Return a table of rows for a file none of whose columns is needed."""
    return pa.table({"": pa.nulls(rows)})


class Cursor:
    """A row group held open, read forward a slice at a time. Used by one thread at a time."""

    def __init__(self, reader: Reader, row_group: int, batch_rows: int) -> None:
        self._stream = reader.stream(row_group, batch_rows)
        self._left: pa.Table | None = None
        self.position = 0

    def take(self, rows: int) -> list[pa.Table]:
        """Return the next `rows` canonical rows, as tables of any size."""
        pieces: list[pa.Table] = []
        needed = rows
        while needed:
            table = self._left if self._left is not None else next(self._stream, None)
            if table is None:
                raise DataError(f"a row group ended {needed} rows early: it changed since its rows were counted")
            taken, self._left = table.slice(0, needed), None
            if len(table) > needed:
                self._left = table.slice(needed)
            if len(taken):
                pieces.append(taken)
            needed -= len(taken)
        self.position += rows
        return pieces

    def finish(self) -> None:
        """Read to the end of the row group, which checks that its rows were those the footer promised, and close."""
        if any(len(table) for table in self._stream):
            raise DataError("a row group holds more rows than were counted: it changed since")
        self.close()

    def close(self) -> None:
        """Close the file and let go of what is buffered."""
        self._stream.close()  # type: ignore[attr-defined]
        self._left = None
