"""Decodes small row groups with the same columns: one kernel call opens and reads several of them, each as a whole.

Lists of any length take a call of their own, because their space is reserved when the other columns are read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from parquet_loader.common import KERNELS, IntArray, addresses_of
from parquet_loader.decode.native.column_reader import Dictionary, Fills, NotDecodedError, PageMemory
from parquet_loader.decode.native.decodable import DecodableChunks, Line


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
        decodable: The column chunks of one of them; the others differ in lines alone.
        lines: int64 ``[row groups, columns, 16]``, contiguous: `DecodableChunks.lines` of each.
        fills: As in `NativeChunks`.

    Attributes:
        most_list_bytes: The most bytes that the elements of each column of lists of any length take, by name: an empty
            list counts as one element.
    """

    def __init__(
        self, row_groups: Sequence[ListedRowGroup], decodable: DecodableChunks, lines: IntArray, fills: Fills
    ) -> None:
        self._names, self._lines, self._fills = decodable.names, lines, fills
        self._are_lists = decodable.lines[:, Line.ELEMENT_LEVEL] > 0
        elements = lines[:, :, Line.VALUES].sum(axis=0) * lines[0, :, Line.OUT]
        numbers = np.flatnonzero(self._are_lists).tolist()
        self.most_list_bytes = {self._names[number]: int(elements[number]) for number in numbers}
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
        staging: PageMemory | None = None,
    ) -> None:
        """Read all rows, each column to its own address, except lists of any length; see `NativeChunks.read_into`.

        Raises:
            NotDecodedError: some column chunk cannot be read or decoded; the rows that were written are undefined.
        """
        counts, are_fixed = self._files[:, 3], ~self._are_lists
        if first or rows != counts.sum() or not addresses[are_fixed].all():
            raise NotDecodedError(self._names)
        if not are_fixed.any():
            return
        lines, fillers = _of_columns(are_fixed, self._lines), self._fills.addresses[are_fixed]
        before = (np.cumsum(counts) - counts)[:, None]
        held = [None if rows_of is None else np.ascontiguousarray(rows_of, np.int64) for rows_of in slots]
        slot_addresses = np.array([0 if rows_of is None else rows_of.ctypes.data for rows_of in held], np.int64)
        slot_addresses = slot_addresses[are_fixed] if held else np.zeros(len(fillers), np.int64)
        # With slots, which count from the first row of all row groups, each row group has the address of that row.
        row_bytes = np.where(slot_addresses, 0, lines[0, :, Line.OUT] * np.maximum(lines[0, :, Line.ROW_VALUES], 1))
        outs = addresses[are_fixed] + before * row_bytes
        own_slots = np.where(slot_addresses, slot_addresses + 8 * before, 0)
        defined = None if masks is None else _of_columns(are_fixed, np.where(masks, masks + before, 0))
        buffers = None if staging is None else staging.addresses[are_fixed]
        refused = np.empty(len(fillers), np.uint8)
        code = KERNELS.row_groups_read(
            self._files.ctypes.data,
            lines.ctypes.data,
            *outs.shape,
            outs.ctypes.data,
            None if defined is None else defined.ctypes.data,
            fillers.ctypes.data,
            own_slots.ctypes.data,
            None if buffers is None else buffers.ctypes.data,
            refused.ctypes.data,
            self._opened.ctypes.data,
        )
        if code:
            raise NotDecodedError(self._names)

    def read_all_lists(self, memory: Mapping[str, npt.NDArray[np.uint8]]) -> dict[str, IntArray]:
        """Write the elements of all rows of columns of lists of any length; see `NativeChunks.read_all_lists`.

        Raises:
            NotDecodedError: some column chunk cannot be read or decoded, or has nulls; what was written is undefined.
        """
        counts, names = self._files[:, 3], list(self.most_list_bytes)
        lines = _of_columns(self._are_lists, self._lines)
        begins = np.empty((len(names), int(counts.sum()) + 1), np.int64)
        values, offsets = np.array([memory[name].ctypes.data for name in names], np.int64), addresses_of(begins)
        are_lists = np.empty(int(counts.max()), np.uint8)
        code = KERNELS.row_groups_lists(
            self._files.ctypes.data,
            lines.ctypes.data,
            len(counts),
            len(names),
            values.ctypes.data,
            offsets.ctypes.data,
            are_lists.ctypes.data,
        )
        if code:
            raise NotDecodedError(self._names)
        begins *= lines[0, :, Line.OUT][:, None]
        return dict(zip(names, begins, strict=True))

    def dictionaries(self) -> dict[str, Dictionary]:
        """Return nothing: each row group has dictionaries of its own, so the value of each row is copied."""
        return {}

    def release(self) -> None:
        """Release the delivered views of byte arrays."""
        self.close()

    def close(self) -> None:
        """Release all buffers; idempotent."""
        KERNELS.row_groups_close(self._opened.ctypes.data, len(self._opened))


def _of_columns(are_chosen: npt.NDArray[np.bool_], numbers: IntArray) -> IntArray:
    """Return the numbers of the chosen columns, contiguous; `numbers` is ``[row groups, columns, ...]``, contiguous."""
    return numbers if are_chosen.all() else np.compress(are_chosen, numbers, axis=1)
