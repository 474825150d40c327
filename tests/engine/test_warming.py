"""The memory of the first window is pre-faulted while the first remote reads are in flight."""

from __future__ import annotations

import mmap
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import BatchedDataLoader, OutputOptions
from parquet_loader.engine.prefault import Prefault, populate
from parquet_loader.engine.usage import Usage
from parquet_loader.engine.workers.epoch_workers import resource
from parquet_loader.window.arena import Allocation, Arenas, Block
from parquet_loader.window.assembly import Assembly, BufferSizes, Remainder
from parquet_loader.window.column_groups import ColumnGroups

NUMPY = OutputOptions(format="numpy")


def small_pages(count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return fresh memory of which the system finds each page by itself."""
    mapping = mmap.mmap(-1, count * mmap.PAGESIZE)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        mapping.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(mapping, np.uint8)


def faults_of_writing(memory: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
    """Write to every page, and return how many the system had to find for that."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    memory[:: mmap.PAGESIZE] = 7
    return int(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)


@pytest.mark.skipif(resource is None, reason="this system does not count the page faults of a thread")
def test_memory_made_ready_is_there_and_holds_what_was_written() -> None:
    pages = 512
    cold, warm = small_pages(pages), small_pages(pages)
    warm[5] = 9
    if not populate(warm):
        pytest.skip("this system cannot make memory ready: Linux can from 5.14 on")
    assert warm[5] == 9
    assert not warm[6:].any()
    assert faults_of_writing(warm) < pages / 8 < faults_of_writing(cold)


def steps(warming: Prefault) -> int:
    """Take all steps, and return how many there were."""
    count = 0
    while (job := warming.job(owed=0)) is not None:
        job.done(job.run())  # type: ignore[arg-type]
        count += 1
    return count


def whole(*sizes: int) -> list[Block]:
    return [Block(nbytes, ((0, nbytes),)) for nbytes in sizes]


def test_blocks_are_found_again_warm() -> None:
    made: list[int] = []

    def new_block(nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        made.append(nbytes)
        return np.empty(nbytes, np.uint8)

    arenas, usage = Arenas(10**9, new_block), Usage(10**9)
    sizes = [10_000_000, 5_000_000, 5_000_000, 0, 100]
    warming = Prefault([np.empty(9_000_000, np.uint8)], whole(*sizes), arenas, usage)
    assert steps(warming) > len(sizes) + 2
    assert made == sizes
    assert not warming.is_busy
    warming.stop()
    lent = [arenas.allocate(nbytes) for nbytes in sizes]
    assert made == sizes
    assert len(lent) == len(sizes)
    assert warming.job(owed=0) is None


@pytest.mark.skipif(resource is None, reason="this system does not count the page faults of a thread")
def test_only_what_will_be_written_is_made_ready() -> None:
    page = mmap.PAGESIZE
    block = small_pages(5000)
    arenas = Arenas(10**9, lambda nbytes: block[:nbytes])
    written = ((10, 20), (2000 * page, 4500 * page - 10))  # no whole page, and 2499
    warming = Prefault([], [Block(4900 * page, written)], arenas, Usage(10**9))
    steps(warming)
    ready = block[2000 * page : 4499 * page]
    if faults_of_writing(ready) > 300:
        pytest.skip("this system cannot make memory ready: Linux can from 5.14 on")
    assert faults_of_writing(block[: 2000 * page]) == 2000
    assert faults_of_writing(block[4500 * page :]) == 500


def test_what_the_budget_has_no_room_for_is_not_made_ready() -> None:
    usage = Usage(limit_bytes=100)
    usage.reserve(40)
    warming = Prefault([np.zeros(10, np.uint8)], whole(50), Arenas(10**9), usage)
    assert warming.job(owed=61) is None
    assert warming.job(owed=60) is not None
    assert warming.is_busy
    assert usage.held_bytes == 40


def test_it_ends_where_memory_is_not_to_be_had_or_comes_too_late() -> None:
    class Empty:
        is_required = False

        def taken_bytes(self, nbytes: int) -> int:
            return nbytes

        def allocate(self, nbytes: int) -> Allocation:
            raise MemoryError(nbytes)

    usage = Usage(10**9)
    warming = Prefault([], whole(50, 60), Empty(), usage)
    job = warming.job(owed=0)
    assert job is not None
    with pytest.raises(MemoryError) as raised:
        job.run()
    job.failed(raised.value)
    assert not warming.is_busy
    assert warming.job(owed=0) is None

    arenas = Arenas(10**9)
    late = Prefault([], whole(50), arenas, usage)
    job = late.job(owed=0)
    assert job is not None
    late.stop()
    assert late.is_busy
    block = job.run()
    job.done(block)  # type: ignore[arg-type]
    assert not late.is_busy
    address = block.array.ctypes.data
    del block
    assert arenas.allocate(50).array.ctypes.data == address, "it came back"
    assert late.job(owed=0) is None


def test_what_a_window_asks_for_is_what_was_foretold(tmp_path: Path) -> None:
    rows = 3000
    rng = np.random.default_rng(0)
    bytes_of = [rng.bytes(n % 90) for n in range(rows)]
    table = {
        "int": np.arange(rows),
        "float": rng.normal(size=rows).astype(np.float32),
        "flag": rng.integers(0, 2, rows).astype(bool),
        "staged": pa.FixedSizeBinaryArray.from_buffers(pa.binary(52), rows, [None, pa.py_buffer(rng.bytes(52 * rows))]),
        "wide": pa.FixedSizeBinaryArray.from_buffers(pa.binary(512), rows, [None, pa.py_buffer(rng.bytes(512 * rows))]),
        "text": pa.array([f"{n:x}" * (n % 7) for n in range(rows)]),
        "bytes": pa.array(bytes_of, pa.binary()),
        "list": pa.array([list(range(n % 5)) for n in range(rows)], pa.list_(pa.int32())),
    }
    pq.write_table(pa.table(table), tmp_path / "a.parquet", row_group_size=1000)
    asked: list[int] = []

    class Recording(Arenas):
        def allocate(self, nbytes: int) -> Allocation:
            asked.append(nbytes)
            return super().allocate(nbytes)

    with BatchedDataLoader(str(tmp_path), 100, shuffle=True, window_rows=rows, output_options=NUMPY) as loader:
        plan, reader, sizes = loader._plan(0), loader._dataset.reader, loader._dataset.sizing.row
        assert plan.windows == 1
        slices, parts = plan.slices(0), ColumnGroups.from_columns(reader.columns, 4)
        ragged_bytes = {name: int(1.05 * width * (rows + 100)) for name, width in sizes.ragged}
        buffers = BufferSizes(rows + 100, ragged_bytes, Arenas(10**9), Recording(10**9))
        assembly = Assembly(parts, [s.rows for s in slices], 0, 100, buffers, deliver_rest=True)
        assembly.prepare(partial(plan.order, 0, 0), partial(plan.order_words, 0, 0))
        _, foretold = assembly.to_be_written()
        for number, slice_ in enumerate(slices):
            at_row = 0
            for some in reader.lazy_batches(reader.snapshot.row_group(slice_.row_group), slice_.rows):
                assembly.write_rows(number, at_row, some, 0, some.rows)  # while the file is open
                at_row += some.rows
        asked.clear()
        assembly.begin_gathering(Remainder())
        for job in range(parts.jobs):
            assembly.gather(job)
        assert assembly.finish()[0].rows == rows
    assert sorted(block.nbytes for block in foretold) == sorted(asked)
    assert len(asked) >= 4
    written = sum(stop - start for block in foretold for start, stop in block.written)
    delivered = sum(array.nbytes for array in table.values() if array is not table["wide"])
    assert 0.3 * delivered < written < 1.2 * delivered
