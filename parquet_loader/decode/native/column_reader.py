"""Decodes column chunks of flat numbers and bytes with kernels, without Arrow.

The kernels decode plain, dictionary, DELTA_BINARY_PACKED, DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY, BYTE_STREAM_SPLIT
and boolean pages, with nulls or without, uncompressed or compressed by Snappy, LZ4, gzip or zstd, in one call for all
columns. That takes about half of Arrow's CPU time. Of byte arrays they deliver views (an address and a length) of
decompressed pages, from which each value is copied once. Arrow decodes everything else. The kernels accept a page only
if all levels, runs and lengths in it are consistent; otherwise Arrow decodes the column chunk, or reports the damage.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parquet_loader.common import KERNELS, READ_BEHIND, SYSTEM, IntArray, failed_read
from parquet_loader.decode.native.decodable import BYTE_ARRAY, VIEW_BYTES, DecodableChunks, Line
from parquet_loader.decode.native.list_reader import ListReader


class NotDecodedError(ValueError):
    """The kernels cannot decode pages of some columns: nulls, other encodings, damage, or no memory for claimed sizes.

    Arrow then reads these columns, or reports the error.

    Attributes:
        columns: The columns, which the kernels refuse from now on.
        others: The rows of the other columns, if arrays were requested.
    """

    def __init__(self, columns: Iterable[str], others: Mapping[str, pa.Array] | None = None) -> None:
        self.columns = frozenset(columns)
        self.others = others or {}
        super().__init__(f"the kernels cannot decode the pages of {', '.join(sorted(self.columns))}")


class AliveRows(NamedTuple):
    """Rows of a row group, some of which are deleted.

    Attributes:
        first: The first row, which is not deleted.
        stop: One more than the last row, which is not deleted.
        deleted: int64, contiguous, sorted, the deleted rows between these.
    """

    first: int
    stop: int
    deleted: npt.NDArray[np.int64]


class Dictionary(NamedTuple):
    """The dictionary of a column of byte arrays.

    Attributes:
        address: The address of the views of its entries, 16 bytes each.
        entries: Number of entries.
        nbytes: The bytes of all entries.
    """

    address: int = 0
    entries: int = 0
    nbytes: int = 0


class PageMemory(NamedTuple):
    """Memory of a window to which pages of byte arrays are decompressed, so that their values need not be copied.

    Attributes:
        addresses: int64 ``[columns]``, the address of each column's `Staging` (see `staging.h`), or 0.
        rows: Number of rows that the window reads from here on. A page that has further rows is decompressed elsewhere.
    """

    addresses: npt.NDArray[np.int64]
    rows: int


class Fills(NamedTuple):
    """The values that replace nulls of some columns.

    Attributes:
        values: uint8 ``[columns, 16]``: the bytes of a number or view, followed by zeros.
        are_given: bool ``[columns]``: whether a column has such a value.
        viewed: The bytes of each view, by name, followed by zeros that the kernels may read.
        addresses: int64 ``[columns]``: the address of each column's value; 0 without one.
    """

    values: npt.NDArray[np.uint8]
    are_given: npt.NDArray[np.bool_]
    viewed: Mapping[str, npt.NDArray[np.uint8]]
    addresses: npt.NDArray[np.int64]

    @classmethod
    def of_columns(cls, names: Sequence[str], values: Mapping[str, bytes], byte_arrays: Collection[str] = ()) -> Self:
        """Return the values of columns, by name: at most 8 bytes each, except of `byte_arrays`."""
        given = [name for name in names if name in values]
        viewed = {n: np.frombuffer(values[n] + bytes(READ_BEHIND), np.uint8) for n in given if n in byte_arrays}
        words = dict(values)
        for name, held in viewed.items():
            words[name] = np.array([held.ctypes.data, len(values[name])], np.int64).tobytes()
        joined = b"".join(words.get(name, b"").ljust(VIEW_BYTES, b"\0") for name in names)
        are_given = np.array([name in values for name in names], np.bool_)
        bytes_of_all = np.frombuffer(joined, np.uint8).reshape(-1, VIEW_BYTES)
        first = bytes_of_all.__array_interface__["data"][0]
        addresses = np.where(are_given, first + VIEW_BYTES * np.arange(len(names)), 0)
        return cls(bytes_of_all, are_given, viewed, addresses)


class NativeChunks:
    """Column chunks of one row group, open for a forward read. Used by one thread at a time.

    Until `close` it holds a decompressed page and dictionary of each column, and a compressed page. Pages with
    delivered views are held until `release`, or until the next rows are read.

    Args:
        source: A path, or the file's bytes in memory.
        decodable: The column chunks to read.
        fills: Replaces nulls in `read_into` and `read_alive`, which refuse nulls of other columns.
        listed: The file's size in bytes and modification time in nanoseconds when it was listed; (-1, -1) if they are
            not known.

    Attributes:
        names: The columns, without those that could not be decoded.
        is_as_listed: Whether the open file has the size and time of `listed`. After `close`: whether the file at its
            path has them. False for bytes in memory.

    Raises:
        OSError: the file cannot be opened.
        MemoryError: there is no memory.
    """

    def __init__(
        self,
        source: str | pa.Buffer,
        decodable: DecodableChunks,
        fills: Fills | None = None,
        listed: tuple[int, int] = (-1, -1),
    ) -> None:
        self.names, self._types, lines, self._nullable, self._vocabularies = decodable
        self._fills = fills  # keeps the memory of `_fillers`
        self._fillers = None if fills is None else fills.addresses
        self._all_names = self.names
        self._refused = np.zeros(len(self.names), np.uint8)
        self._refused_address: int = self._refused.ctypes.data
        self._has_byte_arrays = bool((lines[:, Line.PHYSICAL] >= BYTE_ARRAY).any())
        self._position = 0
        self._lines = lines
        self._list_readers = {
            n: ListReader(n, self._types[n], *lines[n, [Line.VALUES, Line.ROW_VALUES]].tolist())
            for n in np.flatnonzero(lines[:, Line.ELEMENT_LEVEL]).tolist()
        }
        held: bytes | pa.Buffer = os.fsencode(source) if isinstance(source, str) else source
        self._held = held  # the kernels use its memory
        file = (held, *listed, None) if isinstance(held, bytes) else (None, held.size, 0, held.address)
        problem = ctypes.c_int()
        self._chunks = KERNELS.chunks_open(*file, lines.ctypes.data, len(lines), ctypes.byref(problem))
        if not self._chunks and problem.value:
            raise OSError(problem.value, os.strerror(problem.value), source)
        if not self._chunks:
            raise MemoryError
        self.is_as_listed = isinstance(held, bytes) and not problem.value

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @cached_property
    def _list_values(self) -> list[int]:
        """The number of values of each column's rows, if they are lists of one length; else 0."""
        lines = self._lines
        found: list[int] = np.where(lines[:, Line.ELEMENT_LEVEL] == 0, lines[:, Line.ROW_VALUES], 0).tolist()
        return found

    @cached_property
    def _widths(self) -> list[int]:
        """The bytes of a row of each column, without columns of lists of any length."""
        lines = self._lines
        widths: IntArray = lines[:, Line.OUT] * np.maximum(1, self._list_values)
        found: list[int] = np.where(lines[:, Line.ELEMENT_LEVEL] == 0, widths, 0).tolist()
        return found

    def read(self, rows: int) -> list[pa.Array]:
        """Return the next rows of each column, each in its own memory, because they are released at different times.

        Raises:
            NotDecodedError: pages of some columns cannot be decoded, end too early, or claim more than memory can hold;
                the error has the rows of the other columns, which can be read further.
            OSError: the file cannot be read.
        """
        try:
            buffers = [pa.allocate_buffer(width * rows) for width in self._widths]
            defined = [np.empty(rows, np.bool_) if nullable else None for nullable in self._nullable]
        except (MemoryError, OverflowError) as error:
            raise NotDecodedError(self.names) from error
        addresses = np.array([buffer.address for buffer in buffers], np.int64)
        masks = np.array([0 if mask is None else mask.ctypes.data for mask in defined], np.int64)
        failed = frozenset[str]()
        try:
            self._read(rows, addresses, defined=masks)
        except NotDecodedError as error:
            failed = error.columns
        lists = self._read_lists(rows)
        failed |= {self._all_names[number] for number, array in lists.items() if array is None}
        arrays = {
            name: lists[number]
            if number in lists
            else _lists(type_, buffer, each, rows)
            if each
            else _array(type_, buffer, mask, rows)
            for number, name, type_, buffer, mask, each, is_refused in zip(
                range(len(self._all_names)),
                self._all_names,
                self._types,
                buffers,
                defined,
                self._list_values,
                self._refused.tolist(),
                strict=True,
            )
            if not is_refused
        }
        if failed:
            raise NotDecodedError(failed, arrays)
        return list(arrays.values())

    def _read_lists(self, rows: int) -> dict[int, pa.Array | None]:
        """Return the next rows of columns of lists of any length, by number; None for a column that failed."""
        found = dict[int, pa.Array | None]()
        for number, reader in self._list_readers.items():
            if self._refused[number]:
                continue
            try:
                found[number] = reader.read(self._chunks, rows)
            except (MemoryError, OverflowError):
                found[number] = None
            if found[number] is None:
                self._refused[number] = 1
                self.names = [name for name in self.names if name != self._all_names[number]]
        return found

    @property
    def most_list_bytes(self) -> dict[str, int]:
        """The most bytes that the remaining rows of each column of lists of any length take."""
        readers = self._list_readers.items()
        return {self._all_names[n]: reader.most_bytes for n, reader in readers if not self._refused[n]}

    def read_all_lists(self, memory: Mapping[str, npt.NDArray[np.uint8]]) -> dict[str, IntArray]:
        """Write the elements of all remaining rows of columns of lists of any length; see `ListReader.read_all`.

        Args:
            memory: Memory of `most_list_bytes`, by column; all of these columns.

        Raises:
            NotDecodedError: some columns have nulls, or their pages cannot be decoded; the others were written.
            OSError: the file cannot be read.
        """
        found = dict[str, IntArray]()
        for number, reader in self._list_readers.items():
            name = self._all_names[number]
            offsets = reader.read_all(self._chunks, memory[name])
            if offsets is not None:
                found[name] = offsets
        if len(found) < len(memory):
            raise NotDecodedError(memory.keys() - found.keys())
        return found

    def dictionaries(self) -> dict[str, Dictionary]:
        """Return the dictionaries to whose entries views may refer, by column; valid as long as the views."""
        if not self._has_byte_arrays:
            return {}
        found = np.zeros((len(self._all_names), 3), np.int64)
        KERNELS.chunks_dictionaries(self._chunks, found.ctypes.data)
        return {name: Dictionary(*line) for name, line in zip(self._all_names, found.tolist(), strict=True) if line[1]}

    def release(self) -> None:
        """Release the delivered views of byte arrays."""
        if self._chunks:
            KERNELS.chunks_release(self._chunks)

    def read_into(
        self,
        first: int,
        rows: int,
        addresses: npt.NDArray[np.int64],
        slots: Sequence[IntArray | None] = (),
        masks: npt.NDArray[np.int64] | None = None,
        staging: PageMemory | None = None,
    ) -> None:
        """Read the rows from row `first` of the row group on, each column to its own address.

        Lists of any length are not read; see `read_all_lists`.

        Args:
            first: The first row, not before the position of the reader; rows in between are skipped.
            rows: Number of rows.
            addresses: int64 ``[columns]``, the address of memory for that many values of each; not checked.
            slots: For each column, the target of each row, counted in rows from the address, not checked; None keeps
                the order. Empty means None for all.
            masks: int64 ``[columns]``, the address of memory for a byte a row: 1 for a value, 0 for a null; 0 for a
                column without a mask or with slots. None means 0 for all.
            staging: Memory for pages of byte arrays; views of values there outlive `release`.

        Raises:
            NotDecodedError: pages of some columns cannot be decoded; the rows of the others were written.
            OSError: the file cannot be read.
        """
        if first > self._position:
            self._read(first - self._position, None)
        self._read(rows, addresses, defined=masks, fillers=self._fillers, slots=slots, staging=staging)

    def read_alive(
        self,
        alive: AliveRows,
        addresses: npt.NDArray[np.int64],
        slots: Sequence[IntArray | None] = (),
        masks: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Read rows of the row group, each column to its own address, and skip deleted ones.

        Args:
            alive: The rows, at least one, not before the position of the reader.
            addresses, slots, masks: As in `read_into`; deleted rows also have slots.

        Raises:
            As `read_into` does.
        """
        if not len(alive.deleted):
            self.read_into(alive.first, alive.stop - alive.first, addresses, slots, masks)
            return
        rows = alive.stop - self._position
        self._read(rows, addresses, alive, defined=masks, fillers=self._fillers, slots=slots)

    def _read(
        self,
        rows: int,
        addresses: npt.NDArray[np.int64] | None,
        alive: AliveRows | None = None,
        *,
        defined: npt.NDArray[np.int64] | None = None,
        fillers: npt.NDArray[np.int64] | None = None,
        slots: Sequence[IntArray | None] = (),
        staging: PageMemory | None = None,
    ) -> None:
        """Read rows as `chunks_read` of `column_chunks.c` does, which says what the arguments mean."""
        if not self._chunks:
            raise ValueError("the column chunks are closed")
        contiguous = [None if rows_of is None else np.ascontiguousarray(rows_of, np.int64) for rows_of in slots]
        slot_addresses = None
        if contiguous:
            slot_addresses = np.array(
                [0 if rows_of is None else rows_of.ctypes.data for rows_of in contiguous], np.int64
            )
        arrays = (addresses, defined, fillers, slot_addresses, None if staging is None else staging.addresses)
        pointers = [None if array is None else array.ctypes.data for array in arrays]
        deleted: tuple[int | None, int, int, int] = (None, 0, 0, 0)
        if alive is not None:
            deleted = (alive.deleted.ctypes.data, len(alive.deleted), alive.first - self._position, self._position)
        staged_rows = 0 if staging is None else staging.rows
        code = KERNELS.chunks_read(self._chunks, rows, *deleted, *pointers, staged_rows, self._refused_address)
        self._position += rows
        if code == SYSTEM:
            raise failed_read()
        if code:
            before = self.names
            self.names = [name for name, refused in zip(self._all_names, self._refused, strict=True) if not refused]
            if len(self.names) == len(before):  # the failure is not about single columns
                self._refused[:], self.names = 1, []
            raise NotDecodedError(set(before).difference(self.names))

    def close(self) -> None:
        """Close the file and release all buffers; idempotent."""
        chunks, self._chunks = self._chunks, None
        if chunks:
            self.is_as_listed = bool(KERNELS.chunks_close(chunks))
        self._held = b""


def _array(type_: pa.DataType, values: pa.Buffer, defined: npt.NDArray[np.bool_] | None, rows: int) -> pa.Array:
    """Return an array of decoded values, in which booleans take a byte each; `defined` is False for null rows."""
    nulls = 0 if defined is None else rows - int(np.count_nonzero(defined))
    validity = None if defined is None or not nulls else pa.py_buffer(np.packbits(defined, bitorder="little"))
    if pa.types.is_boolean(type_):
        values = pa.py_buffer(np.packbits(np.frombuffer(values, np.uint8), bitorder="little"))
    return pa.Array.from_buffers(type_, rows, [validity, values], nulls)


def _lists(type_: pa.DataType, values: pa.Buffer, each: int, rows: int) -> pa.Array:
    """Return lists of `each` numbers."""
    numbers = pa.Array.from_buffers(type_.value_type, rows * each, [None, values], 0)
    buffers: list[pa.Buffer | None] = [None]
    if not pa.types.is_fixed_size_list(type_):
        offsets = np.arange(0, (rows + 1) * each, each)
        buffers.append(pa.py_buffer(offsets if pa.types.is_large_list(type_) else offsets.astype(np.int32)))
    return pa.Array.from_buffers(type_, rows, buffers, 0, children=[numbers])
