"""Plain values that the stages hand to one another."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from parquet_loader.errors import ConfigurationError

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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ragged:
    """Rows of varying length: all values end to end, and where each row begins.

    Attributes:
        values: Array or tensor ``[total, ...]``, or a `Ragged` for lists of lists and lists of text; uint8 for text
            and bytes.
        offsets: int64 ``[rows + 1]``, from 0 to ``total``; row ``i`` is ``values[offsets[i]:offsets[i + 1]]``.
        kind: ``"list"``, ``"text"`` (UTF-8) or ``"bytes"``: what `to_list` makes of a row.
    """

    values: Any
    offsets: Any
    kind: Literal["list", "text", "bytes"] = "list"

    def __len__(self) -> int:
        return int(self.offsets.shape[0]) - 1

    def __repr__(self) -> str:
        inner = self.values if isinstance(self.values, Ragged) else self.values.dtype
        return f"Ragged({len(self)} rows of {inner if self.kind == 'list' else self.kind}, {self.total} in all)"

    def __getitem__(self, row: int) -> Any:
        """Return one row: an array or tensor, a `Ragged`, a str or bytes."""
        rows = len(self)
        if not -rows <= row < rows:
            raise IndexError(f"row {row} of {rows}")
        row %= rows
        start, stop = int(self.offsets[row]), int(self.offsets[row + 1])
        if isinstance(self.values, Ragged):
            return self.values.slice(start, stop)
        piece = self.values[start:stop]
        if self.kind == "list":
            return piece
        data = _host(piece).tobytes()
        return data.decode("utf-8") if self.kind == "text" else data

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    @property
    def total(self) -> int:
        """Number of values in all rows together."""
        return len(self.values) if isinstance(self.values, Ragged) else int(self.values.shape[0])

    @property
    def lengths(self) -> Any:
        """Number of values in each row, int64 ``[rows]``."""
        return self.offsets[1:] - self.offsets[:-1]

    def slice(self, start: int, stop: int) -> Ragged:
        """Return rows ``start`` to ``stop`` (exclusive), sharing the values' memory."""
        offsets = self.offsets[start : stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        values = self.values.slice(first, last) if isinstance(self.values, Ragged) else self.values[first:last]
        return Ragged(values, offsets - first, self.kind)

    def to_list(self) -> list[Any]:
        """Return the rows: ``str`` for text, ``bytes`` for bytes, lists for lists of those, else arrays or tensors."""
        if self.kind == "list":
            if isinstance(self.values, Ragged):
                inner = self.values.to_list()
                bounds = self.offsets.tolist()
                return [inner[a:b] for a, b in itertools.pairwise(bounds)]
            return list(self)
        data = _host(self.values).tobytes()
        bounds = self.offsets.tolist()
        pieces = [data[a:b] for a, b in itertools.pairwise(bounds)]
        return [p.decode("utf-8") for p in pieces] if self.kind == "text" else list(pieces)

    def to_padded(self, fill: float = 0, length: int | None = None) -> Any:
        """Return ``[rows, longest, ...]`` with `fill` behind each row's values.

        Args:
            fill: Number behind the last value of each row.
            length: Length of the second axis; longer rows are cut. None: the longest row.
        """
        if isinstance(self.values, Ragged):
            raise TypeError("to_padded: the rows hold rows of varying length themselves; pad their values first")
        rows, lengths = len(self), self.lengths
        width = (int(lengths.max()) if rows else 0) if length is None else length
        shape = (rows, width, *self.values.shape[1:])
        arange, new = _array_functions(self.values)
        padded = new(shape, fill)
        place = arange(width)[None, :] < lengths[:, None]
        taken = self.values
        if length is not None and rows and int(lengths.max()) > width:
            position = arange(self.total) - _repeat(self.offsets[:-1], lengths)
            taken = self.values[position < width]
        padded[place] = taken
        return padded

    def to_nested(self) -> Any:
        """Return a `torch.nested` tensor (jagged layout) that shares the values' memory; needs tensors."""
        if isinstance(self.values, Ragged) or not hasattr(self.values, "new_full"):
            raise TypeError("to_nested: needs torch tensors, and rows of numbers")
        import torch  # noqa: PLC0415  (values are torch tensors, so torch is loaded; the light core never gets here)

        return torch.nested.nested_tensor_from_jagged(self.values, self.offsets)


def _host(values: Any) -> Any:
    """Return the values as a numpy array, those of a GPU copied."""
    return np.asarray(values.cpu() if hasattr(values, "cpu") else values)


def _array_functions(values: Any) -> tuple[Any, Any]:
    """Return ``arange(n)`` and ``full(shape, fill)`` of the array library and device that `values` belong to."""
    if hasattr(values, "new_full"):
        return (lambda n: values.new_ones(n, dtype=_int64(values)).cumsum(0) - 1), values.new_full
    return np.arange, lambda shape, fill: np.full(shape, fill, dtype=values.dtype)


def _int64(values: Any) -> Any:
    return values.new_empty(0).long().dtype


def _repeat(starts: Any, counts: Any) -> Any:
    return starts.repeat_interleave(counts) if hasattr(starts, "repeat_interleave") else np.repeat(starts, counts)
