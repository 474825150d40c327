"""Lists and reads the small files of a table's metadata; remote ones through one fetcher."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

import numpy as np
import pyarrow.fs as pafs

from parquet_loader.common import RemoteOptions, UnreachableError, hub_of, refused, shown
from parquet_loader.errors import RemoteError, SourceError
from parquet_loader.source.byte_ranges import ByteRange
from parquet_loader.source.files import ListedFile, SourceFile
from parquet_loader.source.remote.listers import lister_for
from parquet_loader.source.remote.remote_filesystem import store_of
from parquet_loader.source.remote.task_group import side_by_side


def refuse_hub(filesystem: pafs.FileSystem, table: str) -> None:
    """Raise SourceError: the table lies in a repository of the Hugging Face Hub."""
    if hub_of(filesystem) is not None:
        raise SourceError(
            f"{table}: a Delta or Iceberg table in a repository of the Hub is not read; download the repository and "
            "pass the table's local directory, or take every row of every file with "
            "ReadOptions(ignore_table_format=True)"
        )


class MetadataFiles:
    """The metadata of one table, while a `with` block runs. Used by one thread.

    Args:
        filesystem: The file system of the table.
        remote: How remote files are fetched.
        prefix: The prefix that makes a path a URL, for messages.
    """

    def __init__(self, filesystem: pafs.FileSystem, remote: RemoteOptions, prefix: str) -> None:
        self._remote = remote
        self._prefix = prefix
        self._store = store_of(filesystem, remote)
        self._fetcher = None if self._store is None else self._store.fetcher(remote.max_requests)

    def __enter__(self) -> Self:
        if self._fetcher is not None:
            self._fetcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._fetcher is not None:
            self._fetcher.close()

    def listed(self, folder: str) -> list[ListedFile]:
        """Return the files in a directory, in a store also those below it; empty if it does not exist.

        Raises:
            SourceError: it cannot be listed.
        """
        try:
            if self._fetcher is None:
                files: list[ListedFile] = []
                with os.scandir(folder) as entries:
                    for entry in entries:
                        with suppress(FileNotFoundError):  # removed meanwhile
                            if entry.is_file():
                                found = entry.stat()
                                files.append(ListedFile(entry.path, found.st_size, found.st_mtime_ns))
                return files
            assert self._store is not None
            lister = lister_for(self._store, self._fetcher)
            return lister.each(lister.below, [folder])[0]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except UnreachableError as error:
            raise RemoteError(f"{self._name(folder)}: {error}") from None
        except OSError as error:
            raise refused(f"{self._name(folder)}: cannot be listed", error) from error

    def read(self, files: Sequence[ListedFile]) -> list[bytes]:
        """Return the bytes of listed files; remote files are read several at a time.

        Raises:
            SourceError: a file cannot be read, or is shorter than listed.
        """
        if self._fetcher is None:
            return [self._local(file) for file in files]
        fetcher = self._fetcher

        async def fetch(file: ListedFile) -> bytes:
            buffer = np.empty(file.size_bytes, np.uint8)
            if file.size_bytes:
                whole = SourceFile(file.path, file.size_bytes, file.mtime_ns, (), file.etag, self._prefix)
                await fetcher.read_all(whole, [ByteRange(0, file.size_bytes)], [buffer])
            return buffer.tobytes()

        return fetcher.run(side_by_side(fetch, files, self._remote.max_requests))

    def _local(self, file: ListedFile) -> bytes:
        try:
            with open(file.path, "rb") as opened:
                return opened.read()
        except OSError as error:
            raise SourceError(f"{shown(file.path)}: cannot be read: {error.strerror}") from error

    def _name(self, path: str) -> str:
        return shown(f"{self._prefix}{path}")
