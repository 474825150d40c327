"""Reads uncompressed PLAIN pages of numbers and tensors directly from the file to the window.

With Arrow, the bytes are copied three times: to a buffer, to an array, and to the window. If a chunk is neither
compressed nor encoded and has no nulls, each page is a short header followed by the bytes to deliver. Then only the
headers are parsed, and the system copies the rows from the page cache to the window. For rows of 16 KiB this halves the
CPU time.

A chunk is read this way only if its page headers are consistent: their sizes sum up to the chunk's bytes, their values
to the rows of the row group. Otherwise Arrow decodes it, or reports the damage.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import ENDED, KERNELS, NO_MEMORY, SYSTEM, IntArray, failed_read
from parquet_loader.decode.page_headers import DATA_PAGE, DATA_PAGE_V2, PageHeader, Peek, header_at
from parquet_loader.errors import UnsupportedError
from parquet_loader.source import ColumnChunk, Leaf, ReadableChunk

# Whether Python can read from an offset directly into memory.
IS_POSSIBLE = hasattr(os, "preadv")

# Without kernels, rows are read this many bytes at a time into a buffer that stays in the CPU cache, and copied from
# there to their slots.
_SCRATCH_BYTES = 2**18

_PLAIN = 0
_PHYSICAL = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "FIXED_LEN_BYTE_ARRAY": 0}


class ShortFileError(OSError):
    """A file ends before the rows that its footer names."""


class RawFile:
    """An open file; the caller closes it.

    Raises:
        UnsupportedError: this system has no `preadv`.
    """

    def __init__(self, path: str) -> None:
        if not IS_POSSIBLE:
            raise UnsupportedError(
                f"{path}: rows by index need preadv (Linux, macOS 11 or newer); read batches instead"
            )
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    @property
    def descriptor(self) -> int:
        """Its file descriptor."""
        return self._descriptor

    def close(self) -> None:
        """Close the file; idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def peek(self, at: int, nbytes: int) -> bytes:
        """Return up to `nbytes` bytes from offset `at` on."""
        return os.pread(self._descriptor, nbytes, at)

    def read(self, at: int, target: npt.NDArray[np.uint8]) -> None:
        """Fill a contiguous array with the file's bytes from offset `at` on.

        Raises:
            ShortFileError: the file ends before.
        """
        flat, filled = target.reshape(-1), 0
        while filled < len(flat):  # the system may return fewer bytes than requested
            got = os.preadv(self._descriptor, [flat[filled:].data], at + filled)
            if not got:
                raise ShortFileError(f"the file ends at byte {at + filled}, within a page")
            filled += got


class RawPages(NamedTuple):
    """The pages of a column chunk, all of them plain.

    Attributes:
        width: Bytes of a value.
        starts: int64 ``[pages]``, the offset of each page's values in the file.
        first_rows: int64 ``[pages + 1]``, the rows before each page; the last element is all rows.
    """

    width: int
    starts: IntArray
    first_rows: IntArray


