"""`DatasetWriter` and `write_dataset`: batches of any form to a directory of Parquet files."""

from __future__ import annotations

import os
import warnings
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pyarrow.fs as pafs

from parquet_loader.common import WRITER_KEYWORDS, PathLike, explains_keywords, named, resolve
from parquet_loader.errors import ConfigurationError, SchemaError, WriteError
from parquet_loader.schema import Schema, check_schema
from parquet_loader.write.options import WriteOptions
from parquet_loader.write.os_errors import storage_errors
from parquet_loader.write.packer import Packer
from parquet_loader.write.publication import Publication
from parquet_loader.write.target import WriteMode, check_target


@dataclass(frozen=True, slots=True)
class WriteSummary:
    """The files that a writer published.

    Attributes:
        files: Paths of the new files within the file system of the target. For a URL they have no scheme, and none of
            its options, which may be keys: ``ParquetDataset(list(files), filesystem=...)`` reads them.
        rows: Rows in them.
        bytes: Their size as stored.
    """

    files: tuple[str, ...]
    rows: int
    bytes: int


class DatasetWriter:
    """Writes a data set: a directory of Parquet files with row groups of even size, published all at once.

    Readers see nothing before `close`; then each file appears as a whole. After an exception in the ``with`` body, or
    in any method, nothing is published and the written files are removed. A killed process leaves hidden files
    (``.part-*.tmp``, or ``.<name>-*.tmp`` next to the directory), which readers skip and which may be deleted.

    Memory: about one row group, and slices of the current batch; a batch may be reused or changed after `write`.

    Threads: a writer belongs to one thread at a time, and to the process that made it. Several writers may append to
    one directory at the same time, from any number of processes or machines.

    Args:
        path: Directory of the data set, local or a URL; created if necessary.
        schema: The schema of the columns; None takes the schema of existing files (``mode="append"``), or infers it
            from the first batch (see `parquet_loader.schema.to_table`).
        mode: ``"error"`` refuses a directory that is not empty, also if another writer has published files in it by
            the time of `close`. ``"append"`` adds files to the existing ones, which must have the same schema.
            ``"overwrite"`` replaces the directory by the new files when the writer is closed: on Linux, on a local file
            system, in one atomic exchange of two directories; elsewhere by two renames (a kill between them leaves the
            old directory next to it, as ``.<name>-*.tmp.old``). On object stores and mount points the new files appear
            one by one, and the old ones are deleted afterwards, so a reader that lists in between, or after a failed
            delete, sees both. Directories with other files than Parquet are refused.
        options: Sizes and codec.
        filesystem: A `pyarrow.fs.FileSystem`; `path` is then a path within it.

    Raises:
        WriteError: The directory is not empty, not replaceable, or the file system refuses.
        SchemaError: The existing files have another schema, or a batch does not fit the schema.
        DataError: A value does not fit its field; the message names field, row within the batch and value.

    Example:
        >>> with DatasetWriter("train", schema) as writer:
        ...     for batch in simulate():
        ...         writer.write(batch)
    """

    @explains_keywords(WRITER_KEYWORDS)
    def __init__(
        self,
        path: PathLike,
        schema: Schema | None = None,
        *,
        mode: WriteMode = "error",
        options: WriteOptions | None = None,
        filesystem: pafs.FileSystem | None = None,
    ) -> None:
        if not isinstance(path, str | os.PathLike):
            raise ConfigurationError(
                f"path is {named(path)}; expected a str or os.PathLike, as in write_dataset(data, path)"
            )
        check_schema(schema)
        if mode not in ("error", "append", "overwrite"):
            raise ConfigurationError(f"mode={mode!r}: expected 'error', 'append' or 'overwrite'")
        self.options = options or WriteOptions()
        self._filesystem, self.path = resolve(path, filesystem)
        with storage_errors(self.path):
            self.schema, self._extends = check_target(self._filesystem, self.path, mode, schema)
            self._publication = Publication(self._filesystem, self.path, mode)
        self._packer = Packer(self.path, self.schema, self.options, self._publication.new_file)
        self._finalizer = weakref.finalize(self, _forgotten, self._publication, self._packer, self.path, os.getpid())
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
        return f"DatasetWriter({self.path!r}, {state}, {self._packer.rows} rows)"

    def write(self, batch: Any) -> None:
        """Add rows: a dict of columns, row dicts, Arrow data, a frame, or an iterable of rows or of any of these.

        Args:
            batch: As in `write_dataset`; readers and iterables are consumed in parts.

        Raises:
            DataError, SchemaError: The batch does not fit the schema.
            WriteError: The file system refuses (a full disk), or the writer is closed or aborted.
        """
        self._check_open()
        try:
            self._packer.write(batch)
            self.schema = self._packer.schema
        except BaseException:
            self.abort()
            raise

    @property
    def rows(self) -> int:
        """Rows added so far."""
        return self._packer.added_rows

    def close(self) -> WriteSummary:
        """Write the buffered rows, publish all files, and return a summary; a second call returns it again.

        Raises:
            WriteError: The file system refuses, or with ``mode="error"`` another writer has published files in the
                directory; nothing was published.
            UnfinishedCommitError: With ``mode="overwrite"``, the new files are published, but old ones could not be
                deleted; or some new files are published and could not be removed.
            SchemaError: Nothing was written, and without a schema there can be no empty file.
        """
        if self._summary is not None:
            return self._summary
        self._check_open()
        try:
            self._packer.finish()
            if self._packer.rows == 0 and not self._extends:
                self._packer.write_empty_file(self._known_schema())
            with storage_errors(self.path):
                files = self._publication.commit()
        except BaseException:
            self.abort()
            raise
        self._finalizer.detach()
        self._summary = WriteSummary(tuple(files), self._packer.rows, self._packer.bytes)
        return self._summary

    def abort(self) -> None:
        """Remove all written files and publish nothing; does nothing after `close`."""
        if self._summary is not None:
            return
        self._is_aborted = True
        self._packer.clear()
        if self._finalizer.detach() is not None:
            self._publication.discard()

    def _known_schema(self) -> Schema:
        if self.schema is None:
            raise SchemaError(f"{self.path}: nothing was written, and there is no schema; pass schema=")
        return self.schema

    def _check_open(self) -> None:
        if self._is_aborted:
            what = "its files are published" if self._publication.is_published else "nothing was published"
            raise WriteError(f"{self.path}: the writer was aborted by an error or by abort(); {what}")
        if self._summary is not None:
            raise WriteError(f"{self.path}: the writer is closed; mode='append' in a new one adds rows")


