"""The sample store: samplers write, training reads the published files, old files are evicted."""

from __future__ import annotations

from parquet_loader.store.files.file_lists import HeldState
from parquet_loader.store.files.stored_file import StoredFile
from parquet_loader.store.sample_store import SampleStore, WeightedStore
from parquet_loader.store.sampling_processes import Samplers, SamplerStatus
from parquet_loader.store.sampling_weights import Arrival, AtMost, RecentFirst
from parquet_loader.store.settings import StoreOptions, StoreSettings
from parquet_loader.store.space import Evicted
from parquet_loader.store.status import StoreStatus
from parquet_loader.store.writer import StoreWriter
from parquet_loader.store.writer_state import WrittenRows
