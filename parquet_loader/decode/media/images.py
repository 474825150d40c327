"""Decodes one image to its delivered form, with libjpeg-turbo if possible, else with Pillow."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parquet_loader.decode.array_formats import BlobProblem, pillow_image
from parquet_loader.decode.jpeg import decode_jpeg, jpeg_shape, reduced_shape
from parquet_loader.decode.media.crops import Box
from parquet_loader.decode.media.image_parts import (
    box_of,
    check_size,
    cut_of,
    draw_flip,
    reduction_of,
    scale_and_offset,
    used_region,
)
from parquet_loader.decode.media.opened_image import OpenedImage
from parquet_loader.decode.media.resizing import Pixels, resize, to_floats
from parquet_loader.schema import Image


def image_pixels(data: bytes, channels: int, out: Pixels | None) -> Pixels:
    """Return one image, uint8 ``[height, width, channels]``: in `out` if possible, else in new memory.

    Raises:
        BlobProblem: the bytes are not an image that can be read.
    """
    pillow = pillow_image()
    shape = jpeg_shape(data, pillow.MAX_IMAGE_PIXELS)
    if shape is not None and shape[2] == channels:
        buffer = np.empty(shape, np.uint8) if out is None else out
        if buffer.shape == shape and decode_jpeg(data, buffer):
            return buffer
    with OpenedImage(data) as opened:
        return opened.pixels(channels)


def write_image(
    data: bytes, field: Image, rng: np.random.Generator | None, out: npt.NDArray[Any] | None
) -> npt.NDArray[Any]:
    """Return one image in its field's delivered form: in `out` if given, else in new memory.

    Args:
        data: The encoded image.
        field: Its field.
        rng: The row's random numbers; None if the field is not random.
        out: Memory of the delivered shape and dtype; None for images whose sizes vary.

    Raises:
        BlobProblem: the bytes are not an image that can be read, or its size differs from the field's.
    """
    is_flipped = draw_flip(field, rng)
    is_as_resized = field.delivered_dtype == np.uint8 and not field.channels_first
    direct = out if is_as_resized and out is not None and out.flags.c_contiguous else None
    pixels = _resized(data, field, rng, direct, is_flipped=is_flipped)
    return pixels if pixels is out else _delivered(pixels, field, out)


def _resized(
    data: bytes, field: Image, rng: np.random.Generator | None, out: Pixels | None, *, is_flipped: bool
) -> Pixels:
    """Return the pixels in their delivered size, mirrored if requested; in `out` if possible."""
    channels = field.shape[2]
    orientation = 1
    if field.exif_orientation:
        with OpenedImage(data) as opened:
            orientation = opened.orientation
    if field.size is None:
        pixels = _turned(image_pixels(data, channels, None), orientation)
        check_size(pixels.shape, field)
        return pixels[:, ::-1] if is_flipped else pixels
    box: Box | None = None
    stored = jpeg_shape(data, pillow_image().MAX_IMAGE_PIXELS)
    if stored is not None and stored[2] == channels:
        height, width = _turned_size(stored[0], stored[1], orientation)
        check_size((height, width), field)
        box = box_of(field, height, width, rng)
        factor = reduction_of(field, box)
        pixels = np.empty(reduced_shape(stored, factor), np.uint8)
        used = used_region(field, box, factor, pixels.shape) if orientation == 1 else None
        if decode_jpeg(data, pixels, factor, used):
            part = _part(_turned(pixels, orientation), height, width, box, factor, field)
            return _in_size(part, field, out, is_flipped=is_flipped)
    with OpenedImage(data) as opened:
        if opened.is_jpeg:
            height, width = _turned_size(opened.height, opened.width, orientation)
            box = box or box_of(field, height, width, rng)
            opened.reduce(reduction_of(field, box))
            pixels = _turned(opened.pixels(channels), orientation)
        else:
            pixels = _turned(opened.pixels(channels), orientation)
            height, width = pixels.shape[:2]
            box = box_of(field, height, width, rng)
    check_size((height, width), field)
    part = _part(pixels, height, width, box, reduction_of(field, box), field)
    return _in_size(part, field, out, is_flipped=is_flipped)


class _Part(NamedTuple):
    """A part of the pixels: left, top, right and bottom, in pixels."""

    pixels: Pixels
    box: tuple[float, float, float, float]


def _part(pixels: Pixels, height: int, width: int, box: Box, factor: int, field: Image) -> _Part:
    """Return the box of an image of `height` x `width`, whose pixels may be reduced by `factor`."""
    found = pixels.shape[:2]
    if found == (height, width):
        factor = 1
    elif found != (-(-height // factor), -(-width // factor)):
        raise BlobProblem(f"the image is {found[0]} x {found[1]}, its header says {height} x {width}")
    cut = cut_of(found, box, factor, field)
    top, bottom, left, right = cut.region
    return _Part(pixels[top:bottom, left:right], cut.box)


def _in_size(part: _Part, field: Image, out: Pixels | None, *, is_flipped: bool) -> Pixels:
    assert isinstance(field.size, tuple)
    return resize(part.pixels, part.box, field.size, interpolation=field.interpolation, is_mirrored=is_flipped, out=out)


def _delivered(pixels: Pixels, field: Image, out: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    height, width, channels = pixels.shape
    if out is None:
        shape = (channels, height, width) if field.channels_first else (height, width, channels)
        out = np.empty(shape, field.delivered_dtype)
    if field.delivered_dtype == np.uint8:
        out[...] = pixels.transpose(2, 0, 1) if field.channels_first else pixels
        return out
    scale, offset = np.array([scale_and_offset(field, channel) for channel in range(channels)]).T.copy()
    to_floats(pixels, scale, offset, out, channels_first=field.channels_first)
    return out


def _turned_size(height: int, width: int, orientation: int) -> tuple[int, int]:
    return (width, height) if orientation >= 5 else (height, width)


def _turned(pixels: Pixels, orientation: int) -> Pixels:
    """Rotate an image by its EXIF orientation."""
    match orientation:
        case 2:
            return pixels[:, ::-1]
        case 3:
            return pixels[::-1, ::-1]
        case 4:
            return pixels[::-1]
        case 5:
            return pixels.transpose(1, 0, 2)
        case 6:
            return pixels.transpose(1, 0, 2)[:, ::-1]
        case 7:
            return pixels.transpose(1, 0, 2)[::-1, ::-1]
        case 8:
            return pixels.transpose(1, 0, 2)[::-1]
    return pixels
