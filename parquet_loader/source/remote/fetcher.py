"""Fetches byte ranges for all other threads, on one thread with an event loop.

`start` starts the thread. `close` cancels requests in flight and joins the thread, so a request without an answer does
not block. The thread is a daemon. After `close` no callback is called.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Hashable, Sequence
from concurrent.futures import Future
from threading import Event, RLock, Thread, current_thread, local
from typing import Any, Self, TypeVar

from parquet_loader.common import (
    is_out_of_descriptors,
    out_of_descriptors,
    result_of,
    starting_threads,
    uninterrupted,
)
from parquet_loader.errors import LoaderStateError, RemoteError
from parquet_loader.source.byte_ranges import ByteRange
from parquet_loader.source.files import SourceFile
from parquet_loader.source.remote.blocking_client import CallThreads
from parquet_loader.source.remote.client import Bytes
from parquet_loader.source.remote.request_scheduler import RequestScheduler
from parquet_loader.source.remote.task_group import TaskGroup, ended

T = TypeVar("T")

# The most blocking calls at a time, such as those of the local cache.
_MOST_CALLS = 32

_calling = local()


class Fetcher:
    """Fetches ranges; see above. Any thread may call its functions; coroutines run on the event loop's thread.

    Args:
        requests: Makes the requests; owned by this fetcher.
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
            SystemReadError: the system starts no more threads.
            RemoteError: the thread cannot make requests.
        """
        uninterrupted(self._start)

    def _start(self) -> None:
        with starting_threads("remote files cannot be fetched"):
            self.thread.start()
        self._ready.wait()
        if self._failed is not None:
            if is_out_of_descriptors(self._failed):
                raise out_of_descriptors("remote files cannot be fetched", 3) from None
            raise RemoteError(f"the thread for remote requests cannot be started: {self._failed}") from self._failed

    def close(self, *, wait: bool = True) -> None:
        """Cancel requests in flight, and end the thread; idempotent, and safe in any thread and in a forked child."""
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
            self._failed = error  # for example, no file descriptors are left
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

    # ------------------------------------------------------------------ for other threads

    def begin(self, work: Coroutine[Any, Any, T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run a coroutine on the event loop; `done` is called there with its result or error.

        Raises:
            LoaderStateError: the fetcher is closed. If it is closed later, `done` receives this error.
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

        with self._lock:  # so that the task begins before `close` ends the loop
            if self.is_here:
                assert self._loop is not None
                self._loop.call_soon_threadsafe(start)
                return
        work.close()
        raise LoaderStateError("the loader was closed while a file was fetched")

    @property
    def is_here(self) -> bool:
        """Whether it was started in this process, and is not closed."""
        return self._loop is not None and not self._is_closed and self.is_of_this_process

    @property
    def is_of_this_process(self) -> bool:
        """Whether it was made in this process, not in one from which this one was forked."""
        return self._pid == os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop, wait for it, and return its result."""
        outcome: Future[Any] = Future()

        def done(result: Any, error: BaseException | None) -> None:
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        self.begin(work, done)
        result: T = result_of(outcome)
        return result

    # ------------------------------------------------------------------ on the event loop

    async def call(self, function: Callable[[], T]) -> T:
        """Call a blocking function on another thread, in which `Fetcher.current` returns this fetcher."""

        def call() -> T:
            _calling.fetcher = self
            return function()

        if self._threads is None:
            self._threads = CallThreads(_MOST_CALLS)
        return await self._threads.call(call)

    @staticmethod
    def current() -> Fetcher | None:
        """Return the fetcher for which this thread runs a `call`, or None."""
        return getattr(_calling, "fetcher", None)

    async def once(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the coroutine that runs for this key; it is started if there is none."""
        task = self._shared.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(work())

            def ended(task: asyncio.Task[T]) -> None:
                self._tasks.discard(task)
                del self._shared[key]
                if not task.cancelled():
                    task.exception()  # if all callers were cancelled, asyncio would print it

            self._shared[key] = task
            self._tasks.add(task)
            task.add_done_callback(ended)
        result: T = await asyncio.shield(task)
        return result

    async def read_all(self, file: SourceFile, ranges: Sequence[ByteRange], buffers: Sequence[Bytes]) -> None:
        """Fill each buffer with its range, concurrently.

        Raises:
            SourceError: see `RangeFetcher`; no buffer is written to after that.
        """
        if len(ranges) == 1:
            await self._requests.read(file, ranges[0], buffers[0])
            return
        async with TaskGroup() as together:
            for span, buffer in zip(ranges, buffers, strict=True):
                together.add(self._requests.read(file, span, buffer))
