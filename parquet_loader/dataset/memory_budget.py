"""Divides `memory_limit`: measures the bytes of a row, and derives the size of a window.

The limit is divided once, into fixed shares that do not depend on the number of threads, so that the window (and with
it the order) is the same on every machine:

    windows         the delivered window, the next one's decoded rows, and its ordered rows; and open cursors, if a
                    window takes slices of several large row groups
    reads           row groups being decoded, their buffers and pages; and the rest of the share of windows
    batches         batches in image decoding or `transform`
    fetched         fetched bytes of remote files that are not decoded yet, and requests in flight
    rest            footers, and free memory of allocators: measured, the process takes up to 1.8 times the bytes in
                    use, because Arrow's pool and malloc keep memory that one thread allocated and another freed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from parquet_loader.common import IntArray, format_bytes
from parquet_loader.decode import Arrangement, Column, arrangement_of, flat_widths, holds_rows
from parquet_loader.errors import DataError, MemoryLimitError, SourceError, is_skippable
from parquet_loader.plan import Plan
from parquet_loader.read import BUFFER_BYTES, HIDDEN_ROW_NUMBERS, RowGroupReader
from parquet_loader.schema import Audio
from parquet_loader.source import ColumnChunk, RowGroupRef, Snapshot, selected

# Bytes of a second of encoded audio: 64 kbit/s, as of speech in an MP3. Uncompressed audio has several times as many.
_AUDIO_BYTES_PER_S = 8000.0
SHARE_WINDOWS = 0.40
SHARE_READS = 0.16
# Footers that are parsed repeatedly cost more memory, in malloc's fragments, than footers that are kept.
SHARE_FOOTERS = 1 / 8
# Fetched bytes of remote files before they are decoded: mapped memory, which no allocator keeps.
SHARE_FETCHED = 0.20
# A row's entries in the permutations of the two windows in progress: three int64 each, and short-lived copies.
ORDER_BYTES = 48
# A row group is read whole only if this many such reads fit into their share; fewer with fewer threads.
READS_AT_ONCE = 4
# Rows that are copied directly to their window are decoded this many bytes at a time. Measured: 16 KiB rows load 1.2
# times as fast in slices of 2 MiB, which stay in the CPU cache and in faulted-in memory, as in row groups of 16 MiB.
STREAM_BYTES = 2 * 2**20
# While a row group is decoded, its Arrow columns and their canonical form may both exist for a moment.
DECODING_FACTOR = 2.0
# More open row groups mix sorted data better, but each holds a cursor's memory.
MOST_OPEN_ROW_GROUPS = 16
# A window takes whole row groups if at least this many fit, and otherwise slices of several.
ENOUGH_ROW_GROUPS = 4
# Open cursors may take this multiple of the memory of the windows.
CURSORS_PER_WINDOWS = 1.0
# Decoded rows that are kept for later windows count if they take more than this multiple of the memory of the windows.
# The rest of the limit covers fewer, so that orders do not depend on them.
_KEPT_PER_WINDOWS = 0.5
# The largest window without loss of speed, as measured (benchmarks/README.md, `benchmarks/window_size.py`). Each
# doubling improves mixing equally; at twice this size, narrow columns take 10 % more processor time, and the first
# batch twice as long.
LARGEST_DEFAULT_WINDOW_BYTES = 64 * 2**20
BATCHES_AT_ONCE = 4
SAMPLE_ROWS = 4096
SAMPLE_BYTES = 8 * 2**20
# An upper estimate of decoded bytes for each encoded byte, used before a sample is decoded.
_GUESS_FACTOR = 4
# An estimate for varying columns that is too low by at most this factor is kept, because the default window, and so the
# order, follows from it. The rest of the limit covers the difference.
_TOLERATED = 1.25


@dataclass(frozen=True, slots=True)
class RowSizes:
    """Bytes of one row in each stage.

    Attributes:
        gathered: Canonical bytes of the columns that are gathered a window at a time.
        wide: Bytes of the columns that are copied to the window as they are decoded.
        processed: Bytes of a row in a batch made by image decoding or `transform`; 0 without these.
        staged: The part of `gathered` in columns of fixed width, also in the files.
        ragged: The part of `gathered` in each column of varying width, by the name of its `flat_columns`.
        sampled_rows: Rows that were decoded to measure these; 0 if all columns have fixed width.
        cursor_bytes: Bytes that an open cursor in the largest row group holds, without decoded rows.
        media: Bytes of decoded media, if they are decoded window by window; 0 if batch by batch, or without media.
        extra: Bytes by which a decoded row exceeds `decoded` in row groups whose rows are longer than the average.
        extra_cursor_bytes: The same for `cursor_bytes`.
    """

    gathered: float
    wide: float
    processed: float
    staged: float = 0.0
    ragged: tuple[tuple[str, float], ...] = ()
    sampled_rows: int = 0
    cursor_bytes: int = 0
    media: float = 0.0
    extra: float = 0.0
    extra_cursor_bytes: int = 0

    @property
    def decoded(self) -> float:
        """Bytes of a decoded row."""
        return self.gathered + self.wide

    @property
    def decoded_at_most(self) -> float:
        """Bytes of a decoded row in row groups whose rows are longer than the average."""
        return self.decoded + self.extra

    @property
    def moved_at_once(self) -> float:
        """Bytes of a decoded row that are copied to the window at once, and so are not kept in decoded form."""
        return self.wide + self.staged + sum(nbytes for _, nbytes in self.ragged)

    @property
    def in_windows(self) -> float:
        """Bytes of a row in the window delivered and in the one being made."""
        return 2 * self.decoded + self.gathered + 2 * self.media + ORDER_BYTES


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

    @property
    def made_bytes(self) -> int:
        """Share for windows and for batches being made."""
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
        """Compute the budget now if rows of these sizes do not fit, so that an error about the limit is raised now."""
        try:
            self._divided(guess)
        except MemoryLimitError:
            self.get()


def has_varying(columns: Sequence[Column]) -> bool:
    """Whether rows of a column differ in size, so that a sample has to be measured."""
    return any(c.row_bytes is None for c in columns)


def row_sizes(
    snapshot: Snapshot,
    reader: RowGroupReader,
    counts: IntArray,
    *,
    processes: bool,
    decodes_windows: bool = False,
    ragged: tuple[tuple[str, float], ...] = (),
    sampled_rows: int = 0,
    extra: float = 0.0,
    dense: tuple[RowGroupRef, float] | None = None,
) -> RowSizes:
    """Return the bytes of a row, from the types, and of a cursor, from the footers.

    Args:
        snapshot: The row groups.
        reader: Provides the canonical columns and their routes.
        counts: int64 ``[row groups]``, rows of each that pass the filter.
        processes: Whether batches are made one by one (images, `transform`).
        decodes_windows: Whether media are decoded window by window.
        ragged: Bytes of a row of each column of varying width.
        sampled_rows: Rows that were decoded to measure these.
        extra: As in `RowSizes`.
        dense: A row group with more bytes a row than the average, and the share of such row groups, 0 to 1.
    """
    # Hidden numbers of rows are left out, so that windows, and the order, are the same with and without them.
    columns = [c for c in reader.columns if c.name != HIDDEN_ROW_NUMBERS]
    wide = sum(c.row_bytes or 0 for c in columns if arrangement_of(c) is Arrangement.DIRECT)
    gathered: float = sum(c.row_bytes or 0 for c in columns) - wide
    gathered += sum(nbytes for _, nbytes in ragged)
    arrays = [(c.decoded_shape, np.dtype(c.dtype)) for c in columns if c.row_bytes is None and c.image is not None]
    image_bytes = float(sum(np.prod([n or 1 for n in shape]) * dtype.itemsize for shape, dtype in arrays))
    widths = dict(ragged)
    image_bytes += sum(
        widths.get(c.name, 0.0) * c.image.rate * c.image.channels * 4 / _AUDIO_BYTES_PER_S
        for c in columns
        if isinstance(c.image, Audio) and not c.image.is_fixed
    )
    processed = gathered + wide + image_bytes if processes else 0.0
    staged, cursor, cursor_at_most = 0, 0, 0
    if len(counts) and counts.max():
        largest = snapshot.row_group(int(np.argmax(counts)))
        as_stored = {r.source.name for r in reader.routes(largest) if r.source.is_always_as_stored}
        # Matrices of several columns are decoded from whole row groups. Measured: an epoch of 39 numbers in two groups
        # takes a sixth less time than with slices of 2 MiB.
        stays = [c for c in columns if holds_rows(c) and arrangement_of(c) is Arrangement.NARROW]
        staged = sum(c.row_bytes or 0 for c in stays if c.name in as_stored)
        cursor = _cursor_bytes(snapshot, largest, reader.chunks.leaves(largest.file_number))
        if dense is not None:
            row_group, share = dense
            cursor_at_most = _cursor_bytes(snapshot, row_group, reader.chunks.leaves(row_group.file_number))
            average = int(cursor + share * (cursor_at_most - cursor))
            cursor = average if average > _TOLERATED * cursor else cursor
    media = image_bytes if decodes_windows else 0.0
    more = max(0, cursor_at_most - cursor)
    return RowSizes(gathered, float(wide), processed, float(staged), ragged, sampled_rows, cursor, media, extra, more)


def guessed_sizes(
    snapshot: Snapshot, reader: RowGroupReader, counts: IntArray, *, processes: bool, decodes_windows: bool = False
) -> RowSizes:
    """Return an upper estimate of the bytes of a row: `_GUESS_FACTOR` times the footers' sizes for varying columns."""
    decoded = np.maximum(_GUESS_FACTOR * snapshot.row_group_bytes, snapshot.row_group_unencoded_bytes)
    ragged = (("", float((decoded / np.maximum(snapshot.row_group_rows, 1)).max(initial=0.0))),)
    return row_sizes(snapshot, reader, counts, processes=processes, decodes_windows=decodes_windows, ragged=ragged)


