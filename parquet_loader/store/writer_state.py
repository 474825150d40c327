"""The state of a writer: buffers rows to row groups, and publishes full files within the limit."""

from __future__ import annotations

import operator
import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from queue import SimpleQueue
from threading import Event, RLock
from typing import Any, Literal

import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common import format_bytes
from parquet_loader.errors import StoreFullError, UnfinishedCommitError, WriteError
from parquet_loader.schema import is_in_memory, iter_tables
from parquet_loader.store.files.file_names import FileName
from parquet_loader.store.files.paths import StorePaths, share_record
from parquet_loader.store.ledger import Ledger
from parquet_loader.store.settings import StoreSettings
from parquet_loader.store.size_bounds import footer_bound, group_bound
from parquet_loader.store.space import FIRST_WAIT_S, LONGEST_WAIT_S, Reservation, Space
from parquet_loader.write import Layout, RowGroupBuffer, StagedFile, choose_layout, fsync, reason, storage_errors

WhenFull = Literal["wait", "drop", "fail"]

# A writer that waits longer warns once. Shorter waits are normal, because a running epoch may end soon.
SILENT_WAIT_S = 10.0

_LOST = "samples could not be written to the store: {}; files published before are whole, rows written since are lost"
_NOT_SYNCED = (
    "samples were published, but could not be synced to the disk, so a crash may lose them: {}; rows that were not "
    "published are lost"
)


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """The progress of a writer.

    Attributes:
        files, rows, bytes: Totals published. Rows are published in the order in which they were written.
        dropped_rows: Rows dropped because the store was full.
        waited_s: Seconds spent waiting for space.
    """

    files: int = 0
    rows: int = 0
    bytes: int = 0
    dropped_rows: int = 0
    waited_s: float = 0.0

    def __add__(self, other: WrittenRows) -> WrittenRows:
        return WrittenRows(*map(operator.add, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """The arguments of a writer; see `SampleStore.writer`."""

    evicts: bool
    when_full: WhenFull
    wait_s: float | None
    roll_s: float
    priority: float
    metadata: Mapping[str, str]


class WriterState:
    """The state of a writer, shared by its caller and the thread that publishes by age; `lock` guards all of it.

    It does not refer to the `StoreWriter`: when that is garbage-collected, the thread ends.

    Attributes:
        inbox: Times at which the thread publishes, in seconds of `time.monotonic`; None ends the thread.
        stop: Ends a wait for space; set without the lock.
        error: The error of the thread, for the caller.
        done: The progress.
        deadline: When the buffered rows have to be published; None without rows.
        is_watched: Whether the thread checks `deadline` by itself.
        options: As given.
        reservation: The bytes reserved for unpublished rows.
    """

    def __init__(
        self,
        paths: StorePaths,
        ledger: Ledger,
        space: Space,
        settings: Callable[[], StoreSettings],
        options: WriterOptions,
    ) -> None:
        self.lock = RLock()
        self.inbox: SimpleQueue[float | None] = SimpleQueue()
        self.stop = Event()
        self.error: BaseException | None = None
        self.done = WrittenRows()
        self.deadline: float | None = None
        self.is_watched = False
        self.options = options
        self._paths = paths
        self._ledger = ledger
        self._space = space
        self._settings = settings
        self._schema = settings().schema
        with storage_errors(paths.root, "the writer cannot begin: {}", "; free some space, or check permissions"):
            self.reservation = Reservation(paths, ledger)
        self._metadata = settings().footer(self.reservation.writer, options.priority, options.metadata)
        self._buffer = RowGroupBuffer(settings().row_group_bytes, slack=1 / 8)
        self._layout: Layout | None = None
        self._file: StagedFile | None = None
        self._files = 0
        self._has_warned = False

    @property
    def root(self) -> str:
        """The store's directory."""
        return self._paths.root

    @property
    def buffered_rows(self) -> int:
        """Number of rows that are written and not published."""
        return self._buffer.rows + (self._file.rows if self._file else 0)

    def check(self) -> None:
        """Raise an error of the thread."""
        if self.error is not None:
            raise self.error

    def write(self, batch: Any) -> None:
        """Add rows, and publish full files."""
        tables = iter_tables(batch, self._schema)
        try:
            self._write_full_groups()  # rows that found no space in the last call go first
            for table in tables:
                self._add(table)
                self._write_full_groups()
        except StoreFullError:
            if is_in_memory(batch):  # else it may be endless, and still has the rows that were not taken
                for table in tables:
                    self._add(table)
            raise
        finally:
            self._buffer.own()

    def _add(self, table: pa.Table) -> None:
        if table.num_rows and self.deadline is None:
            self._set_deadline()
        self._buffer.add(table)

    def publish_all(self) -> None:
        """Publish every row written so far."""
        while (table := self._buffer.peek(last=True)) is not None:
            self._write_group(table)
            self._buffer.pop()
        if self._file is not None:
            self._publish(self._file)
        self.deadline = None

    def discard(self) -> None:
        """Drop unpublished rows; never raises, and does not take the store's lock."""
        self._buffer.clear()
        if self._file is not None:
            self._file.discard()
            self._file = None

    def _write_full_groups(self) -> None:
        while (table := self._buffer.peek(last=False)) is not None:
            self._write_group(table)
            self._buffer.pop()

    def _write_group(self, table: pa.Table) -> None:
        """Write one row group when there is space, or drop it; publish a full file.

        Raises:
            StoreFullError: There was no space during the whole wait; nothing was written.
        """
        if self._layout is None:
            self._layout = choose_layout(table, self._settings().options.compression)
        with storage_errors(self._paths.root, _LOST):
            if not self._reserve(table, self._layout):
                self.done += WrittenRows(dropped_rows=table.num_rows)
                return
            file = self._file
            if file is None:
                self._files += 1
                path = os.path.join(self._paths.unfinished, f"{self.reservation.writer}-{self._files}.parquet")
                self._file = file = StagedFile(pafs.LocalFileSystem(), path, self._metadata)
                file.open(table.schema, self._layout.writer_arguments())
            before = file.bytes
            file.write(table)
            group_bytes = file.bytes - before
            if file.bytes + group_bytes // 2 >= self._settings().file_bytes:
                self._publish(file)

    def _reserve(self, table: pa.Table, layout: Layout) -> bool:
        """Reserve the most bytes that the row group may take; return whether it may be written."""
        group = group_bound(table, layout)
        delay, began = FIRST_WAIT_S, float("inf")
        metadata_bytes = sum(len(key) + len(value) for key, value in self._metadata.items())
        while True:
            file = self._file
            groups, written = (file.row_groups, file.bytes) if file else (0, 0)
            needed = written + group + footer_bound(table.schema, groups + 1, metadata_bytes)
            limit = self._settings().max_bytes
            if file is None and limit is not None and needed > limit:
                raise WriteError(
                    f"{self._paths.root}: a row group of {table.num_rows} rows may take {format_bytes(needed)}, the "
                    f"store's limit is {format_bytes(limit)}; raise max_bytes, or lower StoreOptions(row_group_bytes=)"
                )
            if self._space.reserve(self.reservation, needed, evicts=self.options.evicts):
                return True
            if file is not None:
                self._publish(file)  # so that readers can read it, and it can be evicted
                continue
            if self.options.when_full == "drop":
                return False
            began = min(began, time.monotonic())
            waited = time.monotonic() - began
            if self.options.when_full == "fail" or (self.options.wait_s is not None and waited >= self.options.wait_s):
                raise StoreFullError(self._full(table, needed))
            if waited >= SILENT_WAIT_S and not self._has_warned:
                self._has_warned = True
                warning = f"{self._full(table, needed)}; the writer has waited {waited:.0f} s and still waits"
                warnings.warn(warning, RuntimeWarning, stacklevel=2)
            if self.stop.wait(delay if self.options.wait_s is None else min(delay, self.options.wait_s - waited)):
                raise WriteError(f"{self._paths.root}: the writer was aborted while it waited for space")
            self.done += WrittenRows(waited_s=time.monotonic() - began - waited)
            delay = min(2 * delay, LONGEST_WAIT_S)

    def _full(self, table: pa.Table, needed: int) -> str:
        totals, limit = self._ledger.totals(), self._settings().max_bytes or 0
        return (
            f"{self._paths.root}: the store is full: {format_bytes(totals.bytes)} published and "
            f"{format_bytes(totals.reserved_bytes)} reserved of {format_bytes(limit)}, {format_bytes(needed)} more are "
            f"needed for {table.num_rows} rows, and no file may be evicted: {self._why_none_is_evicted()}"
        )

    def _why_none_is_evicted(self) -> str:
        policy = self._settings().evict
        if policy == "never":
            return "evict='never' keeps every file; raise max_bytes, or open the store with another evict="
        if not self.options.evicts:
            return "this writer does not evict (evicts=False); evict elsewhere (store.evict()), or raise max_bytes"
        if policy == "function" and self._space.never_evicts:
            return "this process lacks the store's eviction function; open the store with evict=, or raise max_bytes"
        return "readers need them, or they are held; raise max_bytes, or release what store.holds() lists"

    def _publish(self, file: StagedFile) -> None:
        """Publish the file under the next name; it counts as published even if a later step fails."""
        settings = self._settings()
        self._file = None
        try:
            with storage_errors(self._paths.root, _LOST):
                file.finish(durable=settings.options.durable)
                share_record(file.path)
                self._rename_and_count(file, settings.tag)
        except BaseException:
            file.discard()
            raise
        self.deadline = None
        if self._buffer.rows:
            self._set_deadline()
        if settings.options.durable:
            try:
                fsync(self._paths.root)
            except OSError as error:
                raise UnfinishedCommitError(f"{self._paths.root}: {_NOT_SYNCED.format(reason(error))}") from error

    def _rename_and_count(self, file: StagedFile, tag: str) -> None:
        has_appeared = False
        try:
            with self._ledger.transaction() as totals:
                path = self._next_path(totals.sequence + 1, file.rows, tag)
                os.rename(file.path, path)
                has_appeared = True
                self.done += WrittenRows(files=1, rows=file.rows, bytes=file.bytes)
                totals.sequence += 1
                totals.published(file.rows, file.bytes)
                self.reservation.set(totals, 0)
        except OSError:
            if not has_appeared:
                raise
            # The account was not written: its mark stays for the next process that takes the lock.

    def _set_deadline(self) -> None:
        self.deadline = time.monotonic() + self.options.roll_s
        if not self.is_watched:  # else the thread wakes at an earlier deadline, and finds this one
            self.is_watched = True
            self.inbox.put(self.deadline)

    def _next_path(self, sequence: int, rows: int, tag: str) -> str:
        name = FileName(sequence, time.time_ns() // 1000, rows, tag, self.reservation.writer)
        return self._paths.file(str(name))
