"""The growing sample store, in one process: what is written is there, what must go goes, and nothing else."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    DataError,
    SampleStore,
    Scalar,
    Schema,
    SchemaError,
    SourceError,
    StoreFullError,
    StoreOptions,
    SystemReadError,
    Tensor,
    UnsupportedError,
    WriteError,
    write_dataset,
)
from parquet_loader.store import StoredFile, StoreWriter
from parquet_loader.store.eviction_queue import queue_evictions
from tests.store.samples import ONE, SCHEMA, SMALL, delivered, numbers, published, rows, used_bytes


def start_until_it_waits(write: Callable[[], object], writer: StoreWriter) -> threading.Thread:
    """Return a thread that writes, once the writer waits for space."""
    thread = threading.Thread(target=write)
    thread.start()
    while not writer.done.waited_s:
        thread.join(0.01)
        assert thread.is_alive()
    return thread


@pytest.fixture
def store(tmp_path: Path) -> SampleStore:
    return SampleStore(tmp_path / "store", schema=SCHEMA, options=SMALL)


def test_a_writer_or_sampling_processes_without_threads_are_a_system_error(
    store: SampleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for begin in (store.writer, lambda: store.sample(iter)):
            with pytest.raises(SystemReadError, match="can't start new thread; allow the process more threads"):
                begin()
    gc.collect()  # a finaliser that fails would be an error of this test
    with store.writer() as writer:
        writer.write(rows(0, 10))
    assert store.rows == 10


def test_what_is_written_is_there_in_order_and_for_anyone(store: SampleStore) -> None:
    with store.writer() as writer:
        for k in range(10):
            writer.write(rows(100 * k, 100))
    assert writer.done.rows == store.rows == 1000
    assert writer.done.files == len(published(store.path)) > 3
    assert numbers(store.path) == list(range(1000))
    assert sorted(pq.read_table(store.path)["i"].to_pylist()) == list(range(1000))


def test_nothing_is_seen_before_it_is_published_and_flush_publishes(store: SampleStore) -> None:
    writer = store.writer()
    writer.write(rows(0, 20))
    assert published(store.path) == []
    assert writer.flush().rows == 20
    assert numbers(store.path) == list(range(20))
    writer.write(rows(20, 20))
    writer.abort()
    assert numbers(store.path) == list(range(20))
    assert os.listdir(os.path.join(store.path, ".store", "unfinished")) == []
    assert store.status().reserved_bytes == store.status().writers == 0
    with pytest.raises(WriteError, match="aborted"):
        writer.write(rows(40, 1))


def test_a_slow_writer_publishes_by_age(store: SampleStore) -> None:
    with store.writer(roll_s=0.05) as writer:
        writer.write(rows(0, 3))
        assert store.wait(rows=3, timeout_s=60) == 3
        writer.write(rows(3, 3))
        assert store.wait(rows=6, timeout_s=60) == 6
        assert writer.done.files == 2


def test_the_limit_is_kept_and_the_oldest_go(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, max_bytes=200_000, options=SMALL)
    with store.writer() as writer:
        for k in range(40):
            writer.write(rows(100 * k, 100))
            assert used_bytes(tmp_path) <= 200_000
            assert store.status().bytes + store.status().reserved_bytes <= 200_000
    there = numbers(tmp_path)
    assert there == list(range(4000 - len(there), 4000))
    assert 300 < len(there) < 800
    status = store.status()
    assert status.rows == len(there)
    assert status.bytes == used_bytes(tmp_path)
    assert status.written_bytes - status.evicted_bytes == status.bytes
    assert "of 195.3 KiB" in str(status)


def test_a_held_file_stays_and_the_writer_waits_drops_or_fails(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, max_bytes=200_000, options=SMALL)
    with store.writer() as writer:
        writer.write(rows(0, 1000))
    there = numbers(tmp_path)
    with store.snapshot() as files:
        assert len(files) == len(published(tmp_path))
        assert store.status().held_files == len(files)
        with store.writer(when_full="drop") as writer:
            writer.write(rows(1000, 1000))
        assert writer.done.dropped_rows == 1000 - writer.done.rows > 0
        with pytest.raises(StoreFullError, match="readers need them"), store.writer(when_full="fail") as writer:
            writer.write(rows(2000, 1000))
        with pytest.raises(StoreFullError), store.writer(wait_s=0.05) as writer:
            writer.write(rows(2000, 1000))
        assert writer.done.waited_s > 0
        assert set(there) <= set(numbers(tmp_path))
        assert used_bytes(tmp_path) <= 200_000

        waiting = store.writer()
        thread = start_until_it_waits(lambda: waiting.write(rows(3000, 1000)), waiting)
    thread.join(60)
    waiting.close()
    assert not thread.is_alive()
    assert numbers(tmp_path)[-1] == 3999


def test_epochs_that_overlap_for_ever_do_not_keep_a_writer_out(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, max_bytes=200_000, options=SMALL)
    with store.writer() as writer:
        writer.write(rows(0, 1000))
    before = numbers(tmp_path)
    full = store.writer(when_full="fail")
    with BatchedDataLoader(store, 10) as one, BatchedDataLoader(store, 10) as other:  # each epoch is one window
        readers = [iter(one), iter(other)]
        next(readers[0])
        with pytest.raises(StoreFullError):
            full.write(rows(1000, 400))
        rest = [[i for batch in readers[0] for i in batch["i"].tolist()]]
        readers[0] = iter(one)  # begins before the other's epoch ends, so that somebody reads at every moment
        rest.append([i for batch in readers[1] for i in batch["i"].tolist()])
        assert rest == [before[10:], before]
        full.flush()
        later = [i for batch in readers[0] for i in batch["i"].tolist()]
        assert set(later) < set(before)
    full.close()
    assert numbers(tmp_path)[-1] == 1399
    assert used_bytes(tmp_path) <= 200_000


def test_what_was_to_make_way_is_read_again_once_a_store_is_opened(store: SampleStore) -> None:
    with store.writer() as writer:
        writer.write(rows(0, 500))
    first = os.path.basename(published(store.path)[0])
    queue_evictions(store._paths, [first], {}, 1)
    with BatchedDataLoader(store, 10) as loader:
        left_out = delivered(loader)
        assert 0 < len(left_out) < 500
        assert left_out == list(range(500 - len(left_out), 500))
        SampleStore(store.path)
        assert delivered(loader) == list(range(500))


def test_a_snapshot_has_all_of_its_files_whatever_another_thread_lists_meanwhile(
    store: SampleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in (0, 10):
        with store.writer() as writer:
            writer.write(rows(first, 10))
        if not first:
            store.files()  # reads the first footer
    old, new = published(store.path)
    others: list[int] = []
    stat = os.stat

    def list_without_the_old_one() -> None:
        queue_evictions(store._paths, [os.path.basename(old)], {}, 1)
        with store.snapshot() as files:
            others.append(len(files))

    def look_up(path: Any, **options: Any) -> os.stat_result:
        if path == new and not others:
            others.append(0)
            thread = threading.Thread(target=list_without_the_old_one)
            thread.start()
            thread.join()
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", look_up)
    with store.snapshot() as files:
        assert [file.path for file in files] == [old, new]
    assert others == [0, 1]


def test_what_is_known_of_files_goes_with_them_whoever_evicts_them(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, max_bytes=100_000, evict="priority", options=ONE)
    other, files = SampleStore(tmp_path), list[Any]()
    with store.writer() as writer:
        for first in range(0, 4000, 40):
            writer.write(rows(first, 40))
            writer.flush()
            files = [*other.files(), *store.files()]
            assert other._writable().space.ranking()
    gc.collect()
    known = sum(type(one) is StoredFile for one in gc.get_objects())
    assert known <= 3 * len(files), f"{known} for {len(files)} files"


def test_a_full_store_goes_on_although_the_newest_checkpoint_holds_all_of_its_files(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, max_bytes=100_000, options=SMALL)
    with store.writer() as writer:
        writer.write(rows(0, 4000))
    held = None
    with store.writer(when_full="fail") as writer, BatchedDataLoader(store, 10, shuffle=True) as loader:
        for n in range(6):
            batches = iter(loader)
            next(batches)
            state = loader.state_dict()
            store.hold(state)
            if held is not None:
                store.release(held)
            held = state
            list(batches)
            with contextlib.suppress(StoreFullError):
                writer.write(rows(4000 + 100 * n, 100))
                writer.flush()
        assert writer.done.rows >= 300
        assert held is not None
        store.release(held)


def test_abort_ends_a_wait_for_room(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, max_bytes=200_000, evict="never", options=SMALL)
    writer = store.writer()
    failed: list[BaseException] = []

    def write() -> None:
        try:
            writer.write(rows(0, 2000))
        except WriteError as error:
            failed.append(error)

    thread = start_until_it_waits(write, writer)
    writer.abort()
    thread.join(60)
    assert not thread.is_alive()
    assert "aborted while it waited" in str(failed[0])


def test_a_refused_row_group_is_not_lost_and_goes_first_next_time(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, max_bytes=60_000, evict="never", options=SMALL)
    writer = store.writer(when_full="fail")
    with pytest.raises(StoreFullError):
        writer.write(rows(0, 300))
    assert 0 < writer.done.rows < 300
    SampleStore(tmp_path, max_bytes=1_000_000)
    writer.write(rows(300, 30))
    writer.close()
    assert numbers(tmp_path) == list(range(330))


def test_settings_are_read_again_if_the_clock_has_not_moved(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, max_bytes=60_000)
    path = tmp_path / ".store" / "store.json"
    os.utime(path, ns=(1, 1))
    assert store.settings.max_bytes == 60_000
    SampleStore(tmp_path, max_bytes=50_000)
    os.utime(path, ns=(1, 1))  # as on a file system whose times are whole seconds
    assert store.settings.max_bytes == 50_000


def test_a_full_store_refuses_no_rows_of_a_batch(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = SampleStore(path, schema=SCHEMA, max_bytes=60_000, evict="never", options=SMALL)
    writer = store.writer(when_full="fail")
    batches = [
        pa.table({"x": list(batch["x"]), "i": batch["i"]}) for batch in (rows(0, 300), rows(300, 30), rows(340, 10))
    ]
    pq.write_table(batches.pop(), tmp_path / "one.parquet")
    with pytest.raises(StoreFullError):
        writer.write(batches)
    with pytest.raises(StoreFullError):
        writer.write(rows(330, 10))  # the rows of the first call find no space
    with pytest.raises(StoreFullError):
        writer.write(rows(first, 10) for first in range(340, 360, 10))
    with BatchedDataLoader(tmp_path / "one.parquet", 1) as loader, pytest.raises(StoreFullError):
        writer.write(loader)  # it has a length, but reads its rows only when they are requested
    SampleStore(path, max_bytes=1_000_000)
    writer.close()
    assert numbers(path) == list(range(340))  # nothing was taken from the generator and the loader


def test_a_row_group_that_can_never_fit_is_an_error(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, max_bytes=5_000, options=SMALL)
    with (
        pytest.raises(WriteError, match=r"row group of \d+ rows may take .* limit is 4.9 KiB"),
        store.writer() as writer,
    ):
        writer.write(rows(0, 100))


def test_many_writers_with_files_half_done_do_not_starve_each_other(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, max_bytes=150_000, options=SMALL)
    writers = [store.writer(wait_s=20) for _ in range(6)]
    for k in range(60):
        for n, writer in enumerate(writers):
            writer.write(rows(10_000 * n + 37 * k, 37))
        assert used_bytes(tmp_path) <= 150_000
    for writer in writers:
        writer.close()
    assert sum(w.done.rows for w in writers) == 6 * 60 * 37


@pytest.mark.parametrize("evict", ["random", "seen", "priority", lambda file: -file.sequence])
def test_other_policies_choose_by_what_they_say(tmp_path: Path, evict: Any) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, evict=evict, options=SMALL)
    for k in range(6):
        with store.writer(priority=(k - 3) ** 2, metadata={"k": str(k)}) as writer:
            writer.write(rows(100 * k, 100))
    files = store.files()
    assert [f.metadata["k"] for f in files] == list("012345")
    if evict == "seen":
        with BatchedDataLoaderOf(store, {4}) as loader:
            list(loader)
    gone = store.evict(to_bytes=sum(f.size_bytes for f in files) - 1)
    assert (gone.files, gone.rows) == (1, 100)
    left = [f.metadata["k"] for f in store.files()]
    if evict == "priority":
        assert left == list("01245")
    elif callable(evict):
        assert left == list("01234")
    elif evict == "seen":
        assert left == list("01235")


def test_counts_of_deliveries_stay_small_in_a_store_that_never_evicts(store: SampleStore) -> None:
    with store.writer() as writer:
        writer.write(rows(0, 10))
    with BatchedDataLoader(store, 10) as loader:
        for _ in range(2):  # the second epoch counts the first
            list(loader)
        counts = Path(store.path) / ".store" / "seen"
        with open(counts, "ab") as file:
            file.write(counts.read_bytes() * 100_000)  # as many more epochs
        list(loader)
    assert counts.stat().st_size == 16
    assert store.files()[0].epochs_seen == 100_002


class BatchedDataLoaderOf:
    """A loader over some of a store's files, which then count as seen."""

    def __init__(self, store: SampleStore, which: set[int]) -> None:
        self.loader = BatchedDataLoader(
            store.weighted(lambda arrival: float(int(arrival.file.metadata["k"]) in which)), 10
        )

    def __enter__(self) -> BatchedDataLoader:
        return self.loader

    def __exit__(self, *_: object) -> None:
        self.loader.close()


