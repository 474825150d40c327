"""Counts the nulls of each column from footer statistics, and suggests a schema that reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from parquet_loader.common import BoolArray
from parquet_loader.decode import parts_of, read_name, type_at
from parquet_loader.schema import (
    MOST_FIELDS_IN_SOURCE,
    Field,
    Schema,
    heads,
    refuses_nulls,
    source_of,
    with_nulls,
)
from parquet_loader.source import Metadata, Snapshot

# The most column chunks that are counted, in about a second; for larger sources, only the first files are counted.
_MOST_CHUNKS = 200_000
_NAMES_SHOWN = 20
# A part of the text of each error about a null.
REFUSES_NULLS = "the default refuses nulls"


@dataclass(frozen=True, slots=True)
class NullCount:
    """The number of nulls of a column.

    Attributes:
        nulls: Nulls in the counted rows; None if the footers do not state them.
        rows: The number of counted rows.
        members: The number of columns that the nulls are counted in; more than 1 for a group.
    """

    nulls: int | None
    rows: int
    members: int = 1

    @property
    def share(self) -> float:
        """The share of values that are null."""
        return (self.nulls or 0) / max(1, self.rows * self.members)

    def __str__(self) -> str:
        if self.nulls is None:
            return "unknown"
        share = 100 * self.share
        values = f"{self.rows:,} rows" if self.members == 1 else f"{self.rows * self.members:,} values"
        return f"{f'{share:.2g} %' if share < 10 else f'{share:.0f} %'} ({self.nulls:,} of {values})"


def count_nulls(snapshot: Snapshot, schema: Mapping[str, Field]) -> dict[str, NullCount]:
    """Return the nulls of each field's column according to the footers and to partitions; no data is read.

    The nulls of a group are the sum over its members. Of remote files, only footers in memory count. Statistics do not
    distinguish a null from an empty list, so a number other than 0 is unknown for lists.
    """
    nulls: dict[str, int | None] = dict.fromkeys(schema, 0)
    rows = chunks = 0
    sources: dict[int, dict[str, _Sources | None]] = {}
    absent: dict[str, BoolArray] = {}  # whether a partition column is null in each file
    for file in range(len(snapshot.files)):
        if not len(groups := np.flatnonzero(snapshot.row_group_file == file)) or chunks > _MOST_CHUNKS:
            continue
        footer = snapshot.footers.get(file) if snapshot.remote is None else snapshot.footers.cached(file)
        if footer is None:
            continue
        number = int(snapshot.file_schema[file])
        if number not in sources:
            sources[number] = {name: _sources(snapshot, number, footer, name, field) for name, field in schema.items()}
        for group in groups.tolist():
            group_rows = int(snapshot.row_group_rows[group])
            rows += group_rows
            for name, known in nulls.items():
                source = sources[number][name]
                if known is None or source is None:
                    nulls[name] = None
                    continue
                found = _nulls_of(footer, int(snapshot.row_group_number[group]), source.leaves)
                for constant in source.constants:
                    if constant not in absent:
                        absent[constant] = np.asarray(snapshot.partition_column(constant).is_null())
                    found = found + group_rows if found is not None and absent[constant][file] else found
                nulls[name] = None if found is None else known + found
                chunks += 1
    members = {name: len(list(parts_of(name, field))) for name, field in schema.items()}
    return {name: NullCount(known if rows else None, rows, members[name]) for name, known in nulls.items()}


@dataclass(frozen=True, slots=True)
class _Sources:
    """The values of a field in the files of one schema.

    Attributes:
        leaves: The numbers of the leaf columns of each part of the field that the files have.
        constants: Names of partition columns, and of columns that the files of a table lack.
    """

    leaves: list[list[int]]
    constants: list[str]


def _sources(snapshot: Snapshot, number: int, footer: Metadata, name: str, field: Field) -> _Sources | None:
    """Return the sources of a field; None if a part of a column is not in the file."""
    schema, stored = snapshot.schemas[number], snapshot.stored_schemas[number]
    found = _Sources([], [])
    constants = snapshot.partition_schema.names
    for part_name, part in parts_of(name, field):
        names = (part_name, *part.aliases)
        source = next((n for n in names if type_at(schema, n) is not None), None)
        if source is None:
            if part_name in constants:
                found.constants.append(part_name)
            elif any(head in constants for head in heads(part_name)):  # a member of a column that a table added later
                return None
            continue
        if type_at(stored, source) is None:  # a part that a table added to a column later
            return None
        head = read_name(schema, source, enters_lists=False)
        found.leaves.append([leaf for leaf, path in enumerate(footer.paths) if head in heads(path)])
    return found


def _nulls_of(footer: Metadata, row_group: int, leaves: list[list[int]]) -> int | None:
    total = 0
    for leaf, members in ((leaf, len(part)) for part in leaves for leaf in part):
        column = footer.schema.leaves[leaf]
        if column.max_definition_level == column.max_repetition_level:  # nothing is optional: only lists can be empty
            continue
        nulls = footer.null_count(row_group, leaf)
        # This function does not know which members of a struct are read, and whether their nulls are in the same rows.
        if nulls is None or (nulls and (column.max_repetition_level or members > 1)):
            return None
        total += nulls
    return total


@dataclass(frozen=True, slots=True)
class NullAdvice:
    """The second part of an error about a null: all columns with nulls, and a schema that reads them.

    Attributes:
        snapshot: The files.
        schema: The fields that are delivered.
        declared: The caller's schema, or None.
    """

    snapshot: Snapshot
    schema: Schema
    declared: Schema | None

    def text(self, column: str) -> str:
        """Return the text for a null in a column."""
        owner = next(
            (n for n, f in self.schema.items() if column in (part for part, _ in parts_of(n, f)) or column == n), column
        )
        # A tensor with a mask for its rows still refuses nulls within them.
        refusing = {name: field for name, field in self.schema.items() if refuses_nulls(field) or name == owner}
        counts = count_nulls(self.snapshot, refusing)
        found = {n: c for n, c in counts.items() if c.nulls != 0 or n == owner}
        listed = [f"{n!r} {count}" for n, count in found.items() if count.nulls is not None]
        unknown = [repr(n) for n, count in found.items() if count.nulls is None]
        texts = [f"columns with nulls: {_some(listed)}"] if listed else []
        texts += [f"columns that may have some, as statistics do not say: {_some(unknown)}"] if unknown else []
        return (
            f"{'; '.join(texts)}; {REFUSES_NULLS}, null='mask' delivers a mask next to the column, and "
            f"fill=<value> replaces them by a value, {self._remedy(found)}"
        )

    def _remedy(self, found: Mapping[str, NullCount]) -> str:
        fields = with_nulls(self.schema, frozenset(found), "mask")
        own: Mapping[str, Field] = self.declared or {}
        extra = "infer" if self.declared is None else self.declared.extra
        if extra == "infer":
            fields = {name: field for name, field in fields.items() if name in found or name in own}
        else:
            fields = {**own, **fields}
        if len(fields) <= MOST_FIELDS_IN_SOURCE:
            comments = {name: f"nulls: {count}" for name, count in found.items()}
            return f"so pass a schema= such as\n\n{source_of(fields, extra=extra, comments=comments)}\n"
        if self.declared is None:
            return "so pass a schema= that sets one of them, such as Schema.infer(source, nulls='mask')"
        return "so set one of them in the schema's fields"


def _some(texts: list[str]) -> str:
    more = len(texts) - _NAMES_SHOWN
    return ", ".join(texts[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
