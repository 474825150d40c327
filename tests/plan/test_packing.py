"""Packing of documents into bins, with and without kernels, equals a plain model."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader.common import KERNELS
from parquet_loader.plan import Overflow, Pack, count_bins, kept_tokens, pack, packing, total_pieces, total_tokens
from tests.support.examples import examples

METHODS: tuple[Pack, ...] = ("best_fit", "concat", "none")
OVERFLOWS: tuple[Overflow, ...] = ("split", "crop", "drop")
LENGTHS = st.lists(st.integers(0, 40) | st.integers(0, 400), max_size=60)


@pytest.fixture(autouse=True, scope="module", params=["kernels", "without kernels"])
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "kernels" and KERNELS is None:
        pytest.skip("the kernels were not compiled: no C compiler at hand")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "KERNELS", KERNELS if request.param == "kernels" else None)
        yield


def pieces_of(lengths: list[int], length: int, overflow: str) -> list[tuple[int, int, int]]:
    """Document, first token and tokens of each piece, in the order of documents."""
    found = []
    for document, tokens in enumerate(lengths):
        kept = tokens if overflow == "split" or tokens <= length else (length if overflow == "crop" else 0)
        found += [(document, first, min(length, kept - first)) for first in range(0, kept, length)]
    return found


def best_fit(lengths: list[int], length: int, overflow: str) -> list[list[tuple[int, int, int]]]:
    """Method best-fit-1 by its description, one piece at a time."""
    bins: list[list[tuple[int, int, int]]] = []
    filled: list[int] = []
    for turn, piece in enumerate(sorted(pieces_of(lengths, length, overflow), key=lambda p: -p[2])):
        free = {b: length - sum(p[2] for p in pieces) for b, pieces in enumerate(bins)}
        fitting = [b for b in free if free[b] >= piece[2]]
        if not fitting:
            bins.append([])
            filled.append(0)
            fitting = [len(bins) - 1]
            free[len(bins) - 1] = length
        chosen = min(fitting, key=lambda b: (free[b], -filled[b]))
        bins[chosen].append(piece)
        filled[chosen] = turn + 1
    return sorted(sorted(b) for b in bins)


def concatenated(lengths: list[int], length: int, overflow: str) -> list[list[tuple[int, int, int]]]:
    tokens: list[tuple[int, int]] = []
    for document, count in enumerate(lengths):
        kept = count if overflow == "split" or count <= length else (length if overflow == "crop" else 0)
        tokens += [(document, first) for first in range(kept)]
    bins = []
    for at in range(0, len(tokens), length):
        some = tokens[at : at + length]
        documents = sorted({document for document, _ in some})
        firsts = {d: [first for document, first in some if document == d] for d in documents}
        bins.append([(d, firsts[d][0], len(firsts[d])) for d in documents])
    return bins


def bins_of(packed: Any) -> list[list[tuple[int, int, int]]]:
    pieces = list(zip(packed.document.tolist(), packed.first.tolist(), packed.tokens.tolist(), strict=True))
    begins = packed.begins.tolist()
    return [pieces[a:b] for a, b in pairwise(begins)]


@settings(max_examples=examples(40))
@given(lengths=LENGTHS, length=st.integers(1, 150), overflow=st.sampled_from(OVERFLOWS))
def test_bins_are_those_of_a_plain_model(lengths: list[int], length: int, overflow: Any) -> None:
    counts = np.array(lengths, np.int32)
    assert bins_of(pack(counts, length, "best_fit", overflow)) == best_fit(lengths, length, overflow)
    assert bins_of(pack(counts, length, "concat", overflow)) == concatenated(lengths, length, overflow)
    assert bins_of(pack(counts, length, "none", overflow)) == [[p] for p in pieces_of(lengths, length, overflow)]


@settings(max_examples=examples(40))
@given(
    lengths=LENGTHS, length=st.integers(1, 150), method=st.sampled_from(METHODS), overflow=st.sampled_from(OVERFLOWS)
)
def test_each_kept_token_is_in_one_bin_and_no_bin_is_too_long(
    lengths: list[int], length: int, method: Any, overflow: Any
) -> None:
    counts = np.array(lengths, np.int32)
    packed = pack(counts, length, method, overflow)
    assert count_bins(counts, length, method, overflow) == packed.bins
    seen = [
        (d, first + i)
        for d, first, tokens in zip(packed.document, packed.first, packed.tokens, strict=True)
        for i in range(tokens)
    ]
    kept = kept_tokens(counts, length, overflow)
    assert sorted(seen) == [(d, t) for d, count in enumerate(kept) for t in range(count)]
    assert all(0 < sum(p[2] for p in pieces) <= length for pieces in bins_of(packed))


@settings(max_examples=examples(20))
@given(lengths=LENGTHS.filter(any), seed=st.integers(0, 100))
def test_bins_are_taken_in_any_order(lengths: list[int], seed: int) -> None:
    packed = pack(np.array(lengths, np.int32), 50, "best_fit", "split")
    order = np.random.default_rng(seed).permutation(packed.bins)[: packed.bins // 2 + 1]
    assert bins_of(packed.taken(order)) == [bins_of(packed)[b] for b in order]


@pytest.mark.parametrize("length", [64, 4095, 4096, 4097, 262_145])
def test_long_bins_are_counted_and_filled(length: int) -> None:
    rng = np.random.default_rng(length)
    counts = np.minimum(rng.lognormal(np.log(length / 4), 1.3, 1000), 2**30).astype(np.int32)
    packed = pack(counts, length, "best_fit", "split")
    assert count_bins(counts, length, "best_fit", "split") == packed.bins
    assert packed.tokens.sum(dtype=np.int64) == counts.sum(dtype=np.int64)
    assert np.add.reduceat(packed.tokens, packed.begins[:-1], dtype=np.int64).max() <= length
    assert counts.sum(dtype=np.int64) >= 0.98 * packed.bins * length


@pytest.mark.parametrize("length", [2048, 4096])
def test_best_fit_fills_98_percent_on_lengths_like_those_of_web_pages(length: int) -> None:
    counts = np.random.default_rng(0).lognormal(6, 1.2, 8000).astype(np.int32) + 1
    for overflow in OVERFLOWS:
        packed = pack(counts, length, "best_fit", overflow)
        assert packed.tokens.sum() >= 0.98 * packed.bins * length


@pytest.mark.parametrize("overflow", OVERFLOWS)
def test_totals_of_many_documents_take_little_memory(overflow: Overflow) -> None:
    lengths = np.tile(np.array([3, 0, 12, 25], np.int32), 250_000)
    expected = pieces_of([3, 0, 12, 25], 10, overflow)
    tracemalloc.start()
    try:
        assert total_tokens(lengths, 10, overflow) == 250_000 * sum(tokens for _, _, tokens in expected)
        assert total_pieces(lengths, 10, overflow) == 250_000 * len(expected)
        assert tracemalloc.get_traced_memory()[1] < lengths.nbytes
    finally:
        tracemalloc.stop()
