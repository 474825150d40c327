"""Decodes audio to samples and their lengths, and video to frames and their times, for the rows of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from parquet_loader.common import IndexedStream, IntArray, Stream
from parquet_loader.decode import BlobProblem, audio_modules, decode_audio, decode_clips, video_module
from parquet_loader.engine.referenced_files import ReferencedFiles, file_bytes, opened
from parquet_loader.errors import DataError
from parquet_loader.schema import Audio, Ragged, Video, companion_of

Allocate: TypeAlias = Callable[[str, tuple[int, ...], np.dtype[Any]], npt.NDArray[Any]]
"""Returns memory for a column's rows, of this shape and dtype."""


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The rows of a batch whose media are decoded.

    Attributes:
        count: Number of rows.
        batch: Number of the batch.
        numbers: int64 ``[rows]``, the rows' numbers in the data set; None if they are not known. They are known if a
            column is random, or if damaged rows are replaced.
        seed, epoch: The loader's seed and its epoch.
        files: Opens the files that rows name; None if rows name no files.
    """

    count: int
    batch: int
    numbers: IntArray | None
    seed: int
    epoch: int
    files: ReferencedFiles | None = None
    _stream: IndexedStream = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_stream", IndexedStream(self.seed, Stream.MEDIA, self.epoch))

    def random(self, row: int) -> np.random.Generator:
        """Return the random generator of a row; seed, epoch and the row's number in the data set define its numbers.

        All columns of a row draw the same numbers, so that an image and its mask are cropped alike. The generator is
        valid until the next call.
        """
        assert self.numbers is not None
        return self._stream.generator(int(self.numbers[row]))

    def error(self, row: int, column: str, problem: BlobProblem) -> DataError:
        """Return the error about a row that cannot be decoded: a `RowError` if the row's number is known."""
        if self.numbers is not None:
            return RowError(int(self.numbers[row]), f"column {column!r}: {problem}")
        return DataError(f"column {column!r}, row {row} of batch {self.batch}: {problem}")


class RowError(DataError):
    """A row cannot be decoded. `located` replaces this error by a `DataError` that names the file."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(number, reason)
        self.number = number
        self.reason = reason

    def __str__(self) -> str:
        return self.reason

    def located(self, locate: Callable[[IntArray], list[tuple[str, int, int]]]) -> DataError:
        """Return the error with the row's file, row group and number, which `Snapshot.locate` finds."""
        (file, row_group, row), *_ = locate(np.array([self.number]))
        located = DataError(f"{file}, row group {row_group}, row {row}, {self.reason}")
        located.__cause__ = self.__cause__
        return located


def require_decoders(field: object) -> None:
    """Import the packages that decode a field's recordings, so that no worker imports them between two batches.

    Raises:
        MissingPackageError: A package is not installed.
    """
    if isinstance(field, Audio):
        audio_modules()
    if isinstance(field, Video):
        video_module()


class AudioRows:
    """float32 of the field's shape, and the lengths, int64 ``[rows]``; a `Ragged` if recordings keep their lengths."""

    def __init__(self, name: str, field: Audio, count: int, allocate: Allocate) -> None:
        self._name = name
        self._field = field
        shape = tuple(n or 0 for n in field.shape)
        self._array = allocate(name, (count, *shape), field.dtype) if field.is_fixed else None
        self._list = [np.zeros(shape, np.float32)] * (0 if field.is_fixed else count)
        self._lengths = np.zeros(count, np.int64)

    def decode(self, row: int, data: bytes, rows: BatchRows) -> None:
        """Decode one row."""
        if self._field.storage == "path":
            data = file_bytes(rows.files, data)
        if self._array is None:
            self._list[row], _ = decode_audio(data, self._field, 0)
            return
        word = random_word(rows, row) if self._field.at == "random" else 0
        _, self._lengths[row] = decode_audio(data, self._field, word, self._array[row])

    def fill_gap(self, row: int) -> None:
        """Set a row to the value that stands for a null."""
        if self._array is not None:
            self._array[row] = 0

    def repeat(self, row: int, source: int) -> None:
        """Copy row `source` to `row`."""
        if self._array is None:
            self._list[row] = self._list[source]
        else:
            self._array[row] = self._array[source]
            self._lengths[row] = self._lengths[source]

    def columns(self) -> dict[str, Any]:
        """Return the column and its companion, by name."""
        companion = companion_of(self._name, self._field)
        if self._array is not None and companion is not None:
            return {self._name: self._array, companion: self._lengths}
        offsets = np.zeros(len(self._list) + 1, np.int64)
        np.cumsum([len(part) for part in self._list], out=offsets[1:])
        none = np.zeros([n or 0 for n in self._field.shape], np.float32)
        return {self._name: Ragged(np.concatenate([none, *self._list]), offsets)}


class VideoRows:
    """uint8 of the field's shape, and the times of the frames, float64 ``[rows, (clips,) frames]``."""

    def __init__(self, name: str, field: Video, count: int, allocate: Allocate) -> None:
        self._name = name
        self._field = field
        self._array: npt.NDArray[Any] = allocate(name, (count, *field.shape), field.dtype)
        self._times = np.full((count, *field.shape[:-3]), np.nan)

    def decode(self, row: int, data: bytes, rows: BatchRows) -> None:
        """Decode one row."""
        word = random_word(rows, row) if self._field.at == "random" else 0
        if self._field.storage == "path" or self._field.ranges:
            assert rows.files is not None
            file = rows.files.open_value(data) if self._field.ranges else opened(rows.files, data)
            with rows.files.videos.decoder(file) as decoder:
                _, self._times[row] = decoder.clips(self._field, word, self._array[row])
        else:
            _, self._times[row] = decode_clips(data, self._field, word, self._array[row])

    def fill_gap(self, row: int) -> None:
        """Set a row to the value that stands for a null."""
        self._array[row] = 0

    def repeat(self, row: int, source: int) -> None:
        """Copy row `source` to `row`."""
        self._array[row] = self._array[source]
        self._times[row] = self._times[source]

    def columns(self) -> dict[str, Any]:
        """Return the column and its companion, by name."""
        companion = companion_of(self._name, self._field)
        assert companion is not None
        return {self._name: self._array, companion: self._times}


def random_word(rows: BatchRows, row: int) -> int:
    """Return 64 random bits, which determine the position of a row's part of its recording or video."""
    return int(rows.random(row).bit_generator.random_raw())
