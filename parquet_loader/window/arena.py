"""Leases large blocks of memory, and reuses a block when no array views it any more."""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

Memory = npt.NDArray[np.uint8]
# A block may exceed the request by a quarter, or up to a page. All blocks together may exceed the peak of leased blocks
# by a quarter.
_LARGER_BY = 4
_PAGE_BYTES = 4096
_ALIGNED_TO = 64
# malloc also maps blocks of this size, until the first of them is freed.
_MAPPED_FROM_BYTES = 128 * 2**10 if hasattr(mmap, "MAP_PRIVATE") else sys.maxsize
# As numpy does.
_HUGE_FROM_BYTES = 4 * 2**20
T = TypeVar("T")


class Allocation(NamedTuple):
    """Memory for one column of a window.

    Attributes:
        array: uint8 ``[nbytes]``, writable.
        owner: The object that owns the memory and from which tensors are made, such as a pinned tensor; None if the
            array itself owns it.
    """

    array: Memory
    owner: Any = None

    def cut(self, nbytes: int) -> tuple[Allocation, Allocation]:
        """Return the first `nbytes` and the rest, as allocations."""
        head = Allocation(self.array[:nbytes], None if self.owner is None else self.owner[:nbytes])
        return head, Allocation(self.array[nbytes:], None if self.owner is None else self.owner[nbytes:])


class Block(NamedTuple):
    """A future allocation.

    Attributes:
        nbytes: Its size.
        written: The byte ranges that will be written, ``(start, stop)``; `stop` is exclusive.
    """

    nbytes: int
    written: tuple[tuple[int, int], ...]


class Allocator(Protocol):
    """Allocates memory for the columns of a window; any thread may call it."""

    is_required: bool
    """Whether delivered rows have to be in this memory (pinned or shared); if not, any memory serves."""

    def taken_bytes(self, nbytes: int) -> int:
        """Return the bytes that an allocation of `nbytes` takes, rounding included."""

    def allocate(self, nbytes: int) -> Allocation:
        """Return `nbytes` of memory, used by nothing else as long as the allocation or a view of it lives."""


class _Lease:
    """The lease of a block: numpy keeps it as the base of all arrays over the block, so it lives as long as they do."""

    __slots__ = ("__array_interface__", "__weakref__", "_block")

    def __init__(self, block: Memory) -> None:
        self._block = block
        self.__array_interface__ = block.__array_interface__


class _End(weakref.ref[_Lease], Generic[T]):
    """A weak reference to a lease; its callback runs when the lease ends. Holds the leased object."""

    __slots__ = ("leased",)

    def __new__(cls, lease: _Lease, ended: Callable[[_End[T]], object], leased: T) -> Self:  # noqa: ARG004
        return super().__new__(cls, lease, ended)

    def __init__(self, lease: _Lease, ended: Callable[[_End[T]], object], leased: T) -> None:
        super().__init__(lease, ended)  # type: ignore[call-arg]
        self.leased = leased


class Leases(Generic[T]):
    """Memory leased until the last view of it is freed.

    The last view may be freed at any time: in a garbage collection, in a worker, or in the main thread while SIGINT
    arrives. So the end of a lease runs no Python code and takes no lock: it appends to a deque.
    """

    def __init__(self) -> None:
        self._open: set[_End[T]] = set()
        self._ended: deque[_End[T]] = deque()

    def lease(self, block: Memory, leased: T) -> Memory:
        """Return the block as an array. After the array and all its views are freed, `ended` returns `leased`."""
        lease = _Lease(block)
        self._open.add(_End(lease, self._ended.append, leased))
        return np.asarray(lease)

    @property
    def has_ended(self) -> bool:
        """Whether a lease has ended since the last call of `ended`."""
        return bool(self._ended)

    def ended(self) -> list[T]:
        """Return the objects whose leases ended since the last call."""
        found: list[T] = []
        while True:
            try:
                end = self._ended.popleft()
            except IndexError:
                return found
            self._open.discard(end)
            found.append(end.leased)

    def forget(self) -> None:
        """Forget all leases: memory is freed with its last view, and `ended` does not return it."""
        self._open.clear()
        self._ended.clear()


