"""Plans an epoch with pure functions: windows, their slices of row groups, and the division over ranks."""

from __future__ import annotations

from parquet_loader.plan.deliveries import batches_until_done, counted_here
from parquet_loader.plan.episodes import EpisodeSamples, ReadPlan, SampleRows, SampleRule, WindowReads, window_reads
from parquet_loader.plan.epoch import WINDOW_METHOD, Plan, RowGroupSlice, plan_epoch
from parquet_loader.plan.mixing import MixingScore, mixing_score
from parquet_loader.plan.packing import (
    PACKING_METHODS,
    Lengths,
    Overflow,
    Pack,
    Packed,
    count_bins,
    count_by_length,
    kept_tokens,
    pack,
    pack_by_length,
    total_pieces,
    total_tokens,
)
from parquet_loader.plan.sharding import Division, Sharding, everything, split_over_workers
