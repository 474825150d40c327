"""`loader.sampler` for trainers: a torch sampler that passes `set_epoch` to the loader."""

from __future__ import annotations

from typing import Any

from torch.utils.data import SequentialSampler


class EpochSampler(SequentialSampler):
    """Passes `set_epoch` to the loader; does not sample.

    It is a `SequentialSampler` because Lightning replaces all other samplers, which works only in a `DataLoader`.

    Args:
        loader: The loader whose epoch is set; it has a length, the number of batches.
    """

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the loader's next iteration."""
        self._loader.set_epoch(epoch)
