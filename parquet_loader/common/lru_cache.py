"""Keeps the values used last within a limit, for any number of threads."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from threading import Lock
from typing import Any


class LruCache:
    """Values by key, the least recently used dropped beyond a limit. Any thread may use it.

    The lock guards the table only, and is never held while a value is made: two threads that miss the same value both
    make it. A forked child keeps the values, and makes its own lock.

    Args:
        most: The most that the sizes of the values, such as their bytes, add up to.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._begin()

    def _begin(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._renew_lock()

    def _renew_lock(self) -> None:
        # A fork may come between two steps of a thread of the parent, which has changed the table only.
        self._size = sum(size for _, size in self._kept.values())
        self._lock = Lock()
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process without the values."""
        return LruCache, (self._most,)

    @property
    def size(self) -> int:
        """The sizes of the values together."""
        return self._size

    def get(self, key: Hashable) -> Any:
        """Return a value; None if it is not kept."""
        if self._pid != os.getpid():
            self._renew_lock()
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def get_all(self, keys: Sequence[Hashable]) -> list[Any]:
        """Return the values of several keys, each None if it is not kept."""
        if self._pid != os.getpid():
            self._renew_lock()
        found = []
        with self._lock:
            for key in keys:
                kept = self._kept.get(key)
                if kept is not None:
                    self._kept.move_to_end(key)
                found.append(None if kept is None else kept[0])
        return found

    def put(self, key: Hashable, value: Any, size: int = 1) -> None:
        """Keep a value of that size, unless it exceeds the limit by itself."""
        if size > self._most:
            return
        if self._pid != os.getpid():
            self._renew_lock()
        with self._lock:
            before = self._kept.pop(key, None)
            self._size += size - (0 if before is None else before[1])
            self._kept[key] = value, size
            while self._size > self._most:
                _, (_, gone) = self._kept.popitem(last=False)
                self._size -= gone

    def forget(self, key: Hashable, value: Any) -> None:
        """Drop a value, unless another one has replaced it."""
        if self._pid != os.getpid():
            self._renew_lock()
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and kept[0] == value:
                del self._kept[key]
                self._size -= kept[1]

    def clear(self) -> None:
        """Release all values."""
        if self._pid != os.getpid():
            self._renew_lock()
        with self._lock:
            self._kept.clear()
            self._size = 0
