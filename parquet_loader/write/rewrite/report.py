"""The report of `rewrite_dataset`: values, JSON, and a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from parquet_loader.common import format_bytes, format_count

Objective: TypeAlias = Literal["speed", "size"]

COLUMN_HEADS: tuple[str, ...] = ("column", "stored as", "nulls", "before", "after")

_WIDEST_NAME = 32
_MOST_COLUMNS_SHOWN = 60


@dataclass(frozen=True, slots=True)
class ColumnReport:
    """How one column is stored now.

    Attributes:
        name: The stored column; a packed group is one.
        type: Its Arrow type in the new files.
        nullable: Whether its rows may be null in the new files.
        encoding: ``"plain"`` or ``"dictionary"``.
        codec: ``"none"``, ``"lz4"`` or ``"zstd"``.
        bytes_before: Bytes in the source files, for a packed group of all members; 0 if the source lacks the column.
        bytes_after: Bytes in the new files.
    """

    name: str
    type: str
    nullable: bool
    encoding: str
    codec: str
    bytes_before: int
    bytes_after: int

    def cells(self) -> tuple[str, ...]:
        """Return the column's line of a table, under `COLUMN_HEADS`."""
        way = self.encoding if self.codec == "none" else f"{self.encoding}+{self.codec}"
        nulls = "nullable" if self.nullable else "not null"
        return self.name, way, nulls, format_bytes(self.bytes_before), format_bytes(self.bytes_after)


@dataclass(frozen=True, slots=True)
class RewriteReport:
    """The result of `rewrite_dataset`. `to_dict` returns JSON values, `print` shows a table.

    Attributes:
        source: The source of the rows.
        path: Directory of the new data set.
        rows, files, row_groups: Rows, files and row groups written by this run.
        row_group_bytes: Decoded size of a row group, as given or chosen.
        bytes_before: Stored bytes of the columns that were read.
        bytes_after: Bytes of the new files.
        temporary_bytes: Bytes of temporary files.
        shuffled: The method and seed of the shuffle; None without one.
        objective: The objective by which the layout was chosen.
        notes: How the data differed from a sample, so that all rows were written again.
        columns: A report for each stored column.
        seconds: The time it took.
    """

    source: str
    path: str
    rows: int
    files: int
    row_groups: int
    row_group_bytes: int
    bytes_before: int
    bytes_after: int
    temporary_bytes: int
    shuffled: str | None
    objective: str
    notes: tuple[str, ...]
    columns: tuple[ColumnReport, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return asdict(self) | {"notes": list(self.notes), "columns": [asdict(column) for column in self.columns]}

    def __repr__(self) -> str:
        return (
            f"RewriteReport({self.path!r}: {self.rows} rows, {format_bytes(self.bytes_before)} -> "
            f"{format_bytes(self.bytes_after)})"
        )

    def __str__(self) -> str:
        size = format_bytes(self.row_group_bytes)
        before, after = format_bytes(self.bytes_before), format_bytes(self.bytes_after)
        rows = f"{format_count(self.rows, 'row')} in {format_count(self.files, 'file')}"
        head = [
            f"{self.path}: {rows}, {format_count(self.row_groups, 'row group')} of up to {size} decoded",
            f"bytes: {before} -> {after} ({self.bytes_after / max(self.bytes_before, 1):.2f}), in {self.seconds:.1f} s",
        ]
        if self.shuffled:
            head.append(f"shuffled: {self.shuffled}; {format_bytes(self.temporary_bytes)} of temporary files")
        table = [COLUMN_HEADS]
        for name, *others in (column.cells() for column in self.columns[:_MOST_COLUMNS_SHOWN]):
            table.append((name if len(name) <= _WIDEST_NAME else name[: _WIDEST_NAME - 3] + "...", *others))
        rest = len(self.columns) - _MOST_COLUMNS_SHOWN
        lines = [*head, *_aligned(table), *([f"... and {format_count(rest, 'more column')}"] if rest > 0 else [])]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return ["  ".join([*(cell.ljust(w) for cell, w in zip(row[:-1], widths, strict=True)), row[-1]]) for row in rows]
