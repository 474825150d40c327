"""Space under the byte limit: writers reserve it before they write, and unneeded files are evicted.

A reservation is granted under the store's lock, if published bytes, all reservations and the new one stay within the
limit. If they exceed it, the reservations of dead writers are released, and then files are evicted in the order of the
store's policy: as many as needed, or none if that is not enough.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import isnan
from operator import attrgetter
from threading import RLock
from typing import TypeAlias

from parquet_loader.common import LockedFile, is_locked, is_number, remove_file
from parquet_loader.errors import ConfigurationError
from parquet_loader.store.delivery_counts import add_seen, compact_seen, read_seen
from parquet_loader.store.eviction_queue import queue_evictions, queued_evictions
from parquet_loader.store.files.file_catalog import FileCatalog
from parquet_loader.store.files.file_names import new_identity
from parquet_loader.store.files.paths import StorePaths, names_in, share_record
from parquet_loader.store.files.stored_file import StoredFile
from parquet_loader.store.leases import LeaseTable, read_lease
from parquet_loader.store.ledger import Ledger, Totals, reservation_text, reserved_bytes

FIRST_WAIT_S, LONGEST_WAIT_S = 0.02, 0.5  # between two attempts of a writer that waits for space

Policy: TypeAlias = str | Callable[[StoredFile], float]


@dataclass(frozen=True, slots=True)
class Evicted:
    """The evicted files."""

    files: int = 0
    rows: int = 0
    bytes: int = 0

    def __add__(self, other: Evicted) -> Evicted:
        return Evicted(self.files + other.files, self.rows + other.rows, self.bytes + other.bytes)


class Reservation:
    """Bytes that one writer may write, recorded in a file that is locked as long as the writer lives.

    Args:
        paths: The paths of the store.
        ledger: Its totals and its lock.
    """

    def __init__(self, paths: StorePaths, ledger: Ledger) -> None:
        self._ledger = ledger
        self.writer = new_identity()
        self.bytes = 0
        with contextlib.ExitStack() as if_refused:
            with ledger.transaction():
                path = os.path.join(paths.writers, self.writer)
                self._file = if_refused.enter_context(LockedFile(path, reservation_text(0)))
                share_record(path)
            if_refused.pop_all()

    @property
    def is_here(self) -> bool:
        """Whether it is open and belongs to this process."""
        return self._file.is_here

    def set(self, totals: Totals, count: int) -> None:
        """Reserve `count` bytes in all; called in a transaction."""
        self._file.write(reservation_text(count), 0)
        change, self.bytes = count - self.bytes, count
        if self._file.has_its_name:  # else the store's own directory was removed, and the account does not count it
            totals.reserved_bytes += change

    def close(self) -> None:
        """Release it; idempotent. If the file system refuses, the next writer that lacks space releases it."""
        if self.is_here:
            try:
                with self._ledger.transaction() as totals:
                    self.set(totals, 0)
                    remove_file(self._file.path)
            finally:
                self._file.close()


class Space:
    """Grants reservations and evicts files. Any thread of the process that made it may use it.

    Args:
        paths: The paths of the store.
        ledger: Its totals and its lock.
        files: The known facts of its files.
        policy: Returns the current policy: a word, or a function of `StoredFile` that returns a number; the file with
            the least number is evicted first.
        limit: Returns the current limit in bytes, or None.
    """

    def __init__(
        self,
        paths: StorePaths,
        ledger: Ledger,
        files: FileCatalog,
        policy: Callable[[], Policy],
        limit: Callable[[], int | None],
    ) -> None:
        self._paths = paths
        self._ledger = ledger
        self._files = files
        self._policy = policy
        self._limit = limit
        self._leases = LeaseTable(paths)
        self._ranking: list[str] = []
        self._lock = RLock()  # owns `_ranking`, `_leases` and `_files`

    @property
    def never_evicts(self) -> bool:
        """Whether this process never evicts files."""
        policy = self._policy()
        return policy == "never" or (policy == "function" and not callable(policy))

    def reserve(self, reservation: Reservation, count: int, *, evicts: bool) -> bool:
        """Reserve `count` bytes in all for a writer; return False if there is no space for them.

        Args:
            reservation: The writer's reservation.
            count: Its new size in bytes.
            evicts: Whether files may be evicted for it.
        """

        def missing(totals: Totals) -> int:
            limit = self._limit()
            return 0 if limit is None else totals.used_bytes + count - reservation.bytes - limit

        with self._lock:
            with self._ledger.transaction() as totals:
                if missing(totals) > 0:
                    reclaim(self._paths, self._ledger, totals)
                if missing(totals) <= 0 or count <= reservation.bytes:
                    reservation.set(totals, count)
                    return True
            if not evicts:
                return False
            # By age, first use up the last ranking, which stays right: files published since are younger.
            for is_fresh in (False, True) if self._policy() == "oldest" else (True,):
                if is_fresh:
                    self._ranking = self.ranking()
                with self._ledger.transaction() as totals:
                    self._evict(totals, missing(totals), all_or_nothing=True)
                    if missing(totals) <= 0:
                        reservation.set(totals, count)
                        return True
                    if is_fresh:
                        queue_evictions(self._paths, self._ranking, self._leases.pinned(), missing(totals))
            return False

    def evict(self, to_bytes: int) -> Evicted:
        """Evict until at most `to_bytes` are used, or no file is left that may be evicted."""
        with self._lock:
            with self._ledger.transaction() as totals:
                reclaim(self._paths, self._ledger, totals)
            self._ranking = self.ranking()
            with self._ledger.transaction() as totals:
                return self._evict(totals, totals.used_bytes - to_bytes, all_or_nothing=False)

    def ranking(self) -> list[str]:
        """Return published files in the order of eviction. Calls the policy, so do not hold the store's lock."""
        ranked = self._by_policy()
        known = set(ranked)
        return list(dict.fromkeys([*(name for name in queued_evictions(self._paths) if name in known), *ranked]))

    def _by_policy(self) -> list[str]:
        names = self._ledger.published()
        policy = self._policy()
        if policy == "oldest":
            return list(names)
        if policy == "random":
            return random.sample(list(names), len(names))
        if policy == "seen":
            seen = read_seen(self._paths)
            return sorted(names, key=lambda name: (-seen.get(names[name].sequence, (0, 0))[1], name))
        if callable(policy) or policy == "priority":
            return self._ranked(names, policy if callable(policy) else attrgetter("priority"))
        return []  # "never", or a function that this process does not have

    def _ranked(self, names: Iterable[str], policy: Callable[[StoredFile], float]) -> list[str]:
        files = with_counts([known.file for known in self._files.examine_all(names)], self._paths)
        scores: list[tuple[float, str]] = []
        for file in files:
            score = policy(file)
            if not is_number(score) or isnan(score):
                raise ConfigurationError(
                    f"evict: the function returned {score!r} for {file.path}; expected a number, the least goes first"
                )
            scores.append((float(score), file.name))
        return [name for _, name in sorted(scores)]

    def _evict(self, totals: Totals, count: int, *, all_or_nothing: bool) -> Evicted:
        """Evict files in the order of `_ranking` until `count` bytes are free; called in a transaction."""
        if count <= 0:
            return Evicted()
        needed = self._leases.needed()
        chosen: list[tuple[StoredFile, int]] = []
        kept: list[str] = []
        free = 0
        for index, name in enumerate(self._ranking):
            if free >= count:
                kept.extend(self._ranking[index:])
                break
            if name in needed:
                kept.append(name)
                continue
            for known in self._files.examine([name]):  # empty if the file is gone or belongs to another store
                with contextlib.suppress(FileNotFoundError):
                    size = os.stat(known.file.path).st_size
                    chosen.append((known.file, size))
                    free += size
        if free < count and all_or_nothing:
            return Evicted()
        self._ranking = kept
        gone = Evicted()
        for file, size in chosen:
            if remove_file(file.path):  # else another machine removed it, and this one saw it for a moment more
                totals.removed(file.rows, size)
                gone += Evicted(1, file.rows, size)
        self._files.forget(file.name for file, _ in chosen)
        return gone


