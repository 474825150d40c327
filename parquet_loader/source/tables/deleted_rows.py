"""The deleted rows of a snapshot's files: read one file at a time, and kept within a limit."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import pyarrow.fs as pafs

from parquet_loader.common import IntArray, LruCache, shown
from parquet_loader.errors import ParquetLoaderError, SourceError
from parquet_loader.source.byte_ranges import ByteRange
from parquet_loader.source.files import SourceFile
from parquet_loader.source.remote.remote_filesystem import RemoteStore
from parquet_loader.source.tables.deletes import Deletes, DeletesError

_KEPT_BYTES = 8 * 2**20


class DeletedRows:
    """Positions of deleted rows by file. Any thread may use it.

    Args:
        by_file: The description of each file's deleted rows, by the number of the file.
        files: All files of the snapshot.
        filesystem: Their file system.
        remote: Fetches from it if it is not local.
    """

    def __init__(
        self,
        by_file: Mapping[int, Deletes],
        files: tuple[SourceFile, ...],
        filesystem: pafs.FileSystem,
        remote: RemoteStore | None,
    ) -> None:
        self.by_file = by_file
        self._files = files
        self._filesystem = filesystem
        self._remote = remote
        self._kept = LruCache(_KEPT_BYTES)
        self._sizes: dict[str, int] = {}  # of remote files; two threads that need the same size both request it

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the positions, which are read again."""
        return DeletedRows, (dict(self.by_file), self._files, self._filesystem, self._remote)

    def for_one_loader(self, remote: RemoteStore | None) -> DeletedRows:
        """Return the same deleted rows with a separate store."""
        return DeletedRows(self.by_file, self._files, self._filesystem, remote)

    def digest(self) -> bytes:
        """Return a digest of all lists of deleted rows."""
        found = [
            [file, [os.path.basename(value) if isinstance(value, str) else value for value in deletes.to_json()]]
            for file, deletes in sorted(self.by_file.items())
        ]
        return json.dumps(found).encode()

    def positions(self, file: int) -> IntArray | None:
        """Return the positions of a file's deleted rows, int64, sorted; None without any.

        Raises:
            SourceError: they cannot be read, or are damaged.
        """
        deletes = self.by_file.get(file)
        if deletes is None:
            return None
        kept: IntArray | None = self._kept.get(file)
        if kept is not None:
            return kept
        name = self._files[file].name
        try:
            found = deletes.positions(self._read)
        except (DeletesError, FileNotFoundError) as error:
            raise SourceError(f"{name}: its deleted rows cannot be read: {error}{self._note(file)}") from error
        except OSError as error:
            raise SourceError(f"{name}: its deleted rows cannot be read: {error}") from error
        except ParquetLoaderError as error:
            raise type(error)(f"{name}: its deleted rows cannot be read: {error}") from error
        self._kept.put(file, found, min(found.nbytes, _KEPT_BYTES))  # the current file is kept whatever its size
        return found

    def _note(self, file: int) -> str:
        note = self._files[file].if_gone
        return f"; {note}" if note else ""

    def _size_of(self, path: str) -> int:
        """Return the size of a file, which is cached. Raises `FileNotFoundError`."""
        size = self._sizes.get(path)
        if size is None:
            info = self._filesystem.get_file_info(path)
            if info.type != pafs.FileType.File:
                raise FileNotFoundError(f"{path} is not there")
            size = self._sizes[path] = int(info.size or 0)
        return size

    def _read(self, path: str, start: int, stop: int | None) -> bytes:
        size = self._size_of(path)
        stop = size if stop is None else stop
        if not 0 <= start <= stop <= size:
            raise DeletesError(f"they are at the bytes {start} to {stop} of {shown(path)}, which has {size}")
        if self._remote is not None:
            fetched: bytes = self._remote.fetch(SourceFile(path, size, None), [ByteRange(start, stop)])[0].to_pybytes()
            return fetched
        with self._filesystem.open_input_file(path) as opened:
            read: bytes = opened.read_at(stop - start, start)
        return read
