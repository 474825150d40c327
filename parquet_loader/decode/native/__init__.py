"""Bindings of the compiled kernels that decode and permute numbers and rows of bytes.

If `IS_BUILT` is false, Arrow or numpy does the same work.
"""

from __future__ import annotations

from parquet_loader.common import IS_BUILT
from parquet_loader.decode.native.column_reader import (
    DecodableChunks,
    FalseClaim,
    NativeChunks,
    NotDecodedError,
    check_pages,
    decodable_chunks,
)
from parquet_loader.decode.native.permute import join_columns, take_columns, take_ragged, take_rows

__all__ = [
    "IS_BUILT",
    "DecodableChunks",
    "FalseClaim",
    "NativeChunks",
    "NotDecodedError",
    "check_pages",
    "decodable_chunks",
    "join_columns",
    "take_columns",
    "take_ragged",
    "take_rows",
]
