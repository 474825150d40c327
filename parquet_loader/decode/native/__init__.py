"""Numbers and rows of bytes decoded, put into order and side by side by compiled kernels, where there are any.

Everything here is Arrow's or numpy's work where `IS_BUILT` is false.
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
