"""Which row groups leave a full cache: those that no running loader reads, the least recently used first. Pure.

Training reads the same row groups again and again, each once an epoch, in an order of its own. When they do not all
fit, whatever was read last is what is needed last, and a cache that drops the least recently used gives nothing: what
it drops is always the next to come. So what some loader reads is not dropped for something else that is read as often:
a fixed part of the data stays, and every epoch finds that part, whichever rank reads it. With a part of `c` bytes out
of `d`, the share of hits is `c / d` in every epoch, and nothing is written after the first.

Each loader says what it reads in a lease, which is void when its process ends. A row group kept for other columns than
a loader reads counts as used by it only once it was.
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
        nbytes: What it takes of the disk.
        used_ns: When it was used last, in nanoseconds since 1970.
    """

    name: str
    row_group: int
    columns: int
    nbytes: int
    used_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class ReaderLease:
    """What one loader reads.

    Attributes:
        row_groups: As in `CacheEntry`, uint64 ``[n]``.
        columns: As in `CacheEntry`; more than one where files have different ones.
        began_ns: When it began to, in nanoseconds since 1970.
    """

    row_groups: Digests
    columns: frozenset[int]
    began_ns: int


def in_order_of_leaving(
    entries: Sequence[CacheEntry], leases: Iterable[ReaderLease]
) -> tuple[list[CacheEntry], list[CacheEntry]]:
    """Return what nobody reads, and what somebody does, each with the least recently used first."""
    row_groups = np.fromiter((entry.row_group for entry in entries), np.uint64, len(entries))
    used_ns = np.fromiter((entry.used_ns for entry in entries), np.int64, len(entries))
    is_read = np.zeros(len(entries), np.bool_)
    for lease in leases:
        fits = np.fromiter((entry.columns in lease.columns for entry in entries), np.bool_, len(entries))
        is_read |= np.isin(row_groups, lease.row_groups) & (fits | (used_ns >= lease.began_ns))
    order = sorted(range(len(entries)), key=lambda i: (entries[i].used_ns, entries[i].name))
    return [entries[i] for i in order if not is_read[i]], [entries[i] for i in order if is_read[i]]


def enough(leaving: Iterable[CacheEntry], missing_bytes: int) -> list[CacheEntry]:
    """Return the first of these that together free so many bytes, or none where all of them would not."""
    chosen: list[CacheEntry] = []
    for entry in leaving:
        if missing_bytes <= 0:
            break
        chosen.append(entry)
        missing_bytes -= entry.nbytes
    return chosen if missing_bytes <= 0 else []
