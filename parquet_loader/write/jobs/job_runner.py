"""Runs the steps of a job on any engine: write partitions, shuffle rows or merge small files, commit."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from parquet_loader.common import (
    PathLike,
    ShowProgress,
    check_int,
    format_bytes,
    local_path,
    parse_bytes,
    progress_bar,
    shown_progress,
)
from parquet_loader.errors import ConfigurationError
from parquet_loader.schema import Schema
from parquet_loader.write.jobs.job import JobSpec, JobSummary, WrittenFile
from parquet_loader.write.jobs.job_shuffle import Chunk, ShufflePlan, write_bucket, write_chunks
from parquet_loader.write.jobs.store_job import Store, open_job
from parquet_loader.write.jobs.task import merge_files, plan_merges, write_partition
from parquet_loader.write.options import TAKE_BYTES, WriteOptions
from parquet_loader.write.target import WriteMode

PartitionTask = Callable[[JobSpec, int, Any], "list[WrittenFile] | list[Chunk]"]
StepTask = Callable[[JobSpec, int], list[WrittenFile]]


class Runner(Protocol):
    """The interface to an engine; both methods raise the first error, and report each task once."""

    def partitions(self, spec: JobSpec, task: PartitionTask, show: ShowProgress) -> list[Any]:
        """Call ``task(spec, number, rows)`` on the workers for every partition, and return all reports."""

    def step(self, spec: JobSpec, task: StepTask, count: int, show: ShowProgress) -> list[WrittenFile]:
        """Call ``task(spec, index)`` on the workers for `count` indexes, and return all reports."""


def run_job(
    runner: Runner,
    path: PathLike | Store,
    schema: Schema,
    *,
    mode: WriteMode,
    options: WriteOptions | None,
    filesystem: Any,
    shuffle: bool,
    seed: int,
    bucket_bytes: int | str,
    progress: bool,
) -> JobSummary:
    """Write the rows of `runner`, and commit them; arguments as in `write_dask`."""
    seed = check_int("seed", seed, 0, 2**64 - 1)
    size = parse_bytes(bucket_bytes, "bucket_bytes")
    if shuffle:
        check_bucket_bytes(size, schema)
    bar = progress_bar() if progress else None
    with open_job(path, schema, mode=mode, options=options, filesystem=filesystem) as job:
        spec = job.spec
        if shuffle:
            with shown_progress(bar, desc="scatter", unit="task") as show:
                chunks = runner.partitions(spec, partial(write_chunks, chunk_bytes=size, seed=seed), show)
            plan = ShufflePlan.from_chunks(chunks, size, seed)
            files: list[WrittenFile] = []
            second, count = partial(write_bucket, plan), plan.buckets
        else:
            with shown_progress(bar, desc="write", unit="task") as show:
                written = runner.partitions(spec, write_partition, show)
            files, groups = plan_merges(written, spec.options, len(spec.schema.arrow_schema()))
            second, count = partial(merge_files, groups), len(groups)
        if count:
            with shown_progress(bar, desc="gather" if shuffle else "merge", unit="task") as show:
                files += runner.step(spec, second, count, show)
        return job.commit(files)


def check_bucket_bytes(size: int, schema: Schema) -> None:
    """Refuse buckets whose rows Arrow cannot permute.

    Raises:
        ConfigurationError: The size exceeds 1 GiB, and the values of a column vary in width.
    """
    varying = [field.name for field in schema.arrow_schema() if _varies(field.type)]
    if varying and size > TAKE_BYTES:
        raise ConfigurationError(
            f"bucket_bytes={format_bytes(size)}: at most {format_bytes(TAKE_BYTES)} with columns of text, bytes, "
            f"images or lists ({varying[0]!r}), of which Arrow joins no more than 2 GiB"
        )


def _varies(type_: pa.DataType) -> bool:
    return any(is_kind(type_) for is_kind in (pa.types.is_binary, pa.types.is_string, pa.types.is_list))


def package_archive(path: PathLike) -> str:
    """Write this package into a zip file from which workers can import it, and return its absolute path.

    For clusters whose workers lack it: ``client.upload_file(package_archive("parquet_loader.zip"))`` on Dask,
    ``spark.sparkContext.addPyFile(package_archive("parquet_loader.zip"))`` on Spark. Workers still need numpy and
    pyarrow of their own.

    Raises:
        ConfigurationError: this package is itself imported from an archive.
    """
    target = local_path(path)
    root = os.path.abspath(sys.modules[__name__.partition(".")[0]].__path__[0])
    if not os.path.isdir(root):
        raise ConfigurationError(
            f"package_archive: this package is imported from {os.path.dirname(root)!r}; send that file to the workers"
        )
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder, _, names in sorted(os.walk(root)):
            for name in sorted(names):
                if name.endswith((".py", "py.typed")):
                    file = os.path.join(folder, name)
                    archive.write(file, os.path.relpath(file, os.path.dirname(root)))
    return target


def flatten(reports: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the reports of all tasks as one list."""
    return [item for report in reports for item in report]
