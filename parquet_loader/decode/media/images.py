"""Decodes one image to its delivered form, with libjpeg-turbo if possible, else with Pillow."""

from __future__ import annotations

import importlib
import io
import math
import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from parquet_loader.decode.array_formats import BlobProblem, pillow_image, unreadable_image
from parquet_loader.decode.jpeg import (
    JpegForm,
    JpegTask,
    Region,
    decode_jpeg,
    decode_jpegs,
    jpeg_shape,
    jpeg_shapes,
    reduced_shape,
)
from parquet_loader.decode.media.crops import Box, center_box, random_box, uniform
from parquet_loader.decode.media.resizing import Pixels, resize, to_floats
from parquet_loader.schema import Image, Ragged, sixteen_bits

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_PLUGINS = {
    "JPEG": "Jpeg", "PNG": "Png", "WEBP": "WebP", "GIF": "Gif", "TIFF": "Tiff", "AVIF": "Avif"
}  # fmt: skip
_NAMES = "JPEG, PNG, WebP, AVIF, GIF or TIFF"
_ORIENTATION = 0x0112
_BITS_PER_SAMPLE = 258
_START_OF_JPEG, _END_OF_JPEG = b"\xff\xd8", b"\xff\xd9"
_MOST_BYTES_PER_PIXEL = 8  # RGBA of 16 bits
# Larger JPEGs are not left to a device: it decodes them in full, and `write_image` at a reduced size.
_MOST_DEVICE_PIXELS = 2**23


@cache
def image_formats() -> tuple[str, ...]:
    """Import Pillow's plugins of the supported formats, and return the formats that it has.

    Raises:
        ConfigurationError: Pillow is not installed.
    """
    pillow_image()
    found = []
    for name, plugin in _PLUGINS.items():
        try:
            importlib.import_module(f"PIL.{plugin}ImagePlugin")
        except ImportError:
            continue
        found.append(name)
    return tuple(found)


def has_few_pixels(data: bytes, most_pixels: int) -> bool:
    """Whether an image other than a JPEG has at most so many pixels, by its header; False if it is damaged."""
    if data[:2] == _START_OF_JPEG or len(data) > _MOST_BYTES_PER_PIXEL * most_pixels:
        return False
    try:
        with _open_image(data) as image:
            width, height = image.size
    except Exception:  # decoding reports the damage
        return False
    return bool(width * height <= most_pixels)


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
    with _Opened(data) as opened:
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
    is_flipped = _is_flipped(field, rng)
    is_as_resized = field.delivered_dtype == np.uint8 and not field.channels_first
    direct = out if is_as_resized and out is not None and out.flags.c_contiguous else None
    pixels = _resized(data, field, rng, direct, is_flipped=is_flipped)
    return pixels if pixels is out else _delivered(pixels, field, out)


def _is_flipped(field: Image, rng: np.random.Generator | None) -> bool:
    """Draw whether an image is mirrored: before its box, so that it does not depend on the image's size."""
    return field.flip == 1 if rng is None else bool(uniform(rng, 1)[0] < field.flip)


def write_jpegs(
    encoded: Ragged, rows: range, field: Image, random: Callable[[int], np.random.Generator], out: npt.NDArray[Any]
) -> set[int]:
    """Write those images that are plain JPEGs, as `write_image` does, with one call of the kernels.

    Args:
        encoded: The bytes of a batch's images.
        rows: The rows to write.
        field: Their field, whose delivered size is fixed.
        random: Returns the random numbers of a row; not called if the field is not random.
        out: Memory of the batch, ``[rows of the batch, *delivered shape]``.

    Returns:
        The rows that are written. `write_image` writes the others, or says what is wrong with them.
    """
    if field.exif_orientation or field.interpolation == "nearest" or not out.flags.c_contiguous:
        return set()
    offsets = encoded.offsets[rows.start : rows.stop + 1]
    shapes = jpeg_shapes(encoded.values, offsets)
    if shapes is None:
        return set()
    places, tasks = offsets.tolist(), list[JpegTask]()
    most_pixels = pillow_image().MAX_IMAGE_PIXELS or math.inf
    stored_height, stored_width, channels = field.shape
    for row, begin, end, (height, width, found) in zip(rows, places[:-1], places[1:], shapes, strict=True):
        if found != channels or height * width > most_pixels:
            continue
        if stored_height is not None and (height, width) != (stored_height, stored_width):
            continue
        rng = random(row) if field.is_random else None
        is_flipped = _is_flipped(field, rng)
        box = _box(field, height, width, rng)
        factor = _reduction(field, box)
        shape = reduced_shape((height, width, channels), factor)
        part = _used(field, box, factor, shape)
        cut = _cut(shape, box, factor, field)
        tasks.append(JpegTask(begin, end, row, shape[0], shape[1], factor, is_flipped, part, cut.region, cut.box))
    if not tasks:
        return set()
    is_written = decode_jpegs(encoded.values, tasks, _jpeg_form(field, out.shape[1:]), out)
    return {task.row for task, is_done in zip(tasks, is_written.tolist(), strict=True) if is_done}


