"""The compiled kernels, as `ctypes` calls them: without Python's lock."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

from parquet_loader.native.build import LIBRARY, digest

NO_MEMORY, SYSTEM = 1, 3  # the codes of `kernels.c` that are told apart


def _load(path: Path) -> Any:
    """Return the library, or None where it was not made, or not of this source, or not for this machine."""
    if not path.exists() or sys.byteorder != "little" or os.environ.get("PARQUET_LOADER_NATIVE") == "0":
        return None
    try:
        library = ctypes.CDLL(str(path))
        library.kernels_digest.restype = ctypes.c_char_p
        if library.kernels_digest() != digest().encode():
            return None
    except (OSError, AttributeError):
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.chunks_open.argtypes = (ctypes.c_int, pointer, number, pointer, number)
    library.chunks_open.restype = pointer
    library.chunks_read.argtypes = (pointer, number, pointer)
    library.chunks_read.restype = ctypes.c_int
    library.chunks_close.argtypes = (pointer,)
    library.chunks_close.restype = None
    library.columns_take.argtypes = (pointer, pointer, number, pointer, number, pointer, ctypes.c_int)
    library.columns_take.restype = None
    library.columns_join.argtypes = (pointer, number, number, number, pointer)
    library.columns_join.restype = None
    library.rows_take.argtypes = (pointer, number, pointer, number, pointer)
    library.rows_take.restype = None
    library.ragged_take.argtypes = (pointer, pointer, pointer, number, pointer, pointer)
    library.ragged_take.restype = None
    return library


# Another library, for tests: one that was compiled to look at every access.
KERNELS = _load(Path(os.environ.get("PARQUET_LOADER_KERNELS") or LIBRARY))

IS_BUILT = KERNELS is not None
"""Whether the kernels are there. They are not where no C compiler was at hand when the package was installed."""