def sampled_sizes(
    snapshot: Snapshot,
    reader: RowGroupReader,
    counts: IntArray,
    *,
    processes: bool,
    skips: bool,
    decodes_windows: bool = False,
) -> RowSizes:
    """Return the bytes of a row; those of columns of varying width are measured on a sample.

    Args:
        snapshot: The row groups.
        reader: Reads the sample: the first rows of the row group with most bytes.
        counts: int64 ``[row groups]``, rows of each that pass the filter; not all are 0.
        processes, decodes_windows: As in `row_sizes`.
        skips: Whether a row group that cannot be read is skipped for the next smaller one.
    """
    with nullcontext() if snapshot.remote is None else snapshot.remote.opened():
        sizes = _telling_sizes(snapshot, counts)
        largest, sample = _sample_of_largest(snapshot, reader, counts, sizes, skips=skips)
        density = sizes / np.maximum(snapshot.row_group_rows, 1)
        mean, of_largest = float(np.average(density, weights=counts)), float(density[largest.index])
        widths, most = _widths(snapshot, reader, counts, largest, sample)
        dense = largest
        is_dense = (density >= mean) & (counts > 0)
        if mean > _TOLERATED * of_largest:
            dense, other = _sample_of_largest(snapshot, reader, np.where(is_dense, counts, 0), sizes, skips=skips)
            share = (mean - of_largest) / (float(density[dense.index]) - of_largest)
            of_dense, most_of_dense = _widths(snapshot, reader, counts, dense, other)
            between = {name: width + share * (of_dense[name] - width) for name, width in widths.items()}
            widths = _unless_tolerated(widths, between)
            most = max(most, most_of_dense)
    scale = min(1.0, max(0.25, mean / of_largest)) if of_largest > 0 else 1.0
    varying = [column for column in reader.columns if column.row_bytes is None]
    ragged = tuple((name, width * scale) for name, width in flat_widths(varying, widths, sample).items())
    return row_sizes(
        snapshot,
        reader,
        counts,
        processes=processes,
        decodes_windows=decodes_windows,
        ragged=ragged,
        sampled_rows=len(sample),
        extra=max(0.0, most - sum(nbytes for _, nbytes in ragged)),
        dense=(dense, np.count_nonzero(is_dense) / np.count_nonzero(counts)),
    )


