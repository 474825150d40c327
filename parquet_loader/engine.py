"""The background reader: workers that read, shuffle and process ahead of the consumer, within a budget of bytes.

Order. Jobs finish in any order; windows (or batches, where each is processed) are handed over in order, and an error
takes the place of what it spoiled, so that everything before it is still delivered.

Budget. `Budget.held_bytes` is what reads in flight, decoded slices, windows, open cursors and batches hold. The window
that the consumer needs next may always go on, one read at least; whatever is behind it waits for room. So an estimate
that was too low slows reading ahead down, never changes the order, and never stops the consumer.

Hand-over. A window counts as held until the consumer has asked for the second batch of the one after it: only then has
a loop let go of its last batch, and its memory can be used again.

All state belongs to the lock of `Workers`; under it nothing is read, computed, or waited for but a change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from parquet_loader.ahead import Ahead
from parquet_loader.arena import Allocator, Arenas
from parquet_loader.building import Account, Budget, Building, ReadSlice
from parquet_loader.chunks import Copy
from parquet_loader.cursor import Cursor
from parquet_loader.dataset import Dataset
from parquet_loader.errors import LoaderStateError, ParquetLoaderError, RemoteError
from parquet_loader.making import BatchMaking
from parquet_loader.plan import Plan, Slice
from parquet_loader.process import BatchProcessor, ProcessedBatch, Transform
from parquet_loader.read import Reader
from parquet_loader.sizes import SHARE_READS, SHARE_WINDOWS, Sizing
from parquet_loader.types import IntArray
from parquet_loader.window import Assembly, Carry, Parts, Room, Window
from parquet_loader.workers import Job, Workers

# Windows being made or ready, beyond the one the consumer is in. Rows that are placed as they are decoded need their
# window's memory from the first read on, so that a second window ahead would cost much and gain little.
WINDOWS_AHEAD = 2
WIDE_WINDOWS_AHEAD = 1


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a loader's passes are read; plain values, which travel between processes.

    Attributes:
        transform: The caller's function, or None.
        seed: What the generator given to it is drawn from.
        num_threads: Number of workers.
        skips: Whether a row group that cannot be read is left out, instead of raising.
    """

    transform: Transform | None
    seed: int
    num_threads: int
    skips: bool


def open_engine(
    dataset: Dataset,
    plan: Plan,
    options: EngineOptions,
    *,
    first_batch: int,
    allocator: Allocator,
    staging: Arenas,
    is_first: bool,
) -> Engine:
    """Return the engine of one pass over a data set, in whichever process; arguments as in `Engine`."""
    columns, processor = dataset.reader.columns, None
    if BatchProcessor.is_needed(columns, options.transform):
        processor = BatchProcessor(
            columns, options.transform, options.seed, plan.epoch, plan.parts[0].number if plan.parts else 0
        )
    return Engine(
        plan,
        dataset.counts,
        dataset.reader,
        dataset.sizing,
        processor=processor,
        allocator=allocator,
        staging=staging,
        num_threads=options.num_threads,
        is_first=is_first,
        skips=options.skips,
        first_batch=first_batch,
    )


