"""Batches as a `tf.data.Dataset`: specs, signatures, prefetch, strategies."""

from __future__ import annotations

import io
import json
import operator
import os
import subprocess
import sys
import textwrap
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    Audio,
    BatchedDataLoader,
    ConfigurationError,
    Image,
    MissingPackageError,
    MixedLoader,
    OutputOptions,
    Schema,
    Shard,
    ShardOptions,
    UnsupportedError,
    write_dataset,
)
from tests.support.datasets import write_numbered
from tests.support.field_kinds import KINDS, kind_rows
from tests.support.ports import unused_port

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]
NUMPY = OutputOptions(format="numpy")


def test_without_tensorflow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.delitem(sys.modules, "parquet_loader.collate.tf_dataset", raising=False)
    write_numbered(str(tmp_path), ((10,),))
    with (
        BatchedDataLoader(str(tmp_path), 4, output_options=NUMPY) as loader,
        pytest.raises(MissingPackageError, match="torch-parquet-loader\\[tensorflow\\]"),
    ):
        loader.to_tf()


@pytest.fixture
def tf() -> Any:
    return pytest.importorskip("tensorflow", reason="tensorflow is not installed: pip install '.[frameworks]'")


def test_specs_follow_from_the_schema(tf: Any, tmp_path: Path) -> None:
    write_dataset(kind_rows(20), str(tmp_path), KINDS)
    options = OutputOptions(format="numpy", row_numbers="number")
    with BatchedDataLoader(str(tmp_path), 8, drop_last=True, output_options=options) as loader:
        dataset = loader.to_tf()
        assert dataset.cardinality() == 2
        batch = next(iter(dataset))
    spec = dataset.element_spec
    assert list(spec) == list(batch)
    assert spec["vector"] == tf.TensorSpec((8, 2, 3), tf.float32)
    assert spec["score_valid"] == tf.TensorSpec((8,), tf.bool)
    assert spec["tags"] == tf.RaggedTensorSpec((8, None), tf.int32, ragged_rank=1)
    assert spec["words"] == tf.RaggedTensorSpec((8, None), tf.string, ragged_rank=1)
    assert spec["text"] == tf.TensorSpec((8,), tf.string)
    assert spec["number"] == tf.TensorSpec((8,), tf.int64)
    assert batch["words"].to_list()[2] == ["wörd".encode()] * 2
    for name, value in batch.items():
        assert spec[name].is_compatible_with(value), name


def test_images_of_different_sizes_are_ragged(tf: Any, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (h, w, 3), np.uint8) for h, w in ((2, 3), (4, 1), (3, 3))]
    write_dataset(({"image": image} for image in images), str(tmp_path), Schema({"image": Image((None, None, 3))}))
    with BatchedDataLoader(str(tmp_path), 3, output_options=NUMPY) as loader:
        dataset = loader.to_tf()
        batch = next(iter(dataset))["image"]
    assert dataset.element_spec["image"] == tf.RaggedTensorSpec((None, None, None, 3), tf.uint8, ragged_rank=2)
    for row, image in enumerate(images):
        np.testing.assert_array_equal(batch[row].to_tensor().numpy(), image)


def test_columns_of_a_recording_have_the_order_of_the_batch(tf: Any, tmp_path: Path) -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(np.arange(800, dtype=np.int16).tobytes())
    schema = Schema({"sound": Audio(rate=8000, seconds=0.1, null="mask")})
    write_dataset({"sound": [file.getvalue(), None]}, str(tmp_path), schema)
    with BatchedDataLoader(str(tmp_path), 2, output_options=NUMPY) as loader:
        names = list(next(iter(loader)))
        assert names == ["sound", "sound_length", "sound_valid"]
        dataset = loader.to_tf()
        assert list(dataset.element_spec) == list(next(iter(dataset))) == names


