"""A loader as a `torch.utils.data.IterableDataset`, for trainers that need a `DataLoader` with worker processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from parquet_loader.collate import Batch
from parquet_loader.common import check_int
from parquet_loader.errors import ConfigurationError, ResumeError, UnsupportedError
from parquet_loader.loader.batched import BatchedDataLoader, parts_of
from parquet_loader.loader.mixed import MixedLoader

MOST_WORKERS = 1024


class _WholeBatch(dict[str, Any]):
    """A batch that `default_collate` refuses to stack; copied, or sent by a worker process, it is a plain dict."""

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    @staticmethod
    def refuse(batches: Any, *, collate_fn_map: Any = None) -> Any:  # noqa: ARG004
        raise ConfigurationError(
            "DataLoader(ParquetIterable(loader)): batch_size=None is missing, so the DataLoader would stack batches; "
            "pass DataLoader(dataset, batch_size=None), because the loader already makes batches"
        )


default_collate_fn_map[_WholeBatch] = _WholeBatch.refuse


def _whole(output: Any) -> Any:
    if isinstance(output, tuple):  # of a `MixedLoader` that names them
        return output[0], _whole(output[1])
    return _WholeBatch(output) if type(output) is dict else output


class ParquetIterable(IterableDataset[Batch]):
    """The batches of a loader, for ``DataLoader(dataset, batch_size=None, num_workers=n)``.

    Without worker processes it delivers the loader's batches. With worker processes, each reads a part of this rank's
    rows with its own loader, background threads and up to `memory_limit` of memory. Together they deliver exactly as
    many rows and batches as the loader, in another order. All start methods of processes work.

    Each iteration is the next epoch, even if worker processes live only for one epoch: the count is in shared memory.
    `state_dict` and `load_state_dict` work as the loader's, and add the number of the worker; torchdata's
    `StatefulDataLoader` calls them in each worker.

    Args:
        loader: The loader; the caller closes it. A `MixedLoader` has no parts, so worker processes are refused.
    """

    def __init__(self, loader: BatchedDataLoader | MixedLoader) -> None:
        if not isinstance(loader, BatchedDataLoader | MixedLoader):
            raise ConfigurationError(
                f"ParquetIterable: expected a loader, as in ParquetIterable(BatchedDataLoader(source, 64)), found "
                f"{loader!r:.80}"
            )
        self.loader = loader
        loaders = loader.loaders.values() if isinstance(loader, MixedLoader) else [loader]
        self._has_ranks = any(part.shard.world_size > 1 for part in loaders)
        # The epoch set by the caller, followed by the number of epochs that each worker has begun since.
        self._epochs = torch.zeros(1 + MOST_WORKERS, dtype=torch.int64, device="cpu").share_memory_()
        self._epochs[0] = loader.state_dict()["epoch"]
        self._first_batch = 0

    def __len__(self) -> int:
        """Return the number of batches of an epoch, all workers together."""
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch, in all workers."""
        self._epochs[1:] = 0
        self._epochs[0] = check_int("epoch", epoch, 0, 2**62)
        self.loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:
        """Begin the next epoch, or this worker's part of it; the previous iterator ends.

        Raises:
            ConfigurationError: Accelerate sends rank 0's batches to all ranks, so the other ranks' rows would be lost;
                from the `DataLoader`, if ``batch_size=None`` is missing.
        """
        self._check_not_dispatched()
        if get_worker_info() is None:
            batches = map(_whole, iter(self.loader))
            return self._not_dispatched(batches) if self._has_ranks else batches
        loader, worker, workers = self._part()
        epoch = self._epoch_of(worker)
        self._epochs[1 + worker] += 1
        first_batch, self._first_batch = self._first_batch, 0
        return map(_whole, parts_of(loader).begin_part(epoch, first_batch, worker, workers))

    def _not_dispatched(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches, and check again: with `use_stateful_dataloader`, `iter` is called in `prepare`."""
        self._check_not_dispatched()
        yield from batches

    def _check_not_dispatched(self) -> None:
        accelerate = sys.modules.get("accelerate.state")
        if accelerate is None or not self._has_ranks:
            return
        active = accelerate.GradientState().active_dataloader
        if type(active).__name__ == "DataLoaderDispatcher" and active.dataset is self:
            raise ConfigurationError(
                "DataLoader(ParquetIterable): accelerator.prepare divides the rows of rank 0 over all ranks, so those "
                "of the other ranks are lost; iterate over the DataLoader itself, without prepare"
            )

    def _epoch_of(self, worker: int) -> int:
        return int(self._epochs[0]) + int(self._epochs[1 + worker])

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this worker; see `BatchedDataLoader.state_dict`."""
        state = self.loader.state_dict()
        if get_worker_info() is None:
            return state
        loader, worker, workers = self._part()
        # A worker that has delivered its last batch stays in its epoch, because other workers may not be done.
        epoch, batch = parts_of(loader).delivered or (self._epoch_of(worker), self._first_batch)
        return {**state, "epoch": epoch, "batch": batch, "worker": worker, "workers": workers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue this worker from a state.

        Raises:
            ResumeError: The state belongs to another worker; or as in `BatchedDataLoader.load_state_dict`.
        """
        if get_worker_info() is None:
            self.loader.load_state_dict(state)
            return
        loader, worker, workers = self._part()
        own = {"worker": worker, "workers": workers}
        theirs = {name: state.get(name) for name in own}
        if theirs != own:
            raise ResumeError(
                f"the state is that of worker {theirs['worker']} of {theirs['workers']}, this is worker {worker} of "
                f"{workers}; resume with the same num_workers"
            )
        loader_state = {name: value for name, value in state.items() if name not in own}
        epoch, self._first_batch = parts_of(loader).accept_state(loader_state)
        self._epochs[1 + worker] = epoch - int(self._epochs[0])

    def _part(self) -> tuple[BatchedDataLoader, int, int]:
        """Return the loader, the number of this worker process, and how many there are."""
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        if workers > MOST_WORKERS:
            raise ConfigurationError(f"num_workers={workers}: expected at most {MOST_WORKERS}")
        if isinstance(self.loader, MixedLoader):
            raise UnsupportedError(
                f"num_workers={workers}: worker processes cannot divide a MixedLoader; use num_workers=0, because the "
                "loaders read in the background anyway"
            )
        return self.loader, worker, workers
