"""Reads positional delete files, each once, and assigns their positions to data files."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from parquet_loader.common import IntArray, in_threads
from parquet_loader.errors import SourceError
from parquet_loader.source.file_schema import MetadataError
from parquet_loader.source.footer_reading import footer_length
from parquet_loader.source.metadata import Metadata
from parquet_loader.source.statistics import bounds_of
from parquet_loader.source.tables.deletes import Deletes, InlineVector, Vector, roaring_bytes
from parquet_loader.source.tables.iceberg.locations import TableStore
from parquet_loader.source.tables.iceberg.manifests import ManifestEntry
from parquet_loader.source.tables.iceberg.plan import THREADS, PlannedFile, check_partition

_FRAME_BYTES = 8  # a vector's size and checksum
_PUFFIN = b"PFA1"
_PATH_ID, _POSITION_ID = 2147483546, 2147483545  # the format's field ids


def deletes_by_file(table: str, planned: Sequence[PlannedFile], store: TableStore) -> dict[str, Deletes]:
    """Return the deleted rows of each data file that may have some, by its location.

    Vectors are not read until they are needed. Positional delete files, which may hold positions of many data files,
    are read here, and their positions are kept in compressed form.

    Raises:
        SourceError: a delete file cannot be read, or names rows that do not exist.
    """
    found: dict[str, Deletes] = {}
    wanted: dict[str, tuple[ManifestEntry, list[PlannedFile]]] = {}
    for file in planned:
        if file.vector is not None:
            vector = file.vector
            assert vector.offset is not None
            assert vector.length_bytes is not None
            path = store.path_of(vector.location)
            found[file.entry.location] = Vector(path, vector.offset, vector.length_bytes - _FRAME_BYTES, vector.rows)
        for delete in file.position_deletes:
            wanted.setdefault(delete.location, (delete, []))[1].append(file)
    parts: dict[str, list[IntArray]] = defaultdict(list)
    live = {file.entry.location: file for file in planned} if wanted else {}
    found_positions = in_threads(lambda pair: _positions(pair[0], store), list(wanted.values()), *THREADS)
    for (delete, applies), positions in zip(wanted.values(), found_positions, strict=True):
        allowed = {file.entry.location for file in applies}
        for location, rows in positions.items():
            if location in allowed:
                parts[location].append(rows)
            elif location in live and delete.referenced is None:
                check_partition(delete, live[location])
    for location, arrays in parts.items():
        rows = np.unique(np.concatenate(arrays))
        most = live[location].entry.rows
        if rows[0] < 0 or rows[-1] >= most:
            raise SourceError(
                f"{table}: delete files name row {rows[0] if rows[0] < 0 else rows[-1]} of {location}, which has "
                f"{most} rows"
            )
        found[location] = InlineVector(roaring_bytes(rows), len(rows))
    return found


def check_dangling(deletes: Sequence[ManifestEntry], planned: Sequence[PlannedFile], store: TableStore) -> None:
    """Check that deletes without a data file name only data files that are gone or newer.

    Such deletes are legal. But a damaged manifest would look the same, and deleted rows would be delivered.

    Raises:
        SourceError: they name another data file, or cannot be read.
    """
    live = {file.entry.location: file for file in planned} if deletes else {}
    names = sorted(location.encode() for location in live)
    by_file: dict[str, list[ManifestEntry]] = defaultdict(list)
    for delete in deletes:
        by_file[delete.location].append(delete)

    def check(found: list[ManifestEntry]) -> None:
        if found[0].format == "puffin":
            _check_blobs(found, store.read(found[0].location))
        elif found[0].referenced is not None:
            _positions(found[0], store)
        elif _may_name(found[0], names):
            for location in live.keys() & _positions(found[0], store).keys():
                check_partition(found[0], live[location])

    in_threads(check, list(by_file.values()), *THREADS)


def _may_name(delete: ManifestEntry, names: Sequence[bytes]) -> bool:
    """Whether a data file's location is within the manifest's bounds of a delete file's column of locations."""
    lower, upper = delete.lower.get(_PATH_ID), delete.upper.get(_PATH_ID)
    at = 0 if lower is None else bisect_left(names, lower)
    return at < len(names) and (upper is None or names[at] <= upper)


def _check_blobs(vectors: Sequence[ManifestEntry], raw: bytes) -> None:
    where = vectors[0].location
    size = int.from_bytes(raw[-12:-8], "little")
    if raw[-4:] != _PUFFIN or size + 16 > len(raw):
        raise SourceError(f"{where}: it does not end like a Puffin file; it is damaged")
    if raw[-8] & 1:
        return  # a compressed footer, which no known writer writes
    try:
        blobs = json.loads(raw[-12 - size : -12])["blobs"]
        named = {int(blob["offset"]): blob["properties"]["referenced-data-file"] for blob in blobs}
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(f"{where}: the footer of the Puffin file is damaged: {error}") from error
    for vector in vectors:
        if named.get(vector.offset or 0) != vector.referenced:
            raise SourceError(
                f"{where}: the vector at {vector.offset} is of {named.get(vector.offset or 0)}, but the manifest says "
                f"{vector.referenced}; the table's metadata are damaged"
            )


