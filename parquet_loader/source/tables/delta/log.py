"""Replays the log of a Delta table: from the newest checkpoint on, one commit after another.

Everything follows from one listing of `_delta_log`. A log that contradicts itself is refused: a commit that is missing,
an unreadable line, a file that is there twice, or numbers that differ from those of a version's checksum file.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from parquet_loader.errors import SourceError
from parquet_loader.source.files import ListedFile
from parquet_loader.source.tables.delta.vectors import vector_id
from parquet_loader.source.tables.metadata_files import MetadataFiles

_NAME = re.compile(
    r"(?P<version>\d{20})\.(?:(?P<commit>json)|(?P<crc>crc)|checkpoint(?:"
    r"(?P<classic>\.parquet)|\.(?P<part>\d{10})\.(?P<parts>\d{10})\.parquet|"
    r"\.(?P<uuid>[0-9a-fA-F-]{36})\.(?P<kind>json|parquet)))"
)
_ROWS_FIRST = r'^\s*\{\s*"numRecords"\s*:\s*(?P<n>\d+)'  # only the first key: a column may have this name, too
_ROWS = re.compile(_ROWS_FIRST)
_SIDECARS = "_sidecars"
# All kinds of actions. An unknown one is refused: in a damaged log it may be a known one that adds or removes rows.
_KINDS = frozenset(
    {
        "add",
        "cdc",
        "checkpointMetadata",
        "commitInfo",
        "domainMetadata",
        "metaData",
        "protocol",
        "remove",
        "rowIdHighWaterMark",
        "sidecar",
        "txn",
    }
)
_ADD = ("path", "size", "modificationTime", "partitionValues", "deletionVector", "stats")
_WHITESPACE = " \t\r\v\f"
_decode = json.JSONDecoder().raw_decode  # `json.loads` spends half of its time on guessing the encoding
_OF_VECTORS = ("numDeletionVectorsOpt", "numDeletedRecordsOpt")  # keys of a checksum file
_AT_ONCE = 64  # commits and parts of checkpoints that are held in memory at a time


class Added(NamedTuple):
    """A data file that a version has.

    Attributes:
        path: The path in the log.
        size_bytes: Its size.
        modified_ms: Its time of writing in milliseconds since 1970, or None.
        partition: Text of each partition value, by the column's name in the log.
        vector: Its deletion vector as the log describes it, or None.
        rows: Its number of rows, including deleted ones, or None.
    """

    path: str
    size_bytes: int
    modified_ms: int | None
    partition: Mapping[str, str | None]
    vector: Mapping[str, Any] | None
    rows: int | None


@dataclass(slots=True)
class State:
    """What a log says up to a version.

    Attributes:
        protocol, metadata: The last actions of these kinds.
        files: The data files by path and deletion vector.
    """

    protocol: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    files: dict[tuple[str, str], Added] = field(default_factory=dict)


@dataclass(slots=True)
class _Checkpoint:
    version: int
    parts: list[ListedFile]
    count: int


class Log:
    """A listed log.

    Args:
        files: Reads it.
        folder: The directory `_delta_log` within the file system.
        root: How messages name the table.

    Raises:
        SourceError: there is no log.
    """

    def __init__(self, files: MetadataFiles, folder: str, root: str) -> None:
        self._files = files
        self._root = root
        self.commits: dict[int, ListedFile] = {}
        self._checksums: dict[int, ListedFile] = {}
        self._sidecars: dict[str, ListedFile] = {}
        checkpoints: dict[tuple[int, str], _Checkpoint] = {}
        for file in files.listed(folder):
            below = file.path[len(folder) :].lstrip("/")
            if below.startswith(f"{_SIDECARS}/"):
                self._sidecars[below.removeprefix(f"{_SIDECARS}/")] = file
                continue
            match = _NAME.fullmatch(below)
            if match is None:
                continue
            version = int(match["version"])
            if match["commit"]:
                self.commits[version] = file
            elif match["crc"]:
                self._checksums[version] = file
            else:
                kind = match["uuid"] or match["parts"] or ""
                found = checkpoints.setdefault((version, kind), _Checkpoint(version, [], int(match["parts"] or 1)))
                found.parts.append(file)
        self._folder = folder
        self._checkpoints = sorted(
            (one for one in checkpoints.values() if len(one.parts) == one.count), key=lambda one: one.version
        )
        if not self.commits and not self._checkpoints:
            raise SourceError(f"{root}: there is no Delta table: _delta_log holds no commit and no checkpoint")

    @property
    def newest(self) -> int:
        """The newest version."""
        return max([*self.commits, *(one.version for one in self._checkpoints)])

    @property
    def oldest_commit(self) -> int:
        """The oldest version whose commit is there."""
        return min(self.commits, default=self.newest)

    def commit_actions(self, version: int) -> list[dict[str, Any]]:
        """Return the actions of a commit. Raises SourceError: it is missing or damaged."""
        file = self.commits.get(version)
        if file is None:
            raise self._missing(version, version)
        return list(_actions(self._files.read([file])[0], f"{self._root}: commit {version}"))

    def replay(self, version: int) -> State:
        """Return what the log says up to a version.

        Raises:
            SourceError: the version does not exist, or not any more; or the log is damaged.
        """
        if version < 0 or version > self.newest:
            raise SourceError(
                f"{self._root}: there is no version {version}; the table's versions go up to {self.newest}"
            )
        checkpoint = next((one for one in reversed(self._checkpoints) if one.version <= version), None)
        first = 0 if checkpoint is None else checkpoint.version + 1
        wanted = range(first, version + 1)
        missing = next((number for number in wanted if number not in self.commits), None)
        if missing is not None:
            raise self._missing(missing, version)
        later = max(self._checksums, default=-1)
        if version == self.newest < later:
            raise SourceError(
                f"{self._root}: the newest commit is {version}, but there is a checksum file of version {later}; "
                "commits are missing from the log"
            )
        state = State()
        if checkpoint is not None:
            self._read_checkpoint(checkpoint, state)
        for at in range(0, len(wanted), _AT_ONCE):
            some = wanted[at : at + _AT_ONCE]
            for number, raw in zip(some, self._files.read([self.commits[n] for n in some]), strict=True):
                self._apply(number, raw, state)
        if state.protocol is None or state.metadata is None:
            raise SourceError(
                f"{self._root}: the log up to version {version} holds no "
                f"{'protocol' if state.protocol is None else 'schema'}; it is damaged"
            )
        self._check(version, state)
        return state

    def _missing(self, commit: int, version: int) -> SourceError:
        if commit < self.oldest_commit:
            readable = next((f"; the oldest version to read is {one.version}" for one in self._checkpoints), "")
            return SourceError(
                f"{self._root}: version {version} can no longer be read: its log was cleaned up, and commit {commit} "
                f"is gone{readable}"
            )
        return SourceError(
            f"{self._root}: commit {commit} is missing from the log, and version {version} needs it; restore the file "
            f"{commit:020}.json, or repair the table"
        )

    # ---- commits

    def _apply(self, version: int, raw: bytes, state: State) -> None:
        where = f"{self._root}: commit {version}"
        added: dict[tuple[str, str], Added] = {}
        removed: set[tuple[str, str]] = set()
        for action in _actions(raw, where):
            try:
                if (add := action.get("add")) is not None:
                    key, file = _added(add)
                    added[key] = file
                elif (remove := action.get("remove")) is not None:
                    removed.add((str(remove["path"]), vector_id(remove.get("deletionVector"))))
                else:
                    _take_action(action, state, [])
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise SourceError(
                    f"{where}: an action cannot be read: {type(error).__name__}: {error}; the log is damaged"
                ) from error
        both = next((key for key in added if key in removed), None)
        if both is not None:
            raise SourceError(f"{where} adds the file {both[0]!r} and removes it; the log is damaged")
        unknown = next((key for key in removed if key not in state.files), None)
        if unknown is not None:
            raise SourceError(
                f"{where} removes the file {unknown[0]!r}, which version {version - 1} does not have; the "
                "log is damaged"
            )
        for key in removed:
            del state.files[key]
        state.files.update(added)

    # ---- checkpoints

    def _read_checkpoint(self, checkpoint: _Checkpoint, state: State) -> None:
        where = f"{self._root}: the checkpoint of version {checkpoint.version}"
        parts = sorted(checkpoint.parts, key=lambda file: file.path)
        sidecars: list[Mapping[str, Any]] = []
        for file, raw in zip(parts, self._files.read(parts), strict=True):
            try:
                if file.path.endswith(".json"):
                    for action in _actions(raw, where):
                        _take_action(action, state, sidecars)
                else:
                    _take_table(raw, state, sidecars)
            except SourceError:
                raise
            except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException, OSError) as error:
                raise SourceError(f"{where} cannot be read: {type(error).__name__}: {error}; it is damaged") from error
        self._read_sidecars(sidecars, state, where)

    def _read_sidecars(self, sidecars: Sequence[Mapping[str, Any]], state: State, where: str) -> None:
        listed: list[ListedFile] = []
        if sidecars and not self._sidecars:  # a local listing is not recursive
            folder = f"{self._folder}/{_SIDECARS}"
            self._sidecars = {file.path[len(folder) + 1 :]: file for file in self._files.listed(folder)}
        for sidecar in sidecars:
            name = str(sidecar["path"]).rpartition("/")[2]
            file = self._sidecars.get(name)
            if file is None:
                raise SourceError(f"{where} needs the file {_SIDECARS}/{name}, which is gone")
            if sidecar.get("sizeInBytes") not in (None, file.size_bytes):
                raise SourceError(
                    f"{where}: the file {_SIDECARS}/{name} has {file.size_bytes} bytes instead of "
                    f"{sidecar['sizeInBytes']}; it is damaged"
                )
            listed.append(file)
        for at in range(0, len(listed), _AT_ONCE):
            some = listed[at : at + _AT_ONCE]
            for file, raw in zip(some, self._files.read(some), strict=True):
                try:
                    _take_table(raw, state, [])
                except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException, OSError) as error:
                    raise SourceError(
                        f"{where}: {file.path.rpartition('/')[2]} cannot be read: {type(error).__name__}: {error}; it "
                        "is damaged"
                    ) from error

    # ---- checks

    def _check(self, version: int, state: State) -> None:
        """Compare the files with the version's checksum, if there is one, and with each other."""
        paths = {path for path, _ in state.files}
        if len(paths) < len(state.files):
            seen: set[str] = set()
            twice = next(path for path, _ in state.files if path in seen or seen.add(path))  # type: ignore[func-returns-value]
            raise SourceError(
                f"{self._root}: version {version} holds the file {twice!r} twice, with different deletion vectors; the "
                "log is damaged"
            )
        file = self._checksums.get(version)
        if file is None:
            return
        try:
            said = json.loads(self._files.read([file])[0])
            expected = [said.get(name) for name in ("numFiles", "tableSizeBytes", *_OF_VECTORS)]
        except (ValueError, AttributeError) as error:
            raise SourceError(f"{self._root}: the checksum file of version {version} is damaged: {error}") from None
        vectors = [added.vector for added in state.files.values() if added.vector is not None]
        found = [
            len(state.files),
            sum(added.size_bytes for added in state.files.values()),
            len(vectors),
            sum(count for vector in vectors if type(count := vector.get("cardinality")) is int),
        ]
        names = ("files", "bytes", "deletion vectors", "deleted rows")
        for what, want, have in zip(names, expected, found, strict=True):
            if want is not None and want != have:
                raise SourceError(
                    f"{self._root}: the log of version {version} has {have} {what}, but its checksum file says {want}; "
                    "the log is damaged"
                )


