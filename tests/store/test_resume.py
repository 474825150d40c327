"""A state over a store goes on with the very next batch while its files are there, and says what is gone where not."""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from parquet_loader import BatchedDataLoader, ResumeError, SampleStore, SourceError, WriteError
from parquet_loader.store import RecentFirst
from parquet_loader.store.files.file_lists import KEPT_LISTS
from tests.store.samples import ONE, SCHEMA, SMALL, published, rows

LOADER: dict[str, Any] = {"shuffle": True, "seed": 3, "window_rows": 100}


def write(store: SampleStore, first: int, count: int) -> None:
    with store.writer() as writer:
        writer.write(rows(first, count))


def exact(batch: dict[str, Any]) -> tuple[list[int], bytes]:
    return batch["i"].tolist(), batch["x"].numpy().tobytes()


def some_of(loader: BatchedDataLoader, count: int) -> tuple[list[Any], dict[str, Any]]:
    """The first batches of a pass, and the state behind them."""
    taken: list[Any] = []
    for batch in loader:
        taken.append(exact(batch))
        if len(taken) == count:
            break
    return taken, json.loads(json.dumps(loader.state_dict()))


@pytest.fixture
def store(tmp_path: Path) -> SampleStore:
    store = SampleStore(tmp_path / "store", schema=SCHEMA, options=SMALL)
    write(store, 0, 700)
    return store


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        pytest.param("filter", marks=pytest.mark.slow),
        "weights",
        pytest.param("default windows", marks=pytest.mark.slow),
    ],
)
def test_every_batch_of_an_epoch_is_a_place_to_go_on_in_a_store_that_has_grown(store: SampleStore, name: str) -> None:
    options = {**LOADER, "filters": pc.bit_wise_and(pc.field("i"), 3) != 0} if name == "filter" else LOADER
    options = {**options, "window_rows": None} if name == "default windows" else options
    weights = RecentFirst(half_life_epochs=1, newest=1.7, least=0.2)
    source = store.weighted(weights, seed=4) if name == "weights" else store

    def loader(source: Any, **more: Any) -> BatchedDataLoader:
        return BatchedDataLoader(source, 32, **{**options, **more})

    with loader(source) as one:
        list(one)
        write(store, 700, 150)
        states, batches = [], []
        for batch in one:
            states.append(json.loads(json.dumps(one.state_dict())))
            batches.append(exact(batch))
            if len(batches) == 3:
                write(store, 850, 300)
        following = [exact(batch) for batch in one]
    again = SampleStore(store.path)
    with loader(again.weighted(weights, seed=4) if name == "weights" else again, num_threads=1) as other:
        for delivered, state in enumerate(states, 1):
            other.load_state_dict(state)
            assert other.state_dict() == state
            resumed = [exact(batch) for batch in other]
            assert resumed == (batches[delivered:] if delivered < len(batches) else following)
    assert len(batches) < len(following) or name == "weights"
    assert all(len(json.dumps(state)) < 1500 for state in states)


def test_files_that_the_rest_of_the_epoch_needs_not_may_go(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, schema=SCHEMA, options=ONE)
    write(store, 0, 1000)
    before = set(published(tmp_path))
    with BatchedDataLoader(store, 30, **LOADER) as loader:
        batches = [exact(batch) for batch in loader]
        loader.set_epoch(0)
        taken, states = [], []
        for batch in loader:  # what a killed trainer leaves: its last state, and what others evicted meanwhile
            taken.append(exact(batch))
            states.append(loader.state_dict())
            store.evict(to_bytes=1)
            if len(taken) == 20:
                break
        write(store, 5000, 100)
    assert before - set(published(tmp_path))
    with BatchedDataLoader(SampleStore(tmp_path), 30, **LOADER) as other:
        other.load_state_dict(states[-1])
        assert taken + [exact(batch) for batch in other] == batches
        with pytest.raises(ResumeError, match="has evicted"):
            other.load_state_dict(states[0])


def test_what_is_gone_is_named_and_the_next_epoch_is_offered(store: SampleStore) -> None:
    with BatchedDataLoader(store, 32, **LOADER) as loader:
        _, state = some_of(loader, 5)
    gone = published(store.path)
    store.evict(to_bytes=1)
    write(store, 2000, 90)
    with BatchedDataLoader(SampleStore(store.path), 32, **LOADER) as other:
        before = other.state_dict()
        with pytest.raises(ResumeError) as raised:
            other.load_state_dict(state)
        text = str(raised.value)
        assert re.search(r"evicted \d+ of the files that the rest of epoch 0 needs", text)
        assert any(path in text for path in gone)
        assert "if_gone='next_epoch'" in text
        assert "store.hold(state)" in text
        assert other.state_dict() == before
        assert store.status().held_files == 0
        other.load_state_dict(state, if_gone="next_epoch")
        assert other.state_dict()["epoch"] == 1
        resumed = [i for batch in other for i in batch["i"].tolist()]
        assert sorted(resumed) == list(range(2000, 2090))
    with BatchedDataLoader(store, 32, **LOADER) as uninterrupted:
        uninterrupted.set_epoch(1)
        assert [i for batch in uninterrupted for i in batch["i"].tolist()] == resumed


