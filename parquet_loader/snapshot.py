"""What there is to read: the files of a source and their footers, as an immutable list of row groups."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from parquet_loader.errors import SourceError
from parquet_loader.filesystem import is_local
from parquet_loader.source import Source, SourceFile, changed_since, list_files
from parquet_loader.types import IntArray

# Measured: a parsed footer takes about 1.1 KB a column chunk, and a little for itself.
_BYTES_PER_CHUNK = 1100
_BYTES_PER_FOOTER = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The files and row groups of a source, frozen when it was made.

    Attributes:
        filesystem: Where the files are.
        files: The files, in their order.
        schemas: The distinct Arrow schemas of the files' own columns.
        file_schema: int32 ``[files]``, index into `schemas`.
        row_group_file: int32 ``[row groups]``, index into `files`.
        row_group_number: int32 ``[row groups]``, position within its file.
        row_group_rows: int64 ``[row groups]``.
        row_group_bytes: int64 ``[row groups]``, all columns as encoded, before compression.
        partition_schema: Columns that come from directory names: int64 where all values are integers, else string.
        footers: Parsed footers, kept within a limit and read again as needed.
    """

    filesystem: pafs.FileSystem
    files: tuple[SourceFile, ...]
    schemas: tuple[pa.Schema, ...]
    file_schema: IntArray
    row_group_file: IntArray
    row_group_number: IntArray
    row_group_rows: IntArray
    row_group_bytes: IntArray
    partition_schema: pa.Schema
    footers: FooterCache

    @property
    def rows(self) -> int:
        """Rows of all row groups."""
        return int(self.row_group_rows.sum())

    @property
    def row_groups(self) -> int:
        """Number of row groups."""
        return len(self.row_group_rows)

    @property
    def first_rows(self) -> IntArray:
        """Rows before each row group, and at last all: int64 ``[row groups + 1]``."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.row_group_rows)])

    def locate(self, row_numbers: IntArray) -> list[tuple[str, int, int]]:
        """Return the file, the row group in it, and the row in that, of each of these rows.

        Raises:
            IndexError: there is no such row.
        """
        starts = self.first_rows
        wrong = row_numbers[(row_numbers < 0) | (row_numbers >= starts[-1])]
        if len(wrong):
            raise IndexError(f"row number {wrong[0]} of a data set of {starts[-1]} rows")
        groups = np.searchsorted(starts, row_numbers, side="right") - 1
        files = [self.files[number].path for number in self.row_group_file[groups].tolist()]
        rows = (row_numbers - starts[groups]).tolist()
        return list(zip(files, self.row_group_number[groups].tolist(), rows, strict=True))

    def schema_of(self, file: int) -> pa.Schema:
        """Return the Arrow schema of one file's own columns."""
        return self.schemas[int(self.file_schema[file])]

    def describe(self, row_group: int) -> str:
        """Name a row group for a message: its file and its number there."""
        return f"{self.files[int(self.row_group_file[row_group])].path}, row group {self.row_group_number[row_group]}"

    def partition_values(self, file: int) -> dict[str, pa.Scalar]:
        """Return one file's values of the partition columns."""
        given = dict(self.files[file].partitions)
        return {f.name: _partition_scalar(given.get(f.name), f.type) for f in self.partition_schema}


