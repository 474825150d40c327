"""`BatchedDataLoader`, the public loader: validates arguments, opens the data set, starts epochs."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import pyarrow.fs as pafs

from parquet_loader.collate import (
    Batch,
    Output,
    epoch_sampler,
    grain_dataset,
    keras_dataset,
    open_output,
    output_shard,
    tf_dataset,
)
from parquet_loader.common import (
    LOADER_KEYWORDS,
    NotCopied,
    NotIndexed,
    OutputOptions,
    Ranks,
    ReadOptions,
    Shard,
    ShardOptions,
    check_bool,
    check_choice,
    check_int,
    check_kind,
    check_source,
    check_transform,
    check_window,
    explains_keywords,
    format_bytes,
    is_local,
    parse_bytes,
    progress_bar,
    use_returning_pool,
    warn_if_missing,
)
from parquet_loader.dataset import (
    Dataset,
    ListedDataset,
    PriorCounts,
    check_agreement,
    check_dataset_arguments,
    default_num_threads,
    locate,
    open_dataset,
    ranks_to_agree_with,
    resolve_source,
)
from parquet_loader.engine import (
    BatchProcessor,
    Engine,
    EngineOptions,
    IsolatedEngine,
    NextPlan,
    PackedTransform,
    ReadAhead,
    ReadingProcess,
    RowsOut,
    Transform,
    TransformProcesses,
    check_transform_workers,
    open_engine,
    transform_option,
    transform_processes,
)
from parquet_loader.errors import (
    ConfigurationError,
    LoaderStateError,
    ParquetLoaderError,
    ResumeError,
    UnsupportedError,
)
from parquet_loader.loader.diagnosis import diagnosed, sorting_of, storage_figures
from parquet_loader.loader.epoch import Epoch, EpochEngine, EpochFigures, EpochRecord
from parquet_loader.loader.epoch_plan import EpochPlan
from parquet_loader.loader.fixed_attribute import FixedAttribute
from parquet_loader.loader.live_source import Deliveries, EpochFiles, LiveSource
from parquet_loader.loader.live_table import LiveTable
from parquet_loader.loader.live_view import Following, files_named
from parquet_loader.loader.mixing import MixingMeter
from parquet_loader.loader.report.page import page_of
from parquet_loader.loader.report.trace import trace_of
from parquet_loader.loader.sharing import check_still_divided, check_store_ranks, choose_sharding
from parquet_loader.loader.state import OF_FILES, check_state, make_state, order_identity, window_method_of
from parquet_loader.loader.stats import LoaderStats
from parquet_loader.plan import WINDOW_METHOD, Division, Plan, mixing_score, split_over_workers
from parquet_loader.read import Filters, LocalCache, as_expression, splits_by_position
from parquet_loader.schema import Schema, masks_of
from parquet_loader.source import Snapshot, Source, TableLike, TableSource, table_source
from parquet_loader.window import Allocator, Arenas

if TYPE_CHECKING:
    import grain
    import keras
    import tensorflow as tf
    import torch


@dataclass(frozen=True, slots=True)
class LoadedRows:
    """The value of `BatchedDataLoader.dataset`: the number of rows, for code that calls ``len(loader.dataset)``.

    Attributes:
        rows: Rows of an epoch, those of all ranks together.
    """

    rows: int

    def __len__(self) -> int:
        return self.rows


class BatchedDataLoader(NotIndexed):
    """Iterate over Parquet in batches of tensors (or of numpy arrays), read and shuffled in the background.

    Each iteration is one epoch, and the next iteration is the next epoch, also after one that ended early; `set_epoch`
    and `seek` choose another one. A loader has one iterator at a time: `iter(loader)` ends the previous one, whichever
    thread uses it, and that one then raises `LoaderStateError`. `state_dict` returns the loader's position, and
    `load_state_dict` continues from it with the next batch. Each of several ranks reads its own part of the rows, and
    all get the same number of batches.

    Args:
        source: A file, a directory (hive partitions become columns), a glob, a URL, or a list of these; or a
            `ParquetDataset`, which is listed already and determines `schema`, `columns`, `split`, `filesystem`,
            `on_error`, `read_options` and `cache`; or a `SampleStore`, which is listed at each epoch's start.
        split: The split to read (``"train"``, ``"validation"``, ``"test"``), by the names of files and directories, or
            by a partition column ``split`` of a table; ``"all"`` reads all of them; see docs/sources.md. Default: all
            files; if those of a directory belong to different splits, an error.
        batch_size: Rows of a batch.
        schema: The schema of the columns; default: the schema the files carry, or the rules in docs/types.md.
        columns: Names to read, in the order of the batch; the name of a struct stands for all its leaves.
        filters: `pyarrow.compute` expression over the columns as they are stored, with words for categories, or tuples
            such as ``[("year", ">=", 2020)]``; prunes row groups by statistics, then filters rows exactly. To count the
            rows that pass, the filter's columns are read once at the start.
        shuffle: Permute row groups, and the rows of each window.
        seed: From 0 to 2**64 - 1; with the epoch it determines the order.
        window_rows: Rows shuffled together; default: as many as `memory_limit` allows, up to 64 MiB of rows.
        drop_last: Leave out the last batch if it is not full.
        transform: ``transform(columns, rng)`` is called with a dict of numpy arrays of one batch and a generator seeded
            by (seed, epoch, batch, rank); returns a dict of the same number of rows. Runs in the background threads.
            Text and bytes are object arrays of str and bytes, lists are `Ragged`.
        transform_workers: Processes that run `transform` and decode images, for a `transform` that holds the GIL; 0:
            the background threads do. The batches are the same. A `transform` from a script or notebook is sent by
            value, which needs cloudpickle. Linux only; on a free-threaded Python the threads run it.
        rows_out: The rows of every batch that `transform` returns, if it does not keep their number. Of a last batch
            that is not full, it returns 1 to `rows_out`.
        device: ``"cuda"``: batches are copied to the GPU ahead of use, on a side stream.
        memory_limit: Limit of everything the loader holds, in bytes: an int, or text such as ``"1GiB"``.
        shard: The part of the rows to read; default: that of this rank if `torch.distributed` is initialised (rank
            0 then lists the files for all, and rows are counted by all ranks together), else everything.
        num_threads: Background threads; default: the processors, at most 8. The order does not depend on it.
        isolation: ``"process"`` reads in a child process with `num_threads` threads. It delivers the same batches in
            the same order, and does not share the GIL with the training loop. A `transform` from a script or notebook
            is sent there by value, which needs cloudpickle. Linux only.
        on_error: ``"skip"`` skips row groups that cannot be read, and lists them in `stats`; only with one rank.
            ``"skip_row"`` replaces a row whose image or other media cannot be decoded by the next row of its batch that
            can, and counts it in `stats`; all other errors are raised.
        filesystem: A `pyarrow.fs.FileSystem` to which the paths belong.
        progress: Show a progress bar (needs tqdm).
        read_options: Checksums and remote requests.
        cache: A `LocalCache`: row groups of remote files are stored on a local disk when they are first read. The
            batches are the same with and without one.
        shard_options: The treatment of rows that do not divide evenly; an order that does not depend on the number of
            ranks.
        output_options: A column of row numbers; the format of batches.

    Raises:
        SourceError: There is nothing to read, or a file is not readable Parquet.
        SchemaError: Schema, columns or filters do not fit the files.
        MemoryLimitError: `memory_limit` is too small; the message names a sufficient one. If columns vary in width, the
            first iteration may raise it, because their rows are measured then.
        ConfigurationError: An argument has the wrong kind or value.
        UnsupportedError: This version does not support an argument.
        TypeError: There is no such keyword; for keywords of torch's `DataLoader` and of Petastorm the message names
            the equivalent.
    """

    batch_size = FixedAttribute[int]()
    seed = FixedAttribute[int]()
    shuffle = FixedAttribute[bool]()
    drop_last = FixedAttribute[bool]()
    num_threads = FixedAttribute[int]()
    _delivers_schema = True
    _measures_mixing = True

    @explains_keywords(LOADER_KEYWORDS)
    def __init__(
        self,
        source: Source | TableLike | ListedDataset | LiveSource,
        batch_size: int,
        *,
        schema: Schema | None = None,
        columns: Sequence[str] | None = None,
        filters: Filters | None = None,
        split: str | None = None,
        shuffle: bool = False,
        seed: int = 0,
        window_rows: int | None = None,
        drop_last: bool = False,
        transform: Transform | None = None,
        transform_workers: int = 0,
        rows_out: int | None = None,
        device: str | torch.device | None = None,
        memory_limit: int | str = "1GiB",
        shard: Shard | None = None,
        num_threads: int | None = None,
        isolation: Literal["thread", "process"] = "thread",
        on_error: Literal["raise", "skip", "skip_row"] = "raise",
        filesystem: pafs.FileSystem | None = None,
        progress: bool = False,
        read_options: ReadOptions | None = None,
        cache: LocalCache | None = None,
        shard_options: ShardOptions | None = None,
        output_options: OutputOptions | None = None,
    ) -> None:
        self._arguments = {k: v for k, v in locals().items() if k not in ("self", "source", "filesystem", "shard")}
        filters = as_expression(filters)
        check_dataset_arguments(schema, columns, split, on_error, read_options, cache, shard)
        if isinstance(source, ListedDataset):
            source._check_left_to_dataset(
                on_error, schema=schema, columns=columns, split=split, filesystem=filesystem,
                read_options=read_options, cache=cache,
            )  # fmt: skip
            filters, on_error, read_options = source._combined(filters), source._on_error, source._read_options
            shard = source._shard if shard is None else shard
            self._arguments |= {"filters": filters, "on_error": on_error, "read_options": read_options}
        given: Any = table_source(source)
        live: LiveSource | None = None
        if isinstance(given, TableSource) and given.follow:
            live = LiveTable(given, filesystem, None if read_options is None else read_options.remote, split)
            if filters is not None and splits_by_position(filters):
                raise ConfigurationError(
                    "follow=True, filters=split_rows(...): rows whose files the table rewrites would go from training "
                    "to validation; use split('id', 0, 0.9) with a column that tells rows apart, or read one version"
                )
        elif isinstance(given, LiveSource) and not isinstance(given, TableSource):
            live = given
            if filesystem is not None:
                raise ConfigurationError("filesystem=: a store has its own filesystem; leave filesystem out")
        elif not isinstance(given, Dataset | ListedDataset | TableSource):
            check_source(given)
        if live is not None and split is not None and not isinstance(live, LiveTable):
            raise ConfigurationError(
                f"split={split!r}: a store's files do not belong to splits; use filters=split('id', 0, 0.9) with a "
                "column that tells rows apart, or split_rows(0, 0.9), which assigns rows anew when their file is "
                "rewritten"
            )
        self._split = None if split == "all" or not isinstance(live, LiveTable) else split
        self.batch_size = check_int("batch_size", batch_size, 1, 2**31)
        self.seed = check_int("seed", seed, 0, 2**64 - 1)
        self.shuffle = check_bool("shuffle", shuffle)
        self.drop_last = check_bool("drop_last", drop_last)
        self.num_threads = (
            default_num_threads() if num_threads is None else check_int("num_threads", num_threads, 1, 256)
        )
        check_window(window_rows, self.batch_size)
        check_choice("isolation", isolation, ("thread", "process"))
        check_transform(transform)
        workers = check_int("transform_workers", transform_workers, 0, 256)
        if transform is None and (workers or rows_out is not None):
            given_argument = f"rows_out={rows_out!r}" if not workers else transform_option(workers)
            raise ConfigurationError(f"{given_argument}: there is no transform; pass transform=, or leave it out")
        if rows_out is not None:
            check_int("rows_out", rows_out, 1, 2**31)
        check_kind("shard_options", shard_options, ShardOptions)
        check_kind("output_options", output_options, OutputOptions)
        output = output_options or OutputOptions()
        self._output = open_output(output, device)
        self._delivered_rows = self.batch_size if rows_out is None else int(rows_out)
        shard = output_shard(output, shard, self._delivered_rows, drop_last=self.drop_last)
        self._is_part_chosen = shard is not None
        self._sharding = choose_sharding(shard, shard_options, self.batch_size, skips=on_error == "skip")
        self._row_numbers = output.row_numbers
        workers = check_transform_workers(workers)
        self._options = EngineOptions(
            PackedTransform(transform, transform_option(workers)) if transform is not None and workers else transform,
            self.seed,
            self.num_threads,
            on_error == "skip",
            workers,
            None if rows_out is None else RowsOut(self.batch_size, int(rows_out)),
            on_error == "skip_row",
        )
        self._bar = progress_bar() if check_bool("progress", progress) else None
        limit = parse_bytes(memory_limit)
        use_returning_pool()
        if not isinstance(given, Dataset):
            warn_if_missing()
        ranks = None if isinstance(given, Dataset) else ranks_to_agree_with(shard)
        self._filters = filters
        self._chooses_window = window_rows is None
        reading = self._read_options = read_options or ReadOptions()
        needs = {
            **self._window_needs(),
            "filters": filters,
            "window_rows": window_rows,
            "memory_limit_bytes": limit,
            "transform": transform is not None,
            "num_threads": self.num_threads,
            "row_numbers": None if output_options is None else output_options.row_numbers,
            "names_rows": self._options.replaces,
        }
        skips = self._options.skips

        def opened(snapshot: Snapshot, ranks: Ranks | None, known: PriorCounts | None) -> Dataset:
            resolved = resolve_source(snapshot, schema, columns, reading)
            return open_dataset(
                resolved, read_options=reading, cache=cache, skips=skips, ranks=ranks, known=known, **needs
            )

        self._window_method = WINDOW_METHOD
        self._next_epoch = 0
        self._next_batch = 0
        # Whether the caller chose the position; if not, it follows from the last epoch.
        self._is_position_chosen = True
        self._reading: ReadingProcess | None = None
        # The next epoch, if one is or was running; in a list, so that the finaliser finds it without the loader.
        self._ahead: list[_NextEpoch] = []
        weakref.finalize(self, _drop, self._ahead)
        self._isolates = isolation == "process"
        # With isolation, the child process has its own.
        self._transforms = None if self._isolates else transform_processes(self._options)
        self._following: Following | None = None
        if live is None and not isinstance(given, Dataset | ListedDataset):
            given = ListedDataset(
                given, schema, columns, filters, filesystem, on_error,
                split=split, read_options=reading, cache=cache, shard=shard,
            )  # fmt: skip
        try:
            if live is not None:
                ranks_of_store = check_store_ranks(self._sharding.shard)
                self._following = Following(live, opened, ranks_of_store, filters=filters is not None)
                self._use(self._following.peek(0))
            else:
                self._use(given if isinstance(given, Dataset) else given._open(ranks=ranks, **needs))
            if ranks is not None:
                check_agreement(self._identity, ranks)
        except BaseException as error:
            if ranks is not None:
                ranks.broadcast_error(error)
            raise
        self._sharding.warn_if_uneven(self._planned.rows, self.batch_size, drop_last=self.drop_last)
        self._closed = False
        self._lock = os.getpid(), threading.RLock()
        self._running: weakref.ref[Epoch] | None = None
        self._figures: EpochFigures | None = None
        self._is_iterated = False

    @property
    def schema(self) -> Schema:
        """The fields of a batch, by name."""
        return self._dataset.schema

    @property
    def dataset(self) -> LoadedRows:
        """The rows of an epoch, all ranks together; the object has only a length."""
        return LoadedRows(self._planned.rows)

    @property
    def window_rows(self) -> int:
        """Most rows that are shuffled together.

        If columns vary in width, the first use may decode a few thousand rows, as the first iteration does.

        Raises:
            MemoryLimitError: `memory_limit` is too small for these rows; the message names a sufficient one.
            DataError, SourceError: the rows cannot be read.
        """
        return self._dataset.sizing.window_rows

    # Blocks are reused from epoch to epoch; free blocks are within the share of running epochs.
    @cached_property
    def _allocator(self) -> Allocator:
        return self._output.allocator(self._dataset.sizing.made_bytes)

    @cached_property
    def _staging(self) -> Arenas:
        return Arenas(self._dataset.sizing.made_bytes)

    @property
    def _planned(self) -> Dataset:
        """The data set with the number of rows that each row group delivers, by which epochs are planned."""
        return self._dataset

    @property
    def _changes(self) -> bool:
        """Whether the source is listed at each epoch's start, as a `SampleStore` is."""
        return self._following is not None

    @property
    def _steps_differ(self) -> bool:
        """Whether epochs may differ in their number of batches, although the source does not change."""
        return False

    def _steps_of(self, epoch: int) -> int:  # noqa: ARG002  (a TokenLoader's epochs differ)
        """Return the number of batches of an epoch."""
        return len(self)

    @property
    def _size(self) -> int:
        """The size by which a mixture may weigh this loader: rows of an epoch, those of all ranks together."""
        return self._dataset.rows

    @property
    def shard(self) -> Shard:
        """The rank for which this loader reads, and the number of ranks."""
        return self._sharding.shard

    def __len__(self) -> int:
        """Return the number of batches of an epoch on this rank (at most, under ``on_error="skip"``)."""
        return self._division().batches

    def __repr__(self) -> str:
        snapshot = self._dataset.snapshot
        window = f" of {self.window_rows}" if self._dataset.budget.is_made else ""
        order = f"shuffled in windows{window}" if self.shuffle else "in order"
        part = f"rank {self.shard.rank} of {self.shard.world_size}: " if self.shard.world_size > 1 else ""
        return (
            f"BatchedDataLoader({self._dataset.rows} rows in {len(snapshot.files)} files and {snapshot.row_groups} row "
            f"groups, {part}{len(self)} batches of {self.batch_size} {order}, {len(self.schema)} "
            f"columns, at most {format_bytes(self._dataset.budget.limit_bytes)}{', closed' if self._closed else ''})"
        )

    def plan(self) -> EpochPlan:
        """Return figures of the next epoch; no more is read than for `window_rows`."""
        self._check_open()
        return EpochPlan._from_plan(self._plan(self._next_epoch), self._planned, self.num_threads)

    def set_epoch(self, epoch: int) -> None:
        """Choose the next epoch.

        If `load_state_dict` or `seek` chose a batch of this epoch, the loader stays at that batch.
        """
        check_int("epoch", epoch, 0, 2**63 - 1)
        if not self._is_position_chosen or epoch != self._next_epoch:
            self._set_position(epoch, 0)

    @property
    def sampler(self) -> Any:
        """An object with `set_epoch`, which trainers such as Lightning's call as on torch's `DistributedSampler`."""
        return epoch_sampler(self)

    @property
    def batch_sampler(self) -> None:
        """None, as with a `DataLoader` of an iterable data set, which has no batch sampler."""
        return

    @property
    def timeout(self) -> object:
        """A value that no `DataLoader` accepts; `accelerate.skip_first_batches` copies loaders by their attributes."""
        return NotCopied()

    def seek(self, epoch: int, batch: int) -> None:
        """Start the next iteration at a batch of an epoch; at most two windows are read for its first batch.

        Raises:
            ConfigurationError: the epoch has no such batch.
        """
        check_int("epoch", epoch, 0, 2**63 - 1)
        self._set_position(epoch, check_int("batch", batch, 0, max(0, len(self) - 1)))

    def locate(self, row_numbers: Any) -> list[tuple[str, int, int]]:
        """Return the origin of rows: the path of the file, the row group in the file, the row in the row group.

        Args:
            row_numbers: Integers ``[rows]``: the column of a batch that `OutputOptions` names.

        Raises:
            IndexError: there is no such row.
        """
        return locate(self._dataset.snapshot, row_numbers)

    def __iter__(self) -> Iterator[Batch]:
        """Begin the next epoch, or continue at the batch that `seek` or `load_state_dict` chose.

        The previous iterator ends, and raises `LoaderStateError` if it is used again before its last batch. If no batch
        was requested from it, it does not count as an epoch.

        Raises:
            LoaderStateError: the loader is closed, or was made before `torch.distributed` was initialised.
        """
        return self._iterate(self._output)

    def _iterate(self, output: Output) -> Iterator[Batch]:
        """Begin an epoch as `__iter__` does, in the format of an output."""
        with self._turns():
            if self._following is None:
                self._end_previous()
                return self._begin_epoch(output, is_repeated=self.shuffle or self._has_iterated())
            self._following.with_broadcast(self._end_previous)
            seen = self._following.begin(self._next_epoch, self._next_batch)
            try:
                # A source that has just changed is expected to change again before the next epoch.
                is_same = seen.dataset is self._dataset
                if not is_same:
                    self._use(seen.dataset)
                return self._begin_epoch(output, seen.files, is_repeated=self._has_iterated() and is_same)
            except BaseException:
                seen.files.close()
                raise

    def _has_iterated(self) -> bool:
        """Whether a batch of an earlier iteration was requested, so that others follow."""
        self._is_iterated = self._is_iterated or (self._figures is not None and self._figures.was_asked)
        return self._is_iterated

    def _begin_epoch(self, output: Output, files: EpochFiles | None = None, *, is_repeated: bool) -> Iterator[Batch]:
        """Begin the next epoch; if the loader `is_repeated`, the epoch after it is read ahead."""
        division = self._division()
        ready = self._ready(division)
        plan = self._plan(self._next_epoch, division) if ready is None else ready.plan
        next_plan = self._next_plan(division, plan.epoch + 1) if plan.batches and is_repeated else None
        return self._begin(plan, self._next_batch, output, files, ready=ready, next_plan=next_plan)

    def _begin_part(self, epoch: int, first_batch: int, worker: int, workers: int) -> Iterator[Batch]:
        """Begin one worker process's part of an epoch: its batches among those that `workers` deliver in turn.

        Raises:
            ConfigurationError: there are logical shards, whose batches cannot be divided over workers.
            UnsupportedError: the source is a store, whose files are leased only in the process that lists it.
        """
        if self._following is not None:
            raise UnsupportedError(
                f"num_workers={workers} over a SampleStore: worker processes cannot lease its files; use "
                "num_workers=0, because the loader reads in the background anyway"
            )
        division = self._division()
        if workers > 1 and self._sharding.options.logical_shards is not None:
            raise ConfigurationError(
                f"num_workers={workers} with logical_shards: every batch has rows of several shards, which are read in "
                "one process; use num_workers=0, because the loader reads in the background anyway"
            )
        if workers > 1:
            division = split_over_workers(division, self.batch_size, worker, workers)
        with self._turns():
            self._end_previous()
            return self._begin(self._plan(epoch, division), min(first_batch, division.batches), self._output)

    def _next_plan(self, division: Division, epoch: int) -> NextPlan:
        method = self._window_method
        return NextPlan(division, self.batch_size, self.drop_last, self.shuffle, self.seed, epoch, method)

    def _opener(self, next_plan: NextPlan) -> Callable[[], Engine]:
        """Return a function that opens the engine of the next epoch, and refers to no loader."""
        return partial(
            _opened_ahead, self._dataset, next_plan, self._options, self._allocator, self._staging, self._transforms
        )

    def _ready(self, division: Division) -> Engine | None:
        """Return the engine that has read ahead, if its epoch comes now."""
        for ahead in self._ahead:
            is_next = not self._next_batch and ahead.plan == self._next_plan(division, self._next_epoch)
            if is_next and ahead.dataset is self._dataset:
                return ahead.reading.engine
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
        ready: Engine | None = None,
        next_plan: NextPlan | None = None,
    ) -> Iterator[Batch]:
        if ready is None:
            self._drop_ahead()
        if not is_local(self._dataset.snapshot.filesystem):
            next_plan = None  # bytes that nobody may use would be requested
        left = plan.batches - first_batch
        bar = None if self._bar is None else self._bar(total=left, unit="batch", desc=f"epoch {plan.epoch}")
        engine: EpochEngine = ready or self._engine(plan, first_batch, next_plan)
        ahead: list[_NextEpoch] = []
        if next_plan is not None and isinstance(engine, Engine):
            reading = ReadAhead(self._opener(next_plan))
            engine.then(reading)
            ahead.append(_NextEpoch(reading, self._dataset, next_plan))
        last = self._figures
        # Measuring takes up to a tenth of the caller's time, and its result is the same in each epoch of static data.
        mixing = last.mixing if last is not None and last.is_complete and self._following is None else None
        if not self._measures_mixing:
            mixing = MixingMeter()
        workers = self._options.transform_workers
        figures = EpochFigures(plan, engine, self.num_threads, workers, self._dataset.skipped, first_batch, mixing)
        copies = output is self._output and self._reading is not None and self._allocator.is_required
        deliveries = None if files is None else Deliveries(files, plan, first_batch)
        form = self._output_of(plan, first_batch, output)
        taken = self._ahead[0].reading if ready is not None else None
        following = ahead[0].reading if ahead else None
        epoch = Epoch(
            engine,
            self.batch_size,
            form,
            self._allocator if copies else None,
            bar,
            figures,
            deliveries,
            taken,
            following,
        )
        self._running, self._figures = weakref.ref(epoch), figures
        delivering = epoch.deliver()
        # SIGINT is handled at calls, and its traceback would keep the iterator alive: so there are no calls from here.
        self._next_epoch, self._next_batch, self._is_position_chosen = plan.epoch + 1, 0, False
        self._ahead[:] = ahead
        return delivering

    def to_tf(self, *, output_signature: Mapping[str, Any] | None = None) -> tf.data.Dataset:
        """Return a `tf.data.Dataset` of the batches: dicts of tensors, ragged tensors and strings.

        Each of its iterators begins the loader's next epoch, so the position and state of the data set are those of the
        loader. It pulls a batch when one is asked for, and adds no prefetch.

        If the loader stands within an epoch, the data set is the rest of that epoch, and can be iterated over once. Its
        cardinality is the number of batches; unknown if the loader skips row groups, or reads a source that changes.

        Args:
            output_signature: A `tf.TensorSpec` or `tf.RaggedTensorSpec` for each column that `transform` returns. For
                a loader without a `transform` the schema says it.

        Raises:
            MissingPackageError: TensorFlow is not installed.
            ConfigurationError: there is a `transform` and no signature, or the reverse.
        """
        self._check_open()
        is_known = self._delivers_schema and self._options.transform is None
        if is_known != (output_signature is None):
            raise ConfigurationError(
                "to_tf(output_signature=...): only for a loader with a transform; leave output_signature out"
                if is_known
                else "to_tf: the schema does not say what is delivered; pass output_signature={'x': tf.TensorSpec("
                "(None, 8), tf.float32), ...}"
            )
        self._take_back_unused()
        first_batch = self._next_batch
        is_counted = not self._options.skips and self._following is None
        return tf_dataset(
            lambda output: self._begin_at(first_batch, output),
            self.schema if output_signature is None else output_signature,
            rows=self._delivered_rows if self.drop_last else None,
            row_numbers=self._row_numbers,
            cardinality=len(self) - first_batch if is_counted else None,
        )

    def to_keras(self, select: Callable[[Batch], Any] | None = None) -> keras.utils.PyDataset:
        """Return a `keras.utils.PyDataset` of the batches, for Keras 3 on any backend.

        Its epochs are those of the loader, from the loader's position on. Pass ``shuffle=False`` to `fit`. If the
        loader stands within an epoch, the data set is the rest of that epoch.

        Args:
            select: Makes what `fit` takes of a batch of numpy arrays, such as a pair of inputs and targets; None: the
                dict itself.

        Raises:
            MissingPackageError: Keras is not installed.
            UnsupportedError: the source changes from epoch to epoch.
        """
        self._check_open()
        if self._following is not None:
            raise UnsupportedError(
                "to_keras: the source changes from epoch to epoch, and a PyDataset has as many batches in each; "
                "iterate over the loader, and call train_on_batch"
            )
        self._take_back_unused()

        def begin(epoch: int, batch: int, output: Output) -> Iterator[Batch]:
            self.seek(epoch, batch)
            return self._iterate(output)

        return keras_dataset(begin, select, len(self), (self._next_epoch, self._next_batch))

    def to_grain(self) -> grain.IterDataset:
        """Return a `grain.IterDataset` of the batches, dicts of numpy arrays; each iterator is the next epoch.

        `get_state` and `set_state` of its iterators are `state_dict` and `load_state_dict`.

        Raises:
            MissingPackageError: Grain is not installed.
        """
        self._check_open()
        return grain_dataset(self._iterate, self.state_dict, self.load_state_dict)

    def _begin_at(self, first_batch: int, output: Output) -> Iterator[Batch]:
        """Begin an epoch of a data set whose iterations begin at a batch."""
        self._take_back_unused()
        if self._next_batch != first_batch:
            raise ConfigurationError(
                f"to_tf: the data set begins at batch {first_batch} of an epoch, and the loader is at batch "
                f"{self._next_batch}; call to_tf() again, after load_state_dict or seek, and after the rest of an epoch"
            )
        return self._iterate(output)

    def reset(self) -> None:
        """End the running iteration, if there is one, and release what was read of the next epoch.

        If no batch was requested from it, the next iteration begins at the same batch.
        """
        self._end("the loader was closed or reset before the last batch of this epoch; begin again: iter(loader)")
        self._drop_ahead()
        if self._reading is not None:
            with self._turns():  # another thread may begin an epoch just now, and use the process
                running = self._running() if self._running is not None else None
                if running is None or not running.is_here:
                    self._reading.drop_ahead()

    def _end(self, reason: str) -> None:
        """End the running iteration; its iterator raises the reason if it has batches left."""
        self._take_back_unused()
        running = self._running() if self._running is not None else None
        if running is None:
            return
        is_cut_short = not running.figures.was_asked or running.figures.next_batch < len(self)
        running.close(reason if is_cut_short else None)

    def _end_previous(self) -> None:
        """End the previous iterator, if there is one.

        Raises:
            LoaderStateError: the loader is closed.
        """
        self._check_open()
        self._end(
            f"iter(loader) was called again (in thread {threading.current_thread().name!r}), which ended this "
            "iterator; loops that run at the same time need a loader each"
        )

    def _turns(self) -> Any:
        """Return the lock under which iterators begin; a forked child has its own."""
        if self._lock[0] != os.getpid():
            self._lock = os.getpid(), threading.RLock()
        return self._lock[1]

    def stats(self) -> LoaderStats:
        """Return the figures of the running epoch, or else of the last one.

        Raises:
            LoaderStateError: there was no epoch yet.
        """
        stats, figures = self._counters(), self._figures
        assert figures is not None
        if figures.storage is None and stats.is_judged:
            with suppress(ParquetLoaderError, OSError, ValueError):  # deleted files have no figures
                figures.storage = storage_figures(self._dataset, self._read_options)
        if not figures.knows_sorting and figures.plan.shuffle and figures.plan.windows > 1:
            figures.knows_sorting = True
            figures.score = mixing_score(figures.plan, self._planned.counts)
            with suppress(ParquetLoaderError, OSError, ValueError):
                figures.sorting = sorting_of(self._dataset)
        return diagnosed(
            stats,
            self._dataset,
            figures.plan,
            figures.mixing.worst(),
            figures.storage,
            figures.sorting,
            figures.score,
            isolation="process" if self._isolates else "thread",
            transforms=BatchProcessor.is_needed(self._dataset.reader.columns, self._options.transform),
            chooses_window=self._chooses_window,
        )

    def _counters(self) -> LoaderStats:
        """Return the figures as `stats` does, without advice; reads nothing, so any thread may call it at any time."""
        if self._figures is None:
            raise LoaderStateError("stats(): no epoch has begun yet; iterate over the loader first")
        stats = self._figures.stats(self._dataset.snapshot, self._dataset.sizing.limit_bytes)
        return stats if self._following is None else replace(stats, growth=self._following.growth)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the running epoch, or else the last one, as an HTML page: charts over time, figures and advice.

        The page is one file without scripts, and loads nothing.

        Args:
            path: The file to write; an existing one is replaced.

        Raises:
            LoaderStateError: there was no epoch yet.
            OSError: the file cannot be written.
        """
        stats, record = self._recorded("report")
        Path(path).write_text(page_of(stats, record, repr(self)), encoding="utf-8")

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write the running epoch, or else the last one, as a trace for https://ui.perfetto.dev or chrome://tracing.

        It holds the latest 16,384 jobs of the workers, waits of at least 0.1 ms, and counters of the whole epoch.

        Args:
            path: The JSON file to write; an existing one is replaced.

        Raises:
            LoaderStateError: there was no epoch yet.
            OSError: the file cannot be written.
        """
        stats, record = self._recorded("trace")
        Path(path).write_text(json.dumps(trace_of(stats, record)), encoding="utf-8")

    def _recorded(self, method: str) -> tuple[LoaderStats, EpochRecord]:
        if self._figures is None:
            raise LoaderStateError(f"{method}(): no epoch has begun yet; iterate over the loader first")
        return self.stats(), self._figures.record()

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return the position of the loader as a small dict of JSON values, the same on all ranks.

        It names the batch after the last one delivered in the running epoch, or in the last epoch, even if that was
        left early; after `set_epoch`, `seek` or `load_state_dict`, the chosen batch. After an epoch's last batch it
        names the next epoch.

        Args:
            batches: Batches of this epoch that were used, if fewer than were delivered; for trainers that prefetch.
        """
        last = self._described_epoch()
        epoch, batch = (self._next_epoch, self._next_batch) if last is None else last.position
        if batches is not None:
            epoch = epoch if last is None else last.epoch
            batch = check_int("batches", batches, 0, max(len(self), batch))
        if batch >= len(self) > 0:
            epoch, batch = epoch + 1, 0
        left_out = last.left_out if last is not None and self._options.skips else 0
        if self._following is None:
            return make_state(self._identity, epoch, batch, left_out)
        named = {name: value for name, value in self._identity.items() if batch or name not in OF_FILES}
        return make_state({**named, "snapshot": self._following.keep()}, epoch, batch, left_out)

    def load_state_dict(self, state: dict[str, Any], *, if_gone: Literal["raise", "next_epoch"] = "raise") -> None:
        """Continue from a state, with the next batch; ends a running iteration.

        At most two windows are read again. If the loader chose `window_rows` itself, it takes that of the state, so
        that another `memory_limit` does not change the order. From then on the rows come in the order of the release
        that took the state.

        Over a `SampleStore`, the state's own files are read, if the store still has those that the rest of the epoch
        needs; they are leased from now on. All ranks call this together.

        Args:
            state: The result of `state_dict`.
            if_gone: What happens if a store has evicted some of these files: ``"next_epoch"`` continues with the first
                batch of the next epoch, over the store's files at that time.

        Raises:
            ResumeError: the state belongs to other files, columns, filters, or arguments, or files of a store are
                gone; the message names them.
            MemoryLimitError: the state's windows do not fit into `memory_limit`.
            LoaderStateError: the loader is closed.
        """
        check_choice("if_gone", if_gone, ("raise", "next_epoch"))
        following, before = self._following, self._window_method
        try:
            if following is None:
                epoch, batch = self._accept_state(state)
            else:
                self._use_method(window_method_of(state) or before)
                epoch, batch = following.with_broadcast(lambda: self._position_of(state))
                if batch:
                    epoch, batch = self._recall(following, state, skips_to_next=if_gone == "next_epoch")
                else:
                    following.remember(state.get("snapshot"))
        except BaseException:
            self._use_method(before)
            raise
        self._set_position(*((epoch + 1, 0) if batch == len(self) > 0 else (epoch, batch)))

    def _position_of(self, state: dict[str, Any]) -> tuple[int, int]:
        """Check a state of a loader like this one, over any files; return its epoch and batch."""
        self._end_for_state()
        return check_state(state, self._identity, 2**62, OF_FILES)

    def _recall(self, following: Following, state: dict[str, Any], *, skips_to_next: bool) -> tuple[int, int]:
        """Let the next epoch read the files that a state names; return its epoch and batch.

        If files are gone and `skips_to_next`, return the first batch of the next epoch.

        Raises:
            ResumeError: files are gone.
        """
        before, epoch = self._dataset, int(state["epoch"])
        remedy = "store.hold(state), called when a state is taken, keeps its files"
        seen = following.recall(state.get("snapshot"), epoch)
        try:
            self._use(seen.dataset)
            epoch, batch = following.with_broadcast(lambda: self._accept_state(state))
            missing = following.resume(seen, self._dataset, self._plan(epoch), batch)
            if not missing:
                return epoch, batch
            reason = (
                f"the store has evicted {len(missing)} of the files that the rest of epoch {epoch} needs: "
                f"{files_named(missing)}"
            )
        except BaseException as error:
            seen.files.close()
            is_list_gone = isinstance(error, ResumeError) and state.get("files") != self._identity["files"]
            self._use(before)
            if not is_list_gone:
                raise
            reason = f"the store no longer has the list of the state's files, and has other files now: {error}"
            if before.snapshot.table is not None:
                reason = f"the table no longer has {state.get('snapshot')!r}, the state's version: {error}"
                remedy = "keep versions of the table for longer than you want to resume"
        self._use(before)
        if skips_to_next:
            return epoch + 1, 0
        raise ResumeError(
            f"{reason}; load_state_dict(state, if_gone='next_epoch') continues with epoch {epoch + 1}; {remedy}"
        )

    def _accept_state(self, state: dict[str, Any]) -> tuple[int, int]:
        """Check a state as `load_state_dict` does, and use its windows; return its epoch and batch."""
        self._end_for_state()
        before, method = self._dataset, self._window_method
        self._use_method(window_method_of(state) or method)
        window = state.get("window_rows") if isinstance(state, dict) else None
        if self._chooses_window and isinstance(window, int) and 0 < window != self.window_rows:
            self._use(before.with_window(window, **self._window_needs()))
        try:
            return check_state(state, self._identity, len(self), table=self._dataset.snapshot.table)
        except ResumeError:
            self._use_method(method)
            if self._dataset is not before:
                self._use(before)
            raise

    def _use_method(self, window_method: str) -> None:
        """Divide epochs into windows by this method from now on."""
        if window_method != self._window_method:
            self._window_method = window_method
            self.__dict__.pop("_identity", None)

    def _use(self, dataset: Dataset) -> None:
        """Use this data set from now on; a child process is ended, and starts with it at the next epoch."""
        self._dataset = dataset
        self.__dict__.pop("_identity", None)
        if self._reading is not None:
            self._reading.stop()
        self._reading = ReadingProcess(dataset, self._options) if self._isolates else None

    @property
    def _delivered(self) -> tuple[int, int] | None:
        """The last epoch, and the number of the batch after the last one delivered; None before the first epoch."""
        last = self._described_epoch()
        return None if last is None else (last.epoch, last.next_batch)

    def _set_position(self, epoch: int, batch: int) -> None:
        if batch or any(ahead.plan.epoch != epoch for ahead in self._ahead):
            self._drop_ahead()
        self._next_epoch, self._next_batch, self._is_position_chosen = epoch, batch, True

    def _described_epoch(self) -> EpochFigures | None:
        """Return the epoch that a state describes: the running or last one; None if a position was chosen."""
        running = self._running() if self._running is not None else None
        is_running = running is not None and running.is_here
        return self._figures if is_running or not self._is_position_chosen else None

    @cached_property
    def _identity(self) -> dict[str, Any]:
        """Everything that the order of rows, and so a state, depends on; see `order_identity`."""
        identity = order_identity(
            self._planned,
            self._sharding,
            self._filters,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            shuffle=self.shuffle,
            seed=self.seed,
            window_method=self._window_method,
        )
        return identity if self._split is None else {**identity, "split": self._split}

    def close(self) -> None:
        """End a running epoch and its threads; idempotent. The loader cannot be used afterwards."""
        self.reset()
        self._closed = True
        if self._following is not None:
            self._following.release()
        if self._reading is not None:
            self._reading.stop()
        if self._transforms is not None:
            self._transforms.end()
        self._dataset.reader.chunks.close()
        for name in ("_allocator", "_staging"):
            if isinstance(arenas := self.__dict__.get(name), Arenas):
                arenas.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments, the snapshot and the position, but no running epoch.

        Raises:
            LoaderStateError: the loader is closed, or an iteration is running.
        """
        self._check_open()
        self._take_back_unused()
        running = self._running() if self._running is not None else None
        if running is not None and running.is_here and not running.figures.is_done(len(self)):
            raise LoaderStateError(
                "a loader cannot be pickled or copied while it is iterated; finish the loop, or call loader.reset()"
            )
        if self._following is not None:
            raise UnsupportedError(
                "a loader over a SampleStore cannot be pickled; make one in the process that uses it"
            )
        arguments = {**self._arguments, "shard": self.shard}
        self._dataset.budget.get()  # copies need not find out again
        position = self._next_epoch, self._next_batch
        return _restored, (self._dataset, arguments, self._is_part_chosen, *position, self._window_method)

    def _take_back_unused(self) -> None:
        """Begin the next epoch at the first batch of the last one, if no batch of that was requested."""
        last = self._figures
        if last is not None and not last.was_asked and not self._is_position_chosen:
            self._set_position(last.epoch, last.first_batch)

    def _end_for_state(self) -> None:
        self._check_open()
        self._end("load_state_dict was called, which ended this iterator; the next batches come from iter(loader)")

    def _check_open(self) -> None:
        if self._closed:
            raise LoaderStateError("the loader is closed; make a new one")
        if not self._is_part_chosen:
            check_still_divided(self._sharding)

    def _window_needs(self) -> dict[str, Any]:
        """Return the arguments that windows depend on, for the fewest ranks that the job may run on."""
        return {
            "batch_size": self._sharding.largest_batch(self.batch_size),
            "shuffle": self.shuffle,
            "side_by_side": self._sharding.side_by_side,
        }

    def _division(self) -> Division:
        return self._sharding.divide(self._planned.rows, self.batch_size, drop_last=self.drop_last)

    def _plan(self, epoch: int, division: Division | None = None) -> Plan:
        return self._planned.plan(
            division or self._division(),
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            shuffle=self.shuffle,
            seed=self.seed,
            epoch=epoch,
            method=self._window_method,
        )

    def _output_of(self, plan: Plan, first_batch: int, output: Output) -> Output:  # noqa: ARG002  (a TokenLoader's needs them)
        """Return what makes the batches of an epoch, in the format of an output."""
        return output.masked({} if self._options.transform is not None else masks_of(self.schema))

    def _engine(self, plan: Plan, first_batch: int = 0, next_plan: NextPlan | None = None) -> EpochEngine:
        if self._reading is not None:
            processes = BatchProcessor.is_needed(self._dataset.reader.columns, self._options.transform)
            return IsolatedEngine(self._reading, plan, first_batch, processes=processes, next_plan=next_plan)
        return open_engine(
            self._dataset,
            plan,
            self._options,
            first_batch=first_batch,
            allocator=self._allocator,
            staging=self._staging,
            is_first=self._figures is None,
            transforms=self._transforms,
        )


