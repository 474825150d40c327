"""Row groups of remote files on a local disk, shared by the processes of a machine.

settings    where, and how much: `LocalCache`
figures     what it did: `CacheStats`
policy      what leaves a full cache; pure
copy        a row group's file: ranges at their places, and checksums
places      names
ledger      the account of bytes, and the lock
leases      what loaders that run read
filling     a row group on its way in
directory   the cache as one process uses it
row_groups  as one reader uses it
contents    for people: what is in it
"""

from parquet_loader.read.cache.options import LocalCache
from parquet_loader.read.cache.row_group_cache import AT_ONCE_BYTES, RowGroupCache, is_worth_it
from parquet_loader.read.cache.stats import CacheStats

__all__ = ["AT_ONCE_BYTES", "CacheStats", "LocalCache", "RowGroupCache", "is_worth_it"]
