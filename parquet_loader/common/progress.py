"""The progress bar, if tqdm is installed."""

from __future__ import annotations

import importlib
from typing import Any

from parquet_loader.errors import MissingPackageError


def progress_bar() -> Any:
    """Return tqdm's class of bars.

    Raises:
        MissingPackageError: tqdm is not installed.
    """
    try:
        return importlib.import_module("tqdm.auto").tqdm
    except ImportError as error:
        raise MissingPackageError("progress=True needs tqdm: pip install 'torch-parquet-loader[progress]'") from error
