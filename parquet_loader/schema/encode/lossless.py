"""Casts that keep every value, or name the first value that they would change."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Mapping
from numbers import Number
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parquet_loader.common import inferred_array
from parquet_loader.schema.arrow_types import decimals_to_float64, scalar_kind, type_name


class Misfit(Exception):
    """Values that do not fit their field: `reason` is a sentence, `row` the first such row, None if all rows are."""

    def __init__(self, reason: str, row: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.row = row


class NullMisfit(Misfit):
    """A null whose field refuses nulls."""


def cast(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return `array` as the scalar type `type_`, with equal values.

    A float may lose digits if `type_` is a narrower float, as the schema requests, but never becomes infinite.
    A time without zone is taken as UTC if `type_` is in UTC; integers count units of `type_`.

    Raises:
        Misfit: the kinds differ (text for a number), or a value would change.
    """
    if array.type == type_:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), type_)
    kind, wanted = scalar_kind(array.type), scalar_kind(type_)
    if kind not in _FITTING.get(wanted, ""):
        raise Misfit(f"the values are of type {array.type}, expected {type_name(type_)}{_hint(kind, wanted)}")
    if kind == wanted == "M" and not _zones_fit(array.type.tz, type_.tz):
        raise Misfit(
            f"the values are of type {array.type}, expected {type_}: a time with and one without a zone are not the "
            "same; convert them first, or give the field the zone of the values"
        )
    whole = _attempt(array, type_)
    if whole is not None:
        return whole
    row = first_failing(len(array), lambda count: _attempt(array.slice(0, count), type_) is not None)
    raise Misfit(f"the value {_show(array[row])} does not fit {type_name(type_)} without loss", row)


def of_kind(array: pa.Array, is_kind: Callable[[pa.DataType], bool], type_: pa.DataType, expected: str) -> pa.Array:
    """Return an array of one kind of type, or of nulls, as `type_`.

    Raises:
        Misfit: it is of another kind; `expected` is the end of that sentence.
    """
    if not (is_kind(array.type) or pa.types.is_null(array.type)):
        raise Misfit(f"the values are of type {array.type}{expected}")
    return array.cast(type_)


def from_python(values: list[Any]) -> pa.Array:
    """Return Python objects as an Arrow array of the type that they agree on."""

    def attempt(count: int) -> pa.Array | None:
        try:
            return inferred_array(values[:count])
        except MemoryError:
            raise  # memory that ran out says nothing about the data
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            return None

    whole = attempt(len(values))
    if whole is not None:
        _check_times(values, whole.type)
        return whole
    if all(v is None or (isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 2**64) for v in values):
        return pa.array(values, pa.uint64())  # Arrow infers no type beyond int64
    row = first_failing(len(values), lambda count: attempt(count) is not None)
    if isinstance(values[row], str) and not _is_utf8(values[row]):
        raise Misfit(
            f"the text {values[row]!a:.80} has no form in UTF-8, as it holds a lone surrogate; "
            "text.encode('utf-8', 'replace').decode() replaces it",
            row,
        )
    before = attempt(row)
    if before is None or before.null_count == row:
        raise Misfit(f"the value {_shown(values[row])} has no Arrow type{_advice(values[row])}", row)
    raise Misfit(
        f"the value {_shown(values[row])} does not go with the {before.type} before it{_advice(values[row])}", row
    )


def _check_times(values: list[Any], type_: pa.DataType) -> None:
    """Refuse what Arrow converts silently: numbers among times, times of day among dates, mixed zones."""
    if pa.types.is_temporal(type_):
        zoned: bool | None = None
        for row, value in enumerate(values):
            is_number = isinstance(value, Number) and not isinstance(value, np.timedelta64)
            is_nat = isinstance(value, dt.datetime) and value != value  # noqa: PLR0124  (pandas' NaT)
            if is_number or is_nat:
                raise Misfit(f"the value {_shown(value)} does not go with the {type_} before it", row)
            if not isinstance(value, dt.datetime):
                continue
            has_zone = value.tzinfo is not None
            if pa.types.is_date(type_) and (has_zone or value.time() != dt.time()):
                raise Misfit(
                    f"the value {_shown(value)} has a time of day, and other rows are dates; convert them first", row
                )
            if zoned is not None and has_zone != zoned:
                raise Misfit(
                    f"the value {_shown(value)} and the times before it are not alike: a time with and one without "
                    "a zone are not the same; convert them first",
                    row,
                )
            zoned = has_zone
    elif pa.types.is_struct(type_):
        for member in type_:
            _check_times([v.get(member.name) if isinstance(v, Mapping) else None for v in values], member.type)
    elif pa.types.is_list(type_) and _may_hold_times(type_.value_type):
        items = [(row, item) for row, value in enumerate(values) if value is not None for item in value]
        try:
            _check_times([item for _, item in items], type_.value_type)
        except Misfit as misfit:
            raise Misfit(misfit.reason, None if misfit.row is None else items[misfit.row][0]) from None


