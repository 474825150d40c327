"""The names of files in a cache's directory.

    ledger                       bytes taken and reserved; the lock on it is the cache's lock
    entries-1/BB/NAME            row groups, in 64 directories
    unfinished-1/NAME            a row group being fetched, locked by the fetching process; its space is reserved
    readers/ID                   one lease for each loader, locked while the loader lives

A NAME identifies the version of a file, the row group and the columns, and holds the bytes on the disk, so a listing
gives the whole account. The number 1 is the version of the file format.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from parquet_loader.common import Digests, IntArray, make_private, remove_file
from parquet_loader.read.cache.eviction import CacheEntry

_NAME = re.compile(r"(?P<file>[0-9a-f]{32})-(?P<group>\d{1,10})-(?P<columns>[0-9a-f]{16})-(?P<nbytes>\d{1,18})")
_ENTRIES = "entries-1"
_BUCKETS = 64
_MIX = 0x9E3779B97F4A7C15


class EntryName(NamedTuple):
    """The parts of the name of a row group's file.

    Attributes:
        file: `file_id` of the file, 32 hexadecimal digits.
        row_group: The row group's number in the file.
        columns: `columns_id` of the columns.
        nbytes: Bytes that it takes on the disk.
    """

    file: str
    row_group: int
    columns: int
    nbytes: int

    @classmethod
    def parse(cls, text: str) -> EntryName | None:
        """Return the parts of a name, or None if it is not the name of a cached row group."""
        match = _NAME.fullmatch(text)
        if match is None:
            return None
        return cls(match["file"], int(match["group"]), int(match["columns"], 16), int(match["nbytes"]))

    def path_in(self, root: str) -> str:
        """Return the path of the file in a cache."""
        return os.path.join(root, _ENTRIES, _bucket(self.file, self.row_group), str(self))

    def __str__(self) -> str:
        return f"{self.file}-{self.row_group}-{self.columns:016x}-{self.nbytes}"


class CachePaths:
    """The paths of a cache.

    Attributes:
        root, ledger, entries, unfinished, readers: As above.
        folders: Number of directories.
        patience_s: Longest wait for the lock, or for a row group that another process is fetching. If that process is
            suspended, the others continue without the cache.
    """

    def __init__(self, root: str, patience_s: float = 5.0) -> None:
        self.root = root
        self.patience_s = patience_s
        self.ledger = os.path.join(root, "ledger")
        self.entries = os.path.join(root, _ENTRIES)
        self.unfinished = os.path.join(root, "unfinished-1")
        self.readers = os.path.join(root, "readers")
        self.folders = _BUCKETS + 4

    def make(self) -> None:
        """Make the directories that are missing."""
        make_private(self.root)  # an existing directory keeps its mode
        os.makedirs(self.entries, exist_ok=True)
        for folder in (self.unfinished, self.readers, *self._buckets()):
            os.makedirs(folder, exist_ok=True)

    def entry(self, name: EntryName) -> str:
        """Return the path of a row group's file."""
        return name.path_in(self.root)

    def path_of(self, entry: CacheEntry) -> str:
        """Return the path of a cached row group's file."""
        name = EntryName.parse(entry.name)
        assert name is not None
        return self.entry(name)

    def remove(self, entries: Iterable[CacheEntry]) -> list[CacheEntry]:
        """Remove row groups, in a transaction; return those that existed."""
        return [entry for entry in entries if remove_file(self.path_of(entry))]

    def for_row_group(self, file: str, row_group: int) -> list[EntryName]:
        """Return the names of a row group's files, one for each set of columns."""
        prefix = f"{file}-{row_group}-"
        try:
            found = os.listdir(os.path.join(self.entries, _bucket(file, row_group)))
        except FileNotFoundError:
            return []
        names = [EntryName.parse(text) for text in found if text.startswith(prefix)]
        return [name for name in names if name is not None]

    def kept(self) -> Iterator[CacheEntry]:
        """Yield all cached row groups; those evicted meanwhile may be missing."""
        for folder in self._buckets():
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as found:
                for item in found:
                    parsed = EntryName.parse(item.name)
                    with contextlib.suppress(FileNotFoundError):
                        if parsed is not None:
                            used_ns = item.stat(follow_symlinks=False).st_mtime_ns
                            number = row_group_id(parsed.file, parsed.row_group)
                            yield CacheEntry(item.name, number, parsed.columns, parsed.nbytes, used_ns)

    def taken_bytes(self) -> int:
        """Return the bytes taken by row groups and by reservations, from a listing."""
        folders = (*self._buckets(), self.unfinished)
        return sum(name.nbytes for folder in folders for name in names_in(folder))

    def _buckets(self) -> Iterable[str]:
        return (os.path.join(self.entries, f"{number:02x}") for number in range(_BUCKETS))


def names_in(folder: str) -> list[EntryName]:
    """Return the names of row groups in a directory; none if it does not exist."""
    try:
        found = os.listdir(folder)
    except FileNotFoundError:
        return []
    return [name for name in map(EntryName.parse, found) if name is not None]


def _bucket(file: str, row_group: int) -> str:
    return f"{(int(file[:8], 16) + row_group) % _BUCKETS:02x}"


def file_id(*identity: object) -> str:
    """Return a digest that identifies a version of a file, 32 hexadecimal digits.

    Args:
        identity: Plain values that differ for each version of each file.
    """
    return hashlib.blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest()


def columns_id(columns: Iterable[str]) -> int:
    """Return a digest of the names of columns, 64 bits."""
    return _columns_id(tuple(columns))


@lru_cache
def _columns_id(columns: tuple[str, ...]) -> int:
    digest = hashlib.blake2b(json.dumps(sorted(columns)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def row_group_id(file: str, row_group: int) -> int:
    """Return 64 bits that identify a row group of a version of a file."""
    return (int(file[:16], 16) + (row_group + 1) * _MIX) % 2**64


def row_group_ids(files: list[str], row_group_file: IntArray, row_group_number: IntArray) -> Digests:
    """Return `row_group_id` of many row groups, uint64 ``[n]``.

    Args:
        files: The `file_id` of each file.
        row_group_file: Index of each row group's file in `files`, int ``[n]``.
        row_group_number: Number of each row group in its file, int ``[n]``.
    """
    begins = np.array([int(file[:16], 16) for file in files], np.uint64)
    return begins[row_group_file] + (row_group_number.astype(np.uint64) + np.uint64(1)) * np.uint64(_MIX)
