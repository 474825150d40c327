"""A file that is being written: invisible to readers, renamed into the store when complete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


class PendingFile:
    """A Parquet file that is being written. One thread at a time.

    Args:
        path: Its path while it is written, in the file system of the store.
        schema: Its columns.
        arguments: For `pyarrow.parquet.ParquetWriter`.
        metadata: Added to the footer.

    Attributes:
        rows, groups, bytes: Written so far.
    """

    def __init__(
        self, path: str, schema: pa.Schema, arguments: dict[str, Any], metadata: Mapping[bytes, bytes]
    ) -> None:
        self.path = path
        self.rows = 0
        self.groups = 0
        self.bytes = 0
        self._stream: Any = pa.OSFile(path, "wb")
        try:
            self._parquet: Any = pq.ParquetWriter(self._stream, schema, **arguments)
            self._parquet.add_key_value_metadata(dict(metadata))
        except BaseException:
            self._stream.close()
            raise

    def write(self, table: pa.Table) -> None:
        """Write the table as one row group."""
        self._parquet.write_table(table, row_group_size=max(1, table.num_rows))
        self.rows += table.num_rows
        self.groups += 1
        self.bytes = int(self._stream.tell())

    def finish(self, *, durable: bool) -> int:
        """Write the footer and close the file, on the disk if it is to be durable; return its bytes."""
        self._parquet.close()
        self._stream.close()
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if durable:
                os.fsync(descriptor)
            self.bytes = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        return self.bytes

    def discard(self) -> None:
        """Remove the file; never raises."""
        self._parquet.is_open = False  # else its destructor writes a footer
        with contextlib.suppress(OSError, pa.ArrowException):
            self._stream.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)
