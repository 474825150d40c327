"""`MixedLoader`: delivers batches of several loaders by weight, in an order that only the weights determine."""

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

    Method ``strides-1``: batch ``k`` of a loader of weight ``w`` is due at ``(k + 1/2) / w``. Batches are sorted by the
    time at which they are due; at equal times, in the order of the loaders. So at any point each loader has given its
    share to within about one batch, and all epochs have the same order.

    Args:
        batches: Batches of each loader's epoch.
        weights: Weight of each loader; they need not sum to 1.
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
    """Return how many batches of a share are due before `end`, at most `most`."""
    count = max(0, int(end * share - 0.5) - 1)
    while (count + 0.5) / share < end and count != most:
        count += 1
    return count


class MixedLoader(NotIndexed):
    """Iterate over several loaders as one: each batch comes from one of them.

    The order is a function of the loaders' orders, the weights and the stopping rule. It is the same on all ranks (each
    loader divides its own rows), and a state can name any batch in it. There is one iterator at a time: a new one ends
    the previous one. It owns the loaders: `close` closes them.

    Args:
        loaders: The loaders by name. Their batches may differ in columns and in size.
        weights: Share of each loader's batches, by name, greater than 0; they need not sum to 1.
        stop: When an epoch ends. ``"first_exhausted"``: when the next batch is due from a loader that has no more; the
            rest of the other loaders is left out. ``"all_exhausted"``: when all loaders have given their epoch, each
            row once; the remaining ones share the rest. ``"repeat"``: when each loader has given its epoch at least
            once; loaders that end earlier begin their next epoch.
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
        if any(loader._steps_differ for loader in loaders.values()):
            raise UnsupportedError(
                "epochs of a shuffled TokenLoader may differ by a few batches, so positions in a mixture would change; "
                "pass shuffle=False to it, or alternate between loaders in the training loop"
            )
        if set(weights) != set(loaders):
            raise ConfigurationError(
                f"weights: expected a weight for each of {sorted(loaders)}, found weights for {sorted(weights)}"
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
        # The number of epochs of each loader that one epoch of the mixture begins.
        lengths = [max(1, len(loader)) for loader in self.loaders.values()]
        self._epochs = [max(1, -(-count // length)) for count, length in zip(counts, lengths, strict=True)]
        self._next = (0, 0)
        self._at = (0, 0)
        self._is_position_chosen = True
        self._is_running = False
        self._iteration = 0

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
        if not self._is_position_chosen or epoch != self._next[0]:
            self._set_position(epoch, 0)

    def seek(self, epoch: int, batch: int) -> None:
        """Start the next iteration at a batch of an epoch.

        Raises:
            ConfigurationError: the epoch has no such batch.
        """
        check_int("epoch", epoch, 0, 2**62)
        self._set_position(epoch, check_int("batch", batch, 0, max(0, len(self) - 1)))

    def _set_position(self, epoch: int, batch: int) -> None:
        self._next, self._is_position_chosen = (epoch, batch), True

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch, or continue at the chosen batch, when the first batch is requested."""
        epoch, first = self._next
        self.reset()
        number = self._iteration
        self._next, self._at, self._is_position_chosen, self._is_running = (epoch + 1, 0), (epoch, first), False, True
        try:
            yield from self._deliver(epoch, first)
        finally:
            if number == self._iteration:
                self._is_running = False

    def _deliver(self, epoch: int, first: int) -> Iterator[Any]:
        number = self._iteration
        given = np.bincount(self._schedule[:first], minlength=len(self._names)).tolist()
        running: dict[int, Iterator[Batch]] = {}
        for at in range(first, len(self)):
            which = int(self._schedule[at])
            name = self._names[which]
            loader = self.loaders[name]
            inner, first_batch = divmod(given[which], len(loader))
            if which not in running or not first_batch:
                running.pop(which, None)
                loader.seek(epoch * self._epochs[which] + inner, first_batch)
                running[which] = iter(loader)
            batch = next(running[which])
            given[which] += 1
            self._at = (epoch, at + 1)
            yield (name, batch) if self._named else batch
            del batch  # so that it is not kept alive while the next one is awaited
            if number != self._iteration:
                raise LoaderStateError(
                    f"epoch {epoch}, batch {at + 1}: iter(loader) was called again, or the MixedLoader was reset or "
                    "closed, which ended this iterator; loops that run at the same time need a MixedLoader each"
                )

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return the position as a dict of JSON values: the next batch, and the states of the loaders.

        As in `BatchedDataLoader`, it describes the running or last epoch until another position is chosen.

        Args:
            batches: Batches of this epoch that were used, if fewer than were delivered.
        """
        epoch, batch = self._at if self._is_running or not self._is_position_chosen else self._next
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
            ResumeError: the state is of other weights or loaders; the message names the difference.
        """
        if not isinstance(state, Mapping) or state.get("version") != STATE_VERSION or "loaders" not in state:
            raise ResumeError(f"expected a result of MixedLoader.state_dict(), found {state!r:.80}")
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
            raise ResumeError(
                f"the state names epoch {epoch!r}, batch {batch!r}; expected a batch from 0 to {len(self)}"
            )
        self._set_position(epoch, batch)

    def reset(self) -> None:
        """End a running epoch."""
        self._iteration += 1
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