def test_a_process_without_the_function_does_not_evict(tmp_path: Path) -> None:
    SampleStore(tmp_path, schema=SCHEMA, max_bytes=100_000, evict=lambda file: file.sequence, options=SMALL)
    plain = SampleStore(tmp_path)
    with pytest.raises(StoreFullError), plain.writer(when_full="fail") as writer:
        writer.write(rows(0, 1000))
    assert plain.status().evicted_bytes == 0


def test_an_epoch_sees_one_set_of_files_and_the_next_one_what_came_since(store: SampleStore) -> None:
    with store.writer() as writer:
        writer.write(rows(0, 300))
    with BatchedDataLoader(store, 64, shuffle=True) as loader:
        seen: list[int] = []
        for number, batch in enumerate(loader):
            seen += batch["i"].tolist()
            if number == 0:
                with store.writer() as writer:
                    writer.write(rows(300, 200))
        assert sorted(seen) == list(range(300))
        first = loader.stats().growth
        assert first is not None
        assert first.new_rows == 300
        assert sorted(delivered(loader)) == list(range(500))
        growth = loader.stats().growth
        assert growth is not None
        assert (growth.new_rows, growth.gone_rows) == (200, 0)
        assert delivered(loader) != delivered(loader)
        assert loader.stats().growth is not None


