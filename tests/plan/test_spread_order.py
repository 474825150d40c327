"""The order of row groups is complete, evenly spread and stable across releases; lanes share its rows."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader.common import Shard, ShardOptions
from parquet_loader.plan import Plan, Sharding, batches_until_done, plan_epoch
from parquet_loader.plan.row_group_order import dealt, spread_order
from tests.support.examples import examples

ROWS = np.array([30, 20, 0, 40, 25, 60, 10])
BY_ONE = [
    [(0, 0, 30), (5, 0, 31)],
    [(5, 31, 60), (1, 0, 20), (6, 0, 10), (3, 0, 3)],
    [(3, 3, 40), (4, 0, 25)],
]
BY_THREE = [
    [(0, 0, 9), (5, 0, 20), (1, 0, 20), (3, 0, 12)],
    [(0, 9, 22), (5, 20, 40), (3, 12, 40), (4, 0, 1)],
    [(0, 22, 30), (6, 0, 10), (5, 40, 60), (4, 1, 25)],
]


def plan(rows: np.ndarray, window: int, lanes: int, seed: int = 5) -> Plan:
    return plan_epoch(
        rows,
        window_rows=window,
        open_row_groups=lanes,
        batch_size=8,
        drop_last=False,
        shuffle=True,
        seed=seed,
        epoch=1,
    )


@given(size=st.integers(0, 3000), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**63 - 1))
def test_every_number_comes_once(size: int, seed: int, epoch: int) -> None:
    assert sorted(spread_order(size, seed, epoch).tolist()) == list(range(size))


@given(size=st.integers(1, 2000), seed=st.integers(0, 1000), data=st.data())
def test_any_part_of_the_order_takes_its_share_of_any_range(size: int, seed: int, data: st.DataObject) -> None:
    order = spread_order(size, seed, 0)
    first, low = data.draw(st.integers(0, size)), data.draw(st.integers(0, size))
    stop, high = data.draw(st.integers(first, size)), data.draw(st.integers(low, size))
    found = np.count_nonzero((order[first:stop] >= low) & (order[first:stop] < high))
    # A van der Corput sequence is off by at most a constant for each level; a random order by the root of the number.
    # The order may begin inside the sequence, and then goes on with the beginning of it.
    assert abs(found - (stop - first) * (high - low) / size) <= 2 + size.bit_length()


def test_every_row_group_is_equally_often_at_every_position() -> None:
    orders = np.array([spread_order(5, seed, 0) for seed in range(2000)])
    for position in range(5):
        found = np.bincount(orders[:, position])
        assert found.min() > 320
        assert found.max() < 480


@pytest.mark.parametrize("size", [100, 128])
def test_neighbours_in_the_order_are_of_both_halves_of_the_files(size: int) -> None:
    halves = spread_order(size, 3, 1) // (size // 2)
    sums = np.convolve(halves, np.ones(10), "valid")
    assert sums.min() >= 4
    assert sums.max() <= 6


def test_the_order_is_that_of_the_first_release_with_this_method() -> None:
    assert spread_order(10, 7, 3).tolist() == [5, 4, 8, 3, 9, 0, 6, 2, 7, 1]
    assert spread_order(16, 0, 0).tolist() == [7, 13, 3, 9, 5, 14, 1, 10, 6, 12, 2, 8, 4, 15, 0, 11]


@pytest.mark.parametrize(("lanes", "expected"), [(1, BY_ONE), (3, BY_THREE)])
def test_windows_are_those_that_states_of_this_method_name(lanes: int, expected: list[list[tuple[int, ...]]]) -> None:
    made = plan(ROWS, 70, lanes)
    assert [[(s.row_group, s.start, s.stop) for s in window] for window in made] == expected
    order = made.order(1)
    assert order is not None
    assert order[:8].tolist() == [39, 29, 15, 59, 25, 16, 53, 26]


@given(rows=st.lists(st.integers(1, 300), max_size=50), lanes=st.integers(1, 20))
def test_row_groups_are_dealt_to_the_lanes_in_turn(rows: list[int], lanes: int) -> None:
    lane = dealt(np.array(rows, np.int64), lanes)
    full = len(rows) - len(rows) % lanes
    assert lane[:full].tolist() == [n % lanes for n in range(full)]
    assert len(set(lane[full:].tolist())) == len(rows) - full
    assert not len(rows) or 0 <= lane.min() <= lane.max() < lanes


def test_the_last_turn_levels_the_lanes() -> None:
    assert dealt(np.array([50, 10, 30, 5, 40]), 3).tolist() == [0, 1, 2, 2, 1]
    assert dealt(np.full(8, 7), 3).tolist() == [0, 1, 2, 0, 1, 2, 0, 1]


@settings(max_examples=examples(150))
@given(
    rows=st.lists(st.integers(0, 300), max_size=40),
    window_rows=st.integers(1, 400),
    lanes=st.integers(1, 20),
    share=st.integers(1, 6),
    ranks=st.sampled_from([1, 2, 4]),
    remainder=st.sampled_from(["drop", "pad"]),
    drop_last=st.booleans(),
    is_logical=st.booleans(),
)
def test_ranks_read_each_row_group_forward_and_all_its_rows(
    rows: list[int],
    window_rows: int,
    lanes: int,
    share: int,
    ranks: int,
    remainder: Literal["drop", "pad"],
    drop_last: bool,
    is_logical: bool,
) -> None:
    counts = np.array(rows, np.int64)
    options = ShardOptions(remainder, logical_shards=4 if is_logical else None)
    read = [np.zeros(count, np.int64) for count in rows]
    for rank in range(ranks):
        division = Sharding(Shard(rank, ranks), options).divide(int(counts.sum()), 4 * share, drop_last=drop_last)
        made = plan_epoch(
            counts,
            window_rows=window_rows,
            open_row_groups=lanes,
            batch_size=4 * share,
            drop_last=drop_last,
            shuffle=True,
            seed=3,
            epoch=2,
            division=division,
        )
        position: dict[tuple[int, int], int] = {}
        done = np.zeros(len(rows), np.int64)
        for number, window in enumerate(made):
            assert sum(slice_.rows for slice_ in window) == made.window_rows(number)
            for slice_ in window:
                assert position.get(slice_.run, slice_.first) == slice_.start <= slice_.stop <= slice_.last
                position[slice_.run] = slice_.stop
                read[slice_.row_group][slice_.start : slice_.stop] += 1
                done[slice_.row_group] = min(-(-made.window_begin(number + 1) // made.batch_size), made.batches)
        assert batches_until_done(made, np.arange(len(rows)), len(rows)).tolist() == done.tolist()
    shards = 4 if is_logical else ranks
    total = np.concatenate([*read, np.zeros(0, np.int64)])
    assert np.maximum(total - 1, 0).sum() <= shards  # rows repeated so that all ranks get equal numbers
    if remainder == "pad" and not drop_last:
        assert total.all()


@given(
    rows=st.lists(st.integers(1, 300), min_size=1, max_size=40), lanes=st.integers(2, 20), window=st.integers(20, 400)
)
def test_no_more_row_groups_are_open_than_there_are_lanes(rows: list[int], lanes: int, window: int) -> None:
    made = plan(np.array(rows), window, lanes)
    opened: set[tuple[int, int]] = set()
    for slices in made:
        opened |= {slice_.run for slice_ in slices}
        opened -= {slice_.run for slice_ in slices if slice_.stop == slice_.last}
        assert len(opened) <= lanes


def test_lanes_over_equal_row_groups_are_at_different_places_of_them() -> None:
    made = plan(np.full(64, 1000), 2000, 8)
    middle = made.slices(made.windows // 2)
    places = sorted(slice_.start // 125 for slice_ in middle)
    assert len(middle) >= 8
    assert len(set(places)) >= 7, places


@pytest.mark.parametrize("lanes", [1, 8])
def test_windows_take_their_share_of_every_part_of_the_files(lanes: int) -> None:
    made = plan(np.full(512, 1000), 32_000, lanes)
    shares = [
        np.bincount([s.row_group // 64 for s in window], [s.rows for s in window], minlength=8) / 32_000
        for window in made
    ]
    # In a random order of row groups the mean is 3e-3.
    assert np.square(np.array(shares) - 1 / 8).mean() < 1e-4
