"""Schedules reads: in which order, and within which memory.

With ``on_error="skip"`` it leaves out damaged row groups; `errors.is_skippable` decides which errors are skipped.

The engine's lock guards all state.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from itertools import count, islice
from typing import Any, NamedTuple

from parquet_loader.common import uninterrupted
from parquet_loader.dataset import Dataset
from parquet_loader.decode import NotDecodedError
from parquet_loader.engine.prefetch import Prefetcher
from parquet_loader.engine.usage import Usage
from parquet_loader.engine.window_task import WindowTask
from parquet_loader.engine.workers.epoch_workers import EpochWorkers, Job
from parquet_loader.errors import ParquetLoaderError, is_skippable
from parquet_loader.plan import Plan, RowGroupSlice
from parquet_loader.read import ColumnSelection, Cursor
from parquet_loader.source import RemoteFigures

# Small row groups are read together, about this many bytes of rows at a time, because the Python code of a read takes
# as long as it takes to decode 300 KB. Measured: 1.3 times the rate of single reads with 10,000 rows of 40 bytes, 2.3
# times with 1,000 texts of 300 bytes. With twice as many bytes, no faster.
TOGETHER_BYTES = 2**21
# Less if there would be too few reads for all threads, but at least this.
LEAST_TOGETHER_BYTES = 2**18
# The most column chunks of row groups that are read together. Each takes about 1 KB until all of them are read.
TOGETHER_CHUNKS = 4096


class JointlyRead(NamedTuple):
    """What a job has read of several row groups.

    Attributes:
        row_groups: How many of them, from the first one on.
        kept_bytes: The bytes that are kept for their rows.
        stored_bytes: The bytes of their column chunks in the files.
        apart: Indices in the snapshot of those that have to be read by themselves.
    """

    row_groups: int = 0
    kept_bytes: int = 0
    stored_bytes: int = 0
    apart: Sequence[int] = ()


class ReadScheduler:
    """The reads of one epoch: one job for each slice of a row group, or for several row groups that are small.

    Cursors stay open between slices.

    Args:
        dataset: The data set.
        plan: The epoch.
        usage: The counters of the epoch, to which reads are added.
        workers: The workers, whose lock guards all state here.
        windows: The windows in progress; shared with the engine, which changes them.
        first_window: The window with which the epoch begins.
        skips: Whether a row group that cannot be read is skipped; if not, its error is raised.
    """

    def __init__(
        self,
        dataset: Dataset,
        plan: Plan,
        usage: Usage,
        workers: EpochWorkers,
        windows: Collection[WindowTask],
        *,
        first_window: int,
        skips: bool,
    ) -> None:
        self._reader, self._counts, self._sizing = dataset.reader, dataset.counts, dataset.sizing
        self._usage = usage
        self._workers = workers
        self._windows = windows
        self._first_window = first_window
        self._skips = skips
        self._broken: set[int] = set()
        self._apart: set[int] = set()  # row groups that cannot be read together with others
        self._cursors: dict[tuple[int, int], Cursor] = {}
        self._busy: set[tuple[int, int]] = set()
        self._prefetcher: Prefetcher | None = None
        if dataset.reader.chunks.remote is not None:
            self._prefetcher = Prefetcher(dataset, plan, usage, workers, first_window, self._broken)

    @property
    def remote_figures(self) -> RemoteFigures | None:
        """Figures of remote reads so far; None if files are local."""
        return None if self._prefetcher is None else self._prefetcher.figures

    def start(self, *, only_first: bool = False) -> None:
        """Start the prefetcher, if there is one, and its first requests; called without the lock.

        Args:
            only_first: Whether to fetch only the first window until `fetch_all` is called.
        """
        if self._prefetcher is not None:
            self._prefetcher.only_first = only_first
            self._prefetcher.start()
            uninterrupted(self._begin)  # before workers compete for the GIL

    def _begin(self) -> None:
        with self._workers.lock:
            self.step(self._first_window)

    def fetch_all(self) -> None:
        """Fetch later windows too; called with the lock."""
        if self._prefetcher is not None:
            self._prefetcher.only_first = False

    def stop(self) -> None:
        """Cancel all requests, so that no job waits for a store; called with or without the lock."""
        if self._prefetcher is not None:
            self._prefetcher.stop()

    def close(self, *, workers_have_ended: bool) -> None:
        """Stop the prefetcher, and close cursors if no worker uses them; called without the lock."""
        if self._prefetcher is not None:
            self._prefetcher.close(wait=workers_have_ended)
        if workers_have_ended:
            for run in tuple(self._cursors):
                cursor = self._cursors.pop(run, None)
                if cursor is not None:  # another thread may be closing the epoch too
                    cursor.close()

    def step(self, needed_window: int) -> None:
        """Start the prefetches that fit, if files are remote; see `Prefetcher.step`."""
        if self._prefetcher is not None:
            self._prefetcher.step(needed_window)

    def leave_out_broken(self, window: WindowTask) -> None:
        """Leave out of a new window the row groups that could not be read earlier."""
        for number, slice_ in enumerate(window.slices):
            if slice_.row_group in self._broken:
                self._leave_out(window, number)

    def job(self, window: WindowTask, owed: int, *, may_exceed: bool) -> Job[Any] | None:
        """Return the next read for a window, or None if none may start.

        Args:
            window: The window.
            owed: Bytes that earlier windows have yet to reserve.
            may_exceed: Whether the window is needed next; then one read may always start.
        """
        sizing = self._sizing
        for number in window.waiting:
            slice_ = window.slices[number]
            cursor = self._cursors.get(slice_.run)
            # A cursor is opened by a row group's first slice, and by any slice of the epoch's first window.
            opened_at = slice_.start if window.index == self._first_window else slice_.first
            if slice_.run in self._busy or (cursor.position if cursor else opened_at) != slice_.start:
                continue  # an earlier slice is not read yet
            if cursor is None and self._prefetcher is not None and not self._prefetcher.is_ready(slice_.run):
                continue  # its bytes are still being fetched
            whole = slice_.rows == self._counts[slice_.row_group] and slice_.rows <= sizing.whole_rows
            whole = whole and not (self._prefetcher is not None and self._prefetcher.is_streamed(slice_.run))
            read_bytes = sizing.row_group_bytes(slice_.rows if whole else min(slice_.rows, sizing.stream_rows))
            read_bytes += 0 if whole or cursor else sizing.cursor_bytes
            # If nothing else is being read, the window needed next may exceed the limit.
            alone = may_exceed and not self._busy
            if not alone and self._usage.reading_bytes + read_bytes > sizing.reads_bytes:
                return None
            if not may_exceed and not self._usage.fits(owed + read_bytes + int(slice_.rows * sizing.row.gathered)):
                return None
            selection = self._reader.joint_selection(slice_.row_group) if whole and cursor is None else None
            numbers = [number] if selection is None else self._alike(window, number, owed, selection)
            begin = window.waiting.index(number)
            del window.waiting[begin : begin + len(numbers)]
            if selection is None or len(numbers) == 1:
                return self._slice_job(window, number, read_bytes, whole=whole)
            return self._joint_job(window, numbers, selection)
        return None

    def _alike(self, window: WindowTask, first: int, owed: int, selection: ColumnSelection) -> list[int]:
        """Return the numbers of consecutive slices, from the first one on, that are small row groups of one selection.

        Args:
            window: The window.
            first: A slice that may be read now, and is a whole row group.
            owed: As in `job`.
            selection: The `RowGroupReader.joint_selection` of its row group.
        """
        sizing, found = self._sizing, list[int]()
        expected = read_bytes = 0
        share = len(window.waiting) // sizing.num_threads
        begin, most = window.waiting.index(first), max(1, TOGETHER_CHUNKS // len(selection.columns))
        for number, next_one in zip(islice(window.waiting, begin, begin + most), count(first), strict=False):
            slice_ = window.slices[number]
            is_whole = slice_.rows == self._counts[slice_.row_group] and slice_.rows <= sizing.whole_rows
            is_new = slice_.run not in self._busy and slice_.run not in self._cursors
            if number != next_one or not is_whole or not is_new or slice_.row_group in self._apart:
                break
            expected += int(slice_.rows * sizing.row.gathered)
            read_bytes += sizing.row_group_bytes(slice_.rows)
            if expected > (TOGETHER_BYTES if len(found) < share else LEAST_TOGETHER_BYTES):
                break
            if self._usage.reading_bytes + read_bytes > sizing.reads_bytes:
                break
            if not self._usage.fits(owed + read_bytes + expected):
                break
            if self._reader.joint_selection(slice_.row_group) is not selection:
                break
            found.append(number)
        return found or [first]

    def _joint_job(self, window: WindowTask, numbers: list[int], selection: ColumnSelection) -> Job[JointlyRead]:
        """Return the job that reads consecutive slices together, each a whole row group."""
        slices = [window.slices[number] for number in numbers]
        expected = sum(int(slice_.rows * self._sizing.row.gathered) for slice_ in slices)
        read_bytes = sum(self._sizing.row_group_bytes(slice_.rows) for slice_ in slices)
        row_groups = [slice_.row_group for slice_ in slices]
        runs = [slice_.run for slice_ in slices]
        self._busy.update(runs)
        self._usage.reading_bytes += read_bytes
        self._usage.reserve(read_bytes + expected)
        window.decoded_bytes += expected

        def run() -> JointlyRead:
            with self._reader.joint_rows(row_groups, selection) as found:
                if found.rows is None:
                    return JointlyRead(apart=found.apart)
                kept_bytes = window.assembly.write_rows(numbers[0], 0, found.rows, 0, found.rows.rows)
                return JointlyRead(found.row_groups, kept_bytes, found.rows.stored_bytes, found.apart)

        def done(read: JointlyRead) -> None:
            self._busy.difference_update(runs)
            self._usage.reading_bytes -= read_bytes
            self._usage.reserve(read.kept_bytes - expected - read_bytes)
            window.decoded_bytes += read.kept_bytes - expected
            self._usage.bytes_read += read.stored_bytes
            self._usage.row_groups += read.row_groups
            window.unread -= read.row_groups
            self._apart.update(read.apart)
            if read.row_groups < len(numbers):
                window.waiting = sorted([*window.waiting, *numbers[read.row_groups :]])

        def failed(error: BaseException) -> None:
            # Read the row groups one by one, which shows which of them is damaged, if any is.
            done(JointlyRead(apart=row_groups))
            # After other errors, such as MemoryError, space for rows may be reserved that nobody writes to.
            if not isinstance(error, NotDecodedError | ParquetLoaderError):
                window.fail(error)

        return Job("read", run, done, failed)

    def _slice_job(self, window: WindowTask, number: int, read_bytes: int, *, whole: bool) -> Job[int]:
        slice_ = window.slices[number]
        expected = int(slice_.rows * self._sizing.row.gathered)
        open_cursor = self._cursors.pop(slice_.run, None)
        # The bytes of an open cursor are reserved from its first slice to its last.
        cursor_bytes_before = self._sizing.cursor_bytes if open_cursor else 0
        self._busy.add(slice_.run)
        self._usage.reading_bytes += read_bytes
        self._usage.reserve(read_bytes + expected)
        window.decoded_bytes += expected

        # The cursor belongs to this job until it is done.
        prefetcher = self._prefetcher
        cursor = open_cursor or self._new_cursor(slice_, whole=whole)
        fetched = None if prefetcher is None or open_cursor is not None else prefetcher.fetched(slice_.run)
        write = partial(window.assembly.write_rows, number)
        is_last = slice_.stop == slice_.last

        def run() -> int:
            if fetched is not None:
                cursor.location = fetched()
            return cursor.read_slice(slice_.start, slice_.stop, write, self._workers, is_last=is_last)

        def release(kept_bytes: int) -> None:
            self._busy.discard(slice_.run)
            cursor_bytes_after = 0
            if not cursor.is_closed:
                self._cursors[slice_.run] = cursor
                cursor_bytes_after = self._sizing.cursor_bytes
            elif prefetcher is not None:
                prefetcher.release(slice_.run)
            self._usage.reading_bytes -= read_bytes
            self._usage.reserve(cursor_bytes_after - cursor_bytes_before - read_bytes + kept_bytes - expected)
            window.decoded_bytes += kept_bytes - expected

        def done(kept_bytes: int) -> None:
            release(kept_bytes)
            self._usage.bytes_read += cursor.stored_bytes if open_cursor is None else 0
            self._usage.row_groups += is_last
            window.unread -= 1

        def failed(error: BaseException) -> None:
            cursor.close()
            release(0)
            if self._skips and is_skippable(error):
                self._skip(slice_.row_group, str(error).split("\n")[0])
                self._leave_out(window, number)
            else:
                window.fail(error)

        return Job("read", run, done, failed)

    def _new_cursor(self, slice_: RowGroupSlice, *, whole: bool) -> Cursor:
        row_group = self._reader.snapshot.row_group(slice_.row_group)
        batch_rows = row_group.rows if whole else self._sizing.stream_rows
        is_whole = slice_.rows == row_group.rows
        return Cursor(self._reader, row_group, int(self._counts[slice_.row_group]), batch_rows, is_whole=is_whole)

    def _skip(self, row_group: int, reason: str) -> None:
        """Leave out the slices of a row group that are not read yet."""
        self._broken.add(row_group)
        self._usage.skipped.append((row_group, reason))
        for window in self._windows:
            for number in [n for n in window.waiting if window.slices[n].row_group == row_group]:
                self._leave_out(window, number)

    def _leave_out(self, window: WindowTask, number: int) -> None:
        if number in window.waiting:
            window.waiting.remove(number)
        if self._prefetcher is not None:
            self._prefetcher.release(window.slices[number].run)
        window.assembly.leave_out(number)
        window.unread -= 1
