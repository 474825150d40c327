"""Caches remote row groups on a local disk, for all processes of a machine."""

from parquet_loader.read.cache.options import LocalCache
from parquet_loader.read.cache.row_group_cache import AT_ONCE_BYTES, RowGroupCache, is_worth_it
from parquet_loader.read.cache.stats import CacheStats

__all__ = ["AT_ONCE_BYTES", "CacheStats", "LocalCache", "RowGroupCache", "is_worth_it"]
