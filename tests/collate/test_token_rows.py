"""Rows of tokens, with labels, positions and carried columns, by the kernels and without them: as a plain model."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader.collate import (
    TOKEN_ROW_TYPES,
    TOKEN_TYPES,
    Pieces,
    TokenLine,
    WindowTokens,
    token_rows,
    write_column,
    write_token_rows,
)
from parquet_loader.collate.token_rows import TokenRows
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


class Written(NamedTuple):
    """Arrays in one memory, where each begins there, and the memory."""

    out: TokenRows
    places: list[int]
    memory: npt.NDArray[np.uint8]


def empty(pieces: Pieces, width: int, *, left_out: Collection[str] = ()) -> Written:
    count = len(pieces.rows) - 1
    sums = np.concatenate([[0], np.cumsum(pieces.tokens)])
    padded = np.count_nonzero(np.diff(sums[pieces.rows]) < width)
    number = int(pieces.rows[-1] - pieces.rows[0])
    shapes: list[tuple[int, ...]] = [*[(count, width)] * 4, (number,), (number + int(padded),)]
    places = list[int]()
    at = 0
    for name, shape, dtype in zip(TokenRows._fields, shapes, TOKEN_ROW_TYPES, strict=True):
        places.append(-1 if name in left_out else at)
        at += 0 if name in left_out else (int(np.prod(shape)) * dtype.itemsize + 63) // 64 * 64
    memory = np.full(at + 64, 77, np.uint8)
    arrays: list[Any] = [
        None if place < 0 else np.ndarray(shape, dtype, memory, place)
        for shape, dtype, place in zip(shapes, TOKEN_ROW_TYPES, places, strict=True)
    ]
    return Written(TokenRows(*arrays), places, memory)


def write_tokens(
    values: Any, pieces: Pieces, written: Written, *, first_piece: int = 0, first_row: int = 0, first: int = 0,
    masks: bool = False, padding: int = 0,
) -> int:  # fmt: skip
    count, width = written.out.ids.shape
    line = TokenLine(first, first + count, width, first_piece, first_row, *written.places)
    lines = [(WindowTokens(values, pieces), line)]
    (longest,) = write_token_rows(written.memory, lines, masks_boundaries=masks, padding=padding)
    return longest


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
    written = empty(pieces, width)
    out = written.out
    longest = write_tokens(values, pieces, written, first_piece=5, first_row=first_row, masks=masks, padding=3)
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
    written, out = empty(pieces, width), np.ones((len(rows), width, *shape), dtype)
    write_tokens(np.arange(len(values)), pieces, written, masks=True, padding=-1)
    tokens = written.out
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
    whole, some = empty(pieces, 8), empty(pieces, 8, left_out=left_out)
    for written in (whole, some):
        write_tokens(values, pieces, written)
    for name in set(TokenRows._fields).difference(left_out):
        assert np.array_equal(getattr(whole.out, name), getattr(some.out, name))
    assert (some.memory[-64:] == 77).all()


def test_some_of_the_rows_are_written_by_themselves() -> None:
    rows = [[(3, 0, 1), (2, 1, 0)], [(4, 0, 0)], [], [(1, 0, 0), (5, 0, 2)]]
    values, pieces, _ = laid_out(rows, np.uint16)
    some = pieces.between(1, 3)
    whole, part = empty(pieces, 8), empty(some, 8)
    write_tokens(values, pieces, whole)
    write_tokens(values, pieces, part, first=1, first_piece=2, first_row=1)
    chosen = *[slice(1, 3)] * 4, slice(2, 3), slice(3, 6)
    for name, of_whole, of_part, cut in zip(TokenRows._fields, whole.out, part.out, chosen, strict=True):
        assert of_whole is not None
        assert of_part is not None
        assert np.array_equal(of_whole[cut], of_part), name
    column, carried = np.empty((2, 8), np.uint16), np.empty((4, 8), np.uint16)
    write_column(values, pieces.between(1, 3), column)
    write_column(values, pieces, carried)
    assert np.array_equal(carried[1:3], column)


def test_rows_of_several_batches_are_written_in_one_call() -> None:
    values, pieces, _ = laid_out([[(3, 0, 1), (2, 1, 0)], [(40, 0, 0)], [(1, 0, 0), (5, 0, 2)]], np.int32)
    whole, first, rest = empty(pieces, 41), empty(pieces.between(0, 1), 41), empty(pieces.between(1, 3), 41)
    write_tokens(values, pieces, whole)
    memory = np.concatenate([first.memory, rest.memory])
    window, behind = WindowTokens(values, pieces), len(first.memory)
    lines = [
        (window, TokenLine(0, 1, 41, 0, 0, *first.places)),
        (window, TokenLine(1, 3, 41, 2, 1, *[behind + place for place in rest.places])),
    ]
    assert write_token_rows(memory, lines, masks_boundaries=False, padding=0) == [36, 40]
    first.memory[:], rest.memory[:] = memory[:behind], memory[behind:]
    for together, *apart in zip(whole.out, first.out, rest.out, strict=True):
        assert together is not None
        assert np.array_equal(together, np.concatenate([part for part in apart if part is not None]))
