"""`BatchedDataLoader`: the arguments, the epochs, and the iterator that trains are fed from."""

from __future__ import annotations

import importlib
import os
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc
import torch

from parquet_loader.arena import Allocator, Arenas
from parquet_loader.collate import Batch, PinnedMemory, batch_tensors, window_batches
from parquet_loader.dataset import default_num_threads, open_dataset
from parquet_loader.device import check_device, copied_ahead
from parquet_loader.engine import Engine
from parquet_loader.errors import ConfigurationError, LoaderStateError, UnsupportedError
from parquet_loader.memory import use_returning_pool
from parquet_loader.plan import Plan, batch_count
from parquet_loader.process import BatchProcessor, Transform
from parquet_loader.read import ReadOptions
from parquet_loader.schema import Schema
from parquet_loader.snapshot import open_snapshot
from parquet_loader.source import Source
from parquet_loader.stats import LoaderStats, SkippedRowGroup
from parquet_loader.types import Shard, check_int, format_bytes, parse_bytes


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """What an epoch will do, known before anything is read.

    Attributes:
        epoch: Which one.
        rows: Rows delivered.
        steps: Batches delivered.
        windows: Number of windows.
        window_rows: Most rows of a window.
        open_row_groups: Row groups that give a slice of each window; 1 where windows are made of whole ones.
        row_groups: Row groups read.
        requests: Column chunks read, before neighbours are read as one.
        predicted_peak_bytes: Most memory the loader will hold.
    """

    epoch: int
    rows: int
    steps: int
    windows: int
    window_rows: int
    open_row_groups: int
    row_groups: int
    requests: int
    predicted_peak_bytes: int


