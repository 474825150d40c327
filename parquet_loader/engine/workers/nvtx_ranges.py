"""NVTX ranges around jobs and waits, for NVIDIA's profilers, if an environment variable asks for them.

It is a variable and not an argument, because a profiler is started from outside and child processes inherit it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from parquet_loader.common import needs_package

VARIABLE = "PARQUET_LOADER_NVTX"
DOMAIN = "parquet_loader"

T = TypeVar("T")
Mark: TypeAlias = Callable[[str, Callable[[], T]], T]


def marking() -> Mark[T] | None:
    """Return a function that calls another function inside a named range; None if no ranges are requested.

    Raises:
        MissingPackageError: Ranges are requested, and `nvtx` is not installed.
    """
    if os.environ.get(VARIABLE, "0") in ("", "0"):
        return None
    with needs_package(
        "nvtx",
        f"{VARIABLE}={os.environ[VARIABLE]}: ranges for profilers need nvtx: "
        f"pip install 'torch-parquet-loader[nvtx]', or unset {VARIABLE}",
    ):
        nvtx = importlib.import_module("nvtx")

    def mark(name: str, run: Callable[[], T]) -> T:
        nvtx.push_range(name, domain=DOMAIN)
        try:
            return run()
        finally:
            nvtx.pop_range(domain=DOMAIN)

    return mark
