"""A loader's view of a store: lists and leases the files at each epoch's start until they are delivered."""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parquet_loader.common import IntArray, reading_errors
from parquet_loader.errors import SourceError
from parquet_loader.loader.live_source import SourceChange
from parquet_loader.source import Snapshot
from parquet_loader.store.eviction_queue import queued_evictions
from parquet_loader.store.files.file_catalog import CatalogEntry, FileCatalog
from parquet_loader.store.files.file_lists import FileList, keep_list, read_list
from parquet_loader.store.files.file_names import FileName
from parquet_loader.store.files.paths import StorePaths
from parquet_loader.store.files.stored_file import StoredFile
from parquet_loader.store.leases import FileLease
from parquet_loader.store.ledger import Ledger
from parquet_loader.store.sampling_weights import Arrival, Weight, copies_of
from parquet_loader.store.space import reclaim, with_counts
from parquet_loader.write import reason, storage_errors

_NO_LEASE = (
    "the lease on the store's files cannot be written: {}",
    "; free some space, or read the directory as a path, without a lease",
)


@dataclass(frozen=True, slots=True)
class LeasedFiles:
    """The files of a store at one moment, and their lease.

    Attributes:
        files: Their catalog entries, in order of publication.
        lease: The lease, with one entry for each file in the same order; None if the directory is read-only.
    """

    files: tuple[CatalogEntry, ...]
    lease: FileLease | None


class StoreView:
    """Lists a store and leases its files. Used in the process that made it, by any thread.

    Args:
        paths: The paths of the store.
        ledger: Its totals and its lock.
        files: The known facts of its files.
        may_lease: Whether files can be leased; False if the directory is read-only.
    """

    def __init__(self, paths: StorePaths, ledger: Ledger, files: FileCatalog, *, may_lease: bool) -> None:
        self._paths = paths
        self._ledger = ledger
        self._files = files
        self._may_lease = may_lease
        self._names: dict[str, FileName] = {}
        self._warned: set[str] = set()

    def lease_files(self, purpose: str) -> LeasedFiles:
        """Return the present files; none of them is evicted before the lease releases it.

        Raises:
            WriteError: The lease cannot be written (a full disk).
        """
        lease: FileLease | None = None
        try:
            if not self._may_lease:
                with reading_errors(self._paths.root):
                    names = self._listed()
            else:
                with storage_errors(self._paths.root, *_NO_LEASE), self._ledger.transaction() as totals:
                    reclaim(self._paths, self._ledger, totals)
                    names = self._listed()
                    lease = FileLease(self._paths, names, {"purpose": purpose})
            known = self._files.examine_all(names)
            if lease is not None and len(known) < len(names):
                there = {examined.file.name for examined in known}
                lease.keep_only([number for number, name in enumerate(names) if name in there])
            self._warn()
        except BaseException:
            if lease is not None:
                lease.drop()
            raise
        return LeasedFiles(tuple(known), lease)

    def _listed(self) -> list[str]:
        """Return the names of the files without those queued for eviction, unless all are queued."""
        names = self._names = self._ledger.published(self._names)
        leaving = set(queued_evictions(self._paths))
        return [name for name in names if name not in leaving] or list(names)

    def lease_list(self, data: bytes, purpose: str) -> tuple[FileList, FileLease | None]:
        """Return a dumped list, and lease its files that still exist.

        Raises:
            SourceError: The list is damaged.
            WriteError: The lease cannot be written (a full disk).
        """
        if not self._may_lease:
            return FileList.load(data, self._paths), None
        with contextlib.ExitStack() as if_refused:
            with storage_errors(self._paths.root, *_NO_LEASE), self._ledger.transaction() as totals:
                reclaim(self._paths, self._ledger, totals)
                found = FileList.load(data, self._paths)
                lease = FileLease(self._paths, found.names, {"purpose": purpose})
                if_refused.callback(lease.drop)
            if_refused.pop_all()
        lease.release(found.gone.tolist(), times=0)
        return found, lease

    def kept(self, name: str) -> bytes | None:
        """Return a kept list; None if no list has this name."""
        return read_list(self._paths, name)

    def keep(self, name: str, data: Callable[[], bytes]) -> None:
        """Keep a list for the states that name it; does nothing if the directory is read-only.

        Raises:
            OSError: The file system refuses.
        """
        if self._may_lease:
            text = data()
            with self._ledger.transaction():
                keep_list(self._paths, name, text)

    def with_counts(self, files: Sequence[CatalogEntry]) -> list[StoredFile]:
        """Return the files with their delivery counts."""
        return with_counts([known.file for known in files], self._paths)

    def snapshot(self, files: Sequence[CatalogEntry], copies: Sequence[IntArray] | None) -> Snapshot:
        """Return the files as a loader reads them."""
        return self._files.snapshot(files, copies)

    def _warn(self) -> None:
        for name, refusal in self._files.refused.items():
            if name not in self._warned:
                self._warned.add(name)
                warnings.warn(
                    f"{self._paths.file(name)}: left out, and never evicted: {refusal}", RuntimeWarning, stacklevel=5
                )


