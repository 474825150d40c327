"""Columns that filters use although no file stores them: hashes of row positions and of text."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import GOLDEN, Words, hashed_bytes, mixed, mixed_words
from parquet_loader.source import RowGroupRef, Snapshot

Unit: TypeAlias = int | Literal["row_group", "file"]
"""Rows that share a hash: that many consecutive rows of a file, or a whole row group or file."""

_POSITION = re.compile(r"parquet_loader\.positions-1:(?:(row_group|file)|rows/(\d+)):(\d+)")
_TEXT = re.compile(r"parquet_loader\.splitmix-bytes-1:(\d+):(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PositionHash:
    """The hash of rows' positions, by the method ``positions-1``; see `Positions`.

    Attributes:
        unit: The rows that have the same hash.
        seed: From 0 to 2**64 - 1.
    """

    unit: Unit
    seed: int

    @property
    def name(self) -> str:
        """The column's name in expressions; states contain it."""
        return f"parquet_loader.positions-1:{self.unit if self.is_constant else f'rows/{self.unit}'}:{self.seed}"

    @property
    def is_constant(self) -> bool:
        """Whether all rows of a row group share it."""
        return isinstance(self.unit, str)


@dataclass(frozen=True, slots=True)
class TextHash:
    """The hash of another column's text or bytes, by the method ``splitmix-bytes-1``.

    Attributes:
        column: The other column.
        seed: From 0 to 2**64 - 1.
    """

    column: str
    seed: int

    @property
    def name(self) -> str:
        """The column's name in expressions; states contain it."""
        return f"parquet_loader.splitmix-bytes-1:{self.seed}:{self.column}"

    def append_to(self, table: pa.Table) -> pa.Table:
        """Append this column to a table that has the other one; null if that is null."""
        key = np.uint64(mixed(self.seed))
        chunks = table.column(self.column).cast(pa.large_binary()).chunks
        hashes = [pa.array(mixed_words(hashed_bytes(c) ^ key), mask=_is_null(c)) for c in chunks]
        return table.append_column(self.name, pa.chunked_array(hashes, pa.uint64()))


def position_hash(name: str) -> PositionHash | None:
    """Return the virtual column of this name; None if it is not one."""
    match = _POSITION.fullmatch(name)
    if match is None:
        return None
    unit: Unit = "file" if match[1] == "file" else "row_group" if match[1] else int(match[2])
    return PositionHash(unit, int(match[3]))


def text_hash(name: str) -> TextHash | None:
    """Return the virtual column of this name; None if it is not one."""
    match = _TEXT.fullmatch(name)
    return None if match is None else TextHash(match[2], int(match[1]))


def _is_null(values: pa.Array) -> npt.NDArray[np.bool_] | None:
    nulls: npt.NDArray[np.bool_] = values.is_null().to_numpy(zero_copy_only=False)
    return nulls if values.null_count else None


class Positions:
    """The positions of a snapshot's rows: method ``positions-1``. Immutable.

    A file's key is ``mixed(hash ^ digest)``, of the hash of its name (without directories) and its footer's digest. The
    key of a row group is ``mixed(key + (1 + number) * GOLDEN)``, modulo 2**64. The key of n consecutive rows is the
    same, with the row's number in the file divided by n and rounded down. Columns hold ``mixed(key ^ mixed(seed))``.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        names = pa.array([os.path.basename(file.path).encode() for file in snapshot.files], pa.large_binary())
        self._keys = mixed_words(hashed_bytes(names) ^ snapshot.file_digest.astype(np.uint64))
        first_rows = np.cumsum(snapshot.row_group_rows) - snapshot.row_group_rows  # deleted rows keep their places
        first_groups = np.searchsorted(snapshot.row_group_file, snapshot.row_group_file, "left")
        self._first_rows = first_rows - first_rows[first_groups]
        self._snapshot = snapshot

    def column(self, column: PositionHash, row_group: RowGroupRef, first_row: int, rows: int) -> pa.Array:
        """Return a virtual column for rows of a row group, uint64 ``[rows]``."""
        if isinstance(column.unit, str):
            return pa.repeat(
                pa.scalar(self.constants(column, row_group.index, row_group.index + 1)[0], pa.uint64()), rows
            )
        first = int(self._first_rows[row_group.index]) + first_row
        key = self._keys[row_group.file_number]
        return pa.array(_hashed(_numbered(key, np.arange(first, first + rows) // column.unit), column.seed))

    def constants(self, column: PositionHash, first: int, stop: int) -> Words:
        """Return the value of a constant column in each row group from `first` to `stop`: uint64 ``[groups]``."""
        row_keys = self._keys[self._snapshot.row_group_file[first:stop]]
        if column.unit == "row_group":
            row_keys = _numbered(row_keys, self._snapshot.row_group_number[first:stop])
        return _hashed(row_keys, column.seed)


def _numbered(keys: Words | np.uint64, numbers: npt.NDArray[np.integer]) -> Words:
    return mixed_words(keys + (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN))


def _hashed(row_keys: Words, seed: int) -> Words:
    return mixed_words(row_keys ^ np.uint64(mixed(seed)))
