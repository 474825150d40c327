"""Cuts packed windows into batches, and writes the sequences of a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from parquet_loader.collate import TokenRows, write_column, write_tokens
from parquet_loader.engine import ProcessedBatch
from parquet_loader.loader.tokens.documents import BatchForm, Documents
from parquet_loader.loader.tokens.epoch_packing import EpochPacking
from parquet_loader.schema import Ragged
from parquet_loader.window import Allocator

_LINE_BYTES = 64
_INT32 = np.dtype(np.int32)
TOKEN_BYTES = 32
"""Bytes of a position of a batch without carried columns: 24, and up to 8 for the lengths and ends of pieces."""
_ROWS_OF_TOKENS: dict[str, Any] = {
    "input_ids": np.dtype(np.int64),
    "labels": np.dtype(np.int64),
    "position_ids": np.dtype(np.int32),
    "document_ids": np.dtype(np.int32),
}
_WRITTEN = (*_ROWS_OF_TOKENS, "seq_lens", "cu_seqlens")  # as `TokenRows`


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

    def __call__(self, parts: BatchParts) -> ProcessedBatch:
        """Return the batch of these sequences."""
        form, width = self.form, self.length
        if form.multiple is not None:
            filled = np.concatenate([part.documents.filled[part.first : part.last] for part in parts])
            width = -(-int(filled.max()) // form.multiple) * form.multiple
        sizes = [part.sizes(None if form.multiple is None else width) for part in parts]
        rows, pieces, ends = sizes[0] if len(sizes) == 1 else map(sum, zip(*sizes, strict=True))
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {}
        for name in form.keys:
            if name in _ROWS_OF_TOKENS:
                shapes[name] = (rows, width), _ROWS_OF_TOKENS[name]
            elif name != "max_seqlen":
                shapes[name] = (pieces if name == "seq_lens" else ends + 1,), _INT32
        for name, values in parts[0].documents.columns.items():
            shapes[name] = (rows, width, *values.shape[1:]), values.dtype
        arrays, addresses, owners, nbytes = _allocated(self.memory, shapes)
        made = TokenRows(*map(arrays.get, _WRITTEN))  # type: ignore[arg-type]
        written = [addresses.get(name, 0) for name in _WRITTEN]
        if made.ends is not None:
            made.ends[0] = 0
            made, written[-1] = made._replace(ends=made.ends[1:]), written[-1] + _INT32.itemsize
        row = piece = end = longest = 0
        for part, (own_rows, own_pieces, own_ends) in zip(parts, sizes, strict=True):
            documents, chosen = part.documents, part.documents.pieces.between(part.first, part.last)
            is_whole = own_rows == rows
            out = made if is_whole else made.between(
                row, row + own_rows, slice(piece, piece + own_pieces), slice(end, end + own_ends)
            )  # fmt: skip
            found = write_tokens(
                documents.values, chosen, out, first_piece=piece, first_row=row,
                masks_boundaries=form.masks_boundaries, padding=form.padding, addresses=written if is_whole else (),
            )  # fmt: skip
            longest = max(longest, found)
            for name, values in documents.columns.items():
                write_column(values, chosen, arrays[name][row : row + own_rows])
            row, piece, end = row + own_rows, piece + own_pieces, end + own_ends
        for name in form.document_columns:
            carried = [
                part.documents.arrays[name][part.documents.document[part.documents.pieces.rows[part.first] :][:count]]
                for part, (_, count, _) in zip(parts, sizes, strict=True)
            ]
            arrays[name] = _joined(carried)
        if "max_seqlen" in form.keys:
            arrays["max_seqlen"] = longest
        return ProcessedBatch(rows, arrays, owners, nbytes)


def _allocated(
    memory: Allocator, shapes: Mapping[str, tuple[tuple[int, ...], Any]]
) -> tuple[dict[str, Any], dict[str, int], dict[str, Any], int]:
    """Return arrays in one block of memory, their addresses, the owners of the memory by name, and its bytes."""
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in shapes.values()]
    begins = list(accumulate((-(-size // _LINE_BYTES) * _LINE_BYTES for size in sizes), initial=0))
    block = memory.allocate(max(1, begins[-1]))
    first: int = block.array.__array_interface__["data"][0]
    arrays: dict[str, Any] = {}
    owners: dict[str, Any] = {}
    for (name, (shape, dtype)), begin, size in zip(shapes.items(), begins, sizes, strict=False):
        arrays[name] = np.ndarray(shape, dtype, block.array, begin)
        if block.owner is not None:
            owners[name] = block.owner[begin : begin + size]
    return arrays, {name: first + begin for name, begin in zip(shapes, begins, strict=False)}, owners, begins[-1]


def _joined(arrays: list[Any]) -> Any:
    if len(arrays) == 1:
        return arrays[0]
    return Ragged.cat(arrays) if isinstance(arrays[0], Ragged) else np.concatenate(arrays)
