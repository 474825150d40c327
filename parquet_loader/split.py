"""Training and validation rows told apart by a hash of a column: a filter, so it is applied exactly, and counted."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.errors import ConfigurationError
from parquet_loader.types import check_int

SPLIT_METHOD = "splitmix-1"
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def split(column: str, start: float, stop: float, seed: int = 0) -> pc.Expression:
    """Return a filter that keeps the rows whose hash of a column lies from `start` to `stop` (exclusive).

    Rows of equal value go together, and a row's side depends on nothing but its value and the seed: it stays as files
    are added, renamed or rewritten. Splits of one column and seed that do not overlap share no row, and together those
    that cover 0 to 1 hold every row whose value is not null.

    The hash is the finaliser of SplitMix64 (Steele, Lea and Flood 2014) of the value as 64 bits and the seed, method
    ``splitmix-1``, by Arrow's own functions: no Python runs for it, and it works wherever filters do.

    Args:
        column: Name of a column of integers, booleans or timestamps; rows in which it is null are on no side.
        start: From 0.
        stop: To 1.
        seed: From 0 to 2**64 - 1; another seed splits otherwise.

    Raises:
        ConfigurationError: no such range.
    """
    if not isinstance(column, str) or not column:
        raise ConfigurationError(f"split({column!r:.80}): expected a column's name")
    if not 0 <= start < stop <= 1:
        raise ConfigurationError(f"split({column!r}, {start!r}, {stop!r}): expected 0 <= start < stop <= 1")
    key = check_int("split seed", seed, 0, _MASK)
    # Casting int64 to uint64 unchecked keeps the bits; arithmetic that is not checked wraps.
    bits = pc.field(column).cast(pa.int64(), safe=False).cast(pa.uint64(), safe=False)
    hashed = pc.bit_wise_xor(bits, _word(mixed(key)))
    hashed = pc.add(hashed, _word(_GOLDEN))
    for shift, factor in _STEPS:
        hashed = pc.multiply(pc.bit_wise_xor(hashed, pc.shift_right(hashed, _word(shift))), _word(factor))
    hashed = pc.bit_wise_xor(hashed, pc.shift_right(hashed, _word(_LAST_SHIFT)))
    low, high = _bound(start), _bound(stop)
    kept = hashed >= _word(low)
    return kept if high > _MASK else kept & (hashed < _word(high))


def mixed(value: int) -> int:
    """Return SplitMix64's hash of 64 bits, by Python's integers."""
    value = (value + _GOLDEN) & _MASK
    for shift, factor in _STEPS:
        value = (value ^ (value >> shift)) * factor & _MASK
    return value ^ (value >> _LAST_SHIFT)


def _bound(share: float) -> int:
    return int(share * 2**64)


def _word(value: int) -> pa.Scalar:
    return pa.scalar(np.uint64(value), pa.uint64())
