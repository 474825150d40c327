"""Serialises a snapshot for other ranks and worker processes: JSON, Arrow schemas and plain arrays, no pickle."""

from __future__ import annotations

import io
import json
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import RemoteOptions
from parquet_loader.source.files import ListingContext, SourceFile
from parquet_loader.source.footers import FooterCache
from parquet_loader.source.remote.remote_filesystem import RemoteStore, store_of
from parquet_loader.source.snapshot import Snapshot
from parquet_loader.source.tables.deleted_rows import DeletedRows
from parquet_loader.source.tables.deletes import deletes_of
from parquet_loader.source.tables.names import FooterNames, Names
from parquet_loader.source.tables.table_version import TableInfo

# The snapshot cache reads a source again if its manifest has no array of one of these names.
_ARRAYS = (
    "file_schema",
    "file_digest",
    "row_group_file",
    "row_group_number",
    "row_group_rows",
    "row_group_bytes",
    "row_group_unencoded_bytes",
)


def dump_snapshot(snapshot: Snapshot) -> bytes:
    """Serialise a snapshot without its footers, which are read again when they are needed."""
    files = [[f.path, f.size_bytes, f.mtime_ns, f.partitions, f.etag, f.prefix] for f in snapshot.files]
    schemas = [schema.serialize().to_pybytes() for schema in (*snapshot.schemas, snapshot.partition_schema)]
    table = {} if snapshot.table is None else _dump_table(snapshot, snapshot.table)
    arrays: dict[str, Any] = {name: getattr(snapshot, name) for name in _ARRAYS}
    context = snapshot.listing_context
    listing_context = [context.directories, sorted(context.hidden), context.root]
    arrays["beside"] = np.frombuffer(json.dumps(listing_context).encode(), np.uint8)
    arrays["files"] = np.frombuffer(zlib.compress(json.dumps(files).encode(), 1), np.uint8)
    arrays |= {name: np.frombuffer(data, np.uint8) for name, data in table.items()}
    for number, schema in enumerate(schemas):
        arrays[f"schema_{number}"] = np.frombuffer(schema, np.uint8)
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def load_snapshot(data: bytes, filesystem: pafs.FileSystem, remote: RemoteOptions | None = None) -> Snapshot:
    """Deserialise a snapshot of files in `filesystem`."""
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        entries = json.loads(zlib.decompress(stored["files"].tobytes()))
        directories, hidden, *root = json.loads(stored["beside"].tobytes())
        arrays = {name: stored[name] for name in _ARRAYS}
        count = sum(name.startswith("schema_") for name in stored.files)
        table = {name: stored[name].tobytes() for name in stored.files if name.startswith("table_")}
        schemas = [pa.ipc.read_schema(pa.py_buffer(stored[f"schema_{n}"].tobytes())) for n in range(count)]
    files = tuple(
        SourceFile(path, size, mtime, tuple((key, value) for key, value in partitions), etag, *prefix)
        for path, size, mtime, partitions, etag, *prefix in entries  # older versions stored no prefix
    )
    store = store_of(filesystem, remote or RemoteOptions())
    parts, names = _load_table(table, files, filesystem, store) if table else ({}, None)
    if parts:
        files = tuple(replace(file, if_gone=parts["table"].if_gone) for file in files)
    return Snapshot(
        filesystem=filesystem,
        files=files,
        schemas=tuple(schemas[:-1]),
        partition_schema=schemas[-1],
        footers=FooterCache(filesystem, files, arrays["file_digest"], store, names),
        remote=store,
        listing_context=ListingContext(tuple(directories), frozenset(hidden), *root),  # an older version kept no root
        **arrays,
        **parts,
    )


def _dump_table(snapshot: Snapshot, table: TableInfo) -> dict[str, bytes]:
    """Serialise the parts of a snapshot that describe its table."""
    names = snapshot.footers.names
    deletes = {} if snapshot.deleted is None else snapshot.deleted.by_file
    said = {
        "info": [table.format, table.root, table.version, table.reopen, table.removed],
        "names": None if names is None else names.to_json(),
        "deletes": [[file, found.to_json()] for file, found in deletes.items()],
    }
    found = {"table_json": zlib.compress(json.dumps(said).encode(), 1)}
    for number, schema in enumerate(snapshot.stored_schemas):
        found[f"table_stored_{number}"] = schema.serialize().to_pybytes()
    if table.schema is not None:
        found["table_schema"] = table.schema.serialize().to_pybytes()
    if snapshot.row_group_alive is not None:
        found["table_alive"] = snapshot.row_group_alive.astype("<i8").tobytes()
    if snapshot.constants is not None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, snapshot.constants.schema) as writer:
            writer.write_table(snapshot.constants)
        found["table_constants"] = sink.getvalue().to_pybytes()
    return found


def _load_table(
    found: dict[str, bytes], files: tuple[SourceFile, ...], filesystem: pafs.FileSystem, store: RemoteStore | None
) -> tuple[dict[str, Any], FooterNames | None]:
    """Deserialise the result of `_dump_table`; return the parts of the snapshot, and the column names in files."""
    said = json.loads(zlib.decompress(found["table_json"]))
    schema = pa.ipc.read_schema(pa.py_buffer(found["table_schema"])) if "table_schema" in found else None
    format_, root, version, reopen, removed = said["info"]
    parts: dict[str, Any] = {"table": TableInfo(format_, root, version, reopen, schema, removed)}
    count = sum(name.startswith("table_stored_") for name in found)
    parts["stored_schemas"] = tuple(
        pa.ipc.read_schema(pa.py_buffer(found[f"table_stored_{number}"])) for number in range(count)
    )
    if "table_alive" in found:
        parts["row_group_alive"] = np.frombuffer(found["table_alive"], "<i8").astype(np.int64)
    if "table_constants" in found:
        parts["constants"] = pa.ipc.open_stream(found["table_constants"]).read_all()
    if said["deletes"]:
        by_file = {file: deletes_of(deletes) for file, deletes in said["deletes"]}
        parts["deleted"] = DeletedRows(by_file, files, filesystem, store)
    return parts, None if said["names"] is None else FooterNames(Names.from_json(said["names"]))
