"""Infers the fields of a file without a schema from its Arrow types."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from parquet_loader.errors import SchemaError
from parquet_loader.schema.arrow_types import is_bytes, is_element, is_list_like, is_scalar_type, is_text, plain_type
from parquet_loader.schema.features import fields_of_feature, hub_features, tensor_of_lists
from parquet_loader.schema.fields import Bytes, Field, RaggedList, Scalar, Tensor, Text

NOT_UNDERSTOOD_KEY = b"parquet_loader.not_understood"
"""Key in the metadata of an Arrow field: JSON object from dotted names below it to Parquet types that Arrow lacks."""

_TWICE = "leave both out with columns=[...], or rename one of them"
_HINT = "leave it out with columns=[...], or write it as a type that a tensor can hold"
_INDEX_COLUMN = re.compile(r"__index_level_\d+__|__null_dask_index__")


def is_index_column(name: str) -> bool:
    """Whether pandas or Dask generated the name for an unnamed index; such columns are read only if selected."""
    return _INDEX_COLUMN.fullmatch(name) is not None


def infer_fields(
    field: pa.Field, is_wanted: Callable[[str], bool] = lambda _: True, feature: Any = None
) -> dict[str, Field]:
    """Return the fields that deliver one column of a file without a schema, by delivered name.

    ==================================== =========================================================================
    Arrow type                           field
    ==================================== =========================================================================
    bool, integers, decimals, dates,     `Scalar`, nulls refused
    times, timestamps, durations
    floats                               `Scalar` with nulls as NaN
    string, large_string, string_view    `Text`
    binary, large_binary, binary_view    `Bytes`
    fixed_size_binary(n)                 `Tensor` of uint8, shape ``(n,)``
    fixed-size list of bool or numbers   `Tensor`; lists in lists give more dimensions; nulls as NaN for floats
    list, large_list, views, and other   `RaggedList` of what the item gives
    fixed-size lists
    struct                               what its children give, as dotted names: ``"point.x"``
    list of structs                      a `RaggedList` for each leaf, as dotted names
    map                                  as list of structs ``"name.key"``, ``"name.value"``
    dictionary, run-end encoded          as the type of their values
    extension types                      fixed-shape tensor: `Tensor`; JSON: `Text`; others: as their storage
    null, interval, union, and columns   `SchemaError`
    marked with `NOT_UNDERSTOOD_KEY`
    ==================================== =========================================================================

    Args:
        field: The column.
        is_wanted: Whether to return the leaf of a dotted name; the types of other leaves are ignored.
        feature: The column's feature from the `datasets` library; see `hub_features`.

    Raises:
        SchemaError: no tensor can hold the type; the message names column and type.
    """
    unknown = json.loads((field.metadata or {}).get(NOT_UNDERSTOOD_KEY, b"{}"))
    if feature is not None and not unknown and is_wanted(field.name):
        by_feature = fields_of_feature(
            field.type, field.name, feature, lambda type_, name: _leaves(type_, name, {}, lambda _: True)
        )
        if by_feature is not None:
            return {name: found for name, found in by_feature.items() if is_wanted(name)}
    return _leaves(field.type, field.name, unknown, is_wanted)


def infer_columns(
    schema: pa.Schema, is_wanted: Callable[[str], bool] | None = None, features: Mapping[str, Any] | None = None
) -> dict[str, Field]:
    """Return the fields that deliver the columns of a file without a schema, by delivered name.

    Args:
        schema: The columns.
        is_wanted: As in `infer_fields`; None selects all but unnamed index columns of pandas and Dask.
        features: Features from the `datasets` library; None takes them from the metadata of the schema.

    Raises:
        SchemaError: no tensor can hold the type of a column, two columns share a name, or a name is empty.
    """
    found: dict[str, Field] = {}
    features = hub_features(schema) if features is None else features
    for column in schema:
        if is_wanted is None and is_index_column(column.name):
            continue
        for name, field in infer_fields(
            column, is_wanted=is_wanted or (lambda _: True), feature=features.get(column.name)
        ).items():
            if name in found:
                raise SchemaError(f"column {name!r}: there are two of this name; {_TWICE}")
            if not column.name:
                raise SchemaError("column '': its name is empty; leave it out with columns=[...], or give it a name")
            found[name] = field
    return found


def nodes(type_: pa.DataType, name: str) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the delivered dotted name and plain type of a column and its nested fields, in the file's order."""
    type_ = plain_type(type_)
    yield name, type_
    if pa.types.is_map(type_):
        yield from nodes(type_.key_type, f"{name}.key")
        yield from nodes(type_.item_type, f"{name}.value")
    elif is_list_like(type_):
        yield from nodes(type_.value_type, name)
    elif pa.types.is_struct(type_):
        for child in (type_.field(i) for i in range(type_.num_fields)):
            yield from nodes(child.type, f"{name}.{child.name}")


