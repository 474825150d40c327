"""Adds a row group to the cache: reserves space, writes it as it is fetched, and publishes it with one rename."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any

from parquet_loader.common import LockedFile, remove_file
from parquet_loader.read.cache.entry_file import Checksum, Index, Ranges, index_bytes, packed_index
from parquet_loader.read.cache.ledger import transaction
from parquet_loader.read.cache.paths import CachePaths, EntryName


class PendingEntry:
    """A reservation and its unfinished file. Used by one thread at a time, which publishes or abandons it.

    Args:
        paths: The paths of the cache.
        name: The file's final name.
        file: The unfinished file; this process locks it, which shows others that it is being fetched.
        size: Bytes of the original file.
        ranges: The byte ranges that will be written; they do not overlap.
    """

    def __init__(self, paths: CachePaths, name: EntryName, file: LockedFile, size: int, ranges: Ranges) -> None:
        self._paths = paths
        self._name = name
        self._file = file
        self._size = size
        self._ranges = tuple(ranges)
        self._sums = [Checksum() for _ in self._ranges]
        self._written = [begin for begin, _ in self._ranges]
        self._is_sized = False

    def write(self, number: int, data: Any) -> None:
        """Write the next bytes of a range: all of it, or a part that has whole 4 KiB blocks.

        Raises:
            OSError: the disk is full or broken.
        """
        if not self._is_sized:
            # On some file systems a growing file takes more space than its bytes.
            self._file.resize(self._size + index_bytes(len(self._ranges)))
            self._is_sized = True
        view = memoryview(data).cast("B")
        self._sums[number].add(view)
        self._file.write(view, self._written[number])
        self._written[number] += len(view)

    def publish(self) -> tuple[Index, str, int]:
        """Publish the row group, replacing one for the same columns; return its index, path and inode.

        Raises:
            OSError, TimeoutError: it cannot be published; abandon it.
        """
        assert self._written == [end for _, end in self._ranges], "a range is incomplete"
        index = Index(self._size, self._ranges, tuple(total.value for total in self._sums))
        self._file.write(packed_index(str(self._name), index), self._size)
        with transaction(self._paths) as account:
            self._check_name()
            target, inode = self._paths.entry(self._name), self._file.inode
            for other in self._paths.for_row_group(self._name.file, self._name.row_group):
                if other.columns == self._name.columns and remove_file(self._paths.entry(other)):
                    account.taken_bytes -= other.nbytes
            os.rename(self._file.path, target)
            if os.stat(target).st_ino != inode:  # the directory was deleted and created again
                raise FileNotFoundError(errno.ENOENT, "the file was deleted and replaced by another", target)
        self._file.close()
        return index, target, inode

    def abandon(self) -> None:
        """Remove the file and release its reservation; if this fails, another process does it later."""
        if self._file.is_here:
            with contextlib.suppress(OSError), transaction(self._paths) as account:
                self._check_name()
                os.unlink(self._file.path)
                account.taken_bytes -= self._name.nbytes
            self._file.close()

    def _check_name(self) -> None:
        """Check that the path still belongs to this file, because all processes use the same name for a row group.

        Raises:
            FileNotFoundError: it was deleted; another process may be fetching the same row group.
        """
        if not self._file.has_its_name:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._file.path)
