"""Everything known before the first epoch: schema, row counts, memory budget."""

from __future__ import annotations

from parquet_loader.dataset.fixed_size_lists import with_constant_lists
from parquet_loader.dataset.memory_budget import (
    BATCHES_AT_ONCE,
    LARGEST_DEFAULT_WINDOW_BYTES,
    SHARE_READS,
    SHARE_WINDOWS,
    MemoryBudget,
    RowSizes,
)
from parquet_loader.dataset.open import Dataset, default_num_threads, open_dataset, resolved_schema
from parquet_loader.dataset.row_counts import Counted, PriorCounts
from parquet_loader.dataset.schema_resolution import found_schema, is_carrying, select

__all__ = [
    "BATCHES_AT_ONCE",
    "LARGEST_DEFAULT_WINDOW_BYTES",
    "SHARE_READS",
    "SHARE_WINDOWS",
    "Counted",
    "Dataset",
    "MemoryBudget",
    "PriorCounts",
    "RowSizes",
    "default_num_threads",
    "found_schema",
    "is_carrying",
    "open_dataset",
    "resolved_schema",
    "select",
    "with_constant_lists",
]
