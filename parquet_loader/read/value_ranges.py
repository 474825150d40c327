"""Finds the byte ranges of values that stay in the file, by row group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from parquet_loader.common import is_local, system_error
from parquet_loader.decode import packed_ranges
from parquet_loader.errors import DataError, RemoteError
from parquet_loader.source import MetadataError, ReadableChunk, RowGroupRef, Snapshot, archive_lock

# Least bytes of a read, because values may be small and close together.
_LOCAL_BLOCK_BYTES = 2**12
_REMOTE_BLOCK_BYTES = 2**16


class ValueRanges:
    """Finds the values of columns that stay in the file. Any thread may use it.

    Args:
        snapshot: The row groups.
        columns_of: For each schema of the snapshot, the file's column by the name of the column of its ranges.
    """

    def __init__(self, snapshot: Snapshot, columns_of: Sequence[Mapping[str, str]]) -> None:
        self._snapshot = snapshot
        self._columns_of = columns_of

    def of(self, row_group: RowGroupRef) -> dict[str, pa.Array]:
        """Return columns of packed `ValueRange`, for all rows of a row group in the file.

        Raises:
            DataError: the values of a column have no byte ranges, or their pages are damaged.
            RemoteError: a store failed.
            OSError: a local file cannot be read.
        """
        columns = self._columns_of[row_group.schema_number]
        if not columns:
            return {}
        snapshot, file, found = self._snapshot, row_group.file, dict[str, pa.Array]()
        footer = snapshot.footer_of(row_group, tuple(columns.values()), chunks=True, arrow=False)
        is_near = is_local(snapshot.filesystem)
        try:
            with archive_lock(snapshot.filesystem), snapshot.filesystem.open_input_file(file.path) as opened:
                peek = _Peek(opened, file.size_bytes, _LOCAL_BLOCK_BYTES if is_near else _REMOTE_BLOCK_BYTES)
                for name, column in columns.items():
                    (chunk,) = footer.chunks[column]
                    found[name] = pa.array(_packed(peek, chunk, row_group, column), pa.binary())
        except OSError as error:
            if is_near:
                raise
            raise system_error(row_group.name, error) or RemoteError(f"{row_group.name}: {error}") from error
        return found

    def empty(self, row_group: RowGroupRef) -> dict[str, pa.Array]:
        """Return the same columns without rows."""
        return dict.fromkeys(self._columns_of[row_group.schema_number], pa.array([], pa.binary()))


def _packed(peek: _Peek, chunk: ReadableChunk | MetadataError, row_group: RowGroupRef, column: str) -> list[bytes]:
    try:
        if isinstance(chunk, MetadataError):
            raise chunk
        return packed_ranges(peek, chunk, row_group.rows, row_group.file)
    except ValueError as error:
        raise DataError(
            f"{row_group.name}, column {column!r}: ranges=True cannot read parts of its values: {error}; leave ranges "
            "out to read whole values"
        ) from None


class _Peek:
    """Reads few bytes of a file at a time, forward.

    Args:
        file: The file.
        size: Its bytes.
        block_bytes: Bytes that are read at least.
    """

    def __init__(self, file: Any, size: int, block_bytes: int) -> None:
        self._file, self._size, self._block_bytes = file, size, block_bytes
        self._start, self._data = 0, b""

    def __call__(self, at: int, nbytes: int) -> bytes:
        """Return bytes from offset `at` on, fewer at the end of the file."""
        begin = at - self._start
        if begin < 0 or begin + nbytes > len(self._data):
            wanted = max(0, min(max(nbytes, self._block_bytes), self._size - at))
            self._start, self._data, begin = at, self._file.read_at(wanted, at) if wanted else b"", 0
        return self._data[begin : begin + nbytes]
