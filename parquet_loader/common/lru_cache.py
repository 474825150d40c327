"""A least-recently-used cache for any number of threads."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from threading import Lock
from typing import Any


class LruCache:
    """Values by key; beyond a limit, the least recently used are dropped. Any thread may use it.

    The lock guards the table only and is never held while a value is computed: two threads that miss the same value
    both compute it. A forked child keeps the values and makes its own lock.

    Args:
        most: The largest sum of the sizes of all values, in the unit that `put` uses, such as bytes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._begin()

    def _begin(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._renew_lock()

    def _renew_lock(self) -> None:
        # A thread of the parent may have changed the table, but not yet the size, when the process forked.
        self._size = sum(size for _, size in self._kept.values())
        self._lock = Lock()
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process without the values."""
        return LruCache, (self._most,)

    @property
    def size(self) -> int:
        """The sum of the sizes of all values."""
        return self._size

    def get(self, key: Hashable) -> Any:
        """Return the value of a key, or None."""
        if self._pid != os.getpid():
            self._renew_lock()
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def get_all(self, keys: Sequence[Hashable]) -> list[Any]:
        """Return the value of each key, or None."""
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
        """Keep a value, unless its size alone exceeds the limit."""
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
