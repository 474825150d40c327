"""Large blocks of memory that are written again and again while warm, and never while somebody still looks at them."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

Memory = npt.NDArray[np.uint8]
T = TypeVar("T")


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

    is_required: bool
    """Whether what is delivered has to lie in this memory (pinned or shared), or may lie anywhere."""

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


class _End(weakref.ref[_Lease], Generic[T]):
    """Tells of a lease's end, and keeps what was lent until then and beyond."""

    __slots__ = ("lent",)

    def __new__(cls, lease: _Lease, ended: Callable[[_End[T]], object], lent: T) -> Self:  # noqa: ARG004
        return super().__new__(cls, lease, ended)

    def __init__(self, lease: _Lease, ended: Callable[[_End[T]], object], lent: T) -> None:
        super().__init__(lease, ended)  # type: ignore[call-arg]
        self.lent = lent


class Leases(Generic[T]):
    """Memory lent out until the last view of it dies.

    That may be anywhere: in a garbage collection, in a worker, between any two steps of the main thread, where Ctrl-C
    may come. So a lease's end runs no Python code and takes no lock: it appends to a deque.
    """

    def __init__(self) -> None:
        self._open: set[_End[T]] = set()
        self._ended: deque[_End[T]] = deque()

    def lend(self, block: Memory, lent: T) -> Memory:
        """Return the block as an array whose end, and that of all its views, is told by `ended`."""
        lease = _Lease(block)
        self._open.add(_End(lease, self._ended.append, lent))
        return np.asarray(lease)

    def ended(self) -> list[T]:
        """Return what was lent and came back since the last call."""
        found: list[T] = []
        while True:
            try:
                end = self._ended.popleft()
            except IndexError:
                return found
            self._open.discard(end)
            found.append(end.lent)

    def forget(self) -> None:
        """Let go of what is lent: it ends with its last view, untold."""
        self._open.clear()
        self._ended.clear()


def heap_block(nbytes: int) -> Memory:
    """Return ordinary memory."""
    return np.empty(nbytes, np.uint8)


class Arenas:
    """Ordinary memory, given out warm where it was used before.

    Invariant: a block is either free or leased, and it is leased for as long as any array or tensor over it lives, so
    a batch that somebody holds is never overwritten. Freshly mapped memory costs a page fault every 4 KiB, which makes
    writing to it 1.3 to 3 times slower than to a block used before.

    Args:
        keep: How many free blocks to keep.
        new_block: Where blocks come from.
        is_required: Whether what is delivered has to lie in this memory.
    """

    def __init__(
        self, keep: int = 32, new_block: Callable[[int], Memory] = heap_block, *, is_required: bool = False
    ) -> None:
        self.is_required = is_required
        self._keep = keep
        self._new_block = new_block
        self._lock = Lock()
        self._pid = os.getpid()
        self._free: list[Memory] = []
        self._leases: Leases[Memory] = Leases()

    def taken_bytes(self, nbytes: int) -> int:
        """Return `nbytes`: nothing is rounded."""
        return nbytes

    def allocate(self, nbytes: int) -> Allocation:
        """Return `nbytes` of memory."""
        if self._pid != os.getpid():
            self._lock, self._pid = Lock(), os.getpid()  # after a fork, a thread that is not here may have held it
        with self._lock:
            back = self._leases.ended()
            self._free.extend(back[: max(0, self._keep - len(self._free))])
            fitting = [n for n, block in enumerate(self._free) if block.nbytes == nbytes]
            block = self._free.pop(fitting[-1]) if fitting else None
            if block is None and len(self._free) == self._keep:
                del self._free[:1]  # of a size that nobody asks for any more
        if block is None:
            block = self._new_block(nbytes)
        with self._lock:
            return Allocation(self._leases.lend(block, block) if self._keep else block)

    def clear(self) -> None:
        """Let go of the free blocks, and keep none from now on: leased ones end with their last view."""
        with self._lock:
            self._keep = 0
            self._free.clear()
            self._leases.forget()
