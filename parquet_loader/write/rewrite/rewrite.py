"""`rewrite_dataset`: copies any Parquet source to a new data set in the layout that loads fastest."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pyarrow.fs as pafs

from parquet_loader.common import (
    PathLike,
    ReadOptions,
    check_bool,
    check_choice,
    check_columns,
    check_int,
    check_split,
    explains_keywords,
    format_bytes,
    is_local,
    parse_bytes,
    progress_bar,
    resolve,
    use_returning_pool,
)
from parquet_loader.dataset import (
    Dataset,
    WindowNeeds,
    default_num_threads,
    found_schema,
    is_carrying,
    open_dataset,
    resolve_source,
    resolved_schema,
    select,
    with_fixed_size_lists,
    with_partition_words,
)
from parquet_loader.errors import ConfigurationError, MemoryLimitError, SourceError, WriteError
from parquet_loader.read import Filters, RowFilter, as_expression
from parquet_loader.schema import Schema, check_schema
from parquet_loader.source import (
    Selection,
    Snapshot,
    Source,
    TableLike,
    VersionedSource,
    open_snapshot,
    selection_of,
    table_source,
    with_unischema,
)
from parquet_loader.write.column_layout import leaf_paths
from parquet_loader.write.os_errors import storage_errors
from parquet_loader.write.rewrite.external_shuffle import METHOD
from parquet_loader.write.rewrite.pipeline import RewriteJob, Written, most_row_group_bytes, write_rows
from parquet_loader.write.rewrite.report import ColumnReport, Objective, RewriteReport
from parquet_loader.write.rewrite.source_scan import bytes_by_column
from parquet_loader.write.rewrite.target_schema import Fields, Pack
from parquet_loader.write.target import WriteMode, listing

_SIZING_BATCH_ROWS = 64

_REMOVED_KEYWORDS = {
    "storage_bytes_per_s": "objective='size' makes the smallest files, for slow storage",
    "measure_gain": "loader.stats() of either data set gives its rows per second",
}


@explains_keywords(_REMOVED_KEYWORDS)
def rewrite_dataset(
    source: Source | TableLike,
    path: PathLike,
    *,
    schema: Schema | None = None,
    columns: Sequence[str] | None = None,
    filters: Filters | None = None,
    split: str | None = None,
    shuffle: bool = False,
    seed: int = 0,
    pack: Pack = None,
    objective: Objective = "speed",
    memory_limit: int | str = "1GiB",
    row_group_bytes: int | str | None = None,
    file_bytes: int | str = "512MiB",
    mode: WriteMode = "error",
    num_threads: int | None = None,
    filesystem: pafs.FileSystem | None = None,
    target_filesystem: pafs.FileSystem | None = None,
    progress: bool = False,
    read_options: ReadOptions | None = None,
) -> RewriteReport:
    """Copy a Parquet data set into the layout that loads fastest.

    Every row of the source that passes the filters is written exactly once, with equal values and nulls. Columns keep
    their types, with two exceptions if no `schema` is given: a struct becomes a column for each leaf (``"point.x"``),
    and lists that all have one length become raw tensors. The sizes of a sample decide how each column is stored: see
    docs/layout.md. A column without nulls is written not-null, and each of its rows is checked. If a null turns up,
    writing begins again with the column nullable.

    The data set appears at `path` as a whole, at the end. An exception or Ctrl-C leaves nothing behind. The next run
    that writes to the same local directory removes the hidden files of a killed one.

    Runs in the caller's thread; footers and filters use threads of their own that end before return.

    Args:
        source: A file, a directory (hive partitions become columns), a glob, a URL, or a list of these; or a table.
        path: Directory of the new data set, local or a URL; it must neither contain the source nor lie within it.
        schema: The schema of the columns; default: the schema stored in the files, else the rules in docs/types.md;
            nulls are kept. A field with ``null="refuse"`` refuses them only if the schema is given here.
        columns: Names to read; default: all.
        filters: A `pyarrow.compute` expression over the stored columns; only rows that pass are written.
        split: The split to read, as in `BatchedDataLoader`.
        shuffle: Whether to put all rows into a uniformly random order, through temporary files next to `path`. They
            take the size of all rows in Arrow's memory format, and 8 bytes a row.
        seed: From 0 to 2**64 - 1. The order depends only on it, the source's files and the filters.
        pack: Stores groups of columns of numbers as one raw column each, delivered as one matrix. True packs plain
            numbers of one dtype together (``"packed_float32"``); a mapping from group names to column names packs
            these groups.
        objective: ``"speed"`` stores numbers plain or in a dictionary, and compresses other columns only if they
            shrink well; ``"size"`` stores each column in its smallest form, for slow storage.
        memory_limit: The most bytes that the run holds, as an int or as text.
        row_group_bytes: Decoded size of a row group, at most a quarter of `memory_limit`; default: as in
            `WriteOptions`, within that limit.
        file_bytes: A file is closed once it holds at least this many bytes.
        mode: ``"error"``, ``"append"`` or ``"overwrite"``, as in `DatasetWriter`.
        num_threads: Threads that count the rows that pass the filters; default: the processors, at most 8.
        filesystem: A `pyarrow.fs.FileSystem` to which the source's paths belong.
        target_filesystem: The same for `path`.
        progress: Show a progress bar (needs tqdm).
        read_options: Checksums, and whether the files of a table are read as plain Parquet.

    Raises:
        SourceError, SchemaError, MemoryLimitError, ConfigurationError: As in `BatchedDataLoader`.
        DataError: A value cannot be read, or does not fit the schema; the message names file, row group, column and
            row.
        WriteError: `path` is not empty or overlaps with the source, or the file system refuses (a full disk).
    """
    began = time.perf_counter()
    given: Source | VersionedSource = table_source(source)
    columns = check_columns(columns)
    check_split(split)
    check_choice("objective", objective, ("speed", "size"))
    check_int("seed", seed, 0, 2**64 - 1)
    check_schema(schema)
    if pack is not None and not isinstance(pack, bool) and not hasattr(pack, "items"):
        raise ConfigurationError(f"pack={pack!r:.80}: expected True, or a mapping from a group's name to column names")
    limit = parse_bytes(memory_limit)
    threads = default_num_threads() if num_threads is None else check_int("num_threads", num_threads, 1, 256)
    options = read_options or ReadOptions()
    group_bytes = None if row_group_bytes is None else _checked_row_group_bytes(row_group_bytes, limit)
    make_bar = progress_bar() if check_bool("progress", progress) else None
    use_returning_pool()
    home, target_path = resolve(path, target_filesystem)
    filters = as_expression(filters)
    with storage_errors(target_path):
        listing(home, target_path)  # refuses an unsuitable target before anything is read
    snapshot = open_snapshot(given, filesystem, selection=selection_of(split, filters, options))
    _refuse_overlap(given, snapshot, home, target_path)
    snapshot, fields = _fields_of(snapshot, schema, columns, options)
    dataset = _opened(snapshot, fields.readable(fields.chosen), filters, limit, threads, options)
    passes = 2 if check_bool("shuffle", shuffle) else 1
    shown = {"total": dataset.rows * passes, "unit": "row", "unit_scale": True, "desc": "rewrite"}
    with nullcontext() if make_bar is None else make_bar(**shown) as bar:
        job = RewriteJob(
            dataset=dataset,
            fields=fields,
            row_filter=None if filters is None else RowFilter(filters, snapshot, schema),
            read_options=options,
            shuffle=shuffle,
            seed=seed,
            pack=pack,
            objective=objective,
            memory_limit_bytes=limit,
            row_group_bytes=group_bytes,
            file_bytes=file_bytes,
            bar=bar,
        )
        written = write_rows(job, path, mode, target_filesystem)
    files = list(written.summary.files)
    as_written = Selection(split="all", ignore_table_format=True)
    try:
        new = open_snapshot(files, home, selection=as_written) if files else None
    except SourceError as error:
        raise SourceError(
            f"{written.path}: all rows are written and published, but the report about them cannot be made: {error}"
        ) from error
    return _report(given, job, written, new, time.perf_counter() - began)


def _checked_row_group_bytes(row_group_bytes: int | str, limit: int) -> int:
    nbytes = parse_bytes(row_group_bytes, "row_group_bytes")
    if nbytes > most_row_group_bytes(limit):
        raise MemoryLimitError(
            f"row_group_bytes={format_bytes(nbytes)}: at most a quarter of memory_limit ({format_bytes(limit)}), "
            f"for the writer holds a row group several times; use memory_limit={4 * nbytes} or more"
        )
    return nbytes


def _name_of(source: Source | VersionedSource) -> str:
    if isinstance(source, VersionedSource):
        return source.name
    return str(source) if isinstance(source, str | os.PathLike) else ", ".join(map(str, source))


def _refuse_overlap(source: Source | VersionedSource, snapshot: Snapshot, home: pafs.FileSystem, target: str) -> None:
    """Refuse a target that lies within the source, or holds a part of it."""
    both_local = is_local(home) and is_local(snapshot.filesystem)
    if not both_local and not home.equals(snapshot.filesystem):
        return
    real = os.path.realpath if both_local else str
    here = real(target)
    for file in snapshot.files:
        if _is_within(real(file.path), here):
            raise WriteError(f"{target}: the source's file {file.path} is there; write to another directory")
    if isinstance(source, VersionedSource):
        return
    entries = [source] if isinstance(source, str | os.PathLike) else list(source)
    for entry in entries:
        _, inner = resolve(entry, snapshot.filesystem if not both_local else None)
        if _is_within(here, real(inner)):
            raise WriteError(f"{target}: this is a part of the source {entry}; write to another directory")


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _fields_of(
    snapshot: Snapshot, schema: Schema | None, columns: Sequence[str] | None, options: ReadOptions
) -> tuple[Snapshot, Fields]:
    """Return the snapshot with Petastorm's types, and the source's fields by the given schema or the files."""
    if schema is not None and schema.extra == "infer":
        snapshot, schema = resolved_schema(snapshot, schema, columns, options)
    if schema is not None:
        chosen = select(schema, columns)
        return with_partition_words(snapshot, schema), Fields(chosen, chosen, frozenset(chosen), is_given=True)
    snapshot, unischema = with_unischema(snapshot, columns)
    if unischema is not None:
        chosen = select(unischema, columns)
        return snapshot, Fields(chosen, chosen, frozenset(chosen), is_given=False)
    found = found_schema(snapshot, columns)
    with_rows = set(snapshot.file_schema[snapshot.row_group_file[snapshot.row_group_rows > 0]].tolist())
    carried = [
        s for number, s in enumerate(snapshot.schemas) if is_carrying(s) and (number in with_rows or not with_rows)
    ]
    declared = frozenset(name for schema_ in carried for name in Schema.from_arrow(schema_))
    return snapshot, Fields(found, with_fixed_size_lists(found, snapshot, options), declared, is_given=False)


def _opened(
    snapshot: Snapshot, schema: Schema, filters: Any, limit: int, threads: int, options: ReadOptions
) -> Dataset:
    dataset = open_dataset(
        resolve_source(snapshot, schema, None, options),
        filters=filters,
        needs=WindowNeeds(_SIZING_BATCH_ROWS, shuffle=True),
        window_rows=None,
        memory_limit_bytes=limit,
        transform=False,
        read_options=options,
        skips=False,
        num_threads=threads,
    )
    dataset.budget.get()  # raises before anything is written if the limit is too small
    return dataset


def _report(
    source: Source | VersionedSource, job: RewriteJob, written: Written, new: Snapshot | None, seconds: float
) -> RewriteReport:
    schema = written.rows.target.schema
    before, bytes_before = bytes_by_column(job.dataset.snapshot, written.rows.row_groups, schema)
    after: dict[str, int] = {}
    if new is not None:
        after, _ = bytes_by_column(new, np.flatnonzero(new.row_group_rows).tolist(), schema)
    layout = written.layout
    columns: list[ColumnReport] = []
    if layout is not None:
        leaves = leaf_paths(written.rows.schema)
        for name, stored in schema.stored_columns().items():
            path, _ = leaves[name]
            columns.append(
                ColumnReport(
                    name=name,
                    type=str(stored.type),
                    nullable=written.levels[name][0],
                    encoding="dictionary" if path in layout.dictionaries else "plain",
                    codec=layout.codec if path in layout.compressed else "none",
                    bytes_before=before[name],
                    bytes_after=after[name],
                )
            )
    return RewriteReport(
        source=_name_of(source),
        path=written.path,
        rows=written.summary.rows,
        files=len(written.summary.files),
        row_groups=0 if new is None else new.row_groups,
        row_group_bytes=written.row_group_bytes,
        bytes_before=bytes_before,
        bytes_after=written.summary.bytes,
        temporary_bytes=written.spilled_bytes,
        shuffled=f"{METHOD}, seed {job.seed}" if job.shuffle else None,
        objective=job.objective,
        notes=written.notes,
        columns=tuple(columns),
        seconds=seconds,
    )