def heads(name: str) -> Iterator[str]:
    """Yield a dotted name and each of its prefixes: the names that select it."""
    yield name
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _leaves(
    type_: pa.DataType, name: str, unknown: Mapping[str, str], is_wanted: Callable[[str], bool]
) -> dict[str, Field]:
    if isinstance(type_, pa.FixedShapeTensorType) and is_element(type_.value_type):
        return {name: tensor_of_lists(type_.value_type, _logical_shape(type_))} if is_wanted(name) else {}
    type_ = plain_type(type_)
    if name in unknown and _leaves(type_, name, {}, is_wanted):
        raise SchemaError(f"column {name!r} has the Parquet type {unknown[name]}, which no tensor can hold; {_HINT}")
    if pa.types.is_struct(type_) and type_.num_fields > 0:
        return _children(type_, name, unknown, is_wanted)
    if pa.types.is_map(type_):
        pairs = pa.struct([pa.field("key", type_.key_type), pa.field("value", type_.item_type)])
        return {n: RaggedList(f) for n, f in _children(pairs, name, unknown, is_wanted).items()}
    if is_list_like(type_):
        fixed = _fixed_shape(type_)
        if fixed is not None:
            return {name: tensor_of_lists(*fixed)} if is_wanted(name) else {}
        return {n: RaggedList(f) for n, f in _leaves(type_.value_type, name, unknown, is_wanted).items()}
    if not is_wanted(name):
        return {}
    if is_scalar_type(type_):
        return {name: _scalar(type_)}
    if is_text(type_):
        return {name: Text()}
    if is_bytes(type_):
        return {name: Bytes()}
    if pa.types.is_fixed_size_binary(type_) and type_.byte_width > 0:
        return {name: Tensor("uint8", (type_.byte_width,))}
    raise SchemaError(f"column {name!r} has the type {type_}, which no tensor can hold; {_HINT}")


def _children(
    struct: pa.DataType, name: str, unknown: Mapping[str, str], is_wanted: Callable[[str], bool]
) -> dict[str, Field]:
    found: dict[str, Field] = {}
    for child in (struct.field(i) for i in range(struct.num_fields)):
        for leaf, field in _leaves(child.type, f"{name}.{child.name}", unknown, is_wanted).items():
            if leaf in found:
                raise SchemaError(f"column {leaf!r}: there are two of this name; {_TWICE}")
            found[leaf] = field
    return found


def _scalar(type_: pa.DataType) -> Scalar:
    return Scalar(type_, fill=math.nan if pa.types.is_floating(type_) else None)


def _fixed_shape(type_: pa.DataType) -> tuple[pa.DataType, tuple[int, ...]] | None:
    """Return the element type and shape of fixed-size lists of numbers; None for other lists."""
    shape: list[int] = []
    while pa.types.is_fixed_size_list(type_):
        shape.append(type_.list_size)
        type_ = plain_type(type_.value_type)
    return (type_, tuple(shape)) if is_element(type_) and all(n > 0 for n in shape) and shape else None


def _logical_shape(type_: pa.FixedShapeTensorType) -> tuple[int, ...]:
    order = type_.permutation
    return tuple(type_.shape) if order is None else tuple(type_.shape[axis] for axis in order)
