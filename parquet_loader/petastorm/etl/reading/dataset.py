"""A data set for Petastorm's readers: row groups, partitions, Unischema, indexes, and stored columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from decimal import Decimal
from typing import Any
from urllib.parse import urlparse

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import ReadOptions, needs_package
from parquet_loader.decode import Decoder, TableOrigin
from parquet_loader.errors import DataError
from parquet_loader.petastorm import codecs
from parquet_loader.petastorm.cache import CacheBase
from parquet_loader.petastorm.errors import PetastormMetadataError
from parquet_loader.petastorm.etl.rowgroup_indexers import FieldNotNullIndexer, RowGroupIndexerBase, SingleFieldIndexer
from parquet_loader.petastorm.unischema import Unischema, UnischemaField
from parquet_loader.read import RowFilter, RowGroupReader, as_expression
from parquet_loader.schema import Schema
from parquet_loader.source import (
    INDEX_KEY,
    Codec,
    Selection,
    Snapshot,
    UnischemaRecord,
    declared_unischema,
    metadata_of,
    open_snapshot,
    read_indexes,
    roots_of,
    with_partition_types,
)

_CODECS: dict[str, Callable[[Codec], Any]] = {
    "ScalarCodec": lambda codec: codecs.ScalarCodec(codec.spark),
    "NdarrayCodec": lambda _: codecs.NdarrayCodec(),
    "CompressedNdarrayCodec": lambda _: codecs.CompressedNdarrayCodec(),
    "CompressedImageCodec": lambda codec: codecs.CompressedImageCodec(codec.image_codec or "png", codec.quality or 80),
}


def source_of(
    dataset_url_or_urls: Any, filesystem: Any = None, storage_options: Mapping[str, Any] | None = None
) -> tuple[Any, pafs.FileSystem | None]:
    """Return the source of a reader's arguments, and its filesystem, or None if the URLs determine it.

    Raises:
        ValueError: there is no URL, or one is not a str.
    """
    urls = dataset_url_or_urls if isinstance(dataset_url_or_urls, list) else [dataset_url_or_urls]
    if not urls or not all(isinstance(url, str) and url for url in urls):
        raise ValueError("dataset_url is a URL, or a list of URLs that is not empty")
    urls = [url.rstrip("/") if url.strip("/") else url for url in urls]
    if filesystem is None and storage_options:
        with needs_package("fsspec", "storage_options need fsspec: pip install fsspec"):
            import fsspec  # noqa: PLC0415  (only if storage_options are given)
        filesystem = fsspec.filesystem(urlparse(urls[0]).scheme or "file", **storage_options)
    if filesystem is not None:
        if not isinstance(filesystem, pafs.FileSystem):
            filesystem = pafs.PyFileSystem(pafs.FSSpecHandler(filesystem))
        urls = [_path_of(url) for url in urls]
    return (urls if isinstance(dataset_url_or_urls, list) else urls[0]), filesystem


def _path_of(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    return urlparse(url).path if scheme in ("file", "hdfs") else rest


class StoredColumns(Decoder):
    """Leaves the columns of files of one Arrow schema in their stored form; adds partition columns. Immutable.

    Petastorm's values need the stored types: decimals, dates and nulls have no canonical column.

    Args:
        names: The columns.
        file_schema, partition_schema: As in `Decoder`.
    """

    def __init__(self, names: Collection[str], file_schema: pa.Schema, partition_schema: pa.Schema) -> None:
        super().__init__(Schema({}), file_schema, partition_schema, "")
        self._names = names
        self.read_columns = tuple(name for name in names if name in file_schema.names)

    def decode(
        self,
        table: pa.Table,
        partitions: Mapping[str, pa.Scalar],
        origin: TableOrigin,
        deferred: Collection[str] = (),
    ) -> pa.Table:
        """Return the columns by their names, row for row; none is ever deferred.

        Raises:
            DataError: the file lacks a column.
        """
        assert not deferred
        found: dict[str, pa.ChunkedArray] = {}
        for name in self._names:
            if name in table.column_names:
                found[name] = table.column(name)
            elif name in partitions:
                found[name] = pa.chunked_array([pa.repeat(partitions[name], len(table))])
            else:
                raise DataError(f"{origin.name}: there is no column {name!r}")
        return pa.table(found) if found else table


class RowGroups:
    """The row groups of a data set, in the order of their files. Immutable.

    Args:
        source: Paths or URLs.
        filesystem: Their filesystem, or None.
        filters: Tuples, as `pyarrow.parquet` takes them, or an expression; rows are filtered exactly.

    Attributes:
        snapshot: Files and footers.
        unischema: The schema of all fields.
        is_petastorm: Whether this schema is from the data set's metadata.
        surviving: The row groups whose statistics and partitions admit a row that passes the filters.
    """

    def __init__(self, source: Any, filesystem: Any = None, filters: Any = None) -> None:
        # These readers have no split=, so a list selects all of its entries.
        split = "all" if isinstance(source, list) else None
        selection = Selection(split=split, has_options=False, reads_tables=False)
        snapshot = open_snapshot(source, filesystem, selection=selection)
        record = declared_unischema(snapshot.filesystem, snapshot.files, snapshot.listing_context)
        self.is_petastorm = record is not None
        self.snapshot: Snapshot = snapshot if record is None else with_partition_types(snapshot, record)
        self.unischema = self._inferred() if record is None else unischema_of(record)
        self._filter: RowFilter | None = None
        self.surviving = list(range(self.snapshot.row_groups))
        expression = as_expression(filters)
        if expression is not None:
            self._filter = RowFilter(expression, self.snapshot)
            left = [self._filter.surviving(self.snapshot, file) for file in range(len(self.snapshot.files))]
            numbers = zip(self.snapshot.row_group_file.tolist(), self.snapshot.row_group_number.tolist(), strict=True)
            self.surviving = [group for group, (file, number) in enumerate(numbers) if number in left[file]]

    def _inferred(self) -> Unischema:
        with_rows = self.snapshot.file_schema[self.snapshot.row_group_file[self.snapshot.row_group_rows > 0]]
        files = self.snapshot.schemas[int(with_rows[0]) if len(with_rows) else 0]
        partitions = pa.schema([f for f in self.snapshot.partition_schema if f.name not in files.names])
        return Unischema.from_arrow_schema(files, partitions)

    def reader(self, columns: Collection[str]) -> RowGroupReader:
        """Return a reader of these columns in stored form, for the rows that pass the filters."""
        partitions = self.snapshot.partition_schema
        decoders = [StoredColumns(columns, schema, partitions) for schema in self.snapshot.schemas]
        return RowGroupReader(self.snapshot, decoders, self._filter, ReadOptions())

    def cached_reads(self, columns: Collection[str], cache: CacheBase) -> Callable[[int], pa.Table]:
        """Return a function that reads these columns of a row group, by its number, through a cache."""
        reader, snapshot, names = self.reader(columns), self.snapshot, ",".join(sorted(columns))

        def read(row_group: int) -> pa.Table:
            wanted = snapshot.row_group(row_group)
            file = wanted.file
            # A file that changed has another key.
            key = f"{file.path}:{wanted.number}:{file.size_bytes}:{file.mtime_ns}:{names}:{self._filter!r}"
            return cache.get(key, lambda: reader.read(wanted))

        return read

    def opened(self) -> AbstractContextManager[None]:
        """Use one fetcher for the remote files of all threads during the `with` block."""
        return nullcontext() if self.snapshot.remote is None else self.snapshot.remote.opened()

    def cancel(self) -> None:
        """Cancel all fetches, so that no thread waits for them."""
        if self.snapshot.remote is not None:
            self.snapshot.remote.cancel()

    @property
    def partition_names(self) -> set[str]:
        """Names of the columns that come from directory names."""
        return set(self.snapshot.partition_schema.names)

    def partition_values(self, row_group: int) -> dict[str, Any]:
        """Return the values of the partition columns of a row group, as Python values."""
        file = int(self.snapshot.row_group_file[row_group])
        return {name: value.as_py() for name, value in self.snapshot.partition_values(file).items()}

    def indexes(self) -> dict[str, RowGroupIndexerBase]:
        """Return the indexes of row groups in the data set's metadata.

        Raises:
            PetastormMetadataError: there are none.
            DataError: they are refused.
        """
        found = find_metadata(self.snapshot, INDEX_KEY)
        if found is None:
            raise PetastormMetadataError(
                "the data set carries no index of row groups; build_rowgroup_index() in etl.rowgroup_indexing makes one"
            )
        return {name: _indexer(record) for name, record in read_indexes(found[1]).items()}


def find_metadata(snapshot: Snapshot, key: bytes) -> tuple[str, bytes] | None:
    """Return a value of Petastorm's metadata, with the directory that holds it; None if it is missing."""
    for root in roots_of(snapshot.files):
        value = (metadata_of(snapshot.filesystem, root) or {}).get(key)
        if value is not None:
            return root, value
    return None


def _indexer(record: Any) -> RowGroupIndexerBase:
    if record.kind == "FieldNotNullIndexer":
        not_null = FieldNotNullIndexer(record.name, record.column)
        not_null._index_data |= record.row_groups
        return not_null
    single = SingleFieldIndexer(record.name, record.column)
    single._index_data.update({value: set(numbers) for value, numbers in record.values.items()})
    return single


def unischema_of(record: UnischemaRecord) -> Unischema:
    """Return the `Unischema` of a data set's metadata."""
    fields = []
    for field in record.fields:
        dtype: Any = Decimal if field.dtype == "Decimal" else getattr(np, field.dtype)
        codec = None if field.codec is None else _CODECS[field.codec.kind](field.codec)
        fields.append(UnischemaField(field.name, dtype, field.shape, codec, field.nullable))
    return Unischema(record.name, fields)
