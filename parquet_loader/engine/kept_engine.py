"""The engine of an epoch whose rows a device keeps (``cache="device"``): computes windows, and reads nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from parquet_loader.common import IntArray
from parquet_loader.engine.usage import EngineFigures
from parquet_loader.engine.workers.record import EngineRecord
from parquet_loader.errors import LoaderStateError
from parquet_loader.plan import Plan
from parquet_loader.window import KeptWindow


class KeptEngine:
    """Computes the order of rows that are already on a device, with the methods of `Engine`, and without threads.

    Used by one thread at a time. Its windows have the same rows in the same order as those of an `Engine`: rows left
    over by a window come first in the next one.

    Args:
        plan: The plan of the epoch.
        first_row: int64 ``[row groups]``: the number of each row group's first row in the data set, counted after the
            filter.
        first_batch: The batch with which the epoch begins.
    """

    processes = False

    def __init__(self, plan: Plan, first_row: IntArray, first_batch: int) -> None:
        self._plan = plan
        self._first_row = first_row
        self._window, self._begun_rows = plan.beginning_of(first_batch) if first_batch else (plan.start_window, 0)
        self._carried: npt.NDArray[Any] = np.zeros(0, np.int64)
        self._is_closed = False

    def start(self) -> None:
        """Do nothing: windows are computed when they are requested."""

    def close(self) -> None:
        """End the epoch; idempotent."""
        self._is_closed = True

    def next_window(self) -> KeptWindow | None:
        """Return the next window that has rows; None at the end of the epoch.

        Raises:
            LoaderStateError: The engine was closed.
        """
        if self._is_closed:
            raise LoaderStateError("the loader was closed while a batch was awaited")
        plan = self._plan
        while self._window < plan.windows:
            index, begun, self._window = self._window, self._begun_rows, self._window + 1
            self._begun_rows = 0
            numbers = self._numbers(index)
            order = plan.order(index, begun)
            read = len(numbers) - begun - plan.left_out(index)
            rows = np.concatenate([self._carried, numbers[:read] if order is None else numbers[order[:read]]])
            delivered = len(rows)
            if index < plan.windows - 1 or plan.drop_last:
                delivered -= delivered % plan.batch_size
            self._carried = rows[delivered:]
            if delivered:
                return KeptWindow(delivered, rows[:delivered])
        return None

    def _numbers(self, index: int) -> IntArray:
        """Return the numbers in the data set of the rows that a window reads."""
        slices = self._plan.slices(index)
        starts = [self._first_row[s.row_group] + s.start for s in slices]
        ranges = [np.arange(start, start + s.rows) for start, s in zip(starts, slices, strict=True)]
        return np.concatenate([np.zeros(0, np.int64), *ranges])

    def next_batches(self) -> tuple[()]:
        """Return no batches: windows are delivered whole."""
        return ()

    def release_previous(self) -> None:
        """Do nothing: no window holds memory here."""

    def figures(self) -> EngineFigures:
        """Return no figures: nothing is read."""
        return EngineFigures.nothing()

    def record(self) -> EngineRecord:
        """Return an empty record."""
        return EngineRecord()
