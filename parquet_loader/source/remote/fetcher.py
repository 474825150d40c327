"""Fetches byte ranges for all other threads, on one thread with an event loop.

`start` begins the thread. `close` cancels requests in flight and joins the thread, so a request without an answer
blocks nothing. The thread is a daemon. After `close` no callback is called.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Hashable, Sequence
from concurrent.futures import Future
from threading import Event, RLock, Thread, current_thread, local
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa

from parquet_loader.common import is_out_of_descriptors, out_of_descriptors, uninterrupted
from parquet_loader.errors import LoaderStateError, RemoteError
from parquet_loader.source.byte_ranges import ByteRange
from parquet_loader.source.files import SourceFile
from parquet_loader.source.remote.blocking_client import CallThreads
from parquet_loader.source.remote.client import Bytes
from parquet_loader.source.remote.request_scheduler import RequestScheduler
from parquet_loader.source.remote.task_group import TaskGroup, ended

T = TypeVar("T")

# Row groups being fetched into the local cache.
_MOST_CALLS = 32

_calling = local()


class Fetcher:
    """Fetches ranges; see above. Any thread may call it, and the event loop's own thread its coroutines.

    Args:
        requests: What asks the store; this fetcher's alone from now on.
    """

    def __init__(self, requests: RequestScheduler) -> None:
        self._requests = requests
        self.figures = requests.figures
        self.options = requests.options
        self._pid = os.getpid()
        self._ready = Event()
        self._failed: BaseException | None = None
        self.thread = Thread(target=self._work, name="parquet_loader-remote", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self._is_closed = False
        self._lock = RLock()
        self._threads: CallThreads | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._shared: dict[Hashable, asyncio.Task[Any]] = {}

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Start the thread.

        Raises:
            RemoteError: it cannot be started.
        """
        uninterrupted(self._start)

    def _start(self) -> None:
        self.thread.start()
        self._ready.wait()
        if self._failed is not None:
            if is_out_of_descriptors(self._failed):
                raise out_of_descriptors("files that are not local cannot be fetched", 3) from None
            raise RemoteError(f"the thread that fetches could not be started: {self._failed}") from self._failed

    def close(self, *, wait: bool = True) -> None:
        """Cancel what is in flight, and end the thread; idempotent, and safe in any thread and in a forked child."""
        if self._pid != os.getpid() or self._loop is None:
            return
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._loop.call_soon_threadsafe(self._end)
        if wait and current_thread() is not self.thread:
            uninterrupted(self.thread.join)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self) -> None:
        assert self._ending is not None
        self._ending.set()

    def _work(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        except BaseException as error:
            if self._ready.is_set():
                raise
            self._failed = error  # no more files can be opened, for example
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ending = asyncio.Event()
        self._requests.begin()
        self._ready.set()
        try:
            await self._ending.wait()
        finally:
            await ended(list(self._tasks))
            self._requests.close()
            if self._threads is not None:
                self._threads.close()

    # ------------------------------------------------------------------ what others ask for

    def begin(self, work: Coroutine[Any, Any, T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run a coroutine on the event loop; `done` takes there what it returns or raises.

        Raises:
            LoaderStateError: the fetcher is closed. `done` takes the same if that happens later.
        """

        def finished(task: asyncio.Task[T]) -> None:
            self._tasks.discard(task)
            if task.cancelled():
                done(None, LoaderStateError("the loader was closed while a file was fetched"))
            else:
                error = task.exception()
                done(None if error is not None else task.result(), error)

        def start() -> None:
            assert self._loop is not None
            task = self._loop.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(finished)

        with self._lock:  # what begins does so before the end
            if self.is_here:
                assert self._loop is not None
                self._loop.call_soon_threadsafe(start)
                return
        work.close()
        raise LoaderStateError("the loader was closed while a file was fetched")

    @property
    def is_here(self) -> bool:
        """Whether it was started in this process, and not closed."""
        return self._loop is not None and not self._is_closed and self.is_of_this_process

    @property
    def is_of_this_process(self) -> bool:
        """Whether it was made here, not in a process from which this one was forked."""
        return self._pid == os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine returns on the event loop, waiting for it; if interrupted, release it."""
        outcome: Future[Any] = Future()

        def done(result: Any, error: BaseException | None) -> None:
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        self.begin(work, done)
        result: T = outcome.result()
        return result

    def fetch(self, file: SourceFile, ranges: Sequence[ByteRange]) -> list[pa.Buffer]:
        """Return the bytes of each range, waiting for them.

        Raises:
            SourceError: see `RangeFetcher`.
        """
        buffers = [np.empty(r.size, np.uint8) for r in ranges]
        self.run(self.read_all(file, ranges, buffers))
        return [pa.py_buffer(buffer) for buffer in buffers]

    # ------------------------------------------------------------------ on the event loop

    async def call(self, function: Callable[[], T]) -> T:
        """Call a blocking function on a thread of its own, in which `Fetcher.current` is this fetcher."""

        def call() -> T:
            _calling.fetcher = self
            return function()

        if self._threads is None:
            self._threads = CallThreads(_MOST_CALLS)
        return await self._threads.call(call)

    @staticmethod
    def current() -> Fetcher | None:
        """Return the fetcher on whose behalf this thread calls, or None."""
        return getattr(_calling, "fetcher", None)

    async def once(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what a coroutine returns that is begun only if none of this name is running."""
        task = self._shared.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(work())

            def ended(task: asyncio.Task[T]) -> None:
                self._tasks.discard(task)
                del self._shared[key]

            self._shared[key] = task
            self._tasks.add(task)
            task.add_done_callback(ended)
        result: T = await asyncio.shield(task)
        return result

    async def read_all(self, file: SourceFile, ranges: Sequence[ByteRange], buffers: Sequence[Bytes]) -> None:
        """Fill each buffer with its range, concurrently. Raises as `fetch`; then none is written to any more."""
        if len(ranges) == 1:
            await self._requests.read(file, ranges[0], buffers[0])
            return
        async with TaskGroup() as together:
            for span, buffer in zip(ranges, buffers, strict=True):
                together.add(self._requests.read(file, span, buffer))
