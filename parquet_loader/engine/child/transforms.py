"""``transform_workers=N``: runs `transform` in N processes, each with its own GIL.

A thread of the engine serves each process: it copies the rows of a batch to shared memory, waits for the batch, and
returns arrays over the shared memory that the process filled. The processes start with the first epoch. After an epoch
that delivers all of its batches, they are kept for the next one. They are killed if an epoch is left early or fails,
when the loader is closed or garbage-collected, and at interpreter exit. Killing them is safe, because nothing that they
hold has a name in a file system.
"""

from __future__ import annotations

import os
import pickle
import weakref
from contextlib import suppress
from functools import partial
from threading import RLock

from parquet_loader.common import has_gil, uninterrupted
from parquet_loader.engine.batch_processor import BatchProcessor, ProcessedBatch, allocated
from parquet_loader.engine.child.channel import Channel
from parquet_loader.engine.child.packed_transform import PackedTransform
from parquet_loader.engine.child.process import death, reap, start_process, unpacked_error
from parquet_loader.engine.child.shared_memory import SharedMemoryReceiver, SharedMemorySender, check_shared_memory
from parquet_loader.engine.child.transform_server import PLACE, MadeBatch, MakeBatch, UnprocessedBatch, UseTransform
from parquet_loader.errors import LoaderStateError, ParquetLoaderError
from parquet_loader.window import Allocator, Window

# If there is a process for each processor, further threads of numerical libraries only compete for the processors.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def transform_option(count: int) -> str:
    """Return the argument as error messages name it."""
    return f"transform_workers={count}"


def check_transform_workers(count: int) -> int:
    """Return the number of processes to start: 0 on a free-threaded Python, where threads run Python code in parallel.

    Raises:
        UnsupportedError: The system has no unnamed shared memory.
    """
    if not has_gil():
        return 0
    if count:
        check_shared_memory(transform_option(count), transform_option(0))
    return count