def test_other_arguments_are_refused_whatever_is_gone(store: SampleStore) -> None:
    with BatchedDataLoader(store, 32, **LOADER) as loader:
        _, state = some_of(loader, 5)
    store.evict(to_bytes=1)
    write(store, 0, 100)
    with (
        BatchedDataLoader(store, 31, **LOADER) as other,
        pytest.raises(ResumeError, match="batch size: 32 in the state, 31 here"),
    ):
        other.load_state_dict(state, if_gone="next_epoch")


def test_what_is_held_on_purpose_outlives_its_trainer_until_it_is_released(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import json, os, sys
        from parquet_loader import BatchedDataLoader, SampleStore
        store = SampleStore(sys.argv[1])
        loader = BatchedDataLoader(store, 32, shuffle=True, seed=3, window_rows=100)
        for number, batch in enumerate(loader):
            if number == 4:
                state = loader.state_dict()
                store.hold(state)
                print(json.dumps(state), flush=True)
            if number == 9:
                os.kill(os.getpid(), 9)
        """
    )
    store = SampleStore(tmp_path, schema=SCHEMA, max_bytes=400_000, options=SMALL)
    write(store, 0, 700)
    with BatchedDataLoader(store, 32, **LOADER) as loader:
        expected = [exact(batch) for batch in loader]
    there = set(published(tmp_path))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(tmp_path)]
    trainer = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=100)
    assert trainer.returncode == -9, trainer.stderr
    state = json.loads(trainer.stdout)
    store = SampleStore(tmp_path)
    (held,) = store.holds()
    assert (held.epoch, held.batch, held.files, held.gone_files) == (0, 5, len(there), 0)
    status = store.status()
    assert (status.readers, status.holds, status.kept_files, status.held_files) == (0, 1, len(there), len(there))
    assert "1 holds" in str(status)
    write(store, 5000, 3000)
    assert store.evict(to_bytes=1).files > 0
    assert set(published(tmp_path)) == there
    with BatchedDataLoader(store, 32, **LOADER) as other:
        other.load_state_dict(state)
        assert [exact(batch) for batch in other] == expected[5:]
    assert store.release(state)
    assert not store.release(held)
    assert store.holds() == []
    assert store.status().kept_files == 0
    assert store.evict(to_bytes=1).files == len(there)


def test_two_holds_on_one_snapshot_end_one_by_one(store: SampleStore) -> None:
    with BatchedDataLoader(store, 32, **LOADER) as loader:
        _, first = some_of(loader, 2)
        loader.set_epoch(0)
        _, second = some_of(loader, 4)
    assert store.hold(first).snapshot == store.hold(second).snapshot
    assert store.hold(first).files == len(published(store.path))
    assert len(store.holds()) == 2
    store.release(first)
    assert store.evict(to_bytes=1).files == 0
    store.release(store.holds()[0])
    assert store.evict(to_bytes=1).files > 0


def test_recalled_files_are_held_before_they_are_read(store: SampleStore) -> None:
    with BatchedDataLoader(store, 32, **LOADER) as loader:
        _, state = some_of(loader, 3)
    other = BatchedDataLoader(store, 32, **LOADER)
    other.load_state_dict(state)
    assert store.evict(to_bytes=1).files == 0
    other.set_epoch(0)  # as trainers do at the beginning of every epoch
    iterator = iter(other)
    next(iterator)
    assert store.status().readers == 1
    del iterator
    gc.collect()
    other.load_state_dict(state)
    assert store.status().readers == 1
    del other
    gc.collect()
    assert store.status().readers == 0


def test_deliveries_of_an_epoch_that_was_resumed_are_counted_once(store: SampleStore) -> None:
    with BatchedDataLoader(store, 32, **LOADER) as loader:
        _, state = some_of(loader, 12)
    with BatchedDataLoader(store, 32, **LOADER) as other:
        other.load_state_dict(state)
        list(other)
    store.recover()
    assert {file.times_sampled for file in store.files()} == {1}


def test_between_epochs_a_state_goes_on_with_what_is_there_then(store: SampleStore) -> None:
    source = store.weighted(RecentFirst(half_life_epochs=1, newest=1.5, least=0.1), seed=1)
    with BatchedDataLoader(source, 32, **LOADER) as loader:
        list(loader)
        state = loader.state_dict()
        assert (state["epoch"], state["batch"]) == (1, 0)
        assert "files" not in state
        write(store, 700, 100)
        expected = [exact(batch) for batch in loader]
        assert loader.stats().growth is not None
        growth = loader.stats().growth
    with BatchedDataLoader(source, 32, **LOADER) as other:
        other.load_state_dict(json.loads(json.dumps(state)))
        assert [exact(batch) for batch in other] == expected  # the ages of files in epochs included
        assert other.stats().growth == growth
        assert growth is not None
        assert growth.new_rows == 100


def test_a_list_that_is_kept_no_longer_is_told_apart(store: SampleStore) -> None:
    with BatchedDataLoader(store, 32, **LOADER) as loader:
        batches, state = some_of(loader, 5)
    folder = Path(store.path) / ".store" / "snapshots"
    for name in os.listdir(folder):
        (folder / name).unlink()
    with pytest.raises(ResumeError, match="does not keep the state's list"):
        store.hold(state)
    with BatchedDataLoader(store, 32, **LOADER) as other:
        other.load_state_dict(state)  # the store has the same files, so nothing is missing
        rest = [exact(batch) for batch in other]
        other.set_epoch(0)
        assert [exact(batch) for batch in other] == batches + rest
        for name in os.listdir(folder):
            (folder / name).unlink()
        write(store, 700, 10)
        with pytest.raises(ResumeError, match="no longer has the list of the state's files"):
            other.load_state_dict(state)
        other.load_state_dict(state, if_gone="next_epoch")
        assert other.state_dict()["epoch"] == 1


def test_only_the_newest_lists_and_those_of_holds_are_kept(store: SampleStore) -> None:
    folder, newest = Path(store.path) / ".store" / "snapshots", list[str]()
    with BatchedDataLoader(store, 32, **LOADER) as loader:
        _, first = some_of(loader, 2)
        held = store.hold(first)
        os.utime(folder / held.snapshot, (0, 0))
        for number in range(KEPT_LISTS + 5):  # more lists, of earlier files
            path = shutil.copy(folder / held.snapshot, folder / f"{number:0{len(held.snapshot)}x}")
            os.utime(path, (1 + number, 1 + number))
        for number in range(3):
            write(store, 700 + number, 1)
            newest.append(some_of(loader, 1)[1]["snapshot"])
    kept = set(os.listdir(folder))
    assert len(kept) == KEPT_LISTS + 1
    assert {held.snapshot, *newest} < kept
    assert {f"{number:0{len(held.snapshot)}x}" for number in range(8)}.isdisjoint(kept)


def test_lists_are_kept_in_order_even_if_the_clock_was_set_back(store: SampleStore) -> None:
    folder = Path(store.path) / ".store" / "snapshots"
    later = 4 * 10**9  # the time of lists that were written before the clock was set back
    for number in range(KEPT_LISTS):
        (folder / f"{number:032x}").touch()
        os.utime(folder / f"{number:032x}", (later + number, later + number))
    states = list[dict[str, Any]]()
    with BatchedDataLoader(store, 32, **LOADER) as loader:
        for number in range(3):
            states.append(some_of(loader, 1)[1])
            write(store, 700 + number, 1)
    assert {state["snapshot"] for state in states} < set(os.listdir(folder))
    assert len(os.listdir(folder)) == KEPT_LISTS


def test_damage_and_states_of_others_are_errors_that_say_so(store: SampleStore, tmp_path: Path) -> None:
    with BatchedDataLoader(store, 32, **LOADER) as loader:
        fresh = loader.state_dict()
        _, state = some_of(loader, 2)
    none: Any = None
    for wrong in (none, {}, fresh, {**state, "snapshot": "../../x"}, {**state, "epoch": -1}):
        with pytest.raises(ResumeError, match="names no snapshot of a store"):
            store.hold(wrong)
    path = Path(store.path) / ".store" / "snapshots" / state["snapshot"]
    whole = path.read_bytes()
    for damaged in (b"", whole[:100], whole[:-40], b"\0" * len(whole)):
        path.write_bytes(damaged)
        with BatchedDataLoader(store, 32, **LOADER) as other, pytest.raises(SourceError, match="damaged"):
            other.load_state_dict(state)
        assert store.status().readers == 0
    (path.parent / f"{state['snapshot']}.0123456789abcdef.tmp").write_bytes(b"half")
    SampleStore(store.path)
    assert not list(path.parent.glob("*.tmp"))


def test_in_a_read_only_place_a_state_still_names_what_it_saw(
    store: SampleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: access(path, mode) and not mode & os.W_OK)
    read_only = SampleStore(store.path)
    with BatchedDataLoader(read_only, 32, **LOADER) as loader:
        batches, state = some_of(loader, 5)
        with pytest.raises(WriteError, match="read-only"):
            read_only.hold(state)
        loader.load_state_dict(state)
        rest = [exact(batch) for batch in loader]
        loader.set_epoch(0)
        assert [exact(batch) for batch in loader] == batches + rest
