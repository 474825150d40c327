"""Requests that share the connections and the link of an object store, in simulated time. Pure."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

from parquet_loader.source import ConcurrencyLimit


@dataclass(frozen=True, slots=True)
class LinkRates:
    """The speed of an object store.

    Attributes:
        latency_s: Seconds until the first byte of an answer.
        connection_bytes_per_s: The rate of one connection.
        link_bytes_per_s: The rate of all connections together.
    """

    latency_s: float
    connection_bytes_per_s: float
    link_bytes_per_s: float


@dataclass(slots=True)
class _Fetch:
    key: int
    nbytes: int
    unanswered: int


@dataclass(slots=True)
class Network:
    """Requests in flight. All transfers have the same rate, so each one ends at a known number of bytes per transfer.

    Args:
        rates: The speed of the store.
        max_requests: The most requests in flight; the number adapts as in a loader.
    """

    rates: LinkRates
    max_requests: int
    requests: int = 0
    fetched_bytes: int = 0
    _limit: ConcurrencyLimit = field(init=False)
    _waiting: deque[tuple[_Fetch, float]] = field(default_factory=deque)
    _before_first_byte: deque[tuple[float, _Fetch, float]] = field(default_factory=deque)
    _transfers: list[tuple[float, int, _Fetch]] = field(default_factory=list)
    _served_bytes: float = 0.0
    _now: float = 0.0
    _begun: int = 0

    def __post_init__(self) -> None:
        self._limit = ConcurrencyLimit(self.max_requests, 0.0)

    def fetch(self, key: int, nbytes: int, requests: int) -> None:
        """Request bytes now, in `requests` requests of one size."""
        fetch = _Fetch(key, nbytes, max(1, requests))
        self._waiting.extend([(fetch, nbytes / fetch.unanswered)] * fetch.unanswered)
        self._send()

    def _send(self) -> None:
        while self._waiting:
            if len(self._before_first_byte) + len(self._transfers) >= self._limit.requests:
                self._limit.full()
                return
            fetch, nbytes = self._waiting.popleft()
            self.requests += 1
            self._before_first_byte.append((self._now + self.rates.latency_s, fetch, nbytes))

    @property
    def _rate(self) -> float:
        return min(self.rates.connection_bytes_per_s, self.rates.link_bytes_per_s / max(1, len(self._transfers)))

    @property
    def next_s(self) -> float:
        """The time at which the next request changes; infinite without requests."""
        first = self._before_first_byte[0][0] if self._before_first_byte else float("inf")
        if not self._transfers:
            return first
        left = max(0.0, self._transfers[0][0] - self._served_bytes)
        return min(first, self._now + left / self._rate)

    def advance(self, now: float) -> list[int]:
        """Advance to a time that is not after `next_s`; return the keys of fetches that end then."""
        ends = self._transfers[0][0] if self._transfers else 0.0
        is_end = bool(self._transfers) and now >= self._now + max(0.0, ends - self._served_bytes) / self._rate
        self._served_bytes = (
            max(ends, self._served_bytes)
            if is_end
            else self._served_bytes + ((now - self._now) * self._rate if self._transfers else 0.0)
        )
        self._now = now
        done = []
        while is_end and self._transfers and self._transfers[0][0] <= self._served_bytes:
            _, _, fetch = heapq.heappop(self._transfers)
            nbytes = fetch.nbytes // max(1, fetch.unanswered)
            fetch.unanswered -= 1
            fetch.nbytes -= nbytes
            self.fetched_bytes += nbytes
            self._limit.arrived(nbytes, now)
            if not fetch.unanswered:
                done.append(fetch.key)
        while self._before_first_byte and self._before_first_byte[0][0] <= now:
            _, fetch, size = self._before_first_byte.popleft()
            self._begun += 1
            heapq.heappush(self._transfers, (self._served_bytes + size, self._begun, fetch))
        self._send()
        return done
