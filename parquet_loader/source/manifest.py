"""Serialises a snapshot for other ranks and worker processes: JSON, Arrow schemas and plain arrays, no pickle."""

from __future__ import annotations

import io
import json
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import RemoteOptions
from parquet_loader.source.files import ListingContext, SourceFile
from parquet_loader.source.footers import FooterCache
from parquet_loader.source.remote.remote_filesystem import store_of
from parquet_loader.source.snapshot import Snapshot

_ARRAYS = ("file_schema", "file_digest", "row_group_file", "row_group_number", "row_group_rows", "row_group_bytes")


def dump_snapshot(snapshot: Snapshot) -> bytes:
    """Return a snapshot without its footers, which are read again when they are needed."""
    files = [[f.path, f.size_bytes, f.mtime_ns, f.partitions, f.etag, f.prefix] for f in snapshot.files]
    schemas = [schema.serialize().to_pybytes() for schema in (*snapshot.schemas, snapshot.partition_schema)]
    arrays: dict[str, Any] = {name: getattr(snapshot, name) for name in _ARRAYS}
    listing_context = [snapshot.listing_context.directories, sorted(snapshot.listing_context.hidden)]
    arrays["beside"] = np.frombuffer(json.dumps(listing_context).encode(), np.uint8)
    arrays["files"] = np.frombuffer(zlib.compress(json.dumps(files).encode(), 1), np.uint8)
    for number, schema in enumerate(schemas):
        arrays[f"schema_{number}"] = np.frombuffer(schema, np.uint8)
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def load_snapshot(data: bytes, filesystem: pafs.FileSystem, remote: RemoteOptions | None = None) -> Snapshot:
    """Return the snapshot whose bytes these are, of files in `filesystem`."""
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        entries = json.loads(zlib.decompress(stored["files"].tobytes()))
        directories, hidden = json.loads(stored["beside"].tobytes())
        arrays = {name: stored[name] for name in _ARRAYS}
        count = sum(name.startswith("schema_") for name in stored.files)
        schemas = [pa.ipc.read_schema(pa.py_buffer(stored[f"schema_{n}"].tobytes())) for n in range(count)]
    files = tuple(
        SourceFile(path, size, mtime, tuple((key, value) for key, value in partitions), etag, *prefix)
        for path, size, mtime, partitions, etag, *prefix in entries  # no prefix in what an older version kept
    )
    store = store_of(filesystem, remote or RemoteOptions())
    return Snapshot(
        filesystem=filesystem,
        files=files,
        schemas=tuple(schemas[:-1]),
        partition_schema=schemas[-1],
        footers=FooterCache(filesystem, files, arrays["file_digest"], store),
        remote=store,
        listing_context=ListingContext(tuple(directories), frozenset(hidden)),
        **arrays,
    )
