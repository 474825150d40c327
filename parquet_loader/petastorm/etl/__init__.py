"""Petastorm's metadata of a data set: schema, number of row groups, indexes."""

from __future__ import annotations

from parquet_loader.petastorm.etl.rowgroup_indexers import RowGroupIndexerBase

__all__ = ["RowGroupIndexerBase"]
