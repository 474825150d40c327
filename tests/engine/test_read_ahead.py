"""The next epoch is read while the last window of this one is consumed; nobody notices except by the shorter wait."""

from __future__ import annotations

import gc
import itertools
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    BatchedDataLoader,
    EpisodeLoader,
    Episodes,
    Image,
    OutputOptions,
    SampleStore,
    Scalar,
    Schema,
    TokenLoader,
    write_dataset,
)
from parquet_loader.engine import ReadAhead, Usage
from tests.support.datasets import Layout, write_layout
from tests.support.examples import grid
from tests.support.processes import children
from tests.support.signals import interrupted

NUMPY = OutputOptions(format="numpy")
ROWS = 300
SECONDS = 30


@pytest.fixture
def root(tmp_path: Path) -> str:
    """300 rows in files of several row groups."""
    write_layout(
        Layout(((30, 20), (50,), (25,) * 8), ("double", "text", "ragged"), dictionary=False), str(tmp_path / "data")
    )
    return str(tmp_path / "data")


def opened(root: str, **options: Any) -> BatchedDataLoader:
    return BatchedDataLoader(root, 10, **{"shuffle": True, "num_threads": 2, "output_options": NUMPY, **options})


def ids(batches: Any) -> list[int]:
    return [int(number) for batch in batches for number in batch["id"]]


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("parquet_loader")]


def assert_nothing_runs() -> None:
    for thread in threads():
        thread.join(SECONDS)
    assert not threads()
    assert not children()


def wait_until_read(loader: BatchedDataLoader) -> None:
    """Wait until the first window of the next epoch is ready; the caller holds the last window of this one."""
    running = loader._running()
    assert running is not None
    reading, before = loader._ahead[0], running._engine.workers  # type: ignore[union-attr]
    with before.lock:
        assert before.changed.wait_for(lambda: reading.engine is not None, SECONDS)
    engine = reading.engine
    assert engine is not None
    with engine.workers.lock:
        first = engine._windows
        assert engine.workers.changed.wait_for(lambda: first and first[0].phase == "ready", SECONDS)


def to_last_batch(loader: BatchedDataLoader) -> Any:
    """Take all batches but the last, and return the iterator."""
    iterator = iter(loader)
    for _ in range(len(loader) - 1):
        next(iterator)
    return iterator


def orders(root: str, epochs: int, **options: Any) -> list[list[int]]:
    """Return the rows of each epoch, each from a loader that has read nothing before."""
    found = []
    for epoch in range(epochs):
        with opened(root, **options) as loader:
            loader.set_epoch(epoch)
            found.append(ids(loader))
    return found


def test_the_first_window_of_the_next_epoch_needs_no_file_that_is_gone_after_the_last_batch(root: str) -> None:
    expected = orders(root, 2)
    with opened(root) as loader:
        iterator = to_last_batch(loader)
        wait_until_read(loader)
        next(iterator)
        assert next(iterator, None) is None
        shutil.rmtree(root)
        assert ids(loader) == expected[1]


def _tokens(root: str, **options: Any) -> BatchedDataLoader:
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 100, rng.integers(1, 60)).astype(np.int32) for _ in range(400)]
    Path(root).mkdir()
    pq.write_table(pa.table({"tokens": documents}), f"{root}/a.parquet", row_group_size=50)
    return TokenLoader(root, "tokens", length=32, batch_size=4, shuffle=True, window_rows=200, num_threads=2, **options)


def _episodes(root: str, **options: Any) -> BatchedDataLoader:
    table = pa.table({"episode": np.repeat(np.arange(20), 30), "x": np.arange(600)})
    Path(root).mkdir()
    pq.write_table(table, f"{root}/a.parquet", row_group_size=60)
    episodes = Episodes(by="episode", history=1, future=2)
    return EpisodeLoader(root, 8, episodes=episodes, shuffle=True, window_rows=240, num_threads=2, **options)


def _images(root: str, **options: Any) -> BatchedDataLoader:
    schema = Schema({"image": Image((8, 8, 3)), "n": Scalar("int64")})
    pixels = np.random.default_rng(0).integers(0, 256, (200, 8, 8, 3), dtype=np.uint8)
    write_dataset({"image": list(pixels), "n": np.arange(200)}, root, schema)
    return BatchedDataLoader(root, 8, schema=schema, shuffle=True, window_rows=80, num_threads=2, **options)


def made_ahead(loader: BatchedDataLoader, iterator: Any) -> Any:
    """Take the last batch, wait until the next epoch's first batch is made, and return the batches of that epoch."""
    reading, workers = loader._ahead[0], loader._running()._engine.workers  # type: ignore[union-attr]
    next(iterator)

    def is_made() -> bool:
        engine = reading.engine
        return engine is not None and engine._batches is not None and engine._batches.is_next_ready

    with workers.lock:
        assert workers.changed.wait_for(is_made, SECONDS)
        return reading.engine._batches  # type: ignore[union-attr]


