"""`EncodedRows`: the media of a batch that are not decoded yet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parquet_loader.common import IntArray
from parquet_loader.schema import Ragged


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """The encoded bytes of rows of one column. The rows may lie in any order.

    Attributes:
        values: Contiguous uint8 ``[bytes]``; the bytes of a row are contiguous in it.
        places: Contiguous int64 ``[rows, 2]``: where each row begins and ends.
    """

    values: npt.NDArray[np.uint8]
    places: IntArray

    @classmethod
    def between(cls, values: npt.NDArray[np.uint8], begins: IntArray, ends: IntArray) -> EncodedRows:
        """Return the rows that begin and end at these bytes of `values`; both int64 ``[rows]``."""
        return cls(values, np.stack([begins, ends], axis=1))

    @classmethod
    def of_ragged(cls, rows: Ragged) -> EncodedRows:
        """Return rows of bytes, without a copy of them."""
        return cls.between(rows.values, rows.offsets[:-1], rows.offsets[1:])

    def __getitem__(self, row: int) -> bytes:
        begin, end = self.places[row].tolist()
        return self.values[begin:end].tobytes()
