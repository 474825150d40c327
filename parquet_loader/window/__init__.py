"""Assembles canonical rows into windows of shuffled arrays, in leased memory."""

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
from parquet_loader.window.stored import (
    BlockColumn,
    CarriedRows,
    KeptWindow,
    StoredSlice,
    StoredWindow,
    UnsortedOrder,
    as_row_numbers,
)
from parquet_loader.window.variable_width import Scattered
