"""In a cache that is too small, the hit rate of each epoch equals the share of the bytes that fit."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cache import LeastRecentlyUsed
from parquet_loader.read.cache.eviction import CacheEntry, ReaderLease, enough, in_order_of_leaving
from tests.read.cache.simulation import Read, Simulated
from tests.support.examples import examples


def epoch(sizes: list[int], seed: int, ranks: int, *, base: int = 0) -> list[Read]:
    """All row groups in an order of their own, divided over ranks that read side by side."""
    order = np.random.default_rng(seed).permutation(len(sizes)).tolist()
    parts = [order[len(order) * rank // ranks : len(order) * (rank + 1) // ranks] for rank in range(ranks)]
    return [Read(base + g, sizes[g]) for turn in zip_longest(*parts) for g in turn if g is not None]


SIZES = st.lists(st.integers(1, 1000), min_size=20, max_size=120)


@given(sizes=SIZES, share=st.floats(0.05, 1.5), ranks=st.integers(1, 8), seed=st.integers(0, 2**32))
def test_every_epoch_after_the_first_finds_what_there_is_room_for(
    sizes: list[int], share: float, ranks: int, seed: int
) -> None:
    limit = int(share * sum(sizes))
    cache = Simulated(limit)
    for rank in range(ranks):
        cache.lease(f"rank {rank}", range(len(sizes)))
    rates = [cache.hit_rate(epoch(sizes, seed + number, ranks)) for number in range(4)]
    best = min(limit, sum(sizes)) / sum(sizes)
    # The smallest row group that was not cached did not fit into the remaining space.
    assert rates[0] == 0
    assert rates[1] == rates[2] == rates[3] <= best
    assert rates[1] > best - max(sizes) / sum(sizes) or rates[1] == 1
    assert cache.taken_bytes <= limit


def test_a_scan_of_four_times_the_cache_beats_the_least_recently_used() -> None:
    sizes = [100] * 400
    ours, theirs, theirs_in_order = Simulated(10_000), LeastRecentlyUsed(10_000), LeastRecentlyUsed(10_000)
    ours.lease("loader", range(400))
    for number in range(5):
        rate = ours.hit_rate(epoch(sizes, number, 4))
        shuffled = theirs.hit_rate((read.row_group, read.nbytes) for read in epoch(sizes, number, 4))
        in_order = theirs_in_order.hit_rate((g, 100) for g in range(400))
        if number:
            assert rate == 0.25
            assert shuffled < 0.06
            assert in_order == 0


@settings(max_examples=examples(25))
@given(sizes=SIZES, seed=st.integers(0, 2**32), kept=st.floats(0.3, 0.9))
def test_a_data_set_that_changes_loses_only_what_has_left_it(sizes: list[int], seed: int, kept: float) -> None:
    """Row groups come and go between epochs; those that have gone make way for new ones."""
    limit = sum(sizes) // 2
    cache = Simulated(limit)
    now = list(range(len(sizes)))
    rng = np.random.default_rng(seed)
    for number in range(5):
        cache.lease("loader", now)
        before = set(cache.entries)
        cache.hit_rate([Read(g, sizes[g % len(sizes)]) for g in rng.permutation(now).tolist()])
        lost = {row_group for row_group, _ in before - set(cache.entries)}
        assert not lost & set(now)
        assert cache.taken_bytes <= limit
        stay = rng.permutation(now)[: int(kept * len(now))].tolist()
        now = stay + list(range((number + 1) * 1000, (number + 1) * 1000 + len(sizes) - len(stay)))


def test_two_loaders_of_different_data_do_not_drive_each_other_out() -> None:
    sizes = [10] * 100
    cache = Simulated(500)
    cache.lease("one", range(100))
    cache.lease("other", range(1000, 1100))
    for number in range(4):
        both = zip(epoch(sizes, number, 1), epoch(sizes, number + 50, 1, base=1000), strict=True)
        rate = cache.hit_rate([read for pair in both for read in pair])
        assert rate == (0.25 if number else 0)


def test_what_nobody_reads_leaves_first_and_the_oldest_of_it_before() -> None:
    entries = [CacheEntry(f"e{n}", n, 1, 10, used_ns=100 - n) for n in range(6)]
    leases = [
        ReaderLease(np.array([1, 2], np.uint64), frozenset({1}), 0),
        ReaderLease(np.array([5], np.uint64), frozenset({1}), 0),
    ]
    leaving, needed = in_order_of_leaving(entries, leases)
    assert [entry.name for entry in leaving] == ["e4", "e3", "e0"]
    assert [entry.name for entry in needed] == ["e5", "e2", "e1"]
    assert [entry.name for entry in enough(leaving, 11)] == ["e4", "e3"]
    assert enough(leaving, 31) == []
    assert enough(leaving, 0) == []


def test_other_columns_stay_only_where_they_are_used() -> None:
    entries = [
        CacheEntry("used", 1, 2, 10, used_ns=60),
        CacheEntry("not used", 2, 2, 10, used_ns=40),
        CacheEntry("same", 3, 1, 10, 0),
    ]
    leaving, needed = in_order_of_leaving(entries, [ReaderLease(np.array([1, 2, 3], np.uint64), frozenset({1}), 50)])
    assert [entry.name for entry in leaving] == ["not used"]
    assert {entry.name for entry in needed} == {"used", "same"}
