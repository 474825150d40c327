"""`DataLoader`, `BatchedDataLoader` and `InMemBatchedDataLoader` over a `Reader`.

Random numbers come from torch's own generator, or from a seed drawn from it, so `torch.manual_seed` repeats an order.
"""

from __future__ import annotations

import decimal
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch.utils.data.dataloader import default_collate

from parquet_loader.common import IntArray, Stream, permutation

_NUMPY_DTYPES = {torch.bool, torch.float16, torch.float32, torch.float64, torch.uint8, torch.uint16, torch.uint32}
_NUMPY_DTYPES |= {torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64}
_WIDENED = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64, np.dtype(np.bool_): np.uint8}


def _sanitized(name: str, value: Any) -> Any:
    """Return a value in the type that Petastorm's loaders deliver: uint16 as int32, uint32 as int64, bool as uint8.

    Raises:
        TypeError: it is None, or an array of text or objects.
    """
    if value is None:
        raise TypeError(f"field {name!r} holds None, and a tensor has no nulls; fill them with a TransformSpec")
    if not isinstance(value, np.ndarray | np.generic):
        return value
    dtype = value.dtype
    if isinstance(value, np.ndarray) and dtype.kind in "SUO":
        raise TypeError(f"field {name!r} is an array of {dtype}, which no tensor holds; leave the field out")
    native = dtype if dtype.isnative else dtype.newbyteorder("=")
    delivered = _WIDENED.get(native, native)
    return value if delivered is dtype else value.astype(delivered)


def decimal_friendly_collate(batch: Sequence[Any]) -> Any:
    """Return samples as a batch, as torch's `default_collate` does; Decimals and text become lists."""
    first = batch[0]
    if isinstance(first, decimal.Decimal | str | bytes):
        return list(batch)
    if isinstance(first, Mapping):
        return {key: decimal_friendly_collate([sample[key] for sample in batch]) for key in first}
    if isinstance(first, Sequence):
        return [decimal_friendly_collate(samples) for samples in zip(*batch, strict=True)]
    if isinstance(first, np.ndarray | np.generic) and first.dtype.kind in "biufc" and first.dtype.isnative:
        kind, dtype, shape = type(first), first.dtype, first.shape
        if all(type(v) is kind and v.dtype == dtype and v.shape == shape for v in batch):
            # The same as `default_collate`, without a tensor for each array, and on this thread alone.
            return torch.from_numpy(np.stack(batch) if shape else np.array(batch))
    return default_collate(list(batch))


class LoaderBase:
    """Base of the loaders: one iteration at a time, each from the reader's beginning."""

    def __init__(self, reader: Any, batch_size: int, shuffling_queue_capacity: int) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size={batch_size!r}: expected a positive int")
        self.reader = reader
        self.batch_size = batch_size
        self.shuffling_queue_capacity = shuffling_queue_capacity
        self._in_iter: bool | None = None
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of one iteration.

        Raises:
            RuntimeError: another iteration has not ended, or the last one failed.
        """
        if self._error is not None:
            raise RuntimeError(f"the last iteration failed with {self._error!r}; make a new reader and loader")
        if self._in_iter:
            raise RuntimeError("an iteration over this loader has not ended; finish it, or make another loader")
        if self._in_iter is not None:
            self.reader.reset()
        self._in_iter = True
        try:
            yield from self._batches()
        except Exception as error:
            self._error = error
            raise
        finally:
            self._in_iter = False

    def _batches(self) -> Iterator[Any]:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()
        self.reader.join()


class DataLoader(LoaderBase):
    """Batches of a reader's rows, made by `collate_fn`.

    Args:
        reader: From `make_reader` or `make_batch_reader`; an iteration has its `num_epochs` epochs.
        batch_size: Rows of a batch; the last one of an iteration may have fewer.
        collate_fn: Makes a batch of a list of dicts.
        shuffling_queue_capacity: Size of the buffer from which rows are drawn at random; 0: no shuffling.
    """

    def __init__(
        self,
        reader: Any,
        batch_size: int = 1,
        collate_fn: Callable[[list[dict[str, Any]]], Any] = decimal_friendly_collate,
        shuffling_queue_capacity: int = 0,
    ) -> None:
        super().__init__(reader, batch_size, shuffling_queue_capacity)
        self.collate_fn = collate_fn

    def _batches(self) -> Iterator[Any]:
        batch: list[dict[str, Any]] = []
        for row in self._shuffled(self._rows()):
            batch.append(row)
            if len(batch) == self.batch_size:
                yield self.collate_fn(batch)
                batch = []
        if batch:
            yield self.collate_fn(batch)

    def _rows(self) -> Iterator[dict[str, Any]]:
        for item in self.reader:
            values = {name: _sanitized(name, value) for name, value in _as_dict(item).items()}
            if self.reader.batched_output:
                names = list(values)
                for row in zip(*values.values(), strict=True):
                    yield dict(zip(names, row, strict=True))
            else:
                yield values

    def _shuffled(self, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield rows drawn at random from a buffer, which runs empty at the end."""
        if self.shuffling_queue_capacity <= 0:
            yield from rows
            return
        waiting: list[dict[str, Any]] = []
        rng = random.Random(int(torch.randint(2**63 - 1, ())))
        for row in rows:
            waiting.append(row)
            if len(waiting) >= self.shuffling_queue_capacity:
                yield _drawn(waiting, rng)
        while waiting:
            yield _drawn(waiting, rng)


