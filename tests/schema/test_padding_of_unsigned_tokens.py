"""Tokens of every unsigned dtype pad as tensors, in numpy and torch alike, with a fill that their dtype can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from parquet_loader import ConfigurationError, Ragged

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


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        ("uint16", -100),
        ("uint8", -1),
        ("uint8", 256),
        ("int8", 200),
        ("int64", 0.5),
        ("int64", float("nan")),
        ("bool", 2),
    ],
)
def test_a_fill_that_the_dtype_cannot_hold_is_refused(library: str, dtype: str, fill: float) -> None:
    values, offsets = np.array([1, 0], dtype), np.array([0, 1, 2])
    ragged = Ragged(values, offsets) if library == "numpy" else Ragged(torch.tensor(values), torch.tensor(offsets))
    with pytest.raises(ConfigurationError, match=f"fill={fill} does not fit {dtype}; widen the values first") as caught:
        ragged.to_padded(fill=fill)
    if library == "torch":  # the message says how: that works
        wider = getattr(torch, str(caught.value).partition("ragged.to(torch.")[2].partition(")")[0])
        assert ragged.to(wider).to_padded(fill=fill).shape == (2, 1)


def test_the_fill_that_loss_functions_ignore_fits_after_widening() -> None:
    ragged = Ragged(torch.tensor([1, 2, 3], dtype=torch.uint16), torch.tensor([0, 1, 3]))
    assert ragged.to(torch.int64).to_padded(fill=-100).tolist() == [[1, -100], [2, 3]]
    assert ragged.to(torch.float32).to_padded(fill=float("nan")).isnan().sum() == 1


def indexed_and_padded(device: str) -> None:
    ragged = Ragged(torch.tensor([1, 2, 60_000, 4], dtype=torch.uint16), torch.tensor([0, 1, 3, 4])).to(device)
    for index in ([1, 0], torch.tensor([2, 1], device=device), slice(None, None, 2), ragged.lengths == 2):
        taken = ragged[index]
        assert taken.values.dtype == torch.uint16
        assert str(taken.values.device).startswith(device)
    assert [row.tolist() for row in ragged[[1, 0]].to("cpu").to_list()] == [[2, 60_000], [1]]
    assert Ragged.from_padded(ragged.to_padded(), ragged.lengths) == ragged
    assert Ragged.cat([ragged[:1], ragged[1:]]) == ragged


def test_rows_are_taken_where_torch_does_not_index_unsigned_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    getitem = torch.Tensor.__getitem__

    def refusing(tensor: torch.Tensor, index: Any) -> torch.Tensor:
        if isinstance(index, torch.Tensor) and tensor.dtype == torch.uint16:
            raise NotImplementedError("\"index_cuda\" not implemented for 'UInt16'")
        return getitem(tensor, index)

    monkeypatch.setattr(torch.Tensor, "__getitem__", refusing)
    indexed_and_padded("cpu")


@pytest.mark.cuda
def test_rows_of_unsigned_tokens_are_taken_and_padded_on_a_gpu() -> None:
    indexed_and_padded("cuda")
