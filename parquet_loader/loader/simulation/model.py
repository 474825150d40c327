"""The engine in simulated time: calibration, plan and budget -> prediction. Pure: no I/O, no clock, no threads.

It follows the rules of `engine/engine.py`: which job a worker takes, which memory a job needs before it may start, and
which row groups are fetched ahead. A job takes the time that the calibration has measured for its rows.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from parquet_loader.loader.simulation.network import LinkRates, Network

# The most windows that are simulated; the rest of an epoch takes as long per row as the second half of these.
MOST_WINDOWS = 192
# Sizes of row groups to be fetched are estimated from earlier ones; the engine reserves this much more.
FETCH_MARGIN = 1.1
# Factors by which jobs of a real epoch differ from the average. Memory use depends on which jobs take longer.
JITTER = (0.4, 2.5)
# A training loop without a step may lose its processor for this long.
PREEMPTED_S = 0.02
JITTERED_RUNS, JITTERED_WINDOWS = 4, 48
# Iterations in which rates are adjusted to a measured pace.
_PACE_STEPS = 3
# Rates matter if a trial takes at least this many times as long when all rates are halved.
_LEAST_EFFECT = 1.5


@dataclass(frozen=True, slots=True)
class ReadLoad:
    """Rows of a window that one worker reads at a time.

    Attributes:
        rows: Number of rows.
        decoding_bytes: Memory that decoding takes, besides the rows.
        fetched_bytes: Bytes to fetch before the read; 0 if files are local, cached, or fetched for an earlier window.
        requests: Number of requests that fetch them.
        freed_bytes: Fetched bytes that are freed after the read.
    """

    rows: int
    decoding_bytes: int
    fetched_bytes: int = 0
    requests: int = 0
    freed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class WindowLoad:
    """The work of one window.

    Attributes:
        reads: Its reads.
        batches: Batches that it delivers.
    """

    reads: tuple[ReadLoad, ...]
    batches: int

    @property
    def rows(self) -> int:
        """Rows that are read for it."""
        return sum(read.rows for read in self.reads)


@dataclass(frozen=True, slots=True)
class EpochLoad:
    """The work of an epoch.

    Attributes:
        windows: Its first windows.
        rows, batches: Rows and batches of the whole epoch.
        requests, fetched_bytes: Requests and fetched bytes of the whole epoch.
    """

    windows: tuple[WindowLoad, ...]
    rows: int
    batches: int
    requests: int = 0
    fetched_bytes: int = 0


@dataclass(frozen=True, slots=True)
class WorkRates:
    """Seconds that workers take, as measured with the same number of threads.

    Attributes:
        read_s, order_s: Seconds for a row: to read and decode it, and to order it.
        first_read_s, first_order_s: The same for the rows of the first windows, whose memory is new.
        first_windows: Number of these windows.
        batch_s: Seconds that the training loop takes to receive a batch that is ready.
        startup_s: Seconds that the measured first batch took longer than its jobs; negative if it took less.
        network: The speed of an object store; None if nothing is fetched.
    """

    read_s: float
    order_s: float
    first_read_s: float
    first_order_s: float
    first_windows: int
    batch_s: float
    startup_s: float = 0.0
    network: LinkRates | None = None


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The limits of the engine, from the memory budget and the loader's arguments.

    Attributes:
        num_threads: Workers.
        windows_ahead: Windows in progress or ready, besides that of the training loop.
        waits_for_second: Whether the first batch also waits for the second window.
        limit_bytes, reads_bytes, fetch_bytes: The most bytes of windows and reads, of reads, and of fetched bytes.
        row_bytes: Bytes of a decoded row that is gathered a window at a time.
        arena_bytes: Memory that a window takes before its first read.
        held_bytes: Memory that is held all the time: footers, and open row groups.
        order_jobs: Number of jobs that order a window.
        max_requests: The most requests in flight.
        keeps_fetched: Whether fetched bytes stay in memory until they are decoded; if not, they are in a local cache.
    """

    num_threads: int
    windows_ahead: int
    waits_for_second: bool
    limit_bytes: int
    reads_bytes: int
    fetch_bytes: int
    row_bytes: float
    arena_bytes: int = 0
    held_bytes: int = 0
    order_jobs: int = 1
    max_requests: int = 64
    keeps_fetched: bool = True


