"""Finds the JPEGs of a batch that a device decodes, and the part of each that is delivered."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from parquet_loader.decode.jpeg import Region, Shape, jpeg_shape
from parquet_loader.decode.media.crops import Box
from parquet_loader.decode.media.encoded_rows import EncodedRows
from parquet_loader.decode.media.image_parts import box_of, check_size, draw_flip, used_region
from parquet_loader.decode.media.jpeg_batches import plain_jpegs
from parquet_loader.decode.media.opened_image import OpenedImage, pixel_limit
from parquet_loader.schema import Image

# A decoder on a device may deliver a truncated image without an error.
_END_OF_JPEG = b"\xff\xd9"
# Larger JPEGs are not left to a device: it decodes them in full, and `write_image` at a reduced size.
_MOST_PIXELS = 2**23


class JpegPart(NamedTuple):
    """The part of a JPEG that is delivered, for a decoder that decodes whole images.

    Attributes:
        height, width: Of the image.
        box: The part that is resized to the delivered size.
        region: The pixels that affect the result.
        is_flipped: Whether the result is mirrored left to right.
    """

    height: int
    width: int
    box: Box
    region: Region
    is_flipped: bool


def has_device_form(field: Image) -> bool:
    """Whether a device can deliver JPEGs in a field's form: in one size, and not for ``"nearest"``."""
    return field.is_fixed and field.shape[2] != 4 and field.interpolation != "nearest"


def jpeg_part(data: bytes, field: Image, rng: np.random.Generator | None) -> JpegPart | None:
    """Return the part of a JPEG that `write_image` delivers; None if only `write_image` may decode the image.

    Draws the same random numbers as `write_image`.

    Args:
        data: The encoded image.
        field: Its field, for which `has_device_form` holds.
        rng: As in `write_image`.

    Raises:
        BlobProblem: The image's size differs from the field's.
    """
    shape = jpeg_shape(data, pixel_limit(_MOST_PIXELS))
    if shape is None or shape[2] != field.shape[2] or not data.endswith(_END_OF_JPEG):
        return None
    if field.exif_orientation:
        with OpenedImage(data) as opened:
            if opened.orientation != 1:
                return None
    check_size(shape, field)
    return _part(shape, field, rng)


def jpeg_parts(
    encoded: EncodedRows, rows: range, field: Image, random: Callable[[int], np.random.Generator]
) -> dict[int, JpegPart]:
    """Return the parts of images as `jpeg_part` does, by row, with one call of the kernels.

    Args:
        encoded: A batch's images.
        rows: The rows to look at.
        field: Their field, for which `has_device_form` holds.
        random: Returns the random numbers of a row; not called if the field is not random.

    Returns:
        Rows that are missing here need `jpeg_part`, or `write_image`.
    """
    if field.exif_orientation:
        return {}
    return {
        row: _part(shape, field, random(row) if field.is_random else None)
        for row, begin, end, shape in plain_jpegs(encoded, rows, field, pixel_limit(_MOST_PIXELS))
        if encoded.values[max(begin, end - len(_END_OF_JPEG)) : end].tobytes() == _END_OF_JPEG
    }


def _part(shape: Shape, field: Image, rng: np.random.Generator | None) -> JpegPart:
    is_flipped = draw_flip(field, rng)
    height, width, _ = shape
    box = box_of(field, height, width, rng)
    return JpegPart(height, width, box, used_region(field, box, 1, shape), is_flipped)
