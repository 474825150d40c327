"""`DeltaSource`: a Delta table as a source, at one version or followed."""

from __future__ import annotations

import datetime as dt
import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import PathLike, RemoteOptions, is_local, resolve, shown, url_prefix
from parquet_loader.errors import ConfigurationError, SourceError
from parquet_loader.source.tables.deletes import Deletes
from parquet_loader.source.tables.delta.log import Added, Log, State, time_of
from parquet_loader.source.tables.delta.partitions import partition_column
from parquet_loader.source.tables.delta.protocol import check_protocol
from parquet_loader.source.tables.delta.schema import DeltaSchema, promotes, read_schema
from parquet_loader.source.tables.delta.storage_options import filesystem_of
from parquet_loader.source.tables.delta.travel import version_at
from parquet_loader.source.tables.delta.vectors import deletes_of_vector
from parquet_loader.source.tables.metadata_files import MetadataFiles, refuse_hub
from parquet_loader.source.tables.table_version import TableFile, TableInfo, TableVersion

_LOG = "_delta_log"
_REMOVED = "VACUUM removes files of former versions: read a newer version"


@dataclass(frozen=True, slots=True)
class DeltaSource:
    """A Delta table at one version: exactly the rows that this version has.

    Needs only pyarrow. The path of a Delta table's directory as a source is the same as `DeltaSource` at the newest
    version.

    Args:
        path: The table's directory, local or a URL.
        version: The number of a version, or a time: the newest version then. A time is a `datetime`, or text in ISO
            form such as ``"2026-01-31T12:00:00Z"``; without a zone it is taken as UTC. Default: the newest version.
        storage_options: Credentials and endpoints by the names of the package `deltalake`, such as
            ``{"AWS_REGION": "eu-central-1"}``. Default: those of the environment, or the loader's ``filesystem=``.
        follow: Let each epoch read the newest version; only without `version`, in `BatchedDataLoader`.

    Raises:
        ConfigurationError: an argument has the wrong kind or value.
    """

    path: PathLike
    version: int | str | dt.datetime | None = None
    storage_options: Mapping[str, str] | None = field(default=None, repr=False, kw_only=True)
    follow: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike) or not os.fspath(self.path):
            raise ConfigurationError(f"DeltaSource({self.path!r:.80}): expected a path or URL of a table's directory")
        if isinstance(self.version, np.integer):
            object.__setattr__(self, "version", int(self.version))
        if isinstance(self.version, bool) or not isinstance(self.version, int | str | dt.datetime | None):
            raise ConfigurationError(f"DeltaSource(version={self.version!r:.80}): expected a number or a time")
        if isinstance(self.version, int) and self.version < 0:
            raise ConfigurationError(f"DeltaSource(version={self.version}): versions are numbered from 0")
        if isinstance(self.version, str):
            try:
                time_of(self.version)
            except ValueError:
                raise ConfigurationError(
                    f"DeltaSource(version={self.version!r:.80}): expected a number, or a time such as "
                    "'2026-01-31T12:00:00Z'"
                ) from None
        if not isinstance(self.follow, bool):
            raise ConfigurationError(f"DeltaSource(follow={self.follow!r:.80}): expected True or False")
        if self.follow and self.version is not None:
            raise ConfigurationError("DeltaSource(follow=True): reads the newest version; leave version= out")

    @property
    def name(self) -> str:
        """The name of table and version for messages, without secrets."""
        version = "" if self.version is None else f" at {self.version}"
        return f"{shown(os.fspath(self.path))}{version}"

    def at(self, version: int | str) -> DeltaSource:
        """Return the same table at a version."""
        return replace(self, version=int(version), follow=False)

    def filesystem_of(self, filesystem: Any) -> pafs.FileSystem:
        """Return the file system of the table; see `TableSource`."""
        return self._resolved(filesystem)[0]

    def open_version(self, filesystem: Any, remote: RemoteOptions) -> TableVersion:
        """Replay the log; see `TableSource`."""
        home, path = self._resolved(filesystem)
        text = os.fspath(self.path)
        prefix = url_prefix(home, text)
        root = shown(text if "://" in text else f"{prefix}{path}")
        refuse_hub(home, root)
        with MetadataFiles(home, remote, prefix) as files:
            log = Log(files, f"{path.rstrip('/')}/{_LOG}", root)
            number = self._number(log, root)
            state = log.replay(number)
        folder = posixpath.normpath(path) if is_local(home) else path
        place = _Place(home, folder.rstrip("/"), prefix, root)
        return _version(place, number, state)

    def _resolved(self, filesystem: Any) -> tuple[pafs.FileSystem, str]:
        path = os.fspath(self.path)
        if filesystem is None and self.storage_options:
            filesystem = filesystem_of(path, self.storage_options)
            path = path if filesystem is None else unquote(path)  # as in URLs without options
        return resolve(path, filesystem)

    def _number(self, log: Log, root: str) -> int:
        if self.version is None:
            return log.newest
        if isinstance(self.version, int):
            return self.version
        return version_at(log, time_of(self.version), str(self.version), root)


