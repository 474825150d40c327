"""The code of a worker: writes rows to files in the job's directory, and reports them. Needs only numpy and pyarrow."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.fs as pafs
import pyarrow.parquet as pq

from parquet_loader import errors
from parquet_loader.common import is_local, look_up
from parquet_loader.errors import DataError, ParquetLoaderError, SchemaError, WriteError
from parquet_loader.write.jobs.commit import renames_directories
from parquet_loader.write.jobs.job import JobSpec, WrittenFile, new_task_file, number_of
from parquet_loader.write.options import WriteOptions
from parquet_loader.write.os_errors import storage_errors
from parquet_loader.write.packer import Packer
from parquet_loader.write.staging import StagedFile, join

_ERRORS: dict[str, type[ParquetLoaderError]] = {
    e.__name__: e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.ParquetLoaderError)
}
_SMALL_ROW_GROUPS = 4


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that every retry of the task would repeat; returned as a value, so that the engine does not retry.

    Attributes:
        kind: Name of the error's class.
        message: Its text, which names partition, field and row.
    """

    kind: str
    message: str

    def error(self) -> ParquetLoaderError:
        """Return the error that the worker raised."""
        return _ERRORS[self.kind](self.message)


def write_partition(spec: JobSpec, partition: int, data: Any) -> list[WrittenFile]:
    """Write the rows of one partition, a batch of any form or an iterator of batches, and report the files.

    Raises:
        DataError, SchemaError: A batch does not fit the schema; the message names partition, field and row.
        WriteError: The file system refuses.
    """
    with packing(spec, partition) as packer, naming(partition):
        packer.write(data)
    return report(packer, partition)


def merge_files(groups: Sequence[tuple[int, list[str]]], spec: JobSpec, index: int) -> list[WrittenFile]:
    """Merge a group of small files into files of full row groups, and report the new files.

    Args:
        groups: The groups of `plan_merges`.
        spec: The job.
        index: The index of the group.
    """
    partition, names = groups[index]
    # A partition's small file is its last one, which these files replace.
    with packing(spec, partition, number_of(names[0])) as packer:
        for name in names:
            path = join(spec.directory, name)
            with (
                storage_errors(spec.path),
                pq.ParquetFile(path, filesystem=spec.filesystem, pre_buffer=False) as file,
            ):
                for group in range(file.num_row_groups):
                    packer.add(file.read_row_group(group, use_threads=False))
    return report(packer, partition)


def plan_merges(
    files: Sequence[WrittenFile], options: WriteOptions, columns: int
) -> tuple[list[WrittenFile], list[tuple[int, list[str]]]]:
    """Choose the files to merge, so that the sizes of files and row groups do not depend on the partitions.

    Files of less than four row groups are small, unless they have the full file size. They are grouped in order, until
    a group makes a full file.

    Args:
        files: The reports of tasks.
        options: Sizes.
        columns: Number of columns.

    Returns:
        The files that stay; and for each group of small files, the partition of its first file, and the names.
    """
    full = int(options.file_bytes)

    def is_small(file: WrittenFile) -> bool:
        return file.bytes < full and file.decoded_bytes < _SMALL_ROW_GROUPS * options.group_bytes(columns)

    ordered = sorted(files, key=lambda file: (file.partition, file.name))
    kept = [file for file in ordered if not is_small(file)]
    groups: list[list[WrittenFile]] = []
    free_bytes = -1
    for file in filter(is_small, ordered):
        if file.bytes > free_bytes:
            groups.append([])
            free_bytes = full
        groups[-1].append(file)
        free_bytes -= file.bytes
    kept += [group[0] for group in groups if len(group) == 1]
    return kept, [(group[0].partition, [f.name for f in group]) for group in groups if len(group) > 1]


@contextlib.contextmanager
def naming(partition: int) -> Iterator[None]:
    """Name the partition in errors about its rows."""
    try:
        yield
    except (DataError, SchemaError) as error:
        raise type(error)(f"partition {partition}: {error}") from error


def lasting(error: BaseException) -> Failure | None:
    """Return the value to send to the driver instead of an error that a retry would repeat."""
    return Failure(type(error).__name__, str(error)) if isinstance(error, DataError | SchemaError) else None


def check_directory(spec: JobSpec) -> None:
    """Refuse to begin if the job's directory is not visible.

    Raises:
        WriteError: The worker does not see the driver's storage, or the job is over.
    """
    if not renames_directories(spec.filesystem):
        return  # object stores have no directories, and are the same from everywhere
    if look_up(spec.filesystem, spec.directory).type != pafs.FileType.Directory:
        what = "a path on storage that the driver and all workers share" if is_local(spec.filesystem) else "it"
        raise WriteError(
            f"{spec.path}: the worker on {socket.gethostname()} does not find the job's directory {spec.directory}: "
            f"the job is over, or this machine does not see {what}"
        )


@contextlib.contextmanager
def packing(spec: JobSpec, partition: int, first_number: int = 0) -> Iterator[Packer]:
    """Yield a packer and finish it, or remove its files after an error; file numbers begin at `first_number`."""
    check_directory(spec)
    files: list[StagedFile] = []

    def new_file() -> StagedFile:
        files.append(new_task_file(spec, partition, first_number + len(files)))
        return files[-1]

    packer = Packer(spec.path, spec.schema, spec.options, new_file)
    try:
        yield packer
        packer.finish()
    except BaseException:
        for file in files:
            file.discard()
        raise


def report(packer: Packer, partition: int) -> list[WrittenFile]:
    """Return the report of the files of a finished packer."""
    return [WrittenFile(partition, os.path.basename(f.path), f.rows, f.bytes, f.decoded_bytes) for f in packer.files]
