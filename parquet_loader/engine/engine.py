"""The background reader: worker threads read, shuffle and process ahead of the consumer, within a memory budget.

Order. Jobs finish in any order. Windows (or batches, if each is processed) are delivered in order. An error is
delivered instead of the window or batch that failed, so everything before it is still delivered.

Memory. `Usage.held_bytes` counts reads in flight, decoded slices, windows, open cursors and batches. The window that
the consumer needs next may always continue, with at least one read; later windows wait for free space. A wrong estimate
may slow read-ahead. It never changes the order and never blocks the consumer.

Release. A window counts as held until the consumer asks for the second batch of the next window. Only then has the
consumer's loop released the window's last batch, and its memory can be reused.

The lock of `WorkerPool` guards all state. No thread does I/O, computes or blocks while it holds the lock; the only wait
is for a change of that state.

Next epoch. When the last window is being ordered, `ReadAhead` opens the engine of the next epoch, which shares the
threads and the lock of this one. Until `start` begins its epoch, that engine reads only one window and makes only the
first batches, only in memory that this engine leaves free, with threads that have no job of this engine, and calls
neither `transform` nor a tokenizer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from parquet_loader.common import wait_for_lock
from parquet_loader.dataset import SHARE_READS, SHARE_VIDEOS, SHARE_WINDOWS, Dataset
from parquet_loader.engine.batch_processor import BatchProcessor, ProcessedBatch, Transform
from parquet_loader.engine.batch_scheduler import Batches, BatchScheduler
from parquet_loader.engine.child.packed_transform import PackedTransform
from parquet_loader.engine.child.transforms import TransformLane, TransformProcesses
from parquet_loader.engine.prefault import Prefault
from parquet_loader.engine.read_ahead import ReadAhead
from parquet_loader.engine.read_scheduler import ReadScheduler
from parquet_loader.engine.referenced_files import files_named_by
from parquet_loader.engine.transform_results import RowsOut
from parquet_loader.engine.usage import EngineFigures, Usage
from parquet_loader.engine.window_task import WindowTask
from parquet_loader.engine.workers.epoch_workers import EpochWorkers, Job
from parquet_loader.engine.workers.record import EngineRecord, Sample
from parquet_loader.errors import LoaderStateError
from parquet_loader.plan import Plan
from parquet_loader.read import CacheStats
from parquet_loader.window import (
    Allocator,
    Arenas,
    Assembly,
    BufferSizes,
    ColumnGroups,
    Remainder,
    StoredWindow,
    Window,
)

# Windows in progress or ready, in addition to the consumer's. With one, threads would idle while others read the last
# row groups of a window: with two threads and rows of 16 KiB, an epoch would take 1.04 to 1.08 times as long.
WINDOWS_AHEAD = 2
# Before an epoch begins, jobs for its batches begin while fewer batches have begun.
BATCHES_READ_AHEAD = 2

_Finished: TypeAlias = tuple[Window | StoredWindow, Remainder]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a loader's epochs are read; plain values that can be sent between processes.

    Attributes:
        transform: The caller's function, or None; a `PackedTransform` if processes call it.
        seed: Seed of the generator passed to `transform`.
        num_threads: Number of worker threads.
        skips: Whether a row group that cannot be read is skipped; if not, its error is raised.
        transform_workers: Number of processes that call `transform`; 0 if the worker threads call it.
        rows_out: How many rows `transform` returns; None if it returns as many as it gets.
        replaces: Whether a row with damaged media is replaced by another row of its batch; if not, its error is raised.
        device_permutes: Whether a device permutes windows that are delivered whole; they are `StoredWindow`s.
        device_decodes: Whether a device decodes the images that it can decode; they stay encoded, see `BatchProcessor`.
    """

    transform: Transform | None
    seed: int
    num_threads: int
    skips: bool
    transform_workers: int = 0
    rows_out: RowsOut | None = None
    replaces: bool = False
    device_permutes: bool = False
    device_decodes: bool = False


def transform_processes(options: EngineOptions, *, is_nested: bool = False) -> TransformProcesses | None:
    """Return the processes that call `transform`, not started yet; None if threads call it."""
    if not options.transform_workers:
        return None
    assert isinstance(options.transform, PackedTransform)
    return TransformProcesses(options.transform, options.transform_workers, is_nested=is_nested)


