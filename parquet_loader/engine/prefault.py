"""Pre-faults the first window's memory while the first remote reads are in flight.

Fresh memory costs a page fault for each 4 KiB at the first write. With remote row groups, the first window would pay
for them between the arrival of its last row group and its first batch.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections import deque
from collections.abc import Iterable
from functools import partial

from parquet_loader.engine.usage import Usage
from parquet_loader.engine.worker_pool import Job
from parquet_loader.window import Allocation, Allocator, Block, Memory

# Made ready by one job: a row group that arrives meanwhile waits no longer than this takes.
_STEP_BYTES = 4 * 2**20
_MADV_POPULATE_WRITE = 23


def populate(memory: Memory) -> bool:
    """Let the system find the pages that lie in memory, whatever anyone writes there meanwhile.

    Returns:
        Whether it can: Linux does from 5.14 on. Else whoever writes first waits for them.
    """
    if sys.platform != "linux":
        return False
    begin = memory.__array_interface__["data"][0]
    first, last = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, (begin + memory.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if first >= last:
        return True
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return bool(advise(first, last - first, _MADV_POPULATE_WRITE) == 0)


class Prefault:
    """Pre-faults the memory that a window will be written to, step by step. Guarded by the engine's lock.

    Args:
        taken: Memory that the window has taken, as far as it will be written to.
        blocks: Blocks that it will ask the allocator for later: they are taken, pre-faulted and given back.
        allocator: The window's allocator.
        usage: Counts the bytes; nothing is pre-faulted beyond its limit.
    """

    def __init__(self, taken: Iterable[Memory], blocks: Iterable[Block], allocator: Allocator, usage: Usage) -> None:
        self._cold: deque[Memory] = deque()
        self._blocks = deque(blocks)
        self._allocator = allocator
        self._usage = usage
        self._lent: list[Allocation] = []
        self._running = 0
        self._has_ended = False
        for memory in taken:
            self._add(memory)

    def _add(self, memory: Memory) -> None:
        self._cold.extend(memory[at : at + _STEP_BYTES] for at in range(0, memory.nbytes, _STEP_BYTES))

    @property
    def is_busy(self) -> bool:
        """Whether a step is under way, and holds what it makes ready."""
        return self._running > 0

    def job(self, owed: int) -> Job[bool] | Job[Allocation] | None:
        """Return the next step; None: there is none.

        Args:
            owed: What the windows under way will yet take, what is made ready here included.
        """
        if not self._usage.fits(owed):
            return None
        if self._cold:
            self._running += 1
            return Job("permute", partial(populate, self._cold.popleft()), self._populated, self._failed)
        if self._blocks:
            block = self._blocks.popleft()
            self._running += 1
            return Job(
                "permute", partial(self._allocator.allocate, block.nbytes), partial(self._took, block), self._failed
            )
        return None

    def _populated(self, could: bool) -> None:
        self._running -= 1
        if not could:
            self.stop()

    def _took(self, block: Block, allocation: Allocation) -> None:
        self._running -= 1
        if not self._has_ended:
            self._lent.append(allocation)
            for start, stop in block.written:
                self._add(allocation.array[start:stop])

    def _failed(self, _: BaseException) -> None:
        self._running -= 1
        self.stop()  # whoever needs the memory will say so

    def stop(self) -> None:
        """Give all back: it is needed now, or cannot be had. What a step holds follows when it ends."""
        self._has_ended = True
        self._cold.clear()
        self._blocks.clear()
        self._lent.clear()
