"""Finds the files of a source, reads their footers, and fetches byte ranges of remote files."""

from __future__ import annotations

from parquet_loader.source.arrow_schema import has_int96
from parquet_loader.source.byte_ranges import ByteRange, RangeFetcher, chunk_ranges, merge, row_group_ranges, selected
from parquet_loader.source.file_schema import FileSchema, Leaf, MetadataError, SchemaElement, schema_tree
from parquet_loader.source.file_types import common_folder, is_hidden
from parquet_loader.source.files import SourceFile, changed_since
from parquet_loader.source.footer_reading import read_file_schema, read_footer
from parquet_loader.source.footers import FooterCache
from parquet_loader.source.listing import Selection, Source, list_files, selection_of
from parquet_loader.source.manifest import dump_snapshot, load_snapshot
from parquet_loader.source.metadata import ChunkPattern, ColumnChunk, Metadata, ReadableChunk, RowGroupFooter
from parquet_loader.source.opening import open_snapshot
from parquet_loader.source.remote.blocking_client import archive_lock
from parquet_loader.source.remote.concurrency import ConcurrencyLimit
from parquet_loader.source.remote.fetcher import Fetcher
from parquet_loader.source.remote.remote_filesystem import RemoteStore
from parquet_loader.source.remote.request_scheduler import RemoteFigures
from parquet_loader.source.remote.sparse_buffer import SparseFile, held_bytes
from parquet_loader.source.remote.streaming_file import StreamedFile
from parquet_loader.source.snapshot import RowGroupRef, Snapshot
from parquet_loader.source.snapshot_cache import open_remembered
from parquet_loader.source.statistics import bounds_of, guarantees
from parquet_loader.source.tables.deletes import InlineVector, roaring_bytes, roaring_positions
from parquet_loader.source.tables.delta.source import DeltaSource
from parquet_loader.source.tables.formats import table_to_write_to
from parquet_loader.source.tables.hub_commits import HubSource
from parquet_loader.source.tables.iceberg import IcebergSource
from parquet_loader.source.tables.names import ColumnName, Names
from parquet_loader.source.tables.recognised import table_source
from parquet_loader.source.tables.table_version import (
    TableFile,
    TableInfo,
    TableLike,
    TableVersion,
    VersionedSource,
)
from parquet_loader.source.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    CompactReader,
    ThriftError,
    TruncatedThriftError,
)
from parquet_loader.source.unischema.metadata_files import (
    INDEX_KEY,
    ROW_GROUPS_KEY,
    UNISCHEMA_KEY,
    declared_unischema,
    metadata_of,
    roots_of,
)
from parquet_loader.source.unischema.records import Codec, SparkType, UnischemaRecord, read_indexes
from parquet_loader.source.unischema.resolve import with_partition_types, with_unischema
from parquet_loader.source.unischema.to_schema import schema_of
