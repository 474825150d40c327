"""One process's view of a cache directory: looks up row groups, adds new ones and evicts.

A lookup takes no lock: a file under its final name is complete, and an open file can be read even if it is evicted
meanwhile. Everything else happens under the ledger's lock. No process holds that lock while it fetches or writes a row
group.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from threading import Event, RLock

from parquet_loader.common import NO_LINK, Digests, LockedFile, format_bytes, is_locked, remove_file
from parquet_loader.read.cache.entry_file import DamagedError, Ranges, check_range, occupied_bytes, read_index
from parquet_loader.read.cache.eviction import CacheEntry, enough, in_order_of_leaving
from parquet_loader.read.cache.leases import (
    HeldLease,
    lease_bytes,
    lease_sizes,
    live_leases,
    read_lease,
    remove_dead_leases,
)
from parquet_loader.read.cache.ledger import CacheLedger, transaction
from parquet_loader.read.cache.paths import CachePaths, EntryName, names_in
from parquet_loader.read.cache.pending_entry import PendingEntry

_POLL_S = 0.01
_PROBE_BYTES = 2**20


class RequestedRowGroup:
    """A row group to be read.

    Args:
        file: `file_id` of its file.
        row_group: Its number in the file.
        columns: `columns_id` of the columns.
        size: Bytes of the file.
        spans: Returns the byte ranges of the column chunks, and the ranges to fetch for them: begin and end of each, in
            order and without overlap. It is slow for many columns, so it is not called if the cache has a file for
            exactly these columns.
    """

    def __init__(
        self, file: str, row_group: int, columns: int, size: int, spans: Callable[[], tuple[Ranges, Ranges]]
    ) -> None:
        self.file = file
        self.row_group = row_group
        self.columns = columns
        self.size = size
        self._spans = spans

    @cached_property
    def needed(self) -> Ranges:
        """Bytes of the column chunks."""
        return self._spans()[0]

    @cached_property
    def ranges(self) -> Ranges:
        """The byte ranges to fetch for them."""
        return self._spans()[1]

    @property
    def nbytes(self) -> int:
        """Bytes to fetch."""
        return sum(end - begin for begin, end in self.ranges)

    def name(self, block_bytes: int) -> EntryName:
        """Return the name of its file in the cache."""
        nbytes = occupied_bytes(self.size, self.ranges, block_bytes)
        return EntryName(self.file, self.row_group, self.columns, nbytes)


@dataclass(frozen=True, slots=True)
class LookupResult:
    """The result of a lookup.

    Attributes:
        path: A file that holds the row group, or None.
        nbytes: Bytes that are read from the file.
        damaged: Number of damaged files, which were removed.
    """

    path: str | None
    nbytes: int = 0
    damaged: int = 0


class CacheFullError(Exception):
    """There is no space, and all row groups in the cache are in use."""


class CacheDirectory:
    """An open cache. Any thread of the process that opened it may use it.

    Args:
        root: The directory; created if it does not exist.
        limit_bytes: The most bytes that it may take on the disk.
        patience_s: As in `CachePaths`.

    Attributes:
        count_again_s: Seconds after which a full cache counts its files again, because the ledger does not notice files
            that are deleted by hand.

    Raises:
        OSError, TimeoutError: the directory cannot be used.
    """

    def __init__(self, root: str, limit_bytes: int, patience_s: float = 5.0) -> None:
        self.count_again_s = 60.0
        self._paths = CachePaths(root, patience_s)
        self._lock = RLock()  # guards the rest; held during I/O only to rank
        # By hash of the name: a file's inode, and a bit for each verified range; small, for 100,000 files.
        self._verified: dict[int, tuple[int, int]] = {}
        self._ranked_for: frozenset[str] | None = None
        self._leaving: list[CacheEntry] = []
        self._counted_at = time.monotonic()
        self._paths.make()
        self._block_bytes = max(4096, os.statvfs(root).f_frsize)
        directories = (self._paths.folders + 3) * self._block_bytes  # with the ledger and a probe
        self._limit_bytes = limit_bytes - directories
        if self._limit_bytes <= 0:  # checked before anything is evicted
            raise OSError(
                f"{root}: max_bytes={format_bytes(limit_bytes)} leaves no space for row groups: the directories of a "
                f"cache take {format_bytes(directories)}; raise max_bytes"
            )
        with transaction(self._paths, rebuild=True) as account:
            self._take_back(account)
            _check_locks(self._paths)
            _check_sparse(self._paths)
            self._make_space(account, 0)  # the limit may be lower than before

    def lease(self, row_groups: Digests, columns: frozenset[int]) -> HeldLease:
        """Lease the row groups that this process reads; see `ReaderLease`.

        Raises:
            OSError, TimeoutError: the lease cannot be written.
        """
        with transaction(self._paths) as account:
            self._make_space(account, _in_blocks(lease_bytes(len(row_groups), len(columns)), self._block_bytes))
            return HeldLease(self._paths, row_groups, columns)

    def find(self, wanted: RequestedRowGroup) -> LookupResult:
        """Return a file that holds a row group's columns, if there is one.

        Each range is compared with its checksum when this process reads it for the first time.
        """
        same = self._paths.for_row_group(wanted.file, wanted.row_group)
        damaged = 0
        for name in sorted(same, key=lambda name: (name.columns != wanted.columns, name.nbytes)):
            path = self._paths.entry(name)
            try:
                nbytes = self._held(path, name, wanted)
            except (DamagedError, OSError) as error:
                if isinstance(error, DamagedError) or error.errno == errno.EIO:
                    self.drop(path)
                    damaged += 1
                continue  # damaged, just evicted, or no more files can be opened
            if nbytes is not None:
                return LookupResult(path, nbytes, damaged)
        return LookupResult(None, 0, damaged)

    def has_file(self, wanted: RequestedRowGroup) -> bool:
        """Whether there is a file for exactly these columns of a row group, which may be damaged."""
        same = self._paths.for_row_group(wanted.file, wanted.row_group)
        return any(name.columns == wanted.columns for name in same)

    def _held(self, path: str, name: EntryName, wanted: RequestedRowGroup) -> int | None:
        """Return the bytes of a row group's columns in a file; None if some columns are missing."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | NO_LINK)
        try:
            index, inode = read_index(descriptor, str(name)), os.fstat(descriptor).st_ino
            if index.size != wanted.size:
                raise DamagedError("its length is wrong")
            is_same = name.columns == wanted.columns
            needed = list(range(len(index.ranges))) if is_same else index.covering(wanted.needed)
            if needed is None:
                return None
            known, verified = self._verified.get(hash(name), (inode, 0))
            verified = verified if known == inode else 0
            for number in needed:
                if not verified >> number & 1:
                    check_range(descriptor, index, number)
                    verified |= 1 << number
            with self._lock:
                self._verified[hash(name)] = inode, verified
            with contextlib.suppress(OSError):
                os.utime(path, follow_symlinks=False)
            return sum(end - begin for begin, end in (index.ranges if is_same else wanted.needed))
        finally:
            os.close(descriptor)

    def begin(self, wanted: RequestedRowGroup) -> PendingEntry | None:
        """Reserve space for a row group and return its unfinished file; None if another process is fetching it.

        Raises:
            CacheFullError: there is no space.
            OSError, TimeoutError: the directory cannot be used.
        """
        name = wanted.name(self._block_bytes)
        path = os.path.join(self._paths.unfinished, str(name))
        begun: PendingEntry | None = None
        try:
            for is_ranked in (False, True):
                with transaction(self._paths, rebuild=is_ranked and self._counts_again()) as account:
                    if os.path.exists(path) and is_locked(path):
                        return None
                    missing = self._missing(account, name.nbytes)
                    if missing > 0 or os.path.exists(path):
                        self._take_back(account)
                        missing = self._missing(account, name.nbytes)
                    if missing > 0 and is_ranked:
                        unused = (entry for entry in self._leaving if self._is_unused(entry))
                        missing -= self._evict(account, enough(unused, missing))
                    if missing <= 0:
                        begun = PendingEntry(self._paths, name, LockedFile(path, b""), wanted.size, wanted.ranges)
                        account.taken_bytes += name.nbytes
                        return begun
                if not is_ranked:
                    self._rank()
        except BaseException:
            if begun is not None:  # the account was not written
                begun.abandon()
            raise
        raise CacheFullError

    def _counts_again(self) -> bool:
        """Whether it is time to count the files again, because there is no space."""
        now = time.monotonic()
        with self._lock:
            is_due = now - self._counted_at >= self.count_again_s
            if is_due:
                self._counted_at = now
        return is_due

    def published(self, filling: PendingEntry) -> str:
        """Publish a row group, and return its path; this process does not check its own files.

        Raises:
            OSError, TimeoutError: it cannot be published.
        """
        index, path, inode = filling.publish()
        name = EntryName.parse(os.path.basename(path))
        with self._lock:
            self._verified[hash(name)] = inode, (1 << len(index.ranges)) - 1
        return path

    def is_fetched_by_other(self, wanted: RequestedRowGroup) -> bool:
        """Whether a live process is fetching a row group."""
        path = os.path.join(self._paths.unfinished, str(wanted.name(self._block_bytes)))
        with contextlib.suppress(OSError):
            return is_locked(path)
        return False

    def wait_for_other(self, wanted: RequestedRowGroup) -> None:
        """Wait until no other process is fetching a row group, but at most `patience_s`."""
        give_up = time.monotonic() + self._paths.patience_s
        while time.monotonic() < give_up and self.is_fetched_by_other(wanted):
            Event().wait(_POLL_S)  # the system's file locks have no timeout

    def drop(self, path: str) -> None:
        """Remove a row group's file."""
        name = EntryName.parse(os.path.basename(path))
        with self._lock:
            self._verified.pop(hash(name), None)
        with contextlib.suppress(OSError), transaction(self._paths) as account:
            if name is not None and remove_file(path):
                account.taken_bytes -= name.nbytes

    def _missing(self, account: CacheLedger, nbytes: int) -> int:
        """Return how many bytes to evict before adding this many; in a transaction."""
        leases = sum(_in_blocks(size, self._block_bytes) for size in lease_sizes(self._paths))
        return account.taken_bytes + leases + nbytes - self._limit_bytes

    def _make_space(self, account: CacheLedger, nbytes: int) -> None:
        """Evict row groups, first those that no loader reads; in a transaction."""
        missing = self._missing(account, nbytes)
        if missing > 0:
            leaving, needed = self._ranked()
            self._evict(account, enough([*leaving, *needed], missing) or [*leaving, *needed])

    def _rank(self) -> None:
        """Rank the row groups for eviction, if loaders' leases have changed since the last ranking."""
        live = live_leases(self._paths)
        with self._lock:
            if live != self._ranked_for:
                self._leaving = self._ranked()[0]
                self._ranked_for = live

    def _ranked(self) -> tuple[list[CacheEntry], list[CacheEntry]]:
        leases = (read_lease(self._paths, name) for name in live_leases(self._paths))
        return in_order_of_leaving(list(self._paths.kept()), [lease for lease in leases if lease is not None])

    def _evict(self, account: CacheLedger, chosen: list[CacheEntry]) -> int:
        """Remove row groups, in a transaction, and return how many bytes that freed."""
        freed = sum(entry.nbytes for entry in self._paths.remove(chosen))
        gone = {entry.name for entry in chosen}
        with self._lock:
            self._leaving = [entry for entry in self._leaving if entry.name not in gone]
        account.taken_bytes -= freed
        return freed

    def _is_unused(self, entry: CacheEntry) -> bool:
        """Whether a row group has not been used since it was ranked."""
        with contextlib.suppress(FileNotFoundError):
            return os.stat(self._paths.path_of(entry)).st_mtime_ns == entry.used_ns
        return False

    def _take_back(self, account: CacheLedger) -> None:
        """Remove unfinished row groups and leases of dead processes; in a transaction."""
        for name in names_in(self._paths.unfinished):
            path = os.path.join(self._paths.unfinished, str(name))
            if not is_locked(path):
                remove_file(path)
                account.taken_bytes -= name.nbytes
        remove_dead_leases(self._paths)


def _in_blocks(nbytes: int, block_bytes: int) -> int:
    return -(-nbytes // block_bytes) * block_bytes


def _check_locks(paths: CachePaths) -> None:
    """Check that the file system's locks exclude other holders; in a transaction, which holds one.

    Raises:
        OSError: they do not: a second holder got the lock.
    """
    if not is_locked(paths.ledger):
        raise OSError(
            f"{paths.root}: the file system grants one lock to two holders, so a cache cannot work there; "
            "choose a directory on a local disk"
        )


def _check_sparse(paths: CachePaths) -> None:
    """Check that holes in a file take no space.

    Raises:
        OSError: they do.
    """
    path = os.path.join(paths.unfinished, "probe")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | NO_LINK)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"\1", _PROBE_BYTES - 1)
        if os.fstat(descriptor).st_blocks * 512 >= _PROBE_BYTES:
            raise OSError(
                f"{paths.root}: the file system does not support sparse files, which a cache needs; "
                "choose a directory on another file system"
            )
    finally:
        os.close(descriptor)
        os.unlink(path)
