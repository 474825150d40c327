"""Assembles canonical rows to windows of shuffled arrays, in leased memory."""

from __future__ import annotations

from parquet_loader.window.arena import Allocation, Allocator, Arenas, Block, Leases, Memory
from parquet_loader.window.assembly import (
    Array,
    Assembly,
    BufferSizes,
    ColumnGroups,
    Remainder,
    Window,
    copied,
    nbytes_of,
    window_of,
)

__all__ = [
    "Allocation",
    "Allocator",
    "Arenas",
    "Array",
    "Assembly",
    "Block",
    "BufferSizes",
    "ColumnGroups",
    "Leases",
    "Memory",
    "Remainder",
    "Window",
    "copied",
    "nbytes_of",
    "window_of",
]
