"""Batches as a `keras.utils.PyDataset`, on each backend of Keras."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import (
    BatchedDataLoader,
    ConfigurationError,
    DataError,
    MixedLoader,
    OutputOptions,
    PerformanceWarning,
    TokenLoader,
    UnsupportedError,
    write_dataset,
)
from tests.support.datasets import write_numbered

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(300)]
NUMPY = OutputOptions(format="numpy")


@pytest.fixture
def data(tmp_path: Path) -> str:
    pytest.importorskip("keras", reason="keras is not installed: pip install '.[frameworks]'")
    write_numbered(str(tmp_path), ((30, 11), (25,), (), (1,)))
    return str(tmp_path)


def ids(batch: Any) -> list[int]:
    found: list[int] = batch["id"].tolist()
    return found


def test_batches_have_the_numbers_of_the_loader(data: str) -> None:
    with BatchedDataLoader(data, 8, shuffle=True, output_options=NUMPY) as loader:
        epochs = [[ids(batch) for batch in loader] for _ in range(2)]
        loader.set_epoch(0)
        batches = loader.to_keras(ids)
        assert len(batches) == batches.num_batches == 9
        for epoch in epochs:
            assert [batches[number] for number in range(9)] == epoch
            batches.on_epoch_end()
        loader.set_epoch(0)
        batches = loader.to_keras(ids)
        assert [batches[0], batches[1]] == epochs[0][:2]
        batches.on_epoch_end()  # as Keras calls it after a look at the first batches
        with pytest.warns(PerformanceWarning, match="shuffle=False"):
            assert [batches[number] for number in (3, 1, 8, 0, 1)] == [epochs[0][n] for n in (3, 1, 8, 0, 1)]


def test_a_mixture_delivers_its_epochs_and_the_rest_of_one(data: str) -> None:
    loaders = {name: BatchedDataLoader(data, 8, shuffle=True, seed=ord(name)) for name in "ab"}
    with MixedLoader(loaders, {"a": 2, "b": 1}) as loader:
        epochs = [[ids(batch) for batch in loader] for _ in range(2)]
        loader.set_epoch(0)
        batches = loader.to_keras(ids)
        for epoch in epochs:
            assert [batches[number] for number in range(len(batches))] == epoch
        loader.seek(1, 4)
        rest = loader.to_keras(ids)
        assert [rest[number] for number in range(len(rest))] == epochs[1][4:]
        assert loader.state_dict()["epoch"] == 2


def test_a_dataset_within_an_epoch_is_the_rest_of_it(data: str) -> None:
    with BatchedDataLoader(data, 8, shuffle=True, output_options=NUMPY) as loader:
        whole = [ids(batch) for batch in loader]
        loader.seek(0, 7)
        with pytest.raises(ConfigurationError, match="epoch 0 has 2 batches left"):
            loader.to_keras(ids)
        loader.seek(0, 6)
        rest = loader.to_keras(ids)
        assert [rest[number] for number in range(len(rest))] == whole[6:]
        rest.on_epoch_end()
        with pytest.raises(ConfigurationError, match=r"from batch 6 on; call to_keras\(\) again"):
            rest[0]
        assert loader.state_dict()["batch"] == 0


def test_a_loader_whose_epochs_differ_in_length_is_refused(data: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "documents")
    write_dataset({"input_ids": [[number] * (number % 9 + 1) for number in range(40)]}, folder)
    arguments: dict[str, Any] = {"length": 8, "batch_size": 2, "output_options": NUMPY}
    with (
        TokenLoader(folder, shuffle=True, **arguments) as loader,
        pytest.raises(UnsupportedError, match="to_keras: epochs of a shuffled TokenLoader may differ"),
    ):
        loader.to_keras()
    with TokenLoader(folder, **arguments) as loader:
        expected = [batch["input_ids"].tolist() for batch in loader]
        batches = loader.to_keras(lambda batch: batch["input_ids"].tolist())
        for _ in range(2):
            assert [batches[number] for number in range(len(batches))] == expected


def test_a_loader_whose_epochs_may_end_early_is_refused(data: str) -> None:
    with BatchedDataLoader(data, 8, on_error="skip", output_options=NUMPY) as loader:
        with pytest.raises(UnsupportedError, match="to_keras: with on_error='skip', an epoch may end early"):
            loader.to_keras()
        with (
            MixedLoader({"a": loader}, {"a": 1}) as mixture,
            pytest.raises(UnsupportedError, match="to_keras: with on_error='skip' in a loader, an epoch may end early"),
        ):
            mixture.to_keras()


@pytest.mark.parametrize("bad_row", [0, 39])
def test_a_batch_that_failed_can_be_requested_again(data: str, tmp_path: Path, bad_row: int) -> None:
    ids_or_null = [None if row == bad_row else row for row in range(40)]
    pq.write_table(pa.table({"id": pa.array(ids_or_null)}), tmp_path / "nulls.parquet", row_group_size=8)
    with BatchedDataLoader(tmp_path / "nulls.parquet", 8, window_rows=8, output_options=NUMPY) as loader:
        batches = loader.to_keras(ids)
        for number in range(5):
            if number == bad_row // 8:
                for _ in range(2):
                    with pytest.raises(DataError, match=f"column 'id', row {bad_row % 8}: is null"):
                        batches[number]
            else:
                assert batches[number] == list(range(8 * number, 8 * number + 8))
        assert loader.state_dict()["epoch"] == (0 if bad_row == 39 else 1)  # the last batch ends the epoch


@pytest.mark.parametrize(("name", "value"), [("workers", 2), ("use_multiprocessing", True)])
def test_workers_of_keras_are_refused(data: str, name: str, value: Any) -> None:
    with BatchedDataLoader(data, 8, output_options=NUMPY) as loader:
        batches = loader.to_keras(ids)
        with pytest.raises(UnsupportedError, match=f"to_keras: {name}={value}: the loader reads in the background"):
            setattr(batches, name, value)
        setattr(batches, name, int(value) - 1)
        assert (batches.workers, batches.use_multiprocessing) == (1, False)


# All backends get numpy arrays. The page on Keras trains with TensorFlow, and the demo, also slow, with JAX.
@pytest.mark.parametrize(
    "backend", ["torch", *(pytest.param(name, marks=pytest.mark.slow) for name in ("jax", "tensorflow"))]
)
def test_fit_uses_each_row_once_an_epoch(data: str, backend: str) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    script = """
        import json, sys
        import keras, numpy as np
        from parquet_loader import BatchedDataLoader, OutputOptions

        class Total(keras.layers.Layer):
            def __init__(self):
                super().__init__()
                self.rows = self.add_weight(shape=(67,), initializer="zeros", trainable=False)
                self.factor = self.add_weight(shape=(), initializer="zeros")

            def call(self, x):
                hot = keras.ops.one_hot(keras.ops.cast(x[:, 0], "int32"), 67)
                self.rows.assign(self.rows + keras.ops.sum(hot, 0))
                return x * self.factor

        def pairs(batch):
            x = batch["id"].astype(np.float32)[:, None]
            return x, x

        model = keras.Sequential([keras.Input((1,)), Total()])
        model.compile(optimizer="sgd", loss="mse")
        states = []
        with BatchedDataLoader(
            sys.argv[1], 8, shuffle=True, output_options=OutputOptions(format="numpy")
        ) as loader:
            save = lambda batch, logs: states.append(loader.state_dict(batches=batch + 1))
            saving = keras.callbacks.LambdaCallback(on_train_batch_end=save)
            model.fit(loader.to_keras(pairs), epochs=3, shuffle=False, verbose=0, callbacks=[saving])
        rows = [w for w in model.non_trainable_weights if w.shape == (67,)][0]
        print(json.dumps([keras.ops.convert_to_numpy(rows).tolist(), [[s["epoch"], s["batch"]] for s in states]]))
    """
    command = [sys.executable, "-c", textwrap.dedent(script), data]
    environment = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    rows, states = json.loads(done.stdout.splitlines()[-1])
    assert rows == [3.0] * 67
    assert states == [[n // 9, n % 9] for n in range(1, 28)]
