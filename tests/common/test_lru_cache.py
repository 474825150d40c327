"""`LruCache` keeps the most recently used values within its limit."""

from __future__ import annotations

import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader.common import LruCache


@given(st.lists(st.tuples(st.sampled_from(["get", "put"]), st.integers(0, 5), st.integers(0, 12))))
def test_the_values_used_last_are_kept(steps: list[tuple[str, int, int]]) -> None:
    cache, model = LruCache(10), dict[int, tuple[int, int]]()
    for number, (step, key, size) in enumerate(steps):
        if step == "get":
            found = model.pop(key, None)
            assert cache.get(key) == (None if found is None else found[0])
            if found is not None:
                model[key] = found
        elif size <= 10:
            cache.put(key, number, size)
            model.pop(key, None)
            model[key] = number, size
            while sum(held for _, held in model.values()) > 10:
                del model[next(iter(model))]
        else:
            cache.put(key, number, size)
        assert cache.size == sum(held for _, held in model.values())
    assert cache.get_all(range(6)) == [model.get(key, (None,))[0] for key in range(6)]


def test_a_value_is_forgotten_unless_another_one_has_replaced_it() -> None:
    cache = LruCache(2)
    cache.put("a", "old")
    cache.put("a", "new")
    cache.forget("a", "old")
    assert cache.get("a") == "new"
    cache.forget("a", "new")
    cache.forget("b", "new")
    assert (cache.get("a"), cache.size) == (None, 0)


def test_values_stay_in_their_process() -> None:
    cache = LruCache(2)
    cache.put("a", 1)
    other = pickle.loads(pickle.dumps(cache))
    other.put("b", 2)
    other.put("c", 3)
    other.put("d", 4)
    assert other.get_all("abcd") == [None, None, 3, 4]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_may_come_within_a_step_of_another_thread() -> None:
    cache = LruCache(10)
    cache.put("a", 1, 6)
    cache._lock.acquire()
    cache._kept.pop("a")  # the first step of `put`
    child = os.fork()
    if not child:
        is_right = False
        try:
            cache.put("b", 2, 8)
            is_right = (cache.get("b"), cache.size) == (2, 8)
        finally:
            os._exit(not is_right)
    assert os.waitpid(child, 0)[1] == 0
