"""Computes a checksum of an epoch, which does not depend on the order of rows, but on all rows and values.

The bits of each value are multiplied by an odd 64-bit constant of its column and position, and added up over the row.
The sum of each row is scrambled, and the scrambled sums are added up. So a lost, duplicated or changed row, and values
that moved to another row or column, change the total. Arithmetic is modulo 2**64. Needs only numpy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.suite.workloads import Column

Words = npt.NDArray[np.uint64]
_BLOCK_VALUES = 1 << 20


class ChecksumError(Exception):
    """The delivered rows differ from the expected rows."""


class Checksum:
    """Adds up batches.

    Attributes:
        rows: Rows seen so far.
        total: The checksum of them.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self.rows = 0
        self.total = 0
        self._columns = tuple(columns)
        self._weights = {column.name: _weights(column.name, 2 + _places(column)) for column in columns}

    def add(self, batch: Mapping[str, Any]) -> None:
        """Take a batch: an array by name, or (values, offsets) for lists and texts.

        Raises:
            ChecksumError: columns are missing or too many, differ in length, or lose values in their proper type.
        """
        names = {column.name for column in self._columns}
        if set(batch) != names:
            raise ChecksumError(f"expected the columns {sorted(names)}, got {sorted(batch)}")
        sums: Words | None = None
        for column in self._columns:
            part = self._row_sums(column, batch[column.name])
            if sums is not None and len(part) != len(sums):
                raise ChecksumError(f"column {column.name}: {len(part)} rows beside {len(sums)}")
            sums = part if sums is None else sums + part
        assert sums is not None
        self.rows += len(sums)
        self.total = (self.total + int(_scramble(sums).sum(dtype=np.uint64))) % 2**64

    def __str__(self) -> str:
        return f"{self.total:016x}"

    def _row_sums(self, column: Column, given: Any) -> Words:
        if column.kind in ("list", "text"):
            return self._list_sums(column, *given)
        values = _exactly(column, np.asarray(given))
        if column.kind == "scalar":
            if values.ndim != 1:
                raise ChecksumError(f"column {column.name}: expected [rows], got {values.shape}")
            return np.asarray(_bits(values) * self._weights[column.name][1], np.uint64)
        if values.ndim < 2 or values[:1].size != column.width * len(values[:1]):
            raise ChecksumError(f"column {column.name}: expected {column.width} values a row, got {values.shape}")
        words = np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint64)
        weights = self._weights[column.name][1 : 1 + words.shape[1]]
        step = max(1, _BLOCK_VALUES // words.shape[1])
        blocks = [(words[i : i + step] * weights).sum(axis=1) for i in range(0, len(words), step)]
        return np.concatenate([np.empty(0, np.uint64), *blocks])

    def _list_sums(self, column: Column, values: Any, offsets: Any) -> Words:
        values, bounds = _exactly(column, np.asarray(values)), np.asarray(offsets).astype(np.int64)
        if bounds[0] != 0 or bounds[-1] != len(values):
            raise ChecksumError(f"column {column.name}: offsets from {bounds[0]} to {bounds[-1]}, {len(values)} values")
        lengths = np.diff(bounds)
        longest = int(lengths.max(initial=0))
        if longest + 2 > len(self._weights[column.name]):
            self._weights[column.name] = _weights(column.name, 2 * longest + 2)
        weights = self._weights[column.name]
        places = np.arange(len(values)) - np.repeat(bounds[:-1], lengths)
        running = np.zeros(len(values) + 1, np.uint64)
        np.cumsum(_bits(values) * weights[1:][places], out=running[1:])
        return np.asarray(
            running[bounds[1:]] - running[bounds[:-1]] + lengths.astype(np.uint64) * weights[0], np.uint64
        )


def _places(column: Column) -> int:
    return 4096 if column.kind in ("list", "text") else max(1, column.row_bytes // 8)


def _exactly(column: Column, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the values in the column's type; a system may deliver them in a wider one."""
    if values.dtype == np.dtype(column.dtype):
        return values
    if values.dtype.kind not in "iuf":
        raise ChecksumError(f"column {column.name}: expected {column.dtype}, got {values.dtype}")
    cast = values.astype(column.dtype)
    if not np.array_equal(cast, values):
        raise ChecksumError(f"column {column.name}: values of {values.dtype} do not fit {column.dtype}")
    return cast


def _bits(values: npt.NDArray[Any]) -> Words:
    return np.ascontiguousarray(values).view(f"u{values.itemsize}").astype(np.uint64)


def _scramble(words: Words) -> Words:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _weights(name: str, count: int) -> Words:
    """Odd numbers that depend on the name and the place; more of them begin with the fewer."""
    start = np.uint64(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little"))
    return _scramble(start + np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) | np.uint64(1)
