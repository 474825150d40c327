"""Plans an epoch with pure functions: windows, their slices of row groups, and the division over ranks."""

from __future__ import annotations

from parquet_loader.plan.deliveries import batches_until_done, counted_here
from parquet_loader.plan.epoch import WINDOW_METHOD, Plan, RowGroupSlice, plan_epoch
from parquet_loader.plan.mixing import MixingScore, mixing_score
from parquet_loader.plan.sharding import Division, Sharding, everything, split_over_workers

__all__ = [
    "WINDOW_METHOD",
    "Division",
    "MixingScore",
    "Plan",
    "RowGroupSlice",
    "Sharding",
    "batches_until_done",
    "counted_here",
    "everything",
    "mixing_score",
    "plan_epoch",
    "split_over_workers",
]
