"""Petastorm's names on this library: the same values, with reliable order, shuffling and sharding."""

from __future__ import annotations

import gc
import io
import json
import os
import pickle
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from decimal import Decimal
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
import torch

from parquet_loader import BatchedDataLoader as OurLoader
from parquet_loader import WriteOptions, split, split_rows
from parquet_loader.errors import ConfigurationError, DataError, SchemaError, SystemReadError, TransformError
from parquet_loader.petastorm import (
    NoDataAvailableError,
    TransformSpec,
    copy_dataset,
    make_batch_reader,
    make_reader,
    print_dataset,
)
from parquet_loader.petastorm.cache import LocalDiskCache
from parquet_loader.petastorm.codecs import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    NdarrayCodec,
    ScalarCodec,
)
from parquet_loader.petastorm.errors import DecodeFieldError, PetastormMetadataError
from parquet_loader.petastorm.etl.dataset_metadata import (
    get_schema_from_dataset_url,
    write_metadata,
)
from parquet_loader.petastorm.etl.pickled import dump_indexes, dump_unischema
from parquet_loader.petastorm.etl.reading.copy_dataset import _slices, target_schema
from parquet_loader.petastorm.etl.reading.dataset import RowGroups
from parquet_loader.petastorm.etl.reading.decoding import decode_column
from parquet_loader.petastorm.etl.rowgroup_indexers import FieldNotNullIndexer, SingleFieldIndexer
from parquet_loader.petastorm.etl.rowgroup_indexing import build_rowgroup_index, get_row_group_indexes
from parquet_loader.petastorm.generator import generate_datapoint
from parquet_loader.petastorm.ngram import NGram
from parquet_loader.petastorm.predicates import (
    in_intersection,
    in_lambda,
    in_negate,
    in_pseudorandom_split,
    in_reduce,
    in_set,
)
from parquet_loader.petastorm.pytorch import (
    BatchedDataLoader,
    DataLoader,
    InMemBatchedDataLoader,
    decimal_friendly_collate,
)
from parquet_loader.petastorm.selectors import IntersectIndexSelector, SingleIndexSelector, UnionIndexSelector
from parquet_loader.petastorm.test_util.reader_mock import ReaderMock, schema_data_generator_example
from parquet_loader.petastorm.transform import edit_field
from parquet_loader.petastorm.unischema import Unischema, UnischemaField, encode_row
from parquet_loader.petastorm.weighted_sampling_reader import WeightedSamplingReader
from parquet_loader.source import declared_unischema, schema_of
from parquet_loader.source.unischema.metadata_files import ROW_GROUPS_KEY, UNISCHEMA_KEY
from parquet_loader.source.unischema.records import SparkType, read_indexes, read_unischema
from tests.support import petastorm_oracle as oracle
from tests.support.examples import grid

EVERYTHING = f"file://{oracle.EVERYTHING}"
SERIES = f"file://{oracle.SERIES}"
PLAIN = f"file://{oracle.PLAIN}"
IN_ORDER: dict[str, Any] = {"shuffle_row_groups": False, "workers_count": 2}


def ids(reader: Any) -> list[int]:
    return [int(row.id) for row in reader]


def batch_ids(reader: Any) -> list[int]:
    return [int(n) for batch in reader for n in batch.id]


# -- values --


@pytest.mark.parametrize("pool", ["thread", "dummy", "process"])
def test_rows_are_those_that_petastorm_reads(pool: str) -> None:
    with make_reader(EVERYTHING, reader_pool_type=pool, **IN_ORDER) as reader:
        found = [row._asdict() for row in reader]
    assert len(found) == oracle.ROWS
    for row, wanted in zip(found, oracle.rows(), strict=True):
        assert set(row) == set(wanted)
        for name, value in wanted.items():
            oracle.assert_same(row[name], value, f"row {wanted['id']}, {name}")


def test_batches_are_those_that_petastorm_reads() -> None:
    with make_batch_reader(PLAIN, **IN_ORDER) as reader:
        found = [batch._asdict() for batch in reader]
    wanted = oracle.value_of(oracle.expected()["plain"])
    for batch, expected in zip(found, wanted, strict=True):
        assert set(batch) == set(expected)
        for name, value in expected.items():
            oracle.assert_same(batch[name], value, name)
            assert batch[name].flags.writeable


def test_n_grams_are_those_that_petastorm_forms() -> None:
    for overlap, wanted in zip((True, False), oracle.expected()["ngrams"], strict=True):
        fields: dict[int, list[Any]] = {-1: ["ts", "vector"], 0: ["ts", "value"], 1: ["ts"]}
        with make_reader(SERIES, schema_fields=NGram(fields, 10, "ts", overlap), **IN_ORDER) as reader:
            found = list(reader)
        assert len(found) == len(wanted)
        for gram, expected in zip(found, wanted, strict=True):
            for step, row in expected.items():
                for name, value in row.items():
                    oracle.assert_same(getattr(gram[int(step)], name), oracle.value_of(value), f"{step} {name}")


PREDICATES = {
    "in_set": in_set({3, 17, 99}, "id"),
    "in_set_partition": in_set({"p_1"}, "part"),
    "in_intersection": in_intersection(["n1é"], "names"),
    "in_lambda": in_lambda(["id"], lambda number: number % 5 == 2),
    "in_lambda_state": in_lambda(["id"], lambda number, most: number < most, 4),
    "in_negate": in_negate(in_set({1}, "id")),
    "in_reduce": in_reduce([in_set({1, 2}, "id"), in_set({2}, "id")], all),
    "in_pseudorandom_split_0": in_pseudorandom_split([0.5, 0.3, 0.2], 0, "id"),
    "in_pseudorandom_split_1": in_pseudorandom_split([0.5, 0.3, 0.2], 1, "id"),
    "in_pseudorandom_split_2": in_pseudorandom_split([0.5, 0.3, 0.2], 2, "id"),
}


@pytest.mark.parametrize("name", PREDICATES)
def test_predicates_choose_the_rows_that_they_choose_in_petastorm(name: str) -> None:
    with make_reader(EVERYTHING, schema_fields=["id"], predicate=PREDICATES[name], **IN_ORDER) as reader:
        assert ids(reader) == oracle.expected()["everything"]["predicates"][name]


