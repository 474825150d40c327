"""Measures how fast this machine reads a source, by the beginning of an epoch and a few requests.

The loader itself is measured, with its number of threads, so the rates include the cost of contention between threads.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import islice
from statistics import median
from typing import Any

import numpy as np

from parquet_loader.common import OutputOptions, ReadOptions, RemoteOptions, Shard
from parquet_loader.dataset import SHARE_READS, SHARE_WINDOWS, Dataset
from parquet_loader.engine import STAGES, WINDOWS_AHEAD, Event, events_of
from parquet_loader.errors import DataError, ParquetLoaderError
from parquet_loader.loader.batched import BatchedDataLoader, parts_of
from parquet_loader.loader.parquet_dataset import ParquetDataset
from parquet_loader.loader.simulation.model import (
    MOST_WINDOWS,
    EngineLimits,
    EpochForecast,
    EpochLoad,
    ReadLoad,
    WindowLoad,
    WorkRates,
    forecast,
    paced,
    with_startup,
)
from parquet_loader.loader.simulation.network import LinkRates
from parquet_loader.loader.stats import LoaderStats
from parquet_loader.plan import Plan, RowGroupSlice
from parquet_loader.read import LocalCache
from parquet_loader.source import ByteRange, RemoteStore, SourceFile
from parquet_loader.window import ColumnGroups

# Windows whose memory is new: as many as are held at a time.
_FIRST_WINDOWS = 3
# Number of epochs whose beginning is read. The spread of their predictions is the range that is shown.
_TRIALS = 6
# A trial reads at least this many windows, if the source has them, but for at most three times its time.
_FEWEST_WINDOWS = 6
# The most reads of a window that are simulated; more are merged.
_MOST_READS = 48
# The most row groups whose requests are counted; the rest is estimated by bytes.
_COUNTED_ROW_GROUPS = 4096
_LATENCY_PROBES = 5
_PROBE_BYTES = 4 * 2**20
_PROBE_S = 0.5
_PROBE_CONNECTIONS = 16


@dataclass(frozen=True, slots=True)
class LoaderSetup:
    """The loader whose epoch is predicted; arguments as in `BatchedDataLoader`."""

    source: Any
    batch_size: int
    ranks: int = 1
    num_threads: int | None = None
    memory_limit: int | str = "1GiB"
    columns: Sequence[str] | None = None
    split: str | None = None
    shuffle: bool = True
    isolation: Any = "thread"
    window_rows: int | None = None
    cache: LocalCache | None = None
    read_options: ReadOptions | None = None
    output_format: Any = "numpy"


@dataclass(frozen=True, slots=True)
class EpochTrial:
    """The measured beginning of an epoch.

    Attributes:
        rates: The measured rates.
        stats: Its figures.
        windows: Number of windows that delivered batches.
    """

    rates: WorkRates
    stats: LoaderStats
    windows: int


@dataclass(frozen=True, slots=True)
class Calibrated:
    """All measurements that a forecast needs.

    Attributes:
        load: The work of the epoch.
        trials: The beginnings of a few epochs.
        limits: The limits of the engine.
        opening_s: Seconds of listing files and reading footers.
        files: Files of the source.
        is_local: Whether its files are local.
        ranks: Ranks of the job.
        row_group_requests: Requests for the row groups of this rank's epoch in an object store.
        row_group_bytes: Bytes that these requests return.
        streamed_bytes: Bytes of the largest row group, if the memory limit leaves too little space to prefetch it;
            otherwise 0. The model cannot predict such row groups.
    """

    load: EpochLoad
    trials: tuple[EpochTrial, ...]
    limits: EngineLimits
    opening_s: float
    files: int
    is_local: bool
    ranks: int
    row_group_requests: int
    row_group_bytes: int
    streamed_bytes: int

    @property
    def rates(self) -> WorkRates:
        """The medians of the trials."""
        rates = [trial.rates for trial in self.trials]
        names = ("read_s", "order_s", "first_read_s", "first_order_s", "batch_s", "startup_s")
        middle = {name: median(getattr(one, name) for one in rates) for name in names}
        networks = [astuple(one.network) for one in rates if one.network is not None]
        network = LinkRates(*map(median, zip(*networks, strict=True))) if networks else None
        return replace(rates[0], network=network, **middle)

    @property
    def read_windows(self) -> int:
        """The most windows that delivered batches in a trial."""
        return max(trial.windows for trial in self.trials)

    def forecast(self, step_s: float = 0.0) -> EpochForecast:
        """Predict the epoch of one rank whose training step takes `step_s` seconds."""
        return self._forecast(self.rates, median(trial.stats.peak_bytes for trial in self.trials), step_s)

    def forecasts(self, step_s: float = 0.0) -> list[EpochForecast]:
        """Predict the same epoch by each trial; the differences show how much this machine varies."""
        return [self._forecast(trial.rates, trial.stats.peak_bytes, step_s) for trial in self.trials]

    def _forecast(self, rates: WorkRates, peak_bytes: float, step_s: float) -> EpochForecast:
        found = forecast(self.load, rates, self.limits, step_s=step_s)
        # An epoch with steps may hold more than a trial, but not less, because both begin in the same way.
        return replace(found, peak_bytes=max(found.peak_bytes, int(peak_bytes)))


def opened(setup: LoaderSetup) -> ParquetDataset:
    """List the files of a setup, and read their footers."""
    return ParquetDataset(
        setup.source, columns=setup.columns, split=setup.split, read_options=setup.read_options, cache=setup.cache
    )


def loader_of(setup: LoaderSetup, data: ParquetDataset) -> BatchedDataLoader:
    """Return the loader of a setup for the first rank."""
    return data.batches(
        setup.batch_size,
        shuffle=setup.shuffle,
        window_rows=setup.window_rows,
        memory_limit=setup.memory_limit,
        shard=Shard(0, setup.ranks),
        num_threads=setup.num_threads,
        isolation=setup.isolation,
        output_options=OutputOptions(format=setup.output_format),
    )


def calibrate(setup: LoaderSetup, *, seconds: float = 2.0) -> Calibrated:
    """Open a source, read the beginning of an epoch, and return all that a forecast needs.

    Args:
        setup: The loader.
        seconds: Approximate time to read. The first batch is always read, even if it takes longer.

    Raises:
        DataError: The epoch has no batch, or rows cannot be read.
        SourceError, SchemaError, MemoryLimitError: As in `BatchedDataLoader`.
    """
    began = time.perf_counter()
    data = opened(setup)
    opening_s = time.perf_counter() - began
    with loader_of(setup, data) as loader:
        if not len(loader):
            raise DataError(f"batch_size={setup.batch_size}, ranks={setup.ranks}: an epoch has no batch to predict")
        parts = parts_of(loader)
        dataset, plan = parts.dataset, parts.plan(0)
        remote = dataset.reader.chunks.remote
        network = None if remote is None else _probed(dataset, plan, remote)
        limits = _limits(dataset, plan, loader.num_threads, setup)
        requests, nbytes = _fetches(dataset, plan)
    trials, began = list[EpochTrial](), time.perf_counter()
    while len(trials) < _TRIALS and (not trials or time.perf_counter() - began < seconds):
        with loader_of(setup, data) as loader:
            # Each epoch begins with other rows, so that few trials find rows in the page cache.
            loader.set_epoch(len(trials))
            trials.append(_try(loader, parts_of(loader).plan(len(trials)), seconds / _TRIALS, network, limits))
    # The first trial is slower, because of imports and page faults.
    trials = trials[1:] or trials
    return Calibrated(
        load=_load(dataset, plan, _held(dataset, plan)),
        trials=tuple(trials),
        limits=limits,
        opening_s=opening_s,
        files=len(dataset.snapshot.files),
        is_local=dataset.snapshot.remote is None,
        ranks=setup.ranks,
        row_group_requests=requests,
        row_group_bytes=nbytes,
        streamed_bytes=_streamed_bytes(dataset, plan),
    )


def _batches_of(plan: Plan) -> Iterator[int]:
    """Yield the number of batches that each window delivers."""
    delivered = 0
    for window in range(plan.windows):
        rows = min(plan.window_begin(window + 1), plan.delivered_rows)
        is_last = window == plan.windows - 1
        until = plan.batches if is_last else min(plan.batches, rows // plan.batch_size)
        yield until - delivered
        delivered = until


def _try(
    loader: BatchedDataLoader, plan: Plan, seconds: float, network: LinkRates | None, limits: EngineLimits
) -> EpochTrial:
    """Read the beginning of the epoch of a plan for about `seconds`."""
    dataset = parts_of(loader).dataset
    held = _held(dataset, plan)  # before: the trial adds to a local cache
    batches = _batches_of(plan)
    left, is_first, taken, took = 0, True, list[float](), list[float]()
    iterator = iter(loader)
    began = asked = time.perf_counter()
    for _batch in iterator:
        now = time.perf_counter()
        while not left:
            left, is_first = next(batches, 1), True
            taken.append(now)
        if not is_first:
            took.append(now - asked)
        is_first = False
        left -= 1
        spent = now - began
        if spent > seconds and (len(taken) >= _FEWEST_WINDOWS or spent > 3 * seconds):
            break
        asked = time.perf_counter()
    else:
        taken.append(time.perf_counter())
    iterator.close()  # type: ignore[attr-defined]
    if not took:  # with one batch a window, its delivery cannot be told from waiting
        took = [1e-4]
    # The mean includes garbage collections and preemptions; among a few batches, they would distort it.
    batch_s = float(np.mean(took)) if len(took) >= 20 else median(took)
    stats, figures = loader.stats(), parts_of(loader).figures
    assert figures is not None
    record = figures.record()
    windows = min(len(taken), plan.windows)
    if network is not None:
        network = _with_observed(network, [(s.at, s.fetched_bytes) for s in record.engine.samples])
    rates = _rates(events_of(record.engine.jobs), plan, windows, batch_s, network)
    load = _load(dataset, plan, held, windows + limits.windows_ahead + 1)
    rates = paced(rates, load, limits, taken)
    return EpochTrial(with_startup(rates, stats.first_batch_s, load, limits), stats, windows)


def _rates(jobs: list[Event], plan: Plan, windows: int, batch_s: float, network: LinkRates | None) -> WorkRates:
    """Return the rates of the jobs; the first windows have rates of their own."""
    reads = sorted((job for job in jobs if STAGES[job.kind] == "read"), key=lambda job: job.began)
    slices = [(w, s.rows) for w in range(min(plan.windows, windows + 4)) for s in plan.slices(w)]
    pairs = list(zip(slices, reads, strict=False))
    first_windows = min(_FIRST_WINDOWS, max(1, windows - 1))
    first = [(rows, job.seconds) for (w, rows), job in pairs if w < first_windows]
    later = [(rows, job.seconds) for (w, rows), job in pairs if w >= first_windows]
    first_s = _per_row(first)
    read_s = _per_row(later) if later else first_s
    # Ordering jobs do not record rows: their seconds are divided by the rows of the windows that were ordered.
    orders = sorted((job for job in jobs if STAGES[job.kind] == "gather"), key=lambda job: job.began)
    ordered = _by_window(orders, pairs, plan, windows)
    first_order = _per_row(ordered[:first_windows])
    order_s = _per_row(ordered[first_windows:]) or first_order
    return WorkRates(
        read_s=read_s,
        order_s=order_s,
        first_read_s=first_s,
        first_order_s=first_order,
        first_windows=first_windows,
        batch_s=batch_s,
        network=network,
    )


def _per_row(pairs: Sequence[tuple[int, float]]) -> float:
    rows = sum(rows for rows, _ in pairs)
    return sum(seconds for _, seconds in pairs) / rows if rows else 0.0


def _by_window(
    orders: list[Event], reads: Sequence[tuple[tuple[int, int], Event]], plan: Plan, windows: int
) -> list[tuple[int, float]]:
    """Return the rows and the ordering seconds of each window: a window is ordered after its last read ends."""
    ends: dict[int, float] = {}
    for (window, _), job in reads:
        ends[window] = max(ends.get(window, 0.0), job.began + job.seconds)
    found = []
    for window in range(windows):
        begin, end = ends.get(window), ends.get(window + 1, float("inf"))
        if begin is None:
            break
        seconds = sum(job.seconds for job in orders if begin <= job.began < end)
        found.append((plan.window_rows(window), seconds))
    return found[:-1] if len(found) > 1 else found


def _limits(dataset: Dataset, plan: Plan, num_threads: int, setup: LoaderSetup) -> EngineLimits:
    sizing = dataset.sizing
    groups = ColumnGroups.from_columns(dataset.reader.columns, 2 * num_threads)
    is_remote = dataset.reader.chunks.remote is not None
    capacity = sizing.window_capacity(plan)
    lanes = sizing.open_row_groups if sizing.open_row_groups > 1 else 0
    return EngineLimits(
        num_threads=num_threads,
        windows_ahead=WINDOWS_AHEAD,
        waits_for_second=not is_remote,
        limit_bytes=int(sizing.limit_bytes * (SHARE_WINDOWS + SHARE_READS)),
        reads_bytes=sizing.reads_bytes,
        fetch_bytes=sizing.fetch_bytes,
        row_bytes=sizing.row.gathered,
        arena_bytes=int(capacity * sizing.row.wide),
        held_bytes=dataset.snapshot.footers.held_bytes + lanes * sizing.cursor_bytes,
        order_jobs=max(1, groups.jobs),
        max_requests=_options(setup).max_requests,
        keeps_fetched=dataset.reader.chunks.cache is None,
    )


def _options(setup: LoaderSetup) -> RemoteOptions:
    return (setup.read_options or ReadOptions()).remote


def _held(dataset: Dataset, plan: Plan) -> Any:
    """Return whether the local cache holds each row group, bool ``[row groups]``."""
    chunks = dataset.reader.chunks
    held = np.zeros(dataset.snapshot.row_groups, bool)
    if chunks.cache is not None:
        for index in plan.row_groups_read.tolist():
            held[index] = chunks.holds(dataset.snapshot.row_group(index))
    return held


def _size(dataset: Dataset, row_group: int) -> tuple[int, int] | None:
    """Return the bytes and requests with which a row group is fetched from an object store; None if not known."""
    chunks, snapshot = dataset.reader.chunks, dataset.snapshot
    found = snapshot.row_group(row_group)
    footer = snapshot.footers.cached(found.file_number)
    if footer is None and snapshot.remote is None:
        footer = snapshot.footers.get(found.file_number)
    if footer is None:
        return None
    options = RemoteOptions() if chunks.remote is None else chunks.remote.options
    try:
        ranges = chunks.ranges(found, footer, options)
    except ParquetLoaderError:  # raised again when it is read
        return None
    return sum(r.size for r in ranges), len(ranges)


def _streamed_bytes(dataset: Dataset, plan: Plan) -> int:
    """Return the bytes of the largest row group if it is streamed; otherwise 0. As in `engine.prefetch`."""
    chunks, sizing = dataset.reader.chunks, dataset.sizing
    if chunks.remote is None or chunks.cache is not None:
        return 0
    largest = max(plan.row_groups_read.tolist(), key=lambda index: int(dataset.snapshot.row_group_bytes[index]))
    nbytes, _ = _size(dataset, largest) or (0, 0)
    shares = sizing.open_row_groups + 1 if sizing.open_row_groups > 1 else 1
    return nbytes if nbytes > sizing.fetch_bytes // shares else 0


def _fetches(dataset: Dataset, plan: Plan, held: Any = None) -> tuple[int, int]:
    """Return the requests and bytes of the epoch's row groups that are not held."""
    groups = plan.row_groups_read
    groups = groups if held is None else groups[~held[groups]]
    chosen = groups[np.unique(np.linspace(0, len(groups) - 1, _COUNTED_ROW_GROUPS).astype(int))] if len(groups) else []
    nbytes, requests, plain = 0, 0, 0
    for index in map(int, chosen):
        size = _size(dataset, index)
        if size is not None:
            nbytes, requests = nbytes + size[0], requests + size[1]
            plain += int(dataset.snapshot.row_group_bytes[index])
    if not plain:
        return len(groups), int(dataset.snapshot.row_group_bytes[groups].sum())
    scale = int(dataset.snapshot.row_group_bytes[groups].sum()) / plain
    return round(requests * scale), round(nbytes * scale)


