"""A listed source with its schema: what all loaders of one data set share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from parquet_loader.common import ReadOptions
from parquet_loader.dataset.fixed_size_lists import with_fixed_size_lists
from parquet_loader.dataset.schema_resolution import found_schema, select, select_inferred
from parquet_loader.errors import SchemaError
from parquet_loader.schema import Schema
from parquet_loader.source import Snapshot, with_unischema


@dataclass(frozen=True, slots=True)
class ResolvedSource:
    """A snapshot and the schema that is delivered from it. Immutable.

    Attributes:
        listed: The snapshot as it was listed; filters see its columns.
        snapshot: The same, with the types of partition columns that Petastorm's metadata declares.
        schema: The fields to deliver.
        declared: The schema that the caller passed.
    """

    listed: Snapshot
    snapshot: Snapshot
    schema: Schema
    declared: Schema | None

    def for_one_loader(self) -> ResolvedSource:
        """Return the same with footers and requests of its own; see `Snapshot.for_one_loader`."""
        listed = self.listed.for_one_loader()
        return replace(
            self, listed=listed, snapshot=replace(self.snapshot, footers=listed.footers, remote=listed.remote)
        )


def resolve_source(
    snapshot: Snapshot, schema: Schema | None, columns: Sequence[str] | None, read_options: ReadOptions
) -> ResolvedSource:
    """Resolve the schema of a snapshot; arguments as in `BatchedDataLoader`.

    Raises:
        SchemaError: the files differ, or do not fit; or no column is left.
    """
    typed, chosen = resolved_schema(snapshot, schema, columns, read_options)
    if not chosen and snapshot.row_group_rows.any():
        raise SchemaError("there is no column to deliver: the schema names none; add a field to the schema")
    return ResolvedSource(snapshot, typed, chosen, schema)


def resolved_schema(
    snapshot: Snapshot, schema: Schema | None, columns: Sequence[str] | None, read_options: ReadOptions
) -> tuple[Snapshot, Schema]:
    """Return the snapshot to read from, and the schema to deliver.

    A declared schema is taken as it is. With ``extra="infer"``, or without one, the other columns follow from
    Petastorm's metadata, the schema that the files carry, or the types of their columns.

    Raises:
        SchemaError: the files differ, or do not fit.
    """
    if schema is not None and schema.extra != "infer":
        return snapshot, Schema(select(schema, columns))
    declared = frozenset[str]() if schema is None else schema.column_names()
    snapshot, known = with_unischema(snapshot, columns)
    if known is not None:
        inferred = select_inferred(known, columns, declared)
    else:
        inferred = with_fixed_size_lists(found_schema(snapshot, columns, declared), snapshot, read_options)
    if schema is None:
        return snapshot, inferred
    return snapshot, select(schema.over(inferred, snapshot.column_names), columns)
