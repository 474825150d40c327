"""`LocalDiskCache`, in the module where Petastorm has it."""

from __future__ import annotations

from parquet_loader.petastorm.cache import LocalDiskCache

__all__ = ["LocalDiskCache"]
