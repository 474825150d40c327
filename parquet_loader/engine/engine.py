"""The background reader: worker threads read, shuffle and process ahead of the consumer, within a memory budget.

Order. Jobs finish in any order. Windows (or batches, if each is processed) are delivered in order. An error takes the
place of the window or batch that failed, so everything before it is still delivered.

Budget. `Budget.held_bytes` counts reads in flight, decoded slices, windows, open cursors and batches. The window that
the consumer needs next may always continue, with at least one read; later windows wait until there is free space. An
estimate that is too low slows read-ahead down. It never changes the order and never blocks the consumer.

Release. A window counts as held until the consumer asks for the second batch of the next window. Only then has the
consumer's loop released its last batch, so that the memory can be reused.

The lock of `WorkerPool` guards all state. Nobody reads, computes or blocks while holding it; the only wait is for a
change of that state.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from parquet_loader.common import IntArray
from parquet_loader.dataset import SHARE_READS, SHARE_WINDOWS, Dataset, MemoryBudget
from parquet_loader.engine.batch_processor import BatchProcessor, ProcessedBatch, Transform
from parquet_loader.engine.batch_scheduler import BatchScheduler
from parquet_loader.engine.budget import Budget, EngineFigures
from parquet_loader.engine.prefault import Prefault
from parquet_loader.engine.read_scheduler import ReadScheduler
from parquet_loader.engine.window_task import WindowTask
from parquet_loader.engine.worker_pool import Job, WorkerPool
from parquet_loader.errors import LoaderStateError
from parquet_loader.plan import Plan
from parquet_loader.read import RowGroupReader
from parquet_loader.window import Allocator, Arenas, Assembly, BufferSizes, ColumnGroups, Remainder, Window

# Windows being made or ready, beyond the one the consumer is in. Rows that are placed as they are decoded need their
# window's memory from the first read on, so that a second window ahead would cost much and gain little.
WINDOWS_AHEAD = 2
WIDE_WINDOWS_AHEAD = 1


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a loader's passes are read; plain values, which travel between processes.

    Attributes:
        transform: The caller's function, or None.
        seed: What the generator given to it is drawn from.
        num_threads: Number of workers.
        skips: Whether a row group that cannot be read is left out, instead of raising.
    """

    transform: Transform | None
    seed: int
    num_threads: int
    skips: bool


def open_engine(
    dataset: Dataset,
    plan: Plan,
    options: EngineOptions,
    *,
    first_batch: int,
    allocator: Allocator,
    staging: Arenas,
    is_first: bool,
) -> Engine:
    """Return the engine of one pass over a data set, in whichever process; arguments as in `Engine`."""
    columns, processor = dataset.reader.columns, None
    if BatchProcessor.is_needed(columns, options.transform):
        processor = BatchProcessor(
            columns, options.transform, options.seed, plan.epoch, plan.parts[0].number if plan.parts else 0
        )
    return Engine(
        plan,
        dataset.counts,
        dataset.reader,
        dataset.sizing,
        processor=processor,
        allocator=allocator,
        staging=staging,
        num_threads=options.num_threads,
        is_first=is_first,
        skips=options.skips,
        first_batch=first_batch,
    )


