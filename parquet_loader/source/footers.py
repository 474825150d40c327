"""Reads, parses and caches footers within a byte limit; a digest of each detects rewritten files."""

from __future__ import annotations

import hashlib
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import Digests, IntArray, is_local, no_link, system_error, without_secrets
from parquet_loader.errors import ParquetLoaderError, SourceError
from parquet_loader.source.byte_ranges import ByteRange, RangeFetcher
from parquet_loader.source.file_schema import LENGTH_AND_MARK_BYTES, MARK, FileSchema, MetadataError
from parquet_loader.source.files import SourceFile, changed_since, same_etag
from parquet_loader.source.metadata import Metadata, read_schema
from parquet_loader.source.remote.fetcher import Fetcher
from parquet_loader.source.remote.remote_filesystem import RemoteStore
from parquet_loader.source.tables.names import FooterNames, Names

# Measured: pyarrow's parsed footer takes about 1.1 KB a column chunk, and the raw bytes and numbers 0.3 KB.
_BYTES_PER_CHUNK = 1400
_BYTES_PER_FOOTER = 4096

# Bytes at a file's end that are read first, as Arrow does.
_TAIL_BYTES = 64 * 1024
_ENCRYPTED_MARK = b"PARE"
_PARSE_ERRORS = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError)


@dataclass(frozen=True, slots=True)
class Footer:
    """A file's footer.

    Attributes:
        parsed: The parsed footer.
        digest: 64 bits of a BLAKE2b digest of its bytes. These include the offset, length and usually the smallest and
            largest value of each column chunk, so files with different data rarely have the same digest.
        raw: Its bytes in the file; `parsed` may have other column names.
    """

    parsed: Metadata
    digest: int
    raw: bytes


class StoredFooters:
    """Copies of a source's footers in one local file.

    Args:
        path: The local file.
        locations: int64 ``[files, 2]``, offset and length of each footer in it; length 0 if it is missing.
    """

    def __init__(self, path: str, locations: IntArray) -> None:
        self.path = path
        self._locations = locations

    def read(self, file: int) -> bytes | None:
        """Return a footer, or None if it is missing."""
        start, length = self._locations[file].tolist()
        try:
            with open(self.path, "rb", opener=no_link) as opened:
                opened.seek(start)
                raw = opened.read(length)
        except OSError:
            return None
        return raw if raw and len(raw) == length else None

    def discard(self) -> None:
        """Remove the damaged file; the next start creates it again."""
        with suppress(OSError):
            os.unlink(self.path)

    def reindexed(self, numbers: IntArray) -> StoredFooters:
        """Return the same footers for another list of files: `numbers` has the index of each here, or -1."""
        locations = np.where(numbers[:, None] < 0, 0, self._locations[numbers])
        return StoredFooters(self.path, locations)


