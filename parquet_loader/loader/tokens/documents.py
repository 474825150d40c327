"""Packs the documents of one window: checks them against the plan, and finds the tokens of each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parquet_loader.collate import TOKEN_TYPES, Pieces, WindowTokens
from parquet_loader.common import IntArray
from parquet_loader.errors import DataError
from parquet_loader.loader.tokens.epoch_packing import EpochPacking
from parquet_loader.loader.tokens.tokenizing import DocumentEncoder, chunks_of, joined
from parquet_loader.plan import Packed
from parquet_loader.schema import Ragged
from parquet_loader.source import Snapshot
from parquet_loader.window import Window

BATCH_KEYS = (
    "input_ids", "labels", "position_ids", "document_ids", "seq_lens", "cu_seqlens", "max_seqlen",
)  # fmt: skip
"""The names that a batch has, unless the caller chooses some of them."""
PIECE_BYTES = 96
"""Bytes of packing that the memory budget counts for each piece: 24 in each of two packed windows, and 48 more while
one of these is packed. The 32 bytes of each row of a packed window are left to the budget's unassigned share."""


@dataclass(frozen=True, slots=True)
class BatchForm:
    """The columns and keys of a batch.

    Attributes:
        tokens: The column of token ids.
        lengths: The column with the number of tokens of each document; None if the caller names none.
        boundaries: The column with the first token of each document in a row; None if each row is a document.
        token_columns: Columns with a value for each token.
        document_columns: Columns with a value for each document.
        masks_boundaries: Whether labels do not cross from one document to the next.
        padding: The token after the last one of a sequence.
        encoder: Turns the column of text into tokens; None if the column holds tokens.
        multiple: Sequences of a batch are as wide as the longest, rounded up to this; None for the width `length`.
        keys: The names of `BATCH_KEYS` that a batch has.
    """

    tokens: str
    lengths: str | None
    boundaries: str | None
    token_columns: tuple[str, ...]
    document_columns: tuple[str, ...]
    masks_boundaries: bool
    padding: int
    multiple: int | None
    encoder: DocumentEncoder | None = None
    keys: tuple[str, ...] = BATCH_KEYS

    @property
    def scattered(self) -> tuple[str, ...]:
        """The columns that are not gathered, because their values are copied to sequences in any case."""
        return (self.tokens, *self.token_columns) if self.encoder is None else ()


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of one window, packed.

    Attributes:
        number: The number of the window.
        first: The number of the window's first sequence in the epoch.
        rows_before: int64 ``[sequences + 1]``: rows before each sequence. A sequence is one row; with ``"by_length"``,
            a whole batch counts as one sequence.
        tokens: The tokens of the documents, and the pieces of all rows.
        columns: Values for each token, aligned with the tokens, by name.
        arrays: Values for each document, by name.
        document: int32 ``[pieces]``: the document of each piece, counted in the window.
        filled: int64 ``[rows]``: the tokens of each row.
        ends_before: int64 ``[rows + 1]``: pieces and paddings before each row.
    """

    number: int
    first: int
    rows_before: IntArray
    tokens: WindowTokens
    columns: dict[str, npt.NDArray[Any]]
    arrays: dict[str, Any]
    document: npt.NDArray[np.int32]
    filled: IntArray
    ends_before: IntArray

    @property
    def pieces(self) -> Pieces:
        """The pieces of all rows of the window."""
        return self.tokens.pieces

    @property
    def index_bytes(self) -> int:
        """Bytes of the arrays made by packing."""
        p = self.pieces
        arrays = (self.rows_before, self.document, p.begin, p.stop, p.tokens, p.rows, self.filled, self.ends_before)
        return sum(array.nbytes for array in arrays)


@dataclass(frozen=True, slots=True)
class WindowPacker:
    """Packs windows; immutable, any thread may use it.

    Attributes:
        packing: The epoch.
        form: The columns and keys of a batch.
        snapshot: Locates rows for error messages.
    """

    packing: EpochPacking
    form: BatchForm
    snapshot: Snapshot

    def chunks(self, window: Window) -> list[tuple[int, int]]:
        """Return the ranges of rows that are encoded one by one; none if the window holds tokens."""
        return [] if self.form.encoder is None else chunks_of(self._texts(window))

    def encoded(self, window: Window, first: int, last: int) -> Ragged:
        """Return the tokens of rows ``first`` to ``last`` (exclusive) of a window of text."""
        assert self.form.encoder is not None
        return self.form.encoder(self._texts(window).slice(first, last).to_list())

    def _texts(self, window: Window) -> Ragged:
        texts = window.arrays[self.form.tokens]
        assert isinstance(texts, Ragged)
        return texts

    def __call__(self, window: Window, number: int, encoded: Sequence[Ragged] = ()) -> Documents:
        """Pack a window.

        Args:
            window: The window.
            number: Its number.
            encoded: The tokens of its chunks, if it holds text.

        Raises:
            DataError: Its documents do not have the lengths of the plan, columns are not aligned, or a token does not
                fit int64.
        """
        form = self.form
        if form.encoder is None:
            values, begins, lengths = _lists_of(window, form.tokens)
        else:
            values, begins, lengths = _lists(joined(encoded, form.encoder.dtype))
        expected = self.packing.ordered_lengths(number)
        if not np.array_equal(lengths, expected):
            self._refuse_lengths(number, lengths, expected)
        if values.dtype not in TOKEN_TYPES:
            values = self._signed(values, number, begins, lengths)
        columns = {}
        for name in form.token_columns:
            column, own_begins, own_lengths = _lists_of(window, name)
            self._check_aligned(name, number, lengths, own_lengths)
            columns[name] = _aligned(column, own_begins, begins, lengths)
        packed = self.packing.packed(number, expected)
        rows, rows_before = self.packing.rule.rows(packed)
        pieces = _pieces_of(packed, rows, begins, lengths)
        document = packed.document
        del packed
        if form.boundaries is not None:
            cuts = self._cuts(window.arrays[form.boundaries], number, begins, lengths)
            pieces, document = _cut(pieces, document, cuts)
        arrays = {name: window.arrays[name] for name in form.document_columns}
        filled, ends_before = _fill(pieces, self.packing.rule.length)
        tokens = WindowTokens(np.ascontiguousarray(values), pieces)
        return Documents(
            number, int(self.packing.begins[number]), rows_before, tokens, columns, arrays, document, filled,
            ends_before,
        )  # fmt: skip

    def _refuse_lengths(self, window: int, found: IntArray, expected: npt.NDArray[Any]) -> None:
        form = self.form
        if len(found) != len(expected):
            raise DataError(
                f"epoch {self.packing.plan.epoch}, window {window}: {len(found)} documents were read, expected "
                f"{len(expected)}"
            )
        row = int(np.flatnonzero(found != expected)[0])
        if form.encoder is not None and form.lengths is None:
            raise DataError(
                f"{self._named(window, row)}: column {form.tokens!r} has {found[row]} tokens, and had {expected[row]} "
                "when they were counted; the tokenizer is not deterministic, or the file changed; make the "
                "loader again, or if TokenizerOptions(cache=...) kept the counts, delete them"
            )
        column = f"column {form.lengths!r} says" if form.lengths is not None else "when lengths were read there were"
        raise DataError(
            f"{self._named(window, row)}: {column} {expected[row]} tokens, column {form.tokens!r} has {found[row]}; "
            f"{'correct it, or leave lengths= out' if form.lengths is not None else 'make the loader again'}"
        )

    def _signed(
        self, values: npt.NDArray[np.uint64], window: int, begins: IntArray, lengths: IntArray
    ) -> npt.NDArray[np.int64]:
        """Return unsigned 64-bit tokens as int64.

        Raises:
            DataError: A token does not fit.
        """
        signed = values.astype(np.int64)
        if len(signed) and signed.min() < 0:
            for row, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
                largest = values[begin : begin + length].max(initial=0)
                if largest >= 2**63:
                    raise DataError(
                        f"{self._named(window, row)}: column {self.form.tokens!r} has the token {largest}, which does "
                        "not fit int64; a batch holds tokens as int64"
                    )
        return signed

    def _check_aligned(self, name: str, window: int, tokens: IntArray, found: IntArray) -> None:
        if not np.array_equal(tokens, found):
            row = int(np.flatnonzero(tokens != found)[0])
            raise DataError(
                f"{self._named(window, row)}: column {name!r} has {found[row]} values for {tokens[row]} tokens; a list "
                "in carry= has a value for each token"
            )

    def _cuts(self, array: Any, window: int, begins: IntArray, lengths: IntArray) -> IntArray:
        """Return the offsets of documents in the tokens of a window, int64 ``[n]``, sorted.

        Raises:
            DataError: The first tokens of a row's documents do not rise from 0.
        """
        firsts, starts, counts = _lists(array)
        row = np.repeat(np.arange(len(counts)), counts)
        first = firsts.astype(np.int64)
        is_wrong = (first < 0) | (first > lengths[row])
        is_wrong[1:] |= (row[1:] == row[:-1]) & (first[1:] < first[:-1])
        if is_wrong.any():
            wrong = int(row[np.flatnonzero(is_wrong)[0]])
            found = firsts[starts[wrong] : starts[wrong] + counts[wrong]].tolist()
            raise DataError(
                f"{self._named(window, wrong)}: column {self.form.boundaries!r} has {found!r:.80}; expected rising "
                "numbers from 0 to the number of tokens"
            )
        first += begins[row]
        return np.unique(first)

    def _named(self, window: int, row: int) -> str:
        """Return the file and row group of a window's row."""
        plan = self.packing.plan
        order = plan.order(window)
        read = row if order is None else int(order[row])
        for part in plan.slices(window):
            if read < part.rows:
                group = self.snapshot.row_group(part.row_group)
                return f"{group.file.name}, row group {group.number}, row {part.start + read} of those that pass"
            read -= part.rows
        raise AssertionError("a window's row is in one of its slices")


