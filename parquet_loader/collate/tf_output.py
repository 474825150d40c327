"""Delivers batches of TensorFlow's eager tensors, without `tf.data`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from parquet_loader.collate.numpy_output import ArrayOutput
from parquet_loader.collate.output import Batch
from parquet_loader.engine import ProcessedBatch
from parquet_loader.errors import ConfigurationError
from parquet_loader.schema import Ragged, row_objects
from parquet_loader.window import Allocator, Window

_from_dlpack = tf.experimental.dlpack.from_dlpack
ALIGNMENT = 64
"""Bytes. TensorFlow aborts the process if a tensor on a CPU is aligned to less."""


class TensorFlowOutput(ArrayOutput):
    """Batches of eager tensors, ragged tensors and strings; tensors of numbers share the memory of aligned arrays.

    Args:
        device: None.

    Raises:
        ConfigurationError: `device` is not None.
    """

    def __init__(self, device: Any) -> None:
        if device is not None:
            raise ConfigurationError(
                f"device={device!r} with OutputOptions(format='tensorflow'): batches are in CPU memory, and TensorFlow "
                "copies them to the device of an operation; leave device out"
            )
        super().__init__(None, "tensorflow")

    def from_window(self, window: Window, batch_size: int, copied_to: Allocator | None) -> Iterator[Batch]:
        """Yield the batches of a window."""
        # The check costs as much as DLPack itself, so it is made once for all batches.
        shared = {
            name
            for name, array in window.arrays.items()
            if isinstance(array, np.ndarray) and _is_shared(array) and batch_size * array.strides[0] % ALIGNMENT == 0
        }

        def moved(batch: Batch) -> Batch:
            return {
                name: _from_dlpack(column.__dlpack__()) if name in shared else _tensor(column)
                for name, column in batch.items()
            }

        return map(moved, super().from_window(window, batch_size, copied_to))

    def from_batch(self, batch: ProcessedBatch, copied_to: Allocator | None) -> Batch:
        """Return a processed batch."""
        return {name: _tensor(column) for name, column in super().from_batch(batch, copied_to).items()}


def strings_of(column: Ragged) -> np.ndarray[Any, Any]:
    """Return the rows of text or bytes as an array of bytes objects."""
    return row_objects(Ragged(column.values, column.offsets, "bytes"))


def _is_shared(array: np.ndarray[Any, Any]) -> bool:
    """Return whether a tensor may share the memory of an array. TensorFlow never writes to such memory."""
    return (
        array.dtype.kind in "iufb"
        and array.size > 0
        and array.flags.carray  # contiguous and writeable: DLPack exports no other arrays
        and array.__array_interface__["data"][0] % ALIGNMENT == 0
    )


def _tensor(column: Any) -> Any:
    if isinstance(column, np.ndarray):
        # DLPack costs a microsecond, convert_to_tensor twenty and a copy.
        return _from_dlpack(column.__dlpack__()) if _is_shared(column) else tf.convert_to_tensor(column)
    if isinstance(column, Ragged):
        if column.kind != "list":
            return tf.convert_to_tensor(strings_of(column), tf.string)
        splits = _tensor(column.offsets.astype(np.int64, copy=False))
        return tf.RaggedTensor.from_row_splits(_tensor(column.values), splits, validate=False)
    if isinstance(column, list):
        return [_tensor(array) for array in column]
    return column  # an integer of a batch of packed tokens
