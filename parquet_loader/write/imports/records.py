"""The interface of a format to `importing`: a schema, then chunks of rows, each with the position after it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from parquet_loader.errors import SourceError
from parquet_loader.schema import Schema

Position: TypeAlias = Any
"""JSON values: where a source continues."""

_MOST_EXAMPLES = 20


@dataclass(slots=True)
class Tally:
    """Counts the rows that an import has read, and the records that it has skipped.

    Attributes:
        rows: Number of rows.
        nbytes: Bytes of their records.
        kinds: Number of media of each kind.
        skipped: The number of skipped records, and the names of the first ones, by reason.
    """

    rows: int = 0
    nbytes: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, tuple[int, list[str]]] = field(default_factory=dict)

    def skip(self, reason: str, name: str) -> None:
        """Count a skipped record."""
        count, examples = self.skipped.get(reason, (0, []))
        self.skipped[reason] = count + 1, (examples if len(examples) >= _MOST_EXAMPLES else [*examples, name])

    def add(self, other: Tally) -> None:
        """Add the counts of another."""
        self.rows += other.rows
        self.nbytes += other.nbytes
        self.kinds.update(other.kinds)
        for reason, (count, examples) in other.skipped.items():
            before, known = self.skipped.get(reason, (0, []))
            self.skipped[reason] = before + count, [*known, *examples][:_MOST_EXAMPLES]

    def to_json(self) -> dict[str, Any]:
        """Return the tally as JSON values."""
        return {"rows": self.rows, "nbytes": self.nbytes, "kinds": self.kinds, "skipped": self.skipped}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Tally:
        """Return the tally of values from `to_json`."""
        skipped = {reason: (count, examples) for reason, (count, examples) in values["skipped"].items()}
        return cls(values["rows"], values["nbytes"], Counter(values["kinds"]), skipped)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything known about a source before its first row; the journal keeps it for a resumed import.

    Attributes:
        schema: The schema of the rows.
        facts: JSON values for `ImportSource.chunks`.
        metadata: Text for the footers of the files, by key.
        notes: Notes for the report.
        total: The amount to read, in the unit of `ImportedRows.done`; 0 if not known.
    """

    schema: Schema
    facts: Any = None
    metadata: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    total: int = 0


@dataclass(frozen=True, slots=True)
class ImportedRows:
    """Rows that become one row group.

    Attributes:
        table: The rows in the stored form of the schema; may be empty.
        position: Where the source continues after them.
        tally: The tally since the previous chunk.
        done: The amount read so far.
    """

    table: pa.Table
    position: Position
    tally: Tally
    done: int


class ImportSource(ABC):
    """A source in one format. Reading it is repeatable: from one position it gives the same rows again.

    Attributes:
        format: Its name.
        path: The source.
    """

    format: str
    path: str

    @abstractmethod
    def identity(self) -> Any:
        """Return JSON values that differ for another source, or for a source that has changed."""

    @abstractmethod
    def prepare(self) -> Prepared:
        """Return the schema; may read all of the source."""

    @abstractmethod
    def chunks(self, prepared: Prepared, position: Position | None, group_bytes: int) -> Iterator[ImportedRows]:
        """Yield the rows in order, from a position on.

        Args:
            prepared: The result of `prepare`, in this run or in the interrupted one.
            position: The position of the last chunk in a finished file; None for the beginning.
            group_bytes: Approximate bytes of a chunk.

        Raises:
            SourceError: The part of the source before the position has changed since the interrupted run.
        """


def listed(path: str) -> list[os.DirEntry[str]]:
    """Return the entries of a directory by name.

    Raises:
        SourceError: The directory cannot be listed.
    """
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise SourceError(f"{path}: cannot be listed ({error.strerror or error})") from error
