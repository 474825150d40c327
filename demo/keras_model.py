"""The network of `demo.train` in Keras, on whichever backend Keras runs."""

from __future__ import annotations

import math
from typing import Any

import keras

from demo.regression import PEAK_LEARNING_RATE, WEIGHT_DECAY, Array, Batch, inputs, widths
from demo.task import Task

EMBEDDING = keras.initializers.RandomNormal(stddev=1.0)  # torch's defaults
KERNEL = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")


def regressor(mean: Array, std: Array, task: Task) -> keras.Model:
    """Return the model, which takes a dict: ``"numbers"``, ``[batch, n]``, and the codes ``[batch]`` of each category.

    Args:
        mean: Means of the numeric features and, last, of the label, ``[n + 1]``.
        std: Their standard deviations, ``[n + 1]``.
        task: The regression to learn.
    """
    features = {"numbers": keras.Input((len(mean) - 1,), name="numbers")}
    features |= {name: keras.Input((), dtype="int32", name=name) for name in task.categories}
    normal = (features["numbers"] - mean[:-1]) / std[:-1]
    embedded = [
        keras.layers.Embedding(size, width, EMBEDDING)(features[name])
        for name, (size, width) in zip(task.categories, widths(task), strict=True)
    ]
    hidden = keras.layers.Concatenate()([normal, *embedded]) if embedded else normal
    for width in (256, 128):
        hidden = keras.layers.Dense(width, activation="relu", kernel_initializer=KERNEL)(hidden)
    output = keras.layers.Dense(1, kernel_initializer=KERNEL)(hidden)
    return keras.Model(features, output[:, 0] * float(std[-1]) + float(mean[-1]))


def features_of(batch: Batch, task: Task) -> tuple[dict[str, Any], Array]:
    """Return the model's inputs from a batch of numpy arrays, and the label ``[batch]``."""
    dense, label = inputs(batch, task)
    return {"numbers": dense, **{name: batch[name] for name in task.categories}}, label


class OneCycle(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """Learning rates that rise to the peak in the first 30 % of the steps, and then fall to nearly zero."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps

    def __call__(self, step: Any) -> Any:
        """Return the learning rate of a step."""
        peak, low, last = PEAK_LEARNING_RATE, PEAK_LEARNING_RATE / 25, PEAK_LEARNING_RATE / 25e4
        rise = 0.3 * self._steps
        step = keras.ops.cast(step, "float32")
        rising = low + (peak - low) * (1 - keras.ops.cos(math.pi * step / rise)) / 2
        falling = last + (peak - last) * (1 + keras.ops.cos(math.pi * (step - rise) / (self._steps - rise))) / 2
        return keras.ops.where(step < rise, rising, falling)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {"steps": self._steps}


def optimiser(steps: int) -> keras.optimizers.Optimizer:
    """Return the optimiser for a training run of `steps` steps."""
    return keras.optimizers.AdamW(OneCycle(steps), weight_decay=WEIGHT_DECAY)