SELECTORS = {
    "id": SingleIndexSelector("by_id", [3, 20]),
    "sensor": SingleIndexSelector("by_sensor", ["sensor1"]),
    "intersection": IntersectIndexSelector(
        [SingleIndexSelector("by_id", [3]), SingleIndexSelector("by_part", ["p_0"])]
    ),
    "union": UnionIndexSelector([SingleIndexSelector("by_id", [3]), SingleIndexSelector("by_id", [23])]),
    "not_null": SingleIndexSelector("has_decimal", [None]),
}


@pytest.mark.parametrize("name", SELECTORS)
def test_selectors_choose_the_row_groups_that_they_choose_in_petastorm(name: str) -> None:
    with make_reader(EVERYTHING, schema_fields=["id"], rowgroup_selector=SELECTORS[name], **IN_ORDER) as reader:
        assert ids(reader) == oracle.expected()["everything"]["selectors"][name]


def test_shards_hold_the_rows_that_they_hold_in_petastorm_whatever_the_seed() -> None:
    for seed in (None, 0, 3):
        for shard, wanted in enumerate(oracle.expected()["everything"]["shards"]):
            with make_reader(EVERYTHING, schema_fields=["id"], cur_shard=shard, shard_count=2, seed=seed) as reader:
                assert sorted(ids(reader)) == wanted


# -- order --


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_the_seed_determines_the_order_and_threads_do_not(workers: int) -> None:
    options: dict[str, Any] = {"schema_fields": ["id"], "seed": 5, "shuffle_rows": True, "num_epochs": 3}
    with make_reader(EVERYTHING, reader_pool_type="dummy", **options) as reader:
        wanted = ids(reader)
    with make_reader(EVERYTHING, workers_count=workers, **options) as reader:
        assert ids(reader) == wanted
    assert sorted(wanted) == sorted(list(range(24)) * 3)


def test_every_epoch_has_an_order_of_its_own_also_after_reset() -> None:
    with make_reader(EVERYTHING, schema_fields=["id"], seed=0, shuffle_rows=True, num_epochs=3, workers_count=2) as r:
        orders = _passes(ids(r))
        r.reset()
        orders += _passes(ids(r))
    assert len({tuple(order) for order in orders}) == 6
    assert all(sorted(order) == list(range(24)) for order in orders)


def _passes(numbers: list[int]) -> list[list[int]]:
    return [numbers[start : start + 24] for start in range(0, len(numbers), 24)]


@pytest.mark.parametrize("seed", [None, 1])
def test_shuffled_rows_stay_whole_with_a_predicate(seed: int | None) -> None:
    """In Petastorm the predicate's columns and the others are shuffled apart from each other."""
    wanted = {int(row["id"]): row for row in oracle.rows()}
    predicate = in_lambda(["id"], lambda number: number % 2 == 0)
    with make_reader(EVERYTHING, predicate=predicate, shuffle_rows=True, seed=seed, workers_count=2) as reader:
        rows = list(reader)
    assert len(rows) == 12
    for row in rows:
        assert row.text == wanted[int(row.id)]["text"]
        np.testing.assert_array_equal(row.matrix, wanted[int(row.id)]["matrix"])


def test_parts_of_row_groups_hold_every_row_once() -> None:
    for parts in (2, 5, 50):
        with make_reader(EVERYTHING, schema_fields=["id"], shuffle_row_drop_partitions=parts, workers_count=2) as r:
            assert sorted(ids(r)) == list(range(24))


# -- the batch reader --


def test_filters_apply_to_partitions_and_to_rows_exactly() -> None:
    for filters in ([("half_of", "=", 1), ("id", ">", 15)], [[("id", "in", [16, 17, 18, 19])]]):
        with make_batch_reader(PLAIN, schema_fields=["id"], filters=filters, **IN_ORDER) as reader:
            assert batch_ids(reader) == [16, 17, 18, 19]


@pytest.mark.parametrize("part", [lambda *ends: split("id", *ends), split_rows], ids=["hash", "position"])
def test_these_readers_split_rows_as_the_loader_does(part: Callable[[float, float], Any]) -> None:
    sides = []
    for ends in ((0, 0.5), (0.5, 1)):
        with make_batch_reader(PLAIN, schema_fields=["id"], filters=part(*ends), **IN_ORDER) as reader:
            sides.append(batch_ids(reader))
        with OurLoader(oracle.PLAIN, 20, columns=["id"], filters=part(*ends)) as loader:
            assert [n for batch in loader for n in batch["id"].tolist()] == sides[-1]
    assert sorted(sides[0] + sides[1]) == list(range(20))


def test_predicates_of_the_batch_reader_take_series_and_the_ready_ones_work_there_too() -> None:
    pytest.importorskip("pandas")
    for predicate, wanted in (
        (in_lambda(["id"], lambda column: column > 17), [18, 19]),
        (in_set({2, 3, 77}, "id"), [2, 3]),
        (in_negate(in_lambda(["id"], lambda column: column > 1)), [0, 1]),
        (in_reduce([in_set({1, 2}, "id"), in_set({2, 3}, "id")], any), [1, 2, 3]),
        (in_set({1}, "half_of"), list(range(10, 20))),
    ):
        with make_batch_reader(PLAIN, schema_fields=["id", "text"], predicate=predicate, **IN_ORDER) as reader:
            assert batch_ids(reader) == wanted


def test_nulls_of_text_stay_none(tmp_path: Path) -> None:
    """In Petastorm they become the text 'None'."""
    pq.write_table(pa.table({"t": ["a", None], "n": [True, None], "f": [1.5, None]}), tmp_path / "x.parquet")
    with make_batch_reader(f"file://{tmp_path}", **IN_ORDER) as reader:
        (batch,) = list(reader)
    assert batch.t.tolist() == ["a", None]
    assert batch.n.tolist() == [True, None]
    assert np.isnan(batch.f[1])


def test_lists_of_different_lengths_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"l": [[1], [2, 3]]}), tmp_path / "x.parquet")
    with (
        pytest.raises(DecodeFieldError, match=r"x\.parquet, row group 0, column 'l': .*\[1, 2\]"),
        make_batch_reader(f"file://{tmp_path}") as reader,
    ):
        next(reader)


def test_the_wrong_reader_says_so() -> None:
    with pytest.warns(UserWarning, match="make_batch_reader"), make_reader(PLAIN, schema_fields=["id"]) as reader:
        assert len(list(reader)) == 20
    with pytest.warns(UserWarning, match="make_reader decodes"), make_batch_reader(SERIES) as reader:
        assert next(reader).vector.dtype == object