def test_a_hold_ends_with_the_last_window_of_each_file(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, options=ONE)
    with store.writer() as writer:
        writer.write(rows(0, 3000))
    total = len(published(tmp_path))
    held: list[int] = []
    seen: list[int] = []
    with BatchedDataLoader(store, 50, shuffle=True, window_rows=200) as loader:
        for batch in loader:
            seen += batch["i"].tolist()
            store.evict(to_bytes=1)
            held.append(len(published(tmp_path)))
    assert sorted(seen) == list(range(3000))
    assert held[0] == total
    assert held[-1] == 0
    assert 0.4 * total < np.mean(held) < 0.6 * total


def test_break_garbage_and_close_end_holds(store: SampleStore) -> None:
    with store.writer() as writer:
        writer.write(rows(0, 1000))
    loader = BatchedDataLoader(store, 10)
    for _ in loader:
        assert store.status().readers == 1
        break
    gc.collect()
    assert store.status().readers == 0
    iterator: Iterator[Any] | None = iter(loader)
    assert store.status().held_files == len(published(store.path))
    del iterator
    gc.collect()
    assert store.status().held_files == 0
    iter(loader)
    loader.close()
    assert store.status().readers == 0


@pytest.mark.filterwarnings("ignore:.*the writer was never closed:RuntimeWarning")
def test_an_abandoned_writer_leaves_nothing(store: SampleStore) -> None:
    writer = store.writer()
    writer.write(rows(0, 100))
    assert used_bytes(store.path) > 0
    del writer
    gc.collect()
    assert used_bytes(store.path) == 0
    assert store.status().reserved_bytes == 0
    assert os.listdir(os.path.join(store.path, ".store", "writers")) == []