class StoreEpoch:
    """One epoch's files, each leased until it is delivered. Used by one thread at a time.

    Args:
        view: Returns the store's view in this process.
        files: The files.
        growth: The files added and removed since the previous epoch.
        lease: Their lease; None if the directory is read-only.

    Attributes:
        growth: As given.
        identity, snapshot, about, gone: As in `FileList`.
    """

    def __init__(
        self, view: Callable[[], StoreView], files: FileList, growth: SourceChange, lease: FileLease | None
    ) -> None:
        self.growth = growth
        self.identity, self.snapshot = files.identity, files.snapshot
        self.about, self.gone = files.about, files.gone
        self._view = view
        self._files = files
        self._lease = lease

    def dump(self) -> bytes:
        """Return the list of files, for the other ranks."""
        return self._files.dump(self.about)

    def keep(self, about: bytes) -> str:
        """Keep the list of files for states, and return its name.

        If the disk is full or the store is gone, this warns, so that the caller's checkpoint is still written.
        """
        name = hashlib.sha256(self.identity.encode() + about).hexdigest()[:32]
        try:
            self._view().keep(name, lambda: self._files.dump(about))
        except (OSError, SourceError) as error:
            warnings.warn(
                f"the list of this epoch's files cannot be kept: {reason(error)}; the state continues with this epoch "
                "only while the store has the same files",
                RuntimeWarning,
                stacklevel=5,
            )
        return name

    def delivered(self, files: IntArray) -> None:
        """Release files, given by their positions in the snapshot, and count them as delivered."""
        if self._lease is not None:
            for number in files.tolist():
                self._lease.release([number], int(self._files.times[number]))

    def release(self, files: IntArray) -> None:
        """Release files that are not delivered, or whose delivery another rank counts."""
        if self._lease is not None:
            self._lease.release(files.tolist(), times=0)

    def close(self) -> None:
        """Release all files; idempotent, never blocks."""
        if self._lease is not None:
            self._lease.drop()


class StoreFollower:
    """One loader's view of a store. Used by one thread at a time.

    Args:
        view: Returns the store's view in this process.
        path: The store, for error messages.
        weight: Returns how often the rows of a file are delivered; None for once.
        seed: The seed of draws by weight.
    """

    def __init__(self, view: Callable[[], StoreView], path: str, weight: Weight | None, seed: int) -> None:
        self._view = view
        self._path = path
        self._weight = weight
        self._seed = seed
        self._arrived: dict[str, int] = {}  # the first epoch of this loader that saw each file, by name

    def begin_epoch(self, epoch: int) -> StoreEpoch:
        """List the store for an epoch, and lease its files.

        Args:
            epoch: The number of the epoch, on which weights may depend.

        Raises:
            SourceError: The store has no samples.
        """
        view = self._view()
        listed = view.lease_files("epoch")
        try:
            return self._of_epoch(epoch, view, listed)
        except BaseException:
            if listed.lease is not None:
                listed.lease.drop()
            raise

    def take_over(self, data: bytes) -> StoreEpoch:
        """Return the files that another rank has listed, leased also by this process.

        Raises:
            SourceError: The list is damaged.
        """
        files, lease = self._view().lease_list(data, "epoch")
        names = files.names
        growth = self._growth({name: file.size_bytes for name, file in zip(names, files.snapshot.files, strict=True)})
        self._arrived = dict(zip(names, files.arrived.tolist(), strict=True))
        return StoreEpoch(self._view, files, growth, lease)

    def recall(self, name: str) -> StoreEpoch | None:
        """Return the files of a list kept for a state; existing ones are leased. None if there is no such list."""
        data = self._view().kept(name)
        return None if data is None else self.take_over(data)

    def _of_epoch(self, number: int, view: StoreView, listed: LeasedFiles) -> StoreEpoch:
        if not any(known.file.rows for known in listed.files):
            raise SourceError(
                f"{self._path}: the store holds no samples yet; start what writes them, and wait for the first: "
                "store.wait(rows=...)"
            )
        sizes = {known.file.name: known.file.size_bytes for known in listed.files}
        growth = self._growth(sizes)
        arrived = {name: self._arrived.get(name, number) for name in sizes}
        epochs = np.fromiter(arrived.values(), np.int64, len(arrived))
        copies: list[IntArray] | None = None
        times = np.ones(len(sizes), np.int64)
        if self._weight is not None:
            files = view.with_counts(listed.files)
            newest = max(file.published_s for file in files)
            arrivals = [Arrival(f, max(0.0, newest - f.published_s), max(0, number - arrived[f.name])) for f in files]
            copies = copies_of(self._weight, arrivals, listed.files, self._seed, number)
            times = np.array([c.max(initial=0) for c in copies], np.int64)
            if not times.any():
                raise SourceError(
                    f"{self._path}: the weights leave out every sample of the store; give some a weight above 0"
                )
        identity = _identity(sizes, None if copies is None else [*copies, epochs])
        snapshot = view.snapshot(listed.files, copies)
        files_of_epoch = FileList(identity, snapshot, times, epochs, None, np.zeros(0, np.int64))
        self._arrived = arrived
        return StoreEpoch(self._view, files_of_epoch, growth, listed.lease)

    def _growth(self, sizes: Mapping[str, int]) -> SourceChange:
        """Return the change from the previous epoch's files to these, given as bytes by name."""
        new = [name for name in sizes if name not in self._arrived]
        gone = [name for name in self._arrived if name not in sizes]
        return SourceChange(
            len(new), sum(map(_rows_of, new)), sum(sizes[name] for name in new), len(gone), sum(map(_rows_of, gone))
        )


def _rows_of(name: str) -> int:
    parsed = FileName.parse(name)
    return parsed.rows if parsed is not None else 0


def _identity(names: Iterable[str], numbers: Sequence[IntArray] | None) -> str:
    digest = hashlib.sha256("\n".join(names).encode("utf-8"))
    if numbers is not None:
        digest.update(b"\0" + np.concatenate(numbers).astype("<i8").tobytes())
    return digest.hexdigest()[:32]
