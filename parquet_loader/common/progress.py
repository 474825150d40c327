"""The progress bar, if tqdm is installed."""

from __future__ import annotations

import importlib
from typing import Any

from parquet_loader.errors import ConfigurationError


def progress_bar() -> Any:
    """Return tqdm's class of bars.

    Raises:
        ConfigurationError: there is no tqdm.
    """
    try:
        return importlib.import_module("tqdm.auto").tqdm
    except ImportError as error:
        raise ConfigurationError("progress=True needs tqdm: pip install 'torch-parquet-loader[progress]'") from error
