"""Waits between attempts of a request: longer after each failure, and at least as long as the server asks for."""

from __future__ import annotations

import random

FIRST_WAIT_S = 0.2
_MOST_WAIT_S = 20.0
# Upper limit on the time that one request waits because servers ask for it (Retry-After).
_MOST_ASKED_S = 600.0


class Backoff:
    """The waits of one request, which grow by factors of two up to a limit, times a random factor from 0.5 to 1.

    Args:
        first_s: The wait before the second attempt.

    Attributes:
        asked_s: Seconds that the server has asked to wait, in all. They do not count towards a deadline.
    """

    def __init__(self, first_s: float = FIRST_WAIT_S) -> None:
        self.asked_s = 0.0
        self._wait_s = first_s

    def next_s(self, asked_s: float | None = None) -> float:
        """Return the seconds to wait after a failure.

        Args:
            asked_s: How long the server asked to wait; None: it did not.
        """
        wait_s = min(self._wait_s, _MOST_WAIT_S) * random.uniform(0.5, 1.0)
        self._wait_s = min(2 * self._wait_s, _MOST_WAIT_S)
        if asked_s is None or self.asked_s + asked_s > _MOST_ASKED_S:
            return wait_s
        self.asked_s += asked_s
        return wait_s + asked_s