def _actions(raw: bytes, where: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(raw.split(b"\n"), 1):
        try:
            text = str(line, "utf-8").strip(_WHITESPACE)
            if not text:
                continue
            action, end = _decode(text)
        except ValueError as error:
            raise SourceError(f"{where}, line {number}: not JSON: {error}; the log is damaged") from None
        if end != len(text) or type(action) is not dict:
            raise SourceError(f"{where}, line {number}: not an action; the log is damaged")
        if not action.keys() <= _KINDS:
            unknown = next(kind for kind in action if kind not in _KINDS)
            raise SourceError(
                f"{where}, line {number}: an action {unknown!r}, which this library does not know; the log is damaged, "
                "or of a newer protocol"
            )
        if len(action) > 1 and sum(body is not None for body in action.values()) > 1:
            raise SourceError(f"{where}, line {number}: more than one action; the log is damaged")
        yield action


def _added(add: Mapping[str, Any]) -> tuple[tuple[str, str], Added]:
    path, vector, modified = str(add["path"]), add.get("deletionVector"), add.get("modificationTime")
    if vector is None:
        _refuse_vector(add)
    file = Added(
        path,
        int(add["size"]),
        None if modified is None else int(modified),
        dict(add.get("partitionValues") or ()),
        vector,
        _rows_of(add.get("stats")),
    )
    return (path, vector_id(vector) if vector is not None else ""), file


def _refuse_vector(add: Mapping[str, Any]) -> None:
    """Raise ValueError: an action describes a deletion vector by another name."""
    for name, value in add.items():
        if type(value) is dict and "storageType" in value and name != "deletionVector":
            raise ValueError(f"a deletion vector called {name!r}")


def _rows_of(stats: Any) -> int | None:
    """Return the rows of a file by its statistics, which are JSON; None: they do not tell."""
    if not isinstance(stats, str):
        return None
    first = _ROWS.match(stats)
    if first is not None:
        return int(first["n"])
    try:
        rows = json.loads(stats)["numRecords"]
    except (ValueError, KeyError, TypeError):
        return None
    return rows if type(rows) is int else None


def _take_action(action: Mapping[str, Any], state: State, sidecars: list[Mapping[str, Any]]) -> None:
    if (add := action.get("add")) is not None:
        key, file = _added(add)
        state.files[key] = file
    elif (metadata := action.get("metaData")) is not None:
        state.metadata = metadata
    elif (protocol := action.get("protocol")) is not None:
        state.protocol = protocol
    elif (sidecar := action.get("sidecar")) is not None:
        sidecars.append(sidecar)


def _take_table(raw: bytes, state: State, sidecars: list[Mapping[str, Any]]) -> None:
    """Take the actions of a checkpoint in Parquet."""
    file = pq.ParquetFile(pa.BufferReader(raw), page_checksum_verification=True)
    schema = file.schema_arrow
    unknown = sorted(set(schema.names) - _KINDS)
    if unknown:
        raise ValueError(f"an action {unknown[0]!r}, which this library does not know")
    wanted = [name for name in ("protocol", "metaData", "sidecar") if name in schema.names]
    if "add" in schema.names:
        fields = {field.name: field.type for field in schema.field("add").type}
        for name, type_ in fields.items():
            if name != "deletionVector" and pa.types.is_struct(type_) and type_.get_field_index("storageType") >= 0:
                raise ValueError(f"a deletion vector called {name!r}")
        wanted += [f"add.{name}" for name in _ADD if name in fields]
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, columns=wanted)
        for name in ("protocol", "metaData", "sidecar"):
            if name in table.column_names:
                for found in table.column(name).drop_null().to_pylist():
                    _take_action({name: _plain(found)}, state, sidecars)
        if "add" in table.column_names:
            _take_adds(table.column("add"), state)


