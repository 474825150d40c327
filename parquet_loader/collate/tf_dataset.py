"""Makes a `tf.data.Dataset` from a loader's batches of numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from parquet_loader.collate.numpy_output import ArrayOutput
from parquet_loader.collate.output import Batch, Output
from parquet_loader.collate.tf_functions import generated
from parquet_loader.collate.tf_output import strings_of
from parquet_loader.collate.tf_windows import dataset_of_windows
from parquet_loader.errors import ConfigurationError
from parquet_loader.schema import (
    Audio,
    Bytes,
    Category,
    Encoded,
    Field,
    Group,
    Image,
    Ragged,
    RaggedList,
    Scalar,
    Tensor,
    Text,
    Video,
    companion_of,
    policy_of,
    unpacked_field,
)

Spec: TypeAlias = Any
"""A `tf.TensorSpec` or `tf.RaggedTensorSpec`."""


def dataset_of(
    begin: Callable[[Output], Iterator[Batch]],
    signature: Mapping[str, Spec],
    cardinality: int | None,
    *,
    cuts_windows: bool,
) -> tf.data.Dataset:
    """Return a data set of batches; each of its iterators begins an epoch.

    Batches, or the windows to cut them from, are pulled on request, so that the loader's state counts delivered
    batches: TensorFlow adds neither a prefetch nor a division over workers.

    Args:
        begin: Begins an epoch in the format of an output.
        signature: The spec of each column.
        cardinality: Batches of each epoch; None if unknown.
        cuts_windows: Whether TensorFlow cuts the batches from windows; for columns of numbers of one shape.
    """
    with tf.device("CPU:0"):
        found = dataset_of_windows(begin, signature) if cuts_windows else _dataset_of_batches(begin, signature)
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False  # no gain here, and a cost in each epoch
    options.experimental_optimization.inject_prefetch = False
    options.experimental_optimization.map_parallelization = False  # it would pull batches ahead
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    found = found.with_options(options)
    return found if cardinality is None else found.apply(tf.data.experimental.assert_cardinality(cardinality))


def _dataset_of_batches(begin: Callable[[Output], Iterator[Batch]], signature: Mapping[str, Spec]) -> tf.data.Dataset:
    columns = list(signature.items())
    leaves = {name: _leaf_specs(spec) for name, spec in columns}

    def generate() -> Iterator[list[Any]]:
        for batch in begin(ArrayOutput(None)):
            if batch.keys() != signature.keys():
                raise ConfigurationError(
                    f"to_tf: the batch has the columns {list(batch)}, output_signature has {list(signature)}"
                )
            yield tf.nest.flatten({name: _checked(name, batch[name], spec, leaves[name]) for name, spec in columns})
            del batch

    flat = generated(generate, leaves)
    if any(isinstance(specs, tuple) for specs in leaves.values()):
        return flat.map(tf.autograph.experimental.do_not_convert(_assembled))
    return flat


def has_one_width(schema: Mapping[str, Field]) -> bool:
    """Return whether all columns are numbers or arrays of one shape, which TensorFlow can cut from windows."""
    return all(isinstance(field, Scalar | Category | Tensor | Group) for field in schema.values())


def signature_of(schema: Mapping[str, Field], rows: int | None, row_numbers: str | None) -> dict[str, Spec]:
    """Return the specs of a loader's columns.

    Args:
        schema: The schema of batches.
        rows: Rows of each batch; None if they differ.
        row_numbers: The name of a column of row numbers.
    """
    found: dict[str, Spec] = {}
    for name, field in schema.items():
        found[name] = _spec(name, field, rows)
        companion = companion_of(name, field)
        if companion is not None and isinstance(field, Video):
            found[companion] = tf.TensorSpec((rows, *field.shape[:-3]), tf.float64)
        elif companion is not None:
            found[companion] = tf.TensorSpec((rows,), tf.int64)
        if policy_of(field) == "mask":
            shape = (rows, len(field.members)) if isinstance(field, Group) else (rows,)
            found[f"{name}_valid"] = tf.TensorSpec(shape, tf.bool)
    if row_numbers is not None:
        found[row_numbers] = tf.TensorSpec((rows,), tf.int64)
    return found


def _spec(name: str, field: Field, rows: int | None) -> Spec:
    shape, dtype, ragged_rank = _form(name, field)
    if ragged_rank:
        return tf.RaggedTensorSpec((rows, *shape), dtype, ragged_rank=ragged_rank)
    return tf.TensorSpec((rows, *shape), dtype)


def _form(name: str, field: Field) -> tuple[tuple[int | None, ...], Any, int]:
    """Return the shape of a row, the dtype, and how many of the shape's first axes vary in length."""
    match field:
        case Text() | Bytes():
            return (), tf.string, 0
        case Scalar() | Category():
            return (), tf.as_dtype(field.dtype), 0
        case Tensor():
            return tuple(field.shape), tf.as_dtype(field.dtype), 0
        case Group():
            return (len(field.members),), tf.as_dtype(field.dtype), 0
        case RaggedList():
            shape, dtype, rank = _form(name, field.item)
            return (None, *shape), dtype, rank + 1
        case Audio():
            return tuple(field.shape), tf.as_dtype(field.dtype), 0 if field.is_fixed else 1
        case Video():
            return field.shape, tf.as_dtype(field.dtype), 0
        case Image() | Encoded():
            unpacked = None if isinstance(field, Image) else unpacked_field(field)
            if unpacked is not None:
                return _form(name, unpacked)
            dtype = field.delivered_dtype if isinstance(field, Image) else field.dtype
            shape = field.delivered_shape if isinstance(field, Image) else tuple(field.shape)
            varies = [axis for axis, length in enumerate(shape, 1) if length is None]
            rank = max(varies, default=0)
            return (*(None for _ in range(rank)), *shape[rank:]), tf.as_dtype(dtype), rank


