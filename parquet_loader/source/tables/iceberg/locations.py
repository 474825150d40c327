"""Finds a table's newest metadata file in its directory, and the file systems and paths of locations in metadata."""

from __future__ import annotations

import gzip
import json
import os
import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.fs as pafs

from parquet_loader.common import is_local, list_below, refused, resolve, shown
from parquet_loader.errors import ConfigurationError, SourceError

_METADATA_FILE = re.compile(r"v(?P<hadoop>\d+)(?:-.*)?(?P<end>\..*)|(?P<number>\d+)-.*?(?P<end2>\..*)")
_ENDS = (".metadata.json", ".gz.metadata.json", ".metadata.json.gz")
_FAMILIES = (
    ("s3", "s3a", "s3n", "oss"),
    ("gs", "gcs"),
    ("abfs", "abfss", "wasb", "wasbs"),
    ("hdfs", "viewfs"),
)
_HINT = "version-hint.text"


def is_metadata_file(path: object) -> bool:
    """Whether a path names a metadata file, not a table's directory."""
    return isinstance(path, str) and path.endswith(_ENDS)


@dataclass(frozen=True, slots=True)
class TableStore:
    """The file system that holds a table's files.

    Attributes:
        filesystem: The file system.
        name: The table's name for messages.
    """

    filesystem: pafs.FileSystem
    name: str

    def path_of(self, location: str) -> str:
        """Return the path within the file system for a location in metadata, which is not percent-encoded.

        Raises:
            SourceError: the location is on another file system.
        """
        scheme, separator, rest = location.partition("://")
        if not separator or "/" in scheme:
            if location.startswith("file:/"):
                scheme, rest = "file", location[5:]
            else:
                scheme, rest = "", location
        if is_local(self.filesystem):
            if scheme in ("", "file"):
                rest = rest.removeprefix("localhost") if scheme and rest.startswith("localhost/") else rest
                return os.path.abspath(rest)
            raise self._elsewhere(location)
        if not scheme:
            return location
        kind = self.filesystem.type_name
        own = {"s3": 0, "gcs": 1, "abfs": 2, "hdfs": 3}.get(kind)
        if own is None:  # a filesystem of fsspec, or the caller's own
            remote = getattr(getattr(self.filesystem, "handler", None), "fs", None)
            return rest if remote is None else str(remote._strip_protocol(location))
        if scheme not in _FAMILIES[own]:
            raise self._elsewhere(location)
        if own == 2:
            container, at, inner = rest.partition("@")
            rest = f"{container}/{inner.partition('/')[2]}" if at and "/" not in container else rest
        return f"/{rest.partition('/')[2]}" if own == 3 else rest

    def read(self, location: str) -> bytes:
        """Return the bytes of a file at a location in metadata.

        Raises:
            SourceError: it is missing, or cannot be read.
        """
        path = self.path_of(location)
        try:
            return self.read_path(path)
        except FileNotFoundError:
            raise SourceError(f"{shown(location)}: this file of {self.name} is not there: {GONE}") from None

    def read_path(self, path: str) -> bytes:
        """Return a file's bytes. Raises as `read`, but `FileNotFoundError` if it is missing."""
        try:
            with self.filesystem.open_input_stream(path, compression=None) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            raise
        except OSError as error:
            raise refused(f"{shown(path)}: this file of {self.name} cannot be read", error) from error

    def _elsewhere(self, location: str) -> SourceError:
        return SourceError(
            f"{shown(location)}: this file of {self.name} is on another file system than the table's metadata; "
            "a table's files have to be on one"
        )


GONE = (
    "expiry of snapshots or removal of orphan files may have removed it, or the table was moved or copied to another "
    "place without its metadata being rewritten"
)


