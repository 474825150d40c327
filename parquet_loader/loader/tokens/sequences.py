"""Cuts packed windows into batches, and writes the sequences of a batch."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from parquet_loader.collate import TokenRows, TokenWriter, write_column
from parquet_loader.engine import ProcessedBatch
from parquet_loader.loader.tokens.documents import BatchForm, Documents
from parquet_loader.loader.tokens.epoch_packing import EpochPacking
from parquet_loader.schema import Ragged
from parquet_loader.window import Allocator

_LINE_BYTES = 64
_INT32 = np.dtype(np.int32)
_ROWS_OF_TOKENS: dict[str, Any] = {
    "input_ids": np.dtype(np.int64),
    "labels": np.dtype(np.int64),
    "position_ids": np.dtype(np.int32),
    "document_ids": np.dtype(np.int32),
}
_WRITTEN = (*_ROWS_OF_TOKENS, "seq_lens", "cu_seqlens")  # as `TokenRows`


def token_bytes(keys: Collection[str]) -> int:
    """Return the most bytes of a position of a batch with these keys; each position may be a piece of its own."""
    return sum(_ROWS_OF_TOKENS.get(name, _INT32).itemsize for name in _WRITTEN if name in keys)


@dataclass(frozen=True, slots=True)
class SequenceRange:
    """Rows ``first`` to ``last`` (exclusive) of a window; they are part of a batch.

    Attributes:
        documents: The window.
        first, last: The rows, counted in the window.
    """

    documents: Documents
    first: int
    last: int

    def sizes(self, width: int | None) -> tuple[int, int, int]:
        """Return the rows, their pieces, and pieces and paddings together.

        Args:
            width: The width of rows; None for the length of sequences.
        """
        own, first, last = self.documents, self.first, self.last
        pieces = int(own.pieces.rows[last] - own.pieces.rows[first])
        if width is not None:
            return last - first, pieces, pieces + int(np.count_nonzero(own.filled[first:last] < width))
        return last - first, pieces, int(own.ends_before[last] - own.ends_before[first])


BatchParts = Sequence[SequenceRange]
"""The sequences of one batch."""


class BatchCutter:
    """Divides the windows of an epoch into batches; used in the order of windows, by one thread at a time.

    An incomplete batch keeps the documents of its windows until it is complete.

    Args:
        packing: The epoch.
        first_batch: The first batch of the epoch to make.
    """

    def __init__(self, packing: EpochPacking, first_batch: int) -> None:
        self._packing = packing
        self._next = first_batch
        self._parts: list[tuple[int, SequenceRange]] = []

    @property
    def waiting(self) -> set[int]:
        """The numbers of the windows that the incomplete batch needs."""
        return {part.documents.number for _, part in self._parts}

    def add(self, documents: Documents) -> list[BatchParts]:
        """Add the next window; return the batches that it completes."""
        rows = documents.rows_before
        begin, end = documents.first, documents.first + len(rows) - 1
        made: list[BatchParts] = []
        while self._next < self._packing.steps:
            ranges = self._packing.ranges_of(self._next)
            for number, (first, last) in enumerate(ranges):
                low, high = max(first, begin), min(last, end)
                if low < high:
                    self._parts.append(
                        (number, SequenceRange(documents, int(rows[low - begin]), int(rows[high - begin])))
                    )
            if ranges[-1][1] > end:
                break
            made.append([part for _, part in sorted(self._parts, key=lambda pair: pair[0])])
            self._parts = []
            self._next += 1
        return made


class _BatchSize(NamedTuple):
    """The size of a batch.

    Attributes:
        width: Tokens of a row.
        of_parts: `SequenceRange.sizes` of each part.
        rows, pieces, ends: The sums of these: rows, pieces, and pieces and paddings together.
    """

    width: int
    of_parts: list[tuple[int, int, int]]
    rows: int
    pieces: int
    ends: int


_Shapes: TypeAlias = dict[str, tuple[tuple[int, ...], Any]]
"""Shape and dtype of each array of a batch that `BatchWriter` writes."""


class _BatchMemory(NamedTuple):
    """The arrays of a batch by name, their addresses, the owners of the memory, and its bytes."""

    arrays: dict[str, Any]
    addresses: dict[str, int]
    owners: dict[str, Any]
    nbytes: int


@dataclass(frozen=True, slots=True)
class BatchWriter:
    """Writes batches; immutable, any thread may use it.

    Attributes:
        form: The columns and keys of a batch.
        length: Tokens of a sequence.
        memory: Provides the memory of batches.
    """

    form: BatchForm
    length: int
    memory: Allocator

    def __call__(self, batches: Sequence[BatchParts]) -> list[ProcessedBatch]:
        """Return the batches of these sequences, in one block of memory."""
        form = self.form
        sizes = [self._size_of(parts) for parts in batches]
        shapes = [self._shapes(parts, size) for parts, size in zip(batches, sizes, strict=True)]
        # One block and one call of the kernel for all: each call waits for the GIL when it returns.
        tokens = TokenWriter(masks_boundaries=form.masks_boundaries, padding=form.padding)
        made = [
            self._begun(parts, size, memory, tokens)
            for parts, size, memory in zip(batches, sizes, _allocated(self.memory, shapes), strict=True)
        ]
        longest = tokens.write()
        if "max_seqlen" in form.keys:
            at = 0
            for batch, parts in zip(made, batches, strict=True):
                arrays: dict[str, Any] = batch.arrays
                arrays["max_seqlen"] = max(longest[at : at + len(parts)])
                at += len(parts)
        return made

    def _size_of(self, parts: BatchParts) -> _BatchSize:
        form, width = self.form, self.length
        if form.multiple is not None:
            filled = np.concatenate([part.documents.filled[part.first : part.last] for part in parts])
            width = -(-int(filled.max()) // form.multiple) * form.multiple
        sizes = [part.sizes(None if form.multiple is None else width) for part in parts]
        return _BatchSize(width, sizes, *(sizes[0] if len(sizes) == 1 else map(sum, zip(*sizes, strict=True))))

    def _shapes(self, parts: BatchParts, size: _BatchSize) -> _Shapes:
        shapes: _Shapes = {}
        for name in self.form.keys:
            if name in _ROWS_OF_TOKENS:
                shapes[name] = (size.rows, size.width), _ROWS_OF_TOKENS[name]
            elif name != "max_seqlen":
                shapes[name] = (size.pieces if name == "seq_lens" else size.ends + 1,), _INT32
        for name, values in parts[0].documents.columns.items():
            shapes[name] = (size.rows, size.width, *values.shape[1:]), values.dtype
        return shapes

    def _begun(self, parts: BatchParts, size: _BatchSize, memory: _BatchMemory, tokens: TokenWriter) -> ProcessedBatch:
        """Return a batch whose tokens are not written yet, but added to `tokens`."""
        arrays, rows = memory.arrays, size.rows
        ids, labels, positions, numbers, lengths, bounds = map(arrays.get, _WRITTEN)
        written = [memory.addresses.get(name, 0) for name in _WRITTEN]
        if bounds is not None:
            bounds[0] = 0
            bounds, written[-1] = bounds[1:], written[-1] + _INT32.itemsize
        made = TokenRows(ids, labels, positions, numbers, lengths, bounds)  # type: ignore[arg-type]
        row = piece = end = 0
        for part, (own_rows, own_pieces, own_ends) in zip(parts, size.of_parts, strict=True):
            documents, chosen = part.documents, part.documents.pieces.between(part.first, part.last)
            is_whole = own_rows == rows
            out = made if is_whole else made.between(
                row, row + own_rows, slice(piece, piece + own_pieces), slice(end, end + own_ends)
            )  # fmt: skip
            tokens.add(
                documents.values, chosen, out, first_piece=piece, first_row=row, addresses=written if is_whole else ()
            )
            for name, values in documents.columns.items():
                write_column(values, chosen, arrays[name][row : row + own_rows])
            row, piece, end = row + own_rows, piece + own_pieces, end + own_ends
        for name in self.form.document_columns:
            carried = [
                part.documents.arrays[name][part.documents.document[part.documents.pieces.rows[part.first] :][:count]]
                for part, (_, count, _) in zip(parts, size.of_parts, strict=True)
            ]
            arrays[name] = _joined(carried)
        return ProcessedBatch(rows, arrays, memory.owners, memory.nbytes)


def _allocated(memory: Allocator, batches: Sequence[_Shapes]) -> list[_BatchMemory]:
    """Return the memory of several batches, all in one block; each array begins at a line of the CPU's cache."""
    begins: list[dict[str, int]] = []
    bounds = [0]
    for shapes in batches:
        own, at = {}, bounds[-1]
        for name, (shape, dtype) in shapes.items():
            own[name] = at
            at += -(-math.prod(shape) * dtype.itemsize // _LINE_BYTES) * _LINE_BYTES
        begins.append(own)
        bounds.append(at)
    block = memory.allocate(max(1, bounds[-1]))
    array, owner = block.array, block.owner
    first = array.ctypes.data
    found = []
    for shapes, own, (begin, end) in zip(batches, begins, pairwise(bounds), strict=True):
        arrays: dict[str, Any] = {name: np.ndarray(*shapes[name], array, at) for name, at in own.items()}
        owners = {} if owner is None else {name: owner[at : at + arrays[name].nbytes] for name, at in own.items()}
        found.append(_BatchMemory(arrays, {name: first + at for name, at in own.items()}, owners, end - begin))
    return found


def _joined(arrays: list[Any]) -> Any:
    if len(arrays) == 1:
        return arrays[0]
    return Ragged.cat(arrays) if isinstance(arrays[0], Ragged) else np.concatenate(arrays)
