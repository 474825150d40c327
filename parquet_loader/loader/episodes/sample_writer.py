"""Writes batches of samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parquet_loader.common import BoolArray, IntArray
from parquet_loader.engine import BatchProcessor, ProcessedBatch
from parquet_loader.loader.episodes.sample_windows import SamplePart, SampleWindow, cat
from parquet_loader.loader.episodes.video_frames import VideoFrames
from parquet_loader.plan import EpisodeSamples, SampleRows
from parquet_loader.schema import Ragged
from parquet_loader.window import Allocation, Allocator, nbytes_of

_LINE_BYTES = 64
# Rows of bridged samples are copied through memory of at most this many bytes.
_COPIED_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class SampleForm:
    """The columns and masks of a batch.

    Attributes:
        offsets: The rows to deliver relative to the anchor, int64 ``[T]``, by column; None for the anchor alone.
        masks: The offsets of each mask, by its name; the mask is True for rows that exist.
        pads: The offsets of each mask with the opposite meaning, by its name; True for rows that do not exist.
        frames: The files and times of the rows' frames; None without video files.
        cameras: The rows to deliver, by camera, as in `offsets`.
    """

    offsets: Mapping[str, IntArray | None]
    masks: Mapping[str, IntArray]
    pads: Mapping[str, IntArray]
    frames: VideoFrames | None
    cameras: Mapping[str, IntArray | None]


@dataclass(frozen=True, slots=True)
class SampleWriter:
    """Writes batches; immutable, any thread may use it.

    Attributes:
        samples: The samples.
        form: The columns and masks of a batch.
        memory: Provides the memory of batches.
        processor: Calls `transform`; None without a `transform`.
    """

    samples: EpisodeSamples
    form: SampleForm
    memory: Allocator
    processor: BatchProcessor | None = None

    def __call__(self, parts: Sequence[SamplePart], number: int) -> ProcessedBatch:
        """Return the batch of these samples; `number` is its number in the epoch.

        Raises:
            TransformError: `transform` did not return a batch. Errors that `transform` raises are not wrapped.
        """
        form = self.form
        count = sum(len(part.numbers) for part in parts)
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {}
        for name, rows in (*form.masks.items(), *form.pads.items()):
            shapes[name] = ((count, len(rows)), np.bool_)
        first = parts[0].samples.arrays
        for camera, offsets in form.cameras.items():
            shapes[f"{camera}_timestamp"] = ((count, *(() if offsets is None else (len(offsets),))), np.float64)
        for name, offsets in form.offsets.items():
            if isinstance(array := first[name], np.ndarray):
                axis = () if offsets is None else (len(offsets),)
                shapes[name] = ((count, *axis, *array.shape[1:]), array.dtype)
        made, owners, nbytes = self._allocated(shapes)
        lists: dict[str, list[Ragged]] = {name: [] for name in form.offsets if name not in made}
        at = 0
        for part in parts:
            some = slice(at, at + len(part.numbers))
            at += len(part.numbers)
            self._write(part.samples, part.numbers, {name: array[some] for name, array in made.items()}, lists)
        batch: dict[str, Any] = {name: made[name] for name in (*form.masks, *form.pads)}
        for name, offsets in form.offsets.items():
            batch[name] = made[name] if name in made else _in_samples(cat(lists[name]), count, offsets)
        if form.frames is not None:
            numbers = parts[0].numbers if len(parts) == 1 else np.concatenate([part.numbers for part in parts])
            self._write_times(form.frames, numbers, made, batch)
        if self.processor is not None:
            return self.processor.processed(batch, count, number, self.memory)
        nbytes += sum(nbytes_of(batch[name]) for name in lists)
        return ProcessedBatch(count, batch, owners, nbytes)

    def _write_times(
        self, frames: VideoFrames, numbers: IntArray, made: Mapping[str, npt.NDArray[Any]], batch: dict[str, Any]
    ) -> None:
        """Write the file and the times of each sample's frames."""
        rows, episode = self.samples.rows_of(numbers), self.samples.episodes_of(numbers)
        for camera, offsets in self.form.cameras.items():
            part, times = frames.cameras[camera], made[f"{camera}_timestamp"]
            first, last = rows.first, rows.stop - 1
            wanted = rows.anchor if offsets is None else rows.anchor[:, None] + offsets
            if offsets is not None:
                first, last = first[:, None], last[:, None]
            begin = part.begin[episode]
            np.divide(np.clip(wanted, first, last) - first, frames.fps, out=times)
            times += begin if offsets is None else begin[:, None]
            batch[f"{camera}_path"] = Ragged.from_list([frames.paths[number] for number in part.path[episode].tolist()])
            batch[f"{camera}_timestamp"] = times

    def _write(
        self,
        samples: SampleWindow,
        numbers: IntArray,
        made: Mapping[str, npt.NDArray[Any]],
        lists: Mapping[str, list[Ragged]],
    ) -> None:
        """Write the rows of samples of one window."""
        form, reads = self.form, samples.reads
        rows = self.samples.rows_of(numbers)
        slice_ = np.searchsorted(reads.sample, numbers, side="right") - 1
        shift = reads.place[slice_] - reads.begin[slice_]
        bridged: BoolArray | None = None
        if samples.bridge is not None:
            begins = np.maximum(rows.anchor - self.samples.rule.before, rows.first)
            bridged = begins < reads.begin[slice_]
            shift[bridged] = samples.bridge.shift[slice_[bridged]]
            bridged = bridged if bridged.any() else None
        found: dict[bytes, _Places] = {}

        def places_of(offsets: IntArray | None) -> _Places:
            key = b"" if offsets is None else offsets.tobytes()
            if key not in found:
                found[key] = _places(rows, shift, offsets)
            return found[key]

        for name, offsets in form.masks.items():
            made[name][...] = places_of(offsets).exists
        for name, offsets in form.pads.items():
            np.logical_not(places_of(offsets).exists, out=made[name])
        for name, wanted_offsets in form.offsets.items():
            places = places_of(wanted_offsets)
            other = None if samples.bridge is None else samples.bridge.arrays[name]
            if name in made:
                _take(samples.arrays[name], other, places.rows, bridged, made[name])
            else:
                lists[name].append(_take_ragged(samples.arrays[name], other, places.rows, bridged))

    def _allocated(
        self, shapes: Mapping[str, tuple[tuple[int, ...], Any]]
    ) -> tuple[dict[str, Any], dict[str, Any], int]:
        """Return arrays in one block of memory, the owners of their memory by name, and the bytes of the block."""
        sizes = {name: math.prod(shape) * np.dtype(dtype).itemsize for name, (shape, dtype) in shapes.items()}
        begins = list(accumulate((-(-size // _LINE_BYTES) * _LINE_BYTES for size in sizes.values()), initial=0))
        nbytes = max(1, begins[-1])
        if self.processor is not None and self.memory.is_required:  # only the result of `transform` needs that memory
            block = Allocation(np.empty(nbytes, np.uint8))
        else:
            block = self.memory.allocate(nbytes)
        arrays: dict[str, Any] = {}
        owners: dict[str, Any] = {}
        for (name, (shape, dtype)), begin in zip(shapes.items(), begins, strict=False):
            end = begin + sizes[name]
            arrays[name] = block.array[begin:end].view(dtype).reshape(shape)
            if block.owner is not None:
                owners[name] = block.owner[begin:end]
        return arrays, owners, nbytes


class _Places(NamedTuple):
    """The indices of samples' rows in arrays.

    Attributes:
        rows: int64 ``[samples, T]`` or ``[samples]``: the index of each row in its array.
        exists: bool, of the same shape: False for a missing row that repeats another one.
    """

    rows: IntArray
    exists: BoolArray


def _places(rows: SampleRows, shift: IntArray, offsets: IntArray | None) -> _Places:
    """Return the indices of samples' rows in arrays.

    Args:
        rows: The samples.
        shift: int64 ``[samples]``: to be added to a row's number in the data set to get its index.
        offsets: The rows to deliver relative to the anchor, int64 ``[T]``; None for the anchor alone.
    """
    if offsets is None:
        return _Places(rows.anchor + shift, np.ones(len(shift), np.bool_))
    wanted = rows.anchor[:, None] + offsets
    found = np.clip(wanted, rows.first[:, None], rows.stop[:, None] - 1)
    return _Places(found + shift[:, None], found == wanted)


def _take(array: Any, other: Any, rows: IntArray, bridged: BoolArray | None, out: npt.NDArray[Any]) -> None:
    """Write rows of `array`, or of `other` for bridged samples, to `out`."""
    if len(array):
        np.take(array, rows, axis=0, out=out, mode="clip")  # clips the indices of bridged samples
    if bridged is None:
        return
    numbers = np.flatnonzero(bridged)
    step = max(1, _COPIED_BYTES // max(1, out[:1].nbytes))
    for first in range(0, len(numbers), step):
        some = numbers[first : first + step]
        out[some] = other[rows[some]]


def _take_ragged(array: Ragged, other: Ragged | None, place: IntArray, from_other: BoolArray | None) -> Ragged:
    """Return rows of `array`, ``[samples * T]``, or of `other` for the samples in `from_other`."""
    taken: Ragged
    if from_other is None or other is None:
        taken = array[place.reshape(-1)]
        return taken
    chosen = np.concatenate([place[~from_other].reshape(-1), place[from_other].reshape(-1) + len(array)])
    both = Ragged.cat([array[chosen[chosen < len(array)]], other[chosen[chosen >= len(array)] - len(array)]])
    samples = np.concatenate([np.flatnonzero(~from_other), np.flatnonzero(from_other)])
    at = np.argsort(samples)[:, None] * (place.size // len(place)) + np.arange(place.size // len(place))
    taken = both[at.reshape(-1)]
    return taken


def _in_samples(rows: Ragged, count: int, offsets: IntArray | None) -> Ragged:
    """Return a list of T rows for each sample; without offsets, the rows themselves."""
    return rows if offsets is None else Ragged(rows, np.arange(count + 1) * len(offsets))
