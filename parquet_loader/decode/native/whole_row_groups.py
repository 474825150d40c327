"""Decodes small row groups with the same columns: one kernel call opens and reads several of them, each as a whole."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from parquet_loader.common import KERNELS, IntArray
from parquet_loader.decode.native.column_reader import Dictionary, Fills, NotDecodedError
from parquet_loader.decode.native.decodable import DecodableChunks


class ListedRowGroup(NamedTuple):
    """A row group of a local file.

    Attributes:
        path: The path of the file.
        size, mtime_ns: The size in bytes and the modification time in nanoseconds with which the file was listed.
        rows: Rows of the row group.
    """

    path: str
    size: int
    mtime_ns: int
    rows: int


class WholeRowGroups:
    """All rows of several row groups, one after another, as `NativeChunks` has those of one. Used by one thread.

    Args:
        row_groups: The row groups.
        known: The column chunks of one of them; the others differ in lines alone.
        lines: int64 ``[row groups, columns, 16]``, contiguous: `DecodableChunks.lines` of each.
        fills: As in `NativeChunks`.
    """

    def __init__(
        self, row_groups: Sequence[ListedRowGroup], known: DecodableChunks, lines: IntArray, fills: Fills
    ) -> None:
        self._known, self._lines, self._fills = known, lines, fills
        paths = [os.fsencode(one.path) + b"\0" for one in row_groups]
        self._paths = np.frombuffer(b"".join(paths), np.uint8)  # the kernel uses its memory
        self._files = np.array([(0, *one[1:]) for one in row_groups], np.int64)
        self._files[:, 0] = self._paths.ctypes.data + np.cumsum([0, *map(len, paths[:-1])])
        self._opened = np.zeros(len(paths), np.uintp)

    def read_into(
        self,
        first: int,
        rows: int,
        addresses: npt.NDArray[np.int64],
        slots: Sequence[IntArray | None] = (),
        masks: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Read all rows, each column to its own address; arguments as in `NativeChunks.read_into`.

        Raises:
            NotDecodedError: some column chunk cannot be read or decoded; the rows that were written are undefined.
        """
        counts = self._files[:, 3]
        are_in_order = all(rows_of is None for rows_of in slots)
        if first or rows != counts.sum() or not are_in_order or not addresses.all():
            raise NotDecodedError(self._known.names)
        before = (np.cumsum(counts) - counts)[:, None]
        outs = addresses + before * self._lines[0, :, 14]
        defined = None if masks is None else np.where(masks == 0, 0, masks + before)
        refused = np.empty(len(self._known.names), np.uint8)
        code = KERNELS.row_groups_read(
            self._files.ctypes.data,
            self._lines.ctypes.data,
            *outs.shape,
            outs.ctypes.data,
            None if defined is None else defined.ctypes.data,
            self._fills.addresses.ctypes.data,
            refused.ctypes.data,
            self._opened.ctypes.data,
        )
        if code:
            raise NotDecodedError(self._known.names)

    def dictionaries(self) -> dict[str, Dictionary]:
        """Return nothing: each row group has dictionaries of its own, so the value of each row is copied."""
        return {}

    def release(self) -> None:
        """Release the delivered views of byte arrays."""
        self.close()

    def close(self) -> None:
        """Release all buffers; idempotent."""
        KERNELS.row_groups_close(self._opened.ctypes.data, len(self._opened))
