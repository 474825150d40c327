"""Many tasks, one commit: the protocol of jobs on Dask, Spark or any other engine.

The driver makes a `WriteJob`, passes its `spec` to tasks, and passes the reports of successful tasks to `commit`. Tasks
write only into the job's own hidden directory, under names unique to the attempt. So a task may fail, run again, or run
twice at once: files that no report names are never published.

    <parent>/.<name>.job-<id>/          next to the data set; if that is impossible, and on object stores, in it
        tasks/  files of tasks          as .job-<id>/
        data/   files named by reports, collected for the one rename
        journal.json                    if a single rename is impossible: see `commit`
    <parent>/.<name>.job-<id>.lease     held while the driver lives

A job that ends removes its directory. A job that is killed leaves it, and so does a job whose commit file by file could
neither be completed nor undone. Every `WriteJob` on the same path first completes or undoes jobs whose lease nobody
holds, and removes their directories.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import PathLike, is_local, list_below, resolve, uninterrupted
from parquet_loader.errors import ConfigurationError, UnfinishedCommitError, WriteError
from parquet_loader.schema import Schema, check_schema
from parquet_loader.write.jobs.commit import (
    JOURNAL,
    Journal,
    finish_or_undo,
    publish_directory,
    publish_files,
    renames_directories,
)
from parquet_loader.write.jobs.lease import NEW_SUFFIX, JobLease, dead_lease, remove_unnamed
from parquet_loader.write.options import WriteOptions
from parquet_loader.write.os_errors import storage_errors
from parquet_loader.write.packer import Packer
from parquet_loader.write.staging import (
    StagedFile,
    finish_exchange,
    join,
    make_directory,
    move_file,
    remove_tree,
    sync_directory,
)
from parquet_loader.write.target import WriteMode, check_target, listing, parquet_files
from parquet_loader.write.writer import WriteSummary

# A lease whose driver died before the lease got its final name.
UNNAMED_LEASE = r"\.job-[0-9a-f]{32}\.lease" + re.escape(NEW_SUFFIX)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The parameters of a job that tasks need; small and picklable.

    Attributes:
        path: The data set, for error messages.
        directory: The directory in `filesystem` that tasks write to.
        filesystem: The file system of the data set.
        schema: The schema of the columns.
        options: Sizes and codec.
        metadata: The metadata of the files' footers.
    """

    path: str
    directory: str
    filesystem: Any
    schema: Schema
    options: WriteOptions
    metadata: Mapping[bytes, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A task's report of a file.

    Attributes:
        partition: The number of the partition that its rows come from; files are ordered by it.
        name: Its name in the job's directory; unique to the attempt.
        rows: Its rows.
        bytes: Its size as stored.
        decoded_bytes: The size of its rows in memory.
    """

    partition: int
    name: str
    rows: int
    bytes: int
    decoded_bytes: int


@dataclass(frozen=True, slots=True)
class JobSummary(WriteSummary):
    """The files that a job published.

    Attributes:
        seconds: From the beginning of the job to its commit.
    """

    seconds: float


class WriteJob:
    """One job, from the check of its target to its commit; used by the driver process.

    Leaving the ``with`` body without `commit` removes all written files. A job that is not closed is removed when it is
    garbage-collected, or when the interpreter exits.

    Args:
        path: Directory of the data set, local or a URL.
        schema: The schema of the columns.
        mode: As in `DatasetWriter`.
        options: Sizes and codec.
        filesystem: A `pyarrow.fs.FileSystem`; it has to pickle.
        file_id: Part of the names of its files, on which states and splits by position depend. Default: an id unique to
            the job; pass another one only for a directory that nobody else writes to.
        nests: Whether ``mode="append"`` publishes files in a subdirectory of their own, by one rename.

    Raises:
        WriteError: The directory is not empty, not replaceable, or the file system refuses.
        SchemaError: The files to append to have another schema.

    Attributes:
        spec: The parameters for tasks.
    """

    def __init__(
        self,
        path: PathLike,
        schema: Schema,
        *,
        mode: WriteMode = "error",
        options: WriteOptions | None = None,
        filesystem: Any = None,
        file_id: str | None = None,
        nests: bool = True,
    ) -> None:
        check_schema(schema, is_optional=False)
        if mode not in ("error", "append", "overwrite"):
            raise ConfigurationError(f"mode={mode!r}: expected 'error', 'append' or 'overwrite'")
        self._began_s = time.monotonic()
        self._mode = mode
        self._nests = nests
        self._filesystem, self.path = resolve(path, filesystem)
        self._has_rows_already = False
        with storage_errors(self.path):
            remove_dead_jobs(self._filesystem, self.path)
            schema = self._check_target(schema)
            self._directory = self._make_directory()
        self._file_id = file_id or self._directory.id
        self._journal = Journal(self._filesystem, join(self._directory.root, JOURNAL))
        self._finalizer = weakref.finalize(self, self._directory.remove)
        sizes = options or WriteOptions()
        self.spec = JobSpec(self.path, self._directory.tasks, self._filesystem, schema, sizes, self._metadata())
        self._is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.abort()

    def __repr__(self) -> str:
        return f"WriteJob({self.path!r}, {'open' if self._is_open else 'closed'})"

    @property
    def id(self) -> str:
        """32 hexadecimal digits that no other job has."""
        return self._directory.id

    def commit(self, files: Iterable[WrittenFile]) -> JobSummary:
        """Publish the named files, all or none, and remove the job's directory.

        Args:
            files: Reports of successful tasks, one for each task; files are ordered by partition.

        Raises:
            WriteError: A file does not match its report, another job considered this one dead, or the file system
                refuses. Nothing is published then.
            UnfinishedCommitError: On object stores and mount points: all files are published, but not all old ones are
                deleted; or some files are published and could not be removed. The next job on the path completes this.
        """
        if not self._is_open:
            raise WriteError(f"{self.path}: the job is closed; nothing more can be published")
        chosen = sorted({file.name: file for file in files}.values(), key=lambda file: (file.partition, file.name))
        try:
            with storage_errors(self.path):
                if not chosen and not self._has_rows_already:
                    chosen = [self._empty_file()]
                self._check_written(chosen)
                self._check_lease()
                published, size = self._publish(chosen)
        finally:
            self.abort()
        seconds = time.monotonic() - self._began_s
        return JobSummary(tuple(published), sum(f.rows for f in chosen), size, seconds)

    def abort(self) -> None:
        """Remove all unpublished files; idempotent, never raises."""
        self._is_open = False
        if self._journal.is_needed:  # the next job finds this directory like that of a dead job
            self._finalizer.detach()
            self._directory.leave()
        self._finalizer()

    def _check_target(self, schema: Schema) -> Schema:
        """Return the schema to write with; the schema of an existing data set tells how categories are stored."""
        known, self._has_rows_already = check_target(self._filesystem, self.path, self._mode, schema)
        return known or schema

    def _make_directory(self) -> JobDirectory:
        return JobDirectory.make(self._filesystem, self.path)

    def _metadata(self) -> Mapping[bytes, bytes]:
        """Return the metadata of the files' footers."""
        return {}

    def _empty_file(self) -> WrittenFile:
        packer = Packer(self.path, self.spec.schema, self.spec.options, lambda: new_task_file(self.spec, 0, 0))
        packer.write_empty_file(self.spec.schema)
        (packed,) = packer.files
        return WrittenFile(0, os.path.basename(packed.path), 0, packed.bytes, 0)

    def _check_written(self, files: list[WrittenFile]) -> None:
        inside = list_below(self._filesystem, self.spec.directory, recursive=False)
        there = {info.base_name: info.size for info in inside}
        for file in files:
            if there.get(file.name) != file.bytes:
                what = "is not there" if file.name not in there else f"has {there[file.name]} bytes"
                raise WriteError(
                    f"{self.path}: a task reported {file.name} with {file.bytes} bytes, but in {self.spec.directory} "
                    f"it {what}; nothing was published. All workers and the driver need the same storage at this path"
                )

    def _check_lease(self) -> None:
        if not self._directory.lease.is_held():
            raise WriteError(
                f"{self.path}: another job considered this one dead, and removed its files; nothing was published"
            )

    def _publish(self, files: list[WrittenFile]) -> tuple[list[str], int]:
        """Publish files; return their paths and their total bytes."""
        home = self._publish_named(files)
        return [join(home, self._name(number)) for number in range(len(files))], sum(f.bytes for f in files)

    def _name(self, number: int) -> str:
        return f"part-{self._file_id}-{number:06}.parquet"

    def _publish_named(self, files: list[WrittenFile]) -> str:
        """Publish files in a directory, and return the directory."""
        directory, id_ = self._directory, self.id
        moves = [(join(directory.tasks, f.name), self._name(number)) for number, f in enumerate(files)]
        whole = renames_directories(self._filesystem) and (self._nests or not self._has_rows_already)
        if whole:
            for source, name in moves:
                move_file(self._filesystem, source, join(directory.data, name))
            sync_directory(self._filesystem, directory.data)
        if whole and directory.is_sibling and (self._mode != "overwrite" or is_local(self._filesystem)):
            try:
                return publish_directory(self._filesystem, directory.data, self.path, f"job-{id_}", mode=self._mode)
            except UnfinishedCommitError:
                self._journal.is_needed = True  # the old files stay until the next job
                raise
        old = parquet_files(listing(self._filesystem, self.path), self.path)  # the files that readers see
        if self._mode == "error" and old:
            raise WriteError(f"{self.path}: while the job ran, others wrote into the directory; nothing was published")
        home = join(self.path, f"job-{id_}") if whole else self.path
        pairs = [(directory.data, home)] if whole else [(source, join(home, name)) for source, name in moves]
        replaced = old if self._mode == "overwrite" else []
        publish_files(self._filesystem, self.path, pairs, replaced, self._journal)
        return home


def new_task_file(spec: JobSpec, partition: int, number: int) -> StagedFile:
    """Return a file in the job's directory with a name unique to the attempt.

    Names sort by partition, then by the file's number in it, so rows are read in the order in which they were given.
    Rows of merged small files are an exception: they take the position of the first file.
    """
    name = f".part-{partition:06}-{number:06}-{uuid.uuid4().hex}.parquet.tmp"
    return StagedFile(spec.filesystem, join(spec.directory, name), spec.metadata)


def number_of(name: str) -> int:
    """Return a task file's number in its partition."""
    return int(name.split("-")[2])


def remove_dead_jobs(filesystem: pafs.FileSystem, path: str) -> None:
    """Remove the directories of killed jobs, and complete or undo their interrupted commits.

    Every job on `path` does this first. Jobs that are alive are not touched, see `parquet_loader.write.jobs.lease`.

    Args:
        filesystem: The file system of the data set.
        path: Its directory.
    """
    real = os.path.realpath(path) if is_local(filesystem) else path
    parent, name = os.path.split(real)
    folders = [(real, "")]
    if name and renames_directories(filesystem):
        folders.append((parent, f".{name}"))
    for folder, prefix in folders:
        pattern = re.compile(re.escape(prefix) + r"\.job-(?P<id>[0-9a-f]{32})(-dead|\.lease(\.[0-9a-f]{32})?)?")
        names = _names_in(filesystem, folder)
        if is_local(filesystem):
            for left in filter(re.compile(re.escape(prefix) + UNNAMED_LEASE).fullmatch, names):
                remove_unnamed(join(folder, left))
        for id_ in sorted({match["id"] for match in map(pattern.fullmatch, names) if match}):
            directory = JobDirectory(filesystem, join(folder, f"{prefix}.job-{id_}"), id_)
            with dead_lease(filesystem, directory.lease.path) as is_dead:
                if is_dead:
                    finish_or_undo(filesystem, join(directory.root, JOURNAL), path)
                    if is_local(filesystem):
                        finish_exchange(directory.data, real)
                    directory.remove_files()
                    for left in (n for n in names if n.startswith(os.path.basename(directory.lease.path))):
                        with contextlib.suppress(OSError, pa.ArrowException):
                            filesystem.delete_file(join(folder, left))


def _names_in(filesystem: pafs.FileSystem, folder: str) -> list[str]:
    """Return the names in a directory; none if it does not exist."""
    if is_local(filesystem):  # where other programs' files may have names that are not UTF-8, which Arrow refuses
        with contextlib.suppress(FileNotFoundError):
            return os.listdir(folder)
        return []
    return [info.base_name for info in list_below(filesystem, folder, recursive=False)]


class JobDirectory:
    """A job's directory and its lease."""

    def __init__(self, filesystem: pafs.FileSystem, root: str, id_: str, *, is_sibling: bool = False) -> None:
        self.filesystem = filesystem
        self.root = root
        self.id = id_
        self.tasks = join(root, "tasks")
        self.data = join(root, "data")
        self.lease = JobLease(filesystem, f"{root}.lease")
        self.is_sibling = is_sibling
        self._process = os.getpid()

    @classmethod
    def make(cls, filesystem: pafs.FileSystem, path: str) -> JobDirectory:
        """Make the directory of a new job, next to `path` if possible."""
        id_ = uuid.uuid4().hex
        if renames_directories(filesystem):
            real = os.path.realpath(path) if is_local(filesystem) else path
            parent, name = os.path.split(real)
            if name and not (is_local(filesystem) and os.path.ismount(real)):
                sibling = cls(filesystem, join(parent, f".{name}.job-{id_}"), id_, is_sibling=True)
                with contextlib.suppress(OSError):
                    if parent:
                        make_directory(filesystem, parent)
                    sibling._open()
                    return sibling
        make_directory(filesystem, path)
        return cls.make_within(filesystem, path, id_)

    @classmethod
    def make_within(cls, filesystem: pafs.FileSystem, path: str, id_: str | None = None) -> JobDirectory:
        """Make the directory of a new job in the existing directory `path`."""
        id_ = id_ or uuid.uuid4().hex
        inside = cls(filesystem, join(path, f".job-{id_}"), id_)
        inside._open()
        return inside

    def remove(self) -> None:
        """Remove the directory and the lease; ignores errors. Does nothing in a forked child.

        Ctrl-C waits until local files are removed.
        """
        if self._process != os.getpid():
            return
        if is_local(self.filesystem):
            uninterrupted(self._remove)
        else:
            self._remove()

    def _remove(self) -> None:
        self.remove_files()
        self.lease.release()

    def leave(self) -> None:
        """Release the lease and leave the files to the next job; never raises. Does nothing in a forked child."""
        if self._process == os.getpid():
            self.lease.release()

    def remove_files(self) -> None:
        """Remove the directory; tasks that still run fail when they write."""
        if is_local(self.filesystem):
            dead = f"{self.root}-dead"
            remove_tree(dead)
            with contextlib.suppress(OSError):
                os.rename(self.root, dead)
            remove_tree(dead)
            remove_tree(self.root)
            return
        with contextlib.suppress(OSError, pa.ArrowException):
            self.filesystem.delete_dir(self.root)

    def _open(self) -> None:
        self.lease.acquire()
        try:
            for directory in (self.root, self.tasks, self.data):
                make_directory(self.filesystem, directory)
        except BaseException:
            self.remove()
            raise
