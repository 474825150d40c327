"""Train the network of `demo.train` with Keras and `fit`, on JAX unless `KERAS_BACKEND` names another backend.

python -m demo.train_keras                                       the flights that demo.prepare wrote
python -m demo.train_keras --data /path/to/parquet --target column
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras

from demo.keras_model import features_of, optimiser, regressor
from demo.regression import (
    BATCH_SIZE,
    NUMPY,
    Errors,
    errors_of,
    main,
    moments,
    print_epoch,
    print_header,
    print_loading,
)
from demo.task import Task
from parquet_loader import BatchedDataLoader


def train(task: Task, epochs: int) -> dict[str, Errors]:
    """Train for `epochs` epochs, print a line after each, and return the errors of the last validation."""
    keras.utils.set_random_seed(0)
    mean, std = moments(task)
    model = regressor(mean, std, task)
    variance, errors = float(std[-1]) ** 2, {}
    with (
        BatchedDataLoader(
            task.train, BATCH_SIZE, schema=task.schema, shuffle=True, seed=0, output_options=NUMPY
        ) as loader,
        BatchedDataLoader(task.validation, BATCH_SIZE, schema=task.schema, output_options=NUMPY) as held_out,
    ):

        def predict(batch: Any) -> Any:
            return model.predict_on_batch(features_of(batch, task)[0])

        def validate(epoch: int, logs: dict[str, float]) -> None:
            errors.update(errors_of(predict, held_out, task, float(mean[-1])))
            print_epoch(epoch, logs["loss"] * variance, errors, loader.stats())

        print_header(loader)
        model.compile(
            optimiser(epochs * len(loader)),
            loss=lambda label, predicted: keras.ops.square(label - predicted) / variance,
        )
        validation = keras.callbacks.LambdaCallback(on_epoch_end=validate)
        batches = loader.to_keras(lambda batch: features_of(batch, task))
        model.fit(batches, epochs=epochs, shuffle=False, verbose=0, callbacks=[validation])
        print_loading(loader.stats())
    return errors


if __name__ == "__main__":
    main(train, "demo.train_keras")
