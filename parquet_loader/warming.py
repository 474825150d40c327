"""Memory made ready in time that nobody needs: while the first bytes of a store that is far away are on their way.

Fresh memory costs a page fault every 4 KiB when it is written to for the first time. Where row groups come from a line,
a loader's first window would pay for that between the arrival of its last row group and its first batch.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

from parquet_loader.arena import Allocation, Allocator, Memory
from parquet_loader.building import Budget
from parquet_loader.workers import Job

# Made ready by one job: a row group that arrives meanwhile waits no longer than this takes.
_STEP_BYTES = 4 * 2**20
_PAGE_BYTES = 4096
_MADV_POPULATE_WRITE = 23


def populate(memory: Memory) -> bool:
    """Let the system find the pages that lie in memory, whatever anyone writes there meanwhile.

    Returns:
        Whether it can: Linux does from 5.14 on. Else whoever writes first waits for them.
    """
    if sys.platform != "linux":
        return False
    begin = memory.__array_interface__["data"][0]
    first, last = -(-begin // _PAGE_BYTES) * _PAGE_BYTES, (begin + memory.nbytes) // _PAGE_BYTES * _PAGE_BYTES
    if first >= last:
        return True
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return bool(advise(first, last - first, _MADV_POPULATE_WRITE) == 0)


class Warming:
    """What a window will be written to, made ready step by step; belongs to the engine's lock.

    Args:
        taken: Memory that the window has taken.
        sizes: Bytes of the blocks that it will yet ask the allocator for: they are taken, and given back warm.
        allocator: Which.
        budget: What these are counted in until `end`.
    """

    def __init__(self, taken: Iterable[Memory], sizes: Sequence[int], allocator: Allocator, budget: Budget) -> None:
        self._cold: deque[Memory] = deque()
        self._sizes = deque(sizes)
        self._allocator = allocator
        self._budget = budget
        self._blocks: list[Allocation] = []
        self._held_bytes = 0
        self._has_ended = False
        for memory in taken:
            self._add(memory)

    def _add(self, memory: Memory) -> None:
        self._cold.extend(memory[at : at + _STEP_BYTES] for at in range(0, memory.nbytes, _STEP_BYTES))

    def job(self, owed: int) -> Job[bool] | Job[Allocation] | None:
        """Return the next step; None: there is none. `owed` bytes are to be left in the budget."""
        if self._cold:
            return Job("permute", partial(populate, self._cold.popleft()), self._populated, self._failed)
        if self._sizes and self._budget.fits(owed + self._allocator.taken_bytes(self._sizes[0])):
            nbytes = self._sizes.popleft()
            self._hold(self._allocator.taken_bytes(nbytes))
            return Job("permute", partial(self._allocator.allocate, nbytes), self._took, self._failed)
        return None

    def _populated(self, could: bool) -> None:
        if not could:
            self.end()

    def _took(self, block: Allocation) -> None:
        if not self._has_ended:
            self._blocks.append(block)
            self._add(block.array)

    def _failed(self, _: BaseException) -> None:
        self.end()  # whoever needs the memory will say so

    def end(self) -> None:
        """Give all back: it is needed now, or cannot be had."""
        self._has_ended = True
        self._cold.clear()
        self._sizes.clear()
        self._blocks.clear()
        self._hold(-self._held_bytes)

    def _hold(self, change: int) -> None:
        self._held_bytes += change
        self._budget.hold(change)