def _leaf_specs(spec: Spec) -> Any:
    """Return the specs of a column's arrays: the values, and the row splits from the outermost on."""
    if not isinstance(spec, tf.RaggedTensorSpec):
        return spec
    rank, rows = spec.ragged_rank, spec.shape[0]
    values = tf.TensorSpec((None, *spec.shape[rank + 1 :]), spec.dtype)
    sizes = [None if rows is None else rows + 1, *(None for _ in range(rank - 1))]
    return (values, *(tf.TensorSpec((size,), spec.row_splits_dtype) for size in sizes))


def _assembled(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: tf.RaggedTensor.from_nested_row_splits(leaves[0], leaves[1:], validate=False)
        if isinstance(leaves, tuple)
        else leaves
        for name, leaves in batch.items()
    }


def _checked(name: str, column: Any, spec: Spec, leaf_specs: Any) -> Any:
    """Return the arrays of a column that `_leaf_specs` describes.

    Raises:
        ConfigurationError: The column does not match the spec in kind, dtype or shape.
    """
    leaves = _leaves(name, column, spec)
    for array, leaf in zip(tf.nest.flatten(leaves), tf.nest.flatten(leaf_specs), strict=True):
        if not leaf.shape.is_compatible_with(array.shape):
            raise _unlike(name, column, spec)
    return leaves


def _leaves(name: str, column: Any, spec: Spec) -> Any:
    if not isinstance(spec, tf.RaggedTensorSpec):
        return _numbers(name, column, spec)
    if isinstance(column, list):
        column = _nested(column, spec.ragged_rank)
    splits: list[Any] = []
    for _ in range(spec.ragged_rank):
        if not isinstance(column, Ragged) or column.kind != "list":
            raise _unlike(name, column, spec)
        splits.append(column.offsets.astype(spec.row_splits_dtype.as_numpy_dtype, copy=False))
        column = column.values
    return (_numbers(name, column, spec), *splits)


def _numbers(name: str, column: Any, spec: Spec) -> Any:
    if spec.dtype == tf.string:
        if not isinstance(column, Ragged) or column.kind == "list":
            raise _unlike(name, column, spec)
        return strings_of(column)
    if isinstance(column, int):  # of a batch of packed tokens
        column = np.asarray(column)
    if not isinstance(column, np.ndarray) or column.dtype != spec.dtype.as_numpy_dtype:
        raise _unlike(name, column, spec)
    return column


def _nested(arrays: list[Any], rank: int) -> Ragged:
    """Return arrays of different shapes as nested rows, of which the first `rank` axes vary in length."""
    values: Any = np.concatenate([array.reshape(-1, *array.shape[rank:]) for array in arrays])
    for axis in reversed(range(rank)):
        lengths = [
            np.full(int(np.prod(array.shape[:axis], dtype=np.int64)), array.shape[axis], np.int64) for array in arrays
        ]
        values = Ragged(values, np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64))
    return values  # type: ignore[no-any-return]


def _unlike(name: str, column: Any, spec: Spec) -> ConfigurationError:
    found = f"{column.dtype} {list(column.shape)}" if isinstance(column, np.ndarray) else f"{column!r:.80}"
    return ConfigurationError(f"to_tf: column {name!r} is {found}, output_signature says {spec}; correct one of them")
