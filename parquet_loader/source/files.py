"""The files of a source as plain values, and the protocol of listers."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import pyarrow.fs as pafs

from parquet_loader.common import shown

_COMMIT = re.compile(r"^(datasets/[^@]+)@[^/]+")

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file at the time of listing.

    Attributes:
        path: Path within the filesystem.
        size_bytes: Its size.
        mtime_ns: Modification time in nanoseconds since 1970, or None if an ETag or a table tells versions apart. Of
            remote files without ETags, no later version has the same time.
        partitions: Hive keys and values from the names of directories, None for Hive's null.
        etag: The store's ETag of the content, or None if it has none.
        prefix: The prefix that makes the path a URL: the scheme that the caller typed, or the store's own.
        if_gone: Addition to the error message if the file is gone.
    """

    path: str
    size_bytes: int
    mtime_ns: int | None
    partitions: tuple[tuple[str, str | None], ...] = ()
    etag: str | None = None
    prefix: str = field(default="", compare=False)
    if_gone: str = field(default="", compare=False)

    @property
    def lasting_path(self) -> str:
        """The path without the commit of a Hub repository: the same for later commits."""
        return _COMMIT.sub(r"\1", self.path) if self.prefix == "hf://" else self.path

    @property
    def lasting_key(self) -> tuple[str, str | None]:
        """Equal for files of the same content in two versions of a source; tables never change a file."""
        lasting = self.lasting_path
        return (self.path, None) if lasting == self.path or self.etag is None else (lasting, self.etag)

    @property
    def name(self) -> str:
        """Its path or URL for messages, without secrets."""
        return shown(self.path if "://" in self.path else f"{self.prefix}{self.path}")


@dataclass(frozen=True, slots=True)
class ListingContext:
    """Other names in a listing, kept to save requests to the store.

    Attributes:
        directories: Directories that were listed recursively.
        hidden: Files there whose names begin with ``_``.
        root: The directory to which paths in rows are relative: that of the table, or the source itself; for several
            directories, or files, the deepest one that contains all. None if it is not known.
    """

    directories: tuple[str, ...] = ()
    hidden: frozenset[str] = frozenset()
    root: str | None = None

    def lacks(self, path: str) -> bool:
        """Whether a file with a name that begins with ``_`` is known to be missing; False if that is not known."""
        return path not in self.hidden and any(path.startswith(base + "/") for base in self.directories)


class ListedFile(NamedTuple):
    """A file in a listing.

    Attributes:
        path, size_bytes, mtime_ns, etag: As in `SourceFile`.
        real: The path without links of a local file, else None.
        inode: Device and inode of a local file with several hard links, else None.
        is_linked: Whether it was reached through a link below the listed directory.
    """

    path: str
    size_bytes: int
    mtime_ns: int | None
    etag: str | None = None
    real: str | None = None
    inode: tuple[int, int] | None = None
    is_linked: bool = False

    @property
    def identity(self) -> object:
        """Equal for two entries of one file, also through links."""
        return self.inode or self.real or self.path


class Lister:
    """Lists a file system. Any thread may use it. The base class of all listers."""

    def pinned(self, paths: Sequence[str]) -> list[str]:
        """Return the paths of a source with each branch replaced by its current commit.

        Raises:
            SourceError, OSError: the commit cannot be determined.
        """
        return list(paths)

    def context(self) -> ListingContext:
        """Return the directories that `pinned` listed."""
        return ListingContext()

    def look(self, path: str) -> ListedFile | bool | None:
        """Return the file that a path names, True if it names a directory, or None if it does not exist.

        Raises:
            SourceError, OSError: the path cannot be looked up.
        """
        raise NotImplementedError

    def below(self, base: str) -> list[ListedFile]:
        """Return all files below a directory, recursively; hidden local files are left out.

        Raises:
            SourceError, OSError: the directory cannot be listed.
        """
        raise NotImplementedError

    def matching(self, base: str, pattern: str) -> list[ListedFile]:  # noqa: ARG002 (a store is listed as a whole)
        """Return the files below a directory that match a glob; a store returns all files. Raises as `below`."""
        return self.below(base)

    def ends(self, entry: ListedFile) -> tuple[bytes, bytes]:
        """Return the first and the last four bytes of a file. Raises as `below`."""
        raise NotImplementedError

    def head(self, path: str, most: int) -> bytes:
        """Return at most that many of a file's first bytes; empty if the file does not exist or cannot be read."""
        raise NotImplementedError

    def each(self, work: Callable[[S], T], things: Sequence[S]) -> list[T]:
        """Return the result of `work` for each of the things; remote listers run several at a time.

        Raises:
            The error of the first of the things for which `work` fails.
        """
        return [work(thing) for thing in things]


def same_etag(one: str, other: str) -> bool:
    """Whether two ETags are equal without quotes: some servers quote them in some responses only."""
    return one.strip('"') == other.strip('"')


def seen(info: pafs.FileInfo) -> ListedFile | bool | None:
    """Return a file that pyarrow found, True for a directory, or None if nothing was found."""
    if info.type == pafs.FileType.File:
        return ListedFile(info.path, int(info.size or 0), info.mtime_ns)
    return True if info.type == pafs.FileType.Directory else None


def changed_since(filesystem: pafs.FileSystem, file: SourceFile) -> str | None:
    """Return how a local file differs from its listing, for a message, or None if it is unchanged."""
    if _is_as_listed(file):
        return None
    info = filesystem.get_file_info(file.path)  # decides, because the listing came from the same function
    if info.type != pafs.FileType.File:
        return f"has vanished since its footer was read{file.if_gone and f': {file.if_gone}'}"
    if info.size != file.size_bytes or info.mtime_ns != file.mtime_ns:
        return "has changed since its footer was read"
    return None


def _is_as_listed(file: SourceFile) -> bool:
    """Whether a local file has its listed size and time; takes a tenth of the time of Arrow's `get_file_info`."""
    try:
        found = os.stat(file.path)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(found.st_mode) and (found.st_size, found.st_mtime_ns) == (file.size_bytes, file.mtime_ns)
