"""`BatchedDataLoader`: the arguments, the epochs, and the iterator that trains are fed from."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import pyarrow.compute as pc
import torch

from parquet_loader.arena import Allocator, Arenas
from parquet_loader.arguments import check_bool, check_choice, check_columns, check_window
from parquet_loader.collate import Batch, PinnedMemory
from parquet_loader.dataset import default_num_threads, open_dataset
from parquet_loader.device import check_device
from parquet_loader.engine import EngineOptions, open_engine
from parquet_loader.epoch import Epoch, EpochFigures, PassEngine
from parquet_loader.errors import ConfigurationError, LoaderStateError, UnsupportedError
from parquet_loader.isolated import IsolatedEngine, ReadingProcess
from parquet_loader.memory import use_returning_pool
from parquet_loader.options import ReadOptions
from parquet_loader.plan import Plan
from parquet_loader.process import BatchProcessor, Transform
from parquet_loader.schema import Schema
from parquet_loader.shards import batch_count, everything
from parquet_loader.snapshot import open_snapshot
from parquet_loader.source import Source
from parquet_loader.stats import LoaderStats
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
            by (seed, epoch, batch); returns a dict of as many rows. Runs in the background threads. Text comes as
            object arrays of str, bytes likewise, lists as `Ragged`.
        device: ``"cuda"``: batches arrive there, copied ahead on a side stream.
        memory_limit: Bytes, as an int or as text (``"1GiB"``): everything the loader holds.
        shard: In this version only everything: None, or ``Shard(0, 1)``.
        num_threads: Background threads; default: the processors, at most 8. The order does not depend on it.
        isolation: ``"process"`` reads in a process of its own, with `num_threads` threads there: the same batches in
            the same order, and none of the work shares Python's lock with the training loop. A `transform` from a
            script or notebook is sent there by value, which needs cloudpickle. Linux only.
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
        self.shuffle = check_bool("shuffle", shuffle)
        self.drop_last = check_bool("drop_last", drop_last)
        self.num_threads = (
            default_num_threads() if num_threads is None else check_int("num_threads", num_threads, 1, 256)
        )
        check_window(window_rows, self.batch_size)
        check_choice("on_error", on_error, ("raise", "skip"))
        check_choice("isolation", isolation, ("thread", "process"))
        _check_shard(shard)
        check_columns(columns)
        if schema is not None and not isinstance(schema, Schema):
            raise ConfigurationError(f"schema={schema!r:.80}: expected a parquet_loader.Schema")
        if transform is not None and not callable(transform):
            raise ConfigurationError(f"transform={transform!r:.80}: expected a function of (columns, rng)")
        if read_options is not None and not isinstance(read_options, ReadOptions):
            raise ConfigurationError(f"read_options={read_options!r:.80}: expected a parquet_loader.ReadOptions")
        self._options = EngineOptions(transform, self.seed, self.num_threads, on_error == "skip")
        self._device = check_device(device)
        self._bar = _progress_bar() if check_bool("progress", progress) else None
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
            skips=self._options.skips,
            num_threads=self.num_threads,
        )
        # Memory stays warm from epoch to epoch; freed blocks are within the limit that running epochs keep to.
        self._allocator = _allocator(self._device)
        self._staging = Arenas()
        self._reading = ReadingProcess(self._dataset, self._options) if isolation == "process" else None
        self._next_epoch = 0
        self._closed = False
        self._running: weakref.ref[Epoch] | None = None
        self._figures: EpochFigures | None = None

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
        return batch_count(self._dataset.rows, self.batch_size, drop_last=self.drop_last)

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
        groups = plan.row_groups_read
        window = plan.largest_window_rows
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
        if running is not None and running.is_here:
            raise LoaderStateError(
                "this loader is being iterated already; finish that pass, let go of its iterator, or call "
                "loader.reset() (two passes at a time need two loaders)"
            )
        plan = self._plan(self._next_epoch)
        bar = None if self._bar is None else self._bar(total=plan.batches, unit="batch", desc=f"epoch {plan.epoch}")
        engine = self._engine(plan)
        figures = EpochFigures(plan.epoch, engine, self.num_threads, self._dataset.skipped)
        pinned = self._allocator if self._reading is not None and self._allocator.copies_processed else None
        epoch = Epoch(engine, self.batch_size, self._device, pinned, bar, figures)
        delivering = epoch.deliver()
        self._next_epoch += 1
        self._running = weakref.ref(epoch)
        self._figures = figures
        return delivering

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
        if self._figures is None:
            raise LoaderStateError("there are no figures yet: no epoch was begun")
        return self._figures.stats(self._dataset.snapshot, self._dataset.sizing.limit_bytes)

    def state_dict(self) -> dict[str, Any]:
        """Not there yet."""
        raise UnsupportedError("state_dict() is not there yet; set_epoch(n) begins any epoch again from its start")

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: ARG002
        """Not there yet."""
        raise UnsupportedError("load_state_dict() is not there yet; set_epoch(n) begins any epoch again from its start")

    def close(self) -> None:
        """End a pass that is under way, its threads included; idempotent. The loader cannot be used afterwards."""
        self.reset()
        self._closed = True
        if self._reading is not None:
            self._reading.end()
        for arenas in (self._allocator, self._staging):
            if isinstance(arenas, Arenas):
                arenas.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise LoaderStateError("the loader is closed; make a new one")

    def _plan(self, epoch: int) -> Plan:
        division = everything(self._dataset.rows, self.batch_size, drop_last=self.drop_last)
        return self._dataset.plan(
            division,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            shuffle=self.shuffle,
            seed=self.seed,
            epoch=epoch,
        )

    def _engine(self, plan: Plan, first_batch: int = 0) -> PassEngine:
        if self._reading is not None:
            processes = BatchProcessor.is_needed(self._dataset.reader.columns, self._options.transform)
            return IsolatedEngine(self._reading, plan, first_batch, processes=processes)
        return open_engine(
            self._dataset,
            plan,
            self._options,
            first_batch=first_batch,
            allocator=self._allocator,
            staging=self._staging,
            is_first=self._figures is None,
        )


def _allocator(device: torch.device | None) -> Allocator:
    """Pinned memory where there is a GPU that batches may go to, ordinary memory elsewhere."""
    in_worker = torch.utils.data.get_worker_info() is not None
    wanted = device.type == "cuda" if device is not None else torch.cuda.is_available() and not in_worker
    return PinnedMemory() if wanted else Arenas()


def _progress_bar() -> Any:
    try:
        return importlib.import_module("tqdm.auto").tqdm
    except ImportError as error:
        raise ConfigurationError("progress=True needs tqdm: pip install 'torch-parquet-loader[progress]'") from error


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
