"""Reads several small row groups in one step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from parquet_loader.common import IntArray, from_numpy
from parquet_loader.decode import (
    DeferredColumns,
    LazyRows,
    ListedRowGroup,
    NotDecodedError,
    PlanPattern,
    WholeRowGroups,
)
from parquet_loader.source import RowGroupRef, Snapshot


class JointRows(NamedTuple):
    """All rows of several row groups.

    Attributes:
        row_groups: Number of the row groups.
        apart: Indices of the given row groups whose plans follow none of the patterns.
        rows: Their rows, one row group after another, to be written at once; None without row groups. This raises
            `NotDecodedError` if a row group cannot be read; to read each by itself shows which, and explains the error.
    """

    row_groups: int
    apart: Sequence[int]
    rows: LazyRows | None


@contextmanager
def joint_rows(
    snapshot: Snapshot,
    row_groups: Sequence[int],
    patterns: Sequence[PlanPattern],
    constants: Callable[[RowGroupRef, Collection[str]], pa.Table],
    numbered: Mapping[str, IntArray],
) -> Iterator[JointRows]:
    """Yield the rows of the first of these row groups, up to one whose plan follows none of the patterns.

    The rows are valid until the context ends.

    Args:
        snapshot: The files, which are local.
        row_groups: Indices of the row groups.
        patterns: Patterns of their columns; the first one `is_straight`.
        constants: Returns one row of the other columns of a row group, without the given ones.
        numbered: The number of the first row of each row group, int64 ``[row groups]``, by the name of the column of
            rows' numbers; empty without one.

    Raises:
        DataError: a constant is null or cannot be converted.
        SourceError: see `Snapshot.footer_of`.
    """
    found = [snapshot.row_group(index) for index in row_groups]
    rows = np.array([one.rows for one in found], np.int64)
    are_missing = np.ones(len(found), np.bool_)
    stored_bytes = np.zeros(len(found), np.int64)
    plan = patterns[0].plan
    straight = plan.straight
    lines: IntArray = np.zeros((len(found), *straight.lines.shape), np.int64)
    alike = [one for one in patterns if one.is_straight and one.plan.straight.names == straight.names]
    matches = snapshot.match_patterns(found, [pattern.chunks for pattern in alike])
    for pattern, (extents, match) in zip(alike, matches, strict=False):
        are_new = match & are_missing
        lines[are_new] = pattern.lines_at(extents[are_new], rows[are_new])
        stored_bytes[are_new] = (extents[are_new, :, 1] - extents[are_new, :, 0]).sum(-1)
        are_missing &= ~match
    are_missing |= [one.file.mtime_ns is None for one in found]
    apart = [one.index for one, is_missing in zip(found, are_missing.tolist(), strict=True) if is_missing]
    count = int(are_missing.argmax()) if apart else len(found)
    if not count:
        yield JointRows(0, apart, None)
        return
    listed = [ListedRowGroup(o.file.path, o.file.size_bytes, o.file.mtime_ns or 0, o.rows) for o in found[:count]]
    with closing(WholeRowGroups(listed, straight, lines[:count], plan.fills)) as whole:
        deferred = DeferredColumns(
            {}, 0, lambda _: NotDecodedError(straight.names), whole, straight.names,
            masks=plan.masks, lists=whole.most_list_bytes, groups=plan.groups,
        )  # fmt: skip
        ones = [constants(one, plan.deferred) for one in found[:count]]
        columns = {name: _numbers(first_rows[:count], rows[:count]) for name, first_rows in numbered.items()}
        table = _repeated(ones, rows[:count], columns)
        together = LazyRows(table, int(rows[:count].sum()), deferred, int(stored_bytes[:count].sum()))
        yield JointRows(count, apart, together)


def _numbers(first_rows: IntArray, rows: IntArray) -> IntArray:
    """Return the numbers of rows of several row groups, which have consecutive numbers from `first_rows` on."""
    before = np.cumsum(rows) - rows
    found: IntArray = np.repeat(first_rows - before, rows) + np.arange(int(rows.sum()))
    return found


def _repeated(ones: Sequence[pa.Table], rows: IntArray, others: Mapping[str, IntArray]) -> pa.Table:
    """Return each of several tables of one row as often as `rows` says, and other columns, which have all rows."""
    columns = {name: from_numpy(numbers) for name, numbers in others.items()}
    if ones[0].num_columns:
        constants = pa.concat_tables(ones).combine_chunks().take(from_numpy(np.repeat(np.arange(len(rows)), rows)))
        columns |= dict(zip(constants.column_names, constants.columns, strict=True))
    return pa.table(columns)