class FooterCache:
    """Parsed footers by file; beyond a limit in bytes, the least recently used are dropped. Any thread may use it.

    The lock guards the table only and is never held during a read: two threads that miss the same footer both read it.
    A footer that is read again has to be identical to the first one.

    Args:
        filesystem: The file system of the files.
        files: The files.
        digests: uint64 ``[files]``, the digest of each footer that was read before, else 0. Updated by each read.
        remote: Fetches from `filesystem` if that is not local.
        names: Renames columns to those of the table that the files belong to; None keeps the files' own names.
    """

    def __init__(
        self,
        filesystem: pafs.FileSystem,
        files: tuple[SourceFile, ...],
        digests: Digests | None = None,
        remote: RemoteStore | None = None,
        names: FooterNames | None = None,
    ) -> None:
        self._filesystem = filesystem
        self.remote = remote
        self._names = names
        self.stored: StoredFooters | None = None
        self.record: Callable[[int, bytes], None] | None = None
        self._files = files
        self.digests = np.zeros(len(files), np.uint64) if digests is None else digests
        self._lock = Lock()
        self._pid = os.getpid()
        self._kept: OrderedDict[int, tuple[Metadata, int]] = OrderedDict()
        self._held_bytes = 0
        self._limit_bytes = 64 * 2**20
        self._origin: weakref.ref[FooterCache] | None = None
        self.largest_bytes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process without the footers, which are read again there."""
        return _footer_cache, (
            self._filesystem,
            self._files,
            self.digests,
            self.remote,
            self._limit_bytes,
            self.stored,
            self._names,
        )

    def for_one_loader(self) -> FooterCache:
        """Return a cache of the same footers with its own limit.

        While this cache exists, both share the footers that they read.
        """
        remote = None if self.remote is None else self.remote.for_one_loader()
        own = FooterCache(self._filesystem, self._files, self.digests, remote, self._names)
        own.stored = self.stored
        self._renew_lock_after_fork()
        with self._lock:
            own._kept = self._kept.copy()
            own._held_bytes, own._limit_bytes = self._held_bytes, self._limit_bytes
            own.largest_bytes = self.largest_bytes
        own._origin = weakref.ref(self)
        return own

    @property
    def names(self) -> Names | None:
        """The column names of the table and its files; None if the files keep their own names."""
        return None if self._names is None else self._names.names

    @property
    def held_bytes(self) -> int:
        """Estimated memory of the footers kept."""
        return self._held_bytes

    def limit(self, limit_bytes: int) -> None:
        """Set the limit; the footer used last is always kept."""
        with self._lock:
            self._limit_bytes = limit_bytes
            self._trim()

    def clear(self) -> None:
        """Release all footers."""
        with self._lock:
            self._kept.clear()
            self._held_bytes = 0

    def get(self, file: int, fetcher: RangeFetcher | None = None) -> Metadata:
        """Return a file's footer; if it is not cached, read it, through `fetcher` if the file is remote.

        Raises:
            SourceError: the file cannot be opened, has no valid footer, or its footer has changed.
        """
        kept = self.cached(file)
        if kept is not None:
            return kept
        return self._keep(file, self._read(file, fetcher))

    def _read(self, file: int, fetcher: RangeFetcher | None) -> Footer:
        return read_footer(self._filesystem, self._files[file], fetcher or self.remote, self._names)

    async def fetched(self, file: int, fetcher: Fetcher) -> Metadata:
        """As `get`, on the event loop of a fetcher; concurrent calls share one request."""
        kept = self.cached(file)
        return kept if kept is not None else await fetcher.once((self, file), partial(self._fetched, file, fetcher))

    async def _fetched(self, file: int, fetcher: Fetcher) -> Metadata:
        described = self._files[file]
        if described.size_bytes == 0:
            raise _empty(described)
        tail = await _fetched(fetcher, described, _tail_of(described))
        rest = _footer_range(tail, described)
        whole = rest.size <= len(tail)
        raw = tail[-rest.size :] if whole else await _fetched(fetcher, described, rest)
        return self._keep(file, _checked(raw, described, self._names))

    def cached(self, file: int) -> Metadata | None:
        """Return a footer from memory or the local disk, or None."""
        kept = self._peek(file)
        origin = None if self._origin is None else self._origin()
        if kept is None and origin is not None:
            kept = origin._peek(file)
            if kept is not None:
                self._put(file, kept)
        if kept is not None or self.stored is None or not self.digests[file]:
            return kept
        raw = self.stored.read(file)
        if raw is None:
            return None
        if _digest(raw) != self.digests[file]:
            self.stored.discard()
            return None
        return self._keep(file, _checked(raw, self._files[file], self._names), is_new=False)

    def _peek(self, file: int) -> Metadata | None:
        self._renew_lock_after_fork()
        with self._lock:
            kept = self._kept.get(file)
            if kept is None:
                return None
            self._kept.move_to_end(file)
            return kept[0]

    def _renew_lock_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._lock, self._pid = Lock(), os.getpid()  # a thread of the parent may have held it

    def _keep(self, file: int, read: Footer, *, is_new: bool = True) -> Metadata:
        if self.digests[file] not in (0, read.digest):
            raise SourceError(
                f"{self._files[file].name}: the file has changed since its footer was read first; "
                "make a new loader to read it"
            )
        self.digests[file] = read.digest
        if is_new and self.record is not None:
            self.record(file, read.raw)
        origin = None if self._origin is None else self._origin()
        if origin is not None:
            origin._put(file, read.parsed)
        self._put(file, read.parsed)
        return read.parsed

    def _put(self, file: int, footer: Metadata) -> None:
        size = _BYTES_PER_FOOTER + footer.num_row_groups * footer.num_columns * _BYTES_PER_CHUNK
        self._renew_lock_after_fork()
        with self._lock:
            if file not in self._kept:
                self._kept[file] = (footer, size)
                self._held_bytes += size
                self.largest_bytes = max(self.largest_bytes, size)
                self._trim()

    def _trim(self) -> None:
        while self._held_bytes > self._limit_bytes and len(self._kept) > 1:
            _, (_, size) = self._kept.popitem(last=False)
            self._held_bytes -= size


def _footer_cache(
    filesystem: pafs.FileSystem,
    files: tuple[SourceFile, ...],
    digests: Digests,
    remote: RemoteStore | None,
    limit_bytes: int,
    stored: StoredFooters | None,
    names: FooterNames | None,
) -> FooterCache:
    cache = FooterCache(filesystem, files, digests, remote, names)
    cache.stored = stored
    cache.limit(limit_bytes)
    return cache


def read_footer(
    filesystem: pafs.FileSystem,
    file: SourceFile,
    fetcher: RangeFetcher | None = None,
    names: FooterNames | None = None,
) -> Footer:
    """Read and check one footer, through `fetcher` if one is given; reads no more bytes than Arrow does.

    Raises:
        SourceError: the file is empty, truncated, not Parquet, gone, or its footer contradicts itself.
    """
    if file.size_bytes == 0:
        raise _empty(file)
    try:
        if fetcher is None:
            with filesystem.open_input_file(file.path) as opened:
                raw = _footer_bytes(opened)
        else:
            raw = _fetched_footer(fetcher, file)
    except FileNotFoundError as error:
        what = file.if_gone or "make a new loader to read the others"
        raise SourceError(f"{file.name}: the file has vanished since it was listed; {what}") from error
    except _PARSE_ERRORS as error:
        raise _unreadable(file, error) from error
    footer = _checked(raw, file, names)
    changed = changed_since(filesystem, file) if is_local(filesystem) else None
    if changed:
        raise SourceError(f"{file.name}: the file {changed.replace('its footer was read', 'it was listed')}")
    return footer


def read_file_schema(filesystem: pafs.FileSystem, path: str) -> FileSchema:
    """Return the schema in the footer of one file that was not listed, such as ``_common_metadata``.

    The rest of the footer is ignored: fastparquet's ``_common_metadata`` states rows, and has no row groups.

    Raises:
        MetadataError, ValueError, pyarrow.ArrowException, OSError: the file cannot be read, or is not Parquet.
    """
    with filesystem.open_input_file(path) as opened:
        return read_schema(_footer_bytes(opened))[2]


def _checked(raw: bytes, file: SourceFile, names: FooterNames | None) -> Footer:
    """Parse a footer, and check that it does not contradict itself."""
    try:
        named = raw if names is None else names.renamed(raw, file.name)
        return Footer(Metadata(named, file.size_bytes), _digest(raw), raw)
    except _PARSE_ERRORS as error:
        raise _unreadable(file, error) from error


def _digest(raw: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little") or 1


def same_content(one: SourceFile, other: SourceFile) -> bool:
    """Whether two listings of a file have the same content, by its size and ETag, or else modification time."""
    if one.size_bytes != other.size_bytes:
        return False
    if one.etag is not None and other.etag is not None:
        return same_etag(one.etag, other.etag)
    return one.mtime_ns is not None and one.mtime_ns == other.mtime_ns


def _empty(file: SourceFile) -> SourceError:
    return SourceError(f"{file.name}: the file is empty (0 bytes); a Parquet file has at least a footer")


def _unreadable(file: SourceFile, error: Exception) -> ParquetLoaderError:
    failure = system_error(file.name, error)
    if failure is not None:
        return failure
    if isinstance(error, UnicodeEncodeError):
        return SourceError(f"{file.name}: the name of the file is not UTF-8, and Arrow cannot open it; rename the file")
    reason = without_secrets(str(error).split("\n")[0].removesuffix("."))
    return SourceError(f"{file.name}: not a readable Parquet file of {file.size_bytes} bytes: {reason}")


def _footer_bytes(opened: pa.NativeFile) -> bytes:
    """Return a file's footer with its length and magic bytes. Raises `MetadataError` if the file has none."""
    size = opened.size()
    tail: bytes = opened.read_at(min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
    whole = _footer_length(tail, size)
    return tail[-whole:] if whole <= len(tail) else opened.read_at(whole, size - whole)


def _footer_length(tail: bytes, file_bytes: int) -> int:
    """Return the size of a footer with its length and magic bytes, from the last bytes of its file.

    Raises:
        MetadataError: the file does not end with a footer.
    """
    mark = tail[-len(MARK) :]
    if mark == _ENCRYPTED_MARK:
        raise MetadataError("its footer is encrypted, which this library does not read; decrypt the file first")
    if len(tail) < LENGTH_AND_MARK_BYTES or mark != MARK:
        raise MetadataError(
            f"it does not end with {MARK.decode()}, the magic bytes of Parquet: it is truncated, or not a Parquet file"
        )
    length = int.from_bytes(tail[-LENGTH_AND_MARK_BYTES : -len(MARK)], "little") + LENGTH_AND_MARK_BYTES
    if length > file_bytes:
        raise MetadataError(f"it says that its footer takes {length} bytes; it is truncated or damaged")
    return length


def _tail_of(file: SourceFile) -> ByteRange:
    return ByteRange(max(0, file.size_bytes - _TAIL_BYTES), file.size_bytes)


def _footer_range(tail: bytes, file: SourceFile) -> ByteRange:
    """Return the range of a footer with its length and magic bytes. Raises `SourceError` if the file has none."""
    try:
        return ByteRange(file.size_bytes - _footer_length(tail, file.size_bytes), file.size_bytes)
    except MetadataError as error:
        raise _unreadable(file, error) from error


def _fetched_footer(fetcher: RangeFetcher, file: SourceFile) -> bytes:
    """Return a footer with its length and magic bytes; one request suffices if it is within the last `_TAIL_BYTES`."""
    tail: bytes = fetcher.fetch(file, [_tail_of(file)])[0].to_pybytes()
    rest = _footer_range(tail, file)
    if rest.size <= len(tail):
        return tail[-rest.size :]
    found: bytes = fetcher.fetch(file, [rest])[0].to_pybytes()
    return found


async def _fetched(fetcher: Fetcher, file: SourceFile, span: ByteRange) -> bytes:
    buffer = np.empty(span.size, np.uint8)
    await fetcher.read_all(file, [span], [buffer])
    return buffer.tobytes()