# -- transformations --


def test_transformations_of_rows() -> None:
    spec = TransformSpec(
        lambda row: {"id": row["id"], "mean": row["matrix"].mean()},
        edit_fields=[edit_field("mean", np.float32, ())],
        removed_fields=["matrix"],
    )
    with make_reader(EVERYTHING, schema_fields=["id", "matrix"], transform_spec=spec, **IN_ORDER) as reader:
        assert list(reader.schema.fields) == ["id", "mean"]
        for row, wanted in zip(reader, oracle.rows(), strict=True):
            assert row.mean == pytest.approx(wanted["matrix"].mean())
    selected = TransformSpec(selected_fields=["matrix", "id"])
    with make_reader(EVERYTHING, transform_spec=selected, **IN_ORDER) as reader:
        assert next(reader)._fields == ("matrix", "id")
    for func, message in (
        (lambda row: (row["id"],), "tuple"),
        (lambda row: {}, "no id"),
        (lambda r: {**r, "x": 1}, "x"),
    ):
        with (
            pytest.raises(TransformError, match=message),
            make_reader(EVERYTHING, schema_fields=["id"], transform_spec=TransformSpec(func), **IN_ORDER) as reader,
        ):
            next(reader)


def test_transformations_of_batches() -> None:
    pytest.importorskip("pandas")

    def change(frame: Any) -> Any:
        frame["wide"] = frame["id"].map(lambda n: np.full((2, 3), n, np.float32))
        return frame

    spec = TransformSpec(change, edit_fields=[("wide", np.float32, (2, 3), False)], removed_fields=["text"])
    with make_batch_reader(PLAIN, schema_fields=["id", "text"], transform_spec=spec, **IN_ORDER) as reader:
        first = next(reader)
    assert first._fields == ("id", "wide")
    assert first.wide.shape == (10, 2, 3)
    assert first.wide[3, 1, 2] == 3


def test_no_field_asked_for_means_all_fields() -> None:
    for make, url in ((make_reader, EVERYTHING), (make_batch_reader, PLAIN)):
        with make(url, schema_fields=[]) as reader, make(url) as whole:
            assert list(reader.schema.fields) == list(whole.schema.fields)


def test_a_transformation_that_leaves_no_row_of_a_row_group_gives_no_batch() -> None:
    spec = TransformSpec(lambda frame: frame[frame.id >= 15])
    with make_batch_reader(PLAIN, schema_fields=["id"], transform_spec=spec, **IN_ORDER) as reader:
        assert [batch.id.tolist() for batch in reader] == [[15, 16, 17, 18, 19]]


def test_objects_that_a_transformation_leaves_alone_can_be_written_to() -> None:
    with make_batch_reader(
        PLAIN, schema_fields=["id", "amount"], transform_spec=TransformSpec(lambda frame: frame), **IN_ORDER
    ) as reader:
        batch = next(reader)
    batch.amount[0] = batch.amount[1]
    batch.id[0] = 5


def test_nulls_and_lengths_of_nothing_decode_as_petastorm_decodes_them() -> None:
    """A null date is None there; a null time it cannot decode."""
    day = UnischemaField("day", np.datetime64, (), ScalarCodec(SparkType("DateType")), True)
    assert decode_column(pa.chunked_array([pa.array([1, None], pa.date32())]), day) == [np.datetime64(1, "D"), None]
    found = decode_column(pa.chunked_array([pa.array([1, None], pa.timestamp("us"))]), day)
    assert np.isnat(found[1])
    nothing = UnischemaField("nothing", np.float32, (0,), NdarrayCodec(), False)
    blobs = [bytes(NdarrayCodec().encode(nothing, np.zeros(n, np.float32))) for n in (0, 2)]
    assert [a.shape for a in decode_column(pa.chunked_array([blobs]), nothing)] == [(0,), (2,)]


# -- life --


def test_a_reader_is_reset_at_its_end_only_and_ends_when_stopped() -> None:
    reader = make_reader(EVERYTHING, schema_fields=["id"], **IN_ORDER)
    next(reader)
    with pytest.raises(NotImplementedError, match="once all its rows"):
        reader.reset()
    assert len(list(reader)) == 23
    assert reader.last_row_consumed
    with pytest.raises(StopIteration):
        next(reader)
    reader.reset()
    assert ids(reader) == list(range(24))
    assert reader.diagnostics["items_returned"] == 48
    reader.stop()
    reader.stop()
    reader.join()
    with pytest.raises(RuntimeError, match="was stopped"):
        next(reader)


def test_a_reader_without_threads_is_a_system_error_and_then_leaves_out_no_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("parquet_loader-petastorm"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with make_reader(EVERYTHING) as reader:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(SystemReadError, match="can't start new thread; allow the process more threads"):
                next(reader)
        with pytest.raises(RuntimeError, match="rows are missing; make a new reader"):
            next(reader)


def reader_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("parquet_loader-petastorm")]


def test_readers_without_end_and_forgotten_ones_leave_no_thread() -> None:
    with make_reader(EVERYTHING, schema_fields=["id"], num_epochs=None, workers_count=3) as reader:
        assert len([next(reader) for _ in range(100)]) == 100
        assert reader_threads()
    assert not reader_threads()
    forgotten = make_reader(EVERYTHING, schema_fields=["id"], num_epochs=None, workers_count=3)
    next(forgotten)
    threads = [t for t in threading.enumerate() if t.name.startswith("parquet_loader-petastorm")]
    del forgotten
    gc.collect()
    for thread in threads:
        thread.join(60)
    assert not reader_threads()


@pytest.mark.parametrize("pool", ["thread", "dummy"])
def test_remote_readers_leave_no_thread_when_stopped_forgotten_or_at_the_end(pool: str) -> None:
    store = pafs.SubTreeFileSystem(str(oracle.PLAIN.parent), pafs.LocalFileSystem())
    options: dict[str, Any] = {"filesystem": store, "reader_pool_type": pool, **IN_ORDER}

    def our_threads() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t.name.startswith(("parquet_loader-p", "parquet_loader-r"))]

    with make_batch_reader(oracle.PLAIN.name, num_epochs=2, **options) as reader:
        assert batch_ids(reader) == list(range(20)) * 2
        assert not our_threads()
    with make_batch_reader(oracle.PLAIN.name, num_epochs=None, **options) as reader:
        next(reader)
        assert our_threads()
    assert not our_threads()
    forgotten = make_batch_reader(oracle.PLAIN.name, num_epochs=None, **options)
    next(forgotten)
    threads = our_threads()
    del forgotten
    gc.collect()
    for thread in threads:
        thread.join(60)
    assert not our_threads()


