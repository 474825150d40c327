"""The locations of a row group's column chunks: the file, the local cache, fetched bytes, or a stream from a store.

A reader asks `ColumnChunkSource` for a location once, and may open it several times.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from parquet_loader.common import IntArray
from parquet_loader.decode import FeedCheck, check_pages, chunk_bounds
from parquet_loader.source import Metadata, RemoteStore, SourceFile, SparseFile, StreamedFile, chunk_ranges, selected

# Arrow reads column chunks through a buffer of this size, so that a read holds pages instead of whole chunks. Measured:
# not slower than whole chunks from the page cache.
BUFFER_BYTES = 1 << 16


class ChunkLocation(ABC):
    """A copy of a row group's column chunks, at the offsets of the file's footer.

    Attributes:
        path: The local file that holds them, or None.
        memory: The buffer that holds them, or None.
        held_bytes: The memory that they take until they are released.
        is_cached: Whether the copy is in the local cache, and so may be damaged although the file is not.
        is_streamed: Whether they are fetched while they are decoded, in one forward read.
    """

    path: str | None = None
    memory: pa.Buffer | None = None
    held_bytes = 0
    is_cached = False
    is_streamed = False

    @property
    def source(self) -> str | pa.Buffer | None:
        """What kernels and the check of page headers read: the path, or the memory; None: streamed bytes."""
        return self.path if self.memory is None else self.memory

    def check(self, footer: Metadata, number: int, columns: Sequence[str]) -> None:
        """Check the page headers of columns, except those that are checked as they are streamed.

        Raises:
            MetadataError: the footer's entry of a column is invalid.
            FalseClaimError: a page header claims more than its column chunk can hold; Arrow would allocate that much.
            OSError: they cannot be read.
        """
        if self.source is not None:
            check_pages(self.source, _bounds(footer, number, columns))

    @abstractmethod
    def open(self, footer: Metadata, number: int, columns: Sequence[str], **arrow: Any) -> pq.ParquetFile:
        """Open the chunks for Arrow, once their page headers are checked; the caller closes the result.

        Args:
            footer: The file's footer.
            number: The row group's number in the file.
            columns: The columns to read.
            arrow: Further arguments of `pyarrow.parquet.ParquetFile`.

        Raises:
            MetadataError: the footer's entry of a column is invalid.
            OSError, pyarrow.ArrowException: the file cannot be opened.
        """


class OwnFile(ChunkLocation):
    """The row group's own file, on a local disk.

    Args:
        path: The path of the file.
        filesystem: The local filesystem.
    """

    def __init__(self, path: str, filesystem: pafs.FileSystem) -> None:
        self.path: str = path
        self._filesystem = filesystem

    def open(self, *_: object, **arrow: Any) -> pq.ParquetFile:
        """See `ChunkLocation.open`."""
        return pq.ParquetFile(self.path, filesystem=self._filesystem, buffer_size=BUFFER_BYTES, **arrow)


class CachedFile(ChunkLocation):
    """A file of the local cache, which another process may remove at any time."""

    is_cached = True

    def __init__(self, path: str) -> None:
        self.path: str = path

    def open(self, *_: object, **arrow: Any) -> pq.ParquetFile:
        """See `ChunkLocation.open`."""
        return pq.ParquetFile(self.path, buffer_size=BUFFER_BYTES, **arrow)


class FetchedChunks(ChunkLocation):
    """A buffer into which the column chunks were fetched."""

    def __init__(self, sparse: SparseFile) -> None:
        self.memory: pa.Buffer = sparse.buffer
        self.held_bytes = sparse.held_bytes

    def open(self, *_: object, **arrow: Any) -> pq.ParquetFile:
        """See `ChunkLocation.open`."""
        return pq.ParquetFile(pa.BufferReader(self.memory), **arrow)


class StreamedChunks(ChunkLocation):
    """Column chunks that are too large for memory: fetched in parts while Arrow decodes them.

    Args:
        store: The store of the file.
        file: The file.
        held_bytes: The most bytes of them in memory at a time.
    """

    is_streamed = True

    def __init__(self, store: RemoteStore, file: SourceFile, held_bytes: int) -> None:
        self._store = store
        self._file = file
        self.held_bytes = held_bytes

    def open(self, footer: Metadata, number: int, columns: Sequence[str], **arrow: Any) -> pq.ParquetFile:
        """See `ChunkLocation.open`; page headers are checked as they are read."""
        streamed = StreamedFile(
            partial(self._store.fetch_into, self._file),
            self._file.size_bytes,
            chunk_ranges(footer, number, columns),
            self.held_bytes,
            int(self._store.options.request_bytes),
            FeedCheck(_bounds(footer, number, columns), self._file.size_bytes),
        )
        return pq.ParquetFile(pa.PythonFile(streamed, mode="r"), buffer_size=BUFFER_BYTES, **arrow)


def _bounds(footer: Metadata, number: int, columns: Sequence[str]) -> IntArray:
    return chunk_bounds(footer, number, selected(footer.names, columns))
