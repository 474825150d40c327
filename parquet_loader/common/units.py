"""Parses and formats numbers of bytes."""

from __future__ import annotations

import math
import re

import numpy as np

from parquet_loader.errors import ConfigurationError

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def parse_bytes(value: int | float | str, name: str = "memory_limit") -> int:
    """Parse a number of bytes: an int, or text such as ``"1GiB"`` or ``"512 MB"``.

    Raises:
        ConfigurationError: it is neither, or not positive.
    """
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", value)
        if match and match[2].lower() in _UNITS:
            value = float(match[1]) * _UNITS[match[2].lower()]
    if isinstance(value, bool | str) or not isinstance(value, int | float | np.integer) or not 1 <= value < math.inf:
        raise ConfigurationError(f"{name}={value!r}: expected a positive number of bytes, such as 2**30 or '1GiB'")
    return int(value)


def format_count(count: int, noun: str) -> str:
    """Return a number of things for people to read, such as ``"1 file"`` or ``"1,000 batches"``."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"


def format_bytes(count: float) -> str:
    """Return a number of bytes for people to read, such as ``"1.5 GiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
