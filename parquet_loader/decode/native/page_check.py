"""Checks all page headers of column chunks: by a kernel, or in Python without kernels."""

from __future__ import annotations

import os
from io import FileIO

import numpy as np
import pyarrow as pa

from parquet_loader.common import KERNELS, NO_MEMORY, SYSTEM, IntArray, failed_read
from parquet_loader.decode.page_headers import FIRST_READ_BYTES, FalseClaim, FalseClaimError, walks


def check_pages(source: str | pa.Buffer, bounds: IntArray) -> None:
    """Check the claims of all page headers of column chunks.

    Args:
        source: A path, or the file's bytes in memory.
        bounds: See `chunk_bounds`.

    Raises:
        FalseClaimError: a page header claims more than its chunk can hold.
        OSError: the file cannot be read.
    """
    if not isinstance(source, str):
        _check(-1, source.address, source.size, bounds, pa.BufferReader(source))
        return
    with open(source, "rb", buffering=0) as file:
        _check(file.fileno(), None, os.fstat(file.fileno()).st_size, bounds, file)


def _check(descriptor: int, address: int | None, nbytes: int, bounds: IntArray, file: FileIO | pa.BufferReader) -> None:
    if KERNELS is None:
        _walk(file, nbytes, bounds)
        return
    lines, report = np.ascontiguousarray(bounds), np.zeros(5, np.int64)
    code = KERNELS.pages_check(descriptor, address, nbytes, lines.ctypes.data, len(lines), report.ctypes.data)
    if code == SYSTEM:
        raise failed_read()
    if code == NO_MEMORY:
        raise MemoryError
    if code:
        raise FalseClaimError(FalseClaim(*report.tolist()))


def _walk(file: FileIO | pa.BufferReader, size: int, bounds: IntArray) -> None:
    for walk in walks(bounds, size):
        nbytes = FIRST_READ_BYTES
        while not walk.is_done:
            file.seek(walk.at)  # `os.pread` is not on Windows
            is_taken = walk.take_header(file.read(min(nbytes, walk.behind - walk.at)))
            nbytes = FIRST_READ_BYTES if is_taken else nbytes * 8
