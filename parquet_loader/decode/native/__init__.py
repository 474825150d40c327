"""Numbers and rows of bytes decoded, put into order and side by side by compiled kernels, where there are any.

Everything here is Arrow's or numpy's work where `IS_BUILT` is false.
"""

from __future__ import annotations

from parquet_loader.common import IS_BUILT
from parquet_loader.decode.native.column_reader import (
    FalseClaim,
    Known,
    NativeChunks,
    NotDecodedError,
    check_pages,
    known_chunks,
)
from parquet_loader.decode.native.permute import join_columns, take_columns, take_ragged, take_rows

__all__ = [
    "IS_BUILT",
    "FalseClaim",
    "Known",
    "NativeChunks",
    "NotDecodedError",
    "check_pages",
    "join_columns",
    "known_chunks",
    "take_columns",
    "take_ragged",
    "take_rows",
]
