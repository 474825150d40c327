"""Opens a snapshot: lists a source, or a version of a table, and reads all footers, several at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import IntArray, RemoteOptions, hub_of, in_threads
from parquet_loader.source.files import Lister, ListingContext, SourceFile
from parquet_loader.source.footers import FooterCache, same_content
from parquet_loader.source.listing import FoundTableError, Selection, Source, list_files
from parquet_loader.source.local import LocalLister
from parquet_loader.source.metadata import Metadata
from parquet_loader.source.named_splits import ALL
from parquet_loader.source.remote.fetcher import Fetcher
from parquet_loader.source.remote.listers import lister_for
from parquet_loader.source.remote.remote_filesystem import RemoteStore, store_of
from parquet_loader.source.remote.task_group import side_by_side
from parquet_loader.source.snapshot import Snapshot
from parquet_loader.source.tables.deleted_rows import DeletedRows
from parquet_loader.source.tables.hub_commits import HUB, HubSource, commits_of
from parquet_loader.source.tables.names import FooterNames
from parquet_loader.source.tables.recognised import local_table, table_source_of
from parquet_loader.source.tables.resolved import (
    alive_rows,
    check_rows,
    constants_of,
    footer_names,
    of_split,
    root_of,
    source_files,
    table_schemas,
)
from parquet_loader.source.tables.table_version import TableSource, TableVersion, VersionedSource

_AT_ONCE = 16  # most footers that a thread reads as one task


@dataclass(slots=True)
class _FileFooters:
    """One file's part of a snapshot."""

    rows: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    unencoded: list[int] = field(default_factory=list)
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))  # for a file of a table, the stored schema


def open_snapshot(
    source: Source | VersionedSource,
    filesystem: Any = None,
    remote: RemoteOptions | None = None,
    known: Snapshot | None = None,
    record: Callable[[int, bytes], None] | None = None,
    selection: Selection | None = None,
) -> Snapshot:
    """List a source and read all its footers, several at a time.

    Args:
        source: As in `BatchedDataLoader`.
        filesystem: As in `BatchedDataLoader`.
        remote: How remote files are fetched.
        known: An earlier snapshot; footers of files that have not changed since are not read again.
        record: Called with the number of each file whose footer is read, and the footer's bytes.
        selection: Which of the files are read.

    Raises:
        SourceError: see `list_files`, `read_footer` and `TableSource.open_version`; the message names the first file
            in order that fails.
    """
    settings = remote or RemoteOptions()
    chosen = selection or Selection()
    if isinstance(source, HubSource):
        source = source.address
    if not isinstance(source, VersionedSource):
        table = None if chosen.ignore_table_format or not chosen.reads_tables else local_table(source, filesystem)
        if table is None:
            try:
                return _open_listed(source, filesystem, settings, known, record, chosen)
            except FoundTableError as error:
                found = table_source_of(error.table.format, source) if error.is_all and chosen.reads_tables else None
                if found is None:
                    raise
                table = found
        source = table
    assert isinstance(source, TableSource)
    version = source.open_version(filesystem, settings)
    if chosen.split not in (None, ALL):
        version = of_split(version, str(chosen.split))
    return _open_table(version, settings, known, record)


def _open_listed(
    source: Source,
    filesystem: Any,
    settings: RemoteOptions,
    known: Snapshot | None,
    record: Callable[[int, bytes], None] | None,
    selection: Selection,
) -> Snapshot:
    with ExitStack() as stack:
        store: RemoteStore | None = None  # one for the listing, the footers and all epochs, which reuse its connections
        fetcher: Fetcher | None = None

        def lister_of(home: pafs.FileSystem) -> Lister:
            nonlocal store, fetcher
            store = store_of(home, settings)
            if store is None:
                return LocalLister()
            # Listings and footers are small, so latency dominates: start with all requests.
            fetcher = stack.enter_context(store.fetcher(settings.max_requests))
            return lister_for(store, fetcher, [] if known is None else [f.path for f in known.files])

        home, files, listing_context = list_files(source, filesystem, lister_of, selection)
        if known is not None and known.table is not None and known.table.format != HUB:
            known = None
        footers, examined = _all_examined(home, files, fetcher, store, known, record)
    schemas, file_schema = _distinct([e.schema for e in examined])
    return Snapshot(
        filesystem=home,
        files=files,
        schemas=schemas,
        file_schema=file_schema,
        **_arrays(footers, examined),
        partition_schema=_partition_schema(files),
        footers=footers,
        remote=footers.remote,
        listing_context=listing_context,
        table=None if hub_of(home) is None else commits_of([file.path for file in files]),
    )


