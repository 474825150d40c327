"""The rules by which a file without a schema loads: from an Arrow type to the fields that deliver it."""

from __future__ import annotations

import math

import pyarrow as pa

from parquet_loader.errors import SchemaError
from parquet_loader.schema.arrow_types import is_scalar_type
from parquet_loader.schema.fields import Bytes, Field, RaggedList, Scalar, Tensor, Text

_HINT = "leave it out with columns=[...], or write it as a type that a tensor can hold"


def infer_fields(field: pa.Field, prefix: str = "") -> dict[str, Field]:
    """Return the fields that deliver one column of a file that carries no schema, by delivered name.

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
    null, interval, union                `SchemaError`
    ==================================== =========================================================================

    Args:
        field: The column.
        prefix: Dotted name of the struct it stands in, with the dot at the end.

    Raises:
        SchemaError: no tensor can hold the type; the message names column and type.
    """
    return _leaves(field.type, prefix + field.name)


def plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the type behind dictionaries, run-end encoding and extension types."""
    while True:
        if isinstance(type_, pa.BaseExtensionType):
            type_ = type_.storage_type
        elif pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
            type_ = type_.value_type
        else:
            return type_


def is_list_like(type_: pa.DataType) -> bool:
    """Whether a value of the type is a list, of fixed or varying length."""
    t = pa.types
    return bool(
        t.is_list(type_)
        or t.is_large_list(type_)
        or t.is_list_view(type_)
        or t.is_large_list_view(type_)
        or t.is_fixed_size_list(type_)
    )


def is_text(type_: pa.DataType) -> bool:
    """Whether a value of the type is text."""
    t = pa.types
    return bool(t.is_string(type_) or t.is_large_string(type_) or t.is_string_view(type_))


def is_bytes(type_: pa.DataType) -> bool:
    """Whether a value of the type is bytes of any length."""
    t = pa.types
    return bool(t.is_binary(type_) or t.is_large_binary(type_) or t.is_binary_view(type_))


def _leaves(type_: pa.DataType, name: str) -> dict[str, Field]:
    if isinstance(type_, pa.FixedShapeTensorType) and is_element(type_.value_type):
        return {name: _tensor(type_.value_type, _logical_shape(type_))}
    type_ = plain_type(type_)
    if is_scalar_type(type_):
        return {name: _scalar(type_)}
    if is_text(type_):
        return {name: Text()}
    if is_bytes(type_):
        return {name: Bytes()}
    if pa.types.is_fixed_size_binary(type_) and type_.byte_width > 0:
        return {name: Tensor("uint8", (type_.byte_width,))}
    if pa.types.is_struct(type_) and type_.num_fields > 0:
        return _children(type_, name)
    if pa.types.is_map(type_):
        pairs = pa.struct([pa.field("key", type_.key_type), pa.field("value", type_.item_type)])
        return {n: RaggedList(f) for n, f in _children(pairs, name).items()}
    if is_list_like(type_):
        fixed = _fixed_shape(type_)
        if fixed is not None:
            return {name: _tensor(*fixed)}
        return {n: RaggedList(f) for n, f in _leaves(type_.value_type, name).items()}
    raise SchemaError(f"column {name!r} has the type {type_}, which no tensor can hold; {_HINT}")


def _children(struct: pa.DataType, name: str) -> dict[str, Field]:
    found: dict[str, Field] = {}
    for child in (struct.field(i) for i in range(struct.num_fields)):
        for leaf, field in _leaves(child.type, f"{name}.{child.name}").items():
            if leaf in found:
                raise SchemaError(f"column {leaf!r}: there are two of this name; {_HINT}")
            found[leaf] = field
    return found


def _scalar(type_: pa.DataType) -> Scalar:
    return Scalar(type_, fill=math.nan if pa.types.is_floating(type_) else None)


def _tensor(type_: pa.DataType, shape: tuple[int, ...]) -> Tensor:
    return Tensor(type_, shape, fill=math.nan if pa.types.is_floating(type_) else None, storage="list")


def is_element(type_: pa.DataType) -> bool:
    """Whether a tensor of fixed shape may have elements of the type."""
    return bool(pa.types.is_boolean(type_) or pa.types.is_integer(type_) or pa.types.is_floating(type_))


def _fixed_shape(type_: pa.DataType) -> tuple[pa.DataType, tuple[int, ...]] | None:
    """Return element type and shape of fixed-size lists of numbers, None for any other list."""
    shape: list[int] = []
    while pa.types.is_fixed_size_list(type_):
        shape.append(type_.list_size)
        type_ = plain_type(type_.value_type)
    return (type_, tuple(shape)) if is_element(type_) and all(n > 0 for n in shape) and shape else None


def _logical_shape(type_: pa.FixedShapeTensorType) -> tuple[int, ...]:
    order = type_.permutation
    return tuple(type_.shape) if order is None else tuple(type_.shape[axis] for axis in order)
