"""Petastorm's names for TensorFlow: rows, batches and n-grams as data sets and as tensors of a graph."""

from __future__ import annotations

import importlib
import importlib.util
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader.petastorm import TransformSpec, make_batch_reader, make_reader
from parquet_loader.petastorm.ngram import NGram
from parquet_loader.petastorm.predicates import in_lambda, in_set
from parquet_loader.petastorm.tf_utils import make_petastorm_dataset, tf_tensors
from tests.support import petastorm_oracle as oracle

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("tensorflow is not installed", allow_module_level=True)

EVERYTHING = f"file://{oracle.EVERYTHING}"
SERIES = f"file://{oracle.SERIES}"
PLAIN = f"file://{oracle.PLAIN}"
IN_ORDER: dict[str, Any] = {"shuffle_row_groups": False, "workers_count": 2}
# Fields of types that TensorFlow has, which excludes nulls.
FIELDS = [name for name, value in oracle.rows()[0].items() if value is not None and not name.endswith("_null")]


@pytest.fixture(scope="module")
def tf() -> Any:
    """TensorFlow. Its import takes seconds, in every process that imports this file."""
    return importlib.import_module("tensorflow.compat.v1")


def as_tensorflow_has_it(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value.normalize()).encode()
    if isinstance(value, str):
        return value.encode()
    array = np.asarray(value)
    if array.dtype.kind == "M":
        return array.astype("M8[ns]").astype(np.int64)
    if array.dtype.kind == "U":
        return np.array([text.encode() for text in array.ravel()], object).reshape(array.shape)
    return array.astype({np.dtype("u2"): np.int32, np.dtype("u4"): np.int64}.get(array.dtype, array.dtype))


def assert_same(found: Any, wanted: Any, where: str) -> None:
    expected = as_tensorflow_has_it(wanted)
    assert np.array_equal(np.asarray(found, object), np.asarray(expected, object)), where


def test_a_data_set_holds_every_value_that_tensorflow_has_a_type_for(tf: Any) -> None:
    assert len(FIELDS) > 25
    with make_reader(EVERYTHING, schema_fields=FIELDS, **IN_ORDER) as reader:
        dataset = make_petastorm_dataset(reader)
        assert dataset.element_spec.matrix == tf.TensorSpec((3, 4), tf.float32)
        assert dataset.element_spec.points.shape.as_list() == [None, 3]
        found = list(dataset)
    assert len(found) == oracle.ROWS
    for row, wanted in zip(found, oracle.rows(), strict=True):
        for name in FIELDS:
            assert_same(getattr(row, name).numpy(), wanted[name], f"{wanted['id']} {name}")


def test_batches_have_rows_first_and_a_second_pass_begins_again() -> None:
    with make_batch_reader(PLAIN, schema_fields=["id", "text", "day", "moment", "list"], **IN_ORDER) as reader:
        dataset = make_petastorm_dataset(reader)
        assert dataset.element_spec.list.shape.as_list() == [None, None]
        first = list(dataset)
        with pytest.warns(UserWarning, match="read again from its beginning"):
            second = list(dataset)
    wanted = oracle.value_of(oracle.expected()["plain"])
    for found in (first, second):
        for batch, expected in zip(found, wanted, strict=True):
            assert batch.id.numpy().tolist() == expected["id"].tolist()
            assert batch.text.numpy().tolist() == [text.encode() for text in expected["text"]]
            days = np.array(expected["day"].tolist(), "M8[ns]").astype(np.int64)
            assert batch.day.numpy().tolist() == days.tolist()
            assert batch.moment.numpy().tolist() == expected["moment"].astype(np.int64).tolist()
            assert batch.list.numpy().tolist() == expected["list"].tolist()


def test_rows_that_hold_nulls_are_named_and_may_be_left_out(tf: Any) -> None:
    with (
        make_reader(EVERYTHING, schema_fields=["id", "int_null"], **IN_ORDER) as reader,
        pytest.raises(tf.errors.OpError, match="'int_null' holds None"),
    ):
        list(make_petastorm_dataset(reader))
    there = in_lambda(["int_null"], lambda value: value is not None)
    with make_reader(EVERYTHING, schema_fields=["id", "int_null"], predicate=there, **IN_ORDER) as reader:
        assert [int(row.int_null) for row in make_petastorm_dataset(reader)] == list(range(0, 24, 2))


