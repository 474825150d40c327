"""Samples of a process that a network learns to imitate: wide rows of numbers that do not compress."""

from parquet_loader import Scalar, Schema, Tensor

SAMPLES = Schema(
    {
        "state": Tensor("float32", (64, 64)),  # a field on a grid, 16 KiB a row
        "parameters": Tensor("float32", (8,)),  # what the process was run with
        "weight": Scalar("float32", missing=1.0),  # older files have none: every sample counts the same
        "step": Scalar("int64"),
    }
)
