"""Writes frames once to a cache directory, from which loaders read them."""

from __future__ import annotations

from parquet_loader.loader.frames.frame_cache import Kept, keep

__all__ = ["Kept", "keep"]
