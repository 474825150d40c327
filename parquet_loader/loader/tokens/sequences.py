"""Cuts packed windows into batches, and writes the sequences of a batch."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parquet_loader.collate import TOKEN_ROW_TYPES, TokenWriter, write_column
from parquet_loader.engine import ProcessedBatch
from parquet_loader.loader.tokens.documents import BatchForm, Documents
from parquet_loader.loader.tokens.epoch_packing import EpochPacking
from parquet_loader.schema import Ragged
from parquet_loader.window import Allocation, Allocator

_LINE_BYTES = 64
_INT32 = np.dtype(np.int32)
_ROWS_OF_TOKENS = dict(zip(("input_ids", "labels", "position_ids", "document_ids"), TOKEN_ROW_TYPES, strict=False))
_WRITTEN = {name: index for index, name in enumerate((*_ROWS_OF_TOKENS, "seq_lens", "cu_seqlens"))}  # of `TokenRows`


def token_bytes(keys: Collection[str]) -> int:
    """Return the most bytes of a position of a batch with these keys; each position may be a piece of its own."""
    return sum(_ROWS_OF_TOKENS.get(name, _INT32).itemsize for name in _WRITTEN if name in keys)


class SequenceRange(NamedTuple):
    """Rows ``first`` to ``last`` (exclusive) of a window; they are part of a batch.

    Attributes:
        documents: The window.
        first, last: The rows, counted in the window.
        pieces, ends: The number of pieces, and of pieces and paddings together if rows have the length of sequences.
    """

    documents: Documents
    first: int
    last: int
    pieces: int
    ends: int

    @property
    def own_documents(self) -> npt.NDArray[np.signedinteger[Any]]:
        """The document of each piece, ``[pieces]``."""
        first = int(self.documents.pieces.rows[self.first])
        return self.documents.document[first : first + self.pieces]

    @classmethod
    def of(cls, documents: Documents, first: int, last: int) -> SequenceRange:
        """Return rows of a window."""
        pieces, ends = documents.pieces.rows, documents.ends_before
        return cls(documents, first, last, int(pieces[last] - pieces[first]), int(ends[last] - ends[first]))


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
                    part = SequenceRange.of(documents, int(rows[low - begin]), int(rows[high - begin]))
                    self._parts.append((number, part))
            if ranges[-1][1] > end:
                break
            made.append([part for _, part in sorted(self._parts, key=lambda pair: pair[0])])
            self._parts = []
            self._next += 1
        return made


class _Array(NamedTuple):
    """An array of a batch.

    Attributes:
        name, shape, dtype: Those of the array.
        place: Where it begins in the memory of the batch.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    place: int


class _Layout(NamedTuple):
    """The size of a batch and of its arrays.

    Attributes:
        rows, width: Rows, and tokens of a row.
        ends: The pieces and paddings of each part.
        arrays: The arrays that are in memory of the batch.
        nbytes: Bytes of the memory.
    """

    rows: int
    width: int
    ends: list[int]
    arrays: list[_Array]
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
        layouts = list(map(self._layout, batches))
        # One block and one call of the kernel for all: each call waits for the GIL when it returns.
        block = self.memory.allocate(max(1, sum(layout.nbytes for layout in layouts)))
        writer = TokenWriter(block.array, masks_boundaries=form.masks_boundaries, padding=form.padding)
        made, begin = [], 0
        for parts, layout in zip(batches, layouts, strict=True):
            made.append(self._begun(parts, layout, block, begin, writer))
            begin += layout.nbytes
        longest = writer.write()
        if "max_seqlen" in form.keys:
            at = 0
            for batch, parts in zip(made, batches, strict=True):
                arrays: dict[str, Any] = batch.arrays
                arrays["max_seqlen"] = max(longest[at : at + len(parts)])
                at += len(parts)
        return made

    def _layout(self, parts: BatchParts) -> _Layout:
        form, width = self.form, self.length
        rows = pieces = 0
        for part in parts:
            rows += part.last - part.first
            pieces += part.pieces
        if form.multiple is None:
            ends = [part.ends for part in parts]
        else:
            filled = [part.documents.filled[part.first : part.last] for part in parts]
            width = -(-max(int(of_part.max()) for of_part in filled) // form.multiple) * form.multiple
            ends = [part.pieces + int(np.count_nonzero(f < width)) for part, f in zip(parts, filled, strict=True)]
        arrays, at = list[_Array](), 0

        def add(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
            nonlocal at
            arrays.append(_Array(name, shape, dtype, at))
            at += -(-math.prod(shape) * dtype.itemsize // _LINE_BYTES) * _LINE_BYTES

        for name in form.keys:
            if name in _ROWS_OF_TOKENS:
                add(name, (rows, width), _ROWS_OF_TOKENS[name])
            elif name != "max_seqlen":
                add(name, (pieces if name == "seq_lens" else sum(ends) + 1,), _INT32)
        for name, values in parts[0].documents.columns.items():
            add(name, (rows, width, *values.shape[1:]), values.dtype)
        return _Layout(rows, width, ends, arrays, at)

    def _begun(
        self, parts: BatchParts, layout: _Layout, block: Allocation, begin: int, writer: TokenWriter
    ) -> ProcessedBatch:
        """Return a batch whose tokens are not written yet, but added to `writer`; its memory begins at `begin`."""
        rows, width, ends, laid_out, nbytes = layout
        arrays: dict[str, Any] = {}
        owners: dict[str, Any] = {}
        places: list[int | None] = [None] * len(_WRITTEN)
        for name, shape, dtype, place in laid_out:
            arrays[name] = array = np.ndarray(shape, dtype, block.array, begin + place)
            if name in _WRITTEN:
                places[_WRITTEN[name]] = begin + place
            if block.owner is not None:
                owners[name] = block.owner[begin + place : begin + place + array.nbytes]
        if "cu_seqlens" in arrays:
            arrays["cu_seqlens"][0] = 0
        row = piece = 0
        end = 1  # of `cu_seqlens`, which has one element more
        for part, own_ends in zip(parts, ends, strict=True):
            documents, first, last, pieces, _ = part
            before = *[row * width] * len(_ROWS_OF_TOKENS), piece, end
            own_places = [
                None if place is None else place + at * dtype.itemsize
                for place, at, dtype in zip(places, before, TOKEN_ROW_TYPES, strict=True)
            ]
            writer.add(documents.tokens, first, last, width, own_places, first_piece=piece, first_row=row)
            for name, values in documents.columns.items():
                write_column(values, documents.pieces.between(first, last), arrays[name][row : row + last - first])
            row, piece, end = row + last - first, piece + pieces, end + own_ends
        for name in self.form.document_columns:
            arrays[name] = _joined([part.documents.arrays[name][part.own_documents] for part in parts])
        return ProcessedBatch(rows, arrays, owners, nbytes)


def _joined(arrays: list[Any]) -> Any:
    if len(arrays) == 1:
        return arrays[0]
    return Ragged.cat(arrays) if isinstance(arrays[0], Ragged) else np.concatenate(arrays)
