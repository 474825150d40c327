"""How tests iterate over each output, and read its batches back to plain numpy arrays."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest

from parquet_loader import BatchedDataLoader, OutputOptions, Ragged

Leaves: TypeAlias = list[np.ndarray[Any, Any]]
"""A column: its numbers, or the values of a `Ragged` followed by the offsets of each level from the innermost on."""


def leaves(value: Any) -> Leaves:
    """Return the arrays of a tensor, an array, a `Ragged`, or a list of arrays of different shapes."""
    if isinstance(value, Ragged):
        return [*leaves(value.values), np.asarray(value.offsets)]
    if isinstance(value, list):
        arrays = [np.asarray(item) for item in value]
        lengths = [array.size for array in arrays]
        flat = np.concatenate([array.reshape(-1) for array in arrays])
        return [flat, np.cumsum([0, *lengths]), np.array([array.shape for array in arrays], np.int32)]
    return [np.asarray(value)]


def arrow_leaves(array: pa.Array) -> Leaves:
    """Return the arrays of an Arrow array; those of nulls hold whatever its buffers hold."""
    if pa.types.is_struct(array.type):
        return [*arrow_leaves(array.field("data")), *arrow_leaves(array.field("shape"))]
    if pa.types.is_large_list(array.type):
        return [*arrow_leaves(array.values), np.asarray(array.offsets)]
    if pa.types.is_fixed_size_list(array.type):
        shape: list[int] = []
        while pa.types.is_fixed_size_list(array.type):
            shape.append(array.type.list_size)
            array = array.values
        return [arrow_leaves(array)[0].reshape(-1, *shape)]
    if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type):
        _, offsets, values = array.buffers()
        bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
        data = np.frombuffer(b"" if values is None else values, np.uint8)
        return [data[bounds[0] : bounds[-1]], bounds - bounds[0]]
    if array.null_count:
        values = array.buffers()[1]
        return [np.frombuffer(values, array.type.to_pandas_dtype())[array.offset : array.offset + len(array)]]
    return [array.to_numpy(zero_copy_only=False)]


def _one(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _table(batch: Any) -> dict[str, Leaves]:
    return {name: arrow_leaves(_one(batch[name])) for name in batch.column_names}


def _frame(batch: Any) -> dict[str, Leaves]:
    import pandas as pd

    is_arrow = {name: isinstance(batch[name].dtype, pd.ArrowDtype) for name in batch}
    return {
        name: arrow_leaves(_one(batch[name].array.__arrow_array__())) if is_arrow[name] else [batch[name].to_numpy()]
        for name in batch
    }


def _polars(batch: Any) -> dict[str, Leaves]:
    import polars as pl

    return _table(batch.to_arrow(compat_level=pl.CompatLevel.oldest()))


def _dict(batch: Any) -> dict[str, Leaves]:
    return {name: leaves(value) for name, value in batch.items()}


@dataclass(frozen=True)
class Form:
    """One output.

    Attributes:
        name: Of the output.
        packages: What it needs.
        options: Arguments of the loader.
        begin: Begins an epoch of a loader.
        read: Reads a batch.
        nulls: Whether masks are nulls, or else columns.
        around: A context in which it is used.
    """

    name: str
    packages: tuple[str, ...] = ()
    options: Callable[[], dict[str, Any]] = dict
    begin: Callable[[BatchedDataLoader], Iterator[Any]] = iter
    read: Callable[[Any], dict[str, Leaves]] = _dict
    nulls: bool = False
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext

    def marks(self) -> list[pytest.MarkDecorator]:
        """Return the marks of its tests: those of packages of the extra `frameworks`."""
        if not {"jax", "keras", "grain", "tensorflow"} & set(self.packages):
            return []
        return [pytest.mark.frameworks, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

    def loader(self, source: Any, batch_size: int, **options: Any) -> BatchedDataLoader:
        """Make a loader of this output."""
        return BatchedDataLoader(source, batch_size, **self.options(), **options)

    def skip_if_missing(self) -> None:
        """Skip the test if a package is absent."""
        for package in self.packages:
            if importlib.util.find_spec(package) is None:
                pytest.skip(f"{package} is not installed")


def _of_format(format: str) -> Callable[[], dict[str, Any]]:  # noqa: A002
    return lambda: {"output_options": OutputOptions(format=format)}  # type: ignore[arg-type]


def _of_tensorflow(batch: Any) -> dict[str, Leaves]:
    return {name: _tensor_leaves(value) for name, value in batch.items()}


def _tensor_leaves(value: Any) -> Leaves:
    import tensorflow as tf

    if isinstance(value, list):
        return leaves([image.numpy() for image in value])
    if isinstance(value, tf.RaggedTensor):
        return [*_tensor_leaves(value.values), value.row_splits.numpy()]
    if value.dtype == tf.string:
        rows = value.numpy().tolist()
        return [np.frombuffer(b"".join(rows), np.uint8), np.cumsum([0, *map(len, rows)])]
    return [value.numpy()]


def _to_keras(loader: BatchedDataLoader) -> Iterator[Any]:
    state = loader.state_dict()
    if state["batch"] and len(loader) - state["batch"] <= 2:
        yield from loader  # too few for a PyDataset
        return
    data = loader.to_keras()
    for number in range(len(data)):
        batch = data[number]
        yield batch
        del batch
    data.on_epoch_end()


def _to_tf(loader: BatchedDataLoader) -> Iterator[Any]:
    import tensorflow as tf

    signature = None
    if loader._options.transform is not None:
        types = {"id": tf.int64, "text": tf.string, "noise": tf.float64, "id_valid": tf.bool}
        signature = {name: tf.TensorSpec((None,), dtype) for name, dtype in types.items()}
    return iter(loader.to_tf(output_signature=signature))


def _sixty_four_bits() -> contextlib.AbstractContextManager[Any]:
    import jax

    context: contextlib.AbstractContextManager[Any] = jax.enable_x64(True)
    return context


FORMS = [
    Form("torch"),
    Form("numpy", (), _of_format("numpy")),
    Form("arrow", (), _of_format("arrow"), read=_table, nulls=True),
    Form("pandas", ("pandas",), _of_format("pandas"), read=_frame, nulls=True),
    Form("polars", ("polars",), _of_format("polars"), read=_polars, nulls=True),
    Form("jax", ("jax",), _of_format("jax"), around=_sixty_four_bits),
    Form("keras", ("keras",), _of_format("numpy"), _to_keras),
    Form("grain", ("grain",), _of_format("numpy"), lambda loader: iter(loader.to_grain())),
    Form("eager", ("tensorflow",), _of_format("tensorflow"), read=_of_tensorflow),
    Form("tensorflow", ("tensorflow",), _of_format("numpy"), _to_tf, _of_tensorflow),
]