def test_a_batch_that_does_not_fit_leaves_the_writer_usable(store: SampleStore) -> None:
    with store.writer() as writer:
        writer.write(rows(0, 10))
        with pytest.raises((SchemaError, DataError)):
            writer.write({"x": np.zeros((3, 7), np.uint8), "i": np.arange(3)})
        writer.write(rows(10, 10))
    assert numbers(store.path) == list(range(20))


def test_a_batch_that_nearly_fills_a_file_is_not_cut(tmp_path: Path) -> None:
    goal = 100 * (256 + 8)
    store = SampleStore(tmp_path, schema=SCHEMA, options=StoreOptions(file_bytes=goal, durable=False))
    with store.writer() as writer:
        for k in range(4):
            writer.write(rows(110 * k, 110))  # an eighth more than the goal at most
            assert writer.done.rows == 110 * (k + 1)
        writer.write(rows(440, 260))
    assert [f.rows for f in store.files()] == [110] * 4 + [100, 100, 60]
    assert numbers(tmp_path) == list(range(700))


def test_a_batch_may_be_reused_after_write(store: SampleStore) -> None:
    with store.writer() as writer:
        batch = rows(0, 10)
        writer.write(batch)
        batch["i"][:] = -1
    assert numbers(store.path) == list(range(10))


