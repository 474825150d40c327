"""Loads the compiled kernels with `ctypes`; calls release the GIL."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from parquet_loader.common.deprecation import warn_at_caller
from parquet_loader.common.native.build import LIBRARY, NO_PLATFORM, compilers, digest
from parquet_loader.errors import PerformanceWarning

NO_MEMORY, ENDED, SYSTEM, FULL = 1, 2, 3, 5  # the result codes of `kernels.h` that Python distinguishes

SWITCHED_OFF = "PARQUET_LOADER_NATIVE=0 is set"
IN_ARCHIVE = "the package is imported from an archive, from which the system loads no library"


def _load(path: Path) -> tuple[Any, str]:
    """Return the library and "", or None and the reason why it cannot be used."""
    if os.environ.get("PARQUET_LOADER_NATIVE") == "0":
        return None, SWITCHED_OFF
    if os.name != "posix" or sys.byteorder != "little":
        return None, NO_PLATFORM
    if not LIBRARY.parent.exists():
        return None, IN_ARCHIVE
    if not path.exists():
        has_compiler = any(shutil.which(command.partition(" ")[0]) for command in compilers())
        reason = "it was not compiled when the package was installed"
        return None, reason if has_compiler else f"{reason}, and there is no C compiler"
    try:
        library = ctypes.CDLL(str(path), use_errno=True)
        library.kernels_digest.restype = ctypes.c_char_p
        if library.kernels_digest() != digest().encode():
            return None, "it was compiled from the source of another version"
    except (OSError, AttributeError) as error:
        return None, f"it cannot be loaded: {error}"
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.chunks_open.argtypes = (ctypes.c_char_p, number, number, pointer, pointer, number, pointer)
    library.chunks_open.restype = pointer
    library.chunks_read.argtypes = (pointer, number, pointer, number, number, number, *[pointer] * 5, number, pointer)
    library.chunks_read.restype = ctypes.c_int
    library.lists_read.argtypes = (pointer, number, pointer)
    library.lists_read.restype = ctypes.c_int
    library.pages_check.argtypes = (ctypes.c_int, pointer, number, pointer, number, pointer)
    library.pages_check.restype = ctypes.c_int
    library.pages_list.argtypes = (ctypes.c_int, pointer, number, number, number, number, pointer, number, pointer)
    library.pages_list.restype = ctypes.c_int
    library.plain_rows_read.argtypes = (ctypes.c_int, pointer, pointer, *[number] * 4, pointer, pointer, number)
    library.plain_rows_read.restype = ctypes.c_int
    library.chunks_release.argtypes = (pointer,)
    library.chunks_release.restype = None
    library.chunks_dictionaries.argtypes = (pointer, pointer)
    library.chunks_dictionaries.restype = None
    library.views_measure.argtypes = (pointer, number, number, pointer)
    library.views_measure.restype = None
    library.vocabulary_fill.argtypes = (pointer, number)
    library.vocabulary_fill.restype = None
    library.views_stage.argtypes = (pointer, number, number)
    library.views_stage.restype = None
    library.staging_take.argtypes = (pointer, number)
    library.staging_take.restype = number
    library.staging_close.argtypes = (pointer,)
    library.staging_close.restype = number
    library.chunks_close.argtypes = (pointer,)
    library.chunks_close.restype = ctypes.c_int
    library.row_groups_read.argtypes = (pointer, pointer, number, number, *[pointer] * 7)
    library.row_groups_read.restype = ctypes.c_int
    library.row_groups_lists.argtypes = (pointer, pointer, number, number, *[pointer] * 3)
    library.row_groups_lists.restype = ctypes.c_int
    library.row_groups_close.argtypes = (pointer, number)
    library.row_groups_close.restype = None
    library.buffers_trim.argtypes = ()
    library.buffers_trim.restype = None
    library.columns_take.argtypes = (pointer, pointer, number, pointer, number, pointer, ctypes.c_int, number)
    library.columns_take.restype = None
    library.columns_copy.argtypes = (pointer, pointer, number, number, pointer)
    library.columns_copy.restype = None
    library.order_after.argtypes = (number, pointer, number, pointer)
    library.order_after.restype = None
    library.columns_join.argtypes = (pointer, number, number, number, pointer)
    library.columns_join.restype = None
    library.ragged_take.argtypes = (pointer, number, pointer, pointer, number, pointer, pointer)
    library.ragged_take.restype = None
    library.ragged_order.argtypes = (pointer, number, pointer, number)
    library.ragged_order.restype = None
    library.footer_read.argtypes = (ctypes.c_char_p, number, pointer, pointer, number, pointer, number)
    library.footer_read.restype = ctypes.c_int
    library.codecs_load.restype = ctypes.c_int
    library.packing_count.argtypes = (pointer, number, number, ctypes.c_int, pointer)
    library.packing_count.restype = ctypes.c_int
    library.packing_place.argtypes = (pointer, number, number, ctypes.c_int, number, *[pointer] * 5)
    library.packing_place.restype = ctypes.c_int
    library.packing_write.argtypes = (pointer, number, pointer, ctypes.c_int, number, number, pointer)
    library.packing_write.restype = None
    number32, flag = ctypes.c_int32, ctypes.c_int
    library.image_resize.argtypes = (
        pointer, number, number32, number32, number32, pointer, number32, number32, flag, flag, pointer
    )  # fmt: skip
    library.image_resize.restype = ctypes.c_int
    library.image_to_floats.argtypes = (pointer, number, flag, flag, *[pointer] * 3)
    library.image_to_floats.restype = None
    library.jpeg_use.argtypes = (pointer,)
    library.jpeg_use.restype = ctypes.c_int
    library.jpeg_headers.argtypes = (pointer, pointer, number, pointer)
    library.jpeg_headers.restype = None
    library.jpeg_batch.argtypes = (pointer, pointer, number, *[pointer] * 5)
    library.jpeg_batch.restype = None
    library.jpeg_decode.argtypes = (pointer, number, number32, *[pointer] * 3)
    library.jpeg_decode.restype = ctypes.c_int
    library.crc32c.argtypes = (ctypes.c_char_p, number)
    library.crc32c.restype = ctypes.c_uint32
    library.random_words.argtypes = (pointer, number, pointer)
    library.random_words.restype = None
    library.permute.argtypes = (pointer, pointer, number, pointer, pointer)
    library.permute.restype = ctypes.c_int
    return library, ""


# Tests set PARQUET_LOADER_KERNELS to a library that was compiled with sanitizers.
KERNELS, PROBLEM = _load(Path(os.environ.get("PARQUET_LOADER_KERNELS") or LIBRARY))
"""The library or None, and "" or the reason why it cannot be used."""

LOADED_CODECS: int = 0 if KERNELS is None else KERNELS.codecs_load()
"""One bit for each codec that the kernels can decompress; the bit numbers are those of `codecs.h`."""

IS_BUILT = KERNELS is not None
"""Whether the kernels can be used."""


def failed_read() -> OSError:
    """Return the error of the read for which a kernel has just returned `SYSTEM`, with the cause of the system."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def trim_buffers() -> None:
    """Return the memory of page buffers that are not in use to the system; running loaders map it again."""
    if KERNELS is not None:
        KERNELS.buffers_trim()


REMEDY = {
    IN_ARCHIVE: "install the package to use them",
    SWITCHED_OFF: "unset PARQUET_LOADER_NATIVE to use them",
    NO_PLATFORM: "they need Linux or macOS on a little-endian processor",
}
_COMPILE = f"install a C compiler if there is none, then run: python {shlex.quote(str(LIBRARY.with_name('build.py')))}"
_has_warned = False


def kernels_remedy() -> str:
    """Return what the user can do to make the kernels usable."""
    return REMEDY.get(PROBLEM, _COMPILE)


def warn_if_missing() -> None:
    """Warn once per process, at the caller's line, that the kernels are missing, unless they were switched off."""
    global _has_warned
    if IS_BUILT or _has_warned or PROBLEM == SWITCHED_OFF:
        return
    _has_warned = True
    warn_at_caller(
        f"the compiled kernels of parquet_loader are missing: {PROBLEM}; the batches are the same, but decoding "
        f"numbers takes more than twice the processor time; {kernels_remedy()}",
        PerformanceWarning,
    )
