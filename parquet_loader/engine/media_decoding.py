"""Decodes the columns that stay encoded until their batch: images, audio, video, and arrays of `Encoded`.

A `MediaRows` decodes the rows of one column of one batch, one at a time; `ImageRows` and `EncodedImageRows` first take
the JPEGs together. Media whose rows have one size are decoded directly to the batch's memory. `decode_media` calls it,
names the row of an error, and replaces damaged rows if requested.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from parquet_loader.decode import (
    BlobProblem,
    Column,
    EncodedRows,
    has_device_form,
    has_few_pixels,
    image_pixels,
    read_array,
    write_image,
    write_jpegs,
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
# Rows that are decoded in one call of the kernels, or with the lock held.
_ROWS_AT_ONCE = 64

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

    def decode_together(self, chosen: range, encoded: EncodedRows, rows: BatchRows) -> set[int]:
        """Decode those of the chosen rows that the kernels can decode in one call, and return them."""
        if self._field.storage == "path":
            return set()
        out = self._list if self._array is None else self._array
        return write_jpegs(encoded, chosen, self._field, rows.random, out)

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


def _turn(field: object, data: bytes) -> AbstractContextManager[object]:
    """Return the lock for rows like this one, if they are images of few pixels."""
    # Files that rows name are read by all threads at once.
    takes_turns = isinstance(field, Image) and field.storage == "bytes" and has_few_pixels(data, _FEW_PIXELS)
    return _few_pixels_lock if takes_turns else nullcontext()


@dataclass(frozen=True, slots=True)
class DamagedRow:
    """A row whose media cannot be decoded.

    Attributes:
        number: The row's number in the data set.
        reason: The column, and what is wrong.
    """

    number: int
    reason: str


def decode_media(
    columns: Sequence[Column],
    arrays: Mapping[str, Array | EncodedRows],
    rows: BatchRows,
    memory: MediaMemory,
    *,
    replaces: bool,
) -> tuple[BatchArrays, tuple[DamagedRow, ...]]:
    """Return a batch with its media decoded, and the rows that were replaced.

    Args:
        columns: The columns to decode.
        arrays: The batch: ``[rows, ...]`` by name, and for each of `columns` the encoded bytes: `EncodedRows`, or a
            `Ragged`.
        rows: The batch's rows.
        memory: Memory for rows of one size.
        replaces: Whether a row that cannot be decoded is replaced, in all columns, by the next row of the batch that
            can be decoded; if not, its error is raised.

    Raises:
        DataError: A row cannot be decoded, or does not match its field; with `replaces`, this holds for all rows.
    """
    names = {column.name for column in columns}
    done = {name: cast("Array", array) for name, array in arrays.items() if name not in names}
    damaged: dict[int, tuple[str, BlobProblem]] = {}
    opened: list[MediaRows] = []
    for column in columns:
        found = arrays[column.name]
        encoded = EncodedRows.of_ragged(found) if isinstance(found, Ragged) else found
        assert column.image is not None
        assert isinstance(encoded, EncodedRows)
        valid = done[f"{column.name}_valid"] if column.image.null == "mask" else None
        media = _opened(column, rows, memory)
        opened.append(media)
        for begin in range(0, rows.count, _ROWS_AT_ONCE):
            some = range(begin, min(begin + _ROWS_AT_ONCE, rows.count))
            done_together = set[int]()
            if isinstance(media, ImageRows | EncodedImageRows):
                done_together = media.decode_together(some, encoded, rows)
            one_by_one = [row for row in some if row not in done_together]
            if not one_by_one:
                continue
            with _turn(column.image, next((data for row in one_by_one if (data := encoded[row])), b"")):
                for row in one_by_one:
                    data = encoded[row]  # one at a time: copies of all rows would be new memory for each batch
                    try:
                        if not data and valid is not None and not valid[row]:
                            media.fill_gap(row)
                        elif row not in damaged:
                            media.decode(row, data, rows)
                    except BlobProblem as problem:
                        damaged[row] = column.name, problem
                        if not replaces:
                            raise rows.error(row, column.name, problem) from problem.__cause__
    replaced: tuple[DamagedRow, ...] = ()
    if damaged:
        sound = [row for row in range(rows.count) if row not in damaged]
        if not sound:
            raise rows.error(0, *damaged[0]) from damaged[0][1].__cause__
        assert rows.numbers is not None
        sources = {row: next((s for s in sound if s > row), sound[0]) for row in damaged}
        taken = np.array([sources.get(row, row) for row in range(rows.count)])
        done = {name: array[taken] for name, array in done.items()}
        for media in opened:
            for row, source in sources.items():
                media.repeat(row, source)
        replaced = tuple(
            DamagedRow(int(rows.numbers[row]), f"column {name!r}: {problem}")
            for row, (name, problem) in sorted(damaged.items())
        )
    decoded = {column.name: media.columns() for column, media in zip(columns, opened, strict=True)}
    inserted: BatchArrays = {}
    for name in arrays:
        inserted |= decoded[name] if name in decoded else {name: done[name]}
    return inserted, replaced