class Engine:
    """Reads one epoch in the background.

    Args:
        plan: The epoch.
        counts: int64 ``[row groups]``, rows of each that pass the filter.
        reader: Reads row groups.
        sizing: The budget.
        processor: Makes batches one by one; None: windows are handed over whole.
        allocator: Where delivered memory comes from.
        staging: Where ragged rows wait.
        num_threads: Number of workers.
        is_first: Whether memory is touched for the first time: then windows take several times as long to make, and
            the first batch waits until the second window is there too, so that no later batch has to.
        skips: Whether a row group that cannot be read is left out, instead of raising.
        first_batch: Where in the epoch to begin.
    """

    def __init__(
        self,
        plan: Plan,
        counts: IntArray,
        reader: Reader,
        sizing: Sizing,
        *,
        processor: BatchProcessor | None,
        allocator: Allocator,
        staging: Arenas,
        num_threads: int,
        is_first: bool,
        skips: bool,
        first_batch: int = 0,
    ) -> None:
        self.budget = Budget()
        self.workers = Workers(self._choose, num_threads)
        self._plan = plan
        self._counts = counts
        self._reader = reader
        self._cache_before = reader.chunks.cache_figures()
        self._sizing = sizing
        self._allocator = allocator
        self._skips = skips
        self._parts = Parts.of(reader.columns, 2 * num_threads)
        self._ahead = WIDE_WINDOWS_AHEAD if self._parts.wide else WINDOWS_AHEAD
        self._fills_first = is_first and processor is None
        capacity = plan.largest_window_rows + plan.batch_size
        ragged_bytes = {name: int(1.05 * width * capacity) for name, width in sizing.row.ragged}
        self._room = Room(capacity, ragged_bytes, staging, allocator)
        self._coming: deque[Building] = deque()
        self._handed: deque[Building] = deque()
        self._spent: deque[Building] = deque()
        self._is_awaited = False
        # The first window gives only rows of this batch and later ones, so that nothing has to be carried to it.
        self._first_window, self._begun_rows = plan.beginning_of(first_batch) if first_batch else (0, 0)
        self._admitted = self._first_window
        self._broken: set[int] = set()
        self._fetching: Ahead | None = None
        if reader.chunks.remote is not None:
            self._fetching = Ahead(reader, plan, sizing, self.budget, self.workers, self._first_window, self._broken)
            self.workers.helper = self._fetching.thread
        self._carry: Carry | None = Carry()
        self._next_to_order = self._first_window
        self._cursors: dict[tuple[int, int], Cursor] = {}
        self._busy: set[tuple[int, int]] = set()
        self._making: BatchMaking | None = None
        if processor is not None:
            self._making = BatchMaking(processor, plan.batch_size, first_batch, sizing, self.budget, allocator)

    @property
    def processes(self) -> bool:
        """Whether batches are handed over one by one, by `next_batch`, instead of windows."""
        return self._making is not None

    def start(self) -> None:
        """Start the workers."""
        if self._fetching is not None:
            self._fetching.start()
        self.workers.start()

    def close(self) -> None:
        """End the workers and let go of everything; idempotent, and safe in any thread and in a forked child."""
        if self._fetching is not None:
            self._fetching.end()
        has_ended = self.workers.close()
        if self._fetching is not None:
            self._fetching.close(wait=has_ended)
        if not has_ended:
            return
        for cursor in self._cursors.values():
            cursor.close()
        self._cursors.clear()
        self._coming.clear()
        self._handed.clear()
        self._spent.clear()
        if self._making is not None:
            self._making.clear()

    def account(self, footers_bytes: int = 0) -> Account:
        """Return what the pass has taken so far; numbers of a running pass may be a job apart from each other."""
        budget, times = self.budget, self.workers.times
        return Account(
            cpu_s={str(stage): seconds for stage, seconds in times.cpu_s.items()},
            blocked_s={str(stage): seconds for stage, seconds in times.blocked_s.items()},
            disk_bytes=times.disk_bytes,
            bytes_read=budget.bytes_read,
            row_groups=budget.row_groups,
            skipped=tuple(budget.skipped),
            held_bytes=budget.held_bytes,
            peak_bytes=budget.peak_bytes,
            footers_bytes=footers_bytes,
            cache=self._reader.chunks.cache_figures(self._cache_before),
            remote=None if self._fetching is None else replace(self._fetching.figures),
        )

    # ------------------------------------------------------------------ the consumer's side

    def next_window(self) -> Window | None:
        """Return the next window that has rows, waiting for it; None at the end of the epoch.

        Raises:
            LoaderStateError: the engine was closed meanwhile. Else whatever spoiled the window.
        """
        while True:
            with self.workers.lock:
                self._let_go(keep=1)
                self._check_open()
                if self._is_settled():
                    self._is_awaited = self._fills_first = False
                    if not self._coming:
                        return None
                    if self._coming[0].error is not None:
                        raise self._coming[0].error
                    window = self._coming[0].window
                    assert window is not None
                    self._handed.append(self._coming.popleft())
                    self.workers.notify()
                    if window.rows:
                        return window
                    continue
                if not self._is_awaited:
                    self._is_awaited = True
                    self.workers.notify()
                waker = self.workers.waker()
            waker.acquire()

    def let_go_of_previous(self) -> None:
        """Say that the consumer has let go of all batches before the current window's."""
        with self.workers.lock:
            self._let_go(keep=1)

    def next_batch(self) -> ProcessedBatch | None:
        """Return the next processed batch, waiting for it; None at the end. Raises as `next_window` does."""
        assert self._making is not None
        while True:
            with self.workers.lock:
                self._check_open()
                if (batch := self._making.take()) is not None:
                    self.workers.notify()
                    return batch
                if self._making.is_idle:
                    if not self._coming and self._admitted == self._plan.windows:
                        return None
                    if self._coming and self._coming[0].error is not None:
                        raise self._coming[0].error
                waker = self.workers.waker()
            waker.acquire()

    def _check_open(self) -> None:
        if self.workers.broken is not None:
            raise self.workers.broken
        if self.workers.is_closing:
            raise LoaderStateError("the loader was closed while a batch was awaited")

    def _is_settled(self) -> bool:
        if not self._coming:
            return self._admitted == self._plan.windows
        if self._coming[0].error is not None or self._coming[0].phase != "ready":
            return self._coming[0].error is not None
        if not self._fills_first or (len(self._coming) == 1 and self._admitted == self._plan.windows):
            return True
        return len(self._coming) > 1 and (self._coming[1].phase == "ready" or self._coming[1].error is not None)

    def _let_go(self, keep: int) -> None:
        """Let go of windows handed over, but for the last; in a worker, since giving memory back takes a while.

        Not of wide ones: they give back whole blocks, at once, and the next window waits for them.
        """
        while len(self._handed) > keep:
            spent = self._handed.popleft()
            if self._parts.wide:
                self.budget.hold(-spent.held_bytes)
            else:
                self._spent.append(spent)
            self.workers.notify()

    # ------------------------------------------------------------------ choosing what to do

    def _choose(self) -> Job | None:  # type: ignore[type-arg]
        """Return the most urgent job that may start: batches first, then windows in their order."""
        if self._spent:
            return self._let_go_job(self._spent.popleft())
        if self._making is not None:
            job = self._process_job(self._making)
            if job is not None:
                return job
        if self._admitted < self._plan.windows and len(self._coming) < max(self._ahead, 1 + self._fills_first):
            self._coming.append(self._admit())
        if self._fetching is not None:
            self._fetching.step(self._coming[0].index + self._fills_first if self._coming else self._admitted)
        owed, needs_next = 0, True
        for window in self._coming:
            if window.error is not None:
                return None
            job = self._window_job(window, owed, may_exceed=needs_next)
            if job is not None:
                return job
            if window.phase != "ready":
                owed += self._owed_bytes(window)
            needs_next = self._fills_first and window is self._coming[0]
        return None

    def _admit(self) -> Building:
        index, plan = self._admitted, self._plan
        self._admitted += 1
        slices = plan.slices(index)
        assembly = Assembly(
            self._parts,
            [s.rows for s in slices],
            0 if index == self._first_window else plan.carried_rows(index),
            plan.batch_size,
            self._room,
            deliver_rest=index == plan.windows - 1 and not plan.drop_last,
            left_out=self._begun_in(index) + plan.left_out(index),
        )
        window = Building(index, slices, assembly, waiting=list(range(len(slices))), unread=len(slices))
        for number, piece in enumerate(slices):
            if piece.row_group in self._broken:
                self._leave_out(window, number)
        return window

    def _begun_in(self, index: int) -> int:
        return self._begun_rows if index == self._first_window else 0

    def _owed_bytes(self, window: Building) -> int:
        """Return what the window will yet take: rows not decoded, and rows in their new order."""
        if window.phase in ("gather", "finish", "busy"):
            return 0
        unread = sum(window.slices[number].rows for number in window.waiting)
        rows = self._plan.window_rows(window.index) + unread
        return int(rows * self._sizing.row.gathered) + (self._arena_bytes() if window.phase == "new" else 0)

    def _arena_bytes(self) -> int:
        return self._allocator.taken_bytes(int(self._room.rows * self._sizing.row.wide))

    def _fits(self, needed: int) -> bool:
        return self.budget.held_bytes - self.budget.fetched_bytes + needed <= self._sizing.limit_bytes * (
            SHARE_WINDOWS + SHARE_READS
        )

    def _window_job(self, window: Building, owed: int, *, may_exceed: bool) -> Job | None:  # type: ignore[type-arg]
        match window.phase:
            case "new" if self._parts.wide and len(self._handed) > 1 and not self._is_awaited:
                return None  # in a moment the window before last is let go of, and its warm memory is free
            case "new" if may_exceed or self._fits(owed + self._arena_bytes()):
                return self._prepare_job(window)
            case "read" if window.waiting:
                return self._read_job(window, owed, may_exceed=may_exceed)
            case "read" if not window.unread and self._carry is not None and window.index == self._next_to_order:
                if may_exceed or self._fits(owed + window.decoded_bytes):
                    return self._order_job(window, self._carry)
            case "gather" if window.jobs:
                return self._gather_job(window, window.jobs.pop(0))
            case "finish":
                return self._finish_job(window)
        return None

    # ------------------------------------------------------------------ jobs, in the order of a window's life

    def _fail(self, window: Building) -> Callable[[BaseException], None]:
        def failed(error: BaseException) -> None:
            window.error = window.error or error

        return failed

    def _prepare_job(self, window: Building) -> Job[None]:
        window.phase = "busy"
        window.arena_bytes = self._arena_bytes()
        self.budget.hold(window.arena_bytes)

        def done(_: None) -> None:
            window.phase = "read"

        def run() -> None:
            window.assembly.prepare(self._plan.order(window.index, self._begun_in(window.index)))

        return Job("permute", run, done, self._fail(window))

    def _read_job(self, window: Building, owed: int, *, may_exceed: bool) -> Job | None:  # type: ignore[type-arg]
        sizing = self._sizing
        for number in window.waiting:
            piece = window.slices[number]
            cursor = self._cursors.get(piece.run)
            # A cursor is opened by a row group's first slice, and by any in the window with which the pass begins.
            opened_at = piece.start if window.index == self._first_window else piece.first
            if piece.run in self._busy or (cursor.position if cursor else opened_at) != piece.start:
                continue  # its cursor has not come so far yet
            if cursor is None and self._fetching is not None and not self._fetching.is_ready(piece.run):
                continue  # its bytes are still on their way
            whole = piece.rows == self._counts[piece.row_group] and piece.rows <= sizing.whole_rows
            flying = sizing.row_group_bytes(piece.rows if whole else min(piece.rows, sizing.stream_rows))
            flying += 0 if whole or cursor else sizing.cursor_bytes
            # Where nothing else is being read, the window needed next goes on whatever it takes.
            alone = may_exceed and not self._busy
            if not alone and self.budget.reading_bytes + flying > sizing.reads_bytes:
                return None
            if not may_exceed and not self._fits(owed + flying + int(piece.rows * sizing.row.gathered)):
                return None
            window.waiting.remove(number)
            return self._slice_job(window, number, flying, whole=whole)
        return None

    def _slice_job(self, window: Building, number: int, flying: int, *, whole: bool) -> Job[ReadSlice]:
        piece = window.slices[number]
        expected = int(piece.rows * self._sizing.row.gathered)
        cursor = self._cursors.pop(piece.run, None)
        # What an open cursor holds is counted from its opening to its end.
        was_open = self._sizing.cursor_bytes if cursor else 0
        self._busy.add(piece.run)
        self.budget.reading_bytes += flying
        self.budget.hold(flying + expected)
        window.decoded_bytes += expected

        fetching = self._fetching
        fetched = None if fetching is None or cursor is not None else fetching.taken(piece.run)

        def run() -> ReadSlice:
            copy = None if fetched is None else fetched()
            if not whole:
                return self._read_by_cursor(window, number, piece, cursor, copy)
            table, read_bytes = self._reader.read(piece.row_group, copy)
            return ReadSlice(window.assembly.place(number, 0, table, len(table)), read_bytes, None)

        def landed(kept: int, left_open: Cursor | None) -> None:
            self._busy.discard(piece.run)
            stays = 0
            if left_open is not None:
                self._cursors[piece.run] = left_open
                stays = self._sizing.cursor_bytes
            elif fetching is not None:
                fetching.let_go(piece.run)
            self.budget.reading_bytes -= flying
            self.budget.hold(stays - was_open - flying + kept - expected)
            window.decoded_bytes += kept - expected

        def done(read: ReadSlice) -> None:
            landed(read.kept_bytes, read.left_open)
            self.budget.bytes_read += read.read_bytes
            self.budget.row_groups += piece.stop == piece.last
            window.unread -= 1

        def failed(error: BaseException) -> None:
            landed(0, None)
            if self._skips and isinstance(error, ParquetLoaderError) and not isinstance(error, RemoteError):
                self._break(piece.row_group, str(error))
                self._leave_out(window, number)
            else:
                self._fail(window)(error)

        return Job("read", run, done, failed)

    def _read_by_cursor(
        self, window: Building, number: int, piece: Slice, cursor: Cursor | None, copy: Copy
    ) -> ReadSlice:
        """Read a slice of a row group that is held open; the cursor is this job's alone meanwhile.

        Parquet pages say how many rows they hold only when they are read: rows before the first are decoded, too.
        """
        read_bytes = self._reader.chunks.encoded_bytes(piece.row_group) if cursor is None else 0
        cursor = cursor or Cursor(self._reader, piece.row_group, self._sizing.stream_rows, copy)
        kept, at_row = 0, 0
        try:
            while cursor.position < piece.start and not self.workers.is_closing:
                cursor.take(piece.start - cursor.position)
            while at_row < piece.rows and not self.workers.is_closing:
                some = cursor.take(piece.rows - at_row)
                kept += window.assembly.place(number, at_row, some.table, some.rows, some.raw)
                at_row += some.rows
            if piece.stop == piece.last and not self.workers.is_closing:
                if piece.stop == self._counts[piece.row_group]:
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
        self.budget.skipped.append((row_group, reason))
        for window in self._coming:
            for number in [n for n in window.waiting if window.slices[n].row_group == row_group]:
                self._leave_out(window, number)

    def _leave_out(self, window: Building, number: int) -> None:
        if number in window.waiting:
            window.waiting.remove(number)
        if self._fetching is not None:
            self._fetching.let_go(window.slices[number].run)
        window.assembly.leave_out(number)
        window.unread -= 1

    def _order_job(self, window: Building, carry: Carry) -> Job[None]:
        self._carry = None
        self._next_to_order += 1
        window.phase = "busy"
        window.gathered_bytes = self._allocator.taken_bytes(window.decoded_bytes)
        self.budget.hold(window.gathered_bytes)

        def done(_: None) -> None:
            window.jobs = list(range(self._parts.jobs))
            window.ungathered = len(window.jobs)
            window.phase = "gather" if window.jobs else "finish"

        return Job("gather", lambda: window.assembly.begin_gathering(carry), done, self._fail(window))

    def _gather_job(self, window: Building, part: int) -> Job[None]:
        def done(_: None) -> None:
            window.ungathered -= 1
            if not window.ungathered:
                window.phase = "finish"

        return Job("gather", lambda: window.assembly.gather(part), done, self._fail(window))

    def _finish_job(self, window: Building) -> Job[tuple[Window, Carry]]:
        window.phase = "busy"

        def done(outcome: tuple[Window, Carry]) -> None:
            window.window, self._carry = outcome
            window.phase = "ready"
            self.budget.hold(-window.decoded_bytes)
            window.decoded_bytes = 0
            window.unprocessed = -(-window.window.rows // self._plan.batch_size)

        return Job("gather", window.assembly.finish, done, self._fail(window))

    def _let_go_job(self, spent: Building) -> Job[None]:
        def run() -> None:
            spent.window = None

        def done(_: None) -> None:
            self.budget.hold(-spent.held_bytes)

        return Job("gather", run, done, self._fail(spent))

    def _process_job(self, making: BatchMaking) -> Job[ProcessedBatch] | None:
        while self._coming and self._coming[0].window is not None and not self._coming[0].window.rows:
            self.budget.hold(-self._coming.popleft().held_bytes)
            self.workers.notify()
        if not self._coming or self._coming[0].window is None:
            return None
        return making.job(self._coming[0], self._coming.popleft)