def _lists_of(window: Window, name: str) -> tuple[npt.NDArray[Any], IntArray, IntArray]:
    """Return the values of a column of lists, and the first value and the length of each list."""
    found = window.scattered.get(name)
    return _lists(window.arrays[name]) if found is None else (found.values, found.begins, found.lengths)


def _lists(array: Any) -> tuple[npt.NDArray[Any], IntArray, IntArray]:
    """Return the same as `_lists_of`, for contiguous lists or for lists of one length as a matrix."""
    if not isinstance(array, Ragged):
        rows, width = array.shape[:2]
        return array.reshape(-1, *array.shape[2:]), np.arange(rows) * width, np.full(rows, width)
    offsets = array.offsets
    return array.values[offsets[0] : offsets[-1]], offsets[:-1] - offsets[0], np.diff(offsets)


def _aligned(values: npt.NDArray[Any], begins: IntArray, wanted: IntArray, lengths: IntArray) -> npt.NDArray[Any]:
    """Move the values of lists from `begins` to `wanted`; without a copy if both are equal."""
    if np.array_equal(begins, wanted):
        return np.ascontiguousarray(values)
    numbers = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    stop = int((wanted + lengths).max(initial=0))  # of lists with unused values between them
    moved = np.empty((stop, *values.shape[1:]), values.dtype)
    moved[numbers + np.repeat(wanted, lengths)] = values[numbers + np.repeat(begins, lengths)]
    return moved


