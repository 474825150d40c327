"""Measures an epoch: the times of its caller, and the figures of its workers."""

from __future__ import annotations

import time
from typing import NamedTuple, TypeAlias

import numpy as np

from parquet_loader.collate import DeviceFigures, Pulled
from parquet_loader.common import is_local
from parquet_loader.engine import (
    Engine,
    EngineFigures,
    EngineRecord,
    EventLog,
    IsolatedEngine,
    KeptEngine,
    Progress,
    SampleLog,
)
from parquet_loader.loader.mixing import SAMPLE_ROWS, MixingMeter, SortingFigures
from parquet_loader.loader.stats import LoaderStats, ReplacedRow, SkippedRowGroup, StorageFigures
from parquet_loader.plan import MixingScore, Plan
from parquet_loader.source import Snapshot
from parquet_loader.window import KeptWindow, StoredWindow, Window

# To cut a batch takes about this long, so shorter waits say nothing about reading.
RECORDED_WAIT_S = 1e-4


class EpochRecord(NamedTuple):
    """The times and counters of an epoch, for its report; times are seconds of `time.perf_counter`.

    Attributes:
        began, ended: The epoch's beginning, and its end or now.
        engine: Jobs and samples of the workers.
        waits: The consumer's waits of at least `RECORDED_WAIT_S`, for `events_of`.
        progress: The consumer's progress over time.
        batches: Batches delivered.
    """

    began: float
    ended: float
    engine: EngineRecord
    waits: bytes
    progress: tuple[Progress, ...]
    batches: int


EpochEngine: TypeAlias = Engine | IsolatedEngine | KeptEngine
"""Reads an epoch in this process or another one, or computes one whose rows are on a device; see `Engine`."""


