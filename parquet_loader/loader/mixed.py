"""`MixedLoader`: delivers batches of several loaders by weight, in a fixed order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypeAlias

import numpy as np

from parquet_loader.collate import Batch, Output, epoch_sampler, grain_dataset, keras_dataset, tf_dataset
from parquet_loader.common import IntArray, NotIndexed, check_int, is_number
from parquet_loader.errors import ConfigurationError, LoaderStateError, ResumeError, UnsupportedError
from parquet_loader.loader.batched import BatchedDataLoader, MixedPart, fields_of, mixed_part
from parquet_loader.loader.epochs.resumable_epochs import unchanged_on_error

if TYPE_CHECKING:
    import grain
    import keras
    import tensorflow as tf

Stop: TypeAlias = Literal["first_exhausted", "all_exhausted", "repeat"]
MIXTURE_METHOD = "strides-1"
STATE_VERSION = 1
# The most batches of an epoch, whose order takes about 32 bytes a batch while it is made.
_MOST_BATCHES = 10**8
# Weights from here to the inverse can be multiplied and divided by numbers of batches as floats.
_LEAST_WEIGHT = 1e-100
# A loader begins to read this many batches of the mixture before its first one.
_BEGUN_AHEAD = 100


def mixture(batches: Mapping[str, int], weights: Mapping[str, float], stop: Stop) -> IntArray:
    """Return the loader of each batch of an epoch: indices into `batches`, int64 ``[batches]``.

    Method ``strides-1``: batch ``k`` of a loader of weight ``w`` is due at time ``(k + 1/2) / w``. Batches are sorted
    by this time, then by the order of the loaders. So at any point each loader has delivered its share to within about
    one batch, and all epochs have the same order.

    Args:
        batches: Batches of each loader's epoch.
        weights: Weight of each loader; they need not sum to 1.
        stop: As in `MixedLoader`.

    Raises:
        ConfigurationError: The weights are so far apart that an epoch has more than `_MOST_BATCHES` batches.
    """
    lengths, shares = [batches[name] for name in batches], [weights[name] for name in batches]
    if not all(lengths):
        counts = [0] * len(lengths) if stop != "all_exhausted" else lengths
    elif stop == "first_exhausted":
        end = min((length + 0.5) / share for length, share in zip(lengths, shares, strict=True))
        counts = [_due_before(end, share, length) for length, share in zip(lengths, shares, strict=True)]
    elif stop == "repeat":
        end = max((length - 0.5) / share for length, share in zip(lengths, shares, strict=True))
        if end * sum(shares) > _MOST_BATCHES:
            raise ConfigurationError(
                f"stop='repeat': with weights={dict(weights)}, an epoch would have more than {_MOST_BATCHES:,} batches "
                "until each loader has delivered its own; choose weights that are less far apart"
            )
        counts = [max(length, _due_before(end, share)) for length, share in zip(lengths, shares, strict=True)]
    else:
        counts = lengths
    due = np.concatenate([np.zeros(0), *((np.arange(n) + 0.5) / w for n, w in zip(counts, shares, strict=True))])
    given_by = np.repeat(np.arange(len(counts)), counts)
    schedule: IntArray = given_by[np.argsort(due, kind="stable")]
    return schedule


def staged(stages: Sequence[tuple[int, Mapping[str, float]]], names: Sequence[str]) -> IntArray:
    """Return the loader of each batch: indices into `names`, int64 ``[batches]``.

    Each stage is in the order of method ``strides-1``, as if its loaders had no end.
    """
    parts = [np.zeros(0, np.int64)]
    for steps, weights in stages:
        total = sum(weights.values())
        most = {name: int((steps + len(names)) * weight / total) + 1 for name, weight in weights.items()}
        counts = [min(steps, most.get(name, 0)) for name in names]
        due = [(np.arange(n) + 0.5) / weights[name] for n, name in zip(counts, names, strict=True) if n]
        given_by = np.repeat(np.arange(len(names)), counts)
        parts.append(given_by[np.argsort(np.concatenate(due), kind="stable")][:steps])
    return np.concatenate(parts)


def tempered(sizes: Mapping[str, int], temperature: float) -> dict[str, float]:
    """Return weights proportional to ``size ** (1 / temperature)``, which sum to 1.

    Raises:
        ConfigurationError: A weight is too small for a float.
    """
    try:
        powers = {name: float(size) ** (1 / temperature) for name, size in sizes.items()}
        weights = {name: power / sum(powers.values()) for name, power in powers.items()}
    except (OverflowError, ZeroDivisionError):
        weights = dict.fromkeys(sizes, 0.0)
    if not all(_LEAST_WEIGHT <= weight <= 1 for weight in weights.values()):
        raise ConfigurationError(
            f"temperature={temperature!r}: too small for sizes from {min(sizes.values()):,} to "
            f"{max(sizes.values()):,}, of which only the largest would be drawn; choose a larger one"
        )
    return weights


def _due_before(end: float, share: float, most: int | None = None) -> int:
    """Return the number of batches of a share that are due before `end`, at most `most`."""
    count = max(0, int(end * share - 0.5) - 1)
    while (count + 0.5) / share < end and count != most:
        count += 1
    return count


class _Reader:
    """Reads one loader of a mixture.

    A loader with ``on_error="skip"`` that has left out row groups of an epoch delivers other batches than its plan
    says. Then only the same iterator can continue that epoch, and a state names the row groups.
    """

    def __init__(self, loader: BatchedDataLoader, part: MixedPart) -> None:
        self._loader, self._part = loader, part
        self._batches: Iterator[Batch] | None = None
        self._output: type = type(None)
        self._position = (0, 0)
        self._left_out: dict[int, int] = {}

    @property
    def is_reading(self) -> bool:
        return self._batches is not None

    def is_at(self, position: tuple[int, int]) -> bool:
        """Whether the next batch is that of this epoch and number."""
        return self.is_reading and self._position == position

    def begin(self, position: tuple[int, int], output: Output | None) -> None:
        """Begin at an epoch and batch, in the format of an output or the loader's own; continue if it is there."""
        if self.is_at(position) and self._output is type(output):
            return
        self.left_out()
        self._loader.seek(*position)
        self._batches = iter(self._loader) if output is None else self._part.iterate(output)
        self._position, self._output = position, type(output)

    def next(self) -> Batch | None:
        """Return the next batch; None if the loader's epoch has ended early, because row groups were left out."""
        assert self._batches is not None
        epoch, batch = self._position
        self._position = epoch, batch + 1
        return next(self._batches, None)

    def left_out(self) -> dict[int, int]:
        """Return the numbers of row groups left out since `forget`, by epoch of the loader."""
        if self.is_reading and (count := self._part.left_out()):
            self._left_out[self._position[0]] = count
        return self._left_out

    def forget(self) -> None:
        """Forget the row groups left out of earlier epochs."""
        self._left_out = {}

    @property
    def is_shifted(self) -> bool:
        """Whether row groups were left out of the epoch that is being read."""
        return self.is_reading and self._position[0] in self.left_out()

    def end(self) -> None:
        """End the iterator, and not by garbage collection, which a traceback delays and which loses a SIGINT."""
        batches = self._batches
        self.drop()
        if isinstance(batches, Generator):
            batches.close()

    def drop(self) -> None:
        """Drop the iterator, which the loader has ended; another thread may still use it."""
        self.left_out()
        self._batches = None


