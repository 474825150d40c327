"""The steps of a job on any engine: write partitions, shuffle or merge small files by their reports, commit."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from parquet_loader.common import PathLike, check_int, format_bytes, local_path, parse_bytes
from parquet_loader.errors import ConfigurationError, MissingPackageError
from parquet_loader.schema import Schema, to_table
from parquet_loader.write.jobs.job import JobSpec, JobSummary, WrittenFile
from parquet_loader.write.jobs.job_shuffle import Chunk, ShufflePlan, write_bucket, write_chunks
from parquet_loader.write.jobs.store_job import Store, open_job
from parquet_loader.write.jobs.task import merge_files, plan_merges, write_partition
from parquet_loader.write.options import TAKE_BYTES, WriteOptions
from parquet_loader.write.writer import WriteMode


@dataclass(frozen=True, slots=True)
class Merges:
    """The second step without a shuffle: groups of small files, each with the partition it counts as."""

    groups: tuple[tuple[int, list[str]], ...]

    def __len__(self) -> int:
        return len(self.groups)

    def run(self, spec: JobSpec, index: int) -> list[WrittenFile]:
        """Do task `index`, on a worker."""
        return merge_files(spec, *self.groups[index])


@dataclass(frozen=True, slots=True)
class BucketTasks:
    """The second step with a shuffle."""

    plan: ShufflePlan

    def __len__(self) -> int:
        return self.plan.buckets

    def run(self, spec: JobSpec, index: int) -> list[WrittenFile]:
        """Do task `index`, on a worker."""
        return write_bucket(spec, self.plan, index)


Step = Merges | BucketTasks
PartitionTask = Callable[[JobSpec, int, Any], "list[WrittenFile] | list[Chunk]"]


class Runner(Protocol):
    """The interface to an engine; both calls raise the first error, and report each task once."""

    def partitions(self, spec: JobSpec, task: PartitionTask, bar: Bar) -> list[Any]:
        """Call ``task(spec, number, rows)`` on the workers for every partition, and return all reports."""

    def step(self, spec: JobSpec, step: Step, bar: Bar) -> list[WrittenFile]:
        """Call ``step.run(spec, index)`` on the workers for every index, and return all reports."""


@dataclass(frozen=True, slots=True)
class ScatterTask:
    """Write a partition as permuted chunks."""

    chunk_bytes: int
    seed: int

    def __call__(self, spec: JobSpec, partition: int, data: Any) -> list[Chunk]:
        """Do it, on a worker."""
        return write_chunks(spec, partition, data, chunk_bytes=self.chunk_bytes, seed=self.seed)


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
    new_bar = _bars() if progress else None
    with open_job(path, schema, mode=mode, options=options, filesystem=filesystem) as job:
        spec = job.spec
        if shuffle:
            with _bar(new_bar, "scatter") as bar:
                chunks = runner.partitions(spec, ScatterTask(size, seed), bar)
            step: Step = BucketTasks(ShufflePlan.from_chunks(chunks, size, seed))
            files: list[WrittenFile] = []
        else:
            with _bar(new_bar, "write") as bar:
                written = runner.partitions(spec, write_partition, bar)
            files, groups = plan_merges(written, spec.options, len(spec.schema.arrow_schema()))
            step = Merges(tuple(groups))
        if len(step):
            with _bar(new_bar, "gather" if shuffle else "merge") as bar:
                files += runner.step(spec, step, bar)
        return job.commit(files)


def check_bucket_bytes(size: int, schema: Schema) -> None:
    """Refuse buckets whose rows Arrow could not put into another order.

    Raises:
        ConfigurationError: more than 1 GiB, with a column whose values vary in width.
    """
    varying = [field.name for field in schema.arrow_schema() if _varies(field.type)]
    if varying and size > TAKE_BYTES:
        raise ConfigurationError(
            f"bucket_bytes={format_bytes(size)}: at most {format_bytes(TAKE_BYTES)} with columns of text, bytes, "
            f"images or lists ({varying[0]!r}), of which Arrow joins no more than 2 GiB"
        )


def _varies(type_: pa.DataType) -> bool:
    return any(is_kind(type_) for is_kind in (pa.types.is_binary, pa.types.is_string, pa.types.is_list))


def check_columns(empty: Any, schema: Schema) -> None:
    """Refuse columns that cannot fit the schema before any task runs, by a batch without rows.

    Raises:
        SchemaError: a column is missing, unknown, or of a kind that does not fit its field.
    """
    to_table(empty, schema)


def package_archive(path: PathLike) -> str:
    """Write this package into a zip file from which workers can import it, and return its absolute path.

    For clusters whose workers lack it: ``client.upload_file(package_archive("parquet_loader.zip"))`` on Dask,
    ``spark.sparkContext.addPyFile(package_archive("parquet_loader.zip"))`` on Spark. Workers still need numpy and
    pyarrow of their own.
    """
    target = local_path(path)
    root = os.path.abspath(sys.modules[__name__.partition(".")[0]].__path__[0])
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder, _, names in sorted(os.walk(root)):
            for name in sorted(names):
                if name.endswith((".py", "py.typed")):
                    file = os.path.join(folder, name)
                    archive.write(file, os.path.relpath(file, os.path.dirname(root)))
    return target


class Bar:
    """Shows the number of finished tasks in tqdm's bar; without tqdm it shows nothing."""

    def __init__(self, bar: Any = None) -> None:
        self._bar = bar

    @property
    def is_shown(self) -> bool:
        """Whether a bar is shown."""
        return self._bar is not None

    def begin(self, tasks: int) -> None:
        """Set the number of tasks."""
        if self._bar is not None and self._bar.total != tasks:
            self._bar.reset(total=tasks)

    def show(self, done: int) -> None:
        """Set the number of finished tasks."""
        if self._bar is not None:
            self._bar.update(done - self._bar.n)


@contextlib.contextmanager
def _bar(new_bar: Any, what: str) -> Iterator[Bar]:
    if new_bar is None:
        yield Bar()
        return
    with new_bar(desc=what, unit="task") as bar:
        yield Bar(bar)


def _bars() -> Any:
    try:
        return importlib.import_module("tqdm.auto").tqdm
    except ImportError as error:
        raise MissingPackageError("progress=True needs tqdm: pip install 'torch-parquet-loader[progress]'") from error


def flatten(reports: Sequence[Sequence[Any]]) -> list[Any]:
    """Return all that tasks report as one list."""
    return [item for report in reports for item in report]
