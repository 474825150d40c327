"""Turns windows of documents into batches of packed sequences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from parquet_loader.collate import TOKEN_TYPES, Batch, Output, Pieces, TokenRows, write_column, write_tokens
from parquet_loader.common import IntArray
from parquet_loader.engine import ProcessedBatch
from parquet_loader.errors import DataError
from parquet_loader.loader.tokens.epoch_packing import EpochPacking
from parquet_loader.plan import Packed
from parquet_loader.schema import Ragged
from parquet_loader.source import Snapshot
from parquet_loader.window import Allocation, Allocator, Window

_LINE_BYTES = 64

BATCH_KEYS = (
    "input_ids", "labels", "position_ids", "document_ids", "seq_lens", "cu_seqlens", "max_seqlen",
)  # fmt: skip
"""The names that every batch has."""


@dataclass(frozen=True, slots=True)
class BatchForm:
    """What a batch holds.

    Attributes:
        tokens: The column of token ids.
        lengths: The column that holds their numbers; None: none is named.
        boundaries: The column of the first tokens of the documents in a row; None: a row is a document.
        token_columns: Columns with a value for each token.
        document_columns: Columns with a value for each document.
        masks_boundaries: Whether labels do not cross from one document to the next.
        padding: The token after the last one of a sequence.
        multiple: Sequences of a batch are as wide as the longest, rounded up to this; None: `length`.
    """

    tokens: str
    lengths: str | None
    boundaries: str | None
    token_columns: tuple[str, ...]
    document_columns: tuple[str, ...]
    masks_boundaries: bool
    padding: int
    multiple: int | None


@dataclass(frozen=True, slots=True)
class _Documents:
    """The documents of one window.

    Attributes:
        values: Their tokens.
        columns: Values for each token, aligned with `values`, by name.
        arrays: Values for each document, by name.
        document: int64 ``[pieces]``: the document of each piece.
        pieces: The pieces of all sequences of the window.
    """

    values: npt.NDArray[Any]
    columns: dict[str, npt.NDArray[Any]]
    arrays: dict[str, Any]
    document: IntArray
    pieces: Pieces


class PackedOutput:
    """The output of one epoch of a `TokenLoader`. See `Output`; used by the caller's thread.

    A batch that needs sequences of two windows keeps the first one's memory until it is made.

    Args:
        packing: The epoch.
        first_batch: The first batch that is delivered.
        form: What a batch holds.
        output: Makes tensors or arrays.
        memory: Provides the memory of batches.
        snapshot: Names the rows of an error.
    """

    def __init__(
        self,
        packing: EpochPacking,
        first_batch: int,
        form: BatchForm,
        output: Output,
        memory: Allocator,
        snapshot: Snapshot,
    ) -> None:
        self._packing = packing
        self._form = form
        self._output = output
        self._memory = memory
        self._snapshot = snapshot
        self._next = packing.begin_of(first_batch)
        self._window = packing.window_of(self._next)
        self._parts: list[tuple[_Documents, Pieces]] = []
        self._rows = 0

    def masked(self, masks: Mapping[str, str]) -> Output:  # noqa: ARG002
        """Return this output: masks are columns."""
        return self

    def allocator(self, keep_bytes: int) -> Allocator:
        """Return the allocator of windows, which are in ordinary memory."""
        return self._output.allocator(keep_bytes)

    def from_batch(self, batch: ProcessedBatch, copied_to: Allocator | None) -> Batch:
        """Return a batch of documents, unpacked; not used, because nothing processes documents."""
        return self._output.from_batch(batch, copied_to)

    def delivered(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches on the device that the caller chose."""
        return self._output.delivered(batches)

    def from_window(self, window: Window, batch_size: int, copied_to: Allocator | None) -> Iterator[Batch]:  # noqa: ARG002
        """Yield the batches that a window completes; at the end of the epoch also the last one."""
        packing, number = self._packing, self._window
        self._window += 1
        documents = self._documents(window, number)
        del window
        at, end = self._next - int(packing.begins[number]), min(packing.stop, int(packing.begins[number + 1]))
        last = end - int(packing.begins[number])
        while at < last:
            some = min(batch_size - self._rows, last - at)
            self._parts.append((documents, documents.pieces.between(at, at + some)))
            at, self._rows, self._next = at + some, self._rows + some, self._next + some
            if self._rows == batch_size or self._next == packing.stop:
                yield self._batch()

    def _documents(self, window: Window, number: int) -> _Documents:
        """Pack a window.

        Raises:
            DataError: its documents do not have the lengths of the plan, or columns are not aligned.
        """
        form = self._form
        values, offsets = _lists(window.arrays[form.tokens])
        lengths = np.diff(offsets)
        expected = self._packing.ordered_lengths(number)
        if not np.array_equal(lengths, expected):
            self._refuse_lengths(number, lengths, expected)
        if values.dtype not in TOKEN_TYPES:
            values = values.astype(np.int64)
        columns = {}
        for name in form.token_columns:
            columns[name], ends = _lists(window.arrays[name])
            self._check_aligned(name, number, offsets, ends)
        packed = self._packing.packed(number, expected)
        pieces, document = _pieces_of(packed, offsets)
        if form.boundaries is not None:
            cuts = self._cuts(window.arrays[form.boundaries], number, offsets)
            pieces, document = _cut(pieces, document, cuts)
        arrays = {name: window.arrays[name] for name in form.document_columns}
        return _Documents(np.ascontiguousarray(values), columns, arrays, document, pieces)

    def _refuse_lengths(self, window: int, found: IntArray, expected: npt.NDArray[Any]) -> None:
        form = self._form
        if len(found) != len(expected):
            raise DataError(
                f"epoch {self._packing.plan.epoch}, window {window}: {len(found)} documents were read, expected "
                f"{len(expected)}"
            )
        row = int(np.flatnonzero(found != expected)[0])
        column = f"column {form.lengths!r} says" if form.lengths is not None else "when lengths were read there were"
        raise DataError(
            f"{self._named(window, row)}: {column} {expected[row]} tokens, column {form.tokens!r} has {found[row]}; "
            f"{'correct it, or leave lengths= out' if form.lengths is not None else 'make the loader again'}"
        )

    def _check_aligned(self, name: str, window: int, offsets: IntArray, ends: IntArray) -> None:
        if not np.array_equal(offsets, ends):
            row = int(np.flatnonzero(np.diff(offsets) != np.diff(ends))[0])
            raise DataError(
                f"{self._named(window, row)}: column {name!r} has {ends[row + 1] - ends[row]} values for "
                f"{offsets[row + 1] - offsets[row]} tokens; a list in carry= has a value for each token"
            )

    def _cuts(self, array: Any, window: int, offsets: IntArray) -> IntArray:
        """Return where documents begin in the tokens of a window, int64 ``[n]``, sorted.

        Raises:
            DataError: the first tokens of a row's documents do not rise from 0.
        """
        firsts, ends = _lists(array)
        counts = np.diff(ends)
        row = np.repeat(np.arange(len(counts)), counts)
        first = firsts.astype(np.int64)
        is_wrong = (first < 0) | (first > np.diff(offsets)[row])
        is_wrong[1:] |= (row[1:] == row[:-1]) & (first[1:] < first[:-1])
        if is_wrong.any():
            at = int(np.flatnonzero(is_wrong)[0])
            raise DataError(
                f"{self._named(window, int(row[at]))}: column {self._form.boundaries!r} has "
                f"{firsts[ends[row[at]] : ends[row[at] + 1]].tolist()!r:.80}; expected rising numbers from 0 to the "
                "number of tokens"
            )
        return np.unique(first + offsets[row])

    def _named(self, window: int, row: int) -> str:
        """Return the file and row group of a window's row."""
        plan = self._packing.plan
        order = plan.order(window)
        read = row if order is None else int(order[row])
        for part in plan.slices(window):
            if read < part.rows:
                group = self._snapshot.row_group(part.row_group)
                return f"{group.file.name}, row group {group.number}, row {part.start + read} of those that pass"
            read -= part.rows
        raise AssertionError("a window's row is in one of its slices")

    def _batch(self) -> Batch:
        """Make a batch of the parts, and forget them."""
        form, parts, rows = self._form, self._parts, self._rows
        self._parts, self._rows = [], 0
        chosen = [(d, p, p.chosen) for d, p in parts]
        tokens = np.concatenate([p.tokens[c] for _, p, c in chosen])
        counts = np.concatenate([np.diff(p.rows) for _, p, _ in chosen])
        row_begins = np.zeros(rows + 1, np.int64)
        np.cumsum(counts, out=row_begins[1:])
        in_rows = np.add.reduceat(tokens, row_begins[:-1], dtype=np.int64)
        width = self._packing.rule.length
        if form.multiple is not None:
            width = -(-int(in_rows.max()) // form.multiple) * form.multiple
        ends = _sequence_ends(tokens, row_begins, width - in_rows)
        first = parts[0][0]
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            "input_ids": ((rows, width), np.int64),
            "labels": ((rows, width), np.int64),
            "position_ids": ((rows, width), np.int32),
            "document_ids": ((rows, width), np.int32),
            "seq_lens": ((len(tokens),), np.int32),
            "cu_seqlens": ((len(ends),), np.int32),
            **{name: ((rows, width, *v.shape[1:]), v.dtype) for name, v in first.columns.items()},
        }
        arrays, owners = self._allocated(shapes)
        arrays["seq_lens"][...], arrays["cu_seqlens"][...] = tokens, ends
        made = TokenRows(*map(arrays.__getitem__, BATCH_KEYS[:4]))
        row = piece = 0
        for documents, pieces, some in chosen:
            count = len(pieces.rows) - 1
            target = made.between(row, row + count)
            write_tokens(
                documents.values, pieces, target, first_piece=piece, masks_boundaries=form.masks_boundaries,
                padding=form.padding,
            )  # fmt: skip
            for name, values in documents.columns.items():
                write_column(values, pieces, arrays[name][row : row + count])
            row, piece = row + count, piece + some.stop - some.start
        for name in form.document_columns:
            arrays[name] = _joined([d.arrays[name][d.document[c]] for d, _, c in chosen])
        batch = self._output.from_batch(ProcessedBatch(rows, arrays, owners, 0), None)
        batch["max_seqlen"] = int(np.diff(ends).max())
        return batch

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