class EpochFigures:
    """Measures the caller's times, and collects the workers' figures. Outlives the epoch.

    Args:
        plan: The plan of the epoch.
        engine: Reads the epoch.
        num_threads: Number of workers.
        transform_workers: Number of further workers, which serve processes.
        skipped: Row groups left out before the epoch began.
        first_batch: Number of the first batch delivered.
        mixing: The result of an earlier, complete epoch of the same data; None to measure it in this epoch.
    """

    def __init__(
        self,
        plan: Plan,
        engine: EpochEngine,
        num_threads: int,
        transform_workers: int,
        skipped: tuple[tuple[int, str], ...],
        first_batch: int,
        mixing: MixingMeter | None,
    ) -> None:
        self.plan = plan
        self.epoch = plan.epoch
        self.mixing = mixing or MixingMeter()
        self._is_mixing_known = mixing is not None or not plan.shuffle
        # `diagnosed` computes these once for an epoch: `storage`, and if not `knows_sorting`, `sorting` and `score`.
        self.storage: StorageFigures | None = None
        self.sorting: SortingFigures | None = None
        self.score: MixingScore | None = None
        self.knows_sorting = False
        # Where rows were permuted; set by `Epoch`, if a device may permute them.
        self.device: DeviceFigures | None = None
        self.first_batch = first_batch
        # Counts the batches that a framework cuts from windows; it may be ahead of `_batches`. Set by `Epoch`.
        self.pulled: Pulled | None = None
        # Whether the caller has requested a batch; and the end of the epoch, after all batches.
        self.was_requested = False
        self.is_complete = False
        self._skipped = skipped
        self._engine: EpochEngine | None = engine
        self._engine_figures = EngineFigures.nothing()
        self._record = EngineRecord()
        self._waits = EventLog()
        self._progress = SampleLog[Progress]()
        self._num_threads = num_threads
        self._transform_workers = transform_workers
        self._rows = 0
        self._batches = 0
        self._wait_s = 0.0
        self._first_wait_s = 0.0
        self._longest_wait_s = 0.0
        self._began = time.perf_counter()
        self._requested_at = self._began
        self._stopped: float | None = None

    @property
    def next_batch(self) -> int:
        """The number of the batch after the last one delivered."""
        return self.first_batch + self.batches

    @property
    def batches(self) -> int:
        """Batches delivered."""
        return self._batches if self.pulled is None else max(self._batches, self.pulled.batches)

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and number of the next batch; of the next epoch if this one is over."""
        return (self.epoch + 1, 0) if self.is_complete else (self.epoch, self.next_batch)

    @property
    def has_delivered_all(self) -> bool:
        """Whether all batches were delivered; with skipped row groups there are fewer than planned."""
        return self.is_complete or self.is_done(self.plan.batches)

    def is_done(self, batches: int) -> bool:
        """Whether all of an epoch's `batches` were delivered."""
        return self.was_requested and self.next_batch >= batches

    @property
    def left_out(self) -> int:
        """Row groups left out in this epoch."""
        return len((self._engine_figures if self._engine is None else self._engine.figures()).skipped)

    def observe(self, window: Window | StoredWindow | KeptWindow, batch_size: int) -> None:
        """Begin to measure the mixing of a window that is about to be delivered, unless its rows are on a device."""
        if self._is_mixing_known or isinstance(window, KeptWindow):
            return
        if window.rows > (window.carried if isinstance(window, StoredWindow) else 0):
            arrays = window.arrays if isinstance(window, Window) else window.last(SAMPLE_ROWS)
            self.mixing.observe(arrays, max(1, window.rows // batch_size))

    def begin_wait(self) -> None:
        """Record that the caller requests a batch."""
        self.was_requested = True
        self._requested_at = time.perf_counter()

    def end_wait(self, rows: int) -> None:
        """Record that the caller has a batch; 0 rows mean the end of the epoch."""
        waited = time.perf_counter() - self._requested_at
        self._wait_s += waited
        if rows:
            self._rows += rows
            self._batches += 1
            if self._batches == 1:
                self._first_wait_s = waited
            else:
                self._longest_wait_s = max(self._longest_wait_s, waited)
        if waited >= RECORDED_WAIT_S:
            self._waits.add(self._requested_at, waited, 0.0, 0, 0)
        if self._requested_at + waited >= self._progress.due or not rows:
            self._progress.add(Progress(self._requested_at + waited, self._rows, self._batches, self._wait_s))

    def stop(self) -> None:
        """Record the end of the epoch."""
        if self._engine is not None:
            self._record = self._engine.record()
            self._engine_figures, self._engine = self._engine.figures(), None
        if self._stopped is None:
            self._stopped = time.perf_counter()

    def record(self) -> EpochRecord:
        """Return what was recorded so far."""
        engine = self._record if self._engine is None else self._engine.record()
        ended = self._stopped or time.perf_counter()
        return EpochRecord(self._began, ended, engine, self._waits.packed(), tuple(self._progress.copy()), self.batches)

    def stats(self, snapshot: Snapshot, memory_limit_bytes: int) -> LoaderStats:
        """Return the figures so far."""
        engine = self._engine  # another thread may end the epoch now
        batches = self.batches
        figures = self._engine_figures if engine is None else engine.figures()
        seconds = (self._stopped or time.perf_counter()) - self._began
        busy_s = sum(figures.cpu_s.values()) + sum(figures.blocked_s.values())
        footers_bytes = figures.footers_bytes + snapshot.footers.held_bytes
        left_out = (*self._skipped, *figures.skipped)
        row_groups = ((snapshot.row_group(index), reason) for index, reason in left_out)
        skipped = (SkippedRowGroup(group.file.name, group.number, reason) for group, reason in row_groups)
        origins = snapshot.locate(np.array([row.number for row in figures.replaced], np.int64))
        replaced = (ReplacedRow(*origin, row.reason) for origin, row in zip(origins, figures.replaced, strict=True))
        return LoaderStats(
            epoch=self.epoch,
            rows=self._rows + (batches - self._batches) * self.plan.batch_size,
            batches=batches,
            seconds=seconds,
            wait_s=self._wait_s,
            first_batch_s=self._first_wait_s,
            longest_wait_s=self._longest_wait_s,
            cpu_s=figures.cpu_s,
            blocked_s=figures.blocked_s,
            idle_s=max(0.0, seconds * (self._num_threads + self._transform_workers) - busy_s),
            bytes_read=figures.bytes_read,
            bytes_from_disk=_fetched_bytes(figures, is_local=is_local(snapshot.filesystem)),
            row_groups=figures.row_groups,
            skipped_row_groups=tuple(skipped),
            replaced_rows=figures.replaced_rows,
            first_replaced=tuple(replaced),
            held_bytes=figures.held_bytes + footers_bytes,
            peak_bytes=figures.peak_bytes + footers_bytes,
            memory_limit_bytes=memory_limit_bytes,
            num_threads=self._num_threads,
            transform_workers=self._transform_workers,
            cache=figures.cache,
            remote=figures.remote,
            queued_s=figures.queued_s,
            device=None if self.device is None else self.device.copied_now(),
        )


def _fetched_bytes(figures: EngineFigures, *, is_local: bool) -> int:
    """Return the bytes that came from a local disk or from a remote store."""
    if is_local:
        return figures.disk_bytes
    if figures.cache is None:
        return figures.bytes_read
    return min(figures.bytes_read, figures.cache.bytes_fetched + figures.disk_bytes)
