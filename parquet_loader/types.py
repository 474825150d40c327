"""Plain values that the stages hand to one another."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from parquet_loader.errors import ConfigurationError
from parquet_loader.jagged import Ragged

__all__ = [
    "BoolArray",
    "Digests",
    "IntArray",
    "Ragged",
    "Shard",
    "check_int",
    "format_bytes",
    "parse_bytes",
]

IntArray: TypeAlias = npt.NDArray[np.int64]
Digests: TypeAlias = npt.NDArray[np.uint64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def parse_bytes(value: int | float | str, name: str = "memory_limit") -> int:
    """Return a number of bytes given as an int or as text such as ``"1GiB"``, ``"512 MB"``.

    Raises:
        ConfigurationError: it is neither, or not positive.
    """
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", value)
        if match and match[2].lower() in _UNITS:
            value = float(match[1]) * _UNITS[match[2].lower()]
    if isinstance(value, bool | str) or not isinstance(value, int | float | np.integer) or not value >= 1:
        raise ConfigurationError(f"{name}={value!r}: expected a positive number of bytes, such as 2**30 or '1GiB'")
    return int(value)


def format_bytes(count: float) -> str:
    """Return a number of bytes for people to read, such as ``"1.5 GiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def check_int(name: str, value: Any, lowest: int, highest: int) -> int:
    """Return an integer argument.

    Raises:
        ConfigurationError: it is none, or out of range (both ends included).
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not lowest <= value <= highest:
        raise ConfigurationError(f"{name}={value!r}: expected an integer from {lowest} to {highest}")
    return int(value)


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of the rows that one rank owns.

    Attributes:
        rank: From 0 to ``world_size - 1``.
        world_size: Number of ranks.
    """

    rank: int
    world_size: int

    def __post_init__(self) -> None:
        check_int("Shard world_size", self.world_size, 1, 2**31)
        check_int("Shard rank", self.rank, 0, self.world_size - 1)
