"""One call's rows, written: in their order or shuffled, under what a sample shows, and again where that was wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from parquet_loader.common import PathLike, ReadOptions, is_local, resolve
from parquet_loader.dataset import Dataset
from parquet_loader.errors import DataError
from parquet_loader.read import RowFilter
from parquet_loader.schema import null_levels
from parquet_loader.write.options import TAKE_BYTES, WriteOptions
from parquet_loader.write.os_errors import storage_errors
from parquet_loader.write.rewrite.encoding_trials import (
    Choice,
    Objective,
    choose_row_group_bytes,
    choose_ways,
    layout_of,
)
from parquet_loader.write.rewrite.external_shuffle import Buckets, RowKeys
from parquet_loader.write.rewrite.scratch import Scratch, remove_leftovers
from parquet_loader.write.rewrite.source_scan import Rows, add_levels, examine, guess_nulls
from parquet_loader.write.rewrite.stored_columns import AssumptionError, Levels, Target, with_nullability
from parquet_loader.write.rewrite.target_schema import Facts, Fields, Pack, make_target
from parquet_loader.write.writer import DatasetWriter, WriteMode, WriteSummary

# Shares of the memory limit. A bucket is there as read, joined and in its new order; what waits to be scattered, too.
_SHARE_BUCKET = 1 / 12
_SHARE_BUFFER = 1 / 16
_SHARE_PIECE = 1 / 32
_SHARE_SAMPLE = 1 / 16
_MOST_PIECE_BYTES = 16 * 2**20
_MOST_SAMPLE_BYTES = 20 * 2**20


def most_row_group_bytes(memory_limit_bytes: int) -> int:
    """Return how large a row group may be: the writer holds it as it came, as one, and encoded."""
    return max(1, memory_limit_bytes // 4)


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
    storage_bytes_per_s: float
    memory_limit_bytes: int
    row_group_bytes: int | None
    file_bytes: int | str
    bar: Any

    def rows(self, target: Target) -> Rows:
        """Return the source's rows as `target` stores them."""
        piece_bytes = min(_MOST_PIECE_BYTES, int(self.memory_limit_bytes * _SHARE_PIECE))
        return Rows.from_dataset(self.dataset, target, self.row_filter, self.read_options, piece_bytes)

    def advance(self, rows: int) -> None:
        """Show that so many rows are done."""
        if self.bar is not None:
            self.bar.update(rows)


@dataclass(frozen=True, slots=True)
class Written:
    """What an attempt wrote."""

    target: Target
    summary: WriteSummary
    choices: dict[str, Choice]
    levels: dict[str, Levels]
    row_group_bytes: int
    row_group_ns: dict[int, float]
    spilled_bytes: int


def write_rows(job: RewriteJob, path: PathLike, mode: WriteMode, filesystem: Any) -> tuple[Written, list[str]]:
    """Write under what a sample shows; where that turns out wrong, look at all rows and write again."""
    notes: list[str] = []
    try:
        return _attempt(job, Facts(), path, mode, filesystem), notes
    except AssumptionError as wrong:
        notes.append(f"{wrong}; a sample and the footers had none, so all rows were looked at and written again")
    target = make_target(job.fields, None, Facts(), as_found=True)
    facts = examine(job.rows(target), job.fields.even_widths(), lambda _: None)
    try:
        return _attempt(job, facts, path, mode, filesystem), notes
    except AssumptionError as wrong:
        raise DataError(f"{wrong}, where there was none a moment ago: the source is being changed") from None


def _attempt(job: RewriteJob, facts: Facts, path: PathLike, mode: WriteMode, filesystem: Any) -> Written:
    rows, target, sample = _sampled(job, facts)
    guessed = {} if not len(sample) else guess_nulls(rows, sample)
    if len(sample):
        choices = choose_ways(
            sample.cast(with_nullability(sample.schema, guessed)),
            objective=job.objective,
            storage_bytes_per_s=job.storage_bytes_per_s,
        )
    else:
        choices = {}
    ways = {name: choice.way for name, choice in choices.items()}
    group_bytes, group_ns = job.row_group_bytes or 8 * 2**20, dict[int, float]()
    if job.row_group_bytes is None:
        if len(sample):
            group_bytes, group_ns = choose_row_group_bytes(sample.cast(with_nullability(sample.schema, guessed)), ways)
        group_bytes = min(group_bytes, most_row_group_bytes(job.memory_limit_bytes))
    home, target_path = resolve(path, filesystem)
    local = is_local(home)
    was_there = local and os.path.lexists(target_path)
    if local:
        remove_leftovers(target_path)
    options = WriteOptions(row_group_bytes=group_bytes, file_bytes=job.file_bytes)
    writer = DatasetWriter(path, target.schema, mode=mode, options=options, filesystem=filesystem)
    scratch: Scratch | None = None
    try:
        with storage_errors(target_path):
            scratch = Scratch(target_path if local else None, writer.staging_id)
        assumed = _assumed_levels(facts, guessed)
        if job.shuffle:
            levels, spilled = _write_shuffled(job, rows, writer, scratch, sample.schema, ways, target_path)
        else:
            levels, spilled = assumed, 0
            _write_in_order(job, rows, writer, assumed, sample.schema, ways)
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
    return Written(target, summary, choices, levels, group_bytes, group_ns, spilled)


