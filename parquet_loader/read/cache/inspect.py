"""Lists the contents of a cache, and clears it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from parquet_loader.common import local_path
from parquet_loader.errors import SourceError
from parquet_loader.read.cache.leases import live_leases
from parquet_loader.read.cache.ledger import transaction
from parquet_loader.read.cache.paths import CachePaths, names_in


@dataclass(frozen=True, slots=True)
class CacheContents:
    """The contents of a cache.

    Attributes:
        row_groups, files: Number of row groups, and of the files that they belong to.
        nbytes: Bytes that they take on the disk.
        unfinished: Row groups being fetched.
        loaders: Running loaders.
        oldest_use_s, latest_use_s: Times of use of row groups, in seconds since 1970; None if there are none.
    """

    row_groups: int
    files: int
    nbytes: int
    unfinished: int
    loaders: int
    oldest_use_s: float | None
    latest_use_s: float | None


def contents_of(path: str) -> CacheContents:
    """Return the contents of the cache in a directory.

    Raises:
        SourceError: there is no cache.
    """
    paths = _paths(path)
    entries = list(paths.kept())
    used = [entry.used_ns / 1e9 for entry in entries]
    return CacheContents(
        row_groups=len(entries),
        files=len({entry.name.partition("-")[0] for entry in entries}),
        nbytes=sum(entry.nbytes for entry in entries),
        unfinished=len(names_in(paths.unfinished)),
        loaders=len(live_leases(paths)),
        oldest_use_s=min(used, default=None),
        latest_use_s=max(used, default=None),
    )


def clear(path: str) -> tuple[int, int]:
    """Remove all row groups of the cache in a directory; return their number and bytes.

    Other files in the directory stay.

    Raises:
        SourceError: there is no cache.
    """
    paths = _paths(path)
    with transaction(paths, rebuild=True) as account:
        removed = paths.remove(paths.kept())
        nbytes = sum(entry.nbytes for entry in removed)
        account.taken_bytes -= nbytes
    return len(removed), nbytes


def _paths(path: str) -> CachePaths:
    paths = CachePaths(local_path(path))
    if not os.path.isdir(paths.entries):
        raise SourceError(
            f"{path}: this directory has no local cache of this version; expected the path of a LocalCache"
        )
    return paths
