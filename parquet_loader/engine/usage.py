"""Counts the memory held and the work done in one epoch. `dataset/memory_budget.py` divides `memory_limit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from parquet_loader.engine.media_decoding import DamagedRow
from parquet_loader.engine.workers.epoch_workers import STAGES
from parquet_loader.read import CacheStats
from parquet_loader.source import RemoteFigures

# The most replaced rows that the figures name; all are counted.
MOST_REPLACED = 100


@dataclass(slots=True)
class Usage:
    """Bytes held and work done. Guarded by the engine's lock.

    Attributes:
        limit_bytes: Limit of windows and reads together.
        held_bytes, peak_bytes: Bytes that the loader holds now, and the most that it has held.
        reading_bytes: The part of `held_bytes` for row groups being decoded.
        fetched_bytes: The part of `held_bytes` for remote bytes that are requested or fetched, and not decoded yet.
        bytes_read: Stored bytes of the column chunks read.
        row_groups: Row groups read to their end.
        skipped: Row groups skipped because of an error: index in the snapshot, and the reason.
        replaced_rows: Number of rows with damaged media that were replaced by others.
        replaced: The first `MOST_REPLACED` of them.
        before: The counters of the epoch that is still consumed, if this epoch is read ahead.
        after: The counters of the next epoch, if it is read ahead. The bytes of both count towards the limit and the
            peak.
    """

    limit_bytes: int
    held_bytes: int = 0
    peak_bytes: int = 0
    reading_bytes: int = 0
    fetched_bytes: int = 0
    bytes_read: int = 0
    row_groups: int = 0
    skipped: list[tuple[int, str]] = field(default_factory=list)
    replaced_rows: int = 0
    replaced: list[DamagedRow] = field(default_factory=list)
    before: Usage | None = None
    after: Usage | None = None

    @property
    def _together(self) -> list[Usage]:
        return [usage for usage in (self.before, self, self.after) if usage is not None]

    def add_replaced(self, rows: Sequence[DamagedRow]) -> None:
        """Count replaced rows, and keep the first `MOST_REPLACED`."""
        self.replaced_rows += len(rows)
        self.replaced += rows[: MOST_REPLACED - len(self.replaced)]

    def reserve(self, change: int) -> None:
        """Reserve bytes; a negative number releases them."""
        self.held_bytes += change
        self.peak_bytes = max(self.peak_bytes, sum(usage.held_bytes for usage in self._together))

    def fits(self, needed: int) -> bool:
        """Whether that many more bytes fit; prefetched bytes do not count, because they have their own share."""
        return sum(usage.held_bytes - usage.fetched_bytes for usage in self._together) + needed <= self.limit_bytes


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """Figures of an epoch so far; plain values that can be sent between processes.

    Attributes:
        cpu_s, blocked_s: Processor seconds, and seconds without a processor, of the workers by stage.
        disk_bytes: Bytes that the workers read from a local disk, not from the page cache.
        bytes_read, row_groups, skipped, held_bytes, peak_bytes, replaced_rows, replaced: As in `Usage`.
        footers_bytes: Bytes of parsed footers in the child process; 0 without one.
        cache: Figures of the local cache, if there is one.
        remote: Figures of remote reads; None if files are local.
        queued_s: The part of `blocked_s` in which workers waited for a processor; None if not reported.
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
    replaced_rows: int = 0
    replaced: tuple[DamagedRow, ...] = ()

    @classmethod
    def nothing(cls) -> EngineFigures:
        """Return the figures of an epoch that has not begun."""
        return cls(dict.fromkeys(STAGES, 0.0), dict.fromkeys(STAGES, 0.0), 0, 0, 0, (), 0, 0)
