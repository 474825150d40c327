"""Processes a batch on the reading side, after the permutation: decodes media and calls `transform`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from parquet_loader.common import Stream, bit_generator
from parquet_loader.decode import Column, EncodedRows, image_formats
from parquet_loader.engine.encoded_images import EncodedImages
from parquet_loader.engine.media_decoding import BatchArrays, DamagedRow, Images, MediaBatch, MediaMemory
from parquet_loader.engine.recordings import BatchRows, require_decoders
from parquet_loader.engine.referenced_files import ReferencedFiles
from parquet_loader.engine.transform_results import RowsOut, checked
from parquet_loader.errors import TransformError
from parquet_loader.read import HIDDEN_ROW_NUMBERS
from parquet_loader.schema import Encoded, Image, Ragged, object_array, row_objects
from parquet_loader.window import Allocator, Array, Window, copied, nbytes_of

Transform: TypeAlias = Callable[[dict[str, Any], np.random.Generator], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ProcessedBatch:
    """One batch in memory of its own.

    Attributes:
        rows: Number of rows.
        arrays: ``[rows, ...]`` by name; a list if images differ in size.
        owners: The objects that own memory not allocated by numpy, by column name; tensors are made from them.
        nbytes: Bytes of all arrays.
        replaced: The rows with damaged media that were replaced by other rows of the batch.
        encoded: The images that a device decodes, by column name; the column's array then holds their bytes.
        given_bytes: Bytes of the arrays that a thread passed to `transform`.
    """

    rows: int
    arrays: BatchArrays
    owners: Mapping[str, Any]
    nbytes: int
    replaced: tuple[DamagedRow, ...] = ()
    encoded: Mapping[str, EncodedImages] = field(default_factory=dict)
    given_bytes: int = 0

    def decoded(self) -> ProcessedBatch:
        """Return the batch with its images decoded on the CPU, in ordinary memory.

        Raises:
            DataError: An image cannot be decoded.
        """
        if not self.encoded:
            return self
        arrays, owners = dict(self.arrays), dict(self.owners)
        for name, images in self.encoded.items():
            arrays[name] = images.decoded(cast("npt.NDArray[np.uint8]", arrays[name]))
            owners.pop(name, None)
        return replace(self, arrays=arrays, owners=owners, encoded={})


class SharedBatch:
    """The work on a batch. Other threads may help the one that begins it to decode media; the last one finishes it.

    Args:
        begin: Returns what `end` is called with; its media, if there are any, are decoded in between.
        end: Makes the batch.
    """

    def __init__(
        self,
        begin: Callable[[], tuple[Mapping[str, Array | EncodedRows], MediaBatch | None]],
        end: Callable[[Mapping[str, Array | EncodedRows], MediaBatch | None], ProcessedBatch],
    ) -> None:
        self._begin, self._end = begin, end
        self._begun: tuple[Mapping[str, Array | EncodedRows], MediaBatch] | None = None

    @property
    def needs_help(self) -> bool:
        """Whether there are media that no thread decodes."""
        return self._begun is not None and self._begun[1].are_rows_left

    def start(self, wake: Callable[[], None] = lambda: None) -> ProcessedBatch | None:
        """Begin the work, and call `wake` when other threads may help; return as `help` does. Called once."""
        views, media = self._begin()
        if media is None:
            return self._end(views, None)
        self._begun = views, media
        if media.are_rows_left:
            with suppress(MemoryError):  # nobody helps then; an error here would leave a batch that others decode
                wake()
        return self.help()

    def help(self) -> ProcessedBatch | None:
        """Decode media that no other thread has begun; return the batch in the thread that ends last, else None.

        Raises:
            As `BatchProcessor` does, in the thread that ends last.
        """
        assert self._begun is not None
        views, media = self._begun
        return self._end(views, media) if media.decode() else None


class BatchProcessor:
    """Makes a batch from rows of a window. Any thread may call it, and equal calls give equal results.

    It keeps nothing between batches except open decoders of videos, which `close` closes.

    Args:
        columns: The canonical columns.
        transform: The caller's function, or None.
        seed, epoch: Seed the random crops, flips and positions of media, with the row's number in the data set.
        shard_number: The number of the first shard that this rank reads; with `seed`, `epoch` and the number of the
            batch, it seeds the generator passed to `transform`.
        rows_out: How many rows `transform` returns; None if it returns as many as it gets.
        row_numbers: Name of the column with the rows' numbers in the data set, if there is one.
        replaces: Whether rows with damaged media are replaced; needs `row_numbers`.
        files: Opens the files that rows name.
        has_rows_out: Whether the caller's loader has an argument `rows_out`, which messages then name.
        encodes: Whether images that a device can decode stay encoded, if there is no `transform` and no row is
            replaced.

    Raises:
        MissingPackageError: There are media, and the packages that decode them are not installed.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        transform: Transform | None,
        seed: int,
        epoch: int,
        shard_number: int,
        rows_out: RowsOut | None = None,
        row_numbers: str | None = None,
        *,
        replaces: bool = False,
        files: ReferencedFiles | None = None,
        has_rows_out: bool = True,
        encodes: bool = False,
    ) -> None:
        self._names = [column.name for column in columns]
        self._media = [c for c in columns if c.image is not None]
        # Imported here, so that no worker imports them between two batches.
        if any(isinstance(c.image, Image) or (isinstance(c.image, Encoded) and c.image.is_image) for c in self._media):
            image_formats()
        for column in self._media:
            require_decoders(column.image)
        self._transform = transform
        self._seed = seed
        self._epoch = epoch
        self._shard_number = shard_number
        self._rows_out = rows_out
        self._row_numbers = row_numbers
        self._replaces = replaces
        self._files = files
        self._has_rows_out = has_rows_out
        self._encodes = encodes and transform is None and not replaces

    @staticmethod
    def is_needed(columns: Sequence[Column], transform: Transform | None) -> bool:
        """Whether batches are processed at all: media are decoded or a `transform` is called."""
        return transform is not None or any(c.image is not None for c in columns)

    @property
    def has_transform(self) -> bool:
        """Whether a `transform` is called."""
        return self._transform is not None

    def close(self) -> None:
        """Close what stays open between batches; idempotent."""
        if self._files is not None:
            self._files.videos.close()

    def with_transform(self, transform: Transform | None) -> BatchProcessor:
        """Return a copy with another `transform`."""
        changed = copy(self)
        changed._transform = transform
        return changed

    def __call__(self, window: Window, start: int, stop: int, batch: int, allocator: Allocator) -> ProcessedBatch:
        """Return rows ``start`` to ``stop`` of a window as batch number `batch`.

        Raises:
            DataError: A row's media cannot be decoded, or do not match their field.
            TransformError: `transform` did not return a batch. Errors that `transform` raises are not wrapped.
        """
        made = self.work(window, start, stop, batch, allocator).start()
        assert made is not None  # no other thread helps
        return made

    def work(self, window: Window, start: int, stop: int, batch: int, allocator: Allocator) -> SharedBatch:
        """Return the work of `__call__`, which several threads may share."""
        own = None if self._transform is not None and allocator.is_required else allocator
        memory = MediaMemory(own, encodes=self._encodes)
        rows = stop - start

        def begin() -> tuple[Mapping[str, Array | EncodedRows], MediaBatch | None]:
            views = window.encoded_slice(self._names, start, stop)
            return views, self._media_of(views, rows, batch, memory)

        def end(views: Mapping[str, Array | EncodedRows], media: MediaBatch | None) -> ProcessedBatch:
            arrays, replaced, given_bytes = self._processed(views, media, rows, batch, is_own=False)
            made = _rows_of(arrays) if self._transform is not None else rows
            done = _batch_of(arrays, made, memory.owners, replaced, memory.encoded)
            return allocated(replace(done, given_bytes=given_bytes), allocator)

        return SharedBatch(begin, end)

    def processed(
        self, arrays: Mapping[str, Array], rows: int, batch: int, allocator: Allocator | None = None
    ) -> ProcessedBatch:
        """Return rows as batch number `batch`; raises as `__call__`.

        Args:
            arrays: ``[rows, ...]`` by name, in memory of their own.
            rows: Number of rows.
            batch: The number of the batch.
            allocator: Provides the memory of the batch, if that is required; None if any memory serves.
        """
        media = self._media_of(arrays, rows, batch, MediaMemory(None))
        if media is not None:
            media.decode()
        done, replaced, _ = self._processed(arrays, media, rows, batch, is_own=True)
        made = _batch_of(done, _rows_of(done), {}, replaced, {})
        return made if allocator is None else allocated(made, allocator)

    def _media_of(
        self, views: Mapping[str, Array | EncodedRows], rows: int, batch: int, memory: MediaMemory
    ) -> MediaBatch | None:
        if not self._media:
            return None
        numbers: Any = None if self._row_numbers is None else views[self._row_numbers]
        identities = BatchRows(rows, batch, numbers, self._seed, self._epoch, self._files)
        return MediaBatch(self._media, views, identities, memory, replaces=self._replaces)

    def _processed(
        self, views: Mapping[str, Array | EncodedRows], media: MediaBatch | None, rows: int, batch: int, *, is_own: bool
    ) -> tuple[BatchArrays, tuple[DamagedRow, ...], int]:
        """Return a batch whose media are decoded, after `transform`, its replaced rows, and its `given_bytes`."""
        done, replaced = cast("BatchArrays", dict(views)), tuple[DamagedRow, ...]()
        if media is not None:
            done, replaced = media.finish()
        done.pop(HIDDEN_ROW_NUMBERS, None)
        if not is_own:
            done = {name: _owned(array) if array is views.get(name) else array for name, array in done.items()}
        if self._transform is None:
            return done, replaced, 0
        stream = bit_generator(self._seed, Stream.TRANSFORM, self._epoch, self._shard_number << 40 | batch)
        rng = np.random.Generator(stream)
        given_bytes = sum(map(_nbytes, done.values()))
        given = {name: _for_transform(array) for name, array in done.items()}
        where = f"transform in batch {batch} of epoch {self._epoch}"
        try:
            returned = self._transform(given, rng)
        except StopIteration as error:  # the caller's iterator cannot raise it: it would end the loop
            raise TransformError(
                f"{where}: raised StopIteration, which no iterator can pass on; call next(iterator, default) instead"
            ) from error
        except Exception as error:
            with suppress(Exception):  # an error may allow no attributes
                error.add_note(f"raised by {where}")
            raise
        hint = "; a transform keeps the number of rows"
        if self._has_rows_out:
            hint += ", unless rows_out=<rows> says how many it returns"
        return checked(returned, rows, self._rows_out, where, hint), replaced, given_bytes


