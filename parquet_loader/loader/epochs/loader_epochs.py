"""`LoaderEpochs`, the epochs of a loader: its position, the running iterator, and the epoch that is read ahead."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

from parquet_loader.collate import Batch, DeviceRows, Output, PermutingOutput
from parquet_loader.common import Shard, check_int, is_local
from parquet_loader.dataset import Dataset
from parquet_loader.engine import (
    BatchProcessor,
    Engine,
    EngineOptions,
    IsolatedEngine,
    KeptEngine,
    NextPlan,
    ReadAhead,
    ReadingProcess,
    TransformProcesses,
)
from parquet_loader.errors import ConfigurationError, LoaderStateError, UnsupportedError
from parquet_loader.loader.epochs.epoch import Epoch
from parquet_loader.loader.epochs.epoch_figures import EpochEngine, EpochFigures
from parquet_loader.loader.fixed_attribute import FixedAttribute
from parquet_loader.loader.live_datasets import LiveDatasets
from parquet_loader.loader.live_source import Deliveries, EpochFiles
from parquet_loader.loader.mixing import MixingMeter
from parquet_loader.loader.shard_choice import check_still_divided
from parquet_loader.plan import Division, Plan, Sharding, split_over_workers
from parquet_loader.schema import Schema, masks_of
from parquet_loader.window import Allocator, Arenas


class LoaderEpochs:
    """Begins and ends the epochs of a loader.

    At most one epoch is running. The loader has only a weak reference to it, so the caller's iterator alone keeps it
    alive. An epoch that is read ahead belongs to the loader until it begins.

    Subclasses set the attributes that are only annotated here. Loaders that deliver something else than rows override:
    `_planned`, `_division`, `_next_plan`, `_plan` and `_plan_of`, which plan an epoch; `_engine` and `_opener`, which
    open its engine; `_output_of`, which makes its batches; `_size`, `_steps_of` and `_steps_differ`, for mixtures.
    """

    batch_size = FixedAttribute[int]()
    seed = FixedAttribute[int]()
    shuffle = FixedAttribute[bool]()
    drop_last = FixedAttribute[bool]()
    num_threads = FixedAttribute[int]()
    _measures_mixing = True
    _dataset: Dataset
    _options: EngineOptions
    _output: Output
    _sharding: Sharding
    _is_shard_chosen: bool
    _reading_process: ReadingProcess | None
    _isolates: bool
    _transforms: TransformProcesses | None
    _live_datasets: LiveDatasets | None
    _bar: Any

    def __init__(self) -> None:
        self._closed = False
        self._next_epoch = 0
        self._next_batch = 0
        # Whether the caller chose the position; if not, it follows from the last epoch.
        self._is_position_chosen = True
        # The next epoch, if it is read ahead; in a list, so that the finaliser does not refer to the loader.
        self._ahead: list[ReadAhead[Engine]] = []
        weakref.finalize(self, _drop, self._ahead)
        self._lock = os.getpid(), threading.RLock()
        # A weak reference to the last epoch.
        self._running: Callable[[], Epoch | None] = lambda: None
        self._figures: EpochFigures | None = None
        self._is_iterated = False

    def _use(self, dataset: Dataset) -> None:
        """Use this data set from now on; a child process opens it for the next epoch."""
        self._dataset = dataset
        self.__dict__.pop("_identity", None)
        if not self._isolates:
            return
        on_block = None
        # Blocks of windows are page-locked. Those of batches are not: nothing would keep them until they are copied.
        if isinstance(self._output, PermutingOutput) and self._options.device_permutes and not self._processes(dataset):
            on_block = self._output.register
        if self._reading_process is not None and self._reading_process.on_block == on_block:
            self._reading_process.use(dataset)
            return
        if self._reading_process is not None:
            self._reading_process.stop()
        self._reading_process = ReadingProcess(dataset, self._options, on_block)

    @property
    def schema(self) -> Schema:
        """The fields of a batch, by name."""
        return self._dataset.schema

    @property
    def window_rows(self) -> int:
        """Most rows that are shuffled together.

        If columns vary in width, the first use may decode a few thousand rows, as the first iteration does.

        Raises:
            MemoryLimitError: `memory_limit` is too small for these rows; the message names a sufficient one.
            DataError, SourceError: The rows cannot be read.
        """
        return self._dataset.sizing.window_rows

    # Blocks are reused from epoch to epoch; free blocks are within the share of running epochs.
    @cached_property
    def _allocator(self) -> Allocator:
        return self._output.allocator(self._dataset.sizing.windows_and_batches_bytes)

    @cached_property
    def _staging(self) -> Arenas:
        return Arenas(self._dataset.sizing.windows_and_batches_bytes)

    @property
    def _planned(self) -> Dataset:
        """The data set with the counts of rows by which epochs are planned."""
        return self._dataset

    @property
    def _changes(self) -> bool:
        """Whether the source is listed at each epoch's start, as a `SampleStore` is."""
        return self._live_datasets is not None

    @property
    def _steps_differ(self) -> bool:
        """Whether epochs may differ in their number of batches, although the source does not change."""
        return False

    def _steps_of(self, epoch: int) -> int:  # noqa: ARG002  (a TokenLoader's epochs differ)
        """Return the number of batches of an epoch."""
        return len(self)

    def _left_out(self) -> int:
        """Return the number of row groups left out of the running or last epoch because of errors."""
        return self._figures.left_out if self._options.skips and self._figures is not None else 0

    def _size(self) -> int:
        """Return the size by which a mixture may weigh this loader: rows of an epoch, of all ranks together."""
        return self._dataset.rows

    @property
    def shard(self) -> Shard:
        """The rank for which this loader reads, and the number of ranks."""
        return self._sharding.shard

    def __len__(self) -> int:
        """Return the number of batches of an epoch on this rank (at most, under ``on_error="skip"``)."""
        return self._division().batches

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration.

        If `load_state_dict` or `seek` chose a batch of this epoch, the loader stays at that batch.
        """
        epoch = check_int("epoch", epoch, 0, 2**63 - 1)
        if not self._is_position_chosen or epoch != self._next_epoch:
            self._set_position(epoch, 0)

    def seek(self, epoch: int, batch: int) -> None:
        """Start the next iteration at a batch of an epoch; at most two windows are read for its first batch.

        Raises:
            ConfigurationError: The epoch has no such batch.
        """
        epoch = check_int("epoch", epoch, 0, 2**63 - 1)
        self._set_position(epoch, check_int("batch", batch, 0, max(0, len(self) - 1)))

    def __iter__(self) -> Iterator[Batch]:
        """Begin the next epoch, or continue at the batch that `seek` or `load_state_dict` chose.

        The previous iterator ends, and raises `LoaderStateError` if it is used again before its last batch. If no batch
        was requested from it, it does not count as an epoch.

        Raises:
            LoaderStateError: The loader is closed, or was made before `torch.distributed` was initialised.
        """
        return self._iterate(self._output)

    def _iterate(self, output: Output) -> Iterator[Batch]:
        """Begin an epoch as `__iter__` does, in the format of an output."""
        with self._begin_lock():
            if self._live_datasets is None:
                self._end_previous()
                return self._begin_epoch(output, reads_ahead=self.shuffle or self._has_iterated())
            self._live_datasets.with_broadcast(self._end_previous)
            seen = self._live_datasets.begin(self._next_epoch, self._next_batch)
            try:
                # A source that has just changed is expected to change again before the next epoch.
                is_same = seen.dataset is self._dataset
                if not is_same:
                    self._use(seen.dataset)
                return self._begin_epoch(output, seen.files, reads_ahead=self._has_iterated() and is_same)
            except BaseException:
                seen.files.close()
                raise

    def _has_iterated(self) -> bool:
        """Whether a batch of an earlier iteration was requested; then more iterations are likely."""
        self._is_iterated = self._is_iterated or (self._figures is not None and self._figures.was_requested)
        return self._is_iterated

    def _begin_epoch(self, output: Output, files: EpochFiles | None = None, *, reads_ahead: bool) -> Iterator[Batch]:
        """Begin the next epoch. With `reads_ahead`, the epoch after it is read ahead."""
        division = self._division()
        engine_ahead = self._engine_ahead(division)
        plan = self._plan(self._next_epoch, division) if engine_ahead is None else self._plan_of(engine_ahead)
        next_plan = self._next_plan(division, plan.epoch + 1) if plan.batches and reads_ahead else None
        return self._begin(plan, self._next_batch, output, files, engine_ahead=engine_ahead, next_plan=next_plan)

    def _begin_part(self, epoch: int, first_batch: int, worker: int, workers: int) -> Iterator[Batch]:
        """Begin one worker process's part of an epoch: its batches among those that `workers` deliver in turn.

        Raises:
            ConfigurationError: There are logical shards, whose batches cannot be divided over workers.
            UnsupportedError: The source is a store or a followed table, whose files only one process lists and holds.
        """
        if self._live_datasets is not None:
            raise UnsupportedError(
                f"num_workers={workers} over a SampleStore, or a table with follow=True: only one process lists and "
                "holds its files; use num_workers=0, because the loader reads in the background anyway"
            )
        division = self._division()
        if workers > 1 and self._sharding.options.logical_shards is not None:
            raise ConfigurationError(
                f"num_workers={workers} with logical_shards: every batch has rows of several shards, which are read in "
                "one process; use num_workers=0, because the loader reads in the background anyway"
            )
        if workers > 1:
            division = split_over_workers(division, self.batch_size, worker, workers)
        with self._begin_lock():
            self._end_previous()
            return self._begin(self._plan(epoch, division), min(first_batch, division.batches), self._output)

    def _next_plan(self, division: Division, epoch: int) -> NextPlan:
        return NextPlan(division, self.batch_size, self.drop_last, self.shuffle, self.seed, epoch)

    def _plan_of(self, engine_ahead: Engine) -> Plan:
        """Return the plan by which the batches of an epoch that was read ahead are counted."""
        return engine_ahead.plan

    def _opener(self) -> Callable[[Plan], Engine]:
        """Return a function that opens the engine of a plan; it does not refer to the loader."""
        return partial(self._engines(), first_batch=0, is_first=False)

    def _engines(self) -> partial[Engine]:
        """Return `Engine` with the arguments that all epochs share; it does not refer to the loader."""
        return partial(
            Engine,
            self._dataset,
            options=self._options,
            allocator=self._allocator,
            staging=self._staging,
            transforms=self._transforms,
        )

    def _engine_ahead(self, division: Division) -> Engine | None:
        """Return the engine that has read ahead, if its epoch is the next one."""
        for ahead in self._ahead:
            is_next = not self._next_batch and ahead.plan == self._next_plan(division, self._next_epoch)
            if is_next and ahead.dataset is self._dataset:
                return ahead.engine
        return None

    def _drop_ahead(self) -> None:
        _drop(self._ahead)

    def _begin(
        self,
        plan: Plan,
        first_batch: int,
        output: Output,
        files: EpochFiles | None = None,
        *,
        engine_ahead: Engine | None = None,
        next_plan: NextPlan | None = None,
    ) -> Iterator[Batch]:
        """Begin an epoch, and return the iterator over its batches.

        Args:
            plan: The epoch.
            first_batch: The batch with which it begins.
            output: Makes the batches: the loader's own output, or one for another framework.
            files: The leased files of a source that changes; the epoch releases them.
            engine_ahead: The engine that has read this epoch ahead; None opens one.
            next_plan: The plan of the epoch to read ahead; None reads none ahead.
        """
        is_own = output is self._output
        kept = self._kept_rows(plan) if is_own else None
        if kept is not None:
            engine_ahead = next_plan = (
                None  # the rows stay on the device, so the next epoch is likely to need no engine
            )
        if engine_ahead is None:
            self._drop_ahead()
        if is_own:
            self._check_device_memory(plan)
        if not is_local(self._dataset.snapshot.filesystem):
            next_plan = None  # the next epoch may never begin, and remote requests cost money and bandwidth
        left = plan.batches - first_batch
        bar = None if self._bar is None else self._bar(total=left, unit="batch", desc=f"epoch {plan.epoch}")
        engine: EpochEngine
        if engine_ahead is not None:
            engine = engine_ahead
        elif kept is not None and kept.has(plan):
            engine = KeptEngine(plan, kept.first_row, first_batch)
        else:
            engine = self._engine(plan, first_batch, next_plan)
        ahead: list[ReadAhead[Engine]] = []
        if next_plan is not None and isinstance(engine, Engine):
            ahead.append(ReadAhead(self._dataset, next_plan, self._opener()))
            engine.set_next(ahead[0])
        workers, skipped = self._options.transform_workers, self._dataset.skipped
        figures = EpochFigures(
            plan, engine, self.num_threads, workers, skipped, first_batch, mixing=self._known_mixing()
        )
        # Windows of the child process are in its shared memory, not in memory of the allocator.
        copies = is_own and self._reading_process is not None and self._allocator.is_required
        epoch = Epoch(
            engine,
            self.batch_size,
            self._output_of(plan, first_batch, output),
            self._allocator if copies else None,
            bar,
            figures,
            self._dataset.snapshot.locate,
            None if files is None else Deliveries(files, plan, first_batch),
            read_ahead=None if engine_ahead is None else self._ahead[0],
            next_epoch=ahead[0] if ahead else None,
        )
        self._running, self._figures = weakref.ref(epoch), figures
        delivering = epoch.deliver()
        # No calls from here on: Python handles SIGINT at calls, and its traceback would keep the iterator alive.
        self._next_epoch, self._next_batch, self._is_position_chosen = plan.epoch + 1, 0, False
        self._ahead[:] = ahead
        return delivering

    def _known_mixing(self) -> MixingMeter | None:
        """Return the result of measuring the mixing of windows; None if the next epoch measures it.

        Measuring takes up to a tenth of the caller's time, and its result is the same in each epoch of static data.
        """
        if not self._measures_mixing:
            return MixingMeter()
        last = self._figures
        return last.mixing if last is not None and last.has_delivered_all and self._live_datasets is None else None

    def reset(self) -> None:
        """End the running iteration, if there is one, and release the part of the next epoch that was read ahead.

        If no batch was requested from the running iteration, the next one begins at the same batch.
        """
        self._end("the loader was closed or reset before the last batch of this epoch; begin again: iter(loader)")
        self._drop_ahead()
        if self._reading_process is not None:
            with self._begin_lock():  # another thread may be about to begin an epoch in the process
                running = self._running()
                if running is None or not running.is_here:
                    self._reading_process.drop_ahead()

    def _end(self, reason: str) -> None:
        """End the running iteration; its iterator raises the reason if it has batches left."""
        if self._position != (self._next_epoch, self._next_batch):
            self._set_position(*self._position)
        running = self._running()
        if running is None:
            return
        is_cut_short = not running.figures.was_requested or running.figures.next_batch < len(self)
        running.close(reason if is_cut_short else None)

    def _end_previous(self) -> None:
        """End the previous iterator, if there is one.

        Raises:
            LoaderStateError: The loader is closed.
        """
        self._check_open()
        self._end(
            f"iter(loader) was called again (in thread {threading.current_thread().name!r}), which ended this "
            "iterator; loops that run at the same time need a loader each"
        )

    def _begin_lock(self) -> Any:
        """Return the lock under which iterators begin; a forked child has its own."""
        if self._lock[0] != os.getpid():
            self._lock = os.getpid(), threading.RLock()
        return self._lock[1]

    def _set_position(self, epoch: int, batch: int) -> None:
        if batch or any(ahead.plan.epoch != epoch for ahead in self._ahead):
            self._drop_ahead()
        self._next_epoch, self._next_batch, self._is_position_chosen = epoch, batch, True

    def _described_epoch(self) -> EpochFigures | None:
        """Return the epoch that a state describes: the running or last one; None if a position was chosen."""
        running = self._running()
        is_running = running is not None and running.is_here
        return self._figures if is_running or not self._is_position_chosen else None

    @property
    def _position(self) -> tuple[int, int]:
        """The epoch and batch of the next iteration: those of the last one if no batch of it was requested."""
        last = self._figures
        if last is not None and not last.was_requested and not self._is_position_chosen:
            return last.epoch, last.first_batch
        return self._next_epoch, self._next_batch

    def _check_open(self) -> None:
        if self._closed:
            raise LoaderStateError("the loader is closed; make a new one")
        if not self._is_shard_chosen:
            check_still_divided(self._sharding)

    def _check_device_memory(self, plan: Plan) -> None:
        if isinstance(self._output, PermutingOutput) and self._output.device_limit_bytes is not None:
            sizing, columns = self._dataset.sizing, self._dataset.reader.columns
            if self._output.decodes and sizing.row.processed:
                self._output.check_image_memory(sizing.row.processed * self.batch_size)
            if not self._options.device_permutes or self._processes(self._dataset):
                return  # no window goes to the device
            widths = [width for _, width in sizing.row.ragged] + [column.row_bytes or 0 for column in columns]
            rows, extra = sizing.window_capacity(plan), sizing.extra_of_row
            self._output.check_device_memory(
                rows,
                sizing.row.decoded + extra,
                max(widths, default=0) + extra,
                is_ragged=any(column.is_ragged for column in columns),
            )

    def _kept_rows(self, plan: Plan) -> DeviceRows | None:
        """Return the rows that stay on the device with ``cache="device"``; None if they do not fit, or without it."""
        if not isinstance(self._output, PermutingOutput) or not self._options.device_permutes:
            return None
        rows = self._dataset.sizing.window_capacity(plan)
        return self._output.kept_rows(self._dataset.counts, self._dataset.reader.columns, rows)

    def _division(self) -> Division:
        return self._sharding.divide(self._planned.rows, self.batch_size, drop_last=self.drop_last)

    def _plan(self, epoch: int, division: Division | None = None) -> Plan:
        return self._next_plan(division or self._division(), epoch)(self._planned)

    def _output_of(self, plan: Plan, first_batch: int, output: Output) -> Output:  # noqa: ARG002  (a TokenLoader's needs them)
        """Return the output that makes the batches of an epoch."""
        return output.masked({} if self._options.transform is not None else masks_of(self.schema))

    def _processes(self, dataset: Dataset) -> bool:
        return BatchProcessor.is_needed(dataset.reader.columns, self._options.transform)

    def _engine(self, plan: Plan, first_batch: int = 0, next_plan: NextPlan | None = None) -> EpochEngine:
        if self._reading_process is not None:
            processes = self._processes(self._dataset)
            return IsolatedEngine(self._reading_process, plan, first_batch, processes=processes, next_plan=next_plan)
        return self._engines()(plan, first_batch=first_batch, is_first=self._figures is None)


def _drop(ahead: list[ReadAhead[Engine]]) -> None:
    for reading in tuple(ahead):
        reading.drop()
