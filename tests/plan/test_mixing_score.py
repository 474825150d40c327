"""The mixing score, against the batches of the same plan and against simulated shuffle buffers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.mixing import chi_square_ratio, webdataset_order
from parquet_loader.common import IntArray, Shard, ShardOptions
from parquet_loader.plan import Plan, Sharding, mixing_score, plan_epoch


def plan(counts: IntArray, window: int, lanes: int, *, batch_size: int = 64) -> Plan:
    return plan_epoch(
        counts,
        window_rows=window,
        open_row_groups=lanes,
        batch_size=batch_size,
        drop_last=False,
        shuffle=True,
        seed=1,
        epoch=0,
    )


def delivered(made: Plan, counts: IntArray) -> IntArray:
    """Return the numbers of the rows in the order of delivery."""
    firsts = np.cumsum(counts) - counts
    rows = []
    for number, window in enumerate(made):
        read = np.concatenate([np.arange(s.start, s.stop) + firsts[s.row_group] for s in window])
        order = made.order(number)
        assert order is not None
        rows.append(read[order])
    return np.concatenate(rows)


@pytest.mark.parametrize(
    ("row_groups", "row_group_rows", "window", "lanes"),
    [
        (200, 1000, 16_000, 1),
        (200, 1000, 4000, 1),
        (24, 10_000, 20_000, 12),
        (3, 60_000, 9000, 3),
        (1, 100_000, 5000, 1),
    ],
)
def test_the_score_is_that_of_the_batches(row_groups: int, row_group_rows: int, window: int, lanes: int) -> None:
    counts = np.full(row_groups, row_group_rows)
    made = plan(counts, window, lanes)
    score = mixing_score(made, counts)
    assert score is not None
    assert score.chi_square == pytest.approx(chi_square_ratio(delivered(made, counts), 100, 64), rel=0.03)
    assert score.score == 1 / score.chi_square


@pytest.mark.parametrize(("window", "lanes"), [(16_000, 1), (60_000, 1), (8000, 8)])
def test_a_buffer_of_that_many_rows_mixes_as_well(window: int, lanes: int) -> None:
    counts = np.full(400, 2000) if lanes == 1 else np.full(40, 20_000)
    score = mixing_score(plan(counts, window, lanes), counts)
    assert score is not None
    order = webdataset_order(len(counts), int(counts[0]), score.buffer_rows)
    assert chi_square_ratio(order, 100, 64) == pytest.approx(score.chi_square, rel=0.12)


@given(
    rows=st.lists(st.integers(0, 300), min_size=1, max_size=30),
    window=st.integers(1, 2000),
    lanes=st.integers(1, 12),
    batch_size=st.integers(1, 50),
    ranks=st.sampled_from([1, 2, 4]),
    is_logical=st.booleans(),
)
def test_scores_of_any_plan_are_within_their_bounds(
    rows: list[int], window: int, lanes: int, batch_size: int, ranks: int, is_logical: bool
) -> None:
    counts = np.array(rows, np.int64)
    batch_size *= 4
    for rank in range(ranks):
        sharding = Sharding(Shard(rank, ranks), ShardOptions(logical_shards=4 if is_logical else None))
        division = sharding.divide(int(counts.sum()), batch_size, drop_last=False)
        made = plan_epoch(
            counts,
            window_rows=window,
            open_row_groups=lanes,
            batch_size=batch_size,
            drop_last=False,
            shuffle=True,
            seed=0,
            epoch=0,
            division=division,
        )
        score = mixing_score(made, counts)
        if not counts.any():
            assert score is None
            continue
        assert score is not None
        assert 0 < score.score <= 1 <= score.chi_square
        assert 0.99 <= score.row_groups <= np.count_nonzero(counts) + 0.01
        assert 1 <= score.buffer_rows <= counts.sum()


def test_one_window_over_everything_is_a_full_shuffle() -> None:
    counts = np.full(50, 1000)
    score = mixing_score(plan(counts, 50_000, 1), counts)
    assert score is not None
    assert score.score == pytest.approx(1)
    assert score.buffer_rows == 50_000
    assert score.row_groups == pytest.approx(50)


def test_larger_windows_and_more_lanes_score_better() -> None:
    small, large = np.full(1000, 1000), np.full(100, 10_000)
    scores = [mixing_score(plan(small, window, 1), small) for window in (8000, 32_000, 128_000)]
    scores += [mixing_score(plan(large, 8000, lanes), large) for lanes in (2, 8, 32)]
    values = [score.score for score in scores if score is not None]
    assert values[:3] == sorted(values[:3])
    assert values[3:] == sorted(values[3:])
    assert len(set(values)) == 6


def test_rows_in_order_have_no_score() -> None:
    counts = np.full(5, 100)
    made = plan_epoch(
        counts, window_rows=200, open_row_groups=1, batch_size=10, drop_last=False, shuffle=False, seed=0, epoch=0
    )
    assert mixing_score(made, counts) is None


@pytest.mark.timeout(20)  # a fraction of a second; minutes if the time grew as the square of the row groups
@pytest.mark.parametrize(("window", "lanes"), [(200_000, 1), (200_000, 16), (10**10, 1)])
def test_a_million_row_groups_are_scored(window: int, lanes: int) -> None:
    counts = np.random.default_rng(0).integers(1, 100_000, 1_000_000)
    assert mixing_score(plan(counts, window, lanes), counts) is not None
