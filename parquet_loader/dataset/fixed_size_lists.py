"""Finds lists that have the same length in all rows, from the footers, and delivers them as tensors.

Parquet has one type for lists of any length, and Spark, pandas and Polars write embeddings with it. A footer counts the
values of each row group. If lists vary in length, the values per row are rarely the same integer in all row groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.common import ReadOptions
from parquet_loader.dataset.schema_resolution import decoders_of, is_carrying
from parquet_loader.decode import number_type, read_name
from parquet_loader.errors import DataError, SourceError, is_skippable
from parquet_loader.read import RowGroupReader
from parquet_loader.schema import Field, RaggedList, Scalar, Schema, Tensor, heads
from parquet_loader.source import Metadata, RowGroupRef, Snapshot

# The sum of `n` varying lengths is a multiple of `n` about once in `n` times, so with this many rows footers suffice.
CERTAIN_ROWS = 10_000
# With fewer rows: the bytes read of each list in a row group, and of all lists at a time.
_SAMPLE_BYTES = 2**20
_AT_ONCE_BYTES = 8 * 2**20
_AT_ONCE_ROWS = 4096


@dataclass(frozen=True, slots=True)
class FixedSizeLists:
    """The lists of a source that may be tensors, according to its footers.

    Attributes:
        certain: The tensors by name for which the footers suffice.
        doubtful: The tensors by name for which a sample of rows is needed; see `sampled`.
    """

    certain: Mapping[str, Tensor]
    doubtful: Mapping[str, Tensor]

    @classmethod
    def of_footers(cls, schema: Schema, snapshot: Snapshot) -> FixedSizeLists:
        """Find the lists that have one length in all row groups, except those with a field in a file's metadata.

        No column data is read. Lists are doubtful if they have fewer than `CERTAIN_ROWS` rows, or one value that may be
        null, because footers count an empty list as one value too. The result for a list does not depend on other
        columns. If a row has another length after all, decoding raises an error that names the field to declare.
        """
        row_groups: list[int] = np.flatnonzero(snapshot.row_group_rows).tolist()
        with_rows = set(snapshot.file_schema[snapshot.row_group_file[row_groups]].tolist())
        carrying = [s for number, s in enumerate(snapshot.schemas) if number in with_rows and is_carrying(s)]
        declared = {name for found in carrying for name in Schema.from_arrow(found)}
        items = {
            name: field.item
            for name, field in schema.items()
            if isinstance(field, RaggedList) and name not in declared and _is_number(field.item)
        }
        certain, doubtful = dict[str, Tensor](), dict[str, Tensor]()
        for name, (length, may_be_empty) in _lengths(snapshot, row_groups, items).items():
            is_doubtful = may_be_empty or snapshot.rows < CERTAIN_ROWS
            tensor = Tensor(items[name].type, (length,), fill=items[name].fill, storage="list")
            (doubtful if is_doubtful else certain)[name] = tensor
        return cls(certain, doubtful)

    def sampled(self, schema: Schema, snapshot: Snapshot, options: ReadOptions) -> dict[str, Tensor]:
        """Return the doubtful tensors that the first rows of the first and last row groups do not contradict.

        Args:
            schema: The schema with these columns as lists.
            snapshot: The files.
            options: How to read.

        Raises:
            SourceError: the rows cannot be read now. Damaged columns stay lists instead.
        """
        left = {name: tensor for name, tensor in self.doubtful.items() if name in schema}

        def reader_of(names: Iterable[str]) -> RowGroupReader:
            return RowGroupReader(snapshot, decoders_of(schema.select(list(names)), snapshot), None, options)

        row_groups: list[int] = np.flatnonzero(snapshot.row_group_rows).tolist()
        for index in dict.fromkeys([*row_groups[:1], *row_groups[-1:]]):
            widths = {name: tensor.size * number_type(tensor.dtype).bit_width // 8 for name, tensor in left.items()}
            for name in _of_other_length(snapshot.row_group(index), widths, reader_of) if widths else ():
                del left[name]
        return left


def with_fixed_size_lists(schema: Schema, snapshot: Snapshot, options: ReadOptions) -> Schema:
    """Return the schema with lists of one length as tensors; reads rows of doubtful lists."""
    lists = FixedSizeLists.of_footers(schema, snapshot)
    return Schema({**schema, **lists.certain, **lists.sampled(schema, snapshot, options)})


def _is_number(item: Field) -> bool:
    """Whether lists of this item may be tensors."""
    if not isinstance(item, Scalar):
        return False
    return any(is_(item.type) for is_ in (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating))


def _lengths(snapshot: Snapshot, row_groups: Sequence[int], items: Mapping[str, Scalar]) -> dict[str, tuple[int, bool]]:
    """Return the columns with one length according to the footers: the length, and whether rows may be empty."""
    found = dict[str, tuple[int, bool] | None].fromkeys(items)
    file_before, leaves = -1, dict[str, int | None]()
    for index in row_groups:
        if not found:
            break
        group = snapshot.row_group(index)
        footer = snapshot.footers.get(group.file_number)
        if group.file_number != file_before:
            columns = {name: read_name(group.schema, name, enters_lists=False) for name in found}
            file_before, leaves = group.file_number, _only_leaves(footer, columns)
        for name, before in list(found.items()):
            leaf = leaves[name]
            now = None if leaf is None else _length(footer, group, leaf, items[name])
            if now is None or (before is not None and before[0] != now[0]):
                del found[name]
            else:
                found[name] = now if before is None else (now[0], before[1] or now[1])
    return {name: known for name, known in found.items() if known is not None}


def _length(footer: Metadata, row_group: RowGroupRef, leaf: int, item: Scalar) -> tuple[int, bool] | None:
    """Return the possible length of all rows of a row group, and whether rows may be empty; None if lengths differ.

    An empty list and a null each count as one value, and as one null.
    """
    values, rows = footer.chunk(row_group.number, leaf).values, row_group.rows
    nulls = footer.null_count(row_group.number, leaf)
    if values <= 0 or values % rows or (nulls and item.fill is None):
        return None
    return values // rows, values == rows and nulls != 0


def _only_leaves(footer: Metadata, columns: Mapping[str, str]) -> dict[str, int | None]:
    """Return the number of the leaf column below each of a file's columns; None if there is not exactly one."""
    below: dict[str, list[int]] = {column: [] for column in columns.values()}
    for number, path in enumerate(footer.paths):
        for head in heads(path):
            if head in below and head != path:
                below[head].append(number)
    return {name: below[column][0] if len(below[column]) == 1 else None for name, column in columns.items()}