def _forgotten(publication: Publication, packer: Packer, path: str, pid: int) -> None:
    """Remove the files of a writer that nobody closed, and warn that its rows are lost."""
    publication.discard()
    if packer.added_rows and os.getpid() == pid:
        warnings.warn(
            f"{path}: the writer was never closed, and its {packer.added_rows:,} rows are lost; close() or the end of "
            "a with block publishes them",
            RuntimeWarning,
            stacklevel=2,
        )


@explains_keywords(WRITER_KEYWORDS)
def write_dataset(
    data: Any,
    path: PathLike,
    schema: Schema | None = None,
    *,
    mode: WriteMode = "error",
    options: WriteOptions | None = None,
    filesystem: pafs.FileSystem | None = None,
) -> WriteSummary:
    """Write `data` as a data set and return a summary.

    Args:
        data: A dict of columns, a list of row dicts, a pandas or Polars frame, Arrow data, a `datasets.Dataset`, or an
            iterable: of row dicts, or of any of these. An iterable is never held as a whole. A dict that an iterable
            yields is a row if any of its values cannot be a column. For a dict of lists or arrays the schema decides;
            without a schema it is refused.
        path: Directory of the data set, local or a URL.
        schema: The schema of the columns.
        mode: ``"error"``, ``"append"`` or ``"overwrite"``; this and the others as in `DatasetWriter`.
        options: Sizes and codec.
        filesystem: A `pyarrow.fs.FileSystem`.

    Raises:
        WriteError, SchemaError, DataError: As in `DatasetWriter`; nothing is published then.
    """
    with DatasetWriter(path, schema, mode=mode, options=options, filesystem=filesystem) as writer:
        writer.write(data)
    return writer.close()
