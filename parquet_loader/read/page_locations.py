"""A bounded memo of page locations: found once, reused in each epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

# What one `BoundedMemo` takes at most, and what an entry, a column and a page of it come to.
PLACES_KEPT_BYTES = 4 * 2**20
_ENTRY_BYTES, _COLUMN_BYTES, _PAGE_BYTES = 1024, 128, 16

K = TypeVar("K")
T = TypeVar("T")


def bytes_kept(columns: int, pages: int = 0) -> int:
    """Return about what is taken by one entry with that many columns and pages."""
    return _ENTRY_BYTES + _COLUMN_BYTES * columns + _PAGE_BYTES * pages


class BoundedMemo(Generic[K, T]):
    """What was found out about where things lie in files that do not change. Any thread may use it.

    When it is full nothing more is taken in: then an epoch finds a part of them here, in whatever order it comes.

    Args:
        most_bytes: What it keeps, by `bytes_of`; the last entry may exceed it.
    """

    def __init__(self, most_bytes: int = PLACES_KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._found: dict[K, T] = {}
        self._kept_bytes = 0

    def get(self, key: K, find: Callable[[], T], bytes_of: Callable[[T], int]) -> T:
        """Return what was found, or find it now; threads may count a few too many or too few."""
        try:
            return self._found[key]
        except KeyError:
            found = find()
        if self._kept_bytes < self._most_bytes:
            self._found[key] = found
            self._kept_bytes += bytes_of(found)
        return found
