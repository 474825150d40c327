"""Schedules batches that are made one by one, because images are decoded or a `transform` is called."""

from __future__ import annotations

from collections.abc import Callable

from parquet_loader.dataset import BATCHES_AT_ONCE, MemoryBudget
from parquet_loader.engine.batch_processor import BatchProcessor, ProcessedBatch
from parquet_loader.engine.budget import Budget
from parquet_loader.engine.window_task import WindowTask
from parquet_loader.engine.worker_pool import Job
from parquet_loader.window import Allocator


class BatchScheduler:
    """Batches begun, made and not yet taken; belongs to the engine's lock.

    Batches are made in any order and taken in theirs; an error takes the place of the batch it spoiled.

    Args:
        processor: Makes a batch.
        batch_size: Rows of a batch.
        first_batch: Where in the epoch to begin.
        sizing: The budget's division.
        budget: What batches are counted in.
        allocator: Where delivered memory comes from.
    """

    def __init__(
        self,
        processor: BatchProcessor,
        batch_size: int,
        first_batch: int,
        sizing: MemoryBudget,
        budget: Budget,
        allocator: Allocator,
    ) -> None:
        self._processor = processor
        self._batch_size = batch_size
        self._begun = first_batch
        self._taken = first_batch
        self._sizing = sizing
        self._budget = budget
        self._allocator = allocator
        self._made: dict[int, ProcessedBatch | BaseException] = {}
        self._batch_bytes = int(sizing.row.processed * batch_size)

    @property
    def is_idle(self) -> bool:
        """Whether every batch begun was taken."""
        return self._begun == self._taken

    def pop(self) -> ProcessedBatch | None:
        """Return the next batch if it is made, or raise what spoiled it."""
        if self._taken not in self._made:
            return None
        batch = self._made.pop(self._taken)
        self._taken += 1
        if isinstance(batch, BaseException):
            raise batch
        self._budget.reserve(-batch.nbytes)
        return batch

    def clear(self) -> None:
        """Let go of what was not taken."""
        self._made.clear()

    def job(self, building: WindowTask, release: Callable[[], object]) -> Job[ProcessedBatch] | None:
        """Return the making of the next batch of a finished window, or None if enough were made ahead.

        Args:
            building: The window.
            release: Called when its last batch is begun; the last of its batches to be done releases its memory.
        """
        window = building.window
        assert window is not None
        ahead = max(1, min(BATCHES_AT_ONCE, self._sizing.batches_bytes // max(self._batch_bytes, 1)))
        if self._begun - self._taken >= ahead:
            return None
        number, expected = self._begun, self._batch_bytes
        start = building.begun_rows
        stop = min(start + self._batch_size, window.rows)
        building.begun_rows = stop
        self._begun += 1
        if stop == window.rows:
            release()
        self._budget.reserve(expected)

        def settle(batch: ProcessedBatch | BaseException, nbytes: int) -> None:
            self._made[number] = batch
            self._budget.reserve(nbytes - expected)
            building.unprocessed -= 1
            if not building.unprocessed:
                self._budget.reserve(-building.held_bytes)
                building.window = None

        def done(batch: ProcessedBatch) -> None:
            self._batch_bytes = max(self._batch_bytes, batch.nbytes)
            settle(batch, batch.nbytes)

        return Job(
            "process",
            lambda: self._processor(window, start, stop, number, self._allocator),
            done,
            lambda error: settle(error, 0),
        )
