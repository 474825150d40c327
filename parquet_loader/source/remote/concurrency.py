"""Adapts the number of concurrent requests and the delay before a hedged request. Pure: no clock, no threads."""

from __future__ import annotations

from collections import deque
from statistics import median

# Requests an epoch begins with.
FIRST_REQUESTS = 16
# A round is judged after as many answers as there were requests in flight, and not before this time.
ROUND_S = 0.25
# More requests are worth it if a round with them was this much faster than the best before.
GAIN = 1.05
# Rounds without a gain, after which more are tried all the same, for a round: the line may have become better.
PATIENCE = 16
BUSY_FACTOR = 0.7
BUSY_PAUSE_S = 1.0

# A request is made a second time after this multiple of what others took, and at least so long.
HEDGE_FACTOR = 3.0
HEDGE_LEAST_S = 0.5
HEDGE_ENOUGH = 8
HEDGE_SHARE = 0.05
HEDGE_FREE = 8  # of an epoch, before the share says anything


class ConcurrencyLimit:
    """How many requests may be in flight: more as long as more bytes arrive for it, fewer if the store is busy.

    Args:
        most: Never more than this.
        now_s: The time.
        first: How many to begin with.
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
        """Say that a request has to wait for another's end: only then do rounds say anything about the limit."""
        self._was_full = True

    def arrived(self, nbytes: int, now_s: float) -> None:
        """Count an answer."""
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
        """Allow fewer requests, as the store asks; at most once in a while, because many requests hear it at once."""
        if now_s - self._reduced_s >= BUSY_PAUSE_S:
            self._reduced_s = now_s
            self.requests = max(1, int(self.requests * BUSY_FACTOR))
            self._best, self._tried_from = 0.0, None


class Hedging:
    """When a request has taken so long, compared with others of about its size, that a second one is worth it.

    Args:
        least_s: Never earlier.
    """

    def __init__(self, least_s: float = HEDGE_LEAST_S) -> None:
        self._least_s = least_s
        self._known: deque[tuple[int, float]] = deque(maxlen=64)
        self.requests = 0
        self.hedged = 0
        self._beside = 0

    def took(self, nbytes: int, seconds: float) -> None:
        """Count what a request took that was answered."""
        self.requests += 1
        self._known.append((nbytes, seconds))

    def after_s(self, nbytes: int) -> float | None:
        """Return after how many seconds to ask again; None: not known yet.

        Those count that were not much smaller; larger ones only make it later.
        """
        known = [seconds for size, seconds in self._known if 2 * size >= nbytes]
        return max(self._least_s, HEDGE_FACTOR * median(known)) if len(known) >= HEDGE_ENOUGH else None

    def may(self) -> bool:
        """Whether one more second request is within what may be asked twice, or there is none now; counts it if so."""
        if self._beside and self.hedged >= max(HEDGE_FREE, HEDGE_SHARE * self.requests):
            return False
        self.hedged += 1
        self._beside += 1
        return True

    def ended(self, requests: int) -> None:
        """Say that second requests have ended, whatever came of them."""
        self._beside -= requests
