"""Rows between a row group and a window: decoded columns, and columns that are still in the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import IntArray
from parquet_loader.decode.native.column_reader import AliveRows, Dictionary, NativeChunks, NotDecodedError, PageMemory
from parquet_loader.decode.native.whole_row_groups import WholeRowGroups
from parquet_loader.decode.plain_pages import RawColumn

# The errors of reading a file that is damaged or missing.
READ_ERRORS = (pa.ArrowException, OSError, ValueError, OverflowError, RuntimeError, MemoryError)


class StraightTargets(NamedTuple):
    """The memory to which kernels write rows of columns.

    Attributes:
        addresses: int64 ``[columns]``, the address of memory for the rows of each column; not checked.
        slots: For each column, the target of each row, counted in rows from the address; None keeps the order. Empty
            means None for all.
        masks: int64 ``[columns]``, the address of memory for the mask of each column of numbers, a byte for each row; 0
            without one. None means 0 for all.
        staging: Memory for pages of byte arrays, if the window has any.
    """

    addresses: npt.NDArray[np.int64]
    slots: Sequence[IntArray | None] = ()
    masks: npt.NDArray[np.int64] | None = None
    staging: PageMemory | None = None


Target = tuple[str, npt.NDArray[np.uint8], IntArray | slice]
"""A column, an array ``[n, width]`` to write its rows to, and the rows of that."""


class SkippedRows:
    """The deleted rows among some rows of a row group.

    Args:
        deleted: int64, sorted, the deleted rows, all from `begin` on.
        begin: The first of the rows.
    """

    def __init__(self, deleted: IntArray, begin: int) -> None:
        self._deleted, self._begin = np.ascontiguousarray(deleted, np.int64), begin
        # For each deleted row, the number of rows before it that are alive.
        self._before = deleted - np.arange(begin, begin + len(deleted))

    def alive(self, first: int, rows: int) -> AliveRows:
        """Return `rows` rows, at least one, from row `first` of those that are alive on."""
        low, high = np.searchsorted(self._before, (first, first + rows - 1), side="right").tolist()
        begin = self._begin + first
        return AliveRows(begin + low, begin + rows + high, self._deleted[low:high])


@dataclass(frozen=True, slots=True)
class DeferredColumns:
    """Columns that are still in the file: of some rows of a row group, or of several row groups that are read together.

    Attributes:
        columns: Columns in plain pages, by name; the system copies their values to the window.
        first_row: Number of the first row in the row group.
        explained: Returns the error to raise for one of `READ_ERRORS`.
        straight: Columns that kernels decode directly to the window, forward only; or None.
        straight_names: Their names.
        deleted: The rows of the row group that are deleted or do not pass the filter; `first` and `rows` of `write` do
            not count them. None if there are none.
        masks: For each mask of a column of `straight`: the column, and the address that the view of a null has; 0 for a
            column of numbers.
        lists: The columns of `straight` that are lists of any length, with the most bytes that their elements take; if
            there are any, these rows are all rows of the row group, or of the row groups.
        groups: Groups of numbers, with their members, which are columns of `straight`.
    """

    columns: Mapping[str, RawColumn]
    first_row: int
    explained: Callable[[Exception], Exception]
    straight: NativeChunks | WholeRowGroups | None = None
    straight_names: Sequence[str] = ()
    deleted: SkippedRows | None = None
    masks: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    lists: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def write(
        self, first: int, rows: int, straight: StraightTargets | None, targets: Sequence[Target]
    ) -> Mapping[str, Dictionary]:
        """Write rows of the columns to the given memory.

        Args:
            first: The first row, counted in these rows.
            rows: Number of rows.
            straight: The memory for rows of `straight_names`, and for views of byte arrays, int64 ``[rows, 2]``, which
                are valid until `release`; None skips these columns.
            targets: The memory for rows of other columns; see `RawColumn.read`.

        Returns:
            The dictionaries to whose entries views refer, by column; valid as long as the views.

        Raises:
            NotDecodedError: Arrow has to decode some columns of `straight` from this row on; others may have been
                written.
            DataError, SourceError: see `RowGroupReader.read`.
        """
        at = self.first_row + first
        try:
            alive = None if self.deleted is None or not rows else self.deleted.alive(first, rows)
            if straight is not None:
                assert self.straight is not None
                addresses, straight_slots, masks, staging = straight
                if alive is None:
                    self.straight.read_into(at, rows, addresses, straight_slots, masks, staging)
                else:
                    assert isinstance(self.straight, NativeChunks)
                    slots_of_all = [None if own is None else _slots_of_all(alive, own) for own in straight_slots]
                    self.straight.read_alive(alive, addresses, slots_of_all, masks)
            for name, out, slots in targets:
                if alive is None:
                    self.columns[name].read(at, out, slots)
                else:
                    self.columns[name].read(alive.first, out, _slots_of_all(alive, slots))
        except NotDecodedError:
            raise
        except READ_ERRORS as error:
            raise self.explained(error) from error
        return {} if straight is None or self.straight is None else self.straight.dictionaries()

    def write_lists(self, memory: Mapping[str, npt.NDArray[np.uint8]]) -> Mapping[str, IntArray]:
        """Write the elements of all rows of `lists`, and return the byte at which each row begins, ``[rows + 1]``.

        Args:
            memory: Memory for the bytes of each of `lists`.

        Raises:
            NotDecodedError: some columns have nulls or cannot be decoded; others may have been written.
            DataError, SourceError: see `RowGroupReader.read`.
        """
        assert self.straight is not None
        try:
            return self.straight.read_all_lists(memory)
        except NotDecodedError:
            raise
        except READ_ERRORS as error:
            raise self.explained(error) from error

    def release(self) -> None:
        """Release the views of byte arrays that `write` wrote."""
        if self.straight is not None:
            self.straight.release()


@dataclass(frozen=True, slots=True)
class LazyRows:
    """Some rows of a row group that pass the filter.

    Attributes:
        table: The canonical columns that are decoded.
        rows: Number of rows, also if the table has no columns.
        deferred: The other columns.
        stored_bytes: Bytes in the file of the row group's column chunks that are read.
        at_once: The most rows to write at a time, because pages and views of their values are held meanwhile; None for
            no limit.
    """

    table: pa.Table
    rows: int
    deferred: DeferredColumns
    stored_bytes: int = 0
    at_once: int | None = None


def _slots_of_all(alive: AliveRows, slots: IntArray | slice) -> IntArray:
    """Return a slot for each row from the first to the last; a deleted row has that of the next row that is alive.

    Rows are written in order, so the row that is alive overwrites the deleted ones.
    """
    own = np.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots
    is_alive = np.ones(alive.stop - alive.first, np.int64)
    is_alive[alive.deleted - alive.first] = 0
    found: IntArray = own[np.cumsum(is_alive) - is_alive]
    return found
