"""Chooses how each column is stored: compressed or not, with a dictionary or not, with statistics or not.

A sample is written to memory, once plain and once with dictionaries, and the sizes of each column are compared.
Tensors, encoded images and other incompressible data stay plain, which decodes at the speed of a memory copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.schema import METADATA_KEY, Category, Group, Schema, Video, is_list_like

_SAMPLE_BYTES = 4 * 2**20
_SAMPLE_SLICES = 8
_PAGE_BYTES = 2**20
# Since version 23 pyarrow limits the rows of a page, by default to 20,000; earlier versions lack limit and option.
_NO_ROW_LIMIT: dict[str, Any] = (
    {"max_rows_per_page": 2**31 - 1} if "max_rows_per_page" in signature(pq.write_table).parameters else {}
)
_PAGES = _NO_ROW_LIMIT | {"data_page_size": _PAGE_BYTES, "write_page_checksum": True}

# Parquet's writers check the size of a page once for each batch, of 1024 rows by default: rows of 16 KiB then fill
# pages of 16 MiB, in newly mapped memory. Measured, one core writes such rows 1.4 times as fast in batches of 256 KiB,
# including page checksums.
_MOST_BATCH_ROWS = 1024
_BATCH_BYTES = 2**18

# Compression and dictionaries slow decoding, so a column has to shrink to this share. Measured by benchmarks/layout.py,
# one thread, from the page cache: LZ4 that halves a column slows its decoding from 8 to 2 GB/s, which pays if files
# arrive at less than about 2 GB/s a thread. A dictionary of few values slows it from 8 to 6 GB/s, and shrinks the
# column to a sixth.
_WORTH_COMPRESSION = 0.6
# Rows of bytes (tensors, packed groups) that are neither compressed nor encoded are read directly into the window.
# Measured on groups packed into rows of 104 bytes, which LZ4 halves: without LZ4 an epoch takes a third fewer processor
# seconds.
_WORTH_COMPRESSION_OF_BYTES = 1 / 3
_WORTH_DICTIONARY = 0.5
# Measured on numbers, one thread: a plain number decodes in 0.1 to 0.2 ns, one from a dictionary in 1 ns, and LZ4 adds
# 1 to 7 ns. Reading 4 bytes less saves 1 ns at 4 GiB/s, so only wider numbers gain from a dictionary, and none from a
# codec.
_NARROW_BITS = 32
_HARDLY_SMALLER = 0.97

Goal: TypeAlias = Literal["balance", "speed", "size"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How the columns of a file are stored; columns are named by their path in the Parquet schema.

    Attributes:
        compressed: Columns that are compressed.
        dictionaries: Columns that are stored as indices into a dictionary of their values.
        statistics: Columns with minimum, maximum and null count of each row group, by which filters prune.
        plain: Columns that are not compressed.
        codec: The codec of `compressed`.
        batch_rows: Rows that are encoded at a time; pages end at the end of such a batch.
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


def choose_layout(table: pa.Table, codec: str = "lz4", goal: Goal = "balance") -> Layout:
    """Return how to store columns like those of `table`, typically the first row group.

    The choice depends on sizes alone, so equal rows get an equal layout on any machine.

    Args:
        table: Rows to judge by; a sample of about 4 MiB from all over the table is tried.
        codec: ``"lz4"``, ``"snappy"``, ``"zstd"`` or ``"none"``.
        goal: ``"balance"`` uses a dictionary or the codec if they shrink a column well. ``"speed"`` does so except for
            numbers, which it stores plain, or in a dictionary if they are wider than 4 bytes. ``"size"`` chooses the
            smallest form of each column.
    """
    sample = _sample(table)
    plain = _trial(sample, codec, use_dictionary=False)
    dictionary = _trial(sample, codec, use_dictionary=True)
    compressed: set[str] = set()
    dictionaries: set[str] = set()
    words, in_place = _words_of_categories(table.schema), _read_in_place(table.schema)
    for path, type_ in leaf_paths(table.schema).values():
        if path in in_place:
            continue
        has_dictionary, shrinks = _way(goal, type_, plain[path], dictionary[path], is_words=path in words)
        if has_dictionary:
            dictionaries.add(path)
        if shrinks and codec != "none":
            compressed.add(path)
    return Layout(
        compressed=frozenset(compressed),
        dictionaries=frozenset(dictionaries),
        statistics=columns_with_order(table.schema),
        plain=frozenset(plain.keys() - compressed),
        codec=codec,
        batch_rows=_batch_rows(table),
    )


def _way(
    goal: Goal, type_: pa.DataType, plain: tuple[int, int], dictionary: tuple[int, int], *, is_words: bool
) -> tuple[bool, bool]:
    """Return whether a column gets a dictionary, and whether it gets the codec.

    Args:
        goal: As in `choose_layout`.
        type_: The type of the column's values.
        plain: Its bytes without and with the codec.
        dictionary: Its bytes without and with the codec, if it has a dictionary.
        is_words: Whether it holds words of a vocabulary.
    """
    if goal == "size":
        has_dictionary = is_words or min(dictionary) < min(plain)
        bare, packed = dictionary if has_dictionary else plain
        return has_dictionary, packed <= _HARDLY_SMALLER * bare
    is_fast = goal == "speed" and pa.types.is_primitive(type_)
    pays = dictionary[0] <= min(_WORTH_DICTIONARY * plain[0], plain[1])
    has_dictionary = is_words or (pays and not (is_fast and type_.bit_width <= _NARROW_BITS))
    bare, packed = dictionary if has_dictionary else plain
    worth = _WORTH_COMPRESSION_OF_BYTES if pa.types.is_fixed_size_binary(type_) else _WORTH_COMPRESSION
    return has_dictionary, not is_fast and packed <= worth * bare


def leaf_paths(schema: pa.Schema) -> dict[str, tuple[str, pa.DataType]]:
    """Return the path of each stored column's leaf in the Parquet schema, and the type of its values."""
    leaves: dict[str, tuple[str, pa.DataType]] = {}
    for field in schema:
        path, type_ = field.name, field.type
        while is_list_like(type_):
            path, type_ = f"{path}.list.element", type_.value_type
        leaves[field.name] = path, type_
    return leaves


def _words_of_categories(schema: pa.Schema) -> frozenset[str]:
    """Return the columns with words of a vocabulary: with a dictionary, readers look each word up once."""
    fields = _fields_of(schema)
    return frozenset(name for name, field in fields if isinstance(field, Category) and field.storage == "words")


def _read_in_place(schema: pa.Schema) -> frozenset[str]:
    """Return the columns that have to be plain, because readers read parts of their values."""
    return frozenset(name for name, field in _fields_of(schema) if isinstance(field, Video) and field.ranges)


def _fields_of(schema: pa.Schema) -> list[tuple[str, object]]:
    """Return the fields of a schema by column; groups are replaced by their members."""
    found: list[tuple[str, object]] = []
    if METADATA_KEY in (schema.metadata or {}):
        for name, field in Schema.from_arrow(schema).items():
            found += field.members if isinstance(field, Group) else [(name, field)]
    return found


def _batch_rows(table: pa.Table) -> int:
    """Return the rows of a batch that stays in the CPU cache until its page is written, for the widest column."""
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
    """Return the size of each column without and with compression, in bytes."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        sample.schema,
        compression=codec.upper(),
        use_dictionary=use_dictionary,
        write_statistics=False,
        **_NO_ROW_LIMIT,
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
    """Return whether filters can compare values of the type: numbers, times and text."""
    t = pa.types
    return bool(t.is_primitive(type_) or t.is_boolean(type_) or t.is_decimal(type_) or t.is_string(type_))
