"""Divides `memory_limit`, and derives the size of a window.

The limit is divided once, into fixed shares that do not depend on the number of threads, so that the window (and with
it the order) is the same on every machine:

    windows         the delivered window, the next one's decoded rows, and its ordered rows; and open cursors, if a
                    window takes slices of several large row groups
    reads           row groups being decoded, their buffers and pages; and the rest of the share of windows
    batches         batches in image decoding or `transform`
    fetched         fetched bytes of remote files that are not decoded yet, and requests in flight
    rest            footers, open decoders of videos, and free memory of allocators: measured, the process takes up to
                    1.8 times the bytes in use, because Arrow's pool and malloc keep memory that one thread allocated
                    and another freed
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from parquet_loader.common import IntArray, format_bytes
from parquet_loader.dataset.row_sizes import TOLERATED, RowSizes
from parquet_loader.errors import MemoryLimitError
from parquet_loader.plan import Plan
from parquet_loader.source import Snapshot

SHARE_WINDOWS = 0.40
SHARE_READS = 0.16
# Windows, batches and open row groups with large pages together.
SHARE_LARGE_PAGES = 0.8
# Footers that are parsed repeatedly cost more memory, in malloc's fragments, than footers that are kept.
SHARE_FOOTERS = 1 / 8
# Decoders that stay open for the next clip of the same video.
SHARE_VIDEOS = 1 / 16
# Fetched bytes of remote files before they are decoded: mapped memory, which no allocator keeps.
SHARE_FETCHED = 0.20
# A row group is read whole only if this many such reads fit into their share; fewer with fewer threads.
READS_AT_ONCE = 4
# Rows that are copied directly to their window are decoded this many bytes at a time. Measured on texts of 970 bytes:
# 0.89 and 0.93 of the time with 2 MiB, because each step takes 0.3 ms of Python; rows of 16 KiB in lists take the same.
STREAM_BYTES = 8 * 2**20
# While a row group is decoded, its Arrow columns and their canonical form may both exist for a moment.
DECODING_FACTOR = 2.0
# More open row groups mix sorted data better, but each holds a cursor's memory.
MOST_OPEN_ROW_GROUPS = 16
# A window takes whole row groups if at least this many fit, and otherwise slices of several.
ENOUGH_ROW_GROUPS = 4
# Open cursors may take this multiple of the memory of the windows.
CURSORS_PER_WINDOWS = 1.0
# Decoded rows that are kept for later windows count only if they take more than this multiple of the windows' memory.
# Less fits into the rest of the limit. It does not count, so that it changes neither window sizes nor orders.
_KEPT_PER_WINDOWS = 0.5
# The largest window without loss of speed, as measured (benchmarks/README.md, `benchmarks/window_size.py`). Each
# doubling improves mixing equally; at twice this size, narrow columns take 10 % more processor time, and the first
# batch twice as long.
LARGEST_DEFAULT_WINDOW_BYTES = 64 * 2**20
BATCHES_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The division of a memory limit; it follows from the snapshot, the columns and the caller's arguments only.

    Attributes:
        limit_bytes: The limit.
        row: Bytes of a row.
        window_rows: Most rows of a window.
        open_row_groups: Row groups that share a window by slices; 1 if whole ones are small enough.
        whole_rows: Row groups of up to this many rows are read whole, larger ones by a cursor.
        stream_rows: Rows that a cursor decodes at a time.
        cursor_bytes: Bytes that an open cursor holds, including decoded rows that are not taken yet, and kept rows.
        reads_bytes: Share for reads in flight, plus the unused share of windows.
        batches_bytes: Share for batches being made.
        fetch_bytes: Share for bytes prefetched from remote files, plus half of the unused share of windows.
        num_threads: Number of worker threads.
        prefetches: The most row groups prefetched from remote files at a time, however small they are.
        extra_of_row: Bytes by which rows of a window may exceed the average, if it has rows of few row groups.
    """

    limit_bytes: int
    row: RowSizes
    window_rows: int
    open_row_groups: int
    whole_rows: int
    stream_rows: int
    cursor_bytes: int
    reads_bytes: int
    batches_bytes: int
    num_threads: int
    fetch_bytes: int = 0
    prefetches: int = 1024
    extra_of_row: float = 0.0

    @property
    def windows_and_batches_bytes(self) -> int:
        """Share for windows and for batches being made; the memory of delivered rows is reused within it."""
        return int(self.limit_bytes * SHARE_WINDOWS) + self.batches_bytes

    def window_capacity(self, plan: Plan) -> int:
        """Return the rows, including those of a remainder, for which every window of an epoch allocates memory.

        If row groups differ, windows of other epochs have a few rows more or less. Memory for up to a 32nd more rows
        than the largest window, but at most `window_rows`, has one size for all epochs, so it is reused.
        """
        remainder = min(plan.batch_size, plan.rows)
        exact = int(plan.largest_window_rows + remainder)
        unit = 1 << max(0, exact.bit_length() - 6)
        return max(exact, min(-(-exact // unit) * unit, self.window_rows + remainder))

    def row_group_bytes(self, rows: int) -> int:
        """Return the bytes that decoding `rows` rows of a row group at once takes."""
        return int(rows * self.row.decoded_at_most * DECODING_FACTOR)


@dataclass(frozen=True, slots=True)
class ReservedMemory:
    """The part of a caller's `memory_limit` that is not divided, because the loader holds more than windows.

    Attributes:
        limit_bytes: The caller's limit.
        bytes_of: Returns the reserved bytes of a limit.
        what: The use of the reserved bytes, for messages.
    """

    limit_bytes: int
    bytes_of: Callable[[int], int]
    what: str

    def sufficient_bytes(self, needed_bytes: int) -> int:
        """Return a limit, in whole MiB, of which `needed_bytes` can be divided."""
        found = 0
        while found - self.bytes_of(found) < needed_bytes:
            found = -(-(needed_bytes + self.bytes_of(found)) // 2**20) * 2**20
        return found


@dataclass(frozen=True, slots=True)
class WindowNeeds:
    """What a loader needs of its windows, for the smallest number of ranks that its job may run on.

    Attributes:
        batch_size: Rows of a batch; a window holds at least two batches, so that a batch spans at most two windows.
        shuffle: Whether windows are shuffled; if not, large row groups are read one after another.
        side_by_side: Parts of the epoch that share every window, each with its own row groups.
        kept_rows: Rows of each open row group that are kept, with their media, for later windows.
        packing_row_bytes: Bytes that packing into sequences takes for each row of a window.
        reserved: The part of the caller's limit that is not divided; None if all of it is.
    """

    batch_size: int
    shuffle: bool
    side_by_side: int = 1
    kept_rows: int = 0
    packing_row_bytes: float = 0.0
    reserved: ReservedMemory | None = None


class LazyBudget:
    """A memory budget that is computed at the first use, if rows have to be decoded for it. Any thread may use it.

    Files, columns and counts do not change, so every computation has the same result.

    Args:
        limit_bytes: `memory_limit`.
        row: The bytes of a row, or a function that measures them.
        divided: Divides the memory limit for rows of these sizes; see `divide`.

    Attributes:
        limit_bytes: As given.

    Raises:
        MemoryLimitError: see `divide`; raised here if the bytes of a row are known.
    """

    def __init__(
        self, limit_bytes: int, row: RowSizes | Callable[[], RowSizes], divided: Callable[[RowSizes], MemoryBudget]
    ) -> None:
        self.limit_bytes = limit_bytes
        self._row = row
        self._divided = divided
        self._made = divided(row) if isinstance(row, RowSizes) else None

    @property
    def is_made(self) -> bool:
        """Whether `get` reads nothing."""
        return self._made is not None

    def get(self) -> MemoryBudget:
        """Return the budget.

        Raises:
            DataError, SourceError: rows cannot be read.
            MemoryLimitError: see `divide`.
        """
        made = self._made
        if made is None:
            made = self._made = self._divided(self._row if isinstance(self._row, RowSizes) else self._row())
        return made

    def get_if_tight(self, guess: RowSizes) -> None:
        """Compute the budget now if rows of the guessed sizes do not fit, so that the caller gets the error early.

        If a cursor alone exceeds the limit, raise at once: to decode a sample would take as much memory.
        """
        try:
            self._divided(guess)
        except MemoryLimitError:
            if guess.cursor_bytes > self.limit_bytes:
                raise
            self.get()


@dataclass(frozen=True, slots=True)
class WindowMemory:
    """The memory that windows take, by their number of rows.

    Attributes:
        row: Bytes of a row.
        largest_rows: Rows of the largest row group.
        total_rows: Rows of an epoch, at least 1.
        row_groups: Row groups with rows.
        batches_bytes: Share for batches being made.
        needs: What the loader needs.
        open_row_groups: As in `divide`.
        counts_large_pages: Whether pages that are larger than those of most writers count for each open row group.
    """

    row: RowSizes
    largest_rows: int
    total_rows: int
    row_groups: int
    batches_bytes: int
    needs: WindowNeeds
    open_row_groups: int | None
    counts_large_pages: bool = False

    @property
    def row_bytes(self) -> float:
        """Bytes of a decoded row, at least 1."""
        return max(self.row.decoded, 1.0)

    def lanes(self, rows: int) -> int:
        """Return how many row groups share a window; this depends on its size, not on the limit."""
        if self.open_row_groups is not None:
            return self.open_row_groups
        side_by_side = self.needs.side_by_side
        return side_by_side * max(1, self._shared(rows) // side_by_side)

    def with_most_lanes(self, rows: int, limit_bytes: int) -> WindowMemory:
        """Return the same with the most open row groups with which windows of `rows` rows fit; one if none fit.

        One, too, if windows of `rows` rows hold as many whole row groups. If the number is given, it stays.
        """
        if self.open_row_groups is not None:
            return self

        def with_lanes(each: int) -> WindowMemory:
            return replace(self, open_row_groups=side_by_side * each)

        side_by_side = self.needs.side_by_side
        most = self.lanes(rows) // side_by_side
        found = _largest(1, most, lambda each: with_lanes(each).needed_bytes(rows) <= limit_bytes)
        return with_lanes(found if side_by_side * found > rows // self.largest_rows else 1)

    def _shared(self, rows: int) -> int:
        if not self.needs.shuffle or self._holds_enough_row_groups(rows) or rows >= self.total_rows:
            return 1
        for_cursors = int(rows * self.row.in_windows * CURSORS_PER_WINDOWS)
        lanes = min(MOST_OPEN_ROW_GROUPS, self.row_groups, for_cursors // max(self._least_open_bytes, 1))
        lanes = min(lanes, for_cursors // max(self.open_bytes(rows, lanes), 1))
        return lanes if lanes > rows // self.largest_rows else 1

    def _holds_enough_row_groups(self, rows: int) -> bool:
        return self.largest_rows * ENOUGH_ROW_GROUPS <= rows

    @property
    def _least_open_bytes(self) -> int:
        """Bytes of an open row group: its cursor, and the media of kept rows, but not the decoded columns of these.

        Kept rows count five times: once by themselves, and twice in each of two windows, which have as many other rows.
        """
        return self.row.cursor_bytes + int(5 * self.needs.kept_rows * self.row.media)

    def open_bytes(self, rows: int, lanes: int) -> int:
        """Return the bytes of an open row group, with the decoded columns of kept rows if they take many bytes."""
        kept = int(5 * self.needs.kept_rows * self.row.decoded)
        counts = lanes * kept > _KEPT_PER_WINDOWS * rows * self.row.in_windows
        return self._least_open_bytes + (kept if counts else 0)

    def nbytes(self, rows: int, *, streams: bool) -> float:
        """Return the bytes of windows of `rows` rows, of batches, and of open row groups if rows are streamed."""
        lanes = self.lanes(rows)
        opened = lanes * self.open_bytes(rows, lanes) if streams else 0
        return rows * self._in_windows + self._extra_bytes(rows) + self.batches_bytes + opened

    @property
    def _in_windows(self) -> float:
        """Bytes of a row in windows. Those of packing count only if they are many.

        Fewer fit into the rest of the limit, and change neither window sizes nor orders.
        """
        packing = self.needs.packing_row_bytes
        return self.row.in_windows + (packing if packing > (TOLERATED - 1) * self.row.in_windows else 0.0)

    def _with_large_pages(self, rows: int) -> float:
        """Return the bytes of windows of `rows` rows, of batches, and of open row groups with large pages."""
        lanes = self.lanes(rows)
        if not self.row.large_page_bytes or (lanes == 1 and self.largest_rows <= rows):
            return 0.0
        return self.nbytes(rows, streams=True) + lanes * self.row.large_page_bytes

    def _extra_bytes(self, rows: int) -> float:
        extra = self.extra_of_row(rows)
        return 3 * extra * rows + self.row.extra_cursor_bytes if extra else 0.0

    def extra_of_row(self, rows: int) -> float:
        """Return the bytes by which rows of a window may exceed the average; 0 if it has rows of many row groups."""
        is_mixed = self.lanes(rows) > 1 or rows >= self.total_rows
        is_mixed = is_mixed or (self.needs.shuffle and self._holds_enough_row_groups(rows))
        return 0.0 if is_mixed or self.row.extra <= (TOLERATED - 1) * self.row.decoded else self.row.extra

    def needed_bytes(self, rows: int) -> float:
        """Return the limit that windows of `rows` rows need."""
        windows = self.nbytes(rows, streams=self.lanes(rows) > 1 or self.largest_rows > rows)
        pages = self._with_large_pages(rows) if self.counts_large_pages else 0.0
        at_once = min(rows, self.largest_rows, 1024)
        streaming = self.row.cursor_bytes + DECODING_FACTOR * self.row_bytes * at_once
        whole = DECODING_FACTOR * self.row_bytes * self.largest_rows * READS_AT_ONCE
        reads = min(whole / SHARE_READS, streaming / (1.5 * SHARE_READS))
        return max(windows / SHARE_WINDOWS, reads, pages / SHARE_LARGE_PAGES)


def divide(
    limit_bytes: int,
    row: RowSizes,
    snapshot: Snapshot,
    counts: IntArray,
    needs: WindowNeeds,
    *,
    window_rows: int | None,
    num_threads: int = READS_AT_ONCE,
    open_row_groups: int | None = None,
) -> MemoryBudget:
    """Divide the memory limit, and choose the number of rows of a window.

    Args:
        limit_bytes: `memory_limit`.
        row: Bytes of a row.
        snapshot: The row groups.
        counts: int64 ``[row groups]``, rows of each that pass the filter.
        needs: What the loader needs; `needs.reserved` is not part of `limit_bytes`.
        window_rows: The caller's argument, or None for a default.
        num_threads: Workers; the window does not depend on it.
        open_row_groups: Row groups that share a window, from a state; None chooses here.

    Raises:
        MemoryLimitError: the smallest window does not fit; the message names the largest row group and a sufficient
            limit.
    """
    windows = WindowMemory(
        row,
        largest_rows=int(counts.max(initial=0)),
        total_rows=max(int(counts.sum()), 1),
        row_groups=int(np.count_nonzero(counts)),
        batches_bytes=int(row.processed * needs.batch_size * BATCHES_AT_ONCE),
        needs=needs,
        open_row_groups=open_row_groups,
    )
    smallest = min(2 * needs.batch_size if window_rows is None else window_rows, windows.total_rows)
    default = int(LARGEST_DEFAULT_WINDOW_BYTES / (windows.row_bytes + row.media))
    default = max(default, 16 * needs.batch_size, smallest)
    fitting = _fitting(windows, limit_bytes, smallest, window_rows, default)
    if fitting is None:
        raise _refused(limit_bytes, windows, smallest, _largest_row_group(snapshot, counts))
    windows, window_rows = fitting
    lanes = windows.lanes(window_rows)
    unused = max(0.0, SHARE_WINDOWS * limit_bytes - windows.nbytes(window_rows, streams=lanes > 1))
    fetched = 0
    if snapshot.remote is not None:
        unused /= 2
        fetched = int(SHARE_FETCHED * limit_bytes + unused)
    reads = int(SHARE_READS * limit_bytes + unused)
    whole_rows, stream_rows = _rows_at_once(reads, row, num_threads)
    return MemoryBudget(
        limit_bytes=limit_bytes,
        row=row,
        window_rows=window_rows,
        open_row_groups=lanes,
        whole_rows=whole_rows,
        stream_rows=stream_rows,
        cursor_bytes=windows.open_bytes(window_rows, lanes)
        + int(stream_rows * max(row.decoded_at_most, 1.0))
        + row.unplanned_cursor_bytes,
        reads_bytes=reads,
        batches_bytes=windows.batches_bytes,
        num_threads=num_threads,
        fetch_bytes=fetched,
        extra_of_row=windows.extra_of_row(window_rows),
    )


def _fitting(
    windows: WindowMemory, limit_bytes: int, smallest: int, window_rows: int | None, default: int
) -> tuple[WindowMemory, int] | None:
    """Return windows that fit into a limit, and their number of rows; None if not even windows of `smallest` rows fit.

    Large pages make no difference to the number of rows, as long as fewer open row groups make up for them.

    Args:
        windows: The memory of windows, without large pages.
        limit_bytes: The limit.
        smallest: The least rows of a window.
        window_rows: The caller's number of rows, or None for as many as fit.
        default: The most rows in this case.
    """
    if windows.needed_bytes(smallest) > limit_bytes:
        return None
    if window_rows is None:
        window_rows = _largest(smallest, default, lambda rows: windows.needed_bytes(rows) <= limit_bytes)
    rows = min(window_rows, windows.total_rows)
    with_pages = replace(windows, counts_large_pages=True)
    if with_pages.needed_bytes(rows) <= limit_bytes:
        return windows, window_rows
    with_pages = with_pages.with_most_lanes(rows, limit_bytes)
    if with_pages.needed_bytes(rows) <= limit_bytes:
        return with_pages, window_rows
    if with_pages.needed_bytes(smallest) > limit_bytes:
        return None
    return with_pages, _largest(smallest, rows, lambda rows: with_pages.needed_bytes(rows) <= limit_bytes)


def _rows_at_once(reads_bytes: int, row: RowSizes, num_threads: int) -> tuple[int, int]:
    """Return the rows of the largest row group that is read whole, and the rows that a cursor decodes at a time."""
    row_bytes = DECODING_FACTOR * max(row.decoded_at_most, 1.0)
    whole_rows = max(1, int(reads_bytes / max(2, min(READS_AT_ONCE, num_threads)) / row_bytes))
    stream_rows = max(1, min(int(reads_bytes / 16 / row_bytes), 65536))
    if 2 * row.moved_at_once >= row.decoded:
        stream_rows = max(1, min(stream_rows, int(STREAM_BYTES * DECODING_FACTOR / row_bytes)))
        whole_rows = stream_rows
    return whole_rows, stream_rows


def _refused(limit_bytes: int, windows: WindowMemory, rows: int, largest: str) -> MemoryLimitError:
    """Return the error that a limit cannot hold windows of `rows` rows; `largest` describes the largest row group."""
    # One row group at a time, if the caller does not say how many.
    needs = windows.needs
    lanes = needs.side_by_side if windows.open_row_groups is None else windows.open_row_groups
    fewest = replace(windows, open_row_groups=lanes, counts_large_pages=True)
    needed_bytes = max(windows.needed_bytes(rows), fewest.needed_bytes(rows))
    batches = windows.batches_bytes
    decoded = f", {BATCHES_AT_ONCE} batches of {format_bytes(batches / BATCHES_AT_ONCE)}" if batches else ""
    given, of_batch, more = limit_bytes, f"batch_size {needs.batch_size}; ", ""
    sufficient = (int(needed_bytes) // 2**20 + 1) * 2**20
    if needs.reserved is not None:
        given, of_batch = needs.reserved.limit_bytes, ""
        more = f", and {format_bytes(needs.reserved.bytes_of(given))} for {needs.reserved.what}"
        sufficient = needs.reserved.sufficient_bytes(sufficient)
    return MemoryLimitError(
        f"memory_limit={format_bytes(given)} cannot hold two windows of {rows} rows of "
        f"{windows.row_bytes + windows.row.media:.0f} bytes{decoded} and the reads for them{more} "
        f"({of_batch}{largest}); use memory_limit={sufficient // 2**20}MiB or more"
    )


def _largest_row_group(snapshot: Snapshot, counts: IntArray) -> str:
    """Return a phrase for messages that names the row group with most bytes, which has few rows if these are long."""
    sizes = np.where(counts > 0, snapshot.row_group_bytes, -1)
    if not len(sizes):
        return "no row group has rows"
    largest = snapshot.row_group(int(np.argmax(sizes)))
    rows, nbytes = largest.rows, format_bytes(largest.encoded_bytes)
    return f"the largest row group is {largest.name} with {rows} rows, {nbytes} before compression"


def _largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from `low` to `high` that fits, by bisection; `low` fits."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
