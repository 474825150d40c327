"""Lets old names work for a time, with a warning at the caller's line. docs/errors.md states the policy."""

from __future__ import annotations

import sys
import warnings

from parquet_loader.errors import ParquetLoaderDeprecationWarning


def warn_at_caller(message: str, category: type[Warning]) -> None:
    """Warn at the line of the code that called the package."""
    frame, level = sys._getframe(0), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "parquet_loader":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def warn_deprecated(old: str, new: str, removed_in: str) -> None:
    """Warn that `old` is deprecated, what replaces it, and which version removes it.

    For a renamed function, class or attribute, call this in the old one; for a name of a module, in the module's
    ``__getattr__``.
    """
    message = f"{old} is deprecated and will be removed in version {removed_in}; use {new}"
    warn_at_caller(message, ParquetLoaderDeprecationWarning)
