"""Train a small network on a Parquet data set, and print the cost of loading and the errors of the model.

python -m demo.train                                             the flights that demo.prepare wrote
python -m demo.train --data /path/to/parquet --target column     all numeric columns of other data

`demo.train_jax`, `demo.train_tensorflow` and `demo.train_keras` train the same network in other frameworks.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from tqdm import tqdm

from demo.regression import (
    BATCH_SIZE,
    PEAK_LEARNING_RATE,
    WEIGHT_DECAY,
    Errors,
    errors_of,
    main,
    moments,
    print_epoch,
    print_header,
    print_loading,
    threads_for_the_model,
    widths,
)
from demo.task import Task
from parquet_loader import BatchedDataLoader

Batch = dict[str, Tensor]


class Regressor(nn.Module):
    """Three dense layers over the normalised numbers and the embeddings of the categories.

    Args:
        mean: Means of the numeric features and, last, of the label, ``[n + 1]``.
        std: Their standard deviations, ``[n + 1]``.
        categories: Size of each category's vocabulary, and the width of its embedding.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor, categories: list[tuple[int, int]]) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.embeddings = nn.ModuleList(nn.Embedding(size, width) for size, width in categories)
        width = len(mean) - 1 + sum(width for _, width in categories)
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


def inputs(batch: Batch, task: Task) -> tuple[Tensor, Tensor]:
    """Return the numeric features ``[batch, n]`` and the label ``[batch]``."""
    rows = len(batch[task.label])
    dense = torch.cat([batch[name].reshape(rows, -1).float() for name in task.dense], 1)
    return dense.nan_to_num(0, 0, 0), batch[task.label].float()


def codes(batch: Batch, task: Task) -> list[Tensor]:
    """Return the codes ``[batch]`` of each category."""
    return [batch[name] for name in task.categories]


def validate(model: Regressor, loader: BatchedDataLoader, task: Task) -> dict[str, Errors]:
    """Return the errors of the model and of the predictions without a model, over the validation part."""
    with torch.no_grad():
        return errors_of(
            lambda batch: model(inputs(batch, task)[0], codes(batch, task)), loader, task, model.mean[-1].item()
        )


def run_epoch(
    model: nn.Module,
    batches: Iterable[dict[str, Tensor]],
    task: Task,
    variance: Tensor,
    optimiser: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> Errors:
    """Train for one epoch, with the squared error relative to the label's variance; return the training errors."""
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
    """Train for `epochs` epochs, print a line after each, and return the errors of the last validation."""
    torch.manual_seed(0)
    mean, std = map(torch.from_numpy, moments(task))
    model = Regressor(mean, std, widths(task))
    with (
        BatchedDataLoader(task.train, BATCH_SIZE, schema=task.schema, shuffle=True, seed=0) as loader,
        BatchedDataLoader(task.validation, BATCH_SIZE, schema=task.schema) as held_out,
    ):
        print_header(loader)
        optimiser = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        steps = epochs * len(loader)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, PEAK_LEARNING_RATE, total_steps=steps)
        errors: dict[str, Errors] = {}
        for epoch in range(epochs):
            batches = tqdm(loader, desc=f"epoch {epoch}", unit="batch", leave=False, disable=None)
            seen = run_epoch(model, batches, task, std[-1] ** 2, optimiser, schedule)
            errors = validate(model, held_out, task)
            print_epoch(epoch, seen.mse, errors, loader.stats())
        print_loading(loader.stats())
    return errors


if __name__ == "__main__":
    torch.set_num_threads(threads_for_the_model())
    main(train, "demo.train")
