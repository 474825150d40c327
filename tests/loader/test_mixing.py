"""The measure of mixing, against what it is defined to be; and the orders of others, against their own loops."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.mixing import (
    chi_square,
    chi_square_ratio,
    distance,
    petastorm_order,
    predicted_ratio,
    webdataset_order,
    windows_order,
)


def test_chi_square_is_that_of_each_batch_by_hand() -> None:
    order = np.array([0, 1, 2, 3, 4, 5, 6, 7])  # labels 0 0 1 1 2 2 3 3
    assert chi_square(order, 4, 4).tolist() == [4.0, 4.0]  # 2 2 0 0 instead of 1 1 1 1
    assert chi_square(order[[0, 2, 4, 6, 1, 3, 5, 7]], 4, 4).tolist() == [0.0, 0.0]


def test_a_full_shuffle_is_the_unit() -> None:
    order = np.random.default_rng(1).permutation(1_000_000)
    assert abs(chi_square_ratio(order, 1000, 1000) - 1) < 0.01
    assert abs(distance(order) - 1 / 3) < 0.01
    assert chi_square_ratio(np.arange(1_000_000), 1000, 1000) > 900
    assert distance(np.arange(1000)) == 0.0


@pytest.mark.parametrize("size", [1, 7, 100, 1000, 5000])
def test_every_order_holds_each_row_once(size: int) -> None:
    rows = list(range(2000))
    assert sorted(windows_order(20, 100, max(10, size), 1, 10)) == rows
    assert sorted(windows_order(4, 500, max(10, size), 4, 10)) == rows
    assert sorted(petastorm_order(20, 100, size, 10)) == rows
    assert sorted(webdataset_order(20, 100, size)) == rows


def test_a_buffer_of_one_changes_nothing_but_row_groups() -> None:
    order = webdataset_order(20, 100, 1).reshape(20, 100)
    assert (np.diff(order, axis=1) == 1).all()
    assert sorted(order[:, 0] // 100) == list(range(20))


def test_webdatasets_order_is_that_of_its_own_loop() -> None:
    """The same picks, by the loop as WebDataset has it."""
    for bufsize in (2, 5, 64, 300):
        rng = np.random.default_rng(0)
        groups = rng.permutation(6).tolist()
        data = [row for group in groups for row in range(group * 50, group * 50 + 50)]
        picks = rng.integers(0, bufsize, len(data) - bufsize + 1).tolist()
        buffer, found = data[: bufsize - 1], []
        for sample, k in zip(data[bufsize - 1 :], picks, strict=True):
            buffer.append(sample)
            found.append(buffer[k])
            buffer[k] = buffer[-1]
            buffer.pop()
        order = webdataset_order(6, 50, bufsize).tolist()
        assert order[: len(found)] == found
        assert sorted(order[len(found) :]) == sorted(buffer)


@pytest.mark.parametrize("windows", [4, 10, 50])
def test_the_ratio_of_windows_follows_from_their_runs(windows: int) -> None:
    rows, labels, batch_size = 1_000_000, 1000, 500  # a label is a row group is a run
    order = windows_order(1000, 1000, rows // windows, 1, batch_size)
    found = chi_square_ratio(order, labels, batch_size)
    assert abs(found / predicted_ratio(rows, rows // windows, 1000, batch_size) - 1) < 0.05


def test_larger_windows_mix_better() -> None:
    ratios = [chi_square_ratio(windows_order(200, 1000, rows, 1, 100), 100, 100) for rows in (2000, 20_000, 200_000)]
    assert ratios[0] > ratios[1] > ratios[2]
    assert abs(ratios[2] - 1) < 0.05
