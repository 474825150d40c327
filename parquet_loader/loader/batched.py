"""`BatchedDataLoader`, the public loader: validates arguments, opens the data set, starts epochs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

import pyarrow.fs as pafs

from parquet_loader.collate import (
    Batch,
    Output,
    PermutingOutput,
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
    ReadOptions,
    Shard,
    ShardOptions,
    broadcasting_errors,
    check_bool,
    check_choice,
    check_columns,
    check_int,
    check_kind,
    check_source,
    check_transform,
    check_window,
    explains_keywords,
    format_bytes,
    parse_bytes,
    progress_bar,
    trim_buffers,
    use_returning_pool,
    warn_if_missing,
    write_report,
)
from parquet_loader.dataset import (
    Dataset,
    ListedDataset,
    check_agreement,
    check_dataset_arguments,
    check_left_to_dataset,
    default_num_threads,
    locate,
    ranks_to_agree_with,
    settings_of,
)
from parquet_loader.engine import (
    BatchProcessor,
    EngineOptions,
    PackedTransform,
    RowsOut,
    Transform,
    check_transform_workers,
    transform_option,
    transform_processes,
)
from parquet_loader.errors import ConfigurationError, LoaderStateError, UnsupportedError
from parquet_loader.loader.diagnosis import diagnosed
from parquet_loader.loader.epoch_plan import EpochPlan, figures_of_plan
from parquet_loader.loader.epochs.epoch_figures import EpochFigures, EpochRecord
from parquet_loader.loader.epochs.resumable_epochs import ResumableEpochs
from parquet_loader.loader.live_datasets import LiveDatasets
from parquet_loader.loader.live_source import LiveSource
from parquet_loader.loader.live_table import LiveTable
from parquet_loader.loader.loader_source import SourceOpening, live_source_of
from parquet_loader.loader.report.page import page_of
from parquet_loader.loader.report.trace import trace_of
from parquet_loader.loader.shard_choice import check_store_ranks, choose_sharding
from parquet_loader.loader.stats import LoaderStats
from parquet_loader.plan import Plan
from parquet_loader.read import Filters, LocalCache, as_expression
from parquet_loader.schema import Schema
from parquet_loader.source import Source, TableLike, VersionedSource, table_source
from parquet_loader.window import Arenas

if TYPE_CHECKING:
    import grain
    import keras
    import tensorflow as tf
    import torch


@dataclass(frozen=True, slots=True)
class LoadedRows:
    """The value of `BatchedDataLoader.dataset`: the number of rows, for code that calls ``len(loader.dataset)``.

    Attributes:
        rows: Rows of an epoch, of all ranks together.
    """

    rows: int

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: Any) -> Any:
        """Raise `TypeError`; iteration calls this, too."""
        raise TypeError(
            "BatchedDataLoader.dataset: it has a length, but no rows; ParquetDataset(source)[i] reads rows by index "
            "(docs/rows.md), and iterating over the loader reads batches"
        )


def fields_of(schema: Schema | None, output_signature: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the description of `to_tf`'s columns: the schema if it describes them, else the caller's signature.

    Raises:
        ConfigurationError: Both or neither of them is given.
    """
    if schema is None and output_signature is None:
        raise ConfigurationError(
            "to_tf: the schema does not say what is delivered; pass output_signature={'x': tf.TensorSpec("
            "(None, 8), tf.float32), ...}"
        )
    if schema is not None and output_signature is not None:
        raise ConfigurationError(
            "to_tf(output_signature=...): only for a loader with a transform; leave output_signature out"
        )
    return schema if output_signature is None else output_signature  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class MixedPart:
    """The private members of a loader that `MixedLoader` uses; see `mixed_part`.

    Attributes:
        changes: Whether the source is listed at each epoch's start, as a `SampleStore` is.
        steps_differ: Whether epochs may differ in their number of batches, although the source does not change.
        skips: Whether row groups that cannot be read are left out, so that an epoch may end early.
        row_numbers: The name of the column of row numbers, or None.
        schema: Returns the schema of batches; None if the schema does not describe them.
        size: Returns the number of rows of an epoch, of all ranks together; of a `TokenLoader`, of tokens.
        steps: Returns the number of batches of an epoch.
        left_out: Returns the number of row groups left out of the running or last epoch because of errors.
        iterate: Begins an epoch as `__iter__` does, in the format of an output.
    """

    changes: bool
    steps_differ: bool
    skips: bool
    row_numbers: str | None
    schema: Callable[[], Schema | None]
    size: Callable[[], int]
    steps: Callable[[int], int]
    left_out: Callable[[], int]
    iterate: Callable[[Output], Iterator[Batch]]