def with_counts(files: Sequence[StoredFile], paths: StorePaths) -> list[StoredFile]:
    """Return the files with their delivery counts."""
    seen = read_seen(paths)
    none = (0, 0)
    return [
        replace(f, times_sampled=seen.get(f.sequence, none)[0], epochs_seen=seen.get(f.sequence, none)[1])
        for f in files
    ]


def reclaim(paths: StorePaths, ledger: Ledger, totals: Totals) -> int:
    """Remove reservations, unfinished files and leases of dead processes; called in a transaction.

    Counts the deliveries of dead readers, whose records it compacts. Returns the number of files removed.
    """
    removed = 0
    live: set[str] = set()
    for name in names_in(paths.writers):
        path = os.path.join(paths.writers, name)
        if is_locked(path):
            live.add(name)
            continue
        totals.reserved_bytes -= reserved_bytes(path)
        removed += remove_file(path)
    committed = ledger.committed()
    for name in names_in(paths.unfinished):
        if name.partition("-")[0] not in live and name not in committed:
            removed += remove_file(os.path.join(paths.unfinished, name))
    for name in names_in(paths.readers):
        path = os.path.join(paths.readers, name)
        if not is_locked(path):
            content = read_lease(path)
            # On a full disk the lease is counted and removed later: space must be freed first.
            with contextlib.suppress(OSError):
                add_seen(paths, content.delivered() if content else {})
                os.unlink(path)
                removed += 1
    compact_seen(paths, totals.files, lambda: {name.sequence for name in ledger.published().values()})
    return removed
