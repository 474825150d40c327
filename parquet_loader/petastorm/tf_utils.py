"""Readers as `tf.data.Dataset` and as TensorFlow tensors; needs tensorflow."""

from __future__ import annotations

import datetime as dt
import importlib
import warnings
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np

from parquet_loader.errors import ConfigurationError
from parquet_loader.petastorm.unischema import Unischema, dtype_name

_TF_NAMES = {"uint16": "int32", "uint32": "int64", "str_": "string", "bytes_": "string", "Decimal": "string"}
_TF_NAMES |= {"datetime64": "int64", "bool": "bool"}


def _tensorflow() -> Any:
    try:
        return importlib.import_module("tensorflow")
    except ImportError as error:
        raise ConfigurationError("tensorflow is not installed: pip install tensorflow") from error


def _tf_dtype(tf: Any, numpy_dtype: Any) -> Any:
    name = dtype_name(numpy_dtype)
    return tf.dtypes.as_dtype(_TF_NAMES.get(name, name))


def _sanitized(name: str, value: Any) -> Any:
    """Return a value in a type that TensorFlow has: Decimals as text, times as nanoseconds since 1970."""
    if value is None:
        raise ValueError(f"field {name!r} holds None, which no tensor holds; leave such rows out with a predicate")
    if isinstance(value, Decimal):
        return str(value.normalize())
    if isinstance(value, dt.date):
        return int(np.datetime64(value, "ns").astype(np.int64))
    array = np.asarray(value)
    if array.dtype.kind == "M":
        return array.astype("M8[ns]").astype(np.int64)
    if array.dtype.kind == "O":
        return np.array([_sanitized(name, v) for v in array.ravel()]).reshape(array.shape)
    widened = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64}.get(array.dtype)
    return array if widened is None else array.astype(widened)


def _signature(tf: Any, schema: Unischema, *, batched: bool) -> tuple[Any, ...]:
    rows: tuple[int | None, ...] = (None,) if batched else ()
    fields = schema.fields.values()
    return tuple(tf.TensorSpec((*rows, *f.shape), _tf_dtype(tf, f.numpy_dtype)) for f in fields)


def make_petastorm_dataset(reader: Any) -> Any:
    """Return a `tf.data.Dataset` of a reader's rows or batches (namedtuples), or n-grams (dicts of them by step).

    A second pass over it begins the reader again, with a warning: `num_epochs` of the reader is the better way.
    """
    tf = _tensorflow()
    schema, ngram = reader.schema, reader.ngram
    steps = sorted(ngram.fields) if ngram else []
    views = [ngram.get_schema_at_timestep(schema, step) for step in steps] if ngram else [schema]
    batched = bool(reader.batched_output)

    def values() -> Iterator[tuple[Any, ...]]:
        if reader.last_row_consumed:
            warnings.warn(
                "the data set is read again from its beginning; num_epochs= of the reader says how often "
                "without a pause between",
                UserWarning,
                stacklevel=2,
            )
            reader.reset()
        for item in reader:
            rows = [item[step] for step in steps] if ngram else [item]
            yield tuple(_sanitized(name, value) for row in rows for name, value in row._asdict().items())

    def named(*flat: Any) -> Any:
        found, start = [], 0
        for view in views:
            stop = start + len(view.fields)
            found.append(view.make_namedtuple_tf(*flat[start:stop]))
            start = stop
        return dict(zip(steps, found, strict=True)) if ngram else found[0]

    signature = tuple(spec for view in views for spec in _signature(tf, view, batched=batched))
    return tf.data.Dataset.from_generator(values, output_signature=signature).map(named)


def tf_tensors(reader: Any, shuffling_queue_capacity: int = 0, min_after_dequeue: int = 0) -> Any:
    """Return tensors of a TensorFlow 1 graph that give the next row or batch each time they are evaluated.

    Raises:
        ValueError: a reader of batches, or of n-grams, with a shuffling queue.
    """
    tf = _tensorflow().compat.v1
    if reader.ngram:
        raise ValueError("tf_tensors takes no n-grams; make_petastorm_dataset does")
    if reader.batched_output and shuffling_queue_capacity > 0:
        raise ValueError("shuffling_queue_capacity is for rows, and this reader returns batches")
    schema = reader.schema
    dtypes = [_tf_dtype(tf, f.numpy_dtype) for f in schema.fields.values()]

    def take(_: Any) -> list[Any]:
        return [_sanitized(name, value) for name, value in next(reader)._asdict().items()]

    tensors = tf.py_func(take, [tf.constant(1)], dtypes)
    if shuffling_queue_capacity > 0:
        queue = tf.RandomShuffleQueue(shuffling_queue_capacity, min_after_dequeue, dtypes)
        queue.size(name="random_shuffling_queue_size")
        tf.train.add_queue_runner(tf.train.QueueRunner(queue, [queue.enqueue(tensors)]))
        tensors = queue.dequeue()
    rows: tuple[int | None, ...] = (None,) if reader.batched_output else ()
    for tensor, field in zip(tensors, schema.fields.values(), strict=True):
        if tensor.get_shape().dims is None:
            tensor.set_shape((*rows, *field.shape))
    return schema.make_namedtuple_tf(*tensors)
