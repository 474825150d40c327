"""Writes packed documents to rows of a batch of tokens: one kernel call for many pieces, or numpy without kernels."""

from __future__ import annotations

from dataclasses import dataclass
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
        stop: int64 ``[pieces]``: the end of its document in the values.
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
    """Rows of a batch, each ``[rows, width]`` in C order; None: it is not wanted.

    Attributes:
        ids: int64: the tokens.
        labels: int64: the next token of each.
        positions: int32: the position of each token in its piece.
        documents: int32: the number of the token's piece; -1: padding.
    """

    ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64] | None
    positions: npt.NDArray[np.int32] | None
    documents: npt.NDArray[np.int32] | None

    def between(self, first: int, last: int) -> TokenRows:
        """Return views of rows ``first`` to ``last`` (exclusive)."""
        return TokenRows(*(None if array is None else array[first:last] for array in self))  # type: ignore[arg-type]


def write_tokens(
    values: npt.NDArray[Any], pieces: Pieces, out: TokenRows, *, first_piece: int, masks_boundaries: bool, padding: int
) -> None:
    """Write rows of tokens, with labels, positions and numbers of pieces.

    The label of a document's token is the document's next token, also if that is in another row. The label of a
    document's last token is the first token of the next piece in the row. It is `IGNORED_LABEL` with
    `masks_boundaries`, at the end of a row, and for padding.

    Args:
        values: Tokens of the window, of one of `TOKEN_TYPES`, contiguous.
        pieces: The pieces; those of a row have at most `width` tokens.
        out: As many rows as `pieces` has.
        first_piece: The number of the first piece.
        masks_boundaries: Whether labels do not cross from one document to the next.
        padding: The token after the last one of a row.
    """
    count, width = out.ids.shape
    if KERNELS is None:
        _write_without_kernels(values, pieces, out, first_piece, padding, masks_boundaries=masks_boundaries)
        return
    kind = values.dtype.itemsize * (1 if values.dtype.kind == "u" else -1)
    source, *addresses = map(_address, (values, pieces.begin, pieces.stop, pieces.tokens, pieces.rows))
    KERNELS.packing_write(
        source, kind, *addresses, count, width, first_piece, masks_boundaries, padding, IGNORED_LABEL,
        *(0 if array is None else _address(array) for array in out),
    )  # fmt: skip


def write_column(values: npt.NDArray[Any], pieces: Pieces, out: npt.NDArray[Any]) -> None:
    """Write another column with a value for each token, such as a loss mask; 0 as padding.

    Args:
        values: ``[tokens, ...]``, contiguous, aligned with the tokens.
        pieces: As in `write_tokens`.
        out: ``[rows, width, ...]`` in C order, of the same dtype.
    """
    chosen = pieces.chosen
    begin, tokens = pieces.begin[chosen], pieces.tokens[chosen]
    nbytes = values.dtype.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))
    places = _places(pieces, out.shape[1])
    if KERNELS is None:
        out[...] = 0
        at, source = _each_token(places, tokens), _each_token(begin, tokens)
        out.reshape(-1, *values.shape[1:])[at] = values[source]
        return
    bounds = np.empty(2 * len(begin) + 1, np.int64)
    bounds[:-1:2], bounds[1::2], bounds[-1] = begin, begin + tokens, len(values)
    numbers = np.arange(0, 2 * len(begin), 2)
    take_ragged(_bytes_of(values), bounds * nbytes, numbers, places * nbytes, _bytes_of(out))
    sums = np.concatenate([[0], np.cumsum(tokens)])
    for row, filled in enumerate(np.diff(sums[pieces.rows - pieces.rows[0]]).tolist()):
        out[row, filled:] = 0  # after the copy, which may write behind a piece


def _each_token(begin: IntArray, tokens: npt.NDArray[np.int32]) -> IntArray:
    """Return the numbers of all tokens of pieces that begin at `begin`, int64 ``[tokens]``."""
    before = np.cumsum(tokens, dtype=np.int64) - tokens
    numbers: IntArray = np.arange(int(tokens.sum())) + np.repeat(begin - before, tokens)
    return numbers


def _address(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _bytes_of(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


def _places(pieces: Pieces, width: int) -> IntArray:
    """Return where each piece begins in the flattened rows, int64 ``[pieces]``."""
    tokens = pieces.tokens[pieces.chosen]
    before = np.cumsum(tokens, dtype=np.int64) - tokens
    counts, first = np.diff(pieces.rows), pieces.rows[:-1] - pieces.rows[0]
    begins = np.append(before, 0)[np.minimum(first, len(before))]  # a row without pieces has no use for it
    places: IntArray = before + np.repeat(np.arange(len(counts)) * width - begins, counts)
    return places


def _write_without_kernels(
    values: npt.NDArray[Any], pieces: Pieces, out: TokenRows, first_piece: int, padding: int, *, masks_boundaries: bool
) -> None:
    for array, value in zip(out, (padding, IGNORED_LABEL, 0, -1), strict=True):
        if array is not None:
            array[...] = value
    chosen = pieces.chosen
    begin, stop, tokens = pieces.begin[chosen], pieces.stop[chosen], pieces.tokens[chosen]
    if not len(tokens):
        return
    places = _places(pieces, out.ids.shape[1])
    at, source = _each_token(places, tokens), _each_token(begin, tokens)
    out.ids.reshape(-1)[at] = values[source]
    if out.positions is not None:
        out.positions.reshape(-1)[at] = at - np.repeat(places, tokens)
    if out.documents is not None:
        numbers = np.arange(first_piece, first_piece + len(tokens), dtype=np.int32)
        out.documents.reshape(-1)[at] = np.repeat(numbers, tokens)
    if out.labels is None:
        return
    labels = out.labels.reshape(-1)
    labels[at] = values[np.minimum(source + 1, len(values) - 1)]
    last, ends = places + tokens - 1, begin + tokens == stop
    labels[last[ends]] = IGNORED_LABEL
    if not masks_boundaries:
        row = np.repeat(np.arange(len(pieces.rows) - 1), np.diff(pieces.rows))
        crosses = np.flatnonzero(ends[:-1] & (row[:-1] == row[1:]))
        labels[last[crosses]] = values[begin[crosses + 1]]