def waits_for_a_result(frame: FrameType) -> bool:
    """Whether a thread waits for a row group, and not for a thread to start, which is a wait as well."""
    below = frame.f_back
    waits = frame.f_code is threading.Condition.wait.__code__
    return waits and below is not None and below.f_code is Future.result.__code__


def test_a_consumer_that_waits_does_nothing_meanwhile() -> None:
    """Petastorm polls for results, without a pause if rows are shuffled."""
    gate, begun = threading.Event(), threading.Event()
    calls: list[int] = [0]

    def held_up(row: dict[str, Any]) -> dict[str, Any]:
        begun.set()
        assert gate.wait(100)
        return row

    def consume() -> None:
        def count(*_: object) -> None:
            calls[0] += 1

        sys.setprofile(count)
        try:
            next(reader)
        finally:
            sys.setprofile(None)

    options: dict[str, Any] = {"transform_spec": TransformSpec(held_up), "shuffle_rows": True, "workers_count": 1}
    with make_reader(EVERYTHING, schema_fields=["id"], **options) as reader:
        consumer = threading.Thread(target=consume)
        consumer.start()
        assert begun.wait(100)
        while not waits_for_a_result(sys._current_frames()[consumer.ident or 0]):
            os.sched_yield()
        before = calls[0]
        for _ in range(500):
            os.sched_yield()
        assert calls[0] - before < 10, "the few that lie between entering `wait` and the lock"
        gate.set()
        consumer.join(100)
    assert calls[0] - before >= 10


def test_an_error_reaches_the_caller_with_file_row_group_and_field(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    shutil.copytree(oracle.SERIES, folder)
    path = sorted(folder.glob("*.parquet"))[1]
    table = pq.read_table(path)
    pq.write_table(table.set_column(2, "vector", pa.array([b"junk"] * len(table))), path)
    with (
        make_reader(f"file://{folder}", **IN_ORDER) as reader,
        pytest.raises(DecodeFieldError, match=r"part-00001.*row group 0: decoding field 'vector' failed"),
    ):
        list(reader)
    assert not reader_threads()


def test_a_reader_that_failed_says_so_again_instead_of_ending() -> None:
    def fail(row: dict[str, Any]) -> dict[str, Any]:
        raise KeyError(int(row["id"]))

    with make_reader(EVERYTHING, schema_fields=["id"], transform_spec=TransformSpec(fail), **IN_ORDER) as reader:
        with pytest.raises(KeyError):
            next(reader)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"failed with KeyError\(0\), and rows are missing"):
                next(reader)


def test_an_interrupted_wait_loses_no_rows() -> None:
    gate = threading.Event()

    def held_up(row: dict[str, Any]) -> dict[str, Any]:
        assert gate.wait(100)
        return row

    with make_reader(EVERYTHING, schema_fields=["id"], transform_spec=TransformSpec(held_up), **IN_ORDER) as reader:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 (it may come before `next`)
            timer.start()
            next(reader)
        timer.join()
        gate.set()
        assert ids(reader) == list(range(24))


class _RowsOf(torch.utils.data.IterableDataset[int]):
    def __init__(self, reader: Any) -> None:
        self.reader = reader

    def __iter__(self) -> Any:
        return iter(ids(self.reader))


def test_a_reader_that_began_before_a_fork_is_an_error_and_no_hang() -> None:
    with make_reader(EVERYTHING, schema_fields=["id"], **IN_ORDER) as reader:
        fresh = torch.utils.data.DataLoader(_RowsOf(reader), None, num_workers=1, multiprocessing_context="fork")
        assert list(fresh) == list(range(24))
        next(reader)
        begun = torch.utils.data.DataLoader(
            _RowsOf(reader), None, num_workers=1, multiprocessing_context="fork", timeout=60
        )
        with pytest.raises(RuntimeError, match="only in the process that started it"):
            list(begun)
        assert len(list(reader)) == 23


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"reader_pool_type": "green"}, ValueError),
        ({"num_epochs": 0}, ValueError),
        ({"schema_fields": "id"}, ValueError),
        ({"schema_fields": ["nothing"]}, RuntimeError),
        ({"predicate": in_set({1}, "nothing")}, ValueError),
        ({"predicate": 5}, ValueError),
        ({"rowgroup_selector": 5}, ValueError),
        ({"rowgroup_selector": SingleIndexSelector("nothing", [1])}, ValueError),
        ({"cur_shard": 1}, ValueError),
        ({"cur_shard": 2, "shard_count": 2}, ValueError),
        ({"cur_shard": 0, "shard_count": 5}, NoDataAvailableError),
        ({"cache_type": "cloud"}, ValueError),
        ({"cache_type": "local-disk"}, ConfigurationError),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        make_reader(EVERYTHING, **options)


# -- the cache --


def test_the_disk_cache_gives_the_same_rows_and_stays(tmp_path: Path) -> None:
    folder, cache = tmp_path / "ds", tmp_path / "cache"
    shutil.copytree(oracle.SERIES, folder)
    options: dict[str, Any] = {
        "cache_type": "local-disk",
        "cache_location": str(cache),
        "cache_size_limit": 10**8,
        "cache_row_size_estimate": 100,
        **IN_ORDER,
    }
    with make_reader(f"file://{folder}", **options) as reader:
        first = [int(row.ts) for row in reader]
    kept = sorted(p.name for p in cache.iterdir())
    assert len(kept) == 3
    with make_reader(f"file://{folder}", **options) as reader:
        assert [int(row.ts) for row in reader] == first
    assert sorted(p.name for p in cache.iterdir()) == kept
    path = min(folder.glob("*.parquet"))
    pq.write_table(pq.read_table(path).slice(0, 1), path)
    with make_reader(f"file://{folder}", **options) as reader:
        assert len(list(reader)) == 21  # a file that changed is read again
    options["cache_extra_settings"] = {"cleanup": True}
    with make_reader(f"file://{folder}", **options) as reader:
        next(reader)
    assert not cache.exists()


