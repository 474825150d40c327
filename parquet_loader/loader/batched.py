"""`BatchedDataLoader`, the public loader: validates arguments, opens the data set, starts epochs."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

import pyarrow.fs as pafs

from parquet_loader.collate import Batch, epoch_sampler, open_output
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
from parquet_loader.engine import BatchProcessor, EngineOptions, IsolatedEngine, ReadingProcess, Transform, open_engine
from parquet_loader.errors import (
    ConfigurationError,
    LoaderStateError,
    ParquetLoaderError,
    ResumeError,
    UnsupportedError,
)
from parquet_loader.loader.diagnosis import diagnosed, sorting_of, storage_figures
from parquet_loader.loader.epoch import Epoch, EpochEngine, EpochFigures
from parquet_loader.loader.epoch_plan import EpochPlan
from parquet_loader.loader.fixed_attribute import FixedAttribute
from parquet_loader.loader.live_source import Deliveries, EpochFiles, LiveSource
from parquet_loader.loader.live_table import LiveTable
from parquet_loader.loader.live_view import Following, files_named
from parquet_loader.loader.sharing import check_still_divided, choose_sharding, looking_together
from parquet_loader.loader.state import OF_FILES, check_state, make_state, order_identity
from parquet_loader.loader.stats import LoaderStats
from parquet_loader.plan import Division, Plan, split_over_workers
from parquet_loader.read import Filters, LocalCache, as_expression
from parquet_loader.schema import Schema
from parquet_loader.source import Snapshot, Source, TableSource, table_source
from parquet_loader.window import Allocator, Arenas

if TYPE_CHECKING:
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
    and `seek` choose. A loader has one iterator at a time: `iter(loader)` ends the one before, whichever thread uses
    it, and that one then raises `LoaderStateError`. `state_dict` tells where the loader is, and `load_state_dict` goes
    on from there with the very next batch. Of several ranks, each reads a part of its own, and all get the same number
    of batches.

    Args:
        source: A file, a directory (hive partitions become columns), a glob, a URL, or a list of these; or a
            `ParquetDataset`, which is listed already and decides about `schema`, `columns`, `split`, `filesystem`,
            `on_error`, `read_options` and `cache`; or a `SampleStore`, which is examined anew at each epoch's start.
        split: The split to read (``"train"``, ``"validation"``, ``"test"``), by the names of files and directories;
            ``"all"`` reads all of them; see docs/sources.md. Default: everything, but different splits are refused.
        batch_size: Rows of a batch.
        schema: The schema of the columns; default: the schema the files carry, or the rules in docs/types.md.
        columns: Names to read, in the order of the batch; the name of a struct stands for all its leaves.
        filters: `pyarrow.compute` expression over the columns as they are stored, with words for categories, or tuples
            such as ``[("year", ">=", 2020)]``; prunes row groups by statistics, then filters rows exactly. Counting the
            rows that pass takes one pass over the filter's columns at the start.
        shuffle: Permute row groups, and the rows of each window.
        seed: From 0 to 2**64 - 1; with the epoch it determines the order.
        window_rows: Rows shuffled together; default: as many as `memory_limit` allows, up to 64 MiB of rows.
        drop_last: Leave out the last batch if it is not full.
        transform: ``transform(columns, rng)`` is called with a dict of numpy arrays of one batch and a generator seeded
            by (seed, epoch, batch, rank); returns a dict of as many rows. Runs in the background threads. Text comes as
            object arrays of str, bytes likewise, lists as `Ragged`.
        device: ``"cuda"``: batches arrive there, copied ahead on a side stream.
        memory_limit: Bytes, as an int or as text (``"1GiB"``): everything the loader holds.
        shard: The part of the rows to read; default: that of this rank if `torch.distributed` is initialised (rank
            0 then lists the files for all, and rows are counted by all ranks together), else everything.
        num_threads: Background threads; default: the processors, at most 8. The order does not depend on it.
        isolation: ``"process"`` reads in a process of its own, with `num_threads` threads there: the same batches in
            the same order, and none of the work shares Python's lock with the training loop. A `transform` from a
            script or notebook is sent there by value, which needs cloudpickle. Linux only.
        on_error: ``"skip"`` leaves out row groups that cannot be read, and lists them in `stats`; only with one rank.
        filesystem: A `pyarrow.fs.FileSystem` to which the paths belong.
        progress: Show a progress bar (needs tqdm).
        read_options: Checksums and remote requests.
        cache: A `LocalCache`: row groups of remote files are kept on a local disk as they are first read. The batches
            are the same with and without one.
        shard_options: What becomes of rows that do not come out even; an order that no number of ranks changes.
        output_options: A column that says where rows come from; numpy arrays instead of tensors.

    Raises:
        SourceError: There is nothing to read, or a file is not readable Parquet.
        SchemaError: Schema, columns or filters do not fit the files.
        MemoryLimitError: `memory_limit` is too small; the message names one that suffices. If columns vary in width,
            the first iteration may raise it, because that is when their rows are looked at.
        ConfigurationError: An argument has the wrong kind or value.
        UnsupportedError: An argument that this version does not support yet.
        TypeError: A keyword that there is not; of keywords of torch's `DataLoader` and of Petastorm the message names
            the equivalent.
    """

    batch_size = FixedAttribute[int]()
    seed = FixedAttribute[int]()
    shuffle = FixedAttribute[bool]()
    drop_last = FixedAttribute[bool]()
    num_threads = FixedAttribute[int]()

    @explains_keywords(LOADER_KEYWORDS)
    def __init__(
        self,
        source: Source | TableSource | ListedDataset | LiveSource,
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
        device: str | torch.device | None = None,
        memory_limit: int | str = "1GiB",
        shard: Shard | None = None,
        num_threads: int | None = None,
        isolation: Literal["thread", "process"] = "thread",
        on_error: Literal["raise", "skip"] = "raise",
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
            live = LiveTable(given, filesystem, None if read_options is None else read_options.remote)
        elif isinstance(given, LiveSource) and not isinstance(given, TableSource):
            live = given
            if filesystem is not None:
                raise ConfigurationError("filesystem= belongs to paths; a store knows where it lies")
        elif not isinstance(given, Dataset | ListedDataset | TableSource):
            check_source(given)
        if live is not None and split is not None:
            what = "table" if isinstance(live, LiveTable) else "store"
            raise ConfigurationError(f"split={split!r}: a {what}'s files are of no split; use filters=split_rows(...)")
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
        check_kind("shard_options", shard_options, ShardOptions)
        check_kind("output_options", output_options, OutputOptions)
        self._is_part_chosen = shard is not None
        self._sharding = choose_sharding(shard, shard_options, self.batch_size, skips=on_error == "skip")
        self._options = EngineOptions(transform, self.seed, self.num_threads, on_error == "skip")
        self._output = open_output(output_options or OutputOptions(), device)
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
        }
        skips = self._options.skips

        def opened(snapshot: Snapshot, ranks: Ranks | None, known: PriorCounts | None) -> Dataset:
            resolved = resolve_source(snapshot, schema, columns, reading)
            return open_dataset(
                resolved, read_options=reading, cache=cache, skips=skips, ranks=ranks, known=known, **needs
            )

        self._next_epoch = 0
        self._next_batch = 0
        self._is_placed = True
        self._reading: ReadingProcess | None = None
        self._isolates = isolation == "process"
        self._following: Following | None = None
        if live is None and not isinstance(given, Dataset | ListedDataset):
            given = ListedDataset(
                given, schema, columns, filters, filesystem, on_error,
                split=split, read_options=reading, cache=cache, shard=shard,
            )  # fmt: skip
        try:
            if live is not None:
                together = looking_together(self._sharding.shard)
                self._following = Following(live, opened, together, filters=filters is not None)
                self._take(self._following.peek(0))
            else:
                self._take(given if isinstance(given, Dataset) else given._open(ranks=ranks, **needs))
            if ranks is not None:
                check_agreement(self._identity, ranks)
        except BaseException as error:
            if ranks is not None:
                ranks.broadcast_error(error)
            raise
        self._sharding.warn_if_uneven(self._dataset.rows, self.batch_size, drop_last=self.drop_last)
        self._closed = False
        self._lock = os.getpid(), threading.RLock()
        self._running: weakref.ref[Epoch] | None = None
        self._figures: EpochFigures | None = None

    @property
    def schema(self) -> Schema:
        """The fields of a batch, by name."""
        return self._dataset.schema

    @property
    def dataset(self) -> LoadedRows:
        """The rows of an epoch, all ranks together; it has a length and nothing else."""
        return LoadedRows(self._dataset.rows)

    @property
    def window_rows(self) -> int:
        """Most rows that are shuffled together.

        If columns vary in width, the first use may decode a few thousand rows, as the first iteration does.

        Raises:
            MemoryLimitError: `memory_limit` is too small for these rows; the message names one that suffices.
            DataError, SourceError: the rows cannot be read.
        """
        return self._dataset.sizing.window_rows

    # Memory stays warm from epoch to epoch; freed blocks are within the limit that running epochs keep to.
    @cached_property
    def _allocator(self) -> Allocator:
        return self._output.allocator(self._dataset.sizing.made_bytes)

    @cached_property
    def _staging(self) -> Arenas:
        return Arenas(self._dataset.sizing.made_bytes)

    @property
    def _changes(self) -> bool:
        """Whether the source is looked at anew at each epoch's start, as a `SampleStore` is."""
        return self._following is not None

    @property
    def shard(self) -> Shard:
        """Which rank of how many this loader reads for."""
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
        return EpochPlan._from_plan(self._plan(self._next_epoch), self._dataset, self.num_threads)

    def set_epoch(self, epoch: int) -> None:
        """Choose the next epoch.

        If `load_state_dict` or `seek` chose a batch of this epoch, the loader stays at that batch.
        """
        check_int("epoch", epoch, 0, 2**63 - 1)
        if not self._is_placed or epoch != self._next_epoch:
            self._place(epoch, 0)

    @property
    def sampler(self) -> Any:
        """An object with `set_epoch`, which trainers such as Lightning's call as on torch's `DistributedSampler`."""
        return epoch_sampler(self)

    @property
    def batch_sampler(self) -> None:
        """None, as with a `DataLoader` whose data set makes the batches: no sampler chooses rows."""
        return

    @property
    def timeout(self) -> object:
        """A value that a `DataLoader` cannot take: `accelerate.skip_first_batches` copies loaders by such options."""
        return NotCopied()

    def seek(self, epoch: int, batch: int) -> None:
        """Start the next iteration at a batch of an epoch; at most two windows are read for it.

        Raises:
            ConfigurationError: the epoch has no such batch.
        """
        check_int("epoch", epoch, 0, 2**63 - 1)
        self._place(epoch, check_int("batch", batch, 0, max(0, len(self) - 1)))

    def locate(self, row_numbers: Any) -> list[tuple[str, int, int]]:
        """Return where rows come from: the path of the file, the row group in it, the row in that.

        Args:
            row_numbers: Integers ``[rows]``: a batch's column that `OutputOptions` named.

        Raises:
            IndexError: there is no such row.
        """
        return locate(self._dataset.snapshot, row_numbers)

    def __iter__(self) -> Iterator[Batch]:
        """Begin the next epoch, or continue at the batch that `seek` or `load_state_dict` chose.

        The iterator before this one ends, and raises `LoaderStateError` if it is used again before its last batch. One
        of which no batch was asked for does not count as an epoch.

        Raises:
            LoaderStateError: the loader is closed, or was made before `torch.distributed` was initialised.
        """
        with self._turns():
            if self._following is None:
                self._end_previous()
                return self._begin(self._plan(self._next_epoch), self._next_batch)
            self._following.with_broadcast(self._end_previous)
            seen = self._following.begin(self._next_epoch, self._next_batch)
            try:
                if seen.dataset is not self._dataset:
                    self._take(seen.dataset)
                return self._begin(self._plan(self._next_epoch), self._next_batch, seen.files)
            except BaseException:
                seen.files.close()
                raise

    def _begin_part(self, epoch: int, first_batch: int, worker: int, workers: int) -> Iterator[Batch]:
        """Begin one worker process's part of an epoch: its batches among those that `workers` deliver in turn.

        Raises:
            ConfigurationError: the order is one of logical shards, whose batches no worker can have for itself.
            UnsupportedError: the source is a store, whose files only the process that looks at it holds.
        """
        if self._following is not None:
            raise UnsupportedError(
                f"num_workers={workers} over a SampleStore: worker processes hold none of its files; use "
                "num_workers=0, the loader reads in the background anyway"
            )
        division = self._division()
        if workers > 1 and self._sharding.options.logical_shards is not None:
            raise ConfigurationError(
                f"num_workers={workers} with logical_shards: every batch has rows of several shards, which are read in "
                "one process; use num_workers=0, the loader reads in the background anyway"
            )
        if workers > 1:
            division = split_over_workers(division, self.batch_size, worker, workers)
        with self._turns():
            self._end_previous()
            return self._begin(self._plan(epoch, division), min(first_batch, division.batches))

    def _begin(self, plan: Plan, first_batch: int, files: EpochFiles | None = None) -> Iterator[Batch]:
        left = plan.batches - first_batch
        bar = None if self._bar is None else self._bar(total=left, unit="batch", desc=f"epoch {plan.epoch}")
        engine = self._engine(plan, first_batch)
        last = self._figures
        # Measuring takes the caller a tenth of an epoch of 10 windows, and says the same of static data in each epoch.
        mixing = last.mixing if last is not None and last.is_complete and self._following is None else None
        figures = EpochFigures(plan, engine, self.num_threads, self._dataset.skipped, first_batch, mixing)
        pinned = self._allocator if self._reading is not None and self._allocator.is_required else None
        deliveries = None if files is None else Deliveries(files, plan, first_batch)
        epoch = Epoch(engine, self.batch_size, self._output, pinned, bar, figures, deliveries)
        self._running, self._figures = weakref.ref(epoch), figures
        delivering = epoch.deliver()
        # Ctrl-C comes at calls, and its traceback would keep the iterator: so from here on nothing is called.
        self._next_epoch, self._next_batch, self._is_placed = plan.epoch + 1, 0, False
        return delivering

    def reset(self) -> None:
        """End the iteration that is under way, if there is one.

        One of which no batch was asked for counts for nothing: the next one begins where it began.
        """
        self._end("the loader was closed or reset before the last batch of this epoch; begin again: iter(loader)")

    def _end(self, reason: str) -> None:
        """End the iteration that is under way; its iterator raises the reason if it has batches left."""
        self._take_back_unused()
        running = self._running() if self._running is not None else None
        if running is None:
            return
        is_cut_short = not running.figures.was_asked or running.figures.next_batch < len(self)
        running.close(reason if is_cut_short else None)

    def _end_previous(self) -> None:
        """Make way for a new iterator.

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
        """Return what the epoch under way, or else the last one, was spent on.

        Raises:
            LoaderStateError: there was no epoch yet.
        """
        if self._figures is None:
            raise LoaderStateError("there are no figures yet: no epoch was begun")
        figures = self._figures
        stats = figures.stats(self._dataset.snapshot, self._dataset.sizing.limit_bytes)
        if figures.storage is None and stats.is_judged:
            with suppress(ParquetLoaderError, OSError, ValueError):  # files that have gone: then there are no figures
                figures.storage = storage_figures(self._dataset, self._read_options)
        if not figures.knows_sorting and figures.plan.shuffle and figures.plan.windows > 1:
            figures.knows_sorting = True
            with suppress(ParquetLoaderError, OSError, ValueError):
                figures.sorting = sorting_of(self._dataset)
        stats = diagnosed(
            stats,
            self._dataset,
            figures.plan,
            figures.mixing.worst(),
            figures.storage,
            figures.sorting,
            isolation="process" if self._isolates else "thread",
            transforms=BatchProcessor.is_needed(self._dataset.reader.columns, self._options.transform),
            chooses_window=self._chooses_window,
        )
        return stats if self._following is None else replace(stats, growth=self._following.growth)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return the position of the loader as a small dict of JSON values, the same on all ranks.

        It names the batch after the last one delivered in the epoch under way, or in the last epoch, even if that was
        left early, until `set_epoch`, `seek` or `load_state_dict`. After an epoch's last batch it names the next epoch.

        Args:
            batches: Batches of this epoch that were used, if fewer than were delivered: for trainers that prefetch.
        """
        last = self._last_pass()
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
        """Continue from a state, with the next batch; ends an iteration that is running.

        At most two windows are read again. If `window_rows` is not given, that of the state is used, so that
        another `memory_limit` changes nothing.

        Over a `SampleStore`, the state's own files are read, as long as those that the rest of its epoch needs are
        there; they are held from now on. Of several ranks, all call this together.

        Args:
            state: What `state_dict` returned.
            if_gone: What happens if a store has evicted some of these files: ``"next_epoch"`` goes on with the first
                batch of the next epoch, over what is there then.

        Raises:
            ResumeError: the state belongs to other files, columns, filters, or arguments; says what differs. Or files
                of a store are gone; says which.
            MemoryLimitError: the state's windows do not fit into `memory_limit`.
            LoaderStateError: the loader is closed.
        """
        check_choice("if_gone", if_gone, ("raise", "next_epoch"))
        following = self._following
        if following is None:
            epoch, batch = self._accept_state(state)
        else:
            epoch, batch = following.with_broadcast(lambda: self._place_of(state))
            if batch:
                epoch, batch = self._recall(following, state, goes_on=if_gone == "next_epoch")
            else:
                following.remember(state.get("snapshot"))
        self._place(*((epoch + 1, 0) if batch == len(self) > 0 else (epoch, batch)))

    def _place_of(self, state: dict[str, Any]) -> tuple[int, int]:
        """Return the epoch and batch of a state of a loader like this one, over whatever files."""
        self._end_for_state()
        return check_state(state, self._identity, 2**62, OF_FILES)

    def _recall(self, following: Following, state: dict[str, Any], *, goes_on: bool) -> tuple[int, int]:
        """Let the next epoch read the files that a state names; return its epoch and batch, or the next epoch's first.

        Raises:
            ResumeError: they are gone, and this is not the way to go on.
        """
        before, epoch = self._dataset, int(state["epoch"])
        seen = following.recall(state.get("snapshot"), epoch)
        try:
            self._take(seen.dataset)
            epoch, batch = following.with_broadcast(lambda: self._accept_state(state))
            missing = following.go_on(seen, self._dataset, self._plan(epoch), batch)
            if not missing:
                return epoch, batch
            reason = (
                f"the store has evicted {len(missing)} of the files that the rest of epoch {epoch} needs: "
                f"{files_named(missing)}"
            )
        except BaseException as error:
            seen.files.close()
            is_list_gone = isinstance(error, ResumeError) and state.get("files") != self._identity["files"]
            self._take(before)
            if not is_list_gone:
                raise
            reason = f"the store keeps the list of the state's files no longer, and has others now: {error}"
        self._take(before)
        if goes_on:
            return epoch + 1, 0
        raise ResumeError(
            f"{reason}; load_state_dict(state, if_gone='next_epoch') goes on with epoch {epoch + 1}; "
            "store.hold(state), called when a state is taken, keeps its files"
        )

    def _accept_state(self, state: dict[str, Any]) -> tuple[int, int]:
        """Check a state as `load_state_dict` does, and take over its window; return its epoch and batch."""
        self._end_for_state()
        before = self._dataset
        window = state.get("window_rows") if isinstance(state, dict) else None
        if self._chooses_window and isinstance(window, int) and 0 < window != self.window_rows:
            self._take(before.with_window(window, **self._window_needs()))
        try:
            return check_state(state, self._identity, len(self), table=self._dataset.snapshot.table)
        except ResumeError:
            if self._dataset is not before:
                self._take(before)
            raise

    def _take(self, dataset: Dataset) -> None:
        """Use a data set with other windows from now on."""
        self._dataset = dataset
        self.__dict__.pop("_identity", None)
        if self._reading is not None:
            self._reading.stop()
        self._reading = ReadingProcess(dataset, self._options) if self._isolates else None

    @property
    def _delivered(self) -> tuple[int, int] | None:
        """The last epoch, and the number of the batch after the last one delivered; None before the first epoch."""
        last = self._last_pass()
        return None if last is None else (last.epoch, last.next_batch)

    def _place(self, epoch: int, batch: int) -> None:
        self._next_epoch, self._next_batch, self._is_placed = epoch, batch, True

    def _last_pass(self) -> EpochFigures | None:
        """Return the epoch that the state describes: the one under way, or the last, unless a position was chosen."""
        running = self._running() if self._running is not None else None
        is_under_way = running is not None and running.is_here
        return self._figures if is_under_way or not self._is_placed else None

    @cached_property
    def _identity(self) -> dict[str, Any]:
        """What the order of rows, and so a state, follows from."""
        return order_identity(
            self._dataset,
            self._sharding,
            self._filters,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            shuffle=self.shuffle,
            seed=self.seed,
        )

    def close(self) -> None:
        """End a running epoch and its threads; idempotent. The loader cannot be used afterwards."""
        self.reset()
        self._closed = True
        if self._following is not None:
            self._following.release()
        if self._reading is not None:
            self._reading.stop()
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
            LoaderStateError: the loader is closed, or an iteration is under way.
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
        return _restored, (self._dataset, arguments, self._is_part_chosen, self._next_epoch, self._next_batch)

    def _take_back_unused(self) -> None:
        """Begin the next epoch at the position of the last one, if no batch of that was requested."""
        last = self._figures
        if last is not None and not last.was_asked and not self._is_placed:
            self._place(last.epoch, last.first_batch)

    def _end_for_state(self) -> None:
        self._check_open()
        self._end("load_state_dict was called, which ended this iterator; the next batches come from iter(loader)")

    def _check_open(self) -> None:
        if self._closed:
            raise LoaderStateError("the loader is closed; make a new one")
        if not self._is_part_chosen:
            check_still_divided(self._sharding)

    def _window_needs(self) -> dict[str, Any]:
        """Return what windows depend on: batches and parts as on the fewest ranks that the job may run on."""
        return {
            "batch_size": self._sharding.largest_batch(self.batch_size),
            "shuffle": self.shuffle,
            "side_by_side": self._sharding.side_by_side,
        }

    def _division(self) -> Division:
        return self._sharding.divide(self._dataset.rows, self.batch_size, drop_last=self.drop_last)

    def _plan(self, epoch: int, division: Division | None = None) -> Plan:
        return self._dataset.plan(
            division or self._division(),
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            shuffle=self.shuffle,
            seed=self.seed,
            epoch=epoch,
        )

    def _engine(self, plan: Plan, first_batch: int = 0) -> EpochEngine:
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


def _restored(
    opened: Any, arguments: dict[str, Any], is_part_chosen: bool, epoch: int, batch: int
) -> BatchedDataLoader:
    loader = BatchedDataLoader(opened, **arguments)
    loader._is_part_chosen = is_part_chosen
    loader._place(epoch, batch)
    return loader