@dataclass(frozen=True, slots=True)
class _NextEpoch:
    """The epoch that is read ahead.

    Attributes:
        reading: Opens its engine.
        dataset: The data set.
        plan: The order.
    """

    reading: ReadAhead[Engine]
    dataset: Dataset
    plan: NextPlan


def _drop(ahead: list[_NextEpoch]) -> None:
    for next_epoch in tuple(ahead):
        next_epoch.reading.drop()


def _opened_ahead(
    dataset: Dataset,
    plan: NextPlan,
    options: EngineOptions,
    allocator: Allocator,
    staging: Arenas,
    transforms: TransformProcesses | None,
) -> Engine:
    """Open the engine of the next epoch; refers to no loader, so that a worker that calls it keeps none alive."""
    return open_engine(
        dataset,
        plan(dataset),
        options,
        first_batch=0,
        allocator=allocator,
        staging=staging,
        is_first=False,
        transforms=transforms,
    )


def _restored(
    opened: Any, arguments: dict[str, Any], is_part_chosen: bool, epoch: int, batch: int, window_method: str
) -> BatchedDataLoader:
    loader = BatchedDataLoader(opened, **arguments)
    loader._is_part_chosen = is_part_chosen
    loader._use_method(window_method)
    loader._set_position(epoch, batch)
    return loader
