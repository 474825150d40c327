"""`WeightedSamplingReader`: draws from several readers, each with its own probability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np


class WeightedSamplingReader:
    """Draws rows or batches from several readers at random, until one of them ends.

    Args:
        readers: Two readers or more, of the same schema and kind.
        probabilities: One for each; scaled to a sum of one.
        seed: Seed of the draws; None: random.
    """

    def __init__(self, readers: Sequence[Any], probabilities: Sequence[float], seed: int | None = None) -> None:
        if len(readers) <= 1:
            raise ValueError(f"WeightedSamplingReader: expected two or more readers, found {len(readers)}")
        if len(readers) != len(probabilities):
            raise ValueError(f"WeightedSamplingReader: {len(probabilities)} probabilities for {len(readers)} readers")
        weights = np.asarray(probabilities, float)
        if (weights < 0).any() or not weights.sum() > 0:
            raise ValueError(f"WeightedSamplingReader: probabilities={probabilities}: one is negative, or all are zero")
        for reader in readers[1:]:
            if reader.batched_output != readers[0].batched_output:
                raise ValueError("WeightedSamplingReader: some readers return rows, and others batches")
            if (reader.ngram is None) != (readers[0].ngram is None) or reader.ngram != readers[0].ngram:
                raise ValueError("WeightedSamplingReader: the readers must have the same ngram")
            if list(reader.schema.fields.values()) != list(readers[0].schema.fields.values()):
                raise ValueError("WeightedSamplingReader: the readers must have the same schema")
        self._readers = list(readers)
        self._bounds = np.cumsum(weights / weights.sum())
        self._random = np.random.default_rng(seed)
        self.batched_output = readers[0].batched_output
        self.ngram = readers[0].ngram
        self.schema = readers[0].schema

    def __len__(self) -> int:
        return sum(len(reader) for reader in self._readers)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        chosen = int(np.searchsorted(self._bounds, self._random.random(), side="right"))
        return next(self._readers[min(chosen, len(self._readers) - 1)])

    def next(self) -> Any:
        """Return the next row or batch."""
        return self.__next__()

    @property
    def last_row_consumed(self) -> bool:
        """Whether a reader has ended."""
        return any(reader.last_row_consumed for reader in self._readers)

    def reset(self) -> None:
        """Reset the readers that have ended."""
        for reader in self._readers:
            if reader.last_row_consumed:
                reader.reset()

    def stop(self) -> None:
        """Stop all readers."""
        for reader in self._readers:
            reader.stop()

    def join(self) -> None:
        """Wait for the threads of all readers to end."""
        for reader in self._readers:
            reader.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.join()
