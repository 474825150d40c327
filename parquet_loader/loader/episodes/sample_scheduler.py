"""Schedules the jobs that make batches of samples in the workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from parquet_loader.engine import CutBatches, HeldWindow, Job, Usage, WindowTask
from parquet_loader.loader.episodes.sample_windows import SampleCutter, SamplePart
from parquet_loader.loader.episodes.sample_writer import SampleWriter
from parquet_loader.window import Window


class SampleScheduler(CutBatches[SamplePart, HeldWindow]):
    """Finds the samples of windows, and writes batches; see `CutBatches`.

    Invariant: one window at a time is divided into batches, in the order of windows, because each may continue the rows
    of the one before it.

    Args:
        cutter: Divides windows into batches.
        writer: Writes batches.
        first_batch: The batch with which the epoch begins.
        batch_bytes: About the bytes of a batch.
        own_batches: Batches that have their own share of the memory limit; further ones begin if memory is free.
        most_ahead: The most batches in progress or ready.
        usage: The counters of the epoch.
    """

    def __init__(
        self,
        cutter: SampleCutter,
        writer: SampleWriter,
        first_batch: int,
        batch_bytes: int,
        own_batches: int,
        most_ahead: int,
        usage: Usage,
    ) -> None:
        at_once = None if writer.processor is None else 1  # so that an error of `transform` is that of its batch
        super().__init__(writer, first_batch, batch_bytes, most_ahead, usage, at_once)
        self._cutter = cutter
        self._own_batches = own_batches
        self._is_cutting = False
        usage.limit_bytes += own_batches * batch_bytes

    def _windows_of(self, parts: Sequence[SamplePart]) -> set[int]:
        return {part.samples.window for part in parts}

    def _may_write(self, count: int) -> bool:
        ahead = self._next_begun - self._next_delivered + count
        return ahead <= self._own_batches or (ahead <= self._most_ahead and self._usage.fits(count * self._batch_bytes))

    def job(self, windows: deque[WindowTask]) -> Job[Any] | None:
        """Return a job that writes batches, else one that divides a window into batches; see `Batches`."""
        job = self._write_job(windows)
        if job is not None or self._is_cutting:
            return job
        for task in windows:
            if task.index < self._cutter.next_window:
                continue
            window = task.in_order
            return None if window is None or task.error is not None else self._cut_job(task, window, windows)
        return None

    def _cut_job(self, task: WindowTask, window: Window, windows: deque[WindowTask]) -> Job[list[Sequence[SamplePart]]]:
        self._is_cutting = True
        held = self._held[task.index] = HeldWindow(task)

        def done(complete: list[Sequence[SamplePart]]) -> None:
            self._is_cutting = False
            self._add(held, complete, self._cutter.waiting, windows)

        return Job("process", lambda: self._cutter.add(window.arrays, window.rows), done, task.fail)
