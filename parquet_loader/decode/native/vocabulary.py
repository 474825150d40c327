"""The words of a category, as kernels look them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from parquet_loader.common import KERNELS, READ_BEHIND


class Vocabulary:
    """A hash table of words. Immutable; any thread may use it.

    Args:
        words: The words, which differ, in the order of their codes: an Arrow array of text.
        unknown: The code of text that is not among them; -1 refuses such text.

    Attributes:
        address: The address of the table, a `Vocabulary` of `conversions/words.h`; valid as long as this object.
    """

    def __init__(self, words: pa.Array, unknown: int) -> None:
        self._words, self._unknown = words, unknown
        whole = words.cast(pa.large_binary())
        _, offsets, data = whole.buffers()
        held = b"" if data is None else data.to_pybytes()
        self._bytes = np.frombuffer(held + bytes(READ_BEHIND), np.uint8)
        self._offsets = np.frombuffer(offsets, np.int64, len(words) + 1, 8 * whole.offset).copy()
        self._slots = np.zeros(1 << (2 * len(words) - 1).bit_length(), np.uint32)
        addresses = [array.ctypes.data for array in (self._bytes, self._offsets, self._slots)]
        self._table = np.array([*addresses, len(self._slots) - 1, unknown], np.int64)
        self.address: int = self._table.ctypes.data
        if KERNELS is not None:
            KERNELS.vocabulary_fill(self.address, len(words))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return type(self), (self._words, self._unknown)
