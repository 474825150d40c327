"""Lists that have the same length in every row, though nothing says so: found out, and delivered as tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.common import ReadOptions
from parquet_loader.dataset.memory_budget import SAMPLE_ROWS
from parquet_loader.dataset.schema_resolution import decoders_of, is_carrying
from parquet_loader.decode import number_type, read_name
from parquet_loader.errors import DataError, SourceError, is_skippable
from parquet_loader.read import STREAMED_BYTES, RowGroupReader
from parquet_loader.schema import Field, RaggedList, Scalar, Schema, Tensor, heads
from parquet_loader.source import Metadata, Snapshot

# Looked at of each list, at most, and of that this part in one row group: a quarter.
CONSTANT_LISTS_BYTES = 64 * 2**20
_OF_A_ROW_GROUP = 4
# Of several lists, decoded at a time.
TOGETHER_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A list whose footers admit that all rows have as many values.

    Attributes:
        length: How many.
        width: Their bytes.
        chunk_bytes: What it takes in a row group as it is stored, at most.
    """

    length: int
    width: int
    chunk_bytes: int

    def stride(self, rows: int) -> int:
        """Return the distance of the row groups that are looked at, of a data set of so many rows."""
        return max(1, rows * self.width // CONSTANT_LISTS_BYTES)


def with_constant_lists(schema: Schema, snapshot: Snapshot, options: ReadOptions) -> Schema:
    """Deliver lists that have the same length in every row as tensors, where no file carries a schema for them.

    Footers tell how many values each row group has, which rules out most lists. What is left is looked at: all of it
    up to 64 MiB, row groups spread over the data set beyond that, where a row that differs after all is an error when
    it is read. What is found of a list does not depend on the columns beside it.
    """
    with_rows = set(snapshot.file_schema[snapshot.row_group_file[snapshot.row_group_rows > 0]].tolist())
    carrying = [found for number, found in enumerate(snapshot.schemas) if number in with_rows and is_carrying(found)]
    declared = {name for found in carrying for name in Schema.from_arrow(found)}
    items = {
        name: field.item
        for name, field in schema.items()
        if isinstance(field, RaggedList) and name not in declared and _is_number(field.item)
    }
    candidates = _candidates(snapshot, items)
    if not candidates:
        return schema

    def reader_of(names: Iterable[str]) -> RowGroupReader:
        return RowGroupReader(snapshot, decoders_of(schema.select(list(names)), snapshot), None, options)

    fields = dict(schema)
    for part in _together(candidates, snapshot):
        for name in _of_one_width(snapshot, reader_of, part):
            item = items[name]
            fields[name] = Tensor(item.type, (candidates[name].length,), fill=item.fill, storage="list")
    return Schema(fields)


def _is_number(item: Field) -> bool:
    """Whether lists of it may be tensors."""
    if not isinstance(item, Scalar):
        return False
    return any(is_(item.type) for is_ in (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating))


def _together(candidates: Mapping[str, _Candidate], snapshot: Snapshot) -> Iterator[dict[str, _Candidate]]:
    """Divide columns into such as are looked at together: in the same row groups, few bytes at a time.

    What is stored of them in a row group is no more than is fetched at a time of a file that is not local.
    """
    rows = min(SAMPLE_ROWS, int(snapshot.row_group_rows.max()))
    total = int(snapshot.row_group_rows.sum())
    part, stride, width, chunk_bytes = dict[str, _Candidate](), 0, 0, 0
    for name, found in sorted(candidates.items(), key=lambda item: item[1].width):
        width, chunk_bytes = width + found.width, chunk_bytes + found.chunk_bytes
        is_too_much = width * rows > TOGETHER_BYTES or chunk_bytes > STREAMED_BYTES
        if part and (is_too_much or found.stride(total) != stride):
            yield part
            part, width, chunk_bytes = {}, found.width, found.chunk_bytes
        part[name], stride = found, found.stride(total)
    if part:
        yield part


def _of_one_width(
    snapshot: Snapshot, reader_of: Callable[[Iterable[str]], RowGroupReader], candidates: Mapping[str, _Candidate]
) -> list[str]:
    """Look at the lists of row groups spread over the data set, at all of them where there are not too many.

    Returns:
        The columns of which all that was seen has so many bytes a row as is said here.
    """
    groups = np.flatnonzero(snapshot.row_group_rows)
    stride = next(iter(candidates.values())).stride(int(snapshot.row_group_rows.sum()))
    left, reader = dict(candidates), reader_of(candidates)
    for group in groups[::stride].tolist():
        rows, looking = 0, dict(left)
        stream = reader.stream(snapshot.row_group(group), SAMPLE_ROWS)
        try:
            for table in stream:
                rows += len(table)
                for name, expected in list(looking.items()):
                    if pc.unique(pc.binary_length(table.column(name))).to_pylist() != [expected.width]:
                        del looking[name], left[name]
                    elif rows * expected.width >= CONSTANT_LISTS_BYTES // _OF_A_ROW_GROUP:
                        del looking[name]
                if not looking:
                    break
        except (DataError, SourceError) as error:  # nulls, or damage, of some of them
            if not is_skippable(error):
                raise
            again = [left] if len(left) < len(candidates) else _halves(left)
            return [name for part in again if part for name in _of_one_width(snapshot, reader_of, part)]
        finally:
            stream.close()  # type: ignore[attr-defined]
        if not left:
            break
    return list(left)


def _halves(candidates: Mapping[str, _Candidate]) -> list[dict[str, _Candidate]]:
    """Divide several columns in two; one alone has nothing left to find out: reading it will say what is wrong."""
    names = list(candidates)
    half = len(names) // 2
    return [{name: candidates[name] for name in part} for part in (names[:half], names[half:])] if half else []


def _candidates(snapshot: Snapshot, items: Mapping[str, Scalar]) -> dict[str, _Candidate]:
    """Return those of these list columns whose footers admit that all rows have as many values."""
    found = dict[str, tuple[int, int] | None].fromkeys(items)  # length, and bytes of the largest chunk
    file_before, leaves = -1, dict[str, int | None]()
    for index in np.flatnonzero(snapshot.row_group_rows).tolist():
        if not found:
            break
        group = snapshot.row_group(index)
        footer = snapshot.footers.get(group.file_number)
        if group.file_number != file_before:
            columns = {name: read_name(group.schema, name) for name in found}
            file_before, leaves = group.file_number, _only_leaves(footer, columns)
        for name, before in list(found.items()):
            leaf = leaves[name]
            now = None if leaf is None else _described(footer, group.number, leaf, group.rows, items[name])
            if now is None or (before is not None and before[0] != now[0]):
                del found[name]
            else:
                found[name] = now if before is None else (now[0], max(now[1], before[1]))
    widths = {name: number_type(items[name].dtype).bit_width for name in found}
    return {
        name: _Candidate(known[0], known[0] * widths[name] // 8, known[1])
        for name, known in found.items()
        if known is not None
    }


def _described(footer: Metadata, row_group: int, leaf: int, rows: int, item: Scalar) -> tuple[int, int] | None:
    """Return how many values each row has, if all may have as many, and the bytes of the chunk.

    None where they cannot, or where there are nulls for which nothing stands.
    """
    chunk = footer.chunk(row_group, leaf)
    has_nulls = item.fill is None and bool(footer.null_count(row_group, leaf))
    if has_nulls or chunk.values <= 0 or chunk.values % rows:
        return None
    return chunk.values // rows, max(0, chunk.stored_bytes)


def _only_leaves(footer: Metadata, columns: Mapping[str, str]) -> dict[str, int | None]:
    """Return the number of the leaf column below each of a file's columns; None where there is not just one."""
    below: dict[str, list[int]] = {column: [] for column in columns.values()}
    for number, path in enumerate(footer.paths):
        for head in heads(path):
            if head in below and head != path:
                below[head].append(number)
    return {name: below[column][0] if len(below[column]) == 1 else None for name, column in columns.items()}
