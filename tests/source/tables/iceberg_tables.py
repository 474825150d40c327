"""Writes Iceberg tables by hand, with positional deletes, deletion vectors and what else `pyiceberg` cannot write.

A table knows the rows of each of its snapshots, which are what readers are compared with.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, NestedField

from parquet_loader.source.tables.deletes import roaring_bytes

Version: TypeAlias = Literal[1, 2, 3]
Row: TypeAlias = dict[int, Any]
"""A row's values by field id."""


@dataclass
class HandFile:
    """A live file of a table, with its rows if it holds data, or the deleted positions of each data file."""

    path: str
    content: DataFileContent
    sequence: int | None
    spec_id: int
    partition: Record
    size: int
    count: int
    rows: list[Row] = field(default_factory=list)
    positions: dict[str, set[int]] = field(default_factory=dict)
    referenced: str | None = None
    offset: int | None = None
    length: int | None = None
    format: FileFormat = FileFormat.PARQUET
    equality_ids: list[int] | None = None
    manifest: str | None = None


@dataclass
class HandSnapshot:
    """A snapshot: its number, the schema that it was written with, and its rows by field id."""

    number: int
    schema_id: int
    rows: list[Row]


class HandTable:
    """A table in a local directory, with metadata files ``v1.metadata.json`` and so on.

    Args:
        root: The directory.
        fields: The columns: name and type, as ``"int"`` or an `IcebergType`.
        version: The format version.
        partition_by: Names of columns and transforms of the first partition spec.
        with_ids: Whether data files have field ids.
    """

    def __init__(
        self,
        root: Path,
        fields: Sequence[tuple[str, str | IcebergType]],
        *,
        version: Version = 2,
        partition_by: Sequence[tuple[str, str]] = (),
        with_ids: bool = True,
        location: str | None = None,
        seed: int = 0,
    ) -> None:
        self.root, self.with_ids = root, with_ids
        self.version: Version = version
        self.location = location or str(root)
        (root / "metadata").mkdir(parents=True)
        (root / "data").mkdir()
        self._random = random.Random(seed)
        self.io = PyArrowFileIO()
        self.last_column = 0
        self.schemas: list[Schema] = []
        self.specs: list[PartitionSpec] = []
        self.last_partition = 999
        self.sequence = 0
        self.files: dict[str, HandFile] = {}
        self.deletes: list[HandFile] = []
        self.manifests: list[ManifestFile] = []
        self.snapshots: list[HandSnapshot] = []
        self.refs: dict[str, dict[str, Any]] = {}
        self.properties: dict[str, str] = {}
        self.metadata_version = 0
        self.bounds: Literal["full", "truncated"] | None = None
        """Which bounds of their columns manifests have for files of positions."""
        self.uuid = str(uuid.UUID(int=self._random.getrandbits(128)))
        self._snapshots: list[dict[str, Any]] = []
        self._set_schema([self._field(name, type_) for name, type_ in fields])
        self.partition_by(partition_by)

    # Schema

    @property
    def schema(self) -> Schema:
        return self.schemas[-1]

    def _field(self, name: str, type_: str | IcebergType, default: Any = None, required: bool = False) -> NestedField:
        self.last_column += 1
        made = NestedField(self.last_column, name, type_, required=required, initial_default=default)
        self.last_column = max(self.last_column, Schema(made).highest_field_id)
        return made

    def _set_schema(self, fields: Iterable[NestedField]) -> None:
        self.schemas.append(Schema(*fields, schema_id=len(self.schemas)))

    def add(self, name: str, type_: str | IcebergType, *, at: int | None = None, default: Any = None) -> int:
        """Add a column, and return its field id."""
        fields = list(self.schema.fields)
        fields.insert(len(fields) if at is None else at, self._field(name, type_, default))
        self._set_schema(fields)
        return self.schema.find_field(name).field_id

    def drop(self, name: str) -> None:
        self._set_schema(field for field in self.schema.fields if field.name != name)

    def replace(self, name: str, /, **changes: Any) -> None:
        """Change a column's name (``name``) or type (``field_type``)."""

        def changed(found: NestedField) -> NestedField:
            type_ = changes.get("field_type", found.field_type)
            return NestedField(
                found.field_id,
                changes.get("name", found.name),
                type_,
                required=found.required,
                initial_default=_as_type(found.initial_default, type_),
            )

        self._set_schema([changed(found) if found.name == name else found for found in self.schema.fields])

    def reorder(self, names: Sequence[str]) -> None:
        self._set_schema([self.schema.find_field(name) for name in names])

    def partition_by(self, fields: Sequence[tuple[str, str]]) -> None:
        made = []
        for name, transform in fields:
            self.last_partition += 1
            source = self.schema.find_field(name).field_id
            made.append(
                PartitionField(source, self.last_partition, parse_transform(transform), f"{name}_{self.last_partition}")
            )
        self.specs.append(PartitionSpec(*made, spec_id=len(self.specs)))

    # Commits

    def partition_of(self, row: Row) -> Record:
        values = []
        for part in self.specs[-1].fields:
            source = self.schema.find_field(part.source_id)
            values.append(part.transform.transform(source.field_type)(_internal(row.get(part.source_id))))
        return Record(*values)

    def insert(self, rows: Sequence[Row], *, row_group_rows: int = 1000, without: Sequence[str] = ()) -> list[str]:
        """Write rows, a file for each partition, and return the files; columns `without` are left out of them."""
        files = self.write_data(rows, row_group_rows=row_group_rows, without=without)
        self.commit(added=files)
        return [file.path for file in files]

    def write_data(
        self, rows: Sequence[Row], *, row_group_rows: int = 1000, without: Sequence[str] = ()
    ) -> list[HandFile]:
        groups: dict[Any, list[Row]] = {}
        for row in rows:
            groups.setdefault(tuple(self.partition_of(row)._data), []).append(row)
        made = []
        kept = Schema(*(found for found in self.schema.fields if found.name not in without))
        arrow = schema_to_pyarrow(kept, include_field_ids=self.with_ids)
        for inner in groups.values():
            path = f"{self.location}/data/{self._random.getrandbits(64):016x}.parquet"
            columns = {found.name: [row.get(found.field_id) for row in inner] for found in kept.fields}
            local = self.local(path)
            pq.write_table(pa.Table.from_pydict(columns, arrow), local, row_group_size=row_group_rows)
            partition = self.partition_of(inner[0])
            size = local.stat().st_size
            spec = self.specs[-1].spec_id
            made.append(HandFile(path, DataFileContent.DATA, None, spec, partition, size, len(inner), rows=list(inner)))
        return made

    def local(self, location: str) -> Path:
        return self.root / location.removeprefix(self.location).lstrip("/")

    def delete(self, positions: Mapping[str, Iterable[int]], *, together: bool = False) -> None:
        """Delete rows by position: by files of positions before version 3, by vectors from then on."""
        wanted = {path: set(rows) for path, rows in positions.items() if rows}
        if self.version >= 3:
            self.commit(added=self.write_vectors(wanted), replaced=[f for f in self.deletes if f.referenced in wanted])
        else:
            self.commit(added=self.write_positions(wanted, together=together))

    def write_positions(self, positions: Mapping[str, set[int]], *, together: bool = False) -> list[HandFile]:
        """Write delete files: for each partition one of all its data files if `together`, else one a data file."""
        groups: dict[Any, dict[str, set[int]]] = {}
        for path, rows in positions.items():
            file = self.files[path]
            key = (file.spec_id, tuple(file.partition._data)) if together else path
            groups.setdefault(key, {})[path] = rows
        made = []
        for group in groups.values():
            pairs = [(path, row) for path in sorted(group) for row in sorted(group[path])]
            table = pa.table(
                {"file_path": [path for path, _ in pairs], "pos": pa.array([row for _, row in pairs], pa.int64())}
            ).cast(_POSITIONS)
            path = f"{self.location}/data/{self._random.getrandbits(64):016x}-deletes.parquet"
            pq.write_table(table, self.local(path), write_page_checksum=True)
            first = self.files[next(iter(group))]
            made.append(
                HandFile(
                    path,
                    DataFileContent.POSITION_DELETES,
                    None,
                    first.spec_id,
                    first.partition,
                    self.local(path).stat().st_size,
                    len(pairs),
                    positions=dict(group),
                )
            )
        return made

    def write_vectors(self, positions: Mapping[str, set[int]]) -> list[HandFile]:
        """Write one Puffin file with a vector of all deleted rows of each data file."""
        path = f"{self.location}/data/{self._random.getrandbits(64):016x}.puffin"
        raw, blobs, made = b"PFA1", [], []
        for name, rows in positions.items():
            file = self.files[name]
            whole = rows | self.deleted(name)
            blob = vector_blob(whole)
            blobs.append(_blob_metadata(name, len(whole), len(raw), len(blob)))
            made.append(
                HandFile(
                    path,
                    DataFileContent.POSITION_DELETES,
                    None,
                    file.spec_id,
                    file.partition,
                    0,
                    len(whole),
                    positions={name: whole},
                    referenced=name,
                    offset=len(raw),
                    length=len(blob),
                    format=FileFormat.PUFFIN,
                )
            )
            raw += blob
        payload = json.dumps({"blobs": blobs, "properties": {}}).encode()
        raw += b"PFA1" + payload + len(payload).to_bytes(4, "little") + bytes(4) + b"PFA1"
        self.local(path).write_bytes(raw)
        for file in made:
            file.size = len(raw)
        return made

    def deleted(self, path: str) -> set[int]:
        """Return the deleted positions of a data file."""
        file = self.files[path]
        assert file.sequence is not None
        return set().union(
            *(
                found.positions.get(path, ())
                for found in self.deletes
                if found.sequence is not None and found.sequence >= file.sequence
            )
        )

    def rows(self) -> list[Row]:
        """Return the live rows."""
        return [
            row
            for path in sorted(self.files)
            for at, row in enumerate(self.files[path].rows)
            if at not in self.deleted(path)
        ]

    def commit(
        self,
        added: Sequence[HandFile] = (),
        removed: Iterable[str] = (),
        replaced: Sequence[HandFile] = (),
        *,
        merge: bool = False,
        branch: str = "main",
        keep_sequence: int | None = None,
    ) -> int:
        """Make a snapshot: add files, remove data files and delete files; write all manifests anew if `merge`."""
        self.sequence += 1 if self.version > 1 else 0
        number = self._random.getrandbits(62)
        gone = {*removed, *(id(file) for file in replaced)}
        before = [*self.files.values(), *self.deletes]
        changed = {file.manifest for file in before if file.path in gone or id(file) in gone}
        manifests = [m for m in self.manifests if m.manifest_path not in changed and not merge]
        for content in (DataFileContent.DATA, DataFileContent.POSITION_DELETES):
            is_data = content == DataFileContent.DATA
            rest = [
                file
                for file in before
                if (file.content == DataFileContent.DATA) == is_data and (merge or file.manifest in changed)
            ]
            for spec_id in sorted({file.spec_id for file in rest}):
                old = [file for file in rest if file.spec_id == spec_id]
                entries = [
                    (self._entry(file, number, deleted=file.path in gone or id(file) in gone), file) for file in old
                ]
                manifests.append(self._manifest(entries, spec_id, number, is_data=is_data))
            fresh = [file for file in added if (file.content == DataFileContent.DATA) == is_data]
            for spec_id in sorted({file.spec_id for file in fresh}):
                entries = [
                    (self._entry(file, number, is_new=True, sequence=keep_sequence), file)
                    for file in fresh
                    if file.spec_id == spec_id
                ]
                manifests.append(self._manifest(entries, spec_id, number, is_data=is_data))
        for file in added:
            file.sequence = self.sequence if keep_sequence is None else keep_sequence
        for path in removed:
            del self.files[path]
        self.deletes = [file for file in self.deletes if id(file) not in gone]
        self.files.update({file.path: file for file in added if file.content == DataFileContent.DATA})
        self.deletes += [file for file in added if file.content != DataFileContent.DATA]
        self.manifests = manifests
        listed = f"{self.location}/metadata/snap-{number}-0-{uuid.UUID(int=self._random.getrandbits(128))}.avro"
        self._write_avro(listed, manifests, MANIFEST_LIST_FILE_SCHEMAS[self.version], "manifest_file", {})
        made: dict[str, Any] = {
            "snapshot-id": number,
            "sequence-number": self.sequence,
            "timestamp-ms": 1_600_000_000_000 + self.metadata_version,
            "manifest-list": listed,
            "schema-id": self.schema.schema_id,
            "summary": {
                "operation": "overwrite",
                "total-data-files": str(len(self.files)),
                "total-delete-files": str(len(self.deletes)),
            },
        }
        if self.version >= 3:
            made |= {"first-row-id": 0, "added-rows": 0}
        if self.version == 1:
            del made["sequence-number"]
        self._snapshots.append(made)
        self.refs[branch] = {"snapshot-id": number, "type": "branch"}
        self.snapshots.append(HandSnapshot(number, self.schema.schema_id, self.rows()))
        self.write_metadata()
        return number

    def tag(self, name: str, number: int) -> None:
        self.refs[name] = {"snapshot-id": number, "type": "tag"}
        self.write_metadata()

    def _entry(
        self,
        file: HandFile,
        number: int,
        *,
        is_new: bool = False,
        deleted: bool = False,
        sequence: int | None = None,
    ) -> ManifestEntry:
        status = ManifestEntryStatus.ADDED if is_new else ManifestEntryStatus.EXISTING
        arguments: dict[str, Any] = {
            "file_path": file.path,
            "file_format": file.format,
            "partition": file.partition,
            "record_count": file.count,
            "file_size_in_bytes": file.size,
            "column_sizes": {},
            "value_counts": {},
            "null_value_counts": {},
            "nan_value_counts": {},
            "lower_bounds": {},
            "upper_bounds": {},
            "split_offsets": [4],
            "sort_order_id": None,
        }
        if self.bounds and file.positions and file.format is FileFormat.PARQUET:
            low, high = min(file.positions), max(file.positions)
            if self.bounds == "truncated":
                low, high = low[:16], high[:15] + chr(ord(high[15]) + 1)
            rows = set().union(*file.positions.values())
            ends = ((low, min(rows)), (high, max(rows)))
            arguments["lower_bounds"], arguments["upper_bounds"] = (
                {2147483546: path.encode(), 2147483545: row.to_bytes(8, "little")} for path, row in ends
            )
        if self.version == 1:
            arguments["block_size_in_bytes"] = 1
        else:
            arguments |= {"content": file.content, "equality_ids": file.equality_ids}
        if self.version >= 3:
            arguments |= {
                "referenced_data_file": file.referenced,
                "content_offset": file.offset,
                "content_size_in_bytes": file.length,
            }
        made: dict[str, Any] = {
            "status": ManifestEntryStatus.DELETED if deleted else status,
            "snapshot_id": number,
            "data_file": DataFile.from_args(_table_format_version=self.version, **arguments),
        }
        if self.version > 1:
            made |= {
                "sequence_number": sequence if is_new else file.sequence,
                "file_sequence_number": None if is_new else file.sequence,
            }
        return ManifestEntry.from_args(_table_format_version=self.version, **made)

    def _manifest(
        self, entries: Sequence[tuple[ManifestEntry, HandFile]], spec_id: int, number: int, *, is_data: bool
    ) -> ManifestFile:
        spec = self.specs[spec_id]
        path = f"{self.location}/metadata/{self._random.getrandbits(64):016x}-m0.avro"
        schema = manifest_entry_schema_with_data_file(
            self.version, data_file_with_partition(spec.partition_type(self._schema_of(spec)), self.version)
        )
        about = {
            "schema": self.schema.model_dump_json(),
            "partition-spec": json.dumps([part.model_dump(by_alias=True, mode="json") for part in spec.fields]),
            "partition-spec-id": str(spec_id),
            "format-version": str(self.version),
            "content": "data" if is_data else "deletes",
        }
        self._write_avro(path, [entry for entry, _ in entries], schema, "manifest_entry", about)
        counts = {"added": [0, 0], "existing": [0, 0], "deleted": [0, 0]}
        for entry, file in entries:
            kind = {0: "existing", 1: "added", 2: "deleted"}[entry.status.value]
            counts[kind][0] += 1
            counts[kind][1] += file.count
            if kind != "deleted":
                file.manifest = path
        arguments: dict[str, Any] = {
            "manifest_path": path,
            "manifest_length": self.local(path).stat().st_size,
            "partition_spec_id": spec_id,
            "added_snapshot_id": number,
            "partitions": [PartitionFieldSummary(True, None, None, None) for _ in spec.fields],
            "key_metadata": None,
        }
        for kind, (files, rows) in counts.items():
            arguments |= {f"{kind}_files_count": files, f"{kind}_rows_count": rows}
        if self.version > 1:
            arguments |= {
                "content": ManifestContent.DATA if is_data else ManifestContent.DELETES,
                "sequence_number": self.sequence,
                "min_sequence_number": min((f.sequence for _, f in entries if f.sequence is not None), default=0),
            }
        if self.version >= 3:
            arguments["first_row_id"] = 0 if is_data else None
        return ManifestFile.from_args(_table_format_version=self.version, **arguments)

    def _schema_of(self, spec: PartitionSpec) -> Schema:
        """Return the newest schema that has all columns of a spec."""
        for schema in reversed(self.schemas):
            known = {found.field_id for found in schema.fields}
            if all(part.source_id in known for part in spec.fields):
                return schema
        raise AssertionError(spec)

    def _write_avro(self, path: str, records: Sequence[Any], schema: Schema, name: str, about: dict[str, str]) -> None:
        output = self.io.new_output(str(self.local(path)))
        with AvroOutputFile[Any](output, schema, name, metadata={**about, "avro.codec": "deflate"}) as writer:
            writer.write_block(list(records))

    def metadata(self) -> dict[str, Any]:
        main = self.refs.get("main")
        made: dict[str, Any] = {
            "format-version": self.version,
            "table-uuid": self.uuid,
            "location": self.location,
            "last-updated-ms": 1_600_000_000_000 + self.metadata_version,
            "last-column-id": self.last_column,
            "current-schema-id": self.schema.schema_id,
            "schemas": [json.loads(schema.model_dump_json()) for schema in self.schemas],
            "default-spec-id": self.specs[-1].spec_id,
            "partition-specs": [json.loads(spec.model_dump_json()) for spec in self.specs],
            "last-partition-id": self.last_partition,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": self.properties,
            "current-snapshot-id": None if main is None else main["snapshot-id"],
            "refs": self.refs,
            "snapshots": self._snapshots,
            "snapshot-log": [],
            "metadata-log": [],
        }
        if self.version > 1:
            made["last-sequence-number"] = self.sequence
        else:
            made |= {"schema": made["schemas"][-1], "partition-spec": made["partition-specs"][-1]["fields"]}
        if self.version >= 3:
            made["next-row-id"] = 0
        return made

    def write_metadata(self, **changes: Any) -> Path:
        self.metadata_version += 1
        path = self.root / "metadata" / f"v{self.metadata_version}.metadata.json"
        path.write_text(json.dumps(self.metadata() | changes))
        (self.root / "metadata" / "version-hint.text").write_text(str(self.metadata_version))
        return path

    @property
    def metadata_file(self) -> Path:
        return self.root / "metadata" / f"v{self.metadata_version}.metadata.json"

    def expected(self, snapshot: HandSnapshot | None = None, schema: Schema | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of a snapshot as values of a schema's columns, in any order."""
        snapshot = snapshot or self.snapshots[-1]
        schema = schema or self.schema
        defaults = {found.field_id: found.initial_default for found in schema.fields}
        return [
            tuple(
                _as_type(row.get(found.field_id, defaults[found.field_id]), found.field_type) for found in schema.fields
            )
            for row in snapshot.rows
        ]


_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001
_POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
)


def _internal(value: Any) -> Any:
    """Return a value as manifests hold it."""
    if isinstance(value, dt.datetime):
        return (value - _EPOCH) // dt.timedelta(microseconds=1)
    return (value - _EPOCH.date()).days if isinstance(value, dt.date) else value


def _as_type(value: Any, type_: IcebergType) -> Any:
    """Return a value of a column that was promoted as one of its new type."""
    if str(type_) == "timestamp" and isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return dt.datetime(value.year, value.month, value.day)  # noqa: DTZ001
    return value


def vector_blob(rows: Iterable[int]) -> bytes:
    """Return a blob of the type ``deletion-vector-v1``."""
    data = roaring_bytes(np.array(sorted(rows), np.int64))
    return len(data).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big")


def _blob_metadata(name: str, count: int, offset: int, length: int) -> dict[str, Any]:
    return {
        "type": "deletion-vector-v1",
        "fields": [2147483645],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": offset,
        "length": length,
        "properties": {"referenced-data-file": name, "cardinality": str(count)},
    }
