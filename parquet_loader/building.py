"""What the engine keeps account of: the budget, and windows while they are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from parquet_loader.common.failures import is_out_of_memory, out_of_memory
from parquet_loader.plan.epoch import RowGroupSlice
from parquet_loader.read.cache import CacheStats
from parquet_loader.read.cursor import Cursor
from parquet_loader.source.remote.request_scheduler import RemoteFigures
from parquet_loader.window.assembly import Assembly, Window
from parquet_loader.workers import STAGES


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

    def hold(self, change: int) -> None:
        """Count memory taken, or with a negative number let go of."""
        self.held_bytes += change
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def fits(self, needed: int) -> bool:
        """Whether so many bytes more have room; what is fetched ahead has a share of its own."""
        return self.held_bytes - self.fetched_bytes + needed <= self.limit_bytes


@dataclass(frozen=True, slots=True)
class Account:
    """What a pass has taken so far; plain values, which travel between processes.

    Attributes:
        cpu_s, blocked_s: Processor seconds, and seconds without a processor, of the workers by stage.
        disk_bytes: Bytes that they had to fetch from a local disk.
        bytes_read, row_groups, skipped, held_bytes, peak_bytes: As in `Budget`.
        footers_bytes: Parsed footers held by the process that reads, where that is not the caller's.
        cache: What the local cache did, where there is one.
        remote: What fetching took; None where files are local.
        queued_s: Of `blocked_s`, seconds that the workers waited for a processor; None where the system does not tell.
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
    def nothing(cls) -> Account:
        """Return the account of a pass that has not begun."""
        return cls(dict.fromkeys(STAGES, 0.0), dict.fromkeys(STAGES, 0.0), 0, 0, 0, (), 0, 0)


@dataclass(slots=True, eq=False)
class Building:
    """A window from its admission until it is let go of; belongs to the engine's lock.

    Attributes:
        index: Its number in the plan.
        slices: What it reads.
        assembly: Its rows.
        phase: What may be done next; ``"busy"`` while a step is under way that allows no other.
        waiting: Slices not begun.
        unread: Slices not done.
        jobs: Gathering steps not begun.
        ungathered: Gathering steps not done.
        arena_bytes, decoded_bytes, gathered_bytes: What it holds.
        window: The result.
        error: What spoiled it.
        begun_rows: Rows of batches begun, where batches are processed.
        unprocessed: Batches not done.
    """

    index: int
    slices: list[RowGroupSlice]
    assembly: Assembly
    phase: Literal["new", "read", "order", "gather", "finish", "busy", "ready"] = "new"
    waiting: list[int] = field(default_factory=list)
    unread: int = 0
    jobs: list[int] = field(default_factory=list)
    ungathered: int = 0
    arena_bytes: int = 0
    decoded_bytes: int = 0
    gathered_bytes: int = 0
    window: Window | None = None
    error: BaseException | None = None
    begun_rows: int = 0
    unprocessed: int = 0

    def spoil(self, error: BaseException) -> None:
        """Note what went wrong first; everything before the window is still delivered."""
        if is_out_of_memory(error):
            error = out_of_memory("a window of rows", error)
        self.error = self.error or error

    @property
    def held_bytes(self) -> int:
        """All it holds."""
        return self.arena_bytes + self.decoded_bytes + self.gathered_bytes


@dataclass(frozen=True, slots=True)
class ReadSlice:
    """What reading a slice gave: bytes that stay with the window, bytes read, and the cursor if it goes on."""

    kept_bytes: int
    read_bytes: int
    left_open: Cursor | None
