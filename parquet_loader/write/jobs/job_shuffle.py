"""Puts all rows of a job into a seeded order, in bounded memory: tasks write chunks, others gather buckets from them.

Each task permutes its rows a chunk at a time and writes the chunks in a form from which any slice can be read. After
all chunks are written, their sizes give the number of buckets. Bucket ``b`` takes an equal slice of every chunk
(`ShufflePlan.slices`), permutes these rows together, and writes them. Every row can end up in any bucket and at any
position in it. Each bucket has its share of every chunk, so a small window of the result represents all rows.

`rewrite_dataset` has another shuffle (`external_shuffle`): one process sorts rows by a random key, so the order does
not depend on sizes. A task of a job cannot know how many buckets the others need, so here the order depends on sizes.

The order is a function of the seed and of the rows of each partition in their order. The engine, the number of workers
and retries do not change it. Permutations are those of `parquet_loader.plan.epoch`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from parquet_loader.common import IntArray, Stream, bit_generator, in_threads, is_local, permutation
from parquet_loader.schema import iter_tables
from parquet_loader.write.jobs.job import JobSpec, WrittenFile
from parquet_loader.write.jobs.task import check_directory, naming, packing, report
from parquet_loader.write.os_errors import storage_errors
from parquet_loader.write.staging import join

_BATCH_BYTES = 128 * 2**10
_READ_THREADS = 8


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one partition, permuted, in a file of the job's directory.

    Attributes:
        partition: The number of the partition.
        number: The number of the chunk in the partition.
        name: The file's name; unique to the attempt.
        rows: Number of rows.
        bytes: Their size in memory.
    """

    partition: int
    number: int
    name: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class ShufflePlan:
    """Assigns rows of chunks to buckets: a pure function of the chunks' sizes and the seed.

    Attributes:
        chunks: All chunks, by partition and number.
        buckets: Number of buckets.
        seed: From 0 to ``2**64 - 1``.
    """

    chunks: tuple[Chunk, ...]
    buckets: int
    seed: int

    @classmethod
    def from_chunks(cls, chunks: Sequence[Chunk], bucket_bytes: int, seed: int) -> ShufflePlan:
        """Return a plan with buckets of about `bucket_bytes`."""
        ordered = tuple(sorted(chunks, key=lambda chunk: (chunk.partition, chunk.number)))
        total = sum(chunk.bytes for chunk in ordered)
        return cls(ordered, max(1, -(-total // bucket_bytes)), seed)

    def slices(self, bucket: int) -> tuple[IntArray, IntArray]:
        """Return start and stop (exclusive) of the bucket's rows in each chunk, int64 ``[chunks]`` each.

        Chunk ``c`` with ``r`` rows is cut at ``(b * r + phase[c]) // buckets`` for every ``b``. The phases are seeded,
        so that chunks with fewer rows than buckets do not all contribute to the same buckets.
        """
        rows, phases = self._rows, self._phases
        return (bucket * rows + phases) // self.buckets, ((bucket + 1) * rows + phases) // self.buckets

    @cached_property
    def _rows(self) -> IntArray:
        return np.array([chunk.rows for chunk in self.chunks], dtype=np.int64)

    @cached_property
    def _phases(self) -> IntArray:
        draws = [
            bit_generator(self.seed, Stream.JOB_PHASE, chunk.partition, chunk.number).random_raw()
            for chunk in self.chunks
        ]
        return np.array([draw % self.buckets for draw in draws], dtype=np.int64)


def write_chunks(spec: JobSpec, partition: int, data: Any, *, chunk_bytes: int, seed: int) -> list[Chunk]:
    """Permute the rows of one partition a chunk at a time, write the chunks, and report them.

    Raises:
        DataError, SchemaError, WriteError: As in `write_partition`.
    """
    check_directory(spec)
    chunks: list[Chunk] = []
    with naming(partition):
        for table in _batches(iter_tables(data, spec.schema), chunk_bytes):
            order = permutation(table.num_rows, seed, Stream.JOB_CHUNK, partition, len(chunks))
            name = f".chunk-{partition:06}-{len(chunks):06}-{uuid.uuid4().hex}.arrow"
            with storage_errors(spec.path):
                _write_chunk(spec, name, table.take(order))
            chunks.append(Chunk(partition, len(chunks), name, table.num_rows, table.nbytes))
    return chunks


def write_bucket(plan: ShufflePlan, spec: JobSpec, bucket: int) -> list[WrittenFile]:
    """Gather one bucket from all chunks, permute it, write it, and report the files."""
    firsts, ends = plan.slices(bucket)
    wanted = [(plan.chunks[c], int(firsts[c]), int(ends[c])) for c in np.flatnonzero(ends > firsts)]

    def read(item: tuple[Chunk, int, int]) -> pa.Table:
        return _read_rows(spec, *item)

    with packing(spec, bucket) as packer:
        with storage_errors(spec.path):
            tables = in_threads(read, wanted, _READ_THREADS, "parquet_loader-bucket")
        if tables:
            table = pa.concat_tables(tables).combine_chunks()
            del tables
            order = permutation(table.num_rows, plan.seed, Stream.JOB_BUCKET, 0, bucket)
            step = max(1, int(spec.options.group_bytes(table.num_columns) * table.num_rows / max(1, table.nbytes)))
            for start in range(0, table.num_rows, step):
                packer.add(table.take(order[start : start + step]))
    return report(packer, bucket)


def _batches(tables: Iterator[pa.Table], size: int) -> Iterator[pa.Table]:
    """Join tables until they have `size` bytes."""
    held: list[pa.Table] = []
    held_bytes = 0
    for table in tables:
        if table.num_rows:
            held.append(table)
            held_bytes += table.nbytes
        if held_bytes >= size:
            yield pa.concat_tables(held)
            held, held_bytes = [], 0
    if held:
        yield pa.concat_tables(held)


def _write_chunk(spec: JobSpec, name: str, table: pa.Table) -> None:
    rows = max(1, int(_BATCH_BYTES * table.num_rows / max(1, table.nbytes)))
    with (
        spec.filesystem.open_output_stream(join(spec.directory, name)) as stream,
        pa.ipc.new_file(stream, table.schema) as writer,
    ):
        writer.write_table(table.combine_chunks(), max_chunksize=rows)


def _read_rows(spec: JobSpec, chunk: Chunk, start: int, stop: int) -> pa.Table:
    path = join(spec.directory, chunk.name)
    with pa.memory_map(path) if is_local(spec.filesystem) else spec.filesystem.open_input_file(path) as file:
        reader = pa.ipc.open_file(file)
        step = reader.get_batch(0).num_rows  # the same for all batches except the last
        first, last = start // step, (stop - 1) // step
        batches = [reader.get_batch(i) for i in range(first, last + 1)]
        return pa.Table.from_batches(batches).slice(start - first * step, stop - start)