def _jpeg_form(field: Image, delivered: tuple[int, ...]) -> JpegForm:
    by_channel = np.zeros((4, 2), np.float32)
    by_channel[: field.shape[2]] = [scale_and_offset(field, channel) for channel in range(field.shape[2])]
    height, width = delivered[1:] if field.channels_first else delivered[:2]
    return JpegForm(
        channels=field.shape[2],
        height=height,
        width=width,
        is_cubic=field.interpolation == "bicubic",
        is_planar=field.channels_first,
        is_float=field.delivered_dtype == np.float32,
        scale=tuple(by_channel[:, 0].tolist()),
        offset=tuple(by_channel[:, 1].tolist()),
    )


class JpegPart(NamedTuple):
    """What is delivered of a JPEG that another decoder decodes in full.

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
    is_flipped = _is_flipped(field, rng)
    stored = jpeg_shape(data, min(pillow_image().MAX_IMAGE_PIXELS or _MOST_DEVICE_PIXELS, _MOST_DEVICE_PIXELS))
    # A decoder on a device may deliver a truncated image without an error.
    if stored is None or stored[2] != field.shape[2] or not data.endswith(_END_OF_JPEG):
        return None
    if field.exif_orientation:
        with _Opened(data) as opened:
            if opened.orientation != 1:
                return None
    height, width, _ = stored
    _check_size((height, width), field)
    box = _box(field, height, width, rng)
    return JpegPart(height, width, box, _used(field, box, 1, stored), is_flipped)


def _resized(
    data: bytes, field: Image, rng: np.random.Generator | None, out: Pixels | None, *, is_flipped: bool
) -> Pixels:
    """Return the pixels in their delivered size, mirrored if requested; in `out` if possible."""
    channels = field.shape[2]
    orientation = 1
    if field.exif_orientation:
        with _Opened(data) as opened:
            orientation = opened.orientation
    if field.size is None:
        pixels = _turned(image_pixels(data, channels, None), orientation)
        _check_size(pixels.shape, field)
        return pixels[:, ::-1] if is_flipped else pixels
    box: Box | None = None
    stored = jpeg_shape(data, pillow_image().MAX_IMAGE_PIXELS)
    if stored is not None and stored[2] == channels:
        height, width = _turned_size(stored[0], stored[1], orientation)
        _check_size((height, width), field)
        box = _box(field, height, width, rng)
        factor = _reduction(field, box)
        pixels = np.empty(reduced_shape(stored, factor), np.uint8)
        used = _used(field, box, factor, pixels.shape) if orientation == 1 else None
        if decode_jpeg(data, pixels, factor, used):
            part = _part(_turned(pixels, orientation), height, width, box, factor, field)
            return _in_size(part, field, out, is_flipped=is_flipped)
    with _Opened(data) as opened:
        if opened.is_jpeg:
            height, width = _turned_size(opened.height, opened.width, orientation)
            box = box or _box(field, height, width, rng)
            opened.reduce(_reduction(field, box))
            pixels = _turned(opened.pixels(channels), orientation)
        else:
            pixels = _turned(opened.pixels(channels), orientation)
            height, width = pixels.shape[:2]
            box = _box(field, height, width, rng)
    _check_size((height, width), field)
    return _in_size(_part(pixels, height, width, box, _reduction(field, box), field), field, out, is_flipped=is_flipped)


def _check_size(found: tuple[int, ...], field: Image) -> None:
    height, width, _ = field.shape
    if height is not None and found[:2] != (height, width):
        raise BlobProblem(
            f"the image is {found[0]} x {found[1]}, not the {height} x {width} of its field; Image() without a shape "
            "takes images of any size"
        )


def _box(field: Image, height: int, width: int, rng: np.random.Generator | None) -> Box:
    if field.crop == "random":
        assert rng is not None
        return random_box(height, width, field.scale, field.ratio, rng)
    if field.crop == "center":
        assert isinstance(field.size, tuple)
        return center_box(height, width, field.size, field.resize)
    return Box(0, 0, width, height)


def _reduction(field: Image, box: Box) -> int:
    """Return the largest reduction in decoding, 1, 2, 4 or 8, that leaves at least the delivered size."""
    if field.size is None or field.interpolation == "nearest":
        return 1
    assert isinstance(field.size, tuple)
    factor = min(box.height / field.size[0], box.width / field.size[1])
    return 8 if factor >= 8 else 4 if factor >= 4 else 2 if factor >= 2 else 1


def _used(field: Image, box: Box, factor: int, shape: tuple[int, ...]) -> Region:
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
    cut = _cut(found, box, factor, field)
    top, bottom, left, right = cut.region
    return _Part(pixels[top:bottom, left:right], cut.box)


class _Cut(NamedTuple):
    """The pixels that are resized, and the part of them that becomes the result: left, top, right and bottom."""

    region: Region
    box: tuple[float, float, float, float]


def _cut(shape: tuple[int, ...], box: Box, factor: int, field: Image) -> _Cut:
    """Return the box in pixels of an image that is reduced to `shape` by `factor`."""
    left, top = box.left / factor, box.top / factor
    right, bottom = min(left + box.width / factor, shape[1]), min(top + box.height / factor, shape[0])
    if field.crop != "random":
        return _Cut(Region(0, shape[0], 0, shape[1]), (left, top, right, bottom))
    # as torchvision: cut first, so that pixels outside do not affect the result
    row, column = math.floor(top), math.floor(left)
    region = Region(row, math.ceil(bottom), column, math.ceil(right))
    return _Cut(region, (left - column, top - row, right - column, bottom - row))


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


def scale_and_offset(field: Image, channel: int) -> tuple[np.float32, np.float32]:
    """Return the factor and the summand that convert a channel's stored values to float32."""
    mean = 0.0 if field.mean is None else field.mean[channel]
    std = 1.0 if field.std is None else field.std[channel]
    return np.float32(1 / (255 * std)), np.float32(-mean / std)


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


