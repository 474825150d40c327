"""`loader.sampler` for trainers: a torch sampler that passes `set_epoch` to the loader."""

from __future__ import annotations

from typing import Protocol

from torch.utils.data import SequentialSampler


class HasEpochs(Protocol):
    """A loader of batches."""

    def __len__(self) -> int:
        """Return the number of batches."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch."""


class EpochSampler(SequentialSampler):
    """Passes `set_epoch` to the loader; does not sample.

    It is a `SequentialSampler` because Lightning replaces all other samplers, which works only in a `DataLoader`.

    Args:
        loader: The loader whose epoch is set.
    """

    def __init__(self, loader: HasEpochs) -> None:
        super().__init__(loader)
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """Choose which epoch the next iteration of the loader is."""
        self._loader.set_epoch(epoch)
