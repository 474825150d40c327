"""Decodes the media of whole windows, for batches that deliver a row more than once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from parquet_loader.dataset import Dataset
from parquet_loader.decode import image_formats
from parquet_loader.engine.media_decoding import MediaBatch, MediaMemory
from parquet_loader.engine.recordings import BatchRows, RowError
from parquet_loader.engine.referenced_files import files_named_by
from parquet_loader.read import HIDDEN_ROW_NUMBERS
from parquet_loader.schema import Encoded, Image
from parquet_loader.window import Allocator, Window

_Arrays = dict[str, npt.NDArray[np.generic]]


class _Slots(MediaMemory):
    """Provides memory that belongs to a window, not new memory."""

    def __init__(self, out: Mapping[str, npt.NDArray[np.generic]]) -> None:
        super().__init__(None)
        self._out = out

    def allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> npt.NDArray[np.generic]:
        """Return a column's rows of the window."""
        assert self._out[name].shape == shape
        assert self._out[name].dtype == dtype
        return self._out[name]


class WindowMedia:
    """Decodes columns of images and of encoded arrays whose rows have one shape. Immutable; any thread may use it.

    Args:
        dataset: The data set; its reader numbers the rows.
        seed, epoch: Seed random crops, with the row's number in the data set.

    Attributes:
        row_bytes: Bytes of the decoded media of a row; 0 without media.
    """

    def __init__(self, dataset: Dataset, seed: int, epoch: int) -> None:
        reader = dataset.reader
        self._columns = [column for column in reader.columns if column.image is not None]
        kinds = [column.image for column in self._columns]
        if any(isinstance(kind, Image) or (isinstance(kind, Encoded) and kind.is_image) for kind in kinds):
            image_formats()  # imported here, so that no worker imports decoders between two windows
        self._shapes = {c.name: tuple(n or 0 for n in c.decoded_shape) for c in self._columns}
        self._dtypes = {column.name: np.dtype(column.dtype) for column in self._columns}
        self.row_bytes = sum(math.prod(self._shapes[name]) * self._dtypes[name].itemsize for name in self._shapes)
        self._numbers = reader.row_numbers or HIDDEN_ROW_NUMBERS
        self._seed, self._epoch = seed, epoch
        self._files = files_named_by(reader.columns, dataset.snapshot)
        self._locate = dataset.snapshot.locate

    def memory(self, rows: int, allocator: Allocator) -> _Arrays:
        """Return memory for the decoded rows of a window, ``[rows, ...]`` by name."""
        made: _Arrays = {}
        for name, shape in self._shapes.items():
            nbytes = rows * math.prod(shape) * self._dtypes[name].itemsize
            block = allocator.allocate(max(1, nbytes)).array
            made[name] = block[:nbytes].view(self._dtypes[name]).reshape(rows, *shape)
        return made

    def decode(self, window: Window, start: int, stop: int, out: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Decode rows ``start`` to ``stop`` (exclusive) of a window into the same rows of `out`.

        Raises:
            DataError: A row cannot be decoded, or does not match its field; the message names the row.
        """
        names = {column.name for column in self._columns}
        wanted = names | {f"{name}_valid" for name in names} | {self._numbers}
        arrays = {name: array for name, array in window.slice(start, stop).items() if name in wanted}
        rows = BatchRows(stop - start, 0, arrays[self._numbers], self._seed, self._epoch, self._files)  # type: ignore[arg-type]
        slots = {name: array[start:stop] for name, array in out.items()}
        try:
            media = MediaBatch(self._columns, arrays, rows, _Slots(slots), replaces=False)
            media.decode()
            done, _ = media.finish()
        except RowError as error:
            raise error.located(self._locate) from error.__cause__
        for name, slot in slots.items():
            decoded: Any = done[name]
            if decoded is not slot:
                slot[...] = decoded
