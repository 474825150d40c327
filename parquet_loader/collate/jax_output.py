"""Delivers batches of JAX arrays: on one device, or divided over the devices of several hosts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import jax
import numpy as np

from parquet_loader.collate.ahead import begun_ahead
from parquet_loader.collate.jax_transfers import Transfers
from parquet_loader.collate.jax_windows import NARROWER, cut_batches, fits
from parquet_loader.collate.numpy_output import ArrayOutput
from parquet_loader.collate.output import Batch
from parquet_loader.common import Shard
from parquet_loader.engine import ProcessedBatch
from parquet_loader.errors import ConfigurationError, DataError
from parquet_loader.schema import Ragged, register_where_imported
from parquet_loader.window import Allocator, Window

register_where_imported(Ragged)

Rows: TypeAlias = tuple[int, int]
"""A range of rows of a batch, ``(start, stop)``; `stop` is exclusive."""


class JaxOutput(ArrayOutput):
    """Batches of JAX arrays. On a CPU they share the memory of aligned numpy arrays, except those of `cut_batches`.

    Args:
        device: None.
        sharding: How the batches of all processes together are divided over devices; None if batches go to the default
            device of this process.

    Raises:
        ConfigurationError: `device` is not None, or the sharding divides other axes than rows.
    """

    def __init__(self, device: Any, sharding: Any) -> None:
        if device is not None:
            raise ConfigurationError(
                f"device={device!r} with OutputOptions(format='jax'): arrays go to JAX's default device; leave device "
                "out, and set jax_default_device or OutputOptions(sharding=...)"
            )
        super().__init__(None, "jax")
        self._sharding = sharding
        self._transfers = Transfers()
        self._copies = jax.default_backend() != "cpu"
        if sharding is not None:
            _blocks(sharding)  # raises if it divides more than rows
            self._copies = any(device.platform != "cpu" for device in sharding.addressable_devices)

    def from_window(self, window: Window, batch_size: int, copied_to: Allocator | None) -> Iterator[Batch]:
        """Yield the batches of a window."""
        if self._sharding is None and not self._copies:
            return self._cut(window, batch_size)
        batches = super().from_window(window, batch_size, copied_to)
        return batches if self._copies else map(self._moved, batches)

    def from_batch(self, batch: ProcessedBatch, copied_to: Allocator | None) -> Batch:
        """Return a processed batch."""
        arrays = super().from_batch(batch, copied_to)
        return arrays if self._copies else self._moved(arrays)

    def delivered(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Copy each batch to the devices while the caller uses the previous one; nothing is copied for CPUs."""
        return begun_ahead(batches, self._moved, lambda batch: batch) if self._copies else batches

    def _cut(self, window: Window, batch_size: int) -> Iterator[Batch]:
        parts = cut_batches(self._narrowed(window.arrays) if self._transfers.works else window.arrays, batch_size)
        for start in range(0, window.rows if window.arrays else 0, batch_size):
            part = next(parts, {})
            if len(part) < len(window.arrays):
                batch = window.slice(start, min(start + batch_size, window.rows))
                part |= self._moved({name: column for name, column in batch.items() if name not in part})
                del batch
            yield {name: part[name] for name in window.arrays}
            del part

    def _moved(self, arrays: Batch) -> Batch:
        """Return the batch as JAX arrays; their copies may still run in the background."""
        is_direct = self._sharding is None and not self._copies
        made = self._transfers.put(arrays) if is_direct else {}
        if len(made) == len(arrays):
            return made
        fitted = {name: column for name, column in arrays.items() if name not in made}
        if not jax.config.jax_enable_x64:
            fitted = {name: _fitted(name, column) for name, column in fitted.items()}
        if self._sharding is not None:
            return {name: self._divided(name, column) for name, column in fitted.items()}
        if is_direct:
            made |= self._transfers.put(fitted)  # columns that have another dtype now
        rest = {name: column for name, column in fitted.items() if name not in made}
        leaves: list[Any] = []
        for column in rest.values():
            _collect(column, leaves)
        moved = iter(jax.device_put(leaves) if leaves else ())
        placed = {name: _replaced(column, moved) for name, column in rest.items()}
        if is_direct:
            self._transfers.remember(rest, placed)
        made |= placed
        return {name: made[name] for name in arrays}

    def _divided(self, name: str, column: Any) -> Any:
        if not isinstance(column, np.ndarray):
            raise ConfigurationError(
                f"OutputOptions(sharding=...): column {name!r} has rows of different lengths, which cannot be divided "
                "over devices; pad them in transform, as in columns[name].to_padded(length=128), or leave it out"
            )
        return jax.make_array_from_process_local_data(self._sharding, column)

    def _narrowed(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns whose dtypes JAX lacks, so that `Transfers` cannot put them."""
        if jax.config.jax_enable_x64:
            return {}
        return {
            name: column
            for name, column in arrays.items()
            if isinstance(column, np.ndarray) and column.dtype.name in NARROWER
        }


def default_shard(sharding: Any, batch_size: int, *, drop_last: bool) -> Shard:
    """Return the shard of this process: by the rows that its devices hold in a sharding, else by its index.

    Processes whose devices hold the same rows of a batch read the same rows.

    Args:
        sharding: As in `JaxOutput`.
        batch_size: Rows of a batch of this process.
        drop_last: Whether all batches are full.

    Raises:
        ConfigurationError: The sharding cannot divide the batches.
    """
    if sharding is None:
        return Shard(jax.process_index(), jax.process_count())
    blocks = _blocks(sharding)
    shard = shard_of(blocks, jax.process_index())
    parts = len(blocks[jax.process_index()])
    if batch_size % parts:
        raise ConfigurationError(
            f"OutputOptions(sharding=...): batch_size={batch_size} rows of this process do not divide over {parts} "
            f"parts; choose a multiple of {parts}"
        )
    if not drop_last:
        raise ConfigurationError(
            "OutputOptions(sharding=...): a last batch that is not full does not divide over devices; pass "
            "drop_last=True"
        )
    return shard


def shard_of(blocks: Mapping[int, set[Rows]], process: int) -> Shard:
    """Return the shard that a process reads.

    Args:
        blocks: The rows of a batch that each process's devices hold.
        process: The process.

    Raises:
        ConfigurationError: The process has no devices, or processes share only some of their rows.
    """
    if process not in blocks:
        raise ConfigurationError(
            f"OutputOptions(sharding=...): process {process} has no device in the sharding; make the mesh of the "
            "devices of all processes"
        )
    held = sorted({tuple(sorted(rows)) for rows in blocks.values()})
    parts = sorted(part for rows in held for part in rows)
    overlaps = any(one[1] > other[0] for one, other in itertools.pairwise(parts))
    if overlaps or len({sum(stop - start for start, stop in rows) for rows in held}) > 1:
        raise ConfigurationError(
            "OutputOptions(sharding=...): processes share some of their rows but not all, or hold different numbers of "
            "rows; arrange the mesh so that all devices of a process are next to each other on the data axis"
        )
    return Shard(held.index(tuple(sorted(blocks[process]))), len(held))


def _blocks(sharding: Any) -> dict[int, set[Rows]]:
    """Return the rows that each process's devices hold, for a batch with one row for each device."""
    if not isinstance(sharding, jax.sharding.Sharding):
        raise ConfigurationError(f"OutputOptions(sharding={sharding!r:.80}): expected a jax.sharding.Sharding")
    if any(part is not None for part in tuple(getattr(sharding, "spec", ()))[1:]):
        raise ConfigurationError(
            f"OutputOptions(sharding={sharding!r:.200}): expected a sharding that divides the first axis only, such as "
            "NamedSharding(mesh, PartitionSpec('data'))"
        )
    rows = len(sharding.device_set)
    indices = sharding.devices_indices_map((rows,))
    blocks: dict[int, set[Rows]] = {}
    for device, (part,) in indices.items():
        start, stop, _ = part.indices(rows)
        blocks.setdefault(device.process_index, set()).add((start, stop))
    return blocks


def _fitted(name: str, column: Any, field: str = "") -> Any:
    """Return a column in dtypes that JAX has without 64 bits: integers as 32 bits if all of them fit.

    Args:
        name, column: The column.
        field: The field that reads it as float32, if it does not follow from `column`.

    Raises:
        DataError: An integer does not fit.
        ConfigurationError: The column holds float64 or complex128.
    """
    if isinstance(column, Ragged):
        values = _fitted(name, column.values, field or _field_of(column))
        return Ragged(values, _fitted(name, column.offsets), column.kind)
    if isinstance(column, list):
        return [_fitted(name, array) for array in column]
    narrow = NARROWER.get(column.dtype.name)
    if narrow is not None:
        if not fits(column, narrow):
            wrong = column.max() if column.max() > np.iinfo(narrow).max else column.min()
            raise DataError(
                f"column {name!r} holds {wrong}, which {narrow} cannot hold, and JAX has no {column.dtype} by default; "
                "set jax.config.update('jax_enable_x64', True)"
            )
        return column.astype(narrow)
    if column.dtype.name in ("float64", "complex128"):
        raise ConfigurationError(
            f"column {name!r} is {column.dtype}, which JAX does not have by default; set "
            f"jax.config.update('jax_enable_x64', True), or read it as float32: schema=Schema({{{name!r}: "
            f"{field or _field_of(column)}}}, extra='infer'); a transform returns it with astype('float32')"
        )
    return column


def _field_of(column: Any) -> str:
    """Return the field that reads a column as float32, as Python code."""
    if isinstance(column, Ragged):
        return f"RaggedList({_field_of(column.values)})"
    return "Scalar('float32')" if column.ndim == 1 else f"Tensor('float32', {column.shape[1:]})"


def _collect(column: Any, into: list[Any]) -> None:
    """Append the arrays of a column."""
    if isinstance(column, Ragged):
        _collect(column.values, into)
        into.append(column.offsets)
    elif isinstance(column, list):
        into.extend(column)
    else:
        into.append(column)


def _replaced(column: Any, arrays: Iterator[Any]) -> Any:
    """Return a column with its arrays replaced by the next ones, in the order of `_collect`."""
    if isinstance(column, Ragged):
        values = _replaced(column.values, arrays)
        return Ragged(values, next(arrays), column.kind)
    if isinstance(column, list):
        return [next(arrays) for _ in column]
    return next(arrays)
