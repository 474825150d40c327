"""Reads manifest lists and manifests, and checks them against the files that refer to them.

Only fields that decide which rows a table has are read. Column statistics, most of a manifest, are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from parquet_loader.errors import SourceError
from parquet_loader.source.tables.iceberg.avro import (
    AvroError,
    AvroFile,
    Wanted,
    arrow_type_of,
    fields_of,
    read_avro,
)

EXISTING, ADDED, DELETED = 0, 1, 2
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
_CONTENTS = {DATA: "data", POSITION_DELETES: "position deletes", EQUALITY_DELETES: "equality deletes"}

# Field ids of the format, and the types of the required fields.
_PATH, _LENGTH, _SPEC, _LIST_CONTENT, _LIST_SEQUENCE, _LIST_LEAST = 500, 501, 502, 517, 515, 516
_LIST_ADDED, _LIST_KEY = 503, 519
_COUNTS = (504, 505, 506, 512, 513, 514)  # added, existing and deleted files, and rows of these
_OF_LIST: Wanted = dict.fromkeys(
    (_PATH, _LENGTH, _SPEC, _LIST_CONTENT, _LIST_SEQUENCE, _LIST_LEAST, _LIST_ADDED, *_COUNTS, _LIST_KEY)
)
_REQUIRED_OF_LIST = {_PATH: str, _LENGTH: int, _SPEC: int}
_OPTIONAL_OF_LIST = dict.fromkeys((_LIST_CONTENT, _LIST_SEQUENCE, _LIST_LEAST, _LIST_ADDED, *_COUNTS), int)

_STATUS, _DATA_FILE, _SEQUENCE = 0, 2, 3
_CONTENT, _FILE_PATH, _FORMAT, _PARTITION, _ROWS, _SIZE, _KEY = 134, 100, 101, 102, 103, 104, 131
_EQUALITY_IDS, _REFERENCED, _OFFSET, _CONTENT_SIZE = 135, 143, 144, 145
_LOWER, _LOWER_KEY, _LOWER_VALUE, _UPPER, _UPPER_KEY, _UPPER_VALUE = 125, 126, 127, 128, 129, 130
_REQUIRED_OF_ENTRY = {_STATUS: int, _DATA_FILE: dict}
_OPTIONAL_OF_ENTRY = {_SEQUENCE: int}
_REQUIRED_OF_FILE = {_FILE_PATH: str, _FORMAT: str, _PARTITION: dict, _ROWS: int, _SIZE: int}
_OPTIONAL_OF_FILE = {_CONTENT: int, _REFERENCED: str, _OFFSET: int, _CONTENT_SIZE: int}
_OF_ENTRY: Wanted = {
    _STATUS: None,
    _SEQUENCE: None,
    _DATA_FILE: dict.fromkeys((*_REQUIRED_OF_FILE, _CONTENT, _KEY, _EQUALITY_IDS, _REFERENCED, _OFFSET, _CONTENT_SIZE)),
}

# Statistics are read for delete files only, and compared with the rows; those of data files are large.
_OF_DELETES: Wanted = {**_OF_ENTRY, _DATA_FILE: {**_OF_ENTRY[_DATA_FILE], _LOWER: None, _UPPER: None}}

ReadLocation = Callable[[str], bytes]
"""Returns the bytes of the file at a location in metadata. Raises `SourceError` if it cannot be read."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """An entry of a manifest list.

    Attributes:
        location, length_bytes: The manifest file.
        spec_id: The partition spec of its files.
        has_deletes: Whether it lists delete files, else data files.
        sequence_number: Inherited by files that were added with it; 0 in tables of version 1.
        least_sequence_number: No live file has a smaller one; 0 if it is not stated.
        snapshot_id: The snapshot that added it to the table, or None.
        counts: Added, existing and deleted files, and rows of these, in this order; None if not stated.
    """

    location: str
    length_bytes: int
    spec_id: int
    has_deletes: bool
    sequence_number: int
    least_sequence_number: int
    snapshot_id: int | None
    counts: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """A live file of a snapshot.

    Attributes:
        location, size_bytes, format, rows: The file.
        content: `DATA`, `POSITION_DELETES` or `EQUALITY_DELETES`.
        sequence_number: Its data sequence number.
        spec_id: Its partition spec.
        partition: The values of its partition, in the order of `partition_types`.
        partition_types: The field ids of its partition, and their types in the manifest.
        referenced: The location of the only data file to which its deletes apply, or None.
        offset, length_bytes: Offset and size of a deletion vector in its file, or None.
        lower, upper: The bounds of a delete file's columns, in their stored form, by field id.
    """

    location: str
    size_bytes: int
    format: str
    rows: int
    content: int
    sequence_number: int
    spec_id: int
    partition: tuple[Any, ...]
    partition_types: tuple[tuple[int, pa.DataType], ...]
    referenced: str | None
    offset: int | None
    length_bytes: int | None
    lower: Mapping[int, bytes] = field(default_factory=dict)
    upper: Mapping[int, bytes] = field(default_factory=dict)


def read_manifest_list(location: str, newest: int, sequences: Mapping[int, int], read: ReadLocation) -> list[Manifest]:
    """Return the manifests of a snapshot.

    Args:
        location: The list.
        newest: The snapshot's sequence number.
        sequences: The sequence numbers of the snapshots that the table still has, by their ids.
        read: Reads it.

    Raises:
        SourceError: the list cannot be read or contradicts the snapshots, or a manifest is encrypted.
    """
    found: list[Manifest] = []
    for record in _read(location, read(location), _OF_LIST).records:
        _given(record, _REQUIRED_OF_LIST, _OPTIONAL_OF_LIST, location)
        path, content, key = record[_PATH], record.get(_LIST_CONTENT), record.get(_LIST_KEY)
        if key is not None:
            raise SourceError(f"{path}: the manifest is encrypted, which this library does not read")
        if content not in (None, 0, 1):
            raise SourceError(f"{location}: {path}: the manifest's content is {content}; expected 0 or 1")
        found.append(
            Manifest(
                location=path,
                length_bytes=record[_LENGTH],
                spec_id=record[_SPEC],
                has_deletes=content == 1,
                sequence_number=record.get(_LIST_SEQUENCE) or 0,
                least_sequence_number=record.get(_LIST_LEAST) or 0,
                snapshot_id=record.get(_LIST_ADDED),
                counts=tuple(map(record.get, _COUNTS)),
            )
        )
        _check_sequence(location, found[-1], newest, sequences)
    return found


def _check_sequence(location: str, manifest: Manifest, newest: int, sequences: Mapping[int, int]) -> None:
    """Refuse a wrong sequence number, which would make deletes apply to other files."""
    number, least = manifest.sequence_number, manifest.least_sequence_number
    expected = number if manifest.snapshot_id is None else sequences.get(manifest.snapshot_id, number)
    if not least <= number <= newest or number != expected:
        because = f"that of the snapshot {manifest.snapshot_id} is {expected}"
        if number == expected:
            because = f"its files begin with {least}, and that of the snapshot is {newest}"
        raise SourceError(
            f"{location}: the sequence number of the manifest {manifest.location} is {number}, but {because}; the "
            "metadata is damaged"
        )


def read_manifest(manifest: Manifest, version: int, read: ReadLocation) -> list[ManifestEntry]:
    """Return the live files of a manifest.

    Args:
        manifest: Its entry in the manifest list.
        version: The table's format version.
        read: Reads it.

    Raises:
        SourceError: it cannot be read, or contradicts its entry.
    """
    where = manifest.location
    raw = read(where)
    if len(raw) != manifest.length_bytes:
        raise SourceError(
            f"{where}: the manifest has {len(raw)} bytes, but the manifest list says "
            f"{manifest.length_bytes}; it is damaged, or was replaced"
        )
    avro = _read(where, raw, _OF_DELETES if manifest.has_deletes else _OF_ENTRY)
    _check_header(where, avro.about, manifest)
    types = _partition_types(where, avro.schema)
    entries: list[ManifestEntry] = []
    counts = [0] * 6
    for record in avro.records:
        _given(record, _REQUIRED_OF_ENTRY, _OPTIONAL_OF_ENTRY, where)
        status, file, sequence = record[_STATUS], record[_DATA_FILE], record.get(_SEQUENCE)
        _given(file, _REQUIRED_OF_FILE, _OPTIONAL_OF_FILE, where)
        if status not in (EXISTING, ADDED, DELETED):
            raise SourceError(f"{where}: an entry has the status {status}; expected 0, 1 or 2")
        path, rows, size, content = file[_FILE_PATH], file[_ROWS], file[_SIZE], file.get(_CONTENT) or DATA
        counts[(1, 0, 2)[status]] += 1
        counts[3 + (1, 0, 2)[status]] += rows
        if status == DELETED:
            continue
        if content not in _CONTENTS or manifest.has_deletes != (content != DATA):
            held = "delete files" if manifest.has_deletes else "data files"
            found = _CONTENTS.get(content, f"content {content}")
            raise SourceError(f"{where}: {path}: this is a manifest of {held}, but the entry is of {found}")
        if file.get(_KEY) is not None:
            raise SourceError(f"{path}: the file is encrypted, which this library does not read")
        if file.get(_EQUALITY_IDS) and content == DATA:
            raise SourceError(f"{where}: {path}: a data file has fields of equality deletes")
        if sequence is None:
            if status != ADDED and version > 1 and manifest.sequence_number:
                raise SourceError(f"{where}: {path}: an entry that is not new has no sequence number")
            sequence = manifest.sequence_number
        elif version > 1 and not manifest.least_sequence_number <= sequence <= (manifest.sequence_number or sequence):
            raise SourceError(
                f"{where}: {path}: the sequence number is {sequence}, but the manifest list says from "
                f"{manifest.least_sequence_number} to {manifest.sequence_number}; it is damaged"
            )
        if rows < 0 or size < 0:
            raise SourceError(f"{where}: {path}: the file has {rows} rows and {size} bytes")
        entries.append(
            ManifestEntry(
                location=path,
                size_bytes=size,
                format=file[_FORMAT].lower(),
                rows=rows,
                content=content,
                sequence_number=sequence,
                spec_id=manifest.spec_id,
                partition=tuple(file[_PARTITION].get(number) for number, _ in types),
                partition_types=types,
                referenced=file.get(_REFERENCED),
                offset=file.get(_OFFSET),
                length_bytes=file.get(_CONTENT_SIZE),
                lower=_bounds(file, _LOWER, _LOWER_KEY, _LOWER_VALUE, where),
                upper=_bounds(file, _UPPER, _UPPER_KEY, _UPPER_VALUE, where),
            )
        )
    for found_count, told, what in zip(counts, manifest.counts, _COUNTED, strict=True):
        if told is not None and told != found_count:
            raise SourceError(
                f"{where}: the manifest has {found_count} {what}, but the manifest list says {told}; "
                "it is damaged, or was replaced"
            )
    return entries


def _check_header(location: str, about: Mapping[str, bytes], manifest: Manifest) -> None:
    """Compare the header of the manifest with the manifest list."""
    listed = {"partition-spec-id": str(manifest.spec_id), "content": "deletes" if manifest.has_deletes else "data"}
    for name, told in listed.items():
        own = about.get(name)
        if own is not None and own.decode(errors="replace") != told:
            raise SourceError(
                f"{location}: the manifest's {name} is {own.decode(errors='replace')}, but the manifest list says "
                f"{told}; it is damaged"
            )


_COUNTED = (
    *("files that were added", "files that existed", "files that are deleted"),
    *("rows that were added", "rows that existed", "rows that are deleted"),
)


def _bounds(file: Mapping[int, Any], column: int, key: int, value: int, location: str) -> Mapping[int, bytes]:
    try:
        return {int(pair[key]): bytes(pair[value]) for pair in file.get(column) or ()}
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise SourceError(f"{location}: the bounds of the file {file[_FILE_PATH]} are not understood") from error


def _read(location: str, raw: bytes, wanted: Wanted) -> AvroFile:
    try:
        return read_avro(raw, wanted)
    except AvroError as error:
        raise SourceError(f"{location}: not a readable Avro file of {len(raw)} bytes: {error}") from error


def _partition_types(location: str, schema: Any) -> tuple[tuple[int, pa.DataType], ...]:
    try:
        (file,) = (field for field in fields_of(schema) if field.field_id == _DATA_FILE)
        (partition,) = (field for field in fields_of(file.schema) if field.field_id == _PARTITION)
        return tuple((field.field_id, arrow_type_of(field.schema)) for field in fields_of(partition.schema))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"{location}: the partition of the manifest's files is not understood: {error}") from error


def _given(
    record: Mapping[int, Any], required: Mapping[int, type], optional: Mapping[int, type], location: str
) -> None:
    """Raise `SourceError` if a required field is missing, or a field has another type."""
    for number, kind in required.items():
        if not isinstance(record.get(number), kind):
            raise SourceError(f"{location}: an entry has no field {number} of the type {kind.__name__}")
    for number, kind in optional.items():
        if not isinstance(record.get(number), kind | None):
            raise SourceError(f"{location}: the field {number} of an entry is not of the type {kind.__name__}")