def _of_other_length(
    row_group: RowGroupRef, widths: Mapping[str, int], reader_of: Callable[[Iterable[str]], RowGroupReader]
) -> list[str]:
    """Read the first rows of a row group, and return the columns in which a row does not have the expected width.

    Columns that cannot be read are included; the loader reports their error later.
    """
    expected, other, rows = dict(widths), list[str](), 0
    at_once = min(_AT_ONCE_ROWS, max(1, _AT_ONCE_BYTES // sum(widths.values())))
    stream = reader_of(widths).stream(row_group, at_once)
    try:
        for table in stream:
            rows += len(table)
            for name, width in list(expected.items()):
                if pc.unique(pc.binary_length(table.column(name))).to_pylist() != [width]:
                    other.append(name)
                    del expected[name]
                elif rows * width >= _SAMPLE_BYTES:
                    del expected[name]
            if not expected:
                break
    except (DataError, SourceError) as error:  # nulls or damage in some of the columns
        if not is_skippable(error):
            raise
        names, half = list(widths), len(widths) // 2
        parts = [{name: widths[name] for name in part} for part in (names[:half], names[half:])]
        return [name for part in parts for name in _of_other_length(row_group, part, reader_of)] if half else names
    finally:
        stream.close()  # type: ignore[attr-defined]
    return other
