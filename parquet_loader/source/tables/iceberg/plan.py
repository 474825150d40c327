"""Finds the live data files of a snapshot, and the delete files and deletion vectors that apply to each.

The rules are those of "Scan Planning" in the format's specification. `pyiceberg` ignores the fields of version 3 and
reads all vectors of a Puffin file, so this package reads the manifests itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parquet_loader.common import in_threads
from parquet_loader.errors import SourceError
from parquet_loader.source.tables.iceberg.manifests import (
    DATA,
    EQUALITY_DELETES,
    ManifestEntry,
    ReadLocation,
    read_manifest,
    read_manifest_list,
)

# Threads that read manifests and delete files.
THREADS = 16, "parquet_loader-manifests"

_Key = tuple[int, tuple[Any, ...]]


@dataclass(slots=True)
class PlannedFile:
    """A live data file.

    Attributes:
        entry: Its entry.
        vector: The deletion vector that applies to it, or None.
        position_deletes: Delete files that may contain positions of it; empty if it has a vector.
    """

    entry: ManifestEntry
    vector: ManifestEntry | None = None
    position_deletes: list[ManifestEntry] = field(default_factory=list)


def plan_files(
    table: str,
    version: int,
    snapshot: Any,
    sequences: Mapping[int, int],
    unpartitioned: Collection[int],
    read: ReadLocation,
) -> tuple[list[PlannedFile], list[ManifestEntry]]:
    """Return the live data files of a snapshot, by path, and the positional deletes that apply to none of them.

    Args:
        table: The table's name for messages.
        version: The table's format version.
        snapshot: A `pyiceberg.table.snapshots.Snapshot`.
        sequences: The sequence numbers of the snapshots that the table still has, by their ids.
        unpartitioned: The ids of the partition specs without fields, or with fields of the transform ``void`` only.
        read: Reads a file of metadata.

    Raises:
        SourceError: the metadata cannot be read, is contradictory, or needs a feature that is not supported.
    """
    manifests = read_manifest_list(snapshot.manifest_list, snapshot.sequence_number or 0, sequences, read)
    if version == 1 and any(manifest.has_deletes for manifest in manifests):
        raise SourceError(
            f"{table}: the table has delete files, which format version 1 does not allow; the metadata is damaged"
        )
    data: list[ManifestEntry] = []
    deletes: list[ManifestEntry] = []
    for found in in_threads(lambda manifest: read_manifest(manifest, version, read), manifests, *THREADS):
        for entry in found:
            (data if entry.content == DATA else deletes).append(entry)
    _check_totals(table, snapshot, data, deletes)
    files: dict[str, PlannedFile] = {}
    for entry in data:
        if entry.format != "parquet":
            raise SourceError(
                f"{entry.location}: the data file is of the format {entry.format.upper()}; this library reads Parquet. "
                "Rewrite the table's data files as Parquet"
            )
        if entry.location in files:
            raise SourceError(f"{entry.location}: the snapshot names this data file twice; each row is delivered once")
        files[entry.location] = PlannedFile(entry)
    unused = _assign(table, version, files, deletes, unpartitioned) if deletes else []
    dangling = [delete for delete in deletes if delete.referenced is not None and delete.referenced not in files]
    return [files[location] for location in sorted(files)], dangling + unused


def key_of(entry: ManifestEntry) -> _Key:
    """Return the identity of an entry's partition: its spec and values."""
    return entry.spec_id, tuple("NaN" if _is_nan(value) else value for value in entry.partition)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _assign(
    table: str,
    version: int,
    files: Mapping[str, PlannedFile],
    deletes: Iterable[ManifestEntry],
    unpartitioned: Collection[int],
) -> list[ManifestEntry]:
    """Assign deletes to data files; return delete files that may name several data files but apply to none."""
    positions: dict[_Key, list[ManifestEntry]] = defaultdict(list)
    for delete in deletes:
        if delete.content == EQUALITY_DELETES:
            is_global = not delete.partition or delete.spec_id in unpartitioned
            _refuse_if_it_applies(table, delete, files.values(), is_global=is_global)
        elif delete.format == "puffin":
            _assign_vector(table, version, files, delete)
        elif delete.format == "parquet":
            positions[key_of(delete)].append(delete)
        else:
            raise SourceError(
                f"{delete.location}: the delete file is of the format {delete.format.upper()}; this library reads "
                "Parquet and Puffin. Rewrite the delete files, such as with Spark's rewrite_position_delete_files"
            )
    if positions:
        for file in files.values():
            if file.vector is None:
                entry = file.entry
                file.position_deletes = [
                    delete
                    for delete in positions.get(key_of(entry), ())
                    if entry.sequence_number <= delete.sequence_number and delete.referenced in (None, entry.location)
                ]
    named = [delete for found in positions.values() for delete in found]
    for delete in named:
        if delete.referenced is not None and delete.referenced in files:
            check_partition(delete, files[delete.referenced])
    used = {delete.location for file in files.values() for delete in file.position_deletes}
    return [delete for delete in named if delete.referenced is None and delete.location not in used]


