"""Chooses the row groups that a full cache evicts: unleased ones first, least recently used first. Pure.

Training reads the same row groups in each epoch, in a new order. If they do not all fit, a plain LRU cache has few
hits: it evicts row groups before they are read again. So a row group that a loader reads is not evicted for another one
that is read equally often. A fixed part of the data stays cached, and each epoch hits that part, whichever rank reads
it. With `c` of `d` bytes cached, the hit rate is `c / d` in each epoch, and nothing is written after the first.

Each loader's lease lists the row groups that it reads. A lease ends with its process. A row group cached for other
columns than a loader reads counts as read by that loader only if it was used after the lease began.
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
        name: The name of its file in the cache.
        row_group: `row_group_id` of the row group.
        columns: `columns_id` of the columns for which it was fetched.
        nbytes: Bytes that it takes on the disk.
        used_ns: Time of the last use, in nanoseconds since 1970.
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
        columns: As in `CacheEntry`; more than one if files differ in their columns.
        began_ns: Time at which the lease began, in nanoseconds since 1970.
    """

    row_groups: Digests
    columns: frozenset[int]
    began_ns: int


def in_order_of_leaving(
    entries: Sequence[CacheEntry], leases: Iterable[ReaderLease]
) -> tuple[list[CacheEntry], list[CacheEntry]]:
    """Return the entries that no loader reads, and those that are read, each least recently used first."""
    row_groups = np.fromiter((entry.row_group for entry in entries), np.uint64, len(entries))
    used_ns = np.fromiter((entry.used_ns for entry in entries), np.int64, len(entries))
    is_read = np.zeros(len(entries), np.bool_)
    for lease in leases:
        fits = np.fromiter((entry.columns in lease.columns for entry in entries), np.bool_, len(entries))
        is_read |= np.isin(row_groups, lease.row_groups) & (fits | (used_ns >= lease.began_ns))
    order = sorted(range(len(entries)), key=lambda i: (entries[i].used_ns, entries[i].name))
    return [entries[i] for i in order if not is_read[i]], [entries[i] for i in order if is_read[i]]


def enough(leaving: Iterable[CacheEntry], missing_bytes: int) -> list[CacheEntry]:
    """Return the first entries that together free that many bytes; none if all of them are too few."""
    chosen: list[CacheEntry] = []
    for entry in leaving:
        if missing_bytes <= 0:
            break
        chosen.append(entry)
        missing_bytes -= entry.nbytes
    return chosen if missing_bytes <= 0 else []
