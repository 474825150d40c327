"""Decodes one image to pixels, with libjpeg-turbo if it can, else with Pillow."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt

from parquet_loader.decode.array_formats import BlobProblem, pillow_image, unreadable_image
from parquet_loader.decode.jpeg import decode_jpeg, jpeg_shape
from parquet_loader.schema import sixteen_bits

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def image_pixels(data: bytes, channels: int, out: npt.NDArray[np.uint8] | None) -> npt.NDArray[np.uint8]:
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
    if (problem := sixteen_bits(data)) is not None:
        raise BlobProblem(problem)
    try:
        with pillow.open(io.BytesIO(data), formats=("JPEG", "PNG")) as opened:
            mode = _MODES[channels]
            opened.load()
            array = np.array(opened if opened.mode == mode else opened.convert(mode))  # writable, as libjpeg's are
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise unreadable_image(data, error) from error
    return array.reshape(*array.shape[:2], channels)
