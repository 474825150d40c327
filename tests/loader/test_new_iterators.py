"""A new `iter(loader)` ends the iterator before it, which then raises if it is used: no row is lost without a word."""

from __future__ import annotations

import contextlib
import copy
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from parquet_loader import BatchedDataLoader, LoaderStateError, MixedLoader, ParquetIterable
from tests.support.datasets import write_numbered
from tests.support.processes import children
from tests.support.transforms import doubled

ROWS = 67
AGAIN = r"iter\(loader\) was called again"


@pytest.fixture
def root(tmp_path: Path) -> str:
    write_numbered(str(tmp_path / "data"), ((30, 11), (25,), (1,)))
    return str(tmp_path / "data")


WAYS: list[dict[str, Any]] = [
    {},
    {"transform": doubled},
    {"isolation": "process"},
    {"isolation": "process", "transform": doubled},
]
each_way = pytest.mark.parametrize(
    "options",
    [*WAYS[:2], pytest.param(WAYS[2], marks=pytest.mark.slow), WAYS[3]],
    ids=["threads", "threads, transform", "process", "process, transform"],
)


def ids(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def assert_nothing_runs() -> None:
    deadline = time.monotonic() + 60
    threads = [t for t in threading.enumerate() if t.name.startswith("parquet_loader")]
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads)
    assert children() == set()


@each_way
def test_the_old_iterator_raises_and_the_new_one_delivers_the_next_epoch(root: str, options: dict[str, Any]) -> None:
    with BatchedDataLoader(root, 8, shuffle=True, seed=3) as expected:
        epochs = [ids(expected) for _ in range(3)]
    with BatchedDataLoader(root, 8, shuffle=True, seed=3, window_rows=None, **options) as loader:
        old = iter(loader)
        assert [next(old)["id"].tolist(), next(old)["id"].tolist()] == epochs[0][:2]
        new = iter(loader)
        with pytest.raises(LoaderStateError, match=f"epoch 0, batch 2: {AGAIN}"):
            next(old)
        assert ids(new) == epochs[1]
        assert ids(loader) == epochs[2]
    assert_nothing_runs()


@pytest.mark.parametrize(
    "options",
    [*WAYS[:2], *(pytest.param(way, marks=pytest.mark.slow) for way in WAYS[2:])],
    ids=["threads", "threads, transform", "process", "process, transform"],
)
def test_many_iterators_left_in_the_middle_leave_no_thread_and_no_process(root: str, options: dict[str, Any]) -> None:
    held = []
    with BatchedDataLoader(root, 8, shuffle=True, **options) as loader:
        for _ in range(4):
            held.append(iter(loader))
            next(held[-1])
        running = [t for t in threading.enumerate() if t.name.startswith("parquet_loader-worker")]
        assert len(running) <= 2 * loader.num_threads  # also of the next epoch, which is read ahead
        assert len(children()) <= 1
        for old in held[:-1]:
            with pytest.raises(LoaderStateError, match=AGAIN):
                next(old)
        held.clear()
        assert loader.state_dict()["epoch"] == 3
        assert_nothing_runs()


def test_an_iterator_that_was_not_used_does_not_count_as_an_epoch(root: str) -> None:
    with BatchedDataLoader(root, 8, shuffle=True) as loader:
        first = ids(loader)
        loader.set_epoch(0)
        unused = [iter(loader) for _ in range(3)]
        assert ids(loader) == first
        with pytest.raises(LoaderStateError, match=f"epoch 0, batch 0: {AGAIN}"):
            next(unused[0])


def test_an_iterator_that_has_delivered_everything_just_stops_still_holds(root: str) -> None:
    with BatchedDataLoader(root, 8) as loader:
        old = iter(loader)
        for _ in range(len(loader)):
            next(old)
        new = iter(loader)
        assert next(old, None) is None
        assert len(ids(new)) == len(loader)


def test_two_batches_and_then_everything_as_in_a_sanity_check(root: str) -> None:
    with BatchedDataLoader(root, 8) as loader:
        check = iter(loader)
        seen = [next(check), next(check)]
        whole = ids(loader)
        assert [batch["id"].tolist() for batch in seen] == whole[:2]
        assert sorted(row for batch in whole for row in batch) == list(range(ROWS))


def test_zip_of_a_loader_with_itself_raises(root: str) -> None:
    with BatchedDataLoader(root, 8) as loader, pytest.raises(LoaderStateError, match="need a loader each"):
        list(zip(loader, loader, strict=True))
    assert_nothing_runs()


def test_a_loop_inside_a_loop_ends_the_outer_one_with_an_error(root: str) -> None:
    with BatchedDataLoader(root, 8) as loader:
        outer = iter(loader)
        next(outer)
        assert sum(map(len, ids(loader))) == ROWS
        with pytest.raises(LoaderStateError, match=f"epoch 0, batch 1: {AGAIN}"):
            next(outer)


def fail(loader: BatchedDataLoader) -> None:
    iterator = iter(loader)
    next(iterator)
    raise ZeroDivisionError


