"""Which files a source names: paths, URLs, directories and globs become a list of files, always in the same order."""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import unquote

import pyarrow.fs as pafs

from parquet_loader.descriptors import is_out_of_descriptors, out_of_descriptors
from parquet_loader.errors import ConfigurationError, SourceError
from parquet_loader.filesystem import PathLike, is_local, resolve
from parquet_loader.redact import shown, without_secrets

Source: TypeAlias = PathLike | Sequence[PathLike]
S = TypeVar("S")
T = TypeVar("T")

PARQUET_SUFFIXES = (".parquet", ".parq", ".pq")
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file as it was when it was listed.

    Attributes:
        path: Path within the filesystem.
        size_bytes: Its size.
        mtime_ns: When it last changed, in nanoseconds since 1970, or None where the filesystem does not say.
        partitions: Hive keys and values from the directories below the source, None for hive's null.
        etag: What the store calls this very content, or None where it does not say.
    """

    path: str
    size_bytes: int
    mtime_ns: int | None
    partitions: tuple[tuple[str, str | None], ...] = ()
    etag: str | None = None

    @property
    def name(self) -> str:
        """How messages name it: its path, which may be a URL, without secrets."""
        return shown(self.path)


@dataclass(frozen=True, slots=True)
class Beside:
    """What a listing showed beside the files, so that a store need not be asked again.

    Attributes:
        directories: Directories that were listed with all that is below them.
        hidden: Files there whose names begin with ``_``.
    """

    directories: tuple[str, ...] = ()
    hidden: frozenset[str] = frozenset()

    def lacks(self, path: str) -> bool:
        """Whether there is no such file, whose name begins with ``_``; False where that is not known."""
        return path not in self.hidden and any(path.startswith(base + "/") for base in self.directories)


class Entry(NamedTuple):
    """A file in a listing.

    Attributes:
        path, size_bytes, mtime_ns, etag: As in `SourceFile`.
    """

    path: str
    size_bytes: int
    mtime_ns: int | None
    etag: str | None = None


class Lister(Protocol):
    """What lists a filesystem. Any thread may use it."""

    def look(self, path: str) -> Entry | bool | None:
        """Return the file that a path names, True where it names a directory, or None where there is nothing.

        Raises:
            SourceError, OSError: it cannot be told.
        """
        ...

    def below(self, base: str) -> list[Entry]:
        """Return all files below a directory, through all its levels. Raises as `look`."""
        ...

    def each(self, work: Callable[[S], T], things: Sequence[S]) -> list[T]:
        """Return what `work`, which looks and lists, gives for each of the things; several at a time where that pays.

        Raises:
            What `work` raises for the first of them for which it does.
        """
        ...


class NativeLister:
    """Lists through pyarrow's own functions.

    Args:
        filesystem: The filesystem.
    """

    def __init__(self, filesystem: pafs.FileSystem) -> None:
        self._filesystem = filesystem

    def look(self, path: str) -> Entry | bool | None:
        """Return a file, True for a directory, or None; see `Lister`."""
        return seen(self._filesystem.get_file_info(path))

    def below(self, base: str) -> list[Entry]:
        """Return all files below a directory."""
        listing = self._filesystem.get_file_info(pafs.FileSelector(base, recursive=True))
        if is_local(self._filesystem):
            _refuse_broken_links(base)
        return [entry for info in listing if isinstance(entry := seen(info), Entry)]

    def each(self, work: Callable[[S], T], things: Sequence[S]) -> list[T]:
        """Return what `work` gives for each of the things."""
        return [work(thing) for thing in things]


def seen(info: pafs.FileInfo) -> Entry | bool | None:
    """Return the file that pyarrow found, True for a directory, or None for nothing."""
    if info.type == pafs.FileType.File:
        return Entry(info.path, int(info.size or 0), info.mtime_ns)
    return True if info.type == pafs.FileType.Directory else None


def list_files(
    source: Source,
    filesystem: Any = None,
    lister_of: Callable[[pafs.FileSystem], Lister] = NativeLister,
) -> tuple[pafs.FileSystem, tuple[SourceFile, ...], Beside]:
    """List the files that `source` names, and what is beside them, through what `lister_of` makes for their filesystem.

    A directory is searched through all its levels; directories named ``key=value`` below it become columns. Names that
    begin with ``.`` or ``_`` are skipped. Where a directory holds files that end in ``.parquet``, ``.parq`` or
    ``.pq`` it is read as these alone, otherwise every file in it is taken for Parquet. Files of a directory or glob
    come in the order of their paths; entries of a list keep the order of the list.

    Raises:
        SourceError: there are no files, a path does not exist or cannot be listed, or a file is named twice.
        ConfigurationError: `source` is no path or sequence of paths, or its paths lie on different filesystems.
    """
    entries = [source] if not isinstance(source, Sequence) or isinstance(source, str | bytes) else list(source)
    if not entries:
        raise SourceError("the source is an empty list: there is no file to read")
    named: list[tuple[str, str]] = []
    home: pafs.FileSystem | None = None
    for entry in entries:
        here, path = resolve(entry, filesystem)
        if home is not None and not home.equals(here):
            names = shown(str(entry)), shown(str(entries[0]))
            raise ConfigurationError(f"{names[0]}: all paths of one source lie on one filesystem; {names[1]} does not")
        home = here if home is None else home
        named.append((path, shown(str(entry))))
    assert home is not None
    lister = lister_of(home)

    def expanded(entry: tuple[str, str]) -> tuple[list[SourceFile], Beside]:
        try:
            return _expand(lister, *entry)
        except OSError as error:
            if is_out_of_descriptors(error):
                raise out_of_descriptors(f"{entry[1]}: cannot be listed", 1) from None
            raise SourceError(f"{entry[1]}: cannot be listed: {without_secrets(str(error))}") from error

    found = lister.each(expanded, named)
    files = tuple(file for some, _ in found for file in some)
    seen: set[str] = set()
    for file in files:
        if file.path in seen:
            raise SourceError(f"{file.name}: the source names this file twice; each row is delivered once")
        seen.add(file.path)
    directories = tuple(base for _, beside in found for base in beside.directories)
    return home, files, Beside(directories, frozenset[str]().union(*(beside.hidden for _, beside in found)))


def _expand(lister: Lister, path: str, name: str) -> tuple[list[SourceFile], Beside]:
    seen = lister.look(path)
    if isinstance(seen, Entry):
        return [_source_file(seen, "")], Beside()
    if seen:
        below = lister.below(path)
        files = [entry for entry in below if _is_visible(entry.path, path)]
        what = f"{name}: the directory holds no Parquet files (names beginning with '.' or '_' are skipped)"
        base = path
    elif any(character in path for character in "*?["):
        base = _glob_base(path)
        if lister.look(base) is not True:
            raise SourceError(f"{name}: matches nothing: the directory {shown(base)!r} does not exist")
        matches = re.compile(_glob_regex(path)).match
        hidden = re.compile(r"/[._]").search(path[len(base) :]) is not None
        below = lister.below(base)
        files = [entry for entry in below if matches(entry.path) and (hidden or _is_visible(entry.path, base))]
        what = f"{name}: the pattern matches no file"
    else:
        raise SourceError(f"{name}: no such file or directory")
    named = [entry for entry in files if entry.path.lower().endswith(PARQUET_SUFFIXES)]
    files = sorted(named or files, key=lambda entry: entry.path)
    if not files:
        raise SourceError(what)
    beside = frozenset(entry.path for entry in below if posixpath.basename(entry.path).startswith("_"))
    return [_source_file(entry, base) for entry in files], Beside((base.rstrip("/"),), beside)


def _refuse_broken_links(base: str) -> None:
    """Arrow's listing passes over links that lead nowhere, and their rows would be missing without a word."""
    for folder, _, names in os.walk(base):
        for path in (os.path.join(folder, name) for name in names):
            if os.path.islink(path) and not os.path.exists(path) and _is_visible(path, base):
                raise SourceError(f"{path}: the link leads nowhere: {os.readlink(path)!r} is not there")


