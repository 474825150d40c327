"""Decodes the columns that stay encoded until their batch: images, audio, video, and arrays of `Encoded`.

A `MediaRows` decodes the rows of one column of one batch, one at a time; `ImageRows` and `EncodedImageRows` first take
the JPEGs together. Media whose rows have one size are decoded directly to the batch's memory. `MediaBatch` shares the
rows among threads, names the row of an error, and replaces damaged rows if requested.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from parquet_loader.decode import (
    BlobProblem,
    Column,
    EncodedRows,
    JpegBatch,
    has_device_form,
    has_few_pixels,
    image_pixels,
    read_array,
    write_image,
)
from parquet_loader.engine.encoded_images import EncodedImageRows, EncodedImages, black_image
from parquet_loader.engine.recordings import AudioRows, BatchRows, VideoRows
from parquet_loader.engine.referenced_files import file_bytes
from parquet_loader.schema import Audio, Encoded, Image, Ragged, Video
from parquet_loader.window import Allocator, Array

Images: TypeAlias = "list[npt.NDArray[Any]]"
BatchArrays: TypeAlias = "dict[str, Array | Images]"


# Pillow decodes images of at most this many pixels in about as much time as threads take to exchange the GIL.
_FEW_PIXELS = 64 * 64
# Rows that a thread takes at a time, except JPEGs: of images of few pixels, and of others.
_FEW_PIXELS_AT_ONCE, _ROWS_AT_ONCE = 64, 4

_few_pixels_lock = threading.Lock()
"""Held by the thread that decodes images of few pixels.

Pillow releases the GIL for each of them. With two threads, PNGs of 32 x 32 would take 1.8 times as long as with one.
"""


def _renew_lock() -> None:
    global _few_pixels_lock
    _few_pixels_lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_renew_lock)  # the thread that held the lock does not exist there


class MediaMemory:
    """Memory for the decoded rows of one batch.

    Attributes:
        owners, encoded: As in `ProcessedBatch`.
        encodes: Whether images that a device can decode stay encoded.

    Args:
        allocator: Provides the memory; None for new ordinary memory.
        encodes: See above.
    """

    def __init__(self, allocator: Allocator | None, *, encodes: bool = False) -> None:
        self._allocator = allocator
        self.owners: dict[str, Any] = {}
        self.encoded: dict[str, EncodedImages] = {}
        self.encodes = encodes

    def allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return memory for a column's decoded rows, of this shape and dtype; its content is undefined."""
        nbytes = math.prod(shape) * dtype.itemsize
        if self._allocator is None or not nbytes:
            return np.empty(shape, dtype)
        array, self.owners[name] = self._allocator.allocate(nbytes)
        return array[:nbytes].view(dtype).reshape(shape)


class MediaRows(Protocol):
    """The rows of one column of one batch, in their decoded form. Used by one thread."""

    def decode(self, row: int, data: bytes, rows: BatchRows) -> None:
        """Decode one row.

        Raises:
            BlobProblem: The bytes are damaged, or do not match the field.
        """

    def fill_gap(self, row: int) -> None:
        """Set a row to the value that stands for a null."""

    def repeat(self, row: int, source: int) -> None:
        """Copy row `source` to `row`."""

    def columns(self) -> BatchArrays:
        """Return the columns to deliver, by name: the column itself, and its companions."""


