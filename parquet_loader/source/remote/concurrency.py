"""Adapts the number of concurrent requests and the delay before a hedged request. Pure: no clock, no threads."""

from __future__ import annotations

from collections import deque
from statistics import median

# The limit at the beginning of an epoch.
FIRST_REQUESTS = 16
# A round ends after as many answers as there may be requests in flight, and not before this time.
ROUND_S = 0.25
# A higher limit is kept if a round with it was this much faster than the best one before.
GAIN = 1.05
# After this many rounds without a gain, a higher limit is tried again, because the bandwidth may have grown.
PATIENCE = 16
BUSY_FACTOR = 0.7
BUSY_PAUSE_S = 1.0

# A request is hedged after this multiple of the median duration of others, and not earlier than `HEDGE_LEAST_S`.
HEDGE_FACTOR = 3.0
HEDGE_LEAST_S = 0.5
HEDGE_ENOUGH = 8
HEDGE_SHARE = 0.05
HEDGE_FREE = 8  # hedged requests of an epoch that are allowed whatever their share


class ConcurrencyLimit:
    """Limits the requests in flight: raises the limit while throughput grows, lowers it if the store is busy.

    Args:
        most: The highest limit.
        now_s: The time, in seconds.
        first: The first limit.
    """

    def __init__(self, most: int, now_s: float, first: int = FIRST_REQUESTS) -> None:
        self.requests = min(first, most)
        self._most = most
        self._began_s = now_s
        self._bytes = 0
        self._answers = 0
        self._was_full = False
        self._best = 0.0
        self._rounds_without_gain = 0
        self._tried_from: int | None = None
        self._reduced_s = float("-inf")

    def full(self) -> None:
        """Record that a request had to wait; only rounds in which this happens show the effect of the limit."""
        self._was_full = True

    def arrived(self, nbytes: int, now_s: float) -> None:
        """Count an answer of `nbytes` bytes; at the end of a round, adapt the limit."""
        self._bytes += nbytes
        self._answers += 1
        elapsed_s = now_s - self._began_s
        if self._answers < self.requests or elapsed_s < ROUND_S:
            return
        rate, was_full = self._bytes / elapsed_s, self._was_full
        self._began_s, self._bytes, self._answers, self._was_full = now_s, 0, 0, False
        if not was_full:
            return
        self._rounds_without_gain += 1
        has_gained = rate > GAIN * self._best
        if self._tried_from is not None and not has_gained:
            self.requests, self._tried_from = self._tried_from, None
        elif has_gained or self._rounds_without_gain > PATIENCE:
            self._rounds_without_gain = 0
            self._tried_from = None if has_gained else self.requests
            self.requests = min(self._most, self.requests + max(2, self.requests // 4))
        self._best = max(rate, 0.98 * self._best)

    def busy(self, now_s: float) -> None:
        """Lower the limit, because the store asks for fewer requests; at most once in `BUSY_PAUSE_S` seconds."""
        if now_s - self._reduced_s >= BUSY_PAUSE_S:
            self._reduced_s = now_s
            self.requests = max(1, int(self.requests * BUSY_FACTOR))
            self._best, self._tried_from = 0.0, None


class Hedging:
    """Decides when to hedge a request, by the durations of others of about its size.

    Args:
        least_s: The earliest time, in seconds after the request.
    """

    def __init__(self, least_s: float = HEDGE_LEAST_S) -> None:
        self._least_s = least_s
        self._known: deque[tuple[int, float]] = deque(maxlen=64)
        self.requests = 0
        self.hedged = 0
        self._in_flight = 0

    def took(self, nbytes: int, seconds: float) -> None:
        """Record the duration of an answered request."""
        self.requests += 1
        self._known.append((nbytes, seconds))

    def after_s(self, nbytes: int) -> float | None:
        """Return the seconds after which to hedge a request; None: not known yet.

        Only requests of at least half the size count; larger ones only make the result later.
        """
        known = [seconds for size, seconds in self._known if 2 * size >= nbytes]
        return max(self._least_s, HEDGE_FACTOR * median(known)) if len(known) >= HEDGE_ENOUGH else None

    def may(self) -> bool:
        """Whether one more hedged request is allowed; counts it if so. One at a time is always allowed."""
        if self._in_flight and self.hedged >= max(HEDGE_FREE, HEDGE_SHARE * self.requests):
            return False
        self.hedged += 1
        self._in_flight += 1
        return True

    def ended(self, requests: int) -> None:
        """Record the end of hedged requests."""
        self._in_flight -= requests
