"""Sampling weights: deliver recent files more often, or limit repeats; deterministic for a snapshot."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from parquet_loader.common import IntArray, check_int, is_number
from parquet_loader.errors import ConfigurationError
from parquet_loader.store.files.file_catalog import CatalogEntry
from parquet_loader.store.files.stored_file import StoredFile
from parquet_loader.store.settings import check_seconds

_MOST_COPIES = 1000


@dataclass(frozen=True, slots=True)
class Arrival:
    """The arguments of a weight function, for one file.

    Attributes:
        file: The file, with its delivery counts.
        age_s: Seconds between its publication and that of the newest file of the snapshot.
        age_epochs: Epochs of this loader since it first saw the file; 0 in the first one.
    """

    file: StoredFile
    age_s: float
    age_epochs: int


Weight: TypeAlias = Callable[[Arrival], float]


@dataclass(frozen=True, slots=True)
class RecentFirst:
    """Weight `newest` for the newest samples, halved with every half-life, never below `least`.

    Args:
        half_life_s: Half-life in seconds between publications. Give either this or `half_life_epochs`.
        half_life_epochs: Half-life in epochs of the loader.
        newest: How often the newest samples are delivered in an epoch, on average.
        least: The least weight of the oldest samples.
    """

    half_life_s: float | None = None
    half_life_epochs: float | None = None
    newest: float = 1.0
    least: float = 0.0

    def __post_init__(self) -> None:
        given = [n for n in ("half_life_s", "half_life_epochs") if getattr(self, n) is not None]
        if len(given) != 1:
            raise ConfigurationError("RecentFirst: expected half_life_s or half_life_epochs, and not both")
        object.__setattr__(self, given[0], check_seconds(given[0], getattr(self, given[0])))
        if not 0 <= self.least <= self.newest <= _MOST_COPIES or not self.newest > 0:
            raise ConfigurationError(
                f"RecentFirst(newest={self.newest!r}, least={self.least!r}): expected 0 <= least <= newest <= "
                f"{_MOST_COPIES}, and newest above 0"
            )

    def __call__(self, arrival: Arrival) -> float:
        """Return the weight of a file."""
        if self.half_life_s is not None:
            halvings = arrival.age_s / self.half_life_s
        else:
            halvings = arrival.age_epochs / (self.half_life_epochs or 1.0)
        return max(self.least, self.newest * float(0.5 ** max(0.0, halvings)))


@dataclass(frozen=True, slots=True)
class AtMost:
    """Deliver every sample once an epoch, until all readers together have received it `times` times.

    Deliveries of another reader that runs at the same time count after that reader's epoch has ended.
    """

    times: int

    def __post_init__(self) -> None:
        check_int("AtMost times", self.times, 1, 2**31)

    def __call__(self, arrival: Arrival) -> float:
        """Return the weight of a file."""
        return 1.0 if arrival.file.times_sampled < self.times else 0.0


def copies_of(
    weight: Weight, arrivals: Sequence[Arrival], files: Sequence[CatalogEntry], seed: int, epoch: int
) -> list[IntArray]:
    """Return how often each row group is read, int64 ``[row groups]`` for each file.

    A weight of 2.3 means two copies, and a third one for about three row groups in ten: those whose number, drawn by a
    hash of (seed, epoch, file, row group), is below 0.3. Neither random state nor a clock is used.

    Args:
        weight: Returns how often a file's rows are delivered, on average.
        arrivals: The arguments of `weight`.
        files: The files, in the same order.
        seed, epoch: The draws depend on them.

    Raises:
        ConfigurationError: A weight is not a number from 0 to 1000.
    """
    copies: list[IntArray] = []
    for arrival, known in zip(arrivals, files, strict=True):
        value = _checked(weight(arrival), arrival)
        whole = int(value)
        drawn = _uniform(f"{seed}/{epoch}/{arrival.file.name}", len(known.group_rows))
        copies.append(whole + (drawn < value - whole).astype(np.int64))
    return copies


def _checked(value: Any, arrival: Arrival) -> float:
    if not is_number(value) or not 0 <= value <= _MOST_COPIES:
        raise ConfigurationError(
            f"weights: the function returned {value!r} for {arrival.file.path}; expected a number from 0 to "
            f"{_MOST_COPIES}, how often its rows come in an epoch"
        )
    return float(value)


def _uniform(text: str, count: int) -> Any:
    """Return float64 ``[count]`` from 0 to 1 (exclusive)."""
    words = hashlib.shake_128(text.encode("utf-8")).digest(8 * count)
    return (np.frombuffer(words, "<u8") >> np.uint64(11)) * 2.0**-53
