"""The rows of a job into a `SampleStore`: gathered beside it first, and only what successful tasks reported goes in.

A store counts and evicts under a lock of its own, and no task may write to it itself: what a task that is run twice
wrote would be there twice. So tasks write to the job's hidden directory as for any other target, and the driver copies
what they reported through a writer of the store, a row group at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

import pyarrow.parquet as pq

from parquet_loader.errors import ConfigurationError, SchemaError
from parquet_loader.filesystem import PathLike
from parquet_loader.schema import Schema
from parquet_loader.write.job import Job, WrittenFile
from parquet_loader.write.options import WriteOptions
from parquet_loader.write.publish import storage_errors
from parquet_loader.write.staging import join
from parquet_loader.write.writer import WriteMode

JOB_KEY = "job"
"""Name under which the store's files keep the identity of the job that they came from."""


class Writer(Protocol):
    """What is used of a store's writer."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def write(self, batch: Any) -> None:
        """Add rows."""

    def close(self) -> Any:
        """Publish what is left, and return an object with `bytes`."""


@runtime_checkable
class Store(Protocol):
    """What is used of a `SampleStore`, which this package knows nothing of."""

    @property
    def path(self) -> str:
        """Its directory."""

    @property
    def schema(self) -> Schema:
        """What its columns mean."""

    def writer(self, *, metadata: Mapping[str, str]) -> Writer:
        """Return a writer whose files keep `metadata`."""

    def files(self) -> Sequence[Any]:
        """Return what is published, in order: objects with `path` and `metadata`."""


class StoreJob(Job):
    """A job whose rows are added to a store; used as `Job` is.

    The commit takes as long as the copy, and waits for room as any writer of the store does. Files appear one by one,
    each whole. If it fails or the driver is killed amid it, what had appeared by then stays; nothing appears before it.

    Args:
        store: A `SampleStore`.
        schema: What the columns mean to the job.

    Raises:
        SchemaError: the store has another schema.
        WriteError: the file system refuses.
    """

    is_sized_by_target = True

    def __init__(self, store: Store, schema: Schema) -> None:
        self._store = store
        super().__init__(store.path, schema, mode="append")

    def _check_target(self, schema: Schema) -> None:
        there = self._store.schema
        if schema != there:
            names = [repr(name) for name in {**there, **schema} if there.get(name) != schema.get(name)]
            what = f"in {', '.join(names)}" if names else "in the order of its columns"
            raise SchemaError(f"{self.path}: the job's schema differs from the store's {what}")
        self._has_rows_already = True  # a store without samples holds no file

    def _publish(self, files: list[WrittenFile]) -> tuple[list[str], int]:
        with self._store.writer(metadata={JOB_KEY: self.id}) as writer:
            for reported in files:
                path = join(self.spec.directory, reported.name)
                with storage_errors(self.path):
                    file = pq.ParquetFile(path, filesystem=self.spec.filesystem, pre_buffer=False)
                with file:
                    for group in range(file.num_row_groups):
                        writer.write(file.read_row_group(group, use_threads=False))
        there = [file.path for file in self._store.files() if file.metadata.get(JOB_KEY) == self.id]
        return there, int(writer.close().bytes)


def open_job(
    target: PathLike | Store, schema: Schema, *, mode: WriteMode, options: WriteOptions | None, filesystem: Any
) -> Job:
    """Return the job that writes to a directory or into a store.

    Raises:
        ConfigurationError: an argument that a store has no use for.
        SchemaError, WriteError: as `Job` and `StoreJob`.
    """
    if not isinstance(target, Store):
        return Job(target, schema, mode=mode, options=options, filesystem=filesystem)
    if mode == "overwrite":
        raise ConfigurationError(f"{target.path}: mode='overwrite' is for directories; a store grows, and evicts")
    if options is not None or filesystem is not None:
        name = "options" if options is not None else "filesystem"
        raise ConfigurationError(f"{target.path}: {name}= is for directories; a store has its own, see StoreOptions")
    return StoreJob(target, schema)


def schema_of(target: PathLike | Store) -> Schema | None:
    """Return the schema of a store, or None for a directory."""
    return target.schema if isinstance(target, Store) else None
