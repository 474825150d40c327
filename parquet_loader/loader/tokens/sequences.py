"""Cuts packed windows into batches, and writes the sequences of a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from parquet_loader.collate import TokenRows, write_column, write_tokens
from parquet_loader.engine import ProcessedBatch
from parquet_loader.loader.tokens.documents import BatchForm, Documents, ends_of
from parquet_loader.loader.tokens.epoch_packing import EpochPacking
from parquet_loader.schema import Ragged
from parquet_loader.window import Allocator

_LINE_BYTES = 64
_INT32 = np.dtype(np.int32)
TOKEN_BYTES = 32
"""Bytes of a position of a batch, carried columns apart: 24, and up to 8 for the lengths and ends of pieces."""
_ROWS_OF_TOKENS: dict[str, Any] = {
    "input_ids": np.dtype(np.int64),
    "labels": np.dtype(np.int64),
    "position_ids": np.dtype(np.int32),
    "document_ids": np.dtype(np.int32),
}


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


BatchParts = list[SequenceRange]
"""The sequences of one batch."""


class BatchCutter:
    """Divides the windows of an epoch into batches; used in the order of windows, by one thread at a time.

    A batch of several windows keeps the documents of the first ones until it is complete.

    Args:
        packing: The epoch.
        first_batch: The first batch that is made.
    """

    def __init__(self, packing: EpochPacking, first_batch: int) -> None:
        self._packing = packing
        self._next = first_batch
        self._parts: list[tuple[int, SequenceRange]] = []

    @property
    def waiting(self) -> set[int]:
        """The numbers of the windows that the batch which is not complete needs."""
        return {part.documents.number for _, part in self._parts}

    def add(self, documents: Documents) -> list[BatchParts]:
        """Add the next window; return the batches that it completes."""
        rows = documents.rows_before
        begin, end = documents.first, documents.first + len(rows) - 1
        made = []
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


@dataclass(frozen=True, slots=True)
class BatchWriter:
    """Writes batches; immutable, any thread may use it.

    Attributes:
        form: What a batch holds.
        length: Tokens of a sequence.
        memory: Provides the memory of batches.
    """

    form: BatchForm
    length: int
    memory: Allocator

    def __call__(self, parts: BatchParts) -> ProcessedBatch:
        """Return the batch of these sequences."""
        form, width = self.form, self.length
        rows = sum(part.last - part.first for part in parts)
        chosen = [part.documents.pieces.between(part.first, part.last) for part in parts]
        tokens = [pieces.tokens[pieces.chosen] for pieces in chosen]
        seq_lens = _joined(tokens)
        if form.multiple is not None:
            filled = np.concatenate([part.documents.filled[part.first : part.last] for part in parts])
            width = -(-int(filled.max()) // form.multiple) * form.multiple
            counts = np.concatenate([np.diff(pieces.rows) for pieces in chosen])
            ends, _ = ends_of(seq_lens, np.concatenate([[0], np.cumsum(counts)]), width - filled)
        else:
            ends = _ends_in_batch(parts, width)
        small = {"seq_lens": seq_lens, "cu_seqlens": ends}
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {}
        for name in form.keys:
            if name in _ROWS_OF_TOKENS:
                shapes[name] = (rows, width), _ROWS_OF_TOKENS[name]
            elif name in small:
                shapes[name] = (len(small[name]),), _INT32
        for name, values in parts[0].documents.columns.items():
            shapes[name] = (rows, width, *values.shape[1:]), values.dtype
        arrays, owners, nbytes = _allocated(self.memory, shapes)
        for name, numbers in small.items():
            if name in arrays:
                arrays[name][...] = numbers
        made = TokenRows(*map(arrays.get, _ROWS_OF_TOKENS))  # type: ignore[arg-type]
        row = piece = 0
        for part, pieces, own in zip(parts, chosen, tokens, strict=True):
            count, documents = part.last - part.first, part.documents
            write_tokens(
                documents.values, pieces, made if count == rows else made.between(row, row + count), first_piece=piece,
                masks_boundaries=form.masks_boundaries, padding=form.padding,
            )  # fmt: skip
            for name, values in documents.columns.items():
                write_column(values, pieces, arrays[name][row : row + count])
            row, piece = row + count, piece + len(own)
        for name in form.document_columns:
            carried = [
                part.documents.arrays[name][part.documents.document[pieces.chosen]]
                for part, pieces in zip(parts, chosen, strict=True)
            ]
            arrays[name] = _joined(carried)
        if "max_seqlen" in form.keys:
            arrays["max_seqlen"] = int(np.diff(ends).max())
        return ProcessedBatch(rows, arrays, owners, nbytes)


def _ends_in_batch(parts: BatchParts, width: int) -> Any:
    """Return where pieces and paddings begin and end in the flattened rows of a batch of full width."""
    found, row = [np.zeros(1, np.int64)], 0
    for part in parts:
        before, ends = part.documents.ends_before, part.documents.ends
        own = ends[before[part.first] + 1 : before[part.last] + 1]
        found.append(own + (row - part.first) * width)
        row += part.last - part.first
    return np.concatenate(found)


def _allocated(
    memory: Allocator, shapes: Mapping[str, tuple[tuple[int, ...], Any]]
) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Return arrays in one block of memory, the owners of the memory by name, and the bytes of the block."""
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in shapes.values()]
    begins = list(accumulate((-(-size // _LINE_BYTES) * _LINE_BYTES for size in sizes), initial=0))
    block = memory.allocate(max(1, begins[-1]))
    arrays: dict[str, Any] = {}
    owners: dict[str, Any] = {}
    for (name, (shape, dtype)), begin, size in zip(shapes.items(), begins, sizes, strict=False):
        arrays[name] = np.ndarray(shape, dtype, block.array, begin)
        if block.owner is not None:
            owners[name] = block.owner[begin : begin + size]
    return arrays, owners, begins[-1]


def _joined(arrays: list[Any]) -> Any:
    if len(arrays) == 1:
        return arrays[0]
    return Ragged.cat(arrays) if isinstance(arrays[0], Ragged) else np.concatenate(arrays)
