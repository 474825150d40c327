"""``isolation="process"``: runs the engine in a child process, so that decoding does not share the caller's GIL.

The child starts at the first epoch. After an epoch that ends normally, it is kept for the next one, also if the data
set changes, as a store does. It is killed if an epoch is left early or fails, when the loader is closed or collected as
garbage, and at interpreter exit. Killing it is safe, because nothing that it holds has a name in a file system. The
socket reports the death of either side at once.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from parquet_loader.common import uninterrupted
from parquet_loader.dataset import Dataset
from parquet_loader.engine.batch_processor import ProcessedBatch
from parquet_loader.engine.child.channel import Channel
from parquet_loader.engine.child.packed_transform import by_value
from parquet_loader.engine.child.process import death, reap, start_process, unpacked_error
from parquet_loader.engine.child.server import Begin, Drop, Next, Open, Release, Reply
from parquet_loader.engine.child.shared_memory import ISOLATION, SharedMemoryReceiver, check_shared_memory
from parquet_loader.engine.engine import EngineOptions
from parquet_loader.engine.read_ahead import NextPlan
from parquet_loader.engine.usage import EngineFigures
from parquet_loader.engine.workers.record import EngineRecord, JoinedRecord
from parquet_loader.errors import (
    ConfigurationError,
    LoaderStateError,
    ParquetLoaderError,
    ReadingProcessError,
)
from parquet_loader.plan import Plan
from parquet_loader.window import Memory, StoredWindow, Window


@dataclass(slots=True)
class _Child:
    """A running process, its channel, and the shared memory received from it.

    Attributes:
        pid: The process that started it.
        leads_others: Whether processes of `transform_workers` are in its process group.
    """

    process: subprocess.Popen[bytes]
    channel: Channel
    receiver: SharedMemoryReceiver
    pid: int
    leads_others: bool

    def send(self, message: Any) -> None:
        """Send a message.

        Raises:
            ReadingProcessError: The process has ended.
        """
        try:
            self.channel.send(message)
        except OSError:
            raise self.death() from None

    def death(self) -> ReadingProcessError:
        """Return the error that says how the process ended."""
        return death(self.process, f"{ISOLATION}: the child process that reads")

    def stop(self) -> None:
        """Kill and reap the process; idempotent. Does nothing in a forked copy of the process that started it."""
        if self.pid != os.getpid():
            return
        self.channel.close()
        if self.leads_others and self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        reap(self.process)
        self.receiver.release()


class ReadingProcess:
    """Starts the process that reads a data set, and restarts it after it has ended.

    Args:
        dataset: The data set to read.
        options: How to read it.
        on_block: Called with each block of shared memory that the process sends, when the block is mapped here.

    Attributes:
        on_block: As given.

    Raises:
        ConfigurationError: The data set or the options cannot be pickled.
        UnsupportedError: The system has no unnamed shared memory.
    """

    def __init__(
        self, dataset: Dataset, options: EngineOptions, on_block: Callable[[Memory], None] | None = None
    ) -> None:
        check_shared_memory()
        self.on_block = on_block
        self._dataset = dataset
        self._is_sent = False
        self._options = by_value(options, options.transform)
        self._leads_others = options.transform_workers > 0
        self._packed_dataset()  # raises now if it cannot be sent
        self._child: _Child | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def _packed_dataset(self) -> bytes:
        try:
            return pickle.dumps(self._dataset, protocol=5)
        except Exception as error:
            raise ConfigurationError(
                f"isolation='process': the data set cannot be sent to another process, because its filesystem "
                f"({self._dataset.snapshot.filesystem!r}) or another part cannot be pickled: {error}"
            ) from error

    def use(self, dataset: Dataset) -> None:
        """Read this data set from now on; call it between epochs. A running process opens it for the next epoch."""
        self._dataset, self._is_sent = dataset, False

    def running(self) -> _Child:
        """Return the process, with the data set open; start it if it is not running.

        Raises:
            ReadingProcessError: It cannot be started, or has ended.
        """
        child = self._child
        is_new = child is None or child.pid != os.getpid() or child.process.poll() is not None
        if is_new:
            self.stop()
            uninterrupted(self._start)
            child = self._child
        assert child is not None
        if is_new or not self._is_sent:
            child.send(Open(self._packed_dataset(), self._options if is_new else None))
            self._is_sent = True
            # The child has its own copy of the footers.
            self._dataset.snapshot.footers.clear()
        return child

    def _start(self) -> None:
        # With its own process group, Ctrl-C at a terminal reaches only the caller, which then ends this process.
        process, end = start_process(ISOLATION, "parquet_loader.engine.child.server")
        self._child = _Child(
            process, Channel(end), SharedMemoryReceiver(on_block=self.on_block), os.getpid(), self._leads_others
        )
        self._finalizer = weakref.finalize(self, self._child.stop)

    def stop(self, child: _Child | None = None) -> None:
        """End the process; idempotent. Delivered batches stay valid.

        Args:
            child: The process to end, if another may have been started since; None for the current one.
        """
        if child is not None and child is not self._child:
            child.stop()
            return
        if self._child is not None:
            self._child.stop()
            self._child = None
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None

    def drop_ahead(self) -> None:
        """Tell the process to drop the epoch that it reads ahead; called between epochs."""
        if self._child is None or self._child.pid != os.getpid():
            return
        try:
            self._child.channel.send(Drop())
        except OSError:  # the process has ended
            pass
        except BaseException:  # SIGINT, in the middle of the message
            self.stop()
            raise


class IsolatedEngine:
    """The caller's side of one epoch in the child process, with the methods of `Engine`. Used by one thread at a time.

    Args:
        reading: The process.
        plan: The plan of the epoch.
        first_batch: The batch with which it begins.
        processes: As in `Engine`.
        next_plan: Computes the plan of the next epoch, if the next epoch is read ahead.
    """

    def __init__(
        self,
        reading: ReadingProcess,
        plan: Plan,
        first_batch: int,
        *,
        processes: bool,
        next_plan: NextPlan | None = None,
    ) -> None:
        self.processes = processes
        self._reading = reading
        self._plan, self._first_batch, self._next_plan = plan, first_batch, next_plan
        self._is_first_requested = False
        self._child: _Child | None = None
        self._figures = EngineFigures.nothing()
        self._record = JoinedRecord()
        self._is_over = False
        self._is_closing = False

    def start(self) -> None:
        """Begin reading, and request the first window or batch.

        Raises:
            LoaderStateError: another thread closed the epoch while the process started.
        """
        self._child = child = self._reading.running()
        if self._is_closing:  # `close` saw no process
            self._reading.stop(child)
            raise LoaderStateError("the loader was closed while an epoch began")
        child.send(Begin(child.receiver.ended(), self._plan, self._first_batch, self._next_plan))
        self._is_first_requested = True

    def close(self) -> None:
        """End the epoch; if it is not over, kill the process. Idempotent."""
        if self._is_over:
            return
        self._is_closing = True
        self._reading.stop(self._child)
        self._child = None
        self._is_over = True

    def figures(self) -> EngineFigures:
        """Return the figures of the epoch when the last delivered window or batch was packed."""
        return self._figures

    def record(self) -> EngineRecord:
        """Return the record of jobs and samples up to the last delivered window or batch."""
        return self._record.joined()

    def next_window(self) -> Window | StoredWindow | None:
        """See `Engine.next_window`."""
        window = self._next()
        assert window is None or isinstance(window, Window | StoredWindow)
        return window

    def next_batches(self) -> Sequence[ProcessedBatch]:
        """See `Engine.next_batches`; batches come one by one."""
        batch = self._next()
        assert batch is None or isinstance(batch, ProcessedBatch)
        return () if batch is None else (batch,)

    def release_previous(self) -> None:
        """Say that the consumer has released all batches before the current window's."""
        child = self._child
        if child is not None and not self._is_over:
            child.send(Release(child.receiver.ended()))

    def _next(self) -> Any:
        child = self._child
        if child is None or self._is_over:
            raise LoaderStateError("the loader was closed while a batch was awaited")
        try:
            if not self._is_first_requested:
                child.send(Next(child.receiver.ended()))
            self._is_first_requested = False
            reply = child.channel.receive()
            assert isinstance(reply, Reply)
            for number, nbytes in () if reply.parcel is None else reply.parcel.new:
                child.channel.receive_file(partial(child.receiver.add_block, number, nbytes))
        except ParquetLoaderError:
            raise
        except (EOFError, OSError):
            raise child.death() from None
        self._figures = reply.figures
        self._record.add(reply.record)
        if reply.error is not None:
            raise unpacked_error(reply.error)
        if reply.parcel is None:
            self._is_over = True
            return None
        return child.receiver.unpack(reply.parcel)
