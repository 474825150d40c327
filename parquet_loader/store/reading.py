"""What a loader sees of a store: at each epoch's start the files that are there, held until they are delivered."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from parquet_loader.errors import SourceError
from parquet_loader.live import Growth
from parquet_loader.snapshot import Snapshot
from parquet_loader.store.files import Examined, Files
from parquet_loader.store.holds import Lease
from parquet_loader.store.ledger import Ledger
from parquet_loader.store.places import Places
from parquet_loader.store.room import take_back, with_counts
from parquet_loader.store.stored import StoredFile
from parquet_loader.store.weights import Arrival, Weight, copies_of
from parquet_loader.types import IntArray


@dataclass(frozen=True, slots=True)
class Listed:
    """The files of a store at one moment, and the hold on them.

    Attributes:
        files: What their footers say, in order of publication.
        lease: The hold, None where the directory is read-only; one entry for each file, in the same order.
    """

    files: tuple[Examined, ...]
    lease: Lease | None


class Reading:
    """Lists a store under a hold. Any thread of the process that made it; the caller sees to one at a time.

    Args:
        places: The store.
        tag: What its files carry in their names.
        ledger: Its account; None where the directory is read-only.
        files: What is known of its files.
    """

    def __init__(self, places: Places, tag: str, ledger: Ledger | None, files: Files) -> None:
        self._places = places
        self._tag = tag
        self._ledger = ledger
        self._files = files
        self._warned: set[str] = set()

    def hold(self, purpose: str) -> Listed:
        """Return the files that are there now; none of them is evicted before the lease lets go of it."""
        lease: Lease | None = None
        if self._ledger is None:
            names = list(self._places.published(self._tag))
        else:
            with self._ledger.transaction() as totals:
                take_back(self._places, totals)
                names = list(self._places.published(self._tag))
                lease = Lease(self._places, names, {"purpose": purpose})
        try:
            self._files.forget_all_but(names)
            known = {e.file.name: e for e in self._files.examine(names)}
            if lease is not None:
                lease.keep_only([number for number, name in enumerate(names) if name in known])
            self._warn()
        except BaseException:
            if lease is not None:
                lease.drop()
            raise
        return Listed(tuple(known.values()), lease)

    def with_counts(self, files: Sequence[Examined]) -> list[StoredFile]:
        """Return the files with how often each was delivered."""
        return with_counts([known.file for known in files], self._places)

    def snapshot(self, files: Sequence[Examined], copies: Sequence[IntArray] | None) -> Snapshot:
        """Return the files as a loader reads them."""
        return self._files.snapshot(files, copies)

    def _warn(self) -> None:
        for name, reason in self._files.refused.items():
            if name not in self._warned:
                self._warned.add(name)
                warnings.warn(
                    f"{self._places.file(name)}: left out, and never evicted: {reason}", RuntimeWarning, stacklevel=5
                )


@dataclass(frozen=True, slots=True, eq=False)
class StoreEpoch:
    """One epoch's files, held until each is delivered.

    Attributes:
        identity: Names the snapshot: a hash of its files and of how often each row group is listed.
        snapshot: The files as a loader reads them.
        growth: What has come and gone since the epoch before.
        files: The files.
        times: How often each file's rows come in the epoch, rounded up.
        lease: The hold.
    """

    identity: str
    snapshot: Snapshot
    growth: Growth
    files: tuple[StoredFile, ...]
    times: tuple[int, ...]
    lease: Lease | None

    def delivered(self, files: IntArray) -> None:
        """Let go of files, by their position in the snapshot, and count them as delivered."""
        if self.lease is not None:
            for number in files.tolist():
                self.lease.release([number], self.times[number])

    def close(self) -> None:
        """Let go of all files; idempotent, and waits for nothing."""
        if self.lease is not None:
            self.lease.drop()


class StoreFollower:
    """One loader's view of a store. One thread at a time.

    Args:
        reading: Lists the store.
        path: The store, for errors.
        weight: How often samples come; None: once each.
        seed: What weights draw from.
    """

    def __init__(self, reading: Callable[[], Reading], path: str, weight: Weight | None, seed: int) -> None:
        self._reading = reading
        self._path = path
        self._weight = weight
        self._seed = seed
        self._arrived: dict[str, tuple[int, StoredFile]] = {}

    def begin_epoch(self, epoch: int) -> StoreEpoch:
        """Look at the store again.

        Args:
            epoch: Its number, which weights depend on.

        Raises:
            SourceError: there are no samples yet.
        """
        reading = self._reading()
        listed = reading.hold("epoch")
        try:
            return self._of_epoch(epoch, reading, listed)
        except BaseException:
            if listed.lease is not None:
                listed.lease.drop()
            raise

    def _of_epoch(self, number: int, reading: Reading, listed: Listed) -> StoreEpoch:
        if not any(known.file.rows for known in listed.files):
            raise SourceError(
                f"{self._path}: the store holds no samples yet; start what writes them, and wait for the first: "
                "store.wait(rows=...)"
            )
        here = {known.file.name: known.file for known in listed.files}
        new = [file for name, file in here.items() if name not in self._arrived]
        gone = [file for name, (_, file) in self._arrived.items() if name not in here]
        growth = Growth(
            len(new), sum(f.rows for f in new), sum(f.size_bytes for f in new), len(gone), sum(f.rows for f in gone)
        )
        arrived = {name: self._arrived.get(name, (number, file)) for name, file in here.items()}
        copies, times = None, [1] * len(here)
        if self._weight is not None:
            files = reading.with_counts(listed.files)
            newest = max(file.published_s for file in files)
            arrivals = [
                Arrival(f, max(0.0, newest - f.published_s), max(0, number - arrived[f.name][0])) for f in files
            ]
            copies = copies_of(self._weight, arrivals, listed.files, self._seed, number)
            times = [int(c.max(initial=0)) for c in copies]
            if not any(times):
                raise SourceError(f"{self._path}: the weights leave out every sample of the store")
        epoch = StoreEpoch(
            _identity(here, copies),
            reading.snapshot(listed.files, copies),
            growth,
            tuple(here.values()),
            tuple(times),
            listed.lease,
        )
        self._arrived = arrived
        return epoch


def _identity(names: Iterable[str], copies: Sequence[IntArray] | None) -> str:
    digest = hashlib.sha256("\n".join(names).encode("utf-8"))
    if copies is not None:
        digest.update(b"\0" + np.concatenate(copies).astype("<i8").tobytes())
    return digest.hexdigest()[:32]