def test_nulls_of_batches_are_named_whatever_numpy_makes_of_them(tmp_path: Path, tf: Any) -> None:
    """In Petastorm they become the least int64."""
    columns = {
        "n": pa.array([1, None], pa.int32()),
        "t": pa.array([1, None], pa.timestamp("us")),
        "s": pa.array(["é", None]),
        "b": pa.array([True, None]),
        "f": pa.array([1.5, None]),
    }
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    for name in "ntsb":
        with (
            make_batch_reader(f"file://{tmp_path}", schema_fields=[name]) as reader,
            pytest.raises(tf.errors.OpError, match=f"field '{name}' holds None"),
        ):
            list(make_petastorm_dataset(reader))
    with make_batch_reader(f"file://{tmp_path}", schema_fields=["f"]) as reader:
        (batch,) = list(make_petastorm_dataset(reader))
    assert np.isnan(batch.f.numpy()[1]), "floats have a value for it"
    with (
        tf.Graph().as_default(),
        make_batch_reader(f"file://{tmp_path}", predicate=in_set({1}, "n"), schema_fields=["n", "t", "b"]) as reader,
        tf.Session() as session,
    ):
        found = session.run(tf_tensors(reader))
    assert (found.n.dtype, found.n.tolist(), found.t.tolist()) == (np.int32, [1], [1000])
    assert (found.b.dtype, found.b.tolist()) == (np.bool_, [True])


def test_transformed_rows_have_the_types_of_the_transformed_schema() -> None:
    spec = TransformSpec(
        lambda row: {"mean": np.float32(row["matrix"].mean())},
        edit_fields=[("mean", np.float32, (), False)],
        removed_fields=["matrix"],
    )
    with make_reader(EVERYTHING, schema_fields=["matrix"], transform_spec=spec, **IN_ORDER) as reader:
        found = [float(row.mean) for row in make_petastorm_dataset(reader).batch(7).unbatch()]
    np.testing.assert_allclose(found, [row["matrix"].mean() for row in oracle.rows()], rtol=1e-6)


# Steps with a gap: nothing is asked of step 1.
GRAM: dict[int, list[Any]] = {-1: ["ts", "vector"], 0: ["ts", "value"], 2: ["ts"]}


def wanted_grams() -> list[dict[int, dict[str, Any]]]:
    with make_reader(SERIES, schema_fields=NGram(dict(GRAM), 10, "ts"), **IN_ORDER) as reader:
        return [{step: row._asdict() for step, row in gram.items()} for gram in reader]


def test_n_grams_are_dicts_of_rows_by_step(tf: Any) -> None:
    with make_reader(SERIES, schema_fields=NGram(dict(GRAM), 10, "ts"), **IN_ORDER) as reader:
        found = list(make_petastorm_dataset(reader))
    wanted = wanted_grams()
    assert len(found) == len(wanted) > 5
    for gram, expected in zip(found, wanted, strict=True):
        assert list(gram) == list(expected) == [-1, 0, 1, 2]
        assert gram[1] == ()
        for step, row in expected.items():
            for name, value in row.items():
                assert np.array_equal(getattr(gram[step], name).numpy(), value)
    with (
        tf.Graph().as_default(),
        make_reader(SERIES, schema_fields=NGram(dict(GRAM), 10, "ts"), **IN_ORDER) as reader,
        tf.Session() as session,
    ):
        tensors = tf_tensors(reader)
        assert tensors[-1].vector.shape.as_list() == [2]
        for expected in wanted:
            gram = session.run(tensors)
            assert gram[2].ts == expected[2]["ts"]
            assert gram[-1].vector.tolist() == expected[-1]["vector"].tolist()
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(tensors)


def test_tensors_of_a_graph_give_a_row_each_time_shuffled_by_a_queue(tf: Any) -> None:
    with (
        tf.Graph().as_default(),
        make_reader(EVERYTHING, schema_fields=FIELDS, num_epochs=None, **IN_ORDER) as reader,
        tf.Session() as session,
    ):
        row = tf_tensors(reader, shuffling_queue_capacity=20, min_after_dequeue=10)
        assert row.matrix.shape.as_list() == [3, 4]
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coordinator)
        found = [session.run(row) for _ in range(48)]
        coordinator.request_stop()
        session.run(session.graph.get_operation_by_name("random_shuffle_queue_Close_1"))
        coordinator.join(threads)
    for sample in found:
        for name, value in sample._asdict().items():
            assert_same(value, oracle.rows()[int(sample.id)][name], f"{sample.id} {name}")
    assert [int(sample.id) for sample in found[:24]] != list(range(24))
    with (
        make_batch_reader(PLAIN, schema_fields=["id"], **IN_ORDER) as batches,
        pytest.raises(ValueError, match="is for rows"),
    ):
        tf_tensors(batches, shuffling_queue_capacity=2)
