"""Reads columns with kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parquet_loader.decode import NativeChunks
from parquet_loader.decode.native.column_reader import Fills
from parquet_loader.decode.native.decodable import DecodableChunks


def read_in_steps(
    path: Path, chunks: DecodableChunks, fills: Fills, out: npt.NDArray[Any], steps: Sequence[int]
) -> None:
    """Read all rows of one column to `out`, so many rows a call, and the rest in the last one."""
    with NativeChunks(str(path), chunks, fills) as native_chunks:
        at = 0
        for step in [*steps, len(out)]:
            count = min(step, len(out) - at)
            if count:
                native_chunks.read_into(at, count, np.array([out[at:].ctypes.data], np.int64))
            at += count
