"""Schedules the jobs that process batches one by one: image decoding and `transform`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from parquet_loader.dataset import BATCHES_AT_ONCE, Dataset
from parquet_loader.engine.batch_processor import BatchProcessor, ProcessedBatch, SharedBatch
from parquet_loader.engine.child.transforms import TransformLane
from parquet_loader.engine.recordings import RowError
from parquet_loader.engine.usage import Usage
from parquet_loader.engine.window_task import WindowTask
from parquet_loader.engine.workers.epoch_workers import Job
from parquet_loader.plan import Plan
from parquet_loader.window import Allocator

# Until a batch is measured, it may take this multiple of the estimate: `transform` may turn bytes into float32, and
# photos of unknown size take about 16 times the bytes of their JPEGs.
_MOST_BY_TRANSFORM, _MOST_BY_IMAGES = 4, 16


class Batches(ABC):
    """Makes the batches of an epoch in the workers. Guarded by the engine's lock; jobs run without it.

    Batches finish in any order and are delivered in order. An error is delivered instead of the batch that failed.

    Args:
        first_batch: The batch with which the epoch begins.
        usage: The counters of the epoch, to which batches are added.
    """

    def __init__(self, first_batch: int, usage: Usage) -> None:
        self._next_begun = first_batch
        self._next_delivered = first_batch
        self._usage = usage
        self._ready: dict[int, Sequence[ProcessedBatch] | BaseException] = {}

    @property
    def is_idle(self) -> bool:
        """Whether every batch that has begun is delivered."""
        return not self.begun

    @property
    def is_next_ready(self) -> bool:
        """Whether the next batch, or an error instead of it, is ready."""
        return self._next_delivered in self._ready

    @property
    def has_failed(self) -> bool:
        """Whether there is an error instead of a batch that is not delivered."""
        return any(isinstance(batches, BaseException) for batches in self._ready.values())

    @property
    def begun(self) -> int:
        """Number of batches that have begun and are not delivered."""
        return self._next_begun - self._next_delivered

    @property
    @abstractmethod
    def ahead_bytes(self) -> int | None:
        """The most bytes that a job reserves; None if no job may run before the epoch begins."""

    @property
    def ready(self) -> int:
        """Number of batches that are ready and not delivered."""
        return sum(1 if isinstance(batches, BaseException) else len(batches) for batches in self._ready.values())

    def pop(self) -> Sequence[ProcessedBatch]:
        """Return the next batches that are delivered together, or raise their error; none if they are not ready."""
        batches = self._ready.pop(self._next_delivered, ())
        if isinstance(batches, BaseException):
            self._next_delivered += 1
            raise batches
        self._next_delivered += len(batches)
        self._usage.reserve(-sum(batch.nbytes for batch in batches))
        return batches

    def clear(self) -> None:
        """Release batches that were not delivered."""
        self._ready.clear()

    def help(self) -> Job[Any] | None:
        """Return a job that helps with a batch that has begun, for a thread that has nothing else to do; or None."""
        return None

    @abstractmethod
    def job(self, windows: deque[WindowTask]) -> Job[Any] | None:
        """Return the most urgent job; None if there is none, or enough batches are ahead.

        Args:
            windows: The windows in their order, including those not finished. A window is removed when its last batch
                begins. Its memory is released when all of its batches are finished.
        """


class BatchScheduler(Batches):
    """Batches of consecutive rows of a window; see `Batches`.

    Args:
        processor: Processes a batch.
        dataset: The data set.
        plan: The epoch.
        first_batch: The batch with which it begins.
        allocator: Provides the memory of delivered rows.
        usage: As in `Batches`.
        wake: Wakes idle worker threads, because they may help; called without the lock.
        lanes: Number of processes that make batches; 0 if the worker threads make them.
    """

    def __init__(
        self,
        processor: BatchProcessor,
        dataset: Dataset,
        plan: Plan,
        first_batch: int,
        allocator: Allocator,
        usage: Usage,
        wake: Callable[[], None],
        lanes: int = 0,
    ) -> None:
        super().__init__(first_batch, usage)
        self._wake = wake
        self._helps: dict[int, tuple[SharedBatch, Job[Any]]] = {}  # by number of the batch, in their order
        self._processor = processor
        self._lanes = lanes
        self._batch_size = plan.batch_size
        self._sizing = dataset.sizing
        self._allocator = allocator
        self._locate = dataset.snapshot.locate
        self._batch_bytes = int(dataset.sizing.row.processed * plan.batch_size)
        self._given_bytes = 0
        self._is_measured = False
        self._window_bytes = int(dataset.sizing.window_rows * dataset.sizing.row.decoded)
        varying = any(c.image is not None and None in c.decoded_shape for c in dataset.reader.columns)
        self._most = _MOST_BY_IMAGES if varying else _MOST_BY_TRANSFORM if processor.has_transform else 1

    def clear(self) -> None:
        """Release batches that were not delivered, and close the processor."""
        super().clear()
        self._helps.clear()
        self._processor.close()

    @property
    def ahead_bytes(self) -> int | None:
        """See `Batches`; a `transform` is called in its own epoch only."""
        if self._lanes or self._processor.has_transform:
            return None
        return self._batch_bytes * (1 if self._is_measured else self._most)

    def _may_begin(self, expected: int) -> bool:
        """Whether one more batch may be begun before the next one is delivered.

        Batches have a share of the memory limit. Processes may begin further batches in memory that windows leave
        free; otherwise a `transform` that returns more bytes than it gets would keep few processes busy. So may
        threads that call a `transform`, beside the next window and the rows that all of them get; media are decoded by
        all threads together. Further batches begin only after the first one has shown how many bytes a batch takes.
        Without processes, up to four may begin before that, if there is memory for batches that are much larger than
        estimated.
        """
        begun, units = self.begun, self._sizing.batches_bytes // max(self._batch_bytes, 1)
        if not self._lanes and begun < min(BATCHES_AT_ONCE, max(1, units)):
            most = 1 if self._is_measured else self._most
            return not begun or most == 1 or self._usage.fits(((begun + 1) * most - begun) * expected)
        if not self._lanes:
            is_wanted = self._processor.has_transform and begun < max(BATCHES_AT_ONCE, self._sizing.num_threads)
            given_bytes = (begun + 1) * self._given_bytes
            return is_wanted and self._is_measured and self._usage.fits(expected + given_bytes + self._window_bytes)
        return begun < max(BATCHES_AT_ONCE, 2 * self._lanes) and (
            begun < max(1, units // 2) or (self._is_measured and self._usage.fits(expected))
        )

    def job(self, windows: deque[WindowTask], lane: TransformLane | None = None) -> Job[Any] | None:
        """Return the job of the next batch of the first window; see `Batches`.

        Args:
            windows: The windows in their order.
            lane: The process that makes the batch; None if the calling thread makes it.
        """
        while windows and windows[0].window is not None and not windows[0].window.rows:
            self._usage.reserve(-windows.popleft().held_bytes)
        task = windows[0] if windows else None
        window = None if task is None else task.in_order
        if task is None or window is None:
            return None
        # While a process makes a batch, a copy of the batch's rows is in shared memory.
        number, expected = self._next_begun, self._batch_bytes * (1 if lane is None else 2)
        if not self._may_begin(expected):
            # There is no memory for a batch of each process: a process that waits returns memory of earlier batches.
            if lane is None or not lane.holds_free_memory or self._usage.fits(expected):
                return None
            return Job("process", lane.free_memory, lambda _: None, lambda _: None)
        start = task.begun_rows
        stop = min(start + self._batch_size, window.rows)
        task.begun_rows = stop
        self._next_begun += 1
        if stop == window.rows:
            windows.popleft()
        self._usage.reserve(expected)

        def settle(batch: ProcessedBatch | BaseException, nbytes: int) -> None:
            self._helps.pop(number, None)
            self._ready[number] = batch if isinstance(batch, BaseException) else (batch,)
            self._usage.reserve(nbytes - expected)
            task.unprocessed -= 1
            if not task.unprocessed:
                self._usage.reserve(-task.held_bytes)
                task.window = None

        def done(batch: ProcessedBatch | None) -> None:
            if batch is None:  # another thread finishes it
                return
            self._batch_bytes, self._is_measured = max(self._batch_bytes, batch.nbytes), True
            self._given_bytes = max(self._given_bytes, batch.given_bytes)
            self._usage.add_replaced(batch.replaced)
            settle(batch, batch.nbytes)

        def failed(error: BaseException) -> None:
            settle(error.located(self._locate) if isinstance(error, RowError) else error, 0)

        given = (window, start, stop, number, self._allocator)
        if lane is not None:
            return Job("process", lambda: lane(*given), done, failed, lambda: lane.cpu_s)
        work = self._processor.work(*given)
        self._helps[number] = work, Job("process", work.help, done, failed)
        return Job("process", lambda: work.start(self._wake), done, failed)

    def help(self) -> Job[Any] | None:
        """See `Batches`: decodes media of the first batch that is not finished and has some left."""
        return next((job for work, job in self._helps.values() if work.needs_help), None)
