"""Packs documents into sequences of one length, from their numbers of tokens alone. Pure functions.

A *bin* is one sequence of at most `length` tokens, a *piece* the tokens of one document in one bin. A document that is
too long for a bin is split into pieces, cropped to one, or dropped. Methods that fix an order have a version name
(`PACKING_METHODS`), which states hold; a new method gets a new name.

``best-fit-1`` places pieces by size, the largest first, and pieces of one size in the order of documents. A piece goes
into the bin with the least free space that suffices; of several such bins, into the one that was filled last. Bins are
numbered by their first piece, and the pieces of a bin are in the order of documents. Because bins with one free space
are alike, as are pieces of one size, bins can be counted without placing pieces (`count_bins`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from parquet_loader.common import KERNELS, IntArray

Lengths: TypeAlias = npt.NDArray[np.int32]
Pack: TypeAlias = Literal["best_fit", "concat", "none", "by_length"]
Overflow: TypeAlias = Literal["split", "crop", "drop"]

PACKING_METHODS: dict[Pack, str] = {
    "best_fit": "best-fit-1",
    "concat": "concat-1",
    "none": "none-1",
    "by_length": "by-length-1",
}
_PORTION = 2**16
_OVERFLOW: dict[Overflow, int] = {"split": 0, "crop": 1, "drop": 2}  # as in `packing.c`


@dataclass(frozen=True, slots=True)
class Packed:
    """Documents packed into bins; pieces are sorted by bin, and in a bin by document.

    Attributes:
        document: int32 ``[pieces]``: the document of each piece.
        first: int32 ``[pieces]``: the first token of each piece, counted in the document.
        tokens: int32 ``[pieces]``: the number of tokens of each piece.
        begins: int64 ``[bins + 1]``: pieces before each bin; the last element is all pieces.
    """

    document: Lengths
    first: Lengths
    tokens: Lengths
    begins: IntArray

    @property
    def bins(self) -> int:
        """Number of bins."""
        return len(self.begins) - 1

    def taken(self, order: IntArray) -> Packed:
        """Return some of the bins in another order: bin ``i`` of the result is bin ``order[i]``."""
        counts = np.diff(self.begins)[order]
        begins = np.zeros(len(order) + 1, np.int64)
        np.cumsum(counts, out=begins[1:])
        pieces = np.repeat(self.begins[order] - begins[:-1], counts)
        pieces += np.arange(begins[-1])
        return Packed(self.document[pieces], self.first[pieces], self.tokens[pieces], begins)


def pack(lengths: Lengths, length: int, method: Pack, overflow: Overflow) -> Packed:
    """Pack documents into bins.

    Args:
        lengths: int32 ``[documents]``, contiguous: tokens of each document; documents without tokens are left out.
        length: The most tokens of a bin.
        method: ``"best_fit"``; ``"concat"``: documents end to end, cut at each multiple of `length`; ``"none"``: each
            piece is a bin.
        overflow: What happens to a document of more than `length` tokens. With ``"split"`` every token is delivered
            once.
    """
    if method == "best_fit":
        return _best_fit(lengths, length, overflow)
    if method == "concat":
        return _concatenated(lengths, length, overflow)
    document, first, tokens = _pieces(lengths, length, overflow)
    return Packed(document, first, tokens, np.arange(len(document) + 1))


def count_bins(lengths: Lengths, length: int, method: Pack, overflow: Overflow) -> int:
    """Return the number of bins that `pack` makes; for ``"best_fit"`` 2 to 5 ns a document."""
    if method == "best_fit":
        return _count_best_fit(lengths, length, overflow)
    if method == "concat":
        return -(-int(kept_tokens(lengths, length, overflow).sum()) // length)
    return int(piece_counts(lengths, length, overflow).sum())


def pack_by_length(lengths: Lengths, length: int, overflow: Overflow, batch_tokens: int, multiple: int) -> Packed:
    """Group pieces of similar size into batches of at most `batch_tokens` positions, padding included.

    Method ``by-length-1``: pieces are sorted by size, the largest first, and pieces of one size in the order of
    documents. A batch is as wide as its largest piece, rounded up to `multiple`, and takes the next pieces, as many as
    fit. The result has batches in place of bins; each piece is a row of its batch.

    Args:
        lengths, length, overflow: As in `pack`.
        batch_tokens: At least `length`, rounded up to `multiple`.
        multiple: Widths are multiples of this.
    """
    document, first, tokens = _pieces(lengths, length, overflow)
    order = np.argsort(-tokens.astype(np.int64), kind="stable")
    begins = _batches_by_length(tokens[order], batch_tokens, multiple)
    return Packed(document[order], first[order], tokens[order], begins)


def count_by_length(lengths: Lengths, length: int, overflow: Overflow, batch_tokens: int, multiple: int) -> int:
    """Return the number of batches that `pack_by_length` makes."""
    _, _, tokens = _pieces(lengths, length, overflow)
    return len(_batches_by_length(np.sort(tokens)[::-1], batch_tokens, multiple)) - 1


def _batches_by_length(tokens: Lengths, batch_tokens: int, multiple: int) -> IntArray:
    """Return the pieces before each batch, int64 ``[batches + 1]``, of sizes that fall."""
    rows = batch_tokens // (-(-tokens.astype(np.int64) // multiple) * multiple)
    begins = [0]
    while begins[-1] < len(tokens):
        begins.append(min(len(tokens), begins[-1] + int(rows[begins[-1]])))
    return np.array(begins, np.int64)


def kept_tokens(lengths: Lengths, length: int, overflow: Overflow) -> IntArray:
    """Return the number of tokens of each document that are delivered, int64 ``[documents]``."""
    if overflow == "split":
        return lengths.astype(np.int64)
    if overflow == "crop":
        return np.minimum(lengths, length, dtype=np.int64)
    return np.where(lengths > length, np.int64(0), lengths)


def piece_counts(lengths: Lengths, length: int, overflow: Overflow) -> IntArray:
    """Return the number of pieces of each document, int64 ``[documents]``, except with ``"concat"``."""
    return -(-kept_tokens(lengths, length, overflow) // length)


def total_tokens(lengths: Lengths, length: int, overflow: Overflow) -> int:
    """Return the number of tokens of all documents that are delivered."""
    return sum(int(kept_tokens(some, length, overflow).sum()) for some in _portions(lengths))


def total_pieces(lengths: Lengths, length: int, overflow: Overflow) -> int:
    """Return the number of pieces of all documents, except with ``"concat"``."""
    return sum(int(piece_counts(some, length, overflow).sum()) for some in _portions(lengths))


def _portions(lengths: Lengths) -> Iterator[Lengths]:
    """Yield the lengths in portions, because an int64 for each document of a data set takes much memory."""
    for first in range(0, len(lengths), _PORTION):
        yield lengths[first : first + _PORTION]


def _pieces(lengths: Lengths, length: int, overflow: Overflow) -> tuple[Lengths, Lengths, Lengths]:
    """Return document, first token and tokens of each piece, in the order of documents."""
    counts = piece_counts(lengths, length, overflow)
    document = np.repeat(np.arange(len(lengths), dtype=np.int32), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = number * length
    tokens = np.minimum(kept_tokens(lengths, length, overflow)[document] - first, length)
    return document, first.astype(np.int32), tokens.astype(np.int32)


def _concatenated(lengths: Lengths, length: int, overflow: Overflow) -> Packed:
    kept = kept_tokens(lengths, length, overflow)
    ends = np.cumsum(kept)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.arange(0, total + length, length)
    cuts[-1] = total
    begins = np.union1d(cuts, ends - kept)  # of each piece; sorted, each once
    begins = begins[begins < total]
    document = np.searchsorted(ends, begins, side="right").astype(np.int32)
    first = (begins - (ends - kept)[document]).astype(np.int32)
    tokens = np.diff(begins, append=total).astype(np.int32)
    return Packed(document, first, tokens, np.searchsorted(begins, cuts))


def _best_fit(lengths: Lengths, length: int, overflow: Overflow) -> Packed:
    if KERNELS is None:
        return _best_fit_in_python(lengths, length, overflow)
    pieces = int(piece_counts(lengths, length, overflow).sum())
    if pieces >= 2**31:
        raise MemoryError(f"{pieces} pieces of documents are packed together; choose smaller windows")
    document, first, tokens = np.empty((3, pieces), np.int32)
    begins, bins = np.empty(pieces + 1, np.int64), np.zeros(1, np.int64)
    arguments = lengths.ctypes.data, len(lengths), length, _OVERFLOW[overflow]
    if KERNELS.packing_place(
        *arguments, pieces, *(array.ctypes.data for array in (document, first, tokens, begins, bins))
    ):
        raise MemoryError
    return Packed(document, first, tokens, begins[: int(bins[0]) + 1].copy())


def _count_best_fit(lengths: Lengths, length: int, overflow: Overflow) -> int:
    if KERNELS is None:
        return _best_fit_in_python(lengths, length, overflow).bins
    bins = np.zeros(1, np.int64)
    if KERNELS.packing_count(lengths.ctypes.data, len(lengths), length, _OVERFLOW[overflow], bins.ctypes.data):
        raise MemoryError
    return int(bins[0])


def _best_fit_in_python(lengths: Lengths, length: int, overflow: Overflow) -> Packed:
    document, first, tokens = _pieces(lengths, length, overflow)
    by_size = np.argsort(-tokens.astype(np.int64), kind="stable")
    sizes, counts = np.unique(tokens, return_counts=True)
    bin_of = np.zeros(len(tokens), np.int64)
    with_space: list[list[int]] = [[] for _ in range(length + 1)]
    open_spaces = 0  # a bit for each free space that a bin has
    made = at = 0
    for size, count in zip(sizes[::-1].tolist(), counts[::-1].tolist(), strict=True):
        end = at + count
        while at < end:
            sufficient = open_spaces >> size
            if sufficient:
                space = size + (sufficient & -sufficient).bit_length() - 1
                number = with_space[space].pop()
                if not with_space[space]:
                    open_spaces &= ~(1 << space)
            else:
                space, number, made = length, made, made + 1
            some = min(space // size, end - at)
            bin_of[by_size[at : at + some]] = number
            at += some
            space -= some * size
            if space:
                with_space[space].append(number)
                open_spaces |= 1 << space
    _, first_piece, bin_of = np.unique(bin_of, return_index=True, return_inverse=True)
    numbers = np.empty(made, np.int64)
    numbers[np.argsort(first_piece)] = np.arange(made)
    bin_of = numbers[bin_of]
    order = np.argsort(bin_of, kind="stable")
    begins = np.searchsorted(bin_of[order], np.arange(made + 1))
    return Packed(document[order], first[order], tokens[order], begins)
