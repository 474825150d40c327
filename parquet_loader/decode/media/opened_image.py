"""Opens images of the supported formats with Pillow."""

from __future__ import annotations

import importlib
import io
import os
import sys
import threading
from functools import cache
from types import TracebackType
from typing import Any, Self

import numpy as np

from parquet_loader.decode.array_formats import BlobProblem, pillow_image, unreadable_image
from parquet_loader.decode.media.resizing import Pixels
from parquet_loader.schema import sixteen_bits

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_PLUGINS = {
    "JPEG": "Jpeg", "PNG": "Png", "WEBP": "WebP", "GIF": "Gif", "TIFF": "Tiff", "AVIF": "Avif"
}  # fmt: skip
_NAMES = "JPEG, PNG, WebP, AVIF, GIF or TIFF"
_ORIENTATION = 0x0112
_BITS_PER_SAMPLE = 258
_START_OF_JPEG = b"\xff\xd8"
_MOST_BYTES_PER_PIXEL = 8  # RGBA of 16 bits


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


def pixel_limit(most: int) -> int:
    """Return the most pixels of an image that Pillow accepts without a warning, but no more than `most`."""
    limit = pillow_image().MAX_IMAGE_PIXELS
    return most if limit is None else min(int(limit), most)


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


class OpenedImage:
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
        """Whether it is a JPEG, or an MPO: a JPEG that is followed by others, as phones and cameras write."""
        return self._image.format in ("JPEG", "MPO")

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