def test_signatures_and_transforms_belong_together(tf: Any, tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((10,),))
    signature = {"x": tf.TensorSpec((None,), tf.float32)}

    def transform(columns: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"x": columns["id"] / 2}

    with (
        BatchedDataLoader(str(tmp_path), 5, output_options=NUMPY) as loader,
        pytest.raises(ConfigurationError, match="leave output_signature out"),
    ):
        loader.to_tf(output_signature=signature)
    with BatchedDataLoader(str(tmp_path), 5, transform=transform, output_options=NUMPY) as loader:
        with pytest.raises(ConfigurationError, match="pass output_signature="):
            loader.to_tf()
        with pytest.raises(tf.errors.OpError, match=r"column 'x' is float64 \[5\], output_signature says"):
            next(iter(loader.to_tf(output_signature=signature)))  # would lose bits
        found = loader.to_tf(output_signature={"x": tf.TensorSpec((None,), tf.float64)})
        loader.seek(0, 0)
        assert next(iter(found))["x"].numpy().tolist() == [0, 0.5, 1, 1.5, 2]


def test_a_dataset_within_an_epoch_is_the_rest_of_it(tf: Any, tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((20,),))
    with BatchedDataLoader(str(tmp_path), 5, output_options=NUMPY) as loader:
        dataset = loader.to_tf()
        loader.seek(0, 2)
        with pytest.raises(tf.errors.OpError, match=r"call to_tf\(\) again, after load_state_dict"):
            next(iter(dataset))
        rest = loader.to_tf()
        assert rest.cardinality() == 2
        assert [batch["id"].numpy()[0] for batch in rest] == [10, 15]
        with pytest.raises(tf.errors.OpError, match=r"begins at batch 2 of an epoch, and the loader is at batch 0"):
            next(iter(rest))
        assert [batch["id"].numpy()[0] for batch in dataset] == [0, 5, 10, 15]
        assert loader.state_dict()["epoch"] == 2


def test_a_synchronous_map_of_the_caller_pulls_no_batch_ahead(tf: Any, tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((40,),), ("ragged",))
    with BatchedDataLoader(str(tmp_path), 5, output_options=NUMPY) as loader:
        for number, _ in enumerate(loader.to_tf().map(lambda batch: (batch["id"], batch["ragged"])), 1):
            assert loader.state_dict()["batch"] == number % 8


