"""An example schema for samples of a simulation: wide rows of numbers that do not compress."""

from parquet_loader import Scalar, Schema, Tensor

SAMPLES = Schema(
    {
        "state": Tensor("float32", (64, 64)),  # a field on a grid, 16 KiB per row
        "parameters": Tensor("float32", (8,)),  # the arguments of the simulation
        "weight": Scalar("float32", missing=1.0),  # older files lack it: all samples have the same weight
        "step": Scalar("int64"),
    }
)
