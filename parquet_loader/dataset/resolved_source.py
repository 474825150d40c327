"""Resolves the schema of a listed source; all loaders of one data set share the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from parquet_loader.common import ReadOptions
from parquet_loader.dataset.fixed_size_lists import FixedSizeLists
from parquet_loader.dataset.schema_resolution import found_schema, select, select_inferred
from parquet_loader.errors import SchemaError
from parquet_loader.read import categories_of
from parquet_loader.schema import Schema, Text
from parquet_loader.source import Snapshot, with_unischema


class LazySchema:
    """A schema whose doubtful lists are resolved at the first use. Any thread may use it, with the same result.

    Args:
        by_footers: The schema according to the footers, in which doubtful lists are lists.
        lists: The lists that may be tensors, or None.
        options: How to read their rows.

    Attributes:
        by_footers: As given.
    """

    def __init__(self, by_footers: Schema, lists: FixedSizeLists | None, options: ReadOptions) -> None:
        self.by_footers = by_footers
        self._lists = lists
        self._options = options
        self._decided = by_footers if lists is None or not lists.doubtful else None

    def decide(self, snapshot: Snapshot) -> Schema:
        """Return the schema; the first call reads rows of doubtful lists.

        Raises:
            SourceError: the rows cannot be read now.
        """
        if self._decided is None:
            assert self._lists is not None
            tensors = self._lists.sampled(self.by_footers, snapshot, self._options)
            self._decided = Schema({name: tensors.get(name, field) for name, field in self.by_footers.items()})
        return self._decided


@dataclass(frozen=True, slots=True)
class ResolvedSource:
    """A snapshot and the schema that is delivered from it. Immutable, except that `schema` is resolved once.

    Attributes:
        listed: The snapshot as it was listed, after `with_partition_words`; filters see its columns.
        snapshot: The same, with the types of partition columns that Petastorm's metadata declares.
        declared: The schema that the caller passed.
        lazy_schema: The fields to deliver; shared by all loaders.
    """

    listed: Snapshot
    snapshot: Snapshot
    declared: Schema | None
    lazy_schema: LazySchema

    @property
    def schema(self) -> Schema:
        """The fields to deliver; see `LazySchema.decide`."""
        return self.lazy_schema.decide(self.snapshot)

    def for_one_loader(self) -> ResolvedSource:
        """Return the same source with a separate footer cache and fetcher; see `Snapshot.for_one_loader`."""
        listed = self.listed.for_one_loader()
        return replace(
            self, listed=listed, snapshot=replace(self.snapshot, footers=listed.footers, remote=listed.remote)
        )


def resolve_source(
    snapshot: Snapshot, schema: Schema | None, columns: Sequence[str] | None, read_options: ReadOptions
) -> ResolvedSource:
    """Resolve the schema of a snapshot by footers; arguments as in `BatchedDataLoader`.

    Raises:
        SchemaError: the files differ, or do not fit, or there is no column to deliver.
    """
    snapshot = with_partition_words(snapshot, schema)
    typed, chosen = _lazily_resolved(snapshot, schema, columns, read_options)
    if not chosen.by_footers and snapshot.row_group_rows.any():
        raise SchemaError("there is no column to deliver; add a field to the schema")
    return ResolvedSource(snapshot, typed, schema, chosen)


def resolved_schema(
    snapshot: Snapshot, schema: Schema | None, columns: Sequence[str] | None, read_options: ReadOptions
) -> tuple[Snapshot, Schema]:
    """Return the snapshot to read from, and the schema to deliver; rows of doubtful lists are read now.

    A declared schema is used unchanged. With ``extra="infer"``, or without a schema, the fields of the other columns
    follow from Petastorm's metadata, the schema in the files' metadata, or the types of their columns.

    Raises:
        SchemaError: the files differ, or do not fit.
    """
    typed, chosen = _lazily_resolved(with_partition_words(snapshot, schema), schema, columns, read_options)
    return typed, chosen.decide(typed)


def with_partition_words(snapshot: Snapshot, schema: Schema | None) -> Snapshot:
    """Return the snapshot with text for names of directories that the schema reads as text or words of a `Category`.

    If all values of a key are integers, they are int64. A `Text` reads them as they are written, with leading zeros. A
    `Category` of text takes integers as codes, but if a word of its vocabulary is an integer too, they are words,
    whichever other directories there are.
    """
    if schema is None or snapshot.constants is not None:
        return snapshot
    words = {
        name
        for name, field in categories_of(schema).items()
        if not field.is_integer and any(str(word).removeprefix("-").isdecimal() for word in field.vocabulary)
    }
    words.update(*((name, *field.aliases) for name, field in schema.items() if isinstance(field, Text)))
    types = pa.schema([(f.name, pa.string() if f.name in words else f.type) for f in snapshot.partition_schema])
    return snapshot if types == snapshot.partition_schema else replace(snapshot, partition_schema=types)


def _lazily_resolved(
    snapshot: Snapshot, schema: Schema | None, columns: Sequence[str] | None, options: ReadOptions
) -> tuple[Snapshot, LazySchema]:
    """As `resolved_schema`, without reading rows."""
    if schema is not None and schema.extra != "infer":
        return snapshot, LazySchema(Schema(select(schema, columns)), None, options)
    declared = frozenset[str]() if schema is None else schema.column_names()
    snapshot, known = with_unischema(snapshot, columns)
    snapshot = with_partition_words(snapshot, schema)  # again: the schema comes before Petastorm's types
    lists = None
    if known is not None:
        inferred = select_inferred(known, columns, declared)
    else:
        inferred = found_schema(snapshot, columns, declared)
        lists = FixedSizeLists.of_footers(inferred, snapshot)
        inferred = Schema({**inferred, **lists.certain})
    if schema is not None:
        inferred = select(schema.over(inferred, snapshot.column_names), columns)
    return snapshot, LazySchema(inferred, lists, options)