def test_the_disk_cache_keeps_to_its_limit(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    limit = 12_000
    with make_reader(
        EVERYTHING,
        schema_fields=["id", "png", "matrix"],
        cache_type="local-disk",
        cache_location=str(cache),
        cache_size_limit=limit,
        num_epochs=2,
        **IN_ORDER,
    ) as reader:
        assert len(list(reader)) == 48
    assert 0 < sum(p.stat().st_size for p in cache.iterdir()) <= 2 * limit


def test_the_disk_cache_takes_petastorms_options(tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(1000)})
    calls: list[str] = []

    def get(cache: LocalDiskCache, key: str) -> None:
        def fill() -> pa.Table:
            calls.append(key)
            return table

        assert cache.get(key, fill).equals(table)

    full = LocalDiskCache(str(tmp_path / "full"), 20_000, 100, shards=2, cleanup=False, eviction_policy="none")
    for key in "abc" * 2:
        get(full, key)
    assert calls == ["a", "b", "c", "c"], "what is kept stays, and what does not fit is not kept"
    calls.clear()
    recent = LocalDiskCache(str(tmp_path / "recent"), 20_000)
    for key in "abacbc":
        get(recent, key)
    assert set(calls) == {"a", "b", "c"}
    assert len(calls) < 6
    size = sum(path.stat().st_size for path in (tmp_path / "recent").iterdir())
    assert 0 < size <= 20_000
    calls.clear()
    for path in (tmp_path / "full").iterdir():
        path.write_bytes(b"cut short")
    get(full, "a")
    get(full, "a")
    assert calls == ["a"], "a file that cannot be read is read anew from the data set"
    full.cleanup()
    assert (tmp_path / "full").is_dir()
    LocalDiskCache(str(tmp_path / "recent"), 20_000, cleanup=True).cleanup()
    assert not (tmp_path / "recent").exists()
    with pytest.raises(ConfigurationError, match="too small for a few rows"):
        LocalDiskCache(str(tmp_path / "small"), 1000, 100)


