"""Frames written once to a cache directory, for loaders to read.

keys      what makes two frames the same
kept      the cache directory: who writes, who waits, who deletes
"""

from __future__ import annotations

from parquet_loader.loader.frames.frame_cache import Kept, keep

__all__ = ["Kept", "keep"]
