"""Rows between a row group and a window: decoded columns, and columns that are still in the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import IntArray
from parquet_loader.decode import NativeChunks, NotDecodedError, RawColumn

# What reading a damaged file, or one that is not there, raises.
READ_ERRORS = (pa.ArrowException, OSError, ValueError, OverflowError, RuntimeError, MemoryError)


@dataclass(frozen=True, slots=True)
class DeferredColumns:
    """Rows of columns that still are in the file.

    Attributes:
        columns: By name in the batch.
        first_row: Row of the row group that the first is.
        explained: Says what is wrong with the file.
        straight: Columns of numbers that are decoded straight to where they wait, forward only; None: there are none.
    """

    columns: Mapping[str, RawColumn]
    first_row: int
    explained: Callable[[Exception], Exception]
    straight: NativeChunks | None = None

    def read_straight(self, rows: int, addresses: npt.NDArray[np.int64]) -> None:
        """Decode rows of the columns of `straight`, each to its address. Raises as `RowGroupReader.read`, too.

        Raises:
            NotDecodedError: these columns are Arrow's to decode, from this row on.
        """
        assert self.straight is not None
        try:
            self.straight.read_into(self.first_row, rows, addresses)
        except NotDecodedError:
            raise
        except READ_ERRORS as error:
            raise self.explained(error) from error

    def read(self, name: str, out: npt.NDArray[np.uint8], slots: IntArray | slice) -> None:
        """Read one row for each slot of `out`; see `RawColumn.read`. Raises as `RowGroupReader.read`."""
        try:
            self.columns[name].read(self.first_row, out, slots)
        except READ_ERRORS as error:
            raise self.explained(error) from error


@dataclass(frozen=True, slots=True)
class LazyRows:
    """Some rows of a row group that pass the filter.

    Attributes:
        table: Canonical columns that are decoded.
        rows: How many; a table without columns does not tell.
        raw: The other columns.
    """

    table: pa.Table
    rows: int
    raw: DeferredColumns

    def slice(self, first: int, rows: int) -> LazyRows:
        """Return `rows` rows, or those that there are, from row `first` on."""
        rows = min(rows, self.rows - first)
        return LazyRows(self.table.slice(first, rows), rows, replace(self.raw, first_row=self.raw.first_row + first))
