"""Train the network of `demo.train` in TensorFlow: eager tensors, and steps compiled with `tf.function`.

python -m demo.train_tensorflow                                  the flights that demo.prepare wrote
python -m demo.train_tensorflow --data /path/to/parquet --target column
"""

from __future__ import annotations

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf
from tqdm import tqdm

from demo.keras_model import optimiser, regressor
from demo.regression import (
    BATCH_SIZE,
    Batch,
    Errors,
    errors_of,
    main,
    moments,
    print_epoch,
    print_header,
    print_loading,
    threads_for_the_model,
)
from demo.task import Task
from parquet_loader import BatchedDataLoader, OutputOptions

EAGER = OutputOptions(format="tensorflow")


def features_of(batch: Batch, task: Task) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Return the model's inputs from a batch of tensors, and the label ``[batch]``."""
    label = tf.cast(batch[task.label], tf.float32)
    dense = tf.concat([tf.cast(tf.reshape(batch[name], (len(label), -1)), tf.float32) for name in task.dense], 1)
    dense = tf.where(tf.math.is_finite(dense), dense, 0.0)
    return {"numbers": dense, **{name: batch[name] for name in task.categories}}, label


def train(task: Task, epochs: int) -> dict[str, Errors]:
    """Train for `epochs` epochs, print a line after each, and return the errors of the last validation."""
    keras.utils.set_random_seed(0)
    mean, std = moments(task)
    model = regressor(mean, std, task)

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def step(batch: Any) -> tf.Tensor:
        """Train on a batch, and return the sum of its squared errors before the update."""
        features, label = features_of(batch, task)
        with tf.GradientTape() as tape:
            squared = tf.square(model(features, training=True) - label)
            loss = tf.reduce_mean(squared) / float(std[-1]) ** 2
        rule.apply(tape.gradient(loss, model.trainable_variables))
        return tf.reduce_sum(squared)

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def predict(batch: Any) -> tf.Tensor:
        return model(features_of(batch, task)[0])

    with (
        BatchedDataLoader(
            task.train, BATCH_SIZE, schema=task.schema, shuffle=True, seed=0, output_options=EAGER
        ) as loader,
        BatchedDataLoader(task.validation, BATCH_SIZE, schema=task.schema, output_options=EAGER) as held_out,
    ):
        print_header(loader)
        rule = optimiser(epochs * len(loader))
        rule.build(model.trainable_variables)
        errors: dict[str, Errors] = {}
        for epoch in range(epochs):
            rows, squared = 0, tf.zeros(())
            for batch in tqdm(loader, desc=f"epoch {epoch}", unit="batch", leave=False, disable=None):
                squared += step(batch)
                rows += len(batch[task.label])
            errors = errors_of(predict, held_out, task, float(mean[-1]))
            print_epoch(epoch, float(squared) / rows, errors, loader.stats())
        print_loading(loader.stats())
    return errors


if __name__ == "__main__":
    tf.config.threading.set_intra_op_parallelism_threads(threads_for_the_model())
    main(train, "demo.train_tensorflow")
