"""Reads one row group: column chunks, row filters, the local cache."""

from __future__ import annotations

from parquet_loader.read.cache.inspect import CacheContents, clear, contents_of
from parquet_loader.read.cache.options import LocalCache
from parquet_loader.read.cache.row_group_cache import AT_ONCE_BYTES
from parquet_loader.read.cache.stats import CacheStats
from parquet_loader.read.chunk_locations import BUFFER_BYTES, ChunkLocation
from parquet_loader.read.column_chunks import ColumnSelection
from parquet_loader.read.cursor import Cursor
from parquet_loader.read.null_counts import REFUSES_NULLS, NullAdvice, count_nulls
from parquet_loader.read.page_reader import PageReader
from parquet_loader.read.row_filter import Filters, RowFilter, as_expression, categories_of
from parquet_loader.read.row_group_reader import HIDDEN_ROW_NUMBERS, RowGroupReader
from parquet_loader.read.splits import splits_by_position
