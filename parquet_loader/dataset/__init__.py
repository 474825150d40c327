"""Determines everything before the first epoch: schema, row counts, memory budget."""

from __future__ import annotations

from parquet_loader.dataset.fixed_size_lists import with_fixed_size_lists
from parquet_loader.dataset.listed_dataset import (
    ListedDataset,
    RowGroup,
    check_dataset_arguments,
    check_left_to_dataset,
    locate,
    open_listed,
    settings_of,
    with_columns,
    with_shard,
    without_filters,
)
from parquet_loader.dataset.memory_budget import (
    BATCHES_AT_ONCE,
    LARGEST_DEFAULT_WINDOW_BYTES,
    MOST_OPEN_ROW_GROUPS,
    SHARE_READS,
    SHARE_VIDEOS,
    SHARE_WINDOWS,
    LazyBudget,
    ReservedMemory,
    WindowNeeds,
)
from parquet_loader.dataset.open import Dataset, OpenRows, default_num_threads, open_dataset, open_rows
from parquet_loader.dataset.rank_agreement import check_agreement, digest, ranks_to_agree_with
from parquet_loader.dataset.resolved_source import ResolvedSource, resolve_source, resolved_schema, with_partition_words
from parquet_loader.dataset.row_counts import Counted, PriorCounts
from parquet_loader.dataset.row_sizes import RowSizes
from parquet_loader.dataset.schema_resolution import found_schema, is_carrying, select
