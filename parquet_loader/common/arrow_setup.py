"""Prepares Arrow for threads: an allocator that returns freed memory to the system, and pandas.

mimalloc, the default of current wheels, keeps freed memory per thread. Row groups are decoded on one thread, gathered
on another and released on a third. With a limit of 256 MiB mimalloc held about 200 MiB more than was in use, jemalloc
about 40 (benchmarks/memory.py). Throughput is the same.

Arrow has two default pools. Python's can be changed at any time. The C++ default, which allocates the buffers of pages
and of decompression (50 MiB in that epoch), is read from an environment variable when Arrow first needs it.
"""

from __future__ import annotations

import mmap
import os
import platform
import sys

_VARIABLE = "ARROW_DEFAULT_MEMORY_POOL"
_ARENA_BYTES = 8 << 20  # more than jemalloc maps for a thread's first allocation


def _settle_default() -> None:
    """Import pyarrow, with jemalloc as its default if it is not imported yet and the environment names no pool."""
    has_jemalloc = sys.platform == "linux" and platform.machine() == "x86_64"  # Arrow warns if it has none
    if "pyarrow" in sys.modules or _VARIABLE in os.environ or not has_jemalloc:
        return
    os.environ[_VARIABLE] = "jemalloc"
    try:
        import pyarrow  # noqa: ICN001, PLC0415  (here, while the variable is set)

        pyarrow.default_memory_pool()
    finally:
        del os.environ[_VARIABLE]  # processes that this one starts have their own defaults


_settle_default()

import pyarrow as pa  # noqa: E402  (after the above, which it is for)


def has_gil() -> bool:
    """Return whether only one thread at a time runs Python code."""
    return getattr(sys, "_is_gil_enabled", lambda: True)()


def _settle_pandas() -> None:
    """Without a GIL, let Arrow import pandas now, if it is installed.

    Arrow imports it in the first conversion to numpy. If a garbage collection begins meanwhile, it waits for a second
    thread that converts, which waits in C++ for the first one, which waits for the end of the collection.
    """
    if not has_gil():
        pa.nulls(1, pa.bool_()).to_numpy(zero_copy_only=False)


_settle_pandas()


def use_returning_pool() -> None:
    """Make jemalloc Arrow's default memory pool in this process, unless the environment says otherwise.

    Existing buffers keep their pool. If pyarrow was imported before this package, only Python's default changes.
    """
    if _VARIABLE in os.environ:
        return
    if pa.default_memory_pool().backend_name == "mimalloc" and "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())


def prepare_thread() -> None:
    """Make Arrow's first allocation of the calling thread, if there is memory for it.

    jemalloc ends the process by SIGSEGV if it cannot map memory for a thread's first allocation. Later allocations
    raise `MemoryError`.

    Raises:
        OSError: memory cannot be mapped.
    """
    mmap.mmap(-1, _ARENA_BYTES).close()
    pa.allocate_buffer(1)