class ImageRows:
    """``[rows, height, width, channels]``, or channels first, or a list of images if their sizes vary."""

    def __init__(self, name: str, field: Image, count: int, memory: MediaMemory) -> None:
        self._field = field
        self._channels = field.shape[2]
        self._name = name
        self._list: Images = []
        self._array: npt.NDArray[Any] | None = None
        shape = [n for n in field.delivered_shape if n is not None]
        if len(shape) == 3:
            self._array = memory.allocate(name, (count, *shape), field.delivered_dtype)
        else:
            self._list = [np.empty(0, field.delivered_dtype)] * count

    def decode(self, row: int, data: bytes, rows: BatchRows) -> None:
        """Decode an image, directly to its row of the array if there is an array."""
        if self._field.storage == "path":
            data = file_bytes(rows.files, data)
        if not self._field.is_plain:
            rng = rows.random(row) if self._field.is_random else None
            done = write_image(data, self._field, rng, None if self._array is None else self._array[row])
            if self._array is None:
                self._list[row] = done
            return
        out = None if self._array is None else self._array[row]
        pixels = image_pixels(data, self._channels, out)
        if out is None:
            self._list[row] = pixels
            return
        if pixels.shape != out.shape:
            raise BlobProblem(
                f"the image is {pixels.shape[0]} x {pixels.shape[1]}, not the {out.shape[0]} x {out.shape[1]} of its "
                "field; Image() without a shape takes images of any size"
            )
        if not np.may_share_memory(pixels, out):
            out[...] = pixels

    def jpegs(self, encoded: EncodedRows, rows: BatchRows) -> JpegBatch | None:
        """Return the rows that the kernels can decode in one call."""
        if self._field.storage == "path":
            return None
        out = self._list if self._array is None else self._array
        return JpegBatch(encoded, range(rows.count), self._field, rows.random, out)

    def fill_gap(self, row: int) -> None:
        """Make the row a black image."""
        assert self._array is not None
        self._array[row] = black_image(self._field)

    def repeat(self, row: int, source: int) -> None:
        """Copy `source` to `row`."""
        if self._array is None:
            self._list[row] = self._list[source].copy()
        else:
            self._array[row] = self._array[source]

    def columns(self) -> BatchArrays:
        """Return the column."""
        return {self._name: self._list if self._array is None else self._array}


class ArrayRows:
    """Arrays of `Encoded`: stacked if the field has a fixed shape, else a list."""

    def __init__(self, name: str, field: Encoded, count: int) -> None:
        self._name = name
        self._field = field
        self._arrays: Images = [np.empty(0, field.dtype)] * count

    def decode(self, row: int, data: bytes, rows: BatchRows) -> None:  # noqa: ARG002 - nothing is random
        """Decode an array."""
        self._arrays[row] = np.array(read_array(data, self._field), self._field.dtype, order="C")

    def fill_gap(self, row: int) -> None:
        """Fill the row with zeros."""
        self._arrays[row] = np.zeros([n or 0 for n in self._field.shape], self._field.dtype)

    def repeat(self, row: int, source: int) -> None:
        """Copy `source` to `row`."""
        self._arrays[row] = self._arrays[source].copy()

    def columns(self) -> BatchArrays:
        """Return the column."""
        return {self._name: np.stack(self._arrays) if self._field.is_fixed and self._arrays else self._arrays}


def _opened(column: Column, rows: BatchRows, memory: MediaMemory) -> MediaRows:
    field, count = column.image, rows.count
    if isinstance(field, Encoded):
        return ArrayRows(column.name, field, count)
    if isinstance(field, Audio):
        return AudioRows(column.name, field, count, memory.allocate)
    if isinstance(field, Video):
        return VideoRows(column.name, field, count, memory.allocate)
    assert field is not None
    if memory.encodes and has_device_form(field):
        return EncodedImageRows(column.name, field, rows, memory.allocate, memory.encoded)
    return ImageRows(column.name, field, count, memory)


@dataclass(frozen=True, slots=True)
class DamagedRow:
    """A row whose media cannot be decoded.

    Attributes:
        number: The row's number in the data set.
        reason: The column, and what is wrong.
    """

    number: int
    reason: str


