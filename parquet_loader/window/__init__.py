"""Assembles canonical rows into windows of shuffled arrays, in leased memory."""

from __future__ import annotations

from parquet_loader.window.arena import Allocation, Allocator, Arenas, Block, Leases, Memory
from parquet_loader.window.assembly import Assembly, BufferSizes, Remainder
from parquet_loader.window.column_groups import ColumnGroups
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
from parquet_loader.window.window import Array, Window, copied, nbytes_of, ordered_window, window_of
