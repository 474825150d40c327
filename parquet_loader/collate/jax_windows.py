"""Cuts batches from narrow columns of a window by compiled calls, instead of one transfer for each column and batch.

`jax.device_put` takes 20 microseconds to make an array from a numpy array, and a compiled call 3 to make an output. The
call copies the rows, so only narrow columns gain. `Transfers` takes 4 microseconds and does not copy; if it works, only
integers that change to 32 bits are cut.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from parquet_loader.collate.output import Batch

MOST_BYTES = 1 << 16
"""Bytes of one column of a batch up to which a copy takes less time than making an array."""
LEAST_COLUMNS = 4
LEAST_BATCHES = 16
"""Fewer batches are not worth the compilation and the two transfers of all columns."""
GROUP = 8
"""Columns of a call. XLA runs larger calls in its thread pool, which takes longer than the copies."""
MOST_ROWS = 1 << 31
"""XLA counts rows in 32 bits, and delivers wrong rows beyond them."""
ALIGNMENT = 64
"""Bytes. JAX shares the memory of arrays that begin at a multiple of this, and copies others."""
NARROWER = {"int64": np.dtype(np.int32), "uint64": np.dtype(np.uint32)}
"""The dtypes for 64-bit integers in JAX without 64 bits."""
LOW_HALF = 0 if sys.byteorder == "little" else 1


def cut_batches(arrays: Mapping[str, Any], batch_size: int) -> Iterator[Batch]:
    """Yield JAX arrays for the first batches of a window: those of narrow columns, by name.

    Windows differ in rows, and a compiled call has fixed shapes. So batches are cut from chunks whose number of batches
    is a power of two: two overlapping chunks cover all full batches. A chunk shares the memory of the window, and JAX
    keeps that memory until the calls that read it have run. The yielded arrays are copies.

    The generator ends early if JAX checks values or runs without compilation, if 64 bits are switched on or off, or at
    a batch that is requested while JAX traces a function or that a mesh would divide or copy.

    Args:
        arrays: The columns of the window, ``[rows, ...]`` by name.
        batch_size: Rows of a batch.
    """
    narrow = {name: array for name, array in arrays.items() if _is_narrow(array, batch_size)}
    full = len(next(iter(narrow.values()))) // batch_size if len(narrow) >= LEAST_COLUMNS else 0
    if full < LEAST_BATCHES or full * batch_size >= MOST_ROWS:
        return
    length = 1 << full.bit_length() - 1
    has_64_bits = bool(jax.config.jax_enable_x64)
    for first, begin in ((0, 0), (full - length, length)):
        rows = slice(first * batch_size, (first + length) * batch_size)
        whole, halves = _chunk(narrow, rows, has_64_bits=has_64_bits)
        if len(whole) + len(halves) < LEAST_COLUMNS:
            yield from ({} for _ in range(begin, first + length))
            continue
        groups = jax.device_put([*_grouped(list(whole.values())), *_grouped(list(halves.values()))])
        names, cuts = [*whole, *halves], [_cut] * -(-len(whole) // GROUP) + [_cut_low] * -(-len(halves) // GROUP)
        del whole, halves
        start = jax.device_put(np.int32((begin - first) * batch_size))
        for _ in range(begin, first + length):
            if not _is_plain() or bool(jax.config.jax_enable_x64) != has_64_bits:
                return
            parts = [cut(group, start, batch_size) for cut, group in zip(cuts, groups, strict=True)]
            start = _advanced(start, batch_size)
            # Inside a traced function, calls return tracers; with a mesh set, arrays on all of its devices.
            if isinstance(start, jax.core.Tracer) or start.committed:
                return
            yield dict(zip(names, itertools.chain.from_iterable(parts), strict=True))
            del parts


@functools.partial(jax.jit, static_argnums=2)
def _cut(columns: Sequence[Any], start: Any, rows: int) -> list[Any]:
    """Return rows of columns. All rows must exist, because XLA clamps a start that is too large."""
    return [lax.dynamic_slice_in_dim(column, start, rows) for column in columns]


@functools.partial(jax.jit, static_argnums=2)
def _cut_low(columns: Sequence[Any], start: Any, rows: int) -> list[Any]:
    return [lax.dynamic_slice_in_dim(column, start, rows)[..., LOW_HALF] for column in columns]


@functools.partial(jax.jit, static_argnums=1)
def _advanced(start: Any, rows: int) -> Any:
    return start + rows


def _grouped(columns: Sequence[Any]) -> list[Sequence[Any]]:
    return [columns[start : start + GROUP] for start in range(0, len(columns), GROUP)]


def _is_plain() -> bool:
    """Return whether a compiled call returns an array like a transfer, for any values."""
    config = jax.config
    return not (config.jax_disable_jit or config.jax_debug_nans or config.jax_debug_infs or config.jax_no_tracing)


def _is_narrow(array: Any, batch_size: int) -> bool:
    return (
        isinstance(array, np.ndarray)
        and array.dtype.kind in "iufbc"
        and array.flags.c_contiguous
        and 0 < batch_size * array.strides[0] <= MOST_BYTES
    )


def _chunk(
    columns: Mapping[str, np.ndarray[Any, Any]], rows: slice, *, has_64_bits: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return views of the columns whose memory JAX can share: whole ones, and 64-bit integers as 32-bit halves."""
    whole: dict[str, Any] = {}
    halves: dict[str, Any] = {}
    for name, column in columns.items():
        array = column[rows]
        if array.__array_interface__["data"][0] % ALIGNMENT:
            continue
        narrower = None if has_64_bits else NARROWER.get(array.dtype.name)
        if narrower is None:
            if has_64_bits or array.dtype.name not in ("float64", "complex128"):
                whole[name] = array
        elif fits(array, narrower):
            halves[name] = array.view(narrower).reshape(*array.shape, 2)
    return whole, halves


def fits(integers: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype holds all integers of an array."""
    bounds = np.iinfo(dtype)
    return not integers.size or bool(integers.max() <= bounds.max and integers.min() >= bounds.min)