class Engine:
    """Reads one epoch in the background.

    Args:
        plan: The epoch.
        counts: int64 ``[row groups]``, rows of each that pass the filter.
        reader: Reads row groups.
        sizing: The budget.
        processor: Makes batches one by one; None: windows are handed over whole.
        allocator: Where delivered memory comes from.
        staging: Where ragged rows wait.
        num_threads: Number of workers.
        is_first: Whether memory is touched for the first time: then windows take several times as long to make, and
            the first batch of local files waits until the second window is there too, so that no later batch has to.
        skips: Whether a row group that cannot be read is left out, instead of raising.
        first_batch: Where in the epoch to begin.
    """

    def __init__(
        self,
        plan: Plan,
        counts: IntArray,
        reader: RowGroupReader,
        sizing: MemoryBudget,
        *,
        processor: BatchProcessor | None,
        allocator: Allocator,
        staging: Arenas,
        num_threads: int,
        is_first: bool,
        skips: bool,
        first_batch: int = 0,
    ) -> None:
        self.budget = Budget(int(sizing.limit_bytes * (SHARE_WINDOWS + SHARE_READS)))
        self.workers = WorkerPool(self._choose, num_threads)
        self._plan = plan
        self._reader = reader
        self._cache_before = reader.chunks.cache_figures()
        self._sizing = sizing
        self._allocator = allocator
        self._parts = ColumnGroups.from_columns(reader.columns, 2 * num_threads)
        self._ahead = WIDE_WINDOWS_AHEAD if self._parts.wide else WINDOWS_AHEAD
        # If files are not local, a line is slower than memory, however fresh.
        self._fills_first = is_first and processor is None and reader.chunks.remote is None
        # There the first bytes take a while: time to warm what the first window will be written to.
        self._warms_first = is_first and reader.chunks.remote is not None
        self._warming: Prefault | None = None
        capacity = plan.largest_window_rows + plan.batch_size
        ragged_bytes = {name: int(1.05 * width * capacity) for name, width in sizing.row.ragged}
        self._buffer_sizes = BufferSizes(capacity, ragged_bytes, staging, allocator)
        self._coming: deque[WindowTask] = deque()
        self._handed: deque[WindowTask] = deque()
        self._spent: deque[WindowTask] = deque()
        self._is_awaited = False
        # The first window gives only rows of this batch and later ones, so that nothing has to be carried to it.
        self._first_window, self._begun_rows = plan.beginning_of(first_batch) if first_batch else (0, 0)
        self._admitted = self._first_window
        self._reads = ReadScheduler(
            reader,
            plan,
            counts,
            sizing,
            self.budget,
            self.workers,
            self._coming,
            first_window=self._first_window,
            skips=skips,
        )
        self._carry: Remainder | None = Remainder()
        self._next_to_order = self._first_window
        self._making: BatchScheduler | None = None
        if processor is not None:
            self._making = BatchScheduler(processor, plan.batch_size, first_batch, sizing, self.budget, allocator)

    @property
    def processes(self) -> bool:
        """Whether batches are handed over one by one, by `next_batch`, instead of windows."""
        return self._making is not None

    def start(self) -> None:
        """Start the workers."""
        self._reads.start()
        self.workers.start()

    def close(self) -> None:
        """End the workers and release everything; idempotent, and safe in any thread and in a forked child."""
        self._reads.stop()
        has_ended = self.workers.close()
        self._reads.close(workers_have_ended=has_ended)
        if not has_ended:
            return
        self._coming.clear()
        self._handed.clear()
        self._spent.clear()
        self._warming = None
        if self._making is not None:
            self._making.clear()

    def account(self, footers_bytes: int = 0) -> EngineFigures:
        """Return what the epoch has taken so far; numbers of a running epoch may be a job apart from each other."""
        budget, times, remote = self.budget, self.workers.times, self._reads.remote_figures
        return EngineFigures(
            cpu_s={str(stage): seconds for stage, seconds in times.cpu_s.items()},
            blocked_s={str(stage): seconds for stage, seconds in times.blocked_s.items()},
            disk_bytes=times.disk_bytes,
            bytes_read=budget.bytes_read,
            row_groups=budget.row_groups,
            skipped=tuple(budget.skipped),
            held_bytes=budget.held_bytes,
            peak_bytes=budget.peak_bytes,
            footers_bytes=footers_bytes,
            cache=self._reader.chunks.cache_figures(self._cache_before),
            remote=None if remote is None else replace(remote),
            queued_s=self.workers.queued_s,
        )

    # ------------------------------------------------------------------ the consumer's side

    def next_window(self) -> Window | None:
        """Return the next window that has rows, waiting for it; None at the end of the epoch.

        Raises:
            LoaderStateError: the engine was closed meanwhile. Else whatever spoiled the window.
        """
        while True:
            with self.workers.lock:
                self._let_go(keep=1)
                self._check_open()
                if self._is_settled():
                    self._is_awaited = self._fills_first = False
                    if not self._coming:
                        return None
                    if self._coming[0].error is not None:
                        raise self._coming[0].error
                    window = self._coming[0].window
                    assert window is not None
                    self._handed.append(self._coming.popleft())
                    self.workers.notify()
                    if window.rows:
                        return window
                    continue
                if not self._is_awaited:
                    self._is_awaited = True
                    self.workers.notify()
                waker = self.workers.waker()
            waker.acquire()

    def release_previous(self) -> None:
        """Say that the consumer has released all batches before the current window's."""
        with self.workers.lock:
            self._let_go(keep=1)

    def next_batch(self) -> ProcessedBatch | None:
        """Return the next processed batch, waiting for it; None at the end. Raises as `next_window` does."""
        assert self._making is not None
        while True:
            with self.workers.lock:
                self._check_open()
                if (batch := self._making.pop()) is not None:
                    self.workers.notify()
                    return batch
                if self._making.is_idle:
                    if not self._coming and self._admitted == self._plan.windows:
                        return None
                    if self._coming and self._coming[0].error is not None:
                        raise self._coming[0].error
                waker = self.workers.waker()
            waker.acquire()

    def _check_open(self) -> None:
        if self.workers.broken is not None:
            raise self.workers.broken
        if self.workers.is_closing:
            raise LoaderStateError("the loader was closed while a batch was awaited")

    def _is_settled(self) -> bool:
        if not self._coming:
            return self._admitted == self._plan.windows
        if self._coming[0].error is not None or self._coming[0].phase != "ready":
            return self._coming[0].error is not None
        if not self._fills_first or (len(self._coming) == 1 and self._admitted == self._plan.windows):
            return True
        return len(self._coming) > 1 and (self._coming[1].phase == "ready" or self._coming[1].error is not None)

    def _let_go(self, keep: int) -> None:
        """Let go of windows handed over, but for the last; in a worker, since giving memory back takes a while.

        Not of wide ones: they give back whole blocks, at once, and the next window waits for them.
        """
        while len(self._handed) > keep:
            spent = self._handed.popleft()
            if self._parts.wide:
                self.budget.reserve(-spent.held_bytes)
            else:
                self._spent.append(spent)
            self.workers.notify()

    # ------------------------------------------------------------------ choosing what to do

    def _choose(self) -> Job | None:  # type: ignore[type-arg]
        """Return the most urgent job that may start: batches first, then windows in their order."""
        if self._spent:
            return self._let_go_job(self._spent.popleft())
        if self._making is not None:
            job = self._process_job(self._making)
            if job is not None:
                return job
        if self._admitted < self._plan.windows and len(self._coming) < max(self._ahead, 1 + self._fills_first):
            self._coming.append(self._admit())
        self._reads.step(self._coming[0].index + self._fills_first if self._coming else self._admitted)
        owed, needs_next = 0, True
        for window in self._coming:
            if window.error is not None:
                return None
            job = self._window_job(window, owed, may_exceed=needs_next)
            if job is not None:
                return job
            if window.phase != "ready":
                owed += self._owed_bytes(window)
            needs_next = self._fills_first and window is self._coming[0]
        return None if self._warming is None else self._warming.job(owed)

    def _admit(self) -> WindowTask:
        index, plan = self._admitted, self._plan
        self._admitted += 1
        slices = plan.slices(index)
        assembly = Assembly(
            self._parts,
            [s.rows for s in slices],
            0 if index == self._first_window else plan.carried_rows(index),
            plan.batch_size,
            self._buffer_sizes,
            deliver_rest=index == plan.windows - 1 and not plan.drop_last,
            left_out=self._begun_in(index) + plan.left_out(index),
        )
        window = WindowTask(index, slices, assembly, waiting=list(range(len(slices))), unread=len(slices))
        self._reads.leave_out_broken(window)
        return window

    def _begun_in(self, index: int) -> int:
        return self._begun_rows if index == self._first_window else 0

    def _owed_bytes(self, window: WindowTask) -> int:
        """Return what the window will yet take: rows not decoded, and rows in their new order."""
        if window.phase in ("gather", "finish", "busy"):
            return 0
        unread = sum(window.slices[number].rows for number in window.waiting)
        rows = self._plan.window_rows(window.index) + unread
        return int(rows * self._sizing.row.gathered) + (self._arena_bytes() if window.phase == "new" else 0)

    def _arena_bytes(self) -> int:
        return self._allocator.taken_bytes(int(self._buffer_sizes.rows * self._sizing.row.wide))

    def _window_job(self, window: WindowTask, owed: int, *, may_exceed: bool) -> Job | None:  # type: ignore[type-arg]
        match window.phase:
            case "new" if self._parts.wide and len(self._handed) > 1 and not self._is_awaited:
                return None  # in a moment the window before last is released, and its warm memory is free
            case "new" if may_exceed or self.budget.fits(owed + self._arena_bytes()):
                return self._prepare_job(window)
            case "read" if window.waiting:
                return self._reads.job(window, owed, may_exceed=may_exceed)
            case "read" if not window.unread and self._carry is not None and window.index == self._next_to_order:
                if not self._has_warmed():
                    return None  # in a moment
                if may_exceed or self.budget.fits(owed + window.decoded_bytes):
                    return self._order_job(window, self._carry)
            case "gather" if window.jobs:
                return self._gather_job(window, window.jobs.pop(0))
            case "finish":
                return self._finish_job(window)
        return None

    def _has_warmed(self) -> bool:
        """End the warming of memory, which is needed now; return whether all of it has come back."""
        if self._warming is not None:
            self._warming.stop()
            if self._warming.is_busy:
                return False
            self._warming = None
        return True

    # ------------------------------------------------------------------ jobs, in the order of a window's life

    def _prepare_job(self, window: WindowTask) -> Job[None]:
        window.phase = "busy"
        window.arena_bytes = self._arena_bytes()
        self.budget.reserve(window.arena_bytes)
        warms = self._warms_first and window.index == self._first_window

        def done(_: None) -> None:
            window.phase = "read"
            if warms:
                self._warming = Prefault(*window.assembly.to_be_written(), self._allocator, self.budget)

        def run() -> None:
            window.assembly.prepare(self._plan.order(window.index, self._begun_in(window.index)))

        return Job("permute", run, done, window.spoil)

    def _order_job(self, window: WindowTask, carry: Remainder) -> Job[None]:
        self._carry = None
        self._next_to_order += 1
        window.phase = "busy"
        window.gathered_bytes = self._allocator.taken_bytes(window.decoded_bytes)
        self.budget.reserve(window.gathered_bytes)

        def done(_: None) -> None:
            window.jobs = list(range(self._parts.jobs))
            window.ungathered = len(window.jobs)
            window.phase = "gather" if window.jobs else "finish"

        return Job("gather", lambda: window.assembly.begin_gathering(carry), done, window.spoil)

    def _gather_job(self, window: WindowTask, part: int) -> Job[None]:
        def done(_: None) -> None:
            window.ungathered -= 1
            if not window.ungathered:
                window.phase = "finish"

        return Job("gather", lambda: window.assembly.gather(part), done, window.spoil)

    def _finish_job(self, window: WindowTask) -> Job[tuple[Window, Remainder]]:
        window.phase = "busy"

        def done(outcome: tuple[Window, Remainder]) -> None:
            window.window, self._carry = outcome
            window.phase = "ready"
            self.budget.reserve(-window.decoded_bytes)
            window.decoded_bytes = 0
            window.unprocessed = -(-window.window.rows // self._plan.batch_size)

        return Job("gather", window.assembly.finish, done, window.spoil)

    def _let_go_job(self, spent: WindowTask) -> Job[None]:
        def run() -> None:
            spent.window = None

        def done(_: None) -> None:
            self.budget.reserve(-spent.held_bytes)

        return Job("gather", run, done, spent.spoil)

    def _process_job(self, making: BatchScheduler) -> Job[ProcessedBatch] | None:
        while self._coming and self._coming[0].window is not None and not self._coming[0].window.rows:
            self.budget.reserve(-self._coming.popleft().held_bytes)
            self.workers.notify()
        if not self._coming or self._coming[0].window is None:
            return None
        return making.job(self._coming[0], self._coming.popleft)
