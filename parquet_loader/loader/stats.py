"""`LoaderStats`: the times of an epoch's stages, and advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from parquet_loader.collate import DeviceFigures
from parquet_loader.common import format_bytes
from parquet_loader.loader.live_source import SourceChange
from parquet_loader.loader.mixing import MixingFigures, SortingFigures
from parquet_loader.plan import MixingScore
from parquet_loader.read import CacheStats
from parquet_loader.source import RemoteFigures

# If the loop waits for a smaller share of the time, the training step is the bottleneck.
LEAST_WAIT_SHARE = 0.1
# Shorter epochs get no advice, because the first batch takes most of their time.
JUDGED_FROM_S = 1.0


@dataclass(frozen=True, slots=True)
class SkippedRowGroup:
    """A row group left out under ``on_error="skip"``.

    Attributes:
        file: Path of its file.
        row_group: Its number in the file.
        reason: The error.
    """

    file: str
    row_group: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReplacedRow:
    """A row with damaged media that another row of its batch has replaced under ``on_error="skip_row"``.

    Attributes:
        file: Path of its file.
        row_group: The number of its row group in the file.
        row: Its number in the row group.
        reason: The column and what is wrong with it.
    """

    file: str
    row_group: int
    row: int
    reason: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause that slows an epoch, or makes its shuffle worse.

    Attributes:
        cause: A short name, for programs.
        text: The cause with its figures, and the remedy.
        cost_s: Estimated seconds of waiting that it causes; 0 if it affects only the shuffle.
    """

    cause: str
    text: str
    cost_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CodecFigures:
    """Figures of the column chunks of one codec, from a sample of row groups.

    Attributes:
        codec: Its name in lower case.
        columns: Columns that use it.
        stored_share: Share of the stored bytes.
        ratio: Bytes after decompression for each stored byte.
        bytes_per_s: Decompressed bytes per second of one thread, measured on a page; None if not measured.
    """

    codec: str
    columns: int
    stored_share: float
    ratio: float
    bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class SlowColumns:
    """Columns of numbers that the kernels cannot decode.

    Attributes:
        reason: ``"encoding"`` or ``"options"``.
        columns: Their names.
        share: Their share of the bytes that are decoded.
    """

    reason: str
    columns: tuple[str, ...]
    share: float


@dataclass(frozen=True, slots=True)
class StorageFigures:
    """The storage of the columns that are read, from a sample of row groups.

    Attributes:
        row_bytes: Bytes of a decoded row.
        columns: Column chunks of a row group that are read.
        codecs: Figures of each codec, sorted by stored bytes, largest first.
        slow: Columns of numbers that the kernels cannot decode.
        number_share: Share of the decoded bytes in columns of numbers, which kernels may decode.
    """

    row_bytes: float
    columns: int
    codecs: tuple[CodecFigures, ...] = ()
    slow: tuple[SlowColumns, ...] = ()
    number_share: float = 0.0


@dataclass(frozen=True, slots=True)
class ShuffleFigures:
    """The windows in which rows are shuffled.

    Attributes:
        is_shuffled: Whether the loader shuffles.
        batch_size: Rows of a batch.
        rows: Rows of the epoch.
        windows: Number of windows.
        window_rows: Most rows of a window.
        row_groups: Row groups that hold rows of the epoch.
        largest_row_group_rows: Rows of the largest.
        row_groups_per_window: Distinct row groups with rows in a window, on average.
        is_cut_by_memory: Whether windows are smaller than by default because of `memory_limit`.
        measured: The column mixed worst so far; None before the fourth window, and with images or `transform`.
        sorting: The column by which the data is sorted most, by the footers' statistics of a sample of row groups.
        score: How well the windows would mix rows sorted by a label; None without shuffling.
    """

    is_shuffled: bool
    batch_size: int
    rows: int
    windows: int
    window_rows: int
    row_groups: int
    largest_row_group_rows: int
    row_groups_per_window: float
    is_cut_by_memory: bool = False
    measured: MixingFigures | None = None
    sorting: SortingFigures | None = None
    score: MixingScore | None = None

    @property
    def window_share(self) -> float:
        """Share of the epoch's rows that a window holds."""
        return min(1.0, self.window_rows / self.rows) if self.rows else 1.0


