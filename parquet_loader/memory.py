"""Which allocator Arrow uses: one that gives memory back."""

from __future__ import annotations

import os

import pyarrow as pa


def use_returning_pool() -> None:
    """Make jemalloc Arrow's default memory pool in this process, unless ARROW_DEFAULT_MEMORY_POOL says otherwise.

    mimalloc, the default of current wheels, keeps freed memory per thread; with row groups decoded on one thread,
    gathered on another and let go of on a third it held about 200 MiB more than was in use in an epoch under a limit of
    256 MiB, where jemalloc held about 40 (benchmarks/memory.py). Speed is the same. Buffers that exist keep their pool.
    """
    if "ARROW_DEFAULT_MEMORY_POOL" in os.environ:
        return
    if pa.default_memory_pool().backend_name == "mimalloc" and "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())
