"""The figures of loaders for systems that record metrics."""

from __future__ import annotations

from parquet_loader.loader.metrics.figures import Measured, lineage_of, metrics_of
from parquet_loader.loader.metrics.openmetrics import openmetrics_text
from parquet_loader.loader.metrics.server import MetricsServer
from parquet_loader.loader.metrics.telemetry import observe
from parquet_loader.loader.metrics.trackers import lightning_callback, log_mlflow, log_tensorboard, log_wandb

__all__ = [
    "Measured",
    "MetricsServer",
    "lightning_callback",
    "lineage_of",
    "log_mlflow",
    "log_tensorboard",
    "log_wandb",
    "metrics_of",
    "observe",
    "openmetrics_text",
]
