"""Resizes and normalises images with kernels, or with Pillow and numpy; the results are the same."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from parquet_loader.common import KERNELS
from parquet_loader.decode.array_formats import pillow_image

Pixels = npt.NDArray[np.uint8]

_RESAMPLING = {"nearest": 0, "bilinear": 2, "bicubic": 3}


def resize(
    pixels: Pixels,
    box: tuple[float, float, float, float],
    size: tuple[int, int],
    *,
    interpolation: str,
    is_mirrored: bool,
    out: Pixels | None,
) -> Pixels:
    """Return a part of an image in another size, uint8 ``[*size, channels]``.

    Args:
        pixels: uint8 ``[height, width, channels]``.
        box: The part: left, top, right and bottom, inside of the image and not empty.
        size: Height and width of the result.
        interpolation: ``"nearest"``, or ``"bilinear"`` and ``"bicubic"`` with antialiasing.
        is_mirrored: Whether left and right are exchanged.
        out: Contiguous memory for the result; if possible, the result is returned in it.

    The kernels resize rows first if Pillow 13 does. Its older releases always resize columns first, which may change
    the last bit.
    """
    channels = pixels.shape[2]
    if KERNELS is None or interpolation == "nearest" or channels not in (1, 3):  # Pillow weights colors by alpha
        image = pillow_image().fromarray(pixels[:, :, 0] if channels == 1 else pixels)
        resized = np.asarray(image.resize((size[1], size[0]), _RESAMPLING[interpolation], box)).reshape(*size, -1)
        return resized[:, ::-1] if is_mirrored else resized
    if pixels.strides[1:] != (channels, 1) or pixels.strides[0] < 0:
        pixels = np.ascontiguousarray(pixels)
    if out is None:
        out = np.empty((*size, channels), np.uint8)
    edges = np.array(box, np.float32)
    problem = KERNELS.image_resize(
        pixels.ctypes.data, pixels.strides[0], *pixels.shape, edges.ctypes.data, *size,
        interpolation == "bicubic", is_mirrored, out.ctypes.data,
    )  # fmt: skip
    if problem:
        raise MemoryError(f"no memory to resize an image of {pixels.shape[0]} x {pixels.shape[1]}")
    return out


def to_floats(
    pixels: Pixels,
    scale: npt.NDArray[np.float32],
    offset: npt.NDArray[np.float32],
    out: npt.NDArray[np.float32],
    *,
    channels_first: bool,
) -> None:
    """Write an image to `out`, each channel multiplied by its scale, and its offset added.

    Args:
        pixels: uint8 ``[height, width, channels]``.
        scale, offset: float32 ``[channels]``.
        out: float32, of the same shape, or ``[channels, height, width]``.
        channels_first: Whether `out` has the second shape.
    """
    channels = pixels.shape[2]
    if KERNELS is not None and pixels.flags.c_contiguous and out.flags.c_contiguous:
        KERNELS.image_to_floats(
            pixels.ctypes.data, pixels.size // channels, channels, channels_first,
            scale.ctypes.data, offset.ctypes.data, out.ctypes.data,
        )  # fmt: skip
        return
    by_channel = out if channels_first else np.moveaxis(out, 2, 0)
    np.multiply(pixels.transpose(2, 0, 1), scale[:, None, None], out=by_channel)
    by_channel += offset[:, None, None]