class MixedLoader(NotIndexed):
    """Iterate over several loaders as one: each batch comes from one of them.

    The order is a function of the loaders' orders, the weights and the stopping rule. It is the same on all ranks (each
    loader divides its own rows), and a state can name any batch in it. There is one iterator at a time: a new one ends
    the previous one. The mixture owns the loaders: `close` closes them.

    Batches of `TokenLoader`s of one `length` and `batch_size` have the same number of tokens, so weights are shares of
    tokens. If they shuffle, their epochs may differ by a few batches, and so do those of the mixture.

    Args:
        loaders: The loaders by name. Their batches may differ in columns and in size.
        weights: Share of each loader's batches, by name, greater than 0; they need not sum to 1.
        temperature: Instead of `weights`: the share of a loader is proportional to ``size ** (1 / temperature)``. The
            size is the number of its rows, or of its tokens. With 1, shares are proportional to sizes; with a large
            number, they are nearly equal.
        stages: Instead of both: pairs of a number of batches and their weights, one after another; a loader without a
            weight delivers nothing in that stage. All stages together are one epoch. Loaders that end begin their next
            epoch, and continue from stage to stage and from epoch to epoch of the mixture.
        stop: When an epoch ends. ``"first_exhausted"``: when the next batch is due from a loader that has no more; the
            rest of the other loaders is left out. ``"all_exhausted"``: when all loaders have delivered their epoch,
            each row once; the remaining loaders share the end. ``"repeat"``: when each loader has delivered its epoch
            at least once; loaders that end earlier begin their next epoch.
        named: Whether to deliver pairs of a loader's name and its batch.

    Raises:
        ConfigurationError: names or weights do not fit.
    """

    def __init__(
        self,
        loaders: Mapping[str, BatchedDataLoader],
        weights: Mapping[str, float] | None = None,
        *,
        temperature: float | None = None,
        stages: Sequence[tuple[int, Mapping[str, float]]] | None = None,
        stop: Stop = "first_exhausted",
        named: bool = False,
    ) -> None:
        _check_loaders(loaders, weights)
        self.loaders = dict(loaders)
        self._names = list(loaders)
        self._parts = {name: mixed_part(loader) for name, loader in loaders.items()}
        for name, part in self._parts.items():
            if part.changes:
                raise UnsupportedError(
                    f"loader {name!r}: a SampleStore, or a table with follow=True, changes from epoch to epoch, so "
                    "positions in a mixture would change too; mix loaders of fixed lists of files"
                )
        self._steps_differ = any(part.steps_differ for part in self._parts.values())
        if self._steps_differ and stop == "repeat" and stages is None:
            raise UnsupportedError(
                "stop='repeat': epochs of a shuffled TokenLoader may differ by a few batches, so positions in a "
                "mixture would change; pass stages=[(steps, weights)], which repeats loaders too"
            )
        if sum(given is not None for given in (weights, temperature, stages)) != 1:
            raise ConfigurationError("MixedLoader: give one of weights, temperature and stages")
        self._stages = None if stages is None else _checked_stages(stages, self._names)
        self._weights = _checked_weights(weights, temperature, self._parts)
        if stop not in ("first_exhausted", "all_exhausted", "repeat"):
            raise ConfigurationError(f"stop={stop!r}: expected 'first_exhausted', 'all_exhausted' or 'repeat'")
        self._stop: Stop = stop
        self._named = named
        if self._stages is not None:
            empty = [name for name in self._names if not len(self.loaders[name])]
            if any(name in weights for _, weights in self._stages for name in empty):
                raise ConfigurationError(f"stages: loader {empty[0]!r} has no batches; leave it out")
        self._forget_lengths()
        self._next = (0, 0)
        self._at = (0, 0)
        self._is_position_chosen = True
        self._is_running = False
        self._iteration = 0
        self._readers = [_Reader(loader, self._parts[name]) for name, loader in self.loaders.items()]

    def _forget_lengths(self) -> None:
        """Forget what follows from the number of batches of the loaders: those of a TokenLoader follow from windows."""
        self._scheduled: tuple[int, IntArray] | None = None
        self._begins: dict[str, list[int]] = {name: [0] for name in self._names}
        self.__dict__.pop("_given", None)

    @cached_property
    def _given(self) -> list[int]:
        """Batches of each loader in an epoch of the mixture, if all epochs have as many."""
        given: list[int] = np.bincount(self._schedule(0), minlength=len(self._names)).tolist()
        return given

    def _schedule(self, epoch: int) -> IntArray:
        """Return the loader of each batch of an epoch; epochs differ only if the epochs of a loader do."""
        epoch = epoch if self._steps_differ and self._stages is None else 0
        if self._scheduled is None or self._scheduled[0] != epoch:
            if self._stages is not None:
                made = staged(self._stages, self._names)
            else:
                lengths = {name: part.steps(epoch) for name, part in self._parts.items()}
                made = mixture(lengths, self._weights, self._stop)
            self._scheduled = epoch, made
        return self._scheduled[1]

    def _position_in(self, which: int, epoch: int, given: int) -> tuple[int, int]:
        """Return the epoch and batch of a loader that has delivered `given` batches in an epoch of the mixture."""
        name = self._names[which]
        loader = self.loaders[name]
        if self._stages is None:
            if self._steps_differ:
                return epoch, given
            epochs = -(-self._given[which] // len(loader))  # of the loader in one of the mixture
            return epoch * epochs + given // len(loader), given % len(loader)
        batch, part = epoch * self._given[which] + given, self._parts[name]
        if not part.steps_differ:
            length = len(loader)
            return batch // length, batch % length
        begins = self._begins[name]  # batches before each of its epochs
        while begins[-1] <= batch:
            begins.append(begins[-1] + part.steps(len(begins) - 1))
        inner = bisect_right(begins, batch) - 1
        return inner, batch - begins[inner]

    def __len__(self) -> int:
        """Return the number of batches of the epoch that `state_dict` names (at most, under ``on_error="skip"``)."""
        epoch, batch = self._place()
        length = len(self._schedule(epoch))
        is_over = batch >= length > 0 and not self._is_running
        return len(self._schedule(epoch + 1)) if is_over else length

    def _place(self) -> tuple[int, int]:
        """Return the epoch and batch of a state; the batch may be the one after the epoch's last."""
        return self._at if self._is_running or not self._is_position_chosen else self._next

    def __repr__(self) -> str:
        if self._stages is not None:
            return f"MixedLoader({len(self)} batches of {', '.join(self._names)} in {len(self._stages)} stages)"
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

    @property
    def dataset(self) -> NoReturn:
        """Raise `AttributeError`; trainers that ask for a number of rows catch it."""
        raise AttributeError(
            "MixedLoader: it has no `dataset`, and cannot be copied as a DataLoader, as accelerate.skip_first_batches "
            "does; call loader.seek(epoch, batch), and set ignore_data_skip=True for transformers' Trainer "
            "(docs/transformers.md)"
        )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; if a batch of this epoch is already chosen, the loader stays at it."""
        epoch = check_int("epoch", epoch, 0, 2**62)
        if not self._is_position_chosen or epoch != self._next[0]:
            self._set_position(epoch, 0)

    def seek(self, epoch: int, batch: int) -> None:
        """Start the next iteration at a batch of an epoch.

        Raises:
            ConfigurationError: The epoch has no such batch.
        """
        epoch = check_int("epoch", epoch, 0, 2**62)
        self._set_position(epoch, check_int("batch", batch, 0, max(0, len(self._schedule(epoch)) - 1)))

    def _set_position(self, epoch: int, batch: int) -> None:
        self._next, self._is_position_chosen = (epoch, batch), True

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch, or continue at the chosen batch, when the first batch is requested."""
        return self._iterate(None)

    def to_grain(self) -> grain.IterDataset:
        """Return a `grain.IterDataset` of the batches, dicts of numpy arrays; each iterator is the next epoch.

        `get_state` and `set_state` of its iterators are `state_dict` and `load_state_dict`. With `named` it delivers
        pairs of a loader's name and its batch.

        Raises:
            MissingPackageError: Grain is not installed.
        """
        return grain_dataset(self._iterate, self.state_dict, self.load_state_dict)

    def to_tf(self, *, output_signature: Mapping[str, Any] | None = None) -> tf.data.Dataset:
        """Return a `tf.data.Dataset` of the batches; each of its iterators begins the next epoch.

        If the loader is within an epoch, the data set is the rest of it, as with `BatchedDataLoader.to_tf`.

        Args:
            output_signature: A `tf.TensorSpec` or `tf.RaggedTensorSpec` for each column, if the loaders have different
                schemas or a `transform`. Otherwise the schema describes the columns.

        Raises:
            MissingPackageError: TensorFlow is not installed.
            ConfigurationError: A signature is missing, or is not needed.
            UnsupportedError: With `named`, a batch is a pair.
        """
        self._check_unnamed("to_tf")
        parts = list(self._parts.values())
        schemas = [part.schema() for part in parts]
        numbers = {part.row_numbers for part in parts}
        is_known = all(schema == schemas[0] for schema in schemas) and len(numbers) == 1
        epoch, first_batch = self._next
        is_counted = not (self._steps_differ or any(part.skips for part in parts))

        def begin(output: Output) -> Iterator[Batch]:
            if self._next[1] != first_batch:
                raise ConfigurationError(
                    f"to_tf: the data set begins at batch {first_batch} of an epoch, and the loader is at batch "
                    f"{self._next[1]}; call to_tf() again, after load_state_dict or seek, and after the rest of an "
                    "epoch"
                )
            return self._iterate(output)

        return tf_dataset(
            begin,
            fields_of(schemas[0] if is_known else None, output_signature),
            rows=None,
            row_numbers=numbers.pop(),
            cardinality=len(self._schedule(epoch)) - first_batch if is_counted else None,
            cuts_windows=False,  # because the states of the loaders count the batches that they deliver
        )

    def to_keras(self, select: Callable[[Batch], Any] | None = None) -> keras.utils.PyDataset:
        """Return a `keras.utils.PyDataset` of the batches, as `BatchedDataLoader.to_keras`.

        Args:
            select: Turns a batch of numpy arrays into the value for `fit`; None for the dict itself.

        Raises:
            MissingPackageError: Keras is not installed.
            UnsupportedError: Epochs may differ in their number of batches; or with `named`, a batch is a pair.
        """
        self._check_unnamed("to_keras")
        if any(part.skips for part in self._parts.values()):
            raise UnsupportedError(
                "to_keras: with on_error='skip' in a loader, an epoch may end early, but all epochs of a PyDataset "
                "have the same number of batches; leave on_error out, or iterate over the loader, and call "
                "train_on_batch"
            )
        if self._steps_differ:
            raise UnsupportedError(
                "to_keras: epochs of a shuffled TokenLoader may differ by a few batches, but all epochs of a "
                "PyDataset have the same number of batches; iterate over the loader, and call train_on_batch"
            )

        def begin(epoch: int, batch: int, output: Output) -> Iterator[Batch]:
            self.seek(epoch, batch)
            return self._iterate(output)

        return keras_dataset(begin, select, len(self._schedule(self._next[0])), self._next)

    def _check_unnamed(self, method: str) -> None:
        if self._named:
            raise UnsupportedError(f"{method}: with named=True batches are pairs of name and batch; leave named out")

    def _iterate(self, output: Output | None) -> Iterator[Any]:
        """Begin an epoch in the format of an output; None for the format of each loader."""
        epoch, first = self._next
        if self._is_running and not self._has_delivered_all:
            self.reset()
        self._end_readers()
        self._iteration += 1  # loaders at the end of their epochs keep what they have read of the next ones
        number = self._iteration
        self._next, self._at, self._is_position_chosen, self._is_running = (epoch + 1, 0), (epoch, first), False, True
        try:
            yield from self._deliver(epoch, first, output)
        finally:
            if number == self._iteration:
                self._is_running = False
                self._end_readers()

    def _deliver(self, epoch: int, first: int, output: Output | None) -> Iterator[Any]:
        number, schedule = self._iteration, self._schedule(epoch)
        given = np.bincount(schedule[:first], minlength=len(self._names)).tolist()

        def begun(which: int) -> _Reader:
            """Return a loader that is being read at its position."""
            self._readers[which].begin(self._position_in(which, epoch, given[which]), output)
            return self._readers[which]

        for reader in self._readers:
            reader.forget()
        for which in dict.fromkeys(schedule[first : first + _BEGUN_AHEAD].tolist()):
            begun(which)
        for at in range(first, len(schedule)):
            soon = int(schedule[min(at + _BEGUN_AHEAD, len(schedule) - 1)])
            if not self._readers[soon].is_reading:
                begun(soon)
            which = int(schedule[at])
            batch = begun(which).next()
            given[which] += 1
            self._at = (epoch, at + 1)
            if batch is None:
                continue
            yield (self._names[which], batch) if self._named else batch
            del batch  # so that it is not kept alive during the wait for the next one
            if number == self._iteration:
                continue
            if at + 1 < len(schedule):
                raise LoaderStateError(
                    f"epoch {epoch}, batch {at + 1}: iter(loader) was called again, or the MixedLoader was reset or "
                    "closed, which ended this iterator; loops that run at the same time need a MixedLoader each"
                )

    @property
    def _has_delivered_all(self) -> bool:
        """Whether the running or last epoch has delivered its last batch."""
        epoch, batch = self._at
        return batch >= len(self._schedule(epoch))

    def _end_readers(self) -> None:
        """End reading, except of loaders that the next epoch continues and cannot seek."""
        continues = self._stages is not None and self._has_delivered_all
        with ExitStack() as ends:
            for reader in self._readers:
                if not (continues and reader.is_shifted):
                    ends.callback(reader.end)

    @property
    def _identity(self) -> dict[str, Any]:
        """The values on which the order depends, in addition to the loaders."""
        if self._stages is not None:
            return {"stages": [[steps, dict(weights)] for steps, weights in self._stages]}
        return {"weights": dict(self._weights), "stop": self._stop}

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return the position as a dict of JSON values: the next batch, and the states of the loaders.

        As with `BatchedDataLoader`, it describes the running or last epoch until another position is chosen.

        Args:
            batches: Batches of this epoch that were used, if fewer than were delivered.
        """
        epoch, batch = self._place()
        length = len(self._schedule(epoch))
        if batches is not None:
            batch = check_int("batches", batches, 0, length)
        if batch >= length > 0:
            epoch, batch = epoch + 1, 0
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "batch": batch,
            "mixture": MIXTURE_METHOD,
            **self._identity,
            "loaders": self._loader_states(epoch, batch),
        }

    def _loader_states(self, epoch: int, batch: int) -> dict[str, dict[str, Any]]:
        """Return the states of the loaders, with the row groups left out of the epoch that each of them continues."""
        states = {name: loader.state_dict() for name, loader in self.loaders.items()}
        for state in states.values():
            state.pop("left_out", None)
        if any(reader.left_out() for reader in self._readers):
            given = np.bincount(self._schedule(epoch)[:batch], minlength=len(self._names)).tolist()
            is_chosen = self._is_position_chosen and not self._is_running
            for which, (reader, state) in enumerate(zip(self._readers, states.values(), strict=True)):
                inner, first = self._position_in(which, epoch, given[which])
                left_out = reader.left_out().get(inner)
                if left_out and first and (reader.is_at((inner, first)) or not is_chosen):
                    state["left_out"] = left_out
        return states

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state.

        Raises:
            ResumeError: The state belongs to other weights or loaders; the message names the difference.
        """
        is_state = isinstance(state, Mapping) and isinstance(state.get("loaders"), Mapping)
        if not is_state or state.get("version") != STATE_VERSION:
            raise ResumeError(f"expected a result of MixedLoader.state_dict(), found {state!r:.80}")
        self.reset()
        own = {"mixture": MIXTURE_METHOD, **self._identity, "loaders": self._names}
        theirs = {**state, "loaders": list(state["loaders"])}
        differing = [f"{n}: {theirs.get(n)!r} in the state, {v!r} here" for n, v in own.items() if theirs.get(n) != v]
        if differing:
            raise ResumeError(f"the state does not match this mixture: {'; '.join(differing)}; construct it as it was")
        with ExitStack() as undone_on_error:
            undone_on_error.callback(self._forget_lengths)  # after the loaders have their windows of before
            for name, loader in self.loaders.items():
                undone_on_error.enter_context(unchanged_on_error(loader))
                try:
                    loader.load_state_dict(state["loaders"][name])
                except ResumeError as error:
                    raise ResumeError(f"loader {name!r}: {error}") from error
            self._forget_lengths()
            epoch, batch = state.get("epoch"), state.get("batch")
            if not isinstance(epoch, int) or isinstance(epoch, bool) or not 0 <= epoch <= 2**62:
                raise ResumeError(f"the state names epoch {epoch!r}; expected a number from 0 on")
            length = len(self._schedule(epoch))
            if not isinstance(batch, int) or not 0 <= batch <= length:
                raise ResumeError(f"the state names batch {batch!r} of epoch {epoch}; expected one from 0 to {length}")
        self._set_position(epoch, batch)

    def reset(self) -> None:
        """End a running epoch."""
        self._iteration += 1
        self._is_running = False
        for loader, reader in zip(self.loaders.values(), self._readers, strict=True):
            loader.reset()
            reader.drop()

    def close(self) -> None:
        """End a running epoch, and close all loaders; idempotent."""
        self.reset()
        for loader in self.loaders.values():
            loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_loaders(loaders: Any, weights: Any) -> None:
    """Check that each name has a loader of its own; raises as `MixedLoader` does."""
    if not isinstance(loaders, Mapping) or not isinstance(weights, Mapping | None):
        raise ConfigurationError("MixedLoader: expected two dicts, such as {'a': loader, 'b': other}, {'a': 3, 'b': 1}")
    if not loaders or any(not isinstance(loader, BatchedDataLoader) for loader in loaders.values()):
        raise ConfigurationError(f"loaders={loaders!r:.80}: expected a BatchedDataLoader for each name")
    if not all(isinstance(name, str) for name in loaders):
        raise ConfigurationError(f"loaders={list(loaders)!r:.80}: expected names of text, which a state can hold")
    if len({id(loader) for loader in loaders.values()}) < len(loaders):
        raise ConfigurationError(
            "loaders: two names have the same loader, which has one iterator at a time; make a loader for each name"
        )


def _checked_weights(
    weights: Mapping[str, float] | None, temperature: float | None, parts: Mapping[str, MixedPart]
) -> dict[str, float]:
    """Return the weight of each loader, 1 if stages have weights of their own; raises as `MixedLoader` does."""
    if temperature is not None:
        if not is_number(temperature) or not temperature > 0:
            raise ConfigurationError(f"temperature={temperature!r}: expected a number greater than 0")
        weights = tempered({name: max(1, part.size()) for name, part in parts.items()}, float(temperature))
    if weights is None:
        weights = dict.fromkeys(parts, 1.0)
    if set(weights) != set(parts):
        raise ConfigurationError(
            f"weights: expected a weight for each of {sorted(parts)}, found weights for {sorted(weights)}"
        )
    for name, weight in weights.items():
        if not _is_weight(weight):
            raise ConfigurationError(
                f"weights: {name!r} has {weight!r}: expected a number greater than 0 (1e-100 to 1e100)"
            )
    return {name: float(weights[name]) for name in parts}


def _is_weight(value: Any) -> bool:
    return is_number(value) and _LEAST_WEIGHT <= float(value) <= 1 / _LEAST_WEIGHT


def _checked_stages(
    stages: Sequence[tuple[int, Mapping[str, float]]], names: Sequence[str]
) -> list[tuple[int, dict[str, float]]]:
    """Return stages of positive weights.

    Raises:
        ConfigurationError: The stages are malformed, or name a loader that does not exist.
    """
    found = []
    for number, stage in enumerate(stages):
        try:
            steps, weights = stage
            is_known = not set(weights) - set(names)
            shares = {
                name: float(weights[name])
                for name in names
                if name in weights and (_is_weight(weights[name]) or (is_number(weights[name]) and not weights[name]))
            }
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"stages[{number}]={stage!r:.80}: expected a number of batches and weights, such as "
                "(1000, {'web': 3, 'books': 1})"
            ) from error
        if not is_known or len(shares) < len(weights) or not any(shares.values()):
            raise ConfigurationError(
                f"stages[{number}]: weights={dict(weights)!r:.80}; expected 0 or numbers from 1e-100 to 1e100, not all "
                f"0, for some of {list(names)}"
            )
        steps = check_int(f"stages[{number}]: steps", steps, 1, _MOST_BATCHES)
        found.append((steps, {name: share for name, share in shares.items() if share}))
    if not found:
        raise ConfigurationError("stages=[]: expected at least one stage")
    total = sum(steps for steps, _ in found)
    if total > _MOST_BATCHES:
        raise ConfigurationError(
            f"stages: {total:,} batches in an epoch of the mixture; choose at most {_MOST_BATCHES:,}, because the next "
            "epoch continues at the position of each loader"
        )
    return found
