"""Chooses the row groups that a full cache evicts: unleased ones first, least recently used first. Pure.

Training reads the same row groups in each epoch, in a new order. If they do not all fit, a plain LRU cache has no hits:
it always evicts the row group that comes next. So a row group that a loader reads is not evicted for another one that
is read equally often. A fixed part of the data stays, and each epoch hits that part, whichever rank reads it. With `c`
of `d` bytes cached, the hit rate is `c / d` in each epoch, and nothing is written after the first.

Each loader's lease lists the row groups that it reads. A lease is void when its process ends. A row group cached for
other columns than a loader reads counts as used by that loader only after it was used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from parquet_loader.common import Digests


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A row group in the cache.

    Attributes:
        name: Its file.
        row_group: Which of which version of which file, in 64 bits.
        columns: For which columns it was fetched, likewise.
        nbytes: Bytes that it takes on the disk.
        used_ns: When it was used last, in nanoseconds since 1970.
    """

    name: str
    row_group: int
    columns: int
    nbytes: int
    used_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class ReaderLease:
    """The row groups that one loader reads.

    Attributes:
        row_groups: As in `CacheEntry`, uint64 ``[n]``.
        columns: As in `CacheEntry`; more than one if files have different ones.
        began_ns: When it began to, in nanoseconds since 1970.
    """

    row_groups: Digests
    columns: frozenset[int]
    began_ns: int


def in_order_of_leaving(
    entries: Sequence[CacheEntry], leases: Iterable[ReaderLease]
) -> tuple[list[CacheEntry], list[CacheEntry]]:
    """Return the entries that nobody reads, and those that are read, each least recently used first."""
    row_groups = np.fromiter((entry.row_group for entry in entries), np.uint64, len(entries))
    used_ns = np.fromiter((entry.used_ns for entry in entries), np.int64, len(entries))
    is_read = np.zeros(len(entries), np.bool_)
    for lease in leases:
        fits = np.fromiter((entry.columns in lease.columns for entry in entries), np.bool_, len(entries))
        is_read |= np.isin(row_groups, lease.row_groups) & (fits | (used_ns >= lease.began_ns))
    order = sorted(range(len(entries)), key=lambda i: (entries[i].used_ns, entries[i].name))
    return [entries[i] for i in order if not is_read[i]], [entries[i] for i in order if is_read[i]]


def enough(leaving: Iterable[CacheEntry], missing_bytes: int) -> list[CacheEntry]:
    """Return the first of these that together free that many bytes, or none if all of them would not suffice."""
    chosen: list[CacheEntry] = []
    for entry in leaving:
        if missing_bytes <= 0:
            break
        chosen.append(entry)
        missing_bytes -= entry.nbytes
    return chosen if missing_bytes <= 0 else []
