"""`LocalDiskCache` under the name of Petastorm's module."""

from __future__ import annotations

from parquet_loader.petastorm.cache import LocalDiskCache

__all__ = ["LocalDiskCache"]
