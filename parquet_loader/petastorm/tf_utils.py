"""Readers as `tf.data.Dataset` and as tensors of a graph; needs tensorflow."""

from __future__ import annotations

import datetime as dt
import itertools
import warnings
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np

from parquet_loader.common import needs_package
from parquet_loader.petastorm.unischema import Unischema, UnischemaField, dtype_name

# Name of the operation that returns the size of the shuffling queue of `tf_tensors`.
RANDOM_SHUFFLING_QUEUE_SIZE = "random_shuffling_queue_size"

_TF_NAMES = {"uint16": "int32", "uint32": "int64", "str_": "string", "bytes_": "string", "Decimal": "string"}
_TF_NAMES |= {"datetime64": "int64", "bool": "bool"}
_WIDENED: dict[Any, Any] = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64}


def _tensorflow() -> Any:
    """Return the TensorFlow 1 interface, which Petastorm's scripts use and every release since 1.13 has."""
    with needs_package("tensorflow", "tensorflow is not installed: pip install tensorflow"):
        import tensorflow.compat.v1 as tf  # noqa: PLC0415
    return tf


def _tf_dtype(tf: Any, numpy_dtype: Any) -> Any:
    name = dtype_name(numpy_dtype)
    return tf.dtypes.as_dtype(_TF_NAMES.get(name, name))


def _sanitized(field: UnischemaField, value: Any) -> Any:
    """Return a value in a type that TensorFlow has: text as UTF-8, Decimals as text, times as ns since 1970.

    Raises:
        ValueError: it is None or holds nulls: NaT, or NaN in a field that does not hold floats.
    """
    if value is None:
        raise _null(field)
    if isinstance(value, Decimal):
        return str(value.normalize()).encode()
    if isinstance(value, dt.date):
        return int(np.datetime64(value, "ns").astype(np.int64))
    array = np.asarray(value)
    if array.dtype.kind == "M":
        if np.isnat(array).any():
            raise _null(field)
        return array.astype("M8[ns]").astype(np.int64)
    if array.dtype.kind == "U":  # `py_func` takes ASCII text only
        return np.array([text.encode() for text in array.ravel().tolist()], object).reshape(array.shape)
    if array.dtype.kind == "O":
        return np.array([_sanitized(field, v) for v in array.ravel()]).reshape(array.shape)
    dtype = array.dtype.newbyteorder("=")  # `py_func` ignores the byte order
    if dtype.kind == "f" and dtype_name(field.numpy_dtype).startswith(("int", "uint", "bool")):
        if np.isnan(array).any():  # integers with nulls, as pandas represents them
            raise _null(field)
        dtype = np.dtype(field.numpy_dtype)
    return array.astype(_WIDENED.get(dtype, dtype), copy=False)


def _null(field: UnischemaField) -> ValueError:
    return ValueError(f"field {field.name!r} holds None, which no tensor holds; leave such rows out with a predicate")


class _Form:
    """Flattens an item of a reader into a list of values, and restores its form from a list of tensors."""

    def __init__(self, tf: Any, reader: Any) -> None:
        schema, ngram = reader.schema, reader.ngram
        self._steps = range(min(ngram.fields), max(ngram.fields) + 1) if ngram else None
        self._views: list[Unischema] = (
            [schema] if self._steps is None else [ngram.get_schema_at_timestep(schema, step) for step in self._steps]
        )
        rows: tuple[int | None, ...] = (None,) if reader.batched_output else ()
        fields = [field for view in self._views for field in view.fields.values()]
        self.dtypes = [_tf_dtype(tf, field.numpy_dtype) for field in fields]
        self.shapes = [(*rows, *field.shape) for field in fields]
        self.signature = tuple(map(tf.TensorSpec, self.shapes, self.dtypes))

    def flat(self, item: Any) -> list[Any]:
        """Return the values of a row, a batch or an n-gram."""
        rows = [item] if self._steps is None else [item[step] for step in self._steps]
        pairs = zip(self._views, rows, strict=True)
        return [_sanitized(field, getattr(row, name)) for view, row in pairs for name, field in view.fields.items()]

    def named(self, *flat: Any) -> Any:
        """Return a namedtuple, or for an n-gram a dict of them by step."""
        left = iter(flat)
        found = [view.make_namedtuple_tf(*itertools.islice(left, len(view.fields))) for view in self._views]
        return found[0] if self._steps is None else dict(zip(self._steps, found, strict=True))


def make_petastorm_dataset(reader: Any) -> Any:
    """Return a `tf.data.Dataset` of a reader's rows or batches (namedtuples), or n-grams (dicts of them by step).

    A second iteration resets the reader, with a warning; `num_epochs` of the reader needs no pause in between.

    Raises:
        ConfigurationError: tensorflow is not installed.
    """
    tf = _tensorflow()
    form = _Form(tf, reader)

    def values() -> Iterator[tuple[Any, ...]]:
        if reader.last_row_consumed:
            warnings.warn(
                "the data set is read again from its beginning; with num_epochs= the reader does so without a pause",
                UserWarning,
                stacklevel=2,
            )
            reader.reset()
        for item in reader:
            yield tuple(form.flat(item))

    return tf.data.Dataset.from_generator(values, output_signature=form.signature).map(form.named)


def tf_tensors(reader: Any, shuffling_queue_capacity: int = 0, min_after_dequeue: int = 0) -> Any:
    """Return tensors of a TensorFlow 1 graph; each evaluation gives the next row, batch or n-gram.

    Args:
        reader: The reader; at its end, evaluation raises `OutOfRangeError`.
        shuffling_queue_capacity: Size of a `RandomShuffleQueue` in front of the tensors, which a queue runner fills;
            0: no queue.
        min_after_dequeue: Rows that stay in the queue.

    Raises:
        ConfigurationError: tensorflow is not installed.
        ValueError: a reader of batches with a shuffling queue.
    """
    tf = _tensorflow()
    if reader.batched_output and shuffling_queue_capacity > 0:
        raise ValueError("shuffling_queue_capacity is for rows, and this reader returns batches; pass 0")
    form = _Form(tf, reader)
    tensors = tf.py_func(lambda _: form.flat(next(reader)), [tf.constant(1)], form.dtypes)
    if shuffling_queue_capacity > 0:
        queue = tf.RandomShuffleQueue(shuffling_queue_capacity, min_after_dequeue, form.dtypes)
        queue.size(name=RANDOM_SHUFFLING_QUEUE_SIZE)
        tf.train.add_queue_runner(tf.train.QueueRunner(queue, [queue.enqueue(tensors)]))
        tensors = queue.dequeue()
    for tensor, shape in zip(tensors, form.shapes, strict=True):
        if tensor.get_shape().dims is None:
            tensor.set_shape(shape)
    return form.named(*tensors)