class _ColumnWork:
    """The rows of a column of a batch, as threads take them. Guarded by the lock of its `MediaBatch`, except `jpegs`.

    Args:
        column: The column.
        encoded: Its rows.
        valid: bool ``[rows]``, False for a null, if the field has a mask.
        rows: The batch's rows.
        memory: Memory for rows of one size.

    Attributes:
        name: The column's name.
        media, encoded, valid: The rows, decoded and encoded, and which of them are null.
        jpegs: The rows that the kernels decode, which are taken first; None unless rows hold the images.
        can_share: Whether several threads may decode rows at a time.
    """

    def __init__(self, column: Column, encoded: EncodedRows, valid: Any, rows: BatchRows, memory: MediaMemory) -> None:
        self.name = column.name
        self.media = _opened(column, rows, memory)
        self.encoded, self.valid = encoded, valid
        self.jpegs: JpegBatch | None = None
        done = set[int]()
        if isinstance(self.media, EncodedImageRows):
            done = self.media.keep_jpegs(encoded, rows)
        elif isinstance(self.media, ImageRows):
            self.jpegs = self.media.jpegs(encoded, rows)
            done = set() if self.jpegs is None else set(self.jpegs.rows)
        self._left = [row for row in range(rows.count) if row not in done]
        self._taken = 0
        # Rows of one video share a decoder, images for a device stay in order, and arrays are read with the GIL.
        self.can_share = isinstance(self.media, ImageRows | AudioRows)
        # Files that rows name are read by all threads at once.
        is_in_row = isinstance(column.image, Image) and column.image.storage == "bytes"
        first = next((data for row in self._left if (data := encoded[row])), b"") if is_in_row else b""
        self._has_few_pixels = bool(first) and has_few_pixels(first, _FEW_PIXELS)

    @property
    def are_left(self) -> bool:
        """Whether there are rows that another thread may begin."""
        are_left = self._taken < len(self._left) or (self.jpegs is not None and self.jpegs.are_left)
        return are_left and self.can_share and not self._has_few_pixels

    def take(self) -> Sequence[int]:
        """Return the next rows to decode one by one; none if all have been taken."""
        most = _FEW_PIXELS_AT_ONCE if self._has_few_pixels else _ROWS_AT_ONCE if self.can_share else len(self._left)
        rows = self._left[self._taken : self._taken + most]
        self._taken += len(rows)
        return rows

    def turn(self) -> AbstractContextManager[object]:
        """Return the lock for rows like these, if they are images of few pixels."""
        return _few_pixels_lock if self._has_few_pixels else nullcontext()


