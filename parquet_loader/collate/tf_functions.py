"""Builds parts of a `tf.data.Dataset` from functions that Grappler does not optimize.

`Dataset.from_generator` and `Dataset.map` let Grappler optimize their functions again for each iterator. With 40
columns that takes 70 milliseconds of processor time an epoch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def generated(begin: Callable[[], Iterator[Sequence[Any]]], element_spec: Any) -> tf.data.Dataset:
    """Return a data set of what Python iterators yield, as `tf.data.Dataset.from_generator` does.

    Args:
        begin: Makes the iterator for one iteration of the data set. Its items are lists of the numpy arrays of an
            element, as `tf.nest.flatten` orders them. Nobody checks their shapes.
        element_spec: The structure of elements, made of `tf.TensorSpec`.
    """
    specs = tf.nest.flatten(element_spec)
    iterations = _Iterations(begin)

    def following(number: Any) -> list[Any]:
        arrays = tf.numpy_function(iterations.following, [number], [spec.dtype for spec in specs])
        for array, spec in zip(arrays, specs, strict=True):
            array.set_shape(spec.shape)
        return list(arrays)

    scalar = tf.TensorSpec((), tf.int64)
    functions = {
        "init_func": _traced(lambda: tf.numpy_function(iterations.begin, [], tf.int64), []),
        "next_func": _traced(following, [scalar]),
        "finalize_func": _traced(lambda number: tf.numpy_function(iterations.end, [number], tf.int64), [scalar]),
    }
    captured = {f"{name}_other_args": function.captured_inputs for name, function in functions.items()}

    def iteration(_: Any) -> tf.data.Dataset:
        return _dataset(tf.raw_ops.GeneratorDataset(**functions, **captured, **_types(specs)), element_spec, functions)

    # TensorFlow can serialize a function that makes a GeneratorDataset, but not a GeneratorDataset.
    return flat_mapped(tf.data.Dataset.from_tensors(np.int64(0)), iteration, element_spec)


def flat_mapped(
    dataset: tf.data.Dataset, function: Callable[..., tf.data.Dataset], element_spec: Any
) -> tf.data.Dataset:
    """Return `dataset.flat_map(function)`.

    Args:
        dataset: Its elements are tensors, or tuples of tensors.
        function: Makes a data set of such an element.
        element_spec: The structure of the elements of that data set, made of `tf.TensorSpec`.
    """
    made_of = tf.nest.flatten(dataset.element_spec)
    traced = _traced(lambda *tensors: tf.data.experimental.to_variant(function(*tensors)), made_of)
    made = tf.raw_ops.FlatMapDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        other_arguments=traced.captured_inputs,
        f=traced,
        **_types(tf.nest.flatten(element_spec)),
    )
    return _dataset(made, element_spec, (dataset, traced))


def mapped(dataset: tf.data.Dataset, function: Callable[..., Sequence[Any]], element_spec: Any) -> tf.data.Dataset:
    """Return `dataset.map(function)`, which runs in the thread that asks for an element.

    Args:
        dataset: Its elements are tuples of tensors.
        function: Returns the tensors of an element, as `tf.nest.flatten` orders them.
        element_spec: The structure of elements, made of `tf.TensorSpec`.
    """
    traced = _traced(function, dataset.element_spec)
    made = tf.raw_ops.MapDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        other_arguments=traced.captured_inputs,
        f=traced,
        use_inter_op_parallelism=False,
        preserve_cardinality=True,
        **_types(tf.nest.flatten(element_spec)),
    )
    return _dataset(made, element_spec, (dataset, traced))


class _Iterations:
    """The iterations of a data set, which TensorFlow's functions name by their numbers. Any thread may call it."""

    def __init__(self, begin: Callable[[], Iterator[Sequence[Any]]]) -> None:
        self._begin = begin
        self._running: dict[int, Iterator[Sequence[Any]]] = {}
        self._numbers = itertools.count()

    def begin(self) -> np.int64:
        number = next(self._numbers)
        self._running[number] = self._begin()
        return np.int64(number)

    def following(self, number: np.int64) -> Sequence[Any]:
        return next(self._running[int(number)])  # StopIteration ends the data set

    def end(self, number: np.int64) -> np.int64:
        del self._running[int(number)]
        return number


def _traced(function: Callable[..., Any], specs: Sequence[tf.TensorSpec]) -> Any:
    """Return a traced function that TensorFlow runs on one device, because of this attribute, and without Grappler."""
    made = tf.function(
        function,
        input_signature=list(specs),
        autograph=False,
        experimental_attributes={"experimental_ints_on_device": True},
    )
    return made.get_concrete_function()


def _types(specs: Sequence[tf.TensorSpec]) -> dict[str, Any]:
    return {"output_types": [spec.dtype for spec in specs], "output_shapes": [spec.shape for spec in specs]}


def _dataset(variant: Any, element_spec: Any, kept: Any) -> tf.data.Dataset:
    """Return a data set that keeps what its iterators call."""
    made = tf.data.experimental.from_variant(variant, element_spec)
    made.parquet_loader_keeps = kept
    return made