_avif_lock = threading.Lock()
"""Held while `DEFAULT_MAX_THREADS` of Pillow's AVIF plugin is 1 instead of 0."""


def _renew_avif_lock() -> None:
    """Release the lock in a forked process, in which the thread that held it does not exist."""
    global _avif_lock
    plugin: Any = sys.modules.get("PIL.AvifImagePlugin")
    if _avif_lock.locked() and plugin.DEFAULT_MAX_THREADS == 1:
        plugin.DEFAULT_MAX_THREADS = 0
    _avif_lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_renew_avif_lock)


def _open_image(data: bytes) -> Any:
    """Open an image with Pillow, which reads only the header.

    For each AVIF, Pillow starts as many threads as there are processors, unless `DEFAULT_MAX_THREADS` is set. One is
    enough, since images are decoded in parallel: with 96 threads an image of 500 x 375 takes five times as long.
    """
    formats = image_formats()
    if data[4:8] != b"ftyp" or "AVIF" not in formats:
        return pillow_image().open(io.BytesIO(data), formats=formats)
    plugin: Any = sys.modules["PIL.AvifImagePlugin"]
    with _avif_lock:
        if plugin.DEFAULT_MAX_THREADS == 0:
            plugin.DEFAULT_MAX_THREADS = 1
            try:
                return pillow_image().open(io.BytesIO(data), formats=formats)
            finally:
                plugin.DEFAULT_MAX_THREADS = 0
    return pillow_image().open(io.BytesIO(data), formats=formats)


class _Opened:
    """An image opened by Pillow, which reads only the header. Errors within ``with`` become `BlobProblem`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        if (problem := sixteen_bits(data)) is not None:
            raise BlobProblem(problem)
        try:
            self._image = _open_image(data)
        except Exception as error:
            raise self._problem(error) from error
        self.height, self.width = self._image.height, self._image.width

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._image.close()
        if isinstance(error, Exception) and not isinstance(error, BlobProblem):
            raise self._problem(error) from error

    def _problem(self, error: Exception) -> BlobProblem:
        if isinstance(error, MemoryError):
            raise error
        return unreadable_image(self._data, error, _NAMES)

    @property
    def is_jpeg(self) -> bool:
        """Whether it is a JPEG."""
        return bool(self._image.format == "JPEG")

    @property
    def orientation(self) -> int:
        """The orientation in the EXIF data, 1 to 8; 1 without one, or for a TIFF, which Pillow rotates itself."""
        if self._image.format == "TIFF":
            return 1
        found = self._image.getexif().get(_ORIENTATION, 1)
        return found if isinstance(found, int) and 1 <= found <= 8 else 1

    def reduce(self, factor: int) -> None:
        """Decode a JPEG at a reduced size."""
        if factor > 1:
            self._image.draft(self._image.mode, (self.width // factor, self.height // factor))

    def pixels(self, channels: int) -> Pixels:
        """Return the pixels, uint8 ``[height, width, channels]``."""
        image, mode = self._image, _MODES[channels]
        tags = getattr(image, "tag_v2", None)  # a TIFF has them
        bits = 8 if tags is None else max(np.ravel(tags.get(_BITS_PER_SAMPLE, 8)).tolist())
        if bits > 8 or image.mode in ("I", "F") or image.mode.startswith("I;16"):
            bits = max(bits, 16)
            raise BlobProblem(
                f"a {image.format} of {bits} bits a channel, which uint8 cannot hold; Bytes() delivers its bytes"
            )
        image.load()
        array = np.array(image if image.mode == mode else image.convert(mode))  # writable, as from libjpeg
        return array.reshape(*array.shape[:2], channels)
