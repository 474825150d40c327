"""Runs one epoch: takes windows from the engine, delivers their batches, and measures times."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from parquet_loader.collate import Batch, CountedOutput, DeviceFigures, Output, PermutingOutput, Pulled, rows_of
from parquet_loader.common import IntArray, is_local, is_out_of_memory, out_of_memory
from parquet_loader.engine import (
    Engine,
    EngineFigures,
    EngineRecord,
    EventLog,
    IsolatedEngine,
    KeptEngine,
    Mark,
    ProcessedBatch,
    Progress,
    ReadAhead,
    RowError,
    SampleLog,
    marking,
)
from parquet_loader.errors import LoaderStateError, ParquetLoaderError
from parquet_loader.loader.live_source import Deliveries
from parquet_loader.loader.mixing import SAMPLE_ROWS, MixingMeter, SortingFigures
from parquet_loader.loader.stats import LoaderStats, ReplacedRow, SkippedRowGroup, StorageFigures
from parquet_loader.plan import MixingScore, Plan
from parquet_loader.source import Snapshot
from parquet_loader.window import Allocator, CarriedRows, KeptWindow, StoredWindow, Window, ordered_window

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
Locate: TypeAlias = Callable[[IntArray], list[tuple[str, int, int]]]


class Epoch:
    """One epoch: its engine, its batches and its figures. Used by one thread at a time.

    `deliver` makes the caller's iterator. It is a generator, the only kind of iterator that a traceback does not keep
    alive: after SIGINT at any point, even at its entry, the caller's loop releases it, and the epoch ends.

    Args:
        engine: Reads the epoch; started by `deliver`, and closed with the epoch.
        batch_size: Rows of a batch.
        output: Makes the batches.
        pinned: Allocates page-locked memory for batches that are copied to a GPU; None if no copy needs it.
        bar: A tqdm bar, or None.
        figures: Measures times.
        locate: As `Snapshot.locate`, for errors.
        deliveries: Releases files when their last batch is delivered; None if the source does not change.
        read_ahead: The object that opened the engine during the previous epoch; None if the engine is new.
        next_epoch: Opens the next epoch during this one. The loader keeps it, unless this epoch ends early.
    """

    def __init__(
        self,
        engine: EpochEngine,
        batch_size: int,
        output: Output,
        pinned: Allocator | None,
        bar: Any,
        figures: EpochFigures,
        locate: Locate,
        deliveries: Deliveries | None,
        read_ahead: ReadAhead[Any] | None = None,
        next_epoch: ReadAhead[Any] | None = None,
    ) -> None:
        self.figures = figures
        self._is_over = False
        self._cut_short: str | None = None
        self._ending = threading.RLock()
        self._pid = os.getpid()
        self._engine = engine
        self._bar = bar
        self._batches = output.delivered(_pull(engine, output, batch_size, pinned, figures, locate))
        if isinstance(output, PermutingOutput) and (output.permutes or output.decodes):
            figures.device = output.figures
        if isinstance(output, CountedOutput):
            figures.pulled = output.pulled
        self._deliveries = deliveries
        self._read_ahead = read_ahead
        self._next_epoch = next_epoch

    def deliver(self) -> Iterator[Batch]:
        """Start the engine, and return the iterator over the batches; call it once.

        The engine's threads do not refer to the iterator, so they end when it is released: by `break`, an exception, or
        the exit of the interpreter.

        Raises:
            LoaderStateError: another thread has ended the epoch meanwhile.
            Exception: the engine cannot be started.
        """
        delivering = self._deliver()
        self._finalizer = weakref.finalize(delivering, self.close, waits=False)
        try:
            if self._read_ahead is not None:
                self._read_ahead.release()
            self._engine.start()
        except BaseException as error:  # such as SIGINT, whose traceback would keep the iterator alive
            self.close()
            if isinstance(error, Exception):
                self._check_not_cut_short()
            raise
        return delivering

    def _deliver(self) -> Iterator[Batch]:
        try:
            mark: Mark[Batch | None] | None = marking()
            while (batch := self._next() if mark is None else mark("next batch", self._next)) is not None:
                yield batch
                del batch  # so that it is not kept alive during the wait for the next one
        finally:
            self.close(waits=False)
            self._finalizer.detach()

    def _next(self) -> Batch | None:
        """Return the next batch, or None at the end.

        Raises:
            LoaderStateError: The epoch was ended early, or began before a fork.
            Exception: An error of a background job, raised instead of the batch that failed.
        """
        if self._pid != os.getpid():
            raise LoaderStateError("this epoch began before fork(); call iter(loader) to begin one in this process")
        self._check_not_cut_short()
        self.figures.begin_wait()
        try:
            batch = next(self._batches, None)
        except Exception as error:
            self._check_not_cut_short()
            if is_out_of_memory(error) and not isinstance(error, ParquetLoaderError):
                raise out_of_memory(f"epoch {self.figures.epoch}, batch {self.figures.next_batch}", error) from error
            is_delivered = self.figures.next_batch >= self.figures.plan.batches
            if not (is_delivered and isinstance(error, LoaderStateError)):
                raise
            batch = None  # another thread has begun the next epoch after this one's last batch
        if batch is None:  # the epoch is over, or another thread has ended it meanwhile
            self._check_not_cut_short()
        self.figures.end_wait(0 if batch is None else rows_of(batch))
        self.figures.is_complete = batch is None
        if self._deliveries is not None:
            self._deliveries.after(self.figures.next_batch)
        if self._bar is not None and batch is not None:
            self._bar.update()
        return batch

    def _check_not_cut_short(self) -> None:
        if self._cut_short is not None:
            figures = self.figures
            raise LoaderStateError(f"epoch {figures.epoch}, batch {figures.next_batch}: {self._cut_short}")

    @property
    def is_here(self) -> bool:
        """Whether the epoch is running in this process."""
        return not self._is_over and self._pid == os.getpid()

    def close(self, cut_short: str | None = None, *, waits: bool = True) -> None:
        """End the epoch and its threads; idempotent, and safe in any thread and in a forked child.

        Args:
            cut_short: The error message for later requests of batches; None if the epoch is at its end.
            waits: Whether to wait if another thread is already ending the epoch. A finaliser must not wait, because it
                may run in one of the threads that are joined.
        """
        if self._is_over:
            return
        if cut_short is not None:
            self._cut_short = cut_short
            if self.figures.pulled is not None:
                self.figures.pulled.cut()
        if not self._ending.acquire(blocking=waits):
            return
        try:
            self._end()
        except BaseException:  # such as SIGINT
            self._end()
            raise
        finally:
            self._ending.release()

    def _end(self) -> None:
        if self._is_over:
            return
        self._engine.close()
        self.figures.stop()
        if self._next_epoch is not None:
            if self.figures.has_delivered_all:
                self._next_epoch.go_on_alone()
            else:
                self._next_epoch.drop()
        if self._deliveries is not None:
            self._deliveries.close()
        if self._bar is not None:
            self._bar.close()
        if self.is_here:  # a forked process cannot free memory that a GPU used: torch would end the process
            self._batches = iter(())
            self.figures.mixing.finish()
        self._is_over = True


def _pull(
    engine: EpochEngine,
    output: Output,
    batch_size: int,
    pinned: Allocator | None,
    figures: EpochFigures,
    locate: Locate,
) -> Iterator[Batch]:
    permuting = output if isinstance(output, PermutingOutput) else None  # once, because protocols are slow to check
    decodes = permuting is not None and permuting.decodes
    while engine.processes and (made := deque(engine.next_batches())):
        while made:  # `popleft`, so that no batch is kept alive after its delivery
            yield _from_batch(output, made.popleft(), pinned, locate, decodes=decodes)
    carried = CarriedRows()
    while not engine.processes and (window := engine.next_window()) is not None:
        figures.observe(window, batch_size)
        if isinstance(window, Window):
            batches = output.from_window(window, batch_size, pinned)
        elif isinstance(window, KeptWindow):
            assert permuting is not None
            batches = permuting.from_kept(window, batch_size)
        elif permuting is not None:
            batches = permuting.from_stored(window, batch_size, pinned, carried)
        else:  # an output of another format, such as to_tf()
            ordered = ordered_window(window, carried)
            batches = output.from_window(ordered, batch_size, pinned) if ordered.rows else iter(())
            del ordered
        del window
        for number, batch in enumerate(batches):
            if number == 1:
                engine.release_previous()
            yield batch
            del batch  # so that the window is not kept alive during the wait for the next one
            figures.mixing.go_on()


def _from_batch(
    output: Output, made: ProcessedBatch, pinned: Allocator | None, locate: Locate, *, decodes: bool
) -> Batch:
    """Return a processed batch; with `decodes`, the output decodes its images, if they are still encoded."""
    try:
        return output.from_batch(made if decodes else made.decoded(), pinned)
    except RowError as error:
        raise error.located(locate) from error.__cause__


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
        self._is_measured = mixing is not None or not plan.shuffle
        # Computed once, when they are requested.
        self.storage: StorageFigures | None = None
        self.sorting: SortingFigures | None = None
        self.score: MixingScore | None = None
        self.knows_sorting = False
        # Counts where rows are permuted, if a device may permute them; set when the batches begin.
        self.device: DeviceFigures | None = None
        self.first_batch = first_batch
        # Counts the batches that a framework cuts from windows; it may be ahead of `_batches`.
        self.pulled: Pulled | None = None
        self.was_asked = False
        self.is_complete = False
        self._skipped = skipped
        self._engine: EpochEngine | None = engine
        self._account = EngineFigures.nothing()
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
        self._asked = self._began
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
        """Whether all batches were delivered; an epoch with skipped row groups has fewer, and tells its end."""
        return self.is_complete or self.is_done(self.plan.batches)

    def is_done(self, batches: int) -> bool:
        """Whether all of an epoch's `batches` were delivered."""
        return self.was_asked and self.next_batch >= batches

    @property
    def left_out(self) -> int:
        """Row groups left out in this epoch."""
        return len((self._account if self._engine is None else self._engine.account()).skipped)

    def observe(self, window: Window | StoredWindow | KeptWindow, batch_size: int) -> None:
        """Begin to measure the mixing of a window that is about to be delivered, unless its rows are on a device."""
        if self._is_measured or isinstance(window, KeptWindow):
            return
        if window.rows > (window.carried if isinstance(window, StoredWindow) else 0):
            arrays = window.arrays if isinstance(window, Window) else window.last(SAMPLE_ROWS)
            self.mixing.observe(arrays, max(1, window.rows // batch_size))

    def begin_wait(self) -> None:
        """Record that the caller requests a batch."""
        self.was_asked = True
        self._asked = time.perf_counter()

    def end_wait(self, rows: int) -> None:
        """Record that the caller has a batch; 0 rows mean the end of the epoch."""
        waited = time.perf_counter() - self._asked
        self._wait_s += waited
        if rows:
            self._rows += rows
            self._batches += 1
            if self._batches == 1:
                self._first_wait_s = waited
            else:
                self._longest_wait_s = max(self._longest_wait_s, waited)
        if waited >= RECORDED_WAIT_S:
            self._waits.add(self._asked, waited, 0.0, 0, 0)
        if self._asked + waited >= self._progress.due or not rows:
            self._progress.add(Progress(self._asked + waited, self._rows, self._batches, self._wait_s))

    def stop(self) -> None:
        """Record the end of the epoch."""
        if self._engine is not None:
            self._record = self._engine.record()
            self._account, self._engine = self._engine.account(), None
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
        account = self._account if engine is None else engine.account()
        seconds = (self._stopped or time.perf_counter()) - self._began
        busy_s = sum(account.cpu_s.values()) + sum(account.blocked_s.values())
        footers_bytes = account.footers_bytes + snapshot.footers.held_bytes
        left_out = (*self._skipped, *account.skipped)
        row_groups = ((snapshot.row_group(index), reason) for index, reason in left_out)
        skipped = (SkippedRowGroup(group.file.name, group.number, reason) for group, reason in row_groups)
        origins = snapshot.locate(np.array([row.number for row in account.replaced], np.int64))
        replaced = (ReplacedRow(*origin, row.reason) for origin, row in zip(origins, account.replaced, strict=True))
        return LoaderStats(
            epoch=self.epoch,
            rows=self._rows + (batches - self._batches) * self.plan.batch_size,
            batches=batches,
            seconds=seconds,
            wait_s=self._wait_s,
            first_batch_s=self._first_wait_s,
            longest_wait_s=self._longest_wait_s,
            cpu_s=account.cpu_s,
            blocked_s=account.blocked_s,
            idle_s=max(0.0, seconds * (self._num_threads + self._transform_workers) - busy_s),
            bytes_read=account.bytes_read,
            bytes_from_disk=_fetched_bytes(account, is_local=is_local(snapshot.filesystem)),
            row_groups=account.row_groups,
            skipped_row_groups=tuple(skipped),
            replaced_rows=account.replaced_rows,
            first_replaced=tuple(replaced),
            held_bytes=account.held_bytes + footers_bytes,
            peak_bytes=account.peak_bytes + footers_bytes,
            memory_limit_bytes=memory_limit_bytes,
            num_threads=self._num_threads,
            transform_workers=self._transform_workers,
            cache=account.cache,
            remote=account.remote,
            queued_s=account.queued_s,
            device=None if self.device is None else self.device.copied_now(),
        )


def _fetched_bytes(account: EngineFigures, *, is_local: bool) -> int:
    """Return the bytes that came from a local disk or from a remote store."""
    if is_local:
        return account.disk_bytes
    if account.cache is None:
        return account.bytes_read
    return min(account.bytes_read, account.cache.bytes_fetched + account.disk_bytes)
