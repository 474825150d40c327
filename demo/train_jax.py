"""Train the network of `demo.train` in JAX, with Flax NNX and Optax.

python -m demo.train_jax                                         the flights that demo.prepare wrote
python -m demo.train_jax --data /path/to/parquet --target column
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from tqdm import tqdm

from demo.regression import (
    BATCH_SIZE,
    PEAK_LEARNING_RATE,
    WEIGHT_DECAY,
    Array,
    Batch,
    Errors,
    errors_of,
    main,
    moments,
    print_epoch,
    print_header,
    print_loading,
    widths,
)
from demo.task import Task
from parquet_loader import BatchedDataLoader, OutputOptions

JAX = OutputOptions(format="jax")
EMBEDDING = nnx.initializers.normal(1.0)  # torch's defaults
KERNEL = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


class Regressor(nnx.Module):  # type: ignore[misc]
    """Three dense layers over the normalised numbers and the embeddings of the categories.

    Args:
        mean: Means of the numeric features and, last, of the label, ``[n + 1]``.
        std: Their standard deviations, ``[n + 1]``.
        categories: Size of each category's vocabulary, and the width of its embedding.
        rngs: Random generators that draw the parameters.
    """

    def __init__(self, mean: Array, std: Array, categories: list[tuple[int, int]], rngs: nnx.Rngs) -> None:
        self.mean, self.std = nnx.Variable(jnp.asarray(mean)), nnx.Variable(jnp.asarray(std))
        self.embeddings = nnx.List(
            [nnx.Embed(size, width, embedding_init=EMBEDDING, rngs=rngs) for size, width in categories]
        )
        features = len(mean) - 1 + sum(width for _, width in categories)
        first, second, last = (
            nnx.Linear(*sizes, kernel_init=KERNEL, rngs=rngs) for sizes in ((features, 256), (256, 128), (128, 1))
        )
        self.layers = nnx.Sequential(first, nnx.relu, second, nnx.relu, last)

    def __call__(self, dense: jax.Array, codes: list[jax.Array]) -> jax.Array:
        """Return predictions ``[batch]``, in the label's unit, for features ``[batch, n]`` and codes ``[batch]``."""
        normal = (dense - self.mean[:-1]) / self.std[:-1]
        embedded = [embedding(code) for embedding, code in zip(self.embeddings, codes, strict=True)]
        output: jax.Array = self.layers(jnp.concatenate([normal, *embedded], 1))
        return output[:, 0] * self.std[-1] + self.mean[-1]


def predictions(model: Regressor, batch: Batch, task: Task) -> jax.Array:
    """Return the model's predictions ``[batch]``."""
    rows = len(batch[task.label])
    dense = jnp.concatenate([batch[name].reshape(rows, -1).astype(jnp.float32) for name in task.dense], 1)
    return model(jnp.nan_to_num(dense, posinf=0, neginf=0), [batch[name] for name in task.categories])


def train(task: Task, epochs: int) -> dict[str, Errors]:
    """Train for `epochs` epochs, print a line after each, and return the errors of the last validation."""
    mean, std = moments(task)
    model = Regressor(mean, std, widths(task), nnx.Rngs(0))

    @nnx.jit  # type: ignore[untyped-decorator]
    def step(model: Regressor, optimiser: nnx.Optimizer, batch: Batch) -> jax.Array:
        """Train on a batch, and return the sum of its squared errors before the update."""

        def loss(model: Regressor) -> jax.Array:
            error = predictions(model, batch, task) - batch[task.label].astype(jnp.float32)
            return jnp.mean(jnp.square(error)) / std[-1] ** 2

        value, slopes = nnx.value_and_grad(loss)(model)
        optimiser.update(model, slopes)
        squared: jax.Array = value * std[-1] ** 2 * len(batch[task.label])
        return squared

    predict = nnx.jit(lambda model, batch: predictions(model, batch, task))
    with (
        BatchedDataLoader(
            task.train, BATCH_SIZE, schema=task.schema, shuffle=True, seed=0, output_options=JAX
        ) as loader,
        BatchedDataLoader(task.validation, BATCH_SIZE, schema=task.schema, output_options=JAX) as held_out,
    ):
        print_header(loader)
        rate = optax.cosine_onecycle_schedule(epochs * len(loader), PEAK_LEARNING_RATE)
        optimiser = nnx.Optimizer(model, optax.adamw(rate, weight_decay=WEIGHT_DECAY), wrt=nnx.Param)
        errors: dict[str, Errors] = {}
        for epoch in range(epochs):
            rows, squared = 0, jnp.zeros(())
            for batch in tqdm(loader, desc=f"epoch {epoch}", unit="batch", leave=False, disable=None):
                squared += step(model, optimiser, batch)  # stays on the device, so the loop does not wait for it
                rows += len(batch[task.label])
            errors = errors_of(lambda batch: predict(model, batch), held_out, task, float(mean[-1]))
            print_epoch(epoch, float(squared) / rows, errors, loader.stats())
        print_loading(loader.stats())
    return errors


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)  # other data may hold 64-bit numbers; the model uses 32 bits
    main(train, "demo.train_jax")
