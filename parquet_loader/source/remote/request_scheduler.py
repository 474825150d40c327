"""Schedules requests to a store: a concurrency limit, deadlines, retries and hedged requests."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from parquet_loader.common import RemoteOptions, format_bytes, format_count, remedy
from parquet_loader.errors import RemoteError, SourceError
from parquet_loader.source.byte_ranges import ByteRange
from parquet_loader.source.files import SourceFile
from parquet_loader.source.remote.backoff import FIRST_WAIT_S, Backoff
from parquet_loader.source.remote.client import Bytes, Client, PermanentError, TransientError, UnsupportedServerError
from parquet_loader.source.remote.concurrency import FIRST_REQUESTS, HEDGE_LEAST_S, ConcurrencyLimit, Hedging
from parquet_loader.source.remote.task_group import ended

# A request and its hedges.
_MOST_AT_ONCE = 3
# A client that does not report progress is given the time that this slow bandwidth takes.
_LEAST_BYTES_PER_S = 2**18
# How clients and stores say that there is no such file.
_GONE = re.compile(r"vanished|not found|does not exist|NoSuchKey", re.IGNORECASE)


@dataclass(slots=True)
class RemoteFigures:
    """Counters of remote requests.

    Attributes:
        requests: Requests, including retries and hedged ones.
        fetched_bytes: Bytes received, including gaps between columns and duplicate answers.
        retries: Requests that were repeated because an earlier attempt failed.
        hedged: Requests that were made a second time because the first was slow.
        row_groups: Row groups fetched to memory.
        row_group_requests: Ranges fetched for these row groups.
        most_in_flight: The most requests at a time.
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
            f"fetched {format_bytes(self.fetched_bytes)} in {format_count(self.requests, 'request')}, at most "
            f"{self.most_in_flight} at a time; {format_count(self.row_groups, 'row group')} as "
            f"{format_count(self.row_group_requests, 'range')}; {self.retries} retries, "
            f"{format_count(self.hedged, 'hedged request')}"
        )


