"""Turns batches of any size into files of even row groups, for every writer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from parquet_loader.schema import Schema, iter_tables
from parquet_loader.write.column_layout import Layout, choose_layout
from parquet_loader.write.options import WriteOptions
from parquet_loader.write.os_errors import storage_errors
from parquet_loader.write.row_group_buffer import RowGroupBuffer
from parquet_loader.write.staging import StagedFile


class Packer:
    """Buffers rows, writes full row groups, and begins the next file when one is full.

    Memory: about one row group, and slices of the current batch. Belongs to one thread at a time. After an exception
    it cannot be used; its owner discards the files.

    Args:
        path: The data set, for error messages.
        schema: The schema of the columns; None infers it from the first batch.
        options: Sizes and codec.
        new_file: Returns the next file, not open yet.

    Attributes:
        schema: The schema of the columns, once known.
        rows: Rows written to files so far.
        added_rows: Rows added so far.
        bytes: Stored size of the finished files.
        files: The finished files, not published yet.
    """

    def __init__(
        self, path: str, schema: Schema | None, options: WriteOptions, new_file: Callable[[], StagedFile]
    ) -> None:
        self.schema = schema
        self.rows = 0
        self.added_rows = 0
        self.bytes = 0
        self.files: list[StagedFile] = []
        self._path = path
        self._options = options
        self._new_file = new_file
        self._buffer = RowGroupBuffer(options.group_bytes(1))
        self._layout: Layout | None = None
        self._file: StagedFile | None = None

    def write(self, batch: Any) -> None:
        """Add the rows of a batch of any form; afterwards the caller may reuse it.

        Raises:
            DataError, SchemaError: The batch does not fit the schema.
            WriteError: The file system refuses.
        """
        for table in iter_tables(batch, self.schema):
            if self.schema is None or self.schema.extra == "infer":
                self.schema = Schema.from_arrow(table.schema)
            self.add(table)
        self._buffer.own()

    def write_stored(self, table: pa.Table, layout: Layout) -> None:
        """Add a table in the stored form; the `layout` of the first table applies to all."""
        self._layout = self._layout or layout
        self.add(table)
        self._buffer.own()

    def add(self, table: pa.Table) -> None:
        """Add a table in the stored form without a copy, and write the full row groups."""
        if not self._buffer.rows:
            self._buffer = RowGroupBuffer(self._options.group_bytes(table.num_columns))
        self._buffer.add(table)
        self.added_rows += table.num_rows
        self._write_row_groups(last=False)

    def finish(self) -> None:
        """Write the buffered rows and finish the last file."""
        self._write_row_groups(last=True)
        self._finish_file()

    def write_empty_file(self, schema: Schema) -> None:
        """Write a file without rows, which tells readers the schema."""
        arrow = schema.arrow_schema()
        with storage_errors(self._path):
            self._file = self._open_file(arrow, choose_layout(arrow.empty_table(), self._options.compression))
        self._finish_file()

    def clear(self) -> None:
        """Drop the buffered rows."""
        self._buffer.clear()

    def _write_row_groups(self, *, last: bool) -> None:
        """Write the row groups that are full; with `last`, also the remaining rows."""
        while (table := self._buffer.peek(last=last)) is not None:
            self._buffer.pop()
            self._write_row_group(table)

    def _write_row_group(self, table: pa.Table) -> None:
        if self._layout is None:
            self._layout = choose_layout(table, self._options.compression)
        with storage_errors(self._path):
            self._file = self._file or self._open_file(table.schema, self._layout)
            self._file.write(table)
        self.rows += table.num_rows
        if self._file.bytes >= int(self._options.file_bytes):
            self._finish_file()

    def _open_file(self, schema: pa.Schema, layout: Layout) -> StagedFile:
        file = self._new_file()
        file.open(schema, layout.writer_arguments())
        return file

    def _finish_file(self) -> None:
        if self._file is None:
            return
        with storage_errors(self._path):
            self._file.finish()
        self.files.append(self._file)
        self.bytes += self._file.bytes
        self._file = None
