"""Paths of environments, data and logs, and of results and pages."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from benchmarks.suite.workloads import DataSet

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "benchmarks" / "requirements"


@dataclass(frozen=True, slots=True)
class Places:
    """Directories.

    Attributes:
        environments: Virtual environments, one a system: ``bench-<name>``.
        data: Generated data sets and other formats' copies of them.
        logs: What the measured processes print.
        results: JSON, one file a workload.
        page: The report.
        images: Its plots.
    """

    environments: Path
    data: Path
    logs: Path
    results: Path
    page: Path
    images: Path

    def data_set(self, data: DataSet, rows: int) -> Path:
        """Return the directory of a data set with `rows` rows; it has a subdirectory for each layout."""
        return self.data / f"{data.name}-{rows}"


def default_home() -> Path:
    """Return `$PARQUET_LOADER_BENCH`, or a directory of the checkout that git ignores."""
    return Path(os.environ.get("PARQUET_LOADER_BENCH", ROOT / ".bench"))
