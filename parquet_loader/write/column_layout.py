"""How each column is stored: compressed or not, with a dictionary or not, with statistics or not.

The choice is made from the data at hand by writing a sample to memory, once plain and once with dictionaries, and
comparing what each column came to. Tensors, encoded images and other incompressible data end up plain, which decodes
at the speed of a memory copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.schema import METADATA_KEY, Category, Group, Schema

_SAMPLE_BYTES = 4 * 2**20
_SAMPLE_SLICES = 8
_PAGE_BYTES = 2**20
_UNLIMITED_ROWS = 2**31 - 1
_PAGES = {"data_page_size": _PAGE_BYTES, "max_rows_per_page": _UNLIMITED_ROWS, "write_page_checksum": True}

# Parquet's writers look at the size of a page once a batch, 1024 rows by default: rows of 16 KiB then fill pages of
# 16 MiB, in memory that is touched for the first time. Measured, one core writes such rows 1.4 times as fast in
# batches of 256 KiB, page checksums included.
_MOST_BATCH_ROWS = 1024
_BATCH_BYTES = 2**18

# Decoding pays for both, so a column has to become this much smaller. Measured by benchmarks/layout.py, one thread,
# from the page cache: LZ4 that halves a column takes its decoding from 8 to 2 GB/s, which pays where files come in
# at less than about 2 GB/s a thread; a dictionary of few values takes it from 8 to 6, and the column to a sixth.
_WORTH_COMPRESSION = 0.6
# Rows of bytes (tensors, packed groups) that are neither compressed nor encoded are read straight to where they belong.
# Measured on groups packed into rows of 104 bytes, which LZ4 halves: without it an epoch takes a third fewer processor
# seconds, and as little as the copies that are left.
_WORTH_COMPRESSION_OF_BYTES = 1 / 3
_WORTH_DICTIONARY = 0.5


@dataclass(frozen=True, slots=True)
class Layout:
    """How the columns of a file are stored; columns are named by their path in the Parquet schema.

    Attributes:
        compressed: Columns that the codec shrinks.
        dictionaries: Columns that are stored as positions in a dictionary of their values.
        statistics: Columns with minimum, maximum and null count a row group, by which filters prune.
        plain: All other columns, and so with `compressed` all columns there are.
        codec: The codec of `compressed`.
        batch_rows: Rows that are encoded at a time; a page ends behind such a batch.
    """

    compressed: frozenset[str]
    dictionaries: frozenset[str]
    statistics: frozenset[str]
    plain: frozenset[str]
    codec: str
    batch_rows: int = _MOST_BATCH_ROWS

    def writer_arguments(self) -> dict[str, Any]:
        """Return keyword arguments for `pyarrow.parquet.ParquetWriter`.

        Page checksums are always written: they cost little here, and reading verifies them only on request.
        """
        compression = dict.fromkeys(self.plain, "NONE") | dict.fromkeys(self.compressed, self.codec.upper())
        return _PAGES | {
            "compression": compression or "NONE",
            "use_dictionary": sorted(self.dictionaries) or False,
            "write_statistics": sorted(self.statistics) or False,
            "write_batch_size": self.batch_rows,
        }


Encoding: TypeAlias = Literal["plain", "dictionary", "delta", "split"]
_PARQUET_ENCODINGS = {"delta": "DELTA_BINARY_PACKED", "split": "BYTE_STREAM_SPLIT"}


@dataclass(frozen=True, slots=True, order=True)
class Way:
    """One way to store a column.

    Attributes:
        encoding: ``"plain"``, ``"dictionary"``, ``"delta"`` (differences of integers, packed into bits) or ``"split"``
            (first bytes of all numbers, then the second ones, and so on: for a codec to find likeness in).
        codec: ``"none"``, ``"lz4"``, ``"snappy"`` or ``"zstd"``.
    """

    encoding: Encoding
    codec: str

    def __str__(self) -> str:
        return self.encoding if self.codec == "none" else f"{self.encoding}+{self.codec}"


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """A way for each column, chosen one by one.

    Attributes:
        ways: By path in the Parquet schema; all columns there are.
        statistics: Columns with minimum, maximum and null count a row group.
    """

    ways: Mapping[str, Way]
    statistics: frozenset[str]

    def writer_arguments(self) -> dict[str, Any]:
        """Return keyword arguments for `pyarrow.parquet.ParquetWriter`."""
        encodings = {
            path: _PARQUET_ENCODINGS[way.encoding]
            for path, way in self.ways.items()
            if way.encoding in _PARQUET_ENCODINGS
        }
        return _PAGES | {
            "compression": {path: way.codec.upper() for path, way in self.ways.items()} or "NONE",
            "use_dictionary": sorted(p for p, way in self.ways.items() if way.encoding == "dictionary") or False,
            "column_encoding": encodings or None,
            "write_statistics": sorted(self.statistics) or False,
        }


def choose_layout(table: pa.Table, codec: str = "lz4") -> Layout:
    """Return how to store columns like those of `table`, typically the first row group.

    Args:
        table: Rows to judge by; a sample of about 4 MiB from all over it is tried.
        codec: ``"lz4"``, ``"snappy"``, ``"zstd"`` or ``"none"``.
    """
    sample = _sample(table)
    plain = _trial(sample, codec, use_dictionary=False)
    dictionary = _trial(sample, codec, use_dictionary=True)
    compressed: set[str] = set()
    dictionaries: set[str] = set()
    words = _words_of_categories(table.schema)
    of_bytes = {field.name for field in table.schema if pa.types.is_fixed_size_binary(field.type)}
    for path, (bare, packed) in plain.items():
        bare_dictionary, packed_dictionary = dictionary[path]
        if path in words or bare_dictionary <= min(_WORTH_DICTIONARY * bare, packed):
            dictionaries.add(path)
            bare, packed = bare_dictionary, packed_dictionary  # noqa: PLW2901
        worth = _WORTH_COMPRESSION_OF_BYTES if path in of_bytes else _WORTH_COMPRESSION
        if codec != "none" and packed <= worth * bare:
            compressed.add(path)
    return Layout(
        compressed=frozenset(compressed),
        dictionaries=frozenset(dictionaries),
        statistics=columns_with_order(table.schema),
        plain=frozenset(plain.keys() - compressed),
        codec=codec,
        batch_rows=_batch_rows(table),
    )


def _words_of_categories(schema: pa.Schema) -> frozenset[str]:
    """Return the columns that hold words of a vocabulary: readers look each word up once a dictionary."""
    if METADATA_KEY not in (schema.metadata or {}):
        return frozenset()
    found: list[tuple[str, object]] = []
    for name, field in Schema.from_arrow(schema).items():
        found += field.members if isinstance(field, Group) else [(name, field)]
    return frozenset(name for name, field in found if isinstance(field, Category) and field.storage == "words")


def _batch_rows(table: pa.Table) -> int:
    """Return how many rows of the widest column make a batch that stays in the cache until its page is written."""
    widest = max((column.nbytes for column in table.columns), default=0) / max(1, table.num_rows)
    return max(1, min(_MOST_BATCH_ROWS, int(_BATCH_BYTES / max(1.0, widest))))


def _sample(table: pa.Table) -> pa.Table:
    rows = max(1, table.num_rows)
    wanted = max(_SAMPLE_SLICES, int(_SAMPLE_BYTES * rows / max(1, table.nbytes)))
    if rows <= wanted:
        return table
    step, length = rows // _SAMPLE_SLICES, wanted // _SAMPLE_SLICES
    return pa.concat_tables([table.slice(i * step, length) for i in range(_SAMPLE_SLICES)])


def _trial(sample: pa.Table, codec: str, *, use_dictionary: bool) -> dict[str, tuple[int, int]]:
    """Return for each column its size without and with compression, in bytes."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        sample.schema,
        compression=codec.upper(),
        use_dictionary=use_dictionary,
        write_statistics=False,
        max_rows_per_page=_UNLIMITED_ROWS,
    ) as writer:
        writer.write_table(sample)
    sizes: dict[str, tuple[int, int]] = {}
    metadata = pq.ParquetFile(sink.getvalue()).metadata
    group = metadata.row_group(0)
    for i in range(metadata.num_columns):
        column = group.column(i)
        sizes[column.path_in_schema] = column.total_uncompressed_size, column.total_compressed_size
    return sizes


def columns_with_order(schema: pa.Schema) -> frozenset[str]:
    """Return the columns for which minimum and maximum are worth keeping."""
    return frozenset(field.name for field in schema if _has_order(field.type))


def _has_order(type_: pa.DataType) -> bool:
    """Whether filters can ask for values of the type by order: numbers, times and text."""
    t = pa.types
    return bool(t.is_primitive(type_) or t.is_boolean(type_) or t.is_decimal(type_) or t.is_string(type_))
