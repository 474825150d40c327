"""Copies whole windows to a device, permutes their rows there, and cuts batches from the result as views.

Everything runs in the caller's thread, and on the CPU the same operations run on a CPU "device". On a GPU, copies and
permutations are queued on a side stream. Invariants:

- Host memory. Tensors are made from the owner of pinned memory, so torch's host allocator reuses it only after the
  copies from it are done. Ordinary memory has been read when `copy_` returns. Registered memory, of at most two
  windows, is kept until its copies are done.
- Device memory. All of it is allocated, and the uploaded rows in their old order are freed, while the side stream is
  current. So it is reused only behind the operations that are queued there.
- Before the first batch of a window is handed over, and again if the caller changes streams, the caller's stream waits
  for the window, and the window's tensors are recorded on it. All batches of a column share its memory, so a window's
  memory is freed with its last batch.
- Unless the caller keeps batches, the device holds at most two windows, and one `CHUNK_BYTES` or one column in its old
  order: before a window is uploaded, the previous one is released, except its last batch and the rows that fill none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from parquet_loader.collate.device.cuda import Upload, UploadedBatch, moved, on_stream
from parquet_loader.collate.device.kept_rows import KeptRows
from parquet_loader.collate.device.registered_memory import HeldSources, RegisteredMemory
from parquet_loader.collate.output import Batch, DeviceFigures
from parquet_loader.collate.tensors import (
    DEVICE_SPLIT_TENSORS,
    SPLIT_BATCHES,
    batch_tensors,
    host_tensor,
    window_batches,
)
from parquet_loader.common import IntArray, number_bits
from parquet_loader.engine import ProcessedBatch
from parquet_loader.schema import Ragged
from parquet_loader.window import (
    Allocator,
    BlockColumn,
    CarriedRows,
    KeptWindow,
    Scattered,
    StoredWindow,
    UnsortedOrder,
    as_row_numbers,
    copied,
    ordered_window,
)

# Columns are uploaded together up to this size: smaller copies do not use the bus well, and larger ones take device
# memory for rows in their old order.
CHUNK_BYTES = 16 << 20
# Bytes of a row of the order: sorting takes the words and the numbers of rows three times each, and a few bytes for
# blocks of rows.
_SORT_BYTES = 49
_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


class DeviceWindows:
    """Uploads windows to one device.

    Args:
        device: A CUDA device, or the CPU.
        registered: Page-locked shared memory, from which copies need no pinned memory.
    """

    def __init__(self, device: torch.device, registered: RegisteredMemory | None = None) -> None:
        self._device = device
        self._registered = registered
        self._sources: list[Any] = []  # registered memory of the window that is being uploaded
        self._held = HeldSources()
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def allocates(self, kept: KeptRows, window: StoredWindow) -> bool:
        """Allocate the memory of all kept rows at the first window; return whether the device has enough."""
        with self._on_side(), suppress(torch.cuda.OutOfMemoryError):
            kept.allocate(window.columns, window.names)
            return True
        return False

    def batches(
        self,
        window: StoredWindow,
        batch_size: int,
        pinned: Allocator | None,
        figures: DeviceFigures,
        carried: CarriedRows,
        kept: KeptRows | None = None,
    ) -> Iterator[Batch]:
        """Yield a window's batches in order, on the device; see `Output.from_window`.

        If the device has no memory for the window, the CPU permutes its rows, and the batches are in ordinary memory.

        Args:
            window: The window.
            batch_size: Rows of a batch.
            pinned: Provides the memory that copies read; None for ordinary memory.
            figures: Counts the window.
            carried: The rows that the previous window left; receives those that this one leaves.
            kept: Keeps the window's rows on the device, in memory that is already allocated; None if no row is kept.
        """
        bounds = [*range(0, window.rows, batch_size), window.rows]
        at_once = _batches_at_once(len(window.names))
        found: tuple[list[_Columns], Upload] | None = None
        with suppress(torch.cuda.OutOfMemoryError):
            found = self._uploaded(window, bounds, at_once * batch_size, pinned, figures, carried, kept)
        if found is None:
            figures.count("out of device memory")
            by_name = {column.name: column for column in window.columns}
            with self._on_side():
                carried.columns = {name: _on_host(rows, by_name[name]) for name, rows in carried.columns.items()}
            if self._registered is not None:  # nothing keeps its memory until these batches are copied
                arrays = {name: _copy_of(array) for name, array in window.arrays.items()}
                window = replace(window, arrays=arrays, owners={})
            yield from window_batches(ordered_window(window, carried), batch_size)
            return
        figures.windows += 1
        figures.cpu_columns = len(window.arrays)
        columns, upload = found
        names = window.names
        del window, found  # the window's memory can be reused when its copies are done
        yield from _cut(names, columns, bounds, at_once, upload)

    def kept_batches(
        self, window: KeptWindow, batch_size: int, pinned: Allocator | None, figures: DeviceFigures, kept: KeptRows
    ) -> Iterator[Batch]:
        """Yield the batches of a window of kept rows; arguments as in `batches`.

        If the device has no memory for the window, its batches are permuted one by one.

        Raises:
            torch.OutOfMemoryError: The device has no memory for a batch.
        """
        bounds = [*range(0, window.rows, batch_size), window.rows]
        at_once = _batches_at_once(len(kept.columns))
        found: tuple[list[_Columns], Upload] | None = None
        with suppress(torch.cuda.OutOfMemoryError):
            found = self._selected(window.order, at_once * batch_size, pinned, kept)
        if found is None:
            figures.count("out of device memory")
            for start, stop in pairwise(bounds):
                columns, upload = self._selected(window.order[start:stop], batch_size, pinned, kept)
                yield from _cut(list(kept.columns), columns, [0, stop - start], 1, upload)
            return
        figures.windows += 1
        figures.kept_rows = kept.rows
        columns, upload = found
        del found
        yield from _cut(list(kept.columns), columns, bounds, at_once, upload)

    def _selected(
        self, order: npt.NDArray[Any], group_rows: int, pinned: Allocator | None, kept: KeptRows
    ) -> tuple[list[_Columns], Upload]:
        with self._on_side():
            numbers = self._copy(self._source(as_row_numbers(order, kept.rows), None, pinned))
            columns: list[_Columns] = [
                _select(_as_words(kept.rows_of(name), [column], kept.rows), [column], numbers, group_rows)
                for name, column in kept.columns.items()
            ]
            tensors = [tensor for column in columns for tensor in column.tensors()]
            return columns, Upload(self._device, self._side, tensors)

    def release(self) -> None:
        """Release the memory whose queued copies are done."""
        self._held.release()
        if self._sources and self._side is not None:  # an upload was interrupted after it had queued copies
            self._side.synchronize()
        self._sources = []

    def _on_side(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._side is None else on_stream(self._side, self._device)

    def _uploaded(
        self,
        window: StoredWindow,
        bounds: list[int],
        group_rows: int,
        pinned: Allocator | None,
        figures: DeviceFigures,
        carried: CarriedRows,
        kept: KeptRows | None,
    ) -> tuple[list[_Columns], Upload]:
        done: list[_Columns] = []
        left: dict[str, torch.Tensor] = {}
        self._held.release(most=1)
        self._sources = []
        with self._on_side():
            if window.columns:
                done.extend(self._permuted(window, group_rows, pinned, carried, left, kept))
            if kept is not None:
                figures.kept_rows = kept.complete(window.slices)
            for name, ragged in window.ragged.items() if window.rows else ():
                done.append(self._permuted_rows(name, ragged, bounds, pinned))
            for name, array in window.arrays.items() if window.rows else ():
                done.append(self._other(name, array, window.owners.get(name), bounds, group_rows, pinned))
            tensors = [tensor for columns in done for tensor in columns.tensors()]
            upload = Upload(self._device, self._side, tensors)
            self._held.hold(upload.event, self._sources)
            if self._registered is not None and self._registered.reason and not self._sources:
                figures.count_copied(self._registered.reason)
            self._sources = []
            carried.columns = left  # now that the window no longer needs the earlier ones
            return done, upload

    def _permuted(
        self,
        window: StoredWindow,
        group_rows: int,
        pinned: Allocator | None,
        carried: CarriedRows,
        left: dict[str, torch.Tensor],
        kept: KeptRows | None,
    ) -> Iterator[_Fixed]:
        """Yield the columns of the block with their rows in the order of delivery.

        Rows that fill no batch are put into `left`, as words, and all rows that the window has read into `kept`.
        """
        last = window.columns[-1]
        block = self._source(window.block[: last.start + last.nbytes], window.owner, pinned)
        order = self._order(window, pinned)
        delivered, others = order[: window.rows], order[window.rows :]
        for chunk in _chunks(window.columns):
            start = chunk[0].start
            stored = self._copy(block[start : chunk[-1].start + chunk[-1].nbytes])
            if kept is not None:
                for column in chunk:
                    kept.put(column, stored.narrow(0, column.start - start, column.nbytes), window.slices)
            for _, alike in groupby(chunk, lambda column: (column.dtype, column.shape)):
                columns = list(alike)
                first, last = columns[0], columns[-1]
                rows = stored.narrow(0, first.start - start, last.start + last.nbytes - first.start)
                words = _as_words(rows, columns, window.slots)
                if window.carried:
                    before = [self._as_carried(carried.columns[column.name], words) for column in columns]
                    torch.stack(before, out=words.narrow(1, window.carried_slot, window.carried))
                yield _select(words, columns, delivered, group_rows)
                if window.left:
                    rest = words.index_select(1, others).unbind()
                    left.update(zip((column.name for column in columns), rest, strict=True))

    def _as_carried(self, rows: Any, words: torch.Tensor) -> torch.Tensor:
        """Return carried rows as words on the device; they are an array if the CPU has permuted the previous window."""
        if isinstance(rows, torch.Tensor):
            return rows
        tensor = torch.from_numpy(rows.reshape(-1).view(np.uint8)).view(words.dtype)
        return self._copy(tensor.view(len(rows), words.shape[2]))

    def _order(self, window: StoredWindow, pinned: Allocator | None) -> torch.Tensor:
        """Return the number of each row in the block, first of those that are delivered."""
        order = window.order
        if not isinstance(order, UnsortedOrder):
            return self._copy(self._source(order, None, pinned)).long()
        words = self._copy(self._source(order.words.view(np.int64), order.owner, pinned))
        return sorted_order(words, window.carried)

    def _permuted_rows(self, name: str, stored: Scattered, bounds: list[int], pinned: Allocator | None) -> _Columns:
        """Upload rows that differ in length, and bring them into the order of delivery.

        `index_select` takes the values by number, a part of them at a time, because their numbers take more memory than
        most values.
        """
        offsets, source = stored.offsets, self._source(stored.values, stored.owner, pinned)
        total, shape = int(offsets[-1]), source.shape[1:]
        values = torch.empty((total, *shape), dtype=source.dtype, device=self._device)
        if values.nbytes:
            width = values.nbytes // total
            data, out = _words(self._copy(source), width), _words(values, width)
            # For each row, the number of a value in the old order minus its number in the new one.
            shifts = self._copy(self._source(stored.begins - offsets[:-1], None, pinned))
            lengths = self._copy(self._source(stored.lengths, None, pinned))
            first, last = 0, len(offsets) - 1
            while first < last:
                after = int(np.searchsorted(offsets, offsets[first] + CHUNK_BYTES // 8, side="right")) - 1
                after = max(after, first + 1)
                start, stop = int(offsets[first]), int(offsets[after])
                numbers = torch.repeat_interleave(shifts[first:after], lengths[first:after], output_size=stop - start)
                numbers += torch.arange(start, stop, device=self._device)
                torch.index_select(data, 0, numbers, out=out[start:stop])
                del numbers  # before the next ones are made
                first = after
        own = self._copy(self._source(_offsets_of_batches(offsets, bounds), None, pinned))
        return _Rows(name, values, offsets[bounds].tolist(), own, bounds, stored.kind)

    def _other(
        self, name: str, array: Any, owner: Any, bounds: list[int], group_rows: int, pinned: Allocator | None
    ) -> _Columns:
        """Upload a column whose rows are in the order of delivery."""
        if not isinstance(array, Ragged):
            return _Fixed.of_rows(name, self._copy(self._source(array, owner, pinned)), group_rows)
        if isinstance(array.values, Ragged):
            innermost: Any = array.values
            while isinstance(innermost, Ragged):
                innermost = innermost.values
            self._keeps(innermost)  # the offsets of batches are computed, and so in ordinary memory
            parts = [array.slice(start, stop) for start, stop in pairwise(bounds)]
            batches = [batch_tensors(ProcessedBatch(len(part), {"": part}, {}, 0))[""] for part in parts]
            return _Nested(name, [moved(batch, self._device) for batch in batches])
        offsets: IntArray = array.offsets
        values = self._copy(self._source(array.values, owner, pinned))
        own = self._copy(self._source(_offsets_of_batches(offsets, bounds), None, pinned))
        return _Rows(name, values, offsets[bounds].tolist(), own, bounds, array.kind)

    def _source(self, array: npt.NDArray[Any], owner: Any, pinned: Allocator | None) -> torch.Tensor:
        """Return an array as a tensor, copied to memory of `pinned` unless the array is page-locked."""
        if self._keeps(array):
            pinned = None
        if owner is None and pinned is not None:
            array, owner = copied(array, pinned)
        tensor: torch.Tensor = host_tensor(array, owner)
        return tensor

    def _keeps(self, array: npt.NDArray[Any]) -> bool:
        """Keep an array in registered memory until the window is copied; return whether it is there."""
        if self._registered is None or not array.nbytes or not self._registered.holds(array):
            return False
        self._sources.append(array)
        return True

    def _copy(self, source: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(source, device=self._device).copy_(source, non_blocking=True)


class _Batches(NamedTuple):
    """A group of consecutive batches of a window.

    Attributes:
        group: The number of the group.
        first: The number of the first batch.
        sizes: The rows of each batch.
    """

    group: int
    first: int
    sizes: list[int]


@dataclass(frozen=True, slots=True)
class _Fixed:
    """Columns of one dtype whose rows have one shape.

    Attributes:
        names: The columns.
        groups: For each group of batches, its rows of one column after another: ``[columns * rows, ...]``.
        memory: The tensors of which these are views.
    """

    names: Sequence[str]
    groups: Sequence[torch.Tensor]
    memory: Sequence[torch.Tensor]

    @classmethod
    def of_rows(cls, name: str, rows: torch.Tensor, group_rows: int) -> _Fixed:
        """Return one column, ``[rows, ...]``."""
        return cls([name], torch.unsafe_split(rows, group_rows), [rows])

    def cut(self, some: _Batches) -> list[Sequence[torch.Tensor]]:
        # As in `window_batches`: autograd lets callers write to these views.
        parts = torch.unsafe_split_with_sizes(self.groups[some.group], some.sizes * len(self.names))
        count = len(some.sizes)
        return [parts[first : first + count] for first in range(0, len(parts), count)]

    def tensors(self) -> Sequence[Any]:
        return self.memory


@dataclass(frozen=True, slots=True)
class _Rows:
    """A column of rows that differ in length.

    Attributes:
        name: The column.
        values: The values of all rows.
        value_bounds: The number of the first value of each batch, and the number of all values.
        offsets: The offsets of each batch, one batch after another.
        bounds: The number of the first row of each batch, and the number of all rows.
        kind: As in `Ragged`.
    """

    name: str
    values: torch.Tensor
    value_bounds: list[int]
    offsets: torch.Tensor
    bounds: list[int]
    kind: Any

    @property
    def names(self) -> Sequence[str]:
        return (self.name,)

    def cut(self, some: _Batches) -> list[Sequence[Ragged]]:
        batches = []
        for number in range(some.first, some.first + len(some.sizes)):
            # Each earlier batch has one offset more than rows.
            start, stop = self.bounds[number] + number, self.bounds[number + 1] + number + 1
            values = self.values[self.value_bounds[number] : self.value_bounds[number + 1]]
            batches.append(Ragged(values, self.offsets[start:stop], self.kind))
        return [batches]

    def tensors(self) -> Sequence[Any]:
        return [self.values, self.offsets]


@dataclass(frozen=True, slots=True)
class _Nested:
    """A column of lists of lists: its batches were copied one by one."""

    name: str
    batches: list[Ragged]

    @property
    def names(self) -> Sequence[str]:
        return (self.name,)

    def cut(self, some: _Batches) -> list[Sequence[Ragged]]:
        return [self.batches[some.first : some.first + len(some.sizes)]]

    def tensors(self) -> Sequence[Any]:
        return self.batches


_Columns: TypeAlias = _Fixed | _Rows | _Nested
"""Columns of a window on the device.