@dataclass(frozen=True, slots=True, repr=False)
class LoaderStats:
    """Figures of the running epoch, or of the last one.

    Attributes:
        epoch: Number of the epoch.
        rows, batches: Rows and batches delivered so far.
        seconds: Time from the epoch's beginning to its end, or until now.
        wait_s: The part of `seconds` that the caller waited for batches, including the first one.
        first_batch_s: Seconds that the caller waited for the first batch.
        longest_wait_s: The longest wait for any later batch, in seconds.
        cpu_s: Processor seconds of the workers by stage: ``read`` (including decoding), ``permute``, ``gather``,
            ``process`` (images and transform).
        blocked_s: Seconds by stage that workers spent in a job without a processor: waiting for the disk, for a
            processor, or for the GIL.
        idle_s: Seconds of all workers together without a job, because the read-ahead was full.
        bytes_read: Stored bytes of the column chunks read.
        bytes_from_disk: The part of `bytes_read` from a local disk, not from the page cache; for remote files, also all
            bytes that a local cache did not hold.
        row_groups: Row groups read to their end.
        skipped_row_groups: Row groups skipped because of errors.
        held_bytes, peak_bytes: Bytes that the loader holds now, and the most that it has held, as it counts them.
        memory_limit_bytes: The limit.
        num_threads: Workers.
        remote: Figures of remote requests: requests, bytes, retries; None if files are local. `bytes_read` counts the
            column chunks that were decoded.
        growth: The change of the source since the previous epoch; None if the source cannot change.
        cache: Counters of the local cache, if there is one.
        queued_s: The part of `blocked_s`, over all stages, that workers waited for a processor (Linux); None if the
            system does not report it.
        replaced_rows: Rows with damaged media that were replaced under ``on_error="skip_row"``.
        first_replaced: The first 100 of them.
        processors: Processors that the process may use, by affinity and container quota.
        isolation: As given to the loader.
        transforms: Whether batches go through image decoding or `transform`.
        transform_workers: Processes that run `transform`, each with a thread that is not one of `num_threads`; 0 if
            threads run it.
        kernels: Why the compiled kernels are not used; "" if they are.
        max_requests: `RemoteOptions.max_requests`; None if files are local.
        storage: How the columns are stored; None in epochs too short to judge.
        shuffling: The windows in which rows are shuffled, and how well they mix.
        device: Counts of the windows permuted on a device; None if no device may permute rows.
        findings: Causes that slow the epoch or make its shuffle worse: first those of the shuffle, then by cost.
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
    growth: SourceChange | None = None
    cache: CacheStats | None = None
    remote: RemoteFigures | None = None
    queued_s: float | None = None
    replaced_rows: int = 0
    first_replaced: tuple[ReplacedRow, ...] = ()
    processors: int = 0
    isolation: str = "thread"
    transforms: bool = False
    transform_workers: int = 0
    kernels: str = ""
    max_requests: int | None = None
    storage: StorageFigures | None = None
    shuffling: ShuffleFigures | None = None
    device: DeviceFigures | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def rows_per_s(self) -> float:
        """Rows delivered per second."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def wait_share(self) -> float:
        """The share of the epoch that the caller waited."""
        return min(1.0, self.wait_s / self.seconds) if self.seconds else 0.0

    @property
    def batches_per_s(self) -> float:
        """Batches delivered per second."""
        return self.batches / self.seconds if self.seconds else 0.0

    @property
    def bytes_read_per_s(self) -> float:
        """Stored bytes of column chunks read per second."""
        return self.bytes_read / self.seconds if self.seconds else 0.0

    @property
    def busy_s(self) -> float:
        """Seconds of all workers in jobs, with or without a processor."""
        return sum(self.cpu_s.values()) + sum(self.blocked_s.values())

    @property
    def work_s(self) -> float:
        """Seconds of all workers in jobs, without waits for a processor."""
        return self.busy_s - min(self.queued_s or 0.0, sum(self.blocked_s.values()))

    @property
    def idle_share(self) -> float:
        """The share of the workers' time without a job."""
        return min(1.0, self.idle_s / (self.seconds * self.threads)) if self.seconds and self.threads else 0.0

    @property
    def threads(self) -> int:
        """All workers: `num_threads`, and one thread for each process of `transform_workers`."""
        return self.num_threads + self.transform_workers

    @property
    def is_judged(self) -> bool:
        """Whether the epoch is long enough for advice about its time: 1 second and 2 batches."""
        return self.lasted(JUDGED_FROM_S)

    def lasted(self, seconds: float) -> bool:
        """Return whether the epoch took at least this long and delivered 2 batches."""
        return self.seconds >= seconds and self.batches >= 2

    def waited_s(self, stage: str) -> float:
        """Return the seconds that jobs of a stage were blocked by disk, GIL or locks, not by busy processors."""
        blocked = sum(self.blocked_s.values())
        queued = min(self.queued_s or 0.0, blocked)
        return self.blocked_s[stage] * (1 - queued / blocked) if blocked else 0.0

    @property
    def is_fetched(self) -> bool:
        """Whether reads waited for a store rather than for a disk."""
        return self.remote is not None and self.remote.fetched_bytes > 0

    @property
    def delivery_s(self) -> float:
        """Seconds of waiting after the first batch that exceed the workers' time, and so went into slicing batches."""
        return max(0.0, self.wait_s - self.first_batch_s - self.busy_s)

    @property
    def bound_by(self) -> str:
        """The bottleneck of the epoch.

        ``"consumer"``, ``"decoding"``, ``"shuffle"``, ``"transform"``, ``"disk"``, ``"network"`` or ``"delivery"``.
        """
        if not self.batches or self.wait_share < LEAST_WAIT_SHARE:
            return "consumer"
        # A read that blocks without disk reads waits for a processor or for the GIL.
        read_s = self.waited_s("read")
        disk_s = read_s if self.bytes_from_disk > self.bytes_read // 16 and not self.is_fetched else 0.0
        busy = {
            "decoding": self.cpu_s["read"],
            "shuffle": self.cpu_s["permute"] + self.cpu_s["gather"],
            "transform": self.cpu_s["process"] + self.waited_s("process"),
            "disk": disk_s,
            "network": self.idle_s + (read_s if self.is_fetched else 0.0) if self.remote is not None else 0.0,
            "delivery": self.delivery_s if self.remote is None else 0.0,
        }
        return max(busy, key=lambda name: busy[name])

    @property
    def verdict(self) -> str:
        """One sentence about the bottleneck."""
        if not self.is_judged:
            return f"too short to judge: advice needs {JUDGED_FROM_S:.0f} s and 2 batches"
        waited = f"the loop waited {self.wait_share:.0%} of the time"
        if self.bound_by == "consumer":
            return f"loading is not the bottleneck: {waited}; the training step is"
        return f"bound by {self.bound_by}: {waited}"

    @property
    def advice(self) -> str:
        """What to change: a line for each cause, with its figures and its remedy; "" if there is none."""
        return "\n".join(finding.text for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return all figures, including derived ones, as JSON values; docs/tuning.md explains the keys."""
        plain = {field.name: _as_json(getattr(self, field.name)) for field in fields(self)}
        findings = plain.pop("findings")
        return plain | {
            "rows_per_s": self.rows_per_s,
            "batches_per_s": self.batches_per_s,
            "bytes_read_per_s": self.bytes_read_per_s,
            "wait_share": self.wait_share,
            "idle_share": self.idle_share,
            "busy_s": self.busy_s,
            "work_s": self.work_s,
            "window_share": None if self.shuffling is None else self.shuffling.window_share,
            "cache_hit_rate": None if self.cache is None else self.cache.hit_rate,
            "is_judged": self.is_judged,
            "bound_by": self.bound_by,
            "verdict": self.verdict,
            "advice": findings,
        }

    def __str__(self) -> str:
        rate = f"{self.rows_per_s:,.0f} rows/s"
        waits = f"{self.first_batch_s:.2f} s for the first batch, then at most {self.longest_wait_s * 1000:.0f} ms"
        held = f"{format_bytes(self.peak_bytes)} of {format_bytes(self.memory_limit_bytes)}"
        stages = ", ".join(f"{name} {self.cpu_s[name]:.2f}" for name in self.cpu_s)
        lines = [
            f"epoch {self.epoch}: {self.rows} rows in {self.batches} batches, {self.seconds:.2f} s, {rate}",
            f"waited {self.wait_s:.2f} s ({self.wait_share:.0%}): {waits}",
            f"{self.threads} workers, processor seconds: {stages}; blocked in reads {self.blocked_s['read']:.2f}",
            f"read {format_bytes(self.bytes_read)} in {self.row_groups} row groups; held at most {held}",
        ]
        has_changed = self.growth is not None and (self.growth.new_files or self.growth.gone_files)
        lines += [f"source: {self.growth}"] if has_changed else []
        lines += [] if self.cache is None else [str(self.cache)]
        lines += [] if self.remote is None else [str(self.remote)]
        lines += [f"kernels not used: {self.kernels}"] if self.kernels else []
        if self.skipped_row_groups:
            names = "; ".join(s.reason for s in self.skipped_row_groups[:3])
            lines.append(f"left out {len(self.skipped_row_groups)} row groups: {names}")
        if self.replaced_rows:
            first = self.first_replaced[0]
            where = f"{first.file}, row group {first.row_group}, row {first.row}, {first.reason}"
            lines.append(f"replaced {self.replaced_rows} damaged rows by others of their batches; the first: {where}")
        return "\n".join([*lines, self.verdict, *(f"- {finding.text}" for finding in self.findings)])

    __repr__ = __str__  # what a notebook shows


def with_index(stats: LoaderStats, index_bytes: int, limit_bytes: int) -> LoaderStats:
    """Return figures that include a loader's index of documents or episodes.

    Args:
        stats: The figures of its windows, whose limit is the rest of `limit_bytes`.
        index_bytes: Size of the index.
        limit_bytes: Limit of everything the loader holds.
    """
    held, peak = stats.held_bytes + index_bytes, stats.peak_bytes + index_bytes
    return replace(stats, held_bytes=held, peak_bytes=peak, memory_limit_bytes=limit_bytes)


def _as_json(value: Any) -> Any:
    """Return dataclasses and mappings as dicts, and tuples as lists."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: _as_json(part) for name, part in asdict(value).items()}
    if isinstance(value, Mapping):
        return {str(name): _as_json(part) for name, part in value.items()}
    return [_as_json(part) for part in value] if isinstance(value, tuple | list) else value