def test_a_batch_may_be_reused_after_a_write_that_failed(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, max_bytes=60_000, evict="never", options=SMALL)
    writer = store.writer(when_full="fail")
    batch = rows(0, 10)
    misfit = {"x": np.zeros((3, 7), np.uint8), "i": np.arange(3)}
    with pytest.raises(SchemaError):
        writer.write(iter([batch, misfit]))
    batch["i"][:] = -1
    batch = rows(10, 290)
    with pytest.raises(StoreFullError):
        writer.write(batch)
    batch["i"][:] = -1
    SampleStore(tmp_path, max_bytes=1_000_000)
    writer.close()
    assert numbers(tmp_path) == list(range(300))


def test_an_empty_store_says_so(store: SampleStore) -> None:
    with pytest.raises(SourceError, match="no samples yet"):
        BatchedDataLoader(store, 10)
    with pytest.raises(
        TimeoutError, match=r": waited 0.01 s for 1 rows, and the store holds 0; check that its writers"
    ):
        store.wait(rows=1, timeout_s=0.01)


def test_functions_that_do_not_take_their_argument_are_refused_before_they_are_called(
    store: SampleStore, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=r"evict=.*: is called with a StoredFile, and too many positional"):
        SampleStore(tmp_path / "other", schema=SCHEMA, evict=lambda: 1)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"weights=.*: is called with an Arrival, and too many positional"):
        store.weighted(lambda: 1)  # type: ignore[arg-type, misc]
    with pytest.raises(ConfigurationError, match="timeout_s='3': expected a number of seconds"):
        store.wait(timeout_s="3")  # type: ignore[arg-type]


