"""Shares windows between the child process and the caller in blocks of unnamed memory, which are reused.

A block is a `memfd`. It has no name in a file system, takes no space in /dev/shm, and is freed when the last process
that maps it ends. The child allocates and fills blocks (`SharedMemorySender`). The caller maps each block once and
makes arrays over it (`SharedMemoryReceiver`). Sent memory is not written again until the last array over it is freed.

A process may have a thousand open files and 65,530 mappings, and a window may have a thousand columns. So the buffers
of a window are segments of a few large blocks, and a mapping keeps no file open: a block has an open file only in the
child, until it is sent. Segments are returned one by one. A freed segment returns its pages to the system even if other
segments of the block are in use.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import pickle
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import Any

import numpy as np

from parquet_loader.common import is_out_of_descriptors, out_of_descriptors
from parquet_loader.errors import OutOfMemoryError, SystemReadError, UnsupportedError
from parquet_loader.window import Arenas, Leases, Memory

ISOLATION = "isolation='process'"
_COPY_UNIT_BYTES = 1 << 16
# Size of a block for segments; the part that is not allocated yet takes no memory.
_LEAST_BLOCK_BYTES = 16 << 20
# A block is at least 1/64 of all memory, so that few blocks wait to be sent.
_MOST_BLOCKS = 64
# What the system says if it lacks a call, or a sandbox refuses it.
_REFUSED = (errno.ENOSYS, errno.EPERM, errno.EACCES)


@dataclass(frozen=True, slots=True)
class SharedMessage:
    """A message: an object whose arrays are in shared blocks; the rest of it is pickled.

    Attributes:
        pickled: The object without the arrays' memory.
        locations: For each array: number of its segment, offset in it, and bytes; None for an empty array.
        segments: For each segment: number of its block, its start and its stop (exclusive) in the block, and a tag. The
            receiver sends the tag back when no array views the segment any more.
        new: Number and bytes of blocks that the receiver has not mapped; their files follow the message in this order.
        gone: Numbers of blocks that are not used again.
    """

    pickled: bytes
    locations: tuple[tuple[int, int, int] | None, ...]
    segments: tuple[tuple[int, int, int, int], ...]
    new: tuple[tuple[int, int], ...]
    gone: tuple[int, ...]


class SharedMemorySender:
    """Sending side. Any thread may use `arenas`; one thread uses `pack` and `take_back`.

    Args:
        option: The loader's argument that asks for the other process; error messages begin with it.
    """

    def __init__(self, option: str = ISOLATION) -> None:
        check_shared_memory()
        self._option = option
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

    def limit(self, windows_and_batches_bytes: int) -> None:
        """Set the limit of all windows and batches in bytes; called before the first use."""
        self.arenas.keep_bytes = windows_and_batches_bytes
        self._block_bytes = max(_LEAST_BLOCK_BYTES, windows_and_batches_bytes // _MOST_BLOCKS)

    def _new_segment(self, nbytes: int) -> Memory:
        """Return new shared memory: a whole block, or a segment of the current block."""
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
        # Views keep the segment alive, not the block: the segment dies with the last view.
        segment = np.frombuffer(mapped, np.uint8, size, start)
        weakref.finalize(segment, _free_pages, mapped, start, size, os.getpid()).atexit = False
        return segment

    def _new_block(self, size: int) -> tuple[_SharedBlock, mmap.mmap]:
        try:
            file = os.memfd_create("parquet_loader", os.MFD_CLOEXEC)
        except OSError as error:
            if is_out_of_descriptors(error):
                raise out_of_descriptors(f"{self._option}: the child process cannot allocate a window", 1) from None
            raise
        try:
            os.ftruncate(file, size)
            mapped = map_shared(file, size, self._option)
        except BaseException as error:
            os.close(file)
            if isinstance(error, OSError) and error.errno == errno.EFBIG:
                raise _beyond_file_size(size, self._option) from None
            raise
        with self._lock:
            self._forget_gone()
            number, self._next_block = self._next_block, self._next_block + 1
            block = _SharedBlock(number, size, file, weakref.ref(mapped))
            self._blocks[np.frombuffer(mapped, np.uint8).ctypes.data] = block
            self._starts = sorted(self._blocks)
        return block, mapped

    def pack(self, content: Any) -> tuple[SharedMessage, list[int]]:
        """Return the message for an object, and the files of its new blocks; call `sent` after both are sent."""
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(content, protocol=5, buffer_callback=buffers.append)
        arrays = [np.frombuffer(raw, np.uint8) if (raw := b.raw()).nbytes else None for b in buffers]
        with self._lock:
            self._forget_gone()  # first, because an array may be at the address of a freed block
            found = [None if array is None else self._find(array) for array in arrays]
        unshared = [
            array for array, location in zip(arrays, found, strict=True) if array is not None and location is None
        ]
        copies = self._copied(unshared)
        segments: dict[tuple[int, int], int] = {}
        described: list[tuple[int, int, int, int]] = []
        with self._lock:
            locations: list[tuple[int, int, int] | None] = []
            for array, location in zip(arrays, found, strict=True):
                if array is None:
                    locations.append(None)
                    continue
                shared = array if location is not None else next(copies)
                block, offset = location or self._find_known(shared)
                start, stop = block.segment(offset)
                if (block.number, start) not in segments:
                    segments[block.number, start] = len(described)
                    described.append((block.number, start, stop, self._next_tag))
                    self._next_tag += 1
                number = segments[block.number, start]
                locations.append((number, offset - start, shared.nbytes))
                self._held.setdefault(described[number][3], []).append(shared)
            used = {number for number, _ in segments}
            fresh = [b for b in self._blocks.values() if b.file is not None and b.number in used]
            gone, self._gone = tuple(self._gone), []
        new = tuple((b.number, b.nbytes) for b in fresh)
        message = SharedMessage(pickled, tuple(locations), tuple(described), new, gone)
        return message, [b.file for b in fresh if b.file is not None]

    def sent(self, message: SharedMessage) -> None:
        """Close the files of new blocks: the receiver has them now."""
        new = {number for number, _ in message.new}
        with self._lock:
            for block in self._blocks.values():
                if block.number in new and block.file is not None:
                    os.close(block.file)
                    block.file = None

    def withdraw(self, message: SharedMessage) -> None:
        """Take back a message that was packed and is not sent."""
        self.take_back([tag for *_, tag in message.segments])
        with self._lock:
            self._gone.extend(message.gone)

    def take_back(self, tags: list[int]) -> None:
        """Free the segments of these tags for reuse: no array of the receiver views them any more."""
        for tag in tags:
            self._held.pop(tag, None)

    def close(self) -> None:
        """Release all memory and files that the receiver does not use; nothing is sent afterwards."""
        self.arenas.clear()
        self._uncut = None
        with self._lock:
            for block in self._blocks.values():
                if block.file is not None:
                    os.close(block.file)
                    block.file = None
            self._held.clear()

    def _copied(self, arrays: list[Memory]) -> Iterator[Memory]:
        """Copy arrays into one segment of shared memory; return an iterator over the copies."""
        sizes = [-(-array.nbytes // 64) * 64 for array in arrays]
        if not arrays:
            return iter(())
        space = self.arenas.allocate(-(-sum(sizes) // _COPY_UNIT_BYTES) * _COPY_UNIT_BYTES).array
        copies, at = [], 0
        for array, size in zip(arrays, sizes, strict=True):
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
        """Drop freed blocks, because their addresses may be reused; called with the lock held."""
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
        number, nbytes: Its number and size.
        file: Its file descriptor; None after it has been sent.
        mapped: A weak reference to its memory, which lives as long as a segment does.
        used: Bytes allocated to segments.
        starts, stops: First byte of each segment, and the byte after its last.
    """

    number: int
    nbytes: int
    file: int | None
    mapped: weakref.ref[mmap.mmap]
    used: int = 0
    starts: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)

    def cut(self, size: int) -> int:
        """Allocate a segment of `size` bytes, which begins at a new page; return its first byte."""
        start = self.used
        self.starts.append(start)
        self.stops.append(start + size)
        self.used = start + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        return start

    def segment(self, offset: int) -> tuple[int, int]:
        """Return the first byte of the segment that contains `offset`, and the byte after its last."""
        number = bisect_right(self.starts, offset) - 1
        return self.starts[number], self.stops[number]


