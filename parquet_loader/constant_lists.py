"""Lists that have the same length in every row, though nothing says so: found out, and delivered as tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from parquet_loader.columns import number_type
from parquet_loader.decode import read_name
from parquet_loader.delivered import decoders_of, heads, is_carrying
from parquet_loader.errors import DataError, SourceError
from parquet_loader.footers import paths_of
from parquet_loader.options import ReadOptions
from parquet_loader.read import Reader
from parquet_loader.schema import RaggedList, Scalar, Schema, Tensor
from parquet_loader.sizes import SAMPLE_ROWS
from parquet_loader.snapshot import Snapshot

# Looked at of each list, at most.
CONSTANT_LISTS_BYTES = 64 * 2**20
# Of several lists, decoded at a time.
TOGETHER_BYTES = 16 * 2**20


def with_constant_lists(schema: Schema, snapshot: Snapshot, options: ReadOptions) -> Schema:
    """Deliver lists that have the same length in every row as tensors, where no file carries a schema for them.

    Footers tell how many values each row group has, which rules out most lists. What is left is looked at: all of it
    up to 64 MiB, row groups spread over the data set beyond that, where a row that differs after all is an error when
    it is read.
    """
    with_rows = set(snapshot.file_schema[snapshot.row_group_file[snapshot.row_group_rows > 0]].tolist())
    carrying = [found for number, found in enumerate(snapshot.schemas) if number in with_rows and is_carrying(found)]
    declared = {name for found in carrying for name in Schema.from_arrow(found)}
    lists = {n: field for n, field in schema.items() if isinstance(field, RaggedList) and n not in declared}
    lengths = _constant_lengths(snapshot, [name for name, field in lists.items() if isinstance(field.item, Scalar)])
    if not lengths:
        return schema
    widths = {name: n * number_type(lists[name].item.dtype).bit_width // 8 for name, n in lengths.items()}

    def reader_of(names: Iterable[str]) -> Reader:
        return Reader(snapshot, decoders_of(schema.select(list(names)), snapshot), None, options)

    fields = dict(schema)
    for part in _together(widths, min(SAMPLE_ROWS, int(snapshot.row_group_rows.max()))):
        for name in _of_one_width(snapshot, reader_of, part):
            item = lists[name].item
            assert isinstance(item, Scalar)
            fields[name] = Tensor(item.type, (lengths[name],), fill=item.fill, storage="list")
    return Schema(fields)


def _together(widths: Mapping[str, int], rows: int) -> Iterator[dict[str, int]]:
    """Divide columns into such as are looked at together: of about one width, few enough bytes in so many rows."""
    part = dict[str, int]()
    for name, width in sorted(widths.items(), key=lambda item: item[1]):
        too_many = (sum(part.values()) + width) * rows > TOGETHER_BYTES
        if part and (too_many or width > 2 * next(iter(part.values()))):
            yield part
            part = {}
        part[name] = width
    if part:
        yield part


def _of_one_width(
    snapshot: Snapshot, reader_of: Callable[[Iterable[str]], Reader], widths: Mapping[str, int]
) -> list[str]:
    """Look at the lists of row groups spread over the data set, at all of them where there are not too many.

    Returns:
        The columns of which all that was seen has so many bytes a row as is said here.
    """
    groups = np.flatnonzero(snapshot.row_group_rows)
    width = max(widths.values())
    stride = max(1, int(snapshot.row_group_rows[groups].sum()) * width // CONSTANT_LISTS_BYTES)
    left, reader = dict(widths), reader_of(widths)
    for group in groups[::stride].tolist():
        seen_bytes = 0
        stream = reader.stream(group, SAMPLE_ROWS)
        try:
            for table in stream:
                for name, expected in list(left.items()):
                    if pc.unique(pc.binary_length(table.column(name))).to_pylist() != [expected]:
                        del left[name]
                seen_bytes += width * len(table)
                if not left or seen_bytes >= CONSTANT_LISTS_BYTES // 4:
                    break
        except (DataError, SourceError):  # nulls, or damage, of some of them
            return [name for part in _halves(left) for name in _of_one_width(snapshot, reader_of, part)]
        finally:
            stream.close()  # type: ignore[attr-defined]
        if not left:
            break
    return list(left)


def _halves(widths: Mapping[str, int]) -> list[dict[str, int]]:
    """Divide several columns in two; one alone has nothing left to find out: reading it will say what is wrong."""
    names = list(widths)
    half = len(names) // 2
    return [{name: widths[name] for name in part} for part in (names[:half], names[half:])] if half else []


def _constant_lengths(snapshot: Snapshot, names: Sequence[str]) -> dict[str, int]:
    """Return how many values each row of these list columns has, of those whose footers admit that all have as many."""
    lengths = dict[str, int | None].fromkeys(names)
    file_before, leaves = -1, dict[str, int | None]()
    for group in np.flatnonzero(snapshot.row_group_rows).tolist():
        if not lengths:
            break
        file = int(snapshot.row_group_file[group])
        footer = snapshot.footers.get(file)
        if file != file_before:
            columns = {name: read_name(snapshot.schema_of(file), name) for name in lengths}
            file_before, leaves = file, _only_leaves(footer, columns)
        found = footer.row_group(int(snapshot.row_group_number[group]))
        rows = int(snapshot.row_group_rows[group])
        for name, before in list(lengths.items()):
            leaf = leaves[name]
            length = None if leaf is None else _length(found.column(leaf), rows)
            if not length or before not in (None, length):
                del lengths[name]
            else:
                lengths[name] = length
    return {name: length for name, length in lengths.items() if length is not None}


def _length(leaf: pq.ColumnChunkMetaData, rows: int) -> int | None:
    """Return how many values each row has, if all may have as many; None where there are nulls, too."""
    statistics = leaf.statistics
    has_nulls = statistics is not None and statistics.has_null_count and statistics.null_count > 0
    return None if has_nulls or leaf.num_values % rows else int(leaf.num_values // rows)


def _only_leaves(footer: pq.FileMetaData, columns: Mapping[str, str]) -> dict[str, int | None]:
    """Return the number of the leaf column below each of a file's columns; None where there is not just one."""
    below: dict[str, list[int]] = {column: [] for column in columns.values()}
    for number, path in enumerate(paths_of(footer)):
        for head in heads(path):
            if head in below and head != path:
                below[head].append(number)
    return {name: below[column][0] if len(below[column]) == 1 else None for name, column in columns.items()}
