"""Ranges fetched by one thread with an event loop: many in flight, with deadlines, retries and second requests.

Life. `start` begins the thread, `close` cancels what is in flight and joins it: a request that a server never answers
holds nothing up. The thread is a daemon besides. After `close` nothing is called back any more.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Event, RLock, Thread, current_thread, local
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa

from parquet_loader.errors import LoaderStateError, RemoteError, SourceError
from parquet_loader.interrupts import uninterrupted
from parquet_loader.options import RemoteOptions
from parquet_loader.ranges import ByteRange
from parquet_loader.remote.blocking import Threads
from parquet_loader.remote.client import Bytes, Client, LastingError, PassingError, UnservedError
from parquet_loader.remote.pace import FIRST_REQUESTS, HEDGE_LEAST_S, Hedging, Limit
from parquet_loader.source import SourceFile
from parquet_loader.types import format_bytes

T = TypeVar("T")

# Row groups on their way into the local cache.
_MOST_CALLS = 32

# A request and those that were made beside it because it was slow, which may be slow as well.
_MOST_AT_ONCE = 3

_calling = local()


@dataclass(slots=True)
class RemoteFigures:
    """What fetching took.

    Attributes:
        requests: Requests made, all attempts together.
        fetched_bytes: Bytes that came, gaps between columns included, and what came twice.
        retries: Requests made again because one before had failed.
        hedged: Requests made a second time because the first was slow.
        row_groups: Row groups fetched whole.
        row_group_requests: Ranges that these were fetched as.
        most_in_flight: Most requests at a time.
    """

    requests: int = 0
    fetched_bytes: int = 0
    retries: int = 0
    hedged: int = 0
    row_groups: int = 0
    row_group_requests: int = 0
    most_in_flight: int = 0

    def __str__(self) -> str:
        return (
            f"fetched {format_bytes(self.fetched_bytes)} in {self.requests} requests, at most {self.most_in_flight} at "
            f"a time; {self.row_groups} row groups as {self.row_group_requests} ranges; {self.retries} tried again, "
            f"{self.hedged} asked for twice"
        )


class Fetcher:
    """Fetches ranges; see above. Any thread may call it, and the event loop's own thread its coroutines.

    Args:
        make_client: Makes what asks the store, or another where one cannot (``make_client(True)``).
        options: Deadlines and limits.
        name_of: How messages name a file.
        first_requests: Requests in flight to begin with.
    """

    def __init__(
        self,
        make_client: Callable[[bool], Client],
        options: RemoteOptions,
        name_of: Callable[[str], str] = str,
        first_requests: int = FIRST_REQUESTS,
    ) -> None:
        self.figures = RemoteFigures()
        self._make_client = make_client
        self.options = options
        self._name_of = name_of
        self._client: Client | None = None
        self._is_plain = False
        self._pid = os.getpid()
        self._ready = Event()
        self.thread = Thread(target=self._work, name="parquet_loader-remote", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self._is_closed = False
        self._lock = RLock()
        self._threads: Threads | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._first_requests = first_requests
        self._limit = Limit(options.max_requests, 0.0, first_requests)
        self._hedging = Hedging()

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Start the thread."""
        uninterrupted(self._start)

    def _start(self) -> None:
        self.thread.start()
        self._ready.wait()

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
        with asyncio.Runner() as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ending = asyncio.Event()
        self._limit = Limit(self.options.max_requests, self._loop.time(), self._first_requests)
        self._ready.set()
        try:
            await self._ending.wait()
        finally:
            await _ended(list(self._tasks))
            for closing in (self._client, self._threads):
                if closing is not None:
                    closing.close()

    # ------------------------------------------------------------------ what others ask for

    def begin(self, work: Coroutine[Any, Any, T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run a coroutine on the event loop; `done` takes there what it returns or raises.

        Raises:
            LoaderStateError: the fetcher is closed. `done` takes the same where that happens later.
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
        """Return what a coroutine returns on the event loop, waiting for it; interrupted, let go of it."""
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
        places = [np.empty(r.size, np.uint8) for r in ranges]
        self.run(self.read_all(file, ranges, places))
        return [pa.py_buffer(place) for place in places]

    # ------------------------------------------------------------------ on the event loop

    async def call(self, function: Callable[[], T]) -> T:
        """Return what a blocking function returns, called on a thread of its own, where `Fetcher.current` is this."""

        def call() -> T:
            _calling.fetcher = self
            return function()

        if self._threads is None:
            self._threads = Threads(_MOST_CALLS)
        return await self._threads.call(call)

    @staticmethod
    def current() -> Fetcher | None:
        """Return the fetcher on whose behalf this thread calls, or None."""
        return getattr(_calling, "fetcher", None)

    async def read_all(self, file: SourceFile, ranges: Sequence[ByteRange], places: Sequence[Bytes]) -> None:
        """Fill each place with its range, side by side. Raises as `fetch`; then none is written to any more."""
        if len(ranges) == 1:
            await self._read(file, ranges[0], places[0])
            return
        async with _Together() as together:
            for span, place in zip(ranges, places, strict=True):
                together.add(self._read(file, span, place))

    async def _read(self, file: SourceFile, span: ByteRange, into: Bytes) -> None:
        """Fill a place, however many attempts it takes."""
        loop, options = asyncio.get_running_loop(), self.options
        give_up_s = loop.time() + options.deadline_s
        began_s, attempts, said = loop.time(), 0, ""
        while True:
            attempts += 1
            await self._take_slot()
            was_plain = self._is_plain
            try:
                await self._raced(file, span, into, give_up_s)
                return
            except UnservedError as error:
                if was_plain:
                    raise self._lasting(file, span, attempts, error) from None
                if not self._is_plain:  # others in flight may have found out before
                    self._client, self._is_plain = self._make_client(True), True
                continue
            except LastingError as error:
                raise self._lasting(file, span, attempts, error) from None
            except PassingError as error:
                if error.is_busy:
                    self._limit.busy(loop.time())
                if not said or loop.time() < give_up_s:  # what the deadline cut short says nothing about the store
                    said = str(error)
            finally:
                self._free_slot()
            wait_s = min(options.backoff_s * 2 ** min(attempts - 1, 16), 20.0) * random.uniform(0.5, 1.0)
            if attempts >= options.attempts or loop.time() + wait_s >= give_up_s:
                raise RemoteError(
                    f"{self._where(file, span)}: {_times(attempts)} in {loop.time() - began_s:.1f} s without success, "
                    f"the last: {said}; RemoteOptions(attempts=..., deadline_s=...) says how long to go on trying"
                )
            self.figures.retries += 1
            await asyncio.sleep(wait_s)

    async def _raced(self, file: SourceFile, span: ByteRange, into: Bytes, give_up_s: float) -> None:
        """Make one attempt, and where it takes long a second one beside it; the first answer counts."""
        loop = asyncio.get_running_loop()
        running, beside = {loop.create_task(self._attempt(file, span, into, give_up_s))}, 0
        try:
            while self.options.hedge and len(running) < _MOST_AT_ONCE and await self._is_slow(span, running):
                if not self._hedging.may():
                    await asyncio.wait(running, timeout=HEDGE_LEAST_S, return_when=asyncio.FIRST_COMPLETED)
                    continue
                beside += 1
                self.figures.hedged += 1
                running.add(loop.create_task(self._attempt(file, span, into, give_up_s)))
            failure: BaseException | None = None
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                errors = [task.exception() for task in done]
                if None in errors:
                    return
                failure = next((e for e in errors if not isinstance(e, PassingError)), errors[0])
                assert failure is not None
                if not isinstance(failure, PassingError):
                    raise failure
            assert failure is not None
            raise failure
        finally:
            self._hedging.ended(beside)
            await _ended(running)  # none of them writes to the place any more

    async def _is_slow(self, span: ByteRange, running: set[asyncio.Task[None]]) -> bool:
        """Wait until a request has ended, or takes several times as long as others did; return whether it does."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while not any(task.done() for task in running):
            after_s = self._hedging.after_s(span.size)
            left_s = HEDGE_LEAST_S if after_s is None else began_s + after_s - loop.time()
            if left_s <= 0:
                return True
            await asyncio.wait(running, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        return False

    async def _attempt(self, file: SourceFile, span: ByteRange, into: Bytes, give_up_s: float) -> None:
        loop, stall_s = asyncio.get_running_loop(), self.options.stall_s
        if self._client is None:
            self._client = self._make_client(False)
        self.figures.requests += 1
        began_s = loop.time()
        try:
            async with asyncio.timeout_at(min(began_s + stall_s, give_up_s)) as timer:
                await self._client.read(
                    file, span, into, lambda: timer.reschedule(min(loop.time() + stall_s, give_up_s))
                )
        except TimeoutError:
            reason = "the deadline" if loop.time() >= give_up_s else f"no byte came for {stall_s:g} s"
            raise PassingError(f"given up after {loop.time() - began_s:.1f} s: {reason}") from None
        self.figures.fetched_bytes += span.size
        self._hedging.took(span.size, loop.time() - began_s)
        self._limit.arrived(span.size, loop.time())

    # ------------------------------------------------------------------ how many at a time, first come first served

    async def _take_slot(self) -> None:
        if self._in_flight >= self._limit.requests:
            self._limit.full()
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn  # the slot comes with it
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._free_slot()
                raise
        else:
            self._in_flight += 1
        self.figures.most_in_flight = max(self.figures.most_in_flight, self._in_flight)

    def _free_slot(self) -> None:
        self._in_flight -= 1
        while self._waiting and self._in_flight < self._limit.requests:
            turn = self._waiting.popleft()
            if not turn.done():
                self._in_flight += 1
                turn.set_result(None)

    # ------------------------------------------------------------------ messages

    def _where(self, file: SourceFile, span: ByteRange) -> str:
        return f"{self._name_of(file.path)}, bytes {span.start} to {span.stop}"

    def _lasting(self, file: SourceFile, span: ByteRange, attempts: int, error: Exception) -> SourceError:
        return SourceError(f"{self._where(file, span)}: {_times(attempts)}, not to be repeated: {error}")


def _times(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"


async def _ended(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def side_by_side(work: Callable[[int], Awaitable[T]], numbers: Sequence[int], most: int) -> dict[int, T]:
    """Return what `work` gives for each number, at most so many at a time; the first in order that fails is raised."""
    left, found, errors = iter(numbers), dict[int, T](), dict[int, Exception]()

    async def take() -> None:
        for number in left:
            if errors:
                return
            try:
                found[number] = await work(number)
            except Exception as error:
                errors[number] = error

    async with _Together() as together:
        for _ in range(min(most, len(numbers))):
            together.add(take())
    if errors:
        raise errors[min(errors)]
    return found


class _Together:
    """Runs coroutines side by side; the first that fails ends all, and its own error is what is raised."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.gather(*self._tasks)
        finally:
            await _ended(self._tasks)
