"""Writes the rows of one `rewrite_dataset` call, in their order or shuffled.

A sample and the footers show which columns have no nulls and which lists have one length. Every row is checked against
these facts. If a row contradicts them, nothing is published, and writing starts again with the corrected facts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from parquet_loader.common import PathLike, ReadOptions, is_local
from parquet_loader.dataset import Dataset
from parquet_loader.errors import DataError
from parquet_loader.read import RowFilter
from parquet_loader.write.column_layout import Layout, choose_layout
from parquet_loader.write.jobs.job import JobSpec, WriteJob
from parquet_loader.write.jobs.task import packing, report
from parquet_loader.write.options import TAKE_BYTES, WriteOptions
from parquet_loader.write.os_errors import storage_errors
from parquet_loader.write.packer import Packer
from parquet_loader.write.rewrite.external_shuffle import Buckets, RowKeys
from parquet_loader.write.rewrite.report import Objective
from parquet_loader.write.rewrite.source_scan import Rows, guess_nulls
from parquet_loader.write.rewrite.stored_columns import AssumptionError, Facts, Levels, with_nullability
from parquet_loader.write.rewrite.target_schema import Fields, Pack, make_target
from parquet_loader.write.target import WriteMode
from parquet_loader.write.writer import WriteSummary

# Shares of the memory limit. A bucket is held three times: as read, joined, and in its new order; so are buffered rows.
_SHARE_BUCKET = 1 / 12
_SHARE_BUFFER = 1 / 16
_SHARE_SLICE = 1 / 32
_SHARE_SAMPLE = 1 / 16
_MOST_SLICE_BYTES = 16 * 2**20
_MOST_SAMPLE_BYTES = 8 * 2**20

_CODECS = {"speed": "lz4", "size": "zstd"}


def most_row_group_bytes(memory_limit_bytes: int) -> int:
    """Return the bytes of the largest row group that fits: the writer holds it as read, joined, and encoded."""
    return max(1, memory_limit_bytes // 4)


def bucket_sizes(memory_limit_bytes: int) -> dict[str, int]:
    """Return the bytes of a bucket and of the buffered rows: within the limit, and at most what Arrow can permute."""
    return {
        "bucket_bytes": min(TAKE_BYTES, int(memory_limit_bytes * _SHARE_BUCKET)),
        "buffer_bytes": min(TAKE_BYTES, int(memory_limit_bytes * _SHARE_BUFFER)),
    }


@dataclass(frozen=True, slots=True)
class RewriteJob:
    """The validated arguments of one call."""

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
    """The result of a successful attempt.

    Attributes:
        rows: The source's rows in the form of the new files.
        layout: How columns are stored; None if there are no rows.
        levels: The levels with nulls, by column.
        row_group_bytes: Decoded size of a row group.
        path: The directory of the new data set.
        summary: The published files.
        spilled_bytes: Bytes of temporary files.
        notes: How the data differed from the sample.
    """

    rows: Rows
    layout: Layout | None
    levels: dict[str, Levels]
    row_group_bytes: int
    path: str
    summary: WriteSummary
    spilled_bytes: int
    notes: tuple[str, ...]


def write_rows(job: RewriteJob, path: PathLike, mode: WriteMode, filesystem: Any) -> Written:
    """Write by the facts of a sample; if a row contradicts them, correct them and write again.

    Each repetition corrects at least one fact, so their number is bounded.
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
    options = _options(job, len(target.schema.stored_columns()))
    slice_bytes = min(_MOST_SLICE_BYTES, int(job.memory_limit_bytes * _SHARE_SLICE))
    layout: Layout | None = None
    levels: dict[str, Levels] = {}
    spilled_bytes = 0
    with WriteJob(path, target.schema, mode=mode, options=options, filesystem=filesystem, nests=False) as output:
        target = replace(target, schema=output.spec.schema)  # appended files store categories like the existing ones
        rows = Rows.from_dataset(job.dataset, target, job.row_filter, job.read_options, slice_bytes)
        if job.dataset.rows:
            sample_bytes = min(_MOST_SAMPLE_BYTES, int(job.memory_limit_bytes * _SHARE_SAMPLE))
            sample = rows.sample(sample_bytes, shuffled=job.shuffle, seed=job.seed)
            known = facts.merged(guess_nulls(rows, sample))
            levels = {name: known.nulls[name] for name in sample.column_names}
            layout = choose_layout(sample.cast(rows.schema), _CODECS[job.objective], job.objective)
        with _temporary_folder(output.spec) as folder, packing(output.spec, 0) as packer:
            if layout is not None and job.shuffle:
                levels, spilled_bytes = _write_shuffled(job, rows, packer, output.spec, folder, layout)
            elif layout is not None:
                _write_in_order(job, rows, packer, output.spec, levels, layout)
            if packer.added_rows != job.dataset.rows:
                raise DataError(
                    f"{output.path}: {packer.added_rows} rows were read, but the source has {job.dataset.rows}: it is "
                    "changing; nothing was published"
                )
        summary = output.commit(report(packer, 0))
    return Written(rows, layout, levels, options.group_bytes(1), output.path, summary, spilled_bytes, notes)