def mixed_part(loader: BatchedDataLoader) -> MixedPart:
    """Return a loader as part of a mixture."""
    return MixedPart(
        changes=loader._changes,
        steps_differ=loader._steps_differ,
        skips=loader._options.skips,
        row_numbers=loader._row_numbers,
        schema=loader._delivered_schema,
        size=loader._size,
        steps=loader._steps_of,
        left_out=loader._left_out,
        iterate=loader._iterate,
    )


@dataclass(frozen=True, slots=True)
class LoaderParts:
    """The private members of a loader that other modules use; see `parts_of`.

    Attributes:
        dataset: The open data set.
        filters: The filter of its rows; None for all rows.
        figures: The figures of the running epoch, or else of the last one.
        delivered: The last epoch, and the number of the batch after the last one delivered; None before an epoch.
        plan: Returns the plan of an epoch.
        begin_part: Begins the part of an epoch that one worker reads.
        accept_state: Checks a state, and returns its epoch and batch.
    """

    dataset: Dataset
    filters: Any
    figures: EpochFigures | None
    delivered: tuple[int, int] | None
    plan: Callable[[int], Plan]
    begin_part: Callable[[int, int, int, int], Iterator[Batch]]
    accept_state: Callable[[dict[str, Any]], tuple[int, int]]


def parts_of(loader: BatchedDataLoader) -> LoaderParts:
    """Return the private members of a loader that other modules use."""
    return LoaderParts(
        dataset=loader._dataset,
        filters=loader._filters,
        figures=loader._figures,
        delivered=loader._delivered,
        plan=loader._plan,
        begin_part=loader._begin_part,
        accept_state=loader._accept_state,
    )