def _positions(delete: ManifestEntry, store: TableStore) -> dict[str, IntArray]:
    """Return the positions in a delete file, by the location of their data file."""
    where = delete.location
    raw = store.read(where)
    if len(raw) != delete.size_bytes:
        raise SourceError(
            f"{where}: the delete file has {len(raw)} bytes, but the manifest says {delete.size_bytes}; it is damaged, "
            "or was replaced"
        )
    try:
        footer = Metadata(raw[-footer_length(raw, len(raw)) :], len(raw))
        for group in range(len(footer.row_group_rows)):
            for column in range(len(footer.paths)):
                footer.check(group, column)  # pyarrow crashes the process on some chunks that contradict the schema
        file = pq.ParquetFile(pa.BufferReader(raw), page_checksum_verification=True)
        rows = file.read(columns=["file_path", "pos"], use_threads=False)
        rows.validate(full=True)  # also checks that paths are UTF-8
    except (pa.ArrowException, MetadataError, OSError, ValueError, KeyError) as error:
        raise SourceError(f"{where}: not a readable delete file: {str(error).splitlines()[0]}") from error
    if rows.column_names != ["file_path", "pos"] or rows.num_rows != delete.rows:
        raise SourceError(
            f"{where}: the delete file has {rows.num_rows} rows of {rows.column_names}, but the manifest says "
            f"{delete.rows} of file_path and pos"
        )
    kinds = [rows[name].type for name in ("file_path", "pos")]
    if not (pa.types.is_string(kinds[0]) or pa.types.is_large_string(kinds[0])) or not pa.types.is_integer(kinds[1]):
        raise SourceError(
            f"{where}: file_path and pos of the delete file are {kinds[0]} and {kinds[1]}, not text and numbers"
        )
    if rows["file_path"].null_count or rows["pos"].null_count:
        raise SourceError(f"{where}: the delete file has rows without file_path or pos")
    paths = rows["file_path"].combine_chunks().dictionary_encode()
    positions = rows["pos"].cast(pa.int64()).to_numpy()
    numbers = pc.cast(paths.indices, pa.int64()).to_numpy()
    order = np.argsort(numbers, kind="stable")
    starts = np.searchsorted(numbers[order], np.arange(len(paths.dictionary) + 1))
    names = paths.dictionary.to_pylist()
    _check_bounds(delete, names, positions)
    ends = [int(positions.min()), int(positions.max())] if len(positions) else []
    for name, values in (("file_path", sorted(path.encode() for path in names)), ("pos", ends)):
        _check_statistics(delete, footer, name, values)
    return {name: positions[order[starts[at] : starts[at + 1]]] for at, name in enumerate(names)}


def _check_bounds(delete: ManifestEntry, paths: Sequence[str], positions: IntArray) -> None:
    """Refuse rows outside of the manifest's bounds.

    Otherwise a damaged path would look like that of a data file that is gone, which is legal.
    """
    if delete.referenced is not None and any(path != delete.referenced for path in paths):
        other = next(path for path in paths if path != delete.referenced)
        raise SourceError(
            f"{delete.location}: the delete file names rows of {other}, but the manifest says only of "
            f"{delete.referenced}; it is damaged"
        )
    # Writers compare code points or UTF-16 units; both give the same order for these paths.
    is_alike = max((max(path, default="") for path in paths), default="") < "\ud800"
    ends = [path.encode() for path in (min(paths), max(paths))] if paths and is_alike else []
    numbers = [int(positions.min()), int(positions.max())] if len(positions) else []
    lower, upper = delete.lower, delete.upper
    _check_range(delete, "file_path", ends, lower.get(_PATH_ID), upper.get(_PATH_ID))
    _check_range(delete, "pos", numbers, _number(lower.get(_POSITION_ID)), _number(upper.get(_POSITION_ID)))


def _check_statistics(delete: ManifestEntry, footer: Metadata, name: str, found: Sequence[Any]) -> None:
    """Refuse rows outside of the statistics in the delete file's own footer."""
    column = footer.paths.index(name)
    leaf, stored = footer.schema.leaves[column], footer.schema.stored.field(name).type
    groups = range(len(footer.row_group_rows))
    bounds = [bounds_of(footer, footer.check(group, column), leaf, stored) for group in groups]
    known = [pair for pair in bounds if pair is not None]
    if known and len(known) == len(bounds):
        low, high = min(pair[0] for pair in known), max(pair[1] for pair in known)
        _check_range(delete, name, found, low, high, "its footer")


def _check_range(
    delete: ManifestEntry, name: str, found: Sequence[Any], low: Any, high: Any, says: str = "the manifest"
) -> None:
    if found and ((low is not None and found[0] < low) or (high is not None and found[-1] > high)):
        raise SourceError(
            f"{delete.location}: the delete file has {name} from {found[0]!r} to {found[-1]!r}, but {says} says from "
            f"{low!r} to {high!r}; it is damaged"
        )


def _number(bound: bytes | None) -> int | None:
    return None if bound is None or len(bound) != 8 else int.from_bytes(bound, "little", signed=True)