class RawColumn:
    """A column chunk, all of whose pages are plain.

    Args:
        file: The file; owned by the caller.
        pages: The locations of its pages in the file.
    """

    def __init__(self, file: RawFile, pages: RawPages) -> None:
        self._file = file
        self._width, self._starts, self._first_rows = pages
        self._addresses = tuple(array.__array_interface__["data"][0] for array in pages[1:])

    def read(self, first: int, out: npt.NDArray[np.uint8], slots: IntArray | slice) -> None:
        """Read one row for each slot, from row `first` on.

        Args:
            first: The first row, in the row group.
            out: uint8 ``[n, width]``, contiguous.
            slots: The rows of `out` to fill: int64 ``[rows]``, or a slice with both ends.

        Raises:
            ShortFileError: the file ends before.
        """
        if isinstance(slots, slice):
            out, scattered = out[slots], None
        else:
            scattered = np.ascontiguousarray(slots, np.int64)
        rows = len(out) if scattered is None else len(scattered)
        if not out.flags.carray or out.shape[1:] != (self._width,) or out.itemsize != 1:
            raise ValueError(f"expected contiguous, writable memory of {self._width} bytes a row")
        if KERNELS is None:
            self._read_without_kernels(first, rows, out, scattered)
            return
        pages = *self._addresses, len(self._starts)
        scattered_to = None if scattered is None else scattered.__array_interface__["data"][0]
        memory = out.__array_interface__["data"][0], len(out)
        descriptor = self._file.descriptor
        code = KERNELS.plain_rows_read(descriptor, *pages, self._width, first, rows, scattered_to, *memory)
        if code == ENDED:
            raise ShortFileError(f"the file ends at byte {os.fstat(descriptor).st_size}, within a page")
        if code == SYSTEM:
            raise failed_read()
        if code == NO_MEMORY:
            raise MemoryError
        if code:
            raise IndexError(f"rows {first} to {first + rows} of {self._first_rows[-1]}, to {len(out)} slots")

    def _read_without_kernels(self, first: int, rows: int, out: npt.NDArray[np.uint8], slots: IntArray | None) -> None:
        if slots is not None and rows and (int(slots.min()) < 0 or int(slots.max()) >= len(out)):
            raise IndexError(f"slots {slots.min()} to {slots.max()} of {len(out)}")
        at_once = max(1, rows if slots is None else _SCRATCH_BYTES // self._width)
        scratch = np.empty((0 if slots is None else min(at_once, rows), self._width), np.uint8)
        page = int(np.searchsorted(self._first_rows, first, side="right")) - 1
        done = 0
        while done < rows:
            row = first + done
            if row >= self._first_rows[page + 1]:
                page += 1
                continue
            some = min(rows - done, at_once, int(self._first_rows[page + 1]) - row)
            at = int(self._starts[page]) + (row - int(self._first_rows[page])) * self._width
            if slots is None:
                self._file.read(at, out[done : done + some])
            else:
                self._file.read(at, scratch[:some])
                out[slots[done : done + some]] = scratch[:some]
            done += some


def raw_pages(
    file: RawFile, chunk: ColumnChunk | ReadableChunk, column: Leaf, rows: int, type_: pa.DataType
) -> RawPages | None:
    """Return the pages of a column chunk, or None if they are not all plain.

    Args:
        file: The file.
        chunk, column: The footer's entries, checked.
        rows: Rows of the row group.
        type_: The Arrow type in which Arrow would deliver it.
    """
    if why_not_raw(chunk, column, type_):
        return None
    width = int(type_.bit_width) // 8
    pages = _plain_pages(file.peek, chunk.start, chunk.start + chunk.stored_bytes, rows, width)
    return None if pages is None else RawPages(width, *pages)


def why_not_raw(chunk: ColumnChunk | ReadableChunk, column: Leaf, type_: pa.DataType) -> str:
    """Return why the pages of a column chunk cannot be copied unchanged; "" if the footer shows no reason."""
    if column.max_definition_level or column.max_repetition_level:
        return "it is nullable or a list"
    width = int(type_.bit_width) // 8
    are_bytes = column.physical_type == "FIXED_LEN_BYTE_ARRAY"
    if (
        _PHYSICAL.get(column.physical_type) not in (0, width)
        or are_bytes != pa.types.is_fixed_size_binary(type_)
        or (are_bytes and column.length != width)
    ):
        return f"it is stored as {column.physical_type}"
    if chunk.codec_name != "UNCOMPRESSED":
        return f"it is compressed with {chunk.codec_name.lower()}"
    if chunk.dictionary_at >= 0:
        return "it has a dictionary"
    return "" if "PLAIN" in chunk.encoding_names else "its pages are not plain"


def _is_plain(header: PageHeader) -> bool:
    """Whether a page holds only plain values of a flat column without nulls."""
    if header.encoding != _PLAIN or header.levels_bytes or header.repetition_bytes:
        return False
    is_second = header.kind == DATA_PAGE_V2 and header.rows == header.values and not header.nulls
    return header.kind == DATA_PAGE or is_second


def _plain_pages(peek: Peek, at: int, end: int, rows: int, width: int) -> tuple[IntArray, IntArray] | None:
    starts, first_rows = list[int](), [0]
    while first_rows[-1] < rows:
        header = header_at(peek, at, end)
        if header is None:
            return None
        begin, values = at + header.nbytes, header.values
        has_all_bytes = header.page_bytes == header.plain_bytes == values * width and begin + values * width <= end
        if not _is_plain(header) or not has_all_bytes or values <= 0 or first_rows[-1] + values > rows:
            return None
        starts.append(begin)
        first_rows.append(first_rows[-1] + values)
        at = begin + values * width
    if at != end:
        return None
    return np.array(starts, np.int64), np.array(first_rows, np.int64)