def _take_adds(column: pa.ChunkedArray, state: State) -> None:
    for chunk in column.chunks:
        adds = chunk.filter(chunk.is_valid())
        parts = {adds.type.field(i).name: adds.field(i) for i in range(adds.type.num_fields)}
        if parts["path"].null_count or parts["size"].null_count:
            raise ValueError("a file without a path or size")
        empty: list[Any] = [None] * len(adds)
        paths, sizes = _values(parts["path"]), _values(parts["size"])
        times = _values(parts["modificationTime"]) if "modificationTime" in parts else empty
        vectors = parts["deletionVector"].to_pylist() if _has_values(parts.get("deletionVector")) else empty
        partitions = _partitions(parts["partitionValues"]) if "partitionValues" in parts else [{}] * len(adds)
        rows = _row_counts(parts["stats"]) if "stats" in parts else empty
        files = map(Added, paths, sizes, times, partitions, vectors, rows)
        state.files.update(zip(zip(paths, map(vector_id, vectors), strict=True), files, strict=True))


def _values(array: pa.Array) -> list[Any]:
    """Return what `to_pylist` returns for numbers and text, in a fifth of its time."""
    is_direct = not array.null_count or pa.types.is_string(array.type)
    values: list[Any] = array.to_numpy(zero_copy_only=False).tolist() if is_direct else array.to_pylist()
    return values


