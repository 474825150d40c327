"""Decodes rows that stay encoded until their batch: JPEG and PNG to pixels, `np.save` bytes to arrays."""

from __future__ import annotations

import io
import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from parquet_loader.decode import BlobProblem, decode_jpeg, jpeg_shape, pillow_image, read_array, unreadable_image
from parquet_loader.errors import DataError
from parquet_loader.schema import Encoded, Image, sixteen_bits
from parquet_loader.window import Allocator

Images: TypeAlias = "list[npt.NDArray[np.uint8]]"


class ImageMemory:
    """Memory for the decoded images of one batch.

    Attributes:
        owners: As in `ProcessedBatch`.

    Args:
        allocator: Provides the memory; None: new ordinary memory.
    """

    def __init__(self, allocator: Allocator | None) -> None:
        self._allocator = allocator
        self.owners: dict[str, Any] = {}

    def allocate(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        """Return memory for a column's images: uint8, of this shape."""
        nbytes = math.prod(shape)
        if self._allocator is None or not nbytes:
            return np.empty(shape, np.uint8)
        array, self.owners[name] = self._allocator.allocate(nbytes)
        return array[:nbytes].reshape(shape)


def decoded_images(
    name: str, field: Image, encoded: Any, valid: Any, batch: int, memory: ImageMemory
) -> npt.NDArray[np.uint8] | Images:
    """Return the images of one column's rows.

    They are uint8 ``[rows, height, width, channels]``, or a list of images if the field leaves their sizes open.

    Args:
        name: The column.
        field: Its field.
        encoded: The bytes of each row, a `Ragged`.
        valid: Which rows have an image, or None: all.
        batch: The batch's number, for messages.
        memory: Memory for images of one size.

    Raises:
        DataError: a row cannot be decoded, or has another size than the field says.
    """
    height, width, channels = field.shape
    images: Images | npt.NDArray[np.uint8] = [np.empty(0, np.uint8)] * len(encoded)
    if height is not None and width is not None:
        images = memory.allocate(name, (len(encoded), height, width, channels))
    for row, data in enumerate(encoded.to_list()):
        if not data and valid is not None and not valid[row] and isinstance(images, np.ndarray):
            images[row] = 0
            continue
        try:
            pixels = _pixels(data, channels, images[row] if isinstance(images, np.ndarray) else None)
        except BlobProblem as problem:
            raise DataError(f"column {name!r}, row {row} of batch {batch}: {problem}") from problem.__cause__
        if isinstance(images, list):
            images[row] = pixels
        elif pixels.shape != images.shape[1:]:
            raise DataError(
                f"column {name!r}, row {row} of batch {batch}: the image is {pixels.shape[0]} x {pixels.shape[1]}, "
                f"not the {height} x {width} of its field; Image() without a shape takes images of any size"
            )
        elif not np.may_share_memory(pixels, images):
            images[row] = pixels
    return images


def _pixels(data: bytes, channels: int, out: npt.NDArray[np.uint8] | None) -> npt.NDArray[np.uint8]:
    """Return one image, uint8 ``[height, width, channels]``: in `out` if possible, else in new memory."""
    pillow = pillow_image()
    shape = jpeg_shape(data, pillow.MAX_IMAGE_PIXELS)
    if shape is not None and shape[2] == channels:
        buffer = np.empty(shape, np.uint8) if out is None else out
        if buffer.shape == shape and decode_jpeg(data, buffer):
            return buffer
    if (problem := sixteen_bits(data)) is not None:
        raise BlobProblem(problem)
    try:
        with pillow.open(io.BytesIO(data), formats=("JPEG", "PNG")) as opened:
            mode = {1: "L", 3: "RGB", 4: "RGBA"}[channels]
            opened.load()
            array = np.array(opened if opened.mode == mode else opened.convert(mode))  # writable, as libjpeg's are
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise unreadable_image(data, error) from error
    return array.reshape(*array.shape[:2], channels)


def decoded_arrays(name: str, field: Encoded, encoded: Any, valid: Any, batch: int) -> npt.NDArray[Any] | Images:
    """Return the arrays of one column's rows: stacked if the field has a fixed shape, else a list.

    Raises:
        DataError: a row does not hold an array, or its shape or dtype is not the field's.
    """
    arrays: Images = []
    for row, data in enumerate(encoded.to_list()):
        if not data and valid is not None and not valid[row]:
            arrays.append(np.zeros([n or 0 for n in field.shape], field.dtype))
            continue
        try:
            array = read_array(data, field)
        except BlobProblem as problem:
            raise DataError(f"column {name!r}, row {row} of batch {batch}: {problem}") from None
        arrays.append(np.array(array, field.dtype, order="C"))
    return np.stack(arrays) if field.is_fixed and arrays else arrays