def _telling_sizes(snapshot: Snapshot, counts: IntArray) -> IntArray:
    """Return the encoded bytes of row groups; without dictionaries, if those hide a row group of long words.

    Encoded bytes are the first choice, because all writers state them, and the order follows from the sample.
    """
    encoded = np.where(counts > 0, snapshot.row_group_bytes, 0)
    unencoded = np.where(counts > 0, snapshot.row_group_unencoded_bytes, 0)
    is_hidden = unencoded.max() > _TOLERATED * unencoded[np.argmax(encoded)]
    return snapshot.row_group_unencoded_bytes if is_hidden else snapshot.row_group_bytes


def _sample_of_largest(
    snapshot: Snapshot, reader: RowGroupReader, counts: IntArray, sizes: IntArray, *, skips: bool
) -> tuple[RowGroupRef, pa.Table]:
    by_size = np.argsort(np.where(counts > 0, -sizes, 1), kind="stable")
    for index in by_size[: int(np.count_nonzero(counts))].tolist():
        row_group = snapshot.row_group(index)
        try:
            return row_group, _sample(reader, row_group)
        except (DataError, SourceError) as error:
            if not skips or not is_skippable(error):
                raise
    return snapshot.row_group(int(by_size[0])), reader.empty_table()


def _widths(
    snapshot: Snapshot, reader: RowGroupReader, counts: IntArray, row_group: RowGroupRef, sample: pa.Table
) -> tuple[dict[str, float], float]:
    """Return the bytes of a row of each varying column of a row group, and the bytes of its longest rows.

    If rows are sorted by length, the first ones are short. The footer then shows more: the number of values in lists,
    and for text and bytes the encoded size (they take no less memory decoded) or, if the writer states it, the size
    without dictionaries. The longest rows are taken for twice as long as the average, as if lengths grew evenly.
    """
    columns = [c for c in reader.columns if c.row_bytes is None]
    sampled = {c.name: sample.column(c.name).nbytes / max(len(sample), 1) for c in columns}
    if len(sample) == row_group.rows or counts[row_group.index] < row_group.rows:
        return sampled, sum(sampled.values())
    footer = snapshot.footers.get(row_group.file_number)
    stored = {route.source.name: route.stored for route in reader.routes(row_group)}
    stated: dict[str, float] = {}
    for column in columns:
        leaves = selected(footer.paths, [stored.get(column.name, "")]) if column.image is None else []
        nbytes = sum(_least_decoded(footer.chunk(row_group.number, n), column, row_group) for n in leaves)
        stated[column.name] = max(sampled[column.name], nbytes / row_group.rows)
    if _unless_tolerated(sampled, stated) is sampled:
        return sampled, sum(sampled.values())
    return stated, 2 * sum(stated.values())


