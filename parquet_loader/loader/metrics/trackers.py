"""Figures and lineage for experiment trackers. Each package is imported by the function that needs it."""

from __future__ import annotations

import sys
from typing import Any

from parquet_loader.common import needs_package
from parquet_loader.errors import MissingPackageError
from parquet_loader.loader.metrics.figures import Measured, lineage_of, metrics_of


def log_tensorboard(loader: Measured, writer: Any, step: int, *, prefix: str = "loader") -> None:
    """Add the figures of the epoch as scalars ``PREFIX/NAME``.

    Args:
        loader: The loader.
        writer: A `torch.utils.tensorboard.SummaryWriter`, or one of tensorboardX.
        step: The step or epoch on the axis.
        prefix: The group of the scalars.

    Raises:
        LoaderStateError: No epoch has begun.
    """
    for name, value in metrics_of(loader.stats()).items():
        writer.add_scalar(f"{prefix}/{name}", value, step)


def log_wandb(loader: Measured, run: Any, step: int | None = None, *, prefix: str = "loader") -> None:
    """Log the figures of the epoch to a run of Weights & Biases, and the lineage to its configuration.

    Args:
        loader: The loader.
        run: The result of `wandb.init`.
        step: As in `run.log`.
        prefix: Before each name, and the key of the lineage in ``run.config``.

    Raises:
        LoaderStateError: No epoch has begun.
    """
    figures = {f"{prefix}/{name}": value for name, value in metrics_of(loader.stats()).items()}
    lineage = lineage_of(loader)
    if run.config.get(prefix) != lineage:
        run.config.update({prefix: lineage}, allow_val_change=True)
    run.log(figures, step=step)


def log_mlflow(loader: Measured, step: int, *, prefix: str = "loader") -> None:
    """Log the figures of the epoch to the active run of MLflow, and the lineage as its tags ``PREFIX.NAME``.

    They are tags and not parameters, because tags may change, and so do the files of a growing source.

    Args:
        loader: The loader.
        step: As in `mlflow.log_metrics`.
        prefix: Before each name.

    Raises:
        LoaderStateError: No epoch has begun.
        MissingPackageError: mlflow is not installed.
    """
    with needs_package("mlflow", "log_mlflow(): needs MLflow: pip install mlflow-skinny"):
        import mlflow  # noqa: PLC0415
    figures = metrics_of(loader.stats())
    mlflow.set_tags({f"{prefix}.{name}": str(value) for name, value in lineage_of(loader).items()})
    mlflow.log_metrics({f"{prefix}.{name}": value for name, value in figures.items()}, step=step)


def lightning_callback(loader: Measured, *, prefix: str = "loader", every_n_steps: int | None = None) -> Any:
    """Return a Lightning callback that logs figures to the trainer's loggers, and the lineage as hyperparameters.

    It logs at the end of each training epoch, on the first rank.

    Args:
        loader: The loader that the trainer iterates over.
        prefix: Before each name.
        every_n_steps: Log also after this many steps of training.

    Raises:
        MissingPackageError: Lightning is not installed.
    """
    base = _lightning().Callback

    class LoaderMetrics(base):  # type: ignore[misc, valid-type]
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
            lineage = {f"{prefix}/{name}": value for name, value in lineage_of(loader).items()}
            for logger in trainer.loggers:
                logger.log_hyperparams(lineage)

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if every_n_steps and trainer.global_step and not trainer.global_step % every_n_steps:
                self._log(trainer)

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
            self._log(trainer)

        def _log(self, trainer: Any) -> None:
            figures = {f"{prefix}/{name}": value for name, value in metrics_of(loader.stats()).items()}
            for logger in trainer.loggers:
                logger.log_metrics(figures, step=trainer.global_step)

    return LoaderMetrics()


def _lightning() -> Any:
    """Return the Lightning package of the caller's trainer: `pytorch_lightning` if only that one is imported."""
    names = ["lightning.pytorch", "pytorch_lightning"]
    if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
        names.reverse()
    for name in names:
        try:
            __import__(name)
        except ImportError:
            continue
        return sys.modules[name]
    raise MissingPackageError("lightning_callback(): needs Lightning: pip install lightning")
