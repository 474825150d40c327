"""Images that stay encoded in their batch, because a device decodes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parquet_loader.common import IntArray
from parquet_loader.decode import (
    BlobProblem,
    EncodedRows,
    JpegPart,
    jpeg_part,
    jpeg_parts,
    scale_and_offset,
    write_image,
)
from parquet_loader.engine.recordings import Allocate, BatchRows
from parquet_loader.engine.referenced_files import file_bytes
from parquet_loader.schema import Image


@dataclass(frozen=True, slots=True)
class EncodedImages:
    """The images of one column of a batch: JPEGs for a device, and the pixels of images that it does not decode.

    The bytes of the JPEGs are the column's array in the batch: uint8 ``[bytes]``, one file after another.

    Attributes:
        name, field: The column.
        rows: The batch's rows.
        numbers: int64 ``[jpegs]``: the row of each JPEG.
        offsets: int64 ``[jpegs + 1]``: where each file begins, and the number of all bytes.
        parts: What is delivered of each JPEG.
        others: int64 ``[others]``: the other rows: images of other formats, damaged images, and gaps.
        pixels: Their delivered form, ``[others, *field.delivered_shape]``.
    """

    name: str
    field: Image
    rows: BatchRows
    numbers: IntArray
    offsets: IntArray
    parts: tuple[JpegPart, ...]
    others: IntArray
    pixels: npt.NDArray[Any]

    def write(self, files: npt.NDArray[np.uint8], jpeg: int, out: npt.NDArray[Any]) -> None:
        """Decode one JPEG on the CPU, as without a device.

        Args:
            files: The bytes of all JPEGs.
            jpeg: Its number.
            out: Memory of the delivered shape and dtype.

        Raises:
            DataError: The image cannot be decoded.
        """
        row = int(self.numbers[jpeg])
        data = files[self.offsets[jpeg] : self.offsets[jpeg + 1]].tobytes()
        try:
            write_image(data, self.field, _random(self.field, self.rows, row), out)
        except BlobProblem as problem:
            raise self.rows.error(row, self.name, problem) from problem.__cause__

    def decoded(self, files: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Return the column as without a device; arguments and errors as in `write`."""
        found = np.empty((self.rows.count, *self.pixels.shape[1:]), self.pixels.dtype)
        found[self.others] = self.pixels
        for jpeg, row in enumerate(self.numbers.tolist()):
            self.write(files, jpeg, found[row])
        return found


class _File(NamedTuple):
    """An encoded image: bytes `begin` to `end` of an array, and what is delivered of it."""

    array: npt.NDArray[np.uint8]
    begin: int
    end: int
    part: JpegPart


class EncodedImageRows:
    """Makes an `EncodedImages`; see `MediaRows`.

    Args:
        name, field: The column; `has_device_form` holds for the field.
        rows: The batch's rows.
        allocate: Returns the memory of the encoded bytes.
        made: Receives the images by column name.
    """

    def __init__(
        self, name: str, field: Image, rows: BatchRows, allocate: Allocate, made: dict[str, EncodedImages]
    ) -> None:
        self._name = name
        self._field = field
        self._rows = replace(rows, files=None)
        self._allocate = allocate
        self._made = made
        self._jpegs: dict[int, _File] = {}
        self._pixels: dict[int, npt.NDArray[Any]] = {}

    def decode(self, row: int, data: bytes, rows: BatchRows) -> None:
        """Keep a JPEG encoded; decode any other image."""
        if self._field.storage == "path":
            data = file_bytes(rows.files, data)
        part = jpeg_part(data, self._field, _random(self._field, rows, row))
        if part is None:
            self._pixels[row] = write_image(data, self._field, _random(self._field, rows, row), None)
        else:
            self._jpegs[row] = _File(np.frombuffer(data, np.uint8), 0, len(data), part)

    def keep_jpegs(self, encoded: EncodedRows, rows: BatchRows) -> set[int]:
        """Keep the rows that are plain JPEGs, and return them."""
        if self._field.storage == "path":
            return set()
        parts = jpeg_parts(encoded, range(rows.count), self._field, rows.random)
        places = encoded.places.tolist()
        for row, part in parts.items():
            begin, end = places[row]
            self._jpegs[row] = _File(encoded.values, begin, end, part)
        return set(parts)

    def fill_gap(self, row: int) -> None:
        """Make the row a black image."""
        self._pixels[row] = black_image(self._field)

    def repeat(self, row: int, source: int) -> None:
        """Copy `source` to `row`."""
        self._jpegs.pop(row, None)
        self._pixels.pop(row, None)
        if source in self._jpegs:
            self._jpegs[row] = self._jpegs[source]
        else:
            self._pixels[row] = self._pixels[source]

    def columns(self) -> dict[str, Any]:
        """Return the bytes of the JPEGs, uint8 ``[bytes]``, as the column."""
        files = list(self._jpegs.values())
        offsets = np.zeros(len(files) + 1, np.int64)
        np.cumsum([file.end - file.begin for file in files], out=offsets[1:])
        block = self._allocate(self._name, (int(offsets[-1]),), np.dtype(np.uint8))
        if files:
            np.concatenate(_joined(files), out=block)
        none = np.empty((0, *(n or 0 for n in self._field.delivered_shape)), self._field.delivered_dtype)
        self._made[self._name] = EncodedImages(
            self._name,
            self._field,
            self._rows,
            np.array(list(self._jpegs), np.int64),
            offsets,
            tuple(file.part for file in files),
            np.array(list(self._pixels), np.int64),
            np.stack(list(self._pixels.values())) if self._pixels else none,
        )
        return {self._name: block}


def _joined(files: Iterable[_File]) -> list[npt.NDArray[np.uint8]]:
    """Return the bytes of files, as one array if they follow each other: each array that is copied releases the GIL."""
    runs: list[_File] = []
    for file in files:
        if runs and file.array is runs[-1].array and file.begin == runs[-1].end:
            runs[-1] = runs[-1]._replace(end=file.end)
        else:
            runs.append(file)
    return [run.array[run.begin : run.end] for run in runs]


def black_image(field: Image) -> npt.NDArray[Any]:
    """Return the image that stands for a null, in its field's delivered form."""
    shape = [n or 0 for n in field.delivered_shape]
    image = np.zeros(shape, field.delivered_dtype)
    if field.mean is not None:
        for channel in range(field.shape[2]):
            at: Any = channel if field.channels_first else (..., channel)
            image[at] = scale_and_offset(field, channel)[1]
    return image


def _random(field: Image, rows: BatchRows, row: int) -> np.random.Generator | None:
    return rows.random(row) if field.is_random else None
