"""Rows of tokens, with labels, positions and carried columns, by the kernels and without them: as a plain model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader.collate import TOKEN_TYPES, Pieces, TokenRows, TokenWriter, token_rows, write_column
from parquet_loader.common import KERNELS
from parquet_loader.common.native import permute
from tests.support.examples import examples


@pytest.fixture(autouse=True, scope="module", params=["kernels", "without kernels"])
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "kernels" and KERNELS is None:
        pytest.skip("the kernels were not compiled: no C compiler at hand")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_rows, "KERNELS", KERNELS if request.param == "kernels" else None)
        patch.setattr(permute, "KERNELS", KERNELS if request.param == "kernels" else None)
        yield


# The kernel writes 32 tokens at once.
TOKENS = st.integers(1, 9) | st.sampled_from([31, 32, 33, 64, 65, 100])
ROWS = st.lists(st.lists(st.tuples(TOKENS, st.integers(0, 3), st.integers(0, 3)), max_size=4), max_size=6)


def laid_out(rows: list[list[tuple[int, int, int]]], dtype: Any) -> tuple[Any, Pieces, list[list[list[int]]]]:
    """Values, pieces of them (with tokens of their documents before and after), and the model: tokens and next ones."""
    values: list[int] = []
    begin: list[int] = []
    stop: list[int] = []
    tokens: list[int] = []
    begins, model = [0], list[list[list[int]]]()
    for row in rows:
        model.append([])
        for count, before, after in row:
            values += [len(values) % 120 + k for k in range(before)]
            begin.append(len(values))
            tokens.append(count)
            values += [(7 * len(values) + k) % 120 for k in range(count + after)]
            stop.append(len(values))
            model[-1].append(values[begin[-1] : stop[-1]][: count + 1] + ([] if after else [-1]))
        begins.append(len(begin))
    arrays = np.array(begin, np.int64), np.array(stop, np.int64), np.array(tokens, np.int32), np.array(begins, np.int64)
    return np.array(values, dtype), Pieces(*arrays), model


def write_tokens(
    values: Any, pieces: Pieces, out: TokenRows, *, first_piece: int, first_row: int, masks: bool, padding: int
) -> int:
    tokens = TokenWriter(masks_boundaries=masks, padding=padding)
    tokens.add(values, pieces, out, first_piece=first_piece, first_row=first_row)
    (longest,) = tokens.write()
    return longest


def empty(pieces: Pieces, width: int) -> TokenRows:
    count, dtypes = len(pieces.rows) - 1, (np.int64, np.int64, np.int32, np.int32)
    sums = np.concatenate([[0], np.cumsum(pieces.tokens)])
    padded = np.count_nonzero(np.diff(sums[pieces.rows]) < width)
    number = int(pieces.rows[-1] - pieces.rows[0])
    ids, labels, *others = (np.full((count, width), 77, dtype) for dtype in dtypes)
    positions, documents = others
    pieces_and_ends = np.full(number, 77, np.int32), np.full(number + padded, 77, np.int32)
    return TokenRows(ids, labels, positions, documents, *pieces_and_ends)


@settings(max_examples=examples(80))
@given(
    rows=ROWS,
    spare=st.integers(0, 5),
    dtype=st.sampled_from(TOKEN_TYPES),
    masks=st.booleans(),
    first_row=st.integers(0, 2),
)
def test_rows_are_those_of_a_plain_model(
    rows: list[list[tuple[int, int, int]]], spare: int, dtype: Any, masks: bool, first_row: int
) -> None:
    values, pieces, model = laid_out(rows, dtype)
    width = max((sum(p[0] for p in row) for row in rows), default=0) + spare
    out = empty(pieces, width)
    longest = write_tokens(values, pieces, out, first_piece=5, first_row=first_row, masks=masks, padding=3)
    number, lengths, ends = 5, list[int](), [first_row * width]
    for r, row in enumerate(model):
        ids: list[int] = []
        labels: list[int] = []
        positions: list[int] = []
        documents: list[int] = []
        for piece, following in zip(row, [*row, None][1:], strict=True):
            count = len(piece) - 1
            last = piece[-1]
            if last == -1:
                last = -100 if masks or following is None else following[0]
            ids += piece[:count]
            labels += [*piece[1:count], last]
            positions += range(count)
            documents += [number] * count
            lengths.append(count)
            ends.append(ends[-1] + count)
            number += 1
        left = width - len(ids)
        ends += [ends[-1] + left] if left else []
        assert out.labels is not None
        assert out.positions is not None
        assert out.documents is not None
        assert out.ids[r].tolist() == ids + [3] * left
        assert out.labels[r].tolist() == labels + [-100] * left
        assert out.positions[r].tolist() == positions + [0] * left
        assert out.documents[r].tolist() == documents + [-1] * left
    assert out.lengths is not None
    assert out.ends is not None
    assert out.lengths.tolist() == lengths
    assert out.ends.tolist() == ends[1:]
    assert longest == max(np.diff(ends), default=0)


@settings(max_examples=examples(40))
@given(rows=ROWS, shape=st.sampled_from([(), (2,), (3, 2)]), dtype=st.sampled_from(["?", "f4", "u1", "i8"]))
def test_carried_columns_are_packed_as_the_tokens(
    rows: list[list[tuple[int, int, int]]], shape: tuple[int, ...], dtype: str
) -> None:
    values, pieces, _ = laid_out(rows, np.int64)
    width = max((sum(p[0] for p in row) for row in rows), default=0) + 2
    carried = np.random.default_rng(0).integers(0, 2, (len(values), *shape)).astype(dtype)
    tokens, out = empty(pieces, width), np.ones((len(rows), width, *shape), dtype)
    write_tokens(np.arange(len(values)), pieces, tokens, first_piece=0, first_row=0, masks=True, padding=-1)
    write_column(carried, pieces, out)
    if not len(values):
        assert not out.any()
        return
    expected = np.where((tokens.ids >= 0).reshape(len(rows), width, *[1] * len(shape)), carried[tokens.ids], 0)
    assert np.array_equal(out, expected.astype(dtype))


@pytest.mark.parametrize(
    "left_out", [{"labels"}, {"positions"}, {"documents"}, {"lengths"}, {"ends"}, set(TokenRows._fields) - {"ids"}]
)
def test_arrays_that_are_not_wanted_change_no_others(left_out: set[str]) -> None:
    rows = [[(3, 0, 1), (2, 1, 0)], [(4, 0, 0)], [], [(1, 0, 0), (5, 0, 2)]]
    values, pieces, _ = laid_out(rows, np.int32)
    whole = empty(pieces, 8)
    wanted: list[Any] = [None if n in left_out else a for n, a in zip(TokenRows._fields, empty(pieces, 8), strict=True)]
    some = TokenRows(*wanted)
    for out in (whole, some):
        write_tokens(values, pieces, out, first_piece=0, first_row=0, masks=False, padding=0)
    for name in set(TokenRows._fields).difference(left_out):
        assert np.array_equal(getattr(whole, name), getattr(some, name))


def test_some_of_the_rows_are_written_by_themselves() -> None:
    rows = [[(3, 0, 1), (2, 1, 0)], [(4, 0, 0)], [], [(1, 0, 0), (5, 0, 2)]]
    values, pieces, _ = laid_out(rows, np.uint16)
    some = pieces.between(1, 3)
    whole, part = empty(pieces, 8), empty(some, 8)
    write_tokens(values, pieces, whole, first_piece=0, first_row=0, masks=False, padding=0)
    write_tokens(values, some, part, first_piece=2, first_row=1, masks=False, padding=0)
    cut = whole.between(1, 3, slice(2, 3), slice(3, 6))
    for name in TokenRows._fields:
        assert np.array_equal(getattr(cut, name), getattr(part, name)), name
    column, carried = np.empty((2, 8), np.uint16), np.empty((4, 8), np.uint16)
    write_column(values, pieces.between(1, 3), column)
    write_column(values, pieces, carried)
    assert np.array_equal(carried[1:3], column)


def test_rows_of_several_batches_are_written_in_one_call() -> None:
    values, pieces, _ = laid_out([[(3, 0, 1), (2, 1, 0)], [(40, 0, 0)], [(1, 0, 0), (5, 0, 2)]], np.int32)
    whole, first, rest = empty(pieces, 41), empty(pieces.between(0, 1), 41), empty(pieces.between(1, 3), 41)
    write_tokens(values, pieces, whole, first_piece=0, first_row=0, masks=False, padding=0)
    tokens = TokenWriter(masks_boundaries=False, padding=0)
    tokens.add(values, pieces.between(0, 1), first, first_piece=0, first_row=0)
    tokens.add(values, pieces.between(1, 3), rest, first_piece=2, first_row=1)
    assert tokens.write() == [36, 40]
    for together, *apart in zip(whole, first, rest, strict=True):
        assert together is not None
        assert np.array_equal(together, np.concatenate([part for part in apart if part is not None]))
