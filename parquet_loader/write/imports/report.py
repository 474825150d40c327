"""The report of an import: values, JSON, and text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from parquet_loader.common import format_bytes, format_count


@dataclass(frozen=True, slots=True)
class SkippedRecords:
    """Records that an import skipped for one reason.

    Attributes:
        reason: The reason.
        count: Number of records.
        examples: The names of the first ones.
    """

    reason: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The result of an import. `to_dict` returns JSON values, `str` shows lines.

    Attributes:
        format: The format of the source.
        source: The path of the source.
        path: Directory of the new data set.
        rows, files: Rows and files of the new data set.
        resumed_rows: The part of `rows` that an earlier, interrupted run wrote.
        bytes_read: Bytes of the records.
        bytes_stored: Bytes of the new files.
        kinds: Number of media of each kind in the rows, by their first bytes.
        skipped: The skipped records, by reason.
        notes: Anything else that a user should know.
        seconds: The time of this run.
        run_bytes: Bytes of the records that this run read.
    """

    format: str
    source: str
    path: str
    rows: int
    files: int
    resumed_rows: int
    bytes_read: int
    bytes_stored: int
    kinds: Mapping[str, int]
    skipped: tuple[SkippedRecords, ...]
    notes: tuple[str, ...]
    seconds: float
    run_bytes: int

    @property
    def skipped_count(self) -> int:
        """Number of skipped records."""
        return sum(skipped.count for skipped in self.skipped)

    @property
    def rows_per_s(self) -> float:
        """Rows that this run wrote, a second."""
        return (self.rows - self.resumed_rows) / max(self.seconds, 1e-9)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        plain = asdict(self) | {"kinds": dict(self.kinds), "notes": list(self.notes)}
        plain["skipped"] = [asdict(one) | {"examples": list(one.examples)} for one in self.skipped]
        return plain | {"skipped_count": self.skipped_count, "rows_per_s": self.rows_per_s}

    def __str__(self) -> str:
        rate = f"{self.rows_per_s:,.0f} rows/s, {format_bytes(int(self.run_bytes / max(self.seconds, 1e-9)))}/s"
        rows = f"{format_count(self.rows, 'row')} in {format_count(self.files, 'file')}"
        lines = [
            f"{self.path}: {rows}, {format_bytes(self.bytes_stored)}",
            f"{format_bytes(self.bytes_read)} from {self.source} ({self.format}), in {self.seconds:.1f} s: {rate}",
        ]
        if self.resumed_rows:
            lines.append(f"{self.resumed_rows:,} of the rows were written by an interrupted run before")
        if self.kinds:
            lines.append(", ".join(f"{count:,} {kind}" for kind, count in sorted(self.kinds.items())))
        for one in self.skipped:
            more = f" and {one.count - len(one.examples):,} more" if one.count > len(one.examples) else ""
            lines.append(f"skipped {one.count:,}, {one.reason}: {', '.join(one.examples)}{more}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])
