"""The growing sample store: samplers write, training reads what is there, old samples leave.

names, places         names of published files; where things lie
locks                 locks that the system drops with their process
settings              what all processes agree on
stored                `StoredFile`
ledger                the account of bytes, and the lock under which it changes
holds, seen           which files readers need; how often each was delivered
files                 published files, as their footers describe them
lists                 lists of files that states name, and holds on them
leaving               files that are to make way
room                  reservations and eviction
bounds, unfinished    how much rows may come to; a file on its way
writer                `StoreWriter`
sampling              `Samplers`
weights, reading      how often samples come; what a loader sees
status                the table
store                 `SampleStore`
"""

from __future__ import annotations

from parquet_loader.store.lists import HeldState
from parquet_loader.store.sampling import Samplers, SamplerStatus
from parquet_loader.store.settings import StoreOptions
from parquet_loader.store.status import StoreStatus
from parquet_loader.store.store import SampleStore, WeightedStore
from parquet_loader.store.stored import StoredFile
from parquet_loader.store.weights import Arrival, AtMost, RecentFirst
from parquet_loader.store.writer import StoreWriter, WrittenRows

__all__ = [
    "Arrival",
    "AtMost",
    "HeldState",
    "RecentFirst",
    "SampleStore",
    "SamplerStatus",
    "Samplers",
    "StoreOptions",
    "StoreStatus",
    "StoreWriter",
    "StoredFile",
    "WeightedStore",
    "WrittenRows",
]
