"""The canonical Arrow columns of a schema, which have no nulls, and their delivered form.

Between `decode` and `collate` all rows have these columns, whatever file they come from: numbers of the delivered dtype
(bool as uint8), raw bytes of fixed width for tensors and groups, lists and binaries for ragged fields.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from parquet_loader.schema import (
    Audio,
    Bytes,
    Category,
    Encoded,
    Field,
    Group,
    Image,
    RaggedList,
    Scalar,
    Schema,
    Tensor,
    Text,
    Video,
    policy_of,
    unpacked_field,
)

Kind: TypeAlias = Literal["fixed", "list", "text", "bytes", "image"]


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """One canonical column.

    Attributes:
        name: Key in the batch.
        kind: ``"fixed"`` for arrays of `dtype` and `shape`; the others are ragged.
        arrow_type: Canonical Arrow type.
        dtype: numpy dtype of the delivered elements; None for lists of ragged items.
        shape: Shape of one row (of one element, for lists).
        item: The column of a list's items; None if it is not a list.
        image: The field, for images and other arrays that are decoded batch by batch; else None.
        row_bytes: Bytes of a delivered row; None if rows differ.
    """

    name: str
    kind: Kind
    arrow_type: pa.DataType
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()
    item: Column | None = None
    image: Image | Audio | Video | Encoded | None = None
    row_bytes: int | None = dataclasses.field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.kind == "fixed" and self.dtype is not None:  # once: a window of 1,000 columns uses it 10,000 times
            object.__setattr__(self, "row_bytes", self.dtype.itemsize * math.prod(self.shape))

    @property
    def decoded_shape(self) -> tuple[int | None, ...]:
        """The shape of a row that is decoded batch by batch, None for lengths that vary; () for other columns."""
        if self.image is None:
            return ()
        return self.image.delivered_shape if isinstance(self.image, Image) else tuple(self.image.shape)

    @property
    def is_ragged(self) -> bool:
        """Whether rows are bytes of varying length."""
        return bool(pa.types.is_large_binary(self.arrow_type))


def number_type(dtype: np.dtype[Any]) -> pa.DataType:
    """Return the canonical Arrow type of numbers of a delivered dtype: bool as uint8."""
    return pa.uint8() if dtype == np.bool_ else pa.from_numpy_dtype(dtype)


def columns_of(schema: Schema) -> tuple[Column, ...]:
    """Return the canonical columns of a schema: one for each field, in order, and a mask after each masked field."""
    found: list[Column] = []
    for name, field in schema.items():
        found.append(column_of(name, field))
        if policy_of(field) == "mask":
            found.append(mask_of(name, field))
    return tuple(found)


def column_of(name: str, field: Field) -> Column:
    """Return the canonical column of one field."""
    match field:
        case Scalar() | Category():
            return Column(name, "fixed", number_type(field.dtype), field.dtype)
        case Tensor():
            return Column(name, "fixed", pa.binary(field.width_bytes), field.dtype, tuple(field.shape))
        case Group():
            return Column(name, "fixed", pa.binary(field.width_bytes), field.dtype, (len(field.members),))
        case Text():
            return Column(name, "text", pa.large_binary(), np.dtype(np.uint8))
        case Bytes():
            return Column(name, "bytes", pa.large_binary(), np.dtype(np.uint8))
        case Image():
            return Column(name, "image", pa.large_binary(), field.delivered_dtype, image=field)
        case Audio() | Video():
            return Column(name, "image", pa.large_binary(), field.dtype, image=field)
        case Encoded():
            unpacked = unpacked_field(field)
            if unpacked is None:
                return Column(name, "image", pa.large_binary(), field.dtype, image=field)
            return column_of(name, unpacked)
        case RaggedList():
            item = column_of(name, field.item)
            # Rows of fixed-width items are copied as bytes; lists of ragged items stay Arrow lists.
            rows = pa.large_binary() if item.kind == "fixed" else pa.large_list(item.arrow_type)
            return Column(name, "list", rows, item.dtype, (), item)


def mask_of(name: str, field: Field) -> Column:
    """Return the mask column of a masked field: bool, True if there is a value."""
    if isinstance(field, Group):
        width = len(field.members)
        return Column(f"{name}_valid", "fixed", pa.binary(width), np.dtype(np.bool_), (width,))
    return Column(f"{name}_valid", "fixed", pa.uint8(), np.dtype(np.bool_))
