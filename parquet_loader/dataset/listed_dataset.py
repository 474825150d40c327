"""The base of `ParquetDataset`, without loaders: lists a source, reads its footers, resolves its schema."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any, Literal, overload

import numpy as np
import pyarrow.compute as pc
import pyarrow.fs as pafs

from parquet_loader.common import (
    DATASET_KEYWORDS,
    ReadOptions,
    Shard,
    broadcasting_errors,
    check_choice,
    check_columns,
    check_kind,
    check_source,
    check_split,
    explains_keywords,
)
from parquet_loader.dataset.open import Dataset, open_dataset
from parquet_loader.dataset.rank_agreement import check_agreement, open_source, ranks_to_agree_with
from parquet_loader.dataset.resolved_source import ResolvedSource, resolve_source
from parquet_loader.errors import ArgumentTypeError, ConfigurationError, SchemaError
from parquet_loader.read import Filters, LocalCache, as_expression
from parquet_loader.schema import Schema
from parquet_loader.source import Snapshot, Source, TableLike, VersionedSource, selection_of, table_source


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of a `ParquetDataset`.

    Attributes:
        path: The file's path within its file system.
        number: Position of the row group in the file.
        num_rows: Rows in the file, before any filter.
        encoded_bytes: Size of all columns as encoded, before compression.
    """

    path: str
    number: int
    num_rows: int
    encoded_bytes: int


class RowGroupList(Sequence[RowGroup]):
    """The row groups of a snapshot in its order; each is made on access, because there may be millions."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def __len__(self) -> int:
        return self._snapshot.row_groups

    @overload
    def __getitem__(self, index: int) -> RowGroup: ...
    @overload
    def __getitem__(self, index: slice) -> list[RowGroup]: ...
    def __getitem__(self, index: int | slice) -> RowGroup | list[RowGroup]:
        if isinstance(index, slice):
            return [self._at(number) for number in range(*index.indices(len(self)))]
        try:
            return self._at(range(len(self))[index])
        except IndexError:
            raise IndexError(f"row_groups[{index}]: there are {len(self)} row groups") from None

    def __iter__(self) -> Iterator[RowGroup]:
        return map(self._at, range(len(self)))

    def __repr__(self) -> str:
        return f"RowGroupList({len(self)} row groups in {len(self._snapshot.files)} files)"

    def _at(self, number: int) -> RowGroup:
        found = self._snapshot.row_group(number)
        return RowGroup(found.file.path, found.number, found.rows, found.encoded_bytes)


class ListedDataset:
    """A source that was listed once: its files, footers and schema. Immutable; see `ParquetDataset`.

    It holds no thread and no open file. Each loader has its own footer cache and requests, so loaders may iterate at
    the same time and end in any order.
    """

    # A `LeRobotDataset` sets the video files that hold the frames of its rows.
    _videos: Any = None

    @explains_keywords(DATASET_KEYWORDS)
    def __init__(
        self,
        source: Source | TableLike,
        schema: Schema | None = None,
        columns: Sequence[str] | None = None,
        filters: Filters | None = None,
        filesystem: pafs.FileSystem | None = None,
        on_error: Literal["raise", "skip", "skip_row"] = "raise",
        *,
        split: str | None = None,
        read_options: ReadOptions | None = None,
        cache: LocalCache | None = None,
        shard: Shard | None = None,
    ) -> None:
        given: Source | VersionedSource = table_source(source)
        if not isinstance(given, VersionedSource):
            check_source(given)
        elif given.follow:
            raise ConfigurationError(
                "follow=True: a ParquetDataset is listed once; pass the table to BatchedDataLoader(...)"
            )
        columns = check_columns(columns)
        check_dataset_arguments(schema, split, on_error, read_options, cache, shard)
        self._filters = as_expression(filters)
        self._on_error: Literal["raise", "skip", "skip_row"] = on_error
        self._read_options = read_options or ReadOptions()
        self._cache = cache
        self._shard = shard
        selection = selection_of(split, self._filters, self._read_options)
        ranks = ranks_to_agree_with(shard)
        with broadcasting_errors(ranks):
            snapshot = open_source(given, filesystem, ranks, self._read_options.remote, selection)
            with _names_lerobot(snapshot):
                self._source = resolve_source(snapshot, schema, columns, self._read_options)
            if ranks is not None:  # either all ranks return, or all raise
                found = self._source.lazy_schema.by_footers
                check_agreement({"columns": ", ".join(found), "schema": found.to_json()}, ranks)

    @property
    def schema(self) -> Schema:
        """The fields of a batch by name.

        If footers leave open whether lists have one length, the first use reads rows of these lists.

        Raises:
            SourceError: the rows cannot be read now.
        """
        return self._source.schema

    @property
    def num_rows(self) -> int:
        """Rows of the files less those that a table deleted, before filters; ``len(loader.dataset)`` is after them."""
        return self._source.snapshot.rows

    @property
    def row_groups(self) -> Sequence[RowGroup]:
        """The row groups, in the order in which unshuffled loaders read them."""
        return RowGroupList(self._source.snapshot)

    def locate(self, row_numbers: Any) -> list[tuple[str, int, int]]:
        """Return the origin of rows: the path of the file, the row group in the file, the row in the row group.

        Args:
            row_numbers: Integers ``[rows]``, counted over the data set before filters: the column of a batch that
                `OutputOptions(row_numbers=...)` names.

        Raises:
            IndexError: there is no such row.
        """
        return locate(self._source.snapshot, row_numbers)

    def __repr__(self) -> str:
        snapshot = self._source.snapshot
        return (
            f"{type(self).__name__}({snapshot.rows} rows in {len(snapshot.files)} files and {snapshot.row_groups} row "
            f"groups, {len(self._source.lazy_schema.by_footers)} columns)"
        )

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the `repr`, and a table of the fields; reads no rows."""
        return f"<p>{escape(repr(self))}</p>{self._source.lazy_schema.by_footers._repr_html_()}"


