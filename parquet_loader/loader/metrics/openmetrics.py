"""Figures as OpenMetrics text, version 1.0. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from parquet_loader.loader.metrics.figures import METRICS
from parquet_loader.loader.stats import LoaderStats

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def openmetrics_text(loaders: Mapping[str, LoaderStats]) -> str:
    """Return the figures of loaders, each with its name as the label `loader`.

    Totals begin at 0 in each epoch, as after a restart of a process; Prometheus' `rate()` handles such resets.
    """
    lines = []
    for metric in METRICS:
        values = [(name, metric.value(stats)) for name, stats in loaders.items()]
        if all(value is None for _, value in values):
            continue
        family = f"parquet_loader_{metric.name}"
        unit = next((unit for unit in ("seconds", "bytes", "ratio") if family.endswith(f"_{unit}")), None)
        lines.append(f"# TYPE {family} {'counter' if metric.is_total else 'gauge'}")
        lines += [] if unit is None else [f"# UNIT {family} {unit}"]
        lines.append(f"# HELP {family} {metric.help}")
        suffix = "_total" if metric.is_total else ""
        lines += [f'{family}{suffix}{{loader="{_escaped(name)}"}} {float(v)!r}' for name, v in values if v is not None]
    return "".join(f"{line}\n" for line in [*lines, "# EOF"])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
