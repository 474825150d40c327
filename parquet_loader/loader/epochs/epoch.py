"""Runs one epoch: takes windows from the engine, and delivers their batches."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from parquet_loader.collate import Batch, CountedOutput, Output, PermutingOutput, rows_of
from parquet_loader.common import IntArray, is_out_of_memory, out_of_memory
from parquet_loader.engine import Mark, ProcessedBatch, ReadAhead, RowError, marking
from parquet_loader.errors import LoaderStateError, ParquetLoaderError
from parquet_loader.loader.epochs.epoch_figures import EpochEngine, EpochFigures
from parquet_loader.loader.live_source import Deliveries
from parquet_loader.window import Allocator, CarriedRows, KeptWindow, Window, ordered_window

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
        read_ahead: Holds the engine, if it was opened during the previous epoch; None if the engine is new.
        next_epoch: Opens the engine of the next epoch during this one, and is dropped if this one ends early; or None.
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
        self._batches = output.delivered(_made_batches(engine, output, batch_size, pinned, figures, locate))
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


def _made_batches(
    engine: EpochEngine,
    output: Output,
    batch_size: int,
    pinned: Allocator | None,
    figures: EpochFigures,
    locate: Locate,
) -> Iterator[Batch]:
    """Yield the batches of an epoch; arguments as in `Epoch`.

    An engine that processes batches returns them in `next_batches`. Another one returns windows, from which the output
    makes the batches.
    """
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
