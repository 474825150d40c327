"""Gathers of rows and columns, with and without kernels, equal numpy's indexing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader.common import (
    KERNELS,
    RaggedOrder,
    copy_columns,
    join_columns,
    order_after,
    order_ragged,
    take_columns,
    take_ragged,
)
from parquet_loader.common.native import permute


@pytest.fixture(autouse=True, scope="module", params=["kernels", "without kernels"])
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "kernels" and KERNELS is None:
        pytest.skip("the kernels were not compiled: no C compiler at hand")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permute, "KERNELS", KERNELS if request.param == "kernels" else None)
        yield


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_columns_are_put_into_any_order(dtype: type[np.integer[Any]]) -> None:
    rng = np.random.default_rng(0)
    columns = [
        rng.integers(0, 256, (300, width)).astype(np.uint8)
        for width in (1, 2, 4, 8, 0, 3, 15, 16, 17, 52, 64, 104, 255)
    ]
    rows = rng.integers(0, 300, 500).astype(dtype)
    widths = np.array([column.shape[1] for column in columns])
    starts = np.concatenate([[0], np.cumsum(300 * widths + 5)])
    source, out = np.zeros(starts[-1], np.uint8), np.zeros(500 * (widths.sum() + 3), np.uint8)
    for column, start in zip(columns, starts, strict=False):
        source[start : start + column.size] = column.reshape(-1)
    ends = np.cumsum(500 * widths + 3)
    take_columns(source, starts[:-1], widths, rows, out, ends - 500 * widths, loaded_rows=300)
    for column, end in zip(columns, ends, strict=True):
        width = column.shape[1]
        assert np.array_equal(out[end - 500 * width : end].reshape(500, width), column[rows])
        assert not out[end - 500 * width - 3 : end - 500 * width].any()


@pytest.mark.parametrize("rows", [0, 1, 7, 300])
def test_the_first_rows_of_columns_are_copied(rows: int) -> None:
    rng = np.random.default_rng(0)
    widths = np.array([1, 4, 0, 52, 255])
    starts = np.concatenate([[0], np.cumsum(300 * widths + 5)])
    source, out = rng.integers(0, 256, starts[-1]).astype(np.uint8), np.zeros(rows * widths.sum() + 3, np.uint8)
    ends = np.cumsum(rows * widths)
    copy_columns(source, starts[:-1], widths, rows, out, ends - rows * widths)
    for start, width, end in zip(starts, widths, ends, strict=False):
        assert np.array_equal(out[end - rows * width : end], source[start : start + rows * width])
    assert not out[ends[-1] :].any()


@given(carried=st.integers(0, 300), count=st.integers(0, 2000), is_wide=st.booleans())
def test_carried_rows_come_before_the_order_of_others(carried: int, count: int, is_wide: bool) -> None:
    order = np.random.default_rng(count).permutation(count)
    indices = order_after(carried, order, 2**32 if is_wide else count)
    assert indices.dtype == (np.int64 if is_wide else np.uint32)
    assert indices.tolist() == [*range(carried), *(order + carried).tolist()]


@given(
    width=st.sampled_from([1, 2, 4, 8, 3, 17, 52]),
    count=st.integers(0, 400),
    before=st.integers(0, 70),
    is_large=st.booleans(),
)
def test_a_window_is_written_through_or_past_the_caches_wherever_it_begins(
    width: int, count: int, before: int, is_large: bool
) -> None:
    rng = np.random.default_rng(count)
    column = rng.integers(0, 256, (50, width)).astype(np.uint8)
    rows = rng.integers(0, 50, count).astype(np.uint32)
    memory = np.zeros(before + count * width + 64, np.uint8)
    begin, at = np.zeros(1, np.int64), np.array([before])
    take_columns(column.reshape(-1), begin, np.array([width]), rows, memory, at, is_large=is_large)
    assert np.array_equal(memory[before : before + count * width].reshape(count, width), column[rows])
    assert not memory[:before].any()
    assert not memory[before + count * width :].any()


@given(
    lengths=st.lists(st.sampled_from([0, 1, 7, 64, 300]), min_size=1, max_size=40),
    count=st.integers(0, 100),
    row_type=st.sampled_from([np.uint32, np.int64]),
)
def test_rows_that_differ_in_length_are_put_into_any_order(
    lengths: list[int], count: int, row_type: type[np.generic]
) -> None:
    rng = np.random.default_rng(count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    data = rng.integers(0, 256, offsets[-1] + 1).astype(np.uint8)
    numbers = rng.integers(0, len(lengths), 2 * len(lengths)).astype(np.uint32)  # rows overlap
    rows = rng.integers(0, len(numbers), count).astype(row_type)
    expected = [data[offsets[entry] : offsets[entry + 1]].tobytes() for entry in numbers[rows]]
    begins, starts = np.empty(count, np.int64), np.empty(count + 1, np.int64)
    order_ragged([RaggedOrder(offsets, numbers, begins, starts)], rows)
    assert starts.tolist() == [0, *np.cumsum([len(row) for row in expected])]
    out = np.full(starts[-1] + 9, 7, np.uint8)
    take_ragged(data, begins, starts, out)
    assert out[: starts[-1]].tobytes() == b"".join(expected)
    assert (out[starts[-1] :] == 7).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.int64])
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (70_000, 5), (4_003, 4), (1_234, 14)])
def test_columns_are_put_side_by_side(dtype: type[np.generic], shape: tuple[int, int]) -> None:
    expected = np.random.default_rng(0).integers(0, 256, (*shape, np.dtype(dtype).itemsize)).astype(np.uint8)
    matrix = expected.reshape(-1).view(dtype).reshape(shape)
    out = np.zeros(shape, dtype)
    join_columns([np.ascontiguousarray(matrix[:, number]) for number in range(shape[1])], out)
    assert out.tobytes() == matrix.tobytes()


def test_rows_of_more_bytes_than_are_taken_at_once_come_whole() -> None:
    lengths = np.array([0, 3 * 2**20, 5, 2**20, 0, 700_000, 400_000])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    data = np.random.default_rng(0).integers(0, 256, offsets[-1]).astype(np.uint8)
    rows = np.array([6, 5, 1, 4, 3, 2, 0, 0])
    places = np.concatenate([[0], np.cumsum(lengths[rows])])
    out = np.zeros(places[-1], np.uint8)
    take_ragged(data, offsets[rows], places, out)
    assert out.tobytes() == b"".join(data[offsets[row] : offsets[row + 1]].tobytes() for row in rows)
