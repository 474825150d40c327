"""Writes the rows of a job into a `SampleStore`: tasks write files in its format, and the store publishes them at once.

If tasks wrote to the store directly, rows of a task that runs twice would be stored twice. So tasks write to the job's
hidden directory, as for any other target, with the footers and sizes of the store's own files. One commit of the store
publishes the files that successful tasks report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from parquet_loader.common import PathLike
from parquet_loader.errors import ConfigurationError, SchemaError
from parquet_loader.schema import Schema
from parquet_loader.write.jobs.job import JobDirectory, WriteJob, WrittenFile
from parquet_loader.write.options import WriteOptions
from parquet_loader.write.staging import join
from parquet_loader.write.target import WriteMode

JOB_KEY = "job"
"""Metadata key under which the store's files keep the id of their job."""


@runtime_checkable
class Store(Protocol):
    """The part of `SampleStore` that jobs use; this package does not import it."""

    @property
    def path(self) -> str:
        """Its directory."""

    @property
    def schema(self) -> Schema:
        """The schema of its columns."""

    @property
    def settings(self) -> Any:
        """An object with `file_bytes`, `row_group_bytes` and ``options.compression``."""

    def footer(self, metadata: Mapping[str, str]) -> Mapping[bytes, bytes]:
        """Return the metadata of its files' footers."""

    def publish(self, paths: Sequence[str]) -> list[str]:
        """Publish files, all at once or none, and return their paths."""


class StoreJob(WriteJob):
    """A job whose rows are added to a store; used like `WriteJob`.

    Before the first file, the commit frees or awaits space for all files, as any writer of the store does. Then readers
    of the store see all files at once; other readers may see only some during the milliseconds of renaming. If the
    commit fails or the driver is killed during it, all files appear or none.

    Args:
        store: A `SampleStore`.
        schema: The job's schema.

    Raises:
        SchemaError: The store has another schema.
        WriteError: The file system refuses.
    """

    def __init__(self, store: Store, schema: Schema) -> None:
        self._store = store
        super().__init__(store.path, schema, mode="append", options=_options(store.settings))

    def _check_target(self, schema: Schema) -> Schema:
        there = self._store.schema
        schema = schema.as_stored(there)
        if list(schema.items()) != list(there.items()):
            names = [repr(name) for name in {**there, **schema} if there.get(name) != schema.get(name)]
            what = f"in {', '.join(names)}" if names else "in the order of its columns"
            raise SchemaError(
                f"{self.path}: the job's schema differs from the store's {what}; write with schema=store.schema"
            )
        self._has_rows_already = True  # a store without samples holds no file
        return schema

    def _make_directory(self) -> JobDirectory:
        return JobDirectory.make_within(self._filesystem, self.path)  # so that files can be renamed into the store

    def _metadata(self) -> Mapping[bytes, bytes]:
        return self._store.footer({JOB_KEY: self.id})

    def _publish(self, files: list[WrittenFile]) -> tuple[list[str], int]:
        published = self._store.publish([join(self.spec.directory, file.name) for file in files])
        return published, sum(file.bytes for file in files)


def _options(sizes: Any) -> WriteOptions:
    """Return options by which tasks cut files like the store's writers: at the nearest end of a row group."""
    group, full = sizes.row_group_bytes, sizes.file_bytes
    return WriteOptions(
        row_group_bytes=group, file_bytes=max(1, full // 2, full - group // 2), compression=sizes.options.compression
    )


def open_job(
    target: PathLike | Store, schema: Schema, *, mode: WriteMode, options: WriteOptions | None, filesystem: Any
) -> WriteJob:
    """Return the job that writes to a directory or into a store.

    Raises:
        ConfigurationError: An argument does not apply to a store.
        SchemaError, WriteError: As in `WriteJob` and `StoreJob`.
    """
    if not isinstance(target, Store):
        return WriteJob(target, schema, mode=mode, options=options, filesystem=filesystem)
    if mode == "overwrite":
        raise ConfigurationError(f"{target.path}: mode='overwrite' is for directories; a store grows, and evicts")
    if options is not None or filesystem is not None:
        name = "options" if options is not None else "filesystem"
        raise ConfigurationError(f"{target.path}: {name}= is for directories; a store has its own, see StoreOptions")
    return StoreJob(target, schema)


def schema_of(target: PathLike | Store) -> Schema | None:
    """Return the schema of a store, or None for a directory."""
    return target.schema if isinstance(target, Store) else None