@dataclass(frozen=True, slots=True)
class EpochForecast:
    """The prediction for an epoch of one rank.

    Attributes:
        rows, batches: Rows and batches delivered.
        seconds: Time from begin to end, including steps.
        first_batch_s, wait_s, longest_wait_s: As in `LoaderStats`: the wait for the first batch, for all batches, and
            the longest wait after the first one.
        peak_bytes: The most bytes that the loader holds, as it counts them.
        requests, fetched_bytes: Requests to an object store, and the bytes that they return.
        busy_share: Share of the workers' time in jobs.
        simulated_share: Share of the epoch that was simulated; the rest is extrapolated.
    """

    rows: int
    batches: int
    seconds: float
    first_batch_s: float
    wait_s: float
    longest_wait_s: float
    peak_bytes: int
    requests: int
    fetched_bytes: int
    busy_share: float
    simulated_share: float

    @property
    def rows_per_s(self) -> float:
        """Rows delivered per second."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def wait_share(self) -> float:
        """Share of the epoch that the training loop waits."""
        return min(1.0, self.wait_s / self.seconds) if self.seconds else 0.0


def forecast(load: EpochLoad, rates: WorkRates, limits: EngineLimits, *, step_s: float = 0.0) -> EpochForecast:
    """Predict an epoch.

    Args:
        load: Its work.
        rates: Measured rates.
        limits: The limits of the engine.
        step_s: Seconds that the training loop takes for a batch.
    """
    run = _Run(load.windows, rates, limits, step_s)
    run.run()
    peak_bytes = run.peak_bytes
    for seed in range(JITTERED_RUNS):
        varied = _Run(load.windows[:JITTERED_WINDOWS], rates, limits, step_s, seed)
        varied.run()
        peak_bytes = max(peak_bytes, varied.peak_bytes)
    rows = sum(window.rows for window in load.windows)
    seconds, wait_s = run.ended, run.wait_s
    if load.rows > rows and run.marks:
        half = len(run.marks) // 2
        (began, waited, rows_before), (ended, waited_at_end, _) = run.marks[half], run.marks[-1]
        rows_then = run.rows_delivered - rows_before
        share = (load.rows - rows) / max(1, rows_then)
        seconds += (ended - began) * share
        wait_s += (waited_at_end - waited) * share
    # A negative start-up time corrects overestimated work; it may shorten the first batch to `batch_s` at most.
    startup_s = max(rates.startup_s, rates.batch_s - run.first_batch_s)
    seconds += startup_s
    return EpochForecast(
        rows=load.rows,
        batches=load.batches,
        seconds=seconds,
        first_batch_s=run.first_batch_s + startup_s,
        wait_s=wait_s + startup_s,
        longest_wait_s=run.longest_wait_s,
        peak_bytes=peak_bytes,
        requests=load.requests,
        fetched_bytes=load.fetched_bytes,
        busy_share=min(1.0, run.busy_s / max(run.ended * limits.num_threads, 1e-12)),
        simulated_share=min(1.0, rows / max(1, load.rows)),
    )


@dataclass(slots=True, eq=False)
class _Window:
    """A window in progress. `decoded`, `gathered` and `arena` are the bytes that it holds."""

    index: int
    load: WindowLoad
    phase: str = "new"
    waiting: list[int] = field(default_factory=list)
    unread: int = 0
    jobs: int = 0
    undone: int = 0
    decoded: int = 0
    gathered: int = 0
    arena: int = 0


class _Run:
    """The simulation of some windows of an epoch. Events are (time, number, kind, window, number of a read).

    With a seed, the times of jobs vary at random.
    """

    def __init__(
        self,
        windows: Sequence[WindowLoad],
        rates: WorkRates,
        limits: EngineLimits,
        step_s: float,
        seed: int | None = None,
    ) -> None:
        self._random = None if seed is None else random.Random(seed)
        self._load, self._rates, self._limits, self._step_s = windows, rates, limits, step_s
        self._events: list[tuple[float, int, str, _Window | None, int]] = []
        self._numbers = 0
        self._windows: deque[_Window] = deque()
        self._delivered: deque[_Window] = deque()
        self._admitted = 0
        self._next_to_order = 0
        self._is_ordering = False
        self._waits_for_second = limits.waits_for_second
        self._free = limits.num_threads
        self._reading_bytes, self._reading = 0, 0
        self._held = limits.held_bytes
        self._fetched = 0
        self._is_waiting, self._asked = True, 0.0
        network = rates.network
        self._network = None if network is None else Network(network, limits.max_requests)
        self._fetches = (
            [(w, n) for w, one in enumerate(windows) for n, read in enumerate(one.reads) if read.fetched_bytes]
            if network is not None
            else []
        )
        self._next_fetch, self._arrived = 0, set[tuple[int, int]]()
        self._in_flight, self._first_in_flight, self._most_at_first = 0, 0, 0
        self.now = 0.0
        self.ended = 0.0
        self.first_batch_s = 0.0
        self._is_first = True
        self.wait_s = 0.0
        self.longest_wait_s = 0.0
        self.peak_bytes = self._held
        self.busy_s = 0.0
        self.rows_delivered = 0
        # Time, waits and rows before each window that the training loop has received.
        self.marks: list[tuple[float, float, int]] = []

    def run(self) -> None:
        self._fill()
        while self._events or (self._network is not None and self._network.next_s < float("inf")):
            at = self._events[0][0] if self._events else float("inf")
            arrives = float("inf") if self._network is None else self._network.next_s
            if self._network is not None and arrives <= at:
                self.now = max(self.now, arrives)
                for number in self._network.advance(self.now):
                    self._has_arrived(number)
            else:
                self.now = at
                if self._network is not None:
                    self._network.advance(at)
                while self._events and self._events[0][0] <= self.now:
                    _, _, kind, window, number = heapq.heappop(self._events)
                    self._end(kind, window, number)
            self._fill()
        self.marks.append((self.ended, self.wait_s, self.rows_delivered))

    def _after(self, seconds: float, kind: str, window: _Window | None = None, number: int = 0) -> None:
        self._numbers += 1
        heapq.heappush(self._events, (self.now + seconds, self._numbers, kind, window, number))

    def _reserve(self, change: int) -> None:
        self._held += change
        self.peak_bytes = max(self.peak_bytes, self._held)

    def _fits(self, needed: float) -> bool:
        return self._held - self._limits.held_bytes - self._fetched + needed <= self._limits.limit_bytes

    # ------------------------------------------------------------------ the training loop

    def _deliver(self) -> None:
        """Give the training loop the next window, if it waits and the window is ready."""
        while self._is_waiting and self._windows and self._windows[0].phase == "ready":
            if self._waits_for_second and len(self._load) > 1 and not self._is_second_ready():
                return
            self._waits_for_second = False
            window = self._windows.popleft()
            self._delivered.append(window)
            batches = window.load.batches
            self.marks.append((self.now, self.wait_s, self.rows_delivered))
            self.rows_delivered += window.load.rows
            if not batches:
                self._release_all_but(1)
                if window.index == len(self._load) - 1:  # the loop waits for the end of the epoch
                    self.wait_s += self.now - self._asked
                    self.ended = self.now
                continue
            self._is_waiting = False
            waited = self.now - self._asked + self._rates.batch_s
            self.wait_s += waited + (batches - 1) * self._rates.batch_s
            if self._is_first:
                self._is_first = False
                self.first_batch_s = waited
            else:
                self.longest_wait_s = max(self.longest_wait_s, waited)
            if batches > 1:
                self.longest_wait_s = max(self.longest_wait_s, self._rates.batch_s)
            each = self._rates.batch_s + self._step_s
            each += 0.0 if self._random is None else self._random.uniform(0, PREEMPTED_S) / batches
            self._after(each, "second")
            self._after(batches * each, "asks")

    def _is_second_ready(self) -> bool:
        return len(self._windows) > 1 and self._windows[1].phase == "ready"

    def _release_all_but(self, keep: int) -> None:
        while len(self._delivered) > keep:
            window = self._delivered.popleft()
            self._reserve(-(window.decoded + window.gathered + window.arena))

    # ------------------------------------------------------------------ the workers

    def _fill(self) -> None:
        """Deliver ready windows, request row groups that fit, and give every free worker a job."""
        self._deliver()
        self._ask()
        while self._free and (job := self._job()) is not None:
            seconds, kind, window, number = job
            if self._random is not None:
                seconds *= self._random.uniform(*JITTER)
            self._free -= 1
            self.busy_s += seconds
            self._after(seconds, kind, window, number)
            self._ask()

    def _job(self) -> tuple[float, str, _Window, int] | None:
        limits = self._limits
        if self._admitted < len(self._load) and len(self._windows) < limits.windows_ahead:
            load = self._load[self._admitted]
            waiting = list(range(len(load.reads)))
            self._windows.append(_Window(self._admitted, load, waiting=waiting, unread=len(waiting)))
            self._admitted += 1
        owed, needs_next = 0.0, True
        for window in self._windows:
            job = self._job_of(window, owed, may_exceed=needs_next)
            if job is not None:
                return job
            if window.phase in ("new", "read"):
                unread = sum(window.load.reads[number].rows for number in window.waiting)
                owed += (window.load.rows + unread) * limits.row_bytes
                owed += limits.arena_bytes if window.phase == "new" else 0
            needs_next = self._waits_for_second and window is self._windows[0]
        return None

    def _job_of(self, window: _Window, owed: float, *, may_exceed: bool) -> tuple[float, str, _Window, int] | None:
        limits, rates = self._limits, self._rates
        is_first = window.index < rates.first_windows
        rows = window.load.rows
        order_s = rows * (rates.first_order_s if is_first else rates.order_s) / max(1, limits.order_jobs)
        if window.phase == "new":
            if limits.arena_bytes and len(self._delivered) > 1 and not self._is_waiting:
                return None
            if not may_exceed and not self._fits(owed + limits.arena_bytes):
                return None
            window.phase, window.arena = "read", limits.arena_bytes
            self._reserve(limits.arena_bytes)
        if window.phase == "read" and window.waiting:
            return self._read_of(window, owed, rates.first_read_s if is_first else rates.read_s, may_exceed=may_exceed)
        is_next = window.index == self._next_to_order and not self._is_ordering
        if window.phase == "read" and not window.unread and is_next:
            if not may_exceed and not self._fits(owed + window.decoded):
                return None
            self._is_ordering = True
            self._next_to_order += 1
            window.phase, window.jobs, window.undone = "gather", limits.order_jobs, limits.order_jobs
            window.gathered = window.decoded
            self._reserve(window.gathered)
        if window.phase == "gather" and window.jobs:
            window.jobs -= 1
            return order_s, "gather", window, 0
        return None

    def _read_of(
        self, window: _Window, owed: float, read_s: float, *, may_exceed: bool
    ) -> tuple[float, str, _Window, int] | None:
        for number in window.waiting:
            read = window.load.reads[number]
            if read.fetched_bytes and self._network is not None and (window.index, number) not in self._arrived:
                continue
            expected = int(read.rows * self._limits.row_bytes)
            if not (may_exceed and not self._reading):
                if self._reading_bytes + read.decoding_bytes > self._limits.reads_bytes:
                    return None
                if not may_exceed and not self._fits(owed + read.decoding_bytes + expected):
                    return None
            window.waiting.remove(number)
            window.decoded += expected
            self._reading += 1
            self._reading_bytes += read.decoding_bytes
            self._reserve(read.decoding_bytes + expected)
            return read.rows * read_s, "read", window, number
        return None

    def _end(self, kind: str, window: _Window | None, number: int) -> None:
        if kind == "asks":
            self._is_waiting, self._asked = True, self.now
            self.ended = self.now
            self._release_all_but(1)
            return
        if kind == "second":
            self._release_all_but(1)
            return
        assert window is not None
        self._free += 1
        if kind == "read":
            read = window.load.reads[number]
            self._reading -= 1
            self._reading_bytes -= read.decoding_bytes
            freed = read.freed_bytes if self._network is not None and self._limits.keeps_fetched else 0
            self._fetched -= freed
            self._reserve(-read.decoding_bytes - freed)
            window.unread -= 1
            return
        window.undone -= 1
        if not window.undone:
            window.phase = "ready"
            self._is_ordering = False
            self._reserve(-window.decoded)
            window.decoded = 0

    # ------------------------------------------------------------------ the network

    def _ask(self) -> None:
        """Request the row groups that may be fetched now, in the order of the plan."""
        network = self._network
        needed = self._windows[0].index + self._waits_for_second if self._windows else self._admitted
        while network is not None and self._next_fetch < len(self._fetches):
            window, number = self._fetches[self._next_fetch]
            read = self._load[window].reads[number]
            reserved = int(FETCH_MARGIN * read.fetched_bytes)
            if self._fetched + reserved > self._limits.fetch_bytes and (window > needed or self._in_flight):
                return
            if window and self._first_in_flight and self._in_flight >= self._most_at_first:
                return
            self._in_flight += 1
            if not window:
                self._first_in_flight += 1
                self._most_at_first = max(self._most_at_first, self._first_in_flight)
            self._fetched += reserved
            self._reserve(reserved)
            network.fetch(self._next_fetch, read.fetched_bytes, read.requests)
            self._next_fetch += 1

    def _has_arrived(self, fetch: int) -> None:
        window, number = self._fetches[fetch]
        read = self._load[window].reads[number]
        self._arrived.add((window, number))
        self._in_flight -= 1
        self._first_in_flight -= not window
        kept = read.fetched_bytes if self._limits.keeps_fetched else 0
        change = kept - int(FETCH_MARGIN * read.fetched_bytes)
        self._fetched += change
        self._reserve(change)


def paced(rates: WorkRates, load: EpochLoad, limits: EngineLimits, taken_s: Sequence[float]) -> WorkRates:
    """Scale rates so that the simulation receives windows at the pace of a measured trial without steps.

    Jobs are not the only cost: threads wait for a processor, and requests compete. All rates get the same factor.

    Args:
        rates: Measured rates.
        load: The work of the trial's windows, and of those that it read ahead.
        limits: The limits of the engine.
        taken_s: Times at which the training loop received the first batch of each window, and, if the epoch ended, of
            its end.
    """
    # If the trial has more windows than are simulated, the first ones count.
    count = len(taken_s) if len(taken_s) <= len(load.windows) + 1 else len(load.windows)
    if count < 2:
        return rates

    def simulated_s(rates: WorkRates) -> float:
        marks = windows_taken_s(load, rates, limits)
        return marks[count - 1] - marks[0]

    measured_s, before_s, found = taken_s[count - 1] - taken_s[0], simulated_s(rates), rates
    if min(measured_s, before_s) <= 0 or simulated_s(_slowed(rates, 2.0)) < _LEAST_EFFECT * before_s:
        return rates  # windows were ready: the loop set the pace
    for _ in range(_PACE_STEPS):  # `batch_s` is not scaled, so one iteration does not suffice
        found = _slowed(found, measured_s / simulated_s(found))
    return found


def windows_taken_s(load: EpochLoad, rates: WorkRates, limits: EngineLimits) -> list[float]:
    """Return the times at which a training loop without steps receives each window, and of the epoch's end."""
    run = _Run(load.windows, rates, limits, 0.0)
    run.run()
    return [now for now, _, _ in run.marks]


def _slowed(rates: WorkRates, factor: float) -> WorkRates:
    network = rates.network
    if network is not None:
        connection, link = network.connection_bytes_per_s / factor, network.link_bytes_per_s / factor
        network = LinkRates(network.latency_s * factor, connection, link)
    return replace(
        rates,
        read_s=rates.read_s * factor,
        order_s=rates.order_s * factor,
        first_read_s=rates.first_read_s * factor,
        first_order_s=rates.first_order_s * factor,
        network=network,
    )


def with_startup(rates: WorkRates, first_batch_s: float, load: EpochLoad, limits: EngineLimits) -> WorkRates:
    """Return rates with the start-up time that makes the first batch arrive at its measured time."""
    run = _Run(load.windows, rates, limits, 0.0)
    run.run()
    return replace(rates, startup_s=first_batch_s - run.first_batch_s)