def test_the_disk_cache_leaves_what_is_not_its_own_and_may_vanish_under_a_reader(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (cache / "000").mkdir(parents=True)
    (cache / "notes.arrow").write_bytes(bytes(10**6))
    options: dict[str, Any] = {
        "schema_fields": ["id", "png", "matrix"],
        "cache_type": "local-disk",
        "cache_location": str(cache),
        "cache_size_limit": 12_000,
        "cache_extra_settings": {"cleanup": True},
        **IN_ORDER,
    }
    with make_reader(EVERYTHING, reader_pool_type="dummy", **options) as reader:
        first = [int(next(reader).id) for _ in range(7)]
        with make_reader(EVERYTHING, **options) as other:
            assert ids(other) == list(range(24))
        assert sorted(path.name for path in cache.iterdir()) == ["000", "notes.arrow"]
        (cache / "000").rmdir()
        (cache / "notes.arrow").unlink()
        cache.rmdir()
        assert [*first, *ids(reader)] == list(range(24))
        assert len(list(cache.iterdir())) == 2
    assert not cache.exists()


# -- the torch loaders --


def numbers_reader(**options: Any) -> Any:
    return make_reader(EVERYTHING, schema_fields=["id", "matrix", "uint16", "odd"], **{"seed": 1, **options})


@pytest.mark.parametrize("capacity", [0, 7, 100])
@pytest.mark.parametrize("make", [DataLoader, BatchedDataLoader])
def test_loaders_deliver_every_row_once_and_end_with_a_partial_batch(make: Any, capacity: int) -> None:
    batches: list[Any] = []
    with make(numbers_reader(workers_count=2), batch_size=5, shuffling_queue_capacity=capacity) as loader:
        for _ in range(2):  # the partial batch of one pass does not leak into the next
            batches = list(loader)
            assert [len(b["id"]) for b in batches] == [5, 5, 5, 5, 4]
            assert sorted(n for b in batches for n in b["id"].tolist()) == list(range(24))
    assert batches[0]["matrix"].shape == (5, 3, 4)
    assert batches[0]["uint16"].dtype == torch.int32
    assert batches[0]["odd"].dtype == torch.uint8
    wanted = {int(row["id"]): row["matrix"] for row in oracle.rows()}
    for batch in batches:
        for number, matrix in zip(batch["id"].tolist(), batch["matrix"].numpy(), strict=True):
            np.testing.assert_array_equal(matrix, wanted[number])


@grid(
    "batch_size, capacity",
    [1, 3, 7, 40],
    [0, 1, 4, 5, 11, 1000],
    everyday=lambda batch_size, capacity: (batch_size in (3, 40)) == (capacity in (0, 4, 11)),
)
def test_batches_are_cut_from_row_groups_of_any_size(batch_size: int, capacity: int, tmp_path: Path) -> None:
    sizes = [1, 5, 2, 9, 3, 3, 12, 1]
    schema = pa.schema({"id": pa.int64(), "pair": pa.list_(pa.int64(), 2), "large": pa.uint64()})
    with pq.ParquetWriter(tmp_path / "x.parquet", schema) as writer:
        for start, size in zip(np.cumsum([0, *sizes[:-1]]), sizes, strict=True):
            numbers = np.arange(start, start + size)
            pairs = [[n, -n] for n in numbers.tolist()]
            columns = {"id": numbers, "pair": pairs, "large": [2**63 + n for n in numbers.tolist()]}
            writer.write_table(pa.table(columns, schema))
    reader = make_batch_reader(f"file://{tmp_path}", **IN_ORDER)
    with BatchedDataLoader(reader, batch_size=batch_size, shuffling_queue_capacity=capacity) as loader:
        batches = list(loader)
    assert {len(batch["id"]) for batch in batches[:-1]} <= {batch_size}
    rows = [n for batch in batches for n in batch["id"].tolist()]
    assert sorted(rows) == list(range(36))
    assert capacity or rows == list(range(36))
    for batch in batches:
        assert torch.equal(batch["pair"], torch.stack([batch["id"], -batch["id"]], 1))
        assert batch["large"].tolist() == [2**63 + n for n in batch["id"].tolist()]


@pytest.mark.parametrize("make", [DataLoader, BatchedDataLoader])
def test_loaders_shuffle_as_torch_is_seeded(make: Any) -> None:
    def order() -> list[int]:
        torch.manual_seed(3)
        with make(numbers_reader(**IN_ORDER), batch_size=4, shuffling_queue_capacity=12) as loader:
            return [n for batch in loader for n in batch["id"].tolist()]

    assert order() == order()
    assert order() != sorted(order())


@pytest.mark.parametrize("make", [DataLoader, BatchedDataLoader])
def test_loaders_take_batches_of_any_parquet(make: Any) -> None:
    reader = make_batch_reader(PLAIN, schema_fields=["id", "list", "real"], **IN_ORDER)
    with make(reader, batch_size=8) as loader:
        batches = list(loader)
    assert [b["list"].shape for b in batches] == [(8, 3), (8, 3), (4, 3)]
    assert [n for b in batches for n in b["id"].tolist()] == list(range(20))


def test_one_pass_at_a_time_and_none_after_an_error() -> None:
    with DataLoader(numbers_reader(), batch_size=5) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(RuntimeError, match="has not ended"):
            next(iter(loader))
    with DataLoader(make_reader(EVERYTHING, schema_fields=["int_null"]), batch_size=5) as loader:
        with pytest.raises(TypeError, match="'int_null' holds None"):
            list(loader)
        with pytest.raises(RuntimeError, match="the last iteration failed"):
            list(loader)


def test_text_and_decimals_stay_lists_in_the_row_loader_and_are_refused_by_the_batched_one() -> None:
    fields = ["id", "text", "decimal"]
    with DataLoader(make_reader(EVERYTHING, schema_fields=fields, **IN_ORDER), batch_size=2) as loader:
        batch = next(iter(loader))
    assert batch["text"] == ["row 0 é", "row 1 é"]
    assert batch["decimal"] == [Decimal("0.0000"), Decimal("1.2345")]
    with (
        pytest.raises(TypeError, match="'text'"),
        BatchedDataLoader(make_reader(EVERYTHING, schema_fields=["text"]), batch_size=2) as loader,
    ):
        next(iter(loader))
    assert decimal_friendly_collate([(1, "a"), (2, "b")])[1] == ["a", "b"]


def test_the_loader_in_memory_keeps_all_rows_or_says_that_it_does_not() -> None:
    with InMemBatchedDataLoader(numbers_reader(), batch_size=10, num_epochs=2, shuffle=True) as loader:
        batches = list(loader)
        with pytest.raises(RuntimeError, match="iterated once"):
            next(iter(loader))
    assert [len(b["id"]) for b in batches] == [10, 10, 4] * 2
    first, second = ([n for b in batches[k : k + 3] for n in b["id"].tolist()] for k in (0, 3))
    assert sorted(first) == sorted(second) == list(range(24))
    assert first != second
    with pytest.warns(UserWarning, match="rows_capacity=7 rows, and the reader has more"):
        small = InMemBatchedDataLoader(numbers_reader(**IN_ORDER), batch_size=10, rows_capacity=7)
    assert [b["id"].tolist() for b in small] == [list(range(7))]
    with pytest.raises(ValueError, match="a reader that ends"):
        InMemBatchedDataLoader(numbers_reader(num_epochs=None), rows_capacity=None)
    endless = InMemBatchedDataLoader(numbers_reader(num_epochs=None, **IN_ORDER), batch_size=24, rows_capacity=24)
    assert [b["id"].tolist() for b in endless] == [list(range(24))]


# -- other readers --


def test_weighted_readers_are_drawn_from_as_often_as_said() -> None:
    def drawn(weights: list[float]) -> list[str]:
        readers = [
            make_reader(EVERYTHING, schema_fields=["part"], num_epochs=None, predicate=in_set({part}, "part"))
            for part in ("p_0", "p_1")
        ]
        with WeightedSamplingReader(readers, weights, seed=1) as mixed:
            return [str(next(mixed).part) for _ in range(300)]

    assert 50 < drawn([2, 6]).count("p_0") < 100
    assert set(drawn([0, 1])) == {"p_1"}
    one = make_reader(EVERYTHING)
    with pytest.raises(ValueError, match="two or more"):
        WeightedSamplingReader([one], [1])
    with pytest.raises(ValueError, match="same schema"):
        WeightedSamplingReader([one, make_reader(SERIES)], [1, 1])


def test_the_mock_reader_and_generated_rows_have_the_form_of_the_schema() -> None:
    schema = get_schema_from_dataset_url(SERIES)
    reader = ReaderMock(schema, schema_data_generator_example)
    assert next(reader).vector.tolist() == [0, 0]
    assert generate_datapoint(schema)["vector"].shape == (2,)


@pytest.mark.parametrize("make", [DataLoader, BatchedDataLoader])
def test_loaders_take_weighted_readers_and_mocks(make: Any) -> None:
    readers = [make_reader(SERIES, num_epochs=2, workers_count=2) for _ in range(2)]
    with WeightedSamplingReader(readers, [1, 9], seed=2) as mixed, make(mixed, batch_size=4) as loader:
        times = [n for batch in loader for n in batch["ts"].tolist()]
    assert mixed.last_row_consumed
    with make_reader(SERIES, workers_count=2) as reader:
        known = {int(row.ts) for row in reader}
    assert 60 <= len(times) < 100, "until the first of them has no more"
    assert set(times) == known
    mock = ReaderMock(get_schema_from_dataset_url(SERIES), schema_data_generator_example)
    batch = next(iter(make(mock, batch_size=3)))
    assert batch["vector"].shape == (3, 2)


def test_n_grams_need_sorted_rows_of_one_row_group() -> None:
    fields: dict[int, list[Any]] = {0: ["ts"], 1: ["ts"]}
    with (
        pytest.raises(NotImplementedError, match="sorted by ts"),
        make_reader(SERIES, schema_fields=NGram(fields, 1000, "ts"), shuffle_rows=True, seed=1) as reader,
    ):
        list(reader)
    with make_reader(SERIES, schema_fields=NGram({0: ["value"], 1: ["value"]}, 1000, "ts"), **IN_ORDER) as reader:
        assert len(list(reader)) == 27
    wrong: list[Any] = [([], 1, "ts"), ({0: "ts"}, 1, "ts"), ({0: ["ts"]}, None, "ts"), ({0: ["ts"]}, 1, None)]
    for arguments in wrong:
        with pytest.raises(ValueError, match="NGram"):
            NGram(*arguments)


# -- schemas, codecs, metadata --


def test_a_unischema_gives_views_rows_and_text() -> None:
    schema = get_schema_from_dataset_url(EVERYTHING)
    assert list(schema.create_schema_view(["id.*", schema.text]).fields) == ["text", "id"]
    assert schema.id == UnischemaField("id", np.int64, (), NdarrayCodec(), False)  # codecs do not count
    assert schema.make_namedtuple(**dict.fromkeys(schema.fields)).id is None
    assert "UnischemaField('decimal', Decimal, (), ScalarCodec(DecimalType()), False)" in str(schema)
    with pytest.raises(AttributeError, match="no field"):
        _ = schema.nothing
    with pytest.raises(ValueError, match="does not belong"):
        schema.create_schema_view([UnischemaField("x", np.int8, ())])
    with pytest.raises(PetastormMetadataError, match="no Unischema"):
        get_schema_from_dataset_url(PLAIN)
    copied = pickle.loads(pickle.dumps(schema.id))
    assert copied == schema.id


CODEC_FIELDS = [
    (UnischemaField("a", np.uint8, (4, 5, 3), CompressedImageCodec("png")), lambda r: r.integers(0, 255, (4, 5, 3))),
    (UnischemaField("a", np.uint16, (4, 5), CompressedImageCodec("png")), lambda r: r.integers(0, 65535, (4, 5))),
    (UnischemaField("a", np.uint16, (4, 5, 3), CompressedImageCodec("png")), lambda r: r.integers(0, 65535, (4, 5, 3))),
    (UnischemaField("a", np.float32, (None, 3), NdarrayCodec()), lambda r: r.random((2, 3))),
    (UnischemaField("a", np.int64, (), NdarrayCodec()), lambda r: r.integers(0, 9, ())),
    (UnischemaField("a", np.float64, (2,), CompressedNdarrayCodec()), lambda r: r.random(2)),
]


@pytest.mark.parametrize(("field", "make"), CODEC_FIELDS)
def test_codecs_give_back_what_they_took(field: UnischemaField, make: Callable[[Any], Any]) -> None:
    value = np.asarray(make(np.random.default_rng(0))).astype(field.numpy_dtype)
    encoded = field.codec.encode(field, value)
    assert isinstance(encoded, bytearray)
    oracle.assert_same(field.codec.decode(field, bytes(encoded)), value, "value")
    with pytest.raises(ValueError, match="field a"):
        field.codec.encode(field, value.astype(np.int8))
    with pytest.raises(ValueError, match="field a"):
        field.codec.encode(field, [1])


def test_rows_are_encoded_as_the_schema_says() -> None:
    schema = Unischema(
        "S",
        [
            UnischemaField("n", np.int32, (), ScalarCodec(SparkType("IntegerType"))),
            UnischemaField("m", np.float32, (2,), NdarrayCodec(), True),
            UnischemaField("x", np.float64, ()),
        ],
    )
    encoded = encode_row(schema, {"x": np.float64(1.5), "n": np.int32(3)})
    assert encoded == {"n": 3, "m": None, "x": 1.5}
    assert list(encoded) == ["n", "m", "x"]
    for row, message in (
        ({"n": 1}, "x is not in the row"),
        ({"n": None, "x": 1.0}, "n is None"),
        ({"n": 1, "x": 1, "y": 1}, "y"),
    ):
        with pytest.raises(ValueError, match=message):
            encode_row(schema, row)


def test_metadata_that_are_written_are_read_again(tmp_path: Path) -> None:
    schema = get_schema_from_dataset_url(EVERYTHING)
    written = read_unischema(dump_unischema(schema))
    with_own = [f.codec.spark for f in written.fields if f.codec and f.codec.kind == "ScalarCodec"]
    assert SparkType("DecimalType", 12, 4) in with_own
    folder = tmp_path / "ds"
    shutil.copytree(oracle.EVERYTHING, folder)
    (folder / "_common_metadata").unlink()
    url = f"file://{folder}"
    with pytest.raises(PetastormMetadataError):
        build_rowgroup_index(url, None, [SingleFieldIndexer("i", "id")])
    write_metadata(url, schema)
    again = get_schema_from_dataset_url(url)
    assert list(again.fields.values()) == list(schema.fields.values())
    assert [str(f.codec) for f in again.fields.values()] == [str(f.codec) for f in schema.fields.values()]
    counts = json.loads(pq.read_schema(folder / "_common_metadata").metadata[ROW_GROUPS_KEY])
    assert sum(counts.values()) == 4
    indexers: list[Any] = [
        SingleFieldIndexer("by_id", "id"),
        SingleFieldIndexer("by_sensor", "sensor"),
        SingleFieldIndexer("by_part", "part"),
        FieldNotNullIndexer("has_decimal", "decimal_null"),
    ]
    build_rowgroup_index(url, None, indexers)
    found, wanted = get_row_group_indexes(url), get_row_group_indexes(EVERYTHING)
    assert set(found) == set(wanted)
    for name, indexer in wanted.items():
        assert set(found[name].indexed_values) == set(indexer.indexed_values)
        for value in indexer.indexed_values:
            assert found[name].get_row_group_indexes(value) == indexer.get_row_group_indexes(value)
    assert read_indexes(dump_indexes(found)).keys() == found.keys()
    with make_reader(url, **IN_ORDER) as reader:
        assert ids(reader) == list(range(24))


# -- copies --


def test_a_copy_delivers_the_same_batches_from_raw_tensors(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    schema = copy_dataset(
        oracle.EVERYTHING,
        tmp_path / "copy",
        options=WriteOptions(),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(6, 24), (12, 24), (18, 24), (24, 24)]
    stored = pq.read_schema(next((tmp_path / "copy").glob("*.parquet")))
    assert stored.field("matrix").type == pa.binary(48)
    with OurLoader(oracle.EVERYTHING, 24) as before, OurLoader(tmp_path / "copy", 24) as after:
        assert after.schema == schema
        (old,), (new,) = list(before), list(after)
    assert list(old) == list(new)
    for name, column in old.items():
        if isinstance(column, torch.Tensor):
            assert torch.equal(column, new[name]), name
        elif isinstance(column, list):
            assert all(torch.equal(a, b) for a, b in zip(column, new[name], strict=True)), name
        else:
            a, b = column.to_list(), new[name].to_list()
            same = all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in zip(a, b, strict=True))
            assert same, name


def test_a_row_group_is_copied_in_pieces() -> None:
    dataset = RowGroups(oracle.EVERYTHING, None)
    declared = declared_unischema(dataset.snapshot.filesystem, dataset.snapshot.files)
    assert declared is not None
    whole = schema_of(declared, dataset.snapshot.schemas[0], dataset.snapshot.partition_schema)

    def copied(columns: list[str], **most: int) -> list[int]:
        schema = whole.select(columns)
        with dataset.opened():
            tables = list(_slices(dataset.snapshot, schema, target_schema(schema), **most))
        assert pa.concat_tables(tables)["part"].to_pylist() == [row["part"] for row in oracle.rows()]
        return [len(table) for table in tables]

    assert copied(["part", "matrix"], most_bytes=3 * 48) == [1] * 24, "more bytes of a row are stored than decoded"
    assert copied(["part"], most_rows=4) == [4, 2] * 4


def test_a_copy_of_no_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="names no field"):
        copy_dataset(oracle.SERIES, tmp_path / "copy", columns=[])
    assert not (tmp_path / "copy").exists()


