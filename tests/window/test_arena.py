"""Memory is used again while warm, never while somebody looks at it, and never piles up."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader.window.arena import Arenas, Memory, heap_block


class Counted:
    """Blocks that are there, by address and size."""

    def __init__(self) -> None:
        self.made = 0
        self.there: dict[int, int] = {}

    def block(self, nbytes: int) -> Memory:
        self.made += 1
        outer = self

        class Block(np.ndarray[Any, Any]):
            def __del__(self) -> None:
                if self.base is None:
                    del outer.there[self.ctypes.data]

        block = Block(nbytes, np.uint8)
        self.there[block.ctypes.data] = nbytes
        return block

    @property
    def nbytes(self) -> int:
        return sum(self.there.values())


@given(
    steps=st.lists(st.one_of(st.integers(0, 30_000), st.integers(-20, -1)), max_size=120),
    keep_bytes=st.integers(0, 80_000),
)
def test_memory_is_bounded_and_nobodys_twice(steps: list[int], keep_bytes: int) -> None:
    """Positive steps allocate that many bytes, negative ones release one of the leases."""
    counted = Counted()
    arenas = Arenas(keep_bytes, counted.block)
    lent: list[Memory] = []
    most_lent = 0
    for number, step in enumerate(steps):
        if step >= 0:
            array = arenas.allocate(step).array
            assert array.nbytes == step
            assert not any(np.shares_memory(array, other) for other in lent)
            array[:] = number % 256
            lent.append(array)
            del array
            # A block serves for a little less than itself, too.
            most_taken = sum(max(a.nbytes + a.nbytes // 4, 4096) for a in lent)
            most_lent = max(most_lent, most_taken)
            assert counted.nbytes <= most_lent + most_lent // 4
            assert counted.nbytes <= most_taken + keep_bytes
        elif lent:
            lent.pop(step % len(lent))
    values = [set(array.tolist()) for array in lent]
    assert all(len(found) <= 1 for found in values)
    arenas.clear()
    assert counted.nbytes >= sum(a.nbytes for a in lent)
    lent.clear()
    assert counted.nbytes == 0


def test_what_was_used_is_used_again_although_a_little_less_is_asked_for() -> None:
    counted = Counted()
    arenas = Arenas(100_000, counted.block)
    for nbytes in (10_000, 9900, 10_000, 9000, 9999, 8000):
        arenas.allocate(nbytes)
    assert counted.made == 1
    arenas.allocate(7999)  # a block too large by more than a quarter is left alone, and given up for a new one
    assert counted.made == 2
    assert counted.nbytes == 7999


def test_columns_of_all_sizes_stay_warm_together() -> None:
    counted = Counted()
    arenas = Arenas(10**6, counted.block)
    sizes = [10, 100, 100, 200, 400, 400, 1000, 5000] * 20
    for _ in range(10):
        window = [arenas.allocate(nbytes) for nbytes in sizes]
        assert len(window) == len(sizes)
        del window
    assert counted.made == len(sizes)


def test_buffers_of_several_lives_stay_warm_together() -> None:
    """Staged rows, their order and the delivered rows are freed at different times, as in windows of text."""
    counted = Counted()
    arenas = Arenas(10**9, counted.block)
    made: list[int] = []
    before: list[object] = []
    for _ in range(8):
        numbers = [arenas.allocate(4000) for _ in range(20)]
        staged = [arenas.allocate(17000) for _ in range(20)]
        offsets = []
        while numbers:
            numbers.pop()
            offsets += [arenas.allocate(8000), arenas.allocate(8000)]
        rows = [arenas.allocate(17000) for _ in range(20)]
        del staged
        before = [offsets, rows]
        made.append(counted.made)
    assert before
    assert made[2:] == made[2:3] * 6


def test_blocks_that_several_threads_make_at_once_all_count() -> None:
    counted, threads = Counted(), 5
    together = Barrier(threads)

    def block(nbytes: int) -> Memory:
        if nbytes == 2000:
            together.wait(60)  # all threads have looked for a free block
        return counted.block(nbytes)

    arenas = Arenas(10**6, block)
    before = [arenas.allocate(1000) for _ in range(10)]
    del before
    with ThreadPoolExecutor(threads) as pool:
        made = list(pool.map(arenas.allocate, [2000] * threads))
    assert len(made) == threads
    assert counted.nbytes <= 12_500


def test_free_blocks_give_way_where_memory_is_short() -> None:
    counted = Counted()

    def block(nbytes: int) -> Memory:
        if counted.nbytes + nbytes > 10_000:
            raise MemoryError
        return counted.block(nbytes)

    arenas = Arenas(10**6, block)
    before = [arenas.allocate(1000) for _ in range(10)]
    del before
    made = [arenas.allocate(5000) for _ in range(2)]
    with pytest.raises(MemoryError):
        arenas.allocate(5000)
    assert len(made) == 2
    made.pop()
    assert arenas.allocate(4000).array.nbytes == 4000


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_large_blocks_are_mapped_and_unmapped() -> None:
    def mapped_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")

    np.empty(2**24, np.uint8)  # freed at once: from now on malloc itself maps only larger blocks
    before = mapped_bytes()
    blocks = [heap_block(2**20) for _ in range(64)]
    assert all(not block.ctypes.data % 64 for block in blocks)
    for block in blocks:
        block[:] = 1
    del blocks[1::2]  # malloc could not give these back: others lie behind them
    assert mapped_bytes() - before < 40 * 2**20
    assert all((block == 1).all() for block in blocks)


def test_blocks_are_allocated_where_nothing_can_be_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", refused)
    block = heap_block(2**20)
    block[:] = 1
    assert block.nbytes == 2**20
    assert not block.ctypes.data % 64


def test_what_a_caller_kept_is_not_kept_for_it() -> None:
    counted = Counted()
    arenas = Arenas(3000, counted.block)
    kept = [arenas.allocate(1000).array for _ in range(50)]
    kept.clear()
    arenas.allocate(1000)
    assert counted.nbytes == 4000


def test_a_forked_child_begins_anew_whoever_held_the_lock() -> None:
    arenas = Arenas(10_000, Counted().block)
    kept = arenas.allocate(5000).array
    kept[:] = 3
    with arenas._lock:  # as another thread may, at the moment of the fork
        child = os.fork()
        if not child:
            fresh = arenas.allocate(5000).array
            fresh[:] = 4
            arenas.clear()
            os._exit(int((kept != 3).any()))
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("smallest", [0, 1])
def test_no_bytes_at_all(smallest: int) -> None:
    """A block of shared memory takes a byte at least, and a file: for nothing, too, it is used again."""
    counted = Counted()
    arenas = Arenas(10_000, lambda nbytes: counted.block(max(nbytes, smallest)))
    for _ in range(10):
        window = [arenas.allocate(nbytes).array for nbytes in (0, 7, 0, 100, 0)]
        assert [array.nbytes for array in window] == [0, 7, 0, 100, 0]
        del window
    assert counted.made == 5


# In an interpreter of its own: what a hundred tests before it left in the allocators would be counted, too.
EPOCHS = """
import os, sys
from pathlib import Path
from parquet_loader import BatchedDataLoader, OutputOptions

