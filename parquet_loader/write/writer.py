"""`DatasetWriter` and `write_dataset`: batches of any form to a directory of Parquet files."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

import pyarrow as pa

from parquet_loader.errors import ConfigurationError, SchemaError, WriteError
from parquet_loader.filesystem import PathLike, resolve
from parquet_loader.schema import Schema
from parquet_loader.schema.encode import iter_tables
from parquet_loader.write.layout import Layout, choose_layout
from parquet_loader.write.options import WriteOptions
from parquet_loader.write.publish import Publication, storage_errors
from parquet_loader.write.staging import StagedFile
from parquet_loader.write.target import (
    check_appendable,
    check_new,
    check_replaceable,
    existing_schema,
    listing,
    parquet_files,
)

WriteMode = Literal["error", "append", "overwrite"]


@dataclass(frozen=True, slots=True)
class WriteSummary:
    """What a writer published.

    Attributes:
        files: Paths of the new files.
        rows: Rows in them.
        bytes: Their size as stored.
    """

    files: tuple[str, ...]
    rows: int
    bytes: int


class DatasetWriter:
    """Writes a data set: a directory of Parquet files with row groups of even size, published all at once.

    Nothing is seen by readers before `close`; then each file appears whole. An exception in the ``with`` body, or in
    any method, publishes nothing and removes what was written. A process that is killed leaves hidden files behind
    (``.part-*.tmp``, or ``.<name>-*.tmp`` beside the directory), which readers skip and which may be deleted.

    Memory: about one row group, and the batch at hand in slices; a batch may be reused or changed after `write`.

    Threads: a writer belongs to one thread at a time, and to the process that made it. Several writers may append to
    one directory at the same time, from any number of processes or machines.

    Args:
        path: Directory of the data set, local or a URL; created if need be.
        schema: What the columns mean; None takes that of the files there (``mode="append"``), or infers it from the
            first batch (see `parquet_loader.schema.encode.to_table`).
        mode: ``"error"`` refuses a directory that is not empty. ``"append"`` adds files to those there, which must
            have the same schema. ``"overwrite"`` replaces the directory by the new files when the writer is closed:
            on Linux, on a local file system, in one atomic exchange of two directories; elsewhere by two renames; on
            object stores and mount points the new files appear one by one and the old ones are deleted after, so that
            a reader that lists in between sees both. It refuses directories that hold anything but Parquet files.
        options: Sizes and codec.
        filesystem: A `pyarrow.fs.FileSystem`; `path` is then a path within it.

    Raises:
        WriteError: the directory is not empty, not replaceable, or the file system refuses.
        SchemaError: appending to files of another schema, or a batch that does not fit the schema.
        DataError: a value that does not fit its field; field, row within the batch and value are named.

    Example:
        >>> with DatasetWriter("train", schema) as writer:
        ...     for batch in simulate():
        ...         writer.write(batch)
    """

    def __init__(
        self,
        path: PathLike,
        schema: Schema | None = None,
        *,
        mode: WriteMode = "error",
        options: WriteOptions | None = None,
        filesystem: Any = None,
    ) -> None:
        if schema is not None and not isinstance(schema, Schema):
            raise ConfigurationError(f"schema={schema!r:.60}: expected a Schema or None")
        if mode not in ("error", "append", "overwrite"):
            raise ConfigurationError(f"mode={mode!r}: expected 'error', 'append' or 'overwrite'")
        self.options = options or WriteOptions()
        self.schema = schema
        self._filesystem, self.path = resolve(path, filesystem)
        self._there: tuple[pa.Schema, str] | None = None
        with storage_errors(self.path):
            self._check_target(mode)
            self._publication = Publication(self._filesystem, self.path, replace=mode == "overwrite")
        self._finalizer = weakref.finalize(self, self._publication.discard)
        self._rows = 0
        self._bytes = 0
        self._buffer: list[pa.Table] = []
        self._owned_tables = 0
        self._buffered_bytes = 0
        self._layout: Layout | None = None
        self._file: StagedFile | None = None
        self._summary: WriteSummary | None = None
        self._is_aborted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __repr__(self) -> str:
        state = "aborted" if self._is_aborted else "closed" if self._summary else "open"
        return f"DatasetWriter({self.path!r}, {state}, {self._rows} rows)"

    def write(self, batch: Any) -> None:
        """Add rows: a dict of columns, row dicts, Arrow data, a frame, or an iterator or reader of any of these.

        Args:
            batch: See `parquet_loader.schema.encode.to_table`; readers and iterators are consumed a piece at a time.

        Raises:
            DataError, SchemaError: the batch does not fit the schema.
            WriteError: the file system refuses (a full disk), or the writer is closed or aborted.
        """
        self._check_open()
        try:
            for table in iter_tables(batch, self.schema):
                if self.schema is None:
                    self.schema = Schema.from_arrow(table.schema)
                self._add(table)
            # What waits for the rest of its row group must neither change with the caller's arrays, nor keep all of
            # a large batch alive.
            self._buffer[self._owned_tables :] = [_owned(table) for table in self._buffer[self._owned_tables :]]
            self._owned_tables = len(self._buffer)
        except BaseException:
            self.abort()
            raise

    def close(self) -> WriteSummary:
        """Write what is buffered, publish all files, and say what was published; again, it only says it again.

        Raises:
            WriteError: the file system refuses; nothing was published.
            SchemaError: nothing was written and there is no schema to write an empty file with.
        """
        if self._summary is not None:
            return self._summary
        self._check_open()
        try:
            self._flush()
            if self._rows == 0 and self._there is None:
                self._write_empty_file()
            with storage_errors(self.path):
                self._finish_file()
                files = self._publication.commit()
        except BaseException:
            self.abort()
            raise
        self._finalizer.detach()
        self._summary = WriteSummary(tuple(files), self._rows, self._bytes)
        return self._summary

    def abort(self) -> None:
        """Remove all that was written and publish nothing; does nothing after `close`."""
        if self._summary is not None:
            return
        self._is_aborted = True
        self._buffer = []
        self._finalizer()

    def _check_target(self, mode: WriteMode) -> None:
        found = listing(self._filesystem, self.path)
        if mode == "error":
            check_new(found, self.path)
        elif mode == "overwrite":
            check_replaceable(found, self.path)
        else:
            files = parquet_files(found, self.path)
            if files:
                self._there = existing_schema(self._filesystem, files[0]), files[0]
                self.schema = self.schema or Schema.from_arrow(self._there[0])
                check_appendable(self.schema, *self._there)

    def _check_open(self) -> None:
        if self._is_aborted:
            raise WriteError(f"{self.path}: the writer was aborted by an error or by abort(); nothing was published")
        if self._summary is not None:
            raise WriteError(f"{self.path}: the writer is closed; mode='append' in a new one adds rows")

    def _add(self, table: pa.Table) -> None:
        """Buffer a table, and write the row groups that are full."""
        goal = int(self.options.row_group_bytes)
        while table.num_rows:
            row_bytes = max(1.0, table.nbytes / table.num_rows)
            rows = max(0 if self._buffer else 1, int((goal - self._buffered_bytes) / row_bytes))
            head, table = table.slice(0, rows), table.slice(rows)
            if head.num_rows:
                self._buffer.append(head)
                self._buffered_bytes += head.nbytes
            if table.num_rows or self._buffered_bytes >= goal:
                self._flush()

    def _flush(self) -> None:
        """Write the buffer as one row group."""
        if not self._buffer:
            return
        table = pa.concat_tables(self._buffer)
        self._buffer, self._buffered_bytes, self._owned_tables = [], 0, 0
        if self._layout is None:
            self._layout = choose_layout(table, self.options.compression)
        with storage_errors(self.path):
            self._file = self._file or self._new_file(table.schema, self._layout)
            written = self._file.write(table)
            self._rows += table.num_rows
            if written >= int(self.options.file_bytes):
                self._finish_file()

    def _new_file(self, schema: pa.Schema, layout: Layout) -> StagedFile:
        file = self._publication.new_file()
        file.open(schema, layout.writer_arguments())
        return file

    def _finish_file(self) -> None:
        if self._file is not None:
            self._bytes += self._file.finish()
            self._file = None

    def _write_empty_file(self) -> None:
        if self.schema is None:
            raise SchemaError(f"{self.path}: nothing was written, and there is no schema; pass schema=")
        schema = self.schema.arrow_schema()
        with storage_errors(self.path):
            self._file = self._new_file(schema, choose_layout(schema.empty_table(), self.options.compression))


def write_dataset(
    data: Any,
    path: PathLike,
    schema: Schema | None = None,
    *,
    mode: WriteMode = "error",
    options: WriteOptions | None = None,
    filesystem: Any = None,
) -> WriteSummary:
    """Write `data` as a data set and say what was written.

    Args:
        data: A dict of columns, row dicts, Arrow data, a frame, or an iterator or reader of any of these, which is
            never held as a whole.
        path: Directory of the data set, local or a URL.
        schema: What the columns mean.
        mode: ``"error"``, ``"append"`` or ``"overwrite"``; this and the others as in `DatasetWriter`.
        options: Sizes and codec.
        filesystem: A `pyarrow.fs.FileSystem`.

    Raises:
        WriteError, SchemaError, DataError: as in `DatasetWriter`; nothing is published then.
    """
    with DatasetWriter(path, schema, mode=mode, options=options, filesystem=filesystem) as writer:
        writer.write(data)
    return writer.close()


def _owned(table: pa.Table) -> pa.Table:
    """Return a copy that shares no memory with the caller and holds no more than its rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()
