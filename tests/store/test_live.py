"""Which files an epoch needs no longer follows from its plan."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader.plan.deliveries import batches_until_done, counted_here
from parquet_loader.plan.epoch import plan_epoch
from parquet_loader.plan.sharding import Division, PartRows


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=40),
    st.integers(1, 5),
    st.integers(1, 16),
    st.integers(1, 8),
    st.integers(1, 6),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_a_file_is_done_when_the_last_window_that_reads_it_is_delivered(
    sizes: list[int],
    per_file: int,
    batch: int,
    batches_a_window: int,
    lanes: int,
    shuffle: bool,
    drop: bool,
    half: bool,
) -> None:
    rows = np.array(sizes, np.int64)
    total = int(rows.sum())
    division = None
    if half and total // 2 >= batch:  # what the second of two ranks reads
        batches = (total - total // 2) // batch
        division = Division((PartRows(1, total // 2, total),), batches, batches * batch)
    plan = plan_epoch(
        rows,
        window_rows=batch * batches_a_window,
        open_row_groups=lanes,
        batch_size=batch,
        drop_last=drop,
        shuffle=shuffle,
        seed=1,
        epoch=2,
        division=division,
    )
    files = -(-len(sizes) // per_file)
    file_of = np.arange(len(sizes)) // per_file
    expected = np.zeros(files, np.int64)
    for window in range(plan.windows):
        last = window == plan.windows - 1
        delivered = plan.batches if last else min(-(-plan.window_begin(window + 1) // batch), plan.batches)
        for piece in plan.slices(window):
            expected[file_of[piece.row_group]] = max(expected[file_of[piece.row_group]], delivered)
    done = batches_until_done(plan, file_of, files)
    assert done.tolist() == expected.tolist()
    for number in range(plan.batches):  # a pass that begins here reads nothing of a file that was done before
        windows = range(plan.beginning_of(number)[0], plan.windows)
        read = {int(file_of[piece.row_group]) for window in windows for piece in plan.slices(window)}
        assert read <= set(np.flatnonzero(done > number).tolist())


@given(st.lists(st.integers(0, 30), min_size=1, max_size=20), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_all_ranks_together_count_each_file_once(sizes: list[int], per_file: int, ranks: int, shuffle: bool) -> None:
    rows, batch = np.array(sizes, np.int64), 4
    total = int(rows.sum())
    files = -(-len(sizes) // per_file)
    file_of = np.arange(len(sizes)) // per_file
    times = np.zeros(files, np.int64)
    for rank in range(ranks):
        low, high = total * rank // ranks, total * (rank + 1) // ranks
        division = Division((PartRows(rank, low, high),), -(-(high - low) // batch), high - low)
        plan = plan_epoch(
            rows,
            window_rows=8,
            open_row_groups=1,
            batch_size=batch,
            drop_last=False,
            shuffle=shuffle,
            seed=1,
            epoch=0,
            division=division,
        )
        times += counted_here(plan, file_of, files)
    assert (times == (1 if total else 0)).all()