def heap_block(nbytes: int) -> Memory:
    """Return ordinary memory, aligned to 64 bytes: JAX and TensorFlow share such memory instead of copying it.

    Large blocks are mapped, so that freed ones return to the system. malloc would keep them, fragmented: with malloc,
    20 columns of short text took 340 MiB, of which 120 MiB were in use.
    """
    if nbytes >= _MAPPED_FROM_BYTES:
        with suppress(OSError):  # too many mappings, or too little memory: then np.empty below raises MemoryError
            mapped = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if nbytes >= _HUGE_FROM_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
                with suppress(OSError):  # a kernel without huge pages
                    mapped.madvise(mmap.MADV_HUGEPAGE)
            return np.frombuffer(mapped, np.uint8)
    memory = np.empty(nbytes + _ALIGNED_TO, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNED_TO
    return memory[start : start + nbytes]


class _Free:
    """Unused blocks, found by size and dropped by age. Guarded by the lock of its `Arenas`."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._by_age: OrderedDict[int, Memory] = OrderedDict()
        self._by_size: dict[int, deque[int]] = {}
        self._sizes: list[int] = []
        self._next = 0

    def put(self, block: Memory) -> None:
        """Add a block; it is the newest."""
        self._by_age[self._next] = block
        if block.nbytes not in self._by_size:
            self._by_size[block.nbytes] = deque()
            insort(self._sizes, block.nbytes)
        self._by_size[block.nbytes].append(self._next)
        self._next += 1
        self.nbytes += block.nbytes

    def pop(self, nbytes: int, most_bytes: int) -> Memory | None:
        """Return the smallest block of `nbytes` to `most_bytes`, the newest of equal size; None if there is none."""
        at = bisect_left(self._sizes, nbytes)
        if at == len(self._sizes) or self._sizes[at] > most_bytes:
            return None
        return self._remove(self._by_size[self._sizes[at]].pop())

    def drop(self) -> Memory | None:
        """Return the oldest block; None if there is none."""
        if not self._by_age:
            return None
        oldest = next(iter(self._by_age))
        self._by_size[self._by_age[oldest].nbytes].popleft()  # also the oldest of its size
        return self._remove(oldest)

    def _remove(self, number: int) -> Memory:
        block = self._by_age.pop(number)
        self.nbytes -= block.nbytes
        if not self._by_size[block.nbytes]:
            del self._by_size[block.nbytes]
            del self._sizes[bisect_left(self._sizes, block.nbytes)]
        return block


class Arenas:
    """Ordinary memory in blocks that are reused.

    Newly mapped memory costs a page fault for each 4 KiB, so writing to it is 1.3 to 3 times slower than writing to a
    used block. Sizes differ a little from epoch to epoch, because windows combine other row groups. A request may be
    given a somewhat larger block, so all blocks soon have the largest size.

    Invariants: A block is either free or leased. It is leased as long as any array or tensor over it lives, so a batch
    that the caller holds is never overwritten. Free blocks take at most `keep_bytes`. Before a new block is allocated,
    free blocks are unmapped, the oldest first, until all blocks together take at most a quarter more than the peak of
    leased blocks. Without that quarter, a window with many columns of text would allocate most of its blocks anew,
    because the free blocks have the sizes of other buffers.

    Args:
        keep_bytes: Limit of free blocks.
        new_block: Allocates a block.
        is_required: Whether delivered rows have to be in this memory.

    Attributes:
        keep_bytes: As given; may be set before the first use.
    """

    def __init__(
        self, keep_bytes: int, new_block: Callable[[int], Memory] = heap_block, *, is_required: bool = False
    ) -> None:
        self.is_required = is_required
        self.keep_bytes = keep_bytes
        self._new_block = new_block
        self._lock = Lock()
        self._pid = os.getpid()
        self._free = _Free()
        self._leases: Leases[Memory] = Leases()
        self._is_closed = False
        self._leased_bytes = self._peak_bytes = 0

    def taken_bytes(self, nbytes: int) -> int:
        """Return `nbytes`: sizes are not rounded."""
        return nbytes

    def allocate(self, nbytes: int) -> Allocation:
        """Return `nbytes` of memory."""
        self._reset_after_fork()
        dropped: list[Memory] = []  # unmapped after the lock is released
        with self._lock:
            block = self._reused_block(nbytes, dropped)
            counted = nbytes if block is None else block.nbytes
            self._leased_bytes += counted  # before the block exists: other threads may be about to make one, too
        dropped.clear()
        if block is None:
            try:
                block = self._made_block(nbytes)
            except BaseException:
                with self._lock:
                    self._leased_bytes -= counted
                raise
        with self._lock:
            self._leased_bytes += block.nbytes - counted
            self._peak_bytes = max(self._peak_bytes, self._leased_bytes)
            array = block[:nbytes]
            return Allocation(array if self._is_closed else self._leases.lease(array, block))

    def _made_block(self, nbytes: int) -> Memory:
        """Return a new block; if memory is short, free blocks of other sizes make room for it."""
        try:
            return self._new_block(nbytes)
        except MemoryError:
            with self._lock:
                unused, self._free = self._free, _Free()
            if not unused.nbytes:
                raise
        del unused
        return self._new_block(nbytes)

    def _reused_block(self, nbytes: int, dropped: list[Memory]) -> Memory | None:
        for returned in self._leases.ended():
            self._free.put(returned)
            self._leased_bytes -= returned.nbytes
        block = self._free.pop(nbytes, max(nbytes + nbytes // _LARGER_BY, _PAGE_BYTES))
        limit = self.keep_bytes
        if block is None:
            leased = self._leased_bytes + nbytes
            peak = max(self._peak_bytes, leased)
            limit = min(limit, peak + peak // _LARGER_BY - leased)
        while self._free.nbytes > limit:
            oldest = self._free.drop()
            assert oldest is not None
            dropped.append(oldest)
        return block

    def _reset_after_fork(self) -> None:
        """Start empty in a forked child: a lock that a thread of the parent held would stay locked there."""
        if self._pid != os.getpid():
            self._lock, self._free, self._leases, self._pid = Lock(), _Free(), Leases(), os.getpid()
            self._leased_bytes = self._peak_bytes = 0

    def clear(self) -> None:
        """Free all unused blocks, and keep none from now on; leased blocks are freed with their last view."""
        self._reset_after_fork()
        with self._lock:
            self._is_closed = True
            self._free = _Free()
            self._leases.forget()
