"""Instruments of an OpenTelemetry meter, which the SDK reads whenever it exports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from parquet_loader.common import needs_package
from parquet_loader.loader.metrics.figures import METRICS, Measured, Metric, counters_of, loaders_by_name


def observe(loaders: Mapping[str, Measured], meter: Any = None) -> None:
    """Create an observable gauge for each figure, with the name of its loader as the attribute ``loader``.

    The meter keeps no loader alive. Totals are gauges too, because they begin at 0 in each epoch.

    Args:
        loaders: The loaders by name.
        meter: An `opentelemetry.metrics.Meter`; default: the meter of the global provider.

    Raises:
        ConfigurationError: There is no loader, or a value is not a loader.
        MissingPackageError: opentelemetry is not installed.
    """
    named = loaders_by_name("observe", loaders)
    with needs_package("opentelemetry", "observe(): needs OpenTelemetry: pip install 'torch-parquet-loader[otel]'"):
        from opentelemetry import metrics  # noqa: PLC0415
    meter = metrics.get_meter("parquet_loader") if meter is None else meter

    def callback(metric: Metric) -> Callable[[Any], Iterable[Any]]:
        def observed(_: Any) -> Iterable[Any]:
            for name, loader in sorted(named.items()):
                stats = counters_of(loader)
                value = None if stats is None else metric.value(stats)
                if value is not None:
                    yield metrics.Observation(value, {"loader": name})

        return observed

    for metric in METRICS:
        unit = next((u for ending, u in (("seconds", "s"), ("bytes", "By")) if metric.name.endswith(ending)), "1")
        meter.create_observable_gauge(
            f"parquet_loader.{metric.name}", callbacks=[callback(metric)], unit=unit, description=metric.help
        )
