"""Makes batches of samples from windows of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parquet_loader.collate import Batch, Output
from parquet_loader.common import BoolArray, IntArray, take_runs
from parquet_loader.engine import ProcessedBatch
from parquet_loader.errors import DataError
from parquet_loader.loader.episodes.video_frames import VideoFrames
from parquet_loader.plan import EpisodeSamples, Plan, SampleRows, WindowReads, window_reads
from parquet_loader.schema import Ragged
from parquet_loader.window import Allocation, Allocator, Window

_LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class SampleForm:
    """What a batch holds.

    Attributes:
        offsets: By column, the rows to deliver, relative to the anchor, int64 ``[T]``; None: the anchor alone.
        masks: The names of masks (True: the row exists), each with the offsets that it is for.
        pads: The names of masks with the opposite meaning (True: the row does not exist).
        frames: Where the frames of the rows are; None: there are no video files.
        cameras: By camera, the rows to deliver, as `offsets`.
    """

    offsets: Mapping[str, IntArray | None]
    masks: Mapping[str, IntArray]
    pads: Mapping[str, IntArray]
    frames: VideoFrames | None
    cameras: Mapping[str, IntArray | None]


class _Bridge(NamedTuple):
    """Rows of earlier windows, and those that follow them in this one, for samples that need both.

    Attributes:
        shift: int64 ``[slices]``: what to add to a row's number in the data set for its place in `arrays`.
        arrays: The rows, by column.
    """

    shift: IntArray
    arrays: Mapping[str, Any]


class _Samples(NamedTuple):
    """The samples of one window.

    Attributes:
        numbers: int64 ``[samples]``, in the order of delivery.
        reads: Where their rows are.
        arrays: The window's rows, by column.
        bridge: Rows of the windows before it; None: no sample needs them.
    """

    numbers: IntArray
    reads: WindowReads
    arrays: Mapping[str, Any]
    bridge: _Bridge | None


class SampleOutput(Output):
    """The output of one epoch of an `EpisodeLoader`. See `Output`; used by the caller's thread.

    Of each row group that later windows continue, it keeps the last rows, fewer than a sample has, for samples that
    begin there. A batch that needs samples of two windows keeps the first one's memory until it is made.

    Args:
        plan: The epoch of samples.
        samples: The samples.
        first_batch: The first batch that is delivered.
        form: What a batch holds.
        output: Makes tensors or arrays.
        memory: Provides the memory of batches.
    """

    def __init__(
        self,
        plan: Plan,
        samples: EpisodeSamples,
        first_batch: int,
        form: SampleForm,
        output: Output,
        memory: Allocator,
    ) -> None:
        self._plan = plan
        self._samples = samples
        self._form = form
        self._output = output
        self._memory = memory
        self._first_window, self._begun = plan.beginning_of(first_batch)
        self._window = self._first_window
        self._left = plan.batches - first_batch
        self._tails: dict[tuple[int, int], dict[str, Any]] = {}
        self._parts: list[tuple[_Samples, IntArray]] = []
        self._count = 0

    def allocator(self, keep_bytes: int) -> Allocator:
        """Return the allocator of windows."""
        return self._output.allocator(keep_bytes)

    def from_batch(self, batch: ProcessedBatch, copied_to: Allocator | None) -> Batch:
        """Return a batch of rows; not used, because nothing processes rows."""
        return self._output.from_batch(batch, copied_to)

    def delivered(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches on the device that the caller chose."""
        return self._output.delivered(batches)

    def from_window(self, window: Window, batch_size: int, copied_to: Allocator | None) -> Iterator[Batch]:  # noqa: ARG002
        """Yield the batches that a window completes; at the end of the epoch also the last one."""
        arrays = window.arrays
        yield from self._batches(arrays, window.rows, batch_size)
        # The engine passes over windows without rows: those whose samples need only rows of windows before them.
        while self._window < self._plan.windows and not self._reads(self._window).rows:
            yield from self._batches({name: array[:0] for name, array in arrays.items()}, 0, batch_size)

    def _reads(self, number: int) -> WindowReads:
        return window_reads(self._plan, self._samples, number, self._first_window)

    def _batches(self, arrays: Mapping[str, Any], rows: int, batch_size: int) -> Iterator[Batch]:
        """Yield the batches that the next window completes."""
        number = self._window
        self._window += 1
        samples = self._samples_of(arrays, rows, number)
        at, is_last = 0, self._window == self._plan.windows
        while at < len(samples.numbers):
            some = samples.numbers[at : at + batch_size - self._count]
            at += len(some)
            self._parts.append((samples, some))
            self._count += len(some)
            if self._left and (self._count == batch_size or (is_last and at == len(samples.numbers))):
                self._left -= 1
                yield self._batch()

    def _samples_of(self, arrays: Mapping[str, Any], rows: int, number: int) -> _Samples:
        """Return the samples of a window, and keep the rows that later windows need."""
        plan, samples = self._plan, self._samples
        reads = self._reads(number)
        if rows != reads.rows:
            raise DataError(f"epoch {plan.epoch}, window {number}: {rows} rows were read, expected {reads.rows}")
        slices = np.array([(s.row_group, s.start, s.rows) for s in plan.slices(number)], np.int64).reshape(-1, 3)
        counts = slices[:, 2]
        shift = samples.numbers(slices[:, 0], slices[:, 1]) - (np.cumsum(counts) - counts)
        numbers = np.arange(counts.sum()) + np.repeat(shift, counts)
        order = plan.order(number)
        if order is not None:
            numbers = numbers[order]
        begun = self._begun if number == self._first_window else 0
        numbers = numbers[begun : len(numbers) - plan.left_out(number)]
        return _Samples(numbers, reads, arrays, self._bridge(arrays, reads))

    def _bridge(self, arrays: Mapping[str, Any], reads: WindowReads) -> _Bridge | None:
        """Join the rows kept of earlier windows with those of this one, and keep this one's last rows."""
        most = self._samples.rule.rows - 1
        shift = np.zeros(len(reads.run), np.int64)
        pieces: list[dict[str, Any]] = []
        rows = 0
        for number, run in enumerate(reads.run):
            begin, place = int(reads.begin[number]), int(reads.place[number])
            before = None if reads.begins_run[number] else self._tails.pop(run)
            kept = 0 if before is None else _rows(before)
            if before is not None and kept:
                stop = place + min(most, int(reads.stop[number]) - begin)
                joined = {name: _cat([before[name], array[place:stop]]) for name, array in arrays.items()}
                shift[number] = rows - (begin - kept)
                pieces.append(joined)
                rows += _rows(joined)
            if not reads.ends_run[number]:
                own = min(most, int(reads.main_stop[number]) - begin)
                end = place + int(reads.main_stop[number]) - begin
                self._tails[run] = {
                    name: _tail(None if before is None else before[name], array[end - own : end], most)
                    for name, array in arrays.items()
                }
        if not pieces:
            return None
        return _Bridge(shift, {name: _cat([piece[name] for piece in pieces]) for name in arrays})

    def _batch(self) -> Batch:
        """Make a batch of the parts, and forget them."""
        form, parts, count = self._form, self._parts, self._count
        self._parts, self._count = [], 0
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {}
        for name, rows in (*form.masks.items(), *form.pads.items()):
            shapes[name] = ((count, len(rows)), np.bool_)
        first = parts[0][0].arrays
        for camera, offsets in form.cameras.items():
            shapes[f"{camera}_timestamp"] = ((count, *(() if offsets is None else (len(offsets),))), np.float64)
        for name, offsets in form.offsets.items():
            if isinstance(array := first[name], np.ndarray):
                axis = () if offsets is None else (len(offsets),)
                shapes[name] = ((count, *axis, *array.shape[1:]), array.dtype)
        made, owners = self._allocated(shapes)
        lists: dict[str, list[Ragged]] = {name: [] for name in form.offsets if name not in made}
        numbers = parts[0][1] if len(parts) == 1 else np.concatenate([some for _, some in parts])
        at = 0
        for samples, numbers in parts:
            some = slice(at, at + len(numbers))
            at += len(numbers)
            self._write(samples, numbers, {name: array[some] for name, array in made.items()}, lists)
        batch: dict[str, Any] = {name: made[name] for name in (*form.masks, *form.pads)}
        for name, offsets in form.offsets.items():
            batch[name] = made[name] if name in made else _in_samples(_cat(lists[name]), count, offsets)
        if form.frames is not None:
            self._write_times(form.frames, numbers, made, batch)
        return self._output.from_batch(ProcessedBatch(count, batch, owners, 0), None)

    def _write_times(
        self, frames: VideoFrames, numbers: IntArray, made: Mapping[str, npt.NDArray[Any]], batch: dict[str, Any]
    ) -> None:
        """Write the file of each sample's frames, and their times."""
        rows, episode = self._samples.rows_of(numbers), self._samples.episodes_of(numbers)
        for camera, offsets in self._form.cameras.items():
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
        samples: _Samples,
        numbers: IntArray,
        made: Mapping[str, npt.NDArray[Any]],
        lists: Mapping[str, list[Ragged]],
    ) -> None:
        """Write the rows of samples of one window."""
        form, reads = self._form, samples.reads
        rows = self._samples.rows_of(numbers)
        slice_ = np.searchsorted(reads.sample, numbers, side="right") - 1
        shift = reads.place[slice_] - reads.begin[slice_]
        bridged: BoolArray | None = None
        if samples.bridge is not None:
            begins = np.maximum(rows.anchor - self._samples.rule.before, rows.first)
            bridged = begins < reads.begin[slice_]
            shift[bridged] = samples.bridge.shift[slice_[bridged]]
            bridged = bridged if bridged.any() else None
        found: dict[bytes, _Places] = {}

        def places_of(offsets: IntArray | None) -> _Places:
            key = b"" if offsets is None else offsets.tobytes()
            if key not in found:
                found[key] = _places(rows, shift, offsets, bridged)
            return found[key]

        for name, offsets in form.masks.items():
            made[name][...] = places_of(offsets).exists
        for name, offsets in form.pads.items():
            np.logical_not(places_of(offsets).exists, out=made[name])
        for name, wanted_offsets in form.offsets.items():
            places = places_of(wanted_offsets)
            other = None if samples.bridge is None else samples.bridge.arrays[name]
            if name in made:
                _take(samples.arrays[name], other, places, made[name])
            else:
                lists[name].append(_take_ragged(samples.arrays[name], other, places.rows, bridged))

    def _allocated(self, shapes: Mapping[str, tuple[tuple[int, ...], Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return arrays in one block of memory, and its owners, by name."""
        sizes = {name: math.prod(shape) * np.dtype(dtype).itemsize for name, (shape, dtype) in shapes.items()}
        begins = list(accumulate((-(-size // _LINE_BYTES) * _LINE_BYTES for size in sizes.values()), initial=0))
        block: Allocation = self._memory.allocate(max(1, begins[-1]))
        arrays: dict[str, Any] = {}
        owners: dict[str, Any] = {}
        for (name, (shape, dtype)), begin in zip(shapes.items(), begins, strict=False):
            end = begin + sizes[name]
            arrays[name] = block.array[begin:end].view(dtype).reshape(shape)
            if block.owner is not None:
                owners[name] = block.owner[begin:end]
        return arrays, owners


class _Places(NamedTuple):
    """Where the rows of samples are.

    Attributes:
        rows: int64 ``[samples, T]`` or ``[samples]``: the place of each row in its array.
        exists: bool, of the same shape: whether it is a row of the sample, or repeats another one.
        runs: The samples whose rows are consecutive in the window's array.
        others: The samples whose rows are in the window's array, but are not consecutive.
        bridged: The samples whose rows are in another array.
    """

    rows: IntArray
    exists: BoolArray
    runs: _Chosen
    others: _Chosen
    bridged: _Chosen


class _Chosen(NamedTuple):
    """Some samples: their numbers, and the places of their rows, of the first row alone if they are runs."""

    numbers: IntArray
    rows: IntArray


def _places(rows: SampleRows, shift: IntArray, offsets: IntArray | None, bridged: BoolArray | None) -> _Places:
    """Return where the rows of samples are.

    Args:
        rows: The samples.
        shift: int64 ``[samples]``: what to add to a row's number in the data set for its place.
        offsets: The rows to deliver, relative to the anchor, int64 ``[T]``; None: the anchor alone.
        bridged: bool ``[samples]``: those that are not in the window's array; None: all are there.
    """
    is_here = np.ones(len(shift), np.bool_) if bridged is None else ~bridged
    if offsets is None:
        found, exists = rows.anchor + shift, np.ones(len(shift), np.bool_)
        is_run = np.zeros(len(shift), np.bool_)
    else:
        wanted = rows.anchor[:, None] + offsets
        found = np.clip(wanted, rows.first[:, None], rows.stop[:, None] - 1)
        exists = found == wanted
        found += shift[:, None]
        is_whole = len(offsets) > 1 and bool((np.diff(offsets) == 1).all())
        is_run = is_here & exists.all(axis=1) if is_whole else np.zeros(len(shift), np.bool_)
    runs, others, elsewhere = (np.flatnonzero(some) for some in (is_run, is_here & ~is_run, ~is_here))
    first = found[runs, 0] if found.ndim > 1 else found[runs]
    chosen = _Chosen(runs, first), _Chosen(others, found[others]), _Chosen(elsewhere, found[elsewhere])
    return _Places(found, exists, *chosen)


def _take(array: Any, other: Any, places: _Places, out: npt.NDArray[Any]) -> None:
    """Write rows of one array; for the samples that are bridged, of another."""
    runs, others, bridged = places.runs, places.others, places.bridged
    if len(runs.numbers) and (not array.flags.c_contiguous or not array[:1].nbytes):
        here = np.sort(np.concatenate([runs.numbers, others.numbers]))
        runs, others = _Chosen(runs.numbers[:0], runs.rows[:0]), _Chosen(here, places.rows[here])
    if len(runs.numbers):
        take_runs(array, runs.rows, runs.numbers, out)
    if len(others.numbers) == len(out):
        np.take(array, others.rows, axis=0, out=out, mode="clip")
    elif len(others.numbers):
        out[others.numbers] = array[others.rows]
    if len(bridged.numbers):
        out[bridged.numbers] = other[bridged.rows]


def _take_ragged(array: Ragged, other: Ragged | None, place: IntArray, from_other: BoolArray | None) -> Ragged:
    """Return rows of one array, ``[samples * T]``; for the samples in `from_other`, of another."""
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
    """Return a list of T rows for each sample; without offsets, the rows."""
    return rows if offsets is None else Ragged(rows, np.arange(count + 1) * len(offsets))


def _cat(arrays: list[Any]) -> Any:
    if len(arrays) == 1:
        return arrays[0]
    return Ragged.cat(arrays) if isinstance(arrays[0], Ragged) else np.concatenate(arrays)


def _tail(before: Any, array: Any, most: int) -> Any:
    """Return a copy of the last rows of two arrays together."""
    if len(array) < most and before is not None and len(before):
        array = _cat([before, array])
    array = array[max(0, len(array) - most) :]
    return Ragged.cat([array, array[:0]]) if isinstance(array, Ragged) else array.copy()


def _rows(arrays: Mapping[str, Any]) -> int:
    return len(next(iter(arrays.values()))) if arrays else 0