def allocated(batch: ProcessedBatch, allocator: Allocator) -> ProcessedBatch:
    """Return a batch whose arrays are in the allocator's memory, if that is required."""
    if not allocator.is_required:
        return batch
    arrays, owners = dict(batch.arrays), dict(batch.owners)
    for name, array in arrays.items():
        if isinstance(array, np.ndarray) and name not in owners:
            arrays[name], owners[name] = copied(array, allocator)
    return replace(batch, arrays=arrays, owners=owners)


def _rows_of(arrays: BatchArrays) -> int:
    return len(next(iter(arrays.values())))


def _batch_of(
    arrays: BatchArrays,
    rows: int,
    owners: Mapping[str, Any],
    replaced: tuple[DamagedRow, ...],
    encoded: Mapping[str, EncodedImages],
) -> ProcessedBatch:
    nbytes = sum(map(_nbytes, arrays.values())) + sum(images.pixels.nbytes for images in encoded.values())
    return ProcessedBatch(rows, arrays, owners, nbytes, replaced, encoded)


def _nbytes(array: Array | Images) -> int:
    return sum(a.nbytes for a in array) if isinstance(array, list) else nbytes_of(array)


def _owned(array: Array | Images) -> Array | Images:
    """Return the rows in their own memory, so that the window can be released."""
    if isinstance(array, list):
        return array
    if isinstance(array, Ragged):
        values = _owned(array.values)
        return Ragged(values, array.offsets.copy(), array.kind)
    return array.copy() if array.base is not None else array


def _for_transform(array: Array | Images) -> Any:
    """Return text and bytes as object arrays of str and bytes, images of different sizes as an object array."""
    if isinstance(array, Ragged):
        return row_objects(array) if array.kind != "list" else array
    return object_array(array) if isinstance(array, list) else array