def _open_table(
    version: TableVersion,
    settings: RemoteOptions,
    known: Snapshot | None,
    record: Callable[[int, bytes], None] | None,
) -> Snapshot:
    """Return the snapshot of a table version; the other arguments as in `open_snapshot`."""
    home, files, names = version.filesystem, source_files(version), footer_names(version)
    store = store_of(home, settings)
    if known is not None and not _has_columns_of(known, version, names):
        known = None
    with ExitStack() as stack:
        fetcher = None
        if store is not None:
            fetcher = stack.enter_context(store.fetcher(settings.max_requests))
        footers, examined = _all_examined(home, files, fetcher, store, known, record, names)
        check_rows(version, files, [sum(e.rows) for e in examined])
        arrays = _arrays(footers, examined)
        by_file = {number: f.deletes for number, f in enumerate(version.files) if f.deletes is not None}
        deleted = DeletedRows(by_file, files, home, store) if by_file else None
        alive = None
        if deleted is not None:
            alive = alive_rows(version, deleted, arrays["row_group_file"], arrays["row_group_rows"], fetcher)
    stored, file_schema = _distinct([e.schema for e in examined])
    firsts = [files[int((file_schema == number).argmax())] for number in range(len(stored))]
    schemas, own = table_schemas(version, stored, firsts)
    constants = constants_of(version, schemas)
    return Snapshot(
        filesystem=home,
        files=files,
        schemas=schemas,
        file_schema=file_schema,
        **arrays,
        partition_schema=pa.schema([]) if constants is None else constants.schema,
        footers=footers,
        remote=footers.remote,
        listing_context=ListingContext(root=root_of(version)),
        table=version.info,
        stored_schemas=own,
        row_group_alive=alive,
        deleted=deleted,
        constants=constants,
    )


def _has_columns_of(known: Snapshot, version: TableVersion, names: FooterNames | None) -> bool:
    """Whether a snapshot's columns of files are those of a table version."""
    has_names = known.footers.names == (None if names is None else names.names)
    return known.table is not None and known.table.schema == version.info.schema and has_names


def _arrays(footers: FooterCache, examined: Sequence[_FileFooters]) -> dict[str, Any]:
    """Return the arrays of a snapshot by file and by row group."""
    counts = [len(e.rows) for e in examined]
    numbers = [np.arange(n, dtype=np.int32) for n in counts]
    return {
        "file_digest": footers.digests,
        "row_group_file": np.repeat(np.arange(len(counts), dtype=np.int32), counts),
        "row_group_number": np.concatenate(numbers) if numbers else np.empty(0, np.int32),
        "row_group_rows": np.array([n for e in examined for n in e.rows], dtype=np.int64),
        "row_group_bytes": np.array([n for e in examined for n in e.sizes], dtype=np.int64),
        "row_group_unencoded_bytes": np.array([n for e in examined for n in e.unencoded], dtype=np.int64),
    }


