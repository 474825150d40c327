"""Prefetches row groups of remote files ahead of decoding, within a share of the memory budget.

Prefetches start in the plan's order, and those in flight share the bandwidth. Until the first window of an epoch is
complete, only its row groups are prefetched, and one later row group for each one that has arrived. So the first batch
is ready as soon as the network has delivered its window.

The engine's lock guards all state. `step` starts the prefetches that fit. The fetcher's thread reports each arrival: it
takes the lock and only updates counters under it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

from parquet_loader.dataset import Dataset
from parquet_loader.engine.usage import Usage
from parquet_loader.engine.workers.epoch_workers import EpochWorkers
from parquet_loader.errors import ParquetLoaderError
from parquet_loader.plan import Plan, RowGroupSlice
from parquet_loader.read import AT_ONCE_BYTES, ChunkLocation
from parquet_loader.source import Fetcher, RemoteFigures, RowGroupRef

Run = tuple[int, int]

# The most row groups prefetched at a time into a local cache, which must not evict them before they are read.
_MOST_CACHED_RUNS = 64
# Sizes of row groups are estimated from earlier ones; they may be this much larger.
_MARGIN = 1.1
# The most memory of a row group that is streamed, which means fetched while it is decoded.
_MOST_STREAMED_BYTES = 32 * 2**20


@dataclass(slots=True)
class _Fetch:
    """The prefetch of a row group, from its first request until the row group has been read.

    Attributes:
        window: The first window that needs it.
        row_group: The row group.
        held_bytes: Bytes reserved for it: an estimate until its size is known.
        location: The location of its bytes, once they are fetched.
        error: The error of its requests.
        is_cached: Whether it is already in the local cache, and the reader finds it there.
    """

    window: int
    row_group: RowGroupRef
    held_bytes: int
    location: ChunkLocation | None = None
    error: BaseException | None = None
    is_cached: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether it can be read, or has failed."""
        return self.is_cached or self.location is not None or self.error is not None


