"""Opens the sources of loaders: those that do not change, and those that each epoch lists again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow.fs as pafs

from parquet_loader.common import Ranks, ReadOptions, Shard
from parquet_loader.dataset import (
    Dataset,
    ListedDataset,
    PriorCounts,
    check_left_to_dataset,
    open_dataset,
    open_listed,
    resolve_source,
    settings_of,
)
from parquet_loader.errors import ConfigurationError, UnsupportedError
from parquet_loader.loader.live_source import LiveSource
from parquet_loader.loader.live_table import LiveTable
from parquet_loader.read import LocalCache, splits_by_position
from parquet_loader.schema import Schema
from parquet_loader.source import Snapshot, VersionedSource, selection_of, table_source


def live_source_of(
    given: Any, split: str | None, filters: Any, filesystem: pafs.FileSystem | None, read_options: ReadOptions | None
) -> LiveSource | None:
    """Return a source that each epoch lists again: a store, or a table that is followed; None for others.

    Raises:
        ConfigurationError: An argument does not fit the source.
    """
    if isinstance(given, VersionedSource):
        if not given.follow:
            return None
        reading = read_options or ReadOptions()
        if filters is not None and splits_by_position(filters):
            raise ConfigurationError(
                "follow=True, filters=split_rows(...): if the table rewrites files, rows would move from training to "
                "validation; use split('id', 0, 0.9) with a column that tells rows apart, or read one version"
            )
        return LiveTable(given, filesystem, reading.remote, selection_of(split, filters, reading))
    if not isinstance(given, LiveSource):
        return None
    if filesystem is not None:
        raise ConfigurationError("filesystem=: a store has its own filesystem; leave filesystem out")
    if split is not None and not isinstance(given, LiveTable):
        raise ConfigurationError(
            f"split={split!r}: a store's files do not belong to splits; use filters=split('id', 0, 0.9) with a column "
            "that tells rows apart, or split_rows(0, 0.9), which may move rows of a "
            "rewritten file to the other split"
        )
    return given


@dataclass(frozen=True, slots=True)
class SourceOpening:
    """The arguments of a loader that decide how its data set is opened.

    Attributes:
        schema, columns, filters, split, filesystem, on_error, cache, shard: As in `BatchedDataLoader`.
        read_options: As in `BatchedDataLoader`, or the default.
        dataset_arguments: Further arguments of `open_dataset`, by name.
    """

    schema: Schema | None
    columns: Sequence[str] | None
    filters: Any
    split: str | None
    filesystem: pafs.FileSystem | None
    on_error: Literal["raise", "skip", "skip_row"]
    read_options: ReadOptions
    cache: LocalCache | None
    shard: Shard | None
    dataset_arguments: Mapping[str, Any]

    def of_source(self, source: Any, ranks: Ranks | None) -> Dataset:
        """Return the data set of a source that does not change."""
        listed = source
        if not isinstance(listed, ListedDataset):
            listed = ListedDataset(
                source, self.schema, self.columns, self.filters, self.filesystem, self.on_error,
                split=self.split, read_options=self.read_options, cache=self.cache, shard=self.shard,
            )  # fmt: skip
        return open_listed(listed, ranks=ranks, **self.dataset_arguments)

    def of_snapshot(self, snapshot: Snapshot, ranks: Ranks | None, known: PriorCounts | None) -> Dataset:
        """Return the data set of one state of a source that changes."""
        resolved = resolve_source(snapshot, self.schema, self.columns, self.read_options)
        return open_dataset(
            resolved, read_options=self.read_options, cache=self.cache, skips=self.on_error == "skip", ranks=ranks,
            known=known, **self.dataset_arguments,
        )  # fmt: skip


def list_fixed(source: Any, planned: str, **arguments: Any) -> ListedDataset:
    """List a source, or return it if it is listed.

    Args:
        source: As in `BatchedDataLoader`.
        planned: The reason why rows must not change, for error messages: "samples are planned from all rows".
        arguments: Arguments of `ListedDataset`. With a listed source, only `shard` may be given.

    Raises:
        ConfigurationError: An argument is given that a listed source determines.
        UnsupportedError: The source changes between epochs, or row groups may be skipped.
    """
    if isinstance(source, ListedDataset):
        own = {name: value for name, value in arguments.items() if name != "shard"}
        check_left_to_dataset(source, "raise", **own)
        if settings_of(source).on_error == "skip":
            raise UnsupportedError(f"on_error='skip': {planned}, so none may be missing; use on_error='raise'")
        return source
    given = table_source(source)
    if given.follow if isinstance(given, VersionedSource) else isinstance(given, LiveSource):
        raise UnsupportedError(
            f"the source changes from epoch to epoch, and {planned}; pass a fixed list of files, or one version of a "
            "table"
        )
    return ListedDataset(given, **arguments)