def test_opening_needs_a_store_or_a_schema_that_fits(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no sample store here"):
        SampleStore(tmp_path / "none")
    SampleStore(tmp_path / "one", schema=SCHEMA)
    with pytest.raises(SchemaError, match="'i'"):
        SampleStore(tmp_path / "one", schema=Schema({"x": Tensor("uint8", (256,)), "i": Scalar("int32")}))
    with pytest.raises(ConfigurationError, match="local directory"):
        SampleStore("s3://bucket/store", schema=SCHEMA)
    with pytest.raises(ConfigurationError, match="own directory"):
        SampleStore(tmp_path / "one" / ".store" / "x", schema=SCHEMA)
    assert SampleStore(tmp_path / "one").schema == SCHEMA


def test_opening_anew_changes_the_limit_for_all(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, options=SMALL)
    with store.writer() as writer:
        writer.write(rows(0, 1000))
        SampleStore(tmp_path, max_bytes=100_000)
        writer.write(rows(1000, 1000))
    assert used_bytes(tmp_path) <= 100_000
    assert store.settings.max_bytes == 100_000


def test_what_is_kept_beside_the_data_is_rebuilt_from_the_data(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, max_bytes=500_000, evict="random", options=SMALL)
    with store.writer() as writer:
        writer.write(rows(0, 1000))
    before = store.status()
    shutil.rmtree(tmp_path / ".store")
    again = SampleStore(tmp_path)
    assert again.schema == SCHEMA
    assert again.settings == store._settings
    assert (again.status().rows, again.status().bytes) == (before.rows, before.bytes)
    with again.writer() as writer:
        writer.write(rows(1000, 10))
    assert numbers(tmp_path) == list(range(1010))
    (tmp_path / ".store" / "ledger").write_bytes(b"=garbage")
    assert SampleStore(tmp_path).rows == 1010


def test_a_reservation_that_is_lost_with_the_account_is_not_released_again(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, max_bytes=100_000, options=SMALL)
    with store.writer() as writer:
        writer.write(rows(0, 10))
    writer = store.writer()
    writer.write(rows(10, 50))
    assert store.status().reserved_bytes > 0
    shutil.rmtree(tmp_path / ".store")
    again = SampleStore(tmp_path)
    writer.abort()
    assert again.status().reserved_bytes == 0


def test_files_of_others_are_never_read_counted_or_deleted(tmp_path: Path) -> None:
    other = SampleStore(tmp_path / "other", schema=SCHEMA, options=SMALL)
    with other.writer() as writer:
        writer.write(rows(9000, 100))
    store = SampleStore(tmp_path / "store", schema=SCHEMA, max_bytes=200_000, options=SMALL)
    with store.writer() as writer:
        writer.write(rows(0, 100))
    own = published(store.path)[0]
    foreign = {
        "plain.parquet": pa.table({"i": [1]}),
        os.path.basename(published(other.path)[0]): None,
        os.path.basename(own).replace("100r", "1r").replace("000000000001", "000000000000"): pa.table({"i": [2]}),
        os.path.basename(own).replace("000000000001", "000000000002"): b"PAR1 not a Parquet file",
    }
    for name, content in foreign.items():
        path = os.path.join(store.path, name)
        if isinstance(content, bytes):
            Path(path).write_bytes(content)
        elif content is None:
            os.link(published(other.path)[0], path)
        else:
            pq.write_table(content, path)
    os.makedirs(os.path.join(store.path, "nested"))
    nested = SampleStore(os.path.join(store.path, "nested"), schema=SCHEMA, options=SMALL)
    with nested.writer() as writer:
        writer.write(rows(5000, 100))
    with pytest.warns(RuntimeWarning, match="left out, and never evicted"):
        loader = BatchedDataLoader(store, 10)
    assert sorted(delivered(loader)) == list(range(100))
    with store.writer() as writer:
        writer.write(rows(100, 3000))
    store.evict(to_bytes=1)
    assert set(os.listdir(store.path)) == {*foreign, "nested", ".store"}
    assert numbers(nested.path) == list(range(5000, 5100))


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_worker_processes_are_refused_since_they_would_hold_nothing(store: SampleStore, start: str) -> None:
    from torch.utils.data import DataLoader

    from parquet_loader import (
        ParquetIterable,  # not above: sampling processes import this module, and torch takes a second
    )

    with store.writer() as writer:
        writer.write(rows(0, 100))
    with BatchedDataLoader(store, 10) as loader:
        dataset = ParquetIterable(loader)
        assert sum(len(batch["i"]) for batch in DataLoader(dataset, batch_size=None)) == 100
        with pytest.raises(UnsupportedError, match=r"over a SampleStore, .* num_workers=0"):
            next(iter(DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=start)))


