"""Pre-faults the first window's memory while the first remote reads are in flight.

New memory costs a page fault for each 4 KiB at the first write. Without pre-faulting, these faults delay the first
batch of remote row groups, because they come after the last row group has arrived.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections import deque
from collections.abc import Iterable
from functools import partial

from parquet_loader.engine.usage import Usage
from parquet_loader.engine.workers.epoch_workers import Job
from parquet_loader.window import Allocation, Allocator, Block, Memory

# Bytes that one job pre-faults; a row group that arrives meanwhile waits for the job.
_STEP_BYTES = 4 * 2**20
_MADV_POPULATE_WRITE = 23


def populate(memory: Memory) -> bool:
    """Pre-fault all whole pages of the memory; safe while other threads write to it.

    Returns:
        Whether the system supports it (Linux 5.14 and later). If not, the first write to each page causes the fault.
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
    """Pre-faults the memory that a window will be written to, in small jobs. Guarded by the engine's lock.

    Args:
        allocated: The part of the window's memory that will be written.
        blocks: Blocks that the window will allocate later; they are allocated, pre-faulted and freed for reuse.
        allocator: The window's allocator.
        usage: Counts the bytes; pre-faulting stops at its limit.
    """

    def __init__(
        self, allocated: Iterable[Memory], blocks: Iterable[Block], allocator: Allocator, usage: Usage
    ) -> None:
        self._cold: deque[Memory] = deque()
        self._blocks = deque(blocks)
        self._allocator = allocator
        self._usage = usage
        self._allocations: list[Allocation] = []
        self._running = 0
        self._has_ended = False
        for memory in allocated:
            self._add(memory)

    def _add(self, memory: Memory) -> None:
        self._cold.extend(memory[at : at + _STEP_BYTES] for at in range(0, memory.nbytes, _STEP_BYTES))

    @property
    def is_busy(self) -> bool:
        """Whether a job is running, and so holds memory."""
        return self._running > 0

    def job(self, owed: int) -> Job[bool] | Job[Allocation] | None:
        """Return the next job; None if all memory is pre-faulted or there is no free space.

        Args:
            owed: Bytes that the windows in progress have yet to reserve, including the pre-faulted memory.
        """
        if not self._usage.fits(owed):
            return None
        if self._cold:
            self._running += 1
            return Job("permute", partial(populate, self._cold.popleft()), self._populated, self._failed)
        if self._blocks:
            block = self._blocks.popleft()
            self._running += 1
            run = partial(self._allocator.allocate, block.nbytes)
            return Job("permute", run, partial(self._allocated, block), self._failed)
        return None

    def _populated(self, is_supported: bool) -> None:
        self._running -= 1
        if not is_supported:
            self.stop()

    def _allocated(self, block: Block, allocation: Allocation) -> None:
        self._running -= 1
        if not self._has_ended:
            self._allocations.append(allocation)
            for start, stop in block.written:
                self._add(allocation.array[start:stop])

    def _failed(self, _: BaseException) -> None:
        self._running -= 1
        self.stop()  # the job that needs the memory raises the error

    def stop(self) -> None:
        """Free all memory; a running job frees its memory when it ends."""
        self._has_ended = True
        self._cold.clear()
        self._blocks.clear()
        self._allocations.clear()
