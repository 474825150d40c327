"""Copies batches into tensors of the caller, such as the static inputs of a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from parquet_loader.collate.output import Batch
from parquet_loader.common import is_worker
from parquet_loader.errors import ConfigurationError

_WHERE = "OutputOptions(into=...)"


def check_inputs(into: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """Return the tensors; raise `ConfigurationError` if one of them is not a tensor with an axis of rows."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in into.items():
        if not isinstance(tensor, torch.Tensor) or not tensor.ndim:
            raise ConfigurationError(
                f"{_WHERE}: column {name!r}: expected a tensor of [batch_size, ...], got {tensor!r:.80}"
            )
        found[name] = tensor
    return found


def filled(batches: Iterator[Batch], into: Mapping[str, torch.Tensor]) -> Iterator[Batch]:
    """Copy columns of each batch into the caller's tensors when the batch is delivered; the batch holds these tensors.

    Copies are queued on the caller's current stream, behind kernels that read the previous batch. A batch with fewer
    rows than the tensors fills their first rows, and holds views of them.

    Raises:
        ConfigurationError: A column is absent, has rows of different lengths, or does not fit its tensor.
    """
    if is_worker():
        raise ConfigurationError(
            f"{_WHERE}: the tensors belong to another process; use num_workers=0, because the loader reads in the "
            "background anyway"
        )
    for batch in batches:
        for name, tensor in into.items():
            batch[name] = _filled(name, batch, tensor)
        yield batch
        del batch


@torch.no_grad()
def _filled(name: str, batch: Batch, tensor: torch.Tensor) -> torch.Tensor:
    column = batch.get(name)
    if not isinstance(column, torch.Tensor):
        found = "not in the batch" if column is None else f"a {type(column).__name__}, not a tensor"
        raise ConfigurationError(f"{_WHERE}: column {name!r} is {found}; leave it out of into")
    rows = len(column)
    expected = f"{column.dtype} [{rows}, {', '.join(map(str, column.shape[1:]))}]".replace(", ]", "]")
    if column.dtype != tensor.dtype or column.shape[1:] != tensor.shape[1:] or rows > len(tensor):
        raise ConfigurationError(
            f"{_WHERE}: column {name!r} of a batch is {expected}, but the tensor is {tensor.dtype} "
            f"{list(tensor.shape)}; pass one of this dtype and shape, with at least as many rows"
        )
    target = tensor if rows == len(tensor) else tensor[:rows]
    target.copy_(column)
    return target
