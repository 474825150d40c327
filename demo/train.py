"""Train a small network on a Parquet data set, and say what it cost and what it was worth.

python -m demo.train                                             the flights that demo.prepare wrote
python -m demo.train --data /path/to/parquet --target column     all numeric columns of other data
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from tqdm import tqdm

from demo.task import Task, flights, own_data
from parquet_loader import BatchedDataLoader

BATCH_SIZE = 1024
Batch = dict[str, Tensor]


class Regressor(nn.Module):
    """Embeddings of the categories beside the normalised numbers, and three dense layers.

    Args:
        mean: Means of the numeric features and, last, of the label, ``[n + 1]``.
        std: Their standard deviations, ``[n + 1]``.
        vocabularies: Size of each category's vocabulary.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor, vocabularies: list[int]) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        widths = [min(16, (size + 1) // 2) for size in vocabularies]
        self.embeddings = nn.ModuleList(nn.Embedding(*pair) for pair in zip(vocabularies, widths, strict=True))
        width = len(mean) - 1 + sum(widths)
        self.layers = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, dense: Tensor, codes: list[Tensor]) -> Tensor:
        """Return predictions ``[batch]``, in the label's unit.

        Args:
            dense: Numeric features, ``[batch, n]``.
            codes: Codes of each category, ``[batch]``.
        """
        normal = (dense - self.mean[:-1]) / self.std[:-1]
        embedded = [embedding(code) for embedding, code in zip(self.embeddings, codes, strict=True)]
        output: Tensor = self.layers(torch.cat([normal, *embedded], 1))
        return output.squeeze(1) * self.std[-1] + self.mean[-1]


@dataclass(slots=True)
class Errors:
    """Sums of squared and of absolute errors, over as many batches as are added."""

    rows: int = 0
    squared: float = 0.0
    absolute: float = 0.0

    def add(self, predicted: Tensor, actual: Tensor) -> None:
        """Add a batch of predictions ``[batch]``."""
        error = (predicted - actual).double()
        self.rows += len(actual)
        self.squared += error.square().sum().item()
        self.absolute += error.abs().sum().item()

    @property
    def mse(self) -> float:
        """Mean squared error."""
        return self.squared / self.rows

    @property
    def mae(self) -> float:
        """Mean absolute error."""
        return self.absolute / self.rows


def inputs(batch: Batch, task: Task) -> tuple[Tensor, Tensor]:
    """Return the numeric features ``[batch, n]`` and the label ``[batch]``."""
    rows = len(batch[task.label])
    dense = torch.cat([batch[name].reshape(rows, -1).float() for name in task.dense], 1)
    return dense.nan_to_num(0, 0, 0), batch[task.label].float()


def codes(batch: Batch, task: Task) -> list[Tensor]:
    """Return the codes ``[batch]`` of each category."""
    return [batch[name] for name in task.categories]


def moments(task: Task) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation over the training part, ``[n + 1]`` each: the features', then the label's."""
    rows, total, squares = 0, torch.zeros(()), torch.zeros(())
    columns = [*task.dense, task.label]
    with BatchedDataLoader(task.train, BATCH_SIZE, schema=task.schema, columns=columns) as loader:
        for batch in loader:
            dense, label = inputs(batch, task)
            numbers = torch.cat([dense, label[:, None]], 1).double()
            rows += len(numbers)
            total = total + numbers.sum(0)
            squares = squares + numbers.square().sum(0)
    mean = total / rows
    variance = squares / rows - mean.square()
    varies = variance > 1e-12 * (1 + mean.square())  # less is rounding: the column is constant
    return mean.float(), torch.where(varies, variance, 1).sqrt().float()


def validate(model: Regressor, loader: BatchedDataLoader, task: Task) -> dict[str, Errors]:
    """Return the errors of the model and of the predictions that need none, over the validation part."""
    errors = {"model": Errors(), "the mean": Errors()}
    with torch.no_grad():
        for batch in loader:
            dense, label = inputs(batch, task)
            errors["model"].add(model(dense, codes(batch, task)), label)
            errors["the mean"].add(model.mean[-1], label)
            if task.rule_of_thumb:
                name, predict = task.rule_of_thumb
                errors.setdefault(name, Errors()).add(predict(batch), label)
    return errors


def peak_memory_mb() -> float:
    """Return the most memory that this process has held, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e6 / 1024)


def run_epoch(
    model: nn.Module,
    batches: Iterable[dict[str, Tensor]],
    task: Task,
    variance: Tensor,
    optimiser: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> Errors:
    """Train for one pass, with the squared error in units of the target's variance; return the errors seen."""
    seen = Errors()
    for batch in batches:
        dense, label = inputs(batch, task)
        predicted = model(dense, codes(batch, task))
        loss = nn.functional.mse_loss(predicted, label) / variance
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        seen.add(predicted.detach(), label)
    return seen


def train(task: Task, epochs: int) -> dict[str, Errors]:
    """Train for `epochs` passes, print a line after each, and return the errors of the last validation."""
    torch.manual_seed(0)
    print(f"memory before reading: {peak_memory_mb():.0f} MB: Python, torch and pyarrow")
    mean, std = moments(task)
    model = Regressor(mean, std, list(task.categories.values()))
    with (
        BatchedDataLoader(task.train, BATCH_SIZE, schema=task.schema, shuffle=True, seed=0) as loader,
        BatchedDataLoader(task.validation, BATCH_SIZE, schema=task.schema) as held_out,
    ):
        print(f"{loader!r}\n")
        print("epoch  train MSE  validation MSE  validation MAE    rows/s  waiting for data  peak memory")
        optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=epochs * len(loader))
        errors: dict[str, Errors] = {}
        for epoch in range(epochs):
            batches = tqdm(loader, desc=f"epoch {epoch}", unit="batch", leave=False, disable=None)
            seen = run_epoch(model, batches, task, std[-1] ** 2, optimiser, schedule)
            errors = validate(model, held_out, task)
            stats = loader.stats()
            print(
                f"{epoch:5}  {seen.mse:9.4g}  {errors['model'].mse:14.4g}  {errors['model'].mae:14.4g}"
                f"  {stats.rows_per_s:8,.0f}  {stats.wait_share:16.1%}  {peak_memory_mb():8.0f} MB"
            )
        stats = loader.stats()
        print(f"\nthe loader held at most {stats.peak_bytes / 1e6:.0f} MB; {stats.verdict}")
        print("".join(f"  {finding.text}\n" for finding in stats.findings), end="")
    return errors


def report(errors: dict[str, Errors]) -> None:
    """Print what the model is worth beside the predictions that need no model."""
    model = errors.pop("model")
    print(f"on the {model.rows:,} validation rows the model has MSE {model.mse:.4g}, MAE {model.mae:.4g}")
    for name, other in errors.items():
        change = 1 - model.mse / other.mse
        verdict = f"{change:.1%} less" if change > 0 else f"{-change:.1%} MORE: nothing was gained"
        print(f"  predicting {name}: MSE {other.mse:.4g}, MAE {other.mae:.4g}; the model's MSE is {verdict}")


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m demo.train", description="Train on a Parquet data set.")
    parser.add_argument("--data", help="a Parquet file or directory of your own; default: the flights")
    parser.add_argument("--target", help="the numeric column to predict, for --data")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    if bool(options.data) != bool(options.target):
        parser.error("--data and --target go together")
    start = time.perf_counter()
    # Half of the processors for the model, half for reading ahead: torch's threads wait for one another at every step,
    # and one that finds no processor free holds up all of them.
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))
    task = own_data(options.data, options.target) if options.data else flights()
    report(train(task, options.epochs))
    print(f"all in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
