"""Shared by the demos of all frameworks: errors, moments of the features, and the lines that are printed."""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demo.task import Task, flights, own_data
from parquet_loader import BatchedDataLoader, LoaderStats, OutputOptions

BATCH_SIZE = 1024
PEAK_LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-4
NUMPY = OutputOptions(format="numpy")
Array = NDArray[np.float32]
Batch = Mapping[str, Any]


@dataclass(slots=True)
class Errors:
    """Sums of squared and of absolute errors over all added batches."""

    rows: int = 0
    squared: float = 0.0
    absolute: float = 0.0

    def add(self, predicted: Any, actual: Any) -> None:
        """Add a batch of predictions ``[batch]``, arrays or tensors on a CPU."""
        error = np.asarray(predicted, np.float64) - np.asarray(actual, np.float64)
        self.rows += len(error)
        self.squared += float(np.square(error).sum())
        self.absolute += float(np.abs(error).sum())

    @property
    def mse(self) -> float:
        """Mean squared error."""
        return self.squared / self.rows

    @property
    def mae(self) -> float:
        """Mean absolute error."""
        return self.absolute / self.rows


def inputs(batch: Batch, task: Task) -> tuple[Array, Array]:
    """Return the numeric features ``[batch, n]`` and the label ``[batch]`` of a batch of numpy arrays."""
    label = batch[task.label].astype(np.float32)
    dense = np.concatenate([batch[name].reshape(len(label), -1).astype(np.float32) for name in task.dense], 1)
    return np.nan_to_num(dense, nan=0, posinf=0, neginf=0), label


def moments(task: Task) -> tuple[Array, Array]:
    """Return means and standard deviations over the training part, ``[n + 1]`` each: features first, the label last."""
    rows, total, squares = 0, np.zeros(()), np.zeros(())
    columns = [*task.dense, task.label]
    with BatchedDataLoader(task.train, BATCH_SIZE, schema=task.schema, columns=columns, output_options=NUMPY) as loader:
        for batch in loader:
            dense, label = inputs(batch, task)
            numbers = np.concatenate([dense, label[:, None]], 1).astype(np.float64)
            rows += len(numbers)
            total = total + numbers.sum(0)
            squares = squares + np.square(numbers).sum(0)
    mean = total / rows
    variance = squares / rows - np.square(mean)
    varies = variance > 1e-12 * (1 + np.square(mean))  # a smaller variance is rounding: the column is constant
    return mean.astype(np.float32), np.sqrt(np.where(varies, variance, 1)).astype(np.float32)


def widths(task: Task) -> list[tuple[int, int]]:
    """Return the size of each category's vocabulary, and the width of its embedding."""
    return [(size, min(16, (size + 1) // 2)) for size in task.categories.values()]


def errors_of(predict: Callable[[Any], Any], batches: Iterable[Any], task: Task, mean: float) -> dict[str, Errors]:
    """Return the errors of a model, and of the predictions without a model.

    Args:
        predict: Returns the model's predictions ``[batch]`` for a batch.
        batches: The validation part.
        task: The regression.
        mean: The mean of the label over the training part.
    """
    errors = {"model": Errors(), "the mean": Errors()}
    for batch in batches:
        label = batch[task.label]
        errors["model"].add(predict(batch), label)
        errors["the mean"].add(mean, label)
        if task.rule_of_thumb:
            name, rule = task.rule_of_thumb
            errors.setdefault(name, Errors()).add(rule(batch), label)
    return errors


def peak_memory_mb() -> float:
    """Return the peak memory of this process, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e6 / 1024)


def print_header(loader: BatchedDataLoader) -> None:
    """Print the loader, and the column names for `print_epoch`."""
    print(f"{loader!r}\n")
    print("epoch  train MSE  validation MSE  validation MAE    rows/s  waiting for data  peak memory")


def print_epoch(epoch: int, train_mse: float, errors: dict[str, Errors], stats: LoaderStats) -> None:
    """Print a line about an epoch."""
    print(
        f"{epoch:5}  {train_mse:9.4g}  {errors['model'].mse:14.4g}  {errors['model'].mae:14.4g}"
        f"  {stats.rows_per_s:8,.0f}  {stats.wait_share:16.1%}  {peak_memory_mb():8.0f} MB"
    )


def print_loading(stats: LoaderStats) -> None:
    """Print the memory that loading took, the bottleneck, and the advice."""
    print(f"\nthe loader held at most {stats.peak_bytes / 1e6:.0f} MB; {stats.verdict}")
    print("".join(f"  {finding.text}\n" for finding in stats.findings), end="")


def report(errors: dict[str, Errors]) -> None:
    """Compare the model with the predictions without a model."""
    model = errors.pop("model")
    print(f"on the {model.rows:,} validation rows the model has MSE {model.mse:.4g}, MAE {model.mae:.4g}")
    for name, other in errors.items():
        change = 1 - model.mse / other.mse
        verdict = f"{change:.1%} less" if change > 0 else f"{-change:.1%} MORE: nothing was gained"
        print(f"  predicting {name}: MSE {other.mse:.4g}, MAE {other.mae:.4g}; the model's MSE is {verdict}")


def threads_for_the_model() -> int:
    """Return half the number of CPUs; the other half is for reading ahead.

    Threads of a model wait for one another at every step, so one thread without a free CPU delays all of them.
    """
    return max(1, (os.cpu_count() or 1) // 2)


def main(train: Callable[[Task, int], dict[str, Errors]], module: str) -> None:
    """Train as the command line says.

    Args:
        train: Trains on a task for a number of epochs, and returns the errors of the last validation.
        module: Name of the module that runs, for the usage message.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description="Train on a Parquet data set.")
    parser.add_argument("--data", help="your own Parquet file or directory; default: the flights")
    parser.add_argument("--target", help="the numeric column to predict, for --data")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    if bool(options.data) != bool(options.target):
        parser.error("--data and --target go together")
    start = time.perf_counter()
    task = own_data(options.data, options.target) if options.data else flights()
    print(f"memory before reading: {peak_memory_mb():.0f} MB (Python, the framework and pyarrow)")
    report(train(task, options.epochs))
    print(f"total time: {time.perf_counter() - start:.0f} s")
