"""Upper bounds of the bytes that rows take in a file, because space is reserved before they are written."""

from __future__ import annotations

import pyarrow as pa

from parquet_loader.write import Layout

_LEAF_BYTES = 1024  # headers of a column chunk's pages
_DICTIONARY_BYTES = 2**20 + 2**16  # Parquet's writers abandon a dictionary of this size
_FOOTER_BYTES = 2048
_FOOTER_LEAF_BYTES = 320  # of one column chunk, with statistics of numbers
_FOOTER_TEXT_BYTES = 4 * 4096  # statistics of text: least and greatest, each twice, each up to 4 KiB


def group_bound(table: pa.Table, layout: Layout) -> int:
    """Return the most bytes that `table` takes as one row group."""
    total = 0
    for field, column in zip(table.schema, table.columns, strict=True):
        plain = _widening(field.type) * column.nbytes + 2 * table.num_rows
        if any(path == field.name or path.startswith(f"{field.name}.") for path in layout.dictionaries):
            plain += min(plain, _DICTIONARY_BYTES)
        total += int(1.02 * plain) + _LEAF_BYTES * _leaves(field.type)
    return total


def footer_bound(schema: pa.Schema, groups: int, metadata_bytes: int) -> int:
    """Return the most bytes of a footer with `groups` row groups.

    Args:
        schema: The file's columns, with metadata.
        groups: Number of row groups.
        metadata_bytes: Bytes of further metadata.
    """
    carried = sum(len(k) + len(v) for k, v in (schema.metadata or {}).items())
    names = sum(len(field.name) for field in schema)
    leaves = sum(_leaves(field.type) for field in schema)
    texts = sum(pa.types.is_string(field.type) for field in schema)
    # The footer also holds the Arrow schema with its metadata, in base64.
    once = _FOOTER_BYTES + 3 * carried + metadata_bytes + 8 * names + 512 * leaves
    leaf_bytes = _FOOTER_LEAF_BYTES * leaves + 2 * names + _FOOTER_TEXT_BYTES * texts
    return int(once + groups * leaf_bytes)


def _leaves(type_: pa.DataType) -> int:
    below: list[int] = [_leaves(type_.field(i).type) for i in range(type_.num_fields)]
    return max(1, sum(below))


def _widening(type_: pa.DataType) -> float:
    """Return the factor by which values grow from Arrow's memory to plain Parquet pages, including levels."""
    if type_.num_fields:
        inner = max(_widening(type_.field(i).type) for i in range(type_.num_fields))
        narrow = any(pa.types.is_boolean(type_.field(i).type) for i in range(type_.num_fields))
        return inner * (8 if narrow else 2)
    if pa.types.is_int8(type_) or pa.types.is_uint8(type_):
        return 4.0
    if pa.types.is_int16(type_) or pa.types.is_uint16(type_):
        return 2.0
    return 1.0
