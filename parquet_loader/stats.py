"""What an epoch was spent on, and what holds it back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from parquet_loader.cache import CacheStats
from parquet_loader.live import Growth
from parquet_loader.remote.requests import RemoteFigures
from parquet_loader.types import format_bytes


@dataclass(frozen=True, slots=True)
class SkippedRowGroup:
    """A row group left out under ``on_error="skip"``.

    Attributes:
        file: Path of its file.
        row_group: Its number there.
        reason: The error.
    """

    file: str
    row_group: int
    reason: str


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """The epoch under way, or the last one.

    Attributes:
        epoch: Which one.
        rows, batches: Delivered so far.
        seconds: Since the epoch began, until its end.
        wait_s: Of these, how long the caller waited for batches, the first one included.
        first_batch_s: How long the caller waited for the first batch.
        longest_wait_s: The longest wait for any later batch.
        cpu_s: Processor seconds of the workers by stage: ``read`` (decoding included), ``permute``, ``gather``,
            ``process`` (images and transform).
        blocked_s: Seconds by stage that a worker was in a job without a processor: waiting for the disk, for a
            processor, or for Python's global lock.
        idle_s: Seconds of all workers together with nothing to do: the read-ahead was full.
        bytes_read: Bytes of the files' column chunks read.
        bytes_from_disk: Of these, bytes that a local disk had to fetch, because the page cache did not hold them; where
            files are remote, also all that a local cache did not hold.
        row_groups: Row groups read to their end.
        skipped_row_groups: Left out because of errors.
        held_bytes, peak_bytes: What the loader holds now, and held at most, by its own account.
        memory_limit_bytes: The limit.
        num_threads: Workers.
        remote: What fetching took, where files are not local: requests, bytes, retries. `bytes_read` counts the column
            chunks that were decoded.
        growth: How the source changed since the epoch before, where it is one that changes.
        cache: What the local cache did, where there is one.
    """

    epoch: int
    rows: int
    batches: int
    seconds: float
    wait_s: float
    first_batch_s: float
    longest_wait_s: float
    cpu_s: Mapping[str, float]
    blocked_s: Mapping[str, float]
    idle_s: float
    bytes_read: int
    bytes_from_disk: int
    row_groups: int
    skipped_row_groups: tuple[SkippedRowGroup, ...]
    held_bytes: int
    peak_bytes: int
    memory_limit_bytes: int
    num_threads: int
    growth: Growth | None = None
    cache: CacheStats | None = None
    remote: RemoteFigures | None = None

    @property
    def rows_per_s(self) -> float:
        """Rows delivered a second."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def wait_share(self) -> float:
        """The share of the epoch that the caller waited."""
        return min(1.0, self.wait_s / self.seconds) if self.seconds else 0.0

    @property
    def bound_by(self) -> str:
        """What holds the epoch back.

        ``"consumer"``, ``"decoding"``, ``"shuffle"``, ``"transform"``, ``"disk"`` or ``"network"``.
        """
        if not self.batches or self.wait_share < 0.1:
            return "consumer"
        # A read that blocks while nothing comes from a disk waits for a processor or for Python's lock.
        disk_s = self.blocked_s["read"] if self.bytes_from_disk > self.bytes_read // 16 else 0.0
        busy = {
            "decoding": self.cpu_s["read"],
            "shuffle": self.cpu_s["permute"] + self.cpu_s["gather"],
            "transform": self.cpu_s["process"] + self.blocked_s["process"],
            "disk": disk_s,
            "network": self.idle_s if self.remote is not None else 0.0,
        }
        return max(busy, key=lambda name: busy[name])

    @property
    def advice(self) -> str:
        """One sentence on what to try."""
        return _ADVICE[self.bound_by]

    def __str__(self) -> str:
        rate = f"{self.rows_per_s:,.0f} rows/s"
        waits = f"{self.first_batch_s:.2f} s for the first batch, then at most {self.longest_wait_s * 1000:.0f} ms"
        held = f"{format_bytes(self.peak_bytes)} of {format_bytes(self.memory_limit_bytes)}"
        stages = ", ".join(f"{name} {self.cpu_s[name]:.2f}" for name in self.cpu_s)
        fetched = [] if self.remote is None else [str(self.remote)]
        lines = [
            f"epoch {self.epoch}: {self.rows} rows in {self.batches} batches, {self.seconds:.2f} s, {rate}",
            f"waited {self.wait_s:.2f} s ({self.wait_share:.0%}): {waits}",
            f"{self.num_threads} workers, processor seconds: {stages}; blocked in reads {self.blocked_s['read']:.2f}",
            f"read {format_bytes(self.bytes_read)} in {self.row_groups} row groups; held at most {held}",
            *fetched,
            f"bound by {self.bound_by}: {self.advice}",
        ]
        if self.cache is not None:
            lines.insert(4, str(self.cache))
        if self.skipped_row_groups:
            names = "; ".join(s.reason for s in self.skipped_row_groups[:3])
            lines.insert(-1, f"left out {len(self.skipped_row_groups)} row groups: {names}")
        return "\n".join(lines)


_ADVICE = {
    "consumer": "batches are ready before they are asked for; the training step sets the pace.",
    "decoding": "more num_threads, fewer columns, or files rewritten with write_dataset (not-null, light compression).",
    "shuffle": "more num_threads, or columns grouped into matrices by a Schema.",
    "transform": "more num_threads, or a transform made of fewer, larger numpy calls.",
    "network": "more RemoteOptions.max_requests or a larger memory_limit keep more in flight; fewer columns; a cache.",
    "disk": "more num_threads keep more reads in flight; a faster disk, or stronger compression.",
}