def _row_counts(stats: pa.Array) -> list[int | None]:
    found = pc.struct_field(pc.extract_regex(stats, _ROWS_FIRST), "n")
    if not found.null_count:
        return _values(found.cast(pa.int64()))
    told = zip(found.to_pylist(), stats.to_pylist(), strict=True)
    return [_rows_of(text) if count is None else int(count) for count, text in told]


def _partitions(maps: pa.MapArray) -> list[Mapping[str, str | None]]:
    """Return maps as dicts, an empty one for null."""
    if not len(maps.keys):
        return [{}] * len(maps)
    return [found or {} for found in maps.to_pylist(maps_as_pydicts="strict")]


def _has_values(array: pa.Array | None) -> bool:
    return array is not None and array.null_count < len(array)


def _plain(value: Any) -> Any:
    """Return maps as dicts, which pyarrow gives as lists of pairs."""
    if isinstance(value, dict):
        return {
            name: dict(inner) if name in ("configuration", "options") and isinstance(inner, list) else _plain(inner)
            for name, inner in value.items()
        }
    return value


def time_of(text: str | dt.datetime) -> int:
    """Return a time as milliseconds since 1970; text in ISO form, without a zone as of UTC.

    Raises:
        ValueError: the text is not of this form.
    """
    when = dt.datetime.fromisoformat(text) if isinstance(text, str) else text
    when = when.replace(tzinfo=dt.UTC) if when.tzinfo is None else when
    return (when - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
