"""Splits nested columns into the dotted columns that `infer_fields` names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from parquet_loader.schema.arrow_types import is_list_like, plain_type
from parquet_loader.schema.encode.columns import split_lists
from parquet_loader.schema.encode.inputs import plain_storage


def is_nested(type_: pa.DataType) -> bool:
    """Whether a column of the type is delivered as several columns with dotted names."""
    type_ = plain_type(type_)
    if is_list_like(type_):
        return is_nested(type_.value_type)
    return bool(pa.types.is_struct(type_) or pa.types.is_map(type_))


def leaf_columns(name: str, array: pa.Array) -> dict[str, pa.Array]:
    """Return the columns that a nested one is delivered as; a null struct makes its leaves null."""
    array = plain_storage(array)
    if not is_nested(array.type):
        return {name: array}
    found: dict[str, pa.Array] = {}
    if pa.types.is_struct(array.type):
        for i, child in enumerate(array.flatten()):
            found |= leaf_columns(f"{name}.{array.type.field(i).name}", child)
        return found
    if pa.types.is_map(array.type):
        offsets = array.offsets.to_numpy()
        length = int(offsets[-1] - offsets[0])
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        for part, child in (("key", array.keys), ("value", array.items)):
            lists = _lists(offsets - offsets[0], child.slice(offsets[0], length), valid)
            found |= leaf_columns(f"{name}.{part}", lists)
        return found
    offsets, items, valid = split_lists(array)
    for leaf, child in leaf_columns(name, items).items():
        found[leaf] = _lists(offsets, child, valid)
    return found


def _lists(offsets: np.ndarray[Any, Any], items: pa.Array, valid: np.ndarray[Any, Any] | None) -> pa.Array:
    mask = None if valid is None or valid.all() else pa.array(~valid)
    return pa.LargeListArray.from_arrays(pa.array(offsets.astype(np.int64)), items, mask=mask)