class Prefetcher:
    """Fetches the row groups of one epoch ahead of the engine. The lock of `workers` guards its state.

    Args:
        dataset: The data set.
        plan: The epoch.
        usage: The counters of the epoch, to which fetched bytes are added.
        workers: The workers to notify of changes.
        first_window: The window with which the epoch begins.
        broken: Indices of row groups that are skipped; shared with the read scheduler, which changes it.
    """

    def __init__(
        self,
        dataset: Dataset,
        plan: Plan,
        usage: Usage,
        workers: EpochWorkers,
        first_window: int,
        broken: AbstractSet[int],
    ) -> None:
        reader, sizing = dataset.reader, dataset.sizing
        assert reader.chunks.remote is not None
        self._reader = reader
        self._usage = usage
        self._workers = workers
        self._limit_bytes = sizing.fetch_bytes
        # If windows share several row groups, all of these and the next one are in memory at the same time.
        self._largest_bytes = sizing.fetch_bytes // (sizing.open_row_groups + 1 if sizing.open_row_groups > 1 else 1)
        self._most = sizing.prefetches if reader.chunks.cache is None else min(sizing.prefetches, _MOST_CACHED_RUNS)
        self._streamed_bytes = min(sizing.fetch_bytes // (sizing.open_row_groups + 1), _MOST_STREAMED_BYTES)
        self._broken = broken
        self._is_cached = reader.chunks.cache is not None
        self._store = reader.chunks.remote
        self._fetcher: Fetcher = reader.chunks.remote.fetcher()
        self._fetches: dict[Run, _Fetch] = {}
        self._first_window = first_window
        # Row groups of the first window in flight, and the most fetches in flight until all of these have arrived.
        self._first_in_flight = 0
        self._most_at_first = 0
        self._slices = self._first_slices(plan, first_window)
        self._next: tuple[int, RowGroupSlice] | None = next(self._slices, None)
        # The share of a row group's bytes that is fetched, if known.
        self._ratio = None if self._next is None else self._ratio_of(reader.snapshot.row_group(self._next[1].row_group))
        self._in_flight = 0
        # Whether to fetch only the first window: an epoch that is read ahead may never begin.
        self.only_first = False

    def _first_slices(self, plan: Plan, first_window: int) -> Iterator[tuple[int, RowGroupSlice]]:
        """Yield each row group's first slice, in the plan's order, with its window."""
        for window in range(first_window, plan.windows):
            for slice_ in plan.slices(window):
                if window == first_window or slice_.start == slice_.first:
                    yield window, slice_

    def _ratio_of(self, row_group: RowGroupRef) -> float | None:
        """Return the share of a row group's bytes that is fetched; None if its footer is not in memory."""
        try:
            nbytes = self._reader.chunks.fetched_bytes(row_group)
        except ParquetLoaderError:  # raised again when the row group is read
            return None
        return None if nbytes is None else nbytes / max(1, row_group.encoded_bytes)

    @property
    def figures(self) -> RemoteFigures:
        """Figures of remote reads so far."""
        return self._fetcher.figures

    def start(self) -> None:
        """Start the fetcher's thread; called without the lock."""
        self._fetcher.start()
        self._store.share(self._fetcher)

    def stop(self) -> None:
        """Cancel all requests, so that no job waits for the store; called with or without the lock."""
        self._fetcher.close(wait=False)

    def close(self, *, wait: bool) -> None:
        """Cancel all requests; with `wait`, also end the thread and release fetched bytes, called without the lock."""
        self._store.unshare(self._fetcher)
        self._fetcher.close(wait=wait)
        if wait:
            self._fetches.clear()

    def step(self, needed_window: int) -> None:
        """Start the prefetches that fit; if none is in flight, always start one for the window needed next."""
        while self._next is not None and self._fetcher.is_here:
            window, slice_ = self._next
            if self.only_first and window > self._first_window:
                return
            row_group = self._reader.snapshot.row_group(slice_.row_group)
            estimate = self._estimate(row_group)
            fits = len(self._fetches) < self._most and self._usage.fetched_bytes + estimate <= self._limit_bytes
            if not fits and (window > needed_window or self._in_flight):
                return
            if window > self._first_window and self._first_in_flight and self._in_flight >= self._most_at_first:
                return
            self._next = next(self._slices, None)
            if slice_.run not in self._fetches and slice_.row_group not in self._broken:
                self._begin(window, slice_.run, row_group, estimate)

    def _estimate(self, row_group: RowGroupRef) -> int:
        """Return the bytes to reserve for a row group before its size is known; larger ones are streamed."""
        estimate = int(_MARGIN * (1.0 if self._ratio is None else self._ratio) * row_group.encoded_bytes)
        # The cache fetches in parts, and stores them on disk.
        return min(estimate, max(self._largest_bytes, AT_ONCE_BYTES) if self._is_cached else self._largest_bytes)

    def _begin(self, window: int, run: Run, row_group: RowGroupRef, estimate: int) -> None:
        fetch = self._fetches[run] = _Fetch(window, row_group, estimate)
        if self._reader.chunks.is_cached(row_group):
            fetch.held_bytes, fetch.is_cached = 0, True
            return
        self._reserve(estimate)
        self._in_flight += 1
        if window == self._first_window:
            self._first_in_flight += 1
            self._most_at_first = max(self._most_at_first, self._first_in_flight)
        work = self._reader.chunks.fetched(row_group, self._fetcher, self._largest_bytes, self._streamed_bytes)
        self._fetcher.begin(work, partial(self._arrived, run, fetch))

    def _arrived(self, run: Run, fetch: _Fetch, location: ChunkLocation | None, error: BaseException | None) -> None:
        held = 0 if location is None else location.held_bytes
        ratio = None
        if location is not None and location.memory is not None:
            ratio = held / max(1, fetch.row_group.encoded_bytes)
        elif location is not None and self._ratio is None:
            ratio = self._ratio_of(fetch.row_group)
        with self._workers.lock:
            self._in_flight -= 1
            self._first_in_flight -= fetch.window == self._first_window
            fetch.location, fetch.error = location, error
            if ratio is not None:
                self._ratio = max(self._ratio or 0.0, ratio)
            if self._fetches.get(run) is not fetch:  # released meanwhile
                fetch.location, held = None, 0
            self._reserve(held - fetch.held_bytes)
            fetch.held_bytes = held
            self._workers.notify()

    def is_ready(self, run: Run) -> bool:
        """Whether a row group can be read, or its prefetch has failed."""
        fetch = self._fetches.get(run)
        return fetch is not None and fetch.is_settled

    def is_streamed(self, run: Run) -> bool:
        """Whether a row group is fetched while it is decoded."""
        fetch = self._fetches.get(run)
        return fetch is not None and fetch.location is not None and fetch.location.is_streamed

    def fetched(self, run: Run) -> Callable[[], ChunkLocation | None]:
        """Return a function for the reading job that returns the location of the bytes or raises the fetch's error.

        None as a location means that the reader locates the bytes itself.
        """
        fetch = self._fetches[run]

        def location() -> ChunkLocation | None:
            if fetch.error is not None:
                raise fetch.error
            return fetch.location

        return location

    def release(self, run: Run) -> None:
        """Release a row group that has been read, or will not be read."""
        fetch = self._fetches.pop(run, None)
        if fetch is not None and fetch.is_settled:
            self._reserve(-fetch.held_bytes)
            fetch.location = None

    def _reserve(self, change: int) -> None:
        self._usage.fetched_bytes += change
        self._usage.reserve(change)