@dataclass(frozen=True, slots=True)
class ListedSettings:
    """What a `ListedDataset` decides for all its loaders.

    The library's modules get it from `settings_of`; `ListedDataset` is public and shows none of it as attributes.

    Attributes:
        source: The files with their schema.
        filters, on_error, read_options, shard: As in `ListedDataset`.
        videos: The video files that hold the frames of its rows, if it is a `LeRobotDataset`.
    """

    source: ResolvedSource
    filters: pc.Expression | None
    on_error: Literal["raise", "skip", "skip_row"]
    read_options: ReadOptions
    shard: Shard | None
    videos: Any

    def combined(self, filters: pc.Expression | None) -> pc.Expression | None:
        """Return the conjunction of the data set's filter and another one."""
        if self.filters is None or filters is None:
            return filters if self.filters is None else self.filters
        return self.filters & filters


def settings_of(listed: ListedDataset) -> ListedSettings:
    """Return what a data set decides for all its loaders."""
    return ListedSettings(
        listed._source, listed._filters, listed._on_error, listed._read_options, listed._shard, listed._videos
    )


def with_columns(listed: ListedDataset, columns: Sequence[str]) -> ListedDataset:
    """Return the same files with other columns, without listing them again.

    Raises:
        SchemaError: there is no such column, or the files differ in its type.
    """
    other = copy.copy(listed)
    source = listed._source
    other._source = resolve_source(source.listed, source.declared, columns, listed._read_options)
    return other


def without_filters(listed: ListedDataset) -> ListedDataset:
    """Return the same files without the data set's filter."""
    other = copy.copy(listed)
    other._filters = None
    return other


def with_shard(listed: ListedDataset, shard: Shard | None) -> ListedDataset:
    """Return the same files with another `shard`."""
    other = copy.copy(listed)
    other._shard = shard
    return other


def open_listed(listed: ListedDataset, **arguments: Any) -> Dataset:
    """Open a data set for one loader; arguments as in `open_dataset`."""
    return open_dataset(
        listed._source.for_one_loader(),
        read_options=listed._read_options,
        cache=listed._cache,
        skips=listed._on_error == "skip",
        **arguments,
    )


def check_left_to_dataset(listed: ListedDataset, on_error: str, **given: Any) -> None:
    """Check that a loader does not repeat arguments of its data set.

    Raises:
        ConfigurationError: one of them is given; the message names it.
    """
    if on_error not in ("raise", listed._on_error):
        given["on_error"] = on_error
    for name, value in given.items():
        if value is not None:
            raise ConfigurationError(
                f"{name}={value!r:.80}: the source is a ParquetDataset, which determines this for all its loaders; "
                f"pass {name} to ParquetDataset(...)"
            )


@contextmanager
def _names_lerobot(snapshot: Snapshot) -> Iterator[None]:
    """Add to errors about columns that differ between files that these are a data set of LeRobot, if they are."""
    try:
        yield
    except SchemaError as error:
        if not any("/meta/episodes/chunk-" in file.path for file in snapshot.files):
            raise
        raise SchemaError(
            "the directory is a data set of LeRobot, whose meta/ holds Parquet files with other columns than data/; "
            "read it with LeRobotDataset(path), or pass path/data"
        ) from error


def locate(snapshot: Snapshot, row_numbers: Any) -> list[tuple[str, int, int]]:
    """Return the origin of rows; arguments and errors as in `ListedDataset.locate`."""
    numbers = np.asarray(row_numbers.cpu() if hasattr(row_numbers, "cpu") else row_numbers, dtype=np.int64)
    return snapshot.locate(numbers.reshape(-1))


def check_dataset_arguments(schema: Any, split: Any, on_error: Any, read_options: Any, cache: Any, shard: Any) -> None:
    """Check a data set's arguments, except its source, columns and filters.

    Raises:
        ConfigurationError: an argument has the wrong kind or value.
    """
    check_choice("on_error", on_error, ("raise", "skip", "skip_row"))
    check_split(split)
    check_kind("schema", schema, Schema)
    check_kind("shard", shard, Shard)
    check_kind("read_options", read_options, ReadOptions)
    if isinstance(cache, str):
        raise ArgumentTypeError(
            f"cache={cache!r:.80}: expected a LocalCache, such as LocalCache('/local/cache', '500GB'); 'device' is for "
            "BatchedDataLoader(source, ..., cache='device') only"
        )
    check_kind("cache", cache, LocalCache)