class MediaBatch:
    """The media of one batch. One thread decodes them, or several together; the one that ends last calls `finish`.

    Rows are taken in the order of columns, and of rows in a column. If a row is damaged, no more rows are taken, but
    those before it are decoded. So the error is that of the first damaged row, however many threads there are.

    `_lock` guards what is taken and found; rows are decoded without it, each by one thread.

    Args:
        columns: The columns to decode.
        arrays: The batch: ``[rows, ...]`` by name, and for each of `columns` the encoded bytes: `EncodedRows`, or a
            `Ragged`.
        rows: The batch's rows.
        memory: Memory for rows of one size.
        replaces: Whether a row that cannot be decoded is replaced, in all columns, by the next row of the batch that
            can be decoded; if not, its error is raised.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        arrays: Mapping[str, Array | EncodedRows],
        rows: BatchRows,
        memory: MediaMemory,
        *,
        replaces: bool,
    ) -> None:
        names = {column.name for column in columns}
        self._names = list(arrays)
        self._others = {name: cast("Array", array) for name, array in arrays.items() if name not in names}
        self._rows, self._replaces = rows, replaces
        self._works: list[_ColumnWork] = []
        for column in columns:
            found = arrays[column.name]
            encoded = EncodedRows.of_ragged(found) if isinstance(found, Ragged) else found
            assert column.image is not None
            assert isinstance(encoded, EncodedRows)
            valid = self._others[f"{column.name}_valid"] if column.image.null == "mask" else None
            self._works.append(_ColumnWork(column, encoded, valid, rows, memory))
        self._lock = threading.Lock()
        self._threads = 0
        self._is_over = False  # no thread may begin any more
        self._damaged: dict[int, tuple[int, BlobProblem]] = {}  # by row: the first column that is damaged
        self._failed: dict[tuple[int, int], BaseException] = {}  # by column and row: errors that are not damage
        self._error: BaseException | None = None  # of no row, such as MemoryError

    @property
    def are_rows_left(self) -> bool:
        """Whether another thread may help."""
        return not self._is_over and any(work.are_left for work in self._works)

    def decode(self) -> bool:
        """Decode rows until all have been taken; return whether all are decoded, and no other thread was told so."""
        with self._lock:
            if self._is_over:
                return False
            self._threads += 1
        try:
            rows = replace(self._rows)  # whose random generator belongs to one thread
            for number, work in enumerate(self._works):
                if work.jpegs is not None and not self._has_failed:
                    work.jpegs.run()
                while taken := self._take(work):
                    with work.turn():
                        self._decode(number, taken, rows)
        except BaseException as error:  # raised by the thread that ends last
            self._error = error
        with self._lock:
            self._threads -= 1
            self._is_over = not self._threads
            return self._is_over

    @property
    def _has_failed(self) -> bool:
        return self._error is not None or bool(self._failed or (self._damaged and not self._replaces))

    def _take(self, work: _ColumnWork) -> Sequence[int]:
        with self._lock:
            return () if self._has_failed else work.take()

    def _decode(self, number: int, chosen: Iterable[int], rows: BatchRows) -> None:
        """Decode rows of a column, by its number, until the error of one has to be raised."""
        work = self._works[number]
        for row in chosen:
            data = work.encoded[row]  # one at a time: copies of all rows would be new memory for each batch
            try:
                if not data and work.valid is not None and not work.valid[row]:
                    work.media.fill_gap(row)
                elif row not in self._damaged or number < self._damaged[row][0]:
                    work.media.decode(row, data, rows)
            except BlobProblem as problem:
                with self._lock:
                    if row not in self._damaged or number < self._damaged[row][0]:
                        self._damaged[row] = number, problem
                if not self._replaces:
                    return
            except BaseException as error:
                with self._lock:
                    self._failed[number, row] = error
                return

    def finish(self) -> tuple[BatchArrays, tuple[DamagedRow, ...]]:
        """Return the batch with its media decoded, and the rows that were replaced.

        Raises:
            DataError: A row cannot be decoded, or does not match its field; if rows are replaced, this holds for all.
            SystemReadError, RemoteError: A file that a row names cannot be read; see `ReferencedFiles.open`.
        """
        if self._error is not None:
            raise self._error
        for number, work in enumerate(self._works):
            if work.jpegs is not None:
                written = work.jpegs.written()
                self._decode(
                    number, self._sooner(number, [row for row in work.jpegs.rows if row not in written]), self._rows
                )
        if (first := self._first_error()) is not None:
            number, row = first
            if first in self._failed:
                raise self._failed[first]
            problem = self._damaged[row][1]
            raise self._rows.error(row, self._works[number].name, problem) from problem.__cause__
        done, replaced = self._replaced() if self._damaged else (self._others, ())
        decoded = {work.name: work.media.columns() for work in self._works}
        inserted: BatchArrays = {}
        for name in self._names:
            inserted |= decoded[name] if name in decoded else {name: done[name]}
        return inserted, replaced

    def _sooner(self, number: int, rows: Sequence[int]) -> Sequence[int]:
        """Return the rows of a column before the first one whose error is raised; all if there is none."""
        first = self._first_error()
        return rows if first is None else [row for row in rows if (number, row) < first]

    def _first_error(self) -> tuple[int, int] | None:
        """Return column and row of the error to raise: the first one in the order in which rows are taken."""
        damaged = () if self._replaces else ((number, row) for row, (number, _) in self._damaged.items())
        return min((*self._failed, *damaged), default=None)

    def _replaced(self) -> tuple[dict[str, Array], tuple[DamagedRow, ...]]:
        """Replace the damaged rows; return the columns that are not media, and the replaced rows."""
        rows, damaged = self._rows, self._damaged
        sound = [row for row in range(rows.count) if row not in damaged]
        if not sound:
            number, problem = damaged[0]
            raise rows.error(0, self._works[number].name, problem) from problem.__cause__
        assert rows.numbers is not None
        sources = {row: next((s for s in sound if s > row), sound[0]) for row in damaged}
        taken = np.array([sources.get(row, row) for row in range(rows.count)])
        for work in self._works:
            for row, source in sources.items():
                work.media.repeat(row, source)
        replaced = tuple(
            DamagedRow(int(rows.numbers[row]), f"column {self._works[number].name!r}: {problem}")
            for row, (number, problem) in sorted(damaged.items())
        )
        self._damaged = {}  # the tracebacks would keep the batch alive, in a reference cycle
        return {name: array[taken] for name, array in self._others.items()}, replaced
