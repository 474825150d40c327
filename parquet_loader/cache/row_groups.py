"""A snapshot's row groups in a local cache: found there, or fetched into it.

Whatever goes wrong with the cache itself (a full disk, no permission, a lock that is not let go of) only makes it store
nothing for a while: `local_path` then says that the row group is to be read from where it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.cache.figures import CacheStats
from parquet_loader.cache.settings import LocalCache
from parquet_loader.filesystem import is_local
from parquet_loader.ranges import ByteRange, RangeFetcher, chunk_ranges, merge
from parquet_loader.snapshot import Snapshot
from parquet_loader.types import BoolArray

if TYPE_CHECKING:
    from parquet_loader.cache.directory import Directory, Wanted

_PAUSE_S = 60.0
# So much of a row group is fetched at once, and then written.
_AT_ONCE_BYTES = 16 * 2**20
# Of what Python's and pyarrow's filesystems are made of, what tells one store from another; never a credential.
_NOT_SECRET = ("region", "endpoint_override", "scheme", "host", "port", "account_name", "blob_storage_authority")


class RowGroupCache:
    """A local cache as one reader uses it. Any thread; opened in each process at the first use.

    Args:
        settings: Where it is.
        snapshot: What is read.
        columns: The columns read of a file, for each of the snapshot's schemas.
        fetcher: What fetches bytes.
    """

    def __init__(
        self, settings: LocalCache, snapshot: Snapshot, columns: Sequence[Sequence[str]], fetcher: RangeFetcher
    ) -> None:
        self._settings = settings
        self._snapshot = snapshot
        self._columns = columns
        self._fetcher = fetcher
        self._is_read: BoolArray = snapshot.row_group_rows > 0
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = RLock()  # owns the rest; held while the directory is opened, since nobody can go on before
        self._directory: Directory | None = None
        self._lease: Any = None
        self._resumes_at = 0.0
        self._files: dict[int, str] = {}
        self.figures = CacheStats()

    def __getstate__(self) -> dict[str, Any]:
        """Travel without what belongs to this process."""
        kept = ("_settings", "_snapshot", "_columns", "_fetcher", "_is_read")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin anew in another process."""
        self.__dict__.update(state)
        self._reset()

    def expect(self, is_read: BoolArray) -> None:
        """Say which row groups are read, bool ``[row groups]``: those no filter rules out."""
        with self._lock:
            self._is_read = is_read
            if self._directory is not None:
                try:
                    self._renew(self._directory)
                except OSError as error:
                    self._pause(error)

    def local_path(self, row_group: int, columns: Sequence[str]) -> str | None:
        """Return a local file in which a row group's column chunks lie at their places; it is fetched if need be.

        None: there is none in the cache, and the row group is to be read from where it is.

        Raises:
            SourceError, OSError: it cannot be fetched.
        """
        if self._pid != os.getpid():
            self._reset()
        chunks, size = self._chunks(row_group, columns)
        nbytes = sum(chunk.size for chunk in chunks)
        directory = self._opened()
        path = None
        if directory is not None:
            wanted = self._wanted(row_group, columns, chunks, size)
            path, damaged = directory.find(wanted)
            self._count(damaged=damaged)
            if path is None:
                path, is_hit = self._brought(directory, wanted, row_group, nbytes)
                if not is_hit:
                    return path
        if path is None:
            self._count(misses=1, bytes_fetched=nbytes)
        else:
            self._count(hits=1, bytes_from_cache=nbytes)
        return path

    def close(self) -> None:
        """Say that nothing is read any more; what is read all the same is cached as before."""
        with self._lock:
            if self._lease is not None and self._pid == os.getpid():
                self._lease.end()
            self._lease = self._directory = None

    def distrust(self, path: str) -> None:
        """Drop a file from which a row group could not be read, unless it is gone already."""
        if self._directory is not None and os.path.lexists(path):
            self._directory.drop(path)
            self._count(damaged=1)

    def _brought(self, directory: Directory, wanted: Wanted, row_group: int, nbytes: int) -> tuple[str | None, bool]:
        """Fetch a row group into the cache; return its path if it is there, and whether another fetched it."""
        from parquet_loader.cache.directory import NoRoomError  # noqa: PLC0415  (needs a system with flock)

        try:
            filling = directory.begin(wanted)
            if filling is None:
                directory.wait_for_other(wanted)
                path, _ = directory.find(wanted)
                return path, True
        except NoRoomError:
            filling = None
        except OSError as error:
            self._pause(error)
            filling = None
        self._count(misses=1, bytes_fetched=nbytes)
        if filling is None:
            return None, False
        try:
            file = self._snapshot.files[int(self._snapshot.row_group_file[row_group])]
            for first, some in _in_parts([ByteRange(*span) for span in wanted.ranges]):
                buffers = self._fetcher.fetch(file, some)
                try:
                    for number, buffer in enumerate(buffers, first):
                        filling.write(number, buffer)
                except OSError as error:
                    self._pause(error)
                    return None, False
            try:
                path = directory.published(filling)
            except OSError as error:
                self._pause(error)
                return None, False
            self._count(bytes_stored=nbytes)
            return path, False
        finally:
            filling.abandon()  # does nothing where it was published

    def _chunks(self, row_group: int, columns: Sequence[str]) -> tuple[list[ByteRange], int]:
        number = int(self._snapshot.row_group_file[row_group])
        size = self._snapshot.files[number].size_bytes
        footer = self._snapshot.footers.get(number)
        return chunk_ranges(footer, int(self._snapshot.row_group_number[row_group]), columns, size), size

    def _wanted(self, row_group: int, columns: Sequence[str], chunks: list[ByteRange], size: int) -> Wanted:
        from parquet_loader.cache.directory import Wanted  # noqa: PLC0415
        from parquet_loader.cache.places import columns_id  # noqa: PLC0415

        number = int(self._snapshot.row_group_file[row_group])
        return Wanted(
            self._file_id(number),
            int(self._snapshot.row_group_number[row_group]),
            columns_id(columns),
            size,
            sorted(chunks),
            merge(chunks, gap_bytes=GAP_BYTES, request_bytes=REQUEST_BYTES),
        )

    def _opened(self) -> Directory | None:
        """Return the directory, or None while it cannot be used."""
        if time.monotonic() < self._resumes_at:
            return None
        with self._lock:
            if self._directory is None and time.monotonic() >= self._resumes_at:
                try:
                    from parquet_loader.cache.directory import Directory  # noqa: PLC0415  (needs flock)

                    directory = Directory(str(self._settings.path), int(self._settings.max_bytes))
                    self._renew(directory)
                    self._directory = directory
                except (OSError, ImportError) as error:
                    self._pause(error)
            return self._directory

    def _renew(self, directory: Directory) -> None:
        from parquet_loader.cache.places import columns_id, row_group_ids  # noqa: PLC0415

        read = np.flatnonzero(self._is_read)
        files, place = np.unique(self._snapshot.row_group_file[read], return_inverse=True)
        ids = [self._file_id(int(number)) for number in files]
        row_groups = row_group_ids(ids, place, self._snapshot.row_group_number[read])
        lease = directory.lease(row_groups, frozenset(columns_id(columns) for columns in self._columns))
        if self._lease is not None:
            self._lease.end()
        self._lease = lease

    def _file_id(self, number: int) -> str:
        from parquet_loader.cache.places import file_id  # noqa: PLC0415

        if number not in self._files:
            file = self._snapshot.files[number]
            home = identity_of(self._snapshot.filesystem)
            digest = int(self._snapshot.file_digest[number])
            self._files[number] = file_id(home, file.path, file.size_bytes, file.mtime_ns, digest)
        return self._files[number]

    def _count(self, **changes: int) -> None:
        with self._lock:
            self.figures = replace(self.figures, **{n: getattr(self.figures, n) + c for n, c in changes.items()})

    def _pause(self, error: Exception) -> None:
        """Do without the cache for a while, and say so once."""
        problem = f"nothing is stored for a while: {error}"
        with self._lock:
            is_new = self.figures.problem is None
            self.figures = replace(self.figures, problem=problem)
            self._resumes_at = time.monotonic() + _PAUSE_S
            if not os.path.isdir(str(self._settings.path)):
                self._directory = None  # it is gone, and to be made again
        if is_new:
            with contextlib.suppress(Warning):  # an epoch does not fail for it, even where warnings are errors
                warnings.warn(f"LocalCache({str(self._settings.path)!r}): {problem}", RuntimeWarning, stacklevel=2)


