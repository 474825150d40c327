"""Which files a source names: paths, URLs, directories and globs become a list of files, always in the same order."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow.fs as pafs

from parquet_loader.errors import ConfigurationError, SourceError
from parquet_loader.filesystem import PathLike, is_local, resolve

Source: TypeAlias = PathLike | Sequence[PathLike]

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


def list_files(source: Source, filesystem: Any = None) -> tuple[pafs.FileSystem, tuple[SourceFile, ...]]:
    """List the files that `source` names.

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
    found: list[SourceFile] = []
    home: pafs.FileSystem | None = None
    for entry in entries:
        here, path = resolve(entry, filesystem)
        if home is not None and not home.equals(here):
            raise ConfigurationError(f"{entry}: all paths of one source lie on one filesystem; {entries[0]} does not")
        home = here
        try:
            found.extend(_expand(here, path, str(entry)))
        except OSError as error:
            raise SourceError(f"{entry}: cannot be listed: {error}") from error
    assert home is not None
    seen: set[str] = set()
    for file in found:
        if file.path in seen:
            raise SourceError(f"{file.path}: the source names this file twice; each row is delivered once")
        seen.add(file.path)
    return home, tuple(found)


def _expand(filesystem: pafs.FileSystem, path: str, name: str) -> list[SourceFile]:
    info = filesystem.get_file_info(path)
    if info.type == pafs.FileType.File:
        return [_source_file(info, "")]
    if info.type == pafs.FileType.Directory:
        files = [i for i in _walk(filesystem, path) if _is_visible(i.path, path)]
        what = f"{name}: the directory holds no Parquet files (names beginning with '.' or '_' are skipped)"
        base = path
    elif any(character in path for character in "*?["):
        base = _glob_base(path)
        if filesystem.get_file_info(base).type != pafs.FileType.Directory:
            raise SourceError(f"{name}: matches nothing: the directory {base!r} does not exist")
        matches = re.compile(_glob_regex(path)).match
        hidden = re.compile(r"/[._]").search(path[len(base) :]) is not None
        files = [i for i in _walk(filesystem, base) if matches(i.path) and (hidden or _is_visible(i.path, base))]
        what = f"{name}: the pattern matches no file"
    else:
        raise SourceError(f"{name}: no such file or directory")
    named = [i for i in files if i.path.lower().endswith(PARQUET_SUFFIXES)]
    files = sorted(named or files, key=lambda i: i.path)
    if not files:
        raise SourceError(what)
    return [_source_file(i, base) for i in files]


def _walk(filesystem: pafs.FileSystem, base: str) -> list[pafs.FileInfo]:
    listing = filesystem.get_file_info(pafs.FileSelector(base, recursive=True))
    if is_local(filesystem):
        _refuse_broken_links(base)
    return [info for info in listing if info.type == pafs.FileType.File]


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


def _source_file(info: pafs.FileInfo, base: str) -> SourceFile:
    partitions: list[tuple[str, str | None]] = []
    for part in _parts_below(info.path, base)[:-1] if base else []:
        key, equals, value = part.partition("=")
        if equals and key:
            text = unquote(value)
            partitions.append((unquote(key), None if text == HIVE_NULL else text))
    return SourceFile(info.path, int(info.size or 0), info.mtime_ns, tuple(partitions))


def changed_since(filesystem: pafs.FileSystem, file: SourceFile) -> str | None:
    """Say how a local file differs from when it was listed, or None; files elsewhere are not asked about again."""
    if not is_local(filesystem):
        return None
    info = filesystem.get_file_info(file.path)
    if info.type != pafs.FileType.File:
        return "has vanished since its footer was read"
    if info.size != file.size_bytes or info.mtime_ns != file.mtime_ns:
        return "has changed since its footer was read"
    return None
