"""Several data sets by weight: shares at every point, where epochs end, and any place gone to again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    DataError,
    LoaderStateError,
    MixedLoader,
    ResumeError,
    SampleStore,
    Scalar,
    Schema,
    Shard,
    TokenLoader,
    UnsupportedError,
    write_dataset,
)
from parquet_loader.loader.mixed import Stop, mixture, staged
from tests.support.datasets import write_numbered

STOPS: tuple[Stop, ...] = ("first_exhausted", "all_exhausted", "repeat")
SETS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 50)), min_size=1, max_size=4)


def test_what_loaders_read_ahead_is_kept_from_epoch_to_epoch(tmp_path: Path) -> None:
    loaders = {}
    for name in "ab":
        write_numbered(str(tmp_path / name), ((50,) * 4,), ("double",))
        loaders[name] = BatchedDataLoader(tmp_path / name, 10, shuffle=True, window_rows=100, num_threads=2)
    with MixedLoader(loaders, {"a": 1, "b": 1}) as mixed:
        _, second = list(mixed), list(mixed)
        mixed.seek(0, 0)
        iterator = iter(mixed)
        for _ in range(len(mixed) - 1):
            next(iterator)
        engines = []
        for loader in loaders.values():
            reading, workers = loader._ahead[0], loader._running()._engine.workers  # type: ignore[union-attr]
            with workers.lock:
                while reading.engine is None:
                    assert workers.changed.wait(60)
            engines.append(reading.engine)
        assert len(list(iterator)) == 1
        iterator = iter(mixed)
        found = [next(iterator)]
        assert [loader._running()._engine for loader in loaders.values()] == engines  # type: ignore[union-attr]
        assert [b["id"].tolist() for b in (*found, *iterator)] == [b["id"].tolist() for b in second]


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


@pytest.mark.parametrize("step", [13, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stop", STOPS)
def test_any_place_is_gone_to_again_and_goes_on_alike(roots: dict[str, str], stop: Stop, step: int) -> None:
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
        for taken in range(1, 2 * length, step):
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


def test_an_iterator_that_has_delivered_its_last_batch_ends(roots: dict[str, str]) -> None:
    with new_mixed(roots, "repeat") as mixed:
        ended = iter(mixed)
        for _ in range(len(mixed)):
            next(ended)
        newer = iter(mixed)
        next(newer)
        assert next(ended, None) is None
        assert next(newer, None) is not None


def test_a_loader_begins_to_read_before_its_first_batch(roots: dict[str, str]) -> None:
    loaders = {name: BatchedDataLoader(roots[name], 4) for name in "ab"}
    with MixedLoader(loaders, stages=[(150, {"a": 1}), (1, {"b": 1})]) as mixed:
        iterator = iter(mixed)
        for batch in range(1, 53):
            next(iterator)
            assert (loaders["b"]._running() is not None) == (batch > 50)


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
        changes = ({"batch": 10**6}, {"epoch": "1"}, {"loaders": None}, {"loaders": ["a", "b"]})
        for wrong in (None, {}, *({**mixed.state_dict(), **change} for change in changes)):
            with pytest.raises(ResumeError):
                mixed.load_state_dict(wrong)  # type: ignore[arg-type]
        loaders = mixed.loaders
        for weights, stop, reason in (
            ({"a": 1, "b": 1}, "repeat", "expected a weight for each of"),
            ({"a": 1, "b": 0, "c": 1}, "repeat", "'b' has 0: expected a number greater than 0"),
            ({"a": 1, "b": 5e-324, "c": 1}, "first_exhausted", "'b' has 5e-324: expected a number greater than 0"),
            ({"a": 1, "b": 1, "c": 1e308}, "repeat", r"'c' has 1e\+308: expected .*to 1e100"),
            ({"a": 1, "b": 1, "c": 1}, "never", "stop='never'"),
        ):
            with pytest.raises(ConfigurationError, match=reason):
                MixedLoader(loaders, weights, stop=stop)  # type: ignore[arg-type]


@pytest.mark.parametrize("damaged", ["loader", "epoch", "batch"])
def test_a_state_that_is_refused_changes_no_loader(roots: dict[str, str], damaged: str) -> None:
    with new_mixed(roots, "repeat", window_rows=8) as mixed, new_mixed(roots, "repeat") as other:
        iterator = ids(mixed)
        for _ in range(9):
            next(iterator)
        state = json.loads(json.dumps(mixed.state_dict()))
        expected = list(iterator)
        wrong = {**state["loaders"], "c": {**state["loaders"]["c"], "seed": 9}}
        changes: dict[str, dict[str, Any]] = {
            "loader": {"loaders": wrong},
            "epoch": {"epoch": None},
            "batch": {"batch": 10**6},
        }
        other.seek(0, 3)
        before = other.state_dict()
        with pytest.raises(ResumeError):
            other.load_state_dict({**state, **changes[damaged]})
        assert other.state_dict() == before  # with the windows, and so the order, of each loader
        other.load_state_dict(state)
        assert list(ids(other)) == expected


@pytest.mark.parametrize(("stop", "shuffle"), [("all_exhausted", True), ("repeat", False)])
def test_token_loaders_resume_in_the_windows_of_the_state(tmp_path: Path, stop: Stop, shuffle: bool) -> None:
    """The windows decide how many sequences a loader has, and so the order of the mixture."""
    for name, first in (("a", 0), ("b", 1000)):
        documents = [list(range(first, first + 1 + 7 * n % 40)) for n in range(30)]
        pq.write_table(pa.table({"input_ids": documents}), tmp_path / f"{name}.parquet", row_group_size=5)

    def make(window_rows: int | None) -> MixedLoader:
        arguments = dict[str, Any](length=16, batch_size=2, shuffle=shuffle, window_rows=window_rows, num_threads=1)
        loaders = {name: TokenLoader(tmp_path / f"{name}.parquet", **arguments) for name in "ab"}
        return MixedLoader(loaders, {"a": 2, "b": 1}, stop=stop)

    with make(6) as mixed, make(None) as other:
        iterator = iter(mixed)
        next(iterator)
        state = json.loads(json.dumps(mixed.state_dict()))
        expected = [[batch["input_ids"].tolist() for batch in iterator], [b["input_ids"].tolist() for b in mixed]]
        assert len(other) != len(mixed)
        other.load_state_dict(state)
        assert [[batch["input_ids"].tolist() for batch in other] for _ in range(2)] == expected


def test_a_store_does_not_mix_because_its_epochs_change(roots: dict[str, str], tmp_path: Path) -> None:
    store = SampleStore(tmp_path / "store", schema=Schema({"id": Scalar("int64")}), max_bytes="1MiB")
    with store.writer() as writer:
        writer.write({"id": np.arange(20)})
    with BatchedDataLoader(store, 4) as growing, BatchedDataLoader(roots["a"], 4) as fixed:
        with pytest.raises(UnsupportedError, match="loader 'growing': a SampleStore, or a table with follow=True"):
            MixedLoader({"growing": growing, "fixed": fixed}, {"growing": 1, "fixed": 1})
        assert sum(len(batch["id"]) for batch in growing) == 20  # unharmed


def numbers(first: int, rows: int, folder: Path) -> Path:
    write_dataset({"x": np.arange(first, first + rows)}, folder)
    return folder


def loader_of(folder: Path, **arguments: Any) -> BatchedDataLoader:
    return BatchedDataLoader(folder, 5, shuffle=True, memory_limit="64MiB", num_threads=1, **arguments)


def test_stages_follow_one_another_and_loaders_go_on_where_they_are(tmp_path: Path) -> None:
    a, b = numbers(0, 50, tmp_path / "a"), numbers(1000, 30, tmp_path / "b")
    stages = [(8, {"a": 3, "b": 1}), (9, {"b": 1}), (4, {"a": 1, "b": 0})]
    with MixedLoader({"a": loader_of(a), "b": loader_of(b)}, stages=stages, named=True) as mixed:
        assert len(mixed) == 21
        epochs = [[(name, batch["x"].tolist()) for name, batch in mixed] for _ in range(3)]
        names = [name for name, _ in epochs[0]]
        assert Counter(names[:8]) == {"a": 6, "b": 2}
        assert set(names[8:17]) == {"b"}
        assert set(names[17:]) == {"a"}
        for name, root, length in (("a", a, 10), ("b", b, 6)):
            given = [rows for epoch in epochs for which, rows in epoch if which == name]
            with loader_of(root) as alone:
                expected = [batch["x"].tolist() for _ in range(-(-len(given) // length)) for batch in alone]
            assert given == expected[: len(given)]
        for epoch, first in ((0, 0), (0, 11), (1, 20), (2, 3), (0, 20)):
            mixed.seek(epoch, first)
            iterator = iter(mixed)
            next(iterator)
            state = json.loads(json.dumps(mixed.state_dict()))
            with MixedLoader({"a": loader_of(a), "b": loader_of(b)}, stages=stages, named=True) as other:
                other.load_state_dict(state)
                found = [(name, batch["x"].tolist()) for name, batch in other]
                assert found == (epochs[epoch][first + 1 :] or epochs[epoch + 1])
        with (
            MixedLoader({"a": loader_of(a), "b": loader_of(b)}, stages=stages[:2]) as other,
            pytest.raises(ResumeError, match="stages"),
        ):
            other.load_state_dict(mixed.state_dict())


@given(
    stages=st.lists(
        st.tuples(st.integers(1, 80), st.dictionaries(st.sampled_from("abcdefg"), st.integers(1, 9), min_size=1)),
        min_size=1,
        max_size=3,
    )
)
def test_each_stage_has_its_length_and_its_shares(stages: list[tuple[int, dict[str, float]]]) -> None:
    names = list("abcdefg")
    order = staged(stages, names).tolist()
    assert len(order) == sum(steps for steps, _ in stages)
    for steps, weights in stages:
        part, order = order[:steps], order[steps:]
        assert {names[n] for n in part} <= set(weights)
        for name, weight in weights.items():
            assert abs(part.count(names.index(name)) - steps * weight / sum(weights.values())) <= len(weights)


def test_temperature_weighs_by_size(tmp_path: Path) -> None:
    loaders = {name: loader_of(numbers(0, rows, tmp_path / name)) for name, rows in (("a", 900), ("b", 100))}
    with MixedLoader(loaders, temperature=2, named=True) as mixed:
        found = Counter(name for name, _ in mixed)
        assert mixed.state_dict()["weights"] == pytest.approx({"a": 0.75, "b": 0.25})
    assert found["a"] == pytest.approx(3 * found["b"], abs=3)


@pytest.mark.parametrize("temperature", [1e-3, 1e-2, 5e-324])
def test_a_temperature_that_leaves_nothing_to_small_loaders_is_refused(temperature: float, tmp_path: Path) -> None:
    loaders = {name: loader_of(numbers(0, rows, tmp_path / name)) for name, rows in (("a", 9000), ("b", 1))}
    with pytest.raises(ConfigurationError, match=r"too small for sizes from 1 to 9,000.*choose a larger one"):
        MixedLoader(loaders, temperature=temperature)


def test_a_mixture_is_weighed_in_one_way(tmp_path: Path) -> None:
    with loader_of(numbers(0, 50, tmp_path / "a")) as loader:
        for text, wrong in (
            ("one of weights", {}),
            ("one of weights", {"weights": {"a": 1}, "temperature": 1}),
            ("temperature", {"temperature": 0}),
            ("at least one stage", {"stages": []}),
            ("steps", {"stages": [(0, {"a": 1})]}),
            ("for some of", {"stages": [(1, {"b": 1})]}),
            ("not all 0", {"stages": [(1, {"a": 0})]}),
            ("such as", {"stages": [{"a": 1}]}),
            ("expected an integer from 1 to 100000000", {"stages": [(10**9, {"a": 1})]}),
            ("stages: 120,000,000 batches", {"stages": [(6 * 10**7, {"a": 1})] * 2}),
        ):
            with pytest.raises(ConfigurationError, match=text):
                MixedLoader({"a": loader}, **wrong)


@pytest.mark.parametrize("stop", ["first_exhausted", pytest.param("all_exhausted", marks=pytest.mark.slow), "stages"])
def test_shuffled_token_loaders_mix_by_tokens_and_resume_at_each_batch(tmp_path: Path, stop: str) -> None:
    rng = np.random.default_rng(0)
    roots, arguments = {}, dict[str, Any](length=16, batch_size=2, shuffle=True, window_rows=12, num_threads=1)
    for number, name in enumerate("ab"):
        lengths = rng.integers(1, 60, 40)
        tokens = 10_000 * number + np.arange(lengths.sum())
        documents = np.split(tokens, np.cumsum(lengths)[:-1])
        roots[name] = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({"input_ids": [d.tolist() for d in documents]}), roots[name], row_group_size=5)

    def make() -> MixedLoader:
        loaders = {name: TokenLoader(root, **arguments) for name, root in roots.items()}
        if stop == "stages":
            return MixedLoader(loaders, stages=[(30, {"a": 2, "b": 1}), (40, {"b": 1})])
        return MixedLoader(loaders, {"a": 2, "b": 1}, stop=stop)  # type: ignore[arg-type]

    with make() as mixed, make() as other:
        epochs = []
        for epoch in range(3):
            epochs.append([batch["input_ids"].tolist() for batch in mixed])
            mixed.set_epoch(epoch)
            assert len(mixed) == len(epochs[-1])
            mixed.set_epoch(epoch + 1)
        if stop == "stages":
            of_a = [batch for epoch in epochs for batch in epoch if batch[0][0] < 10_000]
            with TokenLoader(roots["a"], **arguments) as alone:
                whole = [batch["input_ids"].tolist() for _ in range(3) for batch in alone]
            assert of_a == whole[: len(of_a)]
        mixed.set_epoch(1)
        iterator = iter(mixed)
        for done in range(1, len(epochs[1]), 7):
            while mixed.state_dict()["batch"] < done:
                next(iterator)
            other.load_state_dict(json.loads(json.dumps(mixed.state_dict())))
            assert [batch["input_ids"].tolist() for batch in other] == epochs[1][done:]


def test_the_length_is_that_of_the_epoch_that_comes_next(tmp_path: Path) -> None:
    lengths = np.random.default_rng(1).integers(1, 60, 40)
    pq.write_table(pa.table({"input_ids": [[1] * n for n in lengths]}), tmp_path / "a.parquet", row_group_size=5)
    loader = TokenLoader(tmp_path, length=16, batch_size=2, shuffle=True, window_rows=12)
    with MixedLoader({"a": loader}, {"a": 1}, stop="all_exhausted") as mixed:
        pairs = [(len(mixed), len(list(mixed))) for _ in range(5)]
    assert all(promised == delivered for promised, delivered in pairs)
    assert len(set(pairs)) > 1


def write_two(tmp_path: Path, row_group: int) -> dict[str, Path]:
    """Write a whole file and one with a damaged row group, of 40 rows in 4 row groups."""
    paths = {name: tmp_path / f"{name}.parquet" for name in ("whole", "damaged")}
    for path in paths.values():
        pq.write_table(
            pa.table({"x": np.arange(40)}), path, row_group_size=10, compression="none", use_dictionary=False
        )
    with open(paths["damaged"], "r+b") as file:
        file.seek(pq.ParquetFile(paths["damaged"]).metadata.row_group(row_group).column(0).data_page_offset)
        file.write(b"\xff" * 20)
    return paths


@pytest.mark.parametrize("stop", [*STOPS, "stages"])
def test_a_loader_that_skips_row_groups_gives_fewer_batches(tmp_path: Path, stop: str) -> None:
    paths = write_two(tmp_path, 3)
    loaders = {name: BatchedDataLoader(path, 5, on_error="skip") for name, path in paths.items()}
    weights = {"whole": 1, "damaged": 1}
    arguments: dict[str, Any] = {"stages": [(16, weights)]} if stop == "stages" else {"weights": weights, "stop": stop}
    with MixedLoader(loaders, **arguments, named=True) as mixed:
        for _ in range(2):
            rows = Counter((name, row) for name, batch in mixed for row in batch["x"].tolist())
            assert set(rows.values()) == {1}
            assert {row for name, row in rows if name == "whole"} >= set(range(30))
            assert {row for name, row in rows if name == "damaged"} == set(range(30))


def test_a_loader_that_skips_row_groups_resumes_where_it_begins_an_epoch(tmp_path: Path) -> None:
    paths = write_two(tmp_path, 0)
    loaders = {
        "whole": BatchedDataLoader(paths["whole"], 5, shuffle=True),
        "damaged": BatchedDataLoader(paths["damaged"], 5, shuffle=True, on_error="skip"),
    }
    with MixedLoader(loaders, {"whole": 2, "damaged": 1}) as mixed:  # each epoch ends within one of `damaged`
        epochs = [[batch["x"].tolist() for batch in mixed] for _ in range(2)]
        mixed.set_epoch(0)
        assert [batch["x"].tolist() for batch in mixed] == epochs[0]
        state = json.loads(json.dumps(mixed.state_dict()))
        assert (state["epoch"], state["batch"]) == (1, 0)
        mixed.load_state_dict(state)
        iterator = iter(mixed)
        assert [next(iterator)["x"].tolist() for _ in range(7)] == epochs[1][:7]
        with pytest.raises(ResumeError, match=r"loader 'damaged': 1 row groups were skipped"):
            mixed.load_state_dict(mixed.state_dict())


def test_a_loader_that_skips_row_groups_goes_on_in_the_next_epoch_of_stages(tmp_path: Path) -> None:
    paths = write_two(tmp_path, 1)
    loaders = {name: BatchedDataLoader(path, 5, shuffle=True, on_error="skip") for name, path in paths.items()}
    found: dict[str, list[list[int]]] = {"whole": [], "damaged": []}
    with MixedLoader(loaders, stages=[(10, {"whole": 1, "damaged": 1})], named=True) as mixed:
        for epoch in range(7):  # 5 batches of each loader, whose epochs have 8; those of `damaged` deliver 6
            mixed.set_epoch(epoch)
            iterator = iter(mixed)
            for name, batch in islice(iterator, 10):  # some trainers count, and do not ask for the end
                found[name].append(batch["x"].tolist())
            state = mixed.state_dict()
            assert "left_out" not in state["loaders"]["whole"]
            if epoch == 0:
                with pytest.raises(ResumeError, match=r"loader 'damaged': 1 row groups were skipped"):
                    MixedLoader(
                        {
                            name: BatchedDataLoader(path, 5, shuffle=True, on_error="skip")
                            for name, path in paths.items()
                        },
                        stages=[(10, {"whole": 1, "damaged": 1})],
                    ).load_state_dict(state)
    for name, path in paths.items():
        with BatchedDataLoader(path, 5, shuffle=True, on_error="skip") as alone:
            expected = [batch["x"].tolist() for _ in range(5) for batch in alone]
        assert found[name] == expected[: len(found[name])]
    assert len(found["damaged"]) == 4 * 6 + 3


def test_a_loader_that_has_ended_early_does_not_resume_within_its_epoch(tmp_path: Path) -> None:
    paths = write_two(tmp_path, 1)
    loaders = {name: BatchedDataLoader(path, 5, on_error="skip") for name, path in paths.items()}
    with MixedLoader(loaders, {"whole": 1, "damaged": 1}, stop="all_exhausted", named=True) as mixed:
        state = [mixed.state_dict() for _ in mixed][-1]
        assert state["batch"] == 15  # after the last batch of `whole`; `damaged` has ended at 13, and would at 15
        with pytest.raises(ResumeError, match=r"loader 'damaged': 1 row groups were skipped"):
            mixed.load_state_dict(state)


def test_an_error_of_one_loader_ends_the_others(tmp_path: Path) -> None:
    loaders = {name: BatchedDataLoader(path, 5, window_rows=10) for name, path in write_two(tmp_path, 1).items()}
    with MixedLoader(loaders, {"whole": 1, "damaged": 1}) as mixed:
        with pytest.raises(DataError, match=r"damaged\.parquet, row group 1") as held:
            list(mixed)
        assert held.tb is not None
        running = loaders["whole"]._running()
        assert running is None or not running.is_here


def test_weights_and_stages_of_numpy_are_those_of_python(roots: dict[str, str]) -> None:
    two: tuple[dict[str, Any], ...] = ({"a": 1, "b": 0.5}, {"a": np.int64(1), "b": np.float32(0.5)})
    mixtures: list[dict[str, Any]] = [{"weights": weights} for weights in two]
    mixtures += [{"stages": [(steps, weights)]} for steps, weights in zip((5, np.int64(5)), two, strict=True)]
    states = []
    for arguments in mixtures:
        with MixedLoader({name: BatchedDataLoader(roots[name], 4) for name in "ab"}, **arguments) as mixed:
            mixed.set_epoch(np.int64(3))  # type: ignore[arg-type]
            states.append(json.dumps(mixed.state_dict()))
    assert states[0] == states[1]
    assert states[2] == states[3]


def test_weights_that_make_an_epoch_endless_are_refused(roots: dict[str, str]) -> None:
    loaders = {name: BatchedDataLoader(root, 8) for name, root in roots.items()}
    weights = {name: 1e-90 if name == "a" else 1.0 for name in loaders}
    with MixedLoader(loaders, weights, stop="repeat") as mixed:
        with pytest.raises(ConfigurationError, match=r"stop='repeat': with weights=.* more than 100,000,000 batches"):
            len(mixed)
        with pytest.raises(ConfigurationError, match="less far apart"):
            next(iter(mixed))


def test_each_name_has_a_loader_of_its_own(roots: dict[str, str]) -> None:
    with BatchedDataLoader(roots["a"], 4) as loader:
        with pytest.raises(ConfigurationError, match="two names have the same loader"):
            MixedLoader({"a": loader, "b": loader}, {"a": 1, "b": 1})
        with pytest.raises(ConfigurationError, match=r"loaders=\[1\]: expected names of text"):
            MixedLoader({1: loader}, {1: 1})  # type: ignore[dict-item]
