"""One pass over the data: asks the engine for windows, hands over their batches, and keeps time."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from parquet_loader.building import Budget
from parquet_loader.collate import Batch, batch_tensors, window_batches
from parquet_loader.device import copied_ahead
from parquet_loader.engine import Engine
from parquet_loader.errors import LoaderStateError
from parquet_loader.filesystem import is_local
from parquet_loader.snapshot import Snapshot
from parquet_loader.stats import LoaderStats, SkippedRowGroup
from parquet_loader.workers import StageTimes


class Epoch(Iterator[Batch]):
    """An iterator of batches. Used by one thread at a time.

    The engine's threads know nothing of this object, so that letting go of it (by `break`, an exception, or the end of
    the interpreter) runs the finaliser, which ends them.

    Args:
        engine: Reads the epoch; started here, and closed with the pass.
        batch_size: Rows of a batch.
        device: Where batches go, or None.
        bar: A tqdm bar, or None.
        figures: Keeps time.
    """

    def __init__(
        self, engine: Engine, batch_size: int, device: torch.device | None, bar: Any, figures: EpochFigures
    ) -> None:
        self.figures = figures
        self.is_active = True
        self._was_cut_short = False
        self._pid = os.getpid()
        self._engine = engine
        self._bar = bar
        self._batches = _pull(engine, batch_size)
        if device is not None and device.type == "cuda":
            self._batches = copied_ahead(self._batches, device)
        self._finalizer = weakref.finalize(self, _end, engine, self.figures, bar)
        try:
            engine.start()
        except BaseException:  # no more threads to be had, or Ctrl-C: its traceback would keep this object
            self.close()
            raise

    def __next__(self) -> Batch:
        """Return the next batch.

        Raises:
            LoaderStateError: the loader was closed, or the pass began before a fork.
            Exception: whatever went wrong in the background, in the place of the batch it spoiled.
        """
        if not self.is_active:
            if self._was_cut_short:
                raise LoaderStateError("the loader was closed or reset before the last batch of this pass")
            raise StopIteration
        try:  # around all of it: Ctrl-C may come anywhere, and its traceback would keep the pass and its threads
            self._check_process()
            self.figures.begin_wait()
            batch = next(self._batches)
            self.figures.end_wait(len(next(iter(batch.values()))) if batch else 0)
            if self._bar is not None:
                self._bar.update()
        except BaseException:
            try:
                self.figures.end_wait(0)
            finally:  # another Ctrl-C may come here, too
                if self._pid == os.getpid():
                    self.close()
                    self._was_cut_short = False
            raise
        return batch

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise LoaderStateError("this pass began before fork(); begin one in this process: iter(loader)")

    @property
    def is_here(self) -> bool:
        """Whether the pass is under way in this process."""
        return self.is_active and self._pid == os.getpid()

    def close(self) -> None:
        """End the pass and its threads; idempotent."""
        if self.is_active:
            self.is_active = False
            self._was_cut_short = True
            try:
                self._finalizer()
            except BaseException:  # Ctrl-C in the midst of it
                _end(self._engine, self.figures, self._bar)
                raise
            finally:
                self._batches = iter(())


def _end(engine: Engine, figures: EpochFigures, bar: Any) -> None:
    engine.close()
    figures.stop()
    if bar is not None:
        bar.close()


def _pull(engine: Engine, batch_size: int) -> Iterator[Batch]:
    while engine.processes and (made := engine.next_batch()) is not None:
        yield batch_tensors(made)
    while not engine.processes and (window := engine.next_window()) is not None:
        batches = window_batches(window, batch_size)
        del window
        for number, batch in enumerate(batches):
            if number == 1:
                engine.let_go_of_previous()
            yield batch
            del batch  # or the window would live on while the next one is awaited


class EpochFigures:
    """How long the caller waited and did something else, and what the workers did. Outlives the pass.

    Args:
        epoch: Its number.
        budget: The engine's account of memory and reads.
        times: The workers' account of time.
        num_threads: Number of workers.
        skipped: Row groups left out before the pass began.
    """

    def __init__(
        self, epoch: int, budget: Budget, times: StageTimes, num_threads: int, skipped: tuple[tuple[int, str], ...]
    ) -> None:
        self._skipped = skipped
        self._epoch = epoch
        self._budget = budget
        self._times = times
        self._num_threads = num_threads
        self._rows = 0
        self._batches = 0
        self._wait_s = 0.0
        self._first_wait_s = 0.0
        self._longest_wait_s = 0.0
        self._began = time.perf_counter()
        self._asked = self._began
        self._stopped: float | None = None

    def begin_wait(self) -> None:
        """The caller asks for a batch."""
        self._asked = time.perf_counter()

    def end_wait(self, rows: int) -> None:
        """The caller has a batch, or with no rows the end."""
        waited = time.perf_counter() - self._asked
        self._wait_s += waited
        if rows:
            self._rows += rows
            self._batches += 1
            if self._batches == 1:
                self._first_wait_s = waited
            else:
                self._longest_wait_s = max(self._longest_wait_s, waited)

    def stop(self) -> None:
        """The pass has ended."""
        if self._stopped is None:
            self._stopped = time.perf_counter()

    def stats(self, snapshot: Snapshot, memory_limit_bytes: int) -> LoaderStats:
        """Return the figures so far; numbers of a running pass may be a job apart from each other."""
        budget, times = self._budget, self._times
        seconds = (self._stopped or time.perf_counter()) - self._began
        busy_s = sum(times.cpu_s.values()) + sum(times.blocked_s.values())
        left_out = (*self._skipped, *tuple(budget.skipped))
        skipped = (
            SkippedRowGroup(
                snapshot.files[int(snapshot.row_group_file[group])].path, int(snapshot.row_group_number[group]), reason
            )
            for group, reason in left_out
        )
        return LoaderStats(
            epoch=self._epoch,
            rows=self._rows,
            batches=self._batches,
            seconds=seconds,
            wait_s=self._wait_s,
            first_batch_s=self._first_wait_s,
            longest_wait_s=self._longest_wait_s,
            cpu_s={str(stage): seconds for stage, seconds in times.cpu_s.items()},
            blocked_s={str(stage): seconds for stage, seconds in times.blocked_s.items()},
            idle_s=max(0.0, seconds * self._num_threads - busy_s),
            bytes_read=budget.bytes_read,
            bytes_from_disk=times.disk_bytes if is_local(snapshot.filesystem) else budget.bytes_read,
            row_groups=budget.row_groups,
            skipped_row_groups=tuple(skipped),
            held_bytes=budget.held_bytes + snapshot.footers.held_bytes,
            peak_bytes=budget.peak_bytes + snapshot.footers.held_bytes,
            memory_limit_bytes=memory_limit_bytes,
            num_threads=self._num_threads,
        )
