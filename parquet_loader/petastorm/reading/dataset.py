"""A data set as its readers see it: files, row groups, partitions, schema, and row groups read as Arrow tables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import urlparse

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from parquet_loader.common import is_local, system_error
from parquet_loader.decode import check_pages, chunk_bounds
from parquet_loader.errors import ConfigurationError, DataError, ParquetLoaderError
from parquet_loader.petastorm import codecs
from parquet_loader.petastorm.errors import PetastormMetadataError
from parquet_loader.petastorm.etl.rowgroup_indexers import FieldNotNullIndexer, RowGroupIndexerBase, SingleFieldIndexer
from parquet_loader.petastorm.unischema import Unischema, UnischemaField
from parquet_loader.read import READ_ERRORS, RowFilter
from parquet_loader.schema import is_bytes
from parquet_loader.source import (
    INDEX_KEY,
    Codec,
    Selection,
    Snapshot,
    UnischemaRecord,
    chunk_ranges,
    declared_unischema,
    metadata_of,
    open_snapshot,
    read_indexes,
    roots_of,
    selected,
    with_partition_types,
)

# What a stream of pages takes from a column of a file at a time.
_STREAM_BYTES = 4 * 2**20
_CODECS: dict[str, Callable[[Codec], Any]] = {
    "ScalarCodec": lambda codec: codecs.ScalarCodec(codec.spark),
    "NdarrayCodec": lambda _: codecs.NdarrayCodec(),
    "CompressedNdarrayCodec": lambda _: codecs.CompressedNdarrayCodec(),
    "CompressedImageCodec": lambda codec: codecs.CompressedImageCodec(codec.image_codec or "png", codec.quality or 80),
}


def source_of(
    dataset_url_or_urls: Any, filesystem: Any = None, storage_options: Mapping[str, Any] | None = None
) -> tuple[Any, pafs.FileSystem | None]:
    """Return what the arguments of a reader mean: a source, and the filesystem it is on (None: as the URLs say).

    Raises:
        ValueError: there is no URL, or one is no str.
    """
    urls = dataset_url_or_urls if isinstance(dataset_url_or_urls, list) else [dataset_url_or_urls]
    if not urls or not all(isinstance(url, str) and url for url in urls):
        raise ValueError("dataset_url is a URL, or a list of URLs that is not empty")
    urls = [url.rstrip("/") if url.strip("/") else url for url in urls]
    if filesystem is None and storage_options:
        filesystem = _fsspec_filesystem(urls[0], storage_options)
    if filesystem is not None:
        if not isinstance(filesystem, pafs.FileSystem):
            filesystem = pafs.PyFileSystem(pafs.FSSpecHandler(filesystem))
        urls = [_path_of(url) for url in urls]
    return (urls if isinstance(dataset_url_or_urls, list) else urls[0]), filesystem


def _fsspec_filesystem(url: str, storage_options: Mapping[str, Any]) -> Any:
    try:
        import fsspec  # noqa: PLC0415  (only where storage_options are given)
    except ImportError:
        raise ConfigurationError("storage_options need fsspec: pip install fsspec") from None
    return fsspec.filesystem(urlparse(url).scheme or "file", **storage_options)


def _path_of(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    return urlparse(url).path if scheme in ("file", "hdfs") else rest


class RowGroups:
    """The row groups of a data set, in the order of their files. Immutable; any thread may read.

    Args:
        source: Paths or URLs.
        filesystem: Where they are, or None.
        filters: Tuples, as `pyarrow.parquet` takes them, or an expression; rows are filtered exactly.

    Attributes:
        snapshot: Files and footers.
        unischema: The schema of all fields.
        is_petastorm: Whether the data set carries it.
    """

    def __init__(self, source: Any, filesystem: Any = None, filters: Any = None) -> None:
        # These readers have no split=: a list says that all of its entries are meant.
        selection = Selection(split="all" if isinstance(source, list) else None, has_options=False)
        snapshot = open_snapshot(source, filesystem, selection=selection)
        record = declared_unischema(snapshot.filesystem, snapshot.files, snapshot.listing_context)
        self.is_petastorm = record is not None
        self.snapshot: Snapshot = snapshot if record is None else with_partition_types(snapshot, record)
        self.unischema = self._inferred() if record is None else unischema_of(record)
        self._filter: RowFilter | None = None
        self.surviving = list(range(self.snapshot.row_groups))
        if filters is not None:
            expression = pq.filters_to_expression(filters) if isinstance(filters, list | tuple) else filters
            self._filter = RowFilter(expression, self.snapshot)
            if self._filter.names_positions:
                raise ConfigurationError(
                    "filters: these readers do not tell rows apart by position (split_rows); BatchedDataLoader does"
                )
            files = range(len(self.snapshot.files))
            left = {file: self._filter.surviving(self.snapshot, file) for file in files}
            numbers = zip(self.snapshot.row_group_file.tolist(), self.snapshot.row_group_number.tolist(), strict=True)
            self.surviving = [group for group, (file, number) in enumerate(numbers) if number in left[file]]

    def _inferred(self) -> Unischema:
        with_rows = self.snapshot.file_schema[self.snapshot.row_group_file[self.snapshot.row_group_rows > 0]]
        files = self.snapshot.schemas[int(with_rows[0]) if len(with_rows) else 0]
        partitions = pa.schema([f for f in self.snapshot.partition_schema if f.name not in files.names])
        return Unischema.from_arrow_schema(files, partitions)

    @property
    def partition_names(self) -> set[str]:
        """Names of the columns that come from directory names."""
        return set(self.snapshot.partition_schema.names)

    def partition_values(self, row_group: int) -> dict[str, Any]:
        """Return the values of the partition columns of a row group, as Python values."""
        file = int(self.snapshot.row_group_file[row_group])
        return {name: value.as_py() for name, value in self.snapshot.partition_values(file).items()}

    def describe(self, row_group: int) -> str:
        """Name a row group: its file, and its number there."""
        return self.snapshot.row_group(row_group).name

    def cache_key(self, row_group: int, columns: Collection[str]) -> str:
        """Return a key under which a row group can be kept; another one once the file has changed."""
        file = self.snapshot.files[int(self.snapshot.row_group_file[row_group])]
        number = int(self.snapshot.row_group_number[row_group])
        return f"{file.path}:{number}:{file.size_bytes}:{file.mtime_ns}:{','.join(sorted(columns))}:{self._filter!r}"

    def read(self, row_group: int, columns: Collection[str]) -> pa.Table:
        """Return the rows of a row group that pass the filters, in their order: the columns asked for, as stored.

        Raises:
            DataError: they cannot be read; names file and row group.
        """
        needed = list(dict.fromkeys([*columns, *(self._filter.columns if self._filter is not None else ())]))
        from_file = self._from_file(row_group, needed)
        with self._opened(row_group, from_file, pre_buffer=not is_local(self.snapshot.filesystem)) as opened:
            # A nested column is named by its leaves, of which a name alone stands for all.
            number = int(self.snapshot.row_group_number[row_group])
            table = opened.read_row_group(number, columns=from_file, use_threads=False)
        rows = int(self.snapshot.row_group_rows[row_group])
        if from_file:
            self._check_rows(row_group, len(table))
        whole = self._with_partitions(row_group, table, needed, rows)
        if self._filter is not None:
            schema = int(self.snapshot.file_schema[self.snapshot.row_group_file[row_group]])
            whole = self._filter.apply(whole, schema, self.describe(row_group))
        return whole.select([name for name in needed if name in set(columns)])

    def slices(self, row_group: int, columns: Collection[str], rows: int) -> Iterator[pa.Table]:
        """Yield the rows of a row group in their order, whatever the filters, at most so many at a time.

        Files are read a few MiB of a column at a time, so that a row group of any size takes little memory.

        Raises:
            DataError: they cannot be read; names file and row group.
        """
        from_file = self._from_file(row_group, columns)
        if not from_file:
            whole = self.read(row_group, columns)
            yield from (whole.slice(start, rows) for start in range(0, len(whole), rows))
            return
        number, found = int(self.snapshot.row_group_number[row_group]), 0
        with self._opened(row_group, from_file, buffer_size=_STREAM_BYTES) as opened:
            for batch in opened.iter_batches(rows, row_groups=[number], columns=from_file, use_threads=False):
                found += len(batch)
                yield self._with_partitions(row_group, pa.table(batch), columns, len(batch))
        self._check_rows(row_group, found)

    def _from_file(self, row_group: int, columns: Collection[str]) -> list[str]:
        own = self.snapshot.schema_of(int(self.snapshot.row_group_file[row_group])).names
        return [name for name in columns if name in own]

    @contextlib.contextmanager
    def _opened(self, row_group: int, columns: Sequence[str], **options: Any) -> Iterator[pq.ParquetFile]:
        file = int(self.snapshot.row_group_file[row_group])
        described, footer = self.snapshot.files[file], self.snapshot.footers.get(file)
        number, filesystem = int(self.snapshot.row_group_number[row_group]), self.snapshot.filesystem
        options = {"pre_buffer": False, **options}
        try:
            chunk_ranges(footer, number, columns)  # says what is wrong with them
            if is_local(filesystem):
                check_pages(described.path, chunk_bounds(footer, number, selected(footer.paths, columns)))
            with pq.ParquetFile(described.path, filesystem=filesystem, metadata=footer.arrow, **options) as opened:
                yield opened
        except ParquetLoaderError:
            raise
        except READ_ERRORS as error:
            failure = system_error(self.describe(row_group), error)
            if failure is not None:
                raise failure from error
            reason = str(error).split("\n")[0]
            raise DataError(f"{self.describe(row_group)}: the data cannot be read: {reason}") from error

    def _check_rows(self, row_group: int, found: int) -> None:
        rows = int(self.snapshot.row_group_rows[row_group])
        if found != rows:
            raise DataError(f"{self.describe(row_group)}: the footer says {rows} rows, the pages hold {found}")

    def _with_partitions(self, row_group: int, table: pa.Table, columns: Collection[str], rows: int) -> pa.Table:
        arrays = {name: table.column(name) for name in table.column_names}
        for name, value in self.snapshot.partition_values(int(self.snapshot.row_group_file[row_group])).items():
            if name in columns and name not in arrays:
                arrays[name] = pa.chunked_array([pa.repeat(value, rows)])
        missing = [name for name in columns if name not in arrays]
        if missing:
            raise DataError(f"{self.describe(row_group)}: there is no column {missing[0]!r}")
        return pa.table({name: arrays[name] for name in columns}) if arrays else pa.table({"": pa.nulls(rows)})

    def indexes(self) -> dict[str, RowGroupIndexerBase]:
        """Return the indexes of row groups that the data set carries.

        Raises:
            PetastormMetadataError: it carries none.
            DataError: they are refused.
        """
        for root in roots_of(self.snapshot.files):
            data = (metadata_of(self.snapshot.filesystem, root) or {}).get(INDEX_KEY)
            if data is not None:
                return {name: _indexer(record) for name, record in read_indexes(data).items()}
        raise PetastormMetadataError(
            "the data set carries no index of row groups; build_rowgroup_index() in etl.rowgroup_indexing makes one"
        )


def _indexer(record: Any) -> RowGroupIndexerBase:
    if record.kind == "FieldNotNullIndexer":
        not_null = FieldNotNullIndexer(record.name, record.column)
        not_null._index_data |= record.row_groups
        return not_null
    single = SingleFieldIndexer(record.name, record.column)
    single._index_data.update({value: set(numbers) for value, numbers in record.values.items()})
    return single


def unischema_of(record: UnischemaRecord) -> Unischema:
    """Return what was read of a data set's metadata as a `Unischema`."""
    fields = []
    for field in record.fields:
        dtype: Any = Decimal if field.dtype == "Decimal" else getattr(np, field.dtype)
        codec = None if field.codec is None else _CODECS[field.codec.kind](field.codec)
        fields.append(UnischemaField(field.name, dtype, field.shape, codec, field.nullable))
    return Unischema(record.name, fields)


def is_binary(type_: pa.DataType) -> bool:
    """Whether a column holds bytes."""
    return is_bytes(type_) or bool(pa.types.is_fixed_size_binary(type_))
