"""Petastorm's names and modules, on this library: change the import, keep the script.

    from petastorm import make_reader                 from parquet_loader.petastorm import make_reader
    from petastorm.pytorch import DataLoader    ->    from parquet_loader.petastorm.pytorch import DataLoader

Modules have Petastorm's names; only `etl.reading`, which all readers share, is our own. docs/petastorm.md lists the
differences.
"""

from __future__ import annotations

from parquet_loader.petastorm.errors import NoDataAvailableError
from parquet_loader.petastorm.etl.reading.copy_dataset import copy_dataset, print_dataset
from parquet_loader.petastorm.reader import make_batch_reader, make_reader
from parquet_loader.petastorm.transform import TransformSpec

__all__ = [
    "NoDataAvailableError",
    "TransformSpec",
    "copy_dataset",
    "make_batch_reader",
    "make_reader",
    "print_dataset",
]