def _check_rows(writer: DatasetWriter, job: RewriteJob, path: str) -> None:
    if writer.rows != job.dataset.rows:
        raise DataError(
            f"{path}: {writer.rows} rows were read, but the source has {job.dataset.rows}: it is changing; nothing was "
            "published"
        )


def _sampled(job: RewriteJob, facts: Facts) -> tuple[Rows, Target, pa.Table]:
    """Return the target, and a sample in its form; where the sample itself speaks against it, the target without."""
    target = make_target(job.fields, job.pack, facts)
    rows = job.rows(target)
    sample_bytes = min(_MOST_SAMPLE_BYTES, int(job.memory_limit_bytes * _SHARE_SAMPLE))
    if not job.dataset.rows:
        return rows, target, rows.empty()
    return rows, target, rows.sample(sample_bytes, shuffled=job.shuffle, seed=job.seed)


def _assumed_levels(facts: Facts, guessed: dict[str, Levels]) -> dict[str, Levels]:
    return {
        name: facts.nulls.get(name, found) if len(facts.nulls.get(name, found)) == len(found) else found
        for name, found in guessed.items()
    }


def _write_in_order(
    job: RewriteJob,
    rows: Rows,
    writer: DatasetWriter,
    assumed: dict[str, Levels],
    schema: pa.Schema,
    ways: dict[str, Any],
) -> None:
    if not job.dataset.rows:
        return
    final = _final_schema(schema, assumed, writer)
    layout = layout_of(final, ways)
    for group in rows.row_groups:
        for table in rows.pieces(group):
            for name, levels in assumed.items():
                found = null_levels(table.column(name))
                if any(now and not before for now, before in zip(found, levels, strict=True)):
                    raise AssumptionError(name, "there are nulls")
            writer._write_stored(table.cast(final), layout)
            job.advance(len(table))


def _write_shuffled(
    job: RewriteJob,
    rows: Rows,
    writer: DatasetWriter,
    scratch: Scratch,
    schema: pa.Schema,
    ways: dict[str, Any],
    path: str,
) -> tuple[dict[str, Levels], int]:
    limit = job.memory_limit_bytes
    buckets = Buckets(
        schema,
        scratch,
        "bucket",
        total_bytes=int(job.dataset.rows * (job.dataset.sizing.row.decoded + 8)),
        bucket_bytes=min(TAKE_BYTES, int(limit * _SHARE_BUCKET)),
        buffer_bytes=min(TAKE_BYTES, int(limit * _SHARE_BUFFER)),
    )
    levels: dict[str, Levels] = {}
    for group in rows.row_groups:
        keys = RowKeys(job.seed, group)
        for table in rows.pieces(group):
            add_levels(levels, table)
            with storage_errors(path):
                buckets.add(table, keys.take(len(table)))
            job.advance(len(table))
    if not job.dataset.rows:
        return levels, 0
    final = _final_schema(schema, levels, writer)
    layout = layout_of(final, ways)
    ordered = buckets.sorted()
    while True:
        with storage_errors(path):
            table = next(ordered, None)
        if table is None:
            return levels, buckets.spilled_bytes
        for piece in _pieces(table, rows.piece_rows):
            writer._write_stored(piece.cast(final), layout)
            job.advance(len(piece))


def _pieces(table: pa.Table, rows: int) -> Iterator[pa.Table]:
    for start in range(0, len(table), rows):
        yield table.slice(start, rows)


def _final_schema(schema: pa.Schema, levels: dict[str, Levels], writer: DatasetWriter) -> pa.Schema:
    assert writer.schema is not None
    return with_nullability(schema, levels).with_metadata(writer.schema.arrow_schema().metadata)
