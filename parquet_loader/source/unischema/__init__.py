"""Reads the metadata that Petastorm writes next to its files, without unpickling it."""

from __future__ import annotations

from parquet_loader.source.unischema.metadata_files import (
    INDEX_KEY,
    ROW_GROUPS_KEY,
    UNISCHEMA_KEY,
    declared_unischema,
    metadata_of,
    roots_of,
)
from parquet_loader.source.unischema.records import (
    Codec,
    FieldRecord,
    IndexRecord,
    SparkType,
    UnischemaRecord,
    read_indexes,
    read_unischema,
)
from parquet_loader.source.unischema.to_schema import schema_of

__all__ = [
    "INDEX_KEY",
    "ROW_GROUPS_KEY",
    "UNISCHEMA_KEY",
    "Codec",
    "FieldRecord",
    "IndexRecord",
    "SparkType",
    "UnischemaRecord",
    "declared_unischema",
    "metadata_of",
    "read_indexes",
    "read_unischema",
    "roots_of",
    "schema_of",
]