def _lists(array: Any) -> tuple[npt.NDArray[Any], IntArray]:
    """Return the values of lists end to end, and offsets from 0; also if lists of one length are a matrix."""
    if not isinstance(array, Ragged):
        rows, width = array.shape[:2]
        return array.reshape(-1, *array.shape[2:]), np.arange(rows + 1) * width
    offsets = array.offsets
    return array.values[offsets[0] : offsets[-1]], offsets - offsets[0]


def _pieces_of(packed: Packed, offsets: IntArray) -> tuple[Pieces, IntArray]:
    document = packed.document.astype(np.int64)
    pieces = Pieces(offsets[document] + packed.first, offsets[document + 1], packed.tokens, packed.begins)
    return pieces, document


def _cut(pieces: Pieces, document: IntArray, cuts: IntArray) -> tuple[Pieces, IntArray]:
    """Cut pieces where documents begin.

    Args:
        pieces: Pieces of rows.
        document: int64 ``[pieces]``: the row of each.
        cuts: int64 ``[n]``, sorted: where documents begin in the values.
    """
    end = pieces.begin + pieces.tokens
    low, high = np.searchsorted(cuts, pieces.begin, side="right"), np.searchsorted(cuts, end, side="left")
    counts = high - low + 1
    before = np.cumsum(counts) - counts
    of_piece = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(of_piece)) - before[of_piece]
    begin = np.where(number == 0, pieces.begin[of_piece], cuts[np.maximum(low[of_piece] + number - 1, 0)])
    following = low[of_piece] + number
    bounded = np.append(cuts, np.iinfo(np.int64).max)[following]
    stop = np.minimum(bounded, pieces.stop[of_piece])
    tokens = (np.minimum(stop, end[of_piece]) - begin).astype(np.int32)
    rows = np.append(before, len(of_piece))[pieces.rows]
    return Pieces(begin, stop, tokens, rows), document[of_piece]


def _sequence_ends(tokens: npt.NDArray[Any], row_begins: IntArray, padding: IntArray) -> IntArray:
    """Return where pieces begin and end in the flattened rows, with the padding of a row as a piece of its own."""
    lengths = np.insert(tokens.astype(np.int64), row_begins[1:], padding)
    return np.concatenate([[0], np.cumsum(lengths[lengths > 0])])


def _joined(arrays: list[Any]) -> Any:
    if len(arrays) == 1:
        return arrays[0]
    return Ragged.cat(arrays) if isinstance(arrays[0], Ragged) else np.concatenate(arrays)
