"""Keeps the rows of a data set on a device, so that later epochs read them there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from parquet_loader.common import IntArray
from parquet_loader.decode import Column
from parquet_loader.errors import ConfigurationError
from parquet_loader.plan import Plan
from parquet_loader.window import BlockColumn, ColumnGroups, StoredSlice


class KeptRows:
    """The rows of a data set that are on a device; row n of the data set, counted after the filter, is row n here.

    The first window allocates the memory. It is written and read on the stream that uploads windows. A row counts as
    present when the copies of all its columns are queued.

    Args:
        device: The device.
        counts: int64 ``[row groups]``: rows of each row group that pass the filter.
        columns: The columns, all of fixed width.

    Attributes:
        first_row: int64 ``[row groups]``: the number of each row group's first row.
        nbytes: Bytes of all rows.
    """

    def __init__(self, device: torch.device, counts: IntArray, columns: Sequence[Column]) -> None:
        ends = np.cumsum(counts, dtype=np.int64)
        self.first_row: IntArray = ends - counts
        self._device = device
        self._counts = counts
        self._rows = int(ends[-1]) if len(ends) else 0
        self._widths = {column.name: column.row_bytes or 0 for column in columns}
        self.nbytes = self._rows * sum(self._widths.values())
        self._memory: dict[str, torch.Tensor] = {}
        self._has = np.zeros(self._rows, np.bool_)
        self._absent = self._rows
        self.columns: dict[str, BlockColumn] = {}

    def allocate(self, columns: Sequence[BlockColumn], names: Sequence[str]) -> None:
        """Allocate the memory of all rows, unless it is allocated.

        Raises:
            torch.OutOfMemoryError: The device has not enough memory.
        """
        if self._memory:
            return
        by_name = {c.name: BlockColumn(c.name, c.dtype, c.shape, 0, self._rows * self._widths[c.name]) for c in columns}
        with torch.inference_mode(False):  # else later epochs, in another mode, could not write to it
            memory = {c.name: torch.empty(c.nbytes, dtype=torch.uint8, device=self._device) for c in by_name.values()}
        self._memory, self.columns = memory, {name: by_name[name] for name in names}

    def put(self, column: BlockColumn, rows: torch.Tensor, slices: Sequence[StoredSlice]) -> None:
        """Keep rows of a column, uint8 ``[slots * width]``; call `complete` after all columns are put."""
        width, memory = self._widths[column.name], self._memory[column.name]
        for row_group, start, count, slot in slices:
            first = (int(self.first_row[row_group]) + start) * width
            memory[first : first + count * width].copy_(rows[slot * width : (slot + count) * width])

    def complete(self, slices: Sequence[StoredSlice]) -> int:
        """Count these rows as present, after all of their columns are put; return the number of rows present."""
        for row_group, start, count, _ in slices:
            first = int(self.first_row[row_group]) + start
            rows = self._has[first : first + count]
            self._absent -= count - int(np.count_nonzero(rows))
            rows[:] = True
        return self._rows - self._absent

    def has(self, plan: Plan) -> bool:
        """Whether all rows of an epoch are present."""
        if not self._absent:
            return True
        first = self.first_row
        return all(
            self._has[first[s.row_group] + s.start : first[s.row_group] + s.stop].all()
            for window in range(plan.start_window, plan.windows)
            for s in plan.slices(window)
        )

    def is_of(self, counts: IntArray) -> bool:
        """Whether the rows are those of a data set with these row groups."""
        return np.array_equal(counts, self._counts)

    def rows_of(self, name: str) -> Any:
        """Return the memory of a column, uint8 ``[rows * width]``."""
        return self._memory[name]

    @property
    def rows(self) -> int:
        """Rows of the data set."""
        return self._rows


def check_kept(columns: Sequence[Column]) -> None:
    """Raise `ConfigurationError` if rows of such columns cannot be kept."""
    found = {column.name for column in ColumnGroups.from_columns(columns, 1, device_permutes=True).stored}
    others = [column for column in columns if column.name not in found]
    if others:
        names = ", ".join(repr(column.name) for column in others[:5])
        needs_kernels = any(column.row_bytes is not None for column in others)
        raise ConfigurationError(
            f"cache='device': the rows of {names} cannot stay on the device, because "
            + ("this installation has no kernels" if needs_kernels else "they differ in length")
            + "; leave these columns out with columns=[...], or leave cache out"
        )