def is_worth_it(settings: LocalCache, snapshot: Snapshot) -> bool:
    """Whether files are kept in a cache: all but local ones that lie on the very disk the cache is on."""
    if not is_local(snapshot.filesystem):
        return True
    folder = str(settings.path)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    with contextlib.suppress(OSError, IndexError):
        return os.stat(snapshot.files[0].path).st_dev != os.stat(folder).st_dev
    return False


def identity_of(filesystem: pafs.FileSystem) -> str:
    """Return what tells a store from others; without its credentials, which may change."""
    if isinstance(filesystem, pafs.SubTreeFileSystem):
        return json.dumps([identity_of(filesystem.base_fs), filesystem.base_path])
    told: dict[str, Any] = {}
    if isinstance(filesystem, pafs.PyFileSystem):
        remote = getattr(filesystem.handler, "fs", None)
        if remote is not None:
            options = getattr(remote, "storage_options", {})
            protocol = remote.protocol
            told = {"protocol": protocol if isinstance(protocol, str) else list(protocol)}
            told |= {name: str(options[name]) for name in _NOT_SECRET if name in options}
            for place in (options, options.get("client_kwargs")):
                if isinstance(place, dict) and "endpoint_url" in place:
                    told["endpoint_url"] = str(place["endpoint_url"])
    else:
        with contextlib.suppress(Exception):
            (options, *_) = filesystem.__reduce__()[1]
            if isinstance(options, dict):
                told = {name: str(options[name]) for name in _NOT_SECRET if options.get(name)}
    return json.dumps([filesystem.type_name, told], sort_keys=True)


def _in_parts(ranges: list[ByteRange]) -> list[tuple[int, list[ByteRange]]]:
    """Divide ranges so that each part is of a bounded size; each comes with the number of its first range."""
    parts: list[tuple[int, list[ByteRange]]] = []
    held = 0
    for number, span in enumerate(ranges):
        if not parts or held + span.size > _AT_ONCE_BYTES:
            parts.append((number, []))
            held = 0
        parts[-1][1].append(span)
        held += span.size
    return parts


GAP_BYTES = 2**20
REQUEST_BYTES = 2**23


class PlainFetcher:
    """Fetches ranges one after another."""

    def __init__(self, filesystem: pafs.FileSystem) -> None:
        self._filesystem = filesystem

    def fetch(self, file: Any, ranges: Sequence[ByteRange]) -> list[pa.Buffer]:
        """Return the bytes of each range."""
        with self._filesystem.open_input_file(file.path) as opened:
            return [pa.py_buffer(opened.read_at(span.size, span.start)) for span in ranges]
