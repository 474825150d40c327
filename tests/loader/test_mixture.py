"""Several data sets by weight: shares at every point, where epochs end, and any place gone to again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    LoaderStateError,
    MixedLoader,
    ResumeError,
    SampleStore,
    Scalar,
    Schema,
    Shard,
    UnsupportedError,
)
from parquet_loader.loader.mixed import Stop, mixture
from tests.support.datasets import write_numbered

STOPS: tuple[Stop, ...] = ("first_exhausted", "all_exhausted", "repeat")
SETS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 50)), min_size=1, max_size=4)


@given(sets=SETS, stop=st.sampled_from(STOPS))
def test_each_set_gives_its_share_at_every_point_and_epochs_end_where_they_should(
    sets: list[tuple[int, int]], stop: Stop
) -> None:
    lengths = {str(n): length for n, (length, _) in enumerate(sets)}
    weights = {str(n): weight / 7 for n, (_, weight) in enumerate(sets)}
    order = mixture(lengths, weights, stop).tolist()
    counts = Counter(order)
    total = sum(weights.values())
    if stop == "all_exhausted":
        assert [counts[n] for n in range(len(sets))] == list(lengths.values())
        return
    so_far = np.zeros(len(sets))
    for at, which in enumerate(order, 1):
        so_far[which] += 1
        wanted = at * np.array(list(weights.values())) / total
        assert (np.abs(so_far - wanted) <= len(sets)).all()
    if stop == "first_exhausted":
        assert all(counts[n] <= lengths[str(n)] for n in range(len(sets)))
        assert any(counts[n] == lengths[str(n)] for n in range(len(sets)))
    else:
        assert all(counts[n] >= lengths[str(n)] for n in range(len(sets)))
        last = order[-1]
        assert counts[last] == lengths[str(last)]


@pytest.fixture
def roots(tmp_path: Path) -> dict[str, str]:
    for name, shape in {"a": ((30, 11), (25,)), "b": ((9, 8),), "c": ((40,), (1,))}.items():
        write_numbered(str(tmp_path / name), shape, ("double",))
    return {name: str(tmp_path / name) for name in "abc"}


def new_mixed(roots: dict[str, str], stop: Stop, **options: Any) -> MixedLoader:
    loaders = {name: BatchedDataLoader(root, 4, shuffle=True, seed=3, **options) for name, root in roots.items()}
    return MixedLoader(loaders, {"a": 0.5, "b": 0.3, "c": 0.2}, stop=stop, named=True)


def ids(batches: Any) -> Iterator[tuple[str, list[int]]]:
    return ((name, batch["id"].tolist()) for name, batch in batches)


@pytest.mark.parametrize("stop", STOPS)
def test_any_place_is_gone_to_again_and_goes_on_alike(roots: dict[str, str], stop: Stop) -> None:
    with new_mixed(roots, stop) as mixed:
        epochs: list[list[tuple[str, list[int]]]] = []
        states: list[str] = []
        for _ in range(3):
            epochs.append([])
            for batch in ids(mixed):
                epochs[-1].append(batch)
                states.append(json.dumps(mixed.state_dict()))
            assert len(epochs[-1]) == len(mixed)
    length = len(epochs[0])
    rows = {name: [row for epoch in epochs for n, batch in epoch for row in batch if n == name] for name in "abc"}
    if stop == "all_exhausted":
        assert {name: sorted(seen) for name, seen in rows.items()} == {
            name: sorted([*range(count)] * 3) for name, count in {"a": 66, "b": 17, "c": 41}.items()
        }
    assert epochs[0] != epochs[1]
    with new_mixed(roots, stop) as mixed:
        for taken in range(1, 2 * length, 3):
            epoch, place = divmod(taken, length)
            mixed.load_state_dict(json.loads(states[taken - 1]))
            assert (mixed.state_dict()["epoch"], mixed.state_dict()["batch"]) == (epoch, place)
            assert list(ids(mixed)) == epochs[epoch][place:]
            assert list(ids(mixed)) == epochs[epoch + 1]
            mixed.seek(epoch, place)
            assert next(ids(mixed)) == epochs[epoch][place]


def test_a_pass_that_was_left_counts_and_its_iterator_is_void(roots: dict[str, str]) -> None:
    with new_mixed(roots, "repeat") as mixed:
        epochs = [list(ids(mixed)) for _ in range(3)]
        mixed.set_epoch(0)
        held = iter(mixed)
        mixed.set_epoch(0)  # as Lightning does behind `iter`
        next(held)
        assert mixed.state_dict()["batch"] == 1
        assert mixed.state_dict(batches=0)["batch"] == 0
        assert list(ids(mixed)) == epochs[1]
        with pytest.raises(LoaderStateError, match=r"iter\(loader\) was called again"):
            next(held)
        iter(mixed)
        assert list(ids(mixed)) == epochs[2]
        assert mixed.state_dict()["epoch"] == 3


def test_all_ranks_take_from_the_same_set_at_every_step(roots: dict[str, str]) -> None:
    names, rows = [], Counter[tuple[str, int]]()
    for rank in range(3):
        with new_mixed(roots, "all_exhausted", shard=Shard(rank, 3)) as mixed:
            batches = list(ids(mixed))
            names.append([name for name, _ in batches])
            rows.update((name, row) for name, batch in batches for row in batch)
    assert names[0] == names[1] == names[2]
    assert set(rows) == {(name, row) for name, count in {"a": 66, "b": 17, "c": 41}.items() for row in range(count)}


def test_what_is_another_mixture_is_refused(roots: dict[str, str]) -> None:
    with new_mixed(roots, "repeat") as mixed, new_mixed(roots, "all_exhausted") as other:
        state = mixed.state_dict()
        with pytest.raises(ResumeError, match="stop: 'repeat' in the state, 'all_exhausted' here"):
            other.load_state_dict(state)
        state["loaders"]["b"]["seed"] = 9
        with pytest.raises(ResumeError, match=r"loader 'b': .*seed: 9 in the state, 3 here"):
            mixed.load_state_dict(state)
        for wrong in (None, {}, {**mixed.state_dict(), "batch": 10**6}, {**mixed.state_dict(), "epoch": "1"}):
            with pytest.raises(ResumeError):
                mixed.load_state_dict(wrong)  # type: ignore[arg-type]
        loaders = mixed.loaders
        for weights, stop, reason in (
            ({"a": 1, "b": 1}, "repeat", "expected a weight for each of"),
            ({"a": 1, "b": 0, "c": 1}, "repeat", "'b' has 0: expected a number greater than 0"),
            ({"a": 1, "b": 1, "c": 1}, "never", "stop='never'"),
        ):
            with pytest.raises(ConfigurationError, match=reason):
                MixedLoader(loaders, weights, stop=stop)  # type: ignore[arg-type]


def test_a_store_does_not_mix_because_its_epochs_change(roots: dict[str, str], tmp_path: Path) -> None:
    store = SampleStore(tmp_path / "store", schema=Schema({"id": Scalar("int64")}), max_bytes="1MiB")
    with store.writer() as writer:
        writer.write({"id": np.arange(20)})
    with BatchedDataLoader(store, 4) as growing, BatchedDataLoader(roots["a"], 4) as fixed:
        with pytest.raises(UnsupportedError, match="a SampleStore changes from epoch to epoch"):
            MixedLoader({"growing": growing, "fixed": fixed}, {"growing": 1, "fixed": 1})
        assert sum(len(batch["id"]) for batch in growing) == 20  # unharmed
