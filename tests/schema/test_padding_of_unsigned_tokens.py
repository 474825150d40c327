"""Tokens of every unsigned dtype pad as tensors, in numpy and torch alike.

Each of these tests failed on commit 519114a, except the cases of uint8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from parquet_loader import Ragged

LARGEST = {"uint8": 2**8 - 1, "uint16": 2**16 - 1, "uint32": 2**32 - 1, "uint64": 2**64 - 1}


@pytest.mark.parametrize("dtype", list(LARGEST))
@pytest.mark.parametrize("length", [None, 1, 4])
def test_unsigned_tensors_pad_as_arrays_do(dtype: str, length: int | None) -> None:
    values = np.array([1, LARGEST[dtype], 3, 4], dtype)
    offsets = np.array([0, 3, 3, 4])
    arrays = Ragged(values, offsets)
    tensors: Any = Ragged(torch.from_numpy(values), torch.from_numpy(offsets))
    padded = tensors.to_padded(fill=2, length=length)
    assert padded.dtype == getattr(torch, dtype)
    assert padded.numpy().tolist() == arrays.to_padded(fill=2, length=length).tolist()


def test_rows_of_unsigned_vectors_pad() -> None:
    values = torch.arange(6).reshape(3, 2).to(torch.uint16)
    padded = Ragged(values, torch.tensor([0, 1, 3])).to_padded(fill=9)
    assert padded.numpy().tolist() == [[[0, 1], [9, 9]], [[2, 3], [4, 5]]]