def check_partition(delete: ManifestEntry, file: PlannedFile) -> None:
    """Refuse a delete file that names rows of a data file of another partition."""
    entry = file.entry
    if file.vector is None and entry.sequence_number <= delete.sequence_number and key_of(entry) != key_of(delete):
        raise SourceError(
            f"{delete.location}: the delete file names rows of {entry.location}, which is of another partition; "
            "the table's metadata are damaged"
        )


def _assign_vector(table: str, version: int, files: Mapping[str, PlannedFile], vector: ManifestEntry) -> None:
    if version < 3:
        raise SourceError(f"{table}: the table has a deletion vector, which format version {version} does not allow")
    if vector.referenced is None or vector.offset is None or vector.length_bytes is None:
        raise SourceError(
            f"{vector.location}: the entry of a deletion vector lacks referenced_data_file, content_offset or "
            "content_size_in_bytes"
        )
    file = files.get(vector.referenced)
    if file is None or file.entry.sequence_number > vector.sequence_number:
        return  # the data file is gone, or was added again since
    if file.vector is not None:
        raise SourceError(f"{vector.referenced}: the data file has two deletion vectors; the format allows one")
    if key_of(vector) != key_of(file.entry):
        raise SourceError(f"{vector.referenced}: the data file and its deletion vector are of different partitions")
    file.vector = vector


def _refuse_if_it_applies(table: str, delete: ManifestEntry, files: Iterable[PlannedFile], *, is_global: bool) -> None:
    for file in files:
        entry = file.entry
        if entry.sequence_number < delete.sequence_number and (is_global or key_of(entry) == key_of(delete)):
            raise SourceError(
                f"{table}: the snapshot has equality deletes, such as {delete.location}, which this library does not "
                "apply; rewrite the table's data files, such as with Spark's rewrite_data_files with "
                "delete-file-threshold 1, or read a snapshot without them by snapshot_id="
            )


_TOTALS = (("total-data-files", "data files"), ("total-delete-files", "delete files"))


def _check_totals(table: str, snapshot: Any, data: Sequence[ManifestEntry], deletes: Sequence[ManifestEntry]) -> None:
    """Refuse a manifest list with fewer files than the snapshot's summary counts.

    More files than in the summary are legal, because not every writer counts all files.
    """
    summary = snapshot.summary
    for (name, what), found in zip(_TOTALS, (len(data), len(deletes)), strict=True):
        told = None if summary is None else summary.get(name)
        if told is not None and str(told).isdecimal() and int(told) > found:
            raise SourceError(
                f"{table}: the manifests of snapshot {snapshot.snapshot_id} hold {found} {what}, but its summary "
                f"says {told}; the metadata is damaged"
            )
