"""Groups the columns of a window by how their rows are ordered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parquet_loader.decode import Arrangement, Column, arrangement_of, flat_columns


@dataclass(frozen=True, slots=True)
class ColumnGroups:
    """The columns of a window, grouped by how their rows are ordered; see `Arrangement`.

    Attributes:
        columns: All columns, in the order of delivery.
        wide: Columns whose rows are written to their final slot when they are decoded.
        ragged: Columns of varying width; a nested list is several of them, see `flat_columns`.
        plain: Names of those that are columns themselves.
        nested: The nested lists.
        narrow: Columns of numbers and of short rows, in parts that are permuted in parallel.
        narrow_ranges: Number of row ranges in which each part of `narrow` is permuted in parallel.
        ranges: Number of row ranges in which ragged columns are gathered in parallel; 0 if none are gathered.
        stored: If a device permutes rows, all columns of fixed width; then `narrow` is empty,
            and `wide` only says which columns take their memory before the first read.
        device_permutes: Whether a device permutes rows; then `Assembly.finish` returns a `StoredWindow`.
        scattered: Names of the ragged columns that are not gathered, see `Window.scattered`; if a device permutes rows,
            all of them but nested lists.
    """

    columns: tuple[Column, ...]
    wide: tuple[Column, ...]
    ragged: tuple[Column, ...]
    plain: tuple[str, ...]
    nested: tuple[Column, ...]
    narrow: tuple[tuple[Column, ...], ...]
    narrow_ranges: int
    ranges: int
    stored: tuple[Column, ...] = ()
    device_permutes: bool = False
    scattered: frozenset[str] = frozenset()

    @classmethod
    def from_columns(
        cls, columns: Sequence[Column], parts: int, *, device_permutes: bool = False, scattered: Sequence[str] = ()
    ) -> ColumnGroups:
        """Group columns; each group has at most `parts` parts or row ranges.

        Args:
            columns: All columns, in the order of delivery.
            parts: The largest number of parts.
            device_permutes: See `ColumnGroups`.
            scattered: Names of columns that need not be gathered; only ragged columns are then left scattered.
        """
        by_kind: dict[Arrangement, list[Column]] = {kind: [] for kind in Arrangement}
        for column in columns:
            by_kind[arrangement_of(column)].append(column)
        wide, varying = tuple(by_kind[Arrangement.DIRECT]), by_kind[Arrangement.RAGGED]
        ragged = tuple(flat for column in varying for flat in flat_columns(column))
        narrow = _divided(by_kind[Arrangement.NARROW], parts)
        stored: tuple[Column, ...] = ()
        if device_permutes:
            # Columns of one type adjoin, so that the device permutes them together.
            each = (*by_kind[Arrangement.NARROW], *wide)
            stored, narrow = tuple(sorted(each, key=lambda c: (c.row_bytes, str(c.dtype), c.shape))), ()
        plain = tuple(column.name for column in varying if column.is_ragged)
        apart = frozenset(plain if device_permutes else set(plain).intersection(scattered))
        return cls(
            tuple(columns),
            wide,
            ragged,
            plain,
            tuple(column for column in varying if not column.is_ragged),
            narrow,
            parts // max(1, len(narrow)),
            parts if len(apart) < len(ragged) else 0,
            stored,
            device_permutes,
            apart,
        )

    @property
    def jobs(self) -> int:
        """Number of `gather` jobs, which order the rows; they may run in parallel."""
        return self.narrow_ranges * len(self.narrow) + self.ranges


def _divided(columns: Sequence[Column], parts: int) -> tuple[tuple[Column, ...], ...]:
    """Divide columns of fixed width into at most `parts` parts of about equal bytes."""
    weights = np.cumsum([c.row_bytes or 1 for c in columns])
    numbers = np.minimum(weights * parts // (weights[-1] + 1), parts - 1) if columns else np.zeros(0, np.int64)
    chosen = [tuple(c for c, n in zip(columns, numbers, strict=True) if n == part) for part in range(parts)]
    return tuple(part for part in chosen if part)
