"""`EpisodeLoader`: batches of samples of consecutive rows, each within one episode."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.collate import Output
from parquet_loader.common import (
    LOADER_KEYWORDS,
    OutputOptions,
    ReadOptions,
    Shard,
    ShardOptions,
    check_bool,
    check_int,
    explains_keywords,
    format_bytes,
    parse_bytes,
)
from parquet_loader.dataset import Counted, Dataset, ListedDataset, ReservedMemory, WindowNeeds, digest, settings_of
from parquet_loader.decode import columns_of
from parquet_loader.engine import (
    BatchProcessor,
    Engine,
    EngineOptions,
    NextPlan,
    Transform,
    Usage,
    WindowMedia,
    batches_at_once,
)
from parquet_loader.errors import ConfigurationError, MemoryLimitError, UnsupportedError
from parquet_loader.loader.batched import BatchedDataLoader
from parquet_loader.loader.column_scan import ScanOptions
from parquet_loader.loader.episodes.episode_scan import read_episodes
from parquet_loader.loader.episodes.episodes import Episodes, rule_of
from parquet_loader.loader.episodes.sample_output import SampleOutput
from parquet_loader.loader.episodes.sample_scheduler import SampleScheduler
from parquet_loader.loader.episodes.sample_windows import SampleCutter
from parquet_loader.loader.episodes.sample_writer import SampleForm, SampleWriter
from parquet_loader.loader.episodes.video_frames import VideoFrames
from parquet_loader.loader.epoch_plan import EpochPlan, figures_of_plan
from parquet_loader.loader.epochs.epoch_figures import EpochEngine
from parquet_loader.loader.loader_source import list_fixed
from parquet_loader.loader.stats import LoaderStats, with_index
from parquet_loader.plan import Division, EpisodeSamples, Plan, ReadPlan, mixing_score
from parquet_loader.read import Filters, LocalCache
from parquet_loader.schema import Audio, Scalar, Schema, Tensor, Video, masks_of
from parquet_loader.source import Source, TableLike
from parquet_loader.window import Allocator, Arenas

if TYPE_CHECKING:
    import torch

# Batches in progress or ready that have their own share of the memory limit.
_HELD_BATCHES = 2
# If memory is free, further batches are made up to this many bytes; also the least and the most batches in all.
_AHEAD_BYTES = 16 * 2**20
_LEAST_AHEAD, _MOST_AHEAD = 4, 64
# Divisor of the memory limit for the memory of batches that is kept to be reused.
_KEPT_SHARE = 32
MASK = "mask"
"""The name of the mask in a batch."""
EPISODE = "episode_index"
"""The column that tells the episodes of LeRobot's data sets apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodePlan(EpochPlan):
    """Figures of an epoch of an `EpisodeLoader`, known before it begins.

    `rows` is the number of samples that this rank delivers, `window_rows` the most rows that a window reads. The
    attributes below count all ranks together.

    Attributes:
        samples: Samples of the epoch.
        episodes: Episodes with rows that pass the filters.
        left_out: Episodes that are too short for a sample, with ``pad="drop"``.
    """

    samples: int
    episodes: int
    left_out: int


@dataclass(frozen=True, slots=True)
class _SampleSource:
    """The samples of a source. A copy of a pickled loader need not read the episodes again.

    Attributes:
        dataset: The source; opened, if it comes from a pickled loader.
        samples: The samples.
        frames: Finds the frames of samples in video files; None without videos.
    """

    dataset: Dataset | ListedDataset
    samples: EpisodeSamples
    frames: VideoFrames | None


@dataclass(frozen=True, slots=True)
class _NextSamples(NextPlan):
    """Computes the plan of the next epoch's reads. See `NextPlan`.

    Attributes:
        samples: The samples.
    """

    samples: EpisodeSamples = field(compare=False)

    def __call__(self, dataset: Dataset) -> Plan:
        """Return the plan of the rows."""
        return ReadPlan.of(self.of_samples(dataset), self.samples)

    def of_samples(self, dataset: Dataset) -> Plan:
        """Return the plan of the samples, as if they were rows."""
        most = dataset.sizing.window_rows
        window = max(self.samples.in_window(most), min(2 * self.batch_size, most))
        return self._of_counts(self.samples.counts, window, dataset)


