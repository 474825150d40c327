"""Cuts packed windows into batches, and writes the sequences of a batch."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parquet_loader.collate import TOKEN_ROW_TYPES, TokenLine, WindowTokens, write_column, write_token_rows
from parquet_loader.common import IntArray
from parquet_loader.engine import ProcessedBatch
from parquet_loader.loader.tokens.documents import BatchForm, Documents
from parquet_loader.loader.tokens.epoch_packing import EpochPacking
from parquet_loader.schema import Ragged
from parquet_loader.window import Allocator, nbytes_of

_LINE_BYTES = 64  # of a cache line: each array begins at a multiple
_INT32 = np.dtype(np.int32)
_ROWS_OF_TOKENS = dict(zip(("input_ids", "labels", "position_ids", "document_ids"), TOKEN_ROW_TYPES, strict=False))
_WRITTEN = (*_ROWS_OF_TOKENS, "seq_lens", "cu_seqlens")  # the fields of `TokenRows`


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
    def own_documents(self) -> npt.NDArray[np.int32]:
        """The document of each piece, ``[pieces]``."""
        first = int(self.documents.pieces.rows[self.first])
        return self.documents.document[first : first + self.pieces]

    @classmethod
    def between(cls, documents: Documents, bounds: IntArray) -> Iterator[SequenceRange]:
        """Yield consecutive ranges of a window.

        Args:
            documents: The window.
            bounds: int64 ``[ranges + 1]``: the first sequence of each, and the end of the last.
        """
        rows = documents.rows_before[bounds]
        pieces, ends = np.diff(documents.pieces.rows[rows]), np.diff(documents.ends_before[rows])
        rows, pieces, ends = rows.tolist(), pieces.tolist(), ends.tolist()
        return map(cls, repeat(documents), rows, rows[1:], pieces, ends)


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
        begin, end = documents.first, documents.first + len(documents.rows_before) - 1
        made: list[BatchParts] = []
        while self._next < self._packing.steps:
            whole = self._packing.consecutive(self._next, end)
            if len(whole) > 1 and not self._parts:
                made.extend([part] for part in SequenceRange.between(documents, whole - begin))
                self._next += len(whole) - 1
                continue
            ranges = self._packing.ranges_of(self._next)
            for number, (first, last) in enumerate(ranges):
                low, high = max(first, begin), min(last, end)
                if low < high:
                    (part,) = SequenceRange.between(documents, np.array([low - begin, high - begin]))
                    self._parts.append((number, part))
            if ranges[-1][1] > end:
                break
            made.append([part for _, part in sorted(self._parts, key=lambda pair: pair[0])])
            self._parts = []
            self._next += 1
        return made


class _Arrays(NamedTuple):
    """The arrays of one key, one for each batch of a block, in which they follow each other.

    Attributes:
        dtype: The dtype of all of them.
        shapes: The shape of each.
        begins: The byte offset of each in the block.
    """

    dtype: np.dtype[Any]
    shapes: Sequence[tuple[int, ...]]
    begins: Sequence[int]

    def of_block(self, block: npt.NDArray[np.uint8]) -> list[npt.NDArray[Any]]:
        """Return the arrays."""
        dtype, shapes, begins = self
        # Arrays of one shape are equally far apart, and cut in one call, in a tenth of the time.
        if len(begins) > 1 and shapes.count(shapes[0]) == len(shapes):
            strides = np.ndarray(shapes[0], dtype, block, begins[0]).strides
            shape, distance = (len(begins), *shapes[0]), begins[1] - begins[0]
            return list(np.ndarray(shape, dtype, block, begins[0], (distance, *strides)))
        return [np.ndarray(shape, dtype, block, begin) for shape, begin in zip(shapes, begins, strict=True)]


@dataclass(frozen=True, slots=True)
class BatchWriter:
    """Writes batches; immutable, any thread may use it.

    Attributes:
        form: The columns and keys of a batch.
        length: Tokens of a sequence.
        memory: Provides the memory of batches.
        batch_bytes: The most bytes of a batch, without columns of documents.
        at_once: The most batches that are written at once.
    """

    form: BatchForm
    length: int
    memory: Allocator
    batch_bytes: int
    at_once: int = 1

    def __call__(self, batches: Sequence[BatchParts]) -> list[ProcessedBatch]:
        """Return the batches of these sequences, in one block of memory."""
        shapes, pieces, ends = zip(*map(self._sizes, batches), strict=True)
        laid_out, nbytes = self._laid_out(shapes, pieces, ends, batches[0][0].documents)
        # One block and one call of the kernel for all: each call waits for the GIL when it returns.
        block = self.memory.allocate(self._block_bytes(len(batches), nbytes))
        longest = iter(self._write_keys(block.array, batches, shapes, ends, laid_out))
        by_name = {name: arrays.of_block(block.array) for name, arrays in laid_out.items()}
        for offsets in by_name.get("cu_seqlens", ()):
            offsets[0] = 0
        made = list[ProcessedBatch]()
        for number, parts in enumerate(batches):
            arrays: dict[str, Any] = {name: of_batches[number] for name, of_batches in by_name.items()}
            owners: dict[str, Any] = {}
            if block.owner is not None:
                begins = {name: laid_out[name].begins[number] for name in arrays}
                owners = {name: block.owner[begins[name] : begins[name] + a.nbytes] for name, a in arrays.items()}
            if self.form.token_columns or self.form.document_columns:
                self._add_columns(parts, arrays)
            if "max_seqlen" in self.form.keys:
                arrays["max_seqlen"] = max(islice(longest, len(parts)))
            carried_bytes = sum(nbytes_of(arrays[name]) for name in self.form.document_columns)
            made.append(ProcessedBatch(shapes[number][0], arrays, owners, nbytes // len(batches) + carried_bytes))
        return made

    def _write_keys(
        self,
        memory: npt.NDArray[np.uint8],
        batches: Sequence[BatchParts],
        shapes: Sequence[tuple[int, int]],
        ends: Sequence[list[int]],
        laid_out: Mapping[str, _Arrays],
    ) -> list[int]:
        """Write the keys of batches to their block; return the longest piece or padding of each part of each batch."""
        lines = list[tuple[WindowTokens, TokenLine]]()
        for parts, (_, width), own_ends, offsets in zip(
            batches, shapes, ends, _offsets(laid_out, len(batches)), strict=True
        ):
            lines.append((parts[0].documents.tokens, TokenLine(parts[0].first, parts[0].last, width, 0, 0, *offsets)))
            if len(parts) > 1:
                lines += _further_lines(parts, width, own_ends, offsets)
        masks, padding = self.form.masks_boundaries, self.form.padding
        return write_token_rows(memory, lines, masks_boundaries=masks, padding=padding)

    def _block_bytes(self, batches: int, nbytes: int) -> int:
        """Return the bytes of the block for some batches: mostly the same, so that blocks are reused."""
        if self.form.multiple is not None:  # batches may be much smaller than the largest
            return max(1, nbytes)
        # Jobs have nearly `at_once` batches, because they divide those of a window evenly. A block of `at_once` batches
        # takes at most a third more than they need.
        most = self.at_once if 4 * batches >= 3 * self.at_once else batches
        return max(nbytes, most * self.batch_bytes)

    def _sizes(self, parts: BatchParts) -> tuple[tuple[int, int], int, list[int]]:
        """Return the rows of a batch and their width, the pieces, and the pieces and paddings of each part."""
        multiple, width = self.form.multiple, self.length
        if len(parts) == 1 and multiple is None:
            _, first, last, pieces, ends = parts[0]
            return (last - first, width), pieces, [ends]
        if multiple is None:
            of_parts = [part.ends for part in parts]
        else:
            filled = [part.documents.filled[part.first : part.last] for part in parts]
            width = -(-max(int(of_part.max()) for of_part in filled) // multiple) * multiple
            of_parts = [part.pieces + int(np.count_nonzero(f < width)) for part, f in zip(parts, filled, strict=True)]
        return (sum(part.last - part.first for part in parts), width), sum(part.pieces for part in parts), of_parts

    def _laid_out(
        self, rows: Sequence[tuple[int, int]], pieces: Sequence[int], ends: Sequence[list[int]], documents: Documents
    ) -> tuple[dict[str, _Arrays], int]:
        """Return the arrays of batches that are in their block, by name, and the bytes of the block."""
        laid_out, at = dict[str, _Arrays](), 0
        for name in self.form.keys:
            if name in _ROWS_OF_TOKENS:
                laid_out[name], at = _placed(at, _ROWS_OF_TOKENS[name], rows)
            elif name == "seq_lens":
                laid_out[name], at = _placed(at, _INT32, [(count,) for count in pieces])
            elif name == "cu_seqlens":
                laid_out[name], at = _placed(at, _INT32, [(sum(of_parts) + 1,) for of_parts in ends])
        for name, values in documents.columns.items():
            laid_out[name], at = _placed(at, values.dtype, [(*shape, *values.shape[1:]) for shape in rows])
        return laid_out, at

    def _add_columns(self, parts: BatchParts, arrays: dict[str, Any]) -> None:
        """Write the columns with a value for each token, and add those with a value for each document."""
        row = 0
        for documents, first, last, _, _ in parts:
            for name, values in documents.columns.items():
                write_column(values, documents.pieces.between(first, last), arrays[name][row : row + last - first])
            row += last - first
        for name in self.form.document_columns:
            arrays[name] = _joined([part.documents.arrays[name][part.own_documents] for part in parts])


def _placed(at: int, dtype: np.dtype[Any], shapes: Sequence[tuple[int, ...]]) -> tuple[_Arrays, int]:
    """Return arrays that follow each other in a block from `at` on, and where they end."""
    sizes = [-(-math.prod(shape) * dtype.itemsize // _LINE_BYTES) * _LINE_BYTES for shape in shapes]
    *begins, end = accumulate(sizes, initial=at)
    return _Arrays(dtype, shapes, begins), end


def _offsets(laid_out: Mapping[str, _Arrays], batches: int) -> Iterator[tuple[int, ...]]:
    """Yield the byte offsets at which the kernel writes the arrays of each batch; see `TokenLine`."""
    missing = [-1] * batches
    offsets = [laid_out[name].begins if name in laid_out else missing for name in _WRITTEN]
    if "cu_seqlens" in laid_out:  # after the first element, which is 0
        offsets[-1] = [begin + _INT32.itemsize for begin in offsets[-1]]
    return zip(*offsets, strict=True)


def _further_lines(
    parts: BatchParts, width: int, ends: Sequence[int], offsets: Sequence[int]
) -> Iterator[tuple[WindowTokens, TokenLine]]:
    """Yield the lines of all parts of a batch but the first; `offsets` are those of the first."""
    row = piece = end = 0
    for before, part, own_ends in zip(parts, parts[1:], ends, strict=False):
        row, piece, end = row + before.last - before.first, piece + before.pieces, end + own_ends
        passed = *[row * width] * len(_ROWS_OF_TOKENS), piece, end
        own_offsets = [
            offset if offset < 0 else offset + count * dtype.itemsize
            for offset, count, dtype in zip(offsets, passed, TOKEN_ROW_TYPES, strict=True)
        ]
        yield part.documents.tokens, TokenLine(part.first, part.last, width, piece, row, *own_offsets)


def _joined(arrays: list[Any]) -> Any:
    if len(arrays) == 1:
        return arrays[0]
    return Ragged.cat(arrays) if isinstance(arrays[0], Ragged) else np.concatenate(arrays)
