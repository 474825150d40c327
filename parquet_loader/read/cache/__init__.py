"""A local cache of remote row groups, shared by all processes of a machine.

Each module's first line says what it is for.
"""

from parquet_loader.read.cache.options import LocalCache
from parquet_loader.read.cache.row_group_cache import AT_ONCE_BYTES, RowGroupCache, is_worth_it
from parquet_loader.read.cache.stats import CacheStats

__all__ = ["AT_ONCE_BYTES", "CacheStats", "LocalCache", "RowGroupCache", "is_worth_it"]