@pytest.mark.parametrize("opened", [_tokens, _episodes, _images])
def test_the_first_batches_of_the_next_epoch_are_made_ahead(
    tmp_path: Path, opened: Callable[..., BatchedDataLoader]
) -> None:
    root = str(tmp_path / "d")
    with opened(root) as loader:
        expected = [[{k: np.asarray(v) for k, v in b.items() if hasattr(v, "shape")} for b in loader] for _ in range(2)]
        loader.set_epoch(0)
        iterator = to_last_batch(loader)
        made_ahead(loader, iterator)
        assert next(iterator, None) is None
        shutil.rmtree(root)
        again = next(iter(loader))
        for name, array in expected[1][0].items():
            assert (np.asarray(again[name]) == array).all()
    assert_nothing_runs()


@pytest.mark.parametrize("opened", [_tokens, _episodes, _images])
def test_an_error_in_a_batch_made_ahead_is_not_reported(
    tmp_path: Path, opened: Callable[..., BatchedDataLoader]
) -> None:
    with opened(str(tmp_path / "d")) as loader:
        list(loader)
        loader.set_epoch(0)
        iterator = to_last_batch(loader)
        batches = made_ahead(loader, iterator)
        batches._ready[0] = MemoryError("both epochs took memory")
        assert next(iterator, None) is None
        assert len(list(loader)) == len(loader)
    assert_nothing_runs()


@grid(
    "isolation, options",
    [pytest.param("thread", id="thread"), pytest.param("process", id="process")],
    [
        pytest.param({}, id="one window"),
        pytest.param({"window_rows": 40}, id="windows"),
        pytest.param({"window_rows": 40, "transform": lambda c, rng: c}, id="transform"),
    ],
    everyday=lambda isolation, options: isolation == "thread" or "transform" in options,
)
def test_epochs_that_are_read_ahead_have_the_order_and_the_figures_of_others(
    root: str, isolation: str, options: dict[str, Any]
) -> None:
    expected = orders(root, 3, **options)
    with opened(root, isolation=isolation, **options) as loader:
        for epoch in range(3):
            iterator = to_last_batch(loader)
            if isolation == "thread":
                wait_until_read(loader)
            left = ids(iterator)
            assert left == expected[epoch][-len(left) :]
            stats = loader.stats()
            assert (stats.epoch, stats.rows, stats.batches) == (epoch, ROWS, len(loader))
            assert stats.row_groups == 11
            assert loader.state_dict()["epoch"] == epoch + 1
    assert_nothing_runs()


def test_transform_is_not_called_before_the_epoch_begins(root: str) -> None:
    epoch = 0

    def transform(columns: dict[str, Any], rng: Any) -> dict[str, Any]:
        return {"id": columns["id"], "seen": np.full(len(columns["id"]), epoch)}

    with opened(root, transform=transform) as loader:
        for epoch in range(3):
            iterator = to_last_batch(loader)
            wait_until_read(loader)
            last = next(iterator)
            assert (last["seen"] == epoch).all()
            assert next(iterator, None) is None


def test_a_loader_without_shuffle_reads_nothing_ahead_before_it_is_iterated_again(root: str) -> None:
    with opened(root, shuffle=False, window_rows=40) as loader:
        assert ids(loader) == orders(root, 1, shuffle=False)[0]
        assert_nothing_runs()
        iterator = to_last_batch(loader)
        wait_until_read(loader)
        list(iterator)
        shutil.rmtree(root)
        assert len(ids(itertools.islice(loader, 2))) == 20


@pytest.fixture
def store(tmp_path: Path) -> SampleStore:
    """A store of 100 rows, ``id`` from 0 on."""
    store = SampleStore(tmp_path / "store", schema=Schema({"id": Scalar("int64")}), max_bytes=2**30)
    add(store, 0)
    return store


def add(store: SampleStore, first: int) -> None:
    with store.writer() as writer:
        writer.write({"id": np.arange(first, first + 100)})


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_a_store_that_has_not_changed_is_read_ahead_and_new_files_are_still_seen(
    store: SampleStore, isolation: str
) -> None:
    def new_loader(isolation: Any = "thread") -> BatchedDataLoader:
        source = SampleStore(store.path)
        return BatchedDataLoader(source, 10, shuffle=True, num_threads=2, isolation=isolation, output_options=NUMPY)

    expected = []
    for epoch in range(4):
        with new_loader() as loader:
            loader.set_epoch(epoch)
            expected.append(ids(loader))
    with new_loader(isolation) as loader:
        assert ids(loader) == expected[0]
        for epoch in range(1, 4):
            iterator = iter(loader)
            found = ids(itertools.islice(iterator, 9))
            if isolation == "thread":
                wait_until_read(loader)
            assert found + ids(iterator) == expected[epoch]
            assert store.status().held_bytes == 0  # reading ahead leases nothing
        add(store, 100)
        assert sorted(ids(loader)) == list(range(200))
        assert loader.stats().growth.new_rows == 100  # type: ignore[union-attr]
    assert_nothing_runs()


