"""Stopping anywhere and going on: the joined stream is the one that nothing interrupted, bit for bit."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    LoaderStateError,
    OutputOptions,
    ResumeError,
    Scalar,
    Schema,
    SchemaError,
    ShardOptions,
    SourceError,
    Text,
    split,
    split_rows,
)
from parquet_loader.common.distributed import Shard
from parquet_loader.dataset import row_sizes
from parquet_loader.engine import Engine
from parquet_loader.source import list_files
from parquet_loader.source.footer_reading import read_footer
from parquet_loader.source.opening import open_snapshot
from parquet_loader.window import Arenas
from tests.support import oracle
from tests.support.datasets import Layout, write_layout, write_numbered

KINDS = ("float_null", "int8", "text", "wide")
SHAPES = {
    "small row groups": ((20, 7), (10, 1), (), (3, 0, 16)),
    "row groups larger than windows": ((75,),),
}
Options = dict[str, Any]


def exact(batch: Mapping[str, Any]) -> dict[str, oracle.Column]:
    return {name: oracle.column_of(value) for name, value in batch.items()}


@pytest.fixture(scope="module", params=list(SHAPES))
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("data"))
    write_layout(Layout(SHAPES[request.param], KINDS, seed=4), folder)
    return folder


OPTIONS: dict[str, Options] = {
    "shuffled": {"shuffle": True, "window_rows": 24},
    "in order": {"window_rows": 24},
    "windows of one batch": {"shuffle": True, "window_rows": 8},
    "drop_last": {"shuffle": True, "window_rows": 30, "drop_last": True},
    "filter": {"shuffle": True, "window_rows": 24, "filters": pc.field("int8") > 0},
    "transform": {
        "shuffle": True,
        "window_rows": 24,
        "transform": lambda columns, rng: {**columns, "noise": rng.integers(0, 2**60, len(columns["id"]))},
    },
    "one of three ranks": {"shuffle": True, "window_rows": 20, "shard": Shard(1, 3)},
    "logical shards": {
        "shuffle": True,
        "window_rows": 24,
        "shard": Shard(0, 2),
        "shard_options": ShardOptions(logical_shards=8),
    },
}


@pytest.mark.parametrize("name", OPTIONS)
def test_resuming_at_every_batch_of_an_epoch_continues_the_stream_bit_for_bit(root: str, name: str) -> None:
    with BatchedDataLoader(root, 8, seed=5, **OPTIONS[name]) as loader:
        loader.set_epoch(2)
        states, batches = [], []
        for batch in loader:
            states.append(json.loads(json.dumps(loader.state_dict())))
            batches.append(exact(batch))
        following = [exact(batch) for batch in loader]
        assert len(batches) == len(loader)
    with BatchedDataLoader(root, 8, seed=5, num_threads=1, **OPTIONS[name]) as other:
        for delivered, state in enumerate(states, 1):
            other.load_state_dict(state)
            assert other.state_dict() == state
            resumed = [exact(batch) for batch in other]
            assert resumed == (batches[delivered:] if delivered < len(batches) else following)
            assert other.state_dict()["batch"] == 0


@pytest.mark.parametrize("name", ["shuffled", "logical shards"])
def test_seeking_goes_to_any_batch_of_any_epoch(root: str, name: str) -> None:
    with BatchedDataLoader(root, 8, **OPTIONS[name]) as loader:
        epochs = [[exact(batch) for batch in loader] for _ in range(3)]
        for epoch in (2, 0, 1):
            for number in range(0, len(loader), 4):
                loader.seek(epoch, number)
                iterator = iter(loader)
                assert exact(next(iterator)) == epochs[epoch][number]
                del iterator
        with pytest.raises(ConfigurationError, match="batch=1000"):
            loader.seek(0, 1000)


@pytest.mark.parametrize("transform", [None, lambda columns, rng: columns])
def test_a_new_loader_begins_in_any_window_the_last_one_too(root: str, transform: Any) -> None:
    options: Options = {"shuffle": True, "window_rows": 16, "transform": transform}
    with BatchedDataLoader(root, 8, **options) as loader:
        whole = [exact(batch) for batch in loader]
    for first in range(len(whole)):
        with BatchedDataLoader(root, 8, **options) as loader:  # in its first pass, which waits for a second window
            loader.seek(0, first)
            assert [exact(batch) for batch in loader] == whole[first:]


@pytest.mark.parametrize("rem", [pytest.param("drop", marks=pytest.mark.slow), "pad"])
def test_logical_shards_give_the_same_global_batches_on_any_number_of_ranks(root: str, rem: Any) -> None:
    def global_batches(ranks: int, state: dict[str, Any] | None) -> tuple[list[list[int]], dict[str, Any]]:
        batches: list[list[int]] = []
        after: list[dict[str, Any]] = []
        for rank in range(ranks):
            options = ShardOptions(rem, logical_shards=8)
            with BatchedDataLoader(
                root, 16 // ranks, shuffle=True, window_rows=32, shard=Shard(rank, ranks), shard_options=options
            ) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                own = []
                for number, batch in enumerate(loader):
                    own.append(batch["id"].tolist())
                    if number == 1:
                        after.append(loader.state_dict())
            batches = [a + b for a, b in zip(batches, own, strict=True)] if batches else own
        assert all(a == after[0] for a in after)
        return [sorted(batch) for batch in batches], (after or [{}])[0]

    reference, state = global_batches(4, None)
    assert state
    for ranks in (1, 2, 8):
        assert global_batches(ranks, None)[0] == reference
        assert global_batches(ranks, state)[0] == reference[2:]


# ---- what a state is ----------------------------------------------------------------------------------------------


def test_a_state_counts_batches_delivered_and_not_those_read_ahead(root: str) -> None:
    with BatchedDataLoader(root, 8, shuffle=True) as loader:
        assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (0, 0)
        iterator = iter(loader)
        for number in range(1, 4):
            next(iterator)
            assert loader.state_dict()["batch"] == number
        assert loader.state_dict(batches=1)["batch"] == 1
        loader.set_epoch(7)
        assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (0, 3)
        del iterator
        assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (7, 0)
        for number, _ in enumerate(loader):
            if number == 4:
                break
        assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (7, 5)
        assert loader.state_dict(batches=len(loader))["epoch"] == 8
        with pytest.raises(ConfigurationError, match="batches=1000"):
            loader.state_dict(batches=1000)
        next(iter(loader))
        assert loader.state_dict()["epoch"] == 8


@pytest.mark.parametrize("integer", [np.int64, np.uint16])
def test_integers_of_numpy_give_the_state_of_python_integers(root: str, integer: Any) -> None:
    states = []
    for kind in (int, integer):
        filters = split("id", 0, 0.9, seed=kind(7)) & split_rows(0, 0.9, seed=kind(8), unit=kind(3))
        options = ShardOptions(logical_shards=kind(4), fewest_ranks=kind(2), remainder="pad")
        with BatchedDataLoader(
            root,
            kind(4),
            shuffle=True,
            seed=kind(5),
            window_rows=kind(16),
            filters=filters,
            shard=Shard(kind(1), kind(2)),
            shard_options=options,
        ) as loader:
            loader.seek(kind(2), kind(1))
            sought = loader.state_dict()
            loader.set_epoch(kind(3))
            states.append(json.dumps([sought, loader.state_dict()]))
    assert states[0] == states[1]


def test_setting_the_epoch_of_the_state_stays_at_its_batch(root: str) -> None:
    """Trainers call `set_epoch` at the beginning of every epoch, the one that is resumed among them."""
    with BatchedDataLoader(root, 8, shuffle=True) as loader:
        loader.seek(3, 2)
        loader.set_epoch(3)
        assert loader.state_dict()["batch"] == 2
        loader.set_epoch(4)
        loader.set_epoch(3)
        assert loader.state_dict()["batch"] == 0


def test_taking_a_state_is_a_few_function_calls(root: str) -> None:
    calls: list[str] = []

    def count(frame: Any, event: str, _: Any) -> None:
        if event in ("call", "c_call"):
            calls.append(frame.f_code.co_qualname)

    with BatchedDataLoader(root, 8, shuffle=True, filters=pc.field("int8") > 0) as loader:
        iterator = iter(loader)
        next(iterator)
        loader.state_dict()
        sys.setprofile(count)
        try:
            loader.state_dict()
        finally:
            sys.setprofile(None)
        assert 0 < len(calls) < 100, calls  # some microseconds, as often as a trainer likes
        del iterator


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_state_of_ten_thousand_files_is_small(tmp_path: Path) -> None:
    table = pa.table({f"column_{n}": [n] for n in range(3)})
    pq.write_table(table, tmp_path / "first.parquet")
    data = (tmp_path / "first.parquet").read_bytes()
    for number in range(10_000):
        (tmp_path / f"part-{number:05}.parquet").write_bytes(data)
    with BatchedDataLoader(str(tmp_path), 16, shuffle=True, filters=pc.field("column_0") == 0) as loader:
        assert len(json.dumps(loader.state_dict())) <= 2048


def test_resuming_reads_two_windows_at_most(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((50,) * 40,), ("wide",))
    with BatchedDataLoader(str(tmp_path), 40, shuffle=True, window_rows=200) as loader:
        plan = loader._plan(0)
        for batch in range(len(loader)):
            loader.seek(0, batch)
            engine = Engine(
                loader._dataset, plan, loader._options,
                first_batch=batch, allocator=Arenas(0), staging=Arenas(0), is_first=False,
            )  # fmt: skip
            engine.start()
            rows = 0
            while not rows:
                window = engine.next_window()
                assert window is not None
                rows = window.rows
            read = engine.usage.row_groups
            engine.close()
            assert read <= 3 * 200 // 50  # two windows, and the one that is made ahead


@pytest.fixture
def states(tmp_path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    write_numbered(str(tmp_path), ((50, 20), (30,)), ("double", "text"))
    with BatchedDataLoader(str(tmp_path), 8, shuffle=True, window_rows=40) as loader:
        yield str(tmp_path), loader.state_dict()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"batch_size": 16}, "batch size: 8 in the state, 16 here"),
        ({"seed": 1}, "seed: 0 in the state, 1 here"),
        ({"shuffle": False}, "shuffle"),
        ({"window_rows": 60}, "window rows: 40 in the state, 60 here"),
        ({"drop_last": True}, "drop last"),
        ({"columns": ["id", "text"]}, "columns: 'id, double, text' in the state, 'id, text' here"),
        ({"filters": pc.field("id") < 90}, "filters: None in the state"),
        ({"shard": Shard(0, 2)}, "ranks: 1 in the state, 2 here"),
        ({"shard": Shard(0, 4)}, "it was (only a state of ShardOptions(logical_shards=...) resumes on another number"),
        ({"shard_options": ShardOptions(logical_shards=4)}, "logical shards"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_state_of_other_arguments_is_refused(
    states: tuple[str, dict[str, Any]], change: dict[str, Any], named: str
) -> None:
    root, state = states
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "window_rows": 40, **change}
    with BatchedDataLoader(root, **options) as loader, pytest.raises(ResumeError) as caught:
        loader.load_state_dict(state)
    assert named in str(caught.value)


def test_a_state_as_text_is_refused_with_a_hint(states: tuple[str, dict[str, Any]]) -> None:
    root, state = states
    with BatchedDataLoader(root, 8) as loader, pytest.raises(ResumeError, match=r"pass json\.loads of this text"):
        loader.load_state_dict(json.dumps(state))  # type: ignore[arg-type]


def test_a_state_of_other_files_is_refused(states: tuple[str, dict[str, Any]]) -> None:
    root, state = states
    write_numbered(f"{root}/more", ((5,),), ("double", "text"))
    with (
        BatchedDataLoader(root, 8, shuffle=True, window_rows=40) as loader,
        pytest.raises(ResumeError, match=r"files: '2 files, 3 row groups, 100 rows .* in the state, '3 files"),
    ):
        loader.load_state_dict(state)


@pytest.mark.parametrize("state", [None, {}, {"version": 99}, [], {"version": 1}, "text"], ids=repr)
def test_what_is_no_state_is_refused(states: tuple[str, dict[str, Any]], state: Any) -> None:
    with BatchedDataLoader(states[0], 8) as loader, pytest.raises(ResumeError):
        loader.load_state_dict(state)


@pytest.mark.parametrize(("name", "value"), [("epoch", -1), ("batch", "3"), ("batch", 10**6), ("epoch", None)])
def test_a_state_with_a_place_that_is_none_is_refused(
    states: tuple[str, dict[str, Any]], name: str, value: object
) -> None:
    root, state = states
    with (
        BatchedDataLoader(root, 8, shuffle=True, window_rows=40) as loader,
        pytest.raises(ResumeError, match=f"the state's {name}"),
    ):
        loader.load_state_dict({**state, name: value})


def test_loading_a_state_ends_the_iteration_under_way(states: tuple[str, dict[str, Any]]) -> None:
    root, state = states
    with BatchedDataLoader(root, 8, shuffle=True, window_rows=40) as loader:
        iterator = iter(loader)
        next(iterator)
        loader.load_state_dict(state)
        with pytest.raises(LoaderStateError, match="epoch 0, batch 1: load_state_dict was called"):
            next(iterator)
        assert loader.state_dict() == state


def test_a_pass_of_which_no_batch_was_asked_counts_for_nothing(root: str) -> None:
    """Trainers make iterators that they never use, and call `set_epoch` between an iterator and its first batch."""
    with BatchedDataLoader(root, 8, shuffle=True) as loader:
        epochs = [[exact(batch) for batch in loader] for _ in range(3)]
        loader.set_epoch(0)
        held = [iter(loader), iter(loader)]
        assert exact(next(held[1])) == epochs[0][0]
        with pytest.raises(LoaderStateError, match=r"iter\(loader\) was called again"):
            next(held[0])
        loader.reset()
        assert [exact(batch) for batch in loader] == epochs[1]
        loader.load_state_dict(loader.state_dict(batches=3))
        held = [iter(loader)]
        assert loader.state_dict()["batch"] == 3
        assert [exact(batch) for batch in loader] == epochs[1][3:]
        held = [iter(loader)]
        loader.set_epoch(2)
        assert [exact(batch) for batch in loader] == epochs[2]


def test_who_counts_batches_need_not_ask_for_one_more(root: str) -> None:
    with BatchedDataLoader(root, 8, shuffle=True) as loader:
        epochs = [[exact(batch) for batch in loader] for _ in range(3)]
        loader.set_epoch(0)
        held = []
        for epoch in epochs:
            held.append(iter(loader))
            assert [exact(next(held[-1])) for _ in range(len(loader))] == epoch
            assert loader.state_dict()["batch"] == 0
        assert [next(iterator, None) for iterator in held] == [None, None, None]


def test_the_window_of_the_state_is_taken_over_under_another_memory_limit(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((3000,) * 20,), ("wide",))
    with BatchedDataLoader(str(tmp_path), 64, shuffle=True, memory_limit="40MiB") as loader:
        epoch = [batch["id"].tolist() for batch in loader]
        state = loader.state_dict(batches=len(epoch) // 2)
        state["epoch"] = 0
        window_rows = loader.window_rows
    with BatchedDataLoader(str(tmp_path), 64, shuffle=True, memory_limit="60MiB") as loader:
        assert loader.window_rows > window_rows
        loader.load_state_dict(state)
        assert loader.window_rows == window_rows
        assert [batch["id"].tolist() for batch in loader] == epoch[len(epoch) // 2 :]


@pytest.mark.parametrize("window_rows", [None, 50_000])
def test_the_row_groups_that_share_a_window_are_those_of_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window_rows: int | None
) -> None:
    """An earlier release took open row groups for larger, so that fewer shared a window."""
    pq.write_table(pa.table({"id": np.arange(800_000)}), tmp_path / "a.parquet", row_group_size=100_000)
    options: Options = {"shuffle": True, "window_rows": window_rows, "memory_limit": "24MiB"}
    with monkeypatch.context() as earlier:
        cursor_bytes = row_sizes._cursor_bytes
        earlier.setattr(row_sizes, "_cursor_bytes", lambda *given: 2 * cursor_bytes(*given))
        with BatchedDataLoader(tmp_path, 640, **options) as loader:
            open_row_groups = loader.plan().open_row_groups
            epoch = [batch["id"].tolist() for batch in loader]
            state = {**loader.state_dict(batches=100), "epoch": 0}
    with BatchedDataLoader(tmp_path, 640, **options) as loader:
        assert loader.plan().open_row_groups > open_row_groups
        with pytest.raises(ResumeError, match="open row groups: 17 in the state"):
            loader.load_state_dict({**state, "open_row_groups": 17})
        loader.load_state_dict(state)
        assert loader.plan().open_row_groups == open_row_groups
        assert [batch["id"].tolist() for batch in loader] == epoch[100:]


def test_a_loader_travels_by_pickle_with_its_place_and_its_snapshot(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((50, 20), (30,)), ("double", "text"))
    with BatchedDataLoader(str(tmp_path), 8, shuffle=True, filters=pc.field("id") < 77) as loader:
        loader.seek(2, 3)
        copy = pickle.loads(pickle.dumps(loader))
        write_numbered(str(tmp_path / "later"), ((50,),), ("double", "text"))
        with copy:
            assert copy.state_dict() == loader.state_dict()
            assert [exact(batch) for batch in copy] == [exact(batch) for batch in loader]
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(LoaderStateError):
            pickle.dumps(loader)
        del iterator


def test_a_loader_that_has_read_travels_without_addresses_in_memory(tmp_path: Path) -> None:
    texts = [None if i % 3 else f"text {i}" for i in range(90)]
    pq.write_table(pa.table({"id": range(90), "text": texts}), tmp_path / "a.parquet", row_group_size=30)
    schema = Schema({"id": Scalar("int64"), "text": Text(null="mask")})
    with BatchedDataLoader(tmp_path, 8, schema=schema) as loader:
        expected = [exact(batch) for batch in loader]
        packed = pickle.dumps(loader)
    plans = [loader._dataset.reader.chunks._plans]
    assert pickle.loads(pickle.dumps(plans))[0]._entries == {}  # or the next lines may end the process
    del loader, plans
    with pickle.loads(packed) as copy:
        assert [exact(batch) for batch in copy] == expected


def numbers_of(loader: BatchedDataLoader) -> list[list[int]]:
    return [batch["n"].tolist() for batch in loader]


def test_a_refused_state_leaves_the_order_as_it_was(tmp_path: Path) -> None:
    write_numbered(str(tmp_path), SHAPES["small row groups"])
    numbers = OutputOptions(row_numbers="n")
    with BatchedDataLoader(str(tmp_path), 8, shuffle=True, columns=["id"], output_options=numbers) as loader:
        now, state = numbers_of(loader), loader.state_dict()
        for order in ("philox-sort-1 lanes-99", None, 3):
            with pytest.raises(ResumeError, match=f"order: {order!r} in the state"):
                loader.load_state_dict({**state, "order": order})
        loader.set_epoch(0)
        assert numbers_of(loader) == now


@pytest.mark.parametrize("window_rows", [16, None])
def test_row_numbers_lead_back_to_file_row_group_and_row(root: str, window_rows: int | None) -> None:
    options: Options = {"shuffle": True, "window_rows": window_rows, "filters": pc.field("int8") > 0}
    output = OutputOptions(row_numbers="number")
    with BatchedDataLoader(root, 8, columns=["id"], output_options=output, **options) as loader:
        assert list(loader.schema) == ["id", "number"]
        seen = 0
        for batch in loader:
            for row_id, (file, row_group, row) in zip(
                batch["id"].tolist(), loader.locate(batch["number"]), strict=True
            ):
                assert pq.ParquetFile(file).read_row_group(row_group)["id"][row].as_py() == row_id
                seen += 1
        assert seen > 10
        with pytest.raises(IndexError, match="row number 1000000"):
            loader.locate([1_000_000])


def test_row_numbers_need_a_name_of_their_own(root: str) -> None:
    with pytest.raises(SchemaError, match="row_numbers='id'"):
        BatchedDataLoader(root, 8, output_options=OutputOptions(row_numbers="id"))


# ---- which files --------------------------------------------------------------------------------------------------


def write_once(path: Path, values: list[int]) -> None:
    pq.write_table(pa.table({"x": pa.array(values, pa.int64())}), path, compression="none", use_dictionary=False)


@pytest.mark.parametrize("several", [False, True])
def test_a_file_rewritten_with_the_same_size_and_rows_is_noticed(tmp_path: Path, several: bool) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3 if several else 1):
        write_once(folder / f"{number}.parquet", list(range(100)))
    with BatchedDataLoader(str(folder), 8) as loader:
        next(iter(loader))
        state = loader.state_dict()
        copy = tmp_path / "elsewhere"
        shutil.copytree(folder, copy)
        before = (folder / "0.parquet").stat()
        write_once(folder / "0.parquet", [*range(99), 7_000_000])
        os.utime(folder / "0.parquet", ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (folder / "0.parquet").stat().st_size == before.st_size
    with BatchedDataLoader(str(copy), 8) as loader:
        loader.load_state_dict(state)
    with BatchedDataLoader(str(folder), 8) as loader, pytest.raises(ResumeError, match="files: '"):
        loader.load_state_dict(state)


def test_a_footer_read_again_has_to_be_the_one_read_first(tmp_path: Path) -> None:
    """On object stores nothing else tells that a file was replaced between two passes."""
    write_once(tmp_path / "0.parquet", list(range(100)))
    before = (tmp_path / "0.parquet").stat()
    snapshot = open_snapshot(str(tmp_path), pafs.SubTreeFileSystem("/", pafs.LocalFileSystem()))
    write_once(tmp_path / "0.parquet", [*range(99), 7_000_000])
    os.utime(tmp_path / "0.parquet", ns=(before.st_atime_ns, before.st_mtime_ns))
    for travelled in (snapshot, pickle.loads(pickle.dumps(snapshot))):
        travelled.footers.clear()
        with pytest.raises(SourceError, match="the file has changed since its footer was read first"):
            travelled.footers.get(0)


def test_footers_of_any_size_are_read_whole(tmp_path: Path) -> None:
    wide = pa.table({f"column_{n}": [n] for n in range(2000)})
    pq.write_table(wide, tmp_path / "wide.parquet")
    pq.write_table(pa.table({"x": pa.array([], pa.int8())}), tmp_path / "small.parquet")
    for name in ("wide", "small"):
        path = str(tmp_path / f"{name}.parquet")
        footer = read_footer(pafs.LocalFileSystem(), list_files(path)[1][0])
        assert footer.parsed.arrow.equals(pq.read_metadata(path))
        raw = (tmp_path / f"{name}.parquet").read_bytes()
        length = int.from_bytes(raw[-8:-4], "little")
        assert (length > 2**16) == (name == "wide")
        assert footer.digest == int.from_bytes(hashlib.blake2b(raw[-8 - length :], digest_size=8).digest(), "little")
