"""Looks up the row groups of one snapshot in a local cache, or fetches them into it.

If the cache itself fails (full disk, no permission, a lock held for too long), it stores nothing for a while.
`local_path` then returns None, and the row group is read from its source.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from threading import RLock
from typing import Any

import numpy as np
import pyarrow as pa

from parquet_loader.common import BoolArray, RemoteOptions, identity_of, is_local
from parquet_loader.errors import SourceError
from parquet_loader.read.cache.directory import CacheDirectory, CacheFullError, RequestedRowGroup
from parquet_loader.read.cache.entry_file import Ranges
from parquet_loader.read.cache.options import LocalCache
from parquet_loader.read.cache.paths import EntryName, columns_id, file_id, row_group_ids
from parquet_loader.read.cache.pending_entry import PendingEntry
from parquet_loader.read.cache.stats import CacheStats
from parquet_loader.source import ByteRange, RangeFetcher, RowGroupRef, Snapshot, SourceFile, chunk_ranges, merge

_PAUSE_S = 60.0
# Bytes of a row group that are fetched at a time, and then written.
AT_ONCE_BYTES = 16 * 2**20


class RowGroupCache:
    """One reader's view of a local cache. Any thread may use it; it is opened in each process at the first use.

    Args:
        settings: The cache's directory and limit.
        snapshot: The files that are read.
        columns: The columns that are read, for each of the snapshot's schemas.
        at_once_bytes: Bytes of a row group that are fetched at once, and then written.
    """

    def __init__(
        self,
        settings: LocalCache,
        snapshot: Snapshot,
        columns: Sequence[Sequence[str]],
        *,
        at_once_bytes: int = AT_ONCE_BYTES,
    ) -> None:
        self._settings = settings
        self._snapshot = snapshot
        self._read_columns = frozenset(columns_id(names) for names in columns)
        self._fetcher: RangeFetcher = snapshot.remote or DiskFetcher()
        options = snapshot.remote.options if snapshot.remote else RemoteOptions()
        self._at_once_bytes = at_once_bytes
        self._request_bytes = min(int(options.request_bytes), at_once_bytes)
        self._is_read: BoolArray = snapshot.row_group_rows > 0
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = RLock()  # guards the rest; held while the directory is opened, for which all threads wait
        self._directory: CacheDirectory | None = None
        self._lease: Any = None
        self._resumes_at: float | None = None
        self._files: dict[int, str] = {}
        # For each row group at its last lookup: the bytes in its file's name, and the bytes read; 0: not found.
        self._known = np.zeros(self._snapshot.row_groups, np.int64)
        self._known_bytes = np.zeros(self._snapshot.row_groups, np.int64)
        self._home = identity_of(self._snapshot.filesystem)
        self._figures = CacheStats()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the state of this process."""
        kept = ("_settings", "_snapshot", "_read_columns", "_fetcher", "_at_once_bytes", "_request_bytes", "_is_read")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start without state in another process."""
        self.__dict__.update(state)
        self._reset()

    @property
    def figures(self) -> CacheStats:
        """The cache's counters in this process so far."""
        self._check_process()
        return self._figures

    def _check_process(self) -> None:
        if self._pid != os.getpid():  # after a fork: the open directory and the lock belong to the parent
            self._reset()

    def expect(self, is_read: BoolArray) -> None:
        """Set which row groups are read, bool ``[row groups]``: those that the filter does not exclude."""
        self._check_process()
        with self._lock:
            self._is_read = is_read
            if self._directory is not None:
                try:
                    self._renew(self._directory)
                except OSError as error:
                    self._pause(error)

    def local_path(self, row_group: RowGroupRef, columns: Sequence[str]) -> str | None:
        """Return a local file with a row group's column chunks at their original offsets; fetch it if necessary.

        None: the cache has no such file; read the row group from its source.

        Raises:
            SourceError, OSError: it cannot be fetched.
        """
        self._check_process()
        wanted = self._wanted(row_group, columns)
        if self._known[row_group.index] and wanted.columns in self._read_columns:
            known = EntryName(wanted.file, wanted.row_group, wanted.columns, int(self._known[row_group.index]))
            path = known.path_in(str(self._settings.path))
            with contextlib.suppress(OSError):
                os.utime(path)  # raises if it was evicted
                self._count(hits=1, bytes_from_cache=int(self._known_bytes[row_group.index]))
                return path
        found = self._local_path(row_group, wanted)
        if wanted.columns in self._read_columns:
            name = None if found is None else EntryName.parse(os.path.basename(found))
            is_same = name is not None and name.columns == wanted.columns
            self._known[row_group.index] = name.nbytes if name is not None and is_same else 0
            self._known_bytes[row_group.index] = wanted.nbytes if is_same else 0
        return found

    def is_known(self, row_group: RowGroupRef) -> bool:
        """Whether the last lookup found a row group's columns; takes no lock."""
        return bool(self._known[row_group.index])

    def holds(self, row_group: RowGroupRef, columns: Sequence[str]) -> bool:
        """Whether there is a file for a row group's columns, which may be damaged; reads no file."""
        self._check_process()
        directory = self._opened()
        return directory is not None and directory.has_file(self._wanted(row_group, columns))

    def _local_path(self, row_group: RowGroupRef, wanted: RequestedRowGroup) -> str | None:
        directory = self._opened()
        path = self._found(directory, wanted)
        if path is not None:
            return path
        filling = self._begun(directory, wanted)
        if filling is None and directory is not None:
            directory.wait_for_other(wanted)  # which may have just finished
            path = self._found(directory, wanted)
            if path is not None:
                return path
        if directory is not None and filling is not None:
            try:
                divided = parts_of(wanted.ranges, self._at_once_bytes)
                parts = ((n, self._fetcher.fetch(row_group.file, some)) for n, some in divided)
                path = self._filled(directory, filling, parts)
            finally:
                filling.abandon()  # does nothing if it was published
        self._count(misses=1, bytes_fetched=wanted.nbytes, bytes_stored=0 if path is None else wanted.nbytes)
        return path

    def _found(self, directory: CacheDirectory | None, wanted: RequestedRowGroup) -> str | None:
        if directory is None:
            return None
        found = directory.find(wanted)
        is_hit = found.path is not None
        self._count(hits=is_hit, bytes_from_cache=found.nbytes, damaged=found.damaged)
        return found.path

    def _begun(self, directory: CacheDirectory | None, wanted: RequestedRowGroup) -> PendingEntry | None:
        if directory is not None and self._resumes_at is None:
            try:
                return directory.begin(wanted)
            except CacheFullError:
                pass
            except OSError as error:
                self._pause(error)
        return None

    def _filled(
        self, directory: CacheDirectory, filling: PendingEntry, parts: Iterable[tuple[int, Sequence[Any]]]
    ) -> str | None:
        """Write a row group and publish it; raises errors of fetching, not those of writing."""
        for first, buffers in parts:
            try:
                for number, buffer in enumerate(buffers, first):
                    filling.write(number, buffer)
            except OSError as error:
                self._pause(error)
                return None
        try:
            return directory.published(filling)
        except FileNotFoundError:  # somebody has deleted the file; if the directory is gone, the next one cannot begin
            return None
        except OSError as error:
            self._pause(error)
            return None

    def close(self) -> None:
        """Release the lease, because no row groups are read any more; later reads are still cached."""
        self._check_process()
        with self._lock:
            if self._lease is not None:
                self._lease.release()
            self._lease = self._directory = None

    def invalidate(self, path: str) -> None:
        """Drop a damaged file, unless it has been removed already."""
        if self._directory is not None and os.path.lexists(path):
            self._directory.drop(path)
            self._count(damaged=1)

    def _wanted(self, row_group: RowGroupRef, columns: Sequence[str]) -> RequestedRowGroup:
        def spans() -> tuple[Ranges, Ranges]:
            chunks = chunk_ranges(self._snapshot.footers.get(row_group.file_number), row_group.number, columns)
            return sorted(chunks), merge(chunks, request_bytes=self._request_bytes)

        file, columns_digest = self._file_id(row_group.file_number), columns_id(columns)
        return RequestedRowGroup(file, row_group.number, columns_digest, row_group.file.size_bytes, spans)

    def _opened(self) -> CacheDirectory | None:
        """Return the directory, or None while it cannot be used."""
        self._check_process()
        with self._lock:
            is_due = self._resumes_at is not None and time.monotonic() >= self._resumes_at
            if is_due or (self._directory is None and self._resumes_at is None):
                try:
                    self._directory = CacheDirectory(str(self._settings.path), int(self._settings.max_bytes))
                    self._renew(self._directory)
                    self._resumes_at = None
                except OSError as error:
                    self._pause(error)
            return self._directory

    def _renew(self, directory: CacheDirectory) -> None:
        read = np.flatnonzero(self._is_read)
        files, index = np.unique(self._snapshot.row_group_file[read], return_inverse=True)
        ids = [self._file_id(int(number)) for number in files]
        row_groups = row_group_ids(ids, index, self._snapshot.row_group_number[read])
        lease = directory.lease(row_groups, self._read_columns)
        if self._lease is not None:
            self._lease.release()
        self._lease = lease

    def _file_id(self, number: int) -> str:
        if number not in self._files:
            file = self._snapshot.files[number]
            digest = int(self._snapshot.file_digest[number])
            self._files[number] = file_id(
                self._home, file.lasting_path, file.size_bytes, file.mtime_ns, file.etag, digest
            )
        return self._files[number]

    def _count(self, **changes: int) -> None:
        with self._lock:
            self._figures = replace(self._figures, **{n: getattr(self._figures, n) + c for n, c in changes.items()})

    def _pause(self, error: Exception) -> None:
        """Store nothing for a while, and warn once; then the directory is opened again."""
        problem = f"nothing is stored for a while: {error}"
        with self._lock:
            is_new = self._figures.problem is None
            self._figures = replace(self._figures, problem=problem)
            self._resumes_at = time.monotonic() + _PAUSE_S
        if is_new:
            with contextlib.suppress(Warning):  # must not end the epoch, even if warnings are errors
                warnings.warn(f"LocalCache({str(self._settings.path)!r}): {problem}", RuntimeWarning, stacklevel=2)


