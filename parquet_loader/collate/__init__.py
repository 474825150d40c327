"""Makes batches from windows: numpy arrays or tensors, in ordinary or pinned memory or on a GPU."""

from __future__ import annotations

from parquet_loader.collate.factory import epoch_sampler, open_output
from parquet_loader.collate.output import Batch, Output, rows_of

__all__ = [
    "Batch",
    "Output",
    "epoch_sampler",
    "open_output",
    "rows_of",
]
