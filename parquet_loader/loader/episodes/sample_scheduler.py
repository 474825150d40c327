"""Schedules the jobs that make batches of samples in the workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from parquet_loader.engine import CutBatches, HeldWindow, Job, ProcessedBatch, Usage, WindowMedia, WindowTask
from parquet_loader.loader.episodes.sample_windows import SampleCutter, SamplePart
from parquet_loader.loader.episodes.sample_writer import SampleWriter
from parquet_loader.window import Allocator, Window

# The most bytes that one job decodes; at most an eighth of a window.
_DECODED_BYTES = 2 * 2**20
# Until a batch is measured, jobs write one; with texts and lists it may take this multiple of the estimate.
_MOST_UNMEASURED = 4


@dataclass(slots=True, eq=False)
class _Sampled(HeldWindow):
    """A window, from the job that provides memory for its media until its release.

    Attributes:
        media: The decoded media of its rows, by column; None until their memory is allocated.
        chunks: Ranges of rows whose media no job has begun to decode.
        decoding: Number of ranges that jobs are decoding.
    """

    media: dict[str, Any] | None = None
    chunks: deque[tuple[int, int]] = field(default_factory=deque)
    decoding: int = 0

    def release(self) -> None:
        """Release the rows and their media."""
        self.task.window = self.media = None


class SampleScheduler(CutBatches[SamplePart, _Sampled]):
    """Decodes the media of windows, finds their samples, and writes batches; see `CutBatches`.

    Windows are decoded in any order. Each row is decoded once, even if several samples contain it.

    Invariant: windows are divided into batches one at a time and in order, because a window may continue the rows of
    the previous one.

    Args:
        cutter: Divides windows into batches.
        writer: Writes batches.
        first_batch: The batch with which the epoch begins.
        batch_bytes: Estimated bytes of a batch.
        own_batches: Batches that have their own share of the memory limit; further ones begin if memory is free.
        most_ahead: The most batches in progress or ready.
        media: Decodes media; None without media.
        staging: Provides the memory of decoded media.
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
        media: WindowMedia | None,
        staging: Allocator,
        usage: Usage,
    ) -> None:
        at_once = None if writer.processor is None else 1  # so that an error of `transform` belongs to one batch

        def write(batches: Sequence[Sequence[SamplePart]], first: int) -> list[ProcessedBatch]:
            return [writer(parts, first + place) for place, parts in enumerate(batches)]

        super().__init__(write, first_batch, batch_bytes, most_ahead, usage, at_once)
        self._cutter = cutter
        self._own_batches = own_batches
        self._is_cutting = False
        self._media = media
        self._staging = staging
        self._calls_transform = writer.processor is not None
        usage.limit_bytes += own_batches * batch_bytes

    @property
    def ahead_bytes(self) -> int | None:
        """See `Batches`; the media of a window may take more than free memory."""
        if self._calls_transform or self._media is not None:
            return None
        return (self._job_batches() if self._is_measured else _MOST_UNMEASURED) * self._batch_bytes

    def _windows_of(self, parts: Sequence[SamplePart]) -> set[int]:
        return {part.samples.window for part in parts}

    def _writable(self, count: int) -> int:
        if not self._is_measured:  # texts and lists may take many times the estimate
            return min(count, 1) if self.begun < self._own_batches else 0
        if super()._writable(count) and self._usage.fits(count * self._batch_bytes):
            return count
        # These may exceed the limit: else windows that leave no memory free and batches would wait for each other.
        return max(0, min(count, self._own_batches - self.begun))

    def job(self, windows: deque[WindowTask]) -> Job[Any] | None:
        """Return a job that writes batches, else one that decodes media or finds samples; see `Batches`."""
        job: Job[Any] | None = self._write_job(windows)
        for task in windows if job is None else ():
            held, window = self._held.get(task.index), task.in_order
            if held is not None and held.is_cut:
                continue
            if window is None or task.error is not None:
                return None
            if held is None:
                job = self._begin_job(task, window, is_first=task is windows[0])
                held = self._held.get(task.index)
            if job is None and held is not None:
                job = self._decode_job(held, window) or self._cut_job(held, window, windows)
            if job is not None or held is None:
                return job
        return job

    def _begin_job(self, task: WindowTask, window: Window, *, is_first: bool) -> Job[dict[str, Any]] | None:
        """Return a job that allocates the memory of a window's media; None without media or without free memory."""
        media = self._media
        if media is None or not window.rows:
            self._held[task.index] = _Sampled(task, media={} if media is None else media.memory(0, self._staging))
            return None
        nbytes = window.rows * media.row_bytes
        if not is_first and not self._usage.fits(nbytes):
            return None
        held = self._held[task.index] = _Sampled(task)
        task.gathered_bytes += nbytes
        self._usage.reserve(nbytes)
        step = max(1, min(_DECODED_BYTES // max(1, media.row_bytes), -(-window.rows // 8)))

        def done(memory: dict[str, Any]) -> None:
            held.media = memory
            held.chunks.extend((first, min(first + step, window.rows)) for first in range(0, window.rows, step))

        return Job("process", lambda: media.memory(window.rows, self._staging), done, task.fail)

    def _decode_job(self, held: _Sampled, window: Window) -> Job[None] | None:
        if not held.chunks:
            return None
        media, out = self._media, held.media
        assert media is not None
        assert out is not None
        first, last = held.chunks.popleft()
        held.decoding += 1

        def done(_: None) -> None:
            held.decoding -= 1

        return Job("process", lambda: media.decode(window, first, last, out), done, held.task.fail)

    def _cut_job(
        self, held: _Sampled, window: Window, windows: deque[WindowTask]
    ) -> Job[list[Sequence[SamplePart]]] | None:
        is_next = not self._is_cutting and held.task.index == self._cutter.next_window
        if held.media is None or held.decoding or not is_next:
            return None
        self._is_cutting = True
        arrays = {**window.arrays, **held.media}

        def done(complete: list[Sequence[SamplePart]]) -> None:
            self._is_cutting = False
            self._add(held, complete, self._cutter.waiting, windows)

        return Job("process", lambda: self._cutter.add(arrays, window.rows), done, held.task.fail)