def _free_pages(mapped: mmap.mmap, start: int, size: int, pid: int) -> None:
    """Return the pages of a freed segment to the system; they are not used again.

    Does nothing in a process that a `transform` forked, whose pages are those of the parent.
    """
    if os.getpid() == pid:
        _remove_pages(mapped, start, size)


def _remove_pages(mapped: mmap.mmap, start: int, size: int) -> None:
    with suppress(OSError, ValueError):  # simulated kernels may lack it; freeing the block frees the pages too
        mapped.madvise(mmap.MADV_REMOVE, start, size)


class SharedMemoryReceiver:
    """Receiving side. Single-threaded, but its arrays may be freed on any thread.

    Args:
        option: As in `SharedMemorySender`.
        on_block: Called with each new block. It may page-lock the block; then `free_ended` must not be called, because
            page-locked memory would not see the pages that replace freed ones.
    """

    def __init__(self, option: str = ISOLATION, on_block: Callable[[Memory], None] | None = None) -> None:
        self._option = option
        self._on_block = on_block
        self._blocks: dict[int, tuple[mmap.mmap, Memory]] = {}
        self._leases: Leases[int] = Leases()
        self._leased: dict[int, tuple[int, int, int]] = {}
        self._freed: list[int] = []

    def add_block(self, number: int, nbytes: int, file: int) -> None:
        """Map a new block; its file may be closed afterwards."""
        mapped = map_shared(file, nbytes, self._option)
        block = np.frombuffer(mapped, np.uint8)
        self._blocks[number] = mapped, block
        if self._on_block is not None:
            self._on_block(block)

    def unpack(self, message: SharedMessage) -> Any:
        """Return the packed object; its arrays are writable. Call `add_block` for each new block first."""
        for number in message.gone:
            self._blocks.pop(number, None)
        self._leased.update((tag, (number, start, stop)) for number, start, stop, tag in message.segments)
        memory = [self._leases.lease(self._blocks[n][1][start:stop], tag) for n, start, stop, tag in message.segments]
        arrays = [np.empty(0, np.uint8) if p is None else memory[p[0]][p[1] : p[1] + p[2]] for p in message.locations]
        return pickle.loads(message.pickled, buffers=arrays)  # noqa: S301 - of our own process, see `channel`

    def ended(self) -> list[int]:
        """Return the tags of segments whose last view was freed since the last call."""
        ended, self._freed = [*self._freed, *self._leases.ended()], []
        for tag in ended:
            self._leased.pop(tag, None)
        return ended

    @property
    def has_ended(self) -> bool:
        """Whether `free_ended` would free pages; any thread may ask."""
        return self._leases.has_ended

    def free_ended(self) -> None:
        """Return the pages of segments without views to the system, before the sender is told.

        The sender does not write to a segment before `ended` has returned its tag.
        """
        assert self._on_block is None
        for tag in self._leases.ended():
            number, start, stop = self._leased[tag]
            if number in self._blocks:
                _remove_pages(self._blocks[number][0], start, stop - start)
            self._freed.append(tag)

    def release(self) -> None:
        """Free all pages without views, after the sender has ended; batches that the caller keeps stay valid."""
        self.ended()
        viewed: dict[int, list[tuple[int, int]]] = {}
        for number, start, stop in self._leased.values():
            viewed.setdefault(number, []).append((start, stop))
        for number, spans in viewed.items():
            if number in self._blocks:
                mapped, block = self._blocks[number]
                starts = [0, *(-(-stop // mmap.PAGESIZE) * mmap.PAGESIZE for _, stop in sorted(spans))]
                stops = [*(start for start, _ in sorted(spans)), block.nbytes]
                for start, stop in zip(starts, stops, strict=True):
                    if start < stop:
                        _remove_pages(mapped, start, stop - start)
        self._blocks.clear()


def map_shared(file: int, nbytes: int, option: str = ISOLATION) -> mmap.mmap:
    """Map a file without keeping it open: before Python 3.13, `mmap.mmap` always keeps a descriptor.

    An anonymous mapping is made first, and the file's pages are then mapped over it.

    Raises:
        OutOfMemoryError: The process lacks address space, or has too many mappings.
    """
    try:
        mapped = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise _unmappable(nbytes, option, error) from None
    address = np.frombuffer(mapped, np.uint8).ctypes.data
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED
    if _system_mmap()(address, nbytes, protection, flags, file, 0) != address:
        number = ctypes.get_errno()
        _unmapped.append(mapped)  # kept forever: its addresses may have other owners by now, so it must not unmap them
        raise _unmappable(nbytes, option, OSError(number, os.strerror(number)))
    return mapped


def _unmappable(nbytes: int, option: str, error: OSError) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"{option}: {nbytes} bytes of shared memory cannot be mapped: {error.strerror}; keep fewer batches, "
        "or raise the limits of the process: ulimit -v, sysctl vm.max_map_count"
    )


def _beyond_file_size(nbytes: int, option: str) -> SystemReadError:
    found = SystemReadError(
        f"{option}: {nbytes} bytes of shared memory exceed the limit of the size of files; raise it before Python "
        "starts: ulimit -f unlimited"
    )
    found.errno = errno.EFBIG
    return found


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


def check_shared_memory(option: str = ISOLATION, instead: str = "isolation='thread'") -> None:
    """Raise if the system has no unnamed shared memory.

    Args:
        option: The loader's argument that needs it.
        instead: The argument that does not.

    Raises:
        UnsupportedError: The system is not Linux, or a sandbox refuses the system call.
    """
    if not hasattr(os, "memfd_create"):
        raise UnsupportedError(f"{option} needs Linux (memfd); {instead} gives the same batches")
    try:
        os.close(os.memfd_create("parquet_loader", os.MFD_CLOEXEC))
    except OSError as error:
        if error.errno in _REFUSED:
            raise UnsupportedError(
                f"{option} needs memfd_create, which this system or container refuses ({error.strerror}); allow it in "
                f"the seccomp profile; {instead} gives the same batches"
            ) from None
