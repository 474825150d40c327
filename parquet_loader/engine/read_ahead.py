"""Opens the next epoch while the last window of this one is consumed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from parquet_loader.common import IntArray
from parquet_loader.dataset import Dataset
from parquet_loader.plan import Division, Plan, plan_epoch


@dataclass(frozen=True, slots=True)
class NextPlan:
    """Computes the plan of an epoch from the data set; small values that can be sent between processes.

    Attributes:
        division: The rows of this rank.
        batch_size, drop_last, shuffle, seed, epoch: As in `plan_epoch`.
    """

    division: Division
    batch_size: int
    drop_last: bool
    shuffle: bool
    seed: int
    epoch: int

    def __call__(self, dataset: Dataset) -> Plan:
        """Return the plan."""
        return self._of_counts(dataset.counts, dataset.sizing.window_rows, dataset)

    def _of_counts(self, counts: IntArray, window_rows: int, dataset: Dataset) -> Plan:
        return plan_epoch(
            counts,
            window_rows=window_rows,
            open_row_groups=dataset.sizing.open_row_groups,
            division=self.division,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            shuffle=self.shuffle,
            seed=self.seed,
            epoch=self.epoch,
        )


class _Engine(Protocol):
    @property
    def is_sound(self) -> bool: ...
    def start_ahead(self, before: Any) -> None: ...
    def go_on_alone(self) -> None: ...
    def close(self) -> None: ...


E = TypeVar("E", bound=_Engine)


class ReadAhead(Generic[E]):
    """The engine of one epoch from its opening until the epoch begins; owned by the loader.

    Invariants:
        - A worker of the running epoch calls `begin`, at most once.
        - The engine is in `_made` from its start until its epoch calls `release`, or until `drop` has closed it.
        - After `drop` no engine is held. If a worker is still in `begin`, it closes the engine before it returns.
        - There is no lock, so a finaliser may call any method. Closing an engine twice does nothing.
        - Nothing here refers to the loader.

    Attributes:
        dataset, plan: As given.
        has_begun: Whether a worker has been given the job to open the engine.

    Args:
        dataset: The data set.
        plan: Computes the plan of the epoch.
        open_engine: Opens the engine of a plan; it starts no thread.
    """

    def __init__(self, dataset: Dataset, plan: NextPlan, open_engine: Callable[[Plan], E]) -> None:
        self.dataset = dataset
        self.plan = plan
        self.has_begun = False
        self._open_engine: Callable[[Plan], E] | None = open_engine
        self._made: list[E] = []
        self._is_over = False
        self._pid = os.getpid()

    @property
    def engine(self) -> E | None:
        """The engine, if it can begin its epoch now; it stays owned by this object until `release`."""
        made = tuple(self._made)
        return made[0] if made and self._pid == os.getpid() and made[0].is_sound else None

    def begin(self, before: E) -> None:
        """Plan the epoch, open its engine and let it read.

        Errors are dropped: the epoch opens an engine again when it begins, and raises them.

        Args:
            before: The engine of the running epoch.
        """
        open_engine, self._open_engine = self._open_engine, None
        if open_engine is None or self._is_over:
            return
        try:
            engine = open_engine(self.plan(self.dataset))
        except Exception:
            return
        try:
            engine.start_ahead(before)
        except Exception:
            engine.close()
            return
        self._made.append(engine)
        if self._is_over:
            self.drop()

    def go_on_alone(self) -> None:
        """Say that the running epoch has ended; does nothing in a forked child, where a lock may be held for ever."""
        for engine in tuple(self._made) if self._pid == os.getpid() else ():
            engine.go_on_alone()

    def release(self) -> None:
        """Hand the engine over to its epoch."""
        self._made.clear()  # first, so that a `begin` that is just ending finds nothing to close
        self._is_over = True
        self._open_engine = None

    def drop(self) -> None:
        """Close the engine, or prevent its opening; idempotent."""
        self._is_over = True
        self._open_engine = None
        for engine in tuple(self._made):
            engine.close()  # after a SIGINT in `close` the engine is still here, for the next call
        self._made.clear()
