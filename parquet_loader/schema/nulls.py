"""Adds null policies to fields that lack one, and writes schemas as Python source."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from parquet_loader.errors import ConfigurationError
from parquet_loader.schema.arrow_types import list_values
from parquet_loader.schema.base import describe
from parquet_loader.schema.fields import (
    Audio,
    Bytes,
    Category,
    Encoded,
    Field,
    Group,
    Image,
    RaggedList,
    Scalar,
    Tensor,
    Text,
    Video,
    policy_of,
)

Nulls: TypeAlias = Literal["mask", "fill"]

MOST_FIELDS_IN_SOURCE = 100
"""Error messages show a schema as source up to this number of fields."""

_BLACK_PIXEL = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x00\x00\x00\x00:~\x9bU"
    b"\x00\x00\x00\nIDATx\xdac`\x00\x00\x00\x02\x00\x01\xe5'\xde\xfc\x00\x00\x00\x00IEND\xaeB`\x82"
)
"""A PNG of one pixel."""


def refuses_nulls(field: Field) -> bool:
    """Whether a null in the field's column, or within one of its lists, is an error."""
    if isinstance(field, RaggedList):
        return policy_of(field) == "refuse" or refuses_nulls(field.item)
    if isinstance(field, Group):
        return any(policy_of(part) == "refuse" for part in field.fields.values())
    return policy_of(field) == "refuse"


def with_nulls(fields: Mapping[str, Field], names: Collection[str], nulls: Nulls) -> dict[str, Field]:
    """Return the fields with a null policy for the named ones; a mask whose name is taken becomes a fill.

    Args:
        fields: By delivered name.
        names: The fields to change.
        nulls: ``"mask"`` or ``"fill"``; see `filled` for the values.

    Raises:
        ConfigurationError: `nulls` is neither.
    """
    if nulls not in ("mask", "fill"):
        raise ConfigurationError(f"nulls={nulls!r:.80}: expected 'mask' or 'fill'")
    changed: dict[str, Field] = {}
    for name, field in fields.items():
        change: Callable[[Field], Field] = masked if nulls == "mask" and f"{name}_valid" not in fields else filled
        changed[name] = change(field) if name in names else field
    return changed


def masked(field: Field) -> Field:
    """Return the field with a mask for its nulls; those in lists and packed groups, which have no masks, are filled.

    A tensor is filled if it is stored as lists, and if it has a mask already, which its nulls in lists do not pass. An
    image of any size is filled with one black pixel; if it is stored as a path, it stays as it is.
    """
    if isinstance(field, RaggedList):
        return replace(field, null="mask", item=filled(field.item))
    if isinstance(field, Group):
        if field.storage == "packed":
            return filled(field)
        return Group({name: masked(part) for name, part in field.members}, storage=field.storage)
    if isinstance(field, Image) and not field.is_fixed:
        return field if field.storage == "path" else replace(field, null="mask", fill=_BLACK_PIXEL)
    if isinstance(field, Encoded):
        return replace(field, null="mask")
    if isinstance(field, Tensor) and (field.storage == "list" or field.null == "mask"):
        return replace(field, null="mask", fill=_neutral(field.type, field.dtype))
    return replace(field, null="mask", fill=None)


def filled(field: Field) -> Field:
    """Return the field with a fill value for its nulls, unless it has a null policy.

    The value is NaN for floats, the lowest value for times (numpy's NaT for those of 64 bits), 0, False, or an empty
    value for types with a length. A `Category` is filled with its `unknown` word; without one it gets a mask, as arrays
    and images do.
    """
    if isinstance(field, RaggedList):
        return replace(field, fill=(), item=filled(field.item))
    if isinstance(field, Group):
        parts = {name: _filled_member(part) for name, part in field.members}
        return Group(parts, storage=field.storage)
    if policy_of(field) != "refuse":
        return field
    match field:
        case Scalar() | Tensor():
            return replace(field, fill=_neutral(field.type, field.dtype))
        case Text():
            return replace(field, fill="")
        case Bytes():
            return replace(field, fill=b"")
        case Category() if field.unknown is not None:
            return replace(field, fill=field.unknown)
        case _:
            return masked(field)


def lenient(field: Field) -> Field:
    """Return the field with a policy that accepts nulls, if it has none; tensors in lists cannot have one."""
    if isinstance(field, RaggedList) and not isinstance(field.item, Tensor):
        field = replace(field, item=lenient(field.item))
    if isinstance(field, Group) or policy_of(field) != "refuse":
        return field
    match field:
        case Tensor() | Encoded():
            return replace(field, null="mask")  # a fill value would also replace nulls among the elements
        case RaggedList():
            return replace(field, fill=())
        case Category():
            return replace(field, fill=field.vocabulary[0])
        case Scalar():
            return replace(field, fill=0)
        case Text():
            return replace(field, fill="")
        case Bytes() | Image() | Audio() | Video():
            empty: Any = "" if pa.types.is_string(field.arrow_type) else b""
            return replace(field, fill=empty)


def null_levels(array: pa.ChunkedArray) -> tuple[bool, ...]:
    """Return whether a stored column has nulls at each level: among its rows, the items of its lists, and so on."""
    found = [array.null_count > 0]
    while pa.types.is_list(array.type):
        array = pa.chunked_array([list_values(chunk) for chunk in array.chunks], array.type.value_type)
        found.append(array.null_count > 0)
    return tuple(found)


def _filled_member(part: Scalar | Category) -> Field:
    """Fill a member of a group, whose members cannot have masks unless all of them do."""
    if isinstance(part, Category) and part.unknown is None and policy_of(part) == "refuse":
        return replace(part, fill=part.vocabulary[0])
    return filled(part)


def _neutral(type_: pa.DataType, dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "f":
        return math.nan
    if pa.types.is_temporal(type_):
        return int(np.iinfo(dtype).min)
    return False if dtype.kind == "b" else 0


def source_of(fields: Mapping[str, Field], *, extra: str = "refuse", comments: Mapping[str, str] | None = None) -> str:
    """Return Python statements that make a schema and call it ``schema``.

    Args:
        fields: By name.
        extra: As in `Schema`.
        comments: Comments to write after some of the fields, by name.
    """
    lines = []
    for name, field in fields.items():
        comment = (comments or {}).get(name)
        lines.append(f"        {name!r}: {describe(field)},{f'  # {comment}' if comment else ''}")
    text = "\n".join(lines)
    kinds = [Audio, Bytes, Category, Encoded, Group, Image, RaggedList, Scalar, Tensor, Text, Video]
    used = sorted(["Schema", *(kind.__name__ for kind in kinds if f"{kind.__name__}(" in text)])
    numbers = [name for name in ("inf", "nan") if f"={name}" in text or f"=-{name}" in text]
    begin = [f"from math import {', '.join(numbers)}", ""] if numbers else []
    end = [] if extra == "refuse" else [f"    extra={extra!r},"]
    return "\n".join(
        [
            *begin,
            f"from parquet_loader import {', '.join(used)}",
            "",
            "schema = Schema(",
            "    {",
            text,
            "    },",
            *end,
            ")",
        ]
    )
