"""What is written beside a data set, and read of it: its schema, its row groups, indexes of them."""

from __future__ import annotations

from parquet_loader.petastorm.etl.rowgroup_indexers import RowGroupIndexerBase

__all__ = ["RowGroupIndexerBase"]