def test_a_store_that_has_just_grown_is_not_read_ahead(store: SampleStore) -> None:
    with BatchedDataLoader(SampleStore(store.path), 10, shuffle=True, num_threads=2, output_options=NUMPY) as loader:
        for epoch in range(3):
            assert len(ids(loader)) == 100 * (epoch + 1)
            assert_nothing_runs()
            add(store, 100 * (epoch + 1))


def test_one_process_reads_a_store_that_grows(store: SampleStore) -> None:
    def new_loader(isolation: Any = "thread") -> BatchedDataLoader:
        source = SampleStore(store.path)
        return BatchedDataLoader(source, 10, shuffle=True, num_threads=2, isolation=isolation, output_options=NUMPY)

    processes, descriptors = set[psutil.Process](), set[int]()
    with new_loader("process") as loader:
        for epoch in range(7):
            found = ids(loader)
            with new_loader() as other:
                other.set_epoch(epoch)
                assert found == ids(other)
            processes |= children()
            if epoch in (2, 5, 6):  # the store has just grown, so no next epoch is read ahead, and no file is open
                descriptors |= {process.num_fds() for process in processes}
            if epoch in (1, 4, 5):  # after epochs that were read ahead, and after one that was not
                add(store, 100 * (epoch + 1))
    assert len(processes) == 1
    assert len(descriptors) == 1, descriptors
    assert_nothing_runs()


CHOICES: dict[str, Callable[[BatchedDataLoader], tuple[int, int]]] = {
    "set_epoch to the next": lambda loader: (loader.set_epoch(1), (1, 0))[1],  # type: ignore[func-returns-value]
    "set_epoch to another": lambda loader: (loader.set_epoch(7), (7, 0))[1],  # type: ignore[func-returns-value]
    "seek": lambda loader: (loader.seek(1, 4), (1, 4))[1],  # type: ignore[func-returns-value]
    "a state": lambda loader: (loader.load_state_dict(loader.state_dict()), (1, 0))[1],  # type: ignore[func-returns-value]
    "reset": lambda loader: (loader.reset(), (1, 0))[1],  # type: ignore[func-returns-value]
}