class TransformProcesses:
    """The processes of one loader. The threads of one epoch at a time use them.

    Args:
        transform: The caller's function.
        count: Number of processes.
        is_nested: Whether the library's child process starts them; then they join its process group.
    """

    def __init__(self, transform: PackedTransform, count: int, *, is_nested: bool = False) -> None:
        self._transform = pickle.dumps(transform)
        self._option = transform_option(count)
        self._is_nested = is_nested
        self._count = count
        self._running: list[_Process] = []
        self._finalizer = weakref.finalize(self, _end_all, self._running)

    def start(self, keep_bytes: int) -> None:
        """Start the processes that are not running; called between epochs.

        Args:
            keep_bytes: Limit of free shared memory of all processes together.

        Raises:
            ReadingProcessError, OpenFilesError: A process cannot be started.
        """
        for process in [process for process in self._running if not process.is_alive]:
            self._running.remove(process)
            process.end()
        while len(self._running) < self._count:
            uninterrupted(partial(self._start, keep_bytes // self._count))

    def _start(self, keep_bytes: int) -> None:
        begin = UseTransform(self._option, self._transform, keep_bytes)
        self._running.append(_Process(begin, has_own_group=not self._is_nested))

    def lanes(self, processor: BatchProcessor) -> list[TransformLane]:
        """Return a lane for each process, for one epoch."""
        return [TransformLane(self._running, number, processor) for number in range(self._count)]

    def kill(self) -> None:
        """Kill the processes, so that no thread waits for one; `end` reaps them. Any thread may call it."""
        for process in tuple(self._running):
            process.kill()

    def end(self) -> None:
        """End the processes; idempotent. Delivered batches stay valid."""
        _end_all(self._running)


def _end_all(running: list[_Process]) -> None:
    for process in tuple(running):
        process.kill()
    while running:
        running.pop().end()


class TransformLane:
    """Makes batches of one epoch in one process, with the method of `BatchProcessor`. Used by one thread.

    Args:
        running: The running processes; shared with `TransformProcesses`, which adds and removes them.
        number: The position of this lane's process among them.
        processor: The processor of the epoch; the process calls its own copy of `transform`.

    Attributes:
        cpu_s: Processor seconds that the process took for the last batch.
    """

    def __init__(self, running: list[_Process], number: int, processor: BatchProcessor) -> None:
        self._running = running
        self._number = number
        self._processor: bytes | None = pickle.dumps(processor.with_transform(None))
        self.cpu_s = 0.0

    def __call__(self, window: Window, start: int, stop: int, batch: int, allocator: Allocator) -> ProcessedBatch:
        """Return rows ``start`` to ``stop`` of a window as batch number `batch`; see `BatchProcessor`.

        Raises:
            ReadingProcessError: The process has ended.
            Exception: As `BatchProcessor`, with the traceback of the process as a note.
        """
        self.cpu_s = 0.0
        try:
            process = self._running[self._number]
        except IndexError:
            raise LoaderStateError("the loader was closed while a batch was awaited") from None
        rows = UnprocessedBatch(stop - start, batch, window.slice(start, stop))
        made, self.cpu_s = process.make(rows, self._processor)
        self._processor = None
        return allocated(made, allocator)

    @property
    def holds_free_memory(self) -> bool:
        """Whether the process keeps memory of batches that are freed here; any thread may ask."""
        running = self._running[self._number : self._number + 1]
        return bool(running) and running[0].holds_free_memory

    def free_memory(self) -> None:
        """Return that memory to the system now, not only when the process makes its next batch."""
        for process in self._running[self._number : self._number + 1]:
            process.free_memory()


class _Process:
    """A running process, its channel, and the shared memory of both directions.

    One thread at a time calls `make` or `free_memory`. Any thread may call `kill` and `end`. If a thread uses the
    channel during `end`, that thread closes it, so no file descriptor is closed under a waiting thread.
    """

    def __init__(self, begin: UseTransform, *, has_own_group: bool) -> None:
        self._lock = RLock()  # reentrant, because a finaliser may run under it; guards the next two
        self._is_used = False
        self._is_ended = False
        self._pid = os.getpid()
        self._begin: UseTransform | None = begin
        self._sender = SharedMemorySender(begin.option)
        self._sender.limit(begin.keep_bytes)
        self._receiver = SharedMemoryReceiver(begin.option)
        environment = {**dict.fromkeys(_ONE_THREAD, "1"), **os.environ}
        module = "parquet_loader.engine.child.transform_server"
        self._process, end = start_process(begin.option, module, has_own_group=has_own_group, environment=environment)
        self._channel = Channel(end, f"{begin.option}: a batch")
        self._name = f"{begin.option}: {PLACE}"
        self._pidfd: int | None = None
        with suppress(AttributeError, OSError):  # old or simulated kernels have no pidfd; then the socket tells the end
            self._pidfd = os.pidfd_open(self._process.pid)

    @property
    def is_alive(self) -> bool:
        """Whether the process runs, and this is the process that started it."""
        return self._pid == os.getpid() and not self._is_ended and self._process.poll() is None

    def make(self, rows: UnprocessedBatch, processor: bytes | None) -> tuple[ProcessedBatch, float]:
        """Let the process make a batch; return the batch and its processor seconds.

        Raises:
            ReadingProcessError: The process has ended.
            BaseException: An error in the process.
        """
        if not self._begin_use():
            raise LoaderStateError("the loader was closed while a batch was awaited")
        try:
            made = self._exchange(rows, processor)
            if made.error is None:
                assert made.parcel is not None
                batch: ProcessedBatch = self._receiver.unpack(made.parcel)
                return batch, made.cpu_s
        except ParquetLoaderError:
            raise
        except (EOFError, OSError):
            error = death(self._process, self._name)
            error.add_note(f"raised in batch {rows.batch}")
            raise error from None
        finally:
            self._end_use()
        raise unpacked_error(made.error)

    @property
    def holds_free_memory(self) -> bool:
        """Whether batches were freed here of which the process has not been told; any thread may ask."""
        return self._receiver.has_ended

    def free_memory(self) -> None:
        """Return the memory of these batches to the system."""
        if self._begin_use():
            try:
                self._receiver.free_ended()
            finally:
                self._end_use()

    def _begin_use(self) -> bool:
        with self._lock:
            self._is_used = not self._is_ended
            return self._is_used

    def _end_use(self) -> None:
        with self._lock:
            self._is_used = False
            if self._is_ended:
                self._close()

    def _exchange(self, rows: UnprocessedBatch, processor: bytes | None) -> MadeBatch:
        if self._begin is not None:
            self._channel.send(self._begin)
            self._begin = None
        parcel, files = self._sender.pack(rows)
        self._channel.send(MakeBatch(parcel, processor, self._receiver.ended()), files)
        self._sender.sent(parcel)
        self._channel.wait(self._pidfd)
        if not self._channel.has_message:  # the process has ended, and a process that it forked keeps the socket
            raise EOFError
        made = self._channel.receive()
        assert isinstance(made, MadeBatch)
        for number, nbytes in () if made.parcel is None else made.parcel.new:
            self._channel.receive_file(partial(self._receiver.add_block, number, nbytes))
        self._sender.take_back(made.unused)
        return made

    def kill(self) -> None:
        """Kill the process; does nothing in a forked copy of the process that started it."""
        if self._pid == os.getpid():
            self._process.kill()

    def end(self) -> None:
        """Kill and reap the process; idempotent. Does nothing in a forked copy of the process that started it."""
        if self._pid != os.getpid():
            return
        self._process.kill()
        reap(self._process)
        with self._lock:
            if not self._is_ended:
                self._is_ended = True
                if not self._is_used:
                    self._close()

    def _close(self) -> None:
        self._channel.close()
        self._sender.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        self._receiver.release()