def test_a_copy_that_fails_names_the_place_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    shutil.copytree(oracle.SERIES, folder)
    path = sorted(folder.glob("*.parquet"))[1]
    table = pq.read_table(path)
    vectors = table["vector"].to_pylist()
    vectors[3] = b"junk"
    pq.write_table(table.set_column(2, "vector", pa.array(vectors, pa.binary())), path)
    with pytest.raises(DataError, match=r"part-00001.*row group 0, column 'vector', row 3"):
        copy_dataset(folder, tmp_path / "copy")
    assert not list(tmp_path.glob("copy/*"))
    assert not reader_threads()
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"part-00001.*row group 0, column 'ts': the data cannot be decoded"):
        copy_dataset(folder, tmp_path / "copy")


def test_indexes_of_many_values_are_read_as_they_were_written() -> None:
    values = SingleFieldIndexer("values", "id")
    values._index_data.update({f"value {n}": {n % 7} for n in range(10_000)})
    row_groups, nothing = FieldNotNullIndexer("row_groups", "id"), FieldNotNullIndexer("nothing", "id")
    row_groups._index_data |= set(range(20_000))
    indexers = {indexer.index_name: indexer for indexer in (values, row_groups, nothing)}
    found = read_indexes(dump_indexes(indexers))
    assert found["values"].values == values._index_data
    assert found["row_groups"].row_groups == row_groups._index_data
    assert found["nothing"].row_groups == set()


