"""``parquet-loader --version``: installed versions, for bug reports."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import Any

import click

from parquet_loader.cli.console import show_lines
from parquet_loader.common import PROBLEM, kernels_remedy

PACKAGE = "torch-parquet-loader"


def kernels_line() -> str:
    """Return whether the compiled kernels are used; if not, why, and what to do."""
    return f"no: {PROBLEM}; {kernels_remedy()}" if PROBLEM else "yes"


def show_version(context: click.Context, _: click.Parameter, is_asked: Any) -> None:
    """Print the versions of packages, without importing them, and exit."""
    if not is_asked or context.resilient_parsing:
        return
    show_lines(
        f"parquet-loader {_version(PACKAGE)}",
        f"Python {platform.python_version()} on {platform.platform()}",
        *(f"{name} {_version(name)}" for name in ("pyarrow", "numpy", "torch")),
        f"kernels: {kernels_line()}",
    )
    context.exit()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        loaded = sys.modules.get("parquet_loader") if package == PACKAGE else None
        return str(getattr(loaded, "__version__", "not installed"))
