"""Columns that a filter may name although no file stores them: row positions, and hashes of text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import GOLDEN, Words, hashed_bytes, mixed, mixed_words
from parquet_loader.source import RowGroupRef, Snapshot

_POSITION = re.compile(r"parquet_loader\.positions-1:(?:(row_group|file)|rows/(\d+)):(\d+)")
_TEXT = re.compile(r"parquet_loader\.splitmix-bytes-1:(\d+):(.*)", re.DOTALL)


def position_name(unit: int | Literal["row_group", "file"], seed: int) -> str:
    """Return the column in which the rows of a unit have the same hash, by the method ``positions-1``."""
    return f"parquet_loader.positions-1:{unit if isinstance(unit, str) else f'rows/{unit}'}:{seed}"


def text_name(column: str, seed: int) -> str:
    """Return the column that holds the hash of another one's text or bytes, by the method ``splitmix-bytes-1``."""
    return f"parquet_loader.splitmix-bytes-1:{seed}:{column}"


def virtual_columns(text: str, columns: Iterable[str]) -> pa.Schema:
    """Return the virtual columns that may occur in an expression, which is over `columns`; all are uint64.

    Where one column's name begins with another's there may be more than do occur.
    """
    names = [match[0] for match in _POSITION.finditer(text)]
    for column in columns if "splitmix-bytes-1" in text else ():
        pattern = re.escape(text_name(column, 0)).replace(":0:", r":\d+:", 1)
        names += re.findall(pattern, text)
    return pa.schema([(name, pa.uint64()) for name in dict.fromkeys(names)])


def hashed_column(name: str) -> str | None:
    """Return the column whose hash a virtual column holds, None for a position."""
    match = _TEXT.fullmatch(name)
    return None if match is None else match[2]


def with_hashes(table: pa.Table, names: Iterable[str]) -> pa.Table:
    """Append virtual columns of hashes to a table that has the columns they are of; null where these are."""
    for name in names:
        match = _TEXT.fullmatch(name)
        if match is not None:
            key = np.uint64(mixed(int(match[1])))
            chunks = table.column(match[2]).cast(pa.large_binary()).chunks
            hashes = [pa.array(mixed_words(hashed_bytes(c) ^ key), mask=_is_null(c)) for c in chunks]
            table = table.append_column(name, pa.chunked_array(hashes, pa.uint64()))
    return table


def _is_null(values: pa.Array) -> npt.NDArray[np.bool_] | None:
    nulls: npt.NDArray[np.bool_] = values.is_null().to_numpy(zero_copy_only=False)
    return nulls if values.null_count else None


def is_constant(name: str) -> bool:
    """Whether a virtual column is a position that all rows of a row group share."""
    match = _POSITION.fullmatch(name)
    return match is not None and match[1] is not None


class Positions:
    """The positions of a snapshot's rows: method ``positions-1``. Immutable.

    A file's key is ``mixed(hash ^ digest)``, of the hash of its name (without directories) and its footer's digest. The
    place of its row groups is ``mixed(key + (1 + number) * GOLDEN)``, modulo 2**64; that of runs of n rows the same of
    the row's number in the file, divided by n and rounded down; that of the file is the key. Columns hold
    ``mixed(place ^ mixed(seed))``.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        names = pa.array([os.path.basename(file.path).encode() for file in snapshot.files], pa.large_binary())
        self._keys = mixed_words(hashed_bytes(names) ^ snapshot.file_digest.astype(np.uint64))
        first_rows = snapshot.first_rows[:-1]
        first_groups = np.searchsorted(snapshot.row_group_file, snapshot.row_group_file, "left")
        self._first_rows = first_rows - first_rows[first_groups]
        self._snapshot = snapshot

    def column(self, name: str, row_group: RowGroupRef, first_row: int, rows: int) -> Any:
        """Return a virtual column for rows of a row group, uint64 ``[rows]``; None for one that is no position."""
        match = _POSITION.fullmatch(name)
        if match is None:
            return None
        if match[1] is not None:
            return pa.repeat(
                pa.scalar(self.constants(name, row_group.index, row_group.index + 1)[0], pa.uint64()), rows
            )
        first = int(self._first_rows[row_group.index]) + first_row
        key = self._keys[row_group.file_number]
        return pa.array(_hashed(_numbered(key, np.arange(first, first + rows) // int(match[2])), int(match[3])))

    def constants(self, name: str, first: int, stop: int) -> Words:
        """Return what the rows of each of some row groups have in a column that `is_constant`: uint64 ``[groups]``."""
        match = _POSITION.fullmatch(name)
        assert match is not None
        row_keys = self._keys[self._snapshot.row_group_file[first:stop]]
        if match[1] == "row_group":
            row_keys = _numbered(row_keys, self._snapshot.row_group_number[first:stop])
        return _hashed(row_keys, int(match[3]))


def _numbered(keys: Words | np.uint64, numbers: npt.NDArray[np.integer]) -> Words:
    return mixed_words(keys + (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN))


def _hashed(row_keys: Words, seed: int) -> Words:
    return mixed_words(row_keys ^ np.uint64(mixed(seed)))