def _all_examined(
    home: pafs.FileSystem,
    files: tuple[SourceFile, ...],
    fetcher: Fetcher | None,
    store: RemoteStore | None,
    known: Snapshot | None,
    record: Callable[[int, bytes], None] | None,
    names: FooterNames | None = None,
) -> tuple[FooterCache, list[_FileFooters]]:
    """Return a cache of the files' footers, and each file's part of a snapshot; arguments as in `open_snapshot`."""
    footers = FooterCache(home, files, remote=store, names=names)
    footers.record = record
    earlier = np.full(len(files), -1, np.int64) if known is None else _take_over(known, files, footers)

    def examine(number: int) -> _FileFooters:
        if known is not None and earlier[number] >= 0:
            return _examined(known, int(earlier[number]))
        return _described(footers.get(number))

    if fetcher is None:
        threads = os.cpu_count() or 1
        at_once = max(1, min(_AT_ONCE, -(-len(files) // threads)))  # a task costs as much as reading a footer
        firsts = range(0, len(files), at_once)

        def some(first: int) -> list[_FileFooters]:
            return [examine(number) for number in range(first, min(first + at_once, len(files)))]

        examined = list(chain.from_iterable(in_threads(some, firsts, threads, "parquet_loader-footers")))
    else:

        async def fetched(number: int) -> _FileFooters:
            return _described(await footers.fetched(number, fetcher))

        most = fetcher.options.max_requests
        new = np.flatnonzero(earlier < 0).tolist()
        found = dict(zip(new, fetcher.run(side_by_side(fetched, new, most)), strict=True))
        examined = [found[number] if number in found else examine(number) for number in range(len(files))]
    footers.record = None
    return footers, examined


def _described(footer: Metadata) -> _FileFooters:
    return _FileFooters(
        footer.row_group_rows.tolist(),
        footer.row_group_bytes.tolist(),
        footer.row_group_unencoded_bytes.tolist(),
        footer.schema.arrow,
    )


def _take_over(known: Snapshot, files: tuple[SourceFile, ...], footers: FooterCache) -> IntArray:
    """Take over the footers of unchanged files from an earlier snapshot; return each file's number there, or -1."""
    numbers = {file.lasting_path: number for number, file in enumerate(known.files)}
    earlier = np.array([numbers.get(file.lasting_path, -1) for file in files], np.int64)
    for number, before in enumerate(earlier.tolist()):
        if before >= 0 and not same_content(files[number], known.files[before]):
            earlier[number] = -1
    footers.digests[earlier >= 0] = known.file_digest[earlier[earlier >= 0]]
    if known.footers.stored is not None:
        footers.stored = known.footers.stored.reindexed(earlier)
    return earlier


def _examined(known: Snapshot, file: int) -> _FileFooters:
    low, high = np.searchsorted(known.row_group_file, [file, file + 1])
    return _FileFooters(
        known.row_group_rows[low:high].tolist(),
        known.row_group_bytes[low:high].tolist(),
        known.row_group_unencoded_bytes[low:high].tolist(),
        known.stored_schemas[int(known.file_schema[file])],
    )


def _distinct(schemas: list[pa.Schema]) -> tuple[tuple[pa.Schema, ...], IntArray]:
    """Return the distinct schemas (columns and metadata), and the index of each file's schema."""
    distinct: list[pa.Schema] = []
    by_bytes: dict[bytes, int] = {}
    numbers: list[int] = []
    seen: dict[int, int] = {}  # by id: files of an earlier snapshot share the objects of schemas
    for schema in schemas:
        if id(schema) in seen:
            numbers.append(seen[id(schema)])
            continue
        key = schema.serialize().to_pybytes()
        if key not in by_bytes:
            by_bytes[key] = len(distinct)
            distinct.append(schema)
        numbers.append(by_bytes[key])
        seen[id(schema)] = by_bytes[key]
    return tuple(distinct), np.array(numbers, dtype=np.int32)


def _partition_schema(files: tuple[SourceFile, ...]) -> pa.Schema:
    values: dict[str, set[str]] = {}
    for file in files:
        for key, value in file.partitions:
            values.setdefault(key, set()).update(() if value is None else (value,))
    return pa.schema(
        [(key, pa.int64() if texts and all(map(_is_int64, texts)) else pa.string()) for key, texts in values.items()]
    )


def _is_int64(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and text.isascii() and -(2**63) <= int(text) < 2**63