def _may_hold_times(type_: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(type_) or pa.types.is_nested(type_))


def _shown(value: Any) -> str:
    return f"{value!r:.80} ({type(value).__name__})"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _advice(value: Any) -> str:
    """Return which type to pass instead of a Python object, if its kind is known."""
    if isinstance(value, os.PathLike):
        return "; str(path) is its text, and path.read_bytes() what the file holds"
    if type(value).__module__.partition(".")[0] == "PIL":
        return "; an Image() field in schema= takes images, numpy.asarray(image) is an array"
    if hasattr(value, "ids") and type(value).__module__.partition(".")[0] == "tokenizers":
        return "; encoding.ids is its list of tokens"
    if isinstance(value, list) and value and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
        return "; the pairs of a map are dicts, {'key': 'a', 'value': 1}"
    return ""


def first_failing(count: int, holds: Callable[[int], bool]) -> int:
    """Find by bisection the row whose inclusion makes `holds(number of rows)` false; it is false for all rows."""
    good, bad = 0, count
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return bad - 1


# The kinds of value that can equal values of each kind of field; see `scalar_kind`.
_FITTING = {"b": "bi", "i": "ibfd", "f": "fibd", "d": "difb", "D": "DMi", "M": "MDi", "t": "ti", "m": "mi"}


def _hint(kind: str, wanted: str) -> str:
    if wanted == "i" and kind in "DMtm":
        return "; a field of that time type delivers integers of its unit"
    return "; convert them first" if kind == "?" else ""


def _zones_fit(have: str | None, want: str | None) -> bool:
    return (have is None) == (want is None) or (have is None and str(want).upper() in {"UTC", "Z", "+00:00", "ETC/UTC"})


def _attempt(array: pa.Array, type_: pa.DataType) -> pa.Array | None:
    """Return the cast array, or None if a value changed."""
    kind, wanted = scalar_kind(array.type), scalar_kind(type_)
    start = array
    if (kind, wanted) == ("d", "f"):
        return _decimals_as(array, type_)
    try:
        array = _bridge(array, kind, wanted, type_)
        out = pc.cast(array, type_)
    except pa.ArrowInvalid:
        if (kind, wanted) != ("i", "f"):
            return None
        out = pc.cast(start, type_, safe=False)  # Arrow refuses all integers above 2**24; some are exact
        return out if _comes_back(out, start) else None
    if kind == wanted == "f":
        return out if _infinities(out) == _infinities(start) else None
    unchecked = kind == "i" and pa.types.is_float16(type_)
    if unchecked or (kind, wanted) in {("i", "b"), ("M", "D"), ("f", "d")}:
        return out if _comes_back(out, array) else None
    if pa.types.is_date64(type_):
        return out if _comes_back(out.cast(pa.date32(), safe=False), out) else None
    return out


def _bridge(array: pa.Array, kind: str, wanted: str, type_: pa.DataType) -> pa.Array:
    """Cast through an intermediate type if Arrow lacks the direct cast."""
    if kind == "b":
        array = pc.cast(array, pa.uint8())
        kind = "i"
    if pa.types.is_float16(array.type) and wanted not in "fi":
        array = pc.cast(array, pa.float32())
    if kind == "i" and wanted in "DMtm":
        array = pc.cast(array, pa.int32() if type_.bit_width == 32 else pa.int64())
    if kind == "i" and wanted == "d":
        array = pc.cast(pc.cast(array, pa.decimal128(20, 0)), pa.decimal256(76, type_.scale))
    if kind == "f" and wanted == "d" and type_.bit_width < 128:
        array = pc.cast(array, pa.float64())
    return array


def _decimals_as(array: pa.Array, type_: pa.DataType) -> pa.Array | None:
    """Return floats whose nearest decimals are those of `array`, or None."""
    out = pc.cast(decimals_to_float64(array), type_)
    wide = pc.cast(out, pa.float64())
    return out if _comes_back(wide, array) else None


def _comes_back(out: pa.Array, array: pa.Array) -> bool:
    try:
        back = pc.cast(out, array.type)
    except pa.ArrowInvalid:
        return False
    return pc.all(pc.equal(back, array)).as_py() is not False


def _infinities(array: pa.Array) -> int:
    if pa.types.is_float16(array.type):
        return int(np.isinf(array.to_numpy(zero_copy_only=False)).sum())
    return pc.sum(pc.is_inf(array)).as_py() or 0


def _show(scalar: pa.Scalar) -> str:
    try:
        return repr(scalar.as_py())
    except (ValueError, OverflowError):  # nanoseconds, or years outside Python's datetime
        return str(scalar)
