"""What `rewrite_dataset` did and what it gained: as values, as JSON, and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from parquet_loader.common import format_bytes
from parquet_loader.write.rewrite.load_benchmark import LoadRate

_WIDEST_NAME = 32
_MOST_COLUMNS_SHOWN = 60


@dataclass(frozen=True, slots=True)
class ColumnReport:
    """How one column is stored now, and why.

    Attributes:
        name: The stored column; a packed group is one.
        type: Its Arrow type in the new files.
        nullable: Whether the new files admit nulls in its rows.
        encoding: ``"plain"``, ``"dictionary"``, ``"delta"`` or ``"split"``.
        codec: ``"none"``, ``"lz4"``, ``"snappy"`` or ``"zstd"``.
        why: What decided, with the figures measured on a sample.
        why_nullable: What is known about its nulls.
        bytes_before: Bytes in the source files, of the members together for a packed group; 0 if they lack it.
        bytes_after: Bytes in the new files.
        tried: By encoding and codec, bytes and decoding nanoseconds a row (None: not timed, being no smaller).
    """

    name: str
    type: str
    nullable: bool
    encoding: str
    codec: str
    why: str
    why_nullable: str
    bytes_before: int
    bytes_after: int
    tried: dict[str, dict[str, float | None]] = field(repr=False)


@dataclass(frozen=True, slots=True)
class RewriteReport:
    """What was written, and what was gained. `to_dict` gives it as JSON values, ``print`` as a table.

    Attributes:
        source: Where the rows came from.
        path: Directory of the new data set.
        rows, files, row_groups: Of the new data set (what this run wrote of it).
        row_group_bytes: Size of a row group once decoded, as chosen.
        row_group_ns: Nanoseconds a row to decode, by size of a row group tried; empty if the size was given.
        bytes_before: Bytes of the columns read, as stored in the source.
        bytes_after: Bytes of the new files.
        temporary_bytes: Bytes that went through temporary files.
        shuffled: None, or the method, seed included, that put the rows into order.
        objective: What columns were chosen by.
        load_before, load_after: Loading a part of either, None if it was not measured.
        notes: What turned out otherwise than it seemed, and what was done about it.
        columns: One for each stored column.
        seconds: How long it took, measuring included.
    """

    source: str
    path: str
    rows: int
    files: int
    row_groups: int
    row_group_bytes: int
    row_group_ns: dict[int, float]
    bytes_before: int
    bytes_after: int
    temporary_bytes: int
    shuffled: str | None
    objective: str
    load_before: LoadRate | None
    load_after: LoadRate | None
    notes: tuple[str, ...]
    columns: tuple[ColumnReport, ...]
    seconds: float

    @property
    def gain(self) -> float | None:
        """How many times as many rows a second load."""
        if self.load_before is None or self.load_after is None:
            return None
        return self.load_after.rows_per_s / self.load_before.rows_per_s

    @property
    def cpu_gain(self) -> float | None:
        """How many times less processor time a row takes to load."""
        if self.load_before is None or self.load_after is None:
            return None
        return self.load_before.cpu_s_per_million_rows / max(self.load_after.cpu_s_per_million_rows, 1e-12)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as values that `json.dumps` takes."""
        out = asdict(self)
        out["row_group_ns"] = {str(size): ns for size, ns in self.row_group_ns.items()}
        out["notes"], out["columns"] = list(self.notes), [asdict(column) for column in self.columns]
        return out | {"gain": self.gain, "cpu_gain": self.cpu_gain}

    def __repr__(self) -> str:
        gain = "" if self.gain is None else f", loads {self.gain:.2f} times as fast"
        return (
            f"RewriteReport({self.path!r}: {self.rows} rows, {format_bytes(self.bytes_before)} -> "
            f"{format_bytes(self.bytes_after)}{gain})"
        )

    def __str__(self) -> str:
        size = format_bytes(self.row_group_bytes)
        before, after = format_bytes(self.bytes_before), format_bytes(self.bytes_after)
        head = [
            f"{self.path}: {self.rows:,} rows in {self.files} files, {self.row_groups} row groups of {size}",
            f"bytes: {before} -> {after} ({self.bytes_after / max(self.bytes_before, 1):.2f}), in {self.seconds:.1f} s",
        ]
        if self.load_before is not None and self.load_after is not None:
            old, new = self.load_before, self.load_after
            head.append(
                f"loading: {old.rows_per_s:,.0f} -> {new.rows_per_s:,.0f} rows/s ({self.gain:.2f} times), processor "
                f"{old.cpu_s_per_million_rows:.3f} -> {new.cpu_s_per_million_rows:.3f} s a million rows "
                f"({self.cpu_gain:.2f} times less)"
            )
        if self.shuffled:
            head.append(f"shuffled: {self.shuffled}; {format_bytes(self.temporary_bytes)} of temporary files")
        table = [("column", "stored as", "nulls", "before", "after", "why")]
        for c in self.columns[:_MOST_COLUMNS_SHOWN]:
            way = c.encoding if c.codec == "none" else f"{c.encoding}+{c.codec}"
            nulls = "nullable" if c.nullable else "not null"
            name = c.name if len(c.name) <= _WIDEST_NAME else c.name[: _WIDEST_NAME - 3] + "..."
            table.append((name, way, nulls, format_bytes(c.bytes_before), format_bytes(c.bytes_after), c.why))
        rest = len(self.columns) - _MOST_COLUMNS_SHOWN
        lines = [*head, *_aligned(table), *([f"... and {rest} more columns"] if rest > 0 else [])]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return ["  ".join([*(cell.ljust(w) for cell, w in zip(row[:-1], widths, strict=True)), row[-1]]) for row in rows]
