"""The growing sample store: samplers write, training reads what is there, old samples leave.

names, places         names of published files; where things lie
locks                 locks that the system drops with their process
stored                `StoredFile`
settings              what all processes agree on
durable, commits      files replaced as a whole; files that appear together
ledger                the account of bytes, the lock under which it changes, and what is published
holds, seen           which files readers need; how often each was delivered
files                 published files, as their footers describe them
lists                 lists of files that states name, and holds on them
leaving               files that are to make way
room                  reservations and eviction
bounds, unfinished    how much rows may come to; a file on its way
output                what a writer has under way
writer                `StoreWriter`
together              a job's files, published at once
sampling              `Samplers`
weights, reading      how often samples come; what a loader sees
status                the table
opening, parts        a store made, found or only read; what it uses within one process
store                 `SampleStore`
"""

from __future__ import annotations

from parquet_loader.store.files.file_lists import HeldState
from parquet_loader.store.files.stored_file import StoredFile
from parquet_loader.store.sample_store import SampleStore, WeightedStore
from parquet_loader.store.sampling_processes import Samplers, SamplerStatus
from parquet_loader.store.sampling_weights import Arrival, AtMost, RecentFirst
from parquet_loader.store.settings import StoreOptions
from parquet_loader.store.status import StoreStatus
from parquet_loader.store.writer import StoreWriter
from parquet_loader.store.writer_state import WrittenRows

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
