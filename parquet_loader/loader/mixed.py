"""`MixedLoader`: batches of several loaders by weight, in an order that is a pure function of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self, TypeAlias

import numpy as np

from parquet_loader.collate import Batch, epoch_sampler
from parquet_loader.common import IntArray, NotIndexed, check_int
from parquet_loader.errors import ConfigurationError, LoaderStateError, ResumeError, UnsupportedError
from parquet_loader.loader.batched import BatchedDataLoader

Stop: TypeAlias = Literal["first_exhausted", "all_exhausted", "repeat"]
MIXTURE_METHOD = "strides-1"
STATE_VERSION = 1


def mixture(batches: Mapping[str, int], weights: Mapping[str, float], stop: Stop) -> IntArray:
    """Return which loader gives each batch of an epoch: indices into `batches`, int64 ``[batches]``.

    Method ``strides-1``: batch ``k`` of a loader of weight ``w`` is due at ``(k + 1/2) / w``, and batches come in the
    order in which they are due, those due at once in the order of the loaders. So at any point each loader has given
    its share to within about a batch, in every epoch alike.

    Args:
        batches: Batches of each loader's epoch.
        weights: Share of each, in any unit.
        stop: As in `MixedLoader`.
    """
    lengths, shares = [batches[name] for name in batches], [weights[name] for name in batches]
    if not all(lengths):
        counts = [0] * len(lengths) if stop != "all_exhausted" else lengths
    elif stop == "first_exhausted":
        end = min((length + 0.5) / share for length, share in zip(lengths, shares, strict=True))
        counts = [_due_before(end, share, length) for length, share in zip(lengths, shares, strict=True)]
    elif stop == "repeat":
        end = max((length - 0.5) / share for length, share in zip(lengths, shares, strict=True))
        counts = [max(length, _due_before(end, share)) for length, share in zip(lengths, shares, strict=True)]
    else:
        counts = lengths
    due = np.concatenate([np.zeros(0), *((np.arange(n) + 0.5) / w for n, w in zip(counts, shares, strict=True))])
    given_by = np.repeat(np.arange(len(counts)), counts)
    schedule: IntArray = given_by[np.argsort(due, kind="stable")]
    return schedule


def _due_before(end: float, share: float, most: int | None = None) -> int:
    """Return how many batches of a share are due before `end`, at most so many."""
    count = max(0, int(end * share - 0.5) - 1)
    while (count + 0.5) / share < end and count != most:
        count += 1
    return count


class MixedLoader(NotIndexed):
    """Iterate over several loaders as one: each batch comes from one of them.

    The order is a function of the loaders' orders, the weights and the stopping rule, the same on all ranks (each
    loader divides its own rows), and a state names any place in it. One iterator at a time: a new
    one ends the one before. It owns the loaders: `close` closes them.

    Args:
        loaders: By name. Their batches may differ in columns and in size.
        weights: Share of batches of each, by name, greater than 0; they need not sum to 1.
        stop: When an epoch ends. ``"first_exhausted"``: before the first batch that a loader does not have; what is
            left of the others is left out. ``"all_exhausted"``: when all have given their epoch, each row once; those
            that are left share the rest. ``"repeat"``: when each has given its epoch at least once; those that have
            ended before begin their next one.
        named: Whether to deliver pairs of a loader's name and its batch.

    Raises:
        ConfigurationError: names or weights do not fit.
    """

    def __init__(
        self,
        loaders: Mapping[str, BatchedDataLoader],
        weights: Mapping[str, float],
        *,
        stop: Stop = "first_exhausted",
        named: bool = False,
    ) -> None:
        if not isinstance(loaders, Mapping) or not isinstance(weights, Mapping):
            raise ConfigurationError(
                "MixedLoader: expected two dicts, such as {'a': loader, 'b': other}, {'a': 3, 'b': 1}"
            )
        if not loaders or any(not isinstance(loader, BatchedDataLoader) for loader in loaders.values()):
            raise ConfigurationError(f"loaders={loaders!r:.80}: expected a BatchedDataLoader for each name")
        if any(loader._changes for loader in loaders.values()):
            raise UnsupportedError(
                "a SampleStore changes from epoch to epoch, so positions in a mixture would change too; mix loaders of "
                "fixed lists of files"
            )
        if set(weights) != set(loaders):
            raise ConfigurationError(
                f"weights: expected one for each of {sorted(loaders)}, found them for {sorted(weights)}"
            )
        for name, weight in weights.items():
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
                raise ConfigurationError(f"weights: {name!r} has {weight!r}: expected a number greater than 0")
        if stop not in ("first_exhausted", "all_exhausted", "repeat"):
            raise ConfigurationError(f"stop={stop!r}: expected 'first_exhausted', 'all_exhausted' or 'repeat'")
        self.loaders = dict(loaders)
        self._names = list(self.loaders)
        self._weights = {name: float(weights[name]) for name in self._names}
        self._stop: Stop = stop
        self._named = named
        self._schedule = mixture({name: len(loader) for name, loader in self.loaders.items()}, self._weights, stop)
        counts = np.bincount(self._schedule, minlength=len(self._names)).tolist()
        # Epochs of each loader that one epoch of all together begins.
        lengths = [max(1, len(loader)) for loader in self.loaders.values()]
        self._passes = [max(1, -(-count // length)) for count, length in zip(counts, lengths, strict=True)]
        self._next = (0, 0)
        self._at = (0, 0)
        self._is_placed = True
        self._is_running = False
        self._pass = 0

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self._schedule)

    def __repr__(self) -> str:
        shares = ", ".join(f"{name}: {weight:g}" for name, weight in self._weights.items())
        return f"MixedLoader({len(self)} batches of {shares}, stop={self._stop!r})"

    @property
    def sampler(self) -> Any:
        """An object with `set_epoch`, for trainers."""
        return epoch_sampler(self)

    @property
    def batch_sampler(self) -> None:
        """None, see `BatchedDataLoader.batch_sampler`."""
        return

    def set_epoch(self, epoch: int) -> None:
        """Choose the next epoch; if a batch of this epoch was chosen already, the loader stays at it."""
        check_int("epoch", epoch, 0, 2**62)
        if not self._is_placed or epoch != self._next[0]:
            self._place(epoch, 0)

    def seek(self, epoch: int, batch: int) -> None:
        """Start the next iteration at a batch of an epoch.

        Raises:
            ConfigurationError: the epoch has no such batch.
        """
        check_int("epoch", epoch, 0, 2**62)
        self._place(epoch, check_int("batch", batch, 0, max(0, len(self) - 1)))

    def _place(self, epoch: int, batch: int) -> None:
        self._next, self._is_placed = (epoch, batch), True

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch, or continue at the chosen batch, when the first batch is requested."""
        epoch, first = self._next
        self.reset()
        number = self._pass
        self._next, self._at, self._is_placed, self._is_running = (epoch + 1, 0), (epoch, first), False, True
        try:
            yield from self._deliver(epoch, first)
        finally:
            if number == self._pass:
                self._is_running = False

    def _deliver(self, epoch: int, first: int) -> Iterator[Any]:
        number = self._pass
        given = np.bincount(self._schedule[:first], minlength=len(self._names)).tolist()
        running: dict[int, Iterator[Batch]] = {}
        for at in range(first, len(self)):
            which = int(self._schedule[at])
            name = self._names[which]
            loader = self.loaders[name]
            inner, place = divmod(given[which], len(loader))
            if which not in running or not place:
                running.pop(which, None)
                loader.seek(epoch * self._passes[which] + inner, place)
                running[which] = iter(loader)
            batch = next(running[which])
            given[which] += 1
            self._at = (epoch, at + 1)
            yield (name, batch) if self._named else batch
            del batch  # or it would live on while the next one is awaited
            if number != self._pass:
                raise LoaderStateError(
                    f"epoch {epoch}, batch {at + 1}: iter(loader) was called again, or the MixedLoader was reset or "
                    "closed, which ended this iterator; loops that run at the same time need a MixedLoader each"
                )

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return the position as a dict of JSON values: the next batch, and the states of the loaders.

        As in `BatchedDataLoader`, it describes the epoch under way, or the last one until another position is chosen.

        Args:
            batches: Batches of this epoch that were used, if fewer than were delivered.
        """
        epoch, batch = self._at if self._is_running or not self._is_placed else self._next
        if batches is not None:
            batch = check_int("batches", batches, 0, len(self))
        if batch >= len(self) > 0:
            epoch, batch = epoch + 1, 0
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "batch": batch,
            "mixture": MIXTURE_METHOD,
            "weights": dict(self._weights),
            "stop": self._stop,
            "loaders": {name: loader.state_dict() for name, loader in self.loaders.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state.

        Raises:
            ResumeError: it is a state of other weights or loaders; says what differs.
        """
        if not isinstance(state, Mapping) or state.get("version") != STATE_VERSION or "loaders" not in state:
            raise ResumeError(f"expected what MixedLoader.state_dict() returned, found {state!r:.80}")
        self.reset()
        own = {"mixture": MIXTURE_METHOD, "weights": self._weights, "stop": self._stop, "loaders": self._names}
        theirs = {**state, "loaders": list(state["loaders"])}
        differing = [f"{n}: {theirs.get(n)!r} in the state, {v!r} here" for n, v in own.items() if theirs.get(n) != v]
        if differing:
            raise ResumeError(f"the state does not match this mixture: {'; '.join(differing)}; construct it as it was")
        for name, loader in self.loaders.items():
            try:
                loader.load_state_dict(state["loaders"][name])
            except ResumeError as error:
                raise ResumeError(f"loader {name!r}: {error}") from error
        epoch, batch = state.get("epoch"), state.get("batch")
        if not isinstance(epoch, int) or not isinstance(batch, int) or epoch < 0 or not 0 <= batch <= len(self):
            raise ResumeError(f"the state names epoch {epoch!r}, batch {batch!r}; an epoch has {len(self)} batches")
        self._place(epoch, batch)

    def reset(self) -> None:
        """End a running epoch."""
        self._pass += 1
        self._is_running = False
        for loader in self.loaders.values():
            loader.reset()

    def close(self) -> None:
        """End a running epoch, and close all loaders; idempotent."""
        self.reset()
        for loader in self.loaders.values():
            loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
