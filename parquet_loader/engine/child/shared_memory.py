"""Shared memory of the caller and the child process: unnamed blocks, sent with their data, returned when unused.

A block is a `memfd`. It has no name in a file system, takes no space in /dev/shm, and is freed when the last process
that maps it ends. The child allocates and fills blocks (`SharedMemorySender`). The caller maps each block once and
makes arrays over it (`SharedMemoryReceiver`). Memory that was sent is not written again until the last array over it is
freed.

A process may have a thousand open files and 65,530 mappings, and a window may have a thousand columns. So a mapping
keeps no file open on either side, and buffers share large blocks: a block has an open file only in the child, until it
is sent. Each buffer is returned separately. A released buffer gives its pages back to the system, whatever its
neighbours in the block are doing.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import weakref
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import Any

import numpy as np

from parquet_loader.common import is_out_of_descriptors, out_of_descriptors
from parquet_loader.errors import OutOfMemoryError, UnsupportedError
from parquet_loader.window import Arenas, Leases, Memory

_STRAY_UNIT = 1 << 16
# Bytes of a block that segments share; what a block has not given out yet takes no memory.
_LEAST_BLOCK_BYTES = 16 << 20
# A block is at least this share of all memory, so that blocks that wait to be sent stay few.
_MOST_BLOCKS = 64


@dataclass(frozen=True, slots=True)
class SharedMessage:
    """An object in transit: its arrays lie in shared blocks, the rest is pickled.

    Attributes:
        pickled: The rest.
        locations: For each array: number of its segment, offset in it, and bytes; None for an empty array.
        segments: For each segment: number of its block, first byte and the byte after the last, and its tag, which is
            sent back when no array views the segment any more.
        new: Blocks not mapped yet: number and bytes; their files come with the message, in this order.
        gone: Blocks that are not used again.
    """

    pickled: bytes
    locations: tuple[tuple[int, int, int] | None, ...]
    segments: tuple[tuple[int, int, int, int], ...]
    new: tuple[tuple[int, int], ...]
    gone: tuple[int, ...]


class SharedMemorySender:
    """Sending side. Any thread may use `arenas`; one thread uses `pack` and `take_back`."""

    def __init__(self) -> None:
        check_shared_memory()
        self.arenas = Arenas(0, new_block=self._new_segment, is_required=True)
        self._lock = Lock()
        self._cutting = Lock()  # taken before `_lock`
        self._uncut: tuple[_SharedBlock, mmap.mmap] | None = None
        self._block_bytes = _LEAST_BLOCK_BYTES
        self._starts: list[int] = []
        self._blocks: dict[int, _SharedBlock] = {}
        self._next_block = 0
        self._next_tag = 0
        self._gone: list[int] = []
        self._held: dict[int, list[Any]] = {}

    def limit(self, made_bytes: int) -> None:
        """Set the limit of all windows in bytes; before the first use."""
        self.arenas.keep_bytes = made_bytes
        self._block_bytes = max(_LEAST_BLOCK_BYTES, made_bytes // _MOST_BLOCKS)

    def _new_segment(self, nbytes: int) -> Memory:
        """Return new shared memory: a block, or a segment of the one that segments are being cut from."""
        size = max(nbytes, 1)
        if size > self._block_bytes // 2:
            block, mapped = self._new_block(size)
            with self._lock:
                block.cut(size)
            return np.frombuffer(mapped, np.uint8)
        with self._cutting:
            if self._uncut is None or self._uncut[0].nbytes - self._uncut[0].used < size:
                self._uncut = self._new_block(self._block_bytes)
            block, mapped = self._uncut
            with self._lock:
                start = block.cut(size)
        # Views of the segment know it, not the block: it dies with the last of them.
        segment = np.frombuffer(mapped, np.uint8, size, start)
        weakref.finalize(segment, _give_back, mapped, start, size, os.getpid()).atexit = False
        return segment

    def _new_block(self, size: int) -> tuple[_SharedBlock, mmap.mmap]:
        try:
            file = os.memfd_create("parquet_loader", os.MFD_CLOEXEC)
        except OSError as error:
            if is_out_of_descriptors(error):
                raise out_of_descriptors(
                    "isolation='process': the process that reads cannot make a window", 1
                ) from None
            raise
        try:
            os.ftruncate(file, size)
            mapped = map_shared(file, size)
        except BaseException:
            os.close(file)
            raise
        with self._lock:
            self._forget_gone()
            number, self._next_block = self._next_block, self._next_block + 1
            block = _SharedBlock(number, size, file, weakref.ref(mapped))
            self._blocks[np.frombuffer(mapped, np.uint8).ctypes.data] = block
            self._starts = sorted(self._blocks)
        return block, mapped

    def pack(self, thing: Any) -> tuple[SharedMessage, list[int]]:
        """Return the message of an object, and the files of its new blocks; call `sent` after sending them."""
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(thing, protocol=5, buffer_callback=buffers.append)
        arrays = [np.frombuffer(raw, np.uint8) if (raw := b.raw()).nbytes else None for b in buffers]
        with self._lock:
            self._forget_gone()  # first: an array may lie at the address of a freed block
            found = [None if array is None else self._find(array) for array in arrays]
        strays = [
            array for array, location in zip(arrays, found, strict=True) if array is not None and location is None
        ]
        copies = self._copied(strays)
        segments: dict[tuple[int, int], int] = {}
        described: list[tuple[int, int, int, int]] = []
        with self._lock:
            locations: list[tuple[int, int, int] | None] = []
            for array, location in zip(arrays, found, strict=True):
                if array is None:
                    locations.append(None)
                    continue
                here = array if location is not None else next(copies)
                block, offset = location or self._find_known(here)
                start, stop = block.segment(offset)
                if (block.number, start) not in segments:
                    segments[block.number, start] = len(described)
                    described.append((block.number, start, stop, self._next_tag))
                    self._next_tag += 1
                number = segments[block.number, start]
                locations.append((number, offset - start, here.nbytes))
                self._held.setdefault(described[number][3], []).append(here)
            used = {number for number, _ in segments}
            fresh = [b for b in self._blocks.values() if b.file is not None and b.number in used]
            gone, self._gone = tuple(self._gone), []
        new = tuple((b.number, b.nbytes) for b in fresh)
        message = SharedMessage(pickled, tuple(locations), tuple(described), new, gone)
        return message, [b.file for b in fresh if b.file is not None]

    def sent(self, message: SharedMessage) -> None:
        """Close the files of new blocks: the other side has them now."""
        new = {number for number, _ in message.new}
        with self._lock:
            for block in self._blocks.values():
                if block.number in new and block.file is not None:
                    os.close(block.file)
                    block.file = None

    def take_back(self, tags: list[int]) -> None:
        """Reuse the segments of these tags, which no array views any more."""
        for tag in tags:
            self._held.pop(tag, None)

    def _copied(self, strays: list[Memory]) -> Any:
        """Copy arrays that lie elsewhere into one block; yields the copies in order."""
        sizes = [-(-array.nbytes // 64) * 64 for array in strays]
        if not strays:
            return iter(())
        space = self.arenas.allocate(-(-sum(sizes) // _STRAY_UNIT) * _STRAY_UNIT).array
        copies, at = [], 0
        for array, size in zip(strays, sizes, strict=True):
            copy = space[at : at + array.nbytes]
            copy[:] = array
            copies.append(copy)
            at += size
        return iter(copies)

    def _find(self, array: Memory) -> tuple[_SharedBlock, int] | None:
        address = array.ctypes.data
        number = bisect_right(self._starts, address) - 1
        if number < 0:
            return None
        block = self._blocks[self._starts[number]]
        offset = address - self._starts[number]
        return (block, offset) if offset + array.nbytes <= block.nbytes else None

    def _find_known(self, array: Memory) -> tuple[_SharedBlock, int]:
        found = self._find(array)
        assert found is not None
        return found

    def _forget_gone(self) -> None:
        """Drop freed blocks, whose addresses may be reused; called with the lock."""
        dead = {start: block for start, block in self._blocks.items() if block.mapped() is None}
        for start, block in dead.items():
            del self._blocks[start]
            if block.file is not None:
                os.close(block.file)
        if dead:
            self._starts = sorted(self._blocks)
        self._gone.extend(block.number for block in dead.values())


@dataclass(slots=True)
class _SharedBlock:
    """A block on the sending side. Guarded by the lock of its `SharedMemorySender`.

    Attributes:
        number, nbytes: Which, and how large.
        file: Its file until it has been sent.
        mapped: Its memory while that, or a segment of it, lives.
        used: Bytes that were cut.
        starts, stops: Where each segment begins and ends.
    """

    number: int
    nbytes: int
    file: int | None
    mapped: weakref.ref[mmap.mmap]
    used: int = 0
    starts: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)

    def cut(self, size: int) -> int:
        """Return where a segment of `size` bytes begins: at a page of its own."""
        start = self.used
        self.starts.append(start)
        self.stops.append(start + size)
        self.used = start + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        return start

    def segment(self, offset: int) -> tuple[int, int]:
        """Return where the segment begins and ends in which a byte lies."""
        number = bisect_right(self.starts, offset) - 1
        return self.starts[number], self.stops[number]


def _give_back(mapped: mmap.mmap, start: int, size: int, pid: int) -> None:
    """Give the pages of a segment that has died back to the system; they are not used again.

    In a process that a `transform` forked, the segment dies too, and the pages are still those that others see.
    """
    if os.getpid() == pid:
        _remove_pages(mapped, start, size)


def _remove_pages(mapped: mmap.mmap, start: int, size: int) -> None:
    with suppress(OSError, ValueError):  # a simulated kernel may not know how; the block's end frees them, too
        mapped.madvise(mmap.MADV_REMOVE, start, size)


class SharedMemoryReceiver:
    """Receiving side. Single-threaded, but its arrays may be freed on any thread."""

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[mmap.mmap, Memory]] = {}
        self._leases: Leases[int] = Leases()
        self._lent: dict[int, tuple[int, int, int]] = {}

    def add_block(self, number: int, nbytes: int, file: int) -> None:
        """Map a new block; its file may be closed afterwards."""
        mapped = map_shared(file, nbytes)
        self._blocks[number] = mapped, np.frombuffer(mapped, np.uint8)

    def unpack(self, message: SharedMessage) -> Any:
        """Return what was packed, after `add_block` for each new block; its arrays can be written to."""
        for number in message.gone:
            self._blocks.pop(number, None)
        self._lent.update((tag, (number, start, stop)) for number, start, stop, tag in message.segments)
        lent = [self._leases.lend(self._blocks[n][1][start:stop], tag) for n, start, stop, tag in message.segments]
        arrays = [np.empty(0, np.uint8) if p is None else lent[p[0]][p[1] : p[1] + p[2]] for p in message.locations]
        return pickle.loads(message.pickled, buffers=arrays)  # noqa: S301 - of our own process, see `channel`

    def ended(self) -> list[int]:
        """Return the tags of segments that no array views any more, since the last call."""
        ended = self._leases.ended()
        for tag in ended:
            self._lent.pop(tag, None)
        return ended

    def release(self) -> None:
        """Free the pages that no array views, after the sending side has ended; a batch keeps only its own pages."""
        self.ended()
        seen: dict[int, list[tuple[int, int]]] = {}
        for number, start, stop in self._lent.values():
            seen.setdefault(number, []).append((start, stop))
        for number, spans in seen.items():
            if number in self._blocks:
                mapped, block = self._blocks[number]
                starts = [0, *(-(-stop // mmap.PAGESIZE) * mmap.PAGESIZE for _, stop in sorted(spans))]
                stops = [*(start for start, _ in sorted(spans)), block.nbytes]
                for start, stop in zip(starts, stops, strict=True):
                    if start < stop:
                        _remove_pages(mapped, start, stop - start)
        self._blocks.clear()


def map_shared(file: int, nbytes: int) -> mmap.mmap:
    """Map a file without keeping it open: until Python 3.13, `mmap.mmap` holds a descriptor as long as it lives.

    The object is made without a file, and the file's pages are then mapped over its own.

    Raises:
        OutOfMemoryError: the process has no address space or too many mappings.
    """
    try:
        mapped = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise _unmappable(nbytes, error) from None
    address = np.frombuffer(mapped, np.uint8).ctypes.data
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED
    if _system_mmap()(address, nbytes, protection, flags, file, 0) != address:
        number = ctypes.get_errno()
        _unmapped.append(mapped)  # its addresses may be somebody else's by now, so it must not unmap them
        raise _unmappable(nbytes, OSError(number, os.strerror(number)))
    return mapped


def _unmappable(nbytes: int, error: OSError) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"isolation='process': {nbytes} bytes of shared memory cannot be mapped: {error.strerror}; keep fewer batches, "
        "or raise the limits of the process: ulimit -v, sysctl vm.max_map_count"
    )


_MAP_FIXED = 0x10  # on Linux, on every processor that Python's wheels are built for
_unmapped: list[mmap.mmap] = []


@cache
def _system_mmap() -> Callable[..., int | None]:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64
    ]  # fmt: skip
    return function


def check_shared_memory() -> None:
    """Raise if the system has no unnamed shared memory.

    Raises:
        UnsupportedError: not on Linux.
    """
    if not hasattr(os, "memfd_create"):
        raise UnsupportedError("isolation='process' needs Linux (memfd); isolation='thread' gives the same batches")
