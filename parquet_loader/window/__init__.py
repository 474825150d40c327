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
    ordered_window,
    window_of,
)
from parquet_loader.window.stored import BlockColumn, StoredWindow

__all__ = [
    "Allocation",
    "Allocator",
    "Arenas",
    "Array",
    "Assembly",
    "Block",
    "BlockColumn",
    "BufferSizes",
    "ColumnGroups",
    "Leases",
    "Memory",
    "Remainder",
    "StoredWindow",
    "Window",
    "copied",
    "nbytes_of",
    "ordered_window",
    "window_of",
]
