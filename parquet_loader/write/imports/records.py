"""What a format hands to `importing`: a schema, then chunks of rows, each with the position behind it."""

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
    """What an import has read and left out.

    Attributes:
        rows: Rows.
        nbytes: Bytes of their records.
        kinds: How many media of each kind they hold.
        skipped: By reason, how many records were left out, and the first of them.
    """

    rows: int = 0
    nbytes: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, tuple[int, list[str]]] = field(default_factory=dict)

    def skip(self, reason: str, name: str) -> None:
        """Count a record that is left out."""
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
        """Return it as JSON values."""
        return {"rows": self.rows, "nbytes": self.nbytes, "kinds": self.kinds, "skipped": self.skipped}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Tally:
        """Return what `to_json` returned."""
        skipped = {reason: (count, examples) for reason, (count, examples) in values["skipped"].items()}
        return cls(values["rows"], values["nbytes"], Counter(values["kinds"]), skipped)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is known of a source before its first row; kept in the journal, so that a resumed import goes on alike.

    Attributes:
        schema: Of the rows.
        facts: JSON values for `ImportSource.chunks`.
        metadata: Text for the footers of the files, by key.
        notes: For the report.
        total: How much there is to read, in the unit of `ImportedRows.done`; 0 if that is not known.
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
        table: In the stored form of the schema; it may be without rows.
        position: Where the source continues behind them.
        tally: What was read since the chunk before.
        done: How much of the source is read up to here.
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
        """Return JSON values that differ if the source is another, or has changed."""

    @abstractmethod
    def prepare(self) -> Prepared:
        """Return the schema; may read all of the source."""

    @abstractmethod
    def chunks(self, prepared: Prepared, position: Position | None, group_bytes: int) -> Iterator[ImportedRows]:
        """Yield the rows in order, from a position on.

        Args:
            prepared: What `prepare` returned, now or in the run that was interrupted.
            position: That of the last chunk that was kept; None: from the beginning.
            group_bytes: About how many bytes a chunk has.

        Raises:
            SourceError: the source has changed since the interrupted run read what lies before the position.
        """


def listed(path: str) -> list[os.DirEntry[str]]:
    """Return the entries of a directory by name.

    Raises:
        SourceError: it cannot be listed.
    """
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise SourceError(f"{path}: cannot be listed ({error.strerror or error})") from error