def test_a_loop_after_one_whose_exception_is_held_goes_on(root: str) -> None:
    with BatchedDataLoader(root, 8) as loader:
        with pytest.raises(ZeroDivisionError) as held:  # its traceback holds the iterator, as a notebook does
            fail(loader)
        assert sum(map(len, ids(loader))) == ROWS
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert held.value.__traceback__ is not None


def test_breaks_and_generators_that_are_held(root: str) -> None:
    def two(loader: BatchedDataLoader) -> Any:
        for number, batch in enumerate(loader):
            if number == 2:
                break
            yield batch

    with BatchedDataLoader(root, 8) as loader:
        held = two(loader)
        next(held)
        assert [len(ids(two(loader))) for _ in range(3)] == [2, 2, 2]
        with pytest.raises(LoaderStateError, match=AGAIN):
            next(held)


class Gate:
    """A transform that lets a thread wait in `next` until the test says so."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, columns: dict[str, Any], rng: Any) -> dict[str, Any]:
        self.reached.set()
        assert self.opened.wait(60)
        return columns


def test_a_thread_that_waits_for_a_batch_hears_that_another_began(root: str) -> None:
    gate = Gate()
    said: list[Any] = []
    with BatchedDataLoader(root, 8, transform=gate, num_threads=1) as loader:

        def consume() -> None:
            try:
                said.append(ids(loader))
            except LoaderStateError as error:
                said.append(str(error))

        first = threading.Thread(target=consume, name="first")
        first.start()
        assert gate.reached.wait(60)

        def release() -> None:
            first.join(60)  # before the transform that runs ends
            gate.opened.set()

        releasing = threading.Thread(target=release)
        releasing.start()
        whole = ids(loader)  # ends the first epoch, and so waits for that transform
        releasing.join()
    (message,) = said
    assert "iter(loader) was called again (in thread 'MainThread')" in message
    assert sum(map(len, whole)) == ROWS
    assert_nothing_runs()


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_of_threads_that_iterate_at_once_all_but_the_last_raise(root: str, isolation: Any) -> None:
    threads = 4
    with BatchedDataLoader(root, 4, isolation=isolation, num_threads=2) as loader:
        barrier = threading.Barrier(threads)
        rows: list[int] = []
        errors: list[BaseException] = []

        def consume() -> None:
            barrier.wait(60)
            try:
                rows.append(sum(len(batch["id"]) for batch in loader))
            except BaseException as error:
                errors.append(error)

        consumers = [threading.Thread(target=consume) for _ in range(threads)]
        for consumer in consumers:
            consumer.start()
        for consumer in consumers:
            consumer.join(60)
        # Whoever was not interrupted has all rows; nobody has a part of them without an error.
        assert len(rows) + len(errors) == threads
        assert rows, errors
        assert set(rows) == {ROWS}
        assert all(isinstance(error, LoaderStateError) and "called again" in str(error) for error in errors), errors
    assert_nothing_runs()


def test_resetting_or_closing_ends_an_iterator_with_an_error_still_holds(root: str) -> None:
    loader = BatchedDataLoader(root, 8)
    for end in (loader.reset, loader.close):
        iterator = iter(loader)
        next(iterator)
        end()
        with pytest.raises(LoaderStateError, match="closed or reset before the last batch"):
            next(iterator)


def test_a_loader_is_not_pickled_in_the_middle_of_an_epoch(root: str) -> None:
    with BatchedDataLoader(root, 8) as loader:
        for _ in loader:
            with pytest.raises(LoaderStateError, match="cannot be pickled or copied while it is iterated"):
                pickle.dumps(loader)
            break
        with pickle.loads(pickle.dumps(loader)) as copied:
            assert copied.state_dict()["epoch"] == 1


@pytest.mark.parametrize("look", [pickle.dumps, copy.copy, BatchedDataLoader.plan])
def test_looking_at_a_loader_repeats_no_epoch_of_an_iterator_that_is_not_used_yet(root: str, look: Any) -> None:
    with BatchedDataLoader(root, 8, shuffle=True) as loader:
        iterator = iter(loader)
        assert loader.plan().epoch == 0
        with contextlib.suppress(LoaderStateError):
            look(loader)
        assert len(list(iterator)) == len(loader)
        assert (loader.state_dict()["epoch"], loader.plan().epoch) == (1, 1)


def test_a_mixed_loader_ends_its_old_iterator_too_still_holds(root: str) -> None:
    with MixedLoader({"a": BatchedDataLoader(root, 8), "b": BatchedDataLoader(root, 8)}, {"a": 1, "b": 1}) as mixed:
        old = iter(mixed)
        next(old)
        whole = list(mixed)
        assert len(whole) == len(mixed)
        with pytest.raises(LoaderStateError, match=r"iter\(loader\) was called again|reset or closed"):
            next(old)


def test_a_data_loader_around_it_is_iterated_again_too(root: str) -> None:
    with BatchedDataLoader(root, 8) as loader:
        outer: DataLoader[Any] = DataLoader(ParquetIterable(loader), batch_size=None)
        old = iter(outer)
        next(old)
        assert sum(map(len, ids(outer))) == ROWS
        with pytest.raises(LoaderStateError, match=AGAIN):
            next(old)
