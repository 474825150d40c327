"""Memory that two processes see: blocks without a name, handed over with what lies in them, and back when unseen.

A block is a `memfd`: it has no name in any file system, takes no room in /dev/shm, and is gone when the last process
that maps it ends, however it ends. The process that reads makes blocks and fills them (`Giver`); the caller's maps each
once and makes arrays over it (`Taker`). What is handed over stays untouched until the last array over it has died.

Each block that is mapped takes an open file on either side, of which a process may have a thousand, and a window may
have a thousand columns: small pieces of memory are cut from blocks that they share.
"""

from __future__ import annotations

import mmap
import os
import pickle
import weakref
from bisect import bisect_right
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from parquet_loader.arena import Arenas, Leases, Memory
from parquet_loader.errors import UnsupportedError

_STRAY_UNIT = 1 << 16
# Pieces of up to a MiB share blocks; what a block has not given out yet takes no memory.
_SMALL_BYTES = 1 << 20
_SHARED_BLOCK_BYTES = 4 << 20
_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class Parcel:
    """Something handed over: its arrays lie in shared blocks, the rest is pickled.

    Attributes:
        pickled: The rest.
        places: For each array: the block's number, where in it, and how many bytes; None for an empty one.
        tags: By block: what to send back when no array sees it any more.
        new: Blocks not mapped yet, number and bytes; their files come with the message, in this order.
        gone: Blocks that are not used again.
    """

    pickled: bytes
    places: tuple[tuple[int, int, int] | None, ...]
    tags: dict[int, int]
    new: tuple[tuple[int, int], ...]
    gone: tuple[int, ...]


class Giver:
    """The filling side. `arenas` may be used by any thread; `pack` and `take_back` by one."""

    def __init__(self) -> None:
        check_shared_memory()
        self.arenas = Arenas(0, new_block=self._new_piece, is_required=True)
        self._lock = Lock()
        self._cutting = Lock()  # taken before `_lock`
        self._uncut: Memory | None = None
        self._starts: list[int] = []
        self._blocks: dict[int, _Block] = {}
        self._next_block = 0
        self._next_tag = 0
        self._gone: list[int] = []
        self._held: dict[int, list[Any]] = {}

    def _new_piece(self, nbytes: int) -> Memory:
        """Return new shared memory: a block, or a piece of the one that small pieces are being cut from."""
        size = max(nbytes, 1)
        if size > _SMALL_BYTES:
            return self._new_block(size)
        with self._cutting:
            if self._uncut is None or self._uncut.nbytes < size:
                self._uncut = self._new_block(_SHARED_BLOCK_BYTES)
            piece = self._uncut[:size]
            self._uncut = self._uncut[-(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES :]
            return piece

    def _new_block(self, size: int) -> Memory:
        file = os.memfd_create("parquet_loader", os.MFD_CLOEXEC)
        try:
            os.ftruncate(file, size)
            mapped = mmap.mmap(file, size)
        except BaseException:
            os.close(file)
            raise
        memory = np.frombuffer(mapped, np.uint8)
        with self._lock:
            self._forget_gone()
            number, self._next_block = self._next_block, self._next_block + 1
            self._blocks[memory.ctypes.data] = _Block(number, memory.nbytes, file, weakref.ref(memory))
            self._starts = sorted(self._blocks)
        return memory

    def pack(self, thing: Any) -> tuple[Parcel, list[int]]:
        """Return `thing` to be handed over, and the files of its new blocks; call `sent` when they are sent."""
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(thing, protocol=5, buffer_callback=buffers.append)
        arrays = [np.frombuffer(raw, np.uint8) if (raw := b.raw()).nbytes else None for b in buffers]
        with self._lock:
            self._forget_gone()  # first: what is handed over may lie where a block was
            found = [None if array is None else self._find(array) for array in arrays]
        strays = [array for array, place in zip(arrays, found, strict=True) if array is not None and place is None]
        copies = self._copied(strays)
        tags: dict[int, int] = {}
        with self._lock:
            places: list[tuple[int, int, int] | None] = []
            for array, place in zip(arrays, found, strict=True):
                if array is None:
                    places.append(None)
                    continue
                here = array if place is not None else next(copies)
                block, offset = place or self._find_known(here)
                places.append((block.number, offset, here.nbytes))
                if block.number not in tags:
                    tags[block.number], self._next_tag = self._next_tag, self._next_tag + 1
                self._held.setdefault(tags[block.number], []).append(here)
            fresh = [b for b in self._blocks.values() if b.file is not None and b.number in tags]
            gone, self._gone = tuple(self._gone), []
        parcel = Parcel(pickled, tuple(places), tags, tuple((b.number, b.nbytes) for b in fresh), gone)
        return parcel, [b.file for b in fresh if b.file is not None]

    def sent(self, parcel: Parcel) -> None:
        """Close the files of new blocks: the other side has them now."""
        new = {number for number, _ in parcel.new}
        with self._lock:
            for block in self._blocks.values():
                if block.number in new and block.file is not None:
                    os.close(block.file)
                    block.file = None

    def take_back(self, tags: list[int]) -> None:
        """Let blocks be used again that no array sees any more."""
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

    def _find(self, array: Memory) -> tuple[_Block, int] | None:
        address = array.ctypes.data
        number = bisect_right(self._starts, address) - 1
        if number < 0:
            return None
        block = self._blocks[self._starts[number]]
        offset = address - self._starts[number]
        return (block, offset) if offset + array.nbytes <= block.nbytes else None

    def _find_known(self, array: Memory) -> tuple[_Block, int]:
        found = self._find(array)
        assert found is not None
        return found

    def _forget_gone(self) -> None:
        """Drop blocks whose memory has died, since another may come to lie where they were; called with the lock."""
        dead = {start: block for start, block in self._blocks.items() if block.memory() is None}
        for start, block in dead.items():
            del self._blocks[start]
            if block.file is not None:
                os.close(block.file)
        if dead:
            self._starts = sorted(self._blocks)
        self._gone.extend(block.number for block in dead.values())


@dataclass(slots=True)
class _Block:
    """A block on the filling side: its file until it has been sent, and its memory while that, or a piece, lives."""

    number: int
    nbytes: int
    file: int | None
    memory: weakref.ref[Memory]


class Taker:
    """The side that looks. Used by one thread at a time, but arrays may die anywhere."""

    def __init__(self) -> None:
        self._blocks: dict[int, Memory] = {}
        self._leases: Leases[int] = Leases()

    def unpack(self, parcel: Parcel, files: list[int]) -> Any:
        """Return what was packed; its arrays lie in shared memory, and can be written to."""
        for (number, nbytes), file in zip(parcel.new, files, strict=True):
            self._blocks[number] = np.frombuffer(mmap.mmap(file, nbytes), np.uint8)
            os.close(file)
        for number in parcel.gone:
            self._blocks.pop(number, None)
        lent = {number: self._leases.lend(self._blocks[number], tag) for number, tag in parcel.tags.items()}
        arrays = [np.empty(0, np.uint8) if p is None else lent[p[0]][p[1] : p[1] + p[2]] for p in parcel.places]
        return pickle.loads(parcel.pickled, buffers=arrays)  # noqa: S301 - of our own process, see `channel`

    def ended(self) -> list[int]:
        """Return the tags of what no array sees any more, since the last call."""
        return self._leases.ended()


def check_shared_memory() -> None:
    """Raise where the system has no nameless shared memory.

    Raises:
        UnsupportedError: not on Linux.
    """
    if not hasattr(os, "memfd_create"):
        raise UnsupportedError("isolation='process' needs Linux (memfd); isolation='thread' gives the same batches")
