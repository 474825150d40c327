"""Cuts batches from the narrow columns of a window in one compiled call a batch, rather than one transfer a column.

JAX takes 13 microseconds to make an array of a numpy array, and 3 to make one as the output of a compiled call. The
call copies its rows, so only narrow columns gain.
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
"""The largest part of a batch, one column of it, that is copied faster than an array is made."""
LEAST_COLUMNS = 4
LEAST_BATCHES = 16
"""Fewer batches are not worth the compilation, nor two transfers of all columns."""
GROUP = 8
"""Columns of a call. XLA runs more in its thread pool, which takes longer than to copy these."""
MOST_ROWS = 1 << 31
"""XLA counts the rows in 32 bits, and delivers other rows beyond them."""
ALIGNMENT = 64
"""Bytes. JAX shares the memory of arrays that begin at multiples of it, and copies others."""
NARROWER = {"int64": np.dtype(np.int32), "uint64": np.dtype(np.uint32)}
"""What holds 64-bit integers in JAX without 64 bits."""
LOW_HALF = 0 if sys.byteorder == "little" else 1


def cut_batches(arrays: Mapping[str, Any], batch_size: int) -> Iterator[Batch]:
    """Yield JAX arrays of the first batches of a window: of those columns that are cut, by name.

    Windows differ in rows, and a compiled call has fixed shapes. So batches are cut from chunks of a power of two
    batches: two chunks, which overlap, cover all full batches. A chunk shares the memory of the window until the calls
    that read it have run; JAX sees to that. What is yielded are copies.

    It ends early if JAX is set to check values or to run without compilation, when 64 bits are switched, at a batch
    that is taken while JAX traces a function, and at one that a mesh would divide or copy.

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
            # Calls make tracers while JAX traces a function, and arrays on all devices of a mesh that is set.
            if isinstance(start, jax.core.Tracer) or start.committed:
                return
            yield dict(zip(names, itertools.chain.from_iterable(parts), strict=True))
            del parts


@functools.partial(jax.jit, static_argnums=2)
def _cut(columns: Sequence[Any], start: Any, rows: int) -> list[Any]:
    """Return rows of columns. All must be there: XLA moves a start that is too late."""
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
    """Return whether a compiled call delivers what a transfer does: any value, and an array."""
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
    """Return views of those columns that JAX shares and holds: as they are, and integers as their halves."""
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
