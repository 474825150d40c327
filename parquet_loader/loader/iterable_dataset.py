"""A loader as a `torch.utils.data.IterableDataset`, for trainers that want a `DataLoader` with worker processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from parquet_loader.collate import Batch
from parquet_loader.common import check_int
from parquet_loader.errors import ConfigurationError, ResumeError
from parquet_loader.loader.batched import BatchedDataLoader

MOST_WORKERS = 1024


class ParquetIterable(IterableDataset[Batch]):
    """The batches of a loader, for ``DataLoader(dataset, batch_size=None, num_workers=n)``.

    Without worker processes it is the loader. With some, each reads a part of this rank's rows, with a loader and
    background threads of its own and up to `memory_limit` of memory; together they deliver exactly as many rows and
    batches as the loader would, in another order. How workers are started does not matter.

    Each iteration is the next epoch, also if worker processes live for one epoch only: their count is kept in shared
    memory. `state_dict` and `load_state_dict` are those of the loader, with the worker; torchdata's
    `StatefulDataLoader` calls them in each worker.

    Args:
        loader: The loader; closing it is the caller's part.
    """

    def __init__(self, loader: BatchedDataLoader) -> None:
        if not isinstance(loader, BatchedDataLoader):
            raise ConfigurationError(
                f"ParquetIterable: found {loader!r:.80}; pass a loader, ParquetIterable(BatchedDataLoader(source, 64))"
            )
        self.loader = loader
        # The epoch that was set, and behind it how many passes each worker has begun since.
        self._passes = torch.zeros(1 + MOST_WORKERS, dtype=torch.int64).share_memory_()
        self._passes[0] = loader.state_dict()["epoch"]
        self._first_batch = 0

    def __len__(self) -> int:
        """Return the number of batches of an epoch, all workers together."""
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next epoch, in all workers."""
        self._passes[1:] = 0
        self._passes[0] = check_int("epoch", epoch, 0, 2**62)
        self.loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:
        """Begin the next epoch, or this worker's part of it; the iterator before this one ends.

        Raises:
            ConfigurationError: Accelerate hands rank 0's batches to all ranks, and the other ranks' rows would be lost.
        """
        self._check_not_dispatched()
        if get_worker_info() is None:
            return iter(self.loader)
        worker, workers = _worker()
        epoch = self._epoch_of(worker)
        self._passes[1 + worker] += 1
        first_batch, self._first_batch = self._first_batch, 0
        return self.loader._begin_part(epoch, first_batch, worker, workers)

    def _check_not_dispatched(self) -> None:
        accelerate = sys.modules.get("accelerate.state")
        if accelerate is None or self.loader.shard.world_size == 1:
            return
        active = accelerate.GradientState().active_dataloader
        if type(active).__name__ == "DataLoaderDispatcher" and active.dataset is self:
            raise ConfigurationError(
                "DataLoader(ParquetIterable): accelerator.prepare divides the rows of rank 0 again, and those of the "
                "other ranks would be lost; iterate over the DataLoader as it is, without prepare"
            )

    def _epoch_of(self, worker: int) -> int:
        return int(self._passes[0]) + int(self._passes[1 + worker])

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this worker; see `BatchedDataLoader.state_dict`."""
        state = self.loader.state_dict()
        if get_worker_info() is None:
            return state
        worker, workers = _worker()
        # A worker that has delivered its last batch stays in its epoch: others may not have.
        epoch, batch = self.loader._delivered or (self._epoch_of(worker), self._first_batch)
        return {**state, "epoch": epoch, "batch": batch, "worker": worker, "workers": workers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue this worker from a state.

        Raises:
            ResumeError: the state is another worker's, or as in `BatchedDataLoader.load_state_dict`.
        """
        if get_worker_info() is None:
            self.loader.load_state_dict(state)
            return
        worker, workers = _worker()
        own = {"worker": worker, "workers": workers}
        theirs = {name: state.get(name) for name in own}
        if theirs != own:
            raise ResumeError(
                f"the state is that of worker {theirs['worker']} of {theirs['workers']}, this is worker {worker} of "
                f"{workers}; resume with the same num_workers"
            )
        place = {name: value for name, value in state.items() if name not in own}
        epoch, self._first_batch = self.loader._accept_state(place)
        self._passes[1 + worker] = epoch - int(self._passes[0])


def _worker() -> tuple[int, int]:
    info = get_worker_info()
    if info is None:
        return 0, 1
    if info.num_workers > MOST_WORKERS:
        raise ConfigurationError(f"num_workers={info.num_workers}: expected at most {MOST_WORKERS}")
    return info.id, info.num_workers