def held():
    pids = [os.getpid(), *Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))

options = {"isolation": sys.argv[2], "output_options": OutputOptions(format="numpy")}  # imports no torch
with BatchedDataLoader(sys.argv[1], 100, shuffle=True, window_rows=8000, **options) as loader:
    for _ in range(30):
        for batch in loader:
            pass
        print(held())
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="no /proc/self/smaps_rollup")
@pytest.mark.parametrize("isolation", [pytest.param("thread", marks=pytest.mark.slow), "process"])
def test_windows_that_differ_from_epoch_to_epoch_do_not_pile_up(tmp_path: Path, isolation: str) -> None:
    """Row groups of many sizes meet in other windows each epoch, whose largest is then of another size."""
    rng = np.random.default_rng(0)
    schema = pa.schema({"text": pa.string(), "number": pa.float64()})
    with pq.ParquetWriter(tmp_path / "a.parquet", schema, use_dictionary=False) as writer:
        for rows in rng.integers(500, 2000, 16):
            texts = pa.array(["x" * n for n in rng.integers(500, 1500, rows)])
            writer.write_table(pa.table({"text": texts, "number": rng.random(rows)}, schema))
    done = subprocess.run(
        [sys.executable, "-c", EPOCHS, str(tmp_path), isolation], capture_output=True, text=True, check=True
    )
    after = [int(line) for line in done.stdout.split()]
    # A window takes 8 MB, and one more of each kind was kept for every epoch: 400 MB in all.
    assert max(after[3:]) - max(after[:3]) < 120 * 1024
