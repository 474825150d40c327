"""`StoreWriter`: writes batches to published files, by size or age, within the store's limit."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
import weakref
from collections.abc import Callable
from queue import Empty
from threading import Thread, current_thread
from types import TracebackType
from typing import Any, Literal, Self

from parquet_loader.common import holds_exclusive, starting_threads, uninterrupted
from parquet_loader.errors import DataError, SchemaError, StoreFullError, SystemReadError, WriteError
from parquet_loader.store.writer_state import WriterState, WrittenRows


class StoreWriter:
    """Writes samples into a store; made by `SampleStore.writer`.

    A file is published when it is full, when its first row is `roll_s` old, and by `flush` and `close`. It appears
    atomically, under a unique name. If a writer is killed at any moment, readers see no partial file.

    Threads: used by one thread at a time, in the process that made it; any thread may call `abort`. A thread of its own
    publishes by age, and ends with the writer. Memory: about one row group.
    """

    def __init__(self, state: WriterState) -> None:
        self._state = state
        self._pid = os.getpid()
        self._status: Literal["open", "closed", "aborted"] = "open"
        self._thread = Thread(target=_work, args=(state,), name="parquet_loader-roller", daemon=True)
        self._finalizer = weakref.finalize(self, _forgotten, state, self._thread)
        try:
            with starting_threads(f"{state.root}: a writer"):
                uninterrupted(self._thread.start)
        except SystemReadError:
            self._finalizer.detach()
            _discard(state)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __repr__(self) -> str:
        return f"StoreWriter({self._state.root!r}, {self._status}, {self.done.rows} rows published)"

    @property
    def done(self) -> WrittenRows:
        """The rows published and dropped, and the seconds waited, so far."""
        return self._state.done

    def write(self, batch: Any) -> None:
        """Add rows: a dict of columns, row dicts, Arrow data, a frame, or an iterator or reader of any of these.

        Raises:
            DataError, SchemaError: The batch does not fit the schema; the writer can be used further.
            StoreFullError: The store is full, with ``when_full="fail"`` or after `wait_s`. The rows stay buffered, and
                the next call tries again; `flush` does so without further rows. Of an iterable, reader or loader, only
                the rows taken so far are buffered.
            WriteError: The file system refuses (a full disk). Unpublished rows are lost, and the writer is aborted.
            UnfinishedCommitError: The same, but published rows may not be on the disk; `done` counts them.
        """
        self._run(lambda: self._state.write(batch))

    def flush(self) -> WrittenRows:
        """Publish every row written so far, and return a summary. Raises as `write`."""
        self._run(self._state.publish_all)
        return self.done

    def close(self) -> WrittenRows:
        """Publish the remaining rows and end the writer; return a summary. Idempotent. Raises as `write`."""
        if self._status == "closed":
            return self.done
        self.flush()
        self._status = "closed"
        self._end()
        return self.done

    def stop_waiting(self) -> None:
        """Let present and later waits for space raise `WriteError`; any thread may call this."""
        self._state.stop.set()

    def abort(self) -> None:
        """Drop rows that are not published, and end the writer; does nothing after `close`."""
        if self._status == "open" and self._pid == os.getpid():
            self._status = "aborted"
            self._end()

    def _end(self) -> None:
        if self._finalizer.alive:
            _let_go(self._state, self._thread)
            self._finalizer.detach()  # last, so that it ends the thread if a signal interrupts this

    def _run(self, work: Callable[[], None]) -> None:
        """Run a method's work; errors other than unsuitable rows or a full store abort the writer."""
        if self._pid != os.getpid():
            raise WriteError(f"{self!r}: this writer was made before fork(); make one in this process")
        if self._status != "open":
            raise WriteError(f"{self!r}: the writer is {self._status}; store.writer() makes another")
        try:
            with self._state.lock:
                self._state.check()
                work()
        except (StoreFullError, DataError, SchemaError):
            raise
        except BaseException:
            self.abort()
            raise


def _work(state: WriterState) -> None:
    """The work of the writer's thread: publish rows that are old enough; at the end, remove unpublished files."""
    deadline: float | None = None
    try:
        while True:
            try:
                deadline = state.inbox.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
                if deadline is None:
                    return
            except Empty:
                with state.lock:
                    deadline = _publish_if_due(state)
                    state.is_watched = deadline is not None
    except BaseException as error:  # such as MemoryError; for the caller's next call, because rows are dropped below
        state.error = error
    finally:
        _discard(state)


def _discard(state: WriterState) -> None:
    """Remove unpublished files, and release the reservation."""
    with state.lock:
        state.discard()
    with contextlib.suppress(OSError):
        state.reservation.close()


def _publish_if_due(state: WriterState) -> float | None:
    """Publish rows that are old enough, and return when to check again."""
    if state.deadline is None or state.error is not None or time.monotonic() < state.deadline:
        return state.deadline
    try:
        state.publish_all()
    except StoreFullError:
        return time.monotonic() + state.options.roll_s
    except BaseException as error:  # for the caller's next call
        state.error = error
    return None


def _let_go(state: WriterState, thread: Thread) -> None:
    """End a writer and its thread. If a finaliser runs this under the store's lock, it does not wait for the thread."""
    if not state.reservation.is_here:
        return  # a forked child has no thread
    state.stop.set()
    state.inbox.put(None)
    if thread is not current_thread() and not holds_exclusive():
        thread.join()


def _forgotten(state: WriterState, thread: Thread) -> None:
    """End a writer that was never closed, and warn of lost rows."""
    rows, root = state.buffered_rows if state.reservation.is_here else 0, state.root
    _let_go(state, thread)
    if rows:
        warnings.warn(
            f"{root}: the writer was never closed, and {rows:,} rows that it had not published are lost; close(), "
            "flush() or the end of a with block publishes them",
            RuntimeWarning,
            stacklevel=2,
        )