@contextlib.contextmanager
def _temporary_folder(spec: JobSpec) -> Iterator[str]:
    """Yield a local directory: the job's if possible, because the next job cleans it up after a kill."""
    if is_local(spec.filesystem):
        yield spec.directory
        return
    with storage_errors(spec.path):
        temporary = TemporaryDirectory(prefix="parquet_loader-rewrite-")
    with temporary as folder:
        yield folder


def _options(job: RewriteJob, columns: int) -> WriteOptions:
    asked = WriteOptions(row_group_bytes=job.row_group_bytes, file_bytes=job.file_bytes)
    group_bytes = min(asked.group_bytes(columns), most_row_group_bytes(job.memory_limit_bytes))
    return WriteOptions(row_group_bytes=group_bytes, file_bytes=job.file_bytes)


def _write_in_order(
    job: RewriteJob, rows: Rows, packer: Packer, spec: JobSpec, assumed: dict[str, Levels], layout: Layout
) -> None:
    """Write the rows; after a null in a column assumed to have none, stop writing and only collect the facts."""
    final = _final_schema(rows, assumed, spec)
    known = Facts(assumed)
    for group in rows.row_groups:
        for table in rows.slices(group):
            known = known.merged(Facts.from_table(table))
            if known.nulls == assumed:
                packer.write_stored(table.cast(final), layout)
            job.advance(len(table))
    if known.nulls != assumed:
        column = next(name for name in assumed if known.nulls[name] != assumed[name])
        raise AssumptionError(column, "there are nulls", known)


def _write_shuffled(
    job: RewriteJob, rows: Rows, packer: Packer, spec: JobSpec, folder: str, layout: Layout
) -> tuple[dict[str, Levels], int]:
    """Write the rows in random order; return the levels with nulls, and the bytes of temporary files."""
    buckets = Buckets(
        rows.schema,
        folder,
        "bucket",
        total_bytes=int(job.dataset.rows * (job.dataset.sizing.row.decoded + 8)),
        **bucket_sizes(job.memory_limit_bytes),
    )
    known = Facts()
    for group in rows.row_groups:
        keys = RowKeys(job.seed, group)
        for table in rows.slices(group):
            known = known.merged(Facts.from_table(table))
            with storage_errors(spec.path):
                buckets.add(table, keys.take(len(table)))
            job.advance(len(table))
    levels = dict(known.nulls)
    final = _final_schema(rows, levels, spec)
    ordered = buckets.sorted()
    while True:
        with storage_errors(spec.path):
            table = next(ordered, None)
        if table is None:
            return levels, buckets.spilled_bytes
        for start in range(0, len(table), rows.slice_rows):
            part = table.slice(start, rows.slice_rows)
            packer.write_stored(part.cast(final), layout)
            job.advance(len(part))


def _final_schema(rows: Rows, levels: dict[str, Levels], spec: JobSpec) -> pa.Schema:
    return with_nullability(rows.schema, levels).with_metadata(spec.schema.arrow_schema().metadata)
