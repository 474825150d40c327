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
    """One file as it was when it was listed.

    Attributes:
        path: Path within the filesystem.
        size_bytes: Its size.
        mtime_ns: When it last changed, in nanoseconds since 1970, or None if the filesystem does not say.
        partitions: Hive keys and values from the names of directories, None for hive's null.
        etag: What the store calls this very content, or None if it does not say.
        prefix: What makes a URL of the path: the scheme that the caller typed, or the store's own.
        if_gone: What an error says in addition if the file is gone.
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
        """The path without the commit of a repository: the same for a file that a later commit leaves as it is."""
        return _COMMIT.sub(r"\1", self.path) if self.prefix == "hf://" else self.path

    @property
    def lasting_key(self) -> tuple[str, str | None]:
        """Equal for a file of the same content in another version of its source; tables change no file."""
        lasting = self.lasting_path
        return (self.path, None) if lasting == self.path or self.etag is None else (lasting, self.etag)

    @property
    def name(self) -> str:
        """How messages name it: its path or URL, without secrets."""
        return shown(self.path if "://" in self.path else f"{self.prefix}{self.path}")


@dataclass(frozen=True, slots=True)
class ListingContext:
    """Names that a listing showed next to the files, so that a store need not be asked again.

    Attributes:
        directories: Directories that were listed with all that is below them.
        hidden: Files there whose names begin with ``_``.
        root: The directory of the source, to which paths in rows are relative: the table's, or the one that was named;
            of several, or of files, the one that holds them all. None: it is not known.
    """

    directories: tuple[str, ...] = ()
    hidden: frozenset[str] = frozenset()
    root: str | None = None

    def lacks(self, path: str) -> bool:
        """Whether there is no such file, whose name begins with ``_``; False if that is not known."""
        return path not in self.hidden and any(path.startswith(base + "/") for base in self.directories)


class ListedFile(NamedTuple):
    """A file in a listing.

    Attributes:
        path, size_bytes, mtime_ns, etag: As in `SourceFile`.
        real: Local files: the path without links, else None.
        inode: Local files with several hard links: device and inode, else None.
        is_linked: Whether a link below the directory that was listed leads to it.
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
        """Equal for two entries of one file, whatever links lead to it."""
        return self.inode or self.real or self.path


class Lister:
    """Lists a file system. Any thread may use it. The base class of all listers."""

    def pinned(self, paths: Sequence[str]) -> list[str]:
        """Return the paths of a source with all that may change meanwhile fixed: for a branch, the commit it is now.

        Raises:
            SourceError, OSError: it cannot be told.
        """
        return list(paths)

    def context(self) -> ListingContext:
        """Return what is known of whole directories from `pinned`."""
        return ListingContext()

    def look(self, path: str) -> ListedFile | bool | None:
        """Return the file that a path names, True if it names a directory, or None if there is nothing.

        Raises:
            SourceError, OSError: it cannot be told.
        """
        raise NotImplementedError

    def below(self, base: str) -> list[ListedFile]:
        """Return all files below a directory, through all its levels; of local ones those that are not hidden.

        Raises:
            SourceError, OSError: it cannot be listed.
        """
        raise NotImplementedError

    def matching(self, base: str, pattern: str) -> list[ListedFile]:  # noqa: ARG002 (a store is listed as a whole)
        """Return the files below a directory that match a glob; of a store others there too. Raises as `below`."""
        return self.below(base)

    def ends(self, entry: ListedFile) -> tuple[bytes, bytes]:
        """Return the first and the last four bytes of a file. Raises as `below`."""
        raise NotImplementedError

    def head(self, path: str, most: int) -> bytes:
        """Return at most that many of a file's first bytes; empty if the file does not exist or cannot be read."""
        raise NotImplementedError

    def each(self, work: Callable[[S], T], things: Sequence[S]) -> list[T]:
        """Return the result of `work`, which looks and lists, for each of the things; in parallel if that pays.

        Raises:
            What `work` raises for the first of them for which it does.
        """
        return [work(thing) for thing in things]


def same_etag(one: str, other: str) -> bool:
    """Whether two ETags name the same content: quotes are a matter of who writes it down, and differ in one server."""
    return one.strip('"') == other.strip('"')


def seen(info: pafs.FileInfo) -> ListedFile | bool | None:
    """Return the file that pyarrow found, True for a directory, or None for nothing."""
    if info.type == pafs.FileType.File:
        return ListedFile(info.path, int(info.size or 0), info.mtime_ns)
    return True if info.type == pafs.FileType.Directory else None


def changed_since(filesystem: pafs.FileSystem, file: SourceFile) -> str | None:
    """Say how a local file differs from when it was listed, or None."""
    if _is_as_listed(file):
        return None
    info = filesystem.get_file_info(file.path)  # as it was listed: for paths, times and links of every kind
    if info.type != pafs.FileType.File:
        return f"has vanished since its footer was read{file.if_gone and f': {file.if_gone}'}"
    if info.size != file.size_bytes or info.mtime_ns != file.mtime_ns:
        return "has changed since its footer was read"
    return None


def _is_as_listed(file: SourceFile) -> bool:
    """Whether the system finds a local file with its size and time: a tenth of what Arrow takes to look at it."""
    try:
        found = os.stat(file.path)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(found.st_mode) and (found.st_size, found.st_mtime_ns) == (file.size_bytes, file.mtime_ns)