@dataclass(frozen=True, slots=True)
class _Place:
    """The location of a table.

    Attributes:
        filesystem: Its file system.
        path: Its directory there, normalised if it is local, without a trailing slash.
        prefix: The prefix that makes a path a URL.
        root: Its name for messages.
    """

    filesystem: pafs.FileSystem
    path: str
    prefix: str
    root: str

    def located(self, logged: str) -> str:
        """Return the path within the file system for a percent-encoded path in the log.

        Raises:
            SourceError: it is on another file system.
        """
        if not ("%" in logged or ":" in logged or "//" in logged or "/." in logged or logged.startswith(("/", "."))):
            return f"{self.path}/{logged}"
        scheme, separator, rest = logged.partition("://")
        if not separator and logged.lower().startswith("file:/"):
            scheme, separator, rest = "file", "://", logged[len("file:") :]
        if separator and "/" not in scheme:
            return self._absolute(scheme.lower(), unquote(rest), logged)
        decoded = unquote(logged)
        if decoded.startswith("/"):
            if not is_local(self.filesystem):
                raise self._elsewhere(logged)
            return posixpath.normpath(decoded)
        path = f"{self.path}/{decoded}"
        return posixpath.normpath(path) if is_local(self.filesystem) or "/../" in path or "/./" in path else path

    def _absolute(self, scheme: str, rest: str, logged: str) -> str:
        if scheme == "file":
            if not is_local(self.filesystem):
                raise self._elsewhere(logged)
            return posixpath.normpath("/" + rest.removeprefix("localhost").lstrip("/"))
        kind = self.filesystem.type_name
        if kind == "s3" and scheme in ("s3", "s3a", "s3n"):
            return rest
        if kind == "gcs" and scheme in ("gs", "gcs"):
            return rest
        if kind == "abfs" and scheme in ("abfs", "abfss") and "@" in rest:
            container, _, account_and_path = rest.partition("@")
            return f"{container}/{account_and_path.partition('/')[2]}"
        if scheme == "hdfs" and kind == "hdfs":
            return "/" + rest.partition("/")[2]
        raise self._elsewhere(logged)

    def _elsewhere(self, logged: str) -> SourceError:
        return SourceError(
            f"{self.root}: the log names the file {shown(logged)!r}, which is on another file system than the table; "
            "copy the table with its files, for example by a deep clone"
        )


def _version(place: _Place, number: int, state: State) -> TableVersion:
    assert state.protocol is not None
    assert state.metadata is not None
    root = f"{place.root}, version {number}"
    features = check_protocol(state.protocol, root)
    schema = read_schema(state.metadata, features, root)
    added = list(state.files.values())
    paths = [place.located(one.path) for one in added]
    by_path = sorted(range(len(added)), key=paths.__getitem__)
    added, paths = [added[i] for i in by_path], [paths[i] for i in by_path]
    twice = next((path for path, other in pairwise(paths) if path == other), None)
    if twice is not None:
        raise SourceError(f"{root} holds the file {shown(twice)} twice, by different names; the log is damaged")
    files = [
        TableFile(
            path,
            one.size_bytes,
            None if one.vector is None else _deletes(place, path, one.vector, features, root),
            one.rows,
            None if one.modified_ms is None else one.modified_ms * 1_000_000,
        )
        for path, one in zip(paths, added, strict=True)
    ]
    format_ = (state.metadata.get("format") or {}).get("provider", "parquet")
    if format_ != "parquet":
        raise SourceError(f"{root}: the data files are {format_!r}, not Parquet")
    info = TableInfo(
        "delta", place.root, number, f"DeltaSource({place.root!r}, version={{version}})", schema.arrow, _REMOVED
    )
    return TableVersion(
        info,
        place.filesystem,
        tuple(files),
        names=schema.names,
        constants=_constants(added, schema, root),
        partitions=frozenset(schema.partitions),
        promotes=promotes,
        prefix=place.prefix,
        directory=place.path,
    )


def _deletes(place: _Place, path: str, vector: Mapping[str, Any], features: frozenset[str], root: str) -> Deletes:
    if "deletionVectors" not in features:
        raise SourceError(
            f"{root}: the file {shown(path)} has a deletion vector, and the table's protocol does not say so; "
            "repair the log"
        )
    try:
        return deletes_of_vector(vector, place.located, place.path)
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(
            f"{root}: the deletion vector of the file {shown(path)} is damaged: {error}; the log is damaged"
        ) from error


def _constants(added: list[Added], schema: DeltaSchema, root: str) -> pa.Table | None:
    if not schema.partitions:
        return None
    columns = {}
    for name, logged in schema.partitions.items():
        lacking = next((one for one in added if logged not in one.partition), None)
        if lacking is not None:
            raise SourceError(
                f"{root}: the log gives the file {lacking.path!r} no value of the partition column {name!r}; it is "
                "damaged"
            )
        texts = [one.partition[logged] for one in added]
        columns[name] = partition_column(texts, schema.arrow.field(name).type, name, root)
    return pa.table(columns)
