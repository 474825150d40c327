"""The part of an image that its field delivers: pure functions of the field, the size and random numbers."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from parquet_loader.decode.array_formats import BlobProblem
from parquet_loader.decode.jpeg import Region
from parquet_loader.decode.media.crops import Box, center_box, random_box, uniform
from parquet_loader.schema import Image


def draw_flip(field: Image, rng: np.random.Generator | None) -> bool:
    """Draw whether an image is mirrored: before its box, so that it does not depend on the image's size."""
    return field.flip == 1 if rng is None else bool(uniform(rng, 1)[0] < field.flip)


def check_size(found: tuple[int, ...], field: Image) -> None:
    """Check height and width of an image.

    Raises:
        BlobProblem: They differ from the field's.
    """
    height, width, _ = field.shape
    if height is not None and found[:2] != (height, width):
        raise BlobProblem(
            f"the image is {found[0]} x {found[1]}, not the {height} x {width} of its field; Image() without a shape "
            "takes images of any size"
        )


def box_of(field: Image, height: int, width: int, rng: np.random.Generator | None) -> Box:
    """Return the part of an image of this size that becomes the delivered image; a random one is drawn."""
    if field.crop == "random":
        assert rng is not None
        return random_box(height, width, field.scale, field.ratio, rng)
    if field.crop == "center":
        assert isinstance(field.size, tuple)
        return center_box(height, width, field.size, field.resize)
    return Box(0, 0, width, height)


def reduction_of(field: Image, box: Box) -> int:
    """Return the largest reduction in decoding, 1, 2, 4 or 8, that leaves at least the delivered size."""
    if field.size is None or field.interpolation == "nearest":
        return 1
    assert isinstance(field.size, tuple)
    factor = min(box.height / field.size[0], box.width / field.size[1])
    return 8 if factor >= 8 else 4 if factor >= 4 else 2 if factor >= 2 else 1


def used_region(field: Image, box: Box, factor: int, shape: tuple[int, ...]) -> Region:
    """Return the pixels that affect the result, of an image that is reduced to `shape` by `factor`."""
    if field.size is None:
        return Region(0, shape[0], 0, shape[1])
    assert isinstance(field.size, tuple)

    def used(begin: float, length: float, size: int, whole: int) -> tuple[int, int]:
        reach = 0.0
        if field.crop != "random":  # the filter uses one or two delivered pixels around the box
            reach = 1 + (2 if field.interpolation == "bicubic" else 1) * max(length / size, 1)
        return max(math.floor(begin - reach), 0), min(math.ceil(begin + length + reach), whole)

    rows = used(box.top / factor, box.height / factor, field.size[0], shape[0])
    columns = used(box.left / factor, box.width / factor, field.size[1], shape[1])
    return Region(*rows, *columns)


class Cut(NamedTuple):
    """The pixels that are resized, and the part of them that becomes the result: left, top, right and bottom."""

    region: Region
    box: tuple[float, float, float, float]


def cut_of(shape: tuple[int, ...], box: Box, factor: int, field: Image) -> Cut:
    """Return the box in pixels of an image that is reduced to `shape` by `factor`."""
    left, top = box.left / factor, box.top / factor
    right, bottom = min(left + box.width / factor, shape[1]), min(top + box.height / factor, shape[0])
    if field.crop != "random":
        return Cut(Region(0, shape[0], 0, shape[1]), (left, top, right, bottom))
    # as torchvision: cut first, so that pixels outside do not affect the result
    row, column = math.floor(top), math.floor(left)
    region = Region(row, math.ceil(bottom), column, math.ceil(right))
    return Cut(region, (left - column, top - row, right - column, bottom - row))


def scale_and_offset(field: Image, channel: int) -> tuple[np.float32, np.float32]:
    """Return the factor and the summand that convert a channel's stored values to float32."""
    mean = 0.0 if field.mean is None else field.mean[channel]
    std = 1.0 if field.std is None else field.std[channel]
    return np.float32(1 / (255 * std)), np.float32(-mean / std)
