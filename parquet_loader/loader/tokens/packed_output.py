"""The output of a `TokenLoader`: hands over batches of sequences that workers or the caller's thread have written."""

from __future__ import annotations

from collections.abc import Iterator

from parquet_loader.collate import Batch, Output
from parquet_loader.engine import ProcessedBatch
from parquet_loader.loader.tokens.documents import WindowPacker
from parquet_loader.loader.tokens.sequences import BatchCutter, BatchWriter
from parquet_loader.window import Allocator, Window


class PackedOutput(Output):
    """The output of one epoch of a `TokenLoader`. See `Output`; used by the caller's thread.

    The workers make the batches, except under ``isolation="process"``: then windows come from the child process, and
    the caller's thread packs them.

    Args:
        packer: Packs windows.
        writer: Writes batches.
        first_batch: The first batch that is delivered.
        output: Makes tensors or arrays.
    """

    def __init__(self, packer: WindowPacker, writer: BatchWriter, first_batch: int, output: Output) -> None:
        self._packer = packer
        self._writer = writer
        self._output = output
        self._cutter = BatchCutter(packer.packing, first_batch)
        self._window = packer.packing.read_plan(first_batch).start_window

    def allocator(self, keep_bytes: int) -> Allocator:
        """Return the allocator of windows, which are in ordinary memory."""
        return self._output.allocator(keep_bytes)

    def from_batch(self, batch: ProcessedBatch, copied_to: Allocator | None) -> Batch:  # noqa: ARG002
        """Return a batch that has been written."""
        longest = batch.arrays.pop("max_seqlen", None)
        made = self._output.from_batch(batch, None)
        if longest is not None:
            made["max_seqlen"] = longest
        return made

    def delivered(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches on the caller's device."""
        return self._output.delivered(batches)

    def from_window(self, window: Window, batch_size: int, copied_to: Allocator | None) -> Iterator[Batch]:  # noqa: ARG002
        """Yield the batches that a window completes."""
        documents = self._packer(window, self._window)
        self._window += 1
        del window
        complete = self._cutter.add(documents)
        del documents
        complete.reverse()
        while complete:  # `pop`, so that a delivered batch keeps no window alive
            yield self.from_batch(self._writer([complete.pop()])[0], None)