def newest_metadata(store: TableStore, root: str) -> str:
    """Return the path of the metadata file with the largest version number.

    Raises:
        SourceError: there is none, or the newest cannot be determined by the names.
    """
    folder = posixpath.join(root, "metadata")
    try:
        names = [posixpath.basename(info.path) for info in list_below(store.filesystem, folder, recursive=False)]
    except OSError as error:
        raise refused(f"{store.name}: metadata/ cannot be listed", error) from error
    hinted = _hinted(store, folder) if _HINT in names or not names else None
    by_number: dict[int, list[str]] = defaultdict(list)
    kinds = set()
    for name in names:
        match = _METADATA_FILE.fullmatch(name)
        if match is None or (match["end"] or match["end2"]) not in _ENDS:
            continue
        kinds.add("hadoop" if match["hadoop"] else "catalog")
        by_number[int(match["hadoop"] or match["number"])].append(name)
    if hinted is not None and not hinted.isdecimal():
        named = [hinted] if is_metadata_file(hinted) else [f"{hinted}{end}" for end in _ENDS]
        for name in named:
            if name in names or not names:
                return posixpath.join(folder, name)
        raise SourceError(f"{store.name}: metadata/{_HINT} names {hinted!r}, which is not there")
    if not by_number:
        if hinted is not None and not names:  # a store that cannot be listed
            return posixpath.join(folder, f"v{hinted}.metadata.json")
        raise SourceError(f"{store.name}: metadata/ holds no file *.metadata.json of an Iceberg table")
    if len(kinds) > 1:
        raise SourceError(
            f"{store.name}: metadata/ holds files of two ways of naming versions, v1.metadata.json and "
            "00001-....metadata.json, so that the newest is not known; pass the metadata file, or the table from its "
            "catalog"
        )
    newest = by_number[max(by_number)]
    if len(newest) > 1:
        raise SourceError(
            f"{store.name}: metadata/ holds {len(newest)} files of version {max(by_number)}, such as {newest[0]!r} and "
            f"{newest[1]!r}; pass the one that the catalog names, or the table from its catalog"
        )
    path = posixpath.join(folder, newest[0])
    twice = [name for found in by_number.values() if len(found) > 1 for name in found]
    if twice:  # left by failed commits, or by an earlier table in this directory
        _check_one_table(store, path, [posixpath.join(folder, name) for name in twice])
    return path


def _hinted(store: TableStore, folder: str) -> str | None:
    try:
        return store.read_path(posixpath.join(folder, _HINT)).decode("utf-8", "replace").strip() or None
    except FileNotFoundError:
        return None


def _check_one_table(store: TableStore, newest: str, others: Sequence[str]) -> None:
    expected = read_metadata(store, newest).get("table-uuid")
    for path in others:
        found = read_metadata(store, path).get("table-uuid")
        if found != expected:
            raise SourceError(
                f"{store.name}: metadata/ holds files of two tables, with the UUIDs {expected} and {found}, such as "
                f"{posixpath.basename(newest)!r} and {posixpath.basename(path)!r}; pass the metadata file of the one "
                "that you mean, or the table from its catalog"
            )


def read_metadata(store: TableStore, path: str) -> dict[str, Any]:
    """Return a metadata file's JSON object. Raises `SourceError` if it cannot be read."""
    try:
        raw = store.read_path(path)
    except FileNotFoundError:
        raise SourceError(f"{shown(path)}: there is no such metadata file") from None
    try:
        found = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    except (ValueError, OSError, EOFError) as error:
        raise SourceError(f"{shown(path)}: not a readable metadata file of an Iceberg table: {error}") from error
    if not isinstance(found, dict):
        raise SourceError(f"{shown(path)}: not a readable metadata file of an Iceberg table: it is not a JSON object")
    return found


def filesystem_of(file_io: Any, location: str) -> pafs.FileSystem:
    """Return the file system with which a `pyiceberg.io.FileIO` reads a location.

    Raises:
        ConfigurationError: it has none.
    """
    scheme, separator, rest = location.partition("://")
    if not separator or scheme == "file" or "/" in scheme:
        return pafs.LocalFileSystem()
    by_scheme: Callable[..., pafs.FileSystem] | None = getattr(file_io, "fs_by_scheme", None)
    if by_scheme is not None:
        return by_scheme(scheme, rest.partition("/")[0])
    get_fs: Callable[..., Any] | None = getattr(file_io, "get_fs", None)
    if get_fs is not None:
        return pafs.PyFileSystem(pafs.FSSpecHandler(get_fs(scheme, rest.partition("/")[0])))
    try:
        return resolve(location)[0]
    except SourceError as error:
        raise ConfigurationError(
            f"{error}; pass filesystem=, because {type(file_io).__name__} has none to take"
        ) from None
