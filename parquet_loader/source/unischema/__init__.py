"""What Petastorm leaves beside its files, read without pickle.

names     the exact list of names that its metadata may hold
opcodes   a pickle as opcodes, scanned before anything is made of them
machine   opcodes run on values that can do nothing
records   what comes out, as plain records: a Unischema, indexes of row groups
files     where the metadata lies
fields    from a Unischema to a `Schema`
"""

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
