"""Decodes lists of numbers of any length with kernels: to Arrow lists, which may have nulls, or to given memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import FULL, KERNELS, SYSTEM, failed_read

# At most this many elements are allocated before a page proves that they exist, because a footer may claim any number.
FIRST_ELEMENTS = 1 << 20
_SPARE_ELEMENTS = 1024  # the kernel unpacks levels in blocks
_MOST_INT32 = 2**31 - 1


class ListReader:
    """Reads the lists of one column chunk, forward. Used by one thread at a time.

    Args:
        number: Number of the column among the open column chunks.
        type_: Arrow type of the lists.
        elements: Elements of all rows, counting an empty or null list as one.
        rows: Number of rows.
    """

    def __init__(self, number: int, type_: pa.DataType, elements: int, rows: int) -> None:
        self._number = number
        self._type = type_
        self._width = type_.value_type.bit_width // 8
        self._elements_left = elements
        self._rows_left = rows

    @property
    def most_bytes(self) -> int:
        """The most bytes that the elements of all remaining rows take: an empty list counts as one element."""
        nbytes: int = self._elements_left * self._width
        return nbytes

    def read_all(self, chunks: int, out: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64] | None:
        """Write the elements of all remaining rows, which may have no nulls.

        Args:
            chunks: The open column chunks.
            out: Memory of `most_bytes`.

        Returns:
            The byte at which each row begins, and the end of the last one, ``[rows + 1]``. None if there are nulls or
            pages that cannot be decoded; then nothing more can be read.

        Raises:
            OSError: the file cannot be read.
        """
        rows, elements = self._rows_left, self._elements_left
        offsets, are_lists = np.empty(rows + 1, np.int64), np.empty(rows, np.uint8)
        state = np.zeros(10, np.int64)
        state[:2] = offsets.ctypes.data, are_lists.ctypes.data
        state[2], state[4:6] = out.ctypes.data, (rows, elements)
        code = KERNELS.lists_read(chunks, self._number, state.ctypes.data)
        if code == SYSTEM:
            raise failed_read()
        self._elements_left = self._rows_left = 0
        if code or state[8]:  # null rows; the kernel refuses null elements, because it gets no memory for them
            return None
        offsets[rows] = state[7]
        offsets *= self._width
        return offsets

    def read(self, chunks: int, rows: int) -> pa.Array | None:
        """Return the next rows; None if the pages cannot be decoded, and then nothing more can be read.

        Args:
            chunks: The open column chunks.
            rows: Number of rows.

        Raises:
            MemoryError, OverflowError: there is no memory for the elements.
            OSError: the file cannot be read.
        """
        expected = self._elements_left * rows // max(1, self._rows_left)
        # Too much space costs nothing, because unwritten pages take no memory; too little has to be copied.
        capacity = min(expected + expected // 4 + _SPARE_ELEMENTS, FIRST_ELEMENTS)
        offsets, are_lists = np.empty(rows + 1, np.int64), np.empty(rows, np.uint8)
        values = pa.allocate_buffer(capacity * self._width, resizable=True)
        are_values = pa.allocate_buffer(capacity, resizable=True)
        state = np.zeros(10, np.int64)  # `ListRows` of `lists.h`
        state[:2] = offsets.ctypes.data, are_lists.ctypes.data
        code = FULL
        while code == FULL:
            state[2:6] = values.address, are_values.address, rows, capacity
            code = KERNELS.lists_read(chunks, self._number, state.ctypes.data)
            if code == FULL:
                capacity *= 2
                values.resize(capacity * self._width)
                are_values.resize(capacity)
        if code == SYSTEM:
            raise failed_read()
        elements, null_rows, null_elements = state[7:].tolist()
        is_large = pa.types.is_large_list(self._type)
        if code or (elements > _MOST_INT32 and not is_large):
            return None
        self._elements_left, self._rows_left = max(0, self._elements_left - elements), self._rows_left - rows
        offsets[rows] = elements
        values.resize(elements * self._width, shrink_to_fit=False)
        validity = _bits(np.frombuffer(are_values, np.uint8, elements)) if null_elements else None
        numbers = pa.Array.from_buffers(self._type.value_type, elements, [validity, values], null_elements)
        buffers = [
            _bits(are_lists) if null_rows else None,
            pa.py_buffer(offsets if is_large else offsets.astype(np.int32)),
        ]
        return pa.Array.from_buffers(self._type, rows, buffers, null_rows, children=[numbers])


def _bits(flags: npt.NDArray[np.uint8]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))
