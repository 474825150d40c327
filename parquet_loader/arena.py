"""Large blocks of memory that are written again and again while warm, and never while somebody still looks at them."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

Memory = npt.NDArray[np.uint8]


class Allocation(NamedTuple):
    """Memory for one column of a window.

    Attributes:
        array: uint8 ``[nbytes]``, writable.
        owner: What tensors over it are to be made from (a pinned tensor, say); None: the array itself.
    """

    array: Memory
    owner: Any = None

    def cut(self, nbytes: int) -> tuple[Allocation, Allocation]:
        """Return the first `nbytes`, and the rest."""
        head = Allocation(self.array[:nbytes], None if self.owner is None else self.owner[:nbytes])
        return head, Allocation(self.array[nbytes:], None if self.owner is None else self.owner[nbytes:])


class Allocator(Protocol):
    """Gives memory for the columns of a window; called by any thread."""

    copies_processed: bool
    """Whether processed batches, too, have to be copied into this memory (pinned memory, for a GPU)."""

    def taken_bytes(self, nbytes: int) -> int:
        """Return what allocating so much takes, rounding included."""

    def allocate(self, nbytes: int) -> Allocation:
        """Return memory that nobody else uses for as long as the allocation, or a view of it, lives."""


class _Lease:
    """Stands for the use of a block: numpy keeps it as the base of arrays over it, so it lives as long as they do."""

    __slots__ = ("__array_interface__", "__weakref__", "_block")

    def __init__(self, block: Memory) -> None:
        self._block = block
        self.__array_interface__ = block.__array_interface__


class _End(weakref.ref[_Lease]):
    """Tells of a lease's end, and keeps its block until then and beyond."""

    __slots__ = ("block",)

    def __new__(cls, lease: _Lease, ended: Callable[[_End], object], block: Memory) -> Self:  # noqa: ARG004
        return super().__new__(cls, lease, ended)

    def __init__(self, lease: _Lease, ended: Callable[[_End], object], block: Memory) -> None:
        super().__init__(lease, ended)  # type: ignore[call-arg]
        self.block = block


class Arenas:
    """Ordinary memory, given out warm where it was used before.

    Invariant: a block is either free or leased, and it is leased for as long as any array or tensor over it lives, so
    a batch that somebody holds is never overwritten. Freshly mapped memory costs a page fault every 4 KiB, which makes
    writing to it 1.3 to 3 times slower than to a block used before.

    Args:
        keep: How many free blocks to keep.
    """

    copies_processed = False

    def __init__(self, keep: int = 32) -> None:
        self._keep = keep
        self._lock = Lock()
        self._pid = os.getpid()
        self._free: list[Memory] = []
        self._leases: set[_End] = set()
        # A lease ends wherever the last view dies: in a garbage collection, in a worker, between any two steps of the
        # main thread, where Ctrl-C may come. So its end runs no Python code and takes no lock: it appends to a deque.
        self._ended: deque[_End] = deque()

    def taken_bytes(self, nbytes: int) -> int:
        """Return `nbytes`: nothing is rounded."""
        return nbytes

    def allocate(self, nbytes: int) -> Allocation:
        """Return `nbytes` of memory."""
        if self._pid != os.getpid():
            self._lock, self._pid = Lock(), os.getpid()  # after a fork, a thread that is not here may have held it
        with self._lock:
            self._collect()
            fitting = [n for n, block in enumerate(self._free) if block.nbytes == nbytes]
            block = self._free.pop(fitting[-1]) if fitting else None
            if block is None and len(self._free) == self._keep:
                del self._free[:1]  # of a size that nobody asks for any more
        if block is None:
            block = np.empty(nbytes, np.uint8)
        lease = _Lease(block)
        with self._lock:
            if self._keep:
                self._leases.add(_End(lease, self._ended.append, block))
        return Allocation(np.asarray(lease))

    def _collect(self) -> None:
        while self._ended:
            end = self._ended.popleft()
            self._leases.discard(end)
            if len(self._free) < self._keep:
                self._free.append(end.block)

    def clear(self) -> None:
        """Let go of the free blocks, and keep none from now on: leased ones end with their last view."""
        with self._lock:
            self._keep = 0
            self._free.clear()
            self._leases.clear()
            self._ended.clear()