class DiskFetcher:
    """Reads ranges of files on another disk, one after another; the system reads ahead by itself."""

    def fetch(self, file: SourceFile, ranges: Sequence[ByteRange]) -> list[pa.Buffer]:
        """Return the bytes of each range; see `RangeFetcher`."""
        with pa.OSFile(file.path) as opened:
            buffers = [opened.read_at(span.size, span.start) for span in ranges]
        if any(len(buffer) != span.size for buffer, span in zip(buffers, ranges, strict=True)):
            raise SourceError(f"{file.name}: the file ends before byte {ranges[-1].stop}; it has changed")
        return [pa.py_buffer(buffer) for buffer in buffers]


def is_worth_it(settings: LocalCache, snapshot: Snapshot) -> bool:
    """Whether a cache of these files is useful: not if they are on the same local disk as the cache."""
    if not is_local(snapshot.filesystem):
        return True
    folder = str(settings.path)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    with contextlib.suppress(OSError, IndexError):
        return os.stat(snapshot.files[0].path).st_dev != os.stat(folder).st_dev
    return False


def parts_of(ranges: Ranges, at_once_bytes: int) -> list[tuple[int, list[ByteRange]]]:
    """Divide ranges into parts of at most `at_once_bytes`, or one range; each has the number of its first range."""
    parts: list[tuple[int, list[ByteRange]]] = []
    held = 0
    for number, span in enumerate(ByteRange(*span) for span in ranges):
        if not parts or held + span.size > at_once_bytes:
            parts.append((number, []))
            held = 0
        parts[-1][1].append(span)
        held += span.size
    return parts
