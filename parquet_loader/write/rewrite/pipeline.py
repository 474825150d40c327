"""Writes the rows of one `rewrite_dataset` call: in their order or shuffled, as a sample suggests.

A sample and the footers show which columns have no nulls and which lists have one length. Every row is checked against
that. If a row differs, nothing is published, and writing begins again with what is known now.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from parquet_loader.common import PathLike, ReadOptions, is_local, resolve
from parquet_loader.dataset import Dataset
from parquet_loader.errors import DataError
from parquet_loader.read import RowFilter
from parquet_loader.write.column_layout import Layout, choose_layout
from parquet_loader.write.options import TAKE_BYTES, WriteOptions
from parquet_loader.write.os_errors import storage_errors
from parquet_loader.write.rewrite.external_shuffle import Buckets, RowKeys
from parquet_loader.write.rewrite.report import Objective
from parquet_loader.write.rewrite.scratch import Scratch, remove_leftovers
from parquet_loader.write.rewrite.source_scan import Rows, guess_nulls
from parquet_loader.write.rewrite.stored_columns import AssumptionError, Facts, Levels, with_nullability
from parquet_loader.write.rewrite.target_schema import Fields, Pack, make_target
from parquet_loader.write.writer import DatasetWriter, WriteMode, WriteSummary

# Shares of the memory limit. A bucket is held as it was read, joined and in its new order; so are buffered rows.
_SHARE_BUCKET = 1 / 12
_SHARE_BUFFER = 1 / 16
_SHARE_SLICE = 1 / 32
_SHARE_SAMPLE = 1 / 16
_MOST_SLICE_BYTES = 16 * 2**20
_MOST_SAMPLE_BYTES = 8 * 2**20

_CODECS = {"speed": "lz4", "size": "zstd"}


def most_row_group_bytes(memory_limit_bytes: int) -> int:
    """Return the largest row group that fits: the writer holds it as it came, joined, and encoded."""
    return max(1, memory_limit_bytes // 4)


def bucket_sizes(memory_limit_bytes: int) -> dict[str, int]:
    """Return the bytes of a bucket and of the buffered rows: within a limit, and within what Arrow can order."""
    return {
        "bucket_bytes": min(TAKE_BYTES, int(memory_limit_bytes * _SHARE_BUCKET)),
        "buffer_bytes": min(TAKE_BYTES, int(memory_limit_bytes * _SHARE_BUFFER)),
    }


@dataclass(frozen=True, slots=True)
class RewriteJob:
    """The arguments of one call, checked."""

    dataset: Dataset
    fields: Fields
    row_filter: RowFilter | None
    read_options: ReadOptions
    shuffle: bool
    seed: int
    pack: Pack
    objective: Objective
    memory_limit_bytes: int
    row_group_bytes: int | None
    file_bytes: int | str
    bar: Any

    def advance(self, rows: int) -> None:
        """Show that more rows are done."""
        if self.bar is not None:
            self.bar.update(rows)


@dataclass(frozen=True, slots=True)
class Written:
    """What was written.

    Attributes:
        rows: The source's rows in the form of the new files.
        layout: How columns are stored; None if there are no rows.
        levels: By column: at which levels there are nulls.
        row_group_bytes: Size of a row group once decoded.
        summary: What the writer published.
        spilled_bytes: Bytes of temporary files.
        notes: Where the sample was wrong.
    """

    rows: Rows
    layout: Layout | None
    levels: dict[str, Levels]
    row_group_bytes: int
    summary: WriteSummary
    spilled_bytes: int
    notes: tuple[str, ...]


def write_rows(job: RewriteJob, path: PathLike, mode: WriteMode, filesystem: Any) -> Written:
    """Write as a sample suggests; if a row differs, write again with what is known then.

    Each repetition knows more about a column than the one before, so their number is bounded.
    """
    facts, notes = Facts(), list[str]()
    while True:
        try:
            return _attempt(job, facts, path, mode, filesystem, tuple(notes))
        except AssumptionError as wrong:
            merged = facts.merged(wrong.facts)
            if merged == facts:
                raise DataError(f"{wrong}; leave the column out of pack=, or give a schema= that fits it") from None
            facts = merged
            notes.append(f"{wrong}; a sample did not show this, so all rows were written again")


def _attempt(
    job: RewriteJob, facts: Facts, path: PathLike, mode: WriteMode, filesystem: Any, notes: tuple[str, ...]
) -> Written:
    target = make_target(job.fields, job.pack, facts)
    slice_bytes = min(_MOST_SLICE_BYTES, int(job.memory_limit_bytes * _SHARE_SLICE))
    rows = Rows.from_dataset(job.dataset, target, job.row_filter, job.read_options, slice_bytes)
    layout: Layout | None = None
    levels: dict[str, Levels] = {}
    spilled_bytes = 0
    if job.dataset.rows:
        sample_bytes = min(_MOST_SAMPLE_BYTES, int(job.memory_limit_bytes * _SHARE_SAMPLE))
        sample = rows.sample(sample_bytes, shuffled=job.shuffle, seed=job.seed)
        known = facts.merged(guess_nulls(rows, sample))
        levels = {name: known.nulls[name] for name in sample.column_names}
        layout = choose_layout(sample.cast(rows.schema), _CODECS[job.objective], job.objective)
    options = _options(job, len(target.schema.stored_columns()))
    home, target_path = resolve(path, filesystem)
    local = is_local(home)
    was_there = local and os.path.lexists(target_path)
    if local:
        remove_leftovers(target_path)
    writer = DatasetWriter(path, target.schema, mode=mode, options=options, filesystem=filesystem)
    scratch: Scratch | None = None
    try:
        with storage_errors(target_path):
            scratch = Scratch(target_path if local else None, writer.staging_id)
        if layout is not None and job.shuffle:
            levels, spilled_bytes = _write_shuffled(job, rows, writer, scratch, layout, target_path)
        elif layout is not None:
            _write_in_order(job, rows, writer, levels, layout)
        _check_rows(writer, job, target_path)
        summary = writer.close()
    except BaseException:
        if scratch is not None:
            scratch.close()
        writer.abort()
        if local and not was_there:
            with suppress(OSError):
                os.rmdir(target_path)  # the writer found the lock in it, if it was the first to give up
        raise
    scratch.close()
    return Written(rows, layout, levels, options.group_bytes(1), summary, spilled_bytes, notes)


def _options(job: RewriteJob, columns: int) -> WriteOptions:
    asked = WriteOptions(row_group_bytes=job.row_group_bytes, file_bytes=job.file_bytes)
    group_bytes = min(asked.group_bytes(columns), most_row_group_bytes(job.memory_limit_bytes))
    return WriteOptions(row_group_bytes=group_bytes, file_bytes=job.file_bytes)


def _check_rows(writer: DatasetWriter, job: RewriteJob, path: str) -> None:
    if writer.rows != job.dataset.rows:
        raise DataError(
            f"{path}: {writer.rows} rows were read, but the source has {job.dataset.rows}: it is changing; nothing was "
            "published"
        )


def _write_in_order(
    job: RewriteJob, rows: Rows, writer: DatasetWriter, assumed: dict[str, Levels], layout: Layout
) -> None:
    """Write the rows; after a null in a column that was assumed to have none, only look for others."""
    final = _final_schema(rows, assumed, writer)
    known = Facts(assumed)
    for group in rows.row_groups:
        for table in rows.slices(group):
            known = known.merged(Facts.from_table(table))
            if known.nulls == assumed:
                writer._write_stored(table.cast(final), layout)
            job.advance(len(table))
    if known.nulls != assumed:
        column = next(name for name in assumed if known.nulls[name] != assumed[name])
        raise AssumptionError(column, "there are nulls", known)


def _write_shuffled(
    job: RewriteJob, rows: Rows, writer: DatasetWriter, scratch: Scratch, layout: Layout, path: str
) -> tuple[dict[str, Levels], int]:
    """Write the rows in random order; return the levels with nulls, and the bytes of temporary files."""
    buckets = Buckets(
        rows.schema,
        scratch,
        "bucket",
        total_bytes=int(job.dataset.rows * (job.dataset.sizing.row.decoded + 8)),
        **bucket_sizes(job.memory_limit_bytes),
    )
    known = Facts()
    for group in rows.row_groups:
        keys = RowKeys(job.seed, group)
        for table in rows.slices(group):
            known = known.merged(Facts.from_table(table))
            with storage_errors(path):
                buckets.add(table, keys.take(len(table)))
            job.advance(len(table))
    levels = dict(known.nulls)
    final = _final_schema(rows, levels, writer)
    ordered = buckets.sorted()
    while True:
        with storage_errors(path):
            table = next(ordered, None)
        if table is None:
            return levels, buckets.spilled_bytes
        for start in range(0, len(table), rows.slice_rows):
            part = table.slice(start, rows.slice_rows)
            writer._write_stored(part.cast(final), layout)
            job.advance(len(part))


def _final_schema(rows: Rows, levels: dict[str, Levels], writer: DatasetWriter) -> pa.Schema:
    assert writer.schema is not None
    return with_nullability(rows.schema, levels).with_metadata(writer.schema.arrow_schema().metadata)
