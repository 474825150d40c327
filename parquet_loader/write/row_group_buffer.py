"""Joins the rows of batches and cuts them into row groups of even size."""

from __future__ import annotations

from collections import deque

import pyarrow as pa


class RowGroupBuffer:
    """Rows that are not written yet. Used by one thread at a time.

    Args:
        goal_bytes: Decoded size of a row group.
        slack: The share by which a row group may exceed this size if it then ends with a batch, which saves a copy of
            the batch's remaining rows.

    Attributes:
        rows: Number of rows in the buffer.
    """

    def __init__(self, goal_bytes: int, slack: float = 0.0) -> None:
        self.rows = 0
        self._slack_bytes = int(slack * goal_bytes)
        self._goal_bytes = goal_bytes
        self._full: deque[pa.Table] = deque()
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._owned_full = 0
        self._owned_waiting = 0

    def add(self, table: pa.Table) -> None:
        """Add rows in the stored form; they are not copied before `own`."""
        self.rows += table.num_rows
        while table.num_rows:
            row_bytes = max(1.0, table.nbytes / table.num_rows)
            free = self._goal_bytes - self._waiting_bytes
            rows = max(0 if self._waiting else 1, int(free / row_bytes))
            if table.nbytes <= free + self._slack_bytes:
                rows = table.num_rows
            head, table = table.slice(0, rows), table.slice(rows)
            if head.num_rows:
                self._waiting.append(head)
                self._waiting_bytes += head.nbytes
            if table.num_rows or self._waiting_bytes >= self._goal_bytes:
                self._join()

    def peek(self, *, last: bool) -> pa.Table | None:
        """Return the rows of the next full row group, or None; with `last`, also of one that is not full."""
        if not self._full and self._waiting and last:
            self._join()
        return self._full[0] if self._full else None

    def pop(self) -> None:
        """Release the row group that `peek` returned."""
        self.rows -= self._full.popleft().num_rows
        self._owned_full = max(0, self._owned_full - 1)

    def own(self) -> None:
        """Copy the rows that are still in the caller's memory, so that the caller may change or free it."""
        for number in range(self._owned_full, len(self._full)):
            self._full[number] = owned(self._full[number])
        self._owned_full = len(self._full)
        self._waiting[self._owned_waiting :] = [owned(table) for table in self._waiting[self._owned_waiting :]]
        self._owned_waiting = len(self._waiting)

    def clear(self) -> None:
        """Release all rows."""
        self._full.clear()
        self.rows = self._owned_full = 0
        self._forget_waiting()

    def _join(self) -> None:
        self._full.append(pa.concat_tables(self._waiting))
        self._forget_waiting()

    def _forget_waiting(self) -> None:
        self._waiting, self._waiting_bytes, self._owned_waiting = [], 0, 0


def owned(table: pa.Table) -> pa.Table:
    """Return a copy in memory of its own that holds only the table's rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()
