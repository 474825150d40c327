"""A cache without a disk, to compare its policy with an LRU cache on sequences of reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from parquet_loader.read.cache.eviction import CacheEntry, ReaderLease, enough, in_order_of_leaving

COLUMNS = 1


@dataclass(frozen=True, slots=True)
class Read:
    """One row group read.

    Attributes:
        row_group: Which.
        nbytes: Its size.
        columns: For which columns.
    """

    row_group: int
    nbytes: int
    columns: int = COLUMNS


class Simulated:
    """A cache as `CacheDirectory` runs one: what is not there is fetched, and stays if there is room or can be made."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.leases: dict[str, ReaderLease] = {}
        self.entries: dict[tuple[int, int], CacheEntry] = {}
        self.clock = 0

    @property
    def taken_bytes(self) -> int:
        return sum(entry.nbytes for entry in self.entries.values())

    def lease(self, who: str, row_groups: Iterable[int], columns: int = COLUMNS) -> None:
        self.clock += 1
        self.leases[who] = ReaderLease(np.array(sorted(row_groups), np.uint64), frozenset({columns}), self.clock)

    def read(self, read: Read) -> bool:
        """Return whether it was there."""
        self.clock += 1
        key = (read.row_group, read.columns)
        if key in self.entries:
            self.entries[key] = replace(self.entries[key], used_ns=self.clock)
            return True
        missing = self.taken_bytes + read.nbytes - self.limit_bytes
        if missing > 0:
            leaving, _ = in_order_of_leaving(list(self.entries.values()), self.leases.values())
            for entry in enough(leaving, missing):
                missing -= entry.nbytes
                del self.entries[entry.row_group, entry.columns]
        if missing <= 0:
            self.entries[key] = CacheEntry(str(key), read.row_group, read.columns, read.nbytes, self.clock)
        return False

    def hit_rate(self, reads: Iterable[Read]) -> float:
        """Read all of these, and return the share of bytes that was there."""
        done = [(read.nbytes, self.read(read)) for read in reads]
        return sum(nbytes for nbytes, hit in done if hit) / max(1, sum(nbytes for nbytes, _ in done))
