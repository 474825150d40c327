"""Decodes JPEG with libjpeg-turbo directly to the destination buffer, without the GIL.

A faster path next to Pillow: for plain images (YCbCr or grey, undamaged) it gives the same pixels in two thirds of the
time, with the GIL released. It declines anything else, and Pillow then decodes the image or reports the damage. One
difference: Pillow refuses an image with a truncated JFIF, Adobe or ICC segment, which libjpeg ignores.

The kernels call the library that Pillow has loaded, and decode only the part of an image that is used. `JpegTasks`
decodes many images in one call of them. `decode_jpeg` leaves whole images to `simplejpeg`, which takes 0.92 of the
kernels' time, and leaves all images to it without the kernels or if Pillow's library has another interface.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from parquet_loader.common import KERNELS, IntArray

_MAGIC = b"\xff\xd8\xff"
# By the number of channels: the color space in the file, and the one to decode to.
_COLORS = {1: ("Gray", "GRAY"), 3: ("YCbCr", "RGB")}
_FUNCTIONS = (
    "jpeg_std_error", "jpeg_CreateDecompress", "jpeg_destroy_decompress", "jpeg_mem_src", "jpeg_read_header",
    "jpeg_start_decompress", "jpeg_read_scanlines", "jpeg_finish_decompress", "jpeg_crop_scanline",
    "jpeg_skip_scanlines", "jpeg_abort_decompress",
)  # fmt: skip
"""In the order of `library` in `jpeg.c`."""

Shape = tuple[int, int, int]


class Region(NamedTuple):
    """Rows `top` to `bottom` and columns `left` to `right` of an image; the ends are exclusive."""

    top: int
    bottom: int
    left: int
    right: int


class JpegTask(NamedTuple):
    """One image of `JpegTasks`.

    Attributes:
        begin, end: Of its bytes.
        out: The address of contiguous memory for the delivered image.
        height, width: Of the decoded image, as `reduced_shape` returned them.
        out_height, out_width: Of the delivered image.
        factor, part: As in `decode_jpeg`.
        is_mirrored: Whether left and right are exchanged.
        cut: The pixels that are resized; those outside do not affect the result.
        box: The part of `cut` that becomes the result: left, top, right and bottom.
    """

    begin: int
    end: int
    out: int
    height: int
    width: int
    out_height: int
    out_width: int
    factor: int
    is_mirrored: bool
    part: Region
    cut: Region
    box: tuple[float, float, float, float]


class JpegForm(NamedTuple):
    """How `JpegTasks` delivers images.

    Attributes:
        channels: Of a delivered image.
        is_cubic: Whether images are resized by ``"bicubic"``, else by ``"bilinear"``.
        is_planar: Whether channels come first.
        is_float: Whether values are float32, multiplied by `scale` and increased by `offset`; else uint8.
        scale, offset: Four numbers, of which the first are those of the channels.
    """

    channels: int
    is_cubic: bool
    is_planar: bool
    is_float: bool
    scale: tuple[float, ...]
    offset: tuple[float, ...]


# The structures `task` and `form` of `jpeg_batch.c`.
_SIDES = ("height", "width", "out_height", "out_width")
_TASK = np.dtype(
    [
        ("begin", np.int64), ("end", np.int64), ("out", np.uint64),
        *((name, np.int32) for name in (*_SIDES, "factor", "is_mirrored")),
        ("part", np.int32, 4), ("cut", np.int32, 4), ("box", np.float32, 4),
    ]
)  # fmt: skip
_FORM = np.dtype(
    [
        *((name, np.int32) for name in ("channels", "is_cubic", "is_planar", "is_float")),
        ("scale", np.float32, 4), ("offset", np.float32, 4),
    ]
)  # fmt: skip


class _Decoder(Protocol):
    def shape(self, data: bytes | memoryview) -> Shape | None: ...

    def decode(
        self, data: bytes | memoryview, out: npt.NDArray[np.uint8], factor: int, part: Region | None, /
    ) -> bool: ...


class _PillowsLibrary:
    """The libjpeg-turbo that Pillow has loaded, called by the kernels."""

    def __init__(self) -> None:
        library = ctypes.CDLL(importlib.import_module("PIL._imaging").__file__)  # also finds linked libraries
        functions = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _FUNCTIONS]
        addresses = np.array(functions, np.uintp)
        if not KERNELS.jpeg_use(addresses.ctypes.data):
            raise ImportError("another interface than libjpeg's version 62")

    def shape(self, data: bytes | memoryview) -> Shape | None:
        encoded = np.frombuffer(data, np.uint8)
        height, width, channels = self.shapes(encoded, np.array([(0, len(encoded))], np.int64))[0].tolist()
        return (height, width, channels) if channels else None

    def shapes(self, values: npt.NDArray[np.uint8], places: IntArray) -> npt.NDArray[np.int32]:
        found = np.empty((len(places), 3), np.int32)
        KERNELS.jpeg_headers(values.ctypes.data, places.ctypes.data, len(found), found.ctypes.data)
        return found

    def decode(self, data: bytes | memoryview, out: npt.NDArray[np.uint8], factor: int, part: Region | None) -> bool:
        if not out.flags.c_contiguous:
            return False
        encoded = np.frombuffer(data, np.uint8)
        numbers = np.array((*(part or (0, out.shape[0], 0, out.shape[1])), *out.shape), np.int32)
        at = numbers.ctypes.data
        return not KERNELS.jpeg_decode(
            encoded.ctypes.data, len(encoded), factor, at, at + 4 * numbers.itemsize, out.ctypes.data
        )


class _Simplejpeg:
    """The package `simplejpeg`. All of its functions raise undocumented errors for images that they cannot decode."""

    def __init__(self) -> None:
        self._module = importlib.import_module("simplejpeg")

    def shape(self, data: bytes | memoryview) -> Shape | None:
        try:
            height, width, colors, _ = self._module.decode_jpeg_header(_bytes(data))
        except Exception:
            return None
        channels = next((n for n, (stored, _) in _COLORS.items() if stored == colors), None)
        return None if channels is None else (height, width, channels)

    def decode(
        self, data: bytes | memoryview, out: npt.NDArray[np.uint8], _factor: int, _part: Region | None, /
    ) -> bool:
        try:  # it chooses the largest reduction that these minimums allow
            least = {"min_height": out.shape[0], "min_width": out.shape[1]}
            self._module.decode_jpeg(_bytes(data), _COLORS[out.shape[2]][1], buffer=out, **least)
        except Exception:  # the image is damaged
            return False
        return True


def _bytes(data: bytes | memoryview) -> bytes | memoryview:
    """Return a view of unsigned bytes: Arrow's buffers have signed ones, which simplejpeg declines."""
    return data.cast("B") if isinstance(data, memoryview) else data