class Engine:
    """Reads one epoch in the background.

    Args:
        dataset: The data set.
        plan: The epoch.
        options: How to read it.
        first_batch: The batch with which the epoch begins.
        allocator: Provides the memory of delivered rows.
        staging: Provides the memory in which rows are staged.
        is_first: Whether this is the loader's first epoch: its memory is not faulted in yet, and page faults make its
            windows several times slower. With local files, the first batch then also waits for the second window, so
            that no later batch has to wait.
        batches: Opens the `Batches` that make batches in the workers, given the counters of the epoch. None for a
            `BatchScheduler` if media are decoded or a `transform` is called; otherwise windows are delivered whole.
        transforms: Processes that make batches; None if the worker threads make them.
        scattered: Ragged columns that `batches` take ungathered; see `Window.scattered`.
    """

    def __init__(
        self,
        dataset: Dataset,
        plan: Plan,
        options: EngineOptions,
        *,
        first_batch: int,
        allocator: Allocator,
        staging: Arenas,
        is_first: bool,
        batches: Callable[[Usage], Batches] | None = None,
        transforms: TransformProcesses | None = None,
        scattered: Sequence[str] = (),
    ) -> None:
        reader, sizing, num_threads = dataset.reader, dataset.sizing, options.num_threads
        lanes: list[TransformLane] = []
        processor: BatchProcessor | None = None
        if batches is None and BatchProcessor.is_needed(reader.columns, options.transform):
            processor = _processor_of(dataset, plan, options)
            lanes = [] if transforms is None else transforms.lanes(processor)
            if not lanes and not options.device_decodes:  # processes and devices get copies, of adjoining rows
                scattered = [column.name for column in reader.columns if column.image is not None]
        # The previous epoch may use these processes until `start`.
        self._transforms = transforms
        self._uses_transforms = False
        self._has_lanes = bool(lanes)
        self.usage = Usage(int(sizing.limit_bytes * (SHARE_WINDOWS + SHARE_READS)))
        self.workers = EpochWorkers(
            self._choose, num_threads, self._sample, [partial(self._choose_batch, lane) for lane in lanes]
        )
        if processor is not None:
            given = (processor, dataset, plan, first_batch, allocator)
            batches = partial(BatchScheduler, *given, wake=self.workers.wake, lanes=len(lanes))
        self._plan = plan
        self._reader = reader
        self._cache_before = reader.chunks.cache_figures()
        self._sizing = sizing
        self._allocator = allocator
        self._columns = ColumnGroups.from_columns(
            reader.columns,
            2 * num_threads,
            device_permutes=options.device_permutes and batches is None,
            scattered=scattered,
        )
        # Remote reads are slower than page faults, so there is no need to wait for a second window.
        self._waits_for_second = is_first and batches is None and reader.chunks.remote is None
        # The first remote bytes take a while to arrive: time to pre-fault the first window's memory.
        self._prefaults_first = is_first and reader.chunks.remote is not None
        self._prefault: Prefault | None = None
        capacity = sizing.window_capacity(plan)
        ragged_bytes = {name: int(1.05 * width * capacity) for name, width in sizing.row.ragged}
        self._buffer_sizes = BufferSizes(capacity, ragged_bytes, staging, allocator)
        self._windows: deque[WindowTask] = deque()
        self._delivered: deque[WindowTask] = deque()
        self._is_awaited = False
        # The first window delivers only rows from `first_batch` on, so no rows have to be carried to it.
        self._first_window, self._begun_rows = plan.beginning_of(first_batch) if first_batch else (plan.start_window, 0)
        self._admitted = self._first_window
        self._reads = ReadScheduler(
            dataset, plan, self.usage, self.workers, self._windows, first_window=self._first_window, skips=options.skips
        )
        self._cache_figures: CacheStats | None = None
        # Whether this epoch is read ahead, and the engine of the running epoch meanwhile.
        self._is_ahead = False
        self._before: Engine | None = None
        # The epoch that this engine reads ahead.
        self._next: ReadAhead[Engine] | None = None
        self._remainder: Remainder | None = Remainder()
        self._next_to_order = self._first_window
        self._batches = None if batches is None else batches(self.usage)

    @property
    def processes(self) -> bool:
        """Whether `next_batches` returns processed batches; if not, `next_window` returns windows."""
        return self._batches is not None

    @property
    def plan(self) -> Plan:
        """The epoch."""
        return self._plan

    @property
    def is_sound(self) -> bool:
        """Whether nothing has failed and the engine is not closed."""
        with self.workers.lock:
            is_open = self.workers.broken is None and not self.workers.is_closing
            has_failed = self._batches is not None and self._batches.has_failed
            return is_open and not has_failed and all(window.error is None for window in self._windows)

    def set_next(self, next_epoch: ReadAhead[Engine]) -> None:
        """Set the epoch to read ahead when this engine has nothing left to read; call this before `start`."""
        self._next = next_epoch

    def start_ahead(self, before: Engine) -> None:
        """Share the workers of the running epoch; until `start` they read the first window into memory that it leaves.

        Raises:
            LoaderStateError: The running epoch has ended meanwhile.
        """
        self._is_ahead, self._before = True, before
        self.usage.before, before.usage.after = before.usage, self.usage
        self.workers.share(before.workers)
        self._reads.start(only_first=True)
        self.workers.start()

    def start(self) -> None:
        """Begin the epoch: start the workers, or let them continue if they read ahead."""
        if self._transforms is not None:
            self._uses_transforms = True
            self._transforms.start(self._sizing.windows_and_batches_bytes)
        if not self._is_ahead:
            self._reads.start()
            self.workers.start()
            return
        with self.workers.lock:
            self._is_ahead, self._before, self.usage.before = False, None, None
            self._reads.fetch_all()
            self.workers.notify()

    def go_on_alone(self) -> None:
        """Read ahead with all memory, because the previous epoch has ended and uses none."""
        with self.workers.lock:
            self._before = self.usage.before = None
            self.workers.notify()

    def close(self) -> None:
        """End the workers and release all memory; idempotent, and safe in any thread and in a forked child."""
        self._reads.stop()
        ended = self._interrupted_transforms()
        has_ended = self.workers.close()
        if ended is not None:
            ended.end()
        self._reads.close(workers_have_ended=has_ended)
        if self._before is not None:  # this epoch never began
            self._before.usage.after = None
        self._before = self._next = self.usage.after = None
        if not has_ended:
            return
        self._windows.clear()
        self._delivered.clear()
        self._prefault = None
        if self._batches is not None:
            self._batches.clear()

    def _interrupted_transforms(self) -> TransformProcesses | None:
        """Kill the processes that call `transform` if the epoch is not over; return them, for the caller to end."""
        transforms, is_used = self._transforms, self._uses_transforms
        self._transforms, self._uses_transforms = None, False
        if transforms is None or not is_used:
            return None
        with self.workers.lock:
            is_over = self._is_over()
        if is_over:
            return None
        self.workers.stop()  # first, so that no error of a killed process is delivered
        transforms.kill()
        return transforms

    def figures(self, footers_bytes: int = 0) -> EngineFigures:
        """Return the figures of the epoch so far; in a running epoch they may differ by the work of one job."""
        usage, times, remote = self.usage, self.workers.times, self._reads.remote_figures
        return EngineFigures(
            cpu_s={str(stage): seconds for stage, seconds in times.cpu_s.items()},
            blocked_s={str(stage): seconds for stage, seconds in times.blocked_s.items()},
            disk_bytes=times.disk_bytes,
            bytes_read=usage.bytes_read,
            row_groups=usage.row_groups,
            skipped=tuple(usage.skipped),
            replaced_rows=usage.replaced_rows,
            replaced=tuple(usage.replaced),
            held_bytes=usage.held_bytes,
            peak_bytes=usage.peak_bytes,
            footers_bytes=footers_bytes,
            cache=self._cache_figures or self._reader.chunks.cache_figures(self._cache_before),
            remote=None if remote is None else replace(remote),
            queued_s=self.workers.queued_s,
        )

    def record(self) -> EngineRecord:
        """Return the record of jobs and samples so far; takes no lock, because a finaliser may call it."""
        jobs, samples = self.workers.jobs, self.workers.samples
        return EngineRecord(jobs.packed(), tuple(samples.copy()), jobs.added)

    def take_record(self) -> EngineRecord:
        """Return the record of jobs and samples since the last call, and forget it."""
        with self.workers.lock:
            jobs, samples = self.workers.jobs, self.workers.samples
            return EngineRecord(jobs.take(), tuple(samples.take()), jobs.added)

    def _sample(self, now: float) -> Sample:
        usage, times, remote = self.usage, self.workers.times, self._reads.remote_figures
        ready = sum(window.phase == "ready" for window in self._windows)
        return Sample(
            at=now,
            cpu_s=tuple(times.cpu_s.values()),
            blocked_s=tuple(times.blocked_s.values()),
            held_bytes=usage.held_bytes,
            ready=ready if self._batches is None else self._batches.ready,
            bytes_read=usage.bytes_read,
            requests=0 if remote is None else remote.requests,
            fetched_bytes=0 if remote is None else remote.fetched_bytes,
        )

    # ------------------------------------------------------------------ the consumer's side

    def next_window(self) -> Window | StoredWindow | None:
        """Wait for the next window that has rows or is stored, and return it; None at the end of the epoch.

        Raises:
            LoaderStateError: The engine was closed meanwhile.
            BaseException: The error of a job of the window.
        """
        while True:
            with self.workers.lock:
                self._release_all_but(keep=1)
                self._check_open()
                if self._is_next_ready():
                    self._is_awaited = self._waits_for_second = False
                    if not self._windows:
                        return None
                    if self._windows[0].error is not None:
                        raise self._windows[0].error
                    window = self._windows[0].window
                    assert window is not None
                    self._delivered.append(self._windows.popleft())
                    self.workers.notify()
                    if window.rows or isinstance(window, StoredWindow):  # a device may keep its rows
                        return window
                    continue
                if not self._is_awaited:
                    self._is_awaited = True
                    self.workers.notify()
                # Other changes would only wake the consumer to wait again.
                waker = self.workers.waker(self._ends_wait)
            wait_for_lock(waker)

    def coming_window(self, *, waits: bool) -> Window | StoredWindow | None:
        """Return the window that `next_window` returns next; None if it is not ready, or raises an error.

        Args:
            waits: Whether to wait for it. Call `release_previous` before, so that no job waits for the consumer.
        """
        while True:
            with self.workers.lock:
                if not waits or self._ends_wait():
                    is_sound = self.workers.broken is None and not self.workers.is_closing
                    first = self._windows[0] if self._windows and is_sound and self._is_next_ready() else None
                    window = None if first is None or first.error is not None else first.window
                    return window if isinstance(window, StoredWindow) or (window and window.rows) else None
                waker = self.workers.waker(self._ends_wait)
            wait_for_lock(waker)

    def _ends_wait(self) -> bool:
        return self.workers.is_closing or self.workers.broken is not None or self._is_next_ready()

    def release_previous(self) -> None:
        """Say that the consumer has released all batches before the current window's."""
        with self.workers.lock:
            self._release_all_but(keep=1)

    def next_batches(self) -> Sequence[ProcessedBatch]:
        """Wait for the next processed batches and return them; none at the end of the epoch. See `next_window`."""
        assert self._batches is not None
        while True:
            with self.workers.lock:
                self._check_open()
                if batches := self._batches.pop():
                    self.workers.notify()
                    return batches
                if self._batches.is_idle:
                    if self._is_over():
                        return ()
                    if self._windows and self._windows[0].error is not None:
                        raise self._windows[0].error
                waker = self.workers.waker(self._ends_wait_for_batches)
            wait_for_lock(waker)

    def _ends_wait_for_batches(self) -> bool:
        assert self._batches is not None
        if self.workers.is_closing or self.workers.broken is not None or self._batches.is_next_ready:
            return True
        return self._batches.is_idle and (self._is_over() or bool(self._windows and self._windows[0].error is not None))

    def _is_over(self) -> bool:
        """Whether all batches were delivered, if they are processed one by one."""
        is_idle = self._batches is None or self._batches.is_idle
        return is_idle and not self._windows and self._admitted == self._plan.windows

    def _check_open(self) -> None:
        if self.workers.broken is not None:
            raise self.workers.broken
        if self.workers.is_closing:
            raise LoaderStateError("the loader was closed while a batch was awaited")

    def _is_next_ready(self) -> bool:
        """Whether `next_window` need not wait: there is a window or its error, or the epoch is at its end."""
        if not self._windows:
            return self._admitted == self._plan.windows
        first = self._windows[0]
        if not first.is_ready_or_failed:
            return False
        if first.error is not None or not self._waits_for_second:
            return True
        return self._windows[1].is_ready_or_failed if len(self._windows) > 1 else self._admitted == self._plan.windows

    def _release_all_but(self, keep: int) -> None:
        """Release all delivered windows except the last `keep`."""
        while len(self._delivered) > keep:
            self.usage.reserve(-self._delivered.popleft().held_bytes)
            self.workers.notify()

    # ------------------------------------------------------------------ choosing what to do

    def _choose(self) -> Job | None:  # type: ignore[type-arg]
        """Return the most urgent job that may start: batches first, then windows in their order."""
        if self._batches is not None and not self._has_lanes and self._may_make(self._batches):
            job = self._taking_windows(self._batches.job)
            if job is not None:
                return job
        most = WINDOWS_AHEAD
        if self._is_ahead:
            most = 1 if self._admitted == self._first_window else 0
        if self._admitted < self._plan.windows and len(self._windows) < most:
            self._windows.append(self._admit())
        # The last window for which the consumer waits.
        self._reads.step(self._windows[0].index + self._waits_for_second if self._windows else self._admitted)
        owed, is_needed = 0, not self._is_ahead  # `owed`: bytes that earlier windows have yet to reserve
        for window in self._windows:
            if window.error is not None:
                return None
            job = self._window_job(window, owed, may_exceed=is_needed)
            if job is not None:
                return job
            if window.phase != "ready":
                owed += self._owed_bytes(window)
            is_needed = self._waits_for_second and window is self._windows[0]
        helping = None if self._batches is None else self._batches.help()
        if helping is not None:
            return helping
        return self._open_next_job() if self._prefault is None else self._prefault.job(owed)

    def _may_make(self, batches: Batches) -> bool:
        """Whether batches may be made now; before the epoch begins, only the first few, in memory that is free."""
        if not self._is_ahead:
            return True
        needed = batches.ahead_bytes if batches.begun < BATCHES_READ_AHEAD else None
        return needed is not None and self.usage.fits(needed)

    def _choose_batch(self, lane: TransformLane) -> Job[Any] | None:
        """Return the job of the next batch, for the thread that serves a process."""
        if self._is_ahead:
            return None
        assert isinstance(self._batches, BatchScheduler)
        return self._taking_windows(partial(self._batches.job, lane=lane))

    def _open_next_job(self) -> Job[None] | None:
        """Return the job that opens the next epoch's engine, once."""
        ahead = self._next
        # When the last window is being ordered, the memory of all windows of this epoch is reserved.
        if ahead is None or ahead.has_begun or self._is_ahead or self._next_to_order < self._plan.windows:
            return None
        ahead.has_begun = True
        return Job("permute", lambda: self._begin_next(ahead), lambda _: None, lambda _: None)

    @property
    def _windows_held(self) -> int:
        """Number of windows in memory, in progress or delivered."""
        return len(self._windows) + len(self._delivered)

    def _begin_next(self, ahead: ReadAhead[Engine]) -> None:
        self._cache_figures = self._reader.chunks.cache_figures(self._cache_before)
        ahead.begin(self)

    def _admit(self) -> WindowTask:
        index, plan = self._admitted, self._plan
        self._admitted += 1
        slices = plan.slices(index)
        assembly = Assembly(
            self._columns,
            [s.rows for s in slices],
            0 if index == self._first_window else plan.carried_rows(index),
            plan.batch_size,
            self._buffer_sizes,
            deliver_rest=index == plan.windows - 1 and not plan.drop_last,
            left_out=self._begun_in(index) + plan.left_out(index),
            origins=[(s.row_group, s.start) for s in slices] if self._columns.device_permutes else (),
        )
        window = WindowTask(index, slices, assembly, waiting=list(range(len(slices))), unread=len(slices))
        self._reads.leave_out_broken(window)
        return window

    def _begun_in(self, index: int) -> int:
        """Return the number of a window's rows that were delivered before the epoch began at `first_batch`."""
        return self._begun_rows if index == self._first_window else 0

    def _owed_bytes(self, window: WindowTask) -> int:
        """Return the bytes that the window has yet to reserve: for rows to be decoded, and for ordered rows."""
        if window.phase in ("gather", "finish", "busy"):
            return 0
        unread = sum(window.slices[number].rows for number in window.waiting)
        rows = sum(slice_.rows for slice_ in window.slices) + unread
        return int(rows * self._sizing.row.gathered) + (self._arena_bytes() if window.phase == "new" else 0)

    def _arena_bytes(self) -> int:
        return self._allocator.taken_bytes(int(self._buffer_sizes.rows * self._sizing.row.wide))

    def _window_job(self, window: WindowTask, owed: int, *, may_exceed: bool) -> Job | None:  # type: ignore[type-arg]
        """Return the next job for a window, or None if none may start; arguments as in `ReadScheduler.job`."""
        match window.phase:
            case "new" if self._columns.wide and self._may_reuse_memory():
                return None
            case "new" if may_exceed or self.usage.fits(owed + self._arena_bytes()):
                return self._prepare_job(window)
            case "read" if window.waiting:
                return self._reads.job(window, owed, may_exceed=may_exceed)
            case "read" if not window.unread and self._remainder is not None and window.index == self._next_to_order:
                if not self._has_ended_prefault():
                    return None  # wait for the job that still pre-faults
                if may_exceed or self.usage.fits(owed + window.decoded_bytes):
                    return self._order_job(window, self._remainder)
            case "gather" if window.jobs:
                return self._gather_job(window, window.jobs.pop(0))
            case "finish":
                return self._finish_job(window)
        return None

    def _may_reuse_memory(self) -> bool:
        """Whether the consumer will soon release the window before last, whose memory is faulted in."""
        if self._before is not None:
            return self._before._windows_held > 1
        return len(self._delivered) > 1 and not self._is_awaited

    def _has_ended_prefault(self) -> bool:
        """Stop pre-faulting, because the memory is needed now; return whether no job uses it any more."""
        if self._prefault is not None:
            self._prefault.stop()
            if self._prefault.is_busy:
                return False
            self._prefault = None
        return True

    # ------------------------------------------------------------------ jobs, in the order of a window's life

    def _prepare_job(self, window: WindowTask) -> Job[None]:
        window.phase = "busy"
        window.arena_bytes = self._arena_bytes()
        self.usage.reserve(window.arena_bytes)
        prefaults = self._prefaults_first and window.index == self._first_window

        def done(_: None) -> None:
            window.phase = "read"
            if prefaults:
                self._prefault = Prefault(*window.assembly.to_be_written(), self._allocator, self.usage)

        def run() -> None:
            of_window = window.index, self._begun_in(window.index)
            window.assembly.prepare(partial(self._plan.order, *of_window), partial(self._plan.order_words, *of_window))

        return Job("permute", run, done, window.fail)

    def _order_job(self, window: WindowTask, remainder: Remainder) -> Job[_Finished | None]:
        self._remainder = None
        self._next_to_order += 1
        window.phase = "busy"
        window.gathered_bytes = self._allocator.taken_bytes(window.decoded_bytes)
        self.usage.reserve(window.gathered_bytes)

        def run() -> _Finished | None:
            window.assembly.begin_gathering(remainder)
            return None if self._columns.jobs else window.assembly.finish()

        def done(outcome: _Finished | None) -> None:
            window.gathered_bytes += window.assembly.shared_bytes
            self.usage.reserve(window.assembly.shared_bytes)
            window.jobs = list(range(self._columns.jobs))
            window.ungathered = len(window.jobs)
            window.phase = "gather"
            if outcome is not None:
                self._finish(window, outcome)

        return Job("gather", run, done, window.fail)

    def _gather_job(self, window: WindowTask, step: int) -> Job[None]:
        def done(_: None) -> None:
            window.ungathered -= 1
            if not window.ungathered:
                window.phase = "finish"

        return Job("gather", lambda: window.assembly.gather(step), done, window.fail)

    def _finish_job(self, window: WindowTask) -> Job[_Finished]:
        window.phase = "busy"
        return Job("gather", window.assembly.finish, partial(self._finish, window), window.fail)

    def _finish(self, window: WindowTask, outcome: _Finished) -> None:
        window.window, self._remainder = outcome
        window.phase = "ready"
        self.usage.reserve(-window.decoded_bytes)
        window.decoded_bytes = 0
        window.unprocessed = -(-window.window.rows // self._plan.batch_size)

    def _taking_windows(self, choose: Callable[[deque[WindowTask]], Job[Any] | None]) -> Job[Any] | None:
        """Return the job of a batch; if it takes the last rows of a window, threads may begin another window."""
        before = len(self._windows)
        job = choose(self._windows)
        if len(self._windows) < before:
            self.workers.notify()
        return job


def _processor_of(dataset: Dataset, plan: Plan, options: EngineOptions) -> BatchProcessor:
    """Return the processor that decodes media and calls `transform`, batch by batch."""
    reader = dataset.reader
    videos_bytes = int(dataset.sizing.limit_bytes * SHARE_VIDEOS) // max(options.transform_workers, 1)
    return BatchProcessor(
        reader.columns,
        options.transform,
        options.seed,
        plan.epoch,
        plan.parts[0].number if plan.parts else 0,
        rows_out=options.rows_out,
        row_numbers=reader.row_numbers,
        replaces=options.replaces,
        files=files_named_by(reader.columns, dataset.snapshot, videos_bytes),
        encodes=options.device_decodes,
    )