def _as_dict(item: Any) -> dict[str, Any]:
    if isinstance(item, dict):  # an n-gram: rows by step
        raise TypeError("the torch loaders take rows and batches; iterate over the reader itself for n-grams")
    found: dict[str, Any] = item._asdict()
    return found


def _drawn(waiting: list[Any], rng: random.Random) -> Any:
    """Remove a row at random, and put the last row into its slot."""
    position = int(rng.random() * len(waiting))
    waiting[position], waiting[-1] = waiting[-1], waiting[position]
    return waiting.pop()


class BatchedDataLoader(LoaderBase):
    """Batches as dicts of tensors, sliced and shuffled as tensors.

    Args:
        reader: As in `DataLoader`; all fields are numbers.
        batch_size: As in `DataLoader`.
        transform_fn: Makes a tensor of an array ``[rows, ...]``; default `torch.as_tensor`.
        shuffling_queue_capacity: Size of the pool from which batches are drawn at random; 0: no shuffling.
    """

    def __init__(
        self,
        reader: Any,
        batch_size: int = 1,
        transform_fn: Callable[[Any], torch.Tensor] | None = None,
        shuffling_queue_capacity: int = 0,
    ) -> None:
        super().__init__(reader, batch_size, shuffling_queue_capacity)
        self.transform_fn = transform_fn or torch.as_tensor

    def _batches(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yield batches of the rows that were read and not delivered.

        With shuffling, each chunk of new rows joins the rows left over in a pool. One permutation of the pool gives as
        many batches as leave `shuffling_queue_capacity` rows for the next chunk.
        """
        chunks = tensors_of(self.reader, self.transform_fn, max(self.batch_size, self.shuffling_queue_capacity))
        if self.shuffling_queue_capacity <= 0:
            yield from _in_order(chunks, self.batch_size)
            return
        kept = self.shuffling_queue_capacity - 1
        seed = int(torch.randint(2**63 - 1, ()))
        pool: dict[str, torch.Tensor] = {}
        for number, new in enumerate(chunks, 1):
            pool = _joined(pool, new)
            size = _rows_of(pool)
            if size < kept + self.batch_size:
                continue
            order = _permutation(pool, seed, number)
            whole = (size - kept) // self.batch_size * self.batch_size
            for begin in range(0, whole, self.batch_size):
                yield _taken(pool, order[begin : begin + self.batch_size])
            pool = _taken(pool, order[whole:])
        if pool:
            order = _permutation(pool, seed, 0)
            for begin in range(0, len(order), self.batch_size):
                yield _taken(pool, order[begin : begin + self.batch_size])


def _in_order(chunks: Iterator[dict[str, torch.Tensor]], batch_size: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield batches in the order of the chunks: views, except for batches that span two chunks."""
    left: dict[str, torch.Tensor] = {}
    for new in chunks:
        start = 0
        if left:
            start = min(_rows_of(new), batch_size - _rows_of(left))
            left = _joined(left, {name: rows[:start] for name, rows in new.items()})
            if _rows_of(left) < batch_size:
                continue
            yield left
        whole = start + (_rows_of(new) - start) // batch_size * batch_size
        yield from _cut(new, start, whole, batch_size)
        left = {name: rows[whole:] for name, rows in new.items()} if whole < _rows_of(new) else {}
    if left:
        yield left


def _rows_of(pool: Mapping[str, torch.Tensor]) -> int:
    return len(next(iter(pool.values()))) if pool else 0


def _joined(rows: Mapping[str, torch.Tensor], more: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([rows[name], column]) if rows else column for name, column in more.items()}


def _permutation(pool: Mapping[str, torch.Tensor], seed: int, number: int) -> IntArray:
    """Return a permutation of the rows, several times faster than `torch.randperm`."""
    return permutation(_rows_of(pool), seed, Stream.ROWS, 0, number)


def _taken(pool: Mapping[str, torch.Tensor], order: IntArray) -> dict[str, torch.Tensor]:
    return {name: _take(rows, order) for name, rows in pool.items()}


def _take(rows: torch.Tensor, order: IntArray) -> torch.Tensor:
    """Return rows in another order.

    numpy gathers rows in memory: torch divides the work among threads and waits for each, which takes up to a hundred
    times as long if the reader's threads use the cores.
    """
    if rows.is_cpu and rows.dtype in _NUMPY_DTYPES and not rows.requires_grad:
        return torch.from_numpy(rows.numpy().take(order, axis=0))
    return rows[torch.from_numpy(order).to(rows.device)]


def _cut(pool: Mapping[str, torch.Tensor], start: int, stop: int, size: int) -> Iterator[dict[str, torch.Tensor]]:
    for begin in range(start, stop, size):
        yield {name: rows[begin : min(begin + size, stop)] for name, rows in pool.items()}


def tensors_of(
    reader: Any, transform_fn: Callable[[Any], torch.Tensor], chunk_rows: int
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield a reader's batches, or `chunk_rows` of its rows at a time, as tensors ``[rows, ...]`` by name."""
    if reader.batched_output:
        for item in reader:
            yield {name: transform_fn(_sanitized(name, value)) for name, value in _as_dict(item).items()}
        return
    rows: list[dict[str, Any]] = []
    for item in reader:
        rows.append({name: _sanitized(name, value) for name, value in _as_dict(item).items()})
        if len(rows) == chunk_rows:
            yield _stacked(rows, transform_fn)
            rows = []
    if rows:
        yield _stacked(rows, transform_fn)


def _stacked(rows: list[dict[str, Any]], transform_fn: Callable[[Any], torch.Tensor]) -> dict[str, torch.Tensor]:
    found = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if isinstance(values[0], torch.Tensor):
            found[name] = transform_fn(torch.stack(values))
            continue
        try:
            array = np.stack([np.asarray(value) for value in values])
        except ValueError:
            raise TypeError(f"field {name!r}: the arrays of a batch have one shape, and these differ") from None
        if array.dtype.kind in "SUO":
            raise TypeError(f"field {name!r} is {array.dtype}, which no tensor holds; leave it out with schema_fields")
        found[name] = transform_fn(array)
    return found


class InMemBatchedDataLoader:
    """Batches of rows that are read once and kept in memory.

    Args:
        reader: Read and stopped when the loader is made.
        batch_size: As in `DataLoader`.
        transform_fn: As in `BatchedDataLoader`.
        num_epochs: Epochs in one iteration.
        seed: Of the order; each epoch has its own.
        rows_capacity: Most rows that are kept, with a warning if the reader has more; None: all.
        shuffle: Permute the rows of each epoch.
    """

    def __init__(
        self,
        reader: Any,
        batch_size: int = 1,
        transform_fn: Callable[[Any], torch.Tensor] | None = None,
        num_epochs: int = 1,
        seed: int = 0,
        rows_capacity: int | None = 1024,
        shuffle: bool = False,
    ) -> None:
        if rows_capacity is None and getattr(reader, "num_epochs", 1) is None:
            raise ValueError("InMemBatchedDataLoader: rows_capacity=None needs a reader that ends (num_epochs)")
        self._batch_size = batch_size
        self._num_epochs = num_epochs
        self._seed = seed
        self._shuffle = shuffle
        self._used = False
        self._rows = _loaded(reader, transform_fn or torch.as_tensor, rows_capacity)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yield the batches of all epochs, once.

        Raises:
            RuntimeError: it was iterated before.
        """
        if self._used:
            raise RuntimeError("InMemBatchedDataLoader is iterated once; num_epochs sets the number of epochs")
        self._used = True
        for epoch in range(self._num_epochs):
            rows = self._rows
            if self._shuffle and rows:
                generator = torch.Generator()
                generator.manual_seed(self._seed + epoch)
                rows = _taken(rows, torch.randperm(_rows_of(rows), generator=generator).numpy())
            for batch in _cut(rows, 0, _rows_of(rows), self._batch_size):
                yield batch if self._shuffle else {name: column.clone() for name, column in batch.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _loaded(
    reader: Any, transform_fn: Callable[[Any], torch.Tensor], rows_capacity: int | None
) -> dict[str, torch.Tensor]:
    chunks: list[dict[str, torch.Tensor]] = []
    count, is_endless = 0, getattr(reader, "num_epochs", 1) is None
    try:
        for chunk in tensors_of(reader, transform_fn, 1024):
            chunks.append(chunk)
            count += _rows_of(chunk)
            if rows_capacity is not None and count >= rows_capacity + (not is_endless):
                break
    finally:
        reader.stop()
        reader.join()
    if rows_capacity is not None and count > rows_capacity and not is_endless:
        warnings.warn(
            f"InMemBatchedDataLoader keeps rows_capacity={rows_capacity} rows, and the reader has more: "
            "the others are left out of every epoch; rows_capacity=None keeps all",
            stacklevel=3,
        )
    names = chunks[0] if chunks else ()
    return {name: torch.cat([chunk[name] for chunk in chunks])[:rows_capacity] for name in names}
