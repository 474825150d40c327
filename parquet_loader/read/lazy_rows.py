"""Rows on the way from a row group to a window: decoded columns, and columns that are still in the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import IntArray
from parquet_loader.decode import NativeChunks, NotDecodedError, RawColumn

# The errors of reading a file that is damaged or missing.
READ_ERRORS = (pa.ArrowException, OSError, ValueError, OverflowError, RuntimeError, MemoryError)


@dataclass(frozen=True, slots=True)
class DeferredColumns:
    """Columns of some rows that are still in the file.

    Attributes:
        columns: Columns in plain pages, from which the system copies values, by name.
        first_row: Number of the first row in the row group.
        explained: Returns the error to raise for one of `READ_ERRORS`.
        straight: Columns of numbers that kernels decode to given addresses, forward only; None: there are none.
        straight_names: Their names.
        kept: int64 ``[rows]``, the rows in the row group, if some in between are deleted; None: all from `first_row`.
    """

    columns: Mapping[str, RawColumn]
    first_row: int
    explained: Callable[[Exception], Exception]
    straight: NativeChunks | None = None
    straight_names: Sequence[str] = ()
    kept: IntArray | None = None

    def read_straight(self, rows: int, addresses: npt.NDArray[np.int64]) -> None:
        """Decode rows of the columns of `straight`.

        Args:
            rows: Number of rows.
            addresses: int64 ``[columns]``, the address of space for that many values of each; not checked.

        Raises:
            NotDecodedError: Arrow has to decode these columns from this row on.
            DataError, SourceError: see `RowGroupReader.read`.
        """
        assert self.straight is not None
        try:
            if self.kept is None:
                self.straight.read_into(self.first_row, rows, addresses)
            elif len(self.kept):
                self.straight.read_kept(self.kept, addresses)
        except NotDecodedError:
            raise
        except READ_ERRORS as error:
            raise self.explained(error) from error

    def read(self, name: str, out: npt.NDArray[np.uint8], slots: IntArray | slice) -> None:
        """Read one row for each slot of `out`, uint8 ``[n, width]``; see `RawColumn.read`.

        Raises:
            DataError, SourceError: see `RowGroupReader.read`.
        """
        try:
            if self.kept is None:
                self.columns[name].read(self.first_row, out, slots)
            elif len(self.kept):
                self.columns[name].read(int(self.kept[0]), out, _slots_of_all(self.kept, slots))
        except READ_ERRORS as error:
            raise self.explained(error) from error


@dataclass(frozen=True, slots=True)
class LazyRows:
    """Some rows of a row group that pass the filter.

    Attributes:
        table: The canonical columns that are decoded.
        rows: Number of rows, also if the table has no columns.
        deferred: The other columns.
    """

    table: pa.Table
    rows: int
    deferred: DeferredColumns

    def slice(self, first: int, rows: int) -> LazyRows:
        """Return at most `rows` rows from row `first` on."""
        rows = min(rows, self.rows - first)
        kept = None if self.deferred.kept is None else self.deferred.kept[first : first + rows]
        deferred = replace(self.deferred, first_row=self.deferred.first_row + first, kept=kept)
        return LazyRows(self.table.slice(first, rows), rows, deferred)


def _slots_of_all(kept: IntArray, slots: IntArray | slice) -> IntArray:
    """Return a slot for each row from the first that is kept to the last: a deleted row's is that of the next kept one.

    Rows are written in their order, so the kept row replaces the deleted ones.
    """
    own = np.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots
    found: IntArray = own[np.searchsorted(kept, np.arange(kept[0], kept[-1] + 1))]
    return found
