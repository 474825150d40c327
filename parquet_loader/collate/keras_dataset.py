"""A loader's batches as a `keras.utils.PyDataset`, by their number in an epoch."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras

from parquet_loader.collate.output import Batch
from parquet_loader.errors import ConfigurationError, PerformanceWarning, UnsupportedError

# Keras requests up to this many batches to infer their structure before it trains.
MOST_LOOKED_AT = 2
_READS_AHEAD = "the loader reads in the background, with num_threads threads; leave it out"


class LoaderPyDataset(keras.utils.PyDataset):  # type: ignore[misc]
    """The batches of consecutive epochs; indices count from `first_batch`.

    Any thread may request batches. They are read in order; a request out of order begins an iteration at that batch.

    An epoch is over when each of its batches has been requested. `on_epoch_end` does not tell: Keras also calls it
    after it has inspected the first batches, and with `steps_per_epoch` at any batch.

    Args:
        begin: Begins an iteration at a batch of an epoch.
        select: Turns a batch into the value for Keras; None for the dict of arrays itself.
        batches: Batches of an epoch.
        epoch: The first epoch.
        first_batch: The first batch of that epoch. If it is not 0, the data set ends with this epoch.

    Raises:
        ConfigurationError: So few batches are left in the epoch that its end cannot be told from an inspection.
    """

    def __init__(
        self,
        begin: Callable[[int, int], Iterator[Batch]],
        select: Callable[[Batch], Any] | None,
        batches: int,
        epoch: int,
        first_batch: int,
    ) -> None:
        super().__init__()
        if first_batch and batches - first_batch <= MOST_LOOKED_AT:
            raise ConfigurationError(
                f"to_keras: epoch {epoch} has {batches - first_batch} batches left, which Keras may ask for more than "
                "once; train on them with train_on_batch(*batch) in a loop over the loader, and then call to_keras()"
            )
        self._begin = begin
        self._select = select
        self._batches = batches
        self._epoch = epoch
        self._first = first_batch
        self._lock = threading.Lock()
        self._running: Iterator[Batch] | None = None
        self._next = 0
        self._asked: set[int] = set()

    @property
    def workers(self) -> int:
        """1, because batches are read in order.

        Raises:
            UnsupportedError: More workers are set. Keras keeps what they read ahead for its next epoch, so the epochs
                of Keras and of the loader would differ, and rows would come twice or not at all.
        """
        return 1

    @workers.setter
    def workers(self, workers: int) -> None:
        if workers > 1:
            raise UnsupportedError(f"to_keras: workers={workers}: {_READS_AHEAD}")

    @property
    def use_multiprocessing(self) -> bool:
        """False, because batches are read in this process.

        Raises:
            UnsupportedError: It is set to True, as with `workers`.
        """
        return False

    @use_multiprocessing.setter
    def use_multiprocessing(self, uses: bool) -> None:
        if uses:
            raise UnsupportedError(f"to_keras: use_multiprocessing={uses}: {_READS_AHEAD}")

    def __len__(self) -> int:
        """Return the number of batches."""
        return self._batches - self._first

    def __getitem__(self, index: int) -> Any:
        """Return a batch of this epoch.

        Raises:
            ConfigurationError: The data set was the rest of an epoch, which is over.
        """
        with self._lock:
            if len(self._asked) == len(self) and self._first:
                raise ConfigurationError(
                    f"to_keras: the data set was the rest of an epoch, from batch {self._first} on; call to_keras() "
                    "again for the next epochs"
                )
            if len(self._asked) == len(self):
                self._epoch, self._running = self._epoch + 1, None
                self._asked.clear()
            if self._running is None or index != self._next:
                if index and self._running is not None:
                    warnings.warn(
                        "to_keras: batches are asked for out of order, and each reads its windows again; pass "
                        "shuffle=False to fit, because the loader shuffles the rows",
                        PerformanceWarning,
                        stacklevel=2,
                    )
                self._running = None
                self._running = self._begin(self._epoch, self._first + index)
            running, self._running = self._running, None  # after an error, the next request begins another iteration
            batch = next(running)
            self._running, self._next = running, index + 1
            self._asked.add(index)
        return batch if self._select is None else self._select(batch)
