"""The output of an `EpisodeLoader`: hands over batches that workers or the caller's thread have written."""

from __future__ import annotations

from collections.abc import Iterator

from parquet_loader.collate import Batch, Output
from parquet_loader.engine import ProcessedBatch
from parquet_loader.loader.episodes.sample_windows import SampleCutter
from parquet_loader.loader.episodes.sample_writer import SampleWriter
from parquet_loader.window import Allocator, Window


class SampleOutput(Output):
    """The output of one epoch of an `EpisodeLoader`. See `Output`; used by the caller's thread.

    The workers make the batches, except under ``isolation="process"``: then windows come from the child process, and
    the caller's thread makes the batches.

    Args:
        cutter: Divides windows into batches.
        writer: Writes batches.
        first_batch: The first batch that is delivered.
        output: Makes tensors or arrays.
    """

    def __init__(self, cutter: SampleCutter, writer: SampleWriter, first_batch: int, output: Output) -> None:
        self._cutter = cutter
        self._writer = writer
        self._output = output
        self._next = first_batch

    def allocator(self, keep_bytes: int) -> Allocator:
        """Return the allocator of windows."""
        return self._output.allocator(keep_bytes)

    def from_batch(self, batch: ProcessedBatch, copied_to: Allocator | None) -> Batch:  # noqa: ARG002
        """Return a batch that has been written."""
        return self._output.from_batch(batch, None)

    def delivered(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches on the caller's device."""
        return self._output.delivered(batches)

    def from_window(self, window: Window, batch_size: int, copied_to: Allocator | None) -> Iterator[Batch]:  # noqa: ARG002
        """Yield the batches that a window completes; at the end of the epoch also the last one."""
        complete = self._cutter.add(window.arrays, window.rows)
        while self._cutter.has_row_less_window:  # the engine does not deliver such a window
            complete += self._cutter.add({name: array[:0] for name, array in window.arrays.items()}, 0)
        del window
        complete.reverse()
        while complete:  # `pop`, so that a delivered batch keeps no window alive
            made = self._writer(complete.pop(), self._next)
            self._next += 1
            yield self.from_batch(made, None)