class EpisodeLoader(BatchedDataLoader):
    """Iterate over batches of samples: consecutive rows of one episode, shuffled over all episodes.

    A batch is a dict with each column, ``[B, T, ...]``, and ``mask``, bool ``[B, T]``, which is False for rows before
    the beginning or after the end of the episode. Text, bytes and lists of varying length are a `Ragged` of B lists of
    T rows each. With `Episodes.deltas`, each named column has its own T, and ``<column>_is_pad``, bool ``[B, T]``,
    which is True for such rows; other columns have no axis T.

    The constructor reads the column `Episodes.by` once, and checks that the rows of each episode are consecutive. The
    bounds of episodes take 48 bytes an episode of `memory_limit`. Samples are shuffled inside each window of rows. Each
    row is read once for all its samples. If an episode continues in a row group that is not in the same window, the
    first rows of that row group are read once more.

    Epochs, states, ranks, threads and memory are as in `BatchedDataLoader`, with samples instead of rows. The
    background threads make the batches and call `transform`. Images are decoded once for all samples of a window; a
    window holds them decoded, so it has fewer rows. With ``isolation="process"``, the caller's thread makes the batches
    from rows that the child process reads.

    Args:
        source: As in `BatchedDataLoader`, except a `SampleStore`.
        batch_size: Samples of a batch, B.
        episodes: The rows of a sample.
        filters: Choose whole episodes.
        schema, columns, split, shuffle, seed, drop_last: As in `BatchedDataLoader`.
        window_rows: As in `BatchedDataLoader`; counts rows, not samples.
        transform: As in `BatchedDataLoader`, with a batch of samples: ``[B, T, ...]`` and masks. Not with
            ``isolation="process"``.
        device, memory_limit, shard, num_threads, isolation: As in `BatchedDataLoader`.
        filesystem, progress, read_options, cache, shard_options: As in `BatchedDataLoader`.
        output_options: A column of row numbers; the format, tensors or numpy arrays.

    Raises:
        DataError: The rows of an episode are not consecutive, or not in order.
        SchemaError, ConfigurationError, SourceError, MemoryLimitError, UnsupportedError: As in `BatchedDataLoader`.
    """

    _slices_windows = False
    _processes_rows = False
    _measures_mixing = False  # the rows of a window come in their order in the files

    @explains_keywords(LOADER_KEYWORDS)
    def __init__(
        self,
        source: Source | TableLike | ListedDataset,
        batch_size: int,
        *,
        episodes: Episodes,
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
        filesystem: pafs.FileSystem | None = None,
        progress: bool = False,
        read_options: ReadOptions | None = None,
        cache: LocalCache | None = None,
        shard_options: ShardOptions | None = None,
        output_options: OutputOptions | None = None,
    ) -> None:
        self._own_arguments = {
            name: value
            for name, value in locals().items()
            if name not in ("self", "__class__", "source", "filesystem", "shard", "schema", "columns", "split", "cache")
        }
        _check_arguments(episodes, batch_size, progress, output_options, transform, isolation)
        self.episodes = episodes
        self._limit_bytes = limit = parse_bytes(memory_limit)
        if isinstance(source, _SampleSource):
            found = source
        else:
            listed = list_fixed(
                source,
                "samples are planned from all rows",
                schema=schema,
                columns=columns,
                split=split,
                filesystem=filesystem,
                read_options=read_options,
                cache=cache,
                shard=shard,
            )
            settings = settings_of(listed)
            frames = settings.videos if episodes.by == EPISODE else None
            _check_columns(listed.schema, episodes, output_options, isolation, frames, settings.on_error)
            own_shard = settings.shard if shard is None else shard
            options = ScanOptions(filters, own_shard, limit, num_threads, isolation, progress)
            bounds = read_episodes(listed, episodes.by, episodes.order, options)
            samples = EpisodeSamples(bounds.rows, bounds.row_begins, rule_of(episodes))
            found = _SampleSource(listed, samples, None if frames is None else frames.chosen(bounds.ids, samples))
        opened: Any = found.dataset
        self._samples, self._frames = found.samples, found.frames
        _check_window(window_rows, batch_size, self._samples.most_rows(2 * batch_size))
        self._batch_bytes = _batch_bytes(opened.schema, episodes, batch_size)
        reserved = _own_bytes(self._samples.nbytes, self._batch_bytes, limit)
        _check_reserved(reserved, limit, batch_size, self._batch_bytes)
        super().__init__(
            opened,
            batch_size,
            filters=filters,
            shuffle=shuffle,
            seed=seed,
            window_rows=window_rows,
            drop_last=drop_last,
            transform=transform,
            device=device,
            memory_limit=limit - reserved,
            shard=shard,
            num_threads=num_threads,
            isolation=isolation,
            progress=progress,
            read_options=read_options if isinstance(opened, Dataset) else None,
            shard_options=shard_options,
            output_options=output_options,
        )
        if not np.array_equal(np.diff(self._samples.row_begins), self._dataset.counts):
            self.close()
            raise ConfigurationError("the files changed while the loader was made; make it again")
        self._form = _form_of(self.schema, episodes, self._frames)

    def __repr__(self) -> str:
        part = f"rank {self.shard.rank} of {self.shard.world_size}: " if self.shard.world_size > 1 else ""
        order = "shuffled" if self.shuffle else "in order"
        return (
            f"EpisodeLoader({len(self._samples.bounds) - 1} episodes, {self._samples.samples} samples of "
            f"{self._samples.rule.rows} rows, {part}{len(self)} batches of {self.batch_size} {order}, at most "
            f"{format_bytes(self._limit_bytes)}{', closed' if self._closed else ''})"
        )

    def _counters(self) -> LoaderStats:
        return with_index(super()._counters(), self._samples.nbytes, self._limit_bytes)

    def plan(self) -> EpisodePlan:
        """Return figures of the next epoch; reads no more than `window_rows` does."""
        self._check_open()
        plan, samples = self._plan(self._position[0]), self._samples
        base = figures_of_plan(ReadPlan.of(plan, samples), self._dataset, self.num_threads)
        figures = {name.name: getattr(base, name.name) for name in fields(EpochPlan)}
        figures |= {
            "rows": min(plan.batches * plan.batch_size, plan.delivered_rows),
            "steps": plan.batches,
            "predicted_peak_bytes": base.predicted_peak_bytes + samples.nbytes + _HELD_BATCHES * self._batch_bytes,
            "mixing": mixing_score(plan, samples.counts),
        }
        return EpisodePlan(
            **figures,
            samples=samples.samples,
            episodes=len(samples.bounds) - 1,
            left_out=int(np.count_nonzero(np.diff(samples.begins) == 0)),
        )

    # ------------------------------------------------------------------ called by the base class

    @property
    def _planned(self) -> Dataset:
        """The data set with the number of samples of each row group."""
        return replace(self._dataset, counted=Counted(self._samples.counts))

    @cached_property
    def _identity(self) -> dict[str, Any]:
        offsets = {name: self.episodes.offsets(name) for name in self.schema}
        listed = repr({name: None if rows is None else rows.tolist() for name, rows in offsets.items()})
        bounds = np.ascontiguousarray(self._samples.bounds, "<i8").tobytes()
        return {**super()._identity, "episodes": f"{self._samples.rule} ({digest(listed.encode(), bounds)})"}

    @cached_property
    def _memory(self) -> Any:
        """The allocator of batches."""
        ahead = _batches_ahead(self._batch_bytes, self._options.num_threads)
        kept = (ahead + batches_at_once(ahead, self._batch_bytes)) * self._batch_bytes
        least = _HELD_BATCHES * self._batch_bytes
        return self._output.allocator(max(least, min(kept, self._limit_bytes // _KEPT_SHARE)))

    def _window_needs(self) -> WindowNeeds:
        needs = super()._window_needs()
        batch = max(1, -(-self._samples.most_rows(2 * needs.batch_size) // 2))
        what = f"{_HELD_BATCHES} batches and the bounds of the episodes"
        reserved = ReservedMemory(self._limit_bytes, partial(_own_bytes, self._samples.nbytes, self._batch_bytes), what)
        return replace(needs, batch_size=batch, kept_rows=self._samples.rule.rows - 1, reserved=reserved)

    def _plan(self, epoch: int, division: Division | None = None) -> Plan:
        return self._next_plan(division or self._division(), epoch).of_samples(self._dataset)

    def _next_plan(self, division: Division, epoch: int) -> _NextSamples:
        return _NextSamples(
            division,
            self.batch_size,
            self.drop_last,
            self.shuffle,
            self.seed,
            epoch,
            samples=self._samples,
        )

    def _plan_of(self, engine_ahead: Engine) -> Plan:
        assert isinstance(engine_ahead.plan, ReadPlan)
        return engine_ahead.plan.planned

    def _engine(self, plan: Plan, first_batch: int = 0, next_plan: NextPlan | None = None) -> EpochEngine:
        window, _ = plan.beginning_of(first_batch)
        reads = ReadPlan.of(plan, self._samples, window)
        if self._reading_process is not None:
            return super()._engine(reads, min(1, window), next_plan)
        return self._engines()(
            reads,
            first_batch=min(1, window),
            is_first=self._figures is None,
            batches=partial(self._parts_of_epoch().scheduler, plan, first_batch),
        )

    def _opener(self) -> Callable[[Plan], Engine]:
        return partial(_opened_ahead, self._engines(), self._parts_of_epoch())

    def _output_of(self, plan: Plan, first_batch: int, output: Output) -> Output:
        parts = self._parts_of_epoch()
        return SampleOutput(parts.cutter(plan, first_batch), parts.writer(plan), first_batch, output)

    def _parts_of_epoch(self) -> _PartsOfEpoch:
        return _PartsOfEpoch(
            self._dataset, self._samples, self._form, self._memory, self._staging, self._options, self._batch_bytes
        )

    def _copied(self) -> tuple[type[BatchedDataLoader], Any, dict[str, Any]]:
        return EpisodeLoader, _SampleSource(self._dataset, self._samples, self._frames), self._own_arguments


@dataclass(frozen=True, slots=True)
class _PartsOfEpoch:
    """The parts that make the batches of an epoch; does not refer to the loader.

    Attributes:
        dataset: The data set.
        samples, form, memory: As in `SampleWriter`.
        staging: As in `SampleScheduler`.
        options: The `transform`, its seed, and the number of threads.
        batch_bytes: As in `SampleScheduler`.
    """

    dataset: Dataset
    samples: EpisodeSamples
    form: SampleForm
    memory: Allocator
    staging: Arenas
    options: EngineOptions
    batch_bytes: int

    def cutter(self, plan: Plan, first_batch: int) -> SampleCutter:
        return SampleCutter(plan, self.samples, first_batch, tuple(self.form.offsets))

    def writer(self, plan: Plan) -> SampleWriter:
        transform, part = self.options.transform, plan.parts[0].number if plan.parts else 0
        processor = None
        if transform is not None:
            processor = BatchProcessor((), transform, self.options.seed, plan.epoch, part, has_rows_out=False)
        return SampleWriter(self.samples, self.form, self.memory, processor)

    def scheduler(self, plan: Plan, first_batch: int, usage: Usage) -> SampleScheduler:
        has_media = any(column.image is not None for column in self.dataset.reader.columns)
        return SampleScheduler(
            self.cutter(plan, first_batch),
            self.writer(plan),
            first_batch,
            batch_bytes=self.batch_bytes,
            own_batches=_HELD_BATCHES,
            most_ahead=_batches_ahead(self.batch_bytes, self.options.num_threads),
            media=WindowMedia(self.dataset, self.options.seed, plan.epoch) if has_media else None,
            staging=self.staging,
            usage=usage,
        )


def _check_arguments(
    episodes: Any, batch_size: Any, progress: Any, output_options: OutputOptions | None, transform: Any, isolation: str
) -> None:
    """Check the arguments of an `EpisodeLoader` that need no data; raises as it does."""
    if not isinstance(episodes, Episodes):
        raise ConfigurationError(f"episodes={episodes!r:.80}: expected Episodes(by=...)")
    check_int("batch_size", batch_size, 1, 2**31)
    check_bool("progress", progress)
    if output_options is not None and output_options.format not in ("torch", "numpy"):
        raise UnsupportedError(
            f"output_options={output_options!r}: samples are tensors or numpy arrays; choose one of these formats"
        )
    if transform is not None and isolation == "process":
        raise UnsupportedError(
            "transform= with isolation='process': samples are made in this process; leave isolation out"
        )


def _check_window(window_rows: Any, batch_size: int, least_rows: int) -> None:
    if isinstance(window_rows, int) and window_rows < least_rows:
        raise ConfigurationError(
            f"window_rows={window_rows}: two batches of {batch_size} samples span up to {least_rows} rows; pass "
            f"window_rows={least_rows} or more, or a smaller batch_size"
        )


def _check_reserved(reserved_bytes: int, limit_bytes: int, batch_size: int, batch_bytes: int) -> None:
    """Check that batches and the bounds of the episodes leave half of the limit to reading."""
    if reserved_bytes > limit_bytes // 2:
        raise MemoryLimitError(
            f"memory_limit={format_bytes(limit_bytes)}: batches of {batch_size} samples take "
            f"{format_bytes(batch_bytes)} each, and two of them with the bounds of the episodes may take at most half "
            f"of it; pass at least {-(-2 * reserved_bytes // 2**20)}MiB, or a smaller batch_size"
        )


def _batches_ahead(batch_bytes: int, num_threads: int) -> int:
    """Return the most batches in progress or ready."""
    return min(max(_LEAST_AHEAD, 2 * num_threads, _AHEAD_BYTES // max(1, batch_bytes)), _MOST_AHEAD)


def _own_bytes(bounds_bytes: int, batch_bytes: int, limit_bytes: int) -> int:  # noqa: ARG001
    """Return the bytes of a limit for the bounds of episodes and for batches."""
    return bounds_bytes + _HELD_BATCHES * batch_bytes


def _opened_ahead(engines: partial[Engine], parts: _PartsOfEpoch, plan: Plan) -> Engine:
    """Open the engine of the next epoch; a worker calls it, so it does not refer to the loader and keep it alive."""
    assert isinstance(plan, ReadPlan)
    return engines(plan, first_batch=0, is_first=False, batches=partial(parts.scheduler, plan.planned, 0))


def _check_columns(
    schema: Schema,
    episodes: Episodes,
    output_options: OutputOptions | None,
    isolation: str,
    frames: VideoFrames | None,
    on_error: str,
) -> None:
    """Check that the columns can be delivered as samples.

    Raises:
        ConfigurationError: `deltas` names a column that does not exist, or a mask has the name of a column.
        UnsupportedError: A column holds recordings or images that differ in size; or a column holds images, and they
            are read in a child process or damaged ones are to be replaced.
    """
    names = {*schema, *masks_of(schema).values()}
    cameras = () if frames is None else tuple(frames.cameras)
    if output_options is not None and output_options.row_numbers is not None:
        names.add(output_options.row_numbers)
    for name in episodes.deltas or ():
        if name not in schema and name not in cameras:
            there_are = ", ".join((*schema, *cameras))
            raise ConfigurationError(f"deltas[{name!r}]: there is no such column; there are {there_are}")
    masks = [MASK] if episodes.deltas is None else [f"{name}_is_pad" for name in episodes.deltas]
    masks += [f"{camera}_{end}" for camera in cameras for end in ("path", "timestamp")]
    taken = [name for name in masks if name in names]
    if taken:
        raise ConfigurationError(
            f"column {taken[0]!r}: a batch has something else of this name; leave the column out with columns=[...]"
        )
    for name, of_column in schema.items():
        if isinstance(of_column, Audio | Video):
            raise UnsupportedError(
                f"column {name!r} holds {type(of_column).__name__} values, which are not decoded into samples; leave "
                "it out with columns=[...], "
                f"or let a schema deliver it undecoded: {name!r}: Bytes()"
            )
    for column in columns_of(schema):
        if column.image is not None and None in column.decoded_shape:
            raise UnsupportedError(
                f"column {column.name!r}: rows of a sample have one shape, and this field's may differ; give the field "
                "one, for images with Image(shape) or Image(size=...)"
            )
        if column.image is not None and on_error == "skip_row":
            raise UnsupportedError(
                f"column {column.name!r} with on_error='skip_row': damaged images in samples are not replaced; use "
                "on_error='raise'"
            )
        if column.image is not None and isolation == "process":
            raise UnsupportedError(
                f"column {column.name!r} with isolation='process': images are decoded in this process; leave isolation "
                "out"
            )


def _batch_bytes(schema: Schema, episodes: Episodes, batch_size: int) -> int:
    """Return an estimate of a batch's bytes; a value of varying length counts as 64 bytes."""
    nbytes = 0
    media = {
        column.name: math.prod(n or 1 for n in column.decoded_shape) * np.dtype(column.dtype).itemsize
        for column in columns_of(schema)
        if column.image is not None
    }
    for name, of_column in schema.items():
        offsets = episodes.offsets(name)
        width = 64
        if isinstance(of_column, Scalar | Tensor) and pa.types.is_primitive(of_column.type):
            shape = of_column.shape if isinstance(of_column, Tensor) else ()
            width = max(1, of_column.type.bit_width // 8) * math.prod(shape)
        width = media.get(name, width)
        nbytes += (1 if offsets is None else len(offsets)) * (width + 1)
    return nbytes * batch_size


def _form_of(schema: Schema, episodes: Episodes, frames: VideoFrames | None) -> SampleForm:
    offsets = {name: episodes.offsets(name) for name in schema}
    offsets |= {mask: offsets[name] for name, mask in masks_of(schema).items()}
    cameras = {} if frames is None else {camera: episodes.offsets(camera) for camera in frames.cameras}
    if episodes.deltas is None:
        rows = episodes.offsets("")
        assert rows is not None
        return SampleForm(offsets, {MASK: rows}, {}, frames, cameras)
    pads = {f"{name}_is_pad": rows for name in episodes.deltas if (rows := episodes.offsets(name)) is not None}
    return SampleForm(offsets, {}, pads, frames, cameras)
