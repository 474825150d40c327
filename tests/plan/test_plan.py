"""Plans of large data sets, and the formulas that find any window by its number."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader.common import Shard, ShardOptions
from parquet_loader.plan import Sharding, batches_until_done
from parquet_loader.plan.epoch import plan_epoch
from tests.support.examples import grid

MILLION = 1_000_000


@grid(
    "most_rows, shuffle, open_row_groups",
    [100, 100_000, 3_000_000],
    [False, True],
    [1, 16],
    everyday=lambda *chosen: chosen in {(100, False, 1), (100_000, True, 16), (3_000_000, True, 1)},
)
def test_a_plan_of_a_million_row_groups_takes_at_most_200_bytes_each(
    most_rows: int, shuffle: bool, open_row_groups: int
) -> None:
    rows = np.random.default_rng(0).integers(1, most_rows, MILLION)
    tracemalloc.start()
    try:
        plan = plan_epoch(
            rows,
            window_rows=200_000,
            open_row_groups=open_row_groups,
            batch_size=4096,
            drop_last=False,
            shuffle=shuffle,
            seed=1,
            epoch=0,
        )
        assert tracemalloc.get_traced_memory()[1] <= 200 * MILLION
    finally:
        tracemalloc.stop()
    assert plan.rows == rows.sum()
    assert plan.largest_window_rows <= 200_000
    for window in (0, plan.windows // 2, plan.windows - 1):
        assert sum(piece.rows for piece in plan.slices(window)) == plan.window_rows(window) >= 100_000


@given(
    rows=st.lists(st.integers(0, 300), max_size=30),
    window_rows=st.integers(1, 500),
    open_row_groups=st.integers(1, 12),
    batch_size=st.integers(1, 40),
    shuffle=st.booleans(),
)
def test_a_batch_is_found_by_its_number(
    rows: list[int], window_rows: int, open_row_groups: int, batch_size: int, shuffle: bool
) -> None:
    plan = plan_epoch(
        np.array(rows, np.int64),
        window_rows=window_rows,
        open_row_groups=open_row_groups,
        batch_size=batch_size,
        drop_last=False,
        shuffle=shuffle,
        seed=0,
        epoch=0,
    )
    ends = [plan.window_begin(window) for window in range(plan.windows + 1)]
    assert plan.parts[0].window_ends(plan.begins).tolist() == ends
    sizes = np.diff(ends)
    assert all(2 * size >= min(window_rows, plan.rows) - 1 for size in sizes)
    assert plan.largest_window_rows == max(sizes, default=0)
    for batch in range(plan.batches):
        window, before = plan.beginning_of(batch)
        assert ends[window] + before == batch * batch_size < ends[window + 1]


@given(
    rows=st.lists(st.integers(0, 300), min_size=1, max_size=40),
    window_rows=st.integers(1, 400),
    lanes=st.integers(1, 5),
    share=st.integers(1, 6),
    rank=st.integers(0, 1),
)
def test_files_are_done_with_their_last_batch_if_logical_shards_drop_rows(
    rows: list[int], window_rows: int, lanes: int, share: int, rank: int
) -> None:
    counts = np.array(rows, np.int64)
    sharding = Sharding(Shard(rank, 2), ShardOptions("drop", logical_shards=4))
    made = plan_epoch(
        counts,
        window_rows=window_rows,
        open_row_groups=lanes,
        batch_size=4 * share,
        drop_last=False,
        shuffle=True,
        seed=3,
        epoch=2,
        division=sharding.divide(int(counts.sum()), 4 * share, drop_last=False),
    )
    done = batches_until_done(made, np.arange(len(rows)), len(rows))
    assert done.max(initial=0) <= made.batches
    read_from = [set[int]() for _ in range(made.windows + 1)]  # the row groups that each window and the later ones read
    for window in reversed(range(made.windows)):
        read_from[window] = read_from[window + 1] | {slice_.row_group for slice_ in made.slices(window)}
    for number in range(made.batches):
        read_again = read_from[made.beginning_of(number)[0]]
        assert read_again <= set(np.flatnonzero(done > number).tolist())
