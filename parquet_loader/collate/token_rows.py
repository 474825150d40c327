"""Writes packed documents to rows of tokens: one kernel call for several batches, or numpy without kernels."""

from __future__ import annotations

import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parquet_loader.common import KERNELS, IntArray, take_ragged

IGNORED_LABEL = -100
"""The label that `torch.nn.functional.cross_entropy` ignores."""
TOKEN_TYPES = tuple(map(np.dtype, ("u1", "i1", "u2", "i2", "u4", "i4", "i8")))


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of documents, sorted by row.

    Attributes:
        begin: int64 ``[pieces]``: the first token of each piece in the values of the window.
        stop: int64 ``[pieces]``: the end of the piece's document in the values.
        tokens: int32 ``[pieces]``: the number of tokens of each piece.
        rows: int64 ``[rows + 1]``: pieces before each row; the first element need not be 0.
    """

    begin: IntArray
    stop: IntArray
    tokens: npt.NDArray[np.int32]
    rows: IntArray

    def between(self, first: int, last: int) -> Pieces:
        """Return the pieces of rows ``first`` to ``last`` (exclusive); the arrays are shared."""
        return Pieces(self.begin, self.stop, self.tokens, self.rows[first : last + 1])

    @property
    def chosen(self) -> slice:
        """The pieces of these rows."""
        return slice(int(self.rows[0]), int(self.rows[-1]))


class TokenRows(NamedTuple):
    """Rows of a batch, ``[rows, width]`` in C order, and figures of their pieces; arrays not requested are None.

    Attributes:
        ids: int64: the tokens.
        labels: int64: the next token of each.
        positions: int32: the position of each token in its piece.
        documents: int32: the number of the token's piece; -1 for padding.
        lengths: int32 ``[pieces]``: the tokens of each piece.
        ends: int32 ``[n]``: the end of each piece in the flattened rows, and the end of each row with padding.
    """

    ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64] | None
    positions: npt.NDArray[np.int32] | None
    documents: npt.NDArray[np.int32] | None
    lengths: npt.NDArray[np.int32] | None
    ends: npt.NDArray[np.int32] | None


TOKEN_ROW_TYPES = tuple(map(np.dtype, ("i8", "i8", "i4", "i4", "i4", "i4")))
"""The dtype of each array of `TokenRows`."""


@dataclass(frozen=True, slots=True)
class WindowTokens:
    """The tokens of a window and their pieces.

    Attributes:
        values: The tokens, of one of `TOKEN_TYPES`, contiguous.
        pieces: The pieces of all rows.
        line: The addresses of these arrays, and the kind of token, as the kernel takes them. They are kept, because
            numpy takes as long to return them as the kernel to write a row.
    """

    values: npt.NDArray[Any]
    pieces: Pieces
    line: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        kind = self.values.dtype.itemsize * (1 if self.values.dtype.kind == "u" else -1)
        p = self.pieces
        addresses = [a.ctypes.data for a in (self.values, p.begin, p.stop, p.tokens, p.rows)]
        object.__setattr__(self, "line", (addresses[0], kind, *addresses[1:]))


class TokenLine(NamedTuple):
    """Consecutive rows of a window, and where `write_token_rows` writes them.

    Attributes:
        first, last: The rows, `last` exclusive; the pieces of each have at most `width` tokens.
        width: Tokens of a row.
        first_piece, first_row: The number of the first piece and of the first row in the batch.
        ids, labels, positions, documents, lengths, ends: The byte offset of each array of `TokenRows` in the memory; -1
            for one that is not requested.
    """

    first: int
    last: int
    width: int
    first_piece: int
    first_row: int
    ids: int
    labels: int
    positions: int
    documents: int
    lengths: int
    ends: int


def write_token_rows(
    memory: npt.NDArray[np.uint8],
    lines: Sequence[tuple[WindowTokens, TokenLine]],
    *,
    masks_boundaries: bool,
    padding: int,
) -> list[int]:
    """Write rows of tokens, with labels, positions and numbers of pieces, in one kernel call.

    The label of a document's token is the document's next token, also if that is in another row. The label of a
    document's last token is the first token of the next piece in the row. It is `IGNORED_LABEL` if boundaries are
    masked, at the end of a row, and for padding.

    Args:
        memory: Receives the arrays.
        lines: The windows, and their rows.
        masks_boundaries: Whether labels do not cross from one document to the next.
        padding: The token after the last one of a row.

    Returns:
        The longest piece or padding of each line.
    """
    if KERNELS is None:
        return [
            _write_without_kernels(memory, window, line, padding, masks_boundaries=masks_boundaries)
            for window, line in lines
        ]
    calls = array.array("q")  # numpy takes three times as long to convert tuples
    for window, line in lines:
        calls.extend(window.line)
        calls.extend(line)
    longest = np.empty(len(lines), np.int64)
    KERNELS.packing_write(
        calls.buffer_info()[0], len(lines), memory.ctypes.data, masks_boundaries, padding, IGNORED_LABEL,
        longest.ctypes.data,
    )  # fmt: skip
    return longest.tolist()


def _arrays(memory: npt.NDArray[np.uint8], pieces: Pieces, line: TokenLine) -> TokenRows:
    """Return the arrays of the rows of a line."""
    rows, count = len(pieces.rows) - 1, len(pieces.tokens[pieces.chosen])
    ends = count + int(np.count_nonzero(_filled(pieces) < line.width))
    shapes = *[(rows, line.width)] * 4, (count,), (ends,)
    arrays: list[Any] = [
        None if offset < 0 else np.ndarray(shape, dtype, memory, offset)
        for shape, dtype, offset in zip(shapes, TOKEN_ROW_TYPES, line[5:], strict=True)
    ]
    return TokenRows(*arrays)


def _write_ends(pieces: Pieces, out: TokenRows, first_row: int) -> int:
    """Write the lengths and ends of pieces; return the longest piece or padding."""
    width = out.ids.shape[1]
    tokens, rows = pieces.tokens[pieces.chosen], pieces.rows - pieces.rows[0]
    if out.lengths is not None:
        out.lengths[...] = tokens
    left = width - _filled(pieces)
    lengths = np.insert(tokens, rows[1:][left > 0], left[left > 0])
    if out.ends is not None:
        out.ends[...] = first_row * width + np.cumsum(lengths)
    return int(lengths.max(initial=0))


def write_column(values: npt.NDArray[Any], pieces: Pieces, out: npt.NDArray[Any]) -> None:
    """Write another column with a value for each token, such as a loss mask; 0 as padding.

    Args:
        values: ``[tokens, ...]``, contiguous, aligned with the tokens.
        pieces: The pieces of the rows.
        out: ``[rows, width, ...]`` in C order, of the same dtype.
    """
    chosen = pieces.chosen
    begin, tokens = pieces.begin[chosen], pieces.tokens[chosen]
    nbytes = values.dtype.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))
    offsets = _piece_offsets(pieces, out.shape[1])
    if KERNELS is None:
        out[...] = 0
        at, source = _each_token(offsets, tokens), _each_token(begin, tokens)
        out.reshape(-1, *values.shape[1:])[at] = values[source]
        return
    take_ragged(
        _bytes_of(values), begin * nbytes, offsets * nbytes, _bytes_of(out), np.multiply(tokens, nbytes, dtype=np.int64)
    )
    for row, filled in enumerate(_filled(pieces).tolist()):
        out[row, filled:] = 0  # after the copy, which may write behind a piece


def _filled(pieces: Pieces) -> IntArray:
    """Return the tokens of each row, int64 ``[rows]``."""
    sums = np.concatenate([[0], np.cumsum(pieces.tokens[pieces.chosen], dtype=np.int64)])
    filled: IntArray = np.diff(sums[pieces.rows - pieces.rows[0]])
    return filled


def _each_token(begin: IntArray, tokens: npt.NDArray[np.int32]) -> IntArray:
    """Return the numbers of all tokens of pieces that begin at `begin`, int64 ``[tokens]``."""
    before = np.cumsum(tokens, dtype=np.int64) - tokens
    numbers: IntArray = np.arange(int(tokens.sum())) + np.repeat(begin - before, tokens)
    return numbers


def _bytes_of(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


def _piece_offsets(pieces: Pieces, width: int) -> IntArray:
    """Return the offset of each piece in the flattened rows, int64 ``[pieces]``."""
    tokens = pieces.tokens[pieces.chosen]
    before = np.cumsum(tokens, dtype=np.int64) - tokens
    counts, first = np.diff(pieces.rows), pieces.rows[:-1] - pieces.rows[0]
    begins = np.append(before, 0)[np.minimum(first, len(before))]  # not used for rows without pieces
    offsets: IntArray = before + np.repeat(np.arange(len(counts)) * width - begins, counts)
    return offsets


def _write_without_kernels(
    memory: npt.NDArray[np.uint8], window: WindowTokens, line: TokenLine, padding: int, *, masks_boundaries: bool
) -> int:
    pieces = window.pieces.between(line.first, line.last)
    out = _arrays(memory, pieces, line)
    _write_tokens(window.values, pieces, out, line.first_piece, padding, masks_boundaries=masks_boundaries)
    return _write_ends(pieces, out, line.first_row)


def _write_tokens(
    values: npt.NDArray[Any], pieces: Pieces, out: TokenRows, first_piece: int, padding: int, *, masks_boundaries: bool
) -> None:
    for rows, value in zip(out[:4], (padding, IGNORED_LABEL, 0, -1), strict=True):
        if rows is not None:
            rows[...] = value
    chosen = pieces.chosen
    begin, stop, tokens = pieces.begin[chosen], pieces.stop[chosen], pieces.tokens[chosen]
    if not len(tokens):
        return
    offsets = _piece_offsets(pieces, out.ids.shape[1])
    at, source = _each_token(offsets, tokens), _each_token(begin, tokens)
    out.ids.reshape(-1)[at] = values[source]
    if out.positions is not None:
        out.positions.reshape(-1)[at] = at - np.repeat(offsets, tokens)
    if out.documents is not None:
        numbers = np.arange(first_piece, first_piece + len(tokens), dtype=np.int32)
        out.documents.reshape(-1)[at] = np.repeat(numbers, tokens)
    if out.labels is None:
        return
    labels = out.labels.reshape(-1)
    labels[at] = values[np.minimum(source + 1, len(values) - 1)]
    last, ends = offsets + tokens - 1, begin + tokens == stop
    labels[last[ends]] = IGNORED_LABEL
    if not masks_boundaries:
        row = np.repeat(np.arange(len(pieces.rows) - 1), np.diff(pieces.rows))
        crosses = np.flatnonzero(ends[:-1] & (row[:-1] == row[1:]))
        labels[last[crosses]] = values[begin[crosses + 1]]