def _pieces_of(packed: Packed, rows: IntArray, begins: IntArray, lengths: IntArray) -> Pieces:
    begin, stop = begins[packed.document], begins[packed.document]
    begin += packed.first
    stop += lengths[packed.document]
    return Pieces(begin, stop, packed.tokens, rows)


def _fill(pieces: Pieces, length: int) -> tuple[IntArray, IntArray]:
    """Return `Documents.filled` and `Documents.ends_before` of rows of `length` tokens."""
    sums = np.zeros(len(pieces.tokens) + 1, np.int64)
    np.cumsum(pieces.tokens, out=sums[1:])
    filled: IntArray = np.diff(sums[pieces.rows])
    ends_before = pieces.rows.copy()
    ends_before[1:] += np.cumsum(filled < length)
    return filled, ends_before


def _cut(pieces: Pieces, document: npt.NDArray[np.int32], cuts: IntArray) -> tuple[Pieces, npt.NDArray[np.int32]]:
    """Cut pieces where documents begin.

    Args:
        pieces: Pieces of rows.
        document: int32 ``[pieces]``: the row of each.
        cuts: int64 ``[n]``, sorted: the offsets of documents in the values.
    """
    end = pieces.begin + pieces.tokens
    low = np.searchsorted(cuts, pieces.begin, side="right")
    counts = np.searchsorted(cuts, end, side="left") - low + 1
    before = np.cumsum(counts) - counts
    of_piece = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    following = np.arange(len(of_piece))
    following += (low - before)[of_piece]
    bounds = np.append(cuts, np.iinfo(np.int64).max)
    stop = bounds[following]
    following -= 1
    begin = bounds[following]
    del following, bounds
    begin[before] = pieces.begin
    np.minimum(stop, pieces.stop[of_piece], out=stop)
    tokens = np.minimum(stop, end[of_piece])
    tokens -= begin
    rows = np.append(before, len(of_piece))[pieces.rows]
    return Pieces(begin, stop, tokens.astype(np.int32), rows), document[of_piece]
