"""Compares what two fields say of the numbers in raw bytes, which no type of Arrow describes."""

from __future__ import annotations

import pyarrow as pa

from parquet_loader.schema.arrow_types import is_bytes, is_list_like, plain_type
from parquet_loader.schema.fields import (
    Category,
    Encoded,
    Field,
    Group,
    RaggedList,
    Scalar,
    Tensor,
    unpacked_field,
)


def raw_difference(stored: Field | None, field: Field, type_: pa.DataType, owner: str = "file") -> str | None:
    """Return how the numbers differ that raw bytes of an Arrow type hold as either field; None if they do not.

    Args:
        stored: The field in the metadata of the file or table; None if they do not name it.
        field: The field of the caller's schema.
        type_: The column's type; all but bytes, and lists of bytes, say themselves what they hold.
        owner: What has the metadata, for messages.
    """
    type_ = plain_type(type_)
    if is_list_like(type_):
        if not isinstance(stored, RaggedList) or not isinstance(field, RaggedList):
            return None
        return raw_difference(stored.item, field.item, type_.value_type, owner)
    if not is_bytes(type_) and not pa.types.is_fixed_size_binary(type_):
        return None
    numbers = unpacked_field(field) if isinstance(field, Encoded) else field
    if isinstance(stored, Group) and isinstance(field, Group):
        return _group_difference(stored, field, owner)
    if isinstance(stored, Tensor | Group) and isinstance(numbers, Tensor | Group) and stored.dtype != numbers.dtype:
        return f"the {owner} has raw {stored.dtype} numbers, the schema {numbers.dtype}"
    return None


def _group_difference(stored: Group, group: Group, owner: str) -> str | None:
    for number, ((own, part), (name, wanted)) in enumerate(zip(stored.members, group.members, strict=False)):
        if own not in (name, *wanted.aliases):
            return f"member {number} of the packed group is {own!r} in the {owner} and {name!r} in the schema"
        if _number_kind(part) != _number_kind(wanted):
            return f"member {own!r} of the packed group is {part!r} in the {owner} and {wanted!r} in the schema"
        if isinstance(part, Category) and isinstance(wanted, Category) and part.vocabulary != wanted.vocabulary:
            return f"the packed group holds codes of member {own!r} in another vocabulary than the schema's"
    return None


def _number_kind(field: Scalar | Category) -> object:
    return field.type if isinstance(field, Scalar) else field.dtype
