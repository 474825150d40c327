"""Makes a `tf.data.Dataset` from a loader's windows; TensorFlow itself cuts them into batches.

Python runs twice for each window instead of once for each batch. TensorFlow counts the batches that it has cut in a
variable. The loader reads it, so that its state is exact.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from parquet_loader.collate.numpy_output import ArrayOutput
from parquet_loader.collate.output import Batch, Output
from parquet_loader.collate.tf_functions import flat_mapped, generated, mapped
from parquet_loader.collate.tf_output import ALIGNMENT
from parquet_loader.common import starting_threads
from parquet_loader.engine import ProcessedBatch
from parquet_loader.window import Allocator, Window


class Part:
    """Stands for a batch of a window.

    Attributes:
        first: The first batch of `batches` to cut.
        batches: Arrays ``[batches, rows, ...]`` by name, from which TensorFlow cuts this batch and those after it; None
            if an earlier part had them.
    """

    __slots__ = ("batches", "first", "rows")

    def __init__(self, rows: int, batches: Batch | None = None, first: int = 0) -> None:
        self.rows = rows
        self.batches = batches
        self.first = first

    def __len__(self) -> int:
        """Return the rows of the batch."""
        return self.rows


class WindowOutput(ArrayOutput):
    """Windows of columns of one width, for TensorFlow to cut.

    The loader treats the parts of a window like batches. The first batch of a window is handed over alone. So when the
    second one is requested, the batches of the previous window are released, as the engine requires.

    Args:
        pulled: Counts the batches of this epoch.
    """

    def __init__(self, pulled: EpochCount) -> None:
        super().__init__(None)
        self.pulled = pulled

    def from_window(self, window: Window, batch_size: int, copied_to: Allocator | None) -> Iterator[Any]:
        """Yield a part for each batch of a window."""
        assert copied_to is None
        arrays: dict[str, Any] = dict(window.arrays)
        full = window.rows // batch_size if all(map(_is_shared, arrays.values())) else 0
        if full > 1:
            cut = {name: a[: full * batch_size].reshape(full, batch_size, *a.shape[1:]) for name, a in arrays.items()}
            yield Part(batch_size, {name: batches[:1] for name, batches in cut.items()})
            yield Part(batch_size, cut, first=1)
            del cut
            yield from itertools.repeat(Part(batch_size), full - 2)
        for start in range(full * batch_size if full > 1 else 0, window.rows, batch_size):
            stop = min(start + batch_size, window.rows)
            yield Part(stop - start, {name: array[None, start:stop] for name, array in arrays.items()})

    def from_batch(self, batch: ProcessedBatch, copied_to: Allocator | None) -> Any:
        """Return the part of a processed batch."""
        arrays = super().from_batch(batch, copied_to)
        return Part(len(next(iter(arrays.values()))), {name: array[None] for name, array in arrays.items()})


BITS = 40


class EpochCount:
    """Counts the batches of one epoch that TensorFlow has cut; see `Pulled`.

    Args:
        counter: Counts for the data set.
        epoch: The number of this epoch; an even number, because odd ones mean that no epoch runs.
    """

    def __init__(self, counter: Counter, epoch: int) -> None:
        self.epoch = epoch
        self._counter = counter
        self._first = epoch << BITS
        self._ended: int | None = None

    @property
    def batches(self) -> int:
        """The number of batches so far."""
        ended = self._ended
        return self._counter.value() - self._first if ended is None else ended

    def cut(self) -> None:
        """End the epoch: further batches of it are an error."""
        if self._ended is None:
            self._ended = self.batches
            self._counter.set(self._first + (1 << BITS))


class Counter:
    """The variable of a data set: the number of the running epoch, and in the lower `BITS` bits of its batches.

    Any thread may call methods other than `begin`; each reads or writes the variable once.
    """

    def __init__(self) -> None:
        # In a thread without a strategy of `tf.distribute`, which would make a variable on each of its devices.
        with starting_threads("to_tf"), ThreadPoolExecutor(1, "parquet_loader-counter") as thread:
            self._variable = thread.submit(_zero).result()
        self._epochs = 0
        self._running: EpochCount | None = None
        self._last = 0

    def begin(self) -> EpochCount:
        """Begin an epoch, and end the previous one."""
        if self._running is not None:
            self._running.cut()
        self._epochs += 2
        self._running = EpochCount(self, self._epochs)
        self.set(self._epochs << BITS)
        return self._running

    def value(self) -> int:
        """Return the value of the variable; while the interpreter exits, the last value read."""
        if not sys.is_finalizing():
            with tf.init_scope():
                self._last = int(self._variable.numpy())
        return self._last

    def set(self, value: int) -> None:
        """Set the variable."""
        if not sys.is_finalizing():
            with tf.init_scope():
                self._variable.assign(value)

    def count(self, epoch: Any) -> None:
        """Count a batch of an epoch; traced by TensorFlow."""
        is_running = tf.bitwise.right_shift(self._variable, tf.constant(BITS, tf.int64)) == epoch
        checked = tf.raw_ops.Assert(
            condition=is_running,
            data=["to_tf: this iteration has ended, because another one began, or the loader was reset or closed"],
        )
        with tf.control_dependencies([checked]):
            self._variable.assign_add(1)


def _zero() -> tf.Variable:
    with tf.device("CPU:0"):
        return tf.Variable(0, dtype=tf.int64, trainable=False)


def dataset_of_windows(begin: Callable[[Output], Iterator[Any]], signature: Mapping[str, Any]) -> tf.data.Dataset:
    """Return a data set of batches, cut from windows; each of its iterators begins an epoch.

    Args:
        begin: Begins an epoch of parts.
        signature: The spec of each column: `tf.TensorSpec` of numbers.
    """
    counter = Counter()
    names = tf.nest.flatten({name: name for name in signature})  # in the order of TensorFlow
    specs = [signature[name] for name in names]

    def generate() -> Iterator[list[Any]]:
        pulled = counter.begin()
        for part in begin(WindowOutput(pulled)):
            if part.batches is not None:
                columns = [part.batches[name] for name in names]
                yield [np.asarray(part.first), np.full(len(columns[0]), pulled.epoch), *columns]
                del columns
            del part

    def cut(first: Any, *epochs_and_batches: Any) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(epochs_and_batches).skip(first)

    def count(epoch: Any, *batch: Any) -> Sequence[Any]:
        counter.count(epoch)
        return batch

    scalar, epochs = tf.TensorSpec((), tf.int64), tf.TensorSpec((None,), tf.int64)
    windows = generated(generate, (scalar, epochs, *(tf.TensorSpec((None, *s.shape), s.dtype) for s in specs)))
    return mapped(flat_mapped(windows, cut, (scalar, *specs)), count, dict(signature))


def _is_shared(array: Any) -> bool:
    """Return whether TensorFlow shares the memory of an array as a whole."""
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
        return False
    return bool(array.__array_interface__["data"][0] % ALIGNMENT == 0)
