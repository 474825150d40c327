"""Registers shared memory with CUDA, so that copies to a GPU read it directly."""

from __future__ import annotations

import os
import weakref
from bisect import bisect_right, insort
from collections import deque
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch

from parquet_loader.window import Memory


class RegisteredMemory:
    """Blocks of shared memory that are page-locked as long as they live.

    Used by one thread. Blocks may be freed on any thread, also in a garbage collection: a freed block is unregistered
    there, and its address is appended to a deque that the one thread reads. Torch's host allocator does not track this
    memory, so `HeldSources` keeps it alive until the copies from it are done.

    Args:
        device: The device that the memory is copied to.

    Attributes:
        reason: Why the last block could not be registered; None if all could.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stops: dict[int, int] = {}
        self._starts: list[int] = []
        self._freed: deque[int] = deque()
        self.reason: str | None = None

    def register(self, memory: Memory) -> None:
        """Register a block. If that fails, `holds` returns False for it, and `reason` says why."""
        self._forget_freed()
        start, nbytes = memory.ctypes.data, memory.nbytes
        try:
            with self._on_device():
                error = int(torch.cuda.cudart().cudaHostRegister(start, nbytes, 0))
        except (RuntimeError, AttributeError) as failure:  # no driver, or another build of torch
            self.reason = str(failure).split("\n")[0]
            return
        if error:
            self.reason = f"cudaHostRegister: error {error}"
            with suppress(RuntimeError, AssertionError):  # clears the error; else CUDA reports it for the next kernel
                torch.ones(1, device=self._device)
            return
        self._stops[start] = start + nbytes
        insort(self._starts, start)
        # numpy clears an array's weak references before it frees the memory. Views keep the array alive, and so the
        # block registered.
        weakref.finalize(memory, self._unregister, start, os.getpid()).atexit = False

    def _on_device(self) -> AbstractContextManager[Any]:
        """Make the device the current one of this thread: CUDA makes a context on the current one if there is none."""
        return nullcontext() if self._device.type == "cpu" else torch.cuda.device(self._device)

    def _unregister(self, start: int, pid: int) -> None:
        """Unregister a block that is about to be freed; does nothing in a forked process, which has no CUDA."""
        if os.getpid() != pid:
            return
        with suppress(RuntimeError), self._on_device():
            torch.cuda.cudart().cudaHostUnregister(start)
        self._freed.append(start)

    def _forget_freed(self) -> None:
        while self._freed:
            start = self._freed.popleft()
            del self._stops[start]
            self._starts.remove(start)

    def holds(self, array: Any) -> bool:
        """Whether the memory of an array is registered."""
        self._forget_freed()
        start = array.ctypes.data
        number = bisect_right(self._starts, start) - 1
        return number >= 0 and start + array.nbytes <= self._stops.get(self._starts[number], 0)


class HeldSources:
    """Keeps memory until the copies queued from it are done."""

    def __init__(self) -> None:
        self._held: deque[tuple[Any, list[Any]]] = deque()

    def hold(self, event: Any, sources: list[Any]) -> None:
        """Keep memory until `event`, which is recorded behind the copies; None if the copies are already done."""
        if event is not None and sources:
            self._held.append((event, sources))

    def release(self, most: int = 0) -> None:
        """Release memory whose copies are done; wait for them if more than `most` windows are kept."""
        while self._held and (len(self._held) > most or self._held[0][0].query()):
            self._held[0][0].synchronize()
            self._held.popleft()