@pytest.mark.parametrize(
    ("batch_size", "isolation"), [(64, "thread"), (37, "thread"), (900, "thread"), (37, "process")]
)
def test_states_are_exact_after_each_batch_of_a_window(
    tf: Any, tmp_path: Path, batch_size: int, isolation: str
) -> None:
    x = np.arange(3000, dtype=np.float32)
    write_dataset({"id": np.arange(3000), "x": np.stack([x, -x], 1), "flag": x % 3 == 0}, str(tmp_path))
    options: dict[str, Any] = {"shuffle": True, "window_rows": 1000, "isolation": isolation, "output_options": NUMPY}
    with BatchedDataLoader(str(tmp_path), batch_size, **options) as loader:
        arrays = list(loader)
        loader.seek(0, 0)
        for number, batch in enumerate(loader.to_tf(), 1):
            assert loader.state_dict()["batch"] == number % len(arrays)
            assert (loader.stats().batches, loader.stats().rows) == (number, min(number * batch_size, 3000))
            for name, expected in arrays[number - 1].items():
                np.testing.assert_array_equal(batch[name].numpy(), expected)
        for at in {1, len(arrays) // 2, len(arrays) - 1}:
            loader.seek(0, 0)
            for _ in loader.to_tf().take(at):
                pass
            state = loader.state_dict()
            assert (state["epoch"], state["batch"]) == (0, at)
            loader.load_state_dict(state)
            rest = [batch["id"].numpy().tolist() for batch in loader.to_tf()]
            assert rest == [batch["id"].tolist() for batch in arrays[at:]]


def test_batches_in_compiled_loops_are_counted(tf: Any, tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((400,),))

    @tf.function
    def total(iterator: Any, steps: Any) -> Any:
        found = tf.constant(0, tf.int64)
        for _ in tf.range(steps):
            found += tf.reduce_sum(next(iterator)["id"])
        return found

    with BatchedDataLoader(str(tmp_path), 8, output_options=NUMPY) as loader:
        iterator = iter(loader.to_tf())
        assert total(iterator, 3) == sum(range(24))
        assert loader.state_dict()["batch"] == 3
        assert total(iterator, 40) == sum(range(24, 344))
        assert loader.state_dict()["batch"] == 43


@pytest.mark.parametrize("column", [np.arange(40), [f"text {number}" for number in range(40)]])
def test_grappler_optimizes_no_function_of_a_data_set(tf: Any, tmp_path: Path, column: Any) -> None:
    # It would do so for each iterator, which takes longer than to read small epochs.
    write_dataset({"x": column}, str(tmp_path))
    with BatchedDataLoader(str(tmp_path), 5, output_options=NUMPY) as loader:
        dataset = tf.data.experimental.to_variant(loader.to_tf())
        ignore_state = 1
        graph = tf.raw_ops.DatasetToGraphV2(input_dataset=dataset, external_state_policy=ignore_state)
    functions = operator.attrgetter("library.function")(tf.compat.v1.GraphDef.FromString(graph.numpy()))
    assert functions
    for function in functions:
        assert function.attr["experimental_ints_on_device"].b, function.signature.name


def test_arrays_of_another_shape_than_the_signature_are_an_error(tf: Any, tmp_path: Path) -> None:
    write_dataset({"x": np.arange(40)}, str(tmp_path))

    def transform(columns: Any, _: Any) -> Any:
        return {"x": np.stack([columns["x"], columns["x"]], 1)}

    with BatchedDataLoader(str(tmp_path), 5, transform=transform, output_options=NUMPY) as loader:
        dataset = loader.to_tf(output_signature={"x": tf.TensorSpec((None, 3), tf.int64)})
        with pytest.raises(tf.errors.OpError, match="column 'x' is int64 \\[5, 2\\], output_signature says"):
            next(iter(dataset))


def test_an_iteration_ends_with_an_error_when_another_begins(tf: Any, tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((400,),))
    with BatchedDataLoader(str(tmp_path), 8, output_options=NUMPY) as loader:
        dataset = loader.to_tf()
        for begin_other in (lambda: iter(dataset), lambda: iter(loader), lambda: iter(loader.to_tf())):
            loader.seek(0, 0)
            iterator = iter(dataset)
            assert [next(iterator)["id"].numpy()[0] for _ in range(3)] == [0, 8, 16]
            other = begin_other()
            assert np.asarray(next(other)["id"])[0] == 0
            with pytest.raises(tf.errors.OpError, match="this iteration has ended, because"):
                next(iterator)
            assert np.asarray(next(other)["id"])[0] == 8
            assert loader.state_dict()["batch"] == 2


def test_keras_fits_and_resumes_in_mid_epoch(tf: Any, tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("keras runs on another backend")
    write_numbered(str(tmp_path), ((40,),))
    states: list[dict[str, Any]] = []
    seen: list[list[int]] = []

    def pairs(batch: dict[str, Any]) -> Any:
        rows = tf.cast(batch["id"], tf.float32)
        tf.py_function(lambda ids: seen.append(ids.numpy().tolist()), [batch["id"]], [])
        return rows[:, None], rows

    def fit(state: Any = None, epochs: int = 2) -> None:
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
        with BatchedDataLoader(str(tmp_path), 8, shuffle=True, output_options=NUMPY) as loader:
            keep = keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda *_, **__: states.append(loader.state_dict())
            )
            if state is not None:
                loader.load_state_dict(state)
                model.fit(loader.to_tf().map(pairs), verbose=0)
                epochs -= 1
            model.fit(loader.to_tf().map(pairs), epochs=epochs, verbose=0, callbacks=[keep])

    fit()
    whole, taken = list(seen), list(states)
    assert [(state["epoch"], state["batch"]) for state in taken] == [(n // 5, n % 5) for n in range(1, 11)]
    seen.clear()
    fit(taken[2])
    assert seen == whole[3:]


@pytest.mark.parametrize("pipelines", [2, 4])
def test_input_contexts_divide_rows_equally(tf: Any, tmp_path: Path, pipelines: int) -> None:
    write_numbered(str(tmp_path), ((20, 7), (10, 1), (30,)))
    steps, seen = set(), []
    for number in range(pipelines):
        context = tf.distribute.InputContext(pipelines, number, pipelines)
        shard = Shard(context.input_pipeline_id, context.num_input_pipelines)
        with BatchedDataLoader(str(tmp_path), 4, shuffle=True, shard=shard, output_options=NUMPY) as loader:
            dataset = loader.to_tf()
            batches = [batch["id"].numpy().tolist() for batch in dataset]
            assert dataset.cardinality() == len(batches)
        steps.add(len(batches))
        seen += [row for batch in batches for row in batch]
    assert len(steps) == 1
    assert set(seen) == set(range(68))
    assert len(seen) < 68 + pipelines


def test_a_strategy_does_not_divide_the_rows_again(tf: Any, tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((40,),))
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with BatchedDataLoader(str(tmp_path), 8, shuffle=True, output_options=NUMPY) as loader:
        batches = [batch["id"].numpy() for batch in strategy.experimental_distribute_dataset(loader.to_tf())]
    assert sorted(np.concatenate(batches)) == list(range(40))


def test_a_data_set_can_be_made_in_the_scope_of_a_strategy_with_several_devices(tf: Any, tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((40, 24),), ("ragged",))
    script = """
        import json, sys
        import tensorflow as tf
        from parquet_loader import BatchedDataLoader, OutputOptions

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        found, states = [], []
        for columns in (["id"], ["id", "ragged"]):
            options = OutputOptions(format="numpy")
            with strategy.scope(), BatchedDataLoader(sys.argv[1], 8, columns=columns, output_options=options) as loader:
                for batch in loader.to_tf():
                    found += batch["id"].numpy().tolist()
                    states.append(loader.state_dict()["batch"])
                rows = strategy.distribute_datasets_from_function(
                    lambda context: loader.to_tf().map(lambda batch: batch["id"])
                )
                for parts in rows:
                    for part in strategy.experimental_local_results(parts):
                        found += part.numpy().tolist()
        print(json.dumps([found, states]))
    """
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found, states = json.loads(done.stdout.splitlines()[-1])
    assert found == [*range(64)] * 4
    assert states == [1, 2, 3, 4, 5, 6, 7, 0] * 2


def test_a_mixture_continues_in_mid_epoch(tf: Any, tmp_path: Path) -> None:
    for name, sizes in (("a", (30, 11)), ("b", (25,))):
        write_numbered(str(tmp_path / name), (sizes,), ("ragged",))

    def mixture(**options: Any) -> MixedLoader:
        loaders = {name: BatchedDataLoader(str(tmp_path / name), 4, shuffle=True, **options) for name in "ab"}
        return MixedLoader(loaders, {"a": 2, "b": 1}, stop="all_exhausted")

    def rows(batches: Any) -> list[Any]:
        return [(batch["id"].numpy().tolist(), batch["ragged"].values.numpy().tobytes()) for batch in batches]

    with mixture(output_options=NUMPY) as loader:
        whole = [(batch["id"].tolist(), batch["ragged"].values.tobytes()) for batch in loader]
        loader.set_epoch(0)
        dataset = loader.to_tf()
        assert dataset.cardinality() == len(whole) == 18
        assert rows(dataset.take(7)) == whole[:7]
        state = json.loads(json.dumps(loader.state_dict()))
    with mixture() as loader:
        loader.load_state_dict(state)
        dataset = loader.to_tf()
        assert dataset.cardinality() == 11
        assert rows(dataset) == whole[7:]
        with pytest.raises(tf.errors.OpError, match=r"begins at batch 7 of an epoch, and the loader is at batch 0"):
            next(iter(dataset))


def test_a_mixture_of_other_columns_needs_a_signature(tf: Any, tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((10,),))
    signature = {"id": tf.TensorSpec((None,), tf.int64)}
    loaders = {
        "a": BatchedDataLoader(str(tmp_path), 4, output_options=NUMPY),
        "b": BatchedDataLoader(str(tmp_path), 4, transform=lambda columns, _: columns, output_options=NUMPY),
    }
    with MixedLoader(loaders, {"a": 1, "b": 1}) as loader:
        with pytest.raises(ConfigurationError, match="pass output_signature="):
            loader.to_tf()
        assert [batch["id"].numpy()[0] for batch in loader.to_tf(output_signature=signature)] == [0, 0, 4, 4, 8, 8]
    with (
        MixedLoader({"a": BatchedDataLoader(str(tmp_path), 4)}, {"a": 1}, named=True) as loader,
        pytest.raises(UnsupportedError, match="to_tf: with named=True"),
    ):
        loader.to_tf()


def test_packed_tokens_need_a_signature(tf: Any, tmp_path: Path) -> None:
    from parquet_loader import TokenLoader

    rng = np.random.default_rng(0)
    write_dataset({"input_ids": [rng.integers(0, 100, n, np.int32) for n in rng.integers(1, 20, 60)]}, str(tmp_path))
    with TokenLoader(str(tmp_path), length=16, batch_size=4, output_options=NUMPY) as loader:
        with pytest.raises(ConfigurationError, match="pass output_signature="):
            loader.to_tf()
        arrays = list(loader)
        signature = {
            name: tf.TensorSpec([None, *np.shape(value)[1:]] if np.ndim(value) else [], np.asarray(value).dtype)
            for name, value in arrays[0].items()
        }
        loader.seek(0, 0)
        for expected, batch in zip(arrays, loader.to_tf(output_signature=signature), strict=True):
            for name, value in expected.items():
                np.testing.assert_array_equal(batch[name].numpy(), value)


def test_epochs_of_packed_tokens_that_differ_in_length_are_whole(tf: Any, tmp_path: Path) -> None:
    from parquet_loader import TokenLoader

    rng = np.random.default_rng(0)
    lengths = rng.lognormal(2, 1, 300).astype(int)
    table = pa.table({"input_ids": [rng.integers(1, 1000, n) for n in lengths]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=20)
    arguments: dict[str, Any] = {
        "length": 16,
        "batch_size": 2,
        "window_rows": 40,
        "shuffle": True,
        "keys": ["input_ids"],
    }
    with TokenLoader(str(tmp_path), output_options=NUMPY, **arguments) as loader:
        expected = [[batch["input_ids"].tolist() for batch in loader] for _ in range(4)]
        assert len({len(epoch) for epoch in expected}) > 1
        loader.set_epoch(0)
        dataset = loader.to_tf(output_signature={"input_ids": tf.TensorSpec((None, 16), tf.int64)})
        assert [[batch["input_ids"].numpy().tolist() for batch in dataset] for _ in range(4)] == expected


STRATEGY_WORKER = """
    import json, os, sys
    import tensorflow as tf
    from parquet_loader import BatchedDataLoader, OutputOptions, Shard, ShardOptions

    path, most = sys.argv[1], int(sys.argv[2])
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    loaders, steps = [], []

    def batches(context):
        shard = Shard(context.input_pipeline_id, context.num_input_pipelines)
        batch_size = context.get_per_replica_batch_size(8)
        loader = BatchedDataLoader(
            path, batch_size, shuffle=True, drop_last=True, shard=shard,
            shard_options=ShardOptions(logical_shards=4), output_options=OutputOptions(format="numpy"),
        )
        loaders.append(loader)
        return loader.to_tf()

    @tf.function
    def total(ids):
        return strategy.reduce("SUM", strategy.run(tf.reduce_sum, args=(ids,)), axis=None)

    for batch in strategy.distribute_datasets_from_function(batches):
        local = strategy.experimental_local_results(batch["id"])
        steps.append([local[0].numpy().tolist(), int(total(batch["id"]))])
        if len(steps) == most:
            break
    # The strategy has pulled further batches.
    print(json.dumps([steps, loaders[0].state_dict(batches=len(steps))]), flush=True)
    os._exit(0)  # the workers' servers would wait for each other
"""


def train_workers(count: int, path: Path, most: int) -> tuple[list[list[int]], list[Any]]:
    """Return the rows of each step of all workers of a strategy, and the workers' states."""
    workers = [f"127.0.0.1:{unused_port()}" for _ in range(count)]
    started = []
    for index in range(count):
        place = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})
        environment = {**os.environ, "TF_CONFIG": place, "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, "-c", textwrap.dedent(STRATEGY_WORKER), str(path), str(most)]
        started.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        )
    results = []
    try:
        for process in started:
            out, error = process.communicate(timeout=240)
            assert process.returncode == 0, error
            results.append(json.loads(out.splitlines()[-1]))
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert len({len(steps) for steps, _ in results}) == 1
    rows = []
    for parts in zip(*(steps for steps, _ in results), strict=True):
        rows.append([row for part, _ in parts for row in part])
        assert {total for _, total in parts} == {sum(rows[-1])}
    return rows, [state for _, state in results]


def test_workers_of_a_strategy_get_each_row_once_and_resume_with_another_number(tf: Any, tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((20, 7), (10, 1), (30,)))
    first, states = train_workers(2, tmp_path, most=3)
    assert len(first) == 3
    assert states[0] == states[1]
    options: dict[str, Any] = {"shuffle": True, "drop_last": True, "shard_options": ShardOptions(logical_shards=4)}
    with BatchedDataLoader(str(tmp_path), 8, output_options=NUMPY, **options) as loader:
        loader.load_state_dict(states[0])
        rest = [batch["id"].numpy().tolist() for batch in loader.to_tf()]
    assert [len(step) for step in first + rest] == [8] * 8  # 64 of 68 rows: drop_last
    assert len({row for step in first + rest for row in step}) == 64


EAGER = OutputOptions(format="tensorflow")


def test_the_eager_format_names_the_extra_without_tensorflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.delitem(sys.modules, "parquet_loader.collate.tf_output", raising=False)
    write_numbered(str(tmp_path), ((10,),))
    with pytest.raises(MissingPackageError, match=r"format='tensorflow'.*torch-parquet-loader\[tensorflow\]"):
        BatchedDataLoader(str(tmp_path), 4, output_options=EAGER)


def test_eager_tensors_have_no_device(tf: Any, tmp_path: Path) -> None:
    write_numbered(str(tmp_path), ((10,),))
    with pytest.raises(ConfigurationError, match="leave device out"):
        BatchedDataLoader(str(tmp_path), 4, device="cuda", output_options=EAGER)


@pytest.mark.parametrize("batch_size", [64, 37, 1])
def test_operations_on_eager_tensors_of_any_alignment_leave_other_batches_alone(
    tf: Any, tmp_path: Path, batch_size: int
) -> None:
    x = np.random.default_rng(0).random((640, 3), dtype=np.float32)
    flag = x[:, 0] > 0.5
    write_dataset({"x": x, "flag": flag, "list": [[row] * (row % 3) for row in range(640)]}, str(tmp_path))
    changed = tf.function(lambda x: tf.tensor_scatter_nd_update(tf.nn.relu(x), [[0, 0]], [9.0]), reduce_retracing=True)
    kept = []
    with BatchedDataLoader(str(tmp_path), batch_size, output_options=EAGER) as loader:
        for batch in loader:
            assert changed(batch["x"])[0, 0] == 9
            variable = tf.Variable(batch["x"])
            variable.assign_add(tf.ones_like(variable))
            kept.append(batch)
    assert np.array_equal(np.concatenate([batch["x"].numpy() for batch in kept]), x)
    assert np.array_equal(np.concatenate([batch["flag"].numpy() for batch in kept]), flag)
    assert [row for batch in kept for row in batch["list"].to_list()] == [[row] * (row % 3) for row in range(640)]
