"""The memory account and the counters of one epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parquet_loader.engine.worker_pool import STAGES
from parquet_loader.read import CacheStats
from parquet_loader.source import RemoteFigures


@dataclass(slots=True)
class Budget:
    """Bytes held and work done; belongs to the engine's lock.

    Attributes:
        limit_bytes: What windows and reads may hold together.
        held_bytes, peak_bytes: What the loader holds now, and held at most.
        reading_bytes: Of these, what row groups being decoded take.
        fetched_bytes: Of these, what was fetched of files that are not local, or is on its way, and not decoded yet.
        bytes_read: Bytes of column chunks read, as they are in the files.
        row_groups: Row groups read to their end.
        skipped: Row groups left out because of an error, each with its reason.
    """

    limit_bytes: int
    held_bytes: int = 0
    peak_bytes: int = 0
    reading_bytes: int = 0
    fetched_bytes: int = 0
    bytes_read: int = 0
    row_groups: int = 0
    skipped: list[tuple[int, str]] = field(default_factory=list)

    def reserve(self, change: int) -> None:
        """Count memory taken, or with a negative number release."""
        self.held_bytes += change
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def fits(self, needed: int) -> bool:
        """Whether that many bytes more have space; what is fetched ahead has a share of its own."""
        return self.held_bytes - self.fetched_bytes + needed <= self.limit_bytes


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What an epoch has taken so far; plain values, which travel between processes.

    Attributes:
        cpu_s, blocked_s: Processor seconds, and seconds without a processor, of the workers by stage.
        disk_bytes: Bytes that they had to fetch from a local disk.
        bytes_read, row_groups, skipped, held_bytes, peak_bytes: As in `Budget`.
        footers_bytes: Parsed footers held by the process that reads, where that is not the caller's.
        cache: What the local cache did, if there is one.
        remote: What fetching took; None if files are local.
        queued_s: Of `blocked_s`, seconds that the workers waited for a processor; None if the system does not tell.
    """

    cpu_s: Mapping[str, float]
    blocked_s: Mapping[str, float]
    disk_bytes: int
    bytes_read: int
    row_groups: int
    skipped: tuple[tuple[int, str], ...]
    held_bytes: int
    peak_bytes: int
    footers_bytes: int = 0
    cache: CacheStats | None = None
    remote: RemoteFigures | None = None
    queued_s: float | None = None

    @classmethod
    def nothing(cls) -> EngineFigures:
        """Return the account of an epoch that has not begun."""
        return cls(dict.fromkeys(STAGES, 0.0), dict.fromkeys(STAGES, 0.0), 0, 0, 0, (), 0, 0)