class RequestScheduler:
    """Makes the requests to a store. Used only in one event loop.

    Args:
        make_client: Makes the client; ``make_client(True)`` makes another one if the first does not support the server.
        options: Deadlines and limits.
        name_of: Returns the name of a path, for messages.
        first_requests: The first limit of requests in flight.
        backoff_s: The wait before the second attempt.
    """

    def __init__(
        self,
        make_client: Callable[[bool], Client],
        options: RemoteOptions,
        name_of: Callable[[str], str] = str,
        first_requests: int = FIRST_REQUESTS,
        *,
        backoff_s: float = FIRST_WAIT_S,
    ) -> None:
        self._backoff_s = backoff_s
        self.figures = RemoteFigures()
        self._make_client = make_client
        self.options = options
        self._name_of = name_of
        self._first_requests = first_requests
        self._client: Client | None = None
        self._is_plain = False
        self._in_flight = 0
        self._asking = 0  # requests in flight including hedged ones, which do not count for the limit
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._limit = ConcurrencyLimit(options.max_requests, 0.0, first_requests)
        self._hedging = Hedging()

    def begin(self) -> None:
        """Start the clock of the concurrency limit; called in the event loop."""
        self._limit = ConcurrencyLimit(
            self.options.max_requests, asyncio.get_running_loop().time(), self._first_requests
        )

    def close(self) -> None:
        """Release connections; called when no request is in flight any more."""
        if self._client is not None:
            self._client.close()

    async def read(self, file: SourceFile, span: ByteRange, into: Bytes) -> None:
        """Fill a buffer with a range; repeat failed requests until the deadline.

        Raises:
            SourceError: the request failed permanently; a `RemoteError` if the store did not answer. Nothing is written
                to the buffer after that.
        """
        loop, options = asyncio.get_running_loop(), self.options
        began_s, give_up_s, attempts, said, backoff = 0.0, 0.0, 0, "", Backoff(self._backoff_s)
        while True:
            asked_s = loop.time()
            await self._take_slot(again=attempts > 0)
            # The deadline counts the time of the store and the waits between attempts, not the wait for a slot.
            if attempts:
                give_up_s += loop.time() - asked_s
            else:
                began_s, give_up_s = loop.time(), loop.time() + options.deadline_s
            attempts += 1
            asked_to_wait_s: float | None = None
            was_plain = self._is_plain
            try:
                await self._raced(file, span, into, give_up_s)
                return
            except UnsupportedServerError as error:
                if was_plain:
                    raise self._lasting(file, span, attempts, error) from None
                if not self._is_plain:  # another request may have changed the client already
                    self._client, self._is_plain = self._make_client(True), True
                continue
            except PermanentError as error:
                raise self._lasting(file, span, attempts, error) from None
            except TransientError as error:
                if error.is_busy:
                    self._limit.busy(loop.time())
                asked_to_wait_s = error.wait_s
                if not said or loop.time() < give_up_s:  # an attempt that the deadline ended has no useful message
                    said = str(error)
            finally:
                self._free_slot()
            give_up_s -= backoff.asked_s
            wait_s = backoff.next_s(asked_to_wait_s)
            give_up_s += backoff.asked_s
            if loop.time() + wait_s >= give_up_s:
                raise RemoteError(
                    f"{self._where(file, span)}: {_times(attempts)} in {loop.time() - began_s:.1f} s without success, "
                    f"the last: {said}; RemoteOptions(deadline_s=...) sets how long requests are retried"
                )
            self.figures.retries += 1
            await asyncio.sleep(wait_s)

    async def _raced(self, file: SourceFile, span: ByteRange, into: Bytes, give_up_s: float) -> None:
        """Make one attempt, hedged by further ones if it is slow; the first answer wins."""
        loop = asyncio.get_running_loop()
        running, hedges = {loop.create_task(self._attempt(file, span, into, give_up_s))}, 0
        failure: BaseException | None = None
        try:
            while running:
                if self.options.hedge and len(running) < _MOST_AT_ONCE and await self._is_slow(span, running):
                    if self._hedging.may():
                        hedges += 1
                        self.figures.hedged += 1
                        running.add(loop.create_task(self._attempt(file, span, into, give_up_s)))
                    else:
                        await asyncio.wait(running, timeout=HEDGE_LEAST_S, return_when=asyncio.FIRST_COMPLETED)
                    continue
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                errors = [task.exception() for task in done]
                if None in errors:
                    return
                failure = next((e for e in errors if not isinstance(e, TransientError)), errors[0])
                assert failure is not None
                if not isinstance(failure, TransientError):
                    raise failure
            assert failure is not None
            raise failure
        finally:
            self._hedging.ended(hedges)
            await ended(running)  # so that no attempt writes to the buffer any more

    async def _is_slow(self, span: ByteRange, running: set[asyncio.Task[None]]) -> bool:
        """Wait until a request has ended (return False), or takes several times as long as others (return True)."""
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
        self._asking += 1
        self.figures.most_in_flight = max(self.figures.most_in_flight, self._asking)
        began_s = loop.time()
        if not self._client.tells_progress:
            stall_s += span.size / _LEAST_BYTES_PER_S
        try:
            async with asyncio.timeout_at(min(began_s + stall_s, give_up_s)) as timer:
                await self._client.read(
                    file, span, into, lambda: timer.reschedule(min(loop.time() + stall_s, give_up_s))
                )
        except TimeoutError:
            reason = "the deadline"
            if loop.time() < give_up_s:
                reason = f"no byte arrived for {stall_s:.3g} s"
                self._limit.busy(loop.time())  # too many requests for a low bandwidth look like a busy store
            raise TransientError(f"given up after {loop.time() - began_s:.1f} s: {reason}") from None
        finally:
            self._asking -= 1
        self.figures.fetched_bytes += span.size
        self._hedging.took(span.size, loop.time() - began_s)
        self._limit.arrived(span.size, loop.time())

    # ------------------------------------------------------------------ slots: the limit of requests, retries first

    async def _take_slot(self, *, again: bool) -> None:
        """Wait until a request may be made; a retry goes before all first attempts."""
        if self._in_flight >= self._limit.requests:
            self._limit.full()
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if again:
                self._waiting.appendleft(turn)
            else:
                self._waiting.append(turn)
            try:
                await turn  # `_free_slot` has taken the slot for this request
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._free_slot()
                raise
        else:
            self._in_flight += 1

    def _free_slot(self) -> None:
        self._in_flight -= 1
        while self._waiting and self._in_flight < self._limit.requests:
            turn = self._waiting.popleft()
            if not turn.done():
                self._in_flight += 1
                turn.set_result(None)

    # ------------------------------------------------------------------ messages

    def _where(self, file: SourceFile, span: ByteRange) -> str:
        name = file.name if "://" in file.name else self._name_of(file.path)
        return f"{name}, bytes {span.start} to {span.stop}"

    def _lasting(self, file: SourceFile, span: ByteRange, attempts: int, error: Exception) -> SourceError:
        note = f"; {file.if_gone}" if file.if_gone and _GONE.search(str(error)) else ""
        return SourceError(
            f"{self._where(file, span)}: the request failed permanently after {_times(attempts)}: "
            f"{error}{remedy(str(error))}{note}"
        )


def _times(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"
