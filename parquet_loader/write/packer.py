"""From batches of any size to files of even row groups: what every writer does between its input and its storage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from parquet_loader.schema import Schema
from parquet_loader.schema.encode import iter_tables
from parquet_loader.write.layout import ColumnLayout, Layout, choose_layout
from parquet_loader.write.options import WriteOptions
from parquet_loader.write.publish import storage_errors
from parquet_loader.write.staging import StagedFile


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A finished file, not published yet.

    Attributes:
        file: Where it is.
        rows: Its rows.
        bytes: Its size as stored.
        decoded_bytes: The size of its rows in memory.
    """

    file: StagedFile
    rows: int
    bytes: int
    decoded_bytes: int


class Packer:
    """Buffers rows, writes full row groups, and begins the next file when one is full.

    Memory: about one row group, and the batch at hand in slices. Belongs to one thread at a time. After an exception
    it is of no further use; whoever made its files discards them.

    Args:
        path: The data set, for errors.
        schema: What the columns mean; None infers it from the first batch.
        options: Sizes and codec.
        new_file: Returns the next file, not open yet.

    Attributes:
        schema: What the columns mean, once known.
        rows: Rows in files so far.
        bytes: Size of the finished files as stored.
        files: The finished files.
    """

    def __init__(
        self, path: str, schema: Schema | None, options: WriteOptions, new_file: Callable[[], StagedFile]
    ) -> None:
        self.schema = schema
        self.rows = 0
        self.bytes = 0
        self.files: list[PackedFile] = []
        self._path = path
        self._options = options
        self._new_file = new_file
        self._buffer: list[pa.Table] = []
        self._owned_tables = 0
        self._buffered_bytes = 0
        self._layout: Layout | ColumnLayout | None = None
        self._file: StagedFile | None = None
        self._file_rows = 0
        self._file_decoded_bytes = 0

    def write(self, batch: Any) -> None:
        """Add the rows of a batch of any form; afterwards the caller may reuse it.

        Raises:
            DataError, SchemaError: the batch does not fit the schema.
            WriteError: the file system refuses.
        """
        for table in iter_tables(batch, self.schema):
            if self.schema is None:
                self.schema = Schema.from_arrow(table.schema)
            self.add(table)
        self._own_buffer()

    def write_stored(self, table: pa.Table, layout: ColumnLayout) -> None:
        """Add a table in the stored form; its columns are stored as `layout` says, from the first table on."""
        self._layout = self._layout or layout
        self.add(table)
        self._own_buffer()

    def add(self, table: pa.Table) -> None:
        """Add a table in the stored form, and write the row groups that are full; it is kept, not copied."""
        goal = int(self._options.row_group_bytes)
        while table.num_rows:
            row_bytes = max(1.0, table.nbytes / table.num_rows)
            rows = max(0 if self._buffer else 1, int((goal - self._buffered_bytes) / row_bytes))
            head, table = table.slice(0, rows), table.slice(rows)
            if head.num_rows:
                self._buffer.append(head)
                self._buffered_bytes += head.nbytes
            if table.num_rows or self._buffered_bytes >= goal:
                self._flush()

    def finish(self) -> None:
        """Write what is buffered and finish the last file."""
        self._flush()
        self._finish_file()

    def write_empty_file(self, schema: Schema) -> None:
        """Write a file without rows, which tells readers the schema."""
        arrow = schema.arrow_schema()
        with storage_errors(self._path):
            self._file = self._open_file(arrow, choose_layout(arrow.empty_table(), self._options.compression))
        self._finish_file()

    def clear(self) -> None:
        """Let go of what is buffered."""
        self._buffer, self._buffered_bytes, self._owned_tables = [], 0, 0

    def _own_buffer(self) -> None:
        """What waits for the rest of its row group must not change with the caller's arrays, nor keep a batch alive."""
        self._buffer[self._owned_tables :] = [_owned(table) for table in self._buffer[self._owned_tables :]]
        self._owned_tables = len(self._buffer)

    def _flush(self) -> None:
        """Write the buffer as one row group."""
        if not self._buffer:
            return
        table = pa.concat_tables(self._buffer)
        self.clear()
        if self._layout is None:
            self._layout = choose_layout(table, self._options.compression)
        with storage_errors(self._path):
            self._file = self._file or self._open_file(table.schema, self._layout)
            written = self._file.write(table)
        self.rows += table.num_rows
        self._file_rows += table.num_rows
        self._file_decoded_bytes += table.nbytes
        if written >= int(self._options.file_bytes):
            self._finish_file()

    def _open_file(self, schema: pa.Schema, layout: Layout | ColumnLayout) -> StagedFile:
        file = self._new_file()
        file.open(schema, layout.writer_arguments())
        return file

    def _finish_file(self) -> None:
        if self._file is None:
            return
        with storage_errors(self._path):
            size = self._file.finish()
        self.files.append(PackedFile(self._file, self._file_rows, size, self._file_decoded_bytes))
        self.bytes += size
        self._file, self._file_rows, self._file_decoded_bytes = None, 0, 0


def _owned(table: pa.Table) -> pa.Table:
    """Return a copy that shares no memory with the caller and holds no more than its rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()
