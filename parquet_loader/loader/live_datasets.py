"""The data sets of a source that changes: one for each epoch, of the same files on all ranks; states name these."""

from __future__ import annotations

import json
import weakref
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from parquet_loader.common import IntArray, Ranks, Shard, broadcasting_errors
from parquet_loader.dataset import Counted, Dataset, PriorCounts, RowSizes, check_agreement
from parquet_loader.errors import ResumeError, SourceError
from parquet_loader.loader.live_source import EpochFiles, Follower, LiveSource, SourceChange
from parquet_loader.plan import Plan, batches_until_done
from parquet_loader.source import Snapshot

T = TypeVar("T")
OpenDataset = Callable[[Snapshot, Ranks | None, PriorCounts | None], Dataset]

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class EpochView:
    """The result of one listing of the source.

    Attributes:
        files: The files, leased.
        dataset: The data set of these files.
    """

    files: EpochFiles
    dataset: Dataset


class LiveDatasets:
    """Opens the data set of each epoch of one loader over a source that changes. Used by one thread at a time.

    With several ranks, rank 0 lists the source and sends the result to the others. Every listing is a collective
    exchange: it ends when every rank has leased the files, and an error on one rank is raised on all.

    Args:
        source: The source.
        open_dataset: Opens a snapshot with the loader's arguments.
        shard: This rank, if several ranks list the source together; else None.
        filters: Whether there is a filter; then the counts of known files are kept.
    """

    def __init__(self, source: LiveSource, open_dataset: OpenDataset, shard: Shard | None, *, filters: bool) -> None:
        self._source = source
        self._follower = source.follow()
        self._open_dataset = open_dataset
        self._shard = shard
        self._filters = filters
        self._seen: EpochView | None = None
        self._kept: str | None = None
        self._resumed: tuple[EpochFiles, int, int] | None = None
        self._finalizer: Any = None
        self.growth: SourceChange | None = None

    @property
    def identity(self) -> str | None:
        """The name of the last snapshot."""
        return None if self._seen is None else self._seen.files.identity

    def peek(self, epoch: int) -> Dataset:
        """List the source without leasing its files; the next listing still counts growth from the beginning."""
        follower = self._source.follow()
        seen = self._opened(epoch, lambda: follower.begin_epoch(epoch), follower)
        try:
            seen.dataset.budget.get()  # now, because the store may evict the files after their release
        finally:
            seen.files.close()
        return self._use(seen).dataset

    def begin(self, epoch: int, batch: int) -> EpochView:
        """Return the files that an epoch reads: those recalled for it, or else the present ones.

        Raises:
            ResumeError: The epoch begins after its first batch, and its earlier batches had other files.
        """
        resumed, before = self._resumed, self.identity
        if resumed is not None and self._seen is not None and resumed[1] == epoch and resumed[2] <= batch:
            self._forget_resumed()
            self.growth = resumed[0].growth
            return EpochView(resumed[0], self._seen.dataset)
        self.release()
        seen = self._opened(epoch, lambda: self._follower.begin_epoch(epoch), self._follower)
        if batch and seen.files.identity != before:
            seen.files.close()
            raise ResumeError(
                f"batch {batch} of epoch {epoch} belongs to other files: the store has published or evicted some "
                f"since; load_state_dict continues with a state's files, set_epoch({epoch + 1}) with the next epoch"
            )
        self.growth = seen.files.growth
        return self._use(seen)

    def recall(self, name: Any, epoch: int) -> EpochView:
        """Return the files of a state that still exist; if their list is gone, the present files."""

        def listed() -> EpochFiles:
            found = self._follower.recall(name) if isinstance(name, str) else None
            return self._source.follow().begin_epoch(epoch) if found is None else found

        return self._opened(epoch, listed, self._follower)

    def resume(self, seen: EpochView, dataset: Dataset, plan: Plan, batch: int) -> list[str]:
        """Let the next iteration of an epoch read recalled files; return the needed files that are gone.

        If there are any, no file stays leased, and the next epoch lists the source as usual.

        Args:
            seen: The result of `recall`.
            dataset: The data set of these files, with the state's window size.
            plan: The epoch.
            batch: Number of the first batch delivered.
        """
        ranks = self._ranks()
        missing = [seen.files.snapshot.files[n].path for n in _needed(seen.files, plan, batch).tolist()]
        if ranks is not None:
            everywhere = ranks.gather(lambda: json.dumps(missing).encode())
            missing = list(dict.fromkeys(path for part in everywhere for path in json.loads(part)))
        if missing:
            seen.files.close()
            return missing
        self.release()
        self._resumed = seen.files, plan.epoch, batch
        self._finalizer = weakref.finalize(self, seen.files.close)
        self._use(EpochView(seen.files, dataset))
        return []

    def remember(self, name: Any) -> None:
        """Restore the source's arrival times from a kept list of files; does nothing if there is no such list."""
        ranks = self._ranks()

        def found() -> bytes:
            files = self._follower.recall(name) if isinstance(name, str) else None
            if files is None:
                return b""
            files.close()
            return files.dump()

        if ranks is None:
            found()
        else:
            data = ranks.from_first(found)
            if data and self._shard is not None and self._shard.rank:
                self._follower.take_over(data).close()

    def keep(self) -> str | None:
        """Let the source keep the list of the last epoch's files, and return its name; None before the first epoch."""
        if self._kept is None and self._seen is not None and (self.growth is not None or self._resumed is not None):
            self._kept = self._seen.files.keep(_about(self._seen.dataset, filters=self._filters))
        return self._kept

    def release(self) -> None:
        """End the lease of files that were recalled and not read."""
        if self._resumed is not None:
            files = self._resumed[0]
            self._forget_resumed()
            files.close()

    def with_broadcast(self, work: Callable[[], T]) -> T:
        """Run work that may fail on one rank before an exchange; then its error is raised on all ranks."""
        with broadcasting_errors(self._ranks()):
            return work()

    def _forget_resumed(self) -> None:
        self._resumed = None
        self._finalizer.detach()

    def _ranks(self) -> Ranks | None:
        """Return the ranks for one exchange; the object remembers which errors were broadcast."""
        return None if self._shard is None else Ranks(self._shard)

    def _opened(self, epoch: int, work: Callable[[], EpochFiles], follower: Follower) -> EpochView:
        """List the source, with all ranks, and open the files."""
        ranks = self._ranks()
        files = work() if ranks is None else _together(work, follower, ranks)
        try:
            with broadcasting_errors(ranks):
                dataset = self._dataset_of(files, ranks)
                if ranks is not None:
                    sizing = dataset.sizing
                    known = {"epoch": epoch, "files": files.identity, "rows": dataset.rows}
                    check_agreement({**known, "window_rows": sizing.window_rows}, ranks)
        except BaseException:
            files.close()
            raise
        return EpochView(files, dataset)

    def _use(self, seen: EpochView) -> EpochView:
        """Make this the last listing."""
        self._seen, self._kept = seen, None
        return seen

    def _dataset_of(self, files: EpochFiles, ranks: Ranks | None) -> Dataset:
        before = self._seen
        if (
            before is not None
            and before.files.identity == files.identity
            and before.dataset.snapshot.has_columns_of(files.snapshot)  # tables change these without a new version
            and not len(files.gone)
        ):
            return before.dataset
        known = None
        if files.about is not None:
            known = _known(files.snapshot, files.about)
        elif self._filters and before is not None:
            known = PriorCounts(before.dataset.snapshot, before.dataset.counted)
        return self._open_dataset(files.snapshot, ranks, known)


