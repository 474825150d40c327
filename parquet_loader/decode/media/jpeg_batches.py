"""Decodes the JPEGs of a batch together, to the form that their field delivers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from parquet_loader.decode.jpeg import JpegForm, JpegTask, JpegTasks, Shape, jpeg_shapes, reduced_shape
from parquet_loader.decode.media.encoded_rows import EncodedRows
from parquet_loader.decode.media.image_parts import (
    box_of,
    cut_of,
    draw_flip,
    reduction_of,
    scale_and_offset,
    used_region,
)
from parquet_loader.decode.media.opened_image import pixel_limit
from parquet_loader.schema import Image

# Larger images are decoded one by one, because a call of the kernels ends after its last image, and because of their
# memory: their headers may lie.
_MOST_PIXELS = 2**22


class JpegBatch:
    """Those images of a batch that are plain JPEGs. Threads that call `run` share them.

    They are written as `write_image` does.

    Args:
        encoded: A batch's images.
        rows: The rows to write.
        field: Their field.
        random: Returns the random numbers of a row; not called if the field is not random.
        out: Memory of the batch, ``[rows of the batch, *delivered shape]``; if images differ in size, a list, whose
            items are replaced.

    Attributes:
        rows: The rows that are plain JPEGs.
    """

    def __init__(
        self,
        encoded: EncodedRows,
        rows: range,
        field: Image,
        random: Callable[[int], np.random.Generator],
        out: npt.NDArray[Any] | list[npt.NDArray[Any]],
    ) -> None:
        self.rows: list[int] = []
        self._out = out
        self._made: list[npt.NDArray[Any]] = []
        self._tasks: JpegTasks | None = None
        if field.exif_orientation or field.interpolation == "nearest":
            return
        if isinstance(out, np.ndarray) and not out.flags.c_contiguous:
            return
        channels = field.shape[2]
        first, row_bytes = (out.ctypes.data, out.strides[0]) if isinstance(out, np.ndarray) else (0, 0)
        tasks: list[JpegTask] = []
        for row, begin, end, (height, width, _) in plain_jpegs(encoded, rows, field, pixel_limit(_MOST_PIXELS)):
            rng = random(row) if field.is_random else None
            is_flipped = draw_flip(field, rng)
            box = box_of(field, height, width, rng)
            factor = reduction_of(field, box)
            shape = reduced_shape((height, width, channels), factor)
            part = used_region(field, box, factor, shape)
            cut = cut_of(shape, box, factor, field)
            size = (height, width) if field.size is None else field.size
            assert isinstance(size, tuple)
            address = first + row * row_bytes
            if isinstance(out, list):
                self._made.append(np.empty((*size, channels), field.delivered_dtype))
                address = self._made[-1].ctypes.data
            self.rows.append(row)
            tasks.append(
                JpegTask(begin, end, address, *shape[:2], *size, factor, is_flipped, part, cut.region, cut.box)
            )
        if tasks:
            self._tasks = JpegTasks(encoded.values, tasks, _jpeg_form(field))

    @property
    def are_left(self) -> bool:
        """Whether there are images that no thread has begun."""
        return self._tasks is not None and self._tasks.are_left

    def run(self) -> None:
        """Write images until all have been begun."""
        if self._tasks is not None:
            self._tasks.run()

    def written(self) -> set[int]:
        """Return the rows that are written, after all calls of `run`; `write_image` says what is wrong with others."""
        if self._tasks is None:
            return set()
        is_done = self._tasks.is_done.tolist()
        if isinstance(self._out, list):
            for row, image, is_written in zip(self.rows, self._made, is_done, strict=True):
                if is_written:
                    self._out[row] = image
        return {row for row, is_written in zip(self.rows, is_done, strict=True) if is_written}


def plain_jpegs(
    encoded: EncodedRows, rows: range, field: Image, most_pixels: int
) -> Iterator[tuple[int, int, int, Shape]]:
    """Yield the JPEGs that have the channels and the stored size of their field; none without kernels.

    Args:
        encoded: A batch's images.
        rows: The rows to look at.
        field: Their field.
        most_pixels: Larger images are left out.

    Yields:
        The row, begin and end of its bytes, and its shape.
    """
    places = encoded.places[rows.start : rows.stop]
    shapes = jpeg_shapes(encoded.values, places)
    for row, (begin, end), shape in zip(rows, places.tolist(), shapes, strict=False):
        height, width, channels = shape
        is_of_size = field.shape[0] is None or (height, width) == field.shape[:2]
        if channels == field.shape[2] and is_of_size and height * width <= most_pixels:
            yield row, begin, end, shape


def _jpeg_form(field: Image) -> JpegForm:
    by_channel = np.zeros((4, 2), np.float32)
    by_channel[: field.shape[2]] = [scale_and_offset(field, channel) for channel in range(field.shape[2])]
    return JpegForm(
        channels=field.shape[2],
        is_cubic=field.interpolation == "bicubic",
        is_planar=field.channels_first,
        is_float=field.delivered_dtype == np.float32,
        scale=tuple(by_channel[:, 0].tolist()),
        offset=tuple(by_channel[:, 1].tolist()),
    )
