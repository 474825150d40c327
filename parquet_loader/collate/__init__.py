"""Windows to batches: numpy arrays, tensors, pinned memory, the GPU."""

from __future__ import annotations

from parquet_loader.collate.factory import epoch_sampler, open_output
from parquet_loader.collate.output import Batch, Output

__all__ = [
    "Batch",
    "Output",
    "epoch_sampler",
    "open_output",
]
