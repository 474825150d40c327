"""A loader's batches as a `grain.IterDataset`, whose iterators have the loader's state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grain

from parquet_loader.collate.output import Batch


class LoaderIterDataset(grain.IterDataset):  # type: ignore[misc]
    """The batches of a loader; each iterator is the loader's next epoch.

    Args:
        begin: Begins the next epoch, or continues at the position that `set_state` chose.
        get_state: Returns the loader's state.
        set_state: Chooses the loader's position.
    """

    def __init__(
        self,
        begin: Callable[[], Iterator[Batch]],
        get_state: Callable[[], dict[str, Any]],
        set_state: Callable[[dict[str, Any]], None],
    ) -> None:
        super().__init__()
        self._begin = begin
        self._get_state = get_state
        self._set_state = set_state

    def __iter__(self) -> LoaderIterator:
        return LoaderIterator(self._begin, self._get_state, self._set_state)

    def __str__(self) -> str:
        return "LoaderIterDataset"


class LoaderIterator(grain.DatasetIterator):  # type: ignore[misc]
    """One epoch; arguments as in `LoaderIterDataset`. The epoch begins when its first batch is requested."""

    def __init__(
        self,
        begin: Callable[[], Iterator[Batch]],
        get_state: Callable[[], dict[str, Any]],
        set_state: Callable[[dict[str, Any]], None],
    ) -> None:
        super().__init__()
        self._begin = begin
        self._loader_state = get_state
        self._set_loader_state = set_state
        self._running: Iterator[Batch] | None = None

    def __next__(self) -> Batch:
        self._assert_not_closed()
        if self._running is None:
            self._running = self._begin()
        return next(self._running)

    def get_state(self) -> dict[str, Any]:
        """Return the position after the last batch delivered, as JSON values."""
        return self._loader_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state, with the next batch."""
        self._running = None
        self._set_loader_state(state)

    def close(self) -> None:
        """End the epoch; idempotent."""
        self._running = None
        super().close()