class BatchedDataLoader(ResumableEpochs, NotIndexed):
    """Iterate over Parquet in batches of tensors (or of numpy arrays), read and shuffled in the background.

    Each iteration is one epoch, and the next iteration is the next epoch, even after one that ended early; `set_epoch`
    and `seek` choose another one. A loader has one iterator at a time: `iter(loader)` ends the previous one, even if
    another thread uses it, and the previous one then raises `LoaderStateError`. `state_dict` returns the loader's
    position, and `load_state_dict` continues from it with the next batch. Each of several ranks reads its own part of
    the rows, and all get the same number of batches.

    Args:
        source: A file, a directory (hive partitions become columns), a glob, a URL, or a list of these; or a
            `ParquetDataset`, which is already listed and determines `schema`, `columns`, `split`, `filesystem`,
            `on_error`, `read_options` and `cache`; or a `SampleStore`, which is listed at each epoch's start.
        split: The split to read (``"train"``, ``"validation"``, ``"test"``), by the names of files and directories, or
            by a partition column ``split`` of a table; ``"all"`` reads all of them; see docs/sources.md. Default: all
            files, which is an error if the files of a directory belong to different splits.
        batch_size: Rows of a batch.
        schema: The schema of the columns; default: the schema stored in the files, else the rules in docs/types.md.
        columns: Names to read, in the order of the batch; the name of a struct stands for all its leaves.
        filters: A `pyarrow.compute` expression over the stored columns, with categories as text, or tuples such as
            ``[("year", ">=", 2020)]``. Prunes row groups by statistics, then filters rows exactly. To count the rows
            that pass, the filter's columns are read once at the start.
        shuffle: Permute row groups, and the rows of each window.
        seed: From 0 to 2**64 - 1; with the epoch it determines the order.
        window_rows: Rows shuffled together; default: as many as `memory_limit` allows, up to 64 MiB of rows.
        drop_last: Leave out the last batch if it is not full.
        transform: ``transform(columns, rng)`` is called with a dict of numpy arrays of one batch and a generator seeded
            by (seed, epoch, batch, rank); returns a dict of the same number of rows. Runs in the background threads.
            Text and bytes are object arrays of str and bytes, lists are `Ragged`.
        transform_workers: Number of processes that run `transform` and decode images, for a `transform` that holds the
            GIL; with 0, the background threads do it. The batches are the same. A `transform` from a script or notebook
            is sent by value, which needs cloudpickle. Linux only; on a free-threaded Python the threads run it.
        rows_out: Rows of each batch that `transform` returns, if it changes their number. For a last batch that is not
            full, it returns 1 to `rows_out` rows.
        device: With ``"cuda"``, batches are copied to the GPU ahead of use, on a side stream.
        memory_limit: Limit of everything the loader holds, in bytes: an int, or text such as ``"1GiB"``.
        shard: The part of the rows to read; default: that of this rank if `torch.distributed` is initialised (rank
            0 then lists the files for all, and rows are counted by all ranks together), else everything.
        num_threads: Background threads; default: the processors, at most 8. The order does not depend on it.
        isolation: ``"process"`` reads in a child process with `num_threads` threads. It delivers the same batches in
            the same order, and does not share the GIL with the training loop. A `transform` from a script or notebook
            is sent there by value, which needs cloudpickle. Linux only.
        on_error: ``"skip"`` skips row groups that cannot be read, and lists them in `stats`; only with one rank.
            ``"skip_row"`` replaces a row whose image or other media cannot be decoded by the next row of its batch that
            can be decoded, and counts it in `stats`; all other errors are raised.
        filesystem: A `pyarrow.fs.FileSystem` to which the paths belong.
        progress: Show a progress bar (needs tqdm).
        read_options: Checksums and remote requests.
        cache: With a `LocalCache`, row groups of remote files are stored on a local disk when they are first read; the
            batches stay the same. With ``"device"``, rows stay on the GPU after they are first read, and once all are
            there, the GPU permutes epochs and nothing is read. This needs `device`, and columns of numbers or of
            tensors of one shape; if the rows do not fit, the loader warns and reads them in each epoch.
        shard_options: The treatment of rows that do not divide evenly; an order that does not depend on the number of
            ranks.
        output_options: A column of row numbers; the format of batches.

    Raises:
        SourceError: There is nothing to read, or a file is not readable Parquet.
        SchemaError: Schema, columns or filters do not fit the files.
        MemoryLimitError: `memory_limit` is too small; the message names a sufficient one. If columns vary in width,
            their rows are measured at the first iteration, which may raise it.
        ConfigurationError: An argument has the wrong kind or value.
        UnsupportedError: This version does not support an argument.
        TypeError: There is no such keyword; for keywords of torch's `DataLoader` and of Petastorm the message names
            the equivalent.
    """

    # Whether batches are slices of windows: then the schema describes them, and a device may permute their rows.
    _slices_windows = True
    # Whether media are decoded and `transform` is called on batches of rows.
    _processes_rows = True

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
        cache: LocalCache | Literal["device"] | None = None,
        shard_options: ShardOptions | None = None,
        output_options: OutputOptions | None = None,
    ) -> None:
        columns = check_columns(columns)
        # For copies of the loader; see `__reduce__`.
        self._arguments = {k: v for k, v in locals().items() if k not in ("self", "source", "filesystem", "shard")}
        filters = as_expression(filters)
        caches_on_device = cache == "device" and self._slices_windows
        local_cache: Any = None if caches_on_device else cache
        check_dataset_arguments(schema, split, on_error, read_options, local_cache, shard)
        if isinstance(source, ListedDataset):
            check_left_to_dataset(
                source, on_error, schema=schema, columns=columns, split=split, filesystem=filesystem,
                read_options=read_options, cache=local_cache,
            )  # fmt: skip
            settings = settings_of(source)
            filters, on_error, read_options = settings.combined(filters), settings.on_error, settings.read_options
            shard = settings.shard if shard is None else shard
            self._arguments |= {"filters": filters, "on_error": on_error, "read_options": read_options}
        given: Any = table_source(source)
        live = live_source_of(given, split, filters, filesystem, read_options)
        if live is None and not isinstance(given, Dataset | ListedDataset | VersionedSource):
            check_source(given)

        self.batch_size = check_int("batch_size", batch_size, 1, 2**31)
        self.seed = check_int("seed", seed, 0, 2**64 - 1)
        self.shuffle = check_bool("shuffle", shuffle)
        self.drop_last = check_bool("drop_last", drop_last)
        self.num_threads = (
            default_num_threads() if num_threads is None else check_int("num_threads", num_threads, 1, 256)
        )
        window_rows = check_window(window_rows, self.batch_size)
        check_choice("isolation", isolation, ("thread", "process"))
        check_transform(transform)
        if rows_out is not None:
            check_int("rows_out", rows_out, 1, 2**31)
        check_kind("shard_options", shard_options, ShardOptions)
        check_kind("output_options", output_options, OutputOptions)
        output = output_options or OutputOptions()
        self._output = open_output(output, device, keeps=caches_on_device)
        if caches_on_device and (live is not None or transform is not None):
            changing = "a source that changes" if live is not None else "a transform, whose results differ by epoch"
            raise ConfigurationError(f"cache='device' with {changing}: leave cache out")
        self._delivered_rows = self.batch_size if rows_out is None else int(rows_out)
        shard = output_shard(output, shard, self._delivered_rows, drop_last=self.drop_last)
        self._is_shard_chosen = shard is not None
        self._sharding = choose_sharding(shard, shard_options, self.batch_size, skips=on_error == "skip")
        self._options = self._engine_options(transform, transform_workers, rows_out, on_error)
        self._bar = progress_bar() if check_bool("progress", progress) else None
        limit = parse_bytes(memory_limit)

        self._split = None if split == "all" or not isinstance(live, LiveTable) else split
        self._filters = filters
        self._chooses_window = window_rows is None
        self._row_numbers = output.row_numbers
        self._isolates = isolation == "process"
        self._reading_process = None  # made by `_use`
        self._read_options = read_options or ReadOptions()
        use_returning_pool()
        ResumableEpochs.__init__(self)  # `super()` would be among the `locals()` above
        # With isolation, the child process starts the processes of `transform_workers`.
        self._transforms = None if self._isolates else transform_processes(self._options)
        dataset_arguments = {
            "needs": self._window_needs(),
            "filters": filters,
            "window_rows": window_rows,
            "memory_limit_bytes": limit,
            "transform": transform is not None and self._processes_rows,
            "num_threads": self.num_threads,
            "row_numbers": None if output_options is None else output_options.row_numbers,
            "names_rows": self._options.replaces or not self._processes_rows,
            "decodes_windows": not self._processes_rows,
        }
        opening = SourceOpening(
            schema,
            columns,
            filters,
            split,
            filesystem,
            on_error,
            self._read_options,
            local_cache,
            shard,
            dataset_arguments,
        )
        self._open(given, live, opening, limits_device=output.device_memory_limit is not None)
        self._sharding.warn_if_uneven(self._planned.rows, self.batch_size, drop_last=self.drop_last)

    def _engine_options(
        self, transform: Transform | None, workers: int, rows_out: int | None, on_error: str
    ) -> EngineOptions:
        """Return what the engine does with the rows it reads.

        Raises:
            ConfigurationError: The arguments do not fit each other, or this machine.
        """
        workers = check_int("transform_workers", workers, 0, 256)
        if transform is None and (workers or rows_out is not None):
            argument = f"rows_out={rows_out!r}" if not workers else transform_option(workers)
            raise ConfigurationError(f"{argument}: there is no transform; pass transform=, or leave it out")
        workers = check_transform_workers(workers)
        if transform is not None and workers:
            transform = PackedTransform(transform, transform_option(workers))
        permuting = self._output if isinstance(self._output, PermutingOutput) else None
        return EngineOptions(
            transform,
            self.seed,
            self.num_threads,
            skips=on_error == "skip",
            transform_workers=workers,
            rows_out=None if rows_out is None else RowsOut(self.batch_size, int(rows_out)),
            replaces=on_error == "skip_row",
            device_permutes=self._slices_windows and permuting is not None and permuting.permutes,
            device_decodes=permuting is not None and permuting.decodes,
        )

    def _open(self, given: Any, live: LiveSource | None, opening: SourceOpening, *, limits_device: bool) -> None:
        """Open the source; all ranks agree on it, or all raise.

        Args:
            given: The source, or, when a loader is unpickled, the open `Dataset`.
            live: The source, if each epoch lists it again; else None.
            opening: The arguments of the data set.
            limits_device: Whether the caller limits the memory of the device, which is then checked now.
        """
        is_open = isinstance(given, Dataset)
        if not is_open:
            warn_if_missing()
        ranks = None if is_open else ranks_to_agree_with(opening.shard)
        self._live_datasets = None
        with broadcasting_errors(ranks):
            if live is not None:
                ranks_of_store = check_store_ranks(self._sharding.shard)
                follows_filter = opening.filters is not None
                self._live_datasets = LiveDatasets(live, opening.of_snapshot, ranks_of_store, filters=follows_filter)
                self._use(self._live_datasets.peek(0))
            else:
                self._use(given if is_open else opening.of_source(given, ranks))
            if limits_device and self._dataset.budget.is_made:
                self._check_device_memory(self._plan(0))
            if ranks is not None:
                check_agreement(self._identity, ranks)

    @property
    def dataset(self) -> LoadedRows:
        """The rows of an epoch, of all ranks together; the object has only a length."""
        return LoadedRows(self._planned.rows)

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
        """Return figures of the next epoch; reads no more than `window_rows` does."""
        self._check_open()
        return figures_of_plan(self._plan(self._position[0]), self._planned, self.num_threads)

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
        """A value that no `DataLoader` accepts: `accelerate.skip_first_batches` copies loaders by their attributes."""
        return NotCopied()

    def locate(self, row_numbers: Any) -> list[tuple[str, int, int]]:
        """Return the origin of rows: the path of the file, the row group in the file, the row in the row group.

        Args:
            row_numbers: Integers ``[rows]``: the column of a batch that `OutputOptions` names.

        Raises:
            IndexError: A number is not the number of a row.
        """
        return locate(self._dataset.snapshot, row_numbers)

    def to_tf(self, *, output_signature: Mapping[str, Any] | None = None) -> tf.data.Dataset:
        """Return a `tf.data.Dataset` of the batches: dicts of tensors, ragged tensors and strings.

        Each of its iterators begins the loader's next epoch, so the data set has the position and state of the loader.
        It pulls a batch on request and adds no prefetch.

        If the loader is within an epoch, the data set is the rest of that epoch, and can be iterated over once. Its
        cardinality is the number of batches; it is unknown if the loader skips row groups or reads a source that
        changes.

        Args:
            output_signature: A `tf.TensorSpec` or `tf.RaggedTensorSpec` for each column that `transform` returns. A
                loader without a `transform` needs none: the schema describes its columns.

        Raises:
            MissingPackageError: TensorFlow is not installed.
            ConfigurationError: There is a `transform` and no signature, or the reverse.
        """
        self._check_open()
        fields = fields_of(self._delivered_schema(), output_signature)
        _, first_batch = self._position
        is_counted = not (self._options.skips or self._changes or self._steps_differ)
        return tf_dataset(
            lambda output: self._begin_at(first_batch, output),
            fields,
            rows=self._delivered_rows if self.drop_last else None,
            row_numbers=self._row_numbers,
            cardinality=len(self) - first_batch if is_counted else None,
            cuts_windows=True,
        )

    def _delivered_schema(self) -> Schema | None:
        """Return the schema of batches; None if the schema does not describe them."""
        return self.schema if self._slices_windows and self._options.transform is None else None

    def __code_schema__(self) -> Schema | None:
        """Return a schema with the categories whose codes are in batches, for writers; None after a `transform`."""
        return self.schema if self._options.transform is None else None

    def to_keras(self, select: Callable[[Batch], Any] | None = None) -> keras.utils.PyDataset:
        """Return a `keras.utils.PyDataset` of the batches, for Keras 3 on any backend.

        Its epochs are those of the loader, from the loader's position on. Pass ``shuffle=False`` to `fit`. If the
        loader is within an epoch, the data set is the rest of that epoch.

        Args:
            select: Turns a batch of numpy arrays into the value for `fit`, such as a pair of inputs and targets; None
                for the dict itself.

        Raises:
            MissingPackageError: Keras is not installed.
            UnsupportedError: Epochs may differ in their number of batches.
        """
        self._check_open()
        if self._live_datasets is not None:
            raise UnsupportedError(
                "to_keras: the source changes from epoch to epoch, but all epochs of a PyDataset have the same number "
                "of batches; iterate over the loader, and call train_on_batch"
            )
        if self._options.skips:
            raise UnsupportedError(
                "to_keras: with on_error='skip', an epoch may end early, but all epochs of a PyDataset have the same "
                "number of batches; leave on_error out, or iterate over the loader, and call train_on_batch"
            )
        if self._steps_differ:
            raise UnsupportedError(
                "to_keras: epochs of a shuffled TokenLoader may differ by a few batches, but all epochs of a "
                "PyDataset have the same number of batches; iterate over the loader, and call train_on_batch"
            )

        def begin(epoch: int, batch: int, output: Output) -> Iterator[Batch]:
            self.seek(epoch, batch)
            return self._iterate(output)

        return keras_dataset(begin, select, len(self), self._position)

    def to_grain(self) -> grain.IterDataset:
        """Return a `grain.IterDataset` of the batches, dicts of numpy arrays; each iterator is the next epoch.

        `get_state` and `set_state` of its iterators are `state_dict` and `load_state_dict`.

        Raises:
            MissingPackageError: Grain is not installed.
        """
        self._check_open()
        return grain_dataset(self._iterate, self.state_dict, self.load_state_dict)

    def _begin_at(self, first_batch: int, output: Output) -> Iterator[Batch]:
        """Begin an epoch of a `tf.data.Dataset` whose iterations begin at `first_batch`."""
        _, batch = self._position
        if batch != first_batch:
            raise ConfigurationError(
                f"to_tf: the data set begins at batch {first_batch} of an epoch, and the loader is at batch "
                f"{batch}; call to_tf() again, after load_state_dict or seek, and after the rest of an epoch"
            )
        return self._iterate(output)

    def stats(self) -> LoaderStats:
        """Return the figures of the running epoch, or else of the last one.

        Raises:
            LoaderStateError: No epoch has begun.
        """
        stats, figures = self._counters(), self._figures
        assert figures is not None
        return diagnosed(
            stats,
            self._dataset,
            figures,
            self._planned.counts,
            self._read_options,
            isolation="process" if self._isolates else "thread",
            transforms=BatchProcessor.is_needed(self._dataset.reader.columns, self._options.transform),
            chooses_window=self._chooses_window,
        )

    def _counters(self) -> LoaderStats:
        """Return the figures as `stats` does, without advice; reads nothing, so any thread may call it at any time."""
        if self._figures is None:
            raise LoaderStateError("stats(): no epoch has begun yet; iterate over the loader first")
        stats = self._figures.stats(self._dataset.snapshot, self._dataset.sizing.limit_bytes)
        return stats if self._live_datasets is None else replace(stats, growth=self._live_datasets.growth)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the running epoch, or else the last one, as an HTML page: charts over time, figures and advice.

        The page is one file without scripts, and loads nothing.

        Args:
            path: The file to write; an existing one is replaced.

        Raises:
            LoaderStateError: No epoch has begun.
            OSError: The file cannot be written; an existing one is kept.
        """
        stats, record = self._recorded("report")
        write_report(path, page_of(stats, record, repr(self)))

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write the running epoch, or else the last one, as a trace for https://ui.perfetto.dev or chrome://tracing.

        It holds the latest 16,384 jobs of the workers, waits of at least 0.1 ms, and counters of the whole epoch.

        Args:
            path: The JSON file to write; an existing one is replaced.

        Raises:
            LoaderStateError: No epoch has begun.
            OSError: The file cannot be written; an existing one is kept.
        """
        stats, record = self._recorded("trace")
        write_report(path, json.dumps(trace_of(stats, record)))

    def _recorded(self, method: str) -> tuple[LoaderStats, EpochRecord]:
        if self._figures is None:
            raise LoaderStateError(f"{method}(): no epoch has begun yet; iterate over the loader first")
        return self.stats(), self._figures.record()

    def close(self) -> None:
        """End a running epoch and its threads; idempotent. The loader cannot be used afterwards."""
        self.reset()
        self._closed = True
        if self._live_datasets is not None:
            self._live_datasets.release()
        if self._reading_process is not None:
            self._reading_process.stop()
        if self._transforms is not None:
            self._transforms.end()
        self._dataset.reader.chunks.close()
        if isinstance(self._output, PermutingOutput):
            self._output.release()
        for name in ("_allocator", "_staging", "_memory"):
            if isinstance(arenas := self.__dict__.get(name), Arenas):
                arenas.clear()
        trim_buffers()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments, the snapshot and the position, but no running epoch.

        Raises:
            LoaderStateError: The loader is closed, or an iteration is running.
        """
        self._check_open()
        running = self._running()
        if running is not None and running.is_here and not running.figures.is_done(len(self)):
            raise LoaderStateError(
                "a loader cannot be pickled or copied while it is iterated; finish the loop, or call loader.reset()"
            )
        if self._live_datasets is not None:
            raise UnsupportedError(
                "a loader over a SampleStore, or a table with follow=True, cannot be pickled; make it in the process "
                "that uses it, with num_workers=0 in a DataLoader, because the loader reads in the background anyway"
            )
        kind, opened, arguments = self._copied()
        self._dataset.budget.get()  # so that copies need not measure again
        given = {**arguments, "shard": self.shard}
        return _restored, (kind, opened, given, self._is_shard_chosen, *self._position)

    def _copied(self) -> tuple[type[BatchedDataLoader], Any, dict[str, Any]]:
        """Return the class, the opened source and the arguments of a copy."""
        return BatchedDataLoader, self._dataset, self._arguments


def _restored(
    kind: type[BatchedDataLoader],
    opened: Any,
    arguments: dict[str, Any],
    is_shard_chosen: bool,
    epoch: int,
    batch: int,
) -> BatchedDataLoader:
    loader = kind(opened, **arguments)
    loader._is_shard_chosen = is_shard_chosen
    loader._set_position(epoch, batch)
    return loader
