"""Resolves the schema and partition types of a Petastorm data set when it is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from parquet_loader.errors import SourceError
from parquet_loader.schema import METADATA_KEY, Schema
from parquet_loader.source.snapshot import Snapshot
from parquet_loader.source.unischema.metadata_files import declared_unischema
from parquet_loader.source.unischema.records import UnischemaRecord
from parquet_loader.source.unischema.to_schema import partition_type, schema_of


def with_unischema(snapshot: Snapshot, columns: Sequence[str] | None) -> tuple[Snapshot, Schema | None]:
    """Return a snapshot with the partition types of a Petastorm data set, and the schema of its Unischema.

    The schema is None if there is no Unischema, if the source is a table, or if the files' metadata holds a schema of
    this library, which is then used instead.

    Raises:
        DataError, SchemaError, SourceError: see `declared_unischema` and `schema_of`.
    """
    if snapshot.table is not None and snapshot.table.schema is not None:
        return snapshot, None
    if any(METADATA_KEY in (schema.metadata or {}) for schema in snapshot.schemas):
        return snapshot, None
    record = declared_unischema(snapshot.filesystem, snapshot.files, snapshot.listing_context)
    if record is None:
        return snapshot, None
    if columns is not None:
        wanted = set(columns)
        if wanted <= {field.name for field in record.fields}:
            record = UnischemaRecord(record.name, tuple(f for f in record.fields if f.name in wanted))
    typed = with_partition_types(snapshot, record)
    with_rows = snapshot.file_schema[snapshot.row_group_file[snapshot.row_group_rows > 0]]
    files = snapshot.schemas[int(with_rows[0]) if len(with_rows) else 0]
    return typed, schema_of(record, files, typed.partition_schema)


def with_partition_types(snapshot: Snapshot, record: UnischemaRecord) -> Snapshot:
    """Return the snapshot with the partition types of a Unischema.

    Raises:
        SourceError: the name of a directory is not a value of its column's type.
    """
    types = {field.name: partition_type(field) for field in record.fields}
    schema = pa.schema([(f.name, types.get(f.name, f.type)) for f in snapshot.partition_schema])
    typed = replace(snapshot, partition_schema=schema)
    if schema != snapshot.partition_schema:
        _, firsts = np.unique(np.array([str(f.partitions) for f in snapshot.files]), return_index=True)
        for file in firsts.tolist():
            try:
                typed.partition_values(file)
            except pa.ArrowInvalid as error:
                raise SourceError(
                    f"{snapshot.files[file].name}: the name of a directory is not a value of its column: {error}"
                ) from None
    return typed