@pytest.mark.parametrize("window_rows", [40, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("choice", CHOICES)
def test_any_position_may_be_chosen_after_reading_ahead(root: str, choice: str, window_rows: int | None) -> None:
    with opened(root, window_rows=window_rows) as loader:
        iterator = to_last_batch(loader)
        wait_until_read(loader)
        assert len(ids(iterator)) == 10
        epoch, batch = CHOICES[choice](loader)
        assert ids(loader) == orders(root, epoch + 1, window_rows=window_rows)[epoch][10 * batch :]
    assert_nothing_runs()


def _break_off(loader: BatchedDataLoader, iterator: Any) -> None:
    iterator.close()


def _choose_another(loader: BatchedDataLoader, iterator: Any) -> None:
    loader.set_epoch(9)
    iterator.close()


def _collect(loader: BatchedDataLoader, iterator: Any) -> None:
    list(iterator)


def _reset(loader: BatchedDataLoader, iterator: Any) -> None:
    list(iterator)
    loader.reset()


def _close(loader: BatchedDataLoader, iterator: Any) -> None:
    loader.close()


@pytest.mark.parametrize("end", [_break_off, _choose_another, _collect, _reset, _close])
@pytest.mark.parametrize("is_read", [False, True], ids=["at any moment", "when it is read"])
def test_what_was_read_ahead_ends_with(root: str, end: Callable[..., None], is_read: bool) -> None:
    loader = opened(root, window_rows=40)
    iterator = to_last_batch(loader)
    if is_read:
        wait_until_read(loader)
    end(loader, iterator)
    if end is _collect:
        del loader, iterator
        gc.collect()
    assert_nothing_runs()


@pytest.mark.parametrize("options", [{}, {"transform": lambda c, rng: c}], ids=["windows", "transform"])
def test_an_epoch_that_has_not_begun_does_not_open_the_next_one(root: str, options: dict[str, Any]) -> None:
    with opened(root, **options) as loader:
        iterator = to_last_batch(loader)
        wait_until_read(loader)
        list(iterator)
        ahead = loader._ahead[0]
        engine = ahead.engine
        assert engine is not None
        engine.set_next(ReadAhead(ahead.dataset, ahead.plan, lambda _: pytest.fail("nobody would close this engine")))
        with engine.workers.lock:
            assert engine._choose() is None
    assert_nothing_runs()


def test_a_loader_that_is_gone_reads_nothing_ahead(root: str) -> None:
    iterator = iter(opened(root, window_rows=40))
    gc.collect()
    assert len(ids(iterator)) == ROWS
    assert_nothing_runs()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of Ctrl-C in callbacks of weakrefs
def test_ctrl_c_at_every_moment_of_the_beginning_of_an_epoch_that_was_read_ahead(root: str) -> None:
    expected = orders(root, 2)
    moment, came = 0, 0
    while True:
        moment += 1
        with opened(root) as loader:
            iterator = to_last_batch(loader)
            wait_until_read(loader)
            list(iterator)
            held, moments = interrupted(loader, moment)
            came += held is not None
            if held is None and moments < moment:
                break
            if moment % 2:
                loader.reset()
                assert not threads(), moment
            loader.set_epoch(1)
            assert ids(loader) == expected[1], moment
            del held
        assert not threads(), moment
    assert came > moment // 2


class FakeEngine:
    """Records its life."""

    is_sound = True

    def __init__(self, at_start: Callable[[], None] = lambda: None) -> None:
        self.at_start = at_start
        self.closed = 0

    def start_ahead(self, before: Any) -> None:
        self.at_start()

    def go_on_alone(self) -> None:
        pass

    def close(self) -> None:
        self.closed += 1


def read_ahead(opened: Callable[[], Any]) -> ReadAhead[Any]:
    """One whose plan nobody looks at."""
    no_plan: Any = lambda _: None
    return ReadAhead(no_plan, no_plan, lambda _: opened())


def _no_threads() -> None:
    raise RuntimeError("can't start new thread")


def test_an_error_of_reading_ahead_is_left_to_the_epoch_that_it_concerns() -> None:
    engine = FakeEngine(_no_threads)
    reading = read_ahead(lambda: engine)
    reading.begin(None)
    assert reading.engine is None
    assert engine.closed == 1

    def fails() -> FakeEngine:
        raise MemoryError

    reading = read_ahead(fails)
    reading.begin(None)
    assert reading.engine is None


def test_an_engine_that_is_dropped_while_it_starts_is_closed_by_its_starter() -> None:
    engine = FakeEngine(lambda: reading.drop())
    reading = read_ahead(lambda: engine)
    reading.begin(None)
    assert reading.engine is None
    assert engine.closed == 1
    late = read_ahead(lambda: engine)
    late.drop()
    late.begin(None)
    assert engine.closed == 1


def test_epochs_that_follow_one_another_use_the_same_threads(root: str) -> None:
    with opened(root, window_rows=40) as loader:
        found = set()
        for _ in range(3):
            iterator = to_last_batch(loader)
            wait_until_read(loader)
            assert len(threads()) == 2
            found |= {thread.ident for thread in threads()}
            list(iterator)
        assert len(found) == 2
    assert_nothing_runs()


def test_two_threads_that_reset_a_loader_close_each_cursor_once(root: str) -> None:
    class Cursor:
        closed = 0

        def close(self) -> None:
            self.closed += 1
            if self.closed == 1:  # another thread ends the loader meanwhile
                other = threading.Thread(target=loader.reset)
                other.start()
                other.join(SECONDS)

    cursor = Cursor()
    with opened(root) as loader:
        iterator = to_last_batch(loader)
        wait_until_read(loader)
        list(iterator)
        engine = loader._ahead[0].engine
        assert engine is not None
        engine._reads._cursors[-1, -1] = cursor  # type: ignore[assignment]
        loader.reset()
    assert cursor.closed == 1


def test_both_epochs_leave_the_memory_of_the_other_one() -> None:
    running, ahead = Usage(100), Usage(100)
    ahead.before, running.after = running, ahead
    running.reserve(30)
    ahead.reserve(50)
    assert [usage.fits(20) for usage in (running, ahead)] == [True, True]
    assert [usage.fits(21) for usage in (running, ahead)] == [False, False]
    ahead.fetched_bytes = 5  # prefetched bytes have their own share
    assert running.fits(25)


def test_the_peak_of_an_epoch_has_the_bytes_of_the_next_one_while_both_are_open(root: str) -> None:
    with opened(root, window_rows=40) as loader:
        iterator = to_last_batch(loader)
        wait_until_read(loader)
        engine = loader._ahead[0].engine
        assert engine is not None
        running = engine._before
        assert running is not None
        with engine.workers.lock:
            of_next, held = engine.usage.held_bytes, running.usage.held_bytes
            running.usage.peak_bytes = 0
            running.usage.reserve(10)
            running.usage.reserve(-10)
        assert of_next > 0
        assert running.usage.peak_bytes == held + 10 + of_next
        loader._ahead[0].drop()
        assert running.usage.after is None
        assert len(ids(iterator)) == 10