`cut` returns some batches of each column, and `tensors` the tensors that streams record.
"""


def most_device_bytes(rows: int, row_bytes: float, widest_bytes: float, *, is_ragged: bool = False) -> int:
    """Return the most bytes on the device: two windows, a chunk in its old order, and the order.

    Args:
        rows: Rows of the largest window.
        row_bytes: Bytes of a row of all columns.
        widest_bytes: Bytes of a row of the widest column.
        is_ragged: Whether rows of a column differ in length.
    """
    chunk = min(rows * row_bytes, max(CHUNK_BYTES, rows * widest_bytes))
    if is_ragged:  # three numbers for each row, and the numbers of a part of the values, twice
        chunk += 24 * rows + 2 * CHUNK_BYTES
    # The order is sorted before rows are copied.
    return int(2 * rows * row_bytes + max(chunk, (_SORT_BYTES - 8) * rows) + 8 * rows)


def _batches_at_once(columns: int) -> int:
    return max(1, min(SPLIT_BATCHES, DEVICE_SPLIT_TENSORS // max(1, columns)))


def _cut(
    names: Sequence[str], columns: Sequence[_Columns], bounds: list[int], at_once: int, upload: Upload
) -> Iterator[Batch]:
    """Yield the batches of a window, as views of its columns; `at_once` is the number of batches of a group."""
    for group, first in enumerate(range(0, len(bounds) - 1, at_once)):
        some = bounds[first : first + at_once + 1]
        batches = _Batches(group, first, [stop - start for start, stop in pairwise(some)])
        by_name: dict[str, Sequence[Any]] = {}
        for several in columns:
            by_name.update(zip(several.names, several.cut(batches), strict=True))
        slices = [by_name[name] for name in names]
        del by_name
        for values in zip(*slices, strict=True):
            yield UploadedBatch(zip(names, values, strict=True), upload)
        del slices


def _chunks(columns: Sequence[BlockColumn]) -> Iterator[list[BlockColumn]]:
    """Divide the columns into consecutive parts of about `CHUNK_BYTES`."""
    chunk: list[BlockColumn] = []
    for column in columns:
        if chunk and column.start + column.nbytes - chunk[0].start > CHUNK_BYTES:
            yield chunk
            chunk = []
        chunk.append(column)
    yield chunk


def sorted_order(words: torch.Tensor, carried: int = 0) -> torch.Tensor:
    """Return the permutation that follows from random words, int64 ``[carried + rows]``; see `order_of_words`.

    Args:
        words: The words as int64 ``[rows]``; overwritten.
        carried: Number of rows that come first and are not permuted.
    """
    # Words are unsigned, so the first bit is inverted. Elements with equal upper bits keep their order.
    upper = ~int(number_bits(len(words)))
    order = words.bitwise_and_(upper).bitwise_xor_(-(2**63)).sort(stable=True).indices
    return torch.cat([torch.arange(carried, device=words.device), order.add_(carried)]) if carried else order


def _as_words(stored: torch.Tensor, columns: Sequence[BlockColumn], slots: int) -> torch.Tensor:
    """Return columns as words of 1 to 8 bytes, ``[columns, slots, words]``: torch does not permute all dtypes.

    Args:
        stored: The memory of the columns, uint8.
        columns: Columns of one dtype and shape, at the same distance from each other.
        slots: Rows of each in `stored`.
    """
    width = columns[0].nbytes // slots
    _, word = _dtypes_of(columns[0].dtype, width)
    each, distance = width // word.itemsize, (columns[-1].start - columns[0].start) // max(1, len(columns) - 1)
    return stored.view(word).as_strided((len(columns), slots, each), (distance // word.itemsize, each, 1))


def _select(words: torch.Tensor, columns: Sequence[BlockColumn], order: torch.Tensor, group_rows: int) -> _Fixed:
    """Return columns with their rows in the order of delivery.

    Args:
        words: The columns; see `_as_words`.
        columns: The same columns.
        order: The number of each delivered row; int64 for several columns.
        group_rows: Rows of a group of batches, except the last one.
    """
    (first, *others), names = columns, [column.name for column in columns]
    _, slots, each = words.shape
    dtype, _ = _dtypes_of(first.dtype, each * words.dtype.itemsize)
    if not others:
        rows = words.view(slots, *([each] if each != 1 else [])).index_select(0, order).view(dtype)
        return _Fixed.of_rows(first.name, rows.view(len(order), *first.shape), group_rows)
    groups, memory = list[torch.Tensor](), list[torch.Tensor]()
    whole = len(order) - len(order) % group_rows
    for some, rows_of_each in ((order[:whole], group_rows), (order[whole:], len(order) - whole)):
        if not len(some):
            continue
        index = some.view(-1, 1, rows_of_each, 1).expand(-1, len(columns), -1, each)
        rows = words.expand(len(index), -1, -1, -1).gather(2, index).view(dtype)
        memory.append(rows.view(len(some) * len(columns), *first.shape))
        groups.extend(torch.unsafe_split(memory[-1], rows_of_each * len(columns)))
    return _Fixed(names, groups, memory)


def _on_host(rows: Any, column: BlockColumn) -> npt.NDArray[Any]:
    """Return carried rows as an array."""
    if isinstance(rows, np.ndarray):
        return rows
    found: npt.NDArray[Any] = rows.cpu().numpy().reshape(-1).view(column.dtype).reshape(len(rows), *column.shape)
    return found


def _copy_of(array: npt.NDArray[Any] | Ragged) -> npt.NDArray[Any] | Ragged:
    return array.to(copy=True) if isinstance(array, Ragged) else array.copy()


@cache
def _dtypes_of(dtype: np.dtype[Any], width: int) -> tuple[torch.dtype, torch.dtype]:
    """Return torch's dtype, and the dtype of the words as which rows of `width` bytes are permuted."""
    return torch.from_numpy(np.empty(0, dtype)).dtype, _WORDS[next(size for size in _WORDS if width % size == 0)]


def _words(values: torch.Tensor, width: int) -> torch.Tensor:
    """Return values of `width` bytes as words of 1 to 8 bytes, ``[values, words]``; see `_select`."""
    word = next(size for size in _WORDS if width % size == 0)
    return values.view(-1).view(torch.uint8).view(_WORDS[word]).view(-1, width // word)


def _offsets_of_batches(offsets: IntArray, bounds: Sequence[int]) -> IntArray:
    """Return the offsets of all batches, one batch after another; those of each batch begin at 0."""
    sizes = np.diff(bounds) + 1
    ends = np.cumsum(sizes)
    # Element i of the result is the offset of row i minus the number of earlier batches: each batch repeats an offset.
    rows = np.arange(int(ends[-1])) - np.repeat(np.arange(len(sizes)), sizes)
    found: IntArray = offsets[rows] - np.repeat(offsets[np.asarray(bounds[:-1])], sizes)
    return found
