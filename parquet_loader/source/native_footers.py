"""Parses footers to plain numbers with the kernel, about a hundred times faster than Python."""

from __future__ import annotations

import numpy as np

from parquet_loader.common import ENDED, IS_BUILT, KERNELS
from parquet_loader.source.metadata import CHUNK_NUMBERS, FILE_NUMBERS, GROUP_NUMBERS, Numbers, read_numbers
from parquet_loader.source.thrift import ThriftError, TruncatedThriftError

_FEW_GROUPS, _FEW_CHUNKS = 8, 256


def footer_numbers(raw: bytes, nbytes: int) -> Numbers:
    """Return a footer of `nbytes` bytes as plain numbers, as `read_numbers` does, with the kernel if there is one.

    Raises:
        ThriftError: it is none.
    """
    if not IS_BUILT:
        return read_numbers(raw, nbytes)
    file = np.empty(FILE_NUMBERS, np.int64)
    most_groups, most_chunks = _FEW_GROUPS, _FEW_CHUNKS
    while True:
        groups = np.empty((most_groups, GROUP_NUMBERS), np.int64)
        chunks = np.empty((most_chunks, CHUNK_NUMBERS), np.int64)
        buffers = (file.ctypes.data, groups.ctypes.data, most_groups, chunks.ctypes.data, most_chunks)
        code = KERNELS.footer_read(raw, nbytes, *buffers)
        if code == ENDED:
            raise TruncatedThriftError("the bytes end within a field")
        if code:
            raise ThriftError("it is not as the format says, in Thrift's compact protocol")
        group_count, chunk_count = file[1:3].tolist()
        if group_count <= most_groups and chunk_count <= most_chunks:
            return Numbers(file.tolist(), groups[:group_count].copy(), chunks[:chunk_count].copy())
        most_groups, most_chunks = group_count, chunk_count