class BatchedDataLoader:
    """Iterate over Parquet in batches of tensors, read and shuffled in the background.

    Each pass over the loader is one epoch, and the next pass the next one, also after a pass that was left early;
    `set_epoch` chooses. One pass at a time: a second `iter` raises while the first is neither finished nor let go of.

    Args:
        source: A file, a directory (hive partitions become columns), a glob, a URL, or a list of these.
        batch_size: Rows of a batch.
        schema: What the columns mean; default: the schema the files carry, or the rules in docs/types.md.
        columns: Names to read, in the order of the batch; the name of a struct stands for all its leaves.
        filters: `pyarrow.compute` expression over the columns as they are stored; prunes row groups by statistics, then
            filters rows exactly. Counting the rows that pass takes one pass over the filter's columns at the start.
        shuffle: Permute row groups, and the rows of each window.
        seed: From 0 to 2**64 - 1; with the epoch it determines the order.
        window_rows: Rows shuffled together; default: as many as `memory_limit` allows, up to 64 MiB of rows.
        drop_last: Leave out the last batch if it is not full.
        transform: ``transform(columns, rng)`` is called with a dict of numpy arrays of one batch and a generator seeded
            by (seed, epoch, batch); returns a dict of as many rows. Runs in the background threads. Text comes as object
            arrays of str, bytes likewise, lists as `Ragged`.
        device: ``"cuda"``: batches arrive there, copied ahead on a side stream.
        memory_limit: Bytes, as an int or as text (``"1GiB"``): everything the loader holds.
        shard: In this version only everything: None, or ``Shard(0, 1)``.
        num_threads: Background threads; default: the processors, at most 8. The order does not depend on it.
        isolation: In this version only ``"thread"``.
        on_error: ``"skip"`` leaves out row groups that cannot be read, and lists them in `stats`.
        filesystem: A `pyarrow.fs.FileSystem` to which the paths belong.
        progress: Show a progress bar (needs tqdm).
        read_options: Checksums and memory mapping.

    Raises:
        SourceError: There is nothing to read, or a file is not readable Parquet.
        SchemaError: Schema, columns or filters do not fit the files.
        MemoryLimitError: `memory_limit` is too small; the message names one that would do.
        ConfigurationError: An argument has the wrong kind or value.
        UnsupportedError: An argument that this version does not support yet.
    """

    def __init__(
        self,
        source: Source,
        batch_size: int,
        *,
        schema: Schema | None = None,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        shuffle: bool = False,
        seed: int = 0,
        window_rows: int | None = None,
        drop_last: bool = False,
        transform: Transform | None = None,
        device: Any = None,
        memory_limit: int | str = "1GiB",
        shard: Shard | None = None,
        num_threads: int | None = None,
        isolation: Literal["thread", "process"] = "thread",
        on_error: Literal["raise", "skip"] = "raise",
        filesystem: Any = None,
        progress: bool = False,
        read_options: ReadOptions | None = None,
    ) -> None:
        self.batch_size = check_int("batch_size", batch_size, 1, 2**31)
        self.seed = check_int("seed", seed, 0, 2**64 - 1)
        self.shuffle = _check_bool("shuffle", shuffle)
        self.drop_last = _check_bool("drop_last", drop_last)
        self.num_threads = default_num_threads() if num_threads is None else check_int("num_threads", num_threads, 1, 256)
        _check_window(window_rows, self.batch_size)
        _check_choice("on_error", on_error, ("raise", "skip"))
        _check_choice("isolation", isolation, ("thread", "process"))
        if isolation == "process":
            raise UnsupportedError("isolation='process' is not there yet; isolation='thread' gives the same batches")
        _check_shard(shard)
        _check_columns(columns)
        if schema is not None and not isinstance(schema, Schema):
            raise ConfigurationError(f"schema={schema!r:.80}: expected a parquet_loader.Schema")
        if transform is not None and not callable(transform):
            raise ConfigurationError(f"transform={transform!r:.80}: expected a function of (columns, rng)")
        if read_options is not None and not isinstance(read_options, ReadOptions):
            raise ConfigurationError(f"read_options={read_options!r:.80}: expected a parquet_loader.ReadOptions")
        self._transform = transform
        self._skips = on_error == "skip"
        self._device = check_device(device)
        self._bar = _progress_bar() if _check_bool("progress", progress) else None
        limit = parse_bytes(memory_limit)
        use_returning_pool()
        snapshot = open_snapshot(source, filesystem)
        options = read_options or ReadOptions()
        self._dataset = open_dataset(
            snapshot,
            schema=schema,
            columns=columns,
            filters=filters,
            batch_size=self.batch_size,
            window_rows=window_rows,
            shuffle=self.shuffle,
            memory_limit_bytes=limit,
            transform=transform is not None,
            read_options=options,
            num_threads=self.num_threads,
        )
        self._next_epoch = 0
        self._closed = False
        self._running: weakref.ref[_Epoch] | None = None
        self._last: LoaderStats | None = None

    @property
    def schema(self) -> Schema:
        """What a batch holds: a field by name."""
        return self._dataset.schema

    @property
    def window_rows(self) -> int:
        """Most rows that are shuffled together."""
        return self._dataset.sizing.window_rows

    def __len__(self) -> int:
        """Return the number of batches of an epoch (at most, under ``on_error="skip"``)."""
        return batch_count(self._dataset.rows, self.batch_size, self.drop_last)

    def __repr__(self) -> str:
        snapshot = self._dataset.snapshot
        order = f"shuffled in windows of {self.window_rows}" if self.shuffle else "in order"
        return (
            f"BatchedDataLoader({self._dataset.rows} rows in {len(snapshot.files)} files and {snapshot.row_groups} row "
            f"groups, {len(self)} batches of {self.batch_size} {order}, {len(self.schema)} columns, at most "
            f"{format_bytes(self._dataset.sizing.limit_bytes)}{', closed' if self._closed else ''})"
        )

    def plan(self) -> EpochPlan:
        """Return what the next epoch will do; nothing is read."""
        self._check_open()
        plan, sizing, snapshot = self._plan(self._next_epoch), self._dataset.sizing, self._dataset.snapshot
        groups = np.unique(plan.row_group)
        window = max((plan.window_rows(w) for w in range(plan.windows)), default=0)
        in_windows = sizing.row.decoded + sizing.row.gathered + (sizing.row.decoded if plan.windows > 1 else 0)
        whole = int(np.minimum(self._dataset.counts, sizing.whole_rows).max(initial=0))
        reads = min(sizing.reads_bytes, sizing.row_group_bytes(whole) * self.num_threads)
        reads += sizing.cursor_bytes * (sizing.open_row_groups if sizing.open_row_groups > 1 else 0)
        footers = snapshot.footers.held_bytes
        return EpochPlan(
            epoch=plan.epoch,
            rows=plan.batches * self.batch_size if self.drop_last else plan.rows,
            steps=plan.batches,
            windows=plan.windows,
            window_rows=window,
            open_row_groups=sizing.open_row_groups,
            row_groups=len(groups),
            requests=self._dataset.reader.column_chunks(groups),
            predicted_peak_bytes=int(window * in_windows) + reads + sizing.batches_bytes + footers,
        )

    def set_epoch(self, epoch: int) -> None:
        """Choose which epoch the next pass is."""
        self._next_epoch = check_int("epoch", epoch, 0, 2**63)

    def __iter__(self) -> Iterator[Batch]:
        """Begin the next epoch.

        Raises:
            LoaderStateError: the loader is closed, or an earlier pass is not finished.
        """
        self._check_open()
        running = self._running() if self._running is not None else None
        if running is not None and running.is_active:
            raise LoaderStateError(
                "this loader is being iterated already; finish that pass, let go of its iterator, or call "
                "loader.reset() (two passes at a time need two loaders)"
            )
        epoch = _Epoch(self, self._plan(self._next_epoch))
        self._next_epoch += 1
        self._running = weakref.ref(epoch)
        return epoch

    def reset(self) -> None:
        """End a pass that is under way, if there is one."""
        running = self._running() if self._running is not None else None
        if running is not None:
            running.close()

    def stats(self) -> LoaderStats:
        """Return what the epoch under way, or else the last one, was spent on.

        Raises:
            LoaderStateError: there was no epoch yet.
        """
        running = self._running() if self._running is not None else None
        if running is not None:
            return running.stats()
        if self._last is None:
            raise LoaderStateError("there are no figures yet: no epoch was begun")
        return self._last

    def state_dict(self) -> dict[str, Any]:
        """Not there yet."""
        raise UnsupportedError("state_dict() is not there yet; set_epoch(n) begins any epoch again from its start")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Not there yet."""
        raise UnsupportedError("load_state_dict() is not there yet; set_epoch(n) begins any epoch again from its start")

    def close(self) -> None:
        """End a pass that is under way, its threads included; idempotent. The loader cannot be used afterwards."""
        self.reset()
        self._closed = True

    def __enter__(self) -> BatchedDataLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise LoaderStateError("the loader is closed; make a new one")

    def _plan(self, epoch: int) -> Plan:
        return self._dataset.plan(
            batch_size=self.batch_size, drop_last=self.drop_last, shuffle=self.shuffle, seed=self.seed, epoch=epoch
        )

    def _engine(self, plan: Plan) -> Engine:
        columns = self._dataset.reader.columns
        processor = None
        if BatchProcessor.is_needed(columns, self._transform):
            processor = BatchProcessor(columns, self._transform, self.seed, plan.epoch)
        return Engine(
            plan,
            self._dataset.counts,
            self._dataset.reader,
            self._dataset.sizing,
            processor=processor,
            allocator=_allocator(self._device),
            num_threads=self.num_threads,
            skips=self._skips,
        )


class _Epoch(Iterator[Batch]):
    """One pass: asks the engine for windows, and hands over their batches. Used by one thread.

    The engine's threads know nothing of this object, so that letting go of it (by `break`, an exception, or the end of
    the interpreter) runs the finaliser, which ends them.
    """

    def __init__(self, loader: BatchedDataLoader, plan: Plan) -> None:
        self._loader = loader
        self._plan = plan
        self._pid = os.getpid()
        self._engine = loader._engine(plan)
        self._processed = BatchProcessor.is_needed(loader._dataset.reader.columns, loader._transform)
        self._batches: Iterator[Batch] = self._pull(self._engine, plan.batch_size, processed=self._processed)
        if loader._device is not None and loader._device.type == "cuda":
            self._batches = copied_ahead(self._batches, loader._device)
        self._clock = _Clock()
        self._bar = loader._bar(total=plan.batches, unit="batch", desc=f"epoch {plan.epoch}") if loader._bar else None
        self._finalizer = weakref.finalize(self, self._engine.close)
        self.is_active = True
        self._engine.start()

    def __next__(self) -> Batch:
        if not self.is_active:
            raise StopIteration
        if self._pid != os.getpid():
            raise LoaderStateError("this pass began before fork(); begin one in this process: iter(loader)")
        self._clock.begin_wait()
        try:
            batch = next(self._batches)
        except BaseException:
            self._clock.end_wait(0)
            self.close()
            raise
        self._clock.end_wait(_rows(batch))
        if self._bar is not None:
            self._bar.update()
        return batch

    @staticmethod
    def _pull(engine: Engine, batch_size: int, *, processed: bool) -> Iterator[Batch]:
        while processed and (made := engine.next_batch()) is not None:
            yield batch_tensors(made)
        while not processed and (window := engine.next_window()) is not None:
            batches = window_batches(window, batch_size)
            del window
            for number, batch in enumerate(batches):
                if number == 1:
                    engine.let_go_of_previous()
                yield batch
                del batch  # or the window would live on while the next one is awaited

    def close(self) -> None:
        """End the pass and its threads; idempotent."""
        if not self.is_active:
            return
        self.is_active = False
        self._finalizer()
        self._batches = iter(())
        self._clock.stop()
        if self._bar is not None:
            self._bar.close()
        self._loader._last = self.stats()

    def stats(self) -> LoaderStats:
        """Return the figures so far."""
        engine, clock, loader = self._engine, self._clock, self._loader
        snapshot = loader._dataset.snapshot
        with engine.workers.changed:
            cpu_s, blocked_s = dict(engine.workers.cpu_s), dict(engine.workers.blocked_s)
            budget = engine.budget
            skipped = tuple(
                SkippedRowGroup(
                    snapshot.files[int(snapshot.row_group_file[group])].path,
                    int(snapshot.row_group_number[group]),
                    reason,
                )
                for group, reason in budget.skipped
            )
            return LoaderStats(
                epoch=self._plan.epoch,
                rows=clock.rows,
                batches=clock.batches,
                seconds=clock.seconds,
                wait_s=clock.wait_s,
                first_batch_s=clock.first_wait_s,
                longest_wait_s=clock.longest_wait_s,
                cpu_s=cpu_s,
                blocked_s=blocked_s,
                idle_s=max(0.0, clock.seconds * loader.num_threads - sum(cpu_s.values()) - sum(blocked_s.values())),
                bytes_read=budget.bytes_read,
                row_groups=budget.row_groups,
                skipped_row_groups=skipped,
                held_bytes=budget.held_bytes + snapshot.footers.held_bytes,
                peak_bytes=budget.peak_bytes + snapshot.footers.held_bytes,
                memory_limit_bytes=loader._dataset.sizing.limit_bytes,
                num_threads=loader.num_threads,
            )


class _Clock:
    """How long the caller waited, and how long it did something else."""

    def __init__(self) -> None:
        self.rows = 0
        self.batches = 0
        self.wait_s = 0.0
        self.first_wait_s = 0.0
        self.longest_wait_s = 0.0
        self._began = time.perf_counter()
        self._asked = self._began
        self._stopped: float | None = None

    @property
    def seconds(self) -> float:
        return (self._stopped or time.perf_counter()) - self._began

    def begin_wait(self) -> None:
        self._asked = time.perf_counter()

    def end_wait(self, rows: int) -> None:
        waited = time.perf_counter() - self._asked
        self.wait_s += waited
        if rows:
            self.rows += rows
            self.batches += 1
            if self.batches == 1:
                self.first_wait_s = waited
            else:
                self.longest_wait_s = max(self.longest_wait_s, waited)

    def stop(self) -> None:
        self._stopped = time.perf_counter()


def _rows(batch: Batch) -> int:
    return len(next(iter(batch.values()))) if batch else 0


def _allocator(device: torch.device | None) -> Allocator:
    """Pinned memory where there is a GPU that batches may go to, ordinary memory elsewhere."""
    in_worker = torch.utils.data.get_worker_info() is not None
    wanted = device.type == "cuda" if device is not None else torch.cuda.is_available() and not in_worker
    return PinnedMemory() if wanted else Arenas()


def _progress_bar() -> Any:
    try:
        return importlib.import_module("tqdm.auto").tqdm
    except ImportError as error:
        raise ConfigurationError(
            "progress=True needs tqdm: pip install 'torch-parquet-loader[progress]'"
        ) from error


def _check_bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise ConfigurationError(f"{name}={value!r}: expected True or False")
    return bool(value)


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{name}={value!r}: expected {' or '.join(map(repr, choices))}")


def _check_window(window_rows: Any, batch_size: int) -> None:
    if window_rows is not None and check_int("window_rows", window_rows, 1, 2**40) < batch_size:
        raise ConfigurationError(f"window_rows={window_rows}: a window holds at least one batch of {batch_size} rows")


def _check_columns(columns: Any) -> None:
    if columns is None:
        return
    if isinstance(columns, str) or not isinstance(columns, Sequence) or not all(isinstance(c, str) for c in columns):
        raise ConfigurationError(f"columns={columns!r:.80}: expected a list of names")
    if not columns:
        raise ConfigurationError("columns=[]: expected at least one name; None reads all columns")


def _check_shard(shard: Any) -> None:
    if shard is None:
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if distributed and torch.distributed.get_world_size() > 1:
            raise UnsupportedError(
                "torch.distributed is initialised, and rows are not divided over ranks yet; "
                "give each rank files of its own and shard=Shard(0, 1)"
            )
    elif not isinstance(shard, Shard):
        raise ConfigurationError(f"shard={shard!r:.80}: expected a parquet_loader.Shard, or None")
    elif shard.world_size != 1:
        raise UnsupportedError(
            f"{shard}: rows are not divided over ranks yet; give each rank files of its own and leave shard out"
        )