def _load(dataset: Dataset, plan: Plan, held: Any, most_windows: int = MOST_WINDOWS) -> EpochLoad:
    """Return the work of an epoch, and of each of its first windows."""
    is_remote = dataset.reader.chunks.remote is not None
    begun, windows = set[tuple[int, int]](), []
    for window, batches in enumerate(islice(_batches_of(plan), min(most_windows, MOST_WINDOWS))):
        reads = [_read(dataset, slice_, begun, held, is_remote=is_remote) for slice_ in plan.slices(window)]
        windows.append(WindowLoad(tuple(_merged(reads)), batches))
    requests, nbytes = _fetches(dataset, plan, held) if is_remote else (0, 0)
    return EpochLoad(tuple(windows), plan.rows, plan.batches, requests, nbytes)


def _read(
    dataset: Dataset, slice_: RowGroupSlice, begun: set[tuple[int, int]], held: Any, *, is_remote: bool
) -> ReadLoad:
    sizing = dataset.sizing
    is_whole = slice_.rows == dataset.counts[slice_.row_group] and slice_.rows <= sizing.whole_rows
    at_once = slice_.rows if is_whole else min(slice_.rows, sizing.stream_rows)
    # The cursors of row groups that share windows are counted once, for the whole epoch.
    cursor = 0 if is_whole or sizing.open_row_groups > 1 else sizing.cursor_bytes
    decoding = sizing.row_group_bytes(at_once) + cursor
    size = None
    if is_remote and not held[slice_.row_group]:
        size = _size(dataset, slice_.row_group) or (int(dataset.snapshot.row_group_bytes[slice_.row_group]), 1)
    is_begin = slice_.run not in begun
    begun.add(slice_.run)
    if size is None:
        return ReadLoad(slice_.rows, decoding)
    fetched, requests = size if is_begin else (0, 0)
    return ReadLoad(slice_.rows, decoding, fetched, requests, size[0] if slice_.stop == slice_.last else 0)