def test_another_store_in_its_place_is_told_apart(store: SampleStore) -> None:
    with store.writer() as writer:
        writer.write(rows(0, 100))
    late = store.writer()
    late.write(rows(100, 10))
    with BatchedDataLoader(store, 10) as loader:
        shutil.rmtree(store.path)
        other = SampleStore(store.path, schema=SCHEMA, options=SMALL)
        for use in (lambda: iter(loader), late.flush, store.writer, store.files, store.status, store.wait):
            with pytest.raises(SourceError, match="another store has been created here"):
                use()
    with other.writer() as writer:
        writer.write(rows(0, 10))
    assert numbers(store.path) == list(range(10))


def test_a_pickled_store_opens_elsewhere(store: SampleStore) -> None:
    again = pickle.loads(pickle.dumps(store))
    with again.writer() as writer:
        writer.write(rows(0, 10))
    assert store.rows == 10


def test_a_change_of_the_policy_is_followed_by_stores_that_are_open(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, options=ONE)
    with store.writer() as writer:
        writer.write(rows(0, 200))
    assert store.evict(to_bytes=used_bytes(tmp_path) - 1).files == 1
    SampleStore(tmp_path, evict="never")
    assert store.evict(to_bytes=1).files == 0
    SampleStore(tmp_path, evict="random")
    assert store.evict(to_bytes=1).files > 0


def test_a_file_that_another_machine_has_evicted_is_not_counted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, options=ONE)
    with store.writer() as writer:
        writer.write(rows(0, 200))
    first = published(tmp_path)[0]
    unlink = os.unlink

    def gone(path: Any) -> None:
        """It was seen a moment ago, by what this machine remembers of the directory."""
        if path == first:
            raise FileNotFoundError(2, "No such file or directory", path)
        unlink(path)

    files = len(published(tmp_path))
    monkeypatch.setattr(os, "unlink", gone)
    evicted = store.evict(to_bytes=1)
    monkeypatch.undo()
    assert evicted.files == files - 1
    assert [str(file.path) for file in store.files()] == [first]
    assert store.status().bytes == os.stat(first).st_size


@pytest.mark.parametrize("mode", ["error", "append", "overwrite"])
def test_a_writer_of_plain_data_sets_does_not_add_files_that_the_store_never_reads(tmp_path: Path, mode: Any) -> None:
    SampleStore(tmp_path / "samples", schema=SCHEMA, max_bytes="1MB")
    with pytest.raises(WriteError, match=r"samples: this is a sample store, .* SampleStore\(path\).writer\(\)"):
        write_dataset(rows(0, 3), tmp_path / "samples", SCHEMA, mode=mode)
    assert write_dataset(rows(0, 3), tmp_path / "samples" / "others", SCHEMA).rows == 3
