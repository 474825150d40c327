"""Chooses the part of an image to resize: pure functions of sizes and random numbers."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Box(NamedTuple):
    """A part of an image, in pixels from its upper left corner; may be fractional if it is centred.

    Attributes:
        left, top, width, height: All of them inside the image.
    """

    left: float
    top: float
    width: float
    height: float


_TRIES = 10


def uniform(rng: np.random.Generator, size: int) -> npt.NDArray[np.float64]:
    """Return numbers from 0 to 1 (exclusive), ``[size]``: the upper 53 bits of words of the raw stream.

    numpy's `Generator.random` gives the same numbers today, but may change between releases; the raw stream does not.
    """
    return np.asarray((rng.bit_generator.random_raw(size) >> np.uint64(11)) * 2.0**-53, np.float64)


def random_box(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], rng: np.random.Generator
) -> Box:
    """Return a random part of an image, as torchvision's `RandomResizedCrop` chooses it; in whole pixels.

    Ten times, an area is drawn uniformly from `scale` and proportions log-uniformly from `ratio`. The first rectangle
    that fits is put at a uniform position. If none fits, it is the largest one in the middle with proportions within
    `ratio`.

    Args:
        height, width: Of the image.
        scale: Least and largest share of the image's area.
        ratio: Least and largest width divided by height.
        rng: Always draws 40 numbers, so that those drawn later do not depend on the image.
    """
    drawn = uniform(rng, 4 * _TRIES).reshape(_TRIES, 4).tolist()
    area, (low, high) = height * width, (math.log(n) for n in ratio)
    for share, proportion, x, y in drawn:
        target = area * (scale[0] + (scale[1] - scale[0]) * share)
        aspect = math.exp(low + (high - low) * proportion)
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            return Box(int(x * (width - w + 1)), int(y * (height - h + 1)), w, h)
    w, h = width, height
    if width / height < ratio[0]:
        h = min(height, max(1, round(width / ratio[0])))
    elif width / height > ratio[1]:
        w = min(width, max(1, round(height * ratio[1])))
    return Box((width - w) // 2, (height - h) // 2, w, h)


def center_box(height: int, width: int, size: tuple[int, int], resize: int | None) -> Box:
    """Return the middle part of an image that becomes `size`.

    Args:
        height, width: Of the image.
        size: Delivered height and width.
        resize: The length to which the shorter side is resized before `size` is cut out, as torchvision's `Resize` and
            `CenterCrop` do it; at least `size`. None: the largest part with the proportions of `size`.
    """
    if resize is None:
        factor = min(height / size[0], width / size[1])
        h, w = min(size[0] * factor, float(height)), min(size[1] * factor, float(width))
        return Box((width - w) / 2, (height - h) / 2, w, h)
    shorter = min(height, width)
    resized = [resize if n == shorter else int(resize * n / shorter) for n in (height, width)]
    (top, h), (left, w) = (
        _cut(length, whole, part) for length, whole, part in zip((height, width), resized, size, strict=True)
    )
    return Box(left, top, w, h)


def _cut(length: int, resized: int, part: int) -> tuple[float, float]:
    """Return begin and length, in stored pixels, of the middle `part` of a resized length."""
    begin = round((resized - part) / 2)
    unit = length / resized
    return begin * unit, min(part * unit, length - begin * unit)