def _merged(reads: Sequence[ReadLoad]) -> Iterator[ReadLoad]:
    """Merge reads into at most `_MOST_READS` with the same sums, to bound the time of the simulation."""
    size = -(-len(reads) // _MOST_READS) or 1
    for first in range(0, len(reads), size):
        some = reads[first : first + size]
        yield ReadLoad(
            sum(read.rows for read in some),
            max(read.decoding_bytes for read in some),
            sum(read.fetched_bytes for read in some),
            sum(read.requests for read in some),
            sum(read.freed_bytes for read in some),
        )


# ---------------------------------------------------------------------- the network


def _probed(dataset: Dataset, plan: Plan, store: RemoteStore) -> LinkRates:
    """Measure latency, and the rates of one connection and of several, with requests for the epoch's own files."""
    largest = max(plan.row_groups_read.tolist(), key=lambda index: int(dataset.snapshot.row_group_bytes[index]))
    files = [dataset.snapshot.row_group(int(index)).file for index in plan.row_groups_read[:_PROBE_CONNECTIONS]]
    file = dataset.snapshot.row_group(largest).file
    latencies = [_timed(store, [file], 1) for _ in range(_LATENCY_PROBES + 1)][1:]  # the first one connects
    latency_s = median(latencies)
    nbytes = min(_PROBE_BYTES, file.size_bytes)
    one_s = min(_timed(store, [file], nbytes) for _ in range(2))
    rate = nbytes / max(one_s - latency_s, 1e-6)
    nbytes = int(min(nbytes, max(2**16, rate * _PROBE_S)))
    many = [file for file in files if file.size_bytes >= nbytes] or [file]
    many = (many * _PROBE_CONNECTIONS)[:_PROBE_CONNECTIONS]
    many_s = min(_timed(store, many, nbytes) for _ in range(2))
    link = len(many) * nbytes / max(many_s - latency_s, 1e-6)
    return LinkRates(latency_s, rate, max(rate, link))


def _timed(store: RemoteStore, files: Sequence[SourceFile], nbytes: int) -> float:
    """Return the seconds of requests for the first bytes of files, all at the same time."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    with store.fetcher() as fetcher, ThreadPoolExecutor(len(files)) as threads:
        buffers = [np.empty(nbytes, np.uint8) for _ in files]
        began = time.perf_counter()
        span = [ByteRange(0, nbytes)]
        done = [
            threads.submit(fetcher.run, fetcher.read_all(file, span, [buffer]))
            for file, buffer in zip(files, buffers, strict=True)
        ]
        for one in done:
            one.result()
        return time.perf_counter() - began


def _with_observed(rates: LinkRates, fetched: Sequence[tuple[float, int]]) -> LinkRates:
    """Raise the rate of the link to that of the fastest quarter of a second of an epoch."""
    best, first = rates.link_bytes_per_s, 0
    for at, nbytes in fetched:
        while first < len(fetched) and at - fetched[first][0] > 0.5:
            first += 1
        before = fetched[max(0, first - 1)]
        if at - before[0] >= 0.25:
            best = max(best, (nbytes - before[1]) / (at - before[0]))
    return LinkRates(rates.latency_s, rates.connection_bytes_per_s, best)
