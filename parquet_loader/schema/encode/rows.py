"""Decides whether a dict that an iterable yields is one row or a batch of columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from parquet_loader.schema.encode.inputs import count_rows, is_values_and_offsets
from parquet_loader.schema.encode.lossless import Misfit
from parquet_loader.schema.fields import Encoded, Field, Group, Image, RaggedList, Tensor
from parquet_loader.schema.ragged import Ragged


def is_row(item: Mapping[Any, Any], schema: Mapping[str, Field] | None) -> bool | None:
    """Return whether a dict is one row (True) or a batch of columns (False), or None if it may be either.

    A dict with a value that cannot be a column, such as a number or a str, is a row; one with a Series or `Ragged` is a
    batch. Lists and arrays may be either; their depth is compared with that of their field's values.

    Args:
        item: Values by name.
        schema: The fields, or None without a schema.
    """
    if any(not _can_be_column(value) for value in item.values()):
        return True
    if not item or any(_is_column(value) for value in item.values()):
        return False
    fields = _fields_by_name(schema or {})
    for name, value in item.items():
        if (field := fields.get(str(name))) is None:
            continue
        found = _depth(value)
        rows = _row_depths(field, found.is_bytes)
        may_be_row = any(row == found.axes or (row > found.axes and found.is_open) for row in rows)
        may_be_column = any(row + 1 == found.axes or (row + 1 > found.axes and found.is_open) for row in rows)
        if may_be_row != may_be_column:
            return may_be_row
    return None


def _can_be_column(value: Any) -> bool:
    try:
        count_rows(value)
    except Misfit:
        return False
    return True


def _is_column(value: Any) -> bool:
    """Whether a value is certainly a column: one row's value never has this type."""
    if isinstance(value, Ragged | pa.Array | pa.ChunkedArray) or is_values_and_offsets(value):
        return True
    return type(value).__module__.partition(".")[0] in ("pandas", "polars")


class _Depth(NamedTuple):
    """The depth of a value.

    Attributes:
        axes: Axes of nested lists or of an array.
        is_open: Whether there may be more axes, because the innermost list is empty.
        is_bytes: Whether the innermost values are bytes, which may encode further axes.
    """

    axes: int
    is_open: bool = False
    is_bytes: bool = False


def _depth(value: Any) -> _Depth:
    shape = getattr(value, "shape", None)
    if shape is not None and not (isinstance(value, np.ndarray) and value.dtype.kind in "OSV"):
        return _Depth(len(shape))
    if not isinstance(value, list | tuple | np.ndarray):
        return _Depth(0, is_bytes=isinstance(value, bytes | bytearray | memoryview | np.void))
    first = next((v for v in value if v is not None), None)
    if first is None:
        return _Depth(1, is_open=True)
    inner = _depth(first)
    return inner._replace(axes=1 + inner.axes)


def _fields_by_name(schema: Mapping[str, Field]) -> dict[str, Field]:
    """Return fields by the names under which their values are given, members of groups too."""
    fields: dict[str, Field] = {}
    for name, field in schema.items():
        fields |= dict.fromkeys((name, *field.aliases), field)
        if isinstance(field, Group):
            fields |= {other: part for member, part in field.members for other in (member, *part.aliases)}
    return fields


def _row_depths(field: Field, is_bytes: bool) -> tuple[int, ...]:
    """Return the possible numbers of axes of one row's value."""
    match field:
        case RaggedList():
            return tuple(1 + depth for depth in _row_depths(field.item, is_bytes))
        case _ if is_bytes:
            return (0,)
        case Group():
            return (1,)
        case Tensor() | Encoded():
            return (len(field.shape),)
        case Image():
            return (2, 3) if field.shape[2] == 1 else (3,)
        case _:
            return (0,)
