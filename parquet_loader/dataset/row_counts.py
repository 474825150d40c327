"""Counts the rows of each row group that pass a filter, in parallel on threads and ranks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from parquet_loader.common import IntArray, Ranks, in_order
from parquet_loader.dataset.row_sizes import RowSizes
from parquet_loader.errors import DataError, SourceError, is_skippable
from parquet_loader.read import RowFilter, RowGroupReader
from parquet_loader.source import Snapshot

# The most fetched bytes of row groups that are being counted at a time.
_FETCHED_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Counted:
    """The result of counting rows.

    Attributes:
        counts: int64 ``[row groups]``, rows of each that pass the filter.
        skipped: Row groups left out because they could not be read, each with its reason.
    """

    counts: IntArray
    skipped: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PriorCounts:
    """Counts of an earlier loader with the same arguments, over files that never change.

    Attributes:
        snapshot: The row groups that were counted.
        counted: Its counts; not used without a filter.
        row: Bytes of a row, if this snapshot is the one to open; None if not measured yet.
    """

    snapshot: Snapshot
    counted: Counted
    row: RowSizes | None = None

    def counts_of(self, snapshot: Snapshot) -> IntArray:
        """Return the known counts of another snapshot's row groups, int64 ``[row groups]``; -1 if not known."""
        counts = np.where(snapshot.alive > 0, -1, 0).astype(np.int64)
        file = self.snapshot.numbers_of(snapshot)
        known = self.snapshot.row_group_file.astype(np.int64) << 32 | self.snapshot.row_group_number
        wanted = np.where(file < 0, -1, file << 32)[snapshot.row_group_file] | snapshot.row_group_number
        order = np.argsort(known, kind="stable")
        position = np.minimum(np.searchsorted(known, wanted, sorter=order), len(known) - 1)
        if len(known):
            found = known[order[position]] == wanted
            counts[found] = self.counted.counts[order[position[found]]]
            if self.counted.skipped:  # a row group that could not be read may be readable now
                again = np.isin(wanted, known[[group for group, _ in self.counted.skipped]])
                counts[again & found] = -1
        return counts


def count_rows(
    reader: RowGroupReader,
    row_filter: RowFilter,
    num_threads: int,
    ranks: Ranks | None,
    known: PriorCounts | None,
    *,
    skips: bool,
) -> Counted:
    """Count the rows of each row group that pass the filter; each of n ranks counts every nth row group."""
    snapshot = reader.snapshot
    counts = np.where(snapshot.alive > 0, -1, 0) if known is None else known.counts_of(snapshot)
    wanted = np.flatnonzero(counts < 0)
    if ranks is None:
        counts[wanted], skipped = _count_some(reader, row_filter, num_threads, wanted, skips=skips)
        return Counted(counts, skipped)
    rank, world_size = ranks.shard.rank, ranks.shard.world_size
    own = wanted[rank::world_size]

    def count() -> bytes:
        return _count_some(reader, row_filter, num_threads, own, skips=False)[0].astype("<i8").tobytes()

    for number, received in enumerate(ranks.gather(count)):
        counts[wanted[number::world_size]] = np.frombuffer(received, "<i8")
    return Counted(counts)


def _count_some(
    reader: RowGroupReader,
    row_filter: RowFilter,
    num_threads: int,
    wanted: IntArray,
    *,
    skips: bool,
) -> tuple[IntArray, tuple[tuple[int, str], ...]]:
    """Return the rows of some row groups that pass the filter, and the skipped row groups with the reasons."""
    snapshot, counts = reader.snapshot, np.zeros(len(wanted), np.int64)
    skipped: list[tuple[int, str]] = []
    if not len(wanted):
        return counts, ()
    if reader.passing is not None:
        return np.where(reader.passing[wanted], snapshot.alive[wanted], 0), ()

    def count(group: int) -> int:
        try:
            return reader.count(snapshot.row_group(group))
        except (DataError, SourceError) as error:
            if not skips or not is_skippable(error):
                raise
            skipped.append((group, str(error)))
            return 0

    threads = _threads_for(reader, wanted, num_threads)
    with ThreadPoolExecutor(threads, thread_name_prefix="parquet_loader-count") as pool:
        try:
            files = np.unique(snapshot.row_group_file[wanted]).tolist()
            admitted = in_order(pool, lambda file: row_filter.surviving(snapshot, file, reader.positions), files)
            surviving = dict(zip(files, admitted, strict=True))
            admitted_positions = [
                position
                for position, group in enumerate(wanted.tolist())
                if int(snapshot.row_group_number[group]) in surviving[int(snapshot.row_group_file[group])]
            ]
            counts[admitted_positions] = list(in_order(pool, count, wanted[admitted_positions].tolist()))
        except BaseException:
            if snapshot.remote is not None:
                snapshot.remote.cancel()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return counts, tuple(sorted(skipped))


def _threads_for(reader: RowGroupReader, wanted: IntArray, num_threads: int) -> int:
    """Return how many row groups are counted at a time; for remote files, as many as fit into `_FETCHED_BYTES`."""
    snapshot = reader.snapshot
    if snapshot.remote is None:
        return num_threads
    largest = snapshot.row_group(int(wanted[np.argmax(snapshot.row_group_bytes[wanted])]))
    fitting = _FETCHED_BYTES // max(1, reader.counted_bytes(largest))
    return max(num_threads, min(snapshot.remote.options.max_requests, fitting))