def _is_visible(path: str, base: str) -> bool:
    return not any(part.startswith((".", "_")) for part in _parts_below(path, base))


def _parts_below(path: str, base: str) -> list[str]:
    return path[len(base) :].strip("/").split("/")


def _glob_base(pattern: str) -> str:
    first = min(pattern.find(c) for c in "*?[" if c in pattern)
    return pattern[: pattern.rfind("/", 0, first)] or "/"


def _glob_regex(pattern: str) -> str:
    """Translate a glob: ``*``, ``?`` and ``[]`` stay within a name, ``**`` spans directories.

    A directory that matches means all below it.
    """
    *folders, last = pattern.split("/")
    parts = ["(?:[^/]+/)*" if segment == "**" else _name_regex(segment) + "/" for segment in folders]
    return "".join(parts) + ("[^/]+" if last == "**" else _name_regex(last)) + "(?:/.*)?$"


def _name_regex(segment: str) -> str:
    """Translate the glob of one name; a bracket that is never closed stands for itself."""
    out: list[str] = []
    for piece in re.findall(r"\*+|\?|\[!?\]?[^\]]*\]|[^*?\[]+|\[", segment):
        if piece.startswith("*"):
            out.append("[^/]*")
        elif piece == "?":
            out.append("[^/]")
        elif piece.startswith("[") and len(piece) > 1:
            choice = fnmatch.translate(piece).removeprefix("(?s:").removesuffix(")\\Z").removesuffix(")\\z")
            out.append(f"(?!/){choice}")
        else:
            out.append(re.escape(piece))
    return "".join(out)


def _source_file(entry: Entry, base: str) -> SourceFile:
    partitions: list[tuple[str, str | None]] = []
    for part in _parts_below(entry.path, base)[:-1] if base else []:
        key, equals, value = part.partition("=")
        if equals and key:
            text = unquote(value)
            partitions.append((unquote(key), None if text == HIVE_NULL else text))
    return SourceFile(entry.path, entry.size_bytes, entry.mtime_ns, tuple(partitions), entry.etag)


def changed_since(filesystem: pafs.FileSystem, file: SourceFile) -> str | None:
    """Say how a local file differs from when it was listed, or None; files elsewhere are not asked about again."""
    if not is_local(filesystem):
        return None
    if _is_as_listed(file):
        return None
    info = filesystem.get_file_info(file.path)  # as it was listed: for paths, times and links of every kind
    if info.type != pafs.FileType.File:
        return "has vanished since its footer was read"
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