def _about(dataset: Dataset, *, filters: bool) -> bytes:
    """Return row sizes and counts as bytes to keep with the list of files; later, files to measure may be gone."""
    counts = dataset.counts.astype("<i8").tobytes() if filters else b""
    return json.dumps(asdict(dataset.sizing.row)).encode() + b"\n" + zlib.compress(counts)


def _known(snapshot: Snapshot, about: bytes) -> PriorCounts:
    try:
        text, _, packed = about.partition(b"\n")
        sizes = json.loads(text)
        row = RowSizes(**{**sizes, "ragged": tuple((str(name), float(size)) for name, size in sizes["ragged"])})
        counts = np.frombuffer(zlib.decompress(packed), "<i8").astype(np.int64)
    except (ValueError, TypeError, KeyError, zlib.error) as error:
        raise SourceError(
            f"a kept list of files is damaged: {error}; call set_epoch(n) to begin an epoch without the state"
        ) from error
    return PriorCounts(snapshot, Counted(counts if len(counts) else snapshot.alive), row)


def files_named(paths: list[str]) -> str:
    """Return the first paths and the number of the others, for an error."""
    names = ", ".join(paths[:_SHOWN])
    return names if len(paths) <= _SHOWN else f"{names} and {len(paths) - _SHOWN} more"


def _together(work: Callable[[], EpochFiles], follower: Follower, ranks: Ranks) -> EpochFiles:
    """Run the work on rank 0 and send its result to the others; return when every rank has it."""
    mine: list[EpochFiles] = []

    def list_and_dump() -> bytes:
        mine.append(work())
        return mine[0].dump()

    def take_over() -> bytes:
        if not mine:
            mine.append(follower.take_over(data))
        return b""

    try:
        data = ranks.from_first(list_and_dump)
        ranks.gather(take_over)
    except BaseException:
        for files in mine:
            files.close()
        raise
    return mine[0]


def _needed(files: EpochFiles, plan: Plan, batch: int) -> IntArray:
    """Return the missing files that an epoch needs if it begins at this batch."""
    if not len(files.gone):
        return files.gone
    done = batches_until_done(plan, files.snapshot.row_group_file, len(files.snapshot.files))
    return files.gone[done[files.gone] > batch]