def _least_decoded(chunk: ColumnChunk, column: Column, row_group: RowGroupRef) -> int:
    """Return a lower bound, by the footer, for the decoded bytes of a column chunk."""
    while column.item is not None:
        column = column.item
    if column.kind in ("text", "bytes"):
        return max(min(chunk.encoded_bytes, row_group.encoded_bytes), chunk.unencoded_bytes, 0)
    return max(0, chunk.values) * (0 if column.dtype is None else column.dtype.itemsize)


def _unless_tolerated(widths: dict[str, float], others: dict[str, float]) -> dict[str, float]:
    """Return `others` if they exceed `widths` by more than the tolerance; else `widths`."""
    return others if sum(others.values()) > _TOLERATED * sum(widths.values()) else widths


def _sample(reader: RowGroupReader, row_group: RowGroupRef) -> pa.Table:
    stream = reader.stream(row_group, 256)
    tables: list[pa.Table] = []
    try:
        for table in stream:
            tables.append(table)
            if sum(map(len, tables)) >= SAMPLE_ROWS or sum(t.nbytes for t in tables) >= SAMPLE_BYTES:
                break
    finally:
        stream.close()  # type: ignore[attr-defined]
    return pa.concat_tables(tables)


def divide(
    limit_bytes: int,
    row: RowSizes,
    snapshot: Snapshot,
    counts: IntArray,
    *,
    batch_size: int,
    window_rows: int | None,
    shuffle: bool,
    side_by_side: int = 1,
    num_threads: int = READS_AT_ONCE,
    open_row_groups: int | None = None,
    kept_rows: int = 0,
    reserved: ReservedMemory | None = None,
) -> MemoryBudget:
    """Divide the memory limit, and choose the number of rows of a window.

    Args:
        limit_bytes: `memory_limit`.
        row: Bytes of a row.
        snapshot: The row groups.
        counts: int64 ``[row groups]``, rows of each that pass the filter.
        batch_size: Rows of a batch; a window holds at least two batches, so that a batch spans at most two windows.
        window_rows: The caller's argument, or None for a default.
        shuffle: Whether windows are shuffled; if not, large row groups are read one after another.
        side_by_side: Parts of the epoch that share every window, each with its own row groups.
        num_threads: Workers; the window does not depend on it.
        open_row_groups: Row groups that share a window, from a state; None chooses here.
        kept_rows: Rows of each open row group that are kept, with their media, for later windows.
        reserved: The part of the caller's limit that is not in `limit_bytes`; None if they are equal.

    Raises:
        MemoryLimitError: the smallest window does not fit; the message names the largest row group and a sufficient
            limit.
    """
    largest_rows = int(counts.max(initial=0))
    total_rows = max(int(counts.sum()), 1)
    row_bytes = max(row.decoded, 1.0)
    batches = int(row.processed * batch_size * BATCHES_AT_ONCE)
    smallest = min(2 * batch_size if window_rows is None else window_rows, total_rows)
    cursor = row.cursor_bytes
    # Kept rows are held once, and for each of two windows joined with as many others.
    opened = cursor + int(5 * kept_rows * row.media)
    kept = int(5 * kept_rows * row.decoded)

    def opened_bytes(window: int, lanes: int) -> int:
        """Return the bytes of an open row group; decoded rows that are kept count if they take much of the windows."""
        return opened + (kept if lanes * kept > _KEPT_PER_WINDOWS * window * row.in_windows else 0)

    def lanes_of(window: int) -> int:
        """Return how many row groups share a window; this depends on the window's size, not on the limit."""
        if open_row_groups is not None:
            return open_row_groups
        if side_by_side > 1:
            return side_by_side * max(1, shared(window) // side_by_side)
        return shared(window)

    def shared(window: int) -> int:
        if not shuffle or largest_rows * ENOUGH_ROW_GROUPS <= window or window >= total_rows:
            return 1
        most, windows_bytes = min(MOST_OPEN_ROW_GROUPS, int(np.count_nonzero(counts))), window * row.in_windows
        lanes = min(most, int(windows_bytes * CURSORS_PER_WINDOWS) // max(opened, 1))
        lanes = min(lanes, int(windows_bytes * CURSORS_PER_WINDOWS) // max(opened_bytes(window, lanes), 1))
        return lanes if lanes > window // largest_rows else 1

    def extra_bytes(window: int) -> float:
        """Return the additional bytes of a window of the longest rows, if it may hold rows of few row groups."""
        is_mixed = lanes_of(window) > 1 or window >= total_rows
        is_mixed = is_mixed or (shuffle and largest_rows * ENOUGH_ROW_GROUPS <= window)
        if is_mixed or row.extra <= (_TOLERATED - 1) * row.decoded:
            return 0.0
        return 3 * row.extra * window + row.extra_cursor_bytes

    def needed_bytes(window: int) -> float:
        """Return the limit that a window of this size needs."""
        lanes = lanes_of(window)
        streams = lanes > 1 or largest_rows > window
        windows = window * row.in_windows + extra_bytes(window) + batches
        windows += lanes * opened_bytes(window, lanes) if streams else 0
        at_once = min(window, largest_rows, 1024)
        streaming = cursor + DECODING_FACTOR * row_bytes * at_once
        whole = DECODING_FACTOR * row_bytes * largest_rows * READS_AT_ONCE
        return max(windows / SHARE_WINDOWS, min(whole / SHARE_READS, streaming / (1.5 * SHARE_READS)))

    if needed_bytes(smallest) > limit_bytes:
        decoded = f", {BATCHES_AT_ONCE} batches of {format_bytes(batches / BATCHES_AT_ONCE)}" if batches else ""
        given, of_batch, more = limit_bytes, f"batch_size {batch_size}; ", ""
        sufficient = (int(needed_bytes(smallest)) // 2**20 + 1) * 2**20
        if reserved is not None:
            given, of_batch = reserved.limit_bytes, ""
            more = f", and {format_bytes(reserved.bytes_of(given))} for {reserved.what}"
            sufficient = reserved.sufficient_bytes(sufficient)
        raise MemoryLimitError(
            f"memory_limit={format_bytes(given)} cannot hold two windows of {smallest} rows of "
            f"{row_bytes + row.media:.0f} bytes{decoded} and the reads for them{more} "
            f"({of_batch}{_largest_row_group(snapshot, counts)}); use memory_limit={sufficient // 2**20}MiB or more"
        )
    if window_rows is None:
        default = max(int(LARGEST_DEFAULT_WINDOW_BYTES / (row_bytes + row.media)), 16 * batch_size, smallest)
        window_rows = _largest(smallest, default, lambda window: needed_bytes(window) <= limit_bytes)
    lanes = lanes_of(window_rows)
    windows = window_rows * row.in_windows + extra_bytes(window_rows) + batches
    windows += lanes * opened_bytes(window_rows, lanes) if lanes > 1 else 0
    left = max(0.0, SHARE_WINDOWS * limit_bytes - windows)
    fetched = 0
    if snapshot.remote is not None:
        left /= 2
        fetched = int(SHARE_FETCHED * limit_bytes + left)
    reads = int(SHARE_READS * limit_bytes + left)
    at_once = max(2, min(READS_AT_ONCE, num_threads))
    at_most = max(row.decoded_at_most, 1.0)
    whole_rows = max(1, int(reads / at_once / DECODING_FACTOR / at_most))
    stream_rows = max(1, min(int(reads / 16 / DECODING_FACTOR / at_most), 65536))
    if 2 * row.moved_at_once >= row.decoded:
        stream_rows = max(1, min(stream_rows, int(STREAM_BYTES / at_most)))
        whole_rows = stream_rows
    return MemoryBudget(
        limit_bytes=limit_bytes,
        row=row,
        window_rows=window_rows,
        open_row_groups=lanes,
        whole_rows=whole_rows,
        stream_rows=stream_rows,
        cursor_bytes=opened_bytes(window_rows, lanes) + int(stream_rows * at_most),
        reads_bytes=reads,
        batches_bytes=batches,
        num_threads=num_threads,
        fetch_bytes=fetched,
    )


def _largest_row_group(snapshot: Snapshot, counts: IntArray) -> str:
    """Return a phrase for messages that names the row group with most bytes, which has few rows if these are long."""
    sizes = np.where(counts > 0, snapshot.row_group_bytes, -1)
    if not len(sizes):
        return "there are no rows"
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


def _cursor_bytes(snapshot: Snapshot, row_group: RowGroupRef, leaves: Sequence[int]) -> int:
    """Estimate the bytes of an open cursor: for each column a read buffer, a page, and the decompressed dictionary."""
    footer = snapshot.footers.get(row_group.file_number)
    total, rows = 0, max(row_group.rows, 1)
    for number in leaves:
        chunk = footer.chunk(row_group.number, number)
        encoded = min(max(0, chunk.encoded_bytes), row_group.encoded_bytes)
        # Writers end pages at 20,000 rows or 1 MiB, whichever comes first; Arrow checks this only every 1,024 rows.
        page = min(encoded, max(min(2**20, encoded * 20_000 // rows), encoded * 1024 // rows))
        dictionary = chunk.data_at - chunk.start
        page *= 1 if chunk.codec_name == "UNCOMPRESSED" else 2  # compressed and decompressed
        total += min(BUFFER_BYTES, encoded) + page
        # Writers end dictionaries at about 1 MiB, except those of Arrow's dictionary type, which Arrow decodes.
        total += min(3 * dictionary // 2, 2**20) if dictionary < 2 * 2**20 else 4 * dictionary
    return total