class _Decoders(NamedTuple):
    """The decoder of whole images, and that of parts and of reduced sizes."""

    whole: _Decoder
    part: _Decoder


@cache
def _decoders() -> _Decoders | None:
    """Return the decoders that can be loaded; None if there are none."""
    found = list[_Decoder]()
    for decoder in (_Simplejpeg, _PillowsLibrary) if KERNELS is not None else (_Simplejpeg,):
        # not only ImportError: simplejpeg raises ValueError if it was built for another numpy
        with suppress(Exception):
            found.append(decoder())
    return _Decoders(found[0], found[-1]) if found else None


def jpeg_shape(data: bytes | memoryview, most_pixels: int | None) -> Shape | None:
    """Return height, width and channels (1 or 3) of a JPEG that `decode_jpeg` may decode; None for anything else.

    Args:
        data: The encoded image.
        most_pixels: Larger images are declined; Pillow's ``MAX_IMAGE_PIXELS``, above which it warns or refuses.
    """
    decoders = _decoders()
    if decoders is None or bytes(data[:3]) != _MAGIC:
        return None
    shape = decoders.whole.shape(data)
    if shape is None or (most_pixels is not None and shape[0] * shape[1] > most_pixels):
        return None
    return shape


def reduced_shape(shape: Shape, factor: int) -> Shape:
    """Return the shape in which an image of `shape` is decoded if each side is divided by 1, 2, 4 or 8."""
    return -(-shape[0] // factor), -(-shape[1] // factor), shape[2]


def decode_jpeg(
    data: bytes | memoryview, out: npt.NDArray[np.uint8], factor: int = 1, part: Region | None = None
) -> bool:
    """Decode to `out`, contiguous uint8 ``[height, width, channels]`` of the shape that `jpeg_shape` gave.

    Args:
        data: The encoded image.
        out: Memory for the whole image.
        factor: The divisor of each side; `out` then has the shape that `reduced_shape` returned.
        part: The needed pixels, not empty and inside of the image. Other pixels may be left undefined.

    Returns:
        Whether it succeeded. If not, the content of `out` is undefined.
    """
    decoders = _decoders()
    if decoders is None:
        return False
    decoder = decoders.whole if factor == 1 and part is None else decoders.part
    return decoder.decode(data, out, factor, part)


def jpeg_shapes(values: npt.NDArray[np.uint8], places: IntArray) -> list[Shape]:
    """Return height, width and channels (1 or 3; 0 for an image that `JpegTasks` cannot decode) of many images.

    Args:
        values: The bytes of all images, contiguous uint8 ``[total]``.
        places: Contiguous int64 ``[images, 2]``: the beginning and the end of each image in `values`.

    Returns:
        One shape for each image; none without kernels.
    """
    decoder = _batch_decoder()
    return [] if decoder is None else [(h, w, channels) for h, w, channels in decoder.shapes(values, places).tolist()]


class JpegTasks:
    """JPEGs to decode and resize. Threads that call `run` share them.

    Args:
        values: The bytes of all images, contiguous uint8 ``[total]``.
        tasks: The images, at least one; `jpeg_shapes` gave their shapes, with the channels of `form`.
        form: How they are delivered.

    Attributes:
        is_done: bool ``[tasks]``, whether each image is in its memory; that of others is undefined.
    """

    def __init__(self, values: npt.NDArray[np.uint8], tasks: Sequence[JpegTask], form: JpegForm) -> None:
        self._values = values
        self._tasks, self._form = np.array(tasks, _TASK), np.array([form], _FORM)
        self._decoded_bytes = max(task.height * task.width for task in tasks) * form.channels
        self._resized_bytes = max(task.out_height * task.out_width for task in tasks) * form.channels
        self._next = np.zeros(1, np.int64)
        self.is_done: npt.NDArray[np.bool_] = np.zeros(len(tasks), np.bool_)

    @property
    def are_left(self) -> bool:
        """Whether there are images that no thread has begun."""
        return int(self._next[0]) < len(self._tasks)

    def run(self) -> None:
        """Decode images in one call of the kernels, so that the GIL is released once, until all have been begun."""
        if not self.are_left:
            return
        decoded, resized = np.empty(self._decoded_bytes, np.uint8), np.empty(self._resized_bytes, np.uint8)
        KERNELS.jpeg_batch(
            self._values.ctypes.data, self._tasks.ctypes.data, len(self._tasks),
            *(array.ctypes.data for array in (self._form, self._next, decoded, resized, self.is_done)),
        )  # fmt: skip


def _batch_decoder() -> _PillowsLibrary | None:
    decoders = _decoders()
    return decoders.part if decoders is not None and isinstance(decoders.part, _PillowsLibrary) else None