class FooterCache:
    """Parsed footers by file, the least recently used dropped beyond a limit in bytes.

    Called by any thread; the lock guards the table only, never a read. Two threads that miss the same footer both
    read it, which costs time and never correctness.
    """

    def __init__(self, filesystem: pafs.FileSystem, files: tuple[SourceFile, ...]) -> None:
        self._filesystem = filesystem
        self._files = files
        self._lock = Lock()
        self._pid = os.getpid()
        self._kept: OrderedDict[int, tuple[pq.FileMetaData, int]] = OrderedDict()
        self._held_bytes = 0
        self._limit_bytes = 64 * 2**20
        self.largest_bytes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process without the footers, which are read again there."""
        return _footer_cache, (self._filesystem, self._files, self._limit_bytes)

    @property
    def held_bytes(self) -> int:
        """Estimated memory of the footers kept."""
        return self._held_bytes

    def limit(self, limit_bytes: int) -> None:
        """Keep at most this much from now on, but always the footer used last."""
        with self._lock:
            self._limit_bytes = limit_bytes
            self._trim()

    def clear(self) -> None:
        """Let go of all footers."""
        with self._lock:
            self._kept.clear()
            self._held_bytes = 0

    def get(self, file: int) -> pq.FileMetaData:
        """Return a file's footer, reading it if it is not kept.

        Raises:
            SourceError: the file cannot be opened or has no valid footer.
        """
        if self._pid != os.getpid():
            self._lock, self._pid = Lock(), os.getpid()  # after a fork, a thread that is not here may have held it
        with self._lock:
            kept = self._kept.get(file)
            if kept is not None:
                self._kept.move_to_end(file)
                return kept[0]
        footer = read_footer(self._filesystem, self._files[file])
        size = _BYTES_PER_FOOTER + footer.num_row_groups * footer.num_columns * _BYTES_PER_CHUNK
        with self._lock:
            if file not in self._kept:
                self._kept[file] = (footer, size)
                self._held_bytes += size
                self.largest_bytes = max(self.largest_bytes, size)
                self._trim()
        return footer

    def _trim(self) -> None:
        while self._held_bytes > self._limit_bytes and len(self._kept) > 1:
            _, (_, size) = self._kept.popitem(last=False)
            self._held_bytes -= size


def _footer_cache(filesystem: pafs.FileSystem, files: tuple[SourceFile, ...], limit_bytes: int) -> FooterCache:
    cache = FooterCache(filesystem, files)
    cache.limit(limit_bytes)
    return cache


def read_footer(filesystem: pafs.FileSystem, file: SourceFile) -> pq.FileMetaData:
    """Read and check one footer.

    Raises:
        SourceError: the file is empty, truncated, not Parquet, gone, or its footer contradicts itself.
    """
    if file.size_bytes == 0:
        raise SourceError(f"{file.path}: the file is empty (0 bytes); a Parquet file has at least a footer")
    try:
        footer = pq.read_metadata(file.path, filesystem=filesystem)
        counts = [_checked_rows(footer, number) for number in range(footer.num_row_groups)]
    except FileNotFoundError as error:
        raise SourceError(f"{file.path}: the file has vanished since it was listed") from error
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = str(error).split("\n")[0].removesuffix(".")
        raise SourceError(f"{file.path}: not a readable Parquet file of {file.size_bytes} bytes: {reason}") from error
    if sum(counts) != footer.num_rows:
        raise SourceError(
            f"{file.path}: the footer contradicts itself: {footer.num_rows} rows in all, {sum(counts)} in row groups"
        )
    changed = changed_since(filesystem, file)
    if changed:
        raise SourceError(f"{file.path}: the file {changed.replace('its footer was read', 'it was listed')}")
    return footer


def _checked_rows(footer: pq.FileMetaData, number: int) -> int:
    """Return the rows of a row group, after a look at a column that has one value a row."""
    group = footer.row_group(number)
    flat = next((i for i in range(footer.num_columns) if not footer.schema.column(i).max_repetition_level), None)
    values = group.num_rows if flat is None else group.column(flat).num_values
    if group.num_rows < 0 or values != group.num_rows:
        raise ValueError(f"row group {number} claims {group.num_rows} rows, and a column of {values} values")
    return int(group.num_rows)


@dataclass(slots=True)
class _Footers:
    """What one file adds to a snapshot."""

    rows: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))


def open_snapshot(source: Source, filesystem: Any = None, num_threads: int | None = None) -> Snapshot:
    """List a source and read all its footers, several at a time.

    Args:
        source: As in `BatchedDataLoader`.
        filesystem: As in `BatchedDataLoader`.
        num_threads: Footers read at a time; default: the processors for local files, 32 for remote ones.

    Raises:
        SourceError: see `list_files` and `read_footer`; the first file in order that fails is the one named.
    """
    home, files = list_files(source, filesystem)
    footers = FooterCache(home, files)

    def examine(number: int) -> _Footers:
        footer = footers.get(number)
        groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        rows, sizes = [g.num_rows for g in groups], [g.total_byte_size for g in groups]
        try:
            schema = footer.schema.to_arrow_schema()
        except (pa.ArrowException, ValueError) as error:
            raise SourceError(f"{files[number].path}: the footer's schema cannot be read: {error}") from error
        return _Footers(rows, sizes, schema)

    threads = num_threads or ((os.cpu_count() or 1) if is_local(home) else 32)
    examined = _in_parallel(examine, len(files), threads)
    schemas, file_schema = _distinct([e.schema for e in examined])
    counts = [len(e.rows) for e in examined]
    return Snapshot(
        filesystem=home,
        files=files,
        schemas=schemas,
        file_schema=file_schema,
        row_group_file=np.repeat(np.arange(len(files), dtype=np.int32), counts),
        row_group_number=np.concatenate([np.arange(n, dtype=np.int32) for n in counts]),
        row_group_rows=np.array([n for e in examined for n in e.rows], dtype=np.int64),
        row_group_bytes=np.array([n for e in examined for n in e.sizes], dtype=np.int64),
        partition_schema=_partition_schema(files),
        footers=footers,
    )


def _in_parallel(work: Callable[[int], _Footers], count: int, threads: int) -> list[_Footers]:
    if count == 1 or threads == 1:
        return [work(i) for i in range(count)]
    with ThreadPoolExecutor(min(threads, count), thread_name_prefix="parquet_loader-footers") as pool:
        try:
            return list(pool.map(work, range(count)))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _distinct(schemas: list[pa.Schema]) -> tuple[tuple[pa.Schema, ...], IntArray]:
    """Return the distinct schemas (columns and metadata), and which one each file has."""
    distinct: list[pa.Schema] = []
    by_bytes: dict[bytes, int] = {}
    numbers: list[int] = []
    for schema in schemas:
        key = schema.serialize().to_pybytes()
        if key not in by_bytes:
            by_bytes[key] = len(distinct)
            distinct.append(schema)
        numbers.append(by_bytes[key])
    return tuple(distinct), np.array(numbers, dtype=np.int32)


def _partition_schema(files: tuple[SourceFile, ...]) -> pa.Schema:
    values: dict[str, set[str]] = {}
    for file in files:
        for key, value in file.partitions:
            values.setdefault(key, set()).update(() if value is None else (value,))
    return pa.schema(
        [(key, pa.int64() if texts and all(map(_is_int64, texts)) else pa.string()) for key, texts in values.items()]
    )


def _is_int64(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and text.isascii() and -(2**63) <= int(text) < 2**63


def _partition_scalar(text: str | None, type_: pa.DataType) -> pa.Scalar:
    return pa.scalar(text, pa.string()).cast(type_)
