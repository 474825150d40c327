"""Implements `Schema.infer` and `Schema.from_frame`: the schema of files or of a frame, with a policy for nulls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parquet_loader.common import ReadOptions, check_columns, check_source, named
from parquet_loader.dataset.resolved_source import resolved_schema
from parquet_loader.errors import ConfigurationError, SchemaError
from parquet_loader.read import count_nulls
from parquet_loader.schema import (
    SLICE_BYTES,
    Group,
    Nulls,
    Schema,
    encode_columns,
    infer_schema,
    lenient,
    null_levels,
    slices_of,
    with_nulls,
)
from parquet_loader.source import Selection, Snapshot, Source, VersionedSource, open_snapshot, table_source


def schema_of_source(
    source: Source | VersionedSource, nulls: Nulls | None, columns: Sequence[str] | None, filesystem: Any
) -> Schema:
    """See `Schema.infer`."""
    columns = check_columns(columns)
    source = table_source(source)
    if isinstance(source, VersionedSource):
        return _lenient(open_snapshot(source, filesystem), nulls, columns)
    if hasattr(source, "__arrow_c_stream__") or isinstance(source, Mapping):
        raise ConfigurationError(f"Schema.infer: the source is {named(source)}; Schema.from_frame(frame) takes it")
    check_source(source)
    selection = Selection(has_options=False)
    return _lenient(open_snapshot(source, filesystem, selection=selection), nulls, columns)


def _lenient(snapshot: Snapshot, nulls: Nulls | None, columns: Sequence[str] | None) -> Schema:
    snapshot, schema = resolved_schema(snapshot, None, columns, ReadOptions())
    if nulls is None:
        return schema
    counts = count_nulls(snapshot, schema)
    return Schema(with_nulls(schema, {name for name, count in counts.items() if count.nulls != 0}, nulls))


def schema_of_frame(frame: Any, nulls: Nulls | None) -> Schema:
    """See `Schema.from_frame`."""
    if hasattr(frame, "__next__") or hasattr(frame, "read_next_batch"):
        raise ConfigurationError("Schema.from_frame: an iterator can be read only once; pass a table or a frame")
    schema: Schema | None = None
    found: set[str] = set()
    for columns, _ in slices_of(frame, SLICE_BYTES):
        schema = schema or infer_schema(columns)
        if nulls is None:
            return schema
        open_to_nulls = Schema({name: lenient(field) for name, field in schema.items()})
        table = encode_columns(columns, open_to_nulls, 0)
        for name in schema:
            if any(null_levels(table.column(name))):
                found.add(name)
    if schema is None:
        raise SchemaError("Schema.from_frame: there are no rows to infer a schema from; pass a frame with rows")
    assert not any(isinstance(field, Group) for field in schema.values())
    return Schema(with_nulls(schema, found, nulls)) if nulls is not None else schema