def test_names_that_would_steer_a_terminal_are_printed_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    shutil.copytree(oracle.SERIES, folder)
    schema = pa.schema([], {UNISCHEMA_KEY: dump_unischema(Unischema("S\x1b[2J\ud800", []))})
    pq.write_metadata(schema, folder / "_common_metadata")
    out = io.StringIO()
    print_dataset(folder, out)
    assert out.getvalue().startswith("Unischema(S\\x1b[2J\\ud800, [\n])\n")


def test_a_data_set_is_printed_for_people() -> None:
    out = io.StringIO()
    print_dataset(oracle.EVERYTHING, out)
    text = out.getvalue()
    assert "UnischemaField('matrix', float32, (3, 4), NdarrayCodec(), False)" in text
    assert "index 'by_id' of id: 24 values" in text
    assert "24 rows in 4 row groups of 4 files" in text


# -- Petastorm's documented examples, with the import changed and nothing else --


def test_the_readme_of_petastorm_plain_python(capsys: pytest.CaptureFixture[str]) -> None:
    dataset_url = SERIES
    with make_reader(dataset_url) as reader:
        # Pure python
        for sample in reader:
            print(sample.ts)
    assert len(capsys.readouterr().out.split()) == 30


def test_hello_world_of_an_external_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    dataset_url = PLAIN
    with make_batch_reader(dataset_url, schema_fields=["id", "real", "long"]) as reader:
        for schema_view in reader:
            # make_batch_reader() returns batches of rows instead of individual rows
            print(
                "Batched read:\nid: {0} real: {1} long: {2}".format(schema_view.id, schema_view.real, schema_view.long)
            )
    with DataLoader(make_batch_reader(dataset_url, schema_fields=["id", "real"])) as train_loader:
        sample = next(iter(train_loader))
        # Because we are using make_batch_reader(), each read returns a batch of rows instead of a single row
        print("id batch: {0}".format(sample["id"]))
    assert capsys.readouterr().out.count("Batched read") == 2


def test_training_in_the_style_of_the_mnist_example() -> None:
    from torch import nn, optim
    from torch.nn import functional

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(12, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.log_softmax(self.fc(x.view(-1, 12)), dim=1)

    def _transform_row(row: dict[str, Any]) -> dict[str, Any]:
        return {
            "matrix": torch.from_numpy(np.ascontiguousarray(row["matrix"], np.float32)),
            "odd": np.int64(row["odd"]),
        }

    torch.manual_seed(1)
    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    transform = TransformSpec(_transform_row, removed_fields=["id"])
    losses = []
    for _ in range(8):
        reader = make_reader(
            EVERYTHING,
            schema_fields=["id", "matrix", "odd"],
            num_epochs=2,
            transform_spec=transform,
            seed=1,
            shuffle_rows=True,
        )
        with DataLoader(reader, batch_size=8) as train_loader:
            for row in train_loader:
                data, target = row["matrix"], row["odd"]
                optimizer.zero_grad()
                loss = functional.nll_loss(model(data), target)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    assert len(losses) == 48
    assert np.mean(losses[-12:]) < np.mean(losses[:12])


def test_importing_the_package_needs_neither_torch_nor_pandas_nor_spark() -> None:
    import subprocess
    import sys

    code = "import sys, parquet_loader.petastorm; print(*{'torch', 'pandas', 'pyspark', 'PIL'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.split() == []


def test_without_tensorflow_the_error_says_what_to_install() -> None:
    try:
        import tensorflow  # noqa: F401, ICN001
    except ImportError:
        from parquet_loader.petastorm.tf_utils import make_petastorm_dataset

        with make_reader(EVERYTHING) as reader, pytest.raises(ConfigurationError, match="pip install tensorflow"):
            make_petastorm_dataset(reader)
    else:
        pytest.skip("tensorflow is installed")


def test_no_warning_is_given_where_nothing_is_wrong() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with make_reader(SERIES) as reader:
            list(reader)
