"""Schedules reads: which slice of a row group is read next, and how much memory an open row group holds.

The engine's lock guards all state.
"""

from __future__ import annotations

from collections.abc import Collection

from parquet_loader.common import IntArray, uninterrupted
from parquet_loader.dataset import MemoryBudget
from parquet_loader.decode import NotDecodedError
from parquet_loader.engine.budget import Budget
from parquet_loader.engine.prefetch import Prefetcher
from parquet_loader.engine.window_task import ReadSlice, WindowTask
from parquet_loader.engine.worker_pool import Job, WorkerPool
from parquet_loader.errors import is_skippable
from parquet_loader.plan import Plan
from parquet_loader.read import ChunkLocation, Cursor, RowGroupReader
from parquet_loader.source import RemoteFigures, RowGroupRef


class ReadScheduler:
    """The reads of one epoch, whole row groups or slices by cursors held open, and what is fetched ahead for them.

    Args:
        reader: Reads row groups.
        plan: The epoch.
        counts: int64 ``[row groups]``, rows of each that pass the filter.
        sizing: The budget's division.
        budget: What reads are counted in.
        workers: Whose lock this belongs to.
        coming: The windows under way; the engine's own.
        first_window: Where the epoch begins.
        skips: Whether a row group that cannot be read is left out, instead of raising.
    """

    def __init__(
        self,
        reader: RowGroupReader,
        plan: Plan,
        counts: IntArray,
        sizing: MemoryBudget,
        budget: Budget,
        workers: WorkerPool,
        coming: Collection[WindowTask],
        *,
        first_window: int,
        skips: bool,
    ) -> None:
        self._reader = reader
        self._counts = counts
        self._sizing = sizing
        self._budget = budget
        self._workers = workers
        self._coming = coming
        self._first_window = first_window
        self._skips = skips
        self._broken: set[int] = set()
        self._cursors: dict[tuple[int, int], Cursor] = {}
        self._busy: set[tuple[int, int]] = set()
        self._fetching: Prefetcher | None = None
        if reader.chunks.remote is not None:
            self._fetching = Prefetcher(reader, plan, sizing, budget, workers, first_window, self._broken)
            workers.helper = self._fetching.thread

    @property
    def remote_figures(self) -> RemoteFigures | None:
        """What fetching took so far; None if files are local."""
        return None if self._fetching is None else self._fetching.figures

    def start(self) -> None:
        """Start the fetching thread, if there is one, and ask for the first bytes; without the lock."""
        if self._fetching is not None:
            self._fetching.start()
            uninterrupted(self._begin)  # before workers compete for the GIL

    def _begin(self) -> None:
        with self._workers.lock:
            self.step(self._first_window)

    def stop(self) -> None:
        """Let nobody wait for a store any more; with or without the lock."""
        if self._fetching is not None:
            self._fetching.stop()

    def close(self, *, workers_have_ended: bool) -> None:
        """End the fetching thread, and close what is open if no worker uses it; without the lock."""
        if self._fetching is not None:
            self._fetching.close(wait=workers_have_ended)
        if workers_have_ended:
            for cursor in self._cursors.values():
                cursor.close()
            self._cursors.clear()

    def step(self, needed_window: int) -> None:
        """Begin to fetch what there is space for, above all for the window needed next."""
        if self._fetching is not None:
            self._fetching.step(needed_window)

    def leave_out_broken(self, window: WindowTask) -> None:
        """Leave out of a new window what could not be read before."""
        for number, slice_ in enumerate(window.slices):
            if slice_.row_group in self._broken:
                self._leave_out(window, number)

    def job(self, window: WindowTask, owed: int, *, may_exceed: bool) -> Job[ReadSlice] | None:
        """Return the next read for a window, or None if none may start.

        Args:
            window: The window.
            owed: Bytes that windows before it will yet take.
            may_exceed: Whether it is needed next, so that one read may always start.
        """
        sizing = self._sizing
        for number in window.waiting:
            slice_ = window.slices[number]
            cursor = self._cursors.get(slice_.run)
            # A cursor is opened by a row group's first slice, and by any in the window with which the epoch begins.
            opened_at = slice_.start if window.index == self._first_window else slice_.first
            if slice_.run in self._busy or (cursor.position if cursor else opened_at) != slice_.start:
                continue  # its cursor has not come so far yet
            if cursor is None and self._fetching is not None and not self._fetching.is_ready(slice_.run):
                continue  # its bytes are still on their way
            whole = slice_.rows == self._counts[slice_.row_group] and slice_.rows <= sizing.whole_rows
            whole = whole and not (self._fetching is not None and self._fetching.is_streamed(slice_.run))
            flying = sizing.row_group_bytes(slice_.rows if whole else min(slice_.rows, sizing.stream_rows))
            flying += 0 if whole or cursor else sizing.cursor_bytes
            # If nothing else is being read, the window needed next goes on whatever it takes.
            alone = may_exceed and not self._busy
            if not alone and self._budget.reading_bytes + flying > sizing.reads_bytes:
                return None
            if not may_exceed and not self._budget.fits(owed + flying + int(slice_.rows * sizing.row.gathered)):
                return None
            window.waiting.remove(number)
            return self._slice_job(window, number, flying, whole=whole)
        return None

    def _slice_job(self, window: WindowTask, number: int, flying: int, *, whole: bool) -> Job[ReadSlice]:
        slice_ = window.slices[number]
        expected = int(slice_.rows * self._sizing.row.gathered)
        cursor = self._cursors.pop(slice_.run, None)
        # What an open cursor holds is counted from its opening to its end.
        was_open = self._sizing.cursor_bytes if cursor else 0
        self._busy.add(slice_.run)
        self._budget.reading_bytes += flying
        self._budget.reserve(flying + expected)
        window.decoded_bytes += expected

        row_group = self._reader.snapshot.row_group(slice_.row_group)
        fetching = self._fetching
        fetched = None if fetching is None or cursor is not None else fetching.taken(slice_.run)

        def run() -> ReadSlice:
            location = None if fetched is None else fetched()
            return self._read_by_cursor(window, number, row_group, cursor, location, whole=whole)

        def landed(kept: int, left_open: Cursor | None) -> None:
            self._busy.discard(slice_.run)
            stays = 0
            if left_open is not None:
                self._cursors[slice_.run] = left_open
                stays = self._sizing.cursor_bytes
            elif fetching is not None:
                fetching.release(slice_.run)
            self._budget.reading_bytes -= flying
            self._budget.reserve(stays - was_open - flying + kept - expected)
            window.decoded_bytes += kept - expected

        def done(read: ReadSlice) -> None:
            landed(read.kept_bytes, read.left_open)
            self._budget.bytes_read += read.read_bytes
            self._budget.row_groups += slice_.stop == slice_.last
            window.unread -= 1

        def failed(error: BaseException) -> None:
            landed(0, None)
            if self._skips and is_skippable(error):
                self._break(slice_.row_group, str(error).split("\n")[0])
                self._leave_out(window, number)
            else:
                window.fail(error)

        return Job("read", run, done, failed)

    def _read_by_cursor(
        self,
        window: WindowTask,
        number: int,
        row_group: RowGroupRef,
        cursor: Cursor | None,
        location: ChunkLocation | None,
        *,
        whole: bool,
    ) -> ReadSlice:
        """Read a slice of a row group that is held open; the cursor is this job's alone meanwhile.

        Parquet pages say how many rows they hold only when they are read: rows before the first are decoded, too.
        """
        slice_ = window.slices[number]
        read_bytes = self._reader.chunks.encoded_bytes(row_group) if cursor is None else 0
        rows_at_once = slice_.rows if whole else self._sizing.stream_rows
        cursor = cursor or Cursor(self._reader, row_group, rows_at_once, location)
        kept, at_row = 0, 0
        try:
            while cursor.position < slice_.start and not self._workers.is_closing:
                cursor.next(slice_.start - cursor.position)
            while at_row < slice_.rows and not self._workers.is_closing:
                some = cursor.next(slice_.rows - at_row)
                try:
                    kept += window.assembly.write_rows(number, at_row, some.table, some.rows, some.raw)
                except NotDecodedError:  # once: from here on Arrow decodes the row group
                    cursor.close()
                    cursor = Cursor(self._reader, row_group, rows_at_once, location, straight=False)
                    while cursor.position < slice_.start + at_row and not self._workers.is_closing:
                        cursor.next(slice_.start + at_row - cursor.position)
                    continue
                at_row += some.rows
            if slice_.stop == slice_.last and not self._workers.is_closing:
                if slice_.stop == self._counts[slice_.row_group]:
                    cursor.finish()
                cursor.close()
                return ReadSlice(kept, read_bytes, None)
        except BaseException:
            cursor.close()
            raise
        return ReadSlice(kept, read_bytes, cursor)

    def _break(self, row_group: int, reason: str) -> None:
        """Leave out what is still to come of a row group."""
        self._broken.add(row_group)
        self._budget.skipped.append((row_group, reason))
        for window in self._coming:
            for number in [n for n in window.waiting if window.slices[n].row_group == row_group]:
                self._leave_out(window, number)

    def _leave_out(self, window: WindowTask, number: int) -> None:
        if number in window.waiting:
            window.waiting.remove(number)
        if self._fetching is not None:
            self._fetching.release(window.slices[number].run)
        window.assembly.leave_out(number)
        window.unread -= 1
