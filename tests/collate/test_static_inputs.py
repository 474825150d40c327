"""Batches copied into tensors of the caller."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from parquet_loader import BatchedDataLoader, ConfigurationError, OutputOptions, ParquetDataset, write_dataset


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> str:
    """1,000 rows: `id`, `x` of 8 float32, and `text`."""
    path = tmp_path_factory.mktemp("inputs") / "samples"
    ids = np.arange(1000)
    x = np.repeat(ids[:, None], 8, axis=1).astype(np.float32)
    write_dataset({"id": ids, "x": x, "text": [str(i) for i in ids]}, path)
    return str(path)


def tensors(rows: int = 64) -> dict[str, torch.Tensor]:
    return {"id": torch.zeros(rows, dtype=torch.int64), "x": torch.zeros(rows, 8)}


def loader_into(path: str, into: Any, **options: Any) -> BatchedDataLoader:
    output = OutputOptions(into=into, shuffle_on_device=options.pop("shuffle_on_device", False))
    return BatchedDataLoader(path, 64, shuffle=True, window_rows=300, device="cpu", output_options=output, **options)


@pytest.mark.parametrize("options", [{}, {"shuffle_on_device": True}, {"isolation": "process"}], ids=str)
def test_each_batch_is_in_the_same_tensors_and_the_last_in_their_first_rows(
    samples: str, options: dict[str, Any]
) -> None:
    into = tensors()
    with (
        loader_into(samples, into, **options) as loader,
        BatchedDataLoader(samples, 64, shuffle=True, window_rows=300) as plain,
    ):
        for _ in range(2):
            for batch, expected in zip(loader, plain, strict=True):
                rows = len(expected["id"])
                assert list(batch) == list(expected)
                for name, tensor in into.items():
                    assert batch[name].data_ptr() == tensor.data_ptr()
                    assert batch[name] is tensor or rows < 64
                    assert torch.equal(batch[name], expected[name])
                    assert torch.equal(tensor[:rows], expected[name])
                assert torch.equal(batch["text"].values, expected["text"].values)
        assert loader.state_dict() == plain.state_dict()


def test_a_tensor_that_requires_grad_is_filled(samples: str) -> None:
    into = {"x": torch.zeros(64, 8, requires_grad=True)}
    with loader_into(samples, into) as loader:
        batch = next(iter(loader))
        assert batch["x"] is into["x"]
        assert torch.equal(batch["x"][:, 0].detach().long(), batch["id"])


@pytest.mark.parametrize(
    ("into", "message"),
    [
        ({"y": torch.zeros(64)}, "column 'y' is not in the batch"),
        ({"text": torch.zeros(64)}, "column 'text' is a Ragged, not a tensor"),
        ({"id": torch.zeros(64)}, "column 'id' of a batch is torch.int64 [64], but the tensor is torch.float32 [64]"),
        ({"x": torch.zeros(64, 9)}, "torch.float32 [64, 8], but the tensor is torch.float32 [64, 9]"),
        ({"x": torch.zeros(63, 8)}, "with at least as many rows"),
    ],
)
def test_a_column_that_does_not_fit_is_named(samples: str, into: Any, message: str) -> None:
    with loader_into(samples, into) as loader, pytest.raises(ConfigurationError, match=re.escape(message)):
        next(iter(loader))


@pytest.mark.parametrize("into", [{"x": np.zeros((64, 8))}, {"x": torch.zeros(())}])
def test_only_tensors_with_rows_are_taken(samples: str, into: Any) -> None:
    with pytest.raises(ConfigurationError, match=re.escape("column 'x': expected a tensor of [batch_size, ...]")):
        loader_into(samples, into)


def test_other_formats_and_readers_of_rows_refuse_them(samples: str) -> None:
    with pytest.raises(ConfigurationError, match="expected a dict of tensors"):
        OutputOptions(format="numpy", into=tensors())
    with pytest.raises(ConfigurationError, match="expected a dict of tensors"):
        OutputOptions(into=[1])  # type: ignore[arg-type]
    with ParquetDataset(samples).rows() as rows, pytest.raises(ConfigurationError, match="are for loaders"):
        rows.take([1], output_options=OutputOptions(into=tensors()))


def test_worker_processes_refuse_them(samples: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.data, "get_worker_info", object)
    with (
        loader_into(samples, tensors()) as loader,
        pytest.raises(ConfigurationError, match="the tensors belong to another process"),
    ):
        next(iter(loader))


@pytest.mark.cuda
@pytest.mark.parametrize("options", [{}, {"shuffle_on_device": True}], ids=str)
def test_a_cuda_graph_reads_each_batch_from_its_inputs(samples: str, options: dict[str, Any]) -> None:
    ids, x = torch.zeros(50, dtype=torch.int64, device="cuda"), torch.zeros(50, 8, device="cuda")
    total = torch.zeros((), dtype=torch.float64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total += (x.double().mean(1) * 2 - ids).sum()
    total.zero_()
    output = OutputOptions(into={"id": ids, "x": x}, **options)
    with BatchedDataLoader(samples, 50, shuffle=True, window_rows=300, device="cuda", output_options=output) as loader:
        for batch in loader:
            assert batch["x"] is x
            graph.replay()
    assert total.item() == 1000 * 999 / 2
